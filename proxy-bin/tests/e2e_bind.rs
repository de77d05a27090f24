//! SOCKS BIND: a client awaits a connection at the proxy, as FTP's active mode
//! needs it.

mod support;

use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::time::Duration;

use rustix::process::Signal;
use support::{Accepted, Conn, DOWN, Ended, LogLine, Mode, Origin, Proxyd, UP, closed_port};

/// A listener, and what is spoken to it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Ask {
    Auto4,
    Auto5,
    AutoTls4a,
    AutoTls5,
    Socks4,
    Socks4a,
    Socks5,
    Socks5Name,
}

impl Ask {
    const ALL: [Self; 8] = [
        Self::Auto4,
        Self::Auto5,
        Self::AutoTls4a,
        Self::AutoTls5,
        Self::Socks4,
        Self::Socks4a,
        Self::Socks5,
        Self::Socks5Name,
    ];

    fn is_4(self) -> bool {
        matches!(
            self,
            Self::Auto4 | Self::AutoTls4a | Self::Socks4 | Self::Socks4a
        )
    }

    fn has_name(self) -> bool {
        matches!(self, Self::AutoTls4a | Self::Socks4a | Self::Socks5Name)
    }

    fn dial(self, proxy: &Proxyd) -> Conn {
        match self {
            Self::Auto4 | Self::Auto5 => Conn::dial(proxy.address("auto")),
            Self::AutoTls4a | Self::AutoTls5 => Conn::dial_tls(proxy.address("auto")),
            _ => Conn::dial(proxy.address("socks")),
        }
    }

    /// All that the client sends, for a connection of `ip`, or of `localhost`
    /// where names are used.
    fn hello(self, ip: [u8; 4]) -> Vec<u8> {
        match (self.is_4(), self.has_name()) {
            (true, false) => [&[4, 2, 0, 21][..], &ip, b"me\0"].concat(),
            (true, true) => b"\x04\x02\0\x15\0\0\0\x01me\0localhost\0".to_vec(),
            (false, false) => [&[5, 1, 0, 5, 2, 0, 1][..], &ip, &[0, 21]].concat(),
            (false, true) => b"\x05\x01\0\x05\x02\0\x03\x09localhost\0\x15".to_vec(),
        }
    }

    /// Asks, and reads the answer to the greeting if there is one.
    fn ask(self, proxy: &Proxyd, ip: [u8; 4]) -> Conn {
        let conn = self.dial(proxy);
        conn.send(self.hello(ip));
        if !self.is_4() {
            conn.expect([5, 0]);
        }
        conn
    }

    /// The next reply: an address, or the code of a refusal, which has none.
    fn reply(self, conn: &Conn) -> Result<SocketAddr, u8> {
        let address = |ip: &[u8], port: &[u8]| {
            let ip: [u8; 4] = ip.try_into().expect("an IPv4 address");
            SocketAddr::from((ip, u16::from_be_bytes([port[0], port[1]])))
        };
        let (code, at) = if self.is_4() {
            let reply = conn.exact(8);
            assert_eq!(reply[0], 0);
            (reply[1], address(&reply[4..], &reply[2..4]))
        } else {
            let reply = conn.exact(10);
            assert_eq!((reply[0], reply[2], reply[3]), (5, 0, 1));
            (reply[1], address(&reply[4..8], &reply[8..]))
        };
        match code {
            0 | 0x5A => Ok(at),
            _ => {
                assert_eq!(at, SocketAddr::from(([0, 0, 0, 0], 0)));
                Err(code)
            }
        }
    }

    /// A client that waits, and where.
    fn waits(self, proxy: &Proxyd, ip: [u8; 4]) -> (Conn, SocketAddr) {
        let conn = self.ask(proxy, ip);
        let at = self.reply(&conn).expect("an address");
        (conn, at)
    }
}

const ANYBODY: [u8; 4] = [0; 4];
const LOCAL: [u8; 4] = [127, 0, 0, 1];
/// One worker, so that the lines are in order.
const LOG: &str = "workers = 1\nlog.access = \"stdout\"\nlog.format = \"json\"\n";

/// Every kind of listener with this configuration.
fn start(toml: &str) -> Proxyd {
    let nowhere = SocketAddr::from(([127, 0, 0, 1], 9));
    Proxyd::with_config(nowhere, &format!("{LOG}{toml}"))
}

fn refuses(at: SocketAddr) -> bool {
    TcpStream::connect(at).is_err()
}

/// The fields of each line that tell how it went.
fn told(proxy: Proxyd) -> Vec<String> {
    let lines = LogLine::all(&proxy.finish().stdout);
    let fields = ["method", "target", "status", "end", "error"];
    lines
        .iter()
        .map(|line| fields.map(|field| line.text(field)).join(" "))
        .collect()
}

#[test]
fn p60_every_kind_of_socks_awaits_a_connection() {
    let proxy = start("");
    let mut peers = Vec::new();
    for ask in Ask::ALL {
        let (near, at) = ask.waits(&proxy, LOCAL);
        // The address that the client has reached, never 0.0.0.0.
        assert_eq!(at.ip(), IpAddr::from(LOCAL), "{ask:?}");
        let far = Conn::dial(at);
        assert_eq!(ask.reply(&near), Ok(far.local()), "{ask:?}");
        peers.push(far.local());
        assert!(refuses(at), "{ask:?}: exactly one connection");
        near.send("ping");
        far.expect("ping");
        far.send("pong!");
        near.expect("pong!");
        near.fin();
        assert_eq!(far.to_end(), b"", "{ask:?}");
        far.send(" late");
        far.fin();
        assert_eq!(near.to_end(), b" late", "{ask:?}");
    }
    let lines = LogLine::all(&proxy.finish().stdout);
    assert_eq!(lines.len(), Ask::ALL.len());
    for ((line, ask), peer) in lines.iter().zip(Ask::ALL).zip(peers) {
        assert_eq!(line.text("method"), "BIND");
        let host = if ask.has_name() {
            "localhost"
        } else {
            "127.0.0.1"
        };
        assert_eq!(line.text("target"), format!("{host}:21"));
        let code = if ask.is_4() { "90" } else { "0" };
        assert_eq!(line.text("status"), code);
        assert_eq!(line.text("upstream"), peer.to_string());
        assert_eq!(
            (line.number("up"), line.number("down")),
            (Some(4), Some(10))
        );
        assert_eq!(line.text("end"), "client-finished", "{line:?}");
    }
}

#[test]
fn only_who_was_named_is_let_in() {
    let proxy = start("");
    for ask in [Ask::Socks4, Ask::Socks5, Ask::AutoTls5] {
        let (near, at) = ask.waits(&proxy, [127, 0, 0, 2]);
        for stranger in ["127.0.0.1", "127.0.0.3"] {
            let stranger = Conn::dial_from(stranger, at);
            assert_eq!(stranger.rest().0, b"");
        }
        let far = Conn::dial_from("127.0.0.2", at);
        assert_eq!(ask.reply(&near), Ok(far.local()));
        far.send("x");
        near.expect("x");
    }
    // Nobody was named.
    let (near, at) = Ask::Socks5.waits(&proxy, ANYBODY);
    let far = Conn::dial_from("127.0.0.9", at);
    assert_eq!(Ask::Socks5.reply(&near), Ok(far.local()));
    drop((near, far));
    proxy.finish();
}

#[test]
fn p60_nobody_comes_in_time() {
    let proxy = start("bind.wait = \"300ms\"\n");
    for (ask, code) in [(Ask::Socks5, 6), (Ask::Socks4, 0x5B), (Ask::AutoTls5, 6)] {
        let (near, at) = ask.waits(&proxy, ANYBODY);
        assert_eq!(ask.reply(&near), Err(code));
        assert!(refuses(at), "{ask:?}");
        assert_eq!(near.to_end(), b"");
    }
    let lines = told(proxy);
    let expected =
        [6, 91, 6].map(|code| format!("BIND 0.0.0.0:21 {code} connect-timeout timed-out"));
    assert_eq!(lines, expected);
}

#[test]
fn p51_a_client_that_leaves_frees_everything() {
    let proxy = start("");
    for ask in Ask::ALL {
        let (near, at) = ask.waits(&proxy, LOCAL);
        drop(near);
        // Long before anybody would have to come.
        proxy.settle();
        assert!(refuses(at), "{ask:?}");
        let (near, at) = ask.waits(&proxy, LOCAL);
        near.reset();
        proxy.settle();
        assert!(refuses(at), "{ask:?}");
    }
    let lines = told(proxy);
    assert_eq!(lines.len(), 2 * Ask::ALL.len());
    for line in lines {
        assert!(line.ends_with("client-reset "), "{line}");
    }
}

#[test]
fn p51_a_wait_takes_a_place_and_gives_it_back() {
    let proxy = start("limits.upstream_connections = 1\n");
    let ask = Ask::Socks5;
    for round in 0..3 {
        let (near, at) = ask.waits(&proxy, ANYBODY);
        let more = ask.ask(&proxy, ANYBODY);
        assert_eq!(ask.reply(&more), Err(1), "while it waits");
        let far = (round > 0).then(|| {
            let far = Conn::dial(at);
            assert_eq!(ask.reply(&near), Ok(far.local()));
            let more = ask.ask(&proxy, ANYBODY);
            assert_eq!(ask.reply(&more), Err(1), "while it is open");
            far
        });
        drop((near, far, more));
        proxy.settle();
    }
    let lines = told(proxy);
    let refused = "BIND 0.0.0.0:21 1 connect-failed limit:upstream_connections";
    let count = lines.iter().filter(|line| *line == refused).count();
    assert_eq!(count, 5, "{lines:#?}");
}

#[test]
fn p39_the_guard_judges_who_connects() {
    let listen = "socks://127.0.0.1:0?trust_loopback=off";
    let args = ["--workers", "1", "--listen", listen];
    let log = ["--access-log", "stdout", "--access-log-format", "json"];
    let proxy = Proxyd::start(&[&args[..], &log].concat());
    let ask = Ask::Socks5;
    let refused = ask.ask(&proxy, LOCAL);
    assert_eq!(ask.reply(&refused), Err(2));
    refused.to_end();
    let refused = Ask::Socks5Name.ask(&proxy, LOCAL);
    assert_eq!(ask.reply(&refused), Err(2));
    refused.to_end();
    // Anybody may be somebody inside.
    let (near, at) = ask.waits(&proxy, ANYBODY);
    for _ in 0..3 {
        assert_eq!(Conn::dial(at).rest().0, b"");
    }
    assert!(near.is_silent_for(Duration::from_millis(50)));
    drop((refused, near));
    let lines = told(proxy);
    assert_eq!(
        lines,
        [
            "BIND 127.0.0.1:21 2 forbidden guard:loopback",
            "BIND localhost:21 2 forbidden guard:loopback",
            // The request itself was not at fault.
            "BIND 0.0.0.0:21  client-reset ",
        ]
    );
}

#[test]
fn rules_judge_the_request_and_who_connects() {
    let proxy = start(
        "[[rule]]\naction = \"deny\"\noperations = \"bind\"\nnetworks = \"127.0.0.2\"\n\
         [[rule]]\naction = \"deny\"\noperations = \"bind\"\nnames = \"localhost\"\n",
    );
    let ask = Ask::Socks5;
    let (near, at) = ask.waits(&proxy, ANYBODY);
    assert_eq!(Conn::dial_from("127.0.0.2", at).rest().0, b"");
    let far = Conn::dial_from("127.0.0.3", at);
    assert_eq!(ask.reply(&near), Ok(far.local()));
    for (ask, code) in [(Ask::Socks5Name, 2), (Ask::Socks4a, 0x5B)] {
        let refused = ask.ask(&proxy, LOCAL);
        assert_eq!(ask.reply(&refused), Err(code), "{ask:?}");
    }
    let refused = ask.ask(&proxy, [127, 0, 0, 2]);
    assert_eq!(ask.reply(&refused), Err(2));
    drop((near, far, refused));
    let lines = told(proxy);
    let denied = lines.iter().filter(|line| line.contains("forbidden rule:"));
    assert_eq!(denied.count(), 3, "{lines:#?}");

    let none = start("[[rule]]\naction = \"deny\"\noperations = \"bind\"\n");
    for (ask, code) in [(Ask::Socks5, 2), (Ask::Auto4, 0x5B)] {
        let refused = ask.ask(&none, ANYBODY);
        assert_eq!(ask.reply(&refused), Err(code));
        refused.to_end();
    }
    none.finish();
}

#[test]
fn p60_no_connection_comes_through_a_parent() {
    let proxy = start("via = \"up\"\n[[parent]]\nname = \"up\"\nurl = \"socks5://127.0.0.1:9\"\n");
    for (ask, code) in [(Ask::Socks5, 3), (Ask::Socks5Name, 3), (Ask::Socks4, 0x5B)] {
        for ip in [LOCAL, ANYBODY] {
            let refused = ask.ask(&proxy, ip);
            assert_eq!(ask.reply(&refused), Err(code), "{ask:?}");
            refused.to_end();
        }
    }
    for line in told(proxy) {
        let end = "connect-failed parent-network-unreachable";
        assert!(line.ends_with(end), "{line}");
    }
}

#[test]
fn p60_a_name_that_is_unknown_is_told() {
    let proxy = start("");
    let conn = Conn::dial(proxy.address("socks"));
    conn.send(b"\x05\x01\0\x05\x02\0\x03\x0cnone.invalid\0\x15");
    conn.expect([5, 0]);
    assert_eq!(Ask::Socks5.reply(&conn), Err(4));
    drop(conn);
    let lines = told(proxy);
    assert!(lines[0].starts_with("BIND none.invalid:21 4 connect-failed name-"));
}

#[test]
fn p66_address_and_ports_are_settings() {
    // One of them is in use.
    let held = TcpListener::bind(closed_port()).expect("free a moment ago");
    let first = held.local_addr().expect("bound").port();
    let proxy = start(&format!(
        "[bind]\nadvertise = \"203.0.113.7\"\nports = \"{first}-{}\"\n",
        first + 9
    ));
    let clients: Vec<_> = (0..4).map(|_| Ask::Socks5.waits(&proxy, ANYBODY)).collect();
    for (near, told) in clients {
        assert_eq!(told.ip(), IpAddr::from([203, 0, 113, 7]));
        assert!((first + 1..=first + 9).contains(&told.port()), "{told}");
        // It is not this machine's, so another leads here.
        let far = Conn::dial(SocketAddr::from((LOCAL, told.port())));
        assert_eq!(Ask::Socks5.reply(&near), Ok(far.local()));
    }
    proxy.finish();

    let proxy = start(&format!("bind.ports = \"{first}\"\n"));
    let refused = Ask::Socks5.ask(&proxy, ANYBODY);
    assert_eq!(Ask::Socks5.reply(&refused), Err(1));
    refused.to_end();
    drop(held);
    // A port serves one after the other, without a pause.
    for _ in 0..3 {
        let (near, at) = Ask::Socks5.waits(&proxy, ANYBODY);
        assert_eq!(at, SocketAddr::from((LOCAL, first)));
        let far = Conn::dial(at);
        assert_eq!(Ask::Socks5.reply(&near), Ok(far.local()));
        far.fin();
        near.to_end();
    }
    let lines = told(proxy);
    assert_eq!(lines[0], "BIND 0.0.0.0:21 1 connect-failed exhausted");
}

#[test]
fn p66_the_address_that_the_client_reached() {
    let proxy = Proxyd::start(&["--listen", "socks://0.0.0.0:0?clients=127.0.0.0/8"]);
    let port = proxy.address("socks").port();
    for ip in [[127, 0, 0, 5], [127, 0, 0, 1]] {
        let near = Conn::dial(SocketAddr::from((ip, port)));
        near.send(Ask::Socks4.hello(ANYBODY));
        let at = Ask::Socks4.reply(&near).expect("an address");
        assert_eq!(at.ip(), IpAddr::from(ip));
        let far = Conn::dial(at);
        assert_eq!(Ask::Socks4.reply(&near), Ok(far.local()));
    }
    proxy.finish();
    // By IPv6, which SOCKS4 cannot tell of.
    if TcpListener::bind("[::1]:0").is_ok() {
        let proxy = Proxyd::start(&["--listen", "socks://[::1]:0"]);
        let near = Conn::dial(proxy.address("socks"));
        near.send(Ask::Socks4.hello(ANYBODY));
        assert_eq!(Ask::Socks4.reply(&near), Err(0x5B));
        drop(near);
        let near = Conn::dial(proxy.address("socks"));
        near.send(Ask::Socks5.hello(ANYBODY));
        near.expect([5, 0, 5, 0, 0, 4]);
        let told = near.exact(18);
        assert_eq!(told[..16], [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1]);
        let port = u16::from_be_bytes([told[16], told[17]]);
        let far = Conn::dial(SocketAddr::from((std::net::Ipv6Addr::LOCALHOST, port)));
        near.expect([5, 0, 0, 4]);
        assert_eq!(near.exact(18)[16..], far.local().port().to_be_bytes());
        drop((near, far));
        // Nobody of the other family could come.
        let near = Conn::dial(proxy.address("socks"));
        near.send(Ask::Socks5.hello([127, 0, 0, 1]));
        near.expect([5, 0, 5, 3]);
        drop(near);
        proxy.finish();
    }
}

#[test]
fn a_shutdown_does_not_wait_for_who_may_never_come() {
    let proxy = start("drain = \"10m\"\n");
    let waiting: Vec<_> = [Ask::Socks5, Ask::Auto4, Ask::AutoTls5]
        .map(|ask| (ask, ask.waits(&proxy, ANYBODY)))
        .into();
    proxy.process().signal(Signal::TERM);
    for (ask, (near, at)) in &waiting {
        let code = if ask.is_4() { 0x5B } else { 1 };
        assert_eq!(ask.reply(near), Err(code), "{ask:?}");
        assert!(refuses(*at));
    }
    drop(waiting);
    let stopped = proxy.wait();
    assert!(stopped.status.success(), "{stopped}");
    let lines = LogLine::all(&stopped.stdout);
    let ends: Vec<String> = lines.iter().map(|line| line.text("end")).collect();
    assert_eq!(ends, ["drained"; 3]);
}

#[test]
fn p41_what_comes_early_on_either_side_is_not_lost() {
    let proxy = start("");
    for ask in Ask::ALL {
        // The client does not wait for any answer.
        let near = ask.dial(&proxy);
        near.send([&ask.hello(LOCAL)[..], b"early "].concat());
        if !ask.is_4() {
            near.expect([5, 0]);
        }
        let at = ask.reply(&near).expect("an address");
        near.send("and ");
        let far = Conn::dial(at);
        far.send("first");
        assert_eq!(ask.reply(&near), Ok(far.local()), "{ask:?}");
        near.expect("first");
        near.send("late");
        far.expect("early and late");
    }
    proxy.finish();
}

/// What an FTP server has, of which the client wants it back.
const FILE: u64 = 3_000_000;

#[test]
fn a_file_comes_by_active_ftp_and_another_goes() {
    let (server, control) = Origin::manual();
    let proxy = start("");
    for mode in [Mode::Socks5, Mode::Socks4, Mode::AutoSocks5] {
        let ask = match mode {
            Mode::Socks4 => Ask::Socks4,
            Mode::AutoSocks5 => Ask::Auto5,
            _ => Ask::Socks5,
        };
        let client = mode.open(&proxy, server.address);
        let control = Accepted::next(&control);
        control.send("220 ready\r\n");
        client.expect("220 ready\r\n");
        for upload in [false, true] {
            // The connection for the data: the client awaits it at the proxy and
            // says so to the server, which connects from its own address.
            let (data, at) = ask.waits(&proxy, LOCAL);
            let command = port_command(at);
            client.send(&command);
            assert_eq!(control.until(b"\r\n"), command.as_bytes());
            let to = parse_port_command(&command);
            control.send("200 fine\r\n");
            client.expect("200 fine\r\n");
            let served = Conn::dial(to);
            assert_eq!(ask.reply(&data), Ok(served.local()), "{mode:?}");
            let (from, into) = match upload {
                true => (&data, &served),
                false => (&served, &data),
            };
            let pattern = if upload { UP } else { DOWN };
            std::thread::scope(|scope| {
                scope.spawn(|| {
                    pattern.send(from, 0, FILE).expect("sent");
                    from.fin();
                });
                pattern.check(into, 0, FILE).expect("as it was sent");
                assert_eq!(into.rest(), (Vec::new(), Ended::Finished));
            });
            into.fin();
            assert_eq!(from.to_end(), b"");
            control.send("226 done\r\n");
            client.expect("226 done\r\n");
        }
    }
    drop(server);
    let lines = LogLine::all(&proxy.finish().stdout);
    let moved = |field: &str| {
        let bound = lines.iter().filter(|line| line.text("method") == "BIND");
        bound.filter_map(|line| line.number(field)).sum::<u64>()
    };
    assert_eq!((moved("up"), moved("down")), (3 * FILE, 3 * FILE));
}

/// `PORT h1,h2,h3,h4,p1,p2` (RFC 959 section 4.1.2).
fn port_command(at: SocketAddr) -> String {
    let IpAddr::V4(ip) = at.ip() else {
        panic!("PORT has IPv4 addresses only");
    };
    let [a, b, c, d] = ip.octets();
    let [high, low] = at.port().to_be_bytes();
    format!("PORT {a},{b},{c},{d},{high},{low}\r\n")
}

fn parse_port_command(command: &str) -> SocketAddr {
    let numbers = command.trim_start_matches("PORT ").trim_end().split(',');
    let numbers: Vec<u8> = numbers.map(|n| n.parse().expect("a byte")).collect();
    let [a, b, c, d, high, low] = numbers[..] else {
        panic!("six numbers");
    };
    SocketAddr::from((Ipv4Addr::new(a, b, c, d), u16::from_be_bytes([high, low])))
}
