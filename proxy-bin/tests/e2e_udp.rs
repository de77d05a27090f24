//! SOCKS5 UDP ASSOCIATE through the real binary.

mod support;

use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::Duration;

use support::{
    A, AAAA, ASSOCIATE, Certs, Conn, DEADLINE, Echo, LogLine, NameServer, Origin, Proxyd, Reply,
    Udp, datagram, socks5_reply, wait_for,
};

/// Starts with a configuration file only, `socks` among its listeners.
fn with_file(toml: &str) -> Proxyd {
    static COUNT: AtomicUsize = AtomicUsize::new(0);
    let number = COUNT.fetch_add(1, Ordering::Relaxed);
    let file = Certs::shared().folder().join(format!("udp{number}.toml"));
    std::fs::write(&file, toml).expect("written");
    Proxyd::start(&["--config", file.to_str().expect("a plain path")])
}

const SOCKS: &str = "
[[listener]]
protocol = \"socks\"
address = \"127.0.0.1:0\"
";

#[test]
fn datagrams_pass_on_every_listener_that_speaks_socks() {
    let origin = Origin::echo();
    let (v4, v6) = (Echo::new(), Echo::on("::1", 0));
    let access = ["--access-log", "stdout", "--access-log-format", "json"];
    let proxy = Proxyd::with_all(origin.address, &access);
    let dial = [
        Conn::dial(proxy.address("socks")),
        Conn::dial(proxy.address("auto")),
        Conn::dial_tls(proxy.address("auto")),
    ];
    for control in dial {
        let udp = Udp::over(control);
        assert_eq!(udp.relay.ip(), udp.control.local().ip());
        udp.round(&v4);
        udp.send("::1", v6.port(), b"sixth");
        assert_eq!(udp.next(), (v6.address, b"sixth".to_vec()));
        let large = vec![7; 60_000];
        udp.send("::ffff:127.0.0.1", v4.port(), &large);
        assert_eq!(udp.next(), (v4.address, large));
        udp.send("127.0.0.1", v4.port(), b"");
        assert_eq!(udp.next(), (v4.address, Vec::new()));
        // Over TLS with a close_notify, without which it would be a reset.
        udp.control.fin();
        wait_for("its end", || UdpSocket::bind(udp.relay).is_ok());
    }
    drop(origin);
    let lines = LogLine::all(&proxy.finish().stdout);
    assert_eq!(lines.len(), 3);
    for line in lines {
        assert_eq!(line.text("method"), "ASSOCIATE", "{line:?}");
        assert_eq!(line.text("target"), "0.0.0.0:0", "{line:?}");
        assert_eq!(line.number("status"), Some(0), "{line:?}");
        assert_eq!(line.text("end"), "client-finished", "{line:?}");
        assert_eq!(line.text("error"), "", "{line:?}");
    }
}

#[test]
fn p64_names_are_resolved_for_datagrams_but_not_for_the_request() {
    let echo = Echo::new();
    let proxy = Proxyd::start(&["--listen", "socks://127.0.0.1:0"]);
    let udp = Udp::new(&proxy);
    udp.send("127.0.0.1.", echo.port(), b"no name");
    udp.send("nowhere.invalid", echo.port(), b"no such name");
    udp.round(&echo);
    // Whichever address it has first.
    let v6 = Echo::on("::1", echo.port());
    udp.send("localhost", echo.port(), b"by name");
    let (from, payload) = udp.next();
    assert!([echo.address, v6.address].contains(&from), "{from}");
    assert_eq!(payload, b"by name");

    for address in [
        &b"\x01\0\0\0\0\0\0"[..],
        b"\x03\x070.0.0.0\0\0",
        b"\x03\x02::\0\0",
        b"\x03\x0fnowhere.invalid\0\0",
        b"\x04\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0",
    ] {
        let control = Conn::dial(proxy.address("socks"));
        control.send([b"\x05\x01\x00\x05\x03\x00", address].concat());
        control.expect([5, 0]);
        assert_eq!(socks5_reply(&control), 0, "{address:?}");
    }
    drop(udp);
    proxy.finish();
}

#[test]
fn p66_the_address_told_is_the_one_the_client_reached() {
    let echo = Echo::new();
    for (listen, clients) in [
        ("socks://0.0.0.0:0?open=on", &["127.0.0.1", "127.0.0.9"][..]),
        ("socks://[::]:0?open=on", &["127.0.0.1", "::1"]),
        ("socks://[::1]:0", &["::1"]),
    ] {
        let proxy = Proxyd::start(&["--listen", listen]);
        for client in clients {
            let port = proxy.address("socks").port();
            let udp = Udp::over(Conn::dial(
                (client.parse::<IpAddr>().expect("an address"), port).into(),
            ));
            assert_eq!(udp.relay.ip().to_string(), *client, "{listen}");
            assert_ne!(udp.relay.port(), 0);
            udp.round(&echo);
        }
        proxy.finish();
    }
}

#[test]
fn p63_the_association_ends_with_its_connection() {
    let echo = Echo::new();
    let proxy = Proxyd::start(&["--listen", "socks://127.0.0.1:0"]);
    let closes: [fn(Conn); 3] = [drop, Conn::reset, |control| control.fin()];
    for close in closes {
        let Udp {
            control,
            socket,
            relay,
        } = {
            let udp = Udp::new(&proxy);
            udp.round(&echo);
            udp
        };
        let before = echo.count();
        close(control);
        // Its port is free again, and nothing goes through it.
        wait_for("the end of the association", || {
            UdpSocket::bind(relay).is_ok()
        });
        let late = datagram("127.0.0.1", echo.port(), b"late");
        let _ = socket.send_to(&late, relay);
        proxy.settle();
        assert_eq!(echo.count(), before);
    }
    proxy.finish();
}

#[test]
fn p63_a_drain_waits_for_associations_and_then_cuts_them() {
    let echo = Echo::new();
    let toml = format!("drain = \"1s\"\n[log]\naccess = \"stdout\"\nformat = \"json\"\n{SOCKS}");
    let proxy = with_file(&toml);
    let udp = Udp::new(&proxy);
    udp.round(&echo);
    proxy.process().signal(rustix::process::Signal::TERM);
    proxy.line(|line| line.contains("closing"));
    udp.round(&echo);
    let stopped = proxy.wait();
    assert!(stopped.status.success(), "{stopped}");
    let lines = LogLine::all(&stopped.stdout);
    assert_eq!(lines[0].text("end"), "drained", "{lines:?}");
    assert_eq!(lines[0].number("up"), Some(8), "{lines:?}");
    assert_eq!(lines[0].number("down"), Some(8), "{lines:?}");
}

#[test]
fn p69_errors_of_datagrams_end_nothing() {
    let echo = Echo::new();
    let proxy = Proxyd::start(&["--listen", "socks://127.0.0.1:0"]);
    let udp = Udp::new(&proxy);
    let closed = UdpSocket::bind("127.0.0.1:0").expect("bound");
    let closed = closed.local_addr().expect("bound").port();
    for _ in 0..5 {
        udp.send("127.0.0.1", closed, b"anybody?");
        udp.send("255.255.255.255", 9, b"everybody!");
        udp.send("nowhere.invalid", 9, b"nobody");
        udp.round(&echo);
    }
    drop(udp);
    proxy.finish();
}

#[test]
fn p70_rules_are_asked_about_each_target() {
    let (open, closed) = (Echo::new(), Echo::new());
    let toml = format!(
        "[[rule]]
        action = \"deny\"
        networks = [\"127.0.0.0/8\"]
        ports = [\"{}\"]
        [[rule]]
        action = \"deny\"
        names = [\"localhost\"]
        [[rule]]
        action = \"deny\"
        networks = [\"0.0.0.0/8\", \"::/128\"]
        [[rule]]
        action = \"allow\"
        networks = [\"127.0.0.1/32\"]
        ports = [\"{}\"]
        [[rule]]
        action = \"deny\"
        {SOCKS}",
        closed.port(),
        open.port(),
    );
    let proxy = with_file(&toml);
    let udp = Udp::new(&proxy);
    for host in ["127.0.0.1", "::ffff:127.0.0.1", "localhost"] {
        udp.send(host, closed.port(), b"closed");
        udp.round(&open);
    }
    udp.send("localhost", open.port(), b"closed");
    udp.send("127.0.0.2", open.port(), b"closed");
    udp.round(&open);
    assert_eq!((open.count(), closed.count()), (4, 0));
    drop(udp);
    let stopped = proxy.finish();
    let told = |line: &&String| line.contains("datagrams are dropped");
    let lines: Vec<&String> = stopped.stderr.iter().filter(told).collect();
    assert_eq!(lines.len(), 1, "{stopped}");
    for part in [
        &format!("target=127.0.0.1:{}", closed.port()),
        "reason=\"rule:",
        "client=127.0.0.1",
    ] {
        assert!(lines[0].contains(part), "{}", lines[0]);
    }
}

#[test]
fn p70_a_rule_against_associations_is_told_at_once() {
    for (rules, code) in [
        (
            "[[rule]]\naction = \"deny\"\noperations = [\"associate\"]",
            2,
        ),
        ("[[rule]]\naction = \"deny\"\nfrom = [\"127.0.0.1\"]", 2),
        (
            "[[rule]]\naction = \"deny\"\nnames = [\"a.test\"]\n[[rule]]\naction = \"deny\"",
            2,
        ),
        ("[[rule]]\naction = \"deny\"\nfrom = [\"192.0.2.1\"]", 0),
        ("[[rule]]\naction = \"deny\"\noperations = [\"tunnel\"]", 0),
        ("[[rule]]\naction = \"deny\"\nports = [\"1-65535\"]", 0),
        (
            "[[rule]]\naction = \"allow\"\nnames = [\"a.test\"]\n[[rule]]\naction = \"deny\"",
            0,
        ),
    ] {
        let proxy = with_file(&format!("{rules}\n{SOCKS}"));
        let control = Conn::dial(proxy.address("socks"));
        control.send(ASSOCIATE);
        control.expect([5, 0]);
        assert_eq!(socks5_reply(&control), code, "{rules}");
        drop(control);
        proxy.finish();
    }
}

#[test]
fn p39_the_guard_looks_at_the_address_of_each_datagram() {
    let (inside, let_in) = (Echo::new(), Echo::on("127.0.0.3", 0));
    let v6 = Echo::on("::1", inside.port());
    let toml = format!(
        "[[rule]]
        action = \"allow\"
        networks = [\"127.0.0.3/32\"]
        [[rule]]
        action = \"allow\"
        {SOCKS}
        trust_loopback = false"
    );
    let proxy = with_file(&toml);
    let udp = Udp::new(&proxy);
    let port = inside.port();
    for host in [
        "127.0.0.1",
        "127.1",
        "2130706433",
        "0x7f000001",
        "0177.0.0.1",
        "127.0.0.1.",
        "::ffff:127.0.0.1",
        "::127.0.0.1",
        "64:ff9b::7f00:1",
        "2002:7f00:1::1",
        "::1",
        "0.0.0.0",
        "::",
        "localhost",
        "LOCALHOST.",
        "a.localhost",
    ] {
        udp.send(host, port, b"inside");
        udp.send("127.0.0.3", let_in.port(), host);
        assert_eq!(udp.next(), (let_in.address, host.as_bytes().to_vec()));
    }
    assert_eq!((inside.count(), v6.count()), (0, 0));
    drop(udp);
    let stopped = proxy.finish();
    assert!(stopped.says("reason=\"guard:loopback\""), "{stopped}");
}

#[test]
fn p39_a_name_leads_to_the_address_that_was_judged() {
    let inside = Echo::new();
    let let_in = Echo::on("127.0.0.3", inside.port());
    let names = NameServer::start();
    let ip = |text: &str| text.parse::<IpAddr>().expect("an address");
    let has = |name: &str, addresses: &[&str]| {
        let own = addresses.iter().map(|text| ip(text)).collect();
        names.says(name, A, Reply::Has(own, 0));
        names.says(name, AAAA, Reply::Has(Vec::new(), 0));
    };
    has("inside.test", &["127.0.0.1"]);
    has("both.test", &["127.0.0.1", "127.0.0.3"]);
    has("moves.test", &["127.0.0.3"]);
    names.says("slow.test", A, Reply::Silent);
    names.says("slow.test", AAAA, Reply::Silent);
    let toml = format!(
        "[resolver]
        servers = [\"{}\"]
        timeout = \"30s\"
        [[rule]]
        action = \"deny\"
        names = [\"forbidden.test\"]
        [[rule]]
        action = \"allow\"
        networks = [\"127.0.0.3/32\"]
        {SOCKS}
        trust_loopback = false",
        names.address
    );
    let proxy = with_file(&toml);
    let udp = Udp::new(&proxy);
    let port = inside.port();
    // Asked for and never answered: it holds up none of the others (P64).
    udp.send("slow.test", port, b"slow");
    wait_for("the question", || names.count("slow.test", A) > 0);
    udp.send("inside.test", port, b"no");
    for name in ["both.test", "moves.test"] {
        udp.send(name, port, name);
        assert_eq!(udp.next(), (let_in.address, name.as_bytes().to_vec()));
    }
    // The answer changes; datagrams go where the verdict was for.
    has("moves.test", &["127.0.0.1"]);
    thread::sleep(Duration::from_millis(1100));
    udp.send("moves.test", port, b"still");
    assert_eq!(udp.next(), (let_in.address, b"still".to_vec()));
    udp.send("forbidden.test", port, b"no");
    udp.send("both.test", port, b"last");
    udp.next();
    assert_eq!(inside.count(), 0);
    assert_eq!(names.count("forbidden.test", A), 0);
    drop(udp);
    proxy.finish();
}

#[test]
fn datagrams_leave_from_the_address_that_policy_orders() {
    let (echo, other) = (Echo::new(), Echo::new());
    let toml = format!(
        "[[source]]
        name = \"seven\"
        addresses = [\"127.0.0.7\"]
        [[source]]
        name = \"many\"
        addresses = [\"127.0.0.11\", \"127.0.0.12\", \"127.0.0.13\"]
        choice = \"fresh\"
        [[rule]]
        action = \"allow\"
        ports = [\"{}\"]
        source = \"many\"
        {SOCKS}
        source = \"seven\"",
        other.port()
    );
    let proxy = with_file(&toml);
    let udp = Udp::new(&proxy);
    for _ in 0..3 {
        udp.round(&echo);
        udp.round(&other);
        udp.send("127.0.0.2", other.port(), b"another target");
    }
    udp.send("::1", echo.port(), b"no such source");
    udp.round(&echo);
    assert_eq!(echo.first().ip().to_string(), "127.0.0.7");
    let seen = other.seen.lock().expect("no panic").clone();
    assert!(seen[0].ip().to_string().starts_with("127.0.0.1"));
    assert!(seen.iter().all(|from| *from == seen[0]), "{seen:?}");
    drop(udp);
    proxy.finish();
}

#[test]
fn p30_ports_of_associations_are_no_targets() {
    let echo = Echo::new();
    let proxy = Proxyd::start(&["--listen", "socks://127.0.0.1:0", "--workers", "2"]);
    let (one, two) = (Udp::new(&proxy), Udp::new(&proxy));
    one.round(&echo);
    let upstream = echo.first().port();
    let inner = datagram("127.0.0.1", echo.port(), b"round and round");
    for host in ["127.0.0.1", "::ffff:127.0.0.1", "localhost"] {
        for port in [one.relay.port(), two.relay.port(), upstream] {
            one.send(host, port, &inner);
        }
    }
    one.round(&echo);
    two.round(&echo);
    assert_eq!(echo.count(), 3);
    drop((one, two));
    let stopped = proxy.finish();
    assert!(stopped.says("reason=\"loop\""), "{stopped}");
}

#[test]
fn datagrams_pass_by_no_parent_that_carries_none() {
    let echo = Echo::new();
    let parent = "[[parent]]\nname = \"up\"\nurl = \"http://127.0.0.1:9\"";
    let via = format!("{SOCKS}via = \"up\"");
    // If nothing can go there, that is told at once.
    let proxy = with_file(&format!("{parent}\n{via}"));
    let control = Conn::dial(proxy.address("socks"));
    control.send(ASSOCIATE);
    control.expect([5, 0]);
    assert_eq!(socks5_reply(&control), 4);
    drop(control);
    proxy.finish();

    let rule = format!(
        "[[rule]]\naction = \"allow\"\nports = [\"{}\"]\nvia = \"direct\"",
        echo.port()
    );
    let past = Echo::new();
    let proxy = with_file(&format!("{parent}\n{rule}\n{via}"));
    let udp = Udp::new(&proxy);
    for host in ["127.0.0.1", "localhost"] {
        udp.send(host, past.port(), b"past it");
        udp.round(&echo);
    }
    assert_eq!(past.count(), 0);
    drop(udp);
    let stopped = proxy.finish();
    let reason = "reason=\"parent-network-unreachable\"";
    assert!(stopped.says(reason), "{stopped}");
}

#[test]
fn who_must_log_in_must_for_datagrams_too() {
    let echo = Echo::new();
    let proxy = Proxyd::start(&["--listen", "socks://127.0.0.1:0", "--user", "alice:secret"]);
    let control = Conn::dial(proxy.address("socks"));
    control.send([&ASSOCIATE[..3], &ASSOCIATE[3..]].concat());
    control.expect([5, 0xff]);
    let control = Conn::dial(proxy.address("socks"));
    control.send(b"\x05\x01\x02\x01\x05alice\x06secret");
    control.expect([5, 2, 1, 0]);
    control.send(&ASSOCIATE[3..]);
    let head = control.exact(8);
    assert_eq!(head, [5, 0, 0, 1, 127, 0, 0, 1]);
    let port = control.exact(2);
    let relay = SocketAddr::from(([127, 0, 0, 1], u16::from_be_bytes([port[0], port[1]])));
    let socket = UdpSocket::bind("127.0.0.1:0").expect("bound");
    socket.set_read_timeout(Some(DEADLINE)).expect("set");
    let udp = Udp {
        control,
        socket,
        relay,
    };
    udp.round(&echo);
    drop(udp);
    proxy.finish();
}
