//! Metrics: why sessions ended, as whoever watches reads it.

mod support;

use std::net::{SocketAddr, TcpListener, UdpSocket};

use support::{
    Accepted, Answer, Conn, DEADLINE, Echo, Mode, Origin, Proxyd, check, run_beside, wait_for,
};

/// Where the page is.
fn page(proxy: &Proxyd) -> SocketAddr {
    let line = proxy.line(|line| line.contains("metrics are at http://"));
    let (_, url) = line.split_once("http://").expect("a URL");
    let (address, _) = url.split_once('/').expect("a path");
    address.parse().expect("an address")
}

fn get(page: SocketAddr, method: &str, path: &str) -> Answer {
    let conn = Conn::dial(page);
    conn.send(format!("{method} {path} HTTP/1.1\r\nHost: {page}\r\n\r\n"));
    let answer = match method {
        "HEAD" => Answer::read_head(&conn),
        _ => Answer::read(&conn),
    };
    assert_eq!(conn.to_end(), b"", "{method} {path}");
    answer
}

fn text(page: SocketAddr) -> String {
    let answer = get(page, "GET", "/metrics");
    assert_eq!(answer.status, 200);
    let text = String::from_utf8(answer.body).expect("text");
    assert!(text.ends_with("# EOF\n"), "{text}");
    text
}

/// Waits for such a line: a client hears of the end before it is counted.
fn says(page: SocketAddr, line: &str) {
    wait_for(line, || text(page).lines().any(|own| own == line));
}

#[test]
fn each_end_is_counted_by_listener_and_operation() {
    let (origin, accepted) = Origin::manual();
    let proxy = Proxyd::with_config(
        origin.address,
        "workers = 2\n[metrics]\naddress = \"127.0.0.1:0\"\n",
    );
    let page = page(&proxy);
    assert!(!text(page).contains("proxyd_sessions_total"), "nothing yet");
    let port = |kind: &str| proxy.address(kind).port();
    for (mode, kind, count) in [(Mode::Connect, "http", 3), (Mode::Socks5, "socks", 2)] {
        for _ in 0..count {
            let near = mode.open(&proxy, origin.address);
            let far = Accepted::next(&accepted);
            near.send("question");
            far.exact(8);
            far.send("answer");
            near.exact(6);
            near.fin();
            far.to_end();
            far.fin();
            near.to_end();
        }
        let labels = format!("service=\"{kind}-{}\"", port(kind));
        says(
            page,
            &format!(
                "proxyd_sessions_total{{{labels},operation=\"tunnel\",end=\"client-finished\"}} {count}"
            ),
        );
        let up = format!(
            "proxyd_moved_bytes_total{{{labels},direction=\"up\"}} {}",
            8 * count
        );
        says(page, &up);
        let down = format!(
            "proxyd_moved_bytes_total{{{labels},direction=\"down\"}} {}",
            6 * count
        );
        says(page, &down);
    }
    let near = Mode::Connect.open(&proxy, origin.address);
    let far = Accepted::next(&accepted);
    near.send("x");
    far.exact(1);
    near.reset();
    far.rest();
    let labels = format!("service=\"http-{}\"", port("http"));
    let end = "operation=\"tunnel\",end=\"client-reset\"";
    says(page, &format!("proxyd_sessions_total{{{labels},{end}}} 1"));
    let conn = Conn::dial(proxy.address("http"));
    conn.send("\0\r\n\r\n");
    conn.to_end();
    let none =
        format!("proxyd_sessions_total{{{labels},operation=\"none\",end=\"bad-request\"}} 1");
    says(page, &none);
    drop(origin);
    proxy.finish();
}

#[test]
fn flows_of_datagrams_are_counted_too() {
    let echo = Echo::new();
    let toml = "[metrics]\naddress = \"127.0.0.1:0\"\n";
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("p.toml");
    std::fs::write(&file, toml).expect("written");
    let listen = format!("udp://127.0.0.1:0/{}?idle=1s", echo.address);
    let file = file.to_str().expect("a plain path");
    let proxy = Proxyd::start(&["--listen", &listen, "--config", file]);
    let page = page(&proxy);
    let client = UdpSocket::bind("127.0.0.1:0").expect("bound");
    client.set_read_timeout(Some(DEADLINE)).expect("set");
    client
        .send_to(b"question", proxy.address("udp"))
        .expect("sent");
    client.recv(&mut [0; 64]).expect("an answer");
    let labels = format!("service=\"udp-{}\"", proxy.address("udp").port());
    let end = "operation=\"associate\",end=\"idle\"";
    says(page, &format!("proxyd_sessions_total{{{labels},{end}}} 1"));
    says(
        page,
        &format!("proxyd_moved_bytes_total{{{labels},direction=\"down\"}} 8"),
    );
    proxy.finish();
}

#[test]
fn other_pages_there_are_none() {
    let proxy = Proxyd::with_config(
        ([127, 0, 0, 1], 9).into(),
        "[metrics]\naddress = \"127.0.0.1:0\"\n",
    );
    let page = page(&proxy);
    assert_eq!(get(page, "GET", "/").status, 404);
    assert_eq!(get(page, "POST", "/metrics").status, 405);
    let head = get(page, "HEAD", "/metrics");
    assert_eq!(head.status, 200);
    let conn = Conn::dial(page);
    conn.send("nonsense\r\n\r\n");
    assert_eq!(Answer::read(&conn).status, 400);
    drop(conn);
    // One that says nothing is not waited for, and is in nobody's way.
    let silent: Vec<Conn> = (0..8).map(|_| Conn::dial(page)).collect();
    assert_eq!(get(page, "GET", "/metrics").status, 200);
    for conn in silent {
        assert_eq!(conn.to_end(), b"");
    }
    proxy.finish();
}

#[test]
fn only_those_who_may_read_it() {
    let proxy = Proxyd::with_config(
        ([127, 0, 0, 1], 9).into(),
        "[metrics]\naddress = \"127.0.0.1:0\"\nclients = [\"127.0.0.2\"]\n",
    );
    let page = page(&proxy);
    let stranger = Conn::dial(page);
    stranger.send_anyway("GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n");
    assert_eq!(stranger.rest().0, b"");
    let conn = Conn::dial_from("127.0.0.2", page);
    conn.send("GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n");
    assert_eq!(Answer::read(&conn).status, 200);
    drop(conn);
    proxy.finish();
}

#[test]
fn an_address_that_is_taken_is_named() {
    let taken = TcpListener::bind("127.0.0.1:0").expect("bound");
    let address = taken.local_addr().expect("bound");
    let toml = format!("[metrics]\naddress = \"{address}\"\n");
    let listen = ["--config", "p.toml", "--listen", "http://127.0.0.1:0"];
    let (status, said) = run_beside(&[("p.toml", &toml)], &listen);
    assert_eq!(status, Some(1));
    let expected = format!("metrics.address {address}: cannot listen: ");
    let said = said.concat();
    assert!(said.contains(&expected), "{said}");
}

#[test]
fn mistakes() {
    for (toml, expected) in [
        (
            "[metrics]\n",
            "p.toml:1: metrics.address: expected an address for the page, found none; write address \
             = \"127.0.0.1:9101\" instead, or no [metrics]",
        ),
        (
            "[metrics]\naddress = \"0.0.0.0:9101\"\n",
            "p.toml:2: metrics.address: expected a list of client networks at 0.0.0.0:9101, which \
             others can reach, found none; write clients = [\"192.168.0.0/16\"] besides, or a \
             loopback address instead",
        ),
    ] {
        let (status, said) = check(&[("p.toml", toml)], &[]);
        assert_eq!(status, Some(2), "{toml}");
        assert_eq!(said, [expected], "{toml}");
    }
    let fine = "[metrics]\naddress = \"0.0.0.0:9101\"\nclients = [\"192.168.0.0/16\"]\n";
    assert_eq!(check(&[("p.toml", fine)], &[]).0, Some(0));
}
