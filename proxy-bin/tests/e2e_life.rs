//! The life of the process: start, drain, signals, too few descriptors.

mod support;

use std::net::TcpStream;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use rustix::process::Signal;
use support::{Accepted, Answer, Certs, Conn, DOWN, Mode, Origin, Proxyd, wait_for};

#[test]
fn p81_a_download_that_runs_is_finished() {
    let (origin, accepted) = Origin::manual();
    let proxy = Proxyd::with_all(origin.address, &[]);
    let (url, host) = (origin.url("/"), origin.authority());
    let address = proxy.address("http");
    let conn = Conn::dial(address);
    conn.send(format!("GET {url} HTTP/1.1\r\nHost: {host}\r\n\r\n"));
    let far = Accepted::next(&accepted);
    far.until(b"\r\n\r\n");
    far.send("HTTP/1.1 200 OK\r\nContent-Length: 9000000\r\n\r\n");
    assert_eq!(Answer::read_head(&conn).status, 200);
    DOWN.send(&far, 0, 10_000).unwrap();
    DOWN.check(&conn, 0, 10_000).unwrap();

    proxy.process().signal(Signal::TERM);
    wait_for("new connections to be refused", || {
        TcpStream::connect(address).is_err()
    });
    std::thread::scope(|scope| {
        scope.spawn(|| DOWN.send(&far, 10_000, 9_000_000).unwrap());
        DOWN.check(&conn, 10_000, 9_000_000).unwrap();
    });
    assert_eq!(conn.to_end(), b"");
    let stopped = proxy.wait();
    assert!(stopped.status.success(), "{stopped}");
}

#[test]
fn p81_an_answer_that_comes_while_draining_says_close() {
    let (origin, accepted) = Origin::manual();
    let proxy = Proxyd::with_all(origin.address, &[]);
    let (url, host) = (origin.url("/"), origin.authority());
    let address = proxy.address("http");
    let conn = Conn::dial(address);
    conn.send(format!("GET {url} HTTP/1.1\r\nHost: {host}\r\n\r\n"));
    let far = Accepted::next(&accepted);
    far.until(b"\r\n\r\n");
    proxy.process().signal(Signal::TERM);
    wait_for("new connections to be refused", || {
        TcpStream::connect(address).is_err()
    });
    far.send("HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok");
    let answer = Answer::read(&conn);
    let connection = answer
        .field("connection")
        .unwrap_or_default()
        .to_lowercase();
    assert_eq!(connection, "close", "{}", answer.head);
    assert_eq!(conn.to_end(), b"");
    assert!(proxy.wait().status.success());
}

#[test]
fn p81_tunnels_that_run_are_finished() {
    let (origin, accepted) = Origin::manual();
    let proxy = Proxyd::with_all(origin.address, &[]);
    let mut tunnels = Vec::new();
    for mode in Mode::ALL {
        tunnels.push((mode.open(&proxy, origin.address), Accepted::next(&accepted)));
    }
    let address = proxy.address("http");
    proxy.process().signal(Signal::INT);
    wait_for("new connections to be refused", || {
        TcpStream::connect(address).is_err()
    });
    for (near, far) in &tunnels {
        near.send("still");
        far.expect("still");
        far.send("there");
        far.fin();
        assert_eq!(near.to_end(), b"there");
        near.fin();
        assert_eq!(far.to_end(), b"");
    }
    let stopped = proxy.wait();
    assert!(stopped.status.success(), "{stopped}");
}

#[test]
fn idle_connections_are_closed_at_once() {
    let origin = Origin::page("ok");
    let proxy = Proxyd::with_all(origin.address, &[]);
    let (url, host) = (origin.url("/"), origin.authority());
    let mut kept = Vec::new();
    for conn in [
        Conn::dial(proxy.address("http")),
        Conn::dial(proxy.address("auto")),
        Conn::dial_tls(proxy.address("https")),
    ] {
        conn.send(format!("GET {url} HTTP/1.1\r\nHost: {host}\r\n\r\n"));
        assert_eq!(Answer::read(&conn).body, b"ok");
        kept.push(conn);
    }
    // And those that never sent a byte.
    for kind in ["http", "auto", "https", "socks"] {
        kept.push(Conn::dial(proxy.address(kind)));
    }
    // One answered request more proves that those before it were accepted.
    let stopped = proxy.stop();
    assert!(stopped.status.success(), "{stopped}");
    assert!(stopped.took < Duration::from_secs(5), "{:?}", stopped.took);
    for conn in kept {
        assert_eq!(conn.rest().0, b"");
    }
}

#[test]
fn the_deadline_of_the_drain_cuts_what_still_runs() {
    let (origin, accepted) = Origin::manual();
    let args = ["--drain", "1s", "--access-log", "stdout"];
    let proxy = Proxyd::with_all(origin.address, &args);
    let mut tunnels = Vec::new();
    for mode in Mode::ALL {
        tunnels.push((mode.open(&proxy, origin.address), Accepted::next(&accepted)));
    }
    let stopped = proxy.stop();
    assert!(stopped.status.success(), "{stopped}");
    assert!(
        stopped.took >= Duration::from_millis(900),
        "{:?}",
        stopped.took
    );
    assert!(stopped.took < Duration::from_secs(8), "{:?}", stopped.took);
    let cut = stopped
        .stdout
        .iter()
        .filter(|line| line.contains("drained"));
    assert_eq!(cut.count(), Mode::ALL.len(), "{stopped}");
    for (near, far) in tunnels {
        near.rest();
        far.rest();
    }
}

#[test]
fn a_second_signal_ends_the_process_at_once() {
    for (signal, code) in [(Signal::TERM, 143), (Signal::INT, 130)] {
        let (origin, accepted) = Origin::manual();
        let args = ["--drain", "60s", "--access-log", "stdout"];
        let proxy = Proxyd::with_all(origin.address, &args);
        let near = Mode::Connect.open(&proxy, origin.address);
        let far = Accepted::next(&accepted);
        let brief = Mode::Socks5.open(&proxy, origin.address);
        let brief_far = Accepted::next(&accepted);
        let address = proxy.address("http");
        proxy.process().signal(signal);
        wait_for("new connections to be refused", || {
            TcpStream::connect(address).is_err()
        });
        near.send("alive");
        far.expect("alive");
        // Sooner it would count as an echo of the first.
        std::thread::sleep(Duration::from_millis(150));
        brief.fin();
        assert_eq!(brief_far.to_end(), b"");
        brief_far.fin();
        assert_eq!(brief.to_end(), b"");
        proxy.process().signal(signal);
        let stopped = proxy.wait();
        assert_eq!(stopped.status.code(), Some(code), "{stopped}");
        assert!(stopped.took < Duration::from_secs(5), "{:?}", stopped.took);
        // What was over by then is in the log.
        let done = stopped
            .stdout
            .iter()
            .filter(|line| line.contains("client-finished"));
        assert_eq!(done.count(), 1, "{stopped}");
        drop((near, far));
    }
}

/// What the cryptography still does on a thread of its own is in nobody's way.
#[test]
fn one_that_is_stopped_at_once_ends_well() {
    for _ in 0..20 {
        let stopped = Proxyd::http(&[]).stop();
        assert!(stopped.status.success(), "{stopped}");
    }
}

#[test]
fn a_hangup_ends_nothing() {
    let origin = Origin::page("ok");
    let proxy = Proxyd::with_all(origin.address, &[]);
    let conn = Conn::dial(proxy.address("http"));
    proxy.process().signal(Signal::HUP);
    let (url, host) = (origin.url("/"), origin.authority());
    conn.send(format!("GET {url} HTTP/1.1\r\nHost: {host}\r\n\r\n"));
    assert_eq!(Answer::read(&conn).body, b"ok");
    drop((conn, origin));
    proxy.finish();
}

#[test]
fn a_signal_told_twice_at_once_is_one() {
    // As `timeout` does: to the process, then to its group.
    let (origin, accepted) = Origin::manual();
    let proxy = Proxyd::with_all(origin.address, &[]);
    let near = Mode::Connect.open(&proxy, origin.address);
    let far = Accepted::next(&accepted);
    let address = proxy.address("http");
    proxy.process().signal(Signal::TERM);
    proxy.process().signal(Signal::TERM);
    wait_for("new connections to be refused", || {
        TcpStream::connect(address).is_err()
    });
    near.send("alive");
    far.expect("alive");
    drop((near, far));
    let stopped = proxy.wait();
    assert!(stopped.status.success(), "{stopped}");
}

#[test]
fn p78_too_few_descriptors_neither_spin_nor_last() {
    let origin = Origin::page("ok");
    let args = ["--listen", "http://127.0.0.1:0", "--workers", "1"];
    let mut command = Command::new("sh");
    command.args(["-c", "ulimit -n 64; exec \"$0\" \"$@\""]);
    command.arg(env!("CARGO_BIN_EXE_proxyd")).args(args);
    let proxy = Proxyd::spawn(command, &args);
    let address = proxy.address("http");
    let process = proxy.process();
    let conns: Vec<Conn> = (0..150).map(|_| Conn::dial(address)).collect();
    wait_for("the descriptors to run out", || process.links().len() >= 60);

    let (cpu, start) = (process.cpu(), Instant::now());
    // An origin cannot be dialled now; it is said so.
    let (url, host) = (origin.url("/"), origin.authority());
    let request = format!("GET {url} HTTP/1.1\r\nHost: {host}\r\n\r\n");
    conns[0].send(&request);
    let status = Answer::read(&conns[0]).status;
    assert!(status >= 500, "{status}");
    // Time has to pass: what is proved is that it passes without work.
    std::thread::sleep(Duration::from_millis(1500).saturating_sub(start.elapsed()));
    let used = process.cpu() - cpu;
    assert!(
        used < Duration::from_millis(300),
        "{used:?} of CPU time in 1.5 s"
    );

    drop(conns);
    let conn = Conn::dial(address);
    conn.send(&request);
    assert_eq!(Answer::read(&conn).body, b"ok");
    drop(conn);
    drop(origin);
    let stopped = proxy.finish();
    // Said, but not for each of the failures, and their end no more often.
    let lines = |text: &str| {
        let lines = stopped.stderr.iter();
        lines.filter(|line| line.contains(text)).count()
    };
    let failed = lines("cannot accept connections");
    assert!((1..=10).contains(&failed), "{stopped}");
    assert!(lines("accepting again") <= failed, "{stopped}");
}

#[test]
fn a_port_in_use_is_named() {
    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = taken.local_addr().unwrap();
    let listen = format!("http://{address}");
    let (code, text) = fails(&["--listen", &listen]);
    assert_eq!(code, Some(1), "{text}");
    assert!(text.contains(&listen), "{text}");
}

#[test]
fn a_port_in_use_is_named_whatever_the_number_of_workers() {
    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = taken.local_addr().unwrap();
    let listen = format!("socks://{address}");
    let (code, text) = fails(&["--listen", &listen, "--workers", "4"]);
    assert_eq!(code, Some(1), "{text}");
    assert!(text.contains(&listen), "{text}");
}

#[test]
fn an_unreadable_key_is_named() {
    let cert = Certs::shared().cert();
    let cert = cert.display();
    let missing = Certs::shared().folder().join("nowhere.pem");
    let missing = missing.display();
    let listen = format!("https://127.0.0.1:0?cert={cert}&key={missing}");
    let (code, text) = fails(&["--listen", &listen]);
    assert_eq!(code, Some(2), "{text}");
    assert!(text.contains("nowhere.pem"), "{text}");
    // Not a key at all.
    let listen = format!("https://127.0.0.1:0?cert={cert}&key={cert}");
    let (code, text) = fails(&["--listen", &listen]);
    assert_eq!(code, Some(1), "{text}");
    assert!(text.contains("https://127.0.0.1:0"), "{text}");
}

#[test]
fn a_mistake_on_the_command_line_has_status_2_and_no_password() {
    for args in [
        &["--listen", "gopher://127.0.0.1:0"][..],
        &["--listen", "http://127.0.0.1"],
        &["--listen", "http://127.0.0.1:0", "--workers", "0"],
        &["--listen", "http://127.0.0.1:0", "--drain", "soon"],
        &["--listen", "tcp://127.0.0.1:0"],
        &["--listen", "https://127.0.0.1:0"],
        &["--no-such-option"],
        &[
            "--listen",
            "http://127.0.0.1:0",
            "--config",
            "/nowhere/proxyd.toml",
        ],
        &[
            "--listen",
            "http://127.0.0.1:0",
            "--user",
            "no-colon-but-hunter2",
        ],
    ] {
        let (code, text) = fails(args);
        assert_eq!(code, Some(2), "{args:?}: {text}");
        assert!(!text.contains("hunter2"), "{text}");
    }
}

#[test]
fn every_worker_serves_the_port_that_was_chosen() {
    let origin = Origin::echo();
    let proxy = Proxyd::with_all(origin.address, &["--workers", "4"]);
    for _ in 0..40 {
        for mode in [Mode::Connect, Mode::Socks5, Mode::Relay, Mode::AutoTls] {
            let conn = mode.open(&proxy, origin.address);
            conn.send("x");
            conn.expect("x");
        }
    }
    drop(origin);
    proxy.finish();
}

/// Runs `proxyd` with arguments that it cannot serve; its code and what it says.
fn fails(args: &[&str]) -> (Option<i32>, String) {
    let mut child = Command::new(env!("CARGO_BIN_EXE_proxyd"))
        .args(args)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("started");
    let start = Instant::now();
    while child.try_wait().expect("a child").is_none() {
        if start.elapsed() > support::DEADLINE {
            drop(child.kill());
            panic!("it runs with {args:?}");
        }
        std::thread::sleep(Duration::from_millis(2));
    }
    let output = child.wait_with_output().expect("its output");
    let text = [output.stdout, output.stderr].concat();
    (output.status.code(), String::from_utf8(text).expect("text"))
}
