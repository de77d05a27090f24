//! Names and source addresses: who is asked, which address is dialled, from which.

mod support;

use std::collections::HashSet;
use std::io::{Read, Write};
use std::net::TcpListener;
use std::thread;
use std::time::{Duration, Instant};

use support::{A, AAAA, Answer, Certs, Conn, NameServer, Origin, Proxyd, Reply, wait_for};

/// A proxy of one worker with this configuration and these listeners.
fn start(file: &str, toml: &str, listen: &[&str]) -> Proxyd {
    let path = Certs::shared().folder().join(file);
    std::fs::write(&path, format!("workers = 1\n{toml}")).expect("written");
    let path = path.to_str().expect("a plain path").to_owned();
    let listeners = listen.iter().flat_map(|url| ["--listen", url]);
    let args: Vec<&str> = ["--config", &path].into_iter().chain(listeners).collect();
    Proxyd::start(&args)
}

fn resolver(server: &NameServer, timeout: &str) -> String {
    let address = server.address;
    format!("[resolver]\nservers = \"{address}\"\ntimeout = \"{timeout}\"\n")
}

fn has(texts: &[&str], ttl: u32) -> Reply {
    let ips = texts.iter().map(|text| text.parse().expect("an address"));
    Reply::Has(ips.collect(), ttl)
}

/// Asks the listener of this kind for a tunnel to `target`.
fn connect(proxy: &Proxyd, target: &str) -> (Conn, u16) {
    let conn = Conn::dial(proxy.address("http"));
    conn.send(format!(
        "CONNECT {target} HTTP/1.1\r\nHost: {target}\r\n\r\n"
    ));
    let status = Answer::read_head(&conn).status;
    (conn, status)
}

/// An origin that tells each client where it comes from.
fn telling() -> Origin {
    Origin::start(|mut socket| {
        let peer = socket.peer_addr().expect("connected").ip();
        drop(write!(socket, "{peer}"));
    })
}

#[test]
fn p37_equal_questions_are_asked_once() {
    let (origin, server) = (Origin::echo(), NameServer::start());
    server.says("a.example", A, has(&["127.0.0.1"], 300));
    let proxy = start(
        "once.toml",
        &resolver(&server, "5s"),
        &["http://127.0.0.1:0"],
    );
    let target = format!("a.example:{}", origin.address.port());
    thread::scope(|scope| {
        for _ in 0..20 {
            scope.spawn(|| {
                let (conn, status) = connect(&proxy, &target);
                assert_eq!(status, 200);
                conn.send("hello");
                conn.expect("hello");
            });
        }
    });
    assert_eq!(server.count("a.example", A), 1);
    assert_eq!(server.count("a.example", AAAA), 1);
    drop(origin);
    proxy.finish();
}

#[test]
fn p37_a_name_that_hangs_delays_nobody() {
    let (origin, server) = (Origin::echo(), NameServer::start());
    for kind in [A, AAAA] {
        server.says("mute.example", kind, Reply::Silent);
    }
    server.says("a.example", A, has(&["127.0.0.1"], 0));
    let proxy = start(
        "mute.toml",
        &resolver(&server, "2s"),
        &["http://127.0.0.1:0"],
    );
    let start = Instant::now();
    let hanging = Conn::dial(proxy.address("http"));
    hanging.send("CONNECT mute.example:80 HTTP/1.1\r\nHost: mute.example\r\n\r\n");
    wait_for("the question", || server.count("mute.example", A) > 0);
    let target = format!("a.example:{}", origin.address.port());
    let (quick, status) = connect(&proxy, &target);
    assert_eq!(status, 200);
    assert!(
        start.elapsed() < Duration::from_secs(2),
        "{:?}",
        start.elapsed()
    );
    let answer = Answer::read(&hanging);
    assert!(start.elapsed() >= Duration::from_secs(2));
    assert_eq!(answer.status, 502, "{answer:?}");
    drop((origin, hanging, quick));
    proxy.finish();
}

#[test]
fn p37_an_answer_is_kept_for_its_time_and_no_longer() {
    let (origin, server) = (Origin::echo(), NameServer::start());
    server.says("long.example", A, has(&["127.0.0.1"], 300));
    server.says("short.example", A, has(&["127.0.0.1"], 1));
    let proxy = start(
        "time.toml",
        &resolver(&server, "5s"),
        &["http://127.0.0.1:0"],
    );
    let port = origin.address.port();
    let status = |name: &str| connect(&proxy, &format!("{name}:{port}")).1;
    assert_eq!(
        (status("long.example"), status("short.example")),
        (200, 200)
    );
    // Nobody is at home there.
    for name in ["long.example", "short.example"] {
        server.says(name, A, has(&["127.0.0.9"], 300));
    }
    wait_for("the new address", || status("short.example") == 502);
    assert_eq!(status("long.example"), 200);
    assert_eq!(server.count("long.example", A), 1);
    drop(origin);
    proxy.finish();
}

#[test]
fn p36_each_address_of_a_name_is_tried() {
    let (origin, server) = (Origin::echo(), NameServer::start());
    server.says("two.example", AAAA, has(&["::1"], 300));
    server.says("two.example", A, has(&["127.0.0.9", "127.0.0.1"], 300));
    server.says("half.example", AAAA, Reply::Fails);
    server.says("half.example", A, has(&["127.0.0.1"], 300));
    server.says("none.example", AAAA, has(&["::1"], 300));
    let proxy = start(
        "tried.toml",
        &resolver(&server, "5s"),
        &["http://127.0.0.1:0"],
    );
    let port = origin.address.port();
    for (name, expected) in [("two", 200), ("half", 200), ("none", 502), ("no-such", 502)] {
        let (_, status) = connect(&proxy, &format!("{name}.example:{port}"));
        assert_eq!(status, expected, "{name}");
    }
    drop(origin);
    proxy.finish();
}

#[test]
fn p38_ipv6_is_reached_by_name_and_by_address() {
    let listener = TcpListener::bind("[::1]:0").expect("a free port");
    let port = listener.local_addr().expect("bound").port();
    let server = NameServer::start();
    server.says("six.example", AAAA, has(&["::1"], 300));
    let proxy = start(
        "six.toml",
        &resolver(&server, "5s"),
        &["http://127.0.0.1:0"],
    );
    for host in ["six.example", "[::1]"] {
        let (conn, status) = connect(&proxy, &format!("{host}:{port}"));
        assert_eq!(status, 200, "{host}");
        let (mut accepted, _) = listener.accept().expect("accepted");
        conn.send("x");
        accepted.read_exact(&mut [0]).expect("a byte");
    }
    proxy.finish();
}

#[test]
fn p35_connections_go_out_from_the_source_of_their_listener() {
    let origin = telling();
    let pools = r#"
        [[source]]
        name = "one"
        addresses = ["127.0.0.7"]

        [[source]]
        name = "turns"
        addresses = ["127.0.0.8", "127.0.0.9"]
        choice = "fresh"

        [[source]]
        name = "stays"
        addresses = ["127.0.0.8", "127.0.0.9"]

        [[source]]
        name = "six"
        prefix = "2001:db8:1::/64"
    "#;
    for (source, expected) in [
        ("one", &["127.0.0.7"][..]),
        ("turns", &["127.0.0.8", "127.0.0.9"]),
        ("stays", &[]),
        ("six", &[]),
    ] {
        let listen = format!("http://127.0.0.1:0?source={source}");
        let proxy = start(&format!("source-{source}.toml"), pools, &[&listen]);
        let tunnel = || {
            let (conn, status) = connect(&proxy, &origin.authority());
            let told = (status == 200).then(|| conn.to_end());
            told.map(|told| String::from_utf8(told).expect("text"))
        };
        let told: HashSet<Option<String>> = (0..6).map(|_| tunnel()).collect();
        match source {
            // The same one always.
            "stays" => {
                let one = told.iter().next().expect("one").as_deref();
                assert!(matches!(one, Some("127.0.0.8" | "127.0.0.9")), "{told:?}");
                assert_eq!(told.len(), 1, "{told:?}");
            }
            // A source without addresses of that family lends none of another's.
            "six" => assert_eq!(told, HashSet::from([None])),
            _ => {
                let expected = expected.iter().map(|text| Some((*text).to_owned()));
                assert_eq!(told, expected.collect());
            }
        }
        proxy.finish();
    }
    drop(origin);
}
