//! The bound on what waits in proxyd for peers that do not take it: memory and
//! pipes stay within it, others are served meanwhile, and nothing is lost.

mod support;

use std::io::Write;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread::scope;
use std::time::Duration;

use support::{Accepted, Answer, Conn, DOWN, Mode, Origin, Proxyd, check_chunks, wait_for};

/// Clients that read nothing for a while.
const CLIENTS: usize = 60;
/// For each of them; more than the system puts into its buffers.
const SIZE: u64 = 12_000_000;
const PIECE: u64 = 10_000;

#[test]
fn what_waits_for_slow_readers_of_answers_is_bounded() {
    let [free, bounded] = ["", "[limits]\nheld_bytes = 1048576\n"].map(|limits| {
        let open = |proxy: &Proxyd, to: SocketAddr| {
            let near = Conn::dial_narrow(proxy.address("http"), 32 * 1024);
            near.send(format!("GET http://{to}/ HTTP/1.1\r\nHost: {to}\r\n\r\n"));
            near
        };
        let tell = |far: &Conn| {
            far.until(b"\r\n\r\n");
            far.send("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n");
        };
        let send = |mut far: &Conn, from: u64| {
            write!(far, "{PIECE:x}\r\n").expect("sent");
            DOWN.send(far, from, from + PIECE).expect("sent");
            far.send("\r\n");
        };
        let take = |near: &Conn| {
            assert_eq!(Answer::read_head(near).status, 200);
            check_chunks(DOWN, &mut &*near, SIZE).expect("all of it");
        };
        held(limits, open, tell, send, |far| far.send("0\r\n\r\n"), take).0
    });
    // What else the connections need is in both.
    assert!(
        bounded + (4 << 20) < free,
        "{bounded} bytes with a bound, {free} without"
    );
}

#[test]
fn what_waits_for_slow_readers_of_tunnels_is_bounded() {
    let [free, bounded] = ["", "[limits]\nheld_bytes = 1048576\n"].map(|limits| {
        let open = |proxy: &Proxyd, to: SocketAddr| {
            let near = Conn::dial_narrow(proxy.address("http"), 32 * 1024);
            near.send(Mode::Connect.hello(to));
            assert_eq!(Mode::Connect.answer(&near), 200);
            near
        };
        let send = |far: &Conn, from| DOWN.send(far, from, from + PIECE).expect("sent");
        let take = |near: &Conn| {
            DOWN.check_all(near, SIZE).expect("all of it");
            near.fin();
        };
        held(limits, open, |_| {}, send, Conn::fin, take).1
    });
    assert!(free > CLIENTS / 2 && bounded == 0, "{free}, {bounded}");
}

/// How much resident memory grows, and how many pipes are open, while clients read
/// nothing.
fn held(
    limits: &str,
    open: impl Fn(&Proxyd, SocketAddr) -> Conn,
    tell: impl Fn(&Conn),
    send: impl Fn(&Conn, u64) + Sync,
    end: impl Fn(&Conn) + Sync,
    take: impl Fn(&Conn) + Sync,
) -> (u64, usize) {
    let (origin, accepted) = Origin::manual();
    let echo = Origin::echo();
    let proxy = Proxyd::with_config(origin.address, &format!("workers = 1\n{limits}"));
    // What the first one needs does not count.
    serves(&proxy, echo.address);
    let before = proxy.process().resident();
    let clients: Vec<(Conn, Conn)> = (0..CLIENTS)
        .map(|_| {
            let near = open(&proxy, origin.address);
            let far = Accepted::next(&accepted);
            tell(&far);
            (near, far)
        })
        .collect();
    let sent = AtomicU64::new(0);
    let found = scope(|threads| {
        for (_, far) in &clients {
            let (sent, send, end) = (&sent, &send, &end);
            threads.spawn(move || {
                for piece in 0..SIZE / PIECE {
                    send(far, piece * PIECE);
                    sent.fetch_add(PIECE, Ordering::Relaxed);
                }
                end(far);
            });
        }
        let mut last = 0;
        wait_for("all to stand still", || {
            std::thread::sleep(Duration::from_millis(300));
            let now = sent.load(Ordering::Relaxed);
            std::mem::replace(&mut last, now) == now
        });
        assert!(last < SIZE * CLIENTS as u64, "the system has taken it all");
        let grown = proxy.process().resident().saturating_sub(before);
        let pipes = proxy.process().descriptors().pipes - proxy.base().pipes;
        serves(&proxy, echo.address);
        for (near, _) in &clients {
            let take = &take;
            threads.spawn(move || take(near));
        }
        (grown, pipes)
    });
    drop((clients, origin, echo));
    proxy.finish();
    found
}

fn serves(proxy: &Proxyd, echo: SocketAddr) {
    let conn = Mode::Connect.open(proxy, echo);
    conn.send("still there");
    conn.expect("still there");
}
