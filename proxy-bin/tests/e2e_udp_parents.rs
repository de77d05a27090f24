//! Datagrams through a SOCKS5 parent: proxyd behind proxyd, and parents that do
//! what they should not.

mod support;

use std::io::{Read, Write};
use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpListener, TcpStream, UdpSocket};

use support::{ASSOCIATE, Conn, DEADLINE, Echo, LogLine, Proxyd, Udp, datagram, wait_for};

const SOCKS: [&str; 2] = ["--listen", "socks://127.0.0.1:0"];

/// Behind a parent of this URL.
fn behind(url: &str, more: &[&str]) -> Proxyd {
    Proxyd::start(&[&SOCKS, &["--via", url][..], more].concat())
}

fn url(parent: &Proxyd) -> String {
    format!("socks5://{}", parent.address("socks"))
}

#[test]
fn datagrams_of_every_size_go_through() {
    let echo = Echo::new();
    let parent = Proxyd::start(&SOCKS);
    let proxy = behind(&url(&parent), &["--access-log", "stdout"]);
    let udp = Udp::new(&proxy);
    for length in [0, 1, 1_200, 9_000, 60_000] {
        let payload = vec![7; length];
        udp.send("127.0.0.1", echo.port(), &payload);
        assert_eq!(udp.next(), (echo.address, payload));
    }
    // All of it from one socket of the parent's.
    let seen = echo.seen.lock().expect("no panic").clone();
    assert!(seen.iter().all(|from| *from == seen[0]), "{seen:?}");
    drop(udp);
    let stopped = proxy.finish();
    assert!(stopped.says(" 70201 70201 "), "{stopped}");
    parent.finish();
}

#[test]
fn a_parent_with_a_login() {
    let echo = Echo::new();
    let user = ["--user", "alice:secret"];
    let parent = Proxyd::start(&[&SOCKS[..], &user[..]].concat());
    let address = parent.address("socks");
    let proxy = behind(&format!("socks5://alice:secret@{address}"), &[]);
    let udp = Udp::new(&proxy);
    udp.round(&echo);
    drop(udp);
    proxy.finish();

    let proxy = behind(&format!("socks5://alice:wrong@{address}"), &[]);
    let udp = Udp::new(&proxy);
    udp.send("127.0.0.1", echo.port(), b"x");
    proxy.line(|line| line.contains("reason=\"parent-login-refused\""));
    assert_eq!(echo.count(), 1);
    drop(udp);
    proxy.finish();
    parent.finish();
}

#[test]
fn ipv6_on_both_sides_of_a_parent() {
    let echo = Echo::on("::1", 0);
    let parent = Proxyd::start(&["--listen", "socks://[::1]:0"]);
    let proxy = behind(&url(&parent), &[]);
    let udp = Udp::new(&proxy);
    udp.send("::1", echo.port(), b"sixth");
    assert_eq!(udp.next(), (echo.address, b"sixth".to_vec()));
    drop(udp);
    proxy.finish();
    parent.finish();
}

#[test]
fn one_association_serves_all_targets_and_ends_with_its_client() {
    let parent = Proxyd::start(&SOCKS);
    let proxy = behind(&url(&parent), &[]);
    let before = parent.process().descriptors();
    let udp = Udp::new(&proxy);
    let echoes = [Echo::new(), Echo::new(), Echo::new()];
    for echo in &echoes {
        udp.round(echo);
        assert_eq!(echo.first(), echoes[0].first());
    }
    drop(udp);
    wait_for("the parent's association to end", || {
        parent.process().descriptors() == before
    });
    proxy.finish();
    parent.finish();
}

/// A parent that does as the test says.
struct Parent {
    listener: TcpListener,
    relay: UdpSocket,
}

impl Parent {
    fn new() -> Self {
        let relay = UdpSocket::bind("127.0.0.1:0").expect("bound");
        relay.set_read_timeout(Some(DEADLINE)).expect("set");
        Self {
            listener: TcpListener::bind("127.0.0.1:0").expect("bound"),
            relay,
        }
    }

    fn url(&self) -> String {
        format!("socks5://{}", self.listener.local_addr().expect("bound"))
    }

    /// Takes the next association, with this code and address in the reply.
    fn associate(&self, code: u8, ip: Ipv4Addr) -> TcpStream {
        let (control, _) = self.listener.accept().expect("accepted");
        self.answer(control, code, ip)
    }

    fn answer(&self, mut control: TcpStream, code: u8, ip: Ipv4Addr) -> TcpStream {
        control.set_read_timeout(Some(DEADLINE)).expect("set");
        control.read_exact(&mut [0; 3]).expect("a greeting");
        control.write_all(&[5, 0]).expect("sent");
        let mut request = [0; 10];
        control.read_exact(&mut request).expect("a request");
        assert_eq!(request, [5, 3, 0, 1, 0, 0, 0, 0, 0, 0]);
        let port = self.relay.local_addr().expect("bound").port();
        let [high, low] = port.to_be_bytes();
        let reply = [&[5, code, 0, 1][..], &ip.octets(), &[high, low]].concat();
        control.write_all(&reply).expect("sent");
        control
    }

    fn next(&self) -> (Vec<u8>, SocketAddr) {
        let mut buf = vec![0; 65_536];
        let (len, from) = self.relay.recv_from(&mut buf).expect("a datagram");
        (buf[..len].to_vec(), from)
    }
}

#[test]
fn p66_a_parent_that_names_no_address_is_meant_where_it_was_reached() {
    let parent = Parent::new();
    let proxy = behind(&parent.url(), &[]);
    let udp = Udp::new(&proxy);
    udp.send("203.0.113.7", 53, b"question");
    let _control = parent.associate(0, Ipv4Addr::UNSPECIFIED);
    let (question, from) = parent.next();
    assert_eq!(question, datagram("203.0.113.7", 53, b"question"));
    assert_eq!(from.ip(), IpAddr::V4(Ipv4Addr::LOCALHOST));
    let answer = datagram("203.0.113.7", 53, b"answer");
    // A stranger, a fragment and what cannot be read come to nothing.
    let stranger = UdpSocket::bind("127.0.0.1:0").expect("bound");
    stranger.send_to(&answer, from).expect("sent");
    let fragment = [&[0, 0, 1], &answer[3..]].concat();
    for datagram in [&fragment[..], b"\0\0\0\x09", &answer[..]] {
        parent.relay.send_to(datagram, from).expect("sent");
    }
    let from = SocketAddr::from(([203, 0, 113, 7], 53));
    assert_eq!(udp.next(), (from, b"answer".to_vec()));
    drop(udp);
    proxy.finish();
}

#[test]
fn names_are_the_parents_to_resolve() {
    let parent = Parent::new();
    let proxy = behind(&parent.url(), &[]);
    let udp = Udp::new(&proxy);
    udp.send("name.invalid", 53, b"question");
    let _control = parent.associate(0, Ipv4Addr::LOCALHOST);
    let (question, from) = parent.next();
    assert_eq!(question, datagram("name.invalid", 53, b"question"));
    let answer = datagram("203.0.113.7", 53, b"answer");
    parent.relay.send_to(&answer, from).expect("sent");
    let from = SocketAddr::from(([203, 0, 113, 7], 53));
    assert_eq!(udp.next(), (from, b"answer".to_vec()));
    drop(udp);
    proxy.finish();
}

#[test]
fn p69_a_parent_that_leaves_is_asked_again() {
    let parent = Parent::new();
    let proxy = behind(&parent.url(), &[]);
    let udp = Udp::new(&proxy);
    let mut sources = Vec::new();
    for round in 0..3 {
        // What is sent before its end is noticed is lost, as datagrams may be.
        parent.listener.set_nonblocking(true).expect("set");
        let mut control = None;
        wait_for("another request", || {
            udp.send("203.0.113.7", 53, [round]);
            control = parent.listener.accept().ok();
            control.is_some()
        });
        let (control, _) = control.expect("accepted");
        control.set_nonblocking(false).expect("set");
        let control = parent.answer(control, 0, Ipv4Addr::LOCALHOST);
        udp.send("203.0.113.7", 53, [round, 100]);
        let marked = std::iter::from_fn(|| Some(parent.next()));
        let mut marked = marked.filter(|(datagram, _)| datagram.ends_with(&[round, 100]));
        sources.extend(marked.next().map(|(_, from)| from));
        drop(control);
    }
    sources.dedup();
    assert_eq!(sources.len(), 3, "a socket for each");
    drop(udp);
    proxy.finish();
}

#[test]
fn a_parent_that_refuses_is_told_of() {
    let parent = Parent::new();
    let proxy = behind(&parent.url(), &[]);
    let udp = Udp::new(&proxy);
    udp.send("203.0.113.7", 53, b"x");
    drop(parent.associate(7, Ipv4Addr::UNSPECIFIED));
    let line = proxy.line(|line| line.contains("datagrams are dropped"));
    assert!(line.contains("reason=\"parent-"), "{line}");
    drop(udp);
    proxy.finish();
}

#[test]
fn rules_send_each_target_its_way() {
    let (near, far) = (Echo::new(), Echo::new());
    let parent = Proxyd::start(&SOCKS);
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("p.toml");
    let toml = format!(
        "[[parent]]\nname = \"up\"\nurl = \"{}\"\n\
         [[rule]]\naction = \"allow\"\nports = [\"{}\"]\nvia = \"up\"\n\
         [[rule]]\naction = \"deny\"\nports = [\"9\"]\n",
        url(&parent),
        far.port()
    );
    std::fs::write(&file, toml).expect("written");
    let file = file.to_str().expect("a plain path");
    let args = [&SOCKS[..], &["--config", file]].concat();
    let proxy = Proxyd::start(&args);
    let udp = Udp::new(&proxy);
    udp.round(&near);
    udp.round(&far);
    udp.send("127.0.0.1", 9, b"nowhere");
    udp.round(&near);
    assert_ne!(near.first(), far.first());
    drop(udp);
    proxy.finish();
    parent.finish();
}

#[test]
fn a_port_relay_goes_through_too() {
    let echo = Echo::new();
    let parent = Proxyd::start(&SOCKS);
    let listen = format!("udp://127.0.0.1:0/{}", echo.address);
    let log = ["--access-log", "stdout", "--access-log-format", "json"];
    let proxy = Proxyd::start(&[&["--listen", &listen, "--via", &url(&parent)][..], &log].concat());
    let client = UdpSocket::bind("127.0.0.1:0").expect("bound");
    client.set_read_timeout(Some(DEADLINE)).expect("set");
    for payload in [&b"one"[..], b"two"] {
        client.send_to(payload, proxy.address("udp")).expect("sent");
        let mut buf = [0; 64];
        let (len, from) = client.recv_from(&mut buf).expect("an answer");
        assert_eq!((&buf[..len], from), (payload, proxy.address("udp")));
    }
    let lines = LogLine::all(&proxy.stop().stdout);
    assert_eq!(lines[0].number("up"), Some(6));
    assert_eq!(lines[0].number("down"), Some(6));
    parent.finish();
}

#[test]
fn a_parent_that_is_proxyd_itself_is_a_loop() {
    let port = TcpListener::bind("127.0.0.1:0").expect("bound");
    let own = port.local_addr().expect("bound");
    drop(port);
    let listen = format!("socks://{own}");
    let proxy = Proxyd::start(&["--listen", &listen, "--via", &format!("socks5://{own}")]);
    let control = Conn::dial(own);
    control.send(ASSOCIATE);
    control.expect([5, 0]);
    let udp = Udp::new(&proxy);
    udp.send("203.0.113.7", 53, b"x");
    proxy.line(|line| line.contains("reason=\"parent-loop\""));
    drop((udp, control));
    proxy.finish();
}
