//! The hot path makes no system call too many, counted by `strace`.

mod support;

use std::collections::BTreeMap;
use std::path::Path;
use std::process::Command;

use support::{Accepted, Answer, Certs, Conn, Mode, Origin, Proxyd, wait_for};

const CONNECTIONS: usize = 64;
const ROUNDS: usize = 60;

#[test]
fn a_small_http_request_costs_two_reads_and_two_writes() {
    let origin = Origin::page("one kilobyte or less");
    count("http", &[], |proxy| {
        let (url, host) = (origin.url("/"), origin.authority());
        let request = format!("GET {url} HTTP/1.1\r\nHost: {host}\r\n\r\n");
        let dial = |_| Conn::dial(proxy.address("http"));
        let conns: Vec<Conn> = (0..CONNECTIONS).map(dial).collect();
        for _ in 0..ROUNDS {
            for conn in &conns {
                conn.send(&request);
            }
            for conn in &conns {
                assert_eq!(Answer::read(conn).status, 200);
            }
        }
    });
}

#[test]
fn a_login_and_an_access_log_add_no_call_to_a_request() {
    let origin = Origin::page("one kilobyte or less");
    let log = Certs::shared().folder().join("strace-access.log");
    let log = log.to_str().unwrap();
    let args = ["--user", "alice:secret", "--access-log", log];
    count("login", &args, |proxy| {
        let (url, host, login) = (
            origin.url("/"),
            origin.authority(),
            support::basic("alice:secret"),
        );
        let request =
            format!("GET {url} HTTP/1.1\r\nHost: {host}\r\nProxy-Authorization: {login}\r\n\r\n");
        let dial = |_| Conn::dial(proxy.address("http"));
        let conns: Vec<Conn> = (0..CONNECTIONS).map(dial).collect();
        for _ in 0..ROUNDS {
            for conn in &conns {
                conn.send(&request);
            }
            for conn in &conns {
                assert_eq!(Answer::read(conn).status, 200);
            }
        }
    });
}

#[test]
fn a_small_exchange_in_a_tunnel_costs_two_reads_and_two_writes() {
    let (origin, accepted) = Origin::manual();
    for mode in [Mode::Connect, Mode::Socks5] {
        count(&format!("{mode:?}"), &[], |proxy| {
            let mut tunnels = Vec::new();
            for _ in 0..CONNECTIONS {
                tunnels.push((mode.open(proxy, origin.address), Accepted::next(&accepted)));
            }
            for _ in 0..ROUNDS {
                for (near, _) in &tunnels {
                    near.send("question");
                }
                for (near, far) in &tunnels {
                    far.expect("question");
                    far.send("answer");
                    near.expect("answer");
                }
            }
        });
    }
}

/// Runs proxyd under `strace` while `load` makes its requests, and holds the
/// calls that move data against four for each.
fn count(name: &str, extra: &[&str], load: impl FnOnce(&Proxyd)) {
    if Command::new("strace").arg("-V").output().is_err() {
        eprintln!("strace is not installed: nothing was counted");
        return;
    }
    let file = Certs::shared().folder().join(format!("strace-{name}"));
    let mut args = vec![
        "--listen",
        "http://127.0.0.1:0",
        "--listen",
        "socks://127.0.0.1:0",
        "--workers",
        "1",
    ];
    args.extend(extra);
    let mut command = Command::new("strace");
    // -D: the traced program is our child, not strace.
    command
        .args(["-D", "-f", "-q", "-e", CALLS, "-o"])
        .arg(&file);
    command.arg(env!("CARGO_BIN_EXE_proxyd")).args(&args);
    let proxy = Proxyd::spawn(command, &args);
    load(&proxy);
    let stopped = proxy.stop();
    assert!(stopped.status.success(), "{stopped}");
    let calls = calls(&file);
    let all: usize = calls.values().sum();
    let requests = CONNECTIONS * ROUNDS;
    let per_request = all as f64 / requests as f64;
    eprintln!("{name}: {per_request:.3} a request: {calls:?}");
    assert!(per_request <= 4.2, "{per_request:.3} a request: {calls:?}");
    // Fewer would mean that strace did not see them.
    assert!(per_request >= 3.0, "{per_request:.3} a request: {calls:?}");
}

/// The calls in the output of `strace`, by name.
fn calls(file: &Path) -> BTreeMap<String, usize> {
    let read = || std::fs::read_to_string(file).unwrap_or_default();
    wait_for("strace to write the end", || {
        read().contains("+++ exited with")
    });
    let mut found = BTreeMap::new();
    for line in read().lines() {
        // `PID call(...) = 1`; the second half of a call that was interrupted
        // by another thread's begins with `<...`.
        let call = line.split_whitespace().nth(1).unwrap_or_default();
        if let Some((name, _)) = call.split_once('(') {
            *found.entry(name.to_owned()).or_default() += 1;
        }
    }
    found
}

const CALLS: &str = "trace=read,readv,recvfrom,recvmsg,write,writev,sendto,sendmsg,splice";
