//! Handshakes that succeed, and those that must fail in the right way.

mod common;

use std::sync::Arc;
use std::time::Duration;

use common::{
    ALL, Change, Identity, TLS12, TLS13, bounded, changed_pipe, localhost, pattern, pipe,
};
use proptest::prelude::*;
use proxy_core::{ConnectError, ConnectErrorKind};
use proxy_tls::rustls::{self, AlertDescription, HandshakeKind, ProtocolVersion};
use proxy_tls::{
    Acceptor, PostQuantum, Reloadable, SingleCertificate, SniMap, TlsErrorKind, TlsOptions,
    TlsStream, provider,
};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

fn options() -> TlsOptions {
    TlsOptions::default()
}

async fn ping_pong(
    mut a: impl AsyncReadExt + AsyncWriteExt + Unpin,
    mut b: impl AsyncReadExt + AsyncWriteExt + Unpin,
) {
    for (n, size) in [1, 1000, 40_000].into_iter().enumerate() {
        let data = pattern(size, n as u64);
        let mut got = vec![0; size];
        let send = async {
            a.write_all(&data).await?;
            a.flush().await
        };
        let (sent, read) = tokio::join!(send, b.read_exact(&mut got));
        sent.expect("sent");
        read.expect("read");
        assert_eq!(got, data);
        let mut got = vec![0; size];
        let send = async {
            b.write_all(&data).await?;
            b.flush().await
        };
        let (sent, read) = tokio::join!(send, a.read_exact(&mut got));
        sent.expect("sent");
        read.expect("read");
        assert_eq!(got, data);
    }
}

#[tokio::test]
async fn both_sides_of_ours() {
    let id = Identity::localhost();
    let (acceptor, connector) = (id.acceptor(&options()), id.connector(&options()));
    let (client, server) = pipe(64 * 1024);
    let (client, server) = bounded(async {
        tokio::join!(
            connector.connect(localhost(), client),
            acceptor.accept(server)
        )
    })
    .await;
    let (client, server) = (client.expect("connected"), server.expect("accepted"));
    assert_eq!(client.alpn(), Some(&b"http/1.1"[..]));
    assert_eq!(server.alpn(), Some(&b"http/1.1"[..]));
    assert_eq!(client.server_name(), Some("localhost"));
    assert_eq!(server.server_name(), Some("localhost"));
    assert!(format!("{server:?}").contains("localhost"));
    bounded(ping_pong(client, server)).await;
}

#[tokio::test]
async fn an_independent_client() {
    let id = Identity::localhost();
    let acceptor = id.acceptor(&options());
    for (versions, expected) in [
        (TLS13, ProtocolVersion::TLSv1_3),
        (TLS12, ProtocolVersion::TLSv1_2),
    ] {
        let (client, server) = pipe(64 * 1024);
        let connector = id.client(versions, &["http/1.1"]);
        let (client, server) = bounded(async {
            tokio::join!(
                connector.connect(localhost(), client),
                acceptor.accept(server)
            )
        })
        .await;
        let (client, server) = (client.expect("connected"), server.expect("accepted"));
        assert_eq!(client.get_ref().1.protocol_version(), Some(expected));
        assert_eq!(client.get_ref().1.alpn_protocol(), Some(&b"http/1.1"[..]));
        bounded(ping_pong(client, server)).await;
    }
}

#[tokio::test]
async fn an_independent_server() {
    let id = Identity::localhost();
    let (acceptor, connector) = (id.server(), id.connector(&options()));
    let (client, server) = pipe(64 * 1024);
    let (client, server) = bounded(async {
        tokio::join!(
            connector.connect(localhost(), client),
            acceptor.accept(server)
        )
    })
    .await;
    bounded(ping_pong(
        client.expect("connected"),
        server.expect("accepted"),
    ))
    .await;
}

#[tokio::test]
async fn our_order_of_suites_and_groups() {
    use rustls::CipherSuite::{TLS13_AES_128_GCM_SHA256, TLS13_AES_256_GCM_SHA384};
    use rustls::NamedGroup::{X25519, X25519MLKEM768};
    let id = Identity::localhost();
    for (post_quantum, group) in [
        (PostQuantum::Omit, X25519),
        (PostQuantum::Prefer, X25519MLKEM768),
    ] {
        let pair = Arc::new(SingleCertificate::new(id.pair()));
        let acceptor = Acceptor::new(provider(post_quantum), pair, &options()).expect("acceptor");
        // A client with the default order: AES-256 first, hybrid offered.
        let mut theirs = rustls::crypto::aws_lc_rs::default_provider();
        theirs.kx_groups = provider(PostQuantum::Prefer).kx_groups.clone();
        assert_eq!(theirs.cipher_suites[0].suite(), TLS13_AES_256_GCM_SHA384);
        let config = rustls::ClientConfig::builder_with_provider(Arc::new(theirs))
            .with_protocol_versions(ALL)
            .expect("known versions")
            .with_root_certificates(id.roots())
            .with_no_client_auth();
        let connector = tokio_rustls::TlsConnector::from(Arc::new(config));
        let (client, server) = pipe(64 * 1024);
        let (client, server) = bounded(async {
            tokio::join!(
                connector.connect(localhost(), client),
                acceptor.accept(server)
            )
        })
        .await;
        server.expect("accepted");
        let client = client.expect("connected");
        let (_, state) = client.get_ref();
        let suite = state.negotiated_cipher_suite().expect("negotiated");
        assert_eq!(suite.suite(), TLS13_AES_128_GCM_SHA256);
        let negotiated = state.negotiated_key_exchange_group().expect("negotiated");
        assert_eq!(negotiated.name(), group);
    }
}

#[tokio::test]
async fn sessions_are_resumed_by_ticket() {
    let id = Identity::localhost();
    let acceptor = id.acceptor(&options());
    for versions in [TLS13, TLS12] {
        let connector = id.client(versions, &[]);
        let mut kinds = Vec::new();
        for _ in 0..2 {
            let (client, server) = pipe(64 * 1024);
            let serve = async {
                let mut server = acceptor.accept(server).await.expect("accepted");
                server.write_all(b"hi").await.expect("sent");
                server.shutdown().await.expect("closed");
            };
            let ask = async {
                let mut client = connector
                    .connect(localhost(), client)
                    .await
                    .expect("connected");
                client.read_to_end(&mut Vec::new()).await.expect("closed");
                client.get_ref().1.handshake_kind()
            };
            kinds.push(bounded(async { tokio::join!(serve, ask).1 }).await);
        }
        assert_eq!(
            kinds,
            [Some(HandshakeKind::Full), Some(HandshakeKind::Resumed)]
        );
    }
}

#[tokio::test]
async fn a_connector_resumes() {
    let id = Identity::localhost();
    let (acceptor, connector) = (id.server(), id.connector(&options()));
    let mut kinds = Vec::new();
    for _ in 0..2 {
        let (client, server) = pipe(64 * 1024);
        let serve = async {
            let mut server = acceptor.accept(server).await.expect("accepted");
            server.write_all(b"hi").await.expect("sent");
            server.shutdown().await.expect("closed");
            server.get_ref().1.handshake_kind()
        };
        let ask = async {
            let client = connector.connect(localhost(), client).await;
            let mut client = client.expect("connected");
            client.read_to_end(&mut Vec::new()).await.expect("closed");
        };
        kinds.push(bounded(async { tokio::join!(serve, ask).0 }).await);
    }
    assert_eq!(
        kinds,
        [Some(HandshakeKind::Full), Some(HandshakeKind::Resumed)]
    );
}

#[tokio::test]
async fn protocols_by_alpn() {
    let id = Identity::localhost();
    let mut both = options();
    both.alpn(["h2", "http/1.1"]);
    let mut none = options();
    none.alpn::<&str>([]);
    for (ours, theirs, expected) in [
        (options(), &["h2", "http/1.1"][..], Ok(Some("http/1.1"))),
        (both, &["http/1.1", "h2"], Ok(Some("h2"))),
        (options(), &[], Ok(None)),
        (options(), &["h2"], Err(())),
        (none, &["h2"], Ok(None)),
    ] {
        let (client, server) = pipe(64 * 1024);
        let (acceptor, connector) = (id.acceptor(&ours), id.client(ALL, theirs));
        let (client, server) = bounded(async {
            tokio::join!(
                connector.connect(localhost(), client),
                acceptor.accept(server)
            )
        })
        .await;
        match expected {
            Ok(alpn) => {
                client.expect("connected");
                let server = server.expect("accepted");
                assert_eq!(server.alpn(), alpn.map(str::as_bytes));
            }
            Err(()) => {
                // RFC 7301 section 3.2: the client is told why.
                let error = client.expect_err("refused");
                let told = error.downcast::<rustls::Error>().expect("an alert");
                let alert = AlertDescription::NoApplicationProtocol;
                assert_eq!(told, rustls::Error::AlertReceived(alert));
                let kind = server.expect_err("refused").kind;
                assert!(matches!(kind, TlsErrorKind::Protocol(_)), "{kind}");
            }
        }
    }
}

#[tokio::test]
async fn p76_hello_in_any_records_and_byte_by_byte() {
    let id = Identity::localhost();
    let acceptor = id.acceptor(&options());
    // A pipe of one byte cuts everything after each byte.
    for (room, size) in [(1, 10_000), (64 * 1024, 1), (64 * 1024, 100), (7, 30)] {
        let (client, server) = changed_pipe(room, Change::Records(size), Change::None);
        let connector = id.client(ALL, &["http/1.1"]);
        let (client, server) = bounded(async {
            tokio::join!(
                connector.connect(localhost(), client),
                acceptor.accept(server)
            )
        })
        .await;
        let (client, server) = (client.expect("connected"), server.expect("accepted"));
        assert_eq!(server.server_name(), Some("localhost"));
        bounded(ping_pong(client, server)).await;
    }
}

#[tokio::test(start_paused = true)]
async fn p74_a_handshake_has_a_deadline() {
    let id = Identity::localhost();
    let hello = include_bytes!("data/openssl.bin");
    for sent in [0, 1, 5, 100, hello.len()] {
        let mut short = options();
        short.timeout(Duration::from_secs(3));
        let (mut client, server) = tokio::io::duplex(64 * 1024);
        client.write_all(&hello[..sent]).await.expect("room");
        let start = tokio::time::Instant::now();
        let acceptor = id.acceptor(&short);
        let error = acceptor
            .accept(common::Spy::new(server, Change::None))
            .await
            .expect_err("never finished");
        assert!(matches!(error.kind, TlsErrorKind::TimedOut), "{error}");
        assert_eq!(error.to_string(), "TLS handshake timed out");
        assert_eq!(start.elapsed(), Duration::from_secs(3));
        assert!(error.unread.is_empty());
    }
}

#[tokio::test]
async fn clear_text_can_be_answered_in_clear() {
    let id = Identity::localhost();
    let acceptor = id.acceptor(&options());
    let request = b"GET http://example.com/ HTTP/1.1\r\nHost: example.com\r\n\r\n";
    let (mut client, server) = pipe(64 * 1024);
    client.write_all(request).await.expect("sent");
    let error = bounded(acceptor.accept(server)).await.expect_err("not TLS");
    assert!(matches!(error.kind, TlsErrorKind::ClearText), "{error}");
    assert_eq!(error.unread, request);
    assert!(!format!("{error:?}").contains("example"));
    let mut server = error.stream;
    server
        .write_all(b"HTTP/1.1 400 Bad Request\r\n\r\n")
        .await
        .expect("sent");
    drop(server);
    let mut answer = String::new();
    client.read_to_string(&mut answer).await.expect("text");
    assert_eq!(answer, "HTTP/1.1 400 Bad Request\r\n\r\n");
}

#[tokio::test]
async fn other_protocols_and_early_ends() {
    let id = Identity::localhost();
    let acceptor = id.acceptor(&options());
    for (input, expected) in [
        (&b"\x05\x01\x00"[..], "not TLS"),
        (b"\x80\x2e\x01\x00\x02", "not TLS"),
        (b"ssh", "clear text instead of TLS"),
        (b"", "closed during the TLS handshake"),
        (b"\x16\x03\x01\x00", "closed during the TLS handshake"),
        (b"\x15\x03\x01\x00\x02\x02\x28", "TLS handshake failed: "),
        (b"\x16\x02\x01\x00\x02\x01\x00", "TLS handshake failed: "),
    ] {
        let (mut client, server) = pipe(64 * 1024);
        client.write_all(input).await.expect("sent");
        client.shutdown().await.expect("closed");
        let error = bounded(acceptor.accept(server)).await.expect_err("refused");
        let told = error.to_string();
        assert!(told.starts_with(expected), "{told}");
    }
}

#[tokio::test]
async fn a_malformed_hello_gets_an_alert() {
    let id = Identity::localhost();
    let acceptor = id.acceptor(&options());
    let mut hello = include_bytes!("data/openssl.bin").to_vec();
    // The length of the session identifier.
    hello[43] = 200;
    let (mut client, server) = pipe(64 * 1024);
    client.write_all(&hello).await.expect("sent");
    let error = bounded(acceptor.accept(server)).await.expect_err("refused");
    assert!(matches!(error.kind, TlsErrorKind::Protocol(_)), "{error}");
    drop(error);
    let mut answer = Vec::new();
    client.read_to_end(&mut answer).await.expect("an alert");
    // Fatal (2), decode_error (50).
    assert!(answer.starts_with(&[21, 3, 3, 0, 2, 2, 50]), "{answer:?}");
}

#[tokio::test]
async fn an_endless_handshake_is_refused() {
    let id = Identity::localhost();
    let acceptor = id.acceptor(&options());
    let (mut client, server) = pipe(64 * 1024);
    // A hello of 64 KiB, then one byte in each record.
    let flood = async {
        let record = [22, 3, 1, 0, 1, 0];
        client
            .write_all(&[22, 3, 1, 0, 4, 1, 0, 0xff, 0xff])
            .await?;
        loop {
            client.write_all(&record.repeat(1000)).await?;
        }
    };
    let accept = async { acceptor.accept(server).await.map_err(|error| error.kind) };
    let (_, result): (std::io::Result<()>, _) =
        bounded(async { tokio::join!(flood, accept) }).await;
    let kind = result.expect_err("refused");
    assert!(matches!(kind, TlsErrorKind::Protocol(_)), "{kind}");
}

#[tokio::test]
async fn an_untrusted_server() {
    let (id, other) = (Identity::localhost(), Identity::localhost());
    let (acceptor, connector) = (id.acceptor(&options()), other.connector(&options()));
    let (client, server) = pipe(64 * 1024);
    let (client, server) = bounded(async {
        tokio::join!(
            connector.connect(localhost(), client),
            acceptor.accept(server)
        )
    })
    .await;
    let error = client.expect_err("not trusted");
    assert!(error.to_string().contains("certificate"), "{error}");
    assert!(matches!(
        error.kind,
        TlsErrorKind::Protocol(rustls::Error::InvalidCertificate(_))
    ));
    assert_eq!(ConnectError::from(error).kind, ConnectErrorKind::Tls);
    // The server hears of it by alert.
    let kind = server.expect_err("refused").kind;
    assert!(
        matches!(
            kind,
            TlsErrorKind::Protocol(rustls::Error::AlertReceived(_))
        ),
        "{kind}"
    );
}

#[tokio::test]
async fn the_wrong_name() {
    let id = Identity::new(&["other.example"]);
    let (acceptor, connector) = (id.acceptor(&options()), id.connector(&options()));
    let (client, server) = pipe(64 * 1024);
    let (client, _) = bounded(async {
        tokio::join!(
            connector.connect(localhost(), client),
            acceptor.accept(server)
        )
    })
    .await;
    let error = client.expect_err("another name");
    assert!(error.to_string().contains("other.example"), "{error}");
}

async fn shown(acceptor: &Acceptor, id: &Identity, name: &'static str) -> Result<(), String> {
    let (client, server) = pipe(64 * 1024);
    let connector = id.client(ALL, &[]);
    let name = name.try_into().expect("a name");
    let (client, _) =
        bounded(async { tokio::join!(connector.connect(name, client), acceptor.accept(server)) })
            .await;
    client.map(drop).map_err(|error| error.to_string())
}

#[tokio::test]
async fn certificates_by_name() {
    let (a, b, c) = (
        Identity::new(&["a.example"]),
        Identity::new(&["*.b.example"]),
        Identity::localhost(),
    );
    let mut map = SniMap::default();
    map.insert("A.example", a.pair())
        .insert("*.b.example.", b.pair());
    let strict = Acceptor::new(
        provider(PostQuantum::Omit),
        Arc::new(map.clone()),
        &options(),
    )
    .expect("an acceptor");
    map.default_pair(c.pair());
    let lenient =
        Acceptor::new(provider(PostQuantum::Omit), Arc::new(map), &options()).expect("an acceptor");
    for acceptor in [&strict, &lenient] {
        shown(acceptor, &a, "a.example").await.expect("exact");
        shown(acceptor, &b, "x.b.example").await.expect("wildcard");
        shown(acceptor, &b, "a.example").await.expect_err("another");
    }
    shown(&lenient, &c, "localhost").await.expect("the default");
    let told = shown(&strict, &c, "localhost").await.expect_err("unknown");
    assert!(told.contains("alert"), "{told}");
}

#[tokio::test]
async fn p77_a_swap_shows_at_the_next_handshake() {
    let (old, new) = (Identity::localhost(), Identity::localhost());
    let holder = Arc::new(Reloadable::new(Arc::new(SingleCertificate::new(
        old.pair(),
    ))));
    let acceptor = Acceptor::new(
        provider(PostQuantum::Omit),
        Arc::clone(&holder) as _,
        &options(),
    )
    .expect("an acceptor");
    shown(&acceptor, &old, "localhost").await.expect("the old");
    // A resumed session would not show anything: `shown` never resumes.
    let before = holder.swap(Arc::new(SingleCertificate::new(new.pair())));
    shown(&acceptor, &new, "localhost").await.expect("the new");
    shown(&acceptor, &old, "localhost").await.expect_err("gone");
    holder.swap(before);
    shown(&acceptor, &old, "localhost").await.expect("back");
}

#[tokio::test]
async fn sizes() {
    assert_eq!(size_of::<TlsStream<TcpStream>>(), size_of::<usize>());
    assert!(size_of::<proxy_tls::TlsError<TcpStream>>() <= 128);
    let id = Identity::localhost();
    let (acceptor, connector) = (id.acceptor(&options()), id.connector(&options()));
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("bound");
    let address = listener.local_addr().expect("an address");
    let (client, accepted) = tokio::join!(TcpStream::connect(address), listener.accept());
    let accept = acceptor.accept(accepted.expect("accepted").0);
    let connect = connector.connect(localhost(), client.expect("connected"));
    assert!(size_of_val(&accept) <= 512, "{}", size_of_val(&accept));
    assert!(size_of_val(&connect) <= 640, "{}", size_of_val(&connect));
    fn spawnable<F: Future + Send>(_: &F) {}
    spawnable(&accept);
    spawnable(&connect);
    let (client, server) = bounded(async { tokio::join!(connect, accept) }).await;
    bounded(ping_pong(
        client.expect("connected"),
        server.expect("accepted"),
    ))
    .await;
}

/// Spoils one byte of a handshake and says how both sides took it.
fn spoil(client: Change, server: Change) -> (Result<(), TlsErrorKind>, Result<(), TlsErrorKind>) {
    thread_local! {
        static ID: Identity = Identity::localhost();
    }
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_time()
        .start_paused(true)
        .build()
        .expect("a runtime");
    ID.with(|id| {
        let (acceptor, connector) = (id.acceptor(&options()), id.connector(&options()));
        runtime.block_on(async {
            let (client, server) = changed_pipe(64 * 1024, client, server);
            let connect = async {
                let mut client = connector.connect(localhost(), client).await?;
                // The server learns of the last flight when it reads.
                let _ = client.shutdown().await;
                Ok(())
            };
            let accept = async {
                let mut server = acceptor.accept(server).await?;
                let _ = server.read_to_end(&mut Vec::new()).await;
                Ok(())
            };
            let (connected, accepted) = tokio::join!(connect, accept);
            let kind = |error: proxy_tls::TlsError<_>| error.kind;
            (connected.map_err(kind), accepted.map_err(kind))
        })
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(150))]

    #[test]
    fn a_spoilt_byte_is_an_error_on_one_side(
        at in 0usize..1000,
        bits in 1u8..,
        ours: bool,
    ) {
        let flip = Change::Flip(at, bits);
        let (connected, accepted) = match ours {
            true => spoil(flip, Change::None),
            false => spoil(Change::None, flip),
        };
        // The record version is not checked or protected, and the flights may
        // be shorter than 1,000 bytes; nothing else goes unnoticed.
        if connected.is_ok() && accepted.is_ok() {
            prop_assert!(at == 2 || at > 200, "{at}");
        }
    }
}
