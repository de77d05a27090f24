//! One side ends and the other lives on: whoever is first, whatever is under
//! way, in every mode. The far end sees the same end, and the log tells it.

mod support;

use std::ops::RangeInclusive;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use support::{Conn, DOWN, Ended, LogLine, Origin, Passage, Pattern, Process, Proxyd, UP};

#[test]
fn p44_an_end_with_nothing_under_way() {
    each(|cell| {
        let chatted = cell.chat();
        cell.first.fin();
        assert_eq!(cell.second.to_end(), b"");
        cell.lives_on(chatted, chatted)
    });
}

#[test]
fn p44_an_end_without_a_byte() {
    each(|cell| {
        cell.first.fin();
        assert_eq!(cell.second.to_end(), b"");
        cell.second.fin();
        assert_eq!(cell.first.to_end(), b"");
        cell.kind.told("finished", 0..=0, 0..=0)
    });
}

#[test]
fn p44_an_end_behind_a_few_bytes() {
    each(|cell| {
        let pattern = cell.kind.patterns().0;
        pattern.send(&cell.first, 0, 1003).expect("sent");
        cell.first.fin();
        pattern.check_all(&cell.second, 1003).expect("all of it");
        cell.lives_on(1003, 0)
    });
}

/// What can be spliced is, and the pipe is full when the end comes.
#[test]
fn p44_p49_an_end_behind_megabytes_for_a_late_reader() {
    // One by one, so that a pipe is that of the tunnel looked at.
    let turn = Mutex::new(());
    each(|cell| {
        let _turn = turn.lock().expect("no other thread failed");
        let flow = Flow::default();
        let pattern = cell.kind.patterns().0;
        let all = std::thread::scope(|scope| {
            let sending = scope.spawn(|| {
                flow.send(pattern, &cell.first);
                cell.first.fin();
            });
            let look = |came| {
                let goes_on = !flow.is_last.load(Ordering::Relaxed);
                if goes_on && came >= MEGABYTES && cell.kind.is_spliced_by_now() {
                    flow.until_stuck();
                }
                assert!(came < 1 << 34, "never spliced");
            };
            let (came, how) = pattern.check_rest(&cell.second, look);
            sending.join().expect("no panic");
            assert_eq!((came, how), (flow.sent(), Ended::Finished));
            came
        });
        cell.lives_on(all, 0)
    });
}

#[test]
fn p44_a_reset_with_nothing_under_way() {
    each(|cell| {
        let chatted = cell.chat();
        cell.first.reset();
        let (more, how) = cell.second.rest();
        assert_eq!(more, b"");
        cell.kind.sees_reset(how);
        let all = chatted..=chatted;
        cell.kind.told("reset", all.clone(), all)
    });
}

/// A reset overtakes what the far end has not read yet, and nothing else.
#[test]
fn p44_a_reset_behind_megabytes_under_way() {
    each(|cell| {
        let pattern = cell.kind.patterns().0;
        let (first, second) = (cell.first, cell.second);
        let (came, how) = std::thread::scope(|scope| {
            scope.spawn(|| {
                pattern.send(&first, 0, MEGABYTES).expect("sent");
                first.reset();
            });
            pattern.check_rest(&second, |_| ())
        });
        cell.kind.sees_reset(how);
        cell.kind.told("reset", came..=MEGABYTES, 0..=0)
    });
}

#[test]
fn p44_a_reset_of_who_reads_megabytes() {
    each(|cell| {
        let pattern = cell.kind.patterns().1;
        let (first, second) = (cell.first, cell.second);
        let sent = std::thread::scope(|scope| {
            let sending = scope.spawn(|| {
                let mut sent = 0;
                while pattern.send(&second, sent, sent + CHUNK).is_ok() {
                    sent += CHUNK;
                }
                sent + CHUNK
            });
            pattern.check(&first, 0, 1 << 20).expect("as sent");
            first.reset();
            sending.join().expect("no panic")
        });
        cell.kind.told("reset", 0..=0, 1 << 20..=sent)
    });
}

#[test]
fn p45_the_side_that_is_left_has_a_time_of_its_own() {
    let toml = "timeouts.half_closed = \"3s\"";
    let quiet = |cell: Cell| {
        let chatted = cell.chat();
        cell.first.fin();
        assert_eq!(cell.second.to_end(), b"");
        // Each message gives it the whole time again.
        for round in 0..3 {
            std::thread::sleep(Duration::from_millis(1200));
            cell.second.send([round]);
            cell.first.expect([round]);
        }
        let (more, _) = cell.first.rest();
        assert_eq!(more, b"");
        let (first, second) = (chatted..=chatted, chatted + 3..=chatted + 3);
        cell.kind.told("half-closed", first, second)
    };
    each_with(toml, quiet);
}

/// One place in the matrix: what, and who ends first.
struct Kind {
    passage: Passage,
    by_client: bool,
    client: String,
    /// What the heads count for, up and down.
    heads: (u64, u64),
    process: Process,
    /// Ends of pipes that the process had from the start.
    pipes: usize,
}

struct Cell {
    kind: Kind,
    /// Who ends first.
    first: Conn,
    second: Conn,
}

/// What the log must say.
struct Told {
    client: String,
    end: String,
    up: RangeInclusive<u64>,
    down: RangeInclusive<u64>,
}

impl Cell {
    /// Some messages both ways, as many bytes each.
    fn chat(&self) -> u64 {
        for round in 0..3 {
            self.first.send([round; 1000]);
            self.second.expect([round; 1000]);
            self.second.send([round; 1000]);
            self.first.expect([round; 1000]);
        }
        3000
    }

    /// The first has ended behind `first` bytes; the second, which sent `second`,
    /// goes on for a while and ends.
    fn lives_on(&self, first: u64, second: u64) -> Told {
        let pattern = self.kind.patterns().1;
        let mut sent = 0;
        for size in [1, 700, 70_000, 2, 700_000] {
            std::thread::scope(|scope| {
                scope.spawn(|| pattern.send(&self.second, sent, sent + size).expect("sent"));
                let arrived = pattern.check(&self.first, sent, sent + size);
                arrived.expect("the other direction lives");
            });
            sent += size;
        }
        self.second.fin();
        assert_eq!(self.first.to_end(), b"");
        let second = second + sent;
        self.kind.told("finished", first..=first, second..=second)
    }
}

impl Kind {
    /// What the first sends, and the second.
    fn patterns(&self) -> (Pattern, Pattern) {
        match self.by_client {
            true => (UP, DOWN),
            false => (DOWN, UP),
        }
    }

    /// Nothing can be over TLS.
    fn is_spliced_by_now(&self) -> bool {
        self.passage.is_tls() || self.process.descriptors().pipes > self.pipes
    }

    /// Over TLS an end without close_notify tells it as well.
    fn sees_reset(&self, how: Ended) {
        let truncated = self.passage.is_tls() && !self.by_client && how == Ended::Truncated;
        assert!(truncated || how == Ended::Reset, "{how:?}");
    }

    /// That the first side did it, and how many bytes each one sent.
    fn told(&self, what: &str, first: RangeInclusive<u64>, second: RangeInclusive<u64>) -> Told {
        let who = match self.by_client {
            true => "client",
            false => "origin",
        };
        let end = match what {
            "finished" | "reset" => format!("{who}-{what}"),
            _ => what.to_owned(),
        };
        let (up, down) = match self.by_client {
            true => (first, second),
            false => (second, first),
        };
        let and = |count: RangeInclusive<u64>, head| count.start() + head..=count.end() + head;
        Told {
            client: self.client.clone(),
            end,
            up: and(up, self.heads.0),
            down: and(down, self.heads.1),
        }
    }
}

fn each(play: impl Fn(Cell) -> Told + Sync) {
    each_with("", play);
}

/// Plays in all places of the matrix at once and reads the log.
fn each_with(toml: &str, play: impl Fn(Cell) -> Told + Sync) {
    let (origin, accepted) = Origin::manual();
    let log = "log = { access = \"stdout\", format = \"json\" }";
    let proxy = Proxyd::with_config(origin.address, &format!("{log}\n{toml}\n"));
    let mut cells = Vec::new();
    for passage in Passage::all() {
        for by_client in [true, false] {
            let opened = passage.open(&proxy, &origin, &accepted);
            let kind = Kind {
                passage,
                by_client,
                client: opened.near.local().to_string(),
                heads: opened.heads,
                process: proxy.process(),
                pipes: proxy.base().pipes,
            };
            let (first, second) = match by_client {
                true => (opened.near, opened.far),
                false => (opened.far, opened.near),
            };
            cells.push(Cell {
                kind,
                first,
                second,
            });
        }
    }
    let told: Vec<_> = std::thread::scope(|scope| {
        let play = &play;
        let start = |cell: Cell| {
            let thread = std::thread::Builder::new();
            let kind = &cell.kind;
            let name = format!("{:?}, client first: {}", kind.passage, kind.by_client);
            let thread = thread.name(name).spawn_scoped(scope, || play(cell));
            thread.expect("a thread")
        };
        let running: Vec<_> = cells.into_iter().map(start).collect();
        let ended = running.into_iter().map(|cell| cell.join());
        ended.map(|cell| cell.expect("no panic")).collect()
    });
    drop(origin);
    let lines = LogLine::all(&proxy.finish().stdout);
    assert_eq!(lines.len(), told.len());
    for told in told {
        let line = LogLine::of(&told.client, &lines);
        let count = |key| line.number(key).expect("a count");
        assert_eq!(line.text("end"), told.end, "{line:?}");
        assert!(told.up.contains(&count("up")), "{:?}: {line:?}", told.up);
        assert!(
            told.down.contains(&count("down")),
            "{:?}: {line:?}",
            told.down
        );
    }
}

/// What somebody sends until it is enough.
#[derive(Default)]
struct Flow {
    sent: AtomicU64,
    is_last: AtomicBool,
}

impl Flow {
    fn send(&self, pattern: Pattern, to: &Conn) {
        while !self.is_last.load(Ordering::Relaxed) {
            let from = self.sent();
            pattern.send(to, from, from + CHUNK).expect("sent");
            self.sent.store(from + CHUNK, Ordering::Relaxed);
        }
    }

    fn sent(&self) -> u64 {
        self.sent.load(Ordering::Relaxed)
    }

    /// Waits until nothing goes any more, since nobody reads; the piece under
    /// way is the last.
    fn until_stuck(&self) {
        let mut sent = u64::MAX;
        while std::mem::replace(&mut sent, self.sent()) != self.sent() {
            std::thread::sleep(Duration::from_millis(50));
        }
        self.is_last.store(true, Ordering::Relaxed);
    }
}

const CHUNK: u64 = 256 * 1024;
const MEGABYTES: u64 = 4 << 20;
