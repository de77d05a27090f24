//! UDP ASSOCIATE over real sockets, with an independent client too.
#![cfg(feature = "serve")]
#![allow(clippy::unwrap_used, reason = "a panic is how a test fails")]

mod support;

use std::net::SocketAddr;
use std::time::Duration;

use fast_socks5::client::Socks5Datagram;
use fast_socks5::util::target_addr::TargetAddr;
use proxy_core::{End, Peer, Shaping, Stop};
use proxy_socks::{Config, Methods, Server};
use support::{Direct, Session, exactly, greeting, listen, refusal, rest, send, soon};
use tokio::io::AsyncWriteExt;
use tokio::net::{TcpStream, UdpSocket};

/// A client of a server that relays datagrams, in a task that may change
/// threads.
async fn session(configure: impl FnOnce(&mut Config)) -> Session<TcpStream> {
    let listener = listen().await;
    let (client, accepted) = tokio::join!(
        TcpStream::connect(listener.local_addr().unwrap()),
        listener.accept()
    );
    let (stream, remote) = accepted.unwrap();
    let local = stream.local_addr().unwrap();
    let gateway = Direct::default();
    let mut server = Server::new(gateway.clone());
    configure(server.config());
    let peer = Peer { remote, local };
    let served = tokio::spawn(async move { server.serve_with_datagrams(stream, peer).await });
    Session {
        client: client.unwrap(),
        served,
        gateway,
    }
}

/// Asks for an association, from this address; where it is then.
async fn associate(client: &mut TcpStream, from: &str) -> SocketAddr {
    let from: SocketAddr = from.parse().unwrap();
    let mut wire = support::request(from);
    wire[1] = 3;
    // What follows is of no use to an association, and does no harm.
    send(client, &[&greeting(0)[..], &wire, b"more"].concat()).await;
    let reply: [u8; 12] = exactly(client).await;
    assert_eq!(reply[..10], [5, 0, 5, 0, 0, 1, 127, 0, 0, 1]);
    let port = u16::from_be_bytes([reply[10], reply[11]]);
    assert_ne!(port, 0);
    ([127, 0, 0, 1], port).into()
}

async fn socket() -> UdpSocket {
    UdpSocket::bind("127.0.0.1:0").await.unwrap()
}

/// A header for that address, and a payload.
fn datagram(to: SocketAddr, payload: &[u8]) -> Vec<u8> {
    let mut wire = support::request(to);
    wire[..3].fill(0);
    wire.extend(payload);
    wire
}

/// There and back.
async fn round(socket: &UdpSocket, relay: SocketAddr, echo: SocketAddr) {
    let wire = datagram(echo, b"ping");
    socket.send_to(&wire, relay).await.unwrap();
    let mut buf = [0; 64];
    let (len, from) = soon(socket.recv_from(&mut buf)).await.unwrap();
    assert_eq!((&buf[..len], from), (&wire[..], relay));
}

/// Sends back what it gets.
async fn echo() -> SocketAddr {
    let socket = socket().await;
    let address = socket.local_addr().unwrap();
    tokio::spawn(async move {
        let mut buf = [0; 2048];
        while let Ok((len, from)) = socket.recv_from(&mut buf).await {
            let _ = socket.send_to(&buf[..len], from).await;
        }
    });
    address
}

#[tokio::test]
async fn p63_from_the_request_to_the_end_of_its_connection() {
    let echo = echo().await;
    let mut session = session(|_| ()).await;
    let relay = associate(&mut session.client, "0.0.0.0:0").await;
    let socket = socket().await;
    round(&socket, relay, echo).await;
    // A fragment, a name that is refused, nothing at all.
    let mut fragment = datagram(echo, b"");
    fragment[2] = 1;
    for wire in [&fragment[..], b"\0\0\0\x03\x01a\0\x07x", b""] {
        socket.send_to(wire, relay).await.unwrap();
    }
    round(&socket, relay, echo).await;
    session.client.shutdown().await.unwrap();
    session.result().await.unwrap();
    assert_eq!(
        session.gateway.log(),
        [
            "2 sent, 3 dropped",
            "anyone ASSOCIATE 0.0.0.0:0 0 8/8 client-finished"
        ]
    );
    assert!(UdpSocket::bind(relay).await.is_ok(), "it is still open");
}

#[tokio::test]
async fn p65_an_announced_port_is_the_only_one() {
    let echo = echo().await;
    let (own, other) = (socket().await, socket().await);
    let mut session = session(|_| ()).await;
    let announced = own.local_addr().unwrap();
    let relay = associate(&mut session.client, &announced.to_string()).await;
    other.send_to(&datagram(echo, b"x"), relay).await.unwrap();
    round(&own, relay, echo).await;
    drop(session.client);
    soon(session.served).await.unwrap().unwrap();
    assert_eq!(session.gateway.log()[0], "1 sent, 1 dropped");
}

#[tokio::test]
async fn p64_the_address_in_the_request_is_not_judged() {
    let echo = echo().await;
    for name in ["localhost", "never.test", "unknown.test"] {
        let mut wire = support::request_name(name, 7);
        wire[1] = 3;
        let mut session = session(|_| ()).await;
        let client = &mut session.client;
        send(client, &[&greeting(0)[..], &wire].concat()).await;
        let reply: [u8; 12] = exactly(client).await;
        assert_eq!(reply[3], 0, "{name}");
        let port = u16::from_be_bytes([reply[10], reply[11]]);
        let relay = SocketAddr::from(([127, 0, 0, 1], port));
        round(&socket().await, relay, echo).await;
    }
}

#[tokio::test]
async fn what_is_refused_has_its_reply_code() {
    for (name, command, code, end) in [
        (
            "forbidden.test",
            3,
            2,
            "ASSOCIATE forbidden.test:7 2 0/0 forbidden",
        ),
        ("busy.test", 3, 1, "ASSOCIATE busy.test:7 1 0/0 busy"),
        ("a.test", 2, 7, "BIND a.test:7 7 0/0 forbidden"),
    ] {
        let mut wire = support::request_name(name, 7);
        wire[1] = command;
        let mut session = session(|_| ()).await;
        send(&mut session.client, &[&greeting(0)[..], &wire].concat()).await;
        session.client.shutdown().await.unwrap();
        let got = rest(&mut session.client).await;
        assert_eq!(got, [&[5, 0][..], &refusal(code)].concat());
        assert_eq!(session.line().await, format!("anyone {end} (no session)"));
    }
}

#[tokio::test]
async fn a_session_is_stopped_by_its_own_token() {
    let echo = echo().await;
    let mut session = session(|_| ()).await;
    let mut shaping = Shaping::default();
    let stop = Stop::new();
    shaping.stop = stop.clone();
    session.gateway.shape(shaping);
    let relay = associate(&mut session.client, "0.0.0.0:0").await;
    round(&socket().await, relay, echo).await;
    stop.stop(End::Limit);
    session.result().await.unwrap();
    let log = session.gateway.log();
    assert_eq!(log[1], "anyone ASSOCIATE 0.0.0.0:0 0 4/4 limit");
    assert_eq!(rest(&mut session.client).await, b"");
}

#[tokio::test]
async fn an_association_may_not_rest_for_ever() {
    let mut session = session(|config| {
        config.datagram_idle(Duration::from_millis(1));
    })
    .await;
    associate(&mut session.client, "0.0.0.0:0").await;
    session.result().await.unwrap();
    let log = session.gateway.log();
    assert_eq!(log[1], "anyone ASSOCIATE 0.0.0.0:0 0 0/0 idle");
}

#[tokio::test]
async fn a_dropped_future_is_reported_too() {
    let mut session = session(|_| ()).await;
    let relay = associate(&mut session.client, "0.0.0.0:0").await;
    session.served.abort();
    assert!(soon(session.served).await.unwrap_err().is_cancelled());
    let log = session.gateway.log();
    assert_eq!(log, ["anyone ASSOCIATE 0.0.0.0:0 - 0/0 stopped"]);
    assert!(UdpSocket::bind(relay).await.is_ok(), "it is still open");
}

#[tokio::test]
async fn their_client_our_relay() {
    let echo = echo().await;
    for password in [false, true] {
        let session = session(|config| {
            config.methods(match password {
                true => Methods::PASSWORD,
                false => Methods::NONE,
            });
        })
        .await;
        let own = "127.0.0.1:0";
        let theirs = soon(async {
            match password {
                true => {
                    Socks5Datagram::bind_with_password(session.client, own, "alice", "secret").await
                }
                false => Socks5Datagram::bind(session.client, own).await,
            }
        });
        let theirs = theirs.await.unwrap();
        let mut buf = [0; 64];
        for (payload, by_name) in [(&b"by address"[..], false), (b"by name", true)] {
            let sent = match by_name {
                true => theirs.send_to(payload, ("localhost", echo.port())).await,
                false => theirs.send_to(payload, echo).await,
            };
            sent.unwrap();
            let (len, from) = soon(theirs.recv_from(&mut buf)).await.unwrap();
            assert_eq!(&buf[..len], payload);
            assert!(
                matches!(from, TargetAddr::Ip(from) if from == echo),
                "{from:?}"
            );
        }
        drop(theirs);
        soon(session.served).await.unwrap().unwrap();
        assert_eq!(session.gateway.log()[0], "2 sent, 0 dropped");
    }
}
