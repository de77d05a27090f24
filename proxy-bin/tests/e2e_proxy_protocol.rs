//! PROXY headers that front ends send: who the client is then, and who is not
//! served.

mod support;

use std::net::{SocketAddr, UdpSocket};
use std::time::Duration;

use support::{
    Answer, Certs, Conn, Curl, DEADLINE, Ended, LogLine, Mode, Origin, Proxyd, basic, wait_for,
};

/// Every kind of listener, each taking connections from the networks `from` with
/// a header only; the log on standard output.
fn start(target: SocketAddr, from: &str, toml: &str) -> Proxyd {
    start_with(target, &format!("proxy_protocol={from}&open=on"), toml)
}

fn start_with(target: SocketAddr, query: &str, toml: &str) -> Proxyd {
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

/// A header of version 1.
fn v1(source: &str, port: u16) -> Vec<u8> {
    let (family, own) = match source.contains(':') {
        true => ("TCP6", "2001:db8::9"),
        false => ("TCP4", "198.51.100.9"),
    };
    format!("PROXY {family} {source} {own} {port} 443\r\n").into_bytes()
}

/// A header of version 2 with such a command and what follows it.
fn v2(command: u8, family: u8, block: &[u8]) -> Vec<u8> {
    let mut header = b"\r\n\r\n\0\r\nQUIT\n".to_vec();
    header.extend([command, family]);
    header.extend(u16::try_from(block.len()).expect("short").to_be_bytes());
    header.extend(block);
    header
}

/// For the client 192.0.2.77:4242.
fn v2_of_client() -> Vec<u8> {
    v2(
        0x21,
        0x11,
        &[192, 0, 2, 77, 198, 51, 100, 9, 0x10, 0x92, 1, 0xbb],
    )
}

/// For the client [2001:db8::77]:4242, with additional fields.
fn v2_of_client_6() -> Vec<u8> {
    let mut block = Vec::new();
    for last in [0x77, 9] {
        block.extend([0x20, 1, 0x0d, 0xb8, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, last]);
    }
    block.extend([0x10, 0x92, 1, 0xbb]);
    block.extend([2, 0, 3, b'a', b'.', b'b']);
    block.extend([4, 2, 0x90]);
    block.extend([0xff; 0x290]);
    v2(0x21, 0x21, &block)
}

/// The clients in the log, in the order of their ends.
fn clients(proxy: Proxyd) -> Vec<String> {
    let stopped = proxy.finish();
    let lines = LogLine::all(&stopped.stdout);
    lines.iter().map(|line| line.text("client")).collect()
}

#[track_caller]
fn is_closed(conn: &Conn) {
    let (bytes, how) = conn.rest();
    assert_eq!(bytes, b"");
    assert!(matches!(how, Ended::Finished | Ended::Reset));
}

#[test]
fn p73_a_header_may_be_cut_anywhere() {
    let origin = Origin::echo();
    let proxy = start(origin.address, "127.0.0.1", "");
    let mut expected = Vec::new();
    for (header, client) in [
        (v1("192.0.2.77", 4242), "192.0.2.77:4242"),
        (v1("2001:db8::77", 4242), "[2001:db8::77]:4242"),
        (v2_of_client(), "192.0.2.77:4242"),
        (v2_of_client_6(), "[2001:db8::77]:4242"),
    ] {
        let input = [&header[..], b"hello"].concat();
        let step = header.len() / 60 + 1;
        for cut in (0..=input.len()).step_by(step) {
            let conn = Conn::dial(proxy.address("tcp"));
            conn.send(&input[..cut]);
            if cut % 8 == 0 {
                // More often than not the first part has been read by then.
                std::thread::sleep(Duration::from_millis(3));
            }
            conn.send(&input[cut..]);
            conn.expect("hello");
            expected.push(client);
        }
    }
    drop(origin);
    let mut clients = clients(proxy);
    clients.sort();
    expected.sort_unstable();
    assert_eq!(clients, expected);
}

#[test]
fn p73_a_header_may_come_byte_by_byte() {
    let origin = Origin::echo();
    let proxy = start(origin.address, "127.0.0.1", "");
    for header in [v1("192.0.2.77", 4242), v2_of_client()] {
        let before = proxy.process().cpu();
        let conn = Conn::dial(proxy.address("tcp"));
        for byte in header {
            conn.send([byte]);
            std::thread::sleep(Duration::from_millis(2));
        }
        // Bytes that were seen are not looked at again and again.
        conn.send("hello");
        conn.expect("hello");
        let used = proxy.process().cpu() - before;
        assert!(used < Duration::from_millis(100), "{used:?}");
    }
    drop(origin);
    assert_eq!(clients(proxy), ["192.0.2.77:4242"; 2]);
}

#[test]
fn p73_a_beginning_costs_nothing_while_it_waits() {
    let origin = Origin::echo();
    let proxy = start(origin.address, "127.0.0.1", "");
    let conns: Vec<Conn> = (0..50)
        .map(|_| {
            let conn = Conn::dial(proxy.address("tcp"));
            conn.send("PROXY TCP4 192.0");
            conn
        })
        .collect();
    let last = Conn::dial(proxy.address("tcp"));
    last.send([v1("192.0.2.1", 1), b"up".to_vec()].concat());
    last.expect("up");
    let before = proxy.process().cpu();
    std::thread::sleep(Duration::from_millis(700));
    let used = proxy.process().cpu() - before;
    assert!(used < Duration::from_millis(350), "{used:?}");
    for conn in &conns {
        conn.send(".2.77 192.0.2.1 4242 1\r\nhello");
        conn.expect("hello");
    }
    drop((conns, last, origin));
    assert_eq!(clients(proxy).len(), 51);
}

#[test]
fn p73_every_kind_of_listener_knows_the_client() {
    let origin = Origin::echo();
    // Clients that are not on loopback may go to loopback by a rule only.
    let rule = "[[rule]]\naction = \"allow\"\nnetworks = [\"127.0.0.0/8\"]\n";
    let proxy = start(origin.address, "127.0.0.0/8", rule);
    let mut expected = Vec::new();
    for (at, mode) in Mode::ALL.into_iter().enumerate() {
        for header in [v1("192.0.2.77", 4242), v2_of_client()] {
            let conn = Conn::dial(proxy.address(mode.listener()));
            let conn = match mode.is_tls() {
                // The TLS handshake is behind the header.
                true => {
                    conn.send(header);
                    let conn = conn.start_tls(Certs::shared().client.clone(), b"");
                    conn.send(mode.hello(origin.address));
                    conn
                }
                // All in one segment.
                false => {
                    conn.send([&header[..], &mode.hello(origin.address)].concat());
                    conn
                }
            };
            assert_eq!(mode.answer(&conn), 200, "{mode:?}");
            conn.send(format!("{at}"));
            conn.expect(format!("{at}"));
            expected.push("192.0.2.77:4242");
        }
    }
    drop(origin);
    assert_eq!(clients(proxy), expected);
}

#[test]
fn p73_http_and_its_rest_come_in_one_segment_with_the_header() {
    let origin = Origin::mirror();
    let rule = "[[rule]]\naction = \"allow\"\nnetworks = [\"127.0.0.0/8\"]\n\
                [http]\nforwarded = \"append-for\"\n";
    let proxy = start(origin.address, "127.0.0.1", rule);
    for kind in ["http", "auto"] {
        let conn = Conn::dial(proxy.address(kind));
        let request = format!("GET {} HTTP/1.1\r\nHost: x\r\n\r\n", origin.url("/a"));
        conn.send([v2_of_client(), request.repeat(2).into_bytes()].concat());
        for _ in 0..2 {
            let answer = Answer::read(&conn);
            let text = String::from_utf8(answer.body).expect("text");
            // So origins learn of the real client.
            let line = text
                .lines()
                .find(|line| line.starts_with("X-Forwarded-For"));
            assert_eq!(line, Some("X-Forwarded-For: 192.0.2.77"), "{text}");
        }
    }
    drop(origin);
    assert_eq!(clients(proxy), ["192.0.2.77:4242"; 4]);
}

#[test]
fn p73_local_and_unknown_keep_the_address_of_the_connection() {
    let origin = Origin::echo();
    let proxy = start(origin.address, "127.0.0.1", "");
    let mut expected = Vec::new();
    for header in [
        b"PROXY UNKNOWN\r\n".to_vec(),
        b"PROXY UNKNOWN 192.0.2.77 192.0.2.1 1 2\r\n".to_vec(),
        v2(0x20, 0, b""),
        // LOCAL with addresses, which do not count.
        v2(0x20, 0x11, &[192, 0, 2, 77, 192, 0, 2, 1, 0, 1, 0, 2]),
        v2(0x21, 0, b"anything"),
        // From a Unix socket.
        v2(0x21, 0x31, &[b'u'; 216]),
    ] {
        let conn = Conn::dial(proxy.address("tcp"));
        conn.send([&header[..], b"hello"].concat());
        conn.expect("hello");
        expected.push(conn.local().to_string());
    }
    drop(origin);
    let mut clients = clients(proxy);
    clients.sort();
    expected.sort();
    assert_eq!(clients, expected);
}

#[test]
fn p73_who_is_not_listed_is_not_served() {
    let origin = Origin::echo();
    let proxy = start(origin.address, "127.0.0.1,192.0.2.0/24", "");
    for mode in Mode::ALL {
        for header in [Vec::new(), v2_of_client()] {
            let conn = Conn::dial_from("127.0.0.2", proxy.address(mode.listener()));
            conn.send_anyway([&header[..], &mode.hello(origin.address)].concat());
            is_closed(&conn);
        }
    }
    let conn = Conn::dial(proxy.address("tcp"));
    conn.send([v2_of_client(), b"hello".to_vec()].concat());
    conn.expect("hello");
    drop((conn, origin));
    let stopped = proxy.finish();
    // Nobody was served, so nobody is in the access log.
    assert_eq!(LogLine::all(&stopped.stdout).len(), 1, "{stopped}");
    let told = stopped.stderr.iter();
    let mut told = told.filter(|line| line.contains("for those in proxy_protocol only"));
    assert!(
        told.all(|line| line.contains("peer=127.0.0.2")),
        "{stopped}"
    );
    assert!(stopped.says("connections=1"), "{stopped}");
}

#[test]
fn p73_who_sends_no_valid_header_is_not_served() {
    let origin = Origin::echo();
    let proxy = start(origin.address, "127.0.0.1", "");
    let long = [&b"PROXY UNKNOWN "[..], &[b'x'; 5000]].concat();
    for mode in Mode::ALL {
        let hello = mode.hello(origin.address);
        for input in [
            &[&b"\x16\x03\x01\x02\0"[..], &hello].concat()[..],
            &[&b"PROXY TCP4 192.0.2.1 192.0.2.2 1\r\n"[..], &hello].concat(),
            &[&b"PROXY TCP4 2001:db8::1 ::1 1 2\r\n"[..], &hello].concat(),
            &[v2(0x11, 0x11, &[1; 12]), hello.clone()].concat(),
            &[v2(0x21, 0x11, &[1; 11]), hello.clone()].concat(),
            &[v2(0x21, 0x11, &[1; 8000]), hello.clone()].concat(),
            &long,
        ] {
            let conn = Conn::dial(proxy.address(mode.listener()));
            conn.send_anyway(input);
            is_closed(&conn);
        }
        if !hello.is_empty() {
            let conn = Conn::dial(proxy.address(mode.listener()));
            conn.send_anyway(hello);
            is_closed(&conn);
        }
    }
    // A health check that only connects is nothing to speak of.
    drop(Conn::dial(proxy.address("http")));
    let conn = Conn::dial(proxy.address("http"));
    conn.send("PROXY TCP4 ");
    conn.fin();
    is_closed(&conn);
    drop(origin);
    let stopped = proxy.finish();
    assert_eq!(LogLine::all(&stopped.stdout).len(), 0, "{stopped}");
    assert!(
        stopped.says("its PROXY header is wrong: no PROXY protocol header"),
        "{stopped}"
    );
}

#[test]
fn p73_a_header_has_a_deadline() {
    let origin = Origin::echo();
    let proxy = start(origin.address, "127.0.0.1", "timeouts.head = \"1s\"\n");
    let mut conns = Vec::new();
    for kind in ["tcp", "http", "https", "socks", "auto"] {
        for input in [&b""[..], b"PROXY TCP4", b"\r\n\r\n\0"] {
            let conn = Conn::dial(proxy.address(kind));
            conn.send(input);
            conns.push(conn);
        }
    }
    conns.iter().for_each(is_closed);
    drop(origin);
    assert!(proxy.finish().says("its PROXY header did not come in time"));
}

#[test]
fn p73_limits_are_those_of_the_real_client() {
    let origin = Origin::echo();
    let proxy = start(
        origin.address,
        "127.0.0.1",
        "limits.client_connections = 1\n",
    );
    let mut held = Vec::new();
    // All come from one front end.
    for client in ["192.0.2.1", "192.0.2.2", "2001:db8::1", "2001:db8:0:1::1"] {
        let conn = Conn::dial(proxy.address("tcp"));
        conn.send([v1(client, 7), b"hello".to_vec()].concat());
        conn.expect("hello");
        held.push(conn);
    }
    for client in ["192.0.2.1", "2001:db8::2"] {
        let conn = Conn::dial(proxy.address("http"));
        conn.send([v1(client, 7), Mode::Connect.hello(origin.address)].concat());
        assert_eq!(Answer::read(&conn).status, 503);
        let conn = Conn::dial(proxy.address("tcp"));
        conn.send([v1(client, 7), b"hello".to_vec()].concat());
        is_closed(&conn);
    }
    drop((held, origin));
    let stopped = proxy.finish();
    assert!(stopped.says("client=192.0.2.1"), "{stopped}");
}

#[test]
fn p73_rules_networks_and_bans_are_about_the_real_client() {
    let origin = Origin::page("ok");
    let proxy = start_with(
        origin.address,
        "proxy_protocol=127.0.0.1&clients=192.0.2.0/24,127.0.0.0/8",
        "[[user]]\nname = \"alice\"\npassword = \"wonder\"\n\
         [auth]\nban_failures = 3\n\
         [[rule]]\naction = \"deny\"\nfrom = [\"192.0.2.66\"]\n\
         [[rule]]\naction = \"allow\"\nfrom = [\"192.0.2.77\"]\nnetworks = [\"127.0.0.0/8\"]\n",
    );
    let status = |source: &str, password: &str| {
        let conn = Conn::dial(proxy.address("http"));
        let request = format!(
            "GET {} HTTP/1.1\r\nHost: x\r\nProxy-Authorization: {}\r\n\r\n",
            origin.url("/"),
            basic(&format!("alice:{password}"))
        );
        let header = match source {
            "" => b"PROXY UNKNOWN\r\n".to_vec(),
            source => v1(source, 7),
        };
        conn.send([header, request.into_bytes()].concat());
        Answer::read(&conn).status
    };
    for (source, expected) in [
        ("192.0.2.77", 200),
        ("192.0.2.66", 403),
        ("203.0.113.1", 403),
        // Not on loopback, whatever the connection says: the guard is for it.
        ("192.0.2.78", 403),
        // The front end itself, and a client beside it.
        ("", 200),
        ("127.0.0.9", 200),
    ] {
        assert_eq!(status(source, "wonder"), expected, "{source}");
    }
    for _ in 0..3 {
        assert_eq!(status("192.0.2.77", "guess"), 407);
    }
    assert_eq!(status("192.0.2.77", "wonder"), 403);
    assert_eq!(status("127.0.0.1", "wonder"), 200);
    drop(origin);
    proxy.finish();
}

#[test]
fn p73_a_flood_without_headers_is_bounded_and_others_are_served() {
    let origin = Origin::echo();
    let proxy = start(origin.address, "127.0.0.0/8", "");
    let address = proxy.address("tcp");
    let mut flood: Vec<Conn> = Vec::new();
    for round in 0..6 {
        for at in 0..200 {
            let conn = Conn::dial_from("127.0.0.66", address);
            conn.send_anyway(&b"PROXY TCP4 "[..at % 12]);
            flood.push(conn);
        }
        let conn = Conn::dial(address);
        conn.send([v1("192.0.2.77", round), b"hello".to_vec()].concat());
        conn.expect("hello");
    }
    let most = proxy.base().sockets + 256;
    wait_for("the oldest to be closed", || {
        proxy.process().descriptors().sockets <= most
    });
    // The first came first; the last is still waited for.
    is_closed(&flood[0]);
    let last = flood.pop().expect("many");
    last.send([&v1("192.0.2.78", 1)[199 % 12..], b"last"].concat());
    last.expect("last");
    drop((flood, last, origin));
    let stopped = proxy.finish();
    let told = "more than 256 connections are without their PROXY header";
    assert!(stopped.says(told), "{stopped}");
    assert_eq!(LogLine::all(&stopped.stdout).len(), 7, "{stopped}");
}

#[test]
fn p73_curl_is_a_front_end() {
    let origin = Origin::page("through");
    let proxy = start(origin.address, "127.0.0.1", "");
    let url = format!("http://{}/", proxy.address("tcp"));
    assert_eq!(Curl::new(&url).args(["--haproxy-protocol"]).ok(), "through");
    let without = Curl::new(&url).run();
    assert_ne!((without.code, without.status), (0, 200), "{without:?}");
    drop(origin);
    proxy.finish();
}

#[test]
fn p73_datagrams_come_from_the_client_and_not_from_its_front_end() {
    let target = UdpSocket::bind("127.0.0.1:0").expect("bound");
    let origin = Origin::echo();
    let proxy = start(origin.address, "127.0.0.1", "");
    let conn = Conn::dial(proxy.address("socks"));
    let hello = b"\x05\x01\x00\x05\x03\x00\x01\0\0\0\0\0\0";
    conn.send([&v1("127.0.0.9", 7)[..], hello].concat());
    conn.expect(b"\x05\x00\x05\x00\x00\x01\x7f\0\0\x01");
    let port = conn.exact(2);
    let relay = ("127.0.0.1", u16::from_be_bytes([port[0], port[1]]));
    let to = target.local_addr().expect("bound").port().to_be_bytes();
    for (from, word) in [("127.0.0.1", "stranger"), ("127.0.0.9", "client")] {
        let socket = UdpSocket::bind((from, 0)).expect("bound");
        let head = [&b"\0\0\0\x01\x7f\0\0\x01"[..], &to].concat();
        let datagram = [&head[..], word.as_bytes()].concat();
        socket.send_to(&datagram, relay).expect("sent");
    }
    // The first that arrives: the stranger's would have been before it.
    target.set_read_timeout(Some(DEADLINE)).expect("set");
    let mut buffer = [0; 64];
    let (count, _) = target.recv_from(&mut buffer).expect("a datagram");
    assert_eq!(&buffer[..count], b"client");
    drop((conn, origin));
    assert_eq!(clients(proxy), ["127.0.0.9:7"]);
}

#[test]
fn p73_connections_without_a_header_do_not_hold_up_the_end() {
    let origin = Origin::echo();
    let proxy = start(origin.address, "127.0.0.1", "");
    let silent = Conn::dial(proxy.address("http"));
    let begun = Conn::dial(proxy.address("tcp"));
    begun.send("PROXY TCP4");
    let open = Conn::dial(proxy.address("tcp"));
    open.send([v1("192.0.2.77", 7), b"hello".to_vec()].concat());
    open.expect("hello");
    let waiting = std::thread::spawn(move || {
        is_closed(&silent);
        is_closed(&begun);
        // What had begun goes on to its own end.
        open.send("still");
        open.expect("still");
    });
    let stopped = proxy.stop();
    assert!(stopped.status.success(), "{stopped}");
    assert!(stopped.took < DEADLINE, "{stopped}");
    waiting.join().expect("no panic");
    drop(origin);
}
