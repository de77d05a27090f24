//! The server, with raw bytes over loopback and in memory.
#![cfg(feature = "serve")]
#![allow(clippy::unwrap_used, reason = "a panic is how a test fails")]

mod support;

use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};
use std::time::Duration;

use proxy_core::{End, Peer, Shaping, Stop, Timeouts};
use proxy_relay::Transport;
use proxy_socks::{Methods, ServeError, Server};
use support::{
    Direct, echo, exactly, greeting, listen, mem, origin, origin_on, refusal, refusing, request,
    request_name, request4, rest, send, soon, tcp,
};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

const LOGIN: &[u8] = b"\x01\x05alice\x06secret";

/// Each way to ask for the origin, with the answers before the tunnel and the
/// length of the last reply.
fn ways(to: SocketAddr) -> Vec<(Methods, Vec<u8>, &'static [u8], usize)> {
    let port = to.port();
    let none = greeting(0);
    let password = greeting(2);
    vec![
        (
            Methods::NONE,
            [&none[..], &request(to)].concat(),
            b"\x05\x00",
            10,
        ),
        (
            Methods::NONE,
            [&none[..], &request_name("localhost", port)].concat(),
            b"\x05\x00",
            10,
        ),
        (
            Methods::PASSWORD,
            [&password[..], LOGIN, &request(to)].concat(),
            b"\x05\x02\x01\x00",
            10,
        ),
        (Methods::NONE, request4(port, None), b"", 8),
        (Methods::ANY, request4(port, Some("localhost")), b"", 8),
    ]
}

#[tokio::test]
async fn p41_everything_in_one_segment() {
    for way in 0..5 {
        let (to, _origin) = origin(echo).await;
        let (methods, wire, answers, reply) = ways(to).swap_remove(way);
        let mut session = tcp(|config| _ = config.methods(methods)).await;
        send(&mut session.client, &[&wire[..], b"early"].concat()).await;
        session.client.shutdown().await.unwrap();
        let got = rest(&mut session.client).await;
        assert!(got.starts_with(answers), "{got:?}");
        assert_eq!(got.len(), answers.len() + reply + 5);
        assert!(got.ends_with(b"early"), "{got:?}");
        assert!(
            session.line().await.ends_with("5/5 client-finished"),
            "{:?}",
            session.gateway.log()
        );
    }
}

#[tokio::test]
async fn byte_by_byte() {
    for way in 0..5 {
        let (to, _origin) = origin(echo).await;
        let (methods, wire, answers, reply) = ways(to).swap_remove(way);
        let mut session = tcp(|config| _ = config.methods(methods)).await;
        for byte in wire {
            send(&mut session.client, &[byte]).await;
            tokio::task::yield_now().await;
        }
        let mut got = vec![0; answers.len() + reply];
        soon(session.client.read_exact(&mut got)).await.unwrap();
        assert!(got.starts_with(answers), "{got:?}");
        send(&mut session.client, b"x").await;
        assert_eq!(exactly(&mut session.client).await, *b"x");
        drop(session.client);
    }
}

/// A tunnel to `to`, after the handshake.
async fn tunnel(to: SocketAddr) -> support::Session<TcpStream> {
    let mut session = tcp(|_| ()).await;
    send(
        &mut session.client,
        &[&greeting(0)[..], &request(to)].concat(),
    )
    .await;
    let got: [u8; 12] = exactly(&mut session.client).await;
    assert_eq!(got[..4], [5, 0, 5, 0], "{got:?}");
    session
}

#[tokio::test]
async fn p41_early_data_larger_than_one_read() {
    let (to, _origin) = origin(echo).await;
    let early: Vec<u8> = (0..=250).cycle().take(300_000).collect();
    let wire = [&greeting(0)[..], &request(to), &early].concat();
    let mut session = tcp(|_| ()).await;
    let (mut reader, mut writer) = session.client.split();
    let (got, ()) = tokio::join!(rest(&mut reader), async {
        send(&mut writer, &wire).await;
        writer.shutdown().await.unwrap();
    });
    assert_eq!(got[12..], early);
}

#[tokio::test]
async fn p41_a_server_that_speaks_first() {
    let (to, _origin) = origin(async |mut stream: TcpStream| {
        stream.write_all(b"220 hello").await.unwrap();
        echo(stream).await;
    })
    .await;
    let mut session = tunnel(to).await;
    assert_eq!(exactly(&mut session.client).await, *b"220 hello");
}

#[tokio::test]
async fn p44_half_close_keeps_the_other_direction() {
    let (to, _origin) = origin(async |mut stream: TcpStream| {
        let question = rest(&mut stream).await;
        stream.write_all(&question).await.unwrap();
        stream.write_all(&[b'r'; 50_000]).await.unwrap();
    })
    .await;
    let mut session = tunnel(to).await;
    send(&mut session.client, b"question").await;
    session.client.shutdown().await.unwrap();
    let got = rest(&mut session.client).await;
    assert_eq!(got.len(), 8 + 50_000);
    assert!(got.starts_with(b"question"));
    assert_eq!(
        session.line().await,
        format!("anyone CONNECT {to} 0 8/50008 client-finished")
    );
}

#[tokio::test]
async fn p44_half_close_by_the_origin() {
    let (to, origin) = origin(async |mut stream: TcpStream| {
        stream.write_all(b"all").await.unwrap();
        stream.shutdown().await.unwrap();
        rest(&mut stream).await
    })
    .await;
    let mut session = tunnel(to).await;
    assert_eq!(rest(&mut session.client).await, b"all");
    send(&mut session.client, b"late").await;
    session.client.shutdown().await.unwrap();
    assert_eq!(soon(origin).await.unwrap(), b"late");
    assert_eq!(
        session.line().await,
        format!("anyone CONNECT {to} 0 4/3 origin-finished")
    );
}

#[tokio::test]
async fn p60_bnd_is_the_address_that_the_origin_sees() {
    let mut listeners = vec![(listen().await, 1)];
    if let Ok(six) = TcpListener::bind((Ipv6Addr::LOCALHOST, 0)).await {
        listeners.push((six, 4));
    }
    for (listener, kind) in listeners {
        let (to, origin) = origin_on(listener, async |stream: TcpStream| {
            stream.peer_addr().unwrap()
        });
        let mut session = tcp(|_| ()).await;
        send(
            &mut session.client,
            &[&greeting(0)[..], &request(to)].concat(),
        )
        .await;
        let got = rest(&mut session.client).await;
        let seen = soon(origin).await.unwrap();
        assert_eq!(got[2..6], [5, 0, 0, kind]);
        let bound = match kind {
            1 => SocketAddr::from((
                Ipv4Addr::from(<[u8; 4]>::try_from(&got[6..10]).unwrap()),
                u16::from_be_bytes(got[10..].try_into().unwrap()),
            )),
            _ => SocketAddr::from((
                Ipv6Addr::from(<[u8; 16]>::try_from(&got[6..22]).unwrap()),
                u16::from_be_bytes(got[22..].try_into().unwrap()),
            )),
        };
        assert_eq!(bound, seen);
    }
}

#[tokio::test]
async fn p60_a_refused_port_is_05() {
    let (_socket, port) = refusing().await;
    let to = SocketAddr::from((Ipv4Addr::LOCALHOST, port));
    let mut session = tcp(|_| ()).await;
    send(
        &mut session.client,
        &[&greeting(0)[..], &request(to)].concat(),
    )
    .await;
    let got = rest(&mut session.client).await;
    assert_eq!(got, [&[5, 0][..], &refusal(5)].concat());
    drop(session.client.shutdown().await);
    assert_eq!(
        session.line().await,
        format!("anyone CONNECT {to} 5 0/0 connect-failed")
    );
    assert!(session.served.is_finished());

    let mut session = tcp(|_| ()).await;
    send(&mut session.client, &request4(port, None)).await;
    assert_eq!(rest(&mut session.client).await, [0, 0x5b, 0, 0, 0, 0, 0, 0]);
}

#[tokio::test]
async fn p60_each_refusal_has_its_code_and_report() {
    for (name, five, four, report) in [
        ("busy.test", 1, 0x5b, "0/0 busy (no session)"),
        ("challenge.test", 2, 0x5d, "0/0 challenged (no session)"),
        ("forbidden.test", 2, 0x5b, "0/0 forbidden (no session)"),
        (
            "unroutable.test",
            4,
            0x5b,
            "0/0 connect-failed (no session)",
        ),
        ("missing.test", 4, 0x5b, "0/0 connect-failed"),
    ] {
        let mut session = tcp(|_| ()).await;
        let wire = [&greeting(0)[..], &request_name(name, 80)].concat();
        send(&mut session.client, &wire).await;
        session.client.shutdown().await.unwrap();
        let got = rest(&mut session.client).await;
        assert_eq!(got, [&[5, 0][..], &refusal(five)].concat(), "{name}");
        assert_eq!(
            session.line().await,
            format!("anyone CONNECT {name}:80 {five} {report}")
        );

        let mut session = tcp(|_| ()).await;
        send(&mut session.client, &request4(80, Some(name))).await;
        session.client.shutdown().await.unwrap();
        assert_eq!(
            rest(&mut session.client).await,
            [0, four, 0, 0, 0, 0, 0, 0],
            "{name}"
        );
        assert_eq!(
            session.line().await,
            format!("anyone CONNECT {name}:80 {four} {report}")
        );
    }
}

#[tokio::test]
async fn what_is_not_offered_is_07() {
    for (command, word, end) in [
        (2, "BIND a:80", "forbidden"),
        (3, "ASSOCIATE a:80", "forbidden"),
        (9, "- -", "bad-request"),
    ] {
        let mut wire = request_name("a", 80);
        wire[1] = command;
        let mut session = tcp(|_| ()).await;
        send(&mut session.client, &[&greeting(0)[..], &wire].concat()).await;
        session.client.shutdown().await.unwrap();
        let got = rest(&mut session.client).await;
        assert_eq!(got, [&[5, 0][..], &refusal(7)].concat());
        let who = if command == 9 { "-" } else { "anyone" };
        assert_eq!(
            session.line().await,
            format!("{who} {word} 7 0/0 {end} (no session)")
        );
    }
}

#[tokio::test]
async fn handshakes_that_fail() {
    let any = Methods::ANY;
    let password = Methods::PASSWORD;
    for (methods, wire, answer, line) in [
        (
            password,
            &b"\x05\x01\x02\x01\x05alice\x05wrong"[..],
            &b"\x05\x02\x01\x01"[..],
            "- - - 1 0/0 challenged (no session)",
        ),
        (
            password,
            b"\x05\x01\x02\x01\x05alice\x07secret\0",
            b"\x05\x02\x01\x01",
            "- - - 1 0/0 challenged (no session)",
        ),
        (
            password,
            b"\x05\x01\x02\x01\x04busy\x01x",
            b"\x05\x02\x01\x01",
            "- - - 1 0/0 busy (no session)",
        ),
        (
            password,
            b"\x05\x01\x00",
            b"\x05\xff",
            "- - - 255 0/0 challenged (no session)",
        ),
        (
            any,
            b"\x05\x00",
            b"\x05\xff",
            "- - - 255 0/0 challenged (no session)",
        ),
        (
            password,
            b"\x04\x01\x00\x50\x7f\x00\x00\x01me\0",
            b"\x00\x5d\0\0\0\0\0\0",
            "- - - 93 0/0 challenged (no session)",
        ),
        (
            any,
            b"\x05\x01\x00\x04",
            b"\x05\x00\x05\x01\x00\x01\0\0\0\0\0\0",
            "- - - 1 0/0 bad-request (no session)",
        ),
        (
            any,
            b"GET / HTTP/1.1\r\n\r\n",
            b"",
            "- - - - 0/0 bad-request (no session)",
        ),
        (
            any,
            b"\x05\x01\x00\x05\x01",
            b"\x05\x00",
            "- - - - 0/0 bad-request (no session)",
        ),
    ] {
        let mut session = tcp(|config| _ = config.methods(methods)).await;
        send(&mut session.client, wire).await;
        session.client.shutdown().await.unwrap();
        assert_eq!(rest(&mut session.client).await, answer, "{wire:?}");
        assert_eq!(session.line().await, line, "{wire:?}");
    }
}

#[tokio::test]
async fn a_reset_in_the_handshake_is_told_from_its_end() {
    let mut session = tcp(|_| ()).await;
    send(&mut session.client, &greeting(0)).await;
    assert_eq!(exactly(&mut session.client).await, [5, 0]);
    session.client.abort();
    let support::Session {
        client,
        served,
        gateway,
    } = session;
    drop(client);
    let result = soon(served).await.unwrap();
    assert!(matches!(result, Err(ServeError::Client(_))), "{result:?}");
    assert_eq!(gateway.log(), ["- - - - 0/0 client-reset (no session)"]);
}

#[tokio::test]
async fn a_password_is_asked_for_only_if_there_must_be_one() {
    for (methods, offer, answer, user) in [
        (Methods::ANY, &b"\x05\x02\x00\x02"[..], 0, "anyone"),
        (Methods::ANY, b"\x05\x01\x02", 2, "alice"),
        (Methods::PASSWORD, b"\x05\x02\x00\x02", 2, "alice"),
    ] {
        let (to, _origin) = origin(echo).await;
        let mut session = tcp(|config| _ = config.methods(methods)).await;
        send(&mut session.client, offer).await;
        assert_eq!(exactly(&mut session.client).await, [5, answer]);
        if answer == 2 {
            send(&mut session.client, LOGIN).await;
            assert_eq!(exactly(&mut session.client).await, [1, 0]);
        }
        send(&mut session.client, &request(to)).await;
        session.client.shutdown().await.unwrap();
        assert_eq!(rest(&mut session.client).await[..2], [5, 0]);
        assert_eq!(
            session.line().await,
            format!("{user} CONNECT {to} 0 0/0 client-finished")
        );
    }
}

#[tokio::test]
async fn p61_an_endless_user_id_is_cut_off_with_an_answer() {
    let mut session = tcp(|_| ()).await;
    let mut wire = request4(9, None);
    wire.pop();
    wire.extend([b'u'; 200_000]);
    send(&mut session.client, &wire).await;
    // The reply must survive all the bytes that nobody asked for.
    assert_eq!(rest(&mut session.client).await, [0, 0x5b, 0, 0, 0, 0, 0, 0]);
    drop(session.client);
    let line = session.gateway.log().pop();
    assert_eq!(
        line.as_deref(),
        Some("- - - 91 0/0 bad-request (no session)")
    );
}

#[tokio::test]
async fn a_client_that_says_nothing_leaves_no_report() {
    let mut session = tcp(|_| ()).await;
    session.client.shutdown().await.unwrap();
    assert_eq!(rest(&mut session.client).await, b"");
    assert!(matches!(session.result().await, Err(ServeError::Closed)));
    assert!(session.gateway.log().is_empty());
}

fn limited(head: u64, connect: u64) -> Timeouts {
    let mut timeouts = Timeouts::default();
    timeouts.head = Some(Duration::from_secs(head));
    timeouts.connect = Some(Duration::from_secs(connect));
    timeouts
}

#[tokio::test(start_paused = true)]
async fn p62_single_bytes_do_not_renew_the_deadline() {
    let start = tokio::time::Instant::now();
    let mut session = mem(|config| _ = config.timeouts(limited(10, 10)));
    let mut wire = request_name("example.com", 80);
    wire.splice(..0, greeting(0));
    for byte in wire {
        if session.client.write_all(&[byte]).await.is_err() {
            break;
        }
        tokio::time::sleep(Duration::from_secs(3)).await;
    }
    assert!(matches!(session.result().await, Err(ServeError::TimedOut)));
    assert!(start.elapsed() < Duration::from_secs(14));
    assert_eq!(
        session.gateway.log(),
        ["- - - - 0/0 client-timeout (no session)"]
    );
}

#[tokio::test(start_paused = true)]
async fn p62_a_silent_client_is_closed() {
    let mut session = mem(|config| _ = config.timeouts(limited(10, 10)));
    assert_eq!(rest(&mut session.client).await, b"");
    assert!(matches!(session.result().await, Err(ServeError::TimedOut)));
    assert!(session.gateway.log().is_empty());
}

#[tokio::test(start_paused = true)]
async fn p40_p60_success_waits_for_the_target_and_a_timeout_is_06() {
    let mut session = mem(|config| _ = config.timeouts(limited(10, 20)));
    let wire = [&greeting(0)[..], &request_name("never.test", 80)].concat();
    send(&mut session.client, &wire).await;
    assert_eq!(exactly(&mut session.client).await, [5, 0]);
    let early = tokio::time::timeout(Duration::from_secs(15), session.client.read_u8()).await;
    early.expect_err("an answer before the target was reached");
    assert_eq!(session.gateway.dialling(), 1);
    assert_eq!(rest(&mut session.client).await, refusal(6));
    assert_eq!(session.gateway.dialling(), 0);
    drop(session.client.shutdown().await);
    let _ = session.served.await;
    assert_eq!(
        session.gateway.log(),
        ["anyone CONNECT never.test:80 6 0/0 connect-timeout"]
    );
}

#[tokio::test(start_paused = true)]
async fn a_refused_client_may_finish_sending() {
    let start = tokio::time::Instant::now();
    let mut session = mem(|_| ());
    let wire = [&greeting(0)[..], &request_name("missing.test", 80)].concat();
    send(&mut session.client, &wire).await;
    assert_eq!(rest(&mut session.client).await.len(), 12);
    // Closed now, the connection would be reset, and the reply with it.
    send(&mut session.client, b"what was on its way").await;
    session.client.shutdown().await.unwrap();
    session.result().await.unwrap();
    assert_eq!(start.elapsed(), Duration::ZERO);
}

#[tokio::test(start_paused = true)]
async fn a_refused_client_that_does_not_close_is_not_kept() {
    let mut session = mem(|_| ());
    let wire = [&greeting(0)[..], &request_name("missing.test", 80)].concat();
    send(&mut session.client, &wire).await;
    let start = tokio::time::Instant::now();
    session.result().await.unwrap();
    assert!(start.elapsed() <= Duration::from_secs(3));
    assert_eq!(rest(&mut session.client).await.len(), 12);
}

/// A client whose request hangs in the dial.
async fn dialling() -> support::Session<TcpStream> {
    let mut session = tcp(|_| ()).await;
    let wire = [&greeting(0)[..], &request_name("never.test", 80)].concat();
    send(&mut session.client, &wire).await;
    assert_eq!(exactly(&mut session.client).await, [5, 0]);
    soon(async {
        while session.gateway.dialling() == 0 {
            tokio::task::yield_now().await;
        }
    })
    .await;
    session
}

#[tokio::test]
async fn p33_a_reset_cancels_the_dial() {
    let mut session = dialling().await;
    session.client.abort();
    let support::Session {
        client,
        served,
        gateway,
    } = session;
    drop(client);
    let result = soon(served).await.unwrap();
    assert!(matches!(result, Err(ServeError::Closed)), "{result:?}");
    assert_eq!(gateway.dialling(), 0);
    assert_eq!(
        gateway.log(),
        ["anyone CONNECT never.test:80 - 0/0 client-reset"]
    );
}

#[tokio::test]
async fn p33_a_half_close_is_no_reset() {
    let mut session = dialling().await;
    session.client.shutdown().await.unwrap();
    for _ in 0..1000 {
        tokio::task::yield_now().await;
    }
    assert_eq!(session.gateway.dialling(), 1);
    session.served.abort();
}

#[tokio::test]
async fn a_dropped_future_reports_too() {
    let mut session = dialling().await;
    session.served.abort();
    assert!(soon(&mut session.served).await.unwrap_err().is_cancelled());
    assert_eq!(
        session.gateway.log(),
        ["anyone CONNECT never.test:80 - 0/0 stopped"]
    );
    assert_eq!(rest(&mut session.client).await, b"");
}

#[tokio::test]
async fn a_stop_ends_handshakes_dials_and_tunnels() {
    for stage in 0..3 {
        let (to, _origin) = origin(echo).await;
        let stop = Stop::new();
        let mut session = tcp(|config| _ = config.stop(stop.clone())).await;
        send(&mut session.client, &greeting(0)).await;
        assert_eq!(exactly(&mut session.client).await, [5, 0]);
        let line = match stage {
            0 => "- - - - 0/0 drained (no session)".to_owned(),
            1 => {
                send(&mut session.client, &request_name("never.test", 80)).await;
                "anyone CONNECT never.test:80 - 0/0 drained".to_owned()
            }
            _ => {
                send(&mut session.client, &request(to)).await;
                let _: [u8; 10] = exactly(&mut session.client).await;
                format!("anyone CONNECT {to} 0 0/0 drained")
            }
        };
        // While it only drains, everything goes on.
        stop.drain();
        tokio::task::yield_now().await;
        assert!(!session.served.is_finished());
        soon(async {
            while stage == 1 && session.gateway.dialling() == 0 {
                tokio::task::yield_now().await;
            }
        })
        .await;
        stop.stop(End::Drained);
        assert_eq!(session.line().await, line);
    }
}

#[tokio::test]
async fn a_session_brings_its_own_limits() {
    let (to, _origin) = origin(echo).await;
    let own = Stop::new();
    let mut shaping = Shaping::default();
    shaping.stop = own.clone();
    let mut session = tcp(|config| _ = config.stop(Stop::new())).await;
    session.gateway.shape(shaping);
    send(
        &mut session.client,
        &[&greeting(0)[..], &request(to)].concat(),
    )
    .await;
    let _: [u8; 12] = exactly(&mut session.client).await;
    own.stop(End::Limit);
    assert_eq!(
        session.line().await,
        format!("anyone CONNECT {to} 0 0/0 limit")
    );
}

#[tokio::test]
async fn the_future_of_a_connection_is_small() {
    let listener = listen().await;
    let stream = TcpStream::connect(listener.local_addr().unwrap())
        .await
        .unwrap();
    let peer = Peer {
        remote: stream.local_addr().unwrap(),
        local: stream.peer_addr().unwrap(),
    };
    let server = Server::new(Direct::default());
    let size = size_of_val(&server.serve(stream, peer));
    // The client's stream, the relay with the other one, and what the report needs.
    assert!(size <= 480, "{size} bytes");
}
