//! Users: the file with their hashes, its changes, slow hashes, bans.

mod support;

use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::time::Duration;

use rustix::process::Signal;
use support::{Answer, Conn, LogLine, Origin, Proxyd, basic, wait_for};

#[test]
fn passwd_makes_what_proxyd_takes() {
    let origin = Origin::mirror();
    let users = Users::new(&[]);
    for (name, algorithm) in [("ann", "argon2"), ("bob", "bcrypt"), ("carl", "sha512")] {
        let file = users.path.to_str().expect("a plain path");
        let args = ["--algorithm", algorithm, "--cost", cheap(algorithm)];
        let output = passwd(&[&args[..], &[name, file]].concat(), "pä:ss word\n");
        assert!(output.status.success(), "{output:?}");
        assert!(
            output.stdout.is_empty() && output.stderr.is_empty(),
            "{output:?}"
        );
    }
    let proxy = users.proxy(&origin, "ban_failures = 0\n");
    for name in ["ann", "bob", "carl"] {
        for kind in ["http", "auto"] {
            let conn = Conn::dial(proxy.address(kind));
            assert_eq!(get(&conn, &origin, &format!("{name}:pä:ss word")), 200);
            assert_eq!(get(&conn, &origin, &format!("{name}:pä:ss")), 407);
        }
        for kind in ["socks", "auto"] {
            let conn = Conn::dial(proxy.address(kind));
            assert_eq!(socks_login(&conn, name, "pä:ss word"), [1, 0]);
            let conn = Conn::dial(proxy.address(kind));
            let [version, status] = socks_login(&conn, name, "pä:ss");
            assert!(version == 1 && status != 0, "RFC 1929 section 2");
            assert_eq!(conn.rest().0, b"");
        }
    }
    drop(origin);
    proxy.finish();
}

#[test]
fn passwd_prints_a_line_and_never_the_password() {
    let output = passwd(&["--cost", "1", "alice"], "hunter2\n");
    let line = String::from_utf8(output.stdout).expect("text");
    assert!(
        line.starts_with("alice:$argon2id$v=19$m=19456,t=1,p=1$"),
        "{line}"
    );
    assert_eq!(line.lines().count(), 1);
    for (args, input, said) in [
        (
            &["al:ice"][..],
            "hunter2\n",
            "proxyd: NAME: expected a user name of 1 to 255 bytes without colons and control \
             characters, found \"al:***\"; write \"alice\" instead\n",
        ),
        (
            &["alice"],
            "\n",
            "proxyd: password: expected a password of 1 to 255 bytes without control characters, \
             found an empty string; write another one instead\n",
        ),
        (
            &["--algorithm", "bcrypt", "--cost", "20", "alice"],
            "hunter2\n",
            "proxyd: expected a bcrypt cost of 4 to 16, found 20\n",
        ),
        (
            &["--cost", "1000", "alice"],
            "hunter2\n",
            "proxyd: expected argon2 with at most 1048576 KiB (m), and passes (t) for at most \
             8388608 KiB in all, found m=19456,t=1000\n",
        ),
    ] {
        let output = passwd(args, input);
        assert_eq!(output.status.code(), Some(2), "{args:?}");
        assert_eq!(String::from_utf8_lossy(&output.stderr), said, "{args:?}");
        assert!(output.stdout.is_empty());
    }
    let output = passwd(&["--cost", "1", "alice", "/nowhere/users"], "hunter2\n");
    assert_eq!(output.status.code(), Some(1), "{output:?}");
}

#[test]
fn a_users_file_with_mistakes_is_no_start() {
    let users = Users::new(&[("alice", "secret")]);
    let hash = users.text();
    for (text, lines) in [
        (
            format!("{hash}bob:hunter2\n{hash}"),
            vec![
                "users:2: expected a hash of argon2 ($argon2id$), bcrypt ($2b$) or SHA-crypt \
                 ($6$), found a password in clear; write the output of proxyd passwd bob instead",
                "users:3: expected a name of its own, found \"alice\" as in line 1; write another \
                 name, or leave one out instead",
            ],
        ),
        (
            format!("\n# all\n{}", hash.replace("alice", "carol")),
            vec![
                "users:3: expected a name of its own, found \"carol\" as in the configuration; \
                 write another name, or leave one out instead",
            ],
        ),
    ] {
        users.write(&text);
        assert_eq!(users.check(CAROL), (Some(2), lines.join("\n") + "\n"));
    }
    users.write(&hash);
    assert_eq!(users.check(CAROL).0, Some(0));
    fs::remove_file(&users.path).expect("removed");
    let (status, said) = users.check("");
    assert_eq!(status, Some(2));
    assert!(said.starts_with("proxyd.toml:2: auth.file: expected a users file, found nothing at"));
}

#[test]
fn p26_a_challenge_is_answered_on_its_connection() {
    let origin = Origin::mirror();
    let users = Users::new(&[("alice", "secret")]);
    let proxy = users.proxy(&origin, "");
    for kind in ["http", "auto"] {
        let conn = Conn::dial(proxy.address(kind));
        for login in ["", "alice:wrong", "nobody:secret"] {
            ask(&conn, &origin, login);
            let answer = Answer::read(&conn);
            assert_eq!(answer.status, 407, "{login}");
            let challenge = answer.field("proxy-authenticate").unwrap_or_default();
            assert!(challenge.starts_with("Basic realm="), "{challenge}");
            assert!(answer.field("content-length").is_some(), "{}", answer.head);
            assert_eq!(answer.field("connection"), None);
        }
        assert_eq!(get(&conn, &origin, "alice:secret"), 200);
    }
    drop(origin);
    proxy.finish();
}

#[test]
fn p27_users_on_one_connection_are_never_mixed() {
    let origin = Origin::mirror();
    let users = Users::new(&[("alice", "a"), ("bob", "b")]);
    let proxy = users.proxy(&origin, "[log]\naccess = \"stdout\"\nformat = \"json\"\n");
    let conn = Conn::dial(proxy.address("http"));
    let turns = [
        ("alice:a", 200),
        ("bob:b", 200),
        ("alice:b", 407),
        ("alice:a", 200),
        ("", 407),
        ("bob:b", 200),
    ];
    for (login, status) in turns {
        assert_eq!(get(&conn, &origin, login), status, "{login}");
    }
    drop((conn, origin));
    let stopped = proxy.finish();
    let lines = LogLine::all(&stopped.stdout);
    let seen: Vec<String> = lines.iter().map(|line| line.text("user")).collect();
    assert_eq!(seen, ["alice", "bob", "", "alice", "", "bob"]);
}

#[test]
fn p28_a_slow_hash_delays_nobody_else() {
    let origin = Origin::mirror();
    let users = Users::new(&[]);
    let hash = bcrypt::hash("slow", 12).expect("a hash");
    users.write(&format!("slow:{hash}\n"));
    let proxy = users.proxy(&origin, &format!("workers = 1\n{CAROL}"));
    // One behind the other, they keep the verifier busy for a second or more.
    let slow: Vec<Conn> = (2..8)
        .map(|from| from_address(&proxy, "http", from))
        .collect();
    for (number, conn) in slow.iter().enumerate() {
        ask(conn, &origin, &format!("slow:guess {number}"));
    }
    for _ in 0..10 {
        let quick = Conn::dial(proxy.address("http"));
        assert_eq!(get(&quick, &origin, "carol:clear"), 200);
        assert_eq!(get(&quick, &origin, ""), 407);
    }
    let last = slow.last().expect("six");
    assert!(
        last.is_silent_for(Duration::from_millis(1)),
        "it was no slow hash"
    );
    for conn in &slow {
        assert_eq!(Answer::read(conn).status, 407);
    }
    drop((slow, origin));
    proxy.finish();
}

#[test]
fn a_client_that_fails_is_banned_and_others_are_not() {
    let origin = Origin::echo();
    let users = Users::new(&[("alice", "secret")]);
    let bans = "ban_failures = 3\nban_length = \"2s\"\n";
    let proxy = users.proxy(&origin, bans);
    let kept = from_address(&proxy, "http", 2);
    open(&kept, &origin, "alice:secret", 200);
    let known = from_address(&proxy, "http", 2);
    assert_eq!(get(&known, &origin, "alice:wrong 1"), 407);
    let socks = from_address(&proxy, "socks", 2);
    assert_ne!(socks_login(&socks, "alice", "wrong 2")[1], 0);
    for _ in 0..20 {
        assert_eq!(get(&known, &origin, ""), 407, "no login is no failure");
    }
    open(&known, &origin, "alice:wrong 3", 407);
    // From here on not even the right one helps.
    for login in ["alice:secret", "alice:wrong", ""] {
        assert_eq!(get(&from_address(&proxy, "http", 2), &origin, login), 403);
    }
    let banned = from_address(&proxy, "socks", 2);
    assert_ne!(socks_login(&banned, "alice", "secret")[1], 0);
    let other = from_address(&proxy, "http", 3);
    open(&other, &origin, "alice:secret", 200);
    for tunnel in [&kept, &other] {
        tunnel.send("still there");
        tunnel.expect("still there");
    }
    proxy.line(|line| line.contains("banned") && line.contains("127.0.0.2"));
    wait_for("the end of the ban", || {
        let conn = from_address(&proxy, "http", 2);
        ask_for(&conn, "CONNECT", &origin, "alice:secret");
        Answer::read_head(&conn).status == 200
    });
    drop((kept, known, socks, banned, other, origin));
    proxy.finish();
}

#[test]
fn p28_the_same_login_again_on_a_connection_is_only_compared() {
    let origin = Origin::mirror();
    let users = Users::new(&[("alice", "secret")]);
    let proxy = users.proxy(&origin, "ban_failures = 1\n");
    let conn = from_address(&proxy, "http", 2);
    assert_eq!(get(&conn, &origin, "alice:secret"), 200);
    assert_eq!(
        get(&from_address(&proxy, "http", 2), &origin, "alice:x"),
        407
    );
    // Whoever has to ask about a login is refused now.
    assert_eq!(
        get(&from_address(&proxy, "http", 2), &origin, "alice:secret"),
        403
    );
    for _ in 0..10 {
        assert_eq!(get(&conn, &origin, "alice:secret"), 200);
    }
    drop((conn, origin));
    proxy.finish();
}

#[test]
fn a_changed_file_counts_at_the_next_request() {
    let origin = Origin::mirror();
    let users = Users::new(&[("alice", "a"), ("bob", "b"), ("dave", "d")]);
    let proxy = users.proxy(&origin, &format!("ban_failures = 0\n{CAROL}"));
    let conns = ["alice:a", "bob:b", "dave:d", "carol:clear"].map(|login| {
        let conn = Conn::dial(proxy.address("http"));
        assert_eq!(get(&conn, &origin, login), 200, "{login}");
        conn
    });
    let [alice, bob, dave, carol] = &conns;
    // Alice stays, bob has another password, dave is gone, erin is new.
    let alice_line = users.text().lines().next().expect("alice").to_owned();
    let more = Users::new(&[("bob", "new"), ("erin", "e")]).text();
    users.write(&format!("{alice_line}\n{more}"));
    wait_for("the end of dave", || get(dave, &origin, "dave:d") == 407);
    assert_eq!(get(alice, &origin, "alice:a"), 200);
    assert_eq!(get(carol, &origin, "carol:clear"), 200);
    assert_eq!(get(bob, &origin, "bob:b"), 407);
    assert_eq!(get(bob, &origin, "bob:new"), 200);
    assert_eq!(get(dave, &origin, "erin:e"), 200);

    // A mistake changes nothing, and is told once.
    let good = users.text();
    users.write(&format!("{good}frank:hunter2\n"));
    proxy.process().signal(Signal::HUP);
    let line = proxy.line(|line| line.contains("users:4: expected a hash"));
    assert!(!line.contains("hunter2"), "{line}");
    proxy.line(|line| line.contains("the users of before stay"));
    for (conn, login) in [(alice, "alice:a"), (bob, "bob:new"), (dave, "erin:e")] {
        assert_eq!(get(conn, &origin, login), 200, "{login}");
        assert_eq!(get(&Conn::dial(proxy.address("http")), &origin, login), 200);
    }
    // So does a file that is gone, and it may come back with nobody in it.
    fs::remove_file(&users.path).expect("removed");
    proxy.process().signal(Signal::HUP);
    proxy.line(|line| line.contains("cannot read the users file"));
    assert_eq!(get(alice, &origin, "alice:a"), 200);
    users.write("# nobody\n");
    proxy.process().signal(Signal::HUP);
    wait_for("the end of alice", || get(alice, &origin, "alice:a") == 407);
    assert_eq!(get(carol, &origin, "carol:clear"), 200);
    drop((conns, origin));
    let stopped = proxy.finish();
    let told = stopped
        .stderr
        .iter()
        .filter(|line| line.contains("users:4:"));
    assert_eq!(told.count(), 1, "{stopped}");
}

#[test]
fn p28_a_login_that_was_dismissed_is_judged_anew() {
    let origin = Origin::mirror();
    let users = Users::new(&[("alice", "secret")]);
    let proxy = users.proxy(&origin, "ban_failures = 0\n");
    let conn = Conn::dial(proxy.address("http"));
    assert_eq!(get(&conn, &origin, "alice:secret"), 200);
    let before = users.text();
    users.write("");
    wait_for("the end of alice", || {
        get(&conn, &origin, "alice:secret") == 407
    });
    users.write(&before);
    // On the same connection, with the same header.
    wait_for("her return", || get(&conn, &origin, "alice:secret") == 200);
    drop((conn, origin));
    proxy.finish();
}

#[test]
fn p29_no_password_is_ever_told() {
    let origin = Origin::mirror();
    let users = Users::new(&[("alice", "open-sesame")]);
    let log = "[log]\nlevel = \"trace\"\naccess = \"stdout\"\nformat = \"json\"\n";
    let proxy = users.proxy(
        &origin,
        &format!("ban_failures = 4\nban_except = []\n{log}"),
    );
    let (right, wrong) = ("open-sesame", "open-barley");
    for password in [right, wrong] {
        let login = format!("alice:{password}");
        get(&Conn::dial(proxy.address("http")), &origin, &login);
        get(&Conn::dial_tls(proxy.address("https")), &origin, &login);
        socks_login(&Conn::dial(proxy.address("socks")), "alice", password);
        let conn = Conn::dial(proxy.address("http"));
        ask_for(&conn, "CONNECT", &origin, &login);
        Answer::read_head(&conn);
        // In the address, and in a request that breaks off.
        let url = origin.url("/").replace("//", &format!("//{login}@"));
        conn.send(format!("GET {url} HTTP/1.1\r\nHost: x\r\nProxy-Auth"));
        let field = basic(&login);
        let conn = Conn::dial(proxy.address("http"));
        conn.send(format!(
            "GET {url} HTTP/1.1\r\nProxy-Authorization: {field}\r\n\r\n"
        ));
        conn.fin();
        conn.rest();
    }
    proxy.line(|line| line.contains("banned"));
    users.write(&format!("alice:{right}\n"));
    proxy.process().signal(Signal::HUP);
    proxy.line(|line| line.contains("users:1: expected a hash"));
    drop(origin);
    let stopped = proxy.finish();
    for secret in [right, wrong] {
        let encoded = basic(&format!("alice:{secret}"));
        for text in [secret, encoded.trim_start_matches("Basic ")] {
            assert!(!stopped.says(text), "{text} in {stopped}");
        }
    }
}

/// A folder with a users file and a configuration that names it.
struct Users {
    folder: tempfile::TempDir,
    path: PathBuf,
}

impl Users {
    /// With cheap hashes of these passwords.
    fn new(logins: &[(&str, &str)]) -> Self {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("users");
        let users = Self { folder, path };
        let line = |(name, password): &(&str, &str)| {
            let hash = bcrypt::hash(password, 4).expect("a hash");
            format!("{name}:{hash}\n")
        };
        users.write(&logins.iter().map(line).collect::<String>());
        users
    }

    /// As an editor or `proxyd passwd` does: never half of it.
    fn write(&self, text: &str) {
        let new = self.folder.path().join("new");
        fs::write(&new, text).expect("written");
        fs::rename(&new, &self.path).expect("renamed");
    }

    fn text(&self) -> String {
        fs::read_to_string(&self.path).expect("text")
    }

    /// `more` goes on with the table `[auth]`, but for the number of workers.
    fn config(&self, more: &str) -> PathBuf {
        let path = self.folder.path().join("proxyd.toml");
        let (top, more) = match more.strip_prefix("workers = 1\n") {
            Some(more) => ("workers = 1\n", more),
            None => ("", more),
        };
        fs::write(&path, format!("{top}[auth]\nfile = \"users\"\n{more}")).expect("written");
        path
    }

    fn proxy(&self, origin: &Origin, more: &str) -> Proxyd {
        let config = self.config(more);
        let config = config.to_str().expect("a plain path");
        Proxyd::with_all(origin.address, &["--config", config])
    }

    /// What `proxyd check` says: its status, and standard error without folders.
    fn check(&self, more: &str) -> (Option<i32>, String) {
        let config = self.config(more);
        let name = Path::new(config.file_name().expect("a file"));
        let output = Command::new(env!("CARGO_BIN_EXE_proxyd"))
            .current_dir(self.folder.path())
            .args(["check", "--config"])
            .arg(name)
            .output()
            .expect("started");
        let said = String::from_utf8(output.stderr).expect("text");
        (output.status.code(), said)
    }
}

/// A user of the configuration, whose password is in clear.
const CAROL: &str = "[[user]]\nname = \"carol\"\npassword = \"clear\"\n";

fn cheap(algorithm: &str) -> &'static str {
    match algorithm {
        "argon2" => "1",
        "bcrypt" => "4",
        _ => "1000",
    }
}

fn passwd(args: &[&str], input: &str) -> Output {
    let mut child = Command::new(env!("CARGO_BIN_EXE_proxyd"))
        .arg("passwd")
        .args(args)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("started");
    let mut stdin = child.stdin.take().expect("piped");
    // It may be gone before it read anything.
    drop(stdin.write_all(input.as_bytes()));
    drop(stdin);
    child.wait_with_output().expect("ended")
}

/// A connection from 127.0.0.`from` to the listener of that kind.
fn from_address(proxy: &Proxyd, kind: &str, from: u8) -> Conn {
    Conn::dial_from(&format!("127.0.0.{from}"), proxy.address(kind))
}

fn ask(conn: &Conn, origin: &Origin, login: &str) {
    ask_for(conn, "GET", origin, login);
}

fn ask_for(conn: &Conn, method: &str, origin: &Origin, login: &str) {
    let host = origin.authority();
    let target = match method {
        "CONNECT" => host.clone(),
        _ => origin.url("/"),
    };
    let field = match login {
        "" => String::new(),
        login => format!("Proxy-Authorization: {}\r\n", basic(login)),
    };
    conn.send(format!(
        "{method} {target} HTTP/1.1\r\nHost: {host}\r\n{field}\r\n"
    ));
}

/// The status of the answer to a GET with that login.
fn get(conn: &Conn, origin: &Origin, login: &str) -> u16 {
    ask(conn, origin, login);
    Answer::read(conn).status
}

/// Asks for a tunnel and checks the answer, which has no body if it is one.
fn open(conn: &Conn, origin: &Origin, login: &str, status: u16) {
    ask_for(conn, "CONNECT", origin, login);
    let answer = match status {
        200 => Answer::read_head(conn),
        _ => Answer::read(conn),
    };
    assert_eq!(answer.status, status, "{login}");
}

/// What is answered to a login of RFC 1929.
fn socks_login(conn: &Conn, name: &str, password: &str) -> [u8; 2] {
    conn.send([5, 1, 2]);
    conn.expect([5, 2]);
    let part = |text: &str| {
        let length = u8::try_from(text.len()).expect("short");
        [&[length], text.as_bytes()].concat()
    };
    conn.send([&[1][..], &part(name), &part(password)].concat());
    conn.exact(2).try_into().expect("two")
}
