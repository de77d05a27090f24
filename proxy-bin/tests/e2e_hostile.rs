//! A long mix of hostile and honest clients and origins, made from a seed: the
//! honest ones are served all the time, and nothing is left of the others.
//!
//! `PROXYD_HOSTILE=100000` sets the number of requests, `PROXYD_BIN` another
//! binary.

mod support;

use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use socket2::SockRef;
use support::{Answer, Conn, NameServer, Origin, Proxyd, Random, basic, closed_port, find};

const CLIENTS: usize = 8;
const REQUESTS: usize = 5000;
/// Resident memory may have grown by this in the end.
const GROWN: u64 = 8 << 20;

#[test]
fn a_hostile_mix_leaves_nothing_behind() {
    let requests = std::env::var("PROXYD_HOSTILE").ok();
    let requests = requests.map_or(REQUESTS, |text| text.parse().expect("a number"));
    let honest = Origin::page("honest");
    let hostile = hostile_origin();
    let proxy = proxyd(&honest, &hostile);
    let world = World {
        proxy: proxy.address("http"),
        honest: honest.address,
        hostile: hostile.address,
        closed: closed_port(),
    };
    let start = Instant::now();
    // What is there for every first one does not count.
    world.run(requests / 10, 1);
    let before = proxy.process().resident();
    world.run(requests, 2);
    let took = start.elapsed();
    // Some wait for their timeout still; the honest one does not wait for them.
    let mut waits: Vec<Duration> = (0..21).map(|_| world.honest_request()).collect();
    let first = waits[0];
    waits.sort();
    let median = waits[waits.len() / 2];
    drop((honest, hostile));
    proxy.settle();
    let after = proxy.process().resident();
    println!(
        "{requests} requests in {took:?}; honest ones then: first {first:?}, median {median:?}; \
         resident {} KiB before, {} KiB after",
        before / 1024,
        after / 1024
    );
    assert!(median < Duration::from_millis(100), "{waits:?}");
    assert!(
        after < before + GROWN,
        "{before} bytes before, {after} after"
    );
    proxy.finish();
}

/// A configuration that lets nothing out but to our origins: chance makes all
/// kinds of targets.
fn proxyd(honest: &Origin, hostile: &Origin) -> Proxyd {
    let (names, ports) = (
        NameServer::start().address,
        [honest, hostile].map(|o| o.address.port()),
    );
    let toml = format!(
        "workers = 2\n\
         timeouts.head = \"1s\"\ntimeouts.progress = \"1s\"\ntimeouts.keep_alive = \"1s\"\n\
         timeouts.connect = \"1s\"\ntimeouts.tunnel = \"2s\"\ntimeouts.half_closed = \"1s\"\n\
         resolver = {{ servers = \"{names}\" }}\n\
         [[user]]\nname = \"alice\"\npassword = \"secret\"\n\
         [[rule]]\naction = \"allow\"\nnetworks = \"127.0.0.1\"\nports = [\"{}\", \"{}\"]\n\
         [[rule]]\naction = \"deny\"\n",
        ports[0], ports[1]
    );
    Proxyd::with_config(honest.address, &toml)
}

/// Where everybody is.
struct World {
    proxy: SocketAddr,
    honest: SocketAddr,
    hostile: SocketAddr,
    closed: SocketAddr,
}

impl World {
    /// So many requests of several clients at once.
    fn run(&self, requests: usize, seed: u64) {
        let made = AtomicUsize::new(0);
        std::thread::scope(|scope| {
            for client in 0..CLIENTS as u64 {
                let made = &made;
                scope.spawn(move || {
                    let mut random = Random::new(seed * 1_000_003 + client * 7919);
                    let mut parked = Vec::new();
                    let mut turn = 0;
                    while made.load(Ordering::Relaxed) < requests {
                        made.fetch_add(
                            self.hostile_requests(&mut random, &mut parked),
                            Ordering::Relaxed,
                        );
                        turn += 1;
                        if turn % 25 == 0 {
                            self.honest_request();
                            made.fetch_add(1, Ordering::Relaxed);
                        }
                    }
                });
            }
        });
    }

    /// An honest request is answered right; says how long it took.
    fn honest_request(&self) -> Duration {
        let start = Instant::now();
        let conn = Conn::dial(self.proxy);
        conn.send(self.request("GET", self.honest, ""));
        let answer = Answer::read(&conn);
        assert_eq!(
            (answer.status, &answer.body[..]),
            (200, &b"honest"[..]),
            "{}",
            answer.head
        );
        start.elapsed()
    }

    /// One hostile client; says how many requests it made.
    fn hostile_requests(&self, random: &mut Random, parked: &mut Vec<TcpStream>) -> usize {
        let Ok(socket) = TcpStream::connect(self.proxy) else {
            panic!("proxyd does not accept");
        };
        drop(socket.set_nodelay(true));
        drop(socket.set_write_timeout(Some(Duration::from_millis(200))));
        let (bytes, count) = self.bytes(random);
        send(&socket, &bytes, random);
        // Some are kept and left when chance says so.
        if random.below(8) == 0 {
            parked.push(socket);
            if parked.len() > 20 {
                let index = random.below(parked.len());
                leave(parked.swap_remove(index), random);
            }
        } else {
            leave(socket, random);
        }
        count
    }

    /// What a hostile client sends, and how many requests that are.
    fn bytes(&self, random: &mut Random) -> (Vec<u8>, usize) {
        let target = match random.below(3) {
            0 => self.honest,
            _ => self.hostile,
        };
        let many = 1 + random.below(12);
        let length = random.below(40_000);
        let text = match random.below(20) {
            0 => return (random.bytes(length % 600 + 1), 1),
            1 => self.request(
                "GET",
                target,
                &format!("A: {}\r\n", "x".repeat(length + 60_000)),
            ),
            2 => self.request("GET", target, &"A: b\r\n".repeat(length % 300)),
            3 => format!("GET http://{target}/{}", "u".repeat(length + 50_000)),
            4 => {
                self.request("POST", target, "Transfer-Encoding: chunked\r\n")
                    + BAD_CHUNKS[random.below(BAD_CHUNKS.len())]
            }
            5 => {
                return (
                    self.request("GET", target, "").repeat(many).into_bytes(),
                    many,
                );
            }
            6 => format!(
                "CONNECT {} HTTP/1.1\r\nHost: x\r\nProxy-Authorization: {}\r\n\r\n",
                self.closed,
                basic("alice:secret")
            ),
            7 => format!(
                "CONNECT denied.example:443 HTTP/1.1\r\nHost: x\r\nProxy-Authorization: {}\r\n\r\n",
                basic("alice:secret")
            ),
            8 => format!(
                "GET http://{target}/ HTTP/1.1\r\nHost: x\r\nProxy-Authorization: {}\r\n\r\n",
                basic(LOGINS[random.below(LOGINS.len())])
            ),
            9 => {
                self.request(
                    "GET",
                    target,
                    "Connection: Upgrade\r\nUpgrade: websocket\r\n",
                ) + "\u{1}\u{2}early"
            }
            10 => {
                let tunnel = format!(
                    "CONNECT {target} HTTP/1.1\r\nHost: x\r\nProxy-Authorization: {}\r\n\r\n",
                    basic("alice:secret")
                );
                return ([tunnel.as_bytes(), &random.bytes(length)].concat(), 1);
            }
            11 => {
                self.request(
                    "POST",
                    target,
                    &format!("Content-Length: {}\r\n", length * 2),
                ) + &"b".repeat(length)
            }
            12 => self.request(
                "PUT",
                target,
                "Expect: 100-continue\r\nContent-Length: 100\r\n",
            ),
            13 => self.request("HEAD", target, ""),
            14 => self
                .request("GET", target, "")
                .replace("HTTP/1.1", "HTTP/1.0"),
            _ => return (self.mutated(target, random), 1),
        };
        (text.into_bytes(), 1)
    }

    /// A request with some damage, and perhaps not all of it.
    fn mutated(&self, target: SocketAddr, random: &mut Random) -> Vec<u8> {
        let kinds = [
            self.request(
                "GET",
                target,
                "Accept: */*\r\nConnection: keep-alive, X\r\nX: y\r\n",
            ),
            self.request("POST", target, "Content-Length: 10\r\n") + "0123456789",
            self.request("POST", target, "Transfer-Encoding: chunked\r\n")
                + "5;x=y\r\nabcde\r\n0\r\nT: t\r\n\r\n",
            format!("CONNECT {target} HTTP/1.1\r\nHost: {target}\r\n\r\n"),
        ];
        let mut bytes = kinds[random.below(kinds.len())].clone().into_bytes();
        for _ in 0..random.below(6) {
            let at = random.below(bytes.len());
            match random.below(6) {
                0 => bytes[at] = random.bytes(1)[0],
                1 => drop(bytes.remove(at)),
                2 => bytes.insert(at, b"\r\n\0 :,;\t"[random.below(8)]),
                3 => {
                    let nasty = NASTY[random.below(NASTY.len())];
                    bytes.splice(at..at, nasty.bytes());
                }
                4 => {
                    let end = (at + random.below(40)).min(bytes.len());
                    let piece = bytes[at..end].to_vec();
                    let to = random.below(bytes.len());
                    bytes.splice(to..to, piece);
                }
                _ => bytes[at] ^= 1 << random.below(8),
            }
        }
        if random.below(3) == 0 {
            bytes.truncate(random.below(bytes.len()) + 1);
        }
        bytes
    }

    fn request(&self, method: &str, target: SocketAddr, fields: &str) -> String {
        let login = basic("alice:secret");
        format!(
            "{method} http://{target}/ HTTP/1.1\r\nHost: {target}\r\n\
                 Proxy-Authorization: {login}\r\n{fields}\r\n"
        )
    }
}

const LOGINS: [&str; 5] = ["alice:wrong", "nobody:x", ":", "alice", "alice:secret\0"];
const BAD_CHUNKS: [&str; 7] = [
    "zz\r\n",
    "5\nabcde\r\n0\r\n\r\n",
    "3\r\nabcdef\r\n0\r\n\r\n",
    "ffffffffffffffffffff\r\n",
    "5;\0\r\nabcde\r\n",
    "1\r\na\r\n0\r\nContent-Length: 5\r\n\r\n",
    "400000\r\nnot so many",
];
const NASTY: [&str; 14] = [
    "\r\n\r\n",
    "\r\n ",
    "\n",
    "Content-Length: 5\r\n",
    "Content-Length: 99999999999999999999\r\n",
    "Transfer-Encoding: chunked\r\n",
    "Host: x\r\n",
    "Connection: close\r\n",
    "Connection: content-length, host\r\n",
    "Upgrade: h2c\r\n",
    "HTTP/1.1",
    "http://",
    "%00%0d%0a",
    "\u{fffd}\u{202e}",
];

/// Sends in some pieces, and not to the end if the proxy takes no more.
fn send(mut socket: &TcpStream, bytes: &[u8], random: &mut Random) {
    let mut rest = bytes;
    let pieces = random.below(4);
    for _ in 0..pieces {
        let (piece, next) = rest.split_at(random.below(rest.len() + 1));
        if socket.write_all(piece).is_err() {
            return;
        }
        rest = next;
    }
    drop(socket.write_all(rest));
}

/// Leaves in one of several ways.
fn leave(mut socket: TcpStream, random: &mut Random) {
    let read = |socket: &mut TcpStream, time| {
        drop(socket.set_read_timeout(Some(Duration::from_millis(time))));
        drop(socket.read(&mut [0; 4096]));
    };
    match random.below(6) {
        0 => drop(socket),
        1 => drop(SockRef::from(&socket).set_linger(Some(Duration::ZERO))),
        2 => {
            drop(socket.shutdown(Shutdown::Write));
            read(&mut socket, 30);
        }
        3 => {
            read(&mut socket, 20);
            drop(SockRef::from(&socket).set_linger(Some(Duration::ZERO)));
        }
        4 => {
            // A late word.
            read(&mut socket, 5);
            drop(socket.write_all(b"GET / HTTP/1.1\r\n\r\n"));
        }
        _ => read(&mut socket, 40),
    }
}

/// Answers as chance has it.
fn hostile_origin() -> Origin {
    let count = AtomicUsize::new(0);
    let held = Arc::new(Mutex::new(Vec::new()));
    Origin::start(move |mut socket| {
        let mut random = Random::new(0xBAD + count.fetch_add(1, Ordering::Relaxed) as u64 * 31);
        drop(socket.set_write_timeout(Some(Duration::from_millis(300))));
        drop(socket.set_read_timeout(Some(Duration::from_secs(3))));
        let mut asked = Vec::new();
        loop {
            let mut piece = [0; 4096];
            let Ok(count @ 1..) = socket.read(&mut piece) else {
                return;
            };
            asked.extend_from_slice(&piece[..count]);
            if find(&asked, b"\r\n\r\n").is_none() && asked.len() < 10_000 {
                continue;
            }
            asked.clear();
            match random.below(24) {
                0 => return,
                1 => return drop(SockRef::from(socket).set_linger(Some(Duration::ZERO))),
                2 => {
                    // Silent, and open for a while.
                    let mut held = held.lock().expect("no panic");
                    held.push(socket.try_clone());
                    if held.len() > 30 {
                        drop(held.remove(0));
                    }
                    return;
                }
                _ => {}
            }
            let answer = answer(&mut random);
            let cut = match random.below(4) {
                0 => random.below(answer.len() + 1),
                _ => answer.len(),
            };
            if socket.write_all(&answer[..cut]).is_err() || cut < answer.len() {
                return;
            }
        }
    })
}

fn answer(random: &mut Random) -> Vec<u8> {
    let length = random.below(60_000);
    let ok = "HTTP/1.1 200 OK\r\n";
    let text = match random.below(18) {
        0 => return random.bytes(length % 3000 + 1),
        1 => format!("{ok}Content-Length: {length}\r\n\r\n{}", "b".repeat(length)),
        2 => format!(
            "{ok}Content-Length: {}\r\n\r\n{}",
            length + 1000,
            "b".repeat(length)
        ),
        3 => format!(
            "{ok}Content-Length: {}\r\n\r\n{}",
            length / 2,
            "b".repeat(length)
        ),
        4 => format!("{ok}Transfer-Encoding: chunked\r\n\r\n5\r\nabcde\r\n0\r\n\r\n"),
        5 => format!(
            "{ok}Transfer-Encoding: chunked\r\n\r\n\
             {}",
            BAD_CHUNKS[random.below(BAD_CHUNKS.len())]
        ),
        6 => "HTTP/1.1 100 Continue\r\n\r\n".repeat(length % 60),
        7 => format!("HTTP/1.1 103 Early Hints\r\nLink: x\r\n\r\n{ok}Content-Length: 0\r\n\r\n"),
        8 => "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\
             \r\nbytes"
            .into(),
        9 => format!("{ok}A: {}\r\n\r\n", "x".repeat(length * 2)),
        10 => format!("{ok}{}\r\n", "A: b\r\n".repeat(length % 300)),
        11 => format!("{ok}Content-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n"),
        12 => "HTTP/1.1 204 No Content\r\nContent-Length: 5\r\n\r\nabcde".into(),
        13 => format!("HTTP/1.1 {}\r\nA : b\r\n\r\n", length % 1000),
        14 => "HTTP/1.0 200 OK\r\n\r\nup to the end".into(),
        15 => "HTTP/1.1 407 Login\r\nProxy-Authenticate: Basic\r\nContent-Length: 0\r\n\r\n".into(),
        16 => format!("{ok}Content-Length: 2\r\nConnection: close\r\n\r\nok"),
        _ => format!("{ok}Content-Length: 2\r\n\r\nok"),
    };
    text.into_bytes()
}
