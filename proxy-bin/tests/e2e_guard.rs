//! The egress guard (P39): clients are not led to addresses inside, however
//! those are spelled and whatever the protocol. Nothing here leaves the machine:
//! `strace` sees every address that is connected to.

mod support;

use std::collections::BTreeSet;
use std::net::{IpAddr, SocketAddr, TcpListener};
use std::process::Command;
use std::sync::mpsc::Receiver;

use support::{
    A, AAAA, Accepted, Answer, Certs, Conn, LogLine, NameServer, Origin, Proxyd, Reply,
    socks5_reply, wait_for,
};

/// Spellings of addresses that no stranger may reach.
const LITERALS: &[&str] = &[
    // Loopback in all the ways that some resolver or library understands.
    "127.0.0.1",
    "127.1",
    "127.0.1",
    "127.000.000.001",
    "0177.0.0.1",
    "0177.0.0.01",
    "0x7f.0.0.1",
    "0x7F.0x0.0x0.0x1",
    "0x7f.1",
    "0x7f000001",
    "2130706433",
    "017700000001",
    "127.0.0.1.",
    "127.0.0.3",
    "127.255.255.254",
    "%31%32%37.0.0.1",
    "127.0.0.1%00",
    "127。0。0。1",
    "①②⑦.⓪.⓪.①",
    "[::1]",
    "[0:0:0:0:0:0:0:1]",
    "[0000::0001]",
    "[::1%lo]",
    "[::1%25lo]",
    "[::ffff:127.0.0.1]",
    "[::ffff:7f00:1]",
    "[0:0:0:0:0:ffff:127.0.0.1]",
    "[::FFFF:7F00:0001]",
    "[::127.0.0.1]",
    // Unspecified, which is loopback to Linux.
    "0",
    "0.0.0.0",
    "0x0",
    "00000000000",
    "0.0.0.1",
    "[::]",
    "[::0.0.0.0]",
    "[::ffff:0.0.0.0]",
    // IPv4 inside of IPv6.
    "[64:ff9b::127.0.0.1]",
    "[64:ff9b::7f00:1]",
    "[64:ff9b::a00:1]",
    "[64:ff9b:1::7f00:1]",
    "[2002:7f00:1::]",
    "[2002:a00:1::1]",
    "[2001:0:7f00:1::]",
    "[2001:0:c000:201::80ff:fffe]",
    // Private, link-local, shared, of the cloud, reserved.
    "10.0.0.1",
    "10.255.255.255",
    "172.16.0.1",
    "172.31.255.255",
    "192.168.0.1",
    "169.254.1.1",
    "169.254.169.254",
    "[fd00:ec2::254]",
    "[fd12:3456::1]",
    "[fc00::1]",
    "[fe80::1]",
    "[fe80::1%25eth0]",
    "100.64.0.1",
    "100.127.255.255",
    "192.0.0.1",
    "192.0.2.1",
    "198.18.0.1",
    "198.51.100.1",
    "203.0.113.1",
    "224.0.0.1",
    "239.255.255.255",
    "240.0.0.1",
    "255.255.255.255",
    "[ff02::1]",
    "[2001:db8::1]",
    "[100::1]",
    "[::ffff:10.0.0.1]",
    // Names that always mean loopback (RFC 6761 section 6.3).
    "localhost",
    "LOCALHOST",
    "localhost.",
    "a.localhost",
];

/// Names that lead to such addresses.
const NAMES: &[(&str, &[&str])] = &[
    ("loopback.example", &["127.0.0.1"]),
    ("final-dot.example.", &["127.0.0.1"]),
    ("six.example", &["::1"]),
    ("mapped.example", &["::ffff:127.0.0.1"]),
    ("nat64.example", &["64:ff9b::7f00:1"]),
    ("private.example", &["10.0.0.1"]),
    ("shared.example", &["100.64.0.1"]),
    ("metadata.example", &["169.254.169.254"]),
    ("unspecified.example", &["0.0.0.0", "::"]),
    ("several.example", &["127.0.0.1", "::1", "10.0.0.1"]),
];

/// Lets `name` have these addresses for a second, the least that is possible.
fn name(names: &NameServer, name: &str, addresses: &[&str]) {
    let all: Vec<IpAddr> = addresses
        .iter()
        .map(|text| text.parse().expect("an address"))
        .collect();
    for kind in [A, AAAA] {
        let of_kind = |ip: &&IpAddr| ip.is_ipv4() == (kind == A);
        let own = all.iter().filter(of_kind).copied().collect();
        names.says(name.trim_end_matches('.'), kind, Reply::Has(own, 0));
    }
}

/// A proxyd under `strace` whose clients on loopback are strangers, traps at the
/// addresses of loopback, and one origin that a rule lets them reach.
struct World {
    proxy: Proxyd,
    port: u16,
    traps: Vec<TcpListener>,
    names: NameServer,
    /// What `strace` wrote, if there is one.
    trace: std::path::PathBuf,
    traced: bool,
    allowed: Receiver<Accepted>,
    _origin: Origin,
}

impl World {
    fn new(name: &str, parent: Option<SocketAddr>) -> Self {
        let (origin, allowed) = Origin::manual_at("127.0.0.2");
        let port = origin.address.port();
        let traps = ["127.0.0.1", "::1"].map(|ip| {
            let ip: IpAddr = ip.parse().expect("an address");
            let trap = TcpListener::bind((ip, port)).expect("a free port");
            trap.set_nonblocking(true).expect("set");
            trap
        });
        let names = NameServer::start();
        for (own, addresses) in NAMES {
            self::name(&names, own, addresses);
        }
        let folder = Certs::shared().folder();
        let file = folder.join(format!("guard-{name}.toml"));
        let way = match parent {
            Some(parent) => {
                format!("via = \"next\"\n[[parent]]\nname = \"next\"\nurl = \"http://{parent}\"\n")
            }
            None => "[[rule]]\nnetworks = [\"127.0.0.2\"]\naction = \"allow\"\n".to_owned(),
        };
        let toml = format!("{way}[resolver]\nservers = [\"{}\"]\n", names.address);
        std::fs::write(&file, toml).expect("written");
        let listen = |kind: &str| format!("{kind}://127.0.0.1:0?trust_loopback=off");
        let args = [
            "--config",
            file.to_str().expect("a plain path"),
            "--access-log",
            "stdout",
            "--access-log-format",
            "json",
            "--listen",
            &listen("http"),
            "--listen",
            &listen("socks"),
            "--workers",
            "1",
        ];
        let trace = folder.join(format!("guard-{name}.strace"));
        let traced = Command::new("strace").arg("-V").output().is_ok();
        let proxy = match traced {
            true => {
                let mut command = Command::new("strace");
                command
                    .args(["-D", "-f", "-q", "-e", "trace=connect", "-o"])
                    .arg(&trace)
                    .arg(env!("CARGO_BIN_EXE_proxyd"))
                    .args(args);
                Proxyd::spawn(command, &args)
            }
            false => Proxyd::start(&args),
        };
        Self {
            proxy,
            port,
            traps: traps.into(),
            names,
            trace,
            traced,
            allowed,
            _origin: origin,
        }
    }

    /// Asks for `host` in one way and says how that was answered: 0 if without a
    /// word, 200 if the target was reached.
    fn ask(&self, way: Way, host: &str) -> u16 {
        let port = self.port;
        let kind = match way {
            Way::Connect | Way::Get => "http",
            _ => "socks",
        };
        let conn = Conn::dial(self.proxy.address(kind));
        let bare = host.trim_start_matches('[').trim_end_matches(']');
        match way {
            Way::Connect => {
                conn.send(format!("CONNECT {host}:{port} HTTP/1.1\r\nHost: h\r\n\r\n"));
                Answer::read_head(&conn).status
            }
            Way::Get => {
                conn.send(format!(
                    "GET http://{host}:{port}/ HTTP/1.1\r\nHost: h\r\n\r\n"
                ));
                Answer::read_head(&conn).status
            }
            Way::Socks4a => {
                let request = [&[4, 1][..], &port.to_be_bytes(), &[0, 0, 0, 1, 0]].concat();
                conn.send([&request[..], bare.as_bytes(), &[0]].concat());
                match conn.rest().0.get(1) {
                    Some(90) => 200,
                    Some(code) => (*code).into(),
                    None => 0,
                }
            }
            Way::Socks5Name => {
                let length = u8::try_from(bare.len()).expect("short");
                let request = [&[5, 1, 0, 5, 1, 0, 3, length][..], bare.as_bytes()].concat();
                conn.send([&request[..], &port.to_be_bytes()].concat());
                socks5_answer(&conn)
            }
            Way::Socks5Address(ip) => {
                let (kind, octets) = match ip {
                    IpAddr::V4(ip) => (1, ip.octets().to_vec()),
                    IpAddr::V6(ip) => (4, ip.octets().to_vec()),
                };
                let request = [&[5, 1, 0, 5, 1, 0, kind][..], &octets].concat();
                conn.send([&request[..], &port.to_be_bytes()].concat());
                socks5_answer(&conn)
            }
        }
    }

    /// All ways to ask for a host.
    fn ask_all(&self, host: &str) -> Vec<(Way, u16)> {
        let bare = host.trim_start_matches('[').trim_end_matches(']');
        let mut ways = vec![Way::Connect, Way::Get, Way::Socks4a, Way::Socks5Name];
        ways.extend(bare.parse().ok().map(Way::Socks5Address));
        let ask = |way| (way, self.ask(way, host));
        ways.into_iter().map(ask).collect()
    }

    /// Ends it; nobody was caught in a trap, and `strace` saw exactly these being
    /// connected to.
    fn finish(self, connected: &[SocketAddr]) -> Vec<LogLine> {
        for trap in &self.traps {
            assert!(trap.accept().is_err(), "somebody was led inside");
        }
        let stopped = self.proxy.stop();
        assert!(stopped.status.success(), "{stopped}");
        if self.traced {
            let read = || std::fs::read_to_string(&self.trace).unwrap_or_default();
            wait_for("strace to write the end", || {
                read().contains("+++ exited with")
            });
            let expected: BTreeSet<SocketAddr> = connected.iter().copied().collect();
            let seen: BTreeSet<SocketAddr> = read().lines().filter_map(peer).collect();
            assert_eq!(seen, expected);
        }
        LogLine::all(&stopped.stdout)
    }
}

#[derive(Clone, Copy, Debug)]
enum Way {
    Connect,
    Get,
    Socks4a,
    Socks5Address(IpAddr),
    Socks5Name,
}

fn socks5_answer(conn: &Conn) -> u16 {
    conn.expect([5, 0]);
    match socks5_reply(conn) {
        0 => 200,
        code => code.into(),
    }
}

/// The address in a line of strace such as
/// `7 connect(9, {sa_family=AF_INET, sin_port=htons(80), sin_addr=inet_addr("127.0.0.1")}, 16)`.
fn peer(line: &str) -> Option<SocketAddr> {
    let port = line.split_once("htons(")?.1.split_once(')')?.0;
    let quoted = line.split('"').nth(1)?;
    let ip: IpAddr = quoted.parse().ok()?;
    Some(SocketAddr::new(ip, port.parse().ok()?))
}

#[test]
fn p39_no_spelling_of_an_address_inside_is_dialled() {
    assert!(LITERALS.len() + NAMES.len() >= 60);
    let world = World::new("direct", None);
    let mut asked = 0;
    for host in LITERALS.iter().chain(NAMES.iter().map(|(name, _)| name)) {
        for (way, status) in world.ask_all(host) {
            assert_ne!(status, 200, "{host} by {way:?}");
            asked += 1;
            // What is an address or a name is forbidden, the rest is no target.
            let http = matches!(way, Way::Connect | Way::Get);
            if http {
                assert!([400, 403].contains(&status), "{host} by {way:?}: {status}");
            }
            if let Way::Socks5Address(_) = way {
                assert_eq!(status, 2, "{host}: not allowed by ruleset");
            }
        }
    }
    let lines = world.finish(&[]);
    assert!(lines.len() >= asked * 3 / 4, "{} of {asked}", lines.len());
    // The log names what is special about the address.
    for (target, error) in [
        ("127.0.0.1:", "guard:loopback"),
        ("10.0.0.1:", "guard:private"),
        ("169.254.169.254:", "guard:metadata"),
        ("0.0.0.0:", "guard:unspecified"),
        ("loopback.example:", "guard:loopback"),
        ("metadata.example:", "guard:metadata"),
    ] {
        let of_target = |line: &&LogLine| {
            line.text("method") == "CONNECT" && line.text("target").starts_with(target)
        };
        let line = lines.iter().find(of_target);
        let line = line.unwrap_or_else(|| panic!("no line about {target}"));
        assert_eq!(line.text("end"), "forbidden", "{line:?}");
        assert_eq!(line.text("error"), error, "{line:?}");
    }
}

#[test]
fn p39_of_several_addresses_only_those_allowed_are_dialled() {
    let world = World::new("both", None);
    let both = ["127.0.0.1", "::1", "10.0.0.1", "127.0.0.2"];
    name(&world.names, "both.example", &both);
    let good = SocketAddr::from(([127, 0, 0, 2], world.port));
    for way in [Way::Connect, Way::Socks4a, Way::Socks5Name] {
        // The origin waits for the client to go.
        let port = world.port;
        let conn = match way {
            Way::Connect => {
                let conn = Conn::dial(world.proxy.address("http"));
                conn.send(format!(
                    "CONNECT both.example:{port} HTTP/1.1\r\nHost: h\r\n\r\n"
                ));
                assert_eq!(Answer::read_head(&conn).status, 200);
                conn
            }
            Way::Socks4a => {
                let conn = Conn::dial(world.proxy.address("socks"));
                let request = [&[4, 1][..], &port.to_be_bytes(), &[0, 0, 0, 1, 0]].concat();
                conn.send([&request[..], b"both.example\0"].concat());
                assert_eq!(conn.exact(8)[1], 90);
                conn
            }
            _ => {
                let conn = Conn::dial(world.proxy.address("socks"));
                let request = [&[5, 1, 0, 5, 1, 0, 3, 12][..], b"both.example"].concat();
                conn.send([&request[..], &port.to_be_bytes()].concat());
                assert_eq!(socks5_answer(&conn), 200);
                conn
            }
        };
        let far = Accepted::next(&world.allowed);
        conn.send("through");
        far.expect("through");
    }
    world.finish(&[good]);
}

#[test]
fn p39_a_name_that_changes_is_judged_each_time() {
    let world = World::new("changing", None);
    name(&world.names, "changing.example", &["127.0.0.2"]);
    let good = SocketAddr::from(([127, 0, 0, 2], world.port));
    assert_eq!(world.ask(Way::Connect, "changing.example"), 200);
    drop(Accepted::next(&world.allowed));
    name(&world.names, "changing.example", &["127.0.0.1"]);
    // An answer that was not to be kept is not kept for long.
    wait_for("the other address", || {
        let status = world.ask(Way::Connect, "changing.example");
        if status == 200 {
            drop(Accepted::next(&world.allowed));
        }
        status == 403
    });
    assert!(world.names.count("changing.example", A) >= 2);
    world.finish(&[good]);
}

#[test]
fn p39_a_parent_is_not_asked_for_addresses_inside() {
    let (parent, requests) = Origin::manual();
    let world = World::new("parent", Some(parent.address));
    for host in LITERALS {
        for (way, status) in world.ask_all(host) {
            assert_ne!(status, 200, "{host} by {way:?}");
        }
    }
    assert!(requests.try_recv().is_err(), "the parent was asked");
    world.finish(&[]);
}

#[test]
fn p39_the_next_proxy_keeps_names_from_addresses_inside() {
    let next = World::new("next", None);
    let world = World::new("first", Some(next.proxy.address("http")));
    for (host, _) in NAMES {
        // Left for the parent to look up, which forbids it.
        for way in [Way::Connect, Way::Get] {
            assert_eq!(world.ask(way, host), 403, "{host} by {way:?}");
        }
        for way in [Way::Socks4a, Way::Socks5Name] {
            assert_ne!(world.ask(way, host), 200, "{host} by {way:?}");
        }
    }
    let parent = next.proxy.address("http");
    assert_eq!(world.names.total(), (0, 0));
    let lines = world.finish(&[parent]);
    assert!(
        lines
            .iter()
            .any(|line| line.text("error") == "parent-forbidden"),
        "{lines:#?}"
    );
    next.finish(&[]);
}

#[test]
fn clients_at_this_machine_reach_it() {
    let echo = Origin::echo();
    let proxy = Proxyd::http(&[]);
    let conn = Conn::dial(proxy.address("http"));
    let target = echo.address;
    conn.send(format!("CONNECT {target} HTTP/1.1\r\nHost: h\r\n\r\n"));
    assert_eq!(Answer::read_head(&conn).status, 200);
    drop(conn);
    // Not by an address that is nobody's.
    for host in ["0.0.0.0", "[::]"] {
        let conn = Conn::dial(proxy.address("http"));
        let port = target.port();
        conn.send(format!("CONNECT {host}:{port} HTTP/1.1\r\nHost: h\r\n\r\n"));
        assert_eq!(Answer::read_head(&conn).status, 403, "{host}");
    }
    proxy.finish();
}
