//! What idle connections cost: memory, descriptors, pipes.

mod support;

use std::sync::mpsc::Receiver;

use support::{Accepted, Answer, Conn, DOWN, Mode, Origin, Proxyd, UP, wait_for};

/// Tunnels that are open while memory is measured.
const COUNT: usize = 1000;

#[test]
fn a_thousand_idle_connect_tunnels_hold_neither_buffer_nor_pipe() {
    idle(Mode::Connect, 4096);
}

#[test]
fn a_thousand_idle_socks5_tunnels_hold_neither_buffer_nor_pipe() {
    idle(Mode::Socks5, 4096);
}

#[test]
fn a_thousand_idle_socks4_tunnels_hold_neither_buffer_nor_pipe() {
    idle(Mode::Socks4, 4096);
}

#[test]
fn a_thousand_idle_relay_tunnels_hold_neither_buffer_nor_pipe() {
    idle(Mode::Relay, 4096);
}

#[test]
fn a_thousand_idle_auto_tunnels_hold_neither_buffer_nor_pipe() {
    idle(Mode::AutoConnect, 4096);
}

#[test]
fn a_thousand_idle_tls_tunnels_hold_no_pipe_and_little_memory() {
    // What rustls keeps for a session.
    idle(Mode::Tls, 24 * 1024);
}

#[test]
fn a_thousand_kept_http_connections_hold_no_buffer() {
    let origin = Origin::page("ok");
    let proxy = Proxyd::with_all(origin.address, &["--workers", "1"]);
    let (url, host) = (origin.url("/"), origin.authority());
    let request = format!("GET {url} HTTP/1.1\r\nHost: {host}\r\n\r\n");
    let open = |count: usize| -> Vec<Conn> {
        let conns = (0..count).map(|_| {
            let conn = Conn::dial(proxy.address("http"));
            conn.send(&request);
            assert_eq!(Answer::read(&conn).body, b"ok");
            conn
        });
        conns.collect()
    };
    let first = open(200);
    let before = proxy.process().resident();
    let more = open(COUNT);
    let each = (proxy.process().resident().saturating_sub(before)) / COUNT as u64;
    assert!(each < 4096, "{each} bytes a connection");
    drop((first, more));
    drop(origin);
    proxy.finish();
}

#[test]
fn p49_a_tunnel_that_was_busy_gives_its_pipe_back() {
    let (origin, accepted) = Origin::manual();
    let proxy = Proxyd::with_all(origin.address, &["--workers", "1"]);
    let mut tunnels = Vec::new();
    for index in 0..100 {
        let mode = [Mode::Connect, Mode::Socks5, Mode::Relay][index % 3];
        let (near, far) = open(mode, &proxy, &origin, &accepted);
        std::thread::scope(|scope| {
            scope.spawn(|| DOWN.send(&far, 0, 4_000_000).unwrap());
            scope.spawn(|| UP.send(&near, 0, 4_000_000).unwrap());
            scope.spawn(|| UP.check(&far, 0, 4_000_000).unwrap());
            DOWN.check(&near, 0, 4_000_000).unwrap();
        });
        tunnels.push((near, far));
    }
    let now = proxy.process().descriptors();
    assert_eq!(now.sockets, proxy.base().sockets + 200);
    // The pool's own; a pipe kept by each tunnel would be 200 or 400.
    let pipes = now.pipes - proxy.base().pipes;
    assert!(pipes <= 16, "{pipes} ends of pipes");
    drop(tunnels);
    drop(origin);
    proxy.finish();
}

/// Opens [`COUNT`] tunnels, each used once, and measures what they hold.
fn idle(mode: Mode, most: u64) {
    let (origin, accepted) = Origin::manual();
    let proxy = Proxyd::with_all(origin.address, &["--workers", "1"]);
    let open_many = |count: usize| -> Vec<(Conn, Conn)> {
        let tunnels = (0..count).map(|_| open(mode, &proxy, &origin, &accepted));
        tunnels.collect()
    };
    // What the first ones cost is there once: buffers of the thread, tables.
    let first = open_many(200);
    let before = proxy.process().resident();
    let more = open_many(COUNT);
    let each = (proxy.process().resident().saturating_sub(before)) / COUNT as u64;
    eprintln!("{mode:?}: {each} bytes a tunnel");
    assert!(each < most, "{each} bytes a tunnel");
    let now = proxy.process().descriptors();
    assert_eq!(now.sockets, proxy.base().sockets + 2 * (200 + COUNT));
    assert_eq!(now.pipes, proxy.base().pipes);
    assert_eq!(now.others, proxy.base().others);
    // All still work.
    for (near, far) in first.iter().chain(&more) {
        near.send("ping");
        far.expect("ping");
        far.send("pong");
        near.expect("pong");
    }
    drop((first, more));
    wait_for("the base", || {
        proxy.process().descriptors().sockets == proxy.base().sockets
    });
    drop(origin);
    proxy.finish();
}

/// A tunnel after 500 bytes each way, both ends.
fn open(
    mode: Mode,
    proxy: &Proxyd,
    origin: &Origin,
    accepted: &Receiver<Accepted>,
) -> (Conn, Conn) {
    let near = mode.open(proxy, origin.address);
    let far = Accepted::next(accepted);
    near.send(UP.first(500));
    far.expect(UP.first(500));
    far.send(DOWN.first(500));
    near.expect(DOWN.first(500));
    (near, far)
}
