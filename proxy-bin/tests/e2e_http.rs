//! HTTP as a whole: the pool of origin connections, pipelining, upgrades,
//! many clients at once.

mod support;

use std::net::TcpListener;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use support::{Accepted, Answer, Conn, Origin, Proxyd};

#[test]
fn clients_that_come_one_by_one_share_an_origin_connection() {
    let (origin, connections) = counting(usize::MAX);
    let proxy = Proxyd::with_all(origin.address, &["--workers", "1"]);
    for kind in ["http", "auto"] {
        for _ in 0..20 {
            get(&Conn::dial(proxy.address(kind)), &origin, "/shared");
        }
    }
    let count = connections.load(Ordering::Relaxed);
    assert!(count <= 2, "{count} connections for 40 clients");
    drop(origin);
    proxy.finish();
}

#[test]
fn p31_a_connection_that_the_origin_closed_fails_no_request() {
    // Closed behind every third answer, without a word in it.
    let (origin, connections) = counting(3);
    let proxy = Proxyd::with_all(origin.address, &["--workers", "1"]);
    let kept = Conn::dial(proxy.address("http"));
    for _ in 0..30 {
        get(&kept, &origin, "/kept");
        get(&Conn::dial(proxy.address("http")), &origin, "/new");
    }
    assert!(connections.load(Ordering::Relaxed) >= 20);
    drop((kept, origin));
    proxy.finish();
}

#[test]
fn an_origin_may_be_restarted() {
    let origin = Origin::mirror();
    let address = origin.address;
    let proxy = Proxyd::with_all(address, &["--workers", "1"]);
    let kept = Conn::dial(proxy.address("http"));
    get(&kept, &origin, "/before");
    drop(origin);
    ask(&kept, &address.to_string(), "/down");
    assert_eq!(Answer::read(&kept).status, 502);
    let listener = TcpListener::bind(address).unwrap();
    ask(&kept, &address.to_string(), "/after");
    let far = Conn::over(listener.accept().unwrap().0);
    far.until(b"\r\n\r\n");
    far.send("HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\nback");
    assert_eq!(Answer::read(&kept).body, b"back");
    drop((kept, far));
    proxy.finish();
}

#[test]
fn one_client_connection_reaches_many_origins() {
    let origins: Vec<Origin> = (0..10).map(|_| Origin::mirror()).collect();
    let proxy = Proxyd::with_all(origins[0].address, &[]);
    let conn = Conn::dial(proxy.address("http"));
    for _ in 0..3 {
        for origin in &origins {
            get(&conn, origin, "/one-of-many");
        }
    }
    drop((conn, origins));
    proxy.finish();
}

#[test]
fn pipelined_requests_are_answered_in_order() {
    let origin = Origin::mirror();
    let proxy = Proxyd::with_all(origin.address, &[]);
    for conn in [
        Conn::dial(proxy.address("http")),
        Conn::dial(proxy.address("auto")),
        Conn::dial_tls(proxy.address("https")),
    ] {
        let host = origin.authority();
        let requests: String = (0..50)
            .map(|index| {
                let body = "x".repeat(index * 100);
                format!(
                    "POST http://{host}/{index} HTTP/1.1\r\nHost: {host}\r\n\
                     Content-Length: {}\r\n\r\n{body}",
                    body.len()
                )
            })
            .collect();
        conn.send(requests);
        for index in 0..50 {
            let answer = Answer::read(&conn);
            let seen = String::from_utf8(answer.body).unwrap();
            assert!(
                seen.starts_with(&format!("POST /{index} ")),
                "{index}: {seen}"
            );
            assert!(seen.ends_with(&"x".repeat(index * 100)), "{index}: {seen}");
        }
        conn.fin();
        assert_eq!(conn.to_end(), b"");
    }
    drop(origin);
    proxy.finish();
}

#[test]
fn p47_a_websocket_passes_and_half_closes() {
    let (origin, accepted) = Origin::manual();
    let proxy = Proxyd::with_all(origin.address, &[]);
    for conn in [
        Conn::dial(proxy.address("http")),
        Conn::dial(proxy.address("auto")),
        Conn::dial_tls(proxy.address("https")),
    ] {
        let host = origin.authority();
        conn.send(format!(
            "GET http://{host}/chat HTTP/1.1\r\nHost: {host}\r\nConnection: Upgrade\r\n\
             Upgrade: websocket\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\
             Sec-WebSocket-Version: 13\r\n\r\n"
        ));
        let far = Accepted::next(&accepted);
        let head = String::from_utf8(far.until(b"\r\n\r\n"))
            .unwrap()
            .to_lowercase();
        assert!(head.contains("\r\nupgrade: websocket\r\n"), "{head}");
        assert!(head.contains("\r\nconnection: upgrade\r\n"), "{head}");
        // The first frame comes with the head.
        far.send(
            "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\n\
             Upgrade: websocket\r\n\r\nfirst",
        );
        let answer = Answer::read_head(&conn);
        assert_eq!(answer.status, 101, "{}", answer.head);
        conn.expect("first");
        conn.send("question");
        far.expect("question");
        conn.fin();
        assert_eq!(far.to_end(), b"");
        far.send("answer");
        drop(far);
        assert_eq!(conn.to_end(), b"answer");
    }
    drop(origin);
    proxy.finish();
}

#[test]
fn p21_an_upload_that_waits_for_100_is_not_held_up() {
    let (origin, accepted) = Origin::manual();
    let proxy = Proxyd::with_all(origin.address, &[]);
    let (url, host) = (origin.url("/"), origin.authority());
    let conn = Conn::dial(proxy.address("http"));
    conn.send(format!(
        "PUT {url} HTTP/1.1\r\nHost: {host}\r\nExpect: 100-continue\r\nContent-Length: 4\r\n\r\n"
    ));
    let far = Accepted::next(&accepted);
    let head = String::from_utf8(far.until(b"\r\n\r\n"))
        .unwrap()
        .to_lowercase();
    assert!(head.contains("\r\nexpect: 100-continue\r\n"), "{head}");
    far.send("HTTP/1.1 100 Continue\r\n\r\n");
    assert_eq!(Answer::read_head(&conn).status, 100);
    conn.send("body");
    far.expect("body");
    far.send("HTTP/1.1 201 Created\r\nContent-Length: 0\r\n\r\n");
    assert_eq!(Answer::read(&conn).status, 201);
    drop((conn, far));
    drop(origin);
    proxy.finish();
}

#[test]
fn many_clients_at_once_get_their_own_answers() {
    let origin = Origin::mirror();
    let proxy = Proxyd::with_all(origin.address, &[]);
    std::thread::scope(|scope| {
        for client in 0..60 {
            let (proxy, origin) = (&proxy, &origin);
            scope.spawn(move || {
                let conn = match client % 3 {
                    0 => Conn::dial(proxy.address("http")),
                    1 => Conn::dial(proxy.address("auto")),
                    _ => Conn::dial_tls(proxy.address("https")),
                };
                for request in 0..20 {
                    get(&conn, origin, &format!("/{client}/{request}"));
                }
            });
        }
    });
    drop(origin);
    proxy.finish();
}

#[test]
fn p38_ipv6_listeners_and_targets_are_served() {
    let Ok(listener) = TcpListener::bind("[::1]:0") else {
        eprintln!("no IPv6 here: nothing was tried");
        return;
    };
    let target = listener.local_addr().unwrap();
    let args = ["--listen", "http://[::1]:0", "--listen", "socks://[::1]:0"];
    let proxy = Proxyd::start(&args);
    let conn = Conn::dial(proxy.address("http"));
    ask(&conn, &target.to_string(), "/six");
    let far = Conn::over(listener.accept().unwrap().0);
    let head = String::from_utf8(far.until(b"\r\n\r\n")).unwrap();
    assert!(head.contains(&format!("Host: {target}\r\n")), "{head}");
    far.send("HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n");
    assert_eq!(Answer::read(&conn).status, 200);
    drop((conn, far));

    let conn = Conn::dial(proxy.address("socks"));
    let std::net::SocketAddr::V6(v6) = target else {
        unreachable!("bound to ::1");
    };
    let (ip, port) = (v6.ip().octets(), v6.port().to_be_bytes());
    conn.send([&[5, 1, 0, 5, 1, 0, 4][..], &ip, &port].concat());
    conn.expect([5, 0]);
    assert_eq!(support::socks5_reply(&conn), 0);
    let far = Conn::over(listener.accept().unwrap().0);
    conn.send("six");
    far.expect("six");
    drop((conn, far));
    proxy.finish();
}

/// A mirror that closes each connection behind so many answers; counts them.
fn counting(requests: usize) -> (Origin, Arc<AtomicUsize>) {
    use std::io::{BufReader, Write};
    let connections = Arc::new(AtomicUsize::new(0));
    let count = connections.clone();
    let origin = Origin::start(move |socket| {
        count.fetch_add(1, Ordering::Relaxed);
        let mut stream = BufReader::new(socket);
        for _ in 0..requests {
            let Some(request) = support::Request::read(&mut stream) else {
                return;
            };
            let mut to = socket;
            if to.write_all(&support::ok(request.head.as_bytes())).is_err() {
                return;
            }
        }
    });
    (origin, connections)
}

fn ask(conn: &Conn, host: &str, path: &str) {
    conn.send(format!(
        "GET http://{host}{path} HTTP/1.1\r\nHost: {host}\r\n\r\n"
    ));
}

/// Asks a mirror for `path` and checks that it saw just that.
fn get(conn: &Conn, origin: &Origin, path: &str) {
    ask(conn, &origin.authority(), path);
    let answer = Answer::read(conn);
    assert_eq!(answer.status, 200, "{}", answer.head);
    let seen = String::from_utf8_lossy(&answer.body);
    assert!(
        seen.starts_with(&format!("GET {path} HTTP/1.1\r\n")),
        "{seen}"
    );
}
