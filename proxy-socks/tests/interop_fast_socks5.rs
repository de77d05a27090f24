//! Conformance with an independent implementation, in both directions.
#![cfg(feature = "serve")]
#![allow(clippy::unwrap_used, reason = "a panic is how a test fails")]

mod support;

use std::net::{Ipv6Addr, SocketAddr};

use bytes::BytesMut;
use fast_socks5::client::{Config, Socks5Stream};
use fast_socks5::server::{Socks5ServerProtocol, states::Authenticated};
use fast_socks5::util::target_addr::TargetAddr;
use fast_socks5::{AuthenticationMethod, ReplyError, Socks5Command, SocksError};
use proxy_core::{Credentials, Target, TargetBuf};
use proxy_relay::{DriveError, drive};
use proxy_socks::{ClientError, ClientHandshake, Methods, ReplyCode};
use support::{echo, exactly, origin, origin_on, rest, send, soon, tcp};
use tokio::io::AsyncWriteExt;
use tokio::net::{TcpListener, TcpStream};

fn alice() -> AuthenticationMethod {
    AuthenticationMethod::Password {
        username: "alice".to_owned(),
        password: "secret".to_owned(),
    }
}

/// Their client over our server; returns the tunnel, or their error.
async fn their_client(
    methods: Methods,
    auth: Option<AuthenticationMethod>,
    to: TargetAddr,
) -> (
    Result<(Socks5Stream<TcpStream>, TargetAddr), SocksError>,
    support::Session<()>,
) {
    let support::Session {
        client,
        served,
        gateway,
    } = tcp(|config| _ = config.methods(methods)).await;
    let tunnel = soon(async {
        let mut stream = Socks5Stream::use_stream(client, auth, Config::default()).await?;
        let bound = stream.request(Socks5Command::TCPConnect, to).await?;
        Ok((stream, bound))
    })
    .await;
    let session = support::Session {
        client: (),
        served,
        gateway,
    };
    (tunnel, session)
}

/// Something each way, and the end of both directions.
async fn converse<S: tokio::io::AsyncRead + tokio::io::AsyncWrite + Unpin>(tunnel: &mut S) {
    send(tunnel, b"through the tunnel").await;
    assert_eq!(exactly(tunnel).await, *b"through the tunnel");
    tunnel.shutdown().await.unwrap();
    assert_eq!(rest(tunnel).await, b"");
}

#[tokio::test]
async fn their_client_our_server() {
    for (methods, auth, user) in [
        (Methods::NONE, None, "anyone"),
        (Methods::ANY, None, "anyone"),
        (Methods::NONE, Some(alice()), "anyone"),
        (Methods::PASSWORD, Some(alice()), "alice"),
    ] {
        let (to, _origin) = origin(echo).await;
        let (tunnel, mut session) = their_client(methods, auth, TargetAddr::Ip(to)).await;
        let (mut tunnel, bound) = tunnel.unwrap();
        let TargetAddr::Ip(bound) = bound else {
            panic!("a name: {bound:?}");
        };
        assert_eq!(bound.ip(), to.ip());
        assert_ne!(bound.port(), 0);
        converse(&mut tunnel).await;
        assert_eq!(
            session.line().await,
            format!("{user} CONNECT {to} 0 18/18 client-finished")
        );
    }
}

#[tokio::test]
async fn their_client_our_server_by_name() {
    let (to, _origin) = origin(echo).await;
    let name = TargetAddr::Domain("localhost".to_owned(), to.port());
    let (tunnel, mut session) = their_client(Methods::NONE, None, name).await;
    converse(&mut tunnel.unwrap().0).await;
    assert_eq!(
        session.line().await,
        format!(
            "anyone CONNECT localhost:{} 0 18/18 client-finished",
            to.port()
        )
    );
}

#[tokio::test]
async fn their_client_our_server_over_ipv6() {
    let Ok(listener) = TcpListener::bind((Ipv6Addr::LOCALHOST, 0)).await else {
        return; // no IPv6 on this machine
    };
    let (to, _origin) = origin_on(listener, echo);
    let (tunnel, _session) = their_client(Methods::NONE, None, TargetAddr::Ip(to)).await;
    let (mut tunnel, bound) = tunnel.unwrap();
    assert!(matches!(bound, TargetAddr::Ip(SocketAddr::V6(_))));
    converse(&mut tunnel).await;
}

#[tokio::test]
async fn their_client_understands_our_refusals() {
    for (name, reply) in [
        ("forbidden.test", "ConnectionNotAllowed"),
        ("missing.test", "HostUnreachable"),
        ("busy.test", "GeneralFailure"),
    ] {
        let to = TargetAddr::Domain(name.to_owned(), 80);
        let (tunnel, _session) = their_client(Methods::NONE, None, to).await;
        let error = tunnel.map(drop).unwrap_err();
        let SocksError::ReplyError(code) = error else {
            panic!("{name}: {error:?}");
        };
        assert_eq!(format!("{code:?}"), reply, "{name}");
    }
    let to = TargetAddr::Domain("localhost".to_owned(), 80);
    let (tunnel, _session) = their_client(Methods::PASSWORD, None, to.clone()).await;
    let error = tunnel.map(drop).unwrap_err();
    assert!(
        matches!(error, SocksError::AuthMethodUnacceptable(_)),
        "{error:?}"
    );
    let wrong = AuthenticationMethod::Password {
        username: "alice".to_owned(),
        password: "wrong".to_owned(),
    };
    let (tunnel, _session) = their_client(Methods::PASSWORD, Some(wrong), to).await;
    let error = tunnel.map(drop).unwrap_err();
    assert!(
        matches!(error, SocksError::AuthenticationRejected(_)),
        "{error:?}"
    );
}

/// Their server protocol for one client: replies `code`, then echoes.
async fn their_server(
    password: bool,
    code: ReplyError,
) -> (SocketAddr, tokio::task::JoinHandle<Option<String>>) {
    origin(async move |stream: TcpStream| {
        let protocol: Socks5ServerProtocol<TcpStream, Authenticated> = match password {
            false => Socks5ServerProtocol::accept_no_auth(stream).await.ok()?,
            true => {
                let check = |user: String, password: String| {
                    (user == "alice" && password == "secret").then_some(())
                };
                let accepted = Socks5ServerProtocol::accept_password_auth(stream, check);
                accepted.await.ok()?.0
            }
        };
        let (protocol, command, target) = protocol.read_command().await.ok()?;
        assert_eq!(command, Socks5Command::TCPConnect);
        match code {
            ReplyError::Succeeded => {
                let bound = "192.0.2.1:4711".parse().unwrap();
                echo(protocol.reply_success(bound).await.ok()?).await;
            }
            refusal => protocol.reply_error(&refusal).await.ok()?,
        }
        Some(target.to_string())
    })
    .await
}

/// Our client over a connection to `server`.
async fn our_client(
    server: SocketAddr,
    mut handshake: ClientHandshake<'_>,
) -> Result<(TcpStream, SocketAddr), DriveError<ClientError>> {
    let mut stream = TcpStream::connect(server).await.unwrap();
    let mut input = BytesMut::new();
    let bound = soon(drive(&mut stream, &mut input, &mut handshake)).await?;
    assert!(input.is_empty());
    Ok((stream, bound))
}

#[tokio::test]
async fn our_client_their_server() {
    let login = Credentials {
        user: b"alice",
        password: b"secret",
    };
    for text in ["example.com:443", "192.0.2.7:80", "[2001:db8::1]:8080"] {
        for password in [false, true] {
            let (server, served) = their_server(password, ReplyError::Succeeded).await;
            let to = Target::parse(text, None).unwrap();
            let handshake = match password {
                true => ClientHandshake::v5_login(to, login).unwrap(),
                false => ClientHandshake::v5(to),
            };
            let (mut stream, bound) = our_client(server, handshake).await.unwrap();
            assert_eq!(bound.to_string(), "192.0.2.1:4711");
            converse(&mut stream).await;
            let seen = soon(served).await.unwrap().unwrap();
            let seen = TargetBuf::from(Target::parse(&seen, None).unwrap());
            assert_eq!(seen, TargetBuf::from(to));
        }
    }
}

#[tokio::test]
async fn our_client_understands_their_refusals() {
    let to = Target::parse("example.com:443", None).unwrap();
    for (refusal, code) in [
        (ReplyError::GeneralFailure, ReplyCode::GENERAL_FAILURE),
        (ReplyError::ConnectionRefused, ReplyCode::REFUSED),
        (ReplyError::TtlExpired, ReplyCode::TTL_EXPIRED),
        (
            ReplyError::CommandNotSupported,
            ReplyCode::COMMAND_UNSUPPORTED,
        ),
    ] {
        let (server, _served) = their_server(false, refusal).await;
        let error = our_client(server, ClientHandshake::v5(to))
            .await
            .unwrap_err();
        assert!(
            matches!(error, DriveError::Handshake(ClientError::Refused(seen)) if seen == code),
            "{error:?}"
        );
    }
    let wrong = Credentials {
        user: b"alice",
        password: b"wrong",
    };
    let (server, _served) = their_server(true, ReplyError::Succeeded).await;
    let handshake = ClientHandshake::v5_login(to, wrong).unwrap();
    let error = our_client(server, handshake).await.unwrap_err();
    assert!(
        matches!(error, DriveError::Handshake(ClientError::LoginRefused(_))),
        "{error:?}"
    );
    let (server, _served) = their_server(true, ReplyError::Succeeded).await;
    let error = our_client(server, ClientHandshake::v5(to))
        .await
        .unwrap_err();
    assert!(
        matches!(
            error,
            DriveError::Handshake(ClientError::NoAcceptableMethod)
        ),
        "{error:?}"
    );
}

#[tokio::test]
async fn our_client_our_server() {
    for version in [4, 5] {
        for host in ["127.0.0.1", "localhost"] {
            let (to, _origin) = origin(echo).await;
            let text = format!("{host}:{}", to.port());
            let to = Target::parse(&text, None).unwrap();
            let mut session = tcp(|_| ()).await;
            let mut handshake = match version {
                4 => ClientHandshake::v4(to, b"me").unwrap(),
                _ => ClientHandshake::v5(to),
            };
            let mut input = BytesMut::new();
            let bound = soon(drive(&mut session.client, &mut input, &mut handshake)).await;
            assert_eq!(bound.unwrap().ip().to_string(), "127.0.0.1");
            converse(&mut session.client).await;
            let code = if version == 4 { 90 } else { 0 };
            assert_eq!(
                session.line().await,
                format!("anyone CONNECT {text} {code} 18/18 client-finished")
            );
        }
    }
}
