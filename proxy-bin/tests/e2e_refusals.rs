//! Every refusal over HTTP, TLS and the port relay has its right status, and
//! the port keeps serving.

mod support;

use support::{Answer, Conn, Ended, Mode, Origin, Proxyd, basic, closed_port, socks5_reply};

#[test]
fn a_listener_that_asks_nobody_does_not_read_logins() {
    let origin = Origin::page("here");
    let proxy = Proxyd::http(&[]);
    let target = origin.address;
    for field in ["Basic !", "Basic", "Basic Og==x", "Basic YQ==", "Bearer x"] {
        let conn = Conn::dial(proxy.address("http"));
        conn.send(format!(
            "GET http://{target}/ HTTP/1.1\r\nHost: h\r\nProxy-Authorization: {field}\r\n\r\n"
        ));
        assert_eq!(Answer::read(&conn).status, 200, "{field}");
    }
    drop(origin);
    proxy.finish();
}

#[test]
fn p40_a_port_that_refuses_is_told_before_any_success() {
    let origin = Origin::echo();
    let proxy = Proxyd::with_all(origin.address, &[]);
    for mode in Mode::ALL.into_iter().filter(|mode| mode.has_replies()) {
        let conn = mode.dial(&proxy);
        conn.send(mode.hello(closed_port()));
        assert_eq!(mode.answer(&conn), expected(mode, 502, 5, 0x5B), "{mode:?}");
        proxy.serves(origin.address);
    }
    drop(origin);
    proxy.finish();
}

#[test]
fn a_name_without_address_is_told() {
    let origin = Origin::echo();
    let proxy = Proxyd::with_all(origin.address, &[]);
    for kind in ["http", "auto"] {
        for request in ["CONNECT x.invalid:443", "GET http://x.invalid/"] {
            let conn = Conn::dial(proxy.address(kind));
            conn.send(format!("{request} HTTP/1.1\r\nHost: x.invalid\r\n\r\n"));
            assert_eq!(Answer::read(&conn).status, 502, "{request}");
        }
    }
    for kind in ["socks", "auto"] {
        let conn = Conn::dial(proxy.address(kind));
        conn.send(b"\x05\x01\x00\x05\x01\x00\x03\x09x.invalid\x01\xBB");
        conn.expect([5, 0]);
        assert_eq!(socks5_reply(&conn), 4);
        let conn = Conn::dial(proxy.address(kind));
        conn.send(b"\x04\x01\x01\xBB\x00\x00\x00\x01me\0x.invalid\0");
        assert_eq!(conn.exact(8)[..2], [0, 0x5B]);
        assert_eq!(conn.to_end(), b"");
    }
    proxy.serves(origin.address);
    drop(origin);
    proxy.finish();
}

#[test]
fn a_request_that_cannot_be_understood_gets_its_status() {
    let origin = Origin::page("ok");
    let proxy = Proxyd::with_all(origin.address, &[]);
    let host = origin.authority();
    let long = "x".repeat(70_000);
    let many = "A: b\r\n".repeat(200);
    let table = [
        // No request at all.
        (400, "GET\r\n\r\n".to_owned()),
        (400, "\u{1}\u{2}\u{3}\r\n\r\n".to_owned()),
        (
            400,
            format!("GET  http://{host}/ HTTP/1.1\r\nHost: {host}\r\n\r\n"),
        ),
        (
            400,
            format!("G(T http://{host}/ HTTP/1.1\r\nHost: {host}\r\n\r\n"),
        ),
        (
            400,
            format!("GET http://{host}/ HTTX/1.1\r\nHost: {host}\r\n\r\n"),
        ),
        // Targets, RFC 9112 section 3.2.
        (400, "GET http:///x HTTP/1.1\r\nHost: x\r\n\r\n".to_owned()),
        (
            400,
            "GET http://127.0.0.1:65536/ HTTP/1.1\r\nHost: x\r\n\r\n".to_owned(),
        ),
        (
            400,
            "CONNECT 127.0.0.1 HTTP/1.1\r\nHost: x\r\n\r\n".to_owned(),
        ),
        (
            400,
            "CONNECT 127.0.0.1:65536 HTTP/1.1\r\nHost: x\r\n\r\n".to_owned(),
        ),
        (
            400,
            format!("CONNECT http://{host}/ HTTP/1.1\r\nHost: x\r\n\r\n"),
        ),
        (400, "CONNECT [::1 HTTP/1.1\r\nHost: x\r\n\r\n".to_owned()),
        // Host, RFC 9112 section 3.2.
        (400, format!("GET http://{host}/ HTTP/1.1\r\n\r\n")),
        (
            400,
            format!("GET http://{host}/ HTTP/1.1\r\nHost: a\r\nHost: b\r\n\r\n"),
        ),
        // P03 and fields, RFC 9112 section 5.
        (400, with(&host, "Accept : x")),
        (400, with(&host, "no colon")),
        (400, with(&host, "A: b\r\n folded")),
        (400, with(&host, "A: b\0c")),
        (400, with(&host, "A: b\rc")),
        (400, with(&host, ": nameless")),
        // P01, P02, P04, P06: framing, RFC 9112 section 6.
        (
            400,
            with(&host, "Content-Length: 3\r\nTransfer-Encoding: chunked"),
        ),
        (400, with(&host, "Content-Length: 3\r\nContent-Length: 4")),
        (400, with(&host, "Content-Length: 3, 4")),
        (400, with(&host, "Content-Length: +3")),
        (400, with(&host, "Content-Length: -3")),
        (400, with(&host, "Content-Length: 0x3")),
        (400, with(&host, "Content-Length: 99999999999999999999")),
        (400, with(&host, "Content-Length:")),
        (400, with(&host, "Transfer-Encoding: chunked, gzip")),
        (400, with(&host, "Transfer-Encoding: chunked, chunked")),
        (501, with(&host, "Transfer-Encoding: unheard-of, chunked")),
        // Limits, RFC 9112 section 3 and RFC 6585 section 5.
        (431, with(&host, &format!("A: {long}"))),
        (431, with(&host, &format!("{many}B: c"))),
        (
            414,
            format!("GET http://{host}/{long} HTTP/1.1\r\nHost: {host}\r\n\r\n"),
        ),
        // Versions, RFC 9110 section 15.6.6.
        (
            505,
            format!("GET http://{host}/ HTTP/2.0\r\nHost: {host}\r\n\r\n"),
        ),
        (
            505,
            format!("GET http://{host}/ HTTP/3.0\r\nHost: {host}\r\n\r\n"),
        ),
    ];
    let mut wrong = Vec::new();
    for (status, request) in &table {
        for kind in ["http", "auto"] {
            // `auto` takes only what begins with a letter for HTTP.
            if kind == "auto" && !request.starts_with(char::is_alphabetic) {
                continue;
            }
            let conn = Conn::dial(proxy.address(kind));
            conn.send_anyway(request);
            let answer = Answer::read(&conn);
            let shown = &request[..request.len().min(90)];
            if answer.status != *status {
                wrong.push(format!(
                    "{kind}: {} instead of {status}: {shown:?}",
                    answer.status
                ));
            }
            // What follows the broken message is never taken for another one.
            let says_close = answer
                .field("connection")
                .is_some_and(|value| value.contains("close"));
            if !says_close {
                wrong.push(format!("{kind}: no Connection: close for {shown:?}"));
            }
            let (rest, _) = conn.rest();
            if !rest.is_empty() {
                wrong.push(format!("{kind}: more behind the answer to {shown:?}"));
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    get(&proxy, "http", &origin.url("/"), "");
    drop(origin);
    proxy.finish();
}

#[test]
fn p16_p09_an_answer_that_cannot_be_understood_becomes_502() {
    let table: [&[u8]; 12] = [
        b"",
        b"SSH-2.0-OpenSSH_9.2\r\n",
        b"HTTP/1.1 2",
        b"HTTP/1.1 99 Low\r\n\r\n",
        b"HTTP/1.1 abc\r\n\r\n",
        b"HTTP/2.0 200 OK\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nno colon\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: 3\r\nContent-Length: 4\r\n\r\nabcd",
        b"HTTP/1.1 200 OK\r\nContent-Length: x\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nA: b\0c\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nX-Half: ",
        b"\x00\x01\x02\x03\x04",
    ];
    for raw in table {
        let origin = closing(raw);
        let proxy = Proxyd::http(&[]);
        let conn = Conn::dial(proxy.address("http"));
        conn.send(with(&origin.authority(), "A: b"));
        let answer = Answer::read(&conn);
        assert_eq!(answer.status, 502, "{}", raw.escape_ascii());
        let body = [answer.head.as_bytes(), &answer.body].concat();
        let leaked = raw.len() > 5 && support::find(&body, raw).is_some();
        assert!(!leaked, "{}", raw.escape_ascii());
        drop(conn);
        drop(origin);
        proxy.finish();
    }
}

#[test]
fn p16_a_cut_body_does_not_look_complete() {
    let table: [&[u8]; 3] = [
        b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\nhalf",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n4\r\nhalf\r\n",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n8\r\nhalf",
    ];
    for raw in table {
        let origin = closing(raw);
        let proxy = Proxyd::http(&[]);
        let conn = Conn::dial(proxy.address("http"));
        conn.send(with(&origin.authority(), "A: b"));
        let head = Answer::read_head(&conn);
        if head.status != 502 {
            let (body, _) = conn.rest();
            let complete = support::find(&body, b"0\r\n\r\n").is_some() || body.len() >= 100;
            assert!(!complete, "{}", body.escape_ascii());
        }
        drop(conn);
        drop(origin);
        proxy.finish();
    }
}

#[test]
fn a_missing_or_wrong_login_is_challenged() {
    let origin = Origin::page("ok");
    let proxy = Proxyd::with_all(origin.address, &["--user", "alice:secret"]);
    let host = origin.authority();
    let wrong = [
        String::new(),
        format!("Proxy-Authorization: {}\r\n", basic("alice:wrong")),
        format!("Proxy-Authorization: {}\r\n", basic("alice:secret\0")),
        format!("Proxy-Authorization: {}\r\n", basic("alice")),
        "Proxy-Authorization: Basic\r\n".to_owned(),
        "Proxy-Authorization: Basic !!!!\r\n".to_owned(),
        "Proxy-Authorization: Bearer abc\r\n".to_owned(),
        format!("Authorization: {}\r\n", basic("alice:secret")),
    ];
    for kind in ["http", "auto"] {
        for field in &wrong {
            for request in ["GET http://{host}/", "CONNECT {host}"] {
                let request = request.replace("{host}", &host);
                let conn = Conn::dial(proxy.address(kind));
                conn.send(format!("{request} HTTP/1.1\r\nHost: {host}\r\n{field}\r\n"));
                let answer = Answer::read(&conn);
                assert_eq!(answer.status, 407, "{request} {field}");
                let challenge = answer.field("proxy-authenticate").unwrap_or_default();
                assert!(challenge.starts_with("Basic realm="), "{challenge}");
                assert_eq!(answer.field("www-authenticate"), None);
                // P26: the same connection serves the retry.
                let login = basic("alice:secret");
                conn.send(format!(
                    "{request} HTTP/1.1\r\nHost: {host}\r\nProxy-Authorization: {login}\r\n\r\n"
                ));
                assert_eq!(Answer::read_head(&conn).status, 200, "{request} {field}");
            }
        }
    }
    drop(origin);
    proxy.finish();
}

#[test]
fn p27_each_request_is_judged_by_its_own_login() {
    let origin = Origin::page("ok");
    let proxy = Proxyd::with_all(origin.address, &["--user", "alice:secret"]);
    let (url, host) = (origin.url("/"), origin.authority());
    let conn = Conn::dial(proxy.address("http"));
    for (login, status) in [
        ("alice:secret", 200),
        ("", 407),
        ("alice:x", 407),
        ("alice:secret", 200),
    ] {
        let field = match login {
            "" => String::new(),
            login => format!("Proxy-Authorization: {}\r\n", basic(login)),
        };
        conn.send(format!("GET {url} HTTP/1.1\r\nHost: {host}\r\n{field}\r\n"));
        assert_eq!(Answer::read(&conn).status, status, "{login}");
    }
    drop(conn);
    drop(origin);
    proxy.finish();
}

#[test]
fn p07_the_body_of_a_refused_request_is_not_the_next_request() {
    let origin = Origin::page("smuggled");
    let proxy = Proxyd::with_all(origin.address, &["--user", "alice:secret"]);
    let (url, host, login) = (origin.url("/"), origin.authority(), basic("alice:secret"));
    let inner =
        format!("GET {url} HTTP/1.1\r\nHost: {host}\r\nProxy-Authorization: {login}\r\n\r\n");
    let length = inner.len();
    let outer = format!("POST {url} HTTP/1.1\r\nHost: {host}\r\nContent-Length: {length}\r\n\r\n");
    let conn = Conn::dial(proxy.address("http"));
    conn.send(format!("{outer}{inner}"));
    assert_eq!(Answer::read(&conn).status, 407);
    conn.fin();
    let (rest, _) = conn.rest();
    assert!(rest.is_empty(), "{}", rest.escape_ascii());
    drop(origin);
    proxy.finish();
}

#[test]
fn p19_a_connection_outlives_a_refusal_whose_request_was_read() {
    let origin = Origin::page("ok");
    let proxy = Proxyd::with_all(origin.address, &[]);
    let (url, host) = (origin.url("/"), origin.authority());
    let closed = closed_port();
    for first in [format!("GET http://{closed}/"), format!("CONNECT {closed}")] {
        let conn = Conn::dial(proxy.address("http"));
        conn.send(format!("{first} HTTP/1.1\r\nHost: {closed}\r\n\r\n"));
        assert_eq!(Answer::read(&conn).status, 502);
        conn.send(format!("GET {url} HTTP/1.1\r\nHost: {host}\r\n\r\n"));
        assert_eq!(Answer::read(&conn).body, b"ok");
    }
    drop(origin);
    proxy.finish();
}

#[test]
fn p30_the_proxy_is_not_its_own_origin() {
    let origin = Origin::page("ok");
    let proxy = Proxyd::with_all(origin.address, &[]);
    for kind in ["http", "auto"] {
        let itself = proxy.address(kind);
        let conn = Conn::dial(itself);
        conn.send(with(&itself.to_string(), "A: b"));
        let status = Answer::read(&conn).status;
        assert!([400, 403, 502, 508].contains(&status), "{status}");
    }
    drop(origin);
    proxy.finish();
}

#[test]
fn a_relay_whose_target_is_down_closes_and_comes_back() {
    let target = closed_port();
    let proxy = Proxyd::with_all(target, &[]);
    let conn = Conn::dial(proxy.address("tcp"));
    assert_eq!(conn.rest().0, b"");
    let listener = std::net::TcpListener::bind(target).unwrap();
    let conn = Conn::dial(proxy.address("tcp"));
    let far = Conn::over(listener.accept().unwrap().0);
    conn.send("back");
    far.expect("back");
    drop((conn, far));
    proxy.finish();
}

#[test]
fn plain_http_on_the_tls_port_is_told() {
    let origin = Origin::echo();
    let proxy = Proxyd::with_all(origin.address, &[]);
    for first in [
        with("127.0.0.1", "A: b"),
        "CONNECT 127.0.0.1:9 HTTP/1.1\r\n\r\n".to_owned(),
    ] {
        let conn = Conn::dial(proxy.address("https"));
        conn.send(first);
        let (bytes, _) = conn.rest();
        let shown = bytes.escape_ascii().to_string();
        assert!(shown.starts_with("HTTP/1.1 400 "), "{shown}");
        proxy.serves(origin.address);
    }
    drop(origin);
    proxy.finish();
}

#[test]
fn tls_without_a_certificate_is_cut_off() {
    let proxy = Proxyd::start(&[
        "--listen",
        "auto://127.0.0.1:0",
        "--listen",
        "http://127.0.0.1:0",
    ]);
    let origin = Origin::page("ok");
    for kind in ["auto", "http"] {
        let conn = Conn::dial(proxy.address(kind));
        conn.send(support::client_hello());
        let (bytes, _) = conn.rest();
        assert!(!bytes.starts_with(&[22]), "a handshake: {bytes:?}");
        get(&proxy, kind, &origin.url("/"), "");
    }
    drop(origin);
    proxy.finish();
}

#[test]
fn garbage_on_the_auto_port_is_cut_off() {
    let origin = Origin::echo();
    let proxy = Proxyd::with_all(origin.address, &[]);
    for first in [
        &b"\0\0\0\0"[..],
        b"\xFF\xFE\xFD",
        b"\x06\x01\x00",
        b"\r\n\r\n\0\0",
        b"\x80\x2E\x01",
    ] {
        let conn = Conn::dial(proxy.address("auto"));
        conn.send(first);
        let (bytes, _) = conn.rest();
        let shown = bytes.escape_ascii().to_string();
        let well = bytes.is_empty() || shown.starts_with("HTTP/1.1 400 ");
        assert!(well, "{}: {shown}", first.escape_ascii());
        proxy.serves(origin.address);
    }
    drop(origin);
    proxy.finish();
}

#[test]
fn garbage_behind_the_tls_handshake_gets_400() {
    let origin = Origin::echo();
    let proxy = Proxyd::with_all(origin.address, &[]);
    for (kind, first) in [
        ("https", &b"\x05\x01\x00 not HTTP\r\n\r\n"[..]),
        ("https", b"NOT HTTP\r\n\r\n"),
        ("auto", b"NOT HTTP\r\n\r\n"),
    ] {
        let conn = Conn::dial_tls(proxy.address(kind));
        conn.send(first);
        let (bytes, how) = conn.rest();
        assert!(
            bytes.starts_with(b"HTTP/1.1 400 "),
            "{}",
            bytes.escape_ascii()
        );
        // P75: the end is told by close_notify.
        assert_eq!(how, Ended::Finished);
        proxy.serves(origin.address);
    }
    drop(origin);
    proxy.finish();
}

#[test]
fn p43_refusals_leave_no_descriptor_behind() {
    let origin = Origin::page("ok");
    let proxy = Proxyd::with_all(origin.address, &["--user", "alice:secret"]);
    let closed = closed_port();
    let mut kept = Vec::new();
    for _ in 0..50 {
        for mode in Mode::ALL.into_iter().filter(|mode| mode.has_replies()) {
            let conn = mode.dial(&proxy);
            conn.send(mode.hello(closed));
            kept.push(conn);
        }
    }
    drop(kept);
    drop(origin);
    proxy.finish();
}

/// The code of a refusal in the protocol of `mode`.
fn expected(mode: Mode, http: u16, socks5: u16, socks4: u16) -> u16 {
    match mode {
        Mode::AutoConnect | Mode::AutoTls | Mode::Connect | Mode::Tls => http,
        Mode::AutoSocks5 | Mode::Socks5 => socks5,
        Mode::AutoSocks4 | Mode::Socks4 => socks4,
        Mode::Relay => unreachable!("a relay has no replies"),
    }
}

fn get(proxy: &Proxyd, kind: &str, url: &str, fields: &str) {
    let conn = Conn::dial(proxy.address(kind));
    conn.send(format!("GET {url} HTTP/1.1\r\nHost: x\r\n{fields}\r\n"));
    assert_eq!(Answer::read(&conn).status, 200);
}

/// A request for the root of `host` with one more field.
fn with(host: &str, field: &str) -> String {
    format!("POST http://{host}/ HTTP/1.1\r\nHost: {host}\r\n{field}\r\n\r\n")
}

/// An origin that reads one request, sends `raw` and closes.
fn closing(raw: &'static [u8]) -> Origin {
    use std::io::Write;
    Origin::start(move |mut socket| {
        if support::take_head(&mut socket).is_ok() {
            drop(socket.write_all(raw));
            drop(socket.shutdown(std::net::Shutdown::Write));
            // Wait for the proxy's end, lest a reset overtake the answer.
            drop(std::io::copy(&mut socket, &mut std::io::sink()));
        }
    })
}
