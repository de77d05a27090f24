//! Rules over the wire: who may go where, by which way and from which address.

mod support;

use std::net::SocketAddr;

use support::{
    A, Accepted, Answer, Certs, Conn, LogLine, NameServer, Origin, Proxyd, Reply, basic,
    socks5_reply,
};

/// A proxyd with this configuration and these options, and a JSON log.
fn start(name: &str, toml: &str, more: &[&str]) -> Proxyd {
    let file = Certs::shared().folder().join(format!("rules-{name}.toml"));
    std::fs::write(&file, toml).expect("written");
    let config = file.to_str().expect("a plain path");
    let mut args = vec!["--config", config, "--access-log", "stdout"];
    args.extend(["--access-log-format", "json", "--workers", "1"]);
    args.extend(more);
    Proxyd::start(&args)
}

const HTTP: [&str; 2] = ["--listen", "http://127.0.0.1:0?name=web&auth=off"];

fn request(conn: &Conn, method: &str, target: SocketAddr, fields: &str) -> Answer {
    let head = format!("{method} http://{target}/ HTTP/1.1\r\nHost: {target}\r\n{fields}\r\n");
    conn.send(head);
    Answer::read(conn)
}

#[test]
fn the_first_rule_that_holds_decides() {
    let origin = Origin::page("here");
    let port = origin.address.port();
    let toml = format!(
        "[[rule]]\naction = \"allow\"\nmethods = [\"GET\"]\nnetworks = \"127.0.0.1\"\n\
         [[rule]]\naction = \"deny\"\nports = \"{port}\"\n"
    );
    let proxy = start("first", &toml, &HTTP);
    let conn = Conn::dial(proxy.address("http"));
    for (method, status) in [("GET", 200), ("DELETE", 403), ("GET", 200)] {
        // Each request of a kept connection is judged anew.
        assert_eq!(request(&conn, method, origin.address, "").status, status);
    }
    let tunnel = Conn::dial(proxy.address("http"));
    let target = origin.address;
    tunnel.send(format!("CONNECT {target} HTTP/1.1\r\nHost: h\r\n\r\n"));
    let refused = Answer::read(&tunnel);
    assert_eq!(refused.status, 403);
    assert_eq!(
        refused.field("proxy-status"),
        Some("proxyd; error=http_request_denied")
    );
    drop((conn, tunnel, origin));
    let stopped = proxy.finish();
    let lines = LogLine::all(&stopped.stdout);
    let causes: Vec<(String, String)> = lines
        .iter()
        .map(|line| (line.text("end"), line.text("error")))
        .collect();
    assert_eq!(causes[0], ("completed".to_owned(), String::new()));
    let cause = &causes[1];
    assert_eq!(cause.0, "forbidden");
    // The file and line of the rule.
    assert!(
        cause.1.starts_with("rule:") && cause.1.ends_with("first.toml:5"),
        "{cause:?}"
    );
}

#[test]
fn p32_requests_of_one_client_that_go_different_ways_never_share_a_connection() {
    let origin = Origin::page("the origin");
    let parent = Origin::page("the parent");
    let toml = format!(
        "[[parent]]\nname = \"up\"\nurl = \"http://{}\"\n\
         [[rule]]\nmethods = \"POST\"\nvia = \"up\"\n\
         [[rule]]\nmethods = \"PUT\"\nsource = \"own\"\n\
         [[source]]\nname = \"own\"\naddresses = \"127.0.0.44\"\n",
        parent.address
    );
    let proxy = start("ways", &toml, &HTTP);
    let conn = Conn::dial(proxy.address("http"));
    for _ in 0..3 {
        for (method, from) in [
            ("GET", "the origin"),
            ("POST", "the parent"),
            ("PUT", "the origin"),
        ] {
            let answer = request(&conn, method, origin.address, "Content-Length: 0\r\n");
            assert_eq!(String::from_utf8_lossy(&answer.body), from, "{method}");
        }
    }
    drop((conn, origin, parent));
    proxy.finish();
}

/// Whom the origin sees when a client asks for it.
fn source(proxy: &Proxyd, listener: &str, login: Option<&str>) -> String {
    let (origin, accepted) = Origin::manual();
    let conn = Conn::dial(proxy.address(listener));
    let target = origin.address;
    let login = login.map_or_else(String::new, |login| {
        format!("Proxy-Authorization: {}\r\n", basic(login))
    });
    conn.send(format!(
        "CONNECT {target} HTTP/1.1\r\nHost: h\r\n{login}\r\n"
    ));
    let far = Accepted::next(&accepted);
    assert_eq!(Answer::read_head(&conn).status, 200);
    far.peer().ip().to_string()
}

#[test]
fn p35_the_source_is_that_of_the_rule_else_the_user_else_the_listener() {
    let toml = "\
        [[source]]\nname = \"l\"\naddresses = \"127.0.0.51\"\n\
        [[source]]\nname = \"u\"\naddresses = \"127.0.0.52\"\n\
        [[source]]\nname = \"r\"\naddresses = \"127.0.0.53\"\n\
        [[source]]\nname = \"six\"\naddresses = \"::1\"\n\
        [[user]]\nname = \"alice\"\npassword = \"a\"\nsource = \"u\"\n\
        [[user]]\nname = \"bob\"\npassword = \"b\"\n\
        [[user]]\nname = \"carol\"\npassword = \"c\"\nsource = \"u\"\n\
        [[user]]\nname = \"six\"\npassword = \"s\"\nsource = \"six\"\n\
        [[rule]]\nusers = \"carol\"\nsource = \"r\"\n";
    let proxy = start("source", toml, &["--listen", "http://127.0.0.1:0?source=l"]);
    for (login, from) in [
        ("bob:b", "127.0.0.51"),
        ("alice:a", "127.0.0.52"),
        ("carol:c", "127.0.0.53"),
    ] {
        assert_eq!(source(&proxy, "http", Some(login)), from, "{login}");
    }
    // Rather not at all than from another address.
    let origin = Origin::page("never");
    let conn = Conn::dial(proxy.address("http"));
    let login = format!("Proxy-Authorization: {}\r\n", basic("six:s"));
    let answer = request(&conn, "GET", origin.address, &login);
    assert_eq!(answer.status, 502);
    drop((conn, origin));
    proxy.finish();
}

#[test]
fn a_listener_for_some_networks_refuses_the_others() {
    let origin = Origin::page("here");
    let listen = [
        "--listen",
        "http://127.0.0.1:0?clients=192.0.2.0/24,127.0.0.2",
        "--listen",
        "socks://127.0.0.1:0?clients=192.0.2.0/24",
    ];
    let proxy = start("clients", "", &listen);
    let stranger = Conn::dial(proxy.address("http"));
    assert_eq!(request(&stranger, "GET", origin.address, "").status, 403);
    let known = Conn::dial_from("127.0.0.2", proxy.address("http"));
    assert_eq!(request(&known, "GET", origin.address, "").status, 200);
    let socks = Conn::dial(proxy.address("socks"));
    socks.send([5, 1, 0, 5, 1, 0, 1, 127, 0, 0, 1, 0, 9]);
    socks.expect([5, 0]);
    assert_eq!(socks5_reply(&socks), 2, "not allowed");
    drop((stranger, known, socks, origin));
    let lines = LogLine::all(&proxy.finish().stdout);
    let refused = lines
        .iter()
        .filter(|line| line.text("error") == "client-network");
    assert_eq!(refused.count(), 2, "{lines:#?}");
}

#[test]
fn a_name_is_judged_by_its_address_once_a_rule_asks_for_it() {
    let origin = Origin::page("here");
    let port = origin.address.port();
    let names = NameServer::start();
    names.says(
        "good.example",
        A,
        Reply::Has(vec!["127.0.0.1".parse().expect("an address")], 60),
    );
    names.says(
        "bad.example",
        A,
        Reply::Has(vec!["127.0.0.2".parse().expect("an address")], 60),
    );
    let toml = format!(
        "[resolver]\nservers = \"{}\"\n[[rule]]\naction = \"deny\"\nnetworks = \"127.0.0.2\"\n",
        names.address
    );
    let proxy = start("address", &toml, &HTTP);
    let conn = Conn::dial(proxy.address("http"));
    for (name, status) in [
        ("good.example", 200),
        ("bad.example", 403),
        ("good.example", 200),
        ("good.example", 200),
    ] {
        conn.send(format!(
            "GET http://{name}:{port}/ HTTP/1.1\r\nHost: h\r\n\r\n"
        ));
        assert_eq!(Answer::read(&conn).status, status, "{name}");
    }
    assert_eq!(names.count("good.example", A), 1, "it is remembered");
    drop((conn, origin));
    proxy.finish();
}

#[test]
fn rules_hold_for_port_relays_and_the_guard_does_not() {
    let echo = Origin::echo();
    let relay = format!("tcp://127.0.0.1:0/{}?trust_loopback=off", echo.address);
    let proxy = start("relay", "", &["--listen", &relay]);
    let conn = Conn::dial(proxy.address("tcp"));
    conn.send("to the target that the operator wrote");
    conn.expect("to the target that the operator wrote");
    drop(conn);
    proxy.finish();

    let toml = "[[rule]]\naction = \"deny\"\noperations = \"tunnel\"\n";
    let proxy = start("relay-denied", toml, &["--listen", &relay]);
    let conn = Conn::dial(proxy.address("tcp"));
    assert_eq!(conn.rest().0, b"");
    drop((conn, echo));
    let lines = LogLine::all(&proxy.finish().stdout);
    assert_eq!(lines[0].text("end"), "forbidden", "{lines:?}");
}
