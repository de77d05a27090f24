//! Limits on connections, requests and bodies, and what is told at each of them.

mod support;

use std::time::Duration;

use support::{Accepted, Answer, Conn, LogLine, Mode, Origin, Proxyd, ok, wait_for};

/// Every kind of listener, this configuration, and the log on standard output.
fn start(origin: &Origin, toml: &str) -> Proxyd {
    Proxyd::with_config(
        origin.address,
        &format!("log.access = \"stdout\"\nlog.format = \"json\"\n{toml}"),
    )
}

fn get(url: &str) -> String {
    format!("GET {url} HTTP/1.1\r\nHost: x\r\n\r\n")
}

/// The status of a request on a connection of its own.
fn status(proxy: &Proxyd, url: &str) -> u16 {
    let conn = Conn::dial(proxy.address("http"));
    conn.send(get(url));
    Answer::read(&conn).status
}

#[test]
fn p51_a_client_has_so_many_connections_and_gets_them_back() {
    let origin = Origin::page("ok");
    let proxy = start(&origin, "workers = 2\nlimits.client_connections = 2\n");
    let request = get(&origin.url("/"));
    for _ in 0..3 {
        let dial = || Conn::dial_from("127.0.0.2", proxy.address("http"));
        let held = [dial(), dial()];
        for conn in &held {
            conn.send(&request);
            assert_eq!(Answer::read(conn).status, 200);
        }
        let more = dial();
        more.send(&request);
        let refused = Answer::read(&more);
        let status = refused.field("proxy-status");
        assert_eq!(refused.status, 503);
        assert_eq!(status, Some("proxyd; error=connection_limit_reached"));
        more.rest();
        let more = Conn::dial_from("127.0.0.2", proxy.address("socks"));
        more.send([&b"\x05\x01\x00"[..], b"\x05\x01\x00\x01\x7f\0\0\x01\0\x09"].concat());
        more.expect([5, 0, 5, 1]);
        more.rest();
        // Others are not concerned.
        let other = Conn::dial_from("127.0.0.3", proxy.address("http"));
        other.send(&request);
        assert_eq!(Answer::read(&other).status, 200);
        drop(held);
        wait_for("a place", || {
            let conn = dial();
            conn.send(&request);
            Answer::read(&conn).status == 200
        });
    }
    drop(origin);
    let stopped = proxy.finish();
    let lines = LogLine::all(&stopped.stdout);
    let busy = lines.iter().filter(|line| line.text("end") == "busy");
    let words: Vec<String> = busy.map(|line| line.text("error")).collect();
    assert!(words.len() >= 6, "{stopped}");
    assert!(
        words.iter().all(|word| word == "limit:client_connections"),
        "{stopped}"
    );
    let told = stopped.stderr.iter();
    let told = told.filter(|line| line.contains("of one client is reached"));
    assert!(told.clone().count() >= 1, "{stopped}");
    assert!(told.clone().all(|line| line.contains("client=127.0.0.2")));
}

#[test]
fn the_limit_of_all_connections_has_its_word() {
    let origin = Origin::page("ok");
    let proxy = start(&origin, "limits.connections = 1\n");
    let held = Conn::dial(proxy.address("http"));
    held.send(get(&origin.url("/")));
    assert_eq!(Answer::read(&held).status, 200);
    let more = Conn::dial(proxy.address("http"));
    more.send(get(&origin.url("/")));
    assert_eq!(Answer::read(&more).status, 503);
    more.rest();
    drop((held, origin));
    let lines = LogLine::all(&proxy.finish().stdout);
    let busy = lines.iter().find(|line| line.text("end") == "busy");
    assert_eq!(busy.expect("a line").text("error"), "limit:connections");
}

/// What is told of `target` by each protocol once its limit is reached.
fn refused(proxy: &Proxyd, origin: &Origin) {
    for (mode, code) in [
        (Mode::Connect, 503),
        (Mode::Tls, 503),
        (Mode::Socks5, 1),
        (Mode::Socks4, 0x5B),
    ] {
        let conn = mode.dial(proxy);
        conn.send(mode.hello(origin.address));
        assert_eq!(mode.answer(&conn), code, "{mode:?}");
    }
    let conn = Conn::dial(proxy.address("http"));
    conn.send(get(&origin.url("/")));
    let answer = Answer::read(&conn);
    let status = answer.field("proxy-status");
    assert_eq!(answer.status, 503);
    assert_eq!(status, Some("proxyd; error=connection_limit_reached"));
    // The port relay has no words.
    assert_eq!(Conn::dial(proxy.address("tcp")).rest().0, b"");
}

#[test]
fn an_origin_has_so_many_connections_whatever_the_protocol() {
    for workers in [1, 3] {
        let (origin, other) = (Origin::echo(), Origin::page("other"));
        let toml = format!("workers = {workers}\nlimits.origin_connections = 2\n");
        let proxy = start(&origin, &toml);
        for _ in 0..3 {
            let held = [
                Mode::Connect.open(&proxy, origin.address),
                Mode::Socks5.open(&proxy, origin.address),
            ];
            refused(&proxy, &origin);
            assert_eq!(status(&proxy, &other.url("/")), 200);
            for conn in held {
                conn.send("still");
                conn.expect("still");
                conn.fin();
                conn.rest();
            }
            wait_for("both places", || {
                let tunnel = |conn: &Conn| {
                    conn.send(Mode::Connect.hello(origin.address));
                    Mode::Connect.answer(conn) == 200
                };
                let two = [(); 2].map(|()| Conn::dial(proxy.address("http")));
                let open = two.iter().all(tunnel);
                two.iter().for_each(Conn::fin);
                open
            });
            wait_for("none in use", || {
                let conn = Mode::Socks4.dial(&proxy);
                conn.send(Mode::Socks4.hello(origin.address));
                Mode::Socks4.answer(&conn) == 200
            });
        }
        drop((origin, other));
        let stopped = proxy.finish();
        let lines = LogLine::all(&stopped.stdout);
        let failed = lines
            .iter()
            .filter(|line| line.text("end") == "connect-failed");
        let words: Vec<String> = failed.map(|line| line.text("error")).collect();
        assert!(words.len() >= 18, "{stopped}");
        assert!(
            words.iter().all(|word| word == "limit:origin_connections"),
            "{stopped}"
        );
    }
}

#[test]
fn unused_connections_make_room_for_the_same_origin() {
    let (origin, accepted) = Origin::manual();
    let toml = "workers = 1\nlimits.origin_connections = 1\n";
    let proxy = start(&origin, toml);
    let client = Conn::dial(proxy.address("http"));
    client.send(get(&origin.url("/")));
    let unused = Accepted::next(&accepted);
    unused.until(b"\r\n\r\n");
    unused.send(ok(b"ok"));
    assert_eq!(Answer::read(&client).status, 200);
    // In use as long as its client may come back at once.
    client.fin();
    client.rest();
    let conn = wait_for_tunnel(&proxy, &origin);
    assert!(unused.rest().0.is_empty());
    let far = Accepted::next(&accepted);
    conn.send("hello");
    far.expect("hello");
    drop((conn, far, unused, origin));
    proxy.finish();
}

fn wait_for_tunnel(proxy: &Proxyd, origin: &Origin) -> Conn {
    let mut open = None;
    wait_for("a tunnel", || {
        let conn = Conn::dial(proxy.address("http"));
        conn.send(Mode::Connect.hello(origin.address));
        let is_open = Mode::Connect.answer(&conn) == 200;
        open = Some(conn).filter(|_| is_open);
        is_open
    });
    open.expect("the last one")
}

#[test]
fn unused_connections_make_room_for_other_origins_the_oldest_first() {
    let origins: Vec<_> = (0..3).map(|_| Origin::manual()).collect();
    let toml = "workers = 1\nlimits.upstream_connections = 2\n";
    let proxy = start(&origins[0].0, toml);
    let mut far = Vec::new();
    for (origin, accepted) in &origins {
        let client = Conn::dial(proxy.address("http"));
        client.send(get(&origin.url("/")));
        let conn = Accepted::next(accepted);
        conn.until(b"\r\n\r\n");
        conn.send(ok(b"ok"));
        assert_eq!(Answer::read(&client).status, 200);
        client.fin();
        client.rest();
        far.push(conn);
    }
    // The third took the place of the first.
    assert!(far[0].rest().0.is_empty());
    assert!(far[1].is_silent_for(Duration::from_millis(50)));
    assert!(far[2].is_silent_for(Duration::from_millis(50)));
    drop((far, origins));
    proxy.finish();
}

#[test]
fn the_limit_towards_outside_is_for_all_origins_together() {
    let (one, two) = (Origin::echo(), Origin::echo());
    let proxy = start(&one, "limits.upstream_connections = 2\n");
    let held = [
        Mode::Connect.open(&proxy, one.address),
        Mode::Socks5.open(&proxy, two.address),
    ];
    refused(&proxy, &one);
    refused(&proxy, &two);
    drop((held, one, two));
    let stopped = proxy.finish();
    assert!(stopped.says("\"limit:upstream_connections\""), "{stopped}");
}

#[test]
fn a_worker_gives_its_unused_connections_to_another() {
    let origin = Origin::page("ok");
    let toml = "workers = 4\nlimits.origin_connections = 1\nlimits.upstream_connections = 1\n";
    let proxy = start(&origin, toml);
    // The kernel spreads them over the workers.
    for _ in 0..60 {
        assert_eq!(status(&proxy, &origin.url("/")), 200);
    }
    drop(origin);
    proxy.finish();
}

#[test]
fn a_connection_has_so_many_requests_and_a_body_so_many_bytes() {
    let origin = Origin::mirror();
    let toml = "limits.requests = 2\nlimits.body_bytes = 10\n";
    let proxy = start(&origin, toml);
    let conn = Conn::dial(proxy.address("http"));
    let request = get(&origin.url("/"));
    conn.send(&request);
    assert_eq!(Answer::read(&conn).field("connection"), None);
    conn.send(&request);
    assert_eq!(Answer::read(&conn).field("connection"), Some("close"));
    assert!(conn.rest().0.is_empty());

    let url = origin.url("/");
    for (body, expected) in [("0123456789", 200), ("0123456789x", 413)] {
        let conn = Conn::dial(proxy.address("http"));
        let length = body.len();
        conn.send(format!(
            "POST {url} HTTP/1.1\r\nHost: x\r\nContent-Length: {length}\r\n\r\n{body}"
        ));
        assert_eq!(Answer::read(&conn).status, expected, "{body}");
    }
    drop((conn, origin));
    proxy.finish();
}

#[test]
fn each_timeout_has_its_own_status() {
    let (origin, accepted) = Origin::manual();
    let toml = "[timeouts]\nbody = \"300ms\"\nfirst_byte = \"600ms\"\nprogress = \"1h\"\n";
    let proxy = start(&origin, toml);
    let url = origin.url("/");
    let slow_client = Conn::dial(proxy.address("http"));
    slow_client.send(format!(
        "POST {url} HTTP/1.1\r\nHost: x\r\nContent-Length: 9\r\n\r\n123"
    ));
    assert_eq!(Answer::read(&slow_client).status, 408);
    let slow_origin = Conn::dial(proxy.address("http"));
    slow_origin.send(get(&url));
    assert_eq!(Answer::read(&slow_origin).status, 504);
    drop((slow_client, slow_origin, accepted, origin));
    let stopped = proxy.finish();
    let ends: Vec<String> = LogLine::all(&stopped.stdout)
        .iter()
        .map(|line| line.text("end"))
        .collect();
    assert_eq!(ends, ["client-timeout", "origin-timeout"], "{stopped}");
}
