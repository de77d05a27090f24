//! Who may use an association, and how many there may be: `[udp]`.

mod support;

use std::io;
use std::net::{SocketAddr, UdpSocket};
use std::ops::Range;
use std::sync::atomic::{AtomicUsize, Ordering};

use support::{
    ASSOCIATE, Certs, Conn, Echo, Ended, LogLine, Proxyd, Udp, datagram, socks5_reply, wait_for,
};

/// A SOCKS listener and this `[udp]`.
fn with(udp: &str) -> Proxyd {
    static COUNT: AtomicUsize = AtomicUsize::new(0);
    let number = COUNT.fetch_add(1, Ordering::Relaxed);
    let file = Certs::shared()
        .folder()
        .join(format!("limits{number}.toml"));
    let toml = format!(
        "workers = 2\nlog = {{ access = \"stdout\", format = \"json\" }}\n\
         [[listener]]\nprotocol = \"socks\"\naddress = \"0.0.0.0:0\"\nopen = true\n[udp]\n{udp}\n"
    );
    std::fs::write(&file, toml).expect("written");
    Proxyd::start(&["--config", file.to_str().expect("a plain path")])
}

fn socks(proxy: &Proxyd) -> SocketAddr {
    ([127, 0, 0, 1], proxy.address("socks").port()).into()
}

fn open(proxy: &Proxyd) -> Udp {
    Udp::over(Conn::dial(socks(proxy)))
}

/// Asks for an association in vain.
fn refused(proxy: &Proxyd, from: &str) -> u8 {
    let control = Conn::dial_from(from, socks(proxy));
    control.send(ASSOCIATE);
    control.expect([5, 0]);
    socks5_reply(&control)
}

#[test]
fn p65_the_port_is_that_of_the_first_valid_datagram() {
    let echo = Echo::new();
    let proxy = with("");
    let udp = open(&proxy);
    let good = datagram("127.0.0.1", echo.port(), b"evil");
    // What is no datagram of SOCKS fixes nothing.
    let second = UdpSocket::bind("127.0.0.1:0").expect("bound");
    second.send_to(b"hello", udp.relay).expect("sent");
    udp.round(&echo);
    second.send_to(&good, udp.relay).expect("sent");
    udp.round(&echo);
    assert_eq!(echo.count(), 2);
    // Who announces a port is held to it.
    let control = Conn::dial(socks(&proxy));
    let announced = UdpSocket::bind("127.0.0.1:0").expect("bound");
    let port = announced.local_addr().expect("bound").port();
    let mut ask = ASSOCIATE.to_vec();
    ask[11..].copy_from_slice(&port.to_be_bytes());
    let held = Udp {
        socket: announced,
        ..Udp::asking(control, &ask)
    };
    second.send_to(&good, held.relay).expect("sent");
    held.round(&echo);
    assert_eq!(echo.count(), 3);
    drop((udp, held));
    proxy.finish();
}

#[test]
fn p67_strangers_reach_neither_side() {
    let echo = Echo::new();
    let proxy = with("");
    let udp = open(&proxy);
    let stranger = UdpSocket::bind("127.0.0.2:0").expect("bound");
    let good = datagram("127.0.0.1", echo.port(), b"evil");
    stranger.send_to(&good, udp.relay).expect("sent");
    udp.round(&echo);
    stranger.send_to(&good, udp.relay).expect("sent");
    udp.round(&echo);
    assert_eq!(echo.count(), 2);
    // Nor does an answer pass of who was not asked.
    let upstream = SocketAddr::new([127, 0, 0, 1].into(), echo.first().port());
    let another = UdpSocket::bind("127.0.0.1:0").expect("bound");
    for socket in [&stranger, &another] {
        socket.send_to(b"evil", upstream).expect("sent");
        socket.set_nonblocking(true).expect("set");
    }
    udp.round(&echo);
    for socket in [&stranger, &another] {
        let silent = socket.recv(&mut [0; 9]).map_err(|error| error.kind());
        assert_eq!(silent, Err(io::ErrorKind::WouldBlock));
    }
    drop(udp);
    proxy.finish();
}

#[test]
fn p71_fragments_and_what_is_malformed_are_dropped() {
    let echo = Echo::new();
    let proxy = with("");
    let udp = open(&proxy);
    let good = datagram("127.0.0.1", echo.port(), b"evil");
    for fragment in [1, 2, 0x7f, 0x80, 0x81, 0xff] {
        let mut piece = good.clone();
        piece[2] = fragment;
        udp.send_raw(piece);
    }
    for cut in 0..10 {
        udp.send_raw(&good[..cut]);
    }
    udp.send_raw(b"\0\0\0\x02\x7f\0\0\x01\0\x07x");
    udp.send("127.0.0.1", 0, b"no port");
    udp.round(&echo);
    assert_eq!(echo.count(), 1);
    drop(udp);
    proxy.finish();
}

#[test]
fn p66_the_address_and_the_ports_are_settings() {
    let echo = Echo::new();
    let ports = free_ports();
    let settings = format!(
        "advertise = [\"203.0.113.7\", \"2001:db8::7\"]\nports = \"{}-{}\"",
        ports.start,
        ports.end - 1
    );
    let proxy = with(&settings);
    let mut seen = Vec::new();
    let mut held = Vec::new();
    for _ in ports.clone() {
        let mut udp = open(&proxy);
        assert_eq!(udp.relay.ip().to_string(), "203.0.113.7");
        assert!(ports.contains(&udp.relay.port()), "{}", udp.relay);
        seen.push(udp.relay.port());
        // Behind the translator is the address of before.
        udp.relay.set_ip([127, 0, 0, 1].into());
        udp.round(&echo);
        held.push(udp);
    }
    seen.sort_unstable();
    assert_eq!(seen, ports.clone().collect::<Vec<u16>>());
    assert_eq!(refused(&proxy, "127.0.0.1"), 1, "all are taken");
    // Given back with its association.
    drop(held.pop());
    wait_for("a free port", || {
        let control = Conn::dial(socks(&proxy));
        control.send(ASSOCIATE);
        control.expect([5, 0]);
        socks5_reply(&control) == 0
    });
    drop(held);
    let lines = LogLine::all(&proxy.finish().stdout);
    assert!(lines.iter().any(|line| line.text("error") == "exhausted"));
}

/// Four ports in a row that nobody has.
fn free_ports() -> Range<u16> {
    loop {
        // Closed again at once.
        let any = UdpSocket::bind("127.0.0.1:0").and_then(|socket| socket.local_addr());
        let first = any.expect("bound").port();
        let Some(end) = first.checked_add(4) else {
            continue;
        };
        let bound: Vec<_> = (first..end)
            .map(|port| UdpSocket::bind(("127.0.0.1", port)))
            .collect();
        if bound.iter().all(Result::is_ok) {
            return first..end;
        }
    }
}

#[test]
fn p68_each_client_and_all_of_them_have_a_limit() {
    let echo = Echo::new();
    let proxy = with("per_client = 3\nassociations = 5");
    let from = |ip: &str| Udp::over(Conn::dial_from(ip, socks(&proxy)));
    let own: Vec<Udp> = (0..3).map(|_| from("127.0.0.1")).collect();
    assert_eq!(refused(&proxy, "127.0.0.1"), 1, "none of them is idle yet");
    let others: Vec<Udp> = (0..2).map(|_| from("127.0.0.2")).collect();
    assert_eq!(refused(&proxy, "127.0.0.3"), 1, "all are taken");
    for udp in own.iter().chain(&others) {
        udp.round(&echo);
    }
    drop((own, others));
    proxy.settle();
    open(&proxy).round(&echo);
    proxy.finish();
}

#[test]
fn p68_the_one_idle_for_longest_makes_room() {
    let echo = Echo::new();
    let proxy = with("per_client = 2");
    let (first, second) = (open(&proxy), open(&proxy));
    // Only who has been silent for ten seconds makes room.
    wait_for("room", || {
        second.round(&echo);
        let control = Conn::dial(socks(&proxy));
        control.send(ASSOCIATE);
        control.expect([5, 0]);
        socks5_reply(&control) == 0
    });
    assert_eq!(first.control.rest(), (Vec::new(), Ended::Finished));
    second.round(&echo);
    drop((first, second));
    let lines = LogLine::all(&proxy.finish().stdout);
    let limited = lines.iter().filter(|line| line.text("end") == "limit");
    assert_eq!(limited.count(), 1);
}

#[test]
fn p68_one_that_rests_ends_and_one_that_does_not_lives() {
    let echo = Echo::new();
    let proxy = with("idle = \"2s\"");
    let (lively, resting) = (open(&proxy), open(&proxy));
    resting.round(&echo);
    let start = std::time::Instant::now();
    let mut ended = resting.control.socket().try_clone().expect("a handle");
    ended.set_nonblocking(true).expect("set");
    wait_for("its end", || {
        lively.round(&echo);
        !matches!(io::Read::read(&mut ended, &mut [0]), Err(error) if error.kind() == io::ErrorKind::WouldBlock)
    });
    assert!(start.elapsed().as_millis() >= 1900, "{:?}", start.elapsed());
    lively.round(&echo);
    drop((lively, resting));
    let lines = LogLine::all(&proxy.finish().stdout);
    let idle = lines.iter().filter(|line| line.text("end") == "idle");
    assert_eq!(idle.count(), 1);
}
