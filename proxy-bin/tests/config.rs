//! Configuration files: what is accepted, and what each mistake is told as.

use std::path::Path;
use std::process::{Command, Output};

/// What `proxyd check --config proxyd.toml` says of this file: status and lines.
fn check(toml: &str) -> (Option<i32>, Vec<String>) {
    check_with(toml, &[])
}

fn check_with(toml: &str, more: &[&str]) -> (Option<i32>, Vec<String>) {
    let folder = tempfile::tempdir().expect("a folder");
    std::fs::write(folder.path().join("proxyd.toml"), toml).expect("written");
    write_pair(folder.path());
    let mut args = vec!["check", "--config", "proxyd.toml"];
    args.extend(more);
    let output = proxyd(folder.path(), &args);
    let text = [output.stdout, output.stderr].concat();
    let text = String::from_utf8(text).expect("text");
    (
        output.status.code(),
        text.lines().map(str::to_owned).collect(),
    )
}

fn proxyd(folder: &Path, args: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_proxyd"));
    command
        .current_dir(folder)
        .args(args)
        .output()
        .expect("started")
}

/// `cert.pem` with its `key.pem`, and `other.pem`, the key of another one.
fn write_pair(folder: &Path) {
    let pair = rcgen::generate_simple_self_signed(["proxy.example".to_owned()]).expect("a pair");
    std::fs::write(folder.join("cert.pem"), pair.cert.pem()).expect("written");
    std::fs::write(folder.join("key.pem"), pair.signing_key.serialize_pem()).expect("written");
    let other = rcgen::KeyPair::generate().expect("a key");
    std::fs::write(folder.join("other.pem"), other.serialize_pem()).expect("written");
}

/// Each of `lines` is one of the mistakes in `toml`, in that order.
#[track_caller]
fn mistakes(toml: &str, lines: &[&str]) {
    let (status, said) = check(toml);
    assert_eq!(said, lines, "in\n{toml}");
    assert_eq!(status, Some(2));
}

#[test]
fn everything_at_once_is_accepted() {
    let (status, said) = check(
        r#"
        workers = 3
        drain = "0s"

        [[listener]]
        protocol = "http"
        address = "127.0.0.1:3128"
        name = "open.http-1"
        auth = false

        [[listener]]
        protocol = "socks"
        address = "[::1]:1080"
        auth = true

        [[listener]]
        protocol = "tcp"
        address = "127.0.0.1:5432"
        target = "db.example:5432"

        [[listener]]
        protocol = "https"
        address = "0.0.0.0:8443"
        cert = "cert.pem"
        key = "key.pem"

        [[listener]]
        protocol = "auto"
        address = "127.0.0.1:0"
        cert = "cert.pem"
        key = "key.pem"

        [[listener]]
        protocol = "auto"
        address = "127.0.0.1:0"

        [[user]]
        name = "alice"
        password = "a:b:c"

        [[user]]
        name = "jürgen"
        password = "ß"

        [timeouts]
        head = "10s"
        keep_alive = "2m"
        body = "10s"
        first_byte = "5m"
        progress = "1500ms"
        connect = "5s"
        tunnel = "never"
        half_closed = "1h"
        stalled = "never"
        tcp_keepalive = "9h"

        [limits]
        head_bytes = 16_384
        header_count = 100
        body_bytes = 0
        requests = 1000
        connections = 10_000
        client_connections = 100
        upstream_connections = 5_000
        origin_connections = 6
        idle_connections = 0
        idle_per_origin = 4
        idle_time = "never"

        [http]
        via = true
        forwarded = "append-for"
        https = "fetch"
        ca = "cert.pem"

        [log]
        level = "warn"
        access = "access.log"
        format = "json"
        "#,
    );
    assert_eq!(status, Some(0), "{said:?}");
    assert_eq!(
        said,
        [
            "OK: 6 listeners (http://127.0.0.1:3128, socks://[::1]:1080, tcp://127.0.0.1:5432, \
          https://0.0.0.0:8443, auto://127.0.0.1:0, auto://127.0.0.1:0), 2 users, 3 workers"
        ]
    );
}

#[test]
fn the_reference_shows_a_valid_file() {
    let reference = include_str!("../../docs/config.md");
    let (_, example) = reference.split_once("```toml\n").unwrap();
    let (example, _) = example.split_once("```").unwrap();
    let (status, said) = check(example);
    assert_eq!(status, Some(0), "{said:?}");
}

#[test]
fn an_empty_file_means_the_defaults() {
    let (status, said) = check("workers = 1");
    assert_eq!(status, Some(0));
    assert_eq!(
        said,
        ["OK: 2 listeners (http://127.0.0.1:3128, socks://127.0.0.1:1080), 0 users, 1 worker"]
    );
}

#[test]
fn unknown_keys() {
    mistakes(
        "wokers = 2\n\n[[listener]]\nprotocol = \"http\"\nadress = \"127.0.0.1:1\"\n\
         address = \"127.0.0.1:1\"\n\n[timeouts]\nidle = \"1s\"\n[log]\nlevl = \"info\"\n\
         [[user]]\nname = \"a\"\npassword = \"b\"\npasswd = \"hunter2\"\n[limits]\nheads = 1\n\
         [telemetry]\n",
        &[
            "proxyd.toml:1: wokers: expected auth, bind, drain, group, http, limits, listener, log, metrics, parent, \
             resolver, rule, source, timeouts, udp, user, via, workers, found an unknown key; write workers instead",
            "proxyd.toml:5: listener.adress: expected address, auth, balance, cert, clients, idle, key, mode, name, names, \
             open, protocol, proxy_protocol, rate_down, rate_up, send_proxy, session_rate_down, session_rate_up, \
             source, target, target_ca, target_port, target_tls, targets, trust_loopback, via, \
             found an unknown key; write address instead",
            "proxyd.toml:9: timeouts.idle: expected body, connect, first_byte, half_closed, head, \
             keep_alive, progress, stalled, tcp_keepalive, tunnel, found an unknown key; write one of these instead",
            "proxyd.toml:11: log.levl: expected access, format, level, found an unknown key; \
             write level instead",
            "proxyd.toml:15: user.passwd: expected name, password, rate_down, rate_up, source, found an unknown key; \
             write password instead",
            "proxyd.toml:17: limits.heads: expected body_bytes, client_connections, connections, \
             head_bytes, header_count, held_bytes, idle_connections, idle_per_origin, idle_time, \
             origin_connections, requests, session_rate_down, session_rate_up, upstream_connections, user_rate_down, user_rate_up, found an unknown key; write one \
             of these instead",
            "proxyd.toml:18: telemetry: expected auth, bind, drain, group, http, limits, listener, log, metrics, parent, \
             resolver, rule, source, timeouts, udp, user, via, workers, found an unknown key; write one of these instead",
        ],
    );
}

#[test]
fn wrong_types() {
    mistakes(
        "workers = \"4\"\ndrain = 30\nlistener = 1\nuser = [1]\ntimeouts = \"x\"\nlimits = []\n\
         log.level = 7\nlog.access = 1.5\nlog.format = 2026-01-02\n",
        &[
            "proxyd.toml:1: workers: expected a whole number from 1 to 1024, found \"4\"; write 4 \
             instead",
            "proxyd.toml:2: drain: expected a time with a unit (ms, s, m or h) of at most a year, \
             found the integer 30; write \"30s\" instead",
            "proxyd.toml:3: listener: expected an array of tables, found the integer 1; write \
             [[listener]] instead",
            "proxyd.toml:4: user: expected an array of tables, found the integer 1; write \
             [[user]] instead",
            "proxyd.toml:5: timeouts: expected a table, found \"x\"; write [timeouts] instead",
            "proxyd.toml:6: limits: expected a table, found an array; write [limits] instead",
            "proxyd.toml:7: log.level: expected \"off\", \"error\", \"warn\", \"info\", \
             \"debug\" or \"trace\", found the integer 7; write one of these instead",
            "proxyd.toml:8: log.access: expected a string, found the number 1.5; write \"1.5\" \
             instead",
            "proxyd.toml:9: log.format: expected \"json\" or \"text\", found the date \
             2026-01-02; write one of these instead",
        ],
    );
}

#[test]
fn wrong_values() {
    mistakes(
        "workers = 0\ndrain = \"soon\"\n[[listener]]\nprotocol = \"socks5\"\n\
         address = \"localhost:1080\"\nauth = \"yes\"\nname = \"a b\"\ncert = \"\"\n\
         target = \"db\"\n[[user]]\nname = \"a:b\"\npassword = \"\"\n[timeouts]\nhead = \"0s\"\n\
         tunnel = \"forever\"\n[limits]\nhead_bytes = 100\nheader_count = 5000\n\
         connections = -1\n[log]\nlevel = \"inf\"\naccess = \"\"\nformat = \"jsn\"\n",
        &[
            "proxyd.toml:1: workers: expected a whole number from 1 to 1024, found the integer 0; \
             write 1 instead",
            "proxyd.toml:2: drain: expected a time with a unit (ms, s, m or h) of at most a year, \
             found \"soon\"; write \"30s\" instead",
            "proxyd.toml:4: listener.protocol: expected \"auto\", \"http\", \"https\", \
             \"redirect\", \"sni\", \"socks\", \"tcp\", \"tproxy\" or \"udp\", found \"socks5\"; write \"socks\" (it serves SOCKS4, 4a and 5) instead",
            "proxyd.toml:5: listener.address: expected an IP address and a port, found \
             \"localhost:1080\"; write \"127.0.0.1:1080\" instead",
            "proxyd.toml:6: listener.auth: expected true or false, found \"yes\"; write true \
             instead",
            "proxyd.toml:7: listener.name: expected a name of 1 to 64 letters, digits, '-', '_' \
             and '.', found \"a b\"; write \"a-b\" instead",
            "proxyd.toml:8: listener.cert: expected the path of a PEM file, found \"\"; write \
             \"proxy.pem\" instead",
            "proxyd.toml:9: listener.target: expected a host and a port, found \"db\"; write \
             \"db:5432\" instead",
            "proxyd.toml:11: user.name: expected a user name of 1 to 255 bytes without colons and \
             control characters, found \"a:b\"; write \"alice\" instead",
            "proxyd.toml:12: user.password: expected a password of 1 to 255 bytes without control \
             characters, found an empty string; write a password between quotes instead",
            "proxyd.toml:14: timeouts.head: expected a time above zero with a unit (ms, s, m or \
             h) of at most a year, or \"never\", found \"0s\"; write \"1ms\" (the least: 0 is not possible) instead",
            "proxyd.toml:15: timeouts.tunnel: expected a time above zero with a unit (ms, s, m or \
             h) of at most a year, or \"never\", found \"forever\"; write \"never\" instead",
            "proxyd.toml:17: limits.head_bytes: expected a whole number from 256 to 1048576, \
             found the integer 100; write 256 instead",
            "proxyd.toml:18: limits.header_count: expected a whole number from 1 to 1024, found \
             the integer 5000; write 1024 instead",
            "proxyd.toml:19: limits.connections: expected a whole number of at least 1, found the \
             integer -1; write 1 instead",
            "proxyd.toml:21: log.level: expected \"off\", \"error\", \"warn\", \"info\", \
             \"debug\" or \"trace\", found \"inf\"; write \"info\" instead",
            "proxyd.toml:22: log.access: expected \"off\", \"stdout\" or the path of a file, \
             found \"\"; write \"off\" instead",
            "proxyd.toml:23: log.format: expected \"json\" or \"text\", found \"jsn\"; write \
             \"json\" instead",
        ],
    );
}

#[test]
fn missing_keys() {
    mistakes(
        "[[listener]]\n\n[[listener]]\nprotocol = \"tcp\"\naddress = \"127.0.0.1:1\"\n\n[[user]]\n",
        &[
            "proxyd.toml:1: listener.protocol: expected what it speaks, found nothing; write \
             protocol = \"http\" instead",
            "proxyd.toml:1: listener.address: expected an IP address and a port, found nothing; \
             write address = \"127.0.0.1:3128\" instead",
            "proxyd.toml:7: user.name: expected a user name, found nothing; write name = \
             \"alice\" instead",
            "proxyd.toml:7: user.password: expected a password, found nothing; write password = \
             \"..\" instead",
        ],
    );
    mistakes(
        "\n[[listener]]\nprotocol = \"tcp\"\naddress = \"127.0.0.1:1\"\n\
         [[listener]]\nprotocol = \"https\"\naddress = \"127.0.0.1:2\"\n",
        &[
            "proxyd.toml:2: listener.target: expected a host and a port, found nothing; write \
             target = \"db.example:5432\" instead",
            "proxyd.toml:5: listener.cert: expected the path of a PEM file, found nothing; write \
             cert = \"proxy.pem\" instead",
            "proxyd.toml:5: listener.key: expected the path of a PEM file, found nothing; write \
             key = \"proxy.pem\" instead",
        ],
    );
}

#[test]
fn doubles() {
    mistakes(
        "[[listener]]\nprotocol = \"http\"\naddress = \"127.0.0.1:1\"\nname = \"a\"\n\
         [[listener]]\nprotocol = \"socks\"\naddress = \"0.0.0.0:1\"\nname = \"a\"\n\
         [[user]]\nname = \"u\"\npassword = \"hunter2\"\n\
         [[user]]\nname = \"u\"\npassword = \"hunter3\"\n",
        &[
            "proxyd.toml:7: listener.address: expected an address of its own, found 0.0.0.0:1, \
             taken by 127.0.0.1:1 at proxyd.toml:3; write another port instead",
            "proxyd.toml:8: listener.name: expected a name of its own, found \"a\" as at \
             proxyd.toml:4; write another name instead",
            "proxyd.toml:13: user.name: expected a name of its own, found \"u\" as at \
             proxyd.toml:10; write another name instead, or leave one out",
        ],
    );
    for (first, second, double) in [
        ("127.0.0.1:1", "127.0.0.1:1", true),
        ("[::]:1", "127.0.0.1:1", true),
        ("0.0.0.0:1", "[::]:1", true),
        ("[::1]:1", "[::]:1", true),
        ("[::1]:1", "127.0.0.1:1", false),
        ("0.0.0.0:1", "[::1]:1", false),
        ("127.0.0.1:1", "127.0.0.2:1", false),
        ("127.0.0.1:0", "127.0.0.1:0", false),
        ("127.0.0.1:1", "127.0.0.1:2", false),
    ] {
        let listener = |address| {
            format!("[[listener]]\nprotocol = \"http\"\naddress = \"{address}\"\nopen = true\n")
        };
        let (status, said) = check(&(listener(first) + &listener(second)));
        let expected = if double { 2 } else { 0 };
        assert_eq!(status, Some(expected), "{first} {second}: {said:?}");
    }
}

#[test]
fn impossible_combinations() {
    mistakes(
        "[[listener]]\nprotocol = \"http\"\naddress = \"127.0.0.1:1\"\ncert = \"cert.pem\"\n\
         auth = true\ntarget = \"a:1\"\n\
         [[listener]]\nprotocol = \"tcp\"\naddress = \"127.0.0.1:2\"\ntarget = \"127.0.0.1:2\"\n\
         auth = true\n\
         [[listener]]\nprotocol = \"auto\"\naddress = \"127.0.0.1:3\"\nkey = \"key.pem\"\n",
        &[
            "proxyd.toml:4: listener.cert: expected no TLS files for protocol http, found one; \
             write protocol https or auto instead, or leave it out",
            "proxyd.toml:5: listener.auth: expected users to ask for, found none; write a \
             [[user]] (on the command line --user NAME:PASSWORD) instead, or no auth",
            "proxyd.toml:6: listener.target: expected no target, found a:1 for protocol http, \
             whose clients choose their own; write protocol tcp instead, or no target",
            "proxyd.toml:10: listener.target: expected another server, found this listener's own \
             address 127.0.0.1:2; write where connections shall go instead",
            "proxyd.toml:11: listener.auth: expected no auth for protocol tcp, which has no way \
             to ask for it, found it switched on; write protocol socks instead, or no auth",
            "proxyd.toml:12: listener.cert: expected the path of a PEM file, found nothing; write \
             cert = \"proxy.pem\" instead",
        ],
    );
    mistakes(
        "[[listener]]\nprotocol = \"http\"\naddress = \"127.0.0.1:1\"\nauth = false\n\
         [[user]]\nname = \"alice\"\npassword = \"hunter2\"\n",
        &[
            "proxyd.toml:6: user: expected a listener that asks for users, found none; write auth \
             = true for a listener (on the command line auth=on) instead, or no user",
        ],
    );
}

#[test]
fn missing_files() {
    mistakes(
        "[[listener]]\nprotocol = \"https\"\naddress = \"127.0.0.1:1\"\ncert = \"nowhere.pem\"\n\
         key = \"/\"\n[log]\naccess = \"nowhere/access.log\"\n",
        &[
            "proxyd.toml:4: listener.cert: expected a PEM file, found nothing at nowhere.pem; \
             write the path of an existing file instead",
            "proxyd.toml:5: listener.key: expected a PEM file, found a folder at /; write the \
             path of an existing file instead",
            "proxyd.toml:7: log.access: expected \"off\", \"stdout\" or a file in an existing \
             folder, found nowhere/access.log; write the path of such a file instead",
        ],
    );
    let folder = tempfile::tempdir().expect("a folder");
    let output = proxyd(folder.path(), &["--config", "nowhere.toml"]);
    assert_eq!(output.status.code(), Some(2));
    assert_eq!(
        String::from_utf8(output.stderr).unwrap(),
        "--config nowhere.toml: expected a TOML file, found nothing; write the path of an \
         existing file instead\n"
    );
    let output = proxyd(folder.path(), &["--config", "/"]);
    assert_eq!(output.status.code(), Some(2));
    assert_eq!(
        String::from_utf8(output.stderr).unwrap(),
        "--config /: expected a TOML file, found a folder; write the path of a file in it instead\n"
    );
}

#[test]
fn paths_start_from_the_folder_of_the_file() {
    let folder = tempfile::tempdir().expect("a folder");
    let inner = folder.path().join("etc");
    std::fs::create_dir(&inner).unwrap();
    write_pair(&inner);
    let toml = "[[listener]]\nprotocol = \"https\"\naddress = \"127.0.0.1:1\"\n\
                cert = \"cert.pem\"\nkey = \"key.pem\"\n[log]\naccess = \"access.log\"\n";
    std::fs::write(inner.join("proxyd.toml"), toml).expect("written");
    let output = proxyd(folder.path(), &["check", "--config", "etc/proxyd.toml"]);
    assert_eq!(output.status.code(), Some(0), "{output:?}");
}

#[test]
fn files_without_what_is_needed_of_them() {
    let folder = tempfile::tempdir().expect("a folder");
    write_pair(folder.path());
    let write = |name: &str, text: &str| {
        std::fs::write(folder.path().join(name), text).expect("written");
    };
    write("empty.pem", "");
    write("text.pem", "hello");
    let encrypted =
        "-----BEGIN ENCRYPTED PRIVATE KEY-----\nMAA=\n-----END ENCRYPTED PRIVATE KEY-----\n";
    write("encrypted.pem", encrypted);
    let certificate = "listener.cert: expected a file with a certificate in PEM form, found";
    let private = "listener.key: expected a file with a private key in PEM form, found";
    let another = "write the path of such a file instead";
    for (cert, key, status, line, problem) in [
        (
            "key.pem",
            "cert.pem",
            2,
            5,
            "listener.cert: expected a certificate, found a private key in key.pem: cert and key \
             look swapped; write cert = \"cert.pem\" and key = \"key.pem\" instead"
                .to_owned(),
        ),
        (
            "cert.pem",
            "cert.pem",
            1,
            6,
            format!("{private} only a certificate in cert.pem; {another}"),
        ),
        (
            "key.pem",
            "key.pem",
            1,
            5,
            format!("{certificate} only a private key in key.pem; {another}"),
        ),
        (
            "empty.pem",
            "key.pem",
            1,
            5,
            format!("{certificate} nothing in empty.pem; {another}"),
        ),
        (
            "cert.pem",
            "text.pem",
            1,
            6,
            format!("{private} no PEM section (-----BEGIN ..) in text.pem; {another}"),
        ),
        (
            "cert.pem",
            "other.pem",
            2,
            6,
            "listener.key: expected the private key of cert.pem, found the key of another \
             certificate in other.pem; write the path of the certificate's own key instead"
                .to_owned(),
        ),
        (
            "cert.pem",
            "encrypted.pem",
            1,
            6,
            "listener.key: expected a private key without a password, found an encrypted one in \
             encrypted.pem; write the path of the output of: openssl pkey -in encrypted.pem -out \
             FILE instead"
                .to_owned(),
        ),
    ] {
        let toml = format!(
            "\n[[listener]]\nprotocol = \"https\"\naddress = \"127.0.0.1:0\"\n\
             cert = \"{cert}\"\nkey = \"{key}\"\n"
        );
        write("proxyd.toml", &toml);
        for more in [&["check"][..], &[]] {
            let args = [more, &["--config", "proxyd.toml"]].concat();
            let output = proxyd(folder.path(), &args);
            assert_eq!(output.status.code(), Some(status), "{output:?}");
            let said = String::from_utf8(output.stderr).expect("text");
            let listener = match status {
                1 => "proxyd: proxyd.toml:2: listener https://127.0.0.1:0: ",
                _ => "",
            };
            assert_eq!(said, format!("{listener}proxyd.toml:{line}: {problem}\n"));
        }
    }
}

#[test]
fn a_key_that_cannot_be_read_has_status_1() {
    // Not even root may read this.
    let toml = "\n[[listener]]\nprotocol = \"https\"\naddress = \"127.0.0.1:1\"\nname = \"front\"\n\
                cert = \"cert.pem\"\nkey = \"/proc/self/mem\"\n";
    let (status, said) = check(toml);
    assert_eq!(status, Some(1), "{said:?}");
    let start = "proxyd: proxyd.toml:2: listener https://127.0.0.1:1 (front): /proc/self/mem: \
                 cannot be read";
    assert!(said[0].starts_with(start), "{said:?}");
}

#[test]
fn syntax_errors_have_their_line_and_hide_the_text() {
    let quotes = "expected text between quotes, a number, true or false, found something else; \
                  write";
    let user = "[[user]]\nname = \"alice\"\npassword =";
    for (toml, line, problem) in [
        (
            "a = \n".to_owned(),
            1,
            "expected a value, found nothing; write a = .. instead".to_owned(),
        ),
        (
            format!("{user} \"hunter2\nworkers = 1\n"),
            3,
            "expected a closing quote, found the end of the line; write password = \"..\" instead"
                .to_owned(),
        ),
        (
            format!("{user} \"hunter2\"hunter2\"\n"),
            3,
            "expected nothing behind the closing quote, found more; write password = '..' \
             instead, or \\\" for a quote inside"
                .to_owned(),
        ),
        (
            format!("{user} \"hunter2\\x\"\n"),
            3,
            "expected a sequence that TOML knows behind a backslash, found another; write \
             password = '..' instead, or \\\\ for a backslash"
                .to_owned(),
        ),
        (
            format!("{user} hunter2\n"),
            3,
            format!("{quotes} password = \"..\" instead"),
        ),
        (
            "drain = 30s\n".to_owned(),
            1,
            format!("{quotes} drain = \"30s\" instead"),
        ),
        (
            "workers = 04\n".to_owned(),
            1,
            format!("{quotes} workers = 4 instead"),
        ),
        (
            "workers = 1\nworkers = 2\n".to_owned(),
            2,
            "expected each key once, found workers again; write only one of them instead"
                .to_owned(),
        ),
        (
            "workers: 2\n".to_owned(),
            1,
            "expected key = value, found a colon; write workers = .. instead".to_owned(),
        ),
        (
            "[[listener\n".to_owned(),
            1,
            "expected ] behind the name of a table, found none; write [[listener]] instead"
                .to_owned(),
        ),
        (
            "[log]\n[log]\n".to_owned(),
            2,
            "expected each table once, found [log] again; write its keys below the first one \
             instead"
                .to_owned(),
        ),
        (
            "[listener]\n[[listener]]\n".to_owned(),
            2,
            "expected one kind of table, found [[listener]] behind [listener]; write \
             [[listener]] at each of them instead"
                .to_owned(),
        ),
        (
            "x = [1, 2\n".to_owned(),
            1,
            "expected ] behind the last value, found none; write one instead".to_owned(),
        ),
    ] {
        mistakes(&toml, &[&format!("proxyd.toml:{line}: {problem}")]);
    }
}

#[test]
fn each_slip_of_syntax_has_one_line() {
    let (status, said) = check("[log] x\n[[listener]]\nprotocol = http\naddress = 127.0.0.1:1\n");
    assert_eq!(status, Some(2));
    let places: Vec<&str> = said
        .iter()
        .filter_map(|line| line.split(' ').next())
        .collect();
    assert_eq!(
        places,
        ["proxyd.toml:1:", "proxyd.toml:3:", "proxyd.toml:4:"],
        "{said:?}"
    );
}

#[test]
fn a_top_level_key_in_a_table_is_told_where_to_go() {
    mistakes(
        "[[user]]\nname = \"a\"\npassword = \"b\"\nworkers = 2\n",
        &[
            "proxyd.toml:4: user.workers: expected name, password, rate_down, rate_up, source, found workers, a \
             top-level key; write workers above the first [table] instead",
        ],
    );
}

#[test]
fn what_stderr_and_a_dash_mean_to_the_access_log() {
    mistakes(
        "log.access = \"stderr\"\n",
        &[
            "proxyd.toml:1: log.access: expected \"off\", \"stdout\" or the path of a file, found \
             \"stderr\"; write \"stdout\" (stderr has the messages; a file would be \
             \"./stderr\") instead",
        ],
    );
    let (status, said) = check("log.access = \"-\"\nworkers = 1\n");
    assert_eq!(status, Some(0), "{said:?}");
    let folder = tempfile::tempdir().expect("a folder");
    let output = proxyd(folder.path(), &["--access-log", "stderr"]);
    assert_eq!(output.status.code(), Some(2));
    let made = std::fs::read_dir(folder.path()).expect("a folder").count();
    assert_eq!(made, 0);
}

#[test]
fn mistakes_of_the_command_line() {
    for (args, line) in [
        (
            &["--workers", "-1"][..],
            "--workers: expected a whole number from 1 to 1024, found \"-1\"; write 1 instead",
        ),
        (
            &["--user", "alice:hunter2", "--user", "alice:hunter3"],
            "--user: name: expected a name of its own, found \"alice\" twice; write another name \
             instead, or leave one out",
        ),
        (
            &["--user", "alice:"],
            "--user: expected a password of 1 to 255 bytes without control characters, found an \
             empty string; write a password between quotes instead",
        ),
        (
            &["--listen", "http://::1:3128"],
            "--listen http://::1:3128: expected an IP address and a port, found \"::1:3128\"; \
             write \"[::1]:3128\" instead",
        ),
        (
            &["--listen", "http://127.0.0.1:70000"],
            "--listen http://127.0.0.1:70000: expected an IP address and a port of at most \
             65535, found \"127.0.0.1:70000\"; write \"127.0.0.1:3128\" instead",
        ),
        (
            &["--listen", "http://*:3128"],
            "--listen http://*:3128: expected an IP address and a port, found \"*:3128\"; write \
             \"0.0.0.0:3128\" or \"[::]:3128\" instead",
        ),
        (
            &["--listen", "tcp://127.0.0.1:33128:db:5432"],
            "--listen tcp://127.0.0.1:33128:db:5432: expected a slash between address and \
             target, found \"127.0.0.1:33128:db:5432\"; write tcp://127.0.0.1:33128/db:5432 \
             instead",
        ),
        (
            &["--listen", "auto://127.0.0.1:0?name=a&name=b"],
            "--listen auto://127.0.0.1:0?name=a&name=b: name: expected it once, found it again; \
             write only one of them instead",
        ),
    ] {
        let folder = tempfile::tempdir().expect("a folder");
        let output = proxyd(folder.path(), &[&["check"], args].concat());
        assert_eq!(output.status.code(), Some(2), "{args:?}");
        let said = String::from_utf8(output.stderr).expect("text");
        assert_eq!(said, format!("{line}\n"));
    }
}

#[test]
fn check_warns_of_an_open_proxy() {
    for (url, warned) in [
        ("http://0.0.0.0:1?open=on", true),
        ("http://0.0.0.0:1?clients=192.168.0.0/16,10.0.0.1", false),
        ("tcp://0.0.0.0:1/127.0.0.1:9", false),
    ] {
        let (status, said) = check_with("workers = 1", &["--listen", url]);
        assert_eq!(status, Some(0), "{said:?}");
        assert_eq!(said.concat().contains("OPEN PROXY"), warned, "{said:?}");
    }
}

#[test]
fn an_open_proxy_by_oversight_is_a_mistake() {
    mistakes(
        "[[listener]]\nprotocol = \"http\"\naddress = \"0.0.0.0:3128\"\n",
        &[
            "proxyd.toml:1: listener.open: expected users to ask for or a list of client networks \
             at 0.0.0.0:3128, which others can reach, found neither: an open proxy; write a \
             [[user]] and auth = true, or clients = [\"192.168.0.0/16\"] instead, or open = true \
             if everybody may use it",
        ],
    );
    // A user whom nobody is asked for does not close it.
    let (status, said) = check(
        "[[listener]]\nprotocol = \"socks\"\naddress = \"[::]:1080\"\nauth = false\n\
         [[listener]]\nprotocol = \"http\"\naddress = \"[::1]:3128\"\n\
         [[user]]\nname = \"a\"\npassword = \"b\"\n",
    );
    assert_eq!(status, Some(2), "{said:?}");
    assert!(said.concat().contains("an open proxy"), "{said:?}");
    for closed in ["clients = \"10.0.0.0/8\"", "open = true", "auth = true"] {
        let (status, said) = check(&format!(
            "[[listener]]\nprotocol = \"auto\"\naddress = \"[::]:1080\"\n{closed}\n\
             [[listener]]\nprotocol = \"http\"\naddress = \"127.0.0.1:3128\"\n\
             [[user]]\nname = \"a\"\npassword = \"b\"\n"
        ));
        assert_eq!(status, Some(0), "{closed}: {said:?}");
    }
    let (status, said) = check_with("workers = 1", &["--listen", "socks://0.0.0.0:1"]);
    assert_eq!(status, Some(2));
    assert!(
        said.concat().contains(
            "write --user NAME:PASSWORD, or ?clients=192.168.0.0/16 instead, or ?open=on if \
             everybody may use it"
        ),
        "{said:?}"
    );
}

#[test]
fn the_example_is_a_valid_file() {
    let (status, said) = check(include_str!("../../examples/proxyd.toml"));
    assert_eq!(status, Some(0), "{said:?}");
}

#[test]
fn p29_no_mistake_repeats_a_password() {
    for user in [
        "name = \"alice\"\npassword = \"hunter2\\u0007\"",
        "name = \"alice\"\npassword = [\"hunter2\"]",
        "name = \"al:ice\"\npassword = \"hunter2\"",
        "name = \"alice\"\npassword = \"hunter2\"\nrole = 1",
        "password = \"hunter2\"",
    ] {
        let (status, said) = check(&format!("[[user]]\n{user}\n"));
        assert_eq!(status, Some(2), "{said:?}");
        assert!(!said.concat().contains("hunter2"), "{said:?}");
    }
}

#[test]
fn file_and_command_line_add_up() {
    let toml = "workers = 1\n[[listener]]\nprotocol = \"http\"\naddress = \"127.0.0.1:1\"\n";
    let more = [
        "--listen",
        "socks://127.0.0.1:2",
        "--user",
        "bob:a:b",
        "--workers",
        "2",
    ];
    let (status, said) = check_with(toml, &more);
    assert_eq!(status, Some(0), "{said:?}");
    assert_eq!(
        said,
        ["OK: 2 listeners (http://127.0.0.1:1, socks://127.0.0.1:2), 1 user, 2 workers"]
    );
    let more = [
        "--listen",
        "socks://127.0.0.1:1",
        "--listen",
        "x://1",
        "--drain",
        "9",
    ];
    let (status, said) = check_with(toml, &more);
    assert_eq!(status, Some(2));
    assert_eq!(
        said,
        [
            "--listen x://1: expected \"auto\", \"http\", \"https\", \"redirect\", \"sni\", \
             \"socks\", \"tcp\", \"tproxy\" or \"udp\", found \"x\"; write one of these instead",
            "--drain: expected a time with a unit (ms, s, m or h) of at most a year, \
             found \"9\"; write \"9s\" instead",
        ]
    );
    let (status, said) = check_with(toml, &["--listen", "socks://127.0.0.1:1"]);
    assert_eq!(status, Some(2));
    assert_eq!(
        said,
        [
            "--listen socks://127.0.0.1:1: address: expected an address of its own, found \
          127.0.0.1:1, taken by 127.0.0.1:1 at proxyd.toml:4; write another port instead"
        ]
    );
}

#[test]
fn the_users_file_and_its_settings() {
    let listener = "[[listener]]\nprotocol = \"http\"\naddress = \"127.0.0.1:1\"\nauth = true\n";
    let (status, said) = check(&format!(
        "{listener}[auth]\nfile = \"/dev/null/users\"\nremember = \"0s\"\nban_failures = 0\n\
         ban_window = \"5m\"\nban_length = \"1h\"\n"
    ));
    assert_eq!(
        (status, &*said),
        (
            Some(2),
            &[
                "proxyd.toml:6: auth.file: expected a users file, found nothing at \
               /dev/null/users; write the path of an existing file instead"
                    .to_owned()
            ][..]
        ),
        "its users are enough for auth = true"
    );
    mistakes(
        "[auth]\nfile = \"\"\nremember = 60\nban_failures = -1\nban_window = \"0s\"\nbans = 1\n",
        &[
            "proxyd.toml:2: auth.file: expected the path of a file in htpasswd format, found \
             \"\"; write \"users.htpasswd\" instead",
            "proxyd.toml:3: auth.remember: expected a time with a unit (ms, s, m or h) of at most \
             a year, found the integer 60; write \"60s\" instead",
            "proxyd.toml:4: auth.ban_failures: expected a whole number from 0 to 1000000, found \
             the integer -1; write 0 instead",
            "proxyd.toml:5: auth.ban_window: expected a time above zero, found \"0s\"; write \
             \"1m\" instead",
            "proxyd.toml:6: auth.bans: expected ban_except, ban_failures, ban_length, \
             ban_window, file, remember, found an unknown key; write one of these instead",
        ],
    );
    let silent = listener.replace("true", "false");
    mistakes(
        &format!("{silent}[auth]\nfile = \"users\"\n"),
        &[
            "proxyd.toml:6: auth.file: expected a listener that asks for users, found none; write \
             auth = true for a listener (on the command line auth=on) instead, or no user",
        ],
    );
}
