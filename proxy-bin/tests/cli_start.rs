//! The command line: what a start prints, what it warns of, how it fails, and
//! the limit of connections.

mod support;

use std::net::{SocketAddr, TcpListener};
use std::process::{Command, Output};

use rustix::process::Signal;
use support::{Answer, Certs, Conn, Origin, Proxyd, wait_for};

fn proxyd(args: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_proxyd"));
    command.args(args).output().expect("started")
}

fn text(bytes: Vec<u8>) -> String {
    String::from_utf8(bytes).expect("text")
}

#[test]
fn help_and_version() {
    let output = proxyd(&["--help"]);
    assert!(output.status.success());
    let help = text(output.stdout);
    let manual = include_str!("../../docs/proxyd.1").replace("\\-", "-");
    for option in [
        "--listen",
        "--user",
        "--config",
        "--workers",
        "--access-log",
        "--access-log-format",
        "--drain",
        "--log",
    ] {
        assert!(help.contains(option), "{option} is not in\n{help}");
        assert!(manual.contains(option), "{option} is not in the manual");
    }
    let output = proxyd(&["--version"]);
    assert!(output.status.success());
    let version = concat!("proxyd ", env!("CARGO_PKG_VERSION"), "\n");
    assert_eq!(text(output.stdout), version);
    assert!(manual.contains(version.trim()));
}

#[test]
fn each_listener_is_told_with_a_command_to_try() {
    let query = Certs::shared().query();
    let https = format!("https://127.0.0.1:0?{query}");
    let proxy = Proxyd::start(&[
        "--listen",
        "http://127.0.0.1:0?auth=off",
        "--listen",
        "socks://[::1]:0",
        "--listen",
        "tcp://127.0.0.1:0/db.example:5432",
        "--listen",
        &https,
        "--listen",
        "auto://0.0.0.0:0",
        "--user",
        "alice:hunter2",
        "--user",
        "bob:b",
    ]);
    let at = |kind: &str| proxy.address(kind);
    let (http, socks, tcp, https) = (at("http"), at("socks"), at("tcp"), at("https"));
    let auto = at("auto");
    let local = SocketAddr::from(([127, 0, 0, 1], auto.port()));
    let expected = [
        format!("listening http {http}"),
        format!("  curl -x http://{http} http://example.com/"),
        format!("listening socks {socks}"),
        format!("  curl -x socks5h://{socks} -U alice http://example.com/"),
        format!("listening tcp {tcp}"),
        format!("  curl telnet://{tcp}"),
        format!("listening https {https}"),
        format!("  curl --proxy-insecure -x https://{https} -U alice http://example.com/"),
        format!("listening auto {auto}"),
        format!("  curl -x http://{local} -U alice http://example.com/"),
        format!("  curl -x socks5h://{local} -U alice http://example.com/"),
    ];
    let stopped = proxy.finish();
    assert_eq!(stopped.stderr[..expected.len()], expected);
    assert!(!stopped.says("hunter2"), "{stopped}");
    assert_eq!(stopped.stdout, [""; 0], "it belongs to the access log");
}

#[test]
fn the_commands_to_try_work() {
    let origin = Origin::page("it works");
    let proxy = Proxyd::with_all(origin.address, &[]);
    for (kind, scheme) in [
        ("http", "http"),
        ("socks", "socks5h"),
        ("https", "https"),
        ("auto", "http"),
        ("auto", "socks5h"),
        ("auto", "https"),
    ] {
        let through = format!(" -x {scheme}://{} ", proxy.address(kind));
        let command = proxy.line(|line| line.starts_with("  curl") && line.contains(&through));
        let command = command.replace("http://example.com/", &origin.url("/"));
        let output = Command::new("sh")
            .args(["-c", &command])
            .env_remove("NO_PROXY")
            .env_remove("no_proxy")
            .output()
            .expect("a shell");
        assert_eq!(text(output.stdout), "it works", "{command}");
    }
    drop(origin);
    proxy.finish();
}

#[test]
fn alone_it_listens_on_the_usual_ports() {
    let usual = [("http", 3128), ("socks", 1080)];
    let free = usual
        .iter()
        .all(|(_, port)| TcpListener::bind(("127.0.0.1", *port)).is_ok());
    if free {
        let proxy = Proxyd::start::<&str>(&[]);
        for (kind, port) in usual {
            let line = format!("listening {kind} 127.0.0.1:{port}");
            proxy.line(|said| said == line);
        }
        proxy.finish();
    } else {
        // Somebody has one of them: then that is told.
        let output = proxyd(&[]);
        let said = text(output.stderr);
        assert_eq!(output.status.code(), Some(1), "{said}");
        let named = usual.map(|(kind, port)| format!("{kind}://127.0.0.1:{port}: cannot listen"));
        assert!(named.iter().any(|named| said.contains(named)), "{said}");
    }
}

#[test]
fn an_open_proxy_is_warned_of() {
    for (args, warned) in [
        (&["--listen", "http://0.0.0.0:0?open=on"][..], true),
        (&["--listen", "socks://[::]:0?open=on"], true),
        (&["--listen", "socks://[::]:0?clients=::1"], false),
        (&["--listen", "http://0.0.0.0:0", "--user", "a:b"], false),
        (&["--listen", "http://127.0.0.1:0"], false),
        (&["--listen", "tcp://0.0.0.0:0/127.0.0.1:9"], false),
    ] {
        let stopped = Proxyd::start(args).finish();
        assert_eq!(stopped.says("OPEN PROXY"), warned, "{stopped}");
    }
}

#[test]
fn every_port_in_use_is_named() {
    let taken = [(); 2].map(|()| TcpListener::bind("127.0.0.1:0").expect("bound"));
    let urls = taken.map(|socket| {
        let url = format!("http://{}", socket.local_addr().expect("bound"));
        (url, socket)
    });
    for workers in ["1", "3"] {
        let (first, second) = (&urls[0].0, &urls[1].0);
        let output = proxyd(&[
            "--listen",
            first,
            "--listen",
            second,
            "--listen",
            "http://127.0.0.1:0",
            "--workers",
            workers,
        ]);
        let said = text(output.stderr);
        assert_eq!(output.status.code(), Some(1), "{said}");
        for (line, url) in said.lines().zip([first, second]) {
            let start = format!("proxyd: listener {url}: cannot listen: Address already in use");
            assert!(line.starts_with(&start), "{line}");
        }
        assert_eq!(said.lines().count(), 2, "{said}");
    }
}

#[test]
fn a_port_of_another_proxyd_is_not_shared() {
    let first = Proxyd::start(&["--listen", "http://127.0.0.1:0", "--workers", "2"]);
    let url = format!("http://{}", first.address("http"));
    let output = proxyd(&["--listen", &url, "--workers", "2"]);
    assert_eq!(output.status.code(), Some(1));
    assert!(text(output.stderr).contains(&url));
    first.finish();
}

#[test]
fn a_log_that_cannot_be_written_has_status_1() {
    let output = proxyd(&["--listen", "http://127.0.0.1:0", "--access-log", "/proc/x"]);
    let said = text(output.stderr);
    assert_eq!(output.status.code(), Some(1), "{said}");
    assert!(
        said.contains("access log") && said.contains("/proc/x"),
        "{said}"
    );
}

#[test]
fn a_log_pipe_that_nobody_reads_is_told_at_once() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("pipe");
    let mode = rustix::fs::Mode::RUSR | rustix::fs::Mode::WUSR;
    rustix::fs::mkfifoat(rustix::fs::CWD, &path, mode).expect("made");
    let path = path.to_str().expect("a plain path");
    let output = proxyd(&["--listen", "http://127.0.0.1:0", "--access-log", path]);
    let said = text(output.stderr);
    assert_eq!(output.status.code(), Some(1), "{said}");
    let expected = format!("access log: cannot write to {path}: nobody reads this pipe");
    assert!(said.contains(&expected), "{said}");
}

#[test]
fn refused_tls_is_told_with_its_cause() {
    let proxy = Proxyd::start(&[
        "--listen",
        "auto://127.0.0.1:0?name=front",
        "--workers",
        "1",
    ]);
    for _ in 0..20 {
        let conn = Conn::dial(proxy.address("auto"));
        conn.send(support::client_hello());
        assert_eq!(conn.rest().0, b"");
    }
    let stopped = proxy.finish();
    let told: Vec<&String> = stopped
        .stderr
        .iter()
        .filter(|line| line.contains("TLS was refused"))
        .collect();
    assert_eq!(told.len(), 1, "once for all of them: {stopped}");
    assert!(told[0].contains("front") && told[0].contains("no certificate"));
}

#[test]
fn p51_more_connections_than_the_limit_are_answered_and_places_return() {
    let origin = Origin::page("ok");
    let toml = "workers = 2\nlimits.connections = 3\ntimeouts.keep_alive = \"1h\"";
    let proxy = Proxyd::with_config(origin.address, toml);
    let request = format!("GET {} HTTP/1.1\r\nHost: x\r\n\r\n", origin.url("/"));
    for _ in 0..3 {
        let served: Vec<Conn> = (0..3)
            .map(|_| {
                let conn = Conn::dial(proxy.address("http"));
                conn.send(&request);
                assert_eq!(Answer::read(&conn).status, 200);
                conn
            })
            .collect();
        for kind in ["http", "auto"] {
            let more = Conn::dial(proxy.address(kind));
            more.send(&request);
            assert_eq!(Answer::read(&more).status, 503);
            more.rest();
        }
        let more = Conn::dial(proxy.address("socks"));
        more.send([&b"\x05\x01\x00"[..], b"\x05\x01\x00\x01\x7f\0\0\x01\0\x09"].concat());
        more.expect([5, 0, 5, 1]);
        more.rest();
        let more = Conn::dial(proxy.address("tcp"));
        assert_eq!(more.rest().0, b"");
        drop(served);
        wait_for("a place", || {
            let conn = Conn::dial(proxy.address("http"));
            conn.send(&request);
            Answer::read(&conn).status == 200
        });
    }
    drop(origin);
    let stopped = proxy.finish();
    assert!(
        stopped.says("the limit of connections is reached"),
        "{stopped}"
    );
}

#[test]
fn a_signal_told_twice_is_one() {
    let (origin, accepted) = Origin::manual();
    let proxy = Proxyd::with_all(origin.address, &[]);
    let near = support::Mode::Connect.open(&proxy, origin.address);
    let far = support::Accepted::next(&accepted);
    proxy.process().signal(Signal::TERM);
    proxy.process().signal(Signal::TERM);
    proxy.line(|line| line.contains("closing"));
    near.send("still");
    far.expect("still");
    drop((near, far));
    let stopped = proxy.wait();
    assert!(stopped.status.success(), "{stopped}");
}
