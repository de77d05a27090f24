//! CONNECT and upgrades through the server, over loopback sockets.
#![cfg(feature = "serve")]
#![allow(missing_docs, clippy::unwrap_used)]

mod support;

use proxy_core::End;
use support::*;

async fn connect(proxy: &Proxy, origin: &Origin) -> (Client, Client) {
    let mut client = proxy.client().await;
    client
        .send(format!(
            "CONNECT {0} HTTP/1.1\r\nHost: {0}\r\n\r\n",
            origin.name
        ))
        .await;
    let answer = client.until("\r\n\r\n").await;
    assert_eq!(answer, "HTTP/1.1 200 Connection established\r\n\r\n");
    (client, origin.accept().await)
}

#[test]
fn p40_p42_connect_answers_after_the_dial_and_without_length() {
    run(async {
        let (origin, proxy) = (Origin::start().await, Proxy::start(Direct::default()).await);
        let (mut client, mut server) = connect(&proxy, &origin).await;
        server.send("server first").await;
        client.until("server first").await;
        client.send("and client").await;
        server.until("and client").await;
        client.finish().await;
        assert_eq!(server.rest().await, "");
        server.send("still").await;
        client.until("still").await;
        drop(server);
        assert_eq!(client.rest().await, "");
        let told = proxy.told(1).await;
        assert_eq!((told[0].up, told[0].down), (10, 17));
        assert_eq!(told[0].end, End::ClientFinished);
        assert_eq!(told[0].word, "CONNECT");
        assert_eq!(told[0].target, origin.name);
    });
}

#[test]
fn p41_bytes_in_the_segment_of_the_head_are_not_lost() {
    run(async {
        let (origin, proxy) = (Origin::start().await, Proxy::start(Direct::default()).await);
        let mut client = proxy.client().await;
        client
            .send(format!(
                "CONNECT {0} HTTP/1.1\r\nHost: {0}\r\n\r\nearly",
                origin.name
            ))
            .await;
        client.finish().await;
        let mut server = origin.accept().await;
        assert_eq!(server.rest().await, "early");
        server.send("late").await;
        drop(server);
        assert!(client.rest().await.ends_with("\r\n\r\nlate"));
    });
}

#[test]
fn a_refused_connect_leaves_an_http_connection() {
    run(async {
        let (origin, proxy) = (Origin::start().await, Proxy::start(Direct::default()).await);
        let mut client = proxy.client().await;
        client
            .send("CONNECT 127.0.0.1:1 HTTP/1.1\r\nHost: 127.0.0.1:1\r\n\r\n")
            .await;
        assert!(client.until("\r\n\r\n").await.starts_with("HTTP/1.1 502 "));
        client.until("\n").await;
        client.send(origin.get("/")).await;
        origin.accept().await.until("\r\n\r\n").await;
    });
}

#[test]
fn a_reset_is_passed_on_both_ways() {
    run(async {
        let (origin, proxy) = (Origin::start().await, Proxy::start(Direct::default()).await);
        let (client, mut server) = connect(&proxy, &origin).await;
        client.stream.set_zero_linger().unwrap();
        drop(client);
        server.reset().await;
        let (mut client, server) = connect(&proxy, &origin).await;
        server.stream.set_zero_linger().unwrap();
        drop(server);
        client.reset().await;
        let told = proxy.told(2).await;
        assert_eq!(told[0].end, End::ClientReset);
        assert_eq!(told[1].end, End::OriginReset);
    });
}

fn upgrade(origin: &Origin) -> String {
    format!(
        "GET http://{0}/chat HTTP/1.1\r\nHost: {0}\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n",
        origin.name
    )
}

const SWITCH: &str =
    "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n";

#[test]
fn p47_an_upgrade_becomes_a_tunnel_after_the_101() {
    run(async {
        let (origin, proxy) = (Origin::start().await, Proxy::start(Direct::default()).await);
        let mut client = proxy.client().await;
        client.send([&upgrade(&origin)[..], "early"].concat()).await;
        let mut server = origin.accept().await;
        let head = server.until("\r\n\r\n").await;
        assert!(head.contains("Connection: Upgrade\r\n"), "{head}");
        assert!(head.contains("Upgrade: websocket\r\n"), "{head}");
        assert!(server.read.is_empty(), "tunnelled before the 101");
        server.send([SWITCH, "welcome"].concat()).await;
        assert_eq!(client.until("welcome").await, [SWITCH, "welcome"].concat());
        server.until("early").await;
        client.send("ping").await;
        server.until("ping").await;
        server.send("pong").await;
        client.until("pong").await;
        drop(client);
        assert_eq!(server.rest().await, "");
        drop(server);
        let told = proxy.told(1).await;
        assert_eq!(told[0].status, Some(101));
        assert_eq!(told[0].word, "GET");
    });
}

#[test]
fn p47_a_switch_is_to_what_was_offered() {
    run(async {
        for fields in [
            "",
            "Upgrade: websocket\r\n",
            "Connection: Upgrade\r\n",
            "Connection: Upgrade\r\nUpgrade: \r\n",
            "Connection: Upgrade\r\nUpgrade: other\r\n",
            "Connection: Upgrade\r\nUpgrade: websocket, other\r\n",
        ] {
            let (origin, proxy) = (Origin::start().await, Proxy::start(Direct::default()).await);
            let mut client = proxy.client().await;
            client.send(upgrade(&origin)).await;
            let mut server = origin.accept().await;
            server.until("\r\n\r\n").await;
            server
                .send(["HTTP/1.1 101 Go\r\n", fields, "\r\n"].concat())
                .await;
            let answer = client.until("\r\n\r\n").await;
            assert!(answer.starts_with("HTTP/1.1 502 "), "{fields}: {answer}");
            client.send("bytes for nobody").await;
            assert_eq!(server.rest().await, "", "{fields}");
        }
    });
}

#[test]
fn p47_a_refused_upgrade_stays_http() {
    run(async {
        let (origin, proxy) = (Origin::start().await, Proxy::start(Direct::default()).await);
        let mut client = proxy.client().await;
        client
            .send([upgrade(&origin), origin.get("/next")].concat())
            .await;
        let mut server = origin.accept().await;
        server.until("\r\n\r\n").await;
        server
            .send("HTTP/1.1 426 No\r\nContent-Length: 0\r\n\r\n")
            .await;
        client.until("\r\n\r\n").await;
        let next = server.until("\r\n\r\n").await;
        assert!(next.starts_with("GET /next "), "{next}");
    });
}
