//! Port relays with several targets: who serves, who stands in, what the log
//! tells of those that are down.

mod support;

use std::collections::HashMap;
use std::net::{SocketAddr, TcpListener};

use socket2::{Domain, Socket, Type};
use support::{Conn, Ended, LogLine, Origin, Proxyd, Stopped, closed_port, wait_for};

/// A relay to these targets, with more of its settings; the log is on standard
/// output.
fn relay(targets: &[SocketAddr], settings: &str, more: &str) -> Proxyd {
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("relay.toml");
    let targets: Vec<String> = targets.iter().map(SocketAddr::to_string).collect();
    let toml = format!(
        "workers = 1\nlog = {{ access = \"stdout\", format = \"json\" }}\n\
         [[listener]]\nprotocol = \"tcp\"\naddress = \"127.0.0.1:0\"\nname = \"db\"\n\
         targets = {targets:?}\n{settings}\n{more}\n"
    );
    std::fs::write(&file, toml).expect("written");
    Proxyd::start(&["--config", file.to_str().expect("a plain path")])
}

/// Sends its name to everybody, and closes.
fn naming(name: &'static str) -> Origin {
    Origin::start(move |mut socket| {
        use std::io::Write;
        drop(socket.write_all(name.as_bytes()));
    })
}

/// What a new client of the relay is sent, in order.
fn visit(proxy: &Proxyd) -> String {
    let conn = Conn::dial(proxy.address("tcp"));
    String::from_utf8(conn.to_end()).expect("text")
}

fn lines(stopped: &Stopped) -> Vec<LogLine> {
    LogLine::all(&stopped.stdout)
}

#[test]
fn round_robin_gives_each_target_its_share() {
    let origins = ["a", "b", "c"].map(naming);
    let targets = [0, 1, 2].map(|at: usize| origins[at].address);
    let proxy = relay(&targets, "balance = \"round-robin\"", "");
    let mut counts = HashMap::new();
    for _ in 0..30 {
        *counts.entry(visit(&proxy)).or_insert(0) += 1;
    }
    assert_eq!(counts.len(), 3);
    assert!(counts.values().all(|count| *count == 10), "{counts:?}");
    let lines = lines(&proxy.finish());
    assert_eq!(lines.len(), 30);
    for line in lines {
        // The target that served, not the first one.
        assert_eq!(line.text("target"), line.text("upstream"));
    }
}

#[test]
fn failover_keeps_to_the_first_and_returns_to_it_from_the_second() {
    // Bound, so that nobody else takes the port; it refuses until it listens.
    let socket = Socket::new(Domain::IPV4, Type::STREAM, None).expect("a socket");
    let any: SocketAddr = "127.0.0.1:0".parse().expect("an address");
    socket.bind(&any.into()).expect("bound");
    let down = socket.local_addr().expect("bound");
    let down = down.as_socket().expect("an address");
    let second = naming("b");
    let proxy = relay(&[down, second.address], "", "");
    for _ in 0..5 {
        assert_eq!(visit(&proxy), "b");
    }
    // A pause behind its failure it is tried again.
    socket.listen(16).expect("listening");
    let listener = TcpListener::from(socket);
    let (found, back) = std::sync::mpsc::channel();
    let serve = std::thread::spawn(move || {
        use std::io::Write;
        let (mut stream, _) = listener.accept().expect("a connection");
        stream.write_all(b"a").expect("sent");
        found.send(()).expect("somebody waits");
    });
    wait_for("the first target to be tried", || {
        assert!(matches!(&*visit(&proxy), "a" | "b"));
        back.try_recv().is_ok()
    });
    serve.join().expect("no panic");
    drop(second);
    let stopped = proxy.finish();
    let warnings = stopped.stderr.iter().filter(|line| {
        line.contains("a target failed: refused") && line.contains(&format!("target={down}"))
    });
    assert!(warnings.count() >= 1, "{stopped}");
    let served = lines(&stopped);
    let first = &served[0];
    assert_eq!(first.text("end"), "origin-finished");
    assert_eq!(first.text("error"), "", "it was served in the end");
}

#[test]
fn all_down_is_told_with_all_causes_and_the_client_is_closed_in_order() {
    let targets = [closed_port(), "127.0.0.1:1".parse().expect("an address")];
    let rule = "[[rule]]\naction = \"deny\"\nports = \"1\"\n";
    for balance in ["failover", "round-robin"] {
        let proxy = relay(&targets, &format!("balance = {balance:?}"), rule);
        let conn = Conn::dial(proxy.address("tcp"));
        assert_eq!(conn.rest(), (Vec::new(), Ended::Finished));
        let lines = lines(&proxy.finish());
        let [line] = &lines[..] else {
            panic!("one line for a connection: {lines:?}");
        };
        let error = line.text("error");
        let (refused, denied) = (
            format!("{}=refused", targets[0]),
            format!("{}=rule:", targets[1]),
        );
        assert!(error.contains(&refused), "{error}");
        assert!(error.contains(&denied), "{error}");
        assert_eq!(line.number("up"), Some(0));
    }
}

#[test]
fn a_single_target_that_is_down_is_told_as_ever() {
    let proxy = relay(&[closed_port()], "", "");
    assert_eq!(visit(&proxy), "");
    let stopped = proxy.finish();
    assert_eq!(lines(&stopped)[0].text("error"), "refused");
    assert!(!stopped.says("a target failed"));
}

#[test]
fn rules_hold_for_each_target_by_itself() {
    let origins = ["a", "b"].map(naming);
    let targets = [0, 1].map(|at: usize| origins[at].address);
    let rule = format!(
        "[[rule]]\naction = \"deny\"\nports = \"{}\"\n",
        targets[0].port()
    );
    let proxy = relay(&targets, "", &rule);
    assert_eq!(visit(&proxy), "b");
    let lines = lines(&proxy.finish());
    assert_eq!(lines[0].text("target"), targets[1].to_string());
    assert_eq!(lines[0].text("error"), "");
}

#[test]
fn targets_of_a_url_stand_behind_commas() {
    let origins = ["a", "b"].map(naming);
    let listen = format!(
        "tcp://127.0.0.1:0/{},{}?balance=round-robin",
        origins[0].address, origins[1].address
    );
    let proxy = Proxyd::start(&["--listen", &listen, "--workers", "1"]);
    assert_eq!([(); 4].map(|()| visit(&proxy)), ["a", "b", "a", "b"]);
    proxy.finish();
}
