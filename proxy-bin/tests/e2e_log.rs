//! The access log: one line for each exchange or tunnel, and never a password.

mod support;

use std::path::PathBuf;

use rustix::process::Signal;
use support::{
    Accepted, Answer, Certs, Conn, LogLine, Mode, Origin, Proxyd, Stopped, basic, wait_for,
};

const LOGIN: &str = "alice:hunter2:x";

#[test]
fn json_lines_tell_all_of_each_exchange() {
    let lines = LogLine::all(&lines_in("json"));
    let expected = expected();
    assert_eq!(lines.len(), expected.len(), "{lines:#?}");
    for (line, expected) in lines.iter().zip(expected) {
        let (service, user, method, status, end) = expected;
        assert_eq!(
            line.text("service").split('-').next(),
            Some(service),
            "{line:?}"
        );
        assert_eq!(line.text("user"), user, "{line:?}");
        assert_eq!(line.text("method"), method, "{line:?}");
        assert_eq!(line.text("status"), status, "{line:?}");
        assert_eq!(line.text("end"), end, "{line:?}");
        assert!(line.text("time").starts_with("20"), "{line:?}");
        assert!(line.text("client").starts_with("127.0.0.1:"), "{line:?}");
        assert!(
            line.text("duration").parse::<f64>().unwrap() < 60.0,
            "{line:?}"
        );
        if end == "completed" || end.ends_with("finished") {
            assert!(line.text("upstream").starts_with("127.0.0.1:"), "{line:?}");
            assert!(line.text("target").contains("127.0.0.1:"), "{line:?}");
        }
    }
}

#[test]
fn text_lines_tell_the_same() {
    let lines = lines_in("text");
    let expected = expected();
    assert_eq!(lines.len(), expected.len(), "{lines:#?}");
    for (line, expected) in lines.iter().zip(expected) {
        let (service, user, method, status, end) = expected;
        let words: Vec<&str> = line.split(' ').collect();
        assert_eq!(words.len(), 13, "{line}");
        assert!(words[0].starts_with("20"), "{line}");
        assert!(words[1].starts_with("127.0.0.1:"), "{line}");
        assert_eq!(words[2], or_hyphen(user), "{line}");
        assert_eq!(words[3].split('-').next(), Some(service), "{line}");
        assert_eq!(words[4], or_hyphen(method), "{line}");
        assert_eq!(words[6], or_hyphen(status), "{line}");
        assert_eq!(words[10], end, "{line}");
        assert_eq!(words[12] == "refused", end == "connect-failed", "{line}");
    }
}

#[test]
fn p52_bytes_are_counted_exactly_in_every_tunnel() {
    let (origin, accepted) = Origin::manual();
    let args = ["--access-log", "stdout", "--access-log-format", "json"];
    let proxy = Proxyd::with_all(origin.address, &args);
    for mode in Mode::ALL {
        // The first bytes in the segment of the request count like all others.
        let near = mode.dial(&proxy);
        near.send([&mode.hello(origin.address), &b"12345"[..]].concat());
        assert_eq!(mode.answer(&near), 200);
        let far = Accepted::next(&accepted);
        support::UP.send(&near, 0, 2_000_000).unwrap();
        near.fin();
        far.expect("12345");
        support::UP.check_all(&far, 2_000_000).unwrap();
        support::DOWN.send(&far, 0, 3_000_000).unwrap();
        drop(far);
        support::DOWN.check_all(&near, 3_000_000).unwrap();
    }
    drop(origin);
    let stopped = proxy.finish();
    let lines = LogLine::all(&stopped.stdout);
    assert_eq!(lines.len(), Mode::ALL.len(), "{stopped}");
    for line in lines {
        assert_eq!(line.number("up"), Some(2_000_005), "{line:?}");
        assert_eq!(line.number("down"), Some(3_000_000), "{line:?}");
    }
}

#[test]
fn p52_bytes_are_counted_when_a_tunnel_is_reset() {
    let (origin, accepted) = Origin::manual();
    let args = ["--access-log", "stdout", "--access-log-format", "json"];
    let proxy = Proxyd::with_all(origin.address, &args);
    for mode in Mode::ALL {
        let near = mode.open(&proxy, origin.address);
        let far = Accepted::next(&accepted);
        near.send("four");
        far.expect("four");
        far.send("seven..");
        near.expect("seven..");
        near.reset();
        far.rest();
    }
    drop(origin);
    let stopped = proxy.finish();
    let lines = LogLine::all(&stopped.stdout);
    assert_eq!(lines.len(), Mode::ALL.len(), "{stopped}");
    for line in lines {
        assert_eq!(line.number("up"), Some(4), "{line:?}");
        assert_eq!(line.number("down"), Some(7), "{line:?}");
        assert_eq!(line.text("end"), "client-reset", "{line:?}");
    }
}

#[test]
fn a_client_cannot_forge_a_line() {
    let origin = Origin::page("ok");
    let args = ["--access-log", "stdout"];
    let proxy = Proxyd::with_all(origin.address, &args);
    let host = origin.authority();
    // Blanks, line ends, and what terminals obey.
    let paths = [
        "a\u{1b}[31m",
        "a\u{7f}",
        "a\tb",
        "a\rb",
        "a\u{9b}31m",
        "a\\x1b\"b",
    ];
    for path in paths {
        let conn = Conn::dial(proxy.address("http"));
        conn.send(format!(
            "GET http://{host}/{path} HTTP/1.1\r\nHost: {host}\r\n\r\n"
        ));
        Answer::read(&conn);
    }
    drop(origin);
    let stopped = proxy.finish();
    let lines = stopped.stdout.iter().filter(|line| line.starts_with("20"));
    let lines: Vec<&String> = lines.collect();
    assert_eq!(lines.len(), paths.len(), "{stopped}");
    for line in lines {
        assert!(
            line.bytes().all(|byte| (b' '..0x7F).contains(&byte)),
            "{line:?}"
        );
        assert_eq!(line.split(' ').count(), 13, "{line:?}");
    }
}

#[test]
fn the_upstream_is_told_whatever_comes_between_two_requests() {
    let origin = Origin::page("ok");
    let mut args = vec!["--access-log", "stdout", "--access-log-format", "json"];
    args.extend(["--user", "alice:a", "--user", "bob:b", "--workers", "1"]);
    let proxy = Proxyd::with_all(origin.address, &args);
    let host = origin.authority();
    let conn = Conn::dial(proxy.address("http"));
    let turns = [
        ("alice:a", 200),
        ("alice:a", 200),
        ("bob:b", 200),
        ("bob:wrong", 407),
        ("bob:b", 200),
        ("alice:a", 200),
        ("alice:a", 200),
    ];
    for (login, status) in turns {
        let login = basic(login);
        conn.send(format!(
            "GET http://{host}/ HTTP/1.1\r\nHost: {host}\r\nProxy-Authorization: {login}\r\n\r\n"
        ));
        assert_eq!(Answer::read(&conn).status, status);
    }
    drop((conn, origin));
    let stopped = proxy.finish();
    let lines = LogLine::all(&stopped.stdout);
    assert_eq!(lines.len(), turns.len(), "{stopped}");
    for (line, (login, status)) in lines.iter().zip(turns) {
        let (user, upstream) = match status {
            200 => (login.split(':').next().unwrap(), host.as_str()),
            _ => ("", ""),
        };
        assert_eq!(line.text("user"), user, "{line:?}");
        assert_eq!(line.text("upstream"), upstream, "{line:?}");
    }
}

#[test]
fn a_hangup_opens_the_file_anew() {
    let folder = tempfile::tempdir().expect("a folder");
    let [path, old] = ["access.log", "access.log.1"].map(|name| folder.path().join(name));
    let origin = Origin::page("ok");
    let proxy = Proxyd::http(&["--access-log", path.to_str().expect("a plain path")]);
    let host = origin.authority();
    let ask = |name: &str| {
        let conn = Conn::dial(proxy.address("http"));
        conn.send(format!(
            "GET http://{host}/{name} HTTP/1.1\r\nHost: {host}\r\n\r\n"
        ));
        assert_eq!(Answer::read(&conn).status, 200);
    };
    let read = |path: &PathBuf| std::fs::read_to_string(path).unwrap_or_default();
    ask("first");
    wait_for("the first line", || read(&path).ends_with('\n'));
    std::fs::rename(&path, &old).expect("renamed");
    ask("second");
    wait_for("a line in the old file", || read(&old).contains("/second"));
    proxy.process().signal(Signal::HUP);
    wait_for("a new file", || path.exists());
    ask("third");
    drop(origin);
    proxy.finish();
    assert_eq!(read(&old).lines().count(), 2);
    let new = read(&path);
    assert!(new.contains("/third") && new.lines().count() == 1, "{new}");
}

#[test]
fn p29_no_output_repeats_a_password() {
    for format in ["text", "json"] {
        for level in ["info", "trace"] {
            let args = ["--access-log-format", format, "--log", level];
            let stopped = mixed_use("stdout", &args);
            let wrong = basic("alice:wr0ng");
            for secret in ["hunter2", "wr0ng", &basic(LOGIN)[6..], &wrong[6..]] {
                assert!(!stopped.says(secret), "{secret}: {stopped}");
            }
        }
    }
}

/// What [`mixed_use`] leaves in the log: service, user, method, status, end.
fn expected() -> [(
    &'static str,
    &'static str,
    &'static str,
    &'static str,
    &'static str,
); 11] {
    [
        ("http", "alice", "GET", "200", "completed"),
        ("http", "alice", "POST", "200", "completed"),
        ("http", "", "GET", "407", "challenged"),
        ("http", "alice", "GET", "502", "connect-failed"),
        ("http", "", "", "400", "bad-request"),
        ("http", "alice", "CONNECT", "200", "client-finished"),
        ("https", "alice", "GET", "200", "completed"),
        ("socks", "alice", "CONNECT", "0", "client-finished"),
        ("socks", "", "", "1", "challenged"),
        ("auto", "alice", "CONNECT", "0", "client-finished"),
        ("tcp", "", "CONNECT", "", "client-finished"),
    ]
}

fn or_hyphen(text: &str) -> &str {
    if text.is_empty() { "-" } else { text }
}

/// The lines that [`mixed_use`] leaves in a log file.
fn lines_in(format: &str) -> Vec<String> {
    let file: PathBuf = Certs::shared()
        .folder()
        .join(format!("access-{format}.log"));
    mixed_use(
        file.to_str().expect("a plain path"),
        &["--access-log-format", format],
    );
    let text = std::fs::read_to_string(&file).expect("a log");
    text.lines().map(str::to_owned).collect()
}

/// One exchange or tunnel of each kind, one after the other.
fn mixed_use(log: &str, extra: &[&str]) -> Stopped {
    let origin = Origin::page("ok");
    let mut args = vec!["--user", LOGIN, "--access-log", log, "--workers", "1"];
    args.extend(extra);
    let proxy = Proxyd::with_all(origin.address, &args);
    let host = origin.authority();
    let login = format!("Proxy-Authorization: {}\r\n", basic(LOGIN));
    let wrong = format!("Proxy-Authorization: {}\r\n", basic("alice:wr0ng"));

    let conn = Conn::dial(proxy.address("http"));
    let ask = |conn: &Conn, start: &str, fields: &str| {
        conn.send(format!("{start} HTTP/1.1\r\nHost: {host}\r\n{fields}\r\n"));
    };
    ask(&conn, &format!("GET http://{host}/a?b"), &login);
    assert_eq!(Answer::read(&conn).status, 200);
    ask(
        &conn,
        &format!("POST http://{host}/"),
        &format!("{login}Content-Length: 4\r\n"),
    );
    conn.send("body");
    assert_eq!(Answer::read(&conn).status, 200);
    ask(&conn, &format!("GET http://{host}/"), &wrong);
    assert_eq!(Answer::read(&conn).status, 407);
    ask(
        &conn,
        &format!("GET http://{}/", support::closed_port()),
        &login,
    );
    assert_eq!(Answer::read(&conn).status, 502);
    conn.send("BROKEN\r\n\r\n");
    assert_eq!(Answer::read(&conn).status, 400);
    conn.rest();
    drop(conn);

    let conn = Conn::dial(proxy.address("http"));
    ask(&conn, &format!("CONNECT {host}"), &login);
    assert_eq!(Answer::read_head(&conn).status, 200);
    through(&conn);

    let conn = Conn::dial_tls(proxy.address("https"));
    ask(&conn, &format!("GET http://{host}/"), &login);
    assert_eq!(Answer::read(&conn).status, 200);
    conn.fin();
    conn.rest();
    drop(conn);

    let request = &Mode::Socks5.hello(origin.address)[3..];
    let hello = b"\x05\x01\x02\x01\x05alice\x09hunter2:x";
    for kind in ["socks", "auto"] {
        let conn = Conn::dial(proxy.address(kind));
        conn.send([hello, request].concat());
        conn.expect([5, 2, 1, 0]);
        assert_eq!(support::socks5_reply(&conn), 0);
        through(&conn);
        if kind == "socks" {
            let conn = Conn::dial(proxy.address(kind));
            conn.send(b"\x05\x01\x02\x01\x05alice\x05wr0ng");
            conn.expect([5, 2, 1]);
            conn.rest();
            drop(conn);
        }
    }

    through(&Conn::dial(proxy.address("tcp")));
    drop(origin);
    proxy.finish()
}

/// One request through a tunnel, then its end, so that lines come in order.
fn through(conn: &Conn) {
    conn.send("GET / HTTP/1.1\r\nHost: x\r\n\r\n");
    assert_eq!(Answer::read(conn).body, b"ok");
    conn.fin();
    assert_eq!(conn.to_end(), b"");
}

#[test]
fn a_malformed_message_is_told_with_its_fault_and_its_target() {
    let origin = Origin::start(|socket| {
        use std::io::Write;
        support::take_head(&mut &*socket).expect("a head");
        let mut socket = socket;
        drop(
            socket.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\n"),
        );
    });
    let mut args = vec!["--access-log", "stdout", "--access-log-format", "json"];
    args.extend(["--workers", "1"]);
    let proxy = Proxyd::http(&args);
    let host = origin.authority();
    for (request, status) in [
        (
            format!("GET http://{host}/a HTTP/1.1\r\nHost : x\r\n\r\n"),
            400,
        ),
        (
            format!(
                "POST http://{host}/b HTTP/1.1\r\nHost: x\r\nContent-Length: 3\r\n\
                 Transfer-Encoding: chunked\r\n\r\n0\r\n\r\n"
            ),
            400,
        ),
        (
            format!("GET ftp://{host}/c HTTP/1.1\r\nHost: x\r\n\r\n"),
            501,
        ),
        (
            format!("CONNECT {host} HTTP/1.1\r\nHost: {host}\r\nA\r\n\r\n"),
            400,
        ),
        ("GET\r\n\r\n".to_owned(), 400),
        (
            format!("GET http://{host}/d HTTP/1.1\r\nHost: x\r\n\r\n"),
            502,
        ),
    ] {
        let conn = Conn::dial(proxy.address("http"));
        conn.send(&request);
        assert_eq!(Answer::read(&conn).status, status, "{request}");
        conn.fin();
        conn.rest();
    }
    drop(origin);
    let lines = LogLine::all(&proxy.finish().stdout);
    let told: Vec<_> = lines
        .iter()
        .map(|line| (line.text("target"), line.text("end"), line.text("error")))
        .collect();
    let url = |path: &str| format!("http://{host}/{path}");
    let expected = [
        (url("a"), "bad-request", "blank-before-colon"),
        (url("b"), "bad-request", "length-and-coding"),
        // Neither http nor https, so no URL that proxyd knows.
        (String::new(), "bad-request", "scheme"),
        (host.clone(), "bad-request", "field-name"),
        (String::new(), "bad-request", "request-line"),
        (url("d"), "bad-response", "content-length"),
    ];
    assert_eq!(
        told,
        expected.map(|(target, end, error)| (target, end.to_owned(), error.to_owned()))
    );
}
