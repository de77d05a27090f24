//! PROXY headers that targets are sent: byte by byte, and never somebody else's.

mod support;

use std::io::{BufReader, Read, Write};
use std::net::{SocketAddr, TcpStream};

use proxy_tls::rustls::{ServerConnection, StreamOwned};
use support::{Accepted, Answer, Certs, Conn, LogLine, Mode, Origin, Proxyd, Request, ok};

/// Every kind of listener with these parameters; the log on standard output.
fn start(target: SocketAddr, query: &str, toml: &str) -> Proxyd {
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("p.toml");
    let log = "workers = 1\nlog.access = \"stdout\"\nlog.format = \"json\"\n";
    std::fs::write(&file, format!("{log}{toml}")).expect("written");
    let certs = Certs::shared().query();
    let mut args = vec!["--config".to_owned(), file.display().to_string()];
    for url in [
        format!("http://127.0.0.1:0?{query}"),
        format!("socks://127.0.0.1:0?{query}"),
        format!("tcp://127.0.0.1:0/{target}?{query}"),
        format!("https://127.0.0.1:0?{certs}&{query}"),
        format!("auto://127.0.0.1:0?{certs}&{query}"),
    ] {
        args.extend(["--listen".to_owned(), url]);
    }
    Proxyd::start(&args)
}

/// The whole header of version 1 for a client of `listener`.
fn v1(client: SocketAddr, listener: SocketAddr) -> Vec<u8> {
    let (from, to) = (client.port(), listener.port());
    format!(
        "PROXY TCP4 {} {} {from} {to}\r\n",
        client.ip(),
        listener.ip()
    )
    .into_bytes()
}

/// The same in version 2.
fn v2(client: SocketAddr, listener: SocketAddr) -> Vec<u8> {
    let (SocketAddr::V4(client), SocketAddr::V4(listener)) = (client, listener) else {
        panic!("the tests use 127.0.0.1");
    };
    [
        &b"\x0d\x0a\x0d\x0a\x00\x0d\x0a\x51\x55\x49\x54\x0a\x21\x11\x00\x0c"[..],
        &client.ip().octets(),
        &listener.ip().octets(),
        &client.port().to_be_bytes(),
        &listener.port().to_be_bytes(),
    ]
    .concat()
}

/// Reads a header of version 1 and nothing behind it.
fn read_line(mut stream: impl Read) -> String {
    let mut line = Vec::new();
    while !line.ends_with(b"\r\n") {
        let mut byte = [0];
        if stream.read_exact(&mut byte).is_err() {
            return String::new();
        }
        line.extend(byte);
    }
    assert!(line.starts_with(b"PROXY "), "{}", line.escape_ascii());
    String::from_utf8_lossy(&line).into_owned()
}

/// Answers each request with the header that its connection began with.
fn answer(header: &str, stream: impl Read + Write) {
    let mut stream = BufReader::new(stream);
    while Request::read(&mut stream).is_some() {
        if stream.get_mut().write_all(&ok(header.as_bytes())).is_err() {
            return;
        }
    }
}

fn told() -> Origin {
    Origin::start(|socket| answer(&read_line(socket), socket))
}

/// The same inside TLS, which begins behind the header.
fn told_over_tls() -> Origin {
    Origin::start(|socket: &TcpStream| {
        let header = read_line(socket);
        let config = Certs::shared().server.clone();
        let session = ServerConnection::new(config).expect("a session");
        answer(&header, StreamOwned::new(session, socket));
    })
}

fn ask(conn: &Conn, url: &str) -> String {
    conn.send(format!("GET {url} HTTP/1.1\r\nHost: x\r\n\r\n"));
    let answer = Answer::read(conn);
    assert_eq!(answer.status, 200, "{answer:?}");
    String::from_utf8(answer.body).expect("text")
}

#[test]
fn p73_a_tunnel_begins_with_the_client_at_the_target() {
    for (word, header) in [("v1", v1 as fn(_, _) -> _), ("v2", v2)] {
        let (origin, accepted) = Origin::manual();
        let proxy = start(origin.address, &format!("send_proxy={word}"), "");
        for mode in Mode::ALL {
            let conn = mode.dial(&proxy);
            conn.send(mode.hello(origin.address));
            // Before the client has said anything: the target may speak first.
            let far = Accepted::next(&accepted);
            far.expect(header(conn.local(), proxy.address(mode.listener())));
            far.send("welcome");
            assert_eq!(mode.answer(&conn), 200);
            conn.expect("welcome");
            conn.send("hello");
            far.expect("hello");
            conn.fin();
            far.fin();
            assert_eq!((far.to_end(), conn.to_end()), (Vec::new(), Vec::new()));
        }
        drop((origin, accepted));
        let lines = LogLine::all(&proxy.finish().stdout);
        assert_eq!(lines.len(), Mode::ALL.len());
        // The header is not the client's, and does not count.
        for line in lines {
            let counts = (line.number("up"), line.number("down"));
            assert_eq!(counts, (Some(5), Some(7)), "{line:?}");
        }
    }
}

#[test]
fn p73_connections_of_requests_are_not_shared() {
    let origin = told();
    let proxy = start(origin.address, "send_proxy=v1", "");
    let url = origin.url("/");
    let clients: Vec<(Conn, String)> = ["http", "https", "auto", "http"]
        .into_iter()
        .map(|kind| {
            let conn = match kind {
                "https" => Conn::dial_tls(proxy.address(kind)),
                _ => Conn::dial(proxy.address(kind)),
            };
            let header = v1(conn.local(), proxy.address(kind));
            (conn, String::from_utf8(header).expect("text"))
        })
        .collect();
    for round in 0..6 {
        for (conn, header) in &clients {
            assert_eq!(&ask(conn, &url), header, "round {round}");
        }
    }
    // Nor is one taken or left where other listeners put theirs.
    drop(clients);
    let conn = Conn::dial(proxy.address("http"));
    assert!(ask(&conn, &url).contains(&format!(" {} ", conn.local().port())));
    drop((conn, origin));
    proxy.finish();
}

#[test]
fn p73_idle_connections_of_other_listeners_are_left_alone() {
    // It takes what comes first for a header.
    let count = std::sync::Arc::new(std::sync::atomic::AtomicUsize::new(0));
    let origin = Origin::start({
        let count = count.clone();
        move |socket| {
            count.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
            let mut first = [0; 5];
            if socket.peek(&mut first).is_err() {
                return;
            }
            let header = match &first == b"PROXY" {
                true => read_line(socket),
                false => "none".to_owned(),
            };
            answer(&header, socket);
        }
    });
    let proxy = Proxyd::start(&[
        "--listen",
        "http://127.0.0.1:0",
        "--listen",
        "auto://127.0.0.1:0?send_proxy=v1",
        "--workers",
        "1",
    ]);
    let url = origin.url("/");
    for _ in 0..3 {
        for (kind, expected) in [("http", "none"), ("auto", "PROXY TCP4")] {
            let conn = Conn::dial(proxy.address(kind));
            let body = ask(&conn, &url);
            assert!(body.starts_with(expected), "{kind}: {body}");
        }
    }
    // One for the listener that shares, one for each client of the other.
    assert_eq!(count.load(std::sync::atomic::Ordering::Relaxed), 4);
    drop(origin);
    proxy.finish();
}

#[test]
fn p73_the_header_goes_before_tls() {
    let origin = told_over_tls();
    let ca = Certs::shared().ca();
    let proxy = start(
        origin.address,
        "send_proxy=v1",
        &format!("http.ca = {ca:?}\n"),
    );
    let conn = Conn::dial(proxy.address("http"));
    let header = String::from_utf8(v1(conn.local(), proxy.address("http"))).expect("text");
    let url = format!("https://localhost:{}/", origin.address.port());
    for _ in 0..3 {
        assert_eq!(ask(&conn, &url), header);
    }
    drop((conn, origin));
    proxy.finish();
}

#[test]
fn p73_parents_carry_the_header_to_the_target() {
    let origin = told();
    let parent = start(origin.address, "auth=off", "");
    for scheme in ["http", "socks5"] {
        let kind = scheme.trim_end_matches('5');
        let via = format!(
            "via = \"up\"\n[[parent]]\nname = \"up\"\nurl = \"{scheme}://{}\"\n",
            parent.address(kind)
        );
        let proxy = start(origin.address, "send_proxy=v1", &via);
        let conn = Conn::dial(proxy.address("http"));
        let header = String::from_utf8(v1(conn.local(), proxy.address("http"))).expect("text");
        for _ in 0..3 {
            assert_eq!(ask(&conn, &origin.url("/")), header, "{scheme}");
        }
        drop(conn);
        proxy.finish();
    }
    drop(origin);
    // It was asked for tunnels only.
    let lines = LogLine::all(&parent.finish().stdout);
    assert!(!lines.is_empty());
    assert!(
        lines.iter().all(|line| line.text("method") == "CONNECT"),
        "{lines:?}"
    );
}

#[test]
fn p73_a_chain_hands_the_client_on() {
    let (origin, accepted) = Origin::manual();
    for (first, second) in [("v1", "v2"), ("v2", "v1")] {
        let query = format!("proxy_protocol=127.0.0.1&open=on&send_proxy={second}");
        let inner = start(origin.address, &query, "");
        let query = format!("proxy_protocol=127.0.0.1&open=on&send_proxy={first}");
        let outer = start(inner.address("tcp"), &query, "");
        let to = inner.address("tcp");
        let conn = Conn::dial(outer.address("tcp"));
        conn.send("PROXY TCP4 192.0.2.77 198.51.100.9 4242 443\r\nhello");
        let far = Accepted::next(&accepted);
        let client = "192.0.2.77:4242".parse().expect("an address");
        let header = match second {
            "v1" => v1(client, to),
            _ => v2(client, to),
        };
        far.expect([&header[..], b"hello"].concat());
        drop((conn, far));
        // Both families in one header: as IPv6, the own one mapped.
        let conn = Conn::dial(outer.address("tcp"));
        conn.send("PROXY TCP6 2001:db8::77 2001:db8::9 4242 443\r\nhello");
        let far = Accepted::next(&accepted);
        if second == "v1" {
            let port = to.port();
            far.expect(format!(
                "PROXY TCP6 2001:db8::77 ::ffff:7f00:1 4242 {port}\r\nhello"
            ));
        } else {
            far.expect("\r\n\r\n\0\r\nQUIT\n\x21\x21\0\x24");
            far.expect([&[0x20, 1, 0x0d, 0xb8][..], &[0; 11], &[0x77]].concat());
            far.expect([&[0; 10][..], &[0xff, 0xff, 127, 0, 0, 1]].concat());
            far.expect(
                [
                    &4242_u16.to_be_bytes()[..],
                    &to.port().to_be_bytes(),
                    b"hello",
                ]
                .concat(),
            );
        }
        drop((conn, far));
        for proxy in [outer, inner] {
            let lines = LogLine::all(&proxy.finish().stdout);
            let clients: Vec<String> = lines.iter().map(|line| line.text("client")).collect();
            assert_eq!(clients, ["192.0.2.77:4242", "[2001:db8::77]:4242"]);
        }
    }
    drop(origin);
}

#[test]
fn p73_one_listener_has_front_ends_of_both_families() {
    let (origin, accepted) = Origin::manual();
    let url = format!(
        "tcp://[::]:0/{}?proxy_protocol=127.0.0.1,::1&send_proxy=v1",
        origin.address
    );
    let proxy = Proxyd::start(&["--listen", &url]);
    let port = proxy.address("tcp").port();
    for (ip, family) in [("127.0.0.1", "TCP4"), ("::1", "TCP6")] {
        let address = SocketAddr::new(ip.parse().expect("an address"), port);
        let conn = Conn::dial(address);
        conn.send("PROXY UNKNOWN\r\nhello");
        let from = conn.local().port();
        let far = Accepted::next(&accepted);
        far.expect(format!("PROXY {family} {ip} {ip} {from} {port}\r\nhello"));
    }
    // Of the same families, and not listed.
    let stranger = Conn::dial_from("127.0.0.2", ([127, 0, 0, 1], port).into());
    assert_eq!(stranger.rest().0, b"");
    drop((origin, accepted));
    proxy.finish();
}
