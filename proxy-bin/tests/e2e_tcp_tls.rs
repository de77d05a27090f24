//! Port relays with TLS on either side: what goes through, how it ends, and what
//! becomes of peers that are not what they should be.

mod support;

use std::io::{ErrorKind, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, channel};
use std::thread;
use std::time::{Duration, Instant};

use proxy_tls::rustls::{ServerConnection, StreamOwned};
use support::{
    Accepted, Certs, Conn, DEADLINE, Ended, LogLine, Mode, Origin, Proxyd, Stopped, UP, closed_port,
};

/// A relay to `targets` with these settings; the log is on standard output.
fn relay(targets: &[SocketAddr], settings: &str, more: &str) -> Proxyd {
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("relay.toml");
    let targets: Vec<String> = targets.iter().map(SocketAddr::to_string).collect();
    let toml = format!(
        "workers = 1\nlog = {{ access = \"stdout\", format = \"json\" }}\n{more}\n\
         [[listener]]\nprotocol = \"tcp\"\naddress = \"127.0.0.1:0\"\n\
         targets = {targets:?}\n{settings}\n"
    );
    std::fs::write(&file, toml).expect("written");
    Proxyd::start(&["--config", file.to_str().expect("a plain path")])
}

/// TLS from clients.
fn tls_in() -> String {
    let certs = Certs::shared();
    format!("cert = {:?}\nkey = {:?}\n", certs.cert(), certs.key())
}

/// TLS to the target, with the authority of the tests.
fn tls_out() -> String {
    format!(
        "target_tls = true\ntarget_ca = {:?}\n",
        Certs::shared().ca()
    )
}

type TlsPeer<'s> = StreamOwned<ServerConnection, &'s TcpStream>;

fn tls_server(socket: &TcpStream) -> TlsPeer<'_> {
    let config = Arc::clone(&Certs::shared().server);
    let session = ServerConnection::new(config).expect("a session");
    StreamOwned::new(session, socket)
}

/// Sends back what comes over TLS, close_notify for close_notify.
fn tls_echo() -> Origin {
    Origin::start(|socket| {
        let mut stream = tls_server(socket);
        let mut buffer = vec![0; 64 * 1024];
        loop {
            match stream.read(&mut buffer) {
                Ok(0) => break,
                Ok(count) => {
                    if stream.write_all(&buffer[..count]).is_err() {
                        return;
                    }
                }
                Err(_) => return,
            }
        }
        stream.conn.send_close_notify();
        drop(stream.flush());
    })
}

/// Reads up to the end and answers then, over TLS; tells how the end looked.
fn tls_listener() -> (Origin, Receiver<Result<Vec<u8>, ErrorKind>>) {
    let (told, all) = channel();
    let origin = Origin::start(move |socket| {
        let mut stream = tls_server(socket);
        let mut bytes = Vec::new();
        let read = stream.read_to_end(&mut bytes);
        if read.is_ok() {
            drop(stream.write_all(b"answer"));
            stream.conn.send_close_notify();
            drop(stream.flush());
        }
        drop(told.send(read.map(|_| bytes).map_err(|error| error.kind())));
    });
    (origin, all)
}

fn lines(stopped: &Stopped) -> Vec<LogLine> {
    LogLine::all(&stopped.stdout)
}

/// What is sent comes back, both at once, and then the end.
fn echoes(conn: &Conn, count: u64) {
    thread::scope(|scope| {
        let sender = scope.spawn(|| {
            UP.send(conn, 0, count).expect("sent");
            conn.fin();
        });
        UP.check_all(conn, count).expect("the same bytes");
        sender.join().expect("no panic");
    });
}

#[test]
fn p44_bytes_and_half_close_pass_with_tls_on_every_side() {
    let (plain, secret) = (Origin::echo(), tls_echo());
    let both = tls_in() + &tls_out();
    for (origin, settings, tls) in [
        (&plain, tls_in(), true),
        (&secret, tls_out(), false),
        (&secret, both, true),
    ] {
        let proxy = relay(&[origin.address], &settings, "");
        let dial = || match tls {
            true => Conn::dial_tls(proxy.address("tcp")),
            false => Conn::dial(proxy.address("tcp")),
        };
        let conn = dial();
        conn.send("small");
        conn.expect("small");
        echoes(&conn, 8 << 20);
        drop(conn);
        let lines = lines(&proxy.finish());
        assert_eq!(lines.len(), 1);
        assert_eq!(lines[0].text("end"), "client-finished");
        let bytes = Some((8 << 20) + 5);
        assert_eq!(
            (lines[0].number("up"), lines[0].number("down")),
            (bytes, bytes)
        );
    }
}

#[test]
fn p44_an_answer_comes_behind_the_clients_end() {
    let (origin, told) = tls_listener();
    let both = tls_in() + &tls_out();
    let proxy = relay(&[origin.address], &both, "");
    let conn = Conn::dial_tls(proxy.address("tcp"));
    conn.send("question");
    conn.fin();
    assert_eq!(conn.rest(), (b"answer".to_vec(), Ended::Finished));
    let heard = told.recv_timeout(DEADLINE).expect("heard");
    assert_eq!(heard, Ok(b"question".to_vec()));
    drop((conn, origin));
    proxy.finish();
}

#[test]
fn what_is_cut_does_not_look_finished() {
    // A client without close_notify: the target's TLS has none either.
    let (origin, told) = tls_listener();
    let proxy = relay(&[origin.address], &(tls_in() + &tls_out()), "");
    let conn = Conn::dial_tls(proxy.address("tcp"));
    conn.send("half of");
    conn.cut();
    let heard = told.recv_timeout(DEADLINE).expect("heard");
    // Bytes of TLS that nobody will read may make a reset of the close.
    let cut = [ErrorKind::UnexpectedEof, ErrorKind::ConnectionReset];
    assert!(
        heard.as_ref().is_err_and(|kind| cut.contains(kind)),
        "{heard:?}"
    );
    drop((conn, origin));
    let stopped = proxy.finish();
    assert_eq!(lines(&stopped)[0].text("end"), "client-reset");

    // A target without close_notify.
    let origin = Origin::start(|socket| {
        let mut stream = tls_server(socket);
        drop(stream.read_exact(&mut [0; 2]));
        drop(stream.write_all(b"half of"));
        drop(stream.flush());
        drop(socket.shutdown(Shutdown::Write));
        drop(stream.read(&mut [0]));
    });
    let proxy = relay(&[origin.address], &(tls_in() + &tls_out()), "");
    let conn = Conn::dial_tls(proxy.address("tcp"));
    conn.send("go");
    assert_eq!(conn.rest(), (b"half of".to_vec(), Ended::Truncated));
    drop((conn, origin));
    let stopped = proxy.finish();
    assert_eq!(lines(&stopped)[0].text("end"), "origin-reset");
}

#[test]
fn a_reset_passes_as_a_reset() {
    let (origin, accepted) = Origin::manual();
    let proxy = relay(&[origin.address], &tls_in(), "");
    let near = Conn::dial_tls(proxy.address("tcp"));
    near.send("x");
    let far = Accepted::next(&accepted);
    far.expect("x");
    near.reset();
    assert_eq!(far.rest().1, Ended::Reset);
    let near = Conn::dial_tls(proxy.address("tcp"));
    let far = Accepted::next(&accepted);
    far.send("y");
    near.expect("y");
    far.reset();
    assert_eq!(near.rest().1, Ended::Reset);
    drop((near, origin));
    let stopped = proxy.finish();
    let ends: Vec<String> = lines(&stopped)
        .iter()
        .map(|line| line.text("end"))
        .collect();
    assert_eq!(ends, ["client-reset", "origin-reset"]);
}

#[test]
fn a_target_with_a_wrong_certificate_gets_nothing() {
    let (origin, told) = tls_listener();
    let ca = Certs::shared().ca();
    // Whose certificate it is not, and whose issuer is not known.
    for (settings, reason) in [
        (
            format!("target_tls = \"other.example\"\ntarget_ca = {ca:?}"),
            "not valid for name",
        ),
        (
            format!("target_tls = true\ntarget_ca = {:?}", other_authority()),
            "UnknownIssuer",
        ),
    ] {
        let proxy = relay(&[origin.address], &settings, "");
        let conn = Conn::dial(proxy.address("tcp"));
        conn.send_anyway("secret");
        assert!(conn.rest().0.is_empty());
        let heard = told.recv_timeout(DEADLINE).expect("heard");
        assert!(heard.is_err(), "{heard:?}");
        drop(conn);
        let stopped = proxy.finish();
        let line = &lines(&stopped)[0];
        assert_eq!(line.text("error"), "certificate-invalid");
        assert_eq!(line.text("end"), "connect-failed");
        let said = format!("target={}", origin.address);
        let mut messages = stopped.stderr.iter();
        let named = messages.any(|line| line.contains(&said) && line.contains(reason));
        assert!(named, "{stopped}");
    }
}

/// An authority that has signed nothing here.
fn other_authority() -> PathBuf {
    let key = rcgen::KeyPair::generate().expect("a key");
    let mut params = rcgen::CertificateParams::new(Vec::new()).expect("no names");
    params.is_ca = rcgen::IsCa::Ca(rcgen::BasicConstraints::Unconstrained);
    let name = &mut params.distinguished_name;
    name.push(rcgen::DnType::CommonName, "another authority");
    let certificate = params.self_signed(&key).expect("a certificate");
    let file = Certs::shared().folder().join("other-authority.pem");
    std::fs::write(&file, certificate.pem()).expect("written");
    file
}

#[test]
fn a_name_of_ones_own_stands_for_the_targets() {
    let origin = tls_echo();
    let ca = Certs::shared().ca();
    let settings = format!("target_tls = \"localhost\"\ntarget_ca = {ca:?}");
    let proxy = relay(&[origin.address], &settings, "");
    echoes(&Conn::dial(proxy.address("tcp")), 1000);
    proxy.finish();
}

#[test]
fn the_next_target_stands_in_for_one_that_fails_in_tls() {
    // It closes at once, which is no TLS.
    let (broken, good) = (Origin::start(|_| ()), tls_echo());
    let targets = [broken.address, closed_port(), good.address];
    let proxy = relay(&targets, &tls_out(), "");
    for _ in 0..2 {
        echoes(&Conn::dial(proxy.address("tcp")), 1000);
    }
    let stopped = proxy.finish();
    for line in lines(&stopped) {
        assert_eq!(line.text("target"), good.address.to_string());
    }
}

#[test]
fn handshakes_have_a_deadline() {
    // A client that says nothing, and one that does not speak TLS.
    let (origin, accepted) = Origin::manual();
    let proxy = relay(&[origin.address], &tls_in(), "timeouts.head = \"300ms\"");
    let started = Instant::now();
    let silent = Conn::dial(proxy.address("tcp"));
    assert!(silent.rest().0.is_empty());
    assert!(started.elapsed() >= Duration::from_millis(200));
    let clear = Conn::dial(proxy.address("tcp"));
    clear.send("GET / HTTP/1.1\r\n\r\n");
    clear.rest();
    drop((silent, clear));
    proxy.finish();
    assert!(accepted.try_recv().is_err(), "nobody was to be dialled");

    // A target that says nothing.
    let proxy = relay(
        &[origin.address],
        &tls_out(),
        "timeouts.connect = \"300ms\"",
    );
    let conn = Conn::dial(proxy.address("tcp"));
    assert_eq!(conn.rest(), (Vec::new(), Ended::Finished));
    drop((conn, origin));
    let stopped = proxy.finish();
    assert_eq!(lines(&stopped)[0].text("error"), "timed-out");
    assert_eq!(lines(&stopped)[0].text("end"), "connect-timeout");
}

#[test]
fn socks_inside_tls() {
    let echo = Origin::echo();
    let listen = format!("socks://127.0.0.1:0?{}", Certs::shared().query());
    let proxy = Proxyd::start(&["--listen", &listen]);
    let conn = Conn::dial_tls(proxy.address("socks"));
    conn.send(Mode::Socks5.hello(echo.address));
    conn.expect([5, 0]);
    conn.expect([5, 0, 0, 1]);
    conn.exact(6);
    echoes(&conn, 100_000);
    drop(conn);
    proxy.finish();
}

/// Whether `openssl` is there; the tests of it have nothing to say otherwise.
fn has_openssl() -> bool {
    let version = Command::new("openssl").arg("version").output();
    version.is_ok_and(|output| output.status.success())
}

#[test]
fn openssl_s_client_is_served() {
    if !has_openssl() {
        return;
    }
    let echo = Origin::echo();
    let proxy = relay(&[echo.address], &tls_in(), "");
    let address = proxy.address("tcp").to_string();
    for version in ["-tls1_2", "-tls1_3"] {
        let mut client = Command::new("openssl")
            .args(["s_client", "-quiet", "-verify_return_error", version])
            .args(["-servername", "localhost", "-connect", &address, "-CAfile"])
            .arg(Certs::shared().ca())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .expect("started");
        let mut input = client.stdin.take().expect("piped");
        input.write_all(b"hello openssl\n").expect("written");
        let mut heard = [0; 14];
        let mut output = client.stdout.take().expect("piped");
        output.read_exact(&mut heard).expect("an echo");
        assert_eq!(&heard, b"hello openssl\n");
        drop(input);
        client.kill().expect("killed");
        client.wait().expect("ended");
    }
    proxy.finish();
}

#[test]
fn openssl_s_server_is_reached() {
    if !has_openssl() {
        return;
    }
    let certs = Certs::shared();
    let address = closed_port();
    let mut server = Command::new("openssl")
        .args([
            "s_server",
            "-quiet",
            "-rev",
            "-accept",
            &address.to_string(),
            "-cert",
        ])
        .arg(certs.cert())
        .arg("-key")
        .arg(certs.key())
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .expect("started");
    support::wait_for("openssl to listen", || TcpStream::connect(address).is_ok());
    let proxy = relay(&[address], &tls_out(), "");
    let conn = Conn::dial(proxy.address("tcp"));
    conn.send("abcdef\n");
    conn.expect("fedcba\n");
    drop(conn);
    proxy.finish();
    server.kill().expect("killed");
    server.wait().expect("ended");
}
