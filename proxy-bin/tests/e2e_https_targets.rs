//! Requests for `https` URLs: fetched over TLS that proxyd makes itself, never
//! sent in clear.

mod support;

use std::io::BufReader;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use proxy_tls::rustls::{HandshakeKind, ServerConnection, StreamOwned};
use support::{Accepted, Answer, Certs, Conn, LogLine, Origin, Proxyd, Request, basic};

/// Every kind of listener, the authority of the tests trusted, and the log on
/// standard output.
fn start(target: SocketAddr, toml: &str) -> Proxyd {
    let ca = Certs::shared().ca();
    Proxyd::with_config(
        target,
        &format!(
            "workers = 1\nhttp.ca = {ca:?}\nlog.access = \"stdout\"\nlog.format = \"json\"\n{toml}"
        ),
    )
}

fn url(origin: &Origin, path: &str) -> String {
    format!("https://localhost:{}{path}", origin.address.port())
}

fn ask(conn: &Conn, url: &str) -> Answer {
    conn.send(format!("GET {url} HTTP/1.1\r\nHost: wrong.test\r\n\r\n"));
    Answer::read(conn)
}

/// Answers with the number of the connection and of its handshakes so far, and
/// keeps the connection.
fn numbered() -> (Origin, Arc<AtomicUsize>) {
    use std::io::Write;
    let resumed = Arc::new(AtomicUsize::new(0));
    let count = AtomicUsize::new(0);
    let origin = Origin::start({
        let resumed = Arc::clone(&resumed);
        move |socket| {
            let number = count.fetch_add(1, Ordering::Relaxed);
            let config = Certs::shared().server.clone();
            let session = ServerConnection::new(config).expect("a session");
            let mut stream = BufReader::new(StreamOwned::new(session, socket));
            while Request::read(&mut stream).is_some() {
                let kind = stream.get_ref().conn.handshake_kind();
                if kind == Some(HandshakeKind::Resumed) {
                    resumed.fetch_add(1, Ordering::Relaxed);
                }
                let answer = support::ok(number.to_string().as_bytes());
                if stream.get_mut().write_all(&answer).is_err() {
                    return;
                }
            }
        }
    });
    (origin, resumed)
}

#[test]
fn p11_an_https_url_is_fetched_in_origin_form_over_tls() {
    let origin = Origin::tls_mirror();
    let port = origin.address.port();
    let proxy = start(origin.address, "");
    for kind in ["http", "auto"] {
        let conn = Conn::dial(proxy.address(kind));
        for _ in 0..3 {
            let answer = ask(&conn, &url(&origin, "/a?b=c"));
            assert_eq!(answer.status, 200, "{}", answer.head);
            let seen = String::from_utf8(answer.body).expect("text");
            assert!(
                seen.starts_with(&format!(
                    "GET /a?b=c HTTP/1.1\r\nHost: localhost:{port}\r\n"
                )),
                "{seen}"
            );
        }
        // A body goes up, and a client inside TLS has nothing to do with it.
        let conn = Conn::dial_tls(proxy.address("https"));
        conn.send(format!(
            "POST {} HTTP/1.1\r\nHost: x\r\nContent-Length: 5\r\n\r\nhello",
            url(&origin, "/up")
        ));
        assert!(Answer::read(&conn).body.ends_with(b"\r\n\r\nhello"));
    }
    // Its certificate has the address, too.
    let conn = Conn::dial(proxy.address("http"));
    let answer = ask(&conn, &format!("https://127.0.0.1:{port}/ip"));
    assert_eq!(answer.status, 200, "{}", answer.head);
    drop((conn, origin));
    let lines = LogLine::all(&proxy.finish().stdout);
    let target = format!("https://localhost:{port}/a?b=c");
    let fetched = lines.iter().filter(|line| line.text("target") == target);
    assert_eq!(fetched.count(), 6, "{lines:#?}");
    assert!(lines.iter().all(|line| line.text("end") == "completed"));
}

#[test]
fn p32_connections_in_clear_and_inside_tls_do_not_mix() {
    let (origin, accepted) = Origin::manual();
    let (port, proxy) = (origin.address.port(), start(origin.address, ""));
    let conns = [(); 2].map(|()| Conn::dial(proxy.address("http")));
    let mut plain = None;
    let mut secret = Vec::new();
    for conn in &conns {
        conn.send(format!(
            "GET http://localhost:{port}/clear HTTP/1.1\r\nHost: x\r\n\r\n"
        ));
        // The first client gives its connection up for the other one.
        let plain = plain.get_or_insert_with(|| Accepted::next(&accepted));
        let head = plain.until(b"\r\n\r\n");
        assert!(head.starts_with(b"GET /clear HTTP/1.1\r\n"));
        plain.send(support::ok(b"clear"));
        assert_eq!(Answer::read(conn).body, b"clear");
        conn.send(format!(
            "GET https://localhost:{port}/secret HTTP/1.1\r\nHost: x\r\n\r\n"
        ));
        // A ClientHello on a new connection, nothing on the other.
        let hello = Accepted::next(&accepted);
        assert_eq!(hello.exact(3)[..2], [22, 3]);
        secret.push(hello);
    }
    let plain = plain.expect("used");
    assert!(plain.is_silent_for(Duration::from_millis(50)));
    drop((conns, plain, secret, origin));
    proxy.finish();
}

#[test]
fn p32_tls_connections_are_shared_and_sessions_resumed_only_on_the_same_lane() {
    let (origin, resumed) = numbered();
    let proxy = start(
        origin.address,
        "limits.idle_connections = 0\n\
         [[source]]\nname = \"a\"\naddresses = \"127.0.0.71\"\n\
         [[source]]\nname = \"b\"\naddresses = \"127.0.0.72\"\n\
         [[user]]\nname = \"anna\"\npassword = \"x\"\nsource = \"a\"\n\
         [[user]]\nname = \"bert\"\npassword = \"x\"\nsource = \"b\"\n",
    );
    let ask = |user: &str| {
        let conn = Conn::dial(proxy.address("http"));
        let (url, login) = (url(&origin, "/"), basic(&format!("{user}:x")));
        conn.send(format!(
            "GET {url} HTTP/1.1\r\nHost: x\r\nProxy-Authorization: {login}\r\n\r\n"
        ));
        assert_eq!(Answer::read(&conn).status, 200);
        conn.fin();
        conn.rest();
        resumed.load(Ordering::Relaxed)
    };
    assert_eq!([ask("anna"), ask("bert")], [0, 0], "apart");
    assert_eq!([ask("anna"), ask("bert")], [1, 2], "known again");
    drop(origin);
    proxy.finish();
}

#[test]
fn clients_that_come_one_by_one_share_a_tls_connection() {
    let (origin, _) = numbered();
    let proxy = start(origin.address, "");
    for _ in 0..5 {
        let conn = Conn::dial(proxy.address("http"));
        assert_eq!(ask(&conn, &url(&origin, "/")).body, b"0");
        conn.fin();
        conn.rest();
    }
    drop(origin);
    proxy.finish();
}

/// Status, `Proxy-Status` and what the log calls the error of a request for this
/// URL, which fails.
fn failure(proxy: Proxyd, url: &str) -> (u16, String, String, support::Stopped) {
    let conn = Conn::dial(proxy.address("http"));
    let answer = ask(&conn, url);
    let status = answer.field("proxy-status").unwrap_or_default().to_owned();
    drop(conn);
    let stopped = proxy.finish();
    let lines = LogLine::all(&stopped.stdout);
    let line = lines.last().expect("a line");
    assert_eq!(line.text("target"), url, "{stopped}");
    (answer.status, status, line.text("error"), stopped)
}

#[test]
fn a_certificate_that_is_not_trusted_or_of_another_name_is_refused() {
    let origin = Origin::tls_mirror();
    let port = origin.address.port();
    // The system does not know the authority of the tests.
    for (proxy, url, told) in [
        (
            Proxyd::with_config(
                origin.address,
                "log.access = \"stdout\"\nlog.format = \"json\"\n",
            ),
            format!("https://localhost:{port}/"),
            "UnknownIssuer",
        ),
        (
            start(origin.address, ""),
            format!("https://sub.localhost:{port}/"),
            "NotValidForName",
        ),
    ] {
        let (status, proxy_status, error, stopped) = failure(proxy, &url);
        assert_eq!(status, 502, "{stopped}");
        assert_eq!(proxy_status, "proxyd; error=tls_certificate_error");
        assert_eq!(error, "certificate-invalid");
        let mut lines = stopped.stderr.iter();
        let line = lines.find(|line| line.contains("certificate-invalid"));
        let line = line.unwrap_or_else(|| panic!("{stopped}"));
        let host = url.trim_start_matches("https://").trim_end_matches('/');
        assert!(line.contains(&format!("target={host}")), "{line}");
        assert!(
            line.contains(told) || line.contains("not valid for name"),
            "{line}"
        );
    }
    drop(origin);
}

#[test]
fn what_does_not_speak_tls_is_told_as_such() {
    let origin = Origin::greeting(b"220 ready\r\n");
    let url = url(&origin, "/");
    let (status, proxy_status, error, stopped) = failure(start(origin.address, ""), &url);
    assert_eq!(status, 502, "{stopped}");
    assert_eq!(proxy_status, "proxyd; error=tls_protocol_error");
    assert_eq!(error, "tls-failed");

    let (silent, _accepted) = Origin::manual();
    let url = format!("https://localhost:{}/", silent.address.port());
    let proxy = start(silent.address, "timeouts.connect = \"500ms\"\n");
    let (status, proxy_status, error, stopped) = failure(proxy, &url);
    assert_eq!(status, 504, "{stopped}");
    assert_eq!(proxy_status, "proxyd; error=connection_timeout");
    assert_eq!(error, "timed-out");
    drop((origin, silent));
}

#[test]
fn it_may_be_refused() {
    let origin = Origin::tls_mirror();
    let proxy = Proxyd::with_config(
        origin.address,
        "http.https = \"refuse\"\nlog.access = \"stdout\"\nlog.format = \"json\"\n",
    );
    let (status, _, error, stopped) = failure(proxy, &url(&origin, "/"));
    assert_eq!(status, 501, "{stopped}");
    assert!(!error.is_empty(), "{stopped}");
    drop(origin);
}

#[test]
fn rules_and_the_guard_judge_it_like_any_target() {
    let origin = Origin::tls_mirror();
    let port = origin.address.port();
    let proxy = start(
        origin.address,
        &format!("[[rule]]\naction = \"deny\"\nports = \"{port}\"\nmethods = \"GET\"\n"),
    );
    let (status, proxy_status, error, stopped) = failure(proxy, &url(&origin, "/"));
    assert_eq!(status, 403, "{stopped}");
    assert_eq!(proxy_status, "proxyd; error=http_request_denied");
    assert!(error.starts_with("rule:"), "{error}");

    let proxy = Proxyd::start(&[
        "--listen",
        "http://127.0.0.1:0?trust_loopback=off",
        "--access-log",
        "stdout",
    ]);
    let conn = Conn::dial(proxy.address("http"));
    assert_eq!(ask(&conn, &url(&origin, "/")).status, 403);
    drop((conn, origin));
    assert!(proxy.finish().says("guard:loopback"));
}

#[test]
fn parents_open_a_tunnel_and_never_see_the_request() {
    for scheme in ["http", "socks"] {
        let origin = Origin::tls_mirror();
        let port = origin.address.port();
        let listen = format!("{scheme}://127.0.0.1:0");
        let args = ["--listen", &listen, "--access-log", "stdout"];
        let parent = Proxyd::start(&args);
        let url_scheme = if scheme == "http" { "http" } else { "socks5" };
        let proxy = start(
            origin.address,
            &format!(
                "via = \"p\"\n[[parent]]\nname = \"p\"\nurl = \"{url_scheme}://{}\"\n",
                parent.address(scheme)
            ),
        );
        for _ in 0..2 {
            let conn = Conn::dial(proxy.address("http"));
            let answer = ask(&conn, &url(&origin, "/through"));
            assert_eq!(answer.status, 200, "{}", answer.head);
            let seen = String::from_utf8(answer.body).expect("text");
            assert!(seen.starts_with("GET /through HTTP/1.1\r\n"), "{seen}");
            assert!(!seen.to_ascii_lowercase().contains("\r\nvia:"), "{seen}");
            conn.fin();
            conn.rest();
        }
        drop(origin);
        proxy.finish();
        let stopped = parent.finish();
        let tunnels = stopped.stdout.iter();
        let tunnels = tunnels.filter(|line| line.contains(&format!(" CONNECT localhost:{port} ")));
        assert_eq!(tunnels.count(), 1, "one for both: {stopped}");
        assert!(!stopped.says("through"), "{stopped}");
    }
}

#[test]
fn an_https_parent_gets_a_tunnel_inside_its_own_tls() {
    let origin = Origin::tls_mirror();
    let query = Certs::shared().query();
    let parent = Proxyd::start(&["--listen", &format!("https://127.0.0.1:0?{query}")]);
    let ca = Certs::shared().ca();
    let proxy = start(
        origin.address,
        &format!(
            "via = \"p\"\n[[parent]]\nname = \"p\"\nurl = \"https://{}\"\nca = {ca:?}\n",
            parent.address("https")
        ),
    );
    let conn = Conn::dial(proxy.address("http"));
    assert_eq!(ask(&conn, &url(&origin, "/")).status, 200);
    drop((conn, origin));
    proxy.finish();
    parent.finish();
}

#[test]
fn p47_an_upgrade_works_inside_tls() {
    use std::io::{Read, Write};
    let origin = Origin::start(|socket| {
        let config = Certs::shared().server.clone();
        let session = ServerConnection::new(config).expect("a session");
        let mut stream = StreamOwned::new(session, socket);
        let head = support::take_head(&mut stream).expect("a head");
        assert!(head.contains("Upgrade: echo\r\n"), "{head}");
        let answer = "HTTP/1.1 101 Go\r\nConnection: upgrade\r\nUpgrade: echo\r\n\r\nfirst";
        stream.write_all(answer.as_bytes()).expect("sent");
        let mut buffer = [0; 4096];
        while let Ok(count @ 1..) = stream.read(&mut buffer) {
            stream.write_all(&buffer[..count]).expect("sent");
        }
    });
    let proxy = start(origin.address, "");
    let conn = Conn::dial(proxy.address("http"));
    let url = url(&origin, "/ws");
    conn.send(format!(
        "GET {url} HTTP/1.1\r\nHost: x\r\nConnection: upgrade\r\nUpgrade: echo\r\n\r\n"
    ));
    assert_eq!(Answer::read_head(&conn).status, 101);
    conn.expect("first");
    conn.send("second");
    conn.expect("second");
    drop((conn, origin));
    let lines = LogLine::all(&proxy.finish().stdout);
    assert_eq!(lines[0].text("target"), url);
    assert_eq!(lines[0].text("status"), "101");
}
