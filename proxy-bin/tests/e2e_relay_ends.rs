//! Why tunnels end: the access log names the reason and counts every byte; dead
//! peers are looked for.

mod support;

use std::io::{ErrorKind, Read, Write};
use std::time::Duration;

use support::{Accepted, Conn, DOWN, Ended, LogLine, Mode, Origin, Proxyd, UP, wait_for};

/// How many bytes passed upwards and downwards.
type Counts = (u64, u64);

#[test]
fn a_client_that_ends_first() {
    ends_with("", "client-finished", |_, near, far| {
        UP.send(&near, 0, 100_003).unwrap();
        near.fin();
        UP.check_all(&far, 100_003).unwrap();
        DOWN.send(&far, 0, 200_003).unwrap();
        far.fin();
        DOWN.check_all(&near, 200_003).unwrap();
        (100_003, 200_003)
    });
}

#[test]
fn an_origin_that_ends_first() {
    ends_with("", "origin-finished", |_, near, far| {
        DOWN.send(&far, 0, 200_003).unwrap();
        far.fin();
        DOWN.check_all(&near, 200_003).unwrap();
        UP.send(&near, 0, 100_003).unwrap();
        near.fin();
        UP.check_all(&far, 100_003).unwrap();
        (100_003, 200_003)
    });
}

#[test]
fn a_client_that_resets() {
    ends_with("", "client-reset", |_, near, far| {
        let counts = chat(&near, &far);
        near.reset();
        assert_eq!(far.rest(), (Vec::new(), Ended::Reset));
        counts
    });
}

#[test]
fn an_origin_that_resets() {
    ends_with("", "origin-reset", |mode, near, far| {
        let counts = chat(&near, &far);
        far.reset();
        let (more, how) = near.rest();
        assert_eq!(more, b"");
        // Over TLS the end without close_notify tells it as well.
        assert!(how == Ended::Reset || mode.is_tls() && how == Ended::Truncated);
        counts
    });
}

#[test]
fn p46_a_tunnel_at_rest() {
    ends_with("timeouts.tunnel = \"3s\"", "idle", |mode, near, far| {
        let counts = chat(&near, &far);
        assert_eq!(near.rest(), (Vec::new(), let_go(mode)));
        assert_eq!(far.to_end(), b"");
        counts
    });
}

#[test]
fn p45_a_tunnel_with_one_end_left() {
    let toml = "timeouts.half_closed = \"1s\"";
    ends_with(toml, "half-closed", |mode, near, far| {
        let counts = chat(&near, &far);
        near.fin();
        assert_eq!(far.to_end(), b"");
        assert_eq!(near.rest(), (Vec::new(), let_go(mode)));
        counts
    });
    ends_with(toml, "half-closed", |_, near, far| {
        let counts = chat(&near, &far);
        far.fin();
        assert_eq!(near.to_end(), b"");
        assert_eq!(far.to_end(), b"");
        counts
    });
}

#[test]
fn tunnels_that_outlast_the_time_to_drain() {
    let (origin, accepted) = Origin::manual();
    let proxy = logging(origin.address, "drain = \"300ms\"");
    let tunnels = Mode::ALL.map(|mode| {
        let near = mode.open(&proxy, origin.address);
        let far = Accepted::next(&accepted);
        let counts = chat(&near, &far);
        (near, far, counts)
    });
    let stopped = proxy.stop();
    let lines = LogLine::all(&stopped.stdout);
    assert_eq!(lines.len(), tunnels.len(), "{lines:?}");
    for (near, far, counts) in tunnels {
        let line = line_of(&near, &lines);
        assert_eq!((&*line.text("end"), counted(line)), ("drained", counts));
        // More may have been to come.
        assert_ne!(near.rest().1, Ended::Finished);
        assert_eq!(far.rest().1, Ended::Reset);
    }
}

/// In each mode a client that takes nothing, and an origin that does not.
#[test]
fn p45_a_side_that_takes_nothing_while_the_other_direction_is_lively() {
    let (origin, accepted) = Origin::manual();
    let proxy = logging(origin.address, "timeouts.stalled = \"1s\"");
    let all = Mode::ALL.map(|mode| [true, false].map(|by_origin| (mode, by_origin)));
    let tunnels: Vec<_> = all
        .into_iter()
        .flatten()
        .map(|(mode, by_origin)| {
            let near = mode.open(&proxy, origin.address);
            (mode, by_origin, near, Accepted::next(&accepted))
        })
        .collect();
    let seen: Vec<(u64, u64)> = std::thread::scope(|scope| {
        let press = |(_, by_origin, near, far): &'_ (Mode, bool, Conn, Conn)| match by_origin {
            true => press(far, near),
            false => press(near, far),
        };
        let running: Vec<_> = tunnels
            .iter()
            .map(|tunnel| scope.spawn(move || press(tunnel)))
            .collect();
        let ended = running.into_iter().map(|tunnel| tunnel.join().unwrap());
        ended.collect()
    });
    proxy.settle();
    drop(origin);
    let stopped = proxy.finish();
    let lines = LogLine::all(&stopped.stdout);
    for ((mode, by_origin, near, far), (heard, sent)) in tunnels.iter().zip(seen) {
        let line = line_of(near, &lines);
        assert_eq!(line.text("end"), "write-stalled", "{mode:?} {line:?}");
        let (up, down) = counted(line);
        let (lively, pressed, silent) = match by_origin {
            true => (up, down, near),
            false => (down, up, far),
        };
        // What was on its way when the tunnel was cut need not have arrived.
        assert!((heard..=heard + 1).contains(&lively), "{heard}: {line:?}");
        let came = silent.rest().0.len() as u64;
        assert!((came..=sent).contains(&pressed), "{came} {sent}: {line:?}");
        assert!(pressed > 0);
    }
}

#[test]
fn p45_silent_peers_are_probed_on_both_sides_of_a_tunnel() {
    let (origin, accepted) = Origin::manual();
    for (toml, timer) in [("", "02"), ("timeouts.tcp_keepalive = \"never\"", "00")] {
        let proxy = logging(origin.address, toml);
        for mode in Mode::ALL {
            let near = mode.open(&proxy, origin.address);
            let far = Accepted::next(&accepted);
            chat(&near, &far);
            for end in [&near, &far] {
                wait_for("the timer of a socket", || timer_of_peer(end) == timer);
            }
        }
        proxy.finish();
    }
}

/// What the kernel waits for at the other end of a connection over IPv4: "02"
/// is the time to probe a silent peer, "00" nothing.
fn timer_of_peer(conn: &Conn) -> String {
    let port = |address: std::net::SocketAddr| format!(":{:04X}", address.port());
    let (own, peer) = (port(conn.local()), port(conn.peer()));
    let table = std::fs::read_to_string("/proc/net/tcp").expect("a table");
    let mut sockets = table
        .lines()
        .map(|line| line.split_whitespace().collect::<Vec<_>>());
    let socket = sockets.find(|line| line[1].ends_with(&peer) && line[2].ends_with(&own));
    // A table that changes while it is read may lack lines.
    socket.map_or_else(String::new, |line| line[5][..2].to_owned())
}

/// Sends to `silent`, which reads nothing, all that the tunnel takes, while
/// `silent` itself is lively, until both are cut off. How many bytes came from
/// `silent`, and at most how many the tunnel took for it.
fn press(source: &Conn, silent: &Conn) -> (u64, u64) {
    std::thread::scope(|scope| {
        let pressing = scope.spawn(move || {
            let (mut to, mut sent, chunk) = (source, 0, DOWN.first(64 * 1024));
            loop {
                match to.write(chunk) {
                    Ok(count) => sent += count as u64,
                    // Part of it may have gone.
                    Err(error) if is_cut(error.kind()) => return sent + chunk.len() as u64,
                    Err(error) => panic!("not cut: {error}"),
                }
            }
        });
        let (mut to, mut from, mut heard) = (silent, source, 0);
        let error = loop {
            if let Err(error) = to.write_all(b"!") {
                break error;
            }
            if let Err(error) = from.read_exact(&mut [0]) {
                break error;
            }
            heard += 1;
            std::thread::sleep(Duration::from_millis(20));
        };
        assert!(is_cut(error.kind()), "{error}");
        (heard, pressing.join().expect("no panic"))
    })
}

/// How a client sees that its tunnel was given up with nothing under way: over
/// TLS nobody says that it is finished.
fn let_go(mode: Mode) -> Ended {
    match mode.is_tls() {
        true => Ended::Truncated,
        false => Ended::Finished,
    }
}

/// A reset is told once, to whoever asks first, and then as an end.
fn is_cut(kind: ErrorKind) -> bool {
    matches!(
        kind,
        ErrorKind::BrokenPipe | ErrorKind::ConnectionReset | ErrorKind::UnexpectedEof
    )
}

/// Some bytes both ways, which arrive.
fn chat(near: &Conn, far: &Conn) -> Counts {
    near.send("question");
    far.expect("question");
    far.send("the answer");
    near.expect("the answer");
    (8, 10)
}

/// Opens a tunnel in each mode, lets `end` end them all, and expects `reason`
/// and the counts of `end` in the access log.
fn ends_with(toml: &str, reason: &str, end: impl Fn(Mode, Conn, Conn) -> Counts + Sync) {
    let (origin, accepted) = Origin::manual();
    let proxy = logging(origin.address, toml);
    let mut expected = std::thread::scope(|scope| {
        let running = Mode::ALL.map(|mode| {
            let near = mode.open(&proxy, origin.address);
            let client = near.local().to_string();
            let (far, end) = (Accepted::next(&accepted), &end);
            let counts = scope.spawn(move || end(mode, near, far));
            (client, counts)
        });
        running
            .map(|(client, counts)| (client, reason.to_owned(), counts.join().expect("no panic")))
    });
    drop(origin);
    let stopped = proxy.finish();
    let lines = LogLine::all(&stopped.stdout);
    let mut logged: Vec<_> = lines
        .iter()
        .map(|line| (line.text("client"), line.text("end"), counted(line)))
        .collect();
    logged.sort();
    expected.sort();
    assert_eq!(logged, expected);
}

fn logging(target: std::net::SocketAddr, toml: &str) -> Proxyd {
    let log = "log = { access = \"stdout\", format = \"json\" }";
    Proxyd::with_config(target, &format!("{log}\n{toml}\n"))
}

fn line_of<'l>(near: &Conn, lines: &'l [LogLine]) -> &'l LogLine {
    let client = near.local().to_string();
    let found = lines.iter().find(|line| line.text("client") == client);
    found.expect("a line of this client")
}

fn counted(line: &LogLine) -> Counts {
    let count = |key| line.number(key).expect("a count");
    (count("up"), count("down"))
}
