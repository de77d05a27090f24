//! The pitfalls of SOCKS by their numbers: reply codes and addresses (P60),
//! lengths and cuts (P61), one deadline for a negotiation (P62).

mod support;

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use socket2::{Domain, Socket, Type};
use support::{
    A, AAAA, Accepted, Conn, LogLine, Mode, NameServer, Origin, Proxyd, Reply, closed_port,
};

/// One worker, so that the lines of the log are in order.
const LOG: &str = "workers = 1\nlog.access = \"stdout\"\nlog.format = \"json\"\n";

/// Every kind of listener with this configuration.
fn start(origin: SocketAddr, toml: &str) -> Proxyd {
    Proxyd::with_config(origin, &format!("{LOG}{toml}"))
}

/// The host of a target.
#[derive(Clone, Copy, Debug)]
enum Host<'a> {
    Ip(IpAddr),
    Name(&'a str),
}

impl From<SocketAddr> for Host<'_> {
    fn from(address: SocketAddr) -> Self {
        Self::Ip(address.ip())
    }
}

/// SOCKS5 CONNECT, without the greeting.
fn request5(host: Host<'_>, port: u16) -> Vec<u8> {
    let address = match host {
        Host::Ip(IpAddr::V4(ip)) => [&[1][..], &ip.octets()].concat(),
        Host::Ip(IpAddr::V6(ip)) => [&[4][..], &ip.octets()].concat(),
        Host::Name(name) => counted(&[3], name.as_bytes()),
    };
    [&[5, 1, 0][..], &address, &port.to_be_bytes()].concat()
}

/// SOCKS4 CONNECT, 4a with a name.
fn request4(host: Host<'_>, port: u16) -> Vec<u8> {
    let (ip, name) = match host {
        Host::Ip(IpAddr::V4(ip)) => (ip.octets(), Vec::new()),
        Host::Ip(IpAddr::V6(_)) => panic!("SOCKS4 has no IPv6"),
        Host::Name(name) => ([0, 0, 0, 1], [name.as_bytes(), &[0]].concat()),
    };
    [&[4, 1][..], &port.to_be_bytes(), &ip, b"me\0", &name].concat()
}

/// `start`, a byte with the length, the bytes.
fn counted(start: &[u8], bytes: &[u8]) -> Vec<u8> {
    let length = u8::try_from(bytes.len()).expect("at most 255 bytes");
    [start, &[length], bytes].concat()
}

/// A login (RFC 1929).
fn login(user: &[u8], password: &[u8]) -> Vec<u8> {
    counted(&counted(&[1], user), password)
}

/// A port that accepts no further connection and refuses none.
fn silent_port() -> (SocketAddr, Vec<Socket>) {
    let socket = || Socket::new(Domain::IPV4, Type::STREAM, None).expect("a socket");
    let listener = socket();
    let any = SocketAddr::from(([127, 0, 0, 1], 0));
    listener.bind(&any.into()).expect("bound");
    listener.listen(0).expect("listening");
    let address = listener.local_addr().expect("bound");
    let mut held = vec![listener];
    loop {
        let socket = socket();
        let connected = socket.connect_timeout(&address, Duration::from_millis(200));
        held.push(socket);
        if connected.is_err() {
            return (address.as_socket().expect("an address"), held);
        }
        assert!(held.len() < 100, "a queue without end");
    }
}

#[test]
fn p60_each_outcome_has_its_code_and_no_address() {
    let (silent, _held) = silent_port();
    let closed = closed_port();
    let names = NameServer::start();
    names.says("sick.test", A, Reply::Fails);
    names.says("sick.test", AAAA, Reply::Fails);
    let proxy = start(
        closed,
        &format!(
            "timeouts.connect = \"2s\"\nresolver.servers = \"{}\"\n\
             [[rule]]\naction = \"deny\"\nnames = \"denied.test\"\n\
             [[rule]]\naction = \"deny\"\nnetworks = \"127.0.0.66\"\n",
            names.address
        ),
    );
    let broadcast = Host::Ip(Ipv4Addr::new(127, 255, 255, 255).into());
    let denied = Host::Ip(Ipv4Addr::new(127, 0, 0, 66).into());
    let table = [
        (closed.into(), closed.port(), 5, "connect-failed refused"),
        // Linux has no route to a broadcast address for TCP.
        (broadcast, 9, 3, "connect-failed network-unreachable"),
        (silent.into(), silent.port(), 6, "connect-timeout timed-out"),
        (
            Host::Name("none.test"),
            9,
            4,
            "connect-failed name-not-found",
        ),
        (
            Host::Name("sick.test"),
            9,
            4,
            "connect-failed name-unavailable",
        ),
        (Host::Name("denied.test"), 9, 2, "forbidden rule:"),
        (denied, 9, 2, "forbidden rule:"),
    ];
    for (host, port, code, _) in table {
        for kind in ["socks", "auto"] {
            let conn = Conn::dial(proxy.address(kind));
            conn.send([&[5, 1, 0][..], &request5(host, port)].concat());
            conn.expect([5, 0]);
            conn.expect([5, code, 0, 1, 0, 0, 0, 0, 0, 0]);
            assert_eq!(conn.to_end(), b"", "{host:?}");
            let conn = Conn::dial(proxy.address(kind));
            conn.send(request4(host, port));
            conn.expect([0, 0x5B, 0, 0, 0, 0, 0, 0]);
            assert_eq!(conn.to_end(), b"", "{host:?}");
        }
    }
    let lines = LogLine::all(&proxy.finish().stdout);
    assert_eq!(lines.len(), 4 * table.len());
    for (lines, (host, _, code, told)) in lines.chunks(4).zip(table) {
        for (line, status) in lines.iter().zip([u64::from(code), 91, u64::from(code), 91]) {
            assert_eq!(line.number("status"), Some(status), "{host:?}");
            let end = format!("{} {}", line.text("end"), line.text("error"));
            assert!(end.starts_with(told), "{host:?}: {end}");
        }
    }
}

#[test]
fn p60_the_guard_has_its_code() {
    let args = ["--listen", "socks://127.0.0.1:0?trust_loopback=off"];
    let proxy = Proxyd::start(&args);
    let target = SocketAddr::from(([127, 0, 0, 1], 9));
    let conn = Conn::dial(proxy.address("socks"));
    conn.send(Mode::Socks5.hello(target));
    conn.expect([5, 0, 5, 2, 0, 1, 0, 0, 0, 0, 0, 0]);
    let conn = Conn::dial(proxy.address("socks"));
    conn.send(Mode::Socks4.hello(target));
    conn.expect([0, 0x5B, 0, 0, 0, 0, 0, 0]);
    drop(conn);
    proxy.finish();
}

#[test]
fn p60_success_tells_the_real_address_of_its_family() {
    let mut origins = vec![Origin::manual()];
    if std::net::TcpListener::bind("[::1]:0").is_ok() {
        origins.push(Origin::manual_at("::1"));
    }
    for (origin, accepted) in origins {
        let proxy = start(origin.address, "");
        let port = origin.address.port();
        let conn = Conn::dial(proxy.address("socks"));
        let host = origin.address.into();
        conn.send([&[5, 1, 0][..], &request5(host, port)].concat());
        conn.expect([5, 0, 5, 0, 0]);
        let seen = Accepted::next(&accepted).peer();
        let (kind, ip) = match seen.ip() {
            IpAddr::V4(ip) => (1, ip.octets().to_vec()),
            IpAddr::V6(ip) => (4, ip.octets().to_vec()),
        };
        conn.expect([&[kind][..], &ip, &seen.port().to_be_bytes()].concat());
        drop(conn);
        // SOCKS4 can name IPv4 addresses only, and the port.
        let conn = Conn::dial(proxy.address("socks"));
        conn.send(request4(Host::Name(&seen.ip().to_string()), port));
        conn.expect([0, 0x5A]);
        let seen = Accepted::next(&accepted).peer();
        let ip = match seen.ip() {
            IpAddr::V4(ip) => ip.octets(),
            IpAddr::V6(_) => [0; 4],
        };
        conn.expect([&seen.port().to_be_bytes()[..], &ip].concat());
        drop((conn, origin));
        proxy.finish();
    }
}

/// Lengths at which a byte is nearly too small, or taken for something else.
const LENGTHS: [usize; 8] = [1, 2, 4, 5, 127, 128, 254, 255];

#[test]
fn p61_every_length_of_a_login() {
    let origin = Origin::echo();
    let name = |length: usize| "u".repeat(length);
    let password = |length: usize| "p".repeat(256 - length);
    let users: String = LENGTHS
        .iter()
        .map(|&length| {
            let (name, password) = (name(length), password(length));
            format!("[[user]]\nname = \"{name}\"\npassword = \"{password}\"\n")
        })
        .collect();
    let proxy = start(origin.address, &format!("auth.ban_failures = 0\n{users}"));
    let request = request5(origin.address.into(), origin.address.port());
    for length in LENGTHS {
        let (user, password) = (name(length), password(length));
        let (user, password) = (user.as_bytes(), password.as_bytes());
        let conn = Conn::dial(proxy.address("socks"));
        conn.send([&[5, 1, 2][..], &login(user, password), &request, b"early"].concat());
        conn.expect([5, 2, 1, 0, 5, 0]);
        conn.exact(8);
        conn.expect("early");
        for (user, password) in [
            (&user[1..], password),
            (user, &password[1..]),
            (user, b""),
            (b"", password),
            (user, &[password, b"\0"].concat()[password.len().min(2)..]),
            (&[user, b"\0"].concat()[user.len().min(2)..], password),
        ] {
            let conn = Conn::dial(proxy.address("socks"));
            conn.send([&[5, 1, 2][..], &login(user, password)].concat());
            conn.expect([5, 2, 1, 1]);
            assert_eq!(conn.to_end(), b"", "{length}");
        }
    }
    drop(origin);
    proxy.finish();
}

#[test]
fn p61_every_number_of_methods() {
    let origin = Origin::echo();
    let proxy = start(origin.address, "");
    let request = request5(origin.address.into(), origin.address.port());
    for count in LENGTHS {
        // The one that will do comes last.
        let methods = [&vec![0x80; count - 1][..], &[0]].concat();
        let conn = Conn::dial(proxy.address("socks"));
        conn.send([&counted(&[5], &methods)[..], &request].concat());
        conn.expect([5, 0, 5, 0]);
        let conn = Conn::dial(proxy.address("socks"));
        conn.send(counted(&[5], &vec![0x80; count]));
        conn.expect([5, 0xFF]);
        assert_eq!(conn.to_end(), b"");
    }
    drop(origin);
    proxy.finish();
}

#[test]
fn p61_every_length_of_a_name() {
    let origin = Origin::echo();
    let port = origin.address.port();
    let names = NameServer::start();
    // By TCP, since an answer with the longest name twice has no room elsewhere.
    let local = || Reply::TooLong(vec![Ipv4Addr::LOCALHOST.into()], 60);
    let name = |length: usize| -> String {
        // Labels of 63 bytes at most.
        let is_dot = |at: usize| (at == 2 || at.is_multiple_of(50)) && at < length;
        let bytes = (1..=length).map(|at| if is_dot(at) { '.' } else { 'n' });
        bytes.collect()
    };
    // The longest name that DNS has.
    let resolved = [3, 63, 127, 128, 253];
    for length in resolved {
        names.says(&name(length), A, local());
    }
    let proxy = start(
        origin.address,
        &format!("resolver.servers = \"{}\"\n", names.address),
    );
    for length in resolved {
        let name = name(length);
        let host = Host::Name(&name);
        let conn = Conn::dial(proxy.address("socks"));
        conn.send([&[5, 1, 0][..], &request5(host, port), b"early"].concat());
        conn.expect([5, 0, 5, 0]);
        conn.exact(8);
        conn.expect("early");
        let conn = Conn::dial(proxy.address("auto"));
        conn.send([&request4(host, port)[..], b"early"].concat());
        conn.expect([0, 0x5A]);
        conn.exact(6);
        conn.expect("early");
    }
    for wrong in [
        name(254),
        name(255),
        String::new(),
        "a\0b".to_owned(),
        "a b".to_owned(),
        "n\u{fc}.test".to_owned(),
    ] {
        let conn = Conn::dial(proxy.address("socks"));
        conn.send([&[5, 1, 0][..], &request5(Host::Name(&wrong), port)].concat());
        conn.expect([5, 0, 5, 4, 0, 1, 0, 0, 0, 0, 0, 0]);
        assert_eq!(conn.to_end(), b"", "{wrong:?}");
        if wrong.contains('\0') {
            // The name ends there, and what follows is for the target.
            continue;
        }
        let conn = Conn::dial(proxy.address("socks"));
        conn.send(request4(Host::Name(&wrong), port));
        conn.expect([0, 0x5B, 0, 0, 0, 0, 0, 0]);
        assert_eq!(conn.to_end(), b"", "{wrong:?}");
    }
    drop(origin);
    proxy.finish();
}

#[test]
fn p61_fields_of_socks4_without_end() {
    let origin = Origin::echo();
    let proxy = start(origin.address, "");
    let port = origin.address.port().to_be_bytes();
    let head =
        |ip: [u8; 4], user: usize| [&[4, 1][..], &port, &ip, &vec![b'u'; user], &[0]].concat();
    let conn = Conn::dial(proxy.address("socks"));
    conn.send(head([127, 0, 0, 1], 255));
    conn.expect([0, 0x5A]);
    drop(conn);
    for wrong in [
        head([127, 0, 0, 1], 256),
        [&head([0, 0, 0, 1], 0)[..], &[b'n'; 256]].concat(),
    ] {
        let conn = Conn::dial(proxy.address("socks"));
        conn.send_anyway(&wrong);
        conn.expect([0, 0x5B, 0, 0, 0, 0, 0, 0]);
        assert_eq!(conn.to_end(), b"");
    }
    drop(origin);
    proxy.finish();
}

/// All that clients send for a tunnel to `origin` and into it, with what is
/// answered before the last reply, and how long that reply is.
fn conversations(origin: SocketAddr) -> Vec<(Vec<u8>, Vec<u8>, usize)> {
    let port = origin.port();
    let name = Host::Name("localhost");
    let greeting = [5, 2, 0x80, 2];
    let login = login(b"alice", b"secret");
    let mut all = Vec::new();
    for host in [origin.into(), name] {
        let wire = [&greeting[..], &login, &request5(host, port), b"early"].concat();
        all.push((wire, vec![5, 2, 1, 0], 10));
    }
    all
}

/// The same for SOCKS4, which has no login.
fn conversations4(origin: SocketAddr) -> Vec<(Vec<u8>, Vec<u8>, usize)> {
    [origin.into(), Host::Name("localhost")]
        .map(|host| {
            let wire = [&request4(host, origin.port())[..], b"early"].concat();
            (wire, Vec::new(), 8)
        })
        .into()
}

/// Reads what is answered to a conversation, up to the echo of `early`.
fn expect_answers(conn: &Conn, (_, answers, reply): &(Vec<u8>, Vec<u8>, usize)) {
    conn.expect(answers);
    let reply = conn.exact(*reply);
    assert!([0, 0x5A].contains(&reply[1]), "{reply:?}");
    conn.expect("early");
}

#[test]
fn p61_cut_anywhere_in_one_segment_and_a_byte_at_a_time() {
    let origin = Origin::echo();
    let closed = start(
        origin.address,
        "[[user]]\nname = \"alice\"\npassword = \"secret\"\n",
    );
    let open = start(origin.address, "");
    for (proxy, conversations) in [
        (&closed, conversations(origin.address)),
        (&open, conversations4(origin.address)),
    ] {
        for (at, conversation) in conversations.iter().enumerate() {
            let kind = ["socks", "auto"][at % 2];
            let wire = &conversation.0;
            for cut in 0..wire.len() {
                let conn = Conn::dial(proxy.address(kind));
                conn.send(&wire[..cut]);
                std::thread::yield_now();
                conn.send(&wire[cut..]);
                expect_answers(&conn, conversation);
            }
            let conn = Conn::dial(proxy.address(kind));
            for byte in wire {
                conn.send([*byte]);
            }
            expect_answers(&conn, conversation);
            // And an end in the middle is no request.
            let conn = Conn::dial(proxy.address(kind));
            conn.send(&wire[..wire.len() - b"early".len() - 1]);
            conn.fin();
            let (bytes, _) = conn.rest();
            assert_eq!(bytes, conversation.1);
        }
    }
    drop(origin);
    open.finish();
    closed.finish();
}

/// Sends a byte every `pause` until `over`, whoever reads it.
fn drip(conn: &Conn, bytes: impl IntoIterator<Item = u8>, pause: Duration, over: &AtomicBool) {
    for byte in bytes {
        if over.load(Ordering::Relaxed) {
            return;
        }
        conn.send_anyway([byte]);
        std::thread::sleep(pause);
    }
}

#[test]
fn p62_no_byte_of_a_client_renews_the_deadline() {
    let origin = Origin::echo();
    let proxy = start(
        origin.address,
        "timeouts.head = \"1s\"\n[[user]]\nname = \"alice\"\npassword = \"secret\"\n",
    );
    let login = login(b"alice", b"secret");
    // Each goes on for more than a dozen seconds.
    let starts: [&[u8]; 6] = [
        b"\x05\xff",
        b"\x05\x01\x02\x01\xff",
        b"\x05\x01\x02\x01\x05alice\xff",
        &[b"\x05\x01\x02", &login[..], b"\x05\x01\0\x03\xff"].concat(),
        b"\x04\x01\0\x09\x7f\0\0\x01",
        b"\x04\x01\0\x09\0\0\0\x01me\0",
    ];
    let mut clients = Vec::new();
    for kind in ["socks", "auto", "tls"] {
        for start in starts {
            let conn = match kind {
                "tls" => Conn::dial_tls(proxy.address("auto")),
                kind => Conn::dial(proxy.address(kind)),
            };
            clients.push((kind, start, conn, AtomicBool::new(false)));
        }
    }
    let begin = Instant::now();
    std::thread::scope(|scope| {
        for (kind, start, conn, over) in &clients {
            conn.send(start);
            let bytes = std::iter::repeat_n(b'a', 240);
            scope.spawn(move || drip(conn, bytes, Duration::from_millis(50), over));
            scope.spawn(move || {
                conn.rest();
                over.store(true, Ordering::Relaxed);
                let took = begin.elapsed();
                let what = start.escape_ascii();
                assert!(took < Duration::from_secs(10), "{kind} {what}: {took:?}");
            });
        }
    });
    // The sockets are closed, also of clients that keep theirs.
    proxy.settle();
    drop((clients, origin));
    let lines = LogLine::all(&proxy.finish().stdout);
    let ends: Vec<String> = lines.iter().map(|line| line.text("end")).collect();
    assert_eq!(ends, ["client-timeout"; 18]);
}

#[test]
fn p62_a_silent_client_is_closed() {
    let origin = Origin::echo();
    let proxy = start(origin.address, "timeouts.head = \"1s\"\n");
    let starts: [&[u8]; 4] = [b"", b"\x05", b"\x05\x01\0", b"\x04\x01"];
    let clients: Vec<Conn> = starts
        .iter()
        .flat_map(|start| ["socks", "auto"].map(|kind| (start, kind)))
        .map(|(start, kind)| {
            let conn = Conn::dial(proxy.address(kind));
            conn.send(start);
            conn
        })
        .collect();
    for conn in &clients {
        conn.rest();
    }
    proxy.settle();
    drop((clients, origin));
    proxy.finish();
}

#[test]
fn p62_no_byte_of_a_parent_renews_the_deadline() {
    // A kind of parent, what it sends at once, and what little by little: more
    // than the deadline lets come.
    let endless = || std::iter::repeat_n(b'a', 100);
    let parents: [(&str, &[u8], Vec<u8>); 6] = [
        ("http://", b"", b"HTTP/1.1 200 OK\r\n".to_vec()),
        ("http://", b"HTTP/1.1 200 OK\r\nA: ", endless().collect()),
        ("http://", b"HTTP/1.1 103 Hints\r\nA: ", endless().collect()),
        ("socks5://", b"\x05", Vec::new()),
        ("socks5://", b"\x05\0\x05\0\0\x03\xff", endless().collect()),
        ("socks4a://", b"", b"\0\x5a\0\0\0\0\0\0".to_vec()),
    ];
    for (scheme, at_once, slowly) in &parents {
        let (parent, accepted) = Origin::manual();
        let proxy = start(
            parent.address,
            &format!(
                "via = \"slow\"\ntimeouts.connect = \"1s\"\n[[parent]]\nname = \"slow\"\n\
                 url = \"{scheme}{}\"\n",
                parent.address
            ),
        );
        for (mode, code) in [
            (Mode::Socks5, 6),
            (Mode::AutoSocks4, 0x5B),
            (Mode::Connect, 504),
        ] {
            let near = mode.dial(&proxy);
            let begin = Instant::now();
            near.send(mode.hello(SocketAddr::from(([192, 0, 2, 1], 443))));
            let far = Accepted::next(&accepted);
            let over = AtomicBool::new(false);
            std::thread::scope(|scope| {
                scope.spawn(|| {
                    far.send_anyway(at_once);
                    let pause = Duration::from_millis(250);
                    drip(&far, slowly.iter().copied(), pause, &over);
                });
                assert_eq!(mode.answer(&near), code, "{scheme} {mode:?}");
                let took = begin.elapsed();
                assert!(
                    took < Duration::from_secs(10),
                    "{scheme} {mode:?}: {took:?}"
                );
                // Closed, not only given up.
                far.rest();
                over.store(true, Ordering::Relaxed);
            });
            near.cut();
            proxy.settle();
        }
        drop(parent);
        for line in LogLine::all(&proxy.finish().stdout) {
            let end = (line.text("end"), line.text("error"));
            assert_eq!(end, ("connect-timeout".into(), "parent-timed-out".into()));
        }
    }
}
