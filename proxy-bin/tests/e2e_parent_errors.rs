//! Whatever goes wrong with a parent is told to clients of each protocol and in
//! the log.

mod support;

use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::time::{Duration, Instant};

use support::{
    Accepted, Answer, Certs, Conn, LogLine, Mode, Origin, Proxyd, Stopped, closed_port, ok,
};

/// What clients and the log are told of one fault.
struct Told {
    status: u16,
    token: &'static str,
    socks5: u16,
    socks4: u16,
    word: &'static str,
}

const fn told(status: u16, token: &'static str, socks5: u16, word: &'static str) -> Told {
    Told {
        status,
        token,
        socks5,
        socks4: 0x5B,
        word,
    }
}

const EXHAUSTED: Told = told(503, "destination_unavailable", 1, "parent-exhausted");
const FORBIDDEN: Told = told(403, "http_request_denied", 2, "parent-forbidden");
const LOGIN: Told = told(502, "proxy_configuration_error", 1, "parent-login-refused");
const LOOP: Told = told(508, "proxy_loop_detected", 2, "parent-loop");
const NO_HOST: Told = told(
    502,
    "destination_ip_unroutable",
    4,
    "parent-host-unreachable",
);
const NO_NAME: Told = told(502, "dns_error", 4, "parent-name-not-found");
const NO_NETWORK: Told = told(
    502,
    "destination_ip_unroutable",
    3,
    "parent-network-unreachable",
);
const OTHER: Told = told(502, "destination_unavailable", 1, "parent-other");
const PROTOCOL: Told = told(502, "destination_unavailable", 1, "parent-protocol-error");
const REFUSED: Told = told(502, "connection_refused", 5, "parent-refused");
const TIMED_OUT: Told = told(504, "connection_timeout", 6, "parent-timed-out");
const TLS: Told = told(502, "tls_protocol_error", 1, "parent-tls-failed");

/// Asks by every way that has replies, through `via`, and compares.
fn check(via: &str, what: &str, told: &Told) -> Stopped {
    let args = ["--via", via, "--access-log", "stdout"];
    let json = ["--access-log-format", "json"];
    let target = SocketAddr::from(([192, 0, 2, 1], 80));
    let proxy = Proxyd::with_all(target, &[&args[..], &json].concat());
    for mode in Mode::ALL.into_iter().filter(|mode| mode.has_replies()) {
        let conn = mode.dial(&proxy);
        conn.send(mode.hello(target));
        if mode.listener() == "socks" || mode.hello(target)[0] < 6 {
            let expected = match mode.hello(target)[0] {
                4 => told.socks4,
                _ => told.socks5,
            };
            assert_eq!(mode.answer(&conn), expected, "{mode:?} {what}");
            continue;
        }
        let answer = Answer::read(&conn);
        assert_eq!(answer.status, told.status, "{mode:?} {what}");
        let status = format!("proxyd; error={}", told.token);
        assert_eq!(answer.field("proxy-status"), Some(&*status), "{what}");
        assert_eq!(answer.field("proxy-authenticate"), None);
        let body = String::from_utf8(answer.body).expect("text");
        assert!(body.contains(": "), "no cause in {body:?}");
    }
    // A port relay can only close; an HTTP parent is handed requests instead.
    let conn = Conn::dial(proxy.address("tcp"));
    assert_eq!(conn.to_end(), b"", "{what}");
    let stopped = proxy.stop();
    let lines = LogLine::all(&stopped.stdout);
    assert_eq!(lines.len(), Mode::ALL.len(), "{stopped}");
    for line in lines {
        assert_eq!(line.text("error"), told.word, "{what}: {line:?}");
        assert_eq!(line.text("upstream"), "", "{line:?}");
    }
    stopped
}

/// A parent that reads a head and says this.
fn http_parent(answer: &'static [u8]) -> Origin {
    Origin::start(move |mut socket| {
        drop(support::take_head(&mut socket));
        say(socket, answer);
    })
}

/// A parent that answers each message of the client, of whatever length, with
/// the next of `answers`, and closes.
fn socks_parent(answers: &'static [&'static [u8]]) -> Origin {
    Origin::start(move |mut socket| {
        for answer in answers {
            let mut message = [0; 1024];
            if !matches!(socket.read(&mut message), Ok(1..)) {
                return;
            }
            drop(socket.write_all(answer));
        }
        say(socket, b"");
    })
}

/// Ends in order, so that nothing said is lost.
fn say(mut socket: &TcpStream, bytes: &[u8]) {
    drop(socket.write_all(bytes));
    drop(socket.shutdown(Shutdown::Write));
    drop(socket.read_to_end(&mut Vec::new()));
}

#[test]
fn p40_an_http_parent_that_says_no() {
    const LONG: &[u8] = &[b'x'; 70_000];
    for (answer, told) in [
        (
            &b"HTTP/1.1 403 No\r\nContent-Length: 2\r\n\r\nno"[..],
            FORBIDDEN,
        ),
        (b"HTTP/1.1 451 No\r\n\r\n", FORBIDDEN),
        (
            b"HTTP/1.1 407 Login\r\nProxy-Authenticate: Basic realm=\"x\"\r\n\r\n",
            LOGIN,
        ),
        (b"HTTP/1.1 401 Login\r\n\r\n", LOGIN),
        (b"HTTP/1.1 404 Unknown\r\n\r\n", NO_NAME),
        (b"HTTP/1.1 405 What\r\n\r\n", OTHER),
        (b"HTTP/1.0 500 Oh\r\n\r\n", OTHER),
        (b"HTTP/1.1 502 Bad\r\n\r\n", OTHER),
        (b"HTTP/1.1 503 Busy\r\n\r\n", EXHAUSTED),
        (b"HTTP/1.1 504 Late\r\n\r\n", TIMED_OUT),
        (b"HTTP/1.1 508 Loop\r\n\r\n", LOOP),
        // No answer at all.
        (b"", PROTOCOL),
        (b"HTTP/1.1 2", PROTOCOL),
        (b"HTTP/1.1 200 OK\r\n", PROTOCOL),
        (b"SSH-2.0-x\r\n\r\n", PROTOCOL),
        (b"\x05\x00", PROTOCOL),
        (b"HTTP/1.1 101 Switching\r\n\r\n", PROTOCOL),
        (LONG, PROTOCOL),
    ] {
        let parent = http_parent(answer);
        let what = answer[..answer.len().min(30)].escape_ascii().to_string();
        check(&format!("http://{}", parent.address), &what, &told);
    }
}

#[test]
fn p40_a_socks5_parent_that_says_no() {
    const CHOSEN: &[u8] = b"\x05\x00";
    const ASKED: &[u8] = b"\x05\x02";
    const TABLE: &[(&[&[u8]], Told)] = &[
        (&[b"\x05\xff"], LOGIN),
        (&[b"\x05\x01"], PROTOCOL),
        (&[b"\x04\x00"], PROTOCOL),
        (&[b"HTTP/1.1 400 Bad\r\n\r\n"], PROTOCOL),
        (&[b""], PROTOCOL),
        (&[ASKED, b"\x01\x01"], LOGIN),
        (
            &[ASKED, b"\x01\x00", b"\x05\x02\x00\x01\0\0\0\0\0\0"],
            FORBIDDEN,
        ),
        (&[CHOSEN, b"\x05\x01\x00\x01\0\0\0\0\0\0"], OTHER),
        (&[CHOSEN, b"\x05\x02\x00\x01\0\0\0\0\0\0"], FORBIDDEN),
        (&[CHOSEN, b"\x05\x03\x00\x01\0\0\0\0\0\0"], NO_NETWORK),
        (&[CHOSEN, b"\x05\x04\x00\x01\0\0\0\0\0\0"], NO_HOST),
        // Some end after the code.
        (&[CHOSEN, b"\x05\x05"], REFUSED),
        (&[CHOSEN, b"\x05\x06\x00\x01\0\0\0\0\0\0"], TIMED_OUT),
        (&[CHOSEN, b"\x05\x07\x00\x01\0\0\0\0\0\0"], OTHER),
        (&[CHOSEN, b"\x05\x08\x00\x01\0\0\0\0\0\0"], NO_HOST),
        (&[CHOSEN, b"\x05\xee\x00\x01\0\0\0\0\0\0"], OTHER),
        (&[CHOSEN, b"\x05\x00\x00\x09\0\0\0\0\0\0"], PROTOCOL),
        (&[CHOSEN, b"\x05\x00\x00\x01\0"], PROTOCOL),
    ];
    for (answers, told) in TABLE {
        let parent = socks_parent(answers);
        let via = format!("socks5://carol:secret@{}", parent.address);
        let what: Vec<String> = answers
            .iter()
            .map(|a| a.escape_ascii().to_string())
            .collect();
        let stopped = check(&via, &what.join(" "), told);
        assert!(!stopped.says("secret"), "{stopped}");
    }
}

#[test]
fn p40_a_socks4_parent_that_says_no() {
    const TABLE: &[(&[&[u8]], Told)] = &[
        (&[b"\x00\x5b\0\0\0\0\0\0"], OTHER),
        (&[b"\x00\x5c\0\0\0\0\0\0"], LOGIN),
        (&[b"\x00\x5d\0\0\0\0\0\0"], LOGIN),
        (&[b"\x00\x5a\0\0"], PROTOCOL),
        (&[b"\x05\x5a\0\0\0\0\0\0"], PROTOCOL),
        (&[b""], PROTOCOL),
    ];
    for (answer, told) in TABLE {
        let parent = socks_parent(answer);
        let what = answer[0].escape_ascii().to_string();
        check(&format!("socks4a://{}", parent.address), &what, told);
    }
}

#[test]
fn p40_a_parent_that_is_not_there() {
    for scheme in ["http", "https", "socks4a", "socks5"] {
        check(&format!("{scheme}://{}", closed_port()), scheme, &REFUSED);
    }
    check("http://nowhere.invalid", "no such parent", &NO_NAME);
}

#[test]
fn a_parent_whose_certificate_is_not_trusted_is_named_in_a_message() {
    let parent = Origin::tls_mirror();
    // The system does not know this issuer.
    let stopped = check(&format!("https://{}", parent.address), "issuer", &TLS);
    assert!(stopped.says("UnknownIssuer"), "{stopped}");
    assert!(stopped.says("parent-tls-failed"), "{stopped}");
    // All those attempts are one line, or two if they took long.
    let lines = stopped.stderr.iter().filter(|line| line.contains("WARN"));
    assert!((1..=4).contains(&lines.count()), "{stopped}");
    let clear = socks_parent(&[b"HTTP/1.1 400 Bad\r\n\r\n"]);
    let ca = Certs::shared().ca();
    let via = format!("https://{}?ca={}", clear.address, ca.display());
    check(&via, "clear text", &TLS);
}

#[test]
fn a_hop_in_the_middle_that_says_no_is_a_failure_of_the_chain() {
    let first = http_parent(b"HTTP/1.1 403 No\r\n\r\n");
    let proxy = Proxyd::http(&[
        "--via",
        &format!("http://{}", first.address),
        "--via",
        "socks5://second.invalid",
    ]);
    let near = Conn::dial(proxy.address("http"));
    near.send("CONNECT far.invalid:443 HTTP/1.1\r\nHost: x\r\n\r\n");
    assert_eq!(Answer::read(&near).status, 403);
    proxy.line(|line| line.contains("WARN") && line.contains("parent-forbidden"));
    drop((near, first));
    proxy.finish();
}

#[test]
fn p62_a_parent_that_drips_is_cut_at_one_deadline() {
    for url in ["http://", "socks5://", "https://", "socks4a://"] {
        let (parent, accepted) = Origin::manual();
        let toml = format!(
            "via = \"slow\"\n[timeouts]\nconnect = \"1s\"\n[[parent]]\nname = \"slow\"\n\
             url = \"{url}{}\"\n",
            parent.address
        );
        let proxy = Proxyd::with_config(parent.address, &toml);
        let near = Conn::dial(proxy.address("http"));
        let start = Instant::now();
        near.send("CONNECT far.invalid:443 HTTP/1.1\r\nHost: x\r\n\r\n");
        let far = Accepted::next(&accepted);
        std::thread::scope(|scope| {
            let dripping = scope.spawn(|| {
                let head: &[u8] = match url {
                    "http://" => b"HTTP/1.1 103 Hints\r\nA: b\r\nC: d\r\nE: f",
                    "socks5://" => b"\x05",
                    "https://" => b"\x16\x03\x03\x40\x00\x02\x00\x30\x00\x03\x03",
                    _ => b"\x00",
                };
                for byte in head {
                    far.send_anyway([*byte]);
                    std::thread::sleep(Duration::from_millis(100));
                }
            });
            let answer = Answer::read(&near);
            assert_eq!(answer.status, 504, "{url}");
            let took = start.elapsed();
            assert!(took < Duration::from_secs(10), "{url}: {took:?}");
            dripping.join().expect("no panic");
        });
        // The socket was closed, not only forgotten.
        far.rest();
        proxy.line(|line| line.contains("parent-timed-out"));
        drop((near, far, parent));
        proxy.finish();
    }
}

#[test]
fn p24_a_parent_that_wants_another_login_does_not_ask_the_client() {
    let parent = Origin::http(|request| match request.field("x-ok") {
        Some(_) => ok(b"fine"),
        None => b"HTTP/1.1 407 Login\r\nProxy-Authenticate: Basic realm=\"parent\"\r\n\
                  Content-Length: 3\r\n\r\nno!"
            .to_vec(),
    });
    let via = format!("http://carol:wrong@{}", parent.address);
    let args = ["--via", &via, "--access-log", "stdout"];
    let json = ["--access-log-format", "json"];
    let proxy = Proxyd::http(&[&args[..], &json].concat());
    let near = Conn::dial(proxy.address("http"));
    for _ in 0..2 {
        near.send("GET http://far.invalid/ HTTP/1.1\r\nHost: far.invalid\r\n\r\n");
        let answer = Answer::read(&near);
        assert_eq!(answer.status, 502);
        assert_eq!(answer.field("proxy-authenticate"), None);
        assert_eq!(
            answer.field("proxy-status"),
            Some("proxyd; error=proxy_configuration_error")
        );
        // The client's own connection goes on.
        near.send("GET http://far.invalid/ HTTP/1.1\r\nHost: far.invalid\r\nX-Ok: 1\r\n\r\n");
        assert_eq!(Answer::read(&near).status, 200);
    }
    drop((near, parent));
    let stopped = proxy.finish();
    assert!(!stopped.says("wrong"), "{stopped}");
    let lines = LogLine::all(&stopped.stdout);
    let words: Vec<String> = lines.iter().map(|line| line.text("error")).collect();
    let word = "parent-login-refused";
    assert_eq!(words, [word, "", word, ""]);
}

#[test]
fn p33_a_client_that_leaves_ends_the_negotiation() {
    let (parent, accepted) = Origin::manual();
    let toml = format!(
        "via = \"silent\"\n[[parent]]\nname = \"silent\"\nurl = \"socks5://{}\"\n\
         [timeouts]\nconnect = \"10m\"\n[log]\naccess = \"stdout\"\nformat = \"json\"\n",
        parent.address
    );
    let proxy = Proxyd::with_config(parent.address, &toml);
    let target = SocketAddr::from(([127, 0, 0, 1], 443));
    for mode in Mode::ALL {
        let near = mode.dial(&proxy);
        near.send(mode.hello(target));
        let far = Accepted::next(&accepted);
        far.exact(3);
        near.reset();
        far.rest();
    }
    let near = Conn::dial(proxy.address("http"));
    near.send("GET http://127.0.0.1/ HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n");
    let far = Accepted::next(&accepted);
    far.exact(3);
    near.reset();
    far.rest();
    drop((far, parent));
    let lines = LogLine::all(&proxy.finish().stdout);
    let ends: Vec<String> = lines.iter().map(|line| line.text("end")).collect();
    assert_eq!(ends, ["client-reset"; 10]);
}
