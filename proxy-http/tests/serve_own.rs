//! Requests that end at the proxy, and those that must not leave it as they are:
//! OPTIONS and TRACE, `https` URLs, upgrades to HTTP/2. Over loopback sockets.
#![cfg(feature = "serve")]
#![allow(missing_docs, clippy::unwrap_used)]

mod support;

use std::cell::Cell;
use std::sync::Arc;

use proxy_core::{ConnectError, ConnectErrorKind, End};
use proxy_http::Config;
use support::*;

const OK: &str = "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nhi";

const LOGIN: &str = "Proxy-Authorization: Basic YWxpY2U6c2VjcmV0\r\n";

fn locked() -> Direct {
    Direct {
        locked: true,
        ..Direct::default()
    }
}

#[test]
fn options_about_the_proxy_are_answered_by_it() {
    run(async {
        let (origin, proxy) = (Origin::start().await, Proxy::start(Direct::default()).await);
        let mut client = proxy.client().await;
        client
            .send("OPTIONS * HTTP/1.1\r\nHost: p\r\nContent-Length: 3\r\n\r\nabc")
            .await;
        let head = client.until("\r\n\r\n").await;
        assert!(head.starts_with("HTTP/1.1 200 OK\r\nAllow: "), "{head}");
        assert!(head.contains("\r\nContent-Length: 0\r\n"), "{head}");
        assert!(!head.contains("Connection"), "{head}");
        // The connection goes on.
        client.send(origin.get("/")).await;
        let mut server = origin.accept().await;
        server.until("\r\n\r\n").await;
        server.send(OK).await;
        assert_eq!(client.until("hi").await, OK);
        let told = &proxy.told(2).await[0];
        assert_eq!((told.end, told.status), (End::Completed, Some(200)));
        assert_eq!((&told.word[..], &told.target[..]), ("OPTIONS", ""));
        // No other method has that form.
        client.send("GET * HTTP/1.1\r\nHost: p\r\n\r\n").await;
        assert!(client.rest().await.starts_with("HTTP/1.1 400 "));
    });
}

#[test]
fn the_proxy_answers_only_those_who_may_ask() {
    run(async {
        let proxy = Proxy::start(locked()).await;
        let mut client = proxy.client().await;
        let far = "TRACE http://h/ HTTP/1.1\r\nHost: h\r\nMax-Forwards: 0\r\n";
        for request in ["OPTIONS * HTTP/1.1\r\nHost: p\r\n", far] {
            client.send([request, "\r\n"].concat()).await;
            let head = client.until("\r\n\r\n").await;
            assert!(head.starts_with("HTTP/1.1 407 "), "{head}");
            client.until("\n").await;
            client.send([request, LOGIN, "\r\n"].concat()).await;
            let head = client.until("\r\n\r\n").await;
            assert!(head.starts_with("HTTP/1.1 200 "), "{head}");
            if head.contains("message/http") {
                client.until("\r\n\r\n").await;
            }
        }
        let proxy = Proxy::start(Direct {
            forbid: true,
            ..Direct::default()
        })
        .await;
        let mut client = proxy.client().await;
        client.send([far, "\r\n"].concat()).await;
        assert!(client.until("\r\n\r\n").await.starts_with("HTTP/1.1 403 "));
    });
}

#[test]
fn max_forwards_ends_a_request_here() {
    run(async {
        let proxy = Proxy::start(Direct::default()).await;
        let mut client = proxy.client().await;
        client
            .send(
                "OPTIONS http://h.test/ HTTP/1.1\r\nHost: h\r\nMax-Forwards: 0\r\n\r\n\
                 TRACE http://h.test/a HTTP/1.1\r\nhOST: h\r\nmax-forwards: 00\r\n\
                 Cookie: hunter2\r\nAuthorization: Basic hunter2\r\nX-API-Key: hunter2\r\n\
                 Proxy-Authorization: Basic hunter2\r\nConnection: close\r\n\r\n",
            )
            .await;
        let head = client.until("\r\n\r\n").await;
        assert!(head.starts_with("HTTP/1.1 200 OK\r\nAllow: "), "{head}");
        let head = client.until("\r\n\r\n").await;
        assert!(
            head.contains("\r\nContent-Type: message/http\r\n"),
            "{head}"
        );
        let echo = "TRACE http://h.test/a HTTP/1.1\r\nhOST: h\r\nmax-forwards: 00\r\n\
                    Connection: close\r\n\r\n";
        let length = format!("\r\nContent-Length: {}\r\n", echo.len());
        assert!(head.contains(&length), "{head}");
        assert_eq!(client.rest().await, echo);
        let told = &proxy.told(2).await[1];
        assert_eq!((told.end, &told.target[..]), (End::Completed, "h.test:80"));
        assert_eq!(*proxy.gateway.connects.borrow(), 0);
    });
}

#[test]
fn max_forwards_counts_down() {
    run(async {
        let (origin, proxy) = (Origin::start().await, Proxy::start(Direct::default()).await);
        let mut client = proxy.client().await;
        let mut server = None;
        let name = &origin.name;
        for (method, sent, seen) in [
            ("OPTIONS", "5", "4"),
            ("TRACE", "1", "0"),
            ("TRACE", "99999999999999999999", "4294967294"),
            // It means nothing to others.
            ("GET", "0", "0"),
            ("GET", "x", "x"),
            ("options", "0", "0"),
        ] {
            client
                .send(format!(
                    "{method} http://{name}/ HTTP/1.1\r\nHost: {name}\r\nMax-Forwards: {sent}\r\nA: b\r\n\r\n"
                ))
                .await;
            if server.is_none() {
                server = Some(origin.accept().await);
            }
            let server = server.as_mut().unwrap();
            let head = server.until("\r\n\r\n").await;
            assert!(head.starts_with(&format!("{method} / ")), "{head}");
            let line = format!("\r\nMax-Forwards: {seen}\r\nA: b\r\n\r\n");
            assert!(head.ends_with(&line), "{head}");
            server.send(OK).await;
            client.until("hi").await;
        }
    });
}

#[test]
fn a_request_that_ends_nowhere_in_particular_is_refused() {
    run(async {
        let proxy = Proxy::start(Direct::default()).await;
        for (fields, fault) in [
            ("Max-Forwards: x\r\n", "max-forwards"),
            ("Max-Forwards: -1\r\n", "max-forwards"),
            ("Max-Forwards:\r\n", "max-forwards"),
            ("Max-Forwards: 1\r\nMax-Forwards: 1\r\n", "max-forwards"),
            ("Content-Length: 1\r\n", "trace-body"),
            ("Transfer-Encoding: chunked\r\n", "trace-body"),
        ] {
            let mut client = proxy.client().await;
            client
                .send(format!(
                    "TRACE http://h/ HTTP/1.1\r\nHost: h\r\n{fields}\r\n"
                ))
                .await;
            assert!(client.rest().await.starts_with("HTTP/1.1 400 "), "{fields}");
            let told = proxy.gateway.told.take();
            assert_eq!(told[0].fault, Some(fault), "{fields}");
        }
    });
}

async fn fetching(gateway: Direct) -> Proxy {
    let mut config = Config::default();
    config.fetch_https(true);
    Proxy::with(gateway, config, ()).await
}

fn https(origin: &Origin) -> String {
    origin.get("/a?b").replace("http:", "HTTPS:")
}

#[test]
fn an_https_url_is_fetched_over_tls_only() {
    run(async {
        let (origin, proxy) = (Origin::start().await, fetching(Direct::default()).await);
        let mut client = proxy.client().await;
        // The gateway has only a connection in clear: not a byte goes there.
        client.send(https(&origin)).await;
        let head = client.until("\r\n\r\n").await;
        assert!(head.starts_with("HTTP/1.1 502 "), "{head}");
        assert!(head.contains("; error=tls_protocol_error\r\n"), "{head}");
        client
            .until("no connection of the kind that the URL asks for\n")
            .await;
        assert_eq!(origin.accept().await.rest().await, "");
        let told = proxy.told(1).await;
        let error = ConnectError::origin(ConnectErrorKind::Tls);
        assert_eq!(
            (told[0].end, told[0].error),
            (End::ConnectFailed, Some(error))
        );
        proxy.gateway.secured.set(true);
        client.send(https(&origin)).await;
        let mut server = origin.accept().await;
        assert_eq!(
            server.until("\r\n\r\n").await,
            format!("GET /a?b HTTP/1.1\r\nHost: {}\r\n\r\n", origin.name)
        );
        server.send(OK).await;
        client.until("hi").await;
        // Kept for the next one, but not for the same place in clear.
        client.send(https(&origin)).await;
        server.until("\r\n\r\n").await;
        server.send(OK).await;
        client.until("hi").await;
        proxy.gateway.secured.set(false);
        client.send(origin.get("/clear")).await;
        // (This gateway's pool does not tell them apart.)
        server.until("GET /clear ").await;
        assert_eq!(*proxy.gateway.connects.borrow(), 3);
        let told = proxy.told(3).await;
        assert!(told.iter().all(|told| told.secure));
    });
}

#[test]
fn an_upgrade_may_be_inside_tls() {
    run(async {
        let (origin, proxy) = (Origin::start().await, fetching(Direct::default()).await);
        proxy.gateway.secured.set(true);
        let mut client = proxy.client().await;
        let fields = "\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n";
        client
            .send(https(&origin).replace("\r\n\r\n", fields))
            .await;
        let mut server = origin.accept().await;
        server.until("\r\n\r\n").await;
        server
            .send(["HTTP/1.1 101 Go", fields, "welcome"].concat())
            .await;
        client.until("welcome").await;
        client.send("ping").await;
        server.until("ping").await;
        drop((client, server));
        let told = &proxy.told(1).await[0];
        assert!(told.secure && told.status == Some(101), "{told:?}");
    });
}

#[test]
fn what_is_encrypted_is_not_for_http_urls_and_tunnels() {
    run(async {
        let origin = Origin::start().await;
        let gateway = Direct {
            secured: Cell::new(true),
            ..Direct::default()
        };
        let proxy = fetching(gateway).await;
        let name = &origin.name;
        for request in [
            origin.get("/"),
            format!("CONNECT {name} HTTP/1.1\r\nHost: {name}\r\n\r\n"),
        ] {
            let mut client = proxy.client().await;
            client.send(request).await;
            let head = client.until("\r\n\r\n").await;
            assert!(head.starts_with("HTTP/1.1 502 "), "{head}");
            assert_eq!(origin.accept().await.rest().await, "");
        }
    });
}

#[test]
fn a_parent_does_not_get_https_urls() {
    run(async {
        let parent = Origin::start().await;
        let gateway = Direct {
            parent: Some((parent.name.clone(), Arc::default())),
            secured: Cell::new(true),
            ..Direct::default()
        };
        let proxy = fetching(gateway).await;
        let mut client = proxy.client().await;
        client
            .send("GET https://h.test/ HTTP/1.1\r\nHost: h.test\r\n\r\n")
            .await;
        let head = client.until("\r\n\r\n").await;
        assert!(head.starts_with("HTTP/1.1 502 "), "{head}");
        assert_eq!(parent.accept().await.rest().await, "");
        assert_eq!(proxy.told(1).await[0].target, "h.test:443");
    });
}

#[test]
fn p47_an_upgrade_to_http2_is_not_offered() {
    run(async {
        let (origin, proxy) = (Origin::start().await, Proxy::start(Direct::default()).await);
        let name = &origin.name;
        for (offered, seen) in [
            (
                "Connection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nHTTP2-Settings: AAM\r\nA: b\r\n",
                "A: b\r\n",
            ),
            (
                "Upgrade: HTTP/2.0, H2C-14\r\nHTTP2-Settings: AAM\r\nConnection: upgrade\r\n",
                "",
            ),
            (
                "Upgrade: h2c\r\nUpgrade: websocket, HTTP/2.0, x/1\r\nHTTP2-Settings: AAM\r\n\
                 Connection: keep-alive, HTTP2-Settings, Upgrade\r\n",
                "Upgrade: websocket, x/1\r\nConnection: Upgrade\r\n",
            ),
            (
                "Upgrade: websocket\r\nConnection: upgrade\r\n",
                "Upgrade: websocket\r\nConnection: Upgrade\r\n",
            ),
            ("Upgrade: h2c, websocket\r\n", ""),
        ] {
            let mut client = proxy.client().await;
            client
                .send(format!(
                    "GET http://{name}/ HTTP/1.1\r\nHost: {name}\r\n{offered}\r\n"
                ))
                .await;
            let mut server = origin.accept().await;
            let head = server.until("\r\n\r\n").await;
            let expected = format!("GET / HTTP/1.1\r\nHost: {name}\r\n{seen}\r\n");
            assert_eq!(head, expected, "{offered}");
            // Nor does it happen all the same.
            server
                .send("HTTP/1.1 101 Go\r\nConnection: Upgrade\r\nUpgrade: h2c\r\n\r\n")
                .await;
            let answer = client.until("\r\n").await;
            assert_eq!(answer, "HTTP/1.1 502 Bad Gateway\r\n", "{offered}");
        }
    });
}
