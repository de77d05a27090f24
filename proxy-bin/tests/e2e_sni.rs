//! `sni` listeners: TLS clients are led by the name in their ClientHello, and
//! every byte they send is the target's.

mod support;

use std::net::SocketAddr;
use std::process::{Command, Stdio};
use std::sync::mpsc::Receiver;

use support::{
    A, Accepted, Certs, Conn, Curl, Ended, LogLine, NameServer, Origin, Proxyd, Reply, closed_port,
    wait_for,
};

/// A proxy with an `sni` listener that leads to the port of an origin, and names
/// that all lie on loopback.
struct Scene {
    proxy: Proxyd,
    origin: Origin,
    accepted: Option<Receiver<Accepted>>,
}

impl Scene {
    /// The test plays the origin.
    fn manual(keys: &str, more: &str) -> Self {
        let (origin, accepted) = Origin::manual();
        Self::new(origin, Some(accepted), keys, more)
    }

    /// The origin speaks TLS as `localhost` and sends requests back.
    fn tls(keys: &str) -> Self {
        Self::new(Origin::tls_mirror(), None, keys, "")
    }

    fn new(origin: Origin, accepted: Option<Receiver<Accepted>>, keys: &str, more: &str) -> Self {
        let port = origin.address.port();
        let listener = format!("address = \"127.0.0.1:0\"\ntarget_port = {port}\n{keys}");
        Self {
            proxy: start(&listener, more),
            origin,
            accepted,
        }
    }

    fn client(&self) -> Conn {
        Conn::dial(self.proxy.address("sni"))
    }

    fn far(&self) -> Conn {
        Accepted::next(self.accepted.as_ref().expect("an origin of the test's own"))
    }

    /// What is logged of the one connection.
    fn log(self) -> LogLine {
        drop(self.origin);
        let stopped = self.proxy.finish();
        let lines = LogLine::all(&stopped.stdout);
        assert_eq!(lines.len(), 1, "{stopped}");
        lines[0].clone()
    }
}

/// A proxy with this `sni` listener, a log, and a name server that knows some
/// names.
fn start(listener: &str, more: &str) -> Proxyd {
    let server = NameServer::start();
    for name in ["a.example", "b.example", "deep.a.example"] {
        let loopback = vec!["127.0.0.1".parse().expect("an address")];
        server.says(name, A, Reply::Has(loopback, 300));
    }
    let resolver = server.address;
    let text = format!(
        "workers = 1\nlog = {{ access = \"stdout\", format = \"json\" }}\n\
         [resolver]\nservers = \"{resolver}\"\n\
         [[listener]]\nprotocol = \"sni\"\n{listener}\n{more}\n"
    );
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("sni.toml");
    std::fs::write(&file, text).expect("written");
    Proxyd::start(&["--config", file.to_str().expect("a plain path")])
}

/// A ClientHello message that asks for `name`, without its record.
fn message(name: Option<&str>) -> Vec<u8> {
    let long = |bytes: &[u8]| {
        let length = u16::try_from(bytes.len()).expect("short").to_be_bytes();
        [&length[..], bytes].concat()
    };
    let name = name.map(|name| {
        let entry = [&[0][..], &long(name.as_bytes())].concat();
        [&[0, 0][..], &long(&long(&entry))].concat()
    });
    let versions = [0, 43, 0, 3, 2, 3, 4];
    let extensions = [&name.unwrap_or_default()[..], &versions].concat();
    let random = [7; 32];
    let body = [
        &[3, 3][..],
        &random,
        &[0],
        &long(&[0x13, 1]),
        &[1, 0],
        &long(&extensions),
    ]
    .concat();
    let length = u32::try_from(body.len()).expect("short").to_be_bytes();
    [&[1][..], &length[1..], &body].concat()
}

/// A record with part of a handshake.
fn record(part: &[u8]) -> Vec<u8> {
    let length = u16::try_from(part.len()).expect("short").to_be_bytes();
    [&[22, 3, 1][..], &length, part].concat()
}

/// A whole ClientHello.
fn hello(name: &str) -> Vec<u8> {
    record(&message(Some(name)))
}

fn alert(code: u8) -> Vec<u8> {
    vec![21, 3, 3, 0, 2, 2, code]
}

const UNRECOGNIZED_NAME: u8 = 112;
const DECODE_ERROR: u8 = 50;
const INTERNAL_ERROR: u8 = 80;

#[test]
fn every_byte_is_passed_on_and_counted() {
    let scene = Scene::manual("", "");
    let client = scene.client();
    let hello = hello("A.example");
    // What follows the ClientHello comes with it, as early data does.
    client.send([&hello[..], b"and more"].concat());
    let far = scene.far();
    far.expect([&hello[..], b"and more"].concat());
    far.send("an answer");
    client.expect("an answer");
    client.send("the rest");
    client.fin();
    far.expect("the rest");
    assert_eq!(far.rest(), (Vec::new(), Ended::Finished));
    far.send("!");
    far.fin();
    assert_eq!(client.rest(), (b"!".to_vec(), Ended::Finished));
    let target = format!("A.example:{}", scene.origin.address.port());
    drop((client, far));
    let line = scene.log();
    assert_eq!(line.text("target"), target);
    assert_eq!(line.text("method"), "CONNECT");
    assert_eq!(line.text("end"), "client-finished");
    let up = hello.len() as u64 + 16;
    assert_eq!(
        (line.number("up"), line.number("down")),
        (Some(up), Some(10))
    );
}

#[test]
fn p76_a_hello_in_two_segments() {
    let scene = Scene::manual("", "");
    let hello = hello("a.example");
    for at in 1..hello.len() {
        let client = scene.client();
        client.send(&hello[..at]);
        client.send(&hello[at..]);
        scene.far().expect(&hello);
    }
    drop(scene.origin);
    scene.proxy.finish();
}

#[test]
fn p76_a_hello_a_byte_at_a_time() {
    let scene = Scene::manual("", "");
    let hello = hello("a.example");
    let client = scene.client();
    for byte in &hello {
        client.send([*byte]);
    }
    let far = scene.far();
    far.expect(&hello);
    drop((client, far));
    assert!(scene.log().text("target").starts_with("a.example:"));
}

#[test]
fn p76_a_hello_in_two_records() {
    let scene = Scene::manual("", "");
    let message = message(Some("a.example"));
    for at in 1..message.len() {
        let records = [record(&message[..at]), record(&message[at..])];
        let client = scene.client();
        // Half of them in segments of their own.
        match at % 2 {
            0 => client.send(records.concat()),
            _ => records.iter().for_each(|record| client.send(record)),
        }
        scene.far().expect(records.concat());
    }
    drop(scene.origin);
    scene.proxy.finish();
}

#[test]
fn rustls_verifies_the_origin_through_it() {
    let scene = Scene::tls("trust_loopback = true");
    let client = Conn::dial_tls(scene.proxy.address("sni"));
    for _ in 0..3 {
        client.send("GET /page HTTP/1.1\r\nHost: localhost\r\n\r\n");
        let head = client.until(b"\r\n\r\n");
        assert!(head.starts_with(b"HTTP/1.1 200"), "{}", head.escape_ascii());
        client.expect("GET /page HTTP/1.1\r\nHost: localhost\r\n\r\n");
    }
    drop(client);
    assert!(scene.log().text("target").starts_with("localhost:"));
}

#[test]
fn curl_fetches_through_it() {
    let scene = Scene::tls("");
    let to = format!("::{}", scene.proxy.address("sni"));
    let ca = Certs::shared().ca();
    let body = Curl::new("https://localhost/page")
        .args(["--connect-to", &to, "--cacert"])
        .args([ca])
        .ok();
    assert!(body.starts_with("GET /page HTTP/1.1\r\n"), "{body}");
    // A name of the test's name server leads to the same origin.
    let body = Curl::new("https://b.example/other")
        .args(["--connect-to", &to, "--insecure"])
        .ok();
    assert!(body.starts_with("GET /other HTTP/1.1\r\n"), "{body}");
    let port = scene.origin.address.port();
    drop(scene.origin);
    let stopped = scene.proxy.finish();
    let lines = LogLine::all(&stopped.stdout);
    let targets: Vec<String> = lines.iter().map(|line| line.text("target")).collect();
    let names = ["localhost", "b.example"].map(|name| format!("{name}:{port}"));
    assert_eq!(targets, names);
}

#[test]
fn openssl_shakes_hands_through_it() {
    let scene = Scene::tls("");
    let said = s_client(scene.proxy.address("sni"), &["-servername", "a.example"]);
    for part in ["connection established", "cn = localhost"] {
        assert!(said.contains(part), "{said}");
    }
    assert!(scene.log().text("target").starts_with("a.example:"));
}

#[test]
fn openssl_is_told_that_a_name_is_missing_or_unknown() {
    for (args, error) in [
        (&["-noservername"][..], "no-server-name"),
        (&["-servername", "c.example"], "name-not-listed"),
        (&["-servername", "c.example", "-tls1_2"], "name-not-listed"),
    ] {
        let scene = Scene::tls("names = [\"a.example\", \"*.b.example\"]");
        let said = s_client(scene.proxy.address("sni"), args);
        assert!(said.contains("unrecognized name"), "{said}");
        assert_eq!(scene.log().text("error"), error);
    }
}

/// What `openssl s_client` says of a handshake.
fn s_client(address: SocketAddr, args: &[&str]) -> String {
    let output = Command::new("openssl")
        .args(["s_client", "-brief", "-connect", &address.to_string()])
        .args(args)
        .stdin(Stdio::null())
        .output()
        .expect("openssl is installed");
    let text = [output.stdout, output.stderr].concat();
    String::from_utf8_lossy(&text).to_lowercase()
}

#[test]
fn names_that_are_listed() {
    let names = "names = [\"a.example\", \"*.a.example\"]";
    for name in ["a.example", "A.EXAMPLE", "deep.a.example"] {
        let scene = Scene::manual(names, "");
        let client = scene.client();
        client.send(hello(name));
        let far = scene.far();
        far.expect(hello(name));
        drop((client, far));
        assert!(scene.log().text("target").starts_with(name));
    }
}

/// A client that says this is answered with `answer` and closed in order; the
/// log has this end and error.
fn is_refused(scene: Scene, said: &[u8], answer: &[u8], end: &str, error: &str) {
    let client = scene.client();
    client.send(said);
    assert_eq!(client.rest(), (answer.to_vec(), Ended::Finished), "{error}");
    drop(client);
    let line = scene.log();
    assert_eq!((&*line.text("end"), &*line.text("error")), (end, error));
    assert_eq!((line.number("up"), line.number("down")), (Some(0), Some(0)));
}

#[test]
fn names_that_are_not_listed() {
    let names = "names = [\"a.example\", \"*.b.example\"]";
    for name in ["b.example", "deep.a.example", "aa.example", "example"] {
        let scene = Scene::manual(names, "");
        let told = alert(UNRECOGNIZED_NAME);
        is_refused(scene, &hello(name), &told, "forbidden", "name-not-listed");
    }
}

#[test]
fn what_is_no_client_hello() {
    let nameless = record(&message(None));
    let address = hello("192.0.2.1");
    let mut odd_name = hello("a.example");
    let at = support::find(&odd_name, b"a.ex").expect("there");
    odd_name[at] = b'/';
    let mut torn = record(&message(None));
    torn[5 + 4 + 34] = 200;
    let mut server_hello = record(&message(None));
    server_hello[5] = 2;
    let long = record(&[&[1, 0, 0xff, 0xff][..], &[0; 60]].concat());
    let unexpected = 10;
    for (said, answer, error) in [
        (&nameless[..], alert(UNRECOGNIZED_NAME), "no-server-name"),
        (&address, alert(UNRECOGNIZED_NAME), "no-server-name"),
        (&odd_name, alert(DECODE_ERROR), "malformed-server-name"),
        (&torn, alert(DECODE_ERROR), "malformed-hello"),
        (&long, alert(DECODE_ERROR), "hello-too-long"),
        (&server_hello, alert(unexpected), "no-client-hello"),
        (b"GET / HTTP/1.1\r\n\r\n", Vec::new(), "not-tls"),
        (b"\x05\x01\x00", Vec::new(), "not-tls"),
    ] {
        let scene = Scene::manual("", "");
        is_refused(scene, said, &answer, "bad-request", error);
    }
}

#[test]
fn a_hello_that_never_ends_is_cut_at_the_bound() {
    let scene = Scene::manual("", "");
    let client = scene.client();
    // Records of one byte: six times what the message itself has.
    let start = [1, 0, 0x70, 0];
    let said: Vec<u8> = start.iter().flat_map(|byte| record(&[*byte])).collect();
    client.send(said);
    client.send_anyway(record(&[0]).repeat(8000));
    let (answer, _) = client.rest();
    assert_eq!(answer, alert(DECODE_ERROR));
    drop(client);
    assert_eq!(scene.log().text("error"), "hello-too-long");
}

#[test]
fn a_client_that_ends_too_early() {
    let scene = Scene::manual("", "");
    let client = scene.client();
    client.send(&hello("a.example")[..30]);
    client.fin();
    assert_eq!(client.rest(), (Vec::new(), Ended::Finished));
    drop(client);
    // Those who say nothing at all are no news.
    drop(scene.client());
    let line = scene.log();
    assert_eq!(line.text("end"), "bad-request");
    assert_eq!(line.text("error"), "hello-cut");
}

#[test]
fn p76_a_hello_has_the_time_of_a_head() {
    let scene = Scene::manual("", "[timeouts]\nhead = \"2s\"");
    let (silent, client) = (scene.client(), scene.client());
    client.send(&hello("a.example")[..30]);
    assert_eq!(silent.rest(), (Vec::new(), Ended::Finished));
    assert_eq!(client.rest(), (Vec::new(), Ended::Finished));
    drop((silent, client));
    assert_eq!(scene.log().text("end"), "client-timeout");
}

#[test]
fn rules_and_the_guard_have_their_say() {
    let told = alert(UNRECOGNIZED_NAME);
    let denied = "[[rule]]\naction = \"deny\"\nnames = [\"a.example\"]";
    let scene = Scene::manual("", denied);
    let client = scene.client();
    client.send(hello("a.example"));
    assert_eq!(client.rest(), (told.clone(), Ended::Finished));
    drop(client);
    let line = scene.log();
    assert_eq!(line.text("end"), "forbidden");
    assert!(line.text("error").starts_with("rule:"), "{line:?}");

    let scene = Scene::manual("trust_loopback = false", "");
    let hello = hello("a.example");
    is_refused(scene, &hello, &told, "forbidden", "guard:loopback");
    let scene = Scene::manual("clients = [\"192.0.2.0/24\"]", "");
    is_refused(scene, &hello, &told, "forbidden", "client-network");
}

#[test]
fn a_name_that_leads_back_is_a_loop() {
    let port = closed_port().port();
    let keys = format!("address = \"127.0.0.1:{port}\"\ntarget_port = {port}");
    let proxy = start(&keys, "");
    let client = Conn::dial(proxy.address("sni"));
    client.send(hello("a.example"));
    let told = alert(UNRECOGNIZED_NAME);
    assert_eq!(client.rest(), (told, Ended::Finished));
    drop(client);
    proxy.line(|line| line.contains("\"forbidden\"") && line.contains("\"loop\""));
    proxy.finish();
}

#[test]
fn a_target_that_is_not_there() {
    let port = closed_port().port();
    let keys = format!("address = \"127.0.0.1:0\"\ntarget_port = {port}");
    let proxy = start(&keys, "");
    for name in ["a.example", "nowhere.example"] {
        let client = Conn::dial(proxy.address("sni"));
        client.send(hello(name));
        let told = alert(INTERNAL_ERROR);
        assert_eq!(client.rest(), (told, Ended::Finished));
    }
    proxy.line(|line| line.contains("\"refused\""));
    proxy.line(|line| line.contains("\"name-not-found\""));
    proxy.finish();
}

#[test]
fn a_refused_client_that_sends_on_still_hears_why() {
    let scene = Scene::manual("names = \"b.example\"", "");
    let client = scene.client();
    client.send(hello("a.example"));
    client.send_anyway(vec![0; 200_000]);
    let (answer, _) = client.rest();
    assert_eq!(answer, alert(UNRECOGNIZED_NAME));
    drop(client);
    assert_eq!(scene.log().text("error"), "name-not-listed");
}

#[test]
fn a_client_that_waits_does_not_keep_the_proxy_from_closing() {
    let scene = Scene::manual("", "");
    let client = scene.client();
    client.send(&hello("a.example")[..30]);
    let base = scene.proxy.base().sockets;
    wait_for("the connection", || {
        scene.proxy.process().descriptors().sockets > base
    });
    let stopped = scene.proxy.stop();
    assert!(stopped.status.success(), "{stopped}");
    assert!(client.rest().0.is_empty());
}

/// Nothing of the ClientHello is kept once it has left.
#[test]
fn a_thousand_idle_tunnels_hold_no_buffer() {
    let scene = Scene::manual("", "");
    // Of a length that would be noticed.
    let hello = [hello("a.example"), vec![7; 3000]].concat();
    let open = |count: usize| -> Vec<(Conn, Conn)> {
        let tunnels = (0..count).map(|_| {
            let (near, far) = (scene.client(), scene.accepted.as_ref());
            near.send(&hello);
            let far = Accepted::next(far.expect("an origin of the test's own"));
            far.expect(&hello);
            (near, far)
        });
        tunnels.collect()
    };
    let first = open(200);
    let before = scene.proxy.process().resident();
    let more = open(1000);
    let each = scene.proxy.process().resident().saturating_sub(before) / 1000;
    eprintln!("{each} bytes a tunnel");
    assert!(each < 4096, "{each} bytes a tunnel");
    drop((first, more));
    drop(scene.origin);
    scene.proxy.finish();
}
