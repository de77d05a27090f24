//! Damage between proxy and origin: clients see an answer or an honest
//! truncation in time, and nothing is left behind.

mod support;

use std::io::{Read, Write};
use std::sync::Mutex;
use std::time::{Duration, Instant};

use support::{
    Answer, Conn, Cut, DEADLINE, DOWN, Ended, Fault, FaultRelay, LogLine, Origin, Place, Proxyd,
    Stopped, UP,
};

use Fault::{Bandwidth, Blackhole, Drip, Latency};

/// How the body of an answer is told from what follows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Wire {
    Chunked,
    Close,
    Length,
    /// Chunked by the origin, for a client of HTTP/1.0.
    Unchunked,
}

#[derive(Clone, Copy, Debug)]
struct Case {
    fault: Fault,
    wire: Wire,
    /// Bytes of the request's body.
    upload: u64,
}

/// What a client must see, and what the log must say.
#[derive(Clone, Copy, Debug)]
struct Outcome {
    status: u16,
    /// `error` in `Proxy-Status`.
    error: &'static str,
    end: &'static str,
    /// Bytes of the body, and whether it looks complete.
    body: (usize, bool),
    /// A timeout has to pass.
    waits: bool,
}

const TIMEOUTS: &str = "timeouts.progress = \"2s\"\ntimeouts.tunnel = \"1s\"\n\
                        [log]\naccess = \"stdout\"\nformat = \"json\"\n";
/// A little less than the timeout.
const PATIENCE: Duration = Duration::from_millis(1700);
const BODY: usize = 4000;
/// How much of it gets through before a cut.
const PART: usize = 1000;
const WIRES: [Wire; 4] = [Wire::Chunked, Wire::Close, Wire::Length, Wire::Unchunked];
const CUTS: [Cut; 3] = [Cut::Close, Cut::Reset, Cut::Stall];

#[test]
fn p16_whatever_becomes_of_the_origin_the_client_sees_the_truth() {
    let mut faults = vec![
        Bandwidth(40_000),
        Blackhole,
        Drip,
        Latency(LATENCY),
        Fault::None,
    ];
    for cut in CUTS {
        faults.extend(
            [Place::Answer, Place::Body(PART), Place::Body(0)].map(|place| Fault::Cut(place, cut)),
        );
    }
    let wires = WIRES.into_iter();
    let cases = wires.flat_map(|wire| {
        let faults = faults.iter();
        faults.flat_map(move |&fault| {
            [0, 3000].map(|upload| Case {
                fault,
                wire,
                upload,
            })
        })
    });
    run(cases.collect());
}

#[test]
fn an_upload_that_is_cut_gets_an_answer_all_the_same() {
    let places = [0, 10, 3000, 300_000].map(Place::Request);
    let cases = CUTS.into_iter().flat_map(|cut| {
        places.map(|place| Case {
            fault: Fault::Cut(place, cut),
            wire: Wire::Length,
            upload: MUCH,
        })
    });
    let slow = [Bandwidth(40_000), Drip, Latency(LATENCY), Blackhole];
    let slow = slow.map(|fault| Case {
        fault,
        wire: Wire::Length,
        upload: MUCH,
    });
    run(cases.chain(slow).collect());
}

/// More than all buffers on the way take.
const MUCH: u64 = 24 << 20;
const LATENCY: Duration = Duration::from_millis(150);

fn run(cases: Vec<Case>) {
    let origin = origin();
    let proxy = Proxyd::with_config(origin.address, TIMEOUTS);
    let queue = Mutex::new(cases.iter().copied().enumerate());
    std::thread::scope(|scope| {
        for _ in 0..12 {
            scope.spawn(|| {
                loop {
                    let next = queue.lock().expect("no other thread failed").next();
                    let Some((index, case)) = next else { break };
                    case.run(index, &proxy, &origin);
                }
            });
        }
    });
    drop(origin);
    let stopped = proxy.finish();
    for (index, case) in cases.iter().enumerate() {
        let line = logged(&stopped, &format!("/{index}/"));
        let outcome = case.outcome();
        assert_eq!(line.text("end"), outcome.end, "{case:?}: {line:?}");
        assert_eq!(
            line.text("status"),
            outcome.status.to_string(),
            "{case:?}: {line:?}"
        );
    }
}

impl Case {
    fn run(self, index: usize, proxy: &Proxyd, origin: &Origin) {
        let relay = FaultRelay::start(origin.address, self.fault);
        let host = relay.address();
        let conn = Conn::dial(proxy.address("http"));
        let version = if self.wire == Wire::Unchunked {
            "1.0"
        } else {
            "1.1"
        };
        let (method, path) = match self.upload {
            0 => ("GET", format!("/{index}/{:?}", self.wire)),
            length => ("POST", format!("/{index}/{:?}?{length}", self.wire)),
        };
        let start = Instant::now();
        conn.send(format!(
            "{method} http://{host}{path} HTTP/{version}\r\nHost: {host}\r\n\
                 Content-Length: {}\r\n\r\n",
            self.upload
        ));
        let (answer, ended) = std::thread::scope(|scope| {
            scope.spawn(|| UP.send(&conn, 0, self.upload));
            receive(&conn, self.wire)
        });
        let outcome = self.outcome();
        let took = start.elapsed();
        let told = || {
            format!(
                "{self:?}: {}{} bytes, {ended:?}, {took:?}",
                answer.head,
                answer.body.len()
            )
        };
        assert_eq!(answer.status, outcome.status, "{}", told());
        assert!(!outcome.waits || took > PATIENCE, "{}", told());
        assert!(took < DEADLINE / 2, "{}", told());
        if outcome.status == 200 {
            let (length, whole) = outcome.body;
            assert_eq!(answer.body, DOWN.first(length as u64), "{}", told());
            assert_eq!(
                whole,
                matches!(ended, None | Some(Ended::Finished)),
                "{}",
                told()
            );
        } else {
            let said = answer.field("proxy-status").unwrap_or_default();
            assert!(
                said.contains(&format!("error={}", outcome.error)),
                "{}",
                told()
            );
        }
        relay.set(Fault::None);
        if ended.is_none() && self.upload != MUCH {
            works(&conn, host);
        }
        works(&Conn::dial(proxy.address("http")), host);
    }

    fn outcome(self) -> Outcome {
        let answer = |body, end| Outcome {
            status: 200,
            error: "",
            end,
            body,
            waits: false,
        };
        let error = |status, error, end| Outcome {
            status,
            error,
            end,
            body: (0, true),
            waits: status == 504,
        };
        let late = || match self.upload {
            MUCH => error(504, "connection_write_timeout", "write-stalled"),
            _ => error(504, "http_response_timeout", "origin-timeout"),
        };
        match self.fault {
            Bandwidth(_) | Drip | Latency(_) | Fault::None => answer((BODY, true), "completed"),
            Blackhole => late(),
            Fault::Cut(Place::Body(_), Cut::Close) if self.wire == Wire::Close => {
                // Nobody can tell it from an answer that was meant to be short.
                answer((self.part(), true), "completed")
            }
            Fault::Cut(Place::Body(_), Cut::Close | Cut::Reset) => {
                answer((self.part(), false), "truncated")
            }
            Fault::Cut(Place::Body(_), Cut::Stall) => Outcome {
                waits: true,
                ..answer((self.part(), false), "origin-timeout")
            },
            Fault::Cut(_, Cut::Stall) => late(),
            Fault::Cut(..) => error(502, "connection_terminated", "origin-reset"),
        }
    }

    /// Content that gets through before a cut in the body.
    fn part(self) -> usize {
        match (self.fault, self.wire) {
            (Fault::Cut(Place::Body(part), _), Wire::Chunked | Wire::Unchunked) => {
                part.saturating_sub(CHUNK_LINE.len())
            }
            (Fault::Cut(Place::Body(part), _), _) => part,
            _ => BODY,
        }
    }
}

#[test]
fn tunnels_end_as_their_origin_does() {
    let origin = Origin::start(|mut socket| {
        // The first bytes look like a head, so that the relay knows its place.
        let mut asked = [0; 4];
        while socket.read_exact(&mut asked).is_ok() {
            drop(socket.write_all(HELLO));
            drop(DOWN.send(socket, 0, BODY as u64));
        }
    });
    let proxy = Proxyd::with_config(origin.address, TIMEOUTS);
    let cut = |place| CUTS.map(|cut| Fault::Cut(place, cut));
    let mut faults = vec![
        Bandwidth(40_000),
        Drip,
        Latency(LATENCY),
        Fault::None,
        Blackhole,
    ];
    faults.extend(cut(Place::Answer));
    faults.extend(cut(Place::Body(PART)));
    faults.extend(cut(Place::Request(2)));
    let ports: Vec<_> = std::thread::scope(|scope| {
        let (proxy, origin) = (&proxy, &origin);
        let running = faults
            .iter()
            .map(|&fault| scope.spawn(move || tunnel(proxy, origin, fault)));
        let running: Vec<_> = running.collect();
        running
            .into_iter()
            .map(|thread| thread.join().expect("no panic"))
            .collect()
    });
    drop(origin);
    let stopped = proxy.finish();
    for (fault, port) in faults.into_iter().zip(ports) {
        let end = match fault {
            Blackhole | Fault::Cut(_, Cut::Stall) => "idle",
            Fault::Cut(_, Cut::Close) => "origin-finished",
            Fault::Cut(_, Cut::Reset) => "origin-reset",
            _ => "client-finished",
        };
        let line = logged(&stopped, &format!("127.0.0.1:{port}"));
        assert_eq!(line.text("end"), end, "{fault:?}: {line:?}");
    }
}

const HELLO: &[u8] = b"hello\r\n\r\n";

/// Asks through a tunnel, and says which port it led to.
fn tunnel(proxy: &Proxyd, origin: &Origin, fault: Fault) -> u16 {
    let relay = FaultRelay::start(origin.address, fault);
    let host = relay.address();
    let conn = Conn::dial(proxy.address("http"));
    conn.send(format!("CONNECT {host} HTTP/1.1\r\nHost: {host}\r\n\r\n"));
    assert_eq!(Answer::read_head(&conn).status, 200, "{fault:?}");
    conn.send("ask.");
    let whole = [HELLO, DOWN.first(BODY as u64)].concat();
    let (due, how) = match fault {
        Fault::Cut(Place::Body(part), how) => (HELLO.len() + part, Some(how)),
        Fault::Cut(_, how) => (0, Some(how)),
        Blackhole => (0, Some(Cut::Stall)),
        _ => (whole.len(), None),
    };
    assert!(conn.exact(due) == whole[..due], "{fault:?}");
    match how {
        None => conn.fin(),
        Some(Cut::Reset | Cut::Stall) => {}
        Some(Cut::Close) => {
            // Half-closed is still open for us; now all is over.
            assert_eq!(conn.to_end(), b"", "{fault:?}");
            conn.fin();
        }
    }
    let (more, ended) = conn.rest();
    assert_eq!(more, b"", "{fault:?}");
    if how == Some(Cut::Reset) {
        assert_eq!(ended, Ended::Reset, "{fault:?}");
    }
    host.port()
}

/// The answer, and how the connection ended if it did before the answer was
/// complete or to show that it is.
fn receive(conn: &Conn, wire: Wire) -> (Answer, Option<Ended>) {
    let mut answer = Answer::read_head(conn);
    let length = answer
        .field("content-length")
        .map(|text| text.parse().expect("a length"));
    let chunked = answer.field("transfer-encoding").is_some();
    assert_eq!(
        chunked,
        wire == Wire::Chunked && answer.status == 200,
        "{}",
        answer.head
    );
    let mut body = Vec::new();
    let complete = |body: &[u8]| match length {
        Some(length) => body.len() >= length,
        None => chunked && body.ends_with(LAST),
    };
    let mut ended = None;
    let mut stream = conn;
    while ended.is_none() && !complete(&body) {
        let mut piece = [0; 16 * 1024];
        match stream.read(&mut piece) {
            Ok(0) => ended = Some(Ended::Finished),
            Ok(count) => body.extend_from_slice(&piece[..count]),
            Err(_) => ended = Some(Ended::Reset),
        }
    }
    if ended == Some(Ended::Finished) && (length.is_some() || chunked) {
        // In order, but too early.
        ended = Some(Ended::Truncated);
    }
    if chunked {
        body = body.split_off(CHUNK_LINE.len().min(body.len()));
        if ended.is_none() {
            body.truncate(body.len() - LAST.len());
        }
    }
    answer.body = body;
    if ended.is_none() && answer.field("connection") == Some("close") {
        ended = Some(Ended::Finished);
    }
    (answer, ended)
}

const CHUNK_LINE: &[u8] = b"fa0\r\n";
const LAST: &[u8] = b"\r\n0\r\n\r\n";

/// Answers with [`BODY`] bytes, framed as the path says.
fn origin() -> Origin {
    Origin::start(|mut socket| {
        while let Ok(head) = support::take_head(&mut socket) {
            let field = |name: &str| head.lines().find_map(|line| line.strip_prefix(name));
            let length =
                field("Content-Length: ").map_or(0, |text| text.parse().expect("a length"));
            if UP.check(socket, 0, length).is_err() {
                return;
            }
            let (fields, end): (_, &[u8]) = match head.split([' ', '?']).nth(1) {
                Some(path) if path.ends_with("hunked") => {
                    ("Transfer-Encoding: chunked\r\n\r\nfa0\r\n", LAST)
                }
                Some(path) if path.ends_with("Close") => ("\r\n", b""),
                _ => ("Content-Length: 4000\r\n\r\n", b""),
            };
            let head = format!("HTTP/1.1 200 OK\r\n{fields}");
            let answer = [head.as_bytes(), DOWN.first(BODY as u64), end].concat();
            if socket.write_all(&answer).is_err() || fields == "\r\n" {
                return;
            }
        }
    })
}

/// The connection serves another request.
fn works(conn: &Conn, host: std::net::SocketAddr) {
    conn.send(format!(
        "GET http://{host}/next HTTP/1.1\r\nHost: {host}\r\n\r\n"
    ));
    let answer = Answer::read(conn);
    assert_eq!(answer.status, 200, "{}", answer.head);
    assert!(answer.body == DOWN.first(BODY as u64));
}

/// The one line whose target contains `part`.
fn logged(stopped: &Stopped, part: &str) -> LogLine {
    let lines = LogLine::all(&stopped.stdout);
    let mut lines = lines
        .into_iter()
        .filter(|line| line.text("target").contains(part));
    let line = lines
        .next()
        .unwrap_or_else(|| panic!("no line for {part}: {stopped}"));
    assert!(lines.next().is_none(), "two lines for {part}");
    line
}
