//! BIND, with raw bytes over loopback.
#![cfg(feature = "serve")]
#![allow(clippy::unwrap_used, reason = "a panic is how a test fails")]

mod support;

use std::future::pending;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use proxy_core::{ConnectError, ConnectErrorKind, End, Host, Peer, Shaping, Stop, Target};
use proxy_relay::Transport;
use proxy_socks::{Config, Incoming, Listening, Server};
use support::{Direct, Session, exactly, greeting, listen, mem, refusal, rest, send, soon, tcp};
use tokio::io::AsyncWriteExt;
use tokio::net::{TcpListener, TcpSocket, TcpStream};

/// Turned away by policy, whoever expects it.
const UNWANTED: IpAddr = IpAddr::V4(Ipv4Addr::new(127, 0, 0, 66));

impl Incoming for Direct {
    /// Shows that it is dropped with the wait.
    type Place = Box<u8>;

    async fn listen(
        &self,
        (): &mut (),
        peer: &Peer,
        target: Target<'_>,
    ) -> Result<Listening<Box<u8>>, ConnectError> {
        let (ip, expected) = match target.host {
            Host::Name("any.test") => (Ipv4Addr::UNSPECIFIED.into(), vec![]),
            Host::Name("never.test") => pending().await,
            Host::Name("nat.test") => (peer.local.ip(), vec![]),
            Host::Name("six.test") => ("::1".parse().unwrap(), vec![]),
            Host::Name(_) => return Err(ConnectError::origin(ConnectErrorKind::NameNotFound)),
            Host::Ip(ip) if ip.is_unspecified() => (peer.local.ip(), vec![]),
            Host::Ip(ip) => (peer.local.ip(), vec![ip]),
        };
        let listener = TcpListener::bind((ip, 0)).await?;
        let listening = Listening::new(listener, Box::new(0))?.expect(expected);
        Ok(match target.host {
            Host::Name("nat.test") => listening.advertise([203, 0, 113, 7].into()),
            _ => listening,
        })
    }

    async fn admit(&self, (): &(), _: Target<'_>, from: SocketAddr) -> bool {
        from.ip() != UNWANTED
    }

    fn adopt(&self, (): &mut (), _: Box<u8>, stream: TcpStream) -> TcpStream {
        stream.set_nodelay(true).unwrap();
        stream
    }
}

/// A client on loopback of a server that offers everything.
async fn all(configure: impl FnOnce(&mut Config)) -> Session<TcpStream> {
    let listener = listen().await;
    let address = listener.local_addr().unwrap();
    let (client, accepted) = tokio::join!(TcpStream::connect(address), listener.accept());
    let (stream, remote) = accepted.unwrap();
    let local = stream.local_addr().unwrap();
    let gateway = Direct::default();
    let mut server = Server::new(gateway.clone());
    configure(server.config());
    let peer = Peer { remote, local };
    let served = tokio::spawn(async move { server.serve_with_all(stream, peer).await });
    let client = client.unwrap();
    client.set_nodelay(true).unwrap();
    Session {
        client,
        served,
        gateway,
    }
}

/// SOCKS5 greeting and BIND.
fn bind5(host: &[u8]) -> Vec<u8> {
    [&greeting(0)[..], &[5, 2, 0], host, &[0, 21]].concat()
}

/// The address in a SOCKS5 success reply.
async fn told5(client: &mut TcpStream) -> SocketAddr {
    let reply: [u8; 10] = exactly(client).await;
    assert_eq!(reply[..4], [5, 0, 0, 1], "{reply:?}");
    let ip: [u8; 4] = reply[4..8].try_into().unwrap();
    SocketAddr::from((ip, u16::from_be_bytes([reply[8], reply[9]])))
}

/// Asks and reads where the connection is awaited.
async fn asked5(session: &mut Session<TcpStream>, host: &[u8]) -> SocketAddr {
    send(&mut session.client, &bind5(host)).await;
    assert_eq!(exactly(&mut session.client).await, [5, 0]);
    told5(&mut session.client).await
}

async fn connect_from(ip: IpAddr, to: SocketAddr) -> std::io::Result<TcpStream> {
    let socket = TcpSocket::new_v4()?;
    socket.bind(SocketAddr::new(ip, 0))?;
    soon(socket.connect(to)).await
}

const ANYBODY: &[u8] = &[1, 0, 0, 0, 0];
const LOCAL: IpAddr = IpAddr::V4(Ipv4Addr::LOCALHOST);

#[tokio::test]
async fn p60_two_replies_and_then_a_tunnel() {
    let mut session = all(|_| ()).await;
    let at = asked5(&mut session, &[1, 127, 0, 0, 1]).await;
    assert_eq!(at.ip(), LOCAL);
    let mut far = connect_from(LOCAL, at).await.unwrap();
    let own = far.local_addr().unwrap();
    assert_eq!(told5(&mut session.client).await, own);
    // Exactly one: the socket is closed before the second reply.
    assert!(connect_from(LOCAL, at).await.is_err());
    send(&mut session.client, b"ping").await;
    assert_eq!(exactly(&mut far).await, *b"ping");
    send(&mut far, b"pong!").await;
    assert_eq!(exactly(&mut session.client).await, *b"pong!");
    far.shutdown().await.unwrap();
    assert_eq!(rest(&mut session.client).await, b"");
    session.client.shutdown().await.unwrap();
    assert_eq!(
        session.line().await,
        "anyone BIND 127.0.0.1:21 0 4/5 origin-finished"
    );
}

#[tokio::test]
async fn socks4_and_4a_too() {
    for (wire, target) in [
        (&b"\x04\x02\0\x15\x7f\0\0\x01me\0"[..], "127.0.0.1:21"),
        (b"\x04\x02\0\x15\0\0\0\x01me\x00127.0.0.1\0", "127.0.0.1:21"),
        (b"\x04\x02\0\x15\0\0\0\0me\0", "0.0.0.0:21"),
    ] {
        let mut session = all(|_| ()).await;
        send(&mut session.client, wire).await;
        let reply: [u8; 8] = exactly(&mut session.client).await;
        assert_eq!((reply[0], reply[1]), (0, 0x5a));
        assert_eq!(reply[4..], [127, 0, 0, 1]);
        let port = u16::from_be_bytes([reply[2], reply[3]]);
        let mut far = connect_from(LOCAL, (LOCAL, port).into()).await.unwrap();
        let own = far.local_addr().unwrap().port().to_be_bytes();
        let second: [u8; 8] = exactly(&mut session.client).await;
        assert_eq!(second, [0, 0x5a, own[0], own[1], 127, 0, 0, 1]);
        send(&mut far, b"x").await;
        assert_eq!(exactly(&mut session.client).await, *b"x");
        drop(far);
        drop(session.client.shutdown().await);
        let line = session.line().await;
        assert!(
            line.starts_with(&format!("anyone BIND {target} 90 0/1")),
            "{line}"
        );
    }
}

#[tokio::test]
async fn a_future_that_owns_the_server_gives_it_back() {
    let listener = listen().await;
    let address = listener.local_addr().unwrap();
    let (client, accepted) = tokio::join!(TcpStream::connect(address), listener.accept());
    let (stream, remote) = accepted.unwrap();
    let peer = Peer {
        remote,
        local: address,
    };
    let server = Arc::new(Server::new(Direct::default()));
    let serving = tokio::spawn(Server::serve_owned(Arc::clone(&server), stream, peer));
    let mut client = client.unwrap();
    send(&mut client, b"\x05").await;
    drop(client);
    let served = soon(serving).await.unwrap();
    assert!(Arc::ptr_eq(&served.server, &server));
    assert_eq!(served.peer, peer);
    assert!(served.ended.is_err());
    assert_eq!(
        server.gateway().log(),
        ["- - - - 0/0 bad-request (no session)"]
    );
}

#[tokio::test]
async fn strangers_and_the_unwanted_are_closed_and_the_wait_goes_on() {
    let mut session = all(|_| ()).await;
    let at = asked5(&mut session, &[1, 127, 0, 0, 2]).await;
    for _ in 0..3 {
        let mut stranger = connect_from(LOCAL, at).await.unwrap();
        assert_eq!(rest(&mut stranger).await, b"");
    }
    let expected = IpAddr::from([127, 0, 0, 2]);
    let far = connect_from(expected, at).await.unwrap();
    assert_eq!(told5(&mut session.client).await, far.local_addr().unwrap());

    let mut session = all(|_| ()).await;
    let at = asked5(&mut session, ANYBODY).await;
    let mut unwanted = connect_from(UNWANTED, at).await.unwrap();
    assert_eq!(rest(&mut unwanted).await, b"");
    let far = connect_from(expected, at).await.unwrap();
    assert_eq!(told5(&mut session.client).await, far.local_addr().unwrap());
}

#[tokio::test]
async fn what_the_client_sends_too_early_comes_first() {
    for cut in [0, 1] {
        let mut session = all(|_| ()).await;
        let early: &[&[u8]] = &[b"early", b""];
        let wire = [&bind5(ANYBODY)[..], early[cut]].concat();
        send(&mut session.client, &wire).await;
        assert_eq!(exactly(&mut session.client).await, [5, 0]);
        let at = told5(&mut session.client).await;
        send(&mut session.client, early[1 - cut]).await;
        let mut far = connect_from(LOCAL, at).await.unwrap();
        told5(&mut session.client).await;
        send(&mut session.client, b" late").await;
        assert_eq!(exactly(&mut far).await, *b"early late");
    }
}

#[tokio::test]
async fn a_client_that_sends_without_end_is_left_unread() {
    let mut session = all(|_| ()).await;
    let at = asked5(&mut session, ANYBODY).await;
    let sent: Vec<u8> = (0..=250).cycle().take(300_000).collect();
    let (mut reader, mut writer) = session.client.split();
    let ((), got) = tokio::join!(
        async {
            send(&mut writer, &sent).await;
            writer.shutdown().await.unwrap();
        },
        async {
            let mut far = connect_from(LOCAL, at).await.unwrap();
            let _second: [u8; 10] = exactly(&mut reader).await;
            rest(&mut far).await
        }
    );
    assert!(got == sent, "{} bytes", got.len());
}

#[tokio::test]
async fn a_client_that_leaves_frees_the_socket() {
    for reset in [false, true] {
        let mut session = all(|_| ()).await;
        let at = asked5(&mut session, ANYBODY).await;
        if reset {
            session.client.abort();
        }
        let Session {
            client,
            served,
            gateway,
        } = session;
        drop(client);
        let left = soon(served).await.unwrap();
        assert_eq!(
            left.unwrap_err().to_string(),
            "the client closed the connection in mid-handshake"
        );
        assert!(connect_from(LOCAL, at).await.is_err());
        assert_eq!(gateway.log(), ["anyone BIND 0.0.0.0:21 - 0/0 client-reset"]);
    }
}

#[tokio::test]
async fn p60_nobody_comes_in_time() {
    let mut session = all(|config| _ = config.bind_wait(Duration::from_millis(300))).await;
    let at = asked5(&mut session, ANYBODY).await;
    assert_eq!(rest(&mut session.client).await, refusal(6));
    assert!(connect_from(LOCAL, at).await.is_err());
    drop(session.client.shutdown().await);
    assert_eq!(
        session.line().await,
        "anyone BIND 0.0.0.0:21 6 0/0 connect-timeout"
    );
}

#[tokio::test]
async fn a_drain_ends_the_wait_with_an_answer_and_a_stop_at_once() {
    for drains in [true, false] {
        let stop = Stop::new();
        let mut session = all(|config| _ = config.stop(stop.clone())).await;
        let at = asked5(&mut session, ANYBODY).await;
        let (answer, line) = match drains {
            true => {
                stop.drain();
                (&refusal(1)[..], "anyone BIND 0.0.0.0:21 1 0/0 drained")
            }
            false => {
                stop.stop(End::Stopped);
                (&[][..], "anyone BIND 0.0.0.0:21 - 0/0 stopped")
            }
        };
        assert_eq!(rest(&mut session.client).await, answer);
        drop(session.client.shutdown().await);
        assert_eq!(session.line().await, line);
        assert!(connect_from(LOCAL, at).await.is_err());
    }
}

#[tokio::test]
async fn a_session_is_ended_by_its_own_token() {
    let own = Stop::new();
    let mut shaping = Shaping::default();
    shaping.stop = own.clone();
    let mut session = all(|config| _ = config.stop(Stop::new())).await;
    session.gateway.shape(shaping);
    asked5(&mut session, ANYBODY).await;
    own.stop(End::Limit);
    assert_eq!(rest(&mut session.client).await, refusal(1));
    drop(session.client.shutdown().await);
    assert_eq!(session.line().await, "anyone BIND 0.0.0.0:21 1 0/0 limit");
}

#[tokio::test]
async fn p60_a_socket_that_cannot_be_had_is_told_at_once() {
    for (name, code) in [
        ("nowhere.test", 4),
        // An address that nobody can connect to is never told.
        ("any.test", 3),
        ("forbidden.test", 2),
    ] {
        let mut session = all(|_| ()).await;
        let host = [&[3, u8::try_from(name.len()).unwrap()][..], name.as_bytes()].concat();
        send(&mut session.client, &bind5(&host)).await;
        assert_eq!(exactly(&mut session.client).await, [5, 0]);
        assert_eq!(rest(&mut session.client).await, refusal(code), "{name}");
    }
    if TcpListener::bind("[::1]:0").await.is_ok() {
        let mut session = all(|_| ()).await;
        let wire = b"\x04\x02\0\x15\0\0\0\x01me\0six.test\0";
        send(&mut session.client, wire).await;
        let reply = rest(&mut session.client).await;
        assert_eq!(reply, [0, 0x5b, 0, 0, 0, 0, 0, 0], "no IPv6 in SOCKS4");
    }
}

#[tokio::test]
async fn an_advertised_address_is_told_in_place_of_the_own() {
    let mut session = all(|_| ()).await;
    let told = asked5(&mut session, b"\x03\x08nat.test").await;
    assert_eq!(told.ip(), IpAddr::from([203, 0, 113, 7]));
    let far = connect_from(LOCAL, (LOCAL, told.port()).into()).await;
    let own = far.unwrap().local_addr().unwrap();
    assert_eq!(told5(&mut session.client).await, own);
}

#[tokio::test(start_paused = true)]
async fn without_it_the_command_is_unknown() {
    let mut session = mem(|_| ());
    send(&mut session.client, &bind5(ANYBODY)).await;
    assert_eq!(exactly(&mut session.client).await, [5, 0]);
    assert_eq!(rest(&mut session.client).await, refusal(7));
    drop(session.client.shutdown().await);
    assert_eq!(
        session.line().await,
        "anyone BIND 0.0.0.0:21 7 0/0 forbidden (no session)"
    );
    let mut session = tcp(|_| ()).await;
    send(&mut session.client, b"\x04\x02\0\x15\x7f\0\0\x01me\0").await;
    assert_eq!(rest(&mut session.client).await, [0, 0x5b, 0, 0, 0, 0, 0, 0]);
}

#[tokio::test]
async fn the_future_keeps_no_room_for_it() {
    let stream = || async {
        let listener = listen().await;
        let address = listener.local_addr().unwrap();
        TcpStream::connect(address).await.unwrap()
    };
    let nobody = SocketAddr::from(([127, 0, 0, 1], 1));
    let peer = Peer {
        remote: nobody,
        local: nobody,
    };
    let server = Server::new(Direct::default());
    let plain = size_of_val(&server.serve(stream().await, peer));
    let full = size_of_val(&server.serve_with_all(stream().await, peer));
    let owned = Server::serve_owned(Arc::new(server), stream().await, peer);
    assert_eq!((plain, full), (size_of_val(&owned), size_of_val(&owned)));
}
