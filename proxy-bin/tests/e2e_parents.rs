//! Targets reached through parents: scripted ones, byte by byte, and a second
//! proxyd.

mod support;

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use support::{
    Accepted, Answer, Certs, Conn, DOWN, LogLine, Mode, Origin, Proxyd, Stopped, UP, basic, find,
    ok,
};

/// What a scripted parent is asked, and what it says.
struct Script {
    /// The URL up to the host.
    url: &'static str,
    talk: &'static [Turn],
}

/// The parent reads the first and answers with the second.
type Turn = (&'static [u8], &'static [u8]);

const SCRIPTS: [Script; 7] = [
    Script {
        url: "http://",
        talk: &[(
            b"CONNECT nowhere.invalid:443 HTTP/1.1\r\nHost: nowhere.invalid:443\r\n\r\n",
            b"HTTP/1.1 200 Fine\r\nX: y\r\n\r\nearly",
        )],
    },
    // RFC 9110 section 9.3.6: what would frame a body means nothing in a 2xx.
    Script {
        url: "http://carol:p%40ss:w@",
        talk: &[(
            b"CONNECT nowhere.invalid:443 HTTP/1.1\r\nHost: nowhere.invalid:443\r\n\
              Proxy-Authorization: Basic Y2Fyb2w6cEBzczp3\r\n\r\n",
            b"HTTP/1.0 299 x\r\nContent-Length: 3\r\n\r\nearly",
        )],
    },
    Script {
        url: "http://",
        talk: &[(
            b"CONNECT nowhere.invalid:443 HTTP/1.1\r\nHost: nowhere.invalid:443\r\n\r\n",
            b"HTTP/1.1 103 Hints\r\n\r\nHTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nearly",
        )],
    },
    Script {
        url: "socks5://",
        talk: &[
            (b"\x05\x01\x00", b"\x05\x00"),
            (
                b"\x05\x01\x00\x03\x0fnowhere.invalid\x01\xbb",
                b"\x05\x00\x00\x03\x03abc\x00\x50early",
            ),
        ],
    },
    Script {
        url: "socks5h://carol:p%3Aw@",
        talk: &[
            (b"\x05\x02\x00\x02", b"\x05\x02"),
            (b"\x01\x05carol\x03p:w", b"\x01\x00"),
            (
                b"\x05\x01\x00\x03\x0fnowhere.invalid\x01\xbb",
                b"\x05\x00\x00\x01\x7f\x00\x00\x01\x00\x50early",
            ),
        ],
    },
    Script {
        url: "socks4a://",
        talk: &[(
            b"\x04\x01\x01\xbb\x00\x00\x00\x01\x00nowhere.invalid\x00",
            b"\x00\x5a\x00\x50\x7f\x00\x00\x01early",
        )],
    },
    Script {
        url: "socks4://carol@",
        talk: &[(
            b"\x04\x01\x01\xbb\x00\x00\x00\x01carol\x00nowhere.invalid\x00",
            b"\x00\x5a\x00\x00\x00\x00\x00\x00early",
        )],
    },
];

const CONNECT: &str = "CONNECT nowhere.invalid:443 HTTP/1.1\r\nHost: nowhere.invalid:443\r\n\r\n";

/// Reads what a parent is asked. An HTTP one is also told who asks.
fn expect(far: &Conn, asked: &[u8]) {
    if !asked.starts_with(b"CONNECT") {
        return far.expect(asked);
    }
    let head = String::from_utf8(far.until(b"\r\n\r\n")).expect("text");
    let (before, via) = head.split_once("Via: 1.1 proxyd-").expect("a Via");
    assert_eq!(format!("{before}\r\n").as_bytes(), asked);
    let name = via.strip_suffix("\r\n\r\n").expect("the last field");
    assert!(
        name.len() == 16 && name.bytes().all(|b| b.is_ascii_hexdigit()),
        "{name}"
    );
}

#[test]
fn p40_p41_p42_a_tunnel_opens_once_the_parent_says_so_and_loses_no_byte() {
    for Script { url, talk } in SCRIPTS {
        let (parent, accepted) = Origin::manual();
        let via = format!("{url}{}", parent.address);
        let proxy = Proxyd::http(&["--via", &via]);
        let near = Conn::dial(proxy.address("http"));
        near.send([CONNECT, "first"].concat());
        let far = Accepted::next(&accepted);
        for (asked, answer) in talk {
            expect(&far, asked);
            assert!(
                near.is_silent_for(Duration::from_millis(20)),
                "{url}: too early"
            );
            far.send(answer);
        }
        near.expect("HTTP/1.1 200 Connection established\r\n\r\nearly");
        far.expect("first");
        far.send("second");
        near.expect("second");
        // Half-closed, the other direction goes on.
        near.fin();
        assert_eq!(far.to_end(), b"", "{url}");
        far.send("third");
        drop(far);
        assert_eq!(near.to_end(), b"third", "{url}");
        drop(parent);
        let stopped = proxy.finish();
        assert!(!stopped.says("p@ss") && !stopped.says("p:w"), "{stopped}");
    }
}

#[test]
fn p41_an_answer_in_single_bytes_is_understood() {
    for Script { url, talk } in SCRIPTS {
        let (parent, accepted) = Origin::manual();
        let via = format!("{url}{}", parent.address);
        let proxy = Proxyd::http(&["--via", &via]);
        let near = Conn::dial(proxy.address("http"));
        near.send(CONNECT);
        let far = Accepted::next(&accepted);
        for (asked, answer) in talk {
            expect(&far, asked);
            answer.iter().for_each(|byte| far.send([*byte]));
        }
        near.expect("HTTP/1.1 200 Connection established\r\n\r\nearly");
        drop((near, far, parent));
        proxy.finish();
    }
}

#[test]
fn p38_addresses_reach_the_parent_as_they_are() {
    for (url, target, asked) in [
        (
            "http://",
            "[2001:db8::1]:443",
            &b"CONNECT [2001:db8::1]:443 HTTP/1.1\r\nHost: [2001:db8::1]:443\r\n\r\n"[..],
        ),
        (
            "socks5://",
            "[2001:db8::1]:443",
            b"\x05\x01\x00\x05\x01\x00\x04\x20\x01\x0d\xb8\0\0\0\0\0\0\0\0\0\0\0\x01\x01\xbb",
        ),
        (
            "socks4a://",
            "192.0.2.7:443",
            b"\x04\x01\x01\xbb\xc0\x00\x02\x07\x00",
        ),
    ] {
        let (parent, accepted) = Origin::manual();
        let via = format!("{url}{}", parent.address);
        let proxy = Proxyd::http(&["--via", &via]);
        let near = Conn::dial(proxy.address("http"));
        near.send(format!(
            "CONNECT {target} HTTP/1.1\r\nHost: {target}\r\n\r\n"
        ));
        let far = Accepted::next(&accepted);
        match asked.strip_prefix(b"\x05\x01\x00") {
            Some(request) => {
                far.expect(b"\x05\x01\x00");
                far.send(b"\x05\x00");
                far.expect(request);
            }
            None => expect(&far, asked),
        }
        drop((near, far, parent));
        proxy.finish();
    }
    // SOCKS4 has no way to name it.
    let (parent, accepted) = Origin::manual();
    let proxy = Proxyd::http(&["--via", &format!("socks4a://{}", parent.address)]);
    let near = Conn::dial(proxy.address("http"));
    near.send("CONNECT [2001:db8::1]:443 HTTP/1.1\r\nHost: x\r\n\r\n");
    assert_eq!(Answer::read(&near).status, 502);
    assert_eq!(Accepted::next(&accepted).to_end(), b"");
    drop((near, parent));
    proxy.finish();
}

/// A second proxyd, and the URLs to use it as a parent.
fn real_parent() -> (Proxyd, [String; 4]) {
    let proxy = Proxyd::with_all(support::closed_port(), &[]);
    let ca = Certs::shared().ca();
    let urls = [
        format!("http://{}", proxy.address("http")),
        format!("https://{}?ca={}", proxy.address("https"), ca.display()),
        format!("socks4a://{}", proxy.address("socks")),
        format!("socks5://{}", proxy.address("socks")),
    ];
    (proxy, urls)
}

#[test]
fn every_protocol_goes_through_every_kind_of_real_parent() {
    let origin = Origin::echo();
    let page = Origin::page("through");
    let (parent, urls) = real_parent();
    for url in urls {
        let proxy = Proxyd::with_all(origin.address, &["--via", &url]);
        for mode in Mode::ALL {
            let conn = mode.open(&proxy, origin.address);
            conn.send("round");
            conn.expect("round");
            conn.fin();
            assert_eq!(conn.to_end(), b"", "{mode:?} {url}");
        }
        for kind in ["http", "auto"] {
            let conn = Conn::dial(proxy.address(kind));
            for _ in 0..3 {
                conn.send(get(&page.url("/"), ""));
                assert_eq!(Answer::read(&conn).body, b"through", "{url}");
            }
        }
        proxy.stop();
    }
    drop((origin, page));
    parent.finish();
}

fn get(url: &str, more: &str) -> String {
    format!("GET {url} HTTP/1.1\r\nHost: x\r\n{more}\r\n")
}

#[test]
fn what_a_real_parent_could_not_reach_is_told_as_if_it_were_tried_here() {
    let (parent, urls) = real_parent();
    let closed = support::closed_port();
    for url in &urls {
        let proxy = Proxyd::with_all(closed, &["--via", url]);
        for mode in Mode::ALL.into_iter().filter(|mode| mode.has_replies()) {
            let conn = mode.dial(&proxy);
            conn.send(mode.hello(closed));
            // SOCKS4 has one word for all.
            let refused = match mode {
                Mode::Socks5 | Mode::AutoSocks5 if url.starts_with("socks4") => 1,
                Mode::Socks5 | Mode::AutoSocks5 => 5,
                Mode::Socks4 | Mode::AutoSocks4 => 0x5B,
                _ => 502,
            };
            assert_eq!(mode.answer(&conn), refused, "{mode:?} {url}");
        }
        proxy.stop();
    }
    parent.finish();
}

#[test]
fn chains_carry_bulk_and_half_closes() {
    let hops: Vec<(Proxyd, [String; 4])> = (0..3).map(|_| real_parent()).collect();
    let (http, https, socks4, socks5) = (0, 1, 2, 3);
    for chain in [
        &[http, socks5][..],
        &[https, https],
        &[socks5, https, http],
        &[https, https, https],
        &[socks4, http, https],
    ] {
        let mut args = Vec::new();
        for (hop, kind) in chain.iter().enumerate() {
            args.extend(["--via", &hops[hop].1[*kind]]);
        }
        let (origin, outcome) = Origin::bulk(SIZE);
        let proxy = Proxyd::with_all(origin.address, &args);
        let conn = Mode::Connect.open(&proxy, origin.address);
        std::thread::scope(|scope| {
            let sent = scope.spawn(|| {
                UP.send(&conn, 0, SIZE).expect("sent");
                conn.fin();
            });
            DOWN.check_all(&conn, SIZE).expect("the right bytes");
            sent.join().expect("no panic");
        });
        let outcome = outcome.recv_timeout(support::DEADLINE).expect("an outcome");
        assert_eq!(outcome, Ok(()), "{chain:?}");
        let page = Origin::page("at the end");
        let conn = Conn::dial(proxy.address("http"));
        conn.send(get(&page.url("/"), ""));
        assert_eq!(Answer::read(&conn).body, b"at the end", "{chain:?}");
        drop((conn, origin, page));
        proxy.stop();
    }
    for (hop, _) in hops {
        hop.finish();
    }
}

const SIZE: u64 = 20_000_000;

#[test]
fn p11_p24_p32_requests_to_an_http_parent_are_absolute_on_one_connection() {
    let (parent, accepted) = Origin::manual();
    let via = format!("http://carol:secret@{}", parent.address);
    let proxy = Proxyd::http(&["--via", &via, "--workers", "1"]);
    let mine = format!("Proxy-Authorization: {}\r\n", basic("alice:own"));
    let mut far: Option<Conn> = None;
    for url in [
        "http://one.invalid/a?b=c",
        "http://two.invalid:8080/",
        "http://one.invalid/again",
    ] {
        let near = Conn::dial(proxy.address("http"));
        near.send(get(url, &mine));
        let far = far.get_or_insert_with(|| Accepted::next(&accepted));
        let head = String::from_utf8(far.until(b"\r\n\r\n")).expect("text");
        assert!(
            head.starts_with(&format!("GET {url} HTTP/1.1\r\n")),
            "{head}"
        );
        let logins: Vec<&str> = head
            .lines()
            .filter(|line| {
                line.to_ascii_lowercase()
                    .starts_with("proxy-authorization:")
            })
            .collect();
        let login = format!("Proxy-Authorization: {}", basic("carol:secret"));
        assert_eq!(logins, [login], "{head}");
        far.send(ok(b"fine"));
        assert_eq!(Answer::read(&near).body, b"fine");
        // Only then it lies in the pool.
        near.fin();
        assert_eq!(near.to_end(), b"");
    }
    assert!(accepted.try_recv().is_err(), "another connection");
    drop((far, parent));
    let stopped = proxy.finish();
    assert!(!stopped.says("secret"), "{stopped}");
}

#[test]
fn p11_p24_an_origin_behind_a_tunnel_gets_its_own_form_and_no_login() {
    let (parent, urls) = real_parent();
    let origin = Origin::mirror();
    for url in &urls[2..] {
        let proxy = Proxyd::http(&["--via", url]);
        let near = Conn::dial(proxy.address("http"));
        let mine = format!("Proxy-Authorization: {}\r\n", basic("alice:own"));
        near.send(get(&origin.url("/path"), &mine));
        let seen = Answer::read(&near).body;
        assert!(seen.starts_with(b"GET /path HTTP/1.1\r\n"), "{url}");
        assert_eq!(find(&seen.to_ascii_lowercase(), b"proxy-auth"), None);
        drop(near);
        proxy.stop();
    }
    drop(origin);
    parent.finish();
}

#[test]
fn p24_an_https_parent_gets_requests_and_its_login_too() {
    let parent = Origin::tls_mirror();
    let ca = Certs::shared().ca();
    let via = format!(
        "https://carol:secret@{}?ca={}",
        parent.address,
        ca.display()
    );
    let proxy = Proxyd::http(&["--via", &via]);
    let near = Conn::dial(proxy.address("http"));
    for path in ["/1", "/2"] {
        near.send(get(&format!("http://far.invalid{path}"), ""));
        let seen = String::from_utf8(Answer::read(&near).body).expect("text");
        assert!(seen.starts_with(&format!("GET http://far.invalid{path} HTTP/1.1\r\n")));
        assert!(seen.contains(&basic("carol:secret")), "{seen}");
    }
    drop((near, parent));
    proxy.finish();
}

/// A free place to listen at that no other test has.
fn place(last: u8) -> SocketAddr {
    SocketAddr::from(([127, 0, 0, last], support::closed_port().port()))
}

#[test]
fn p30_a_parent_that_is_the_proxy_itself_is_a_loop() {
    let own = place(4);
    let listen = format!("http://{own}");
    for via in [format!("http://{own}"), format!("socks5://{own}")] {
        let proxy = Proxyd::start(&["--listen", &listen, "--via", &via]);
        for request in [CONNECT.to_owned(), get("http://far.invalid/", "")] {
            let near = Conn::dial(own);
            near.send(request);
            let answer = Answer::read(&near);
            assert_eq!(answer.status, 508, "{via}");
            assert_eq!(
                answer.field("proxy-status"),
                Some("proxyd; error=proxy_loop_detected")
            );
        }
        proxy.finish();
    }
}

#[test]
fn p30_parents_that_lead_to_each_other_are_a_loop() {
    let (one, two) = (place(2), place(3));
    let start = |own: SocketAddr, other: SocketAddr| {
        let (listen, via) = (format!("http://{own}"), format!("http://{other}"));
        Proxyd::start(&["--listen", &listen, "--via", &via])
    };
    let (first, second) = (start(one, two), start(two, one));
    for request in [CONNECT.to_owned(), get("http://far.invalid/", "")] {
        let near = Conn::dial(one);
        near.send(request);
        assert_eq!(Answer::read(&near).status, 508);
    }
    first.stop();
    second.stop();
}

/// SOCKS has no `Via`: what tells a circle is that it grows.
#[test]
fn p30_socks_parents_that_lead_to_each_other_are_a_loop() {
    let (one, two) = (place(6), place(7));
    let start = |own: SocketAddr, other: SocketAddr, scheme: &str| {
        let (listen, via) = (format!("socks://{own}"), format!("{scheme}://{other}"));
        let near = "http://127.0.0.1:0";
        let args = ["--listen", &listen, "--listen", near, "--via", &via];
        let log = ["--access-log", "stdout", "--access-log-format", "json"];
        Proxyd::start(&[&args[..], &log, &["--workers", "1"]].concat())
    };
    for (to_two, to_one) in [("socks5", "socks5"), ("socks4", "socks5h")] {
        let (first, second) = (start(one, two, to_two), start(two, one, to_one));
        let base = first.base().sockets;
        let most = AtomicUsize::new(0);
        let ended = AtomicUsize::new(0);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                while ended.load(Ordering::Relaxed) == 0 {
                    let now = first.process().descriptors().sockets;
                    most.fetch_max(now, Ordering::Relaxed);
                }
            });
            let near = Conn::dial(one);
            near.send(b"\x05\x01\x00\x05\x01\x00\x03\x0bfar.invalid\x00\x50");
            near.expect([5, 0]);
            assert_ne!(support::socks5_reply(&near), 0);
            let near = Conn::dial(first.address("http"));
            near.send(CONNECT);
            assert!(matches!(Answer::read(&near).status, 403 | 502 | 508));
            ended.store(1, Ordering::Relaxed);
        });
        // Two for each connection of the circle, and those that close.
        let most = most.into_inner() - base;
        assert!(most <= 2 * 256 + 64, "{most} sockets");
        first.settle();
        second.settle();
        let (first, second) = (first.finish(), second.finish());
        let words = |stopped: &Stopped| LogLine::all(&stopped.stdout);
        let all: Vec<_> = words(&first).into_iter().chain(words(&second)).collect();
        let is_loop = |line: &&LogLine| line.text("error") == "parent-loop";
        assert_eq!(all.iter().filter(is_loop).count(), 2, "{first} {second}");
        // Each circle grew to where it is seen, and nobody asked a second time.
        let requests = all.len();
        assert!((2 * 256..=4 * 256 + 4).contains(&requests), "{requests}");
        assert!(first.says("lead back here") || second.says("lead back here"));
    }
}

/// An HTTP parent that answers every request with its name.
fn named(name: &'static str) -> Origin {
    Origin::page(name)
}

/// What the requests of `count` new clients are answered with.
fn answers(proxy: SocketAddr, count: usize) -> Vec<String> {
    let one = |_| {
        let near = Conn::dial(proxy);
        near.send(get("http://far.invalid/", "Connection: close\r\n"));
        let answer = Answer::read(&near);
        match answer.status {
            200 => String::from_utf8(answer.body).expect("text"),
            status => status.to_string(),
        }
    };
    (0..count).map(one).collect()
}

fn group(order: &str, parents: &[SocketAddr]) -> String {
    let mut toml = String::from("workers = 1\nvia = \"all\"\n");
    let mut names = Vec::new();
    for (at, address) in parents.iter().enumerate() {
        toml += &format!("[[parent]]\nname = \"p{at}\"\nurl = \"http://{address}\"\n");
        names.push(format!("\"p{at}\""));
    }
    let names = names.join(", ");
    toml += &format!("[[group]]\nname = \"all\"\nparents = [{names}]\norder = \"{order}\"\n");
    toml
}

#[test]
fn failover_takes_the_first_that_works() {
    let (one, two) = (named("one"), named("two"));
    let down = support::closed_port();
    for (parents, expected) in [
        ([one.address, two.address], "one"),
        ([down, two.address], "two"),
        ([down, down], "502"),
    ] {
        let proxy = Proxyd::with_config(two.address, &group("failover", &parents));
        assert_eq!(answers(proxy.address("http"), 6), [expected; 6]);
        proxy.stop();
    }
}

#[test]
fn round_robin_takes_turns_and_passes_over_the_dead() {
    let (one, two) = (named("one"), named("two"));
    let down = support::closed_port();
    let parents = [one.address, two.address];
    let proxy = Proxyd::with_config(two.address, &group("round_robin", &parents));
    let told = answers(proxy.address("http"), 6);
    assert_eq!(told, ["one", "two", "one", "two", "one", "two"]);
    proxy.stop();
    let parents = [one.address, down, two.address];
    let proxy = Proxyd::with_config(two.address, &group("round_robin", &parents));
    let told = answers(proxy.address("http"), 9);
    assert!(
        told.iter().all(|name| name == "one" || name == "two"),
        "{told:?}"
    );
    assert!(told.iter().any(|name| name == "one"), "{told:?}");
    proxy.stop();
}

#[test]
fn a_member_is_left_for_its_own_faults_only() {
    // How the first member answers a CONNECT, and whether the second is tried.
    for (answer, moves_on) in [
        ("SSH-2.0-x\r\n\r\n", true),
        ("HTTP/1.1 407 Login\r\n\r\n", true),
        ("", true),
        ("HTTP/1.1 502 Bad\r\n\r\n", true),
        ("HTTP/1.1 403 No\r\n\r\n", false),
        ("HTTP/1.1 404 Unknown\r\n\r\n", false),
        ("HTTP/1.1 508 Loop\r\n\r\n", false),
    ] {
        let first = match answer {
            "" => Origin::start(|mut socket| drop(support::take_head(&mut socket))),
            _ => Origin::http(move |_| answer.into()),
        };
        let second = Origin::http(|_| b"HTTP/1.1 200 OK\r\n\r\n".to_vec());
        let toml = group("failover", &[first.address, second.address]);
        let proxy = Proxyd::with_config(second.address, &toml);
        let near = Conn::dial(proxy.address("http"));
        near.send(CONNECT);
        let status = Answer::read_head(&near).status;
        assert_eq!(status == 200, moves_on, "{answer:?}: {status}");
        drop((near, first, second));
        proxy.stop();
    }
}

#[test]
fn a_member_that_keeps_failing_is_passed_over() {
    let counted = Arc::new(AtomicUsize::new(0));
    let count = counted.clone();
    let closing = Origin::start(move |mut socket| {
        count.fetch_add(1, Ordering::Relaxed);
        drop(support::take_head(&mut socket));
    });
    let working = Origin::http(|_| b"HTTP/1.1 200 OK\r\n\r\n".to_vec());
    let toml = group("failover", &[closing.address, working.address]);
    let proxy = Proxyd::with_config(working.address, &toml);
    for _ in 0..10 {
        let near = Conn::dial(proxy.address("http"));
        near.send(CONNECT);
        assert_eq!(Answer::read_head(&near).status, 200);
    }
    let tries = counted.load(Ordering::Relaxed);
    // After three failures it rests, for two seconds at first.
    assert!((3..10).contains(&tries), "{tries}");
    drop((closing, working));
    proxy.stop();
}

#[test]
fn a_single_parent_is_tried_again_at_once() {
    let address = place(5);
    let proxy = Proxyd::http(&["--via", &format!("http://{address}"), "--workers", "1"]);
    assert_eq!(answers(proxy.address("http"), 8), ["502"; 8]);
    let listener = std::net::TcpListener::bind(address).expect("free again");
    let parent = std::thread::spawn(move || {
        let (mut socket, _) = listener.accept().expect("a connection");
        support::take_head(&mut socket).expect("a request");
        std::io::Write::write_all(&mut socket, &ok(b"back")).expect("sent");
    });
    assert_eq!(answers(proxy.address("http"), 1), ["back"]);
    parent.join().expect("no panic");
    proxy.finish();
}

#[test]
fn a_listener_has_its_own_way() {
    let (one, two) = (named("one"), named("two"));
    let direct = Origin::page("direct");
    let toml = format!(
        "via = \"first\"\n[[parent]]\nname = \"first\"\nurl = \"http://{}\"\n\
         [[parent]]\nname = \"second\"\nurl = \"http://{}\"\n",
        one.address, two.address
    );
    let file = Certs::shared().folder().join("ways.toml");
    std::fs::write(&file, toml).expect("written");
    let file = file.to_str().expect("a plain path");
    let https = format!("https://127.0.0.1:0?{}", Certs::shared().query());
    let mut args = vec!["--config", file];
    for listen in [
        "http://127.0.0.1:0?via=second",
        "auto://127.0.0.1:0?via=direct",
        &https,
    ] {
        args.extend(["--listen", listen]);
    }
    let proxy = Proxyd::start(&args);
    let url = direct.url("/");
    for (conn, expected) in [
        (Conn::dial(proxy.address("http")), "two"),
        (Conn::dial(proxy.address("auto")), "direct"),
        (Conn::dial_tls(proxy.address("https")), "one"),
    ] {
        conn.send(get(&url, ""));
        assert_eq!(Answer::read(&conn).body, expected.as_bytes());
    }
    proxy.stop();
}
