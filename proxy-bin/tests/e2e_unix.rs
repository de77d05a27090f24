//! Unix sockets to listen at, and as the targets of port relays.

mod support;

use std::io::{Read, Write};
use std::net::Shutdown;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::thread::{self, JoinHandle};

use support::{Conn, DEADLINE, Ended, LogLine, Proxyd, Stopped, UP};
use tempfile::TempDir;

/// A folder for sockets, short enough for their paths.
fn folder() -> TempDir {
    tempfile::tempdir().expect("a folder")
}

/// Starts proxyd with this file in `folder`.
fn start(folder: &Path, toml: &str) -> Proxyd {
    let file = folder.join("p.toml");
    let log = "workers = 1\nlog = { access = \"stdout\", format = \"json\" }\n";
    std::fs::write(&file, format!("{log}{toml}")).expect("written");
    Proxyd::start(&["--config", file.to_str().expect("a plain path")])
}

/// Leads from TCP to a socket called `db.sock`.
fn to_unix(folder: &Path, more: &str) -> Proxyd {
    let listener = "[[listener]]\nprotocol = \"tcp\"\naddress = \"127.0.0.1:0\"\n";
    start(
        folder,
        &format!("{listener}target = \"unix:db.sock\"\n{more}\n"),
    )
}

/// Sends back to one client what comes, its end included.
fn echo_once(path: PathBuf) -> JoinHandle<()> {
    let listener = UnixListener::bind(path).expect("bound");
    thread::spawn(move || {
        let (mut socket, _) = listener.accept().expect("a client");
        socket.set_read_timeout(Some(DEADLINE)).expect("set");
        let mut buffer = vec![0; 64 * 1024];
        while let Ok(count @ 1..) = socket.read(&mut buffer) {
            socket.write_all(&buffer[..count]).expect("sent");
        }
        drop(socket.shutdown(Shutdown::Write));
    })
}

fn lines(stopped: &Stopped) -> Vec<LogLine> {
    LogLine::all(&stopped.stdout)
}

#[test]
fn p44_a_target_at_a_unix_socket() {
    let folder = folder();
    let path = folder.path().join("db.sock");
    let echo = echo_once(path.clone());
    let proxy = to_unix(folder.path(), "");
    let conn = Conn::dial(proxy.address("tcp"));
    thread::scope(|scope| {
        let sender = scope.spawn(|| {
            UP.send(&conn, 0, 8 << 20).expect("sent");
            conn.fin();
        });
        UP.check_all(&conn, 8 << 20).expect("the same bytes");
        sender.join().expect("no panic");
    });
    echo.join().expect("no panic");
    drop(conn);
    let lines = lines(&proxy.finish());
    assert_eq!(lines.len(), 1);
    let target = format!("unix:{}", path.display());
    assert_eq!(lines[0].text("target"), target);
    assert_eq!(lines[0].text("end"), "client-finished");
    assert_eq!(lines[0].number("down"), Some(8 << 20));
}

#[test]
fn p73_a_unix_target_is_told_the_client_first() {
    let folder = folder();
    let path = folder.path().join("db.sock");
    let listener = UnixListener::bind(path).expect("bound");
    let proxy = to_unix(folder.path(), "send_proxy = \"v1\"");
    let conn = Conn::dial(proxy.address("tcp"));
    conn.send("hello");
    let (mut socket, _) = listener.accept().expect("a client");
    socket.set_read_timeout(Some(DEADLINE)).expect("set");
    let (from, to) = (conn.local().port(), proxy.address("tcp").port());
    let expected = format!("PROXY TCP4 127.0.0.1 127.0.0.1 {from} {to}\r\nhello");
    let mut found = vec![0; expected.len()];
    socket.read_exact(&mut found).expect("the header and more");
    assert_eq!(String::from_utf8_lossy(&found), expected);
    drop((conn, socket));
    proxy.finish();
}

#[test]
fn a_socket_that_nobody_listens_at_is_refused() {
    let folder = folder();
    let path = folder.path().join("db.sock");
    let proxy = to_unix(folder.path(), "");
    for _ in 0..2 {
        let conn = Conn::dial(proxy.address("tcp"));
        assert_eq!(conn.rest(), (Vec::new(), Ended::Finished));
        // The file of one that is gone.
        if !path.exists() {
            drop(UnixListener::bind(&path).expect("bound"));
        }
    }
    for line in lines(&proxy.finish()) {
        assert_eq!(line.text("error"), "refused");
        assert_eq!(line.text("end"), "connect-failed");
    }
}

#[test]
fn a_full_queue_is_waited_for() {
    let folder = folder();
    let path = folder.path().join("db.sock");
    let address = socket2::SockAddr::unix(&path).expect("a path");
    let listener = socket2::Socket::new(socket2::Domain::UNIX, socket2::Type::STREAM, None);
    let listener = listener.expect("a socket");
    listener.bind(&address).expect("bound");
    listener.listen(0).expect("listening");
    // Takes the only place.
    let first = UnixStream::connect(&path).expect("connected");
    let proxy = to_unix(folder.path(), "");
    let conn = Conn::dial(proxy.address("tcp"));
    conn.send("hello");
    let accept = || listener.accept().expect("a client").0;
    drop((accept(), first));
    let second: UnixStream = std::os::fd::OwnedFd::from(accept()).into();
    second.set_read_timeout(Some(DEADLINE)).expect("set");
    let mut heard = [0; 5];
    (&second).read_exact(&mut heard).expect("bytes");
    assert_eq!(&heard, b"hello");
    drop((conn, second));
    proxy.finish();
}

#[test]
fn rules_of_the_listener_hold_for_a_unix_target() {
    let folder = folder();
    let listener = UnixListener::bind(folder.path().join("db.sock")).expect("bound");
    listener.set_nonblocking(true).expect("set");
    // Addresses and names are not its business, and a parent is not its way.
    for (rules, served) in [
        (
            "[[rule]]\naction = \"deny\"\nfrom = [\"127.0.0.0/8\"]",
            false,
        ),
        (
            "[[rule]]\naction = \"deny\"\nnetworks = [\"0.0.0.0/0\", \"::/0\"]",
            true,
        ),
        ("[[rule]]\naction = \"deny\"\nnames = [\"db.sock\"]", true),
    ] {
        let proxy = to_unix(folder.path(), rules);
        let conn = Conn::dial(proxy.address("tcp"));
        if served {
            support::wait_for("the target's client", || listener.accept().is_ok());
        }
        assert_eq!(conn.rest().0, b"");
        assert!(listener.accept().is_err(), "{rules}");
        drop(conn);
        let ended = lines(&proxy.finish())[0].text("end");
        assert_eq!(ended == "forbidden", !served, "{rules}: {ended}");
    }
}

#[test]
fn a_unix_target_stands_in_for_others() {
    let folder = folder();
    let path = folder.path().join("db.sock");
    let echo = echo_once(path.clone());
    let closed = support::closed_port();
    let listen = format!("tcp://127.0.0.1:0/{closed},unix:{}", path.display());
    let proxy = Proxyd::start(&["--listen", &listen]);
    let conn = Conn::dial(proxy.address("tcp"));
    conn.send("hello");
    conn.expect("hello");
    drop(conn);
    echo.join().expect("no panic");
    proxy.finish();
}

/// Listens at `x.sock` in `folder`, and over TCP with [`to_unix`] for the start to
/// be seen.
fn at_unix(folder: &Path, listener: &str, more: &str) -> Proxyd {
    let listener = format!("[[listener]]\naddress = \"unix:x.sock\"\n{listener}\n");
    to_unix(folder, &format!("{listener}{more}\n"))
}

fn connect(folder: &Path) -> UnixStream {
    let stream = UnixStream::connect(folder.join("x.sock")).expect("connected");
    stream.set_read_timeout(Some(DEADLINE)).expect("set");
    stream.set_write_timeout(Some(DEADLINE)).expect("set");
    stream
}

#[test]
fn p44_unix_on_both_sides() {
    let folder = folder();
    let echo = echo_once(folder.path().join("db.sock"));
    let settings = "protocol = \"tcp\"\ntarget = \"unix:db.sock\"\nmode = \"600\"";
    // Strangers by address are not meant.
    let proxy = at_unix(folder.path(), settings, "clients = [\"127.0.0.0/8\"]");
    let path = folder.path().join("x.sock");
    let mode = path.metadata().expect("a file").permissions().mode();
    assert_eq!(mode & 0o777, 0o600);
    let client = connect(folder.path());
    thread::scope(|scope| {
        let sender = scope.spawn(|| {
            UP.send(&client, 0, 8 << 20).expect("sent");
            client.shutdown(Shutdown::Write).expect("open");
        });
        UP.check_all(&client, 8 << 20).expect("the same bytes");
        sender.join().expect("no panic");
    });
    echo.join().expect("no panic");
    drop(client);
    let lines = lines(&proxy.finish());
    assert_eq!(lines[0].text("client"), "unix");
    assert_eq!(lines[0].text("service"), "tcp-x.sock");
    assert_eq!(lines[0].number("up"), Some(8 << 20));
    assert_eq!(lines[0].text("end"), "client-finished");
    assert!(!path.exists(), "the file is removed at the end");
}

#[test]
fn http_and_socks_at_unix_sockets() {
    let origin = support::Origin::page("hello");
    let echo = support::Origin::echo();
    let folder = folder();
    let proxy = at_unix(folder.path(), "protocol = \"http\"", "");
    let mut client = connect(folder.path());
    let request = format!(
        "GET {} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n",
        origin.url("/")
    );
    client.write_all(request.as_bytes()).expect("sent");
    let mut answer = String::new();
    client.read_to_string(&mut answer).expect("an answer");
    assert!(answer.starts_with("HTTP/1.1 200 OK\r\n"), "{answer}");
    assert!(answer.ends_with("hello"), "{answer}");
    drop((client, origin));
    proxy.finish();

    let proxy = at_unix(folder.path(), "protocol = \"socks\"", "");
    let mut client = connect(folder.path());
    let hello = support::Mode::Socks5.hello(echo.address);
    client.write_all(&hello).expect("sent");
    let mut reply = [0; 12];
    client.read_exact(&mut reply).expect("a reply");
    assert_eq!(reply[..6], [5, 0, 5, 0, 0, 1]);
    client.write_all(b"hello").expect("sent");
    client.read_exact(&mut reply[..5]).expect("an echo");
    assert_eq!(&reply[..5], b"hello");
    drop((client, echo));
    proxy.finish();
}

#[test]
fn p73_a_front_end_at_a_unix_socket_tells_the_client() {
    let origin = support::Origin::page("hello");
    let folder = folder();
    let listener = "protocol = \"http\"\nproxy_protocol = [\"127.0.0.1\"]\nopen = true";
    let rule = "[[rule]]\naction = \"allow\"\nnetworks = [\"127.0.0.0/8\"]\n";
    let proxy = at_unix(folder.path(), listener, rule);
    let request = format!(
        "PROXY TCP4 192.0.2.7 192.0.2.9 7 80\r\nGET {} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n",
        origin.url("/")
    );
    for cut in [1, 20, 37, 60] {
        let mut client = connect(folder.path());
        let (first, second) = request.split_at(cut);
        client.write_all(first.as_bytes()).expect("sent");
        client.write_all(second.as_bytes()).expect("sent");
        let mut answer = String::new();
        client.read_to_string(&mut answer).expect("an answer");
        assert!(answer.ends_with("hello"), "{answer}");
    }
    // Without a header nobody is served.
    let mut client = connect(folder.path());
    client.write_all(b"GET / HTTP/1.1\r\n\r\n").expect("sent");
    let mut nothing = String::new();
    let _ = client.read_to_string(&mut nothing);
    assert_eq!(nothing, "");
    drop((client, origin));
    let lines = lines(&proxy.finish());
    assert_eq!(lines.len(), 4);
    for line in lines {
        assert_eq!(line.text("client"), "192.0.2.7:7");
    }
}

#[test]
fn a_stale_socket_is_replaced_and_a_live_one_is_not() {
    let folder = folder();
    let path = folder.path().join("x.sock");
    drop(UnixListener::bind(&path).expect("bound"));
    let settings = "protocol = \"tcp\"\ntarget = \"unix:db.sock\"";
    let proxy = at_unix(folder.path(), settings, "");
    let file = folder.path().join("p.toml");
    let second = std::process::Command::new(env!("CARGO_BIN_EXE_proxyd"))
        .args(["--config", file.to_str().expect("a plain path")])
        .output()
        .expect("started");
    assert!(!second.status.success());
    let said = String::from_utf8_lossy(&second.stderr);
    assert!(
        said.contains("cannot listen") && said.contains("x.sock"),
        "{said}"
    );
    // The first is not disturbed.
    drop(connect(folder.path()));
    proxy.finish();
    assert!(!path.exists());
}

#[test]
fn all_workers_serve_one_unix_socket() {
    let folder = folder();
    let listener = UnixListener::bind(folder.path().join("db.sock")).expect("bound");
    let serve = thread::spawn(move || {
        for _ in 0..40 {
            let (mut socket, _) = listener.accept().expect("a client");
            socket.write_all(b"hello").expect("sent");
        }
    });
    let listen = format!(
        "tcp://unix:{}/unix:{}",
        folder
            .path()
            .join("x.sock")
            .display()
            .to_string()
            .replace('/', "%2F"),
        folder.path().join("db.sock").display()
    );
    let file = folder.path().join("p.toml");
    let tcp = "[[listener]]\nprotocol = \"http\"\naddress = \"127.0.0.1:0\"\n";
    std::fs::write(&file, format!("workers = 3\n{tcp}")).expect("written");
    let file = file.to_str().expect("a plain path");
    let proxy = Proxyd::start(&["--config", file, "--listen", &listen]);
    for _ in 0..40 {
        let mut heard = String::new();
        connect(folder.path())
            .read_to_string(&mut heard)
            .expect("in order");
        assert_eq!(heard, "hello");
    }
    serve.join().expect("no panic");
    proxy.finish();
}
