//! A gigabyte each way, both directions at once, through every mode, each byte
//! compared with what its position says.

mod support;

use std::io::{BufReader, Write};
use std::sync::mpsc::channel;

use support::{Answer, Conn, DEADLINE, DOWN, Mode, Origin, Proxyd, UP};

const SIZE: u64 = 1 << 30;

#[test]
fn auto_connect() {
    tunnel(Mode::AutoConnect);
}

#[test]
fn auto_socks4() {
    tunnel(Mode::AutoSocks4);
}

#[test]
fn auto_socks5() {
    tunnel(Mode::AutoSocks5);
}

#[test]
fn auto_tls() {
    tunnel(Mode::AutoTls);
}

#[test]
fn connect() {
    tunnel(Mode::Connect);
}

#[test]
fn port_relay() {
    tunnel(Mode::Relay);
}

#[test]
fn socks4() {
    tunnel(Mode::Socks4);
}

#[test]
fn socks5() {
    tunnel(Mode::Socks5);
}

#[test]
fn tls_connect() {
    tunnel(Mode::Tls);
}

#[test]
fn http_bodies_with_a_length() {
    let proxy_address = |proxy: &Proxyd| Conn::dial(proxy.address("http"));
    bodies(proxy_address, Framing::Length);
}

#[test]
fn http_bodies_in_chunks() {
    let proxy_address = |proxy: &Proxyd| Conn::dial(proxy.address("http"));
    bodies(proxy_address, Framing::Chunks);
}

#[test]
fn http_bodies_inside_tls() {
    let proxy_address = |proxy: &Proxyd| Conn::dial_tls(proxy.address("https"));
    bodies(proxy_address, Framing::Length);
}

#[test]
fn http_download() {
    one_way(
        false,
        "HTTP/1.1 200 OK\r\nContent-Length: 1073741824\r\n\r\n",
    );
}

#[test]
fn http_download_up_to_the_end_of_the_connection() {
    one_way(false, "HTTP/1.1 200 OK\r\nConnection: close\r\n\r\n");
}

#[test]
fn http_upload() {
    one_way(true, "HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n");
}

fn tunnel(mode: Mode) {
    let (origin, outcome) = Origin::bulk(SIZE);
    let proxy = Proxyd::with_all(origin.address, &[]);
    let conn = mode.open(&proxy, origin.address);
    std::thread::scope(|scope| {
        let down = scope.spawn(|| DOWN.check_all(&conn, SIZE));
        UP.send(&conn, 0, SIZE).expect("sent");
        conn.fin();
        down.join()
            .expect("no panic")
            .expect("what the origin sent");
    });
    let outcome = outcome.recv_timeout(DEADLINE).expect("an outcome");
    outcome.expect("what the client sent");
    drop(conn);
    drop(origin);
    proxy.finish();
}

/// A body in one direction, the message in the other without one.
fn one_way(up: bool, answer: &'static str) {
    let (arrived, outcome) = channel();
    let origin = Origin::start(move |mut socket| {
        socket.set_read_timeout(Some(DEADLINE)).expect("set");
        support::take_head(&mut socket).expect("a head");
        if up {
            UP.check(socket, 0, SIZE).expect("as sent");
        }
        socket.write_all(answer.as_bytes()).expect("sent");
        if !up {
            DOWN.send(socket, 0, SIZE).expect("sent");
        }
        arrived.send(()).ok();
    });
    let proxy = Proxyd::with_all(origin.address, &[]);
    let conn = Conn::dial(proxy.address("http"));
    let (url, host) = (origin.url("/"), origin.authority());
    let length = if up { SIZE } else { 0 };
    conn.send(format!(
        "PUT {url} HTTP/1.1\r\nHost: {host}\r\nContent-Length: {length}\r\n\r\n"
    ));
    if up {
        UP.send(&conn, 0, SIZE).expect("sent");
    }
    assert_eq!(Answer::read_head(&conn).status, 200);
    if !up {
        DOWN.check(&conn, 0, SIZE).expect("as sent");
    }
    outcome.recv_timeout(DEADLINE).expect("all at the origin");
    conn.fin();
    assert_eq!(conn.to_end(), b"");
    drop(origin);
    proxy.finish();
}

#[derive(Clone, Copy)]
enum Framing {
    Chunks,
    Length,
}

impl Framing {
    fn field(self) -> String {
        match self {
            Self::Chunks => "Transfer-Encoding: chunked".to_owned(),
            Self::Length => format!("Content-Length: {SIZE}"),
        }
    }
}

/// A request and its answer, the bodies on the way at the same time.
fn bodies(dial: impl Fn(&Proxyd) -> Conn, framing: Framing) {
    let (arrived, outcome) = channel();
    let origin = Origin::start(move |mut socket| {
        socket.set_read_timeout(Some(DEADLINE)).expect("set");
        let mut stream = BufReader::with_capacity(1 << 18, socket);
        support::take_head(&mut stream).expect("a head");
        write!(socket, "HTTP/1.1 200 OK\r\n{}\r\n\r\n", framing.field()).expect("sent");
        std::thread::scope(|scope| {
            let (checked, all_here) = channel();
            scope.spawn(move || {
                // The end of the answer waits for that of the request: an
                // answer that is complete lets go of what is left of it.
                send(DOWN, socket, framing, &|| {
                    all_here.recv().ok();
                });
            });
            check(UP, &mut stream, framing);
            checked.send(()).ok();
        });
        arrived.send(()).ok();
    });
    let proxy = Proxyd::with_all(origin.address, &[]);
    let conn = dial(&proxy);
    let (url, host) = (origin.url("/"), origin.authority());
    conn.send(format!(
        "POST {url} HTTP/1.1\r\nHost: {host}\r\n{}\r\n\r\n",
        framing.field()
    ));
    std::thread::scope(|scope| {
        let down = scope.spawn(|| {
            assert_eq!(Answer::read_head(&conn).status, 200);
            check(DOWN, &mut BufReader::with_capacity(1 << 18, &conn), framing);
        });
        send(UP, &conn, framing, &|| ());
        down.join().expect("no panic");
    });
    outcome.recv_timeout(DEADLINE).expect("all at the origin");
    drop(conn);
    drop(origin);
    proxy.finish();
}

/// Sends a body, its last bytes after `wait`.
fn send(pattern: support::Pattern, mut to: impl Write, framing: Framing, wait: &dyn Fn()) {
    match framing {
        Framing::Length => {
            pattern.send(&mut to, 0, SIZE - 1000).expect("sent");
            wait();
            pattern.send(&mut to, SIZE - 1000, SIZE).expect("sent");
        }
        Framing::Chunks => {
            let mut position = 0;
            for size in chunk_sizes() {
                write!(to, "{size:x}\r\n").expect("sent");
                pattern
                    .send(&mut to, position, position + size)
                    .expect("sent");
                to.write_all(b"\r\n").expect("sent");
                position += size;
            }
            wait();
            to.write_all(b"0\r\n\r\n").expect("sent");
        }
    }
}

fn check(pattern: support::Pattern, from: &mut impl std::io::Read, framing: Framing) {
    match framing {
        Framing::Length => pattern.check(from, 0, SIZE).expect("as sent"),
        Framing::Chunks => support::check_chunks(pattern, from, SIZE).expect("as sent"),
    }
}

/// Odd and large sizes that add up to [`SIZE`].
fn chunk_sizes() -> impl Iterator<Item = u64> {
    let mut left = SIZE;
    let mut sizes = [1, 100_003, 16_384, 7, 4_000_037].into_iter().cycle();
    std::iter::from_fn(move || {
        let size = sizes.next()?.min(left);
        left -= size;
        (size > 0).then_some(size)
    })
}
