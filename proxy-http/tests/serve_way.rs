//! What origins and clients learn of the way a message took, over loopback
//! sockets.
#![cfg(feature = "serve")]
#![allow(missing_docs, clippy::unwrap_used)]

mod support;

use proxy_http::{Config, Forwarded};
use support::*;

const OK: &str = "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nhi";

async fn proxy(set: impl FnOnce(&mut Config)) -> Proxy {
    let mut config = Config::default();
    set(&mut config);
    Proxy::with(Direct::default(), config, ()).await
}

/// The fields an origin gets for a request with `fields`.
async fn seen(proxy: &Proxy, fields: &str) -> String {
    let origin = Origin::start().await;
    let mut client = proxy.client().await;
    let name = &origin.name;
    client
        .send(format!(
            "GET http://{name}/ HTTP/1.1\r\nHost: {name}\r\n{fields}\r\n"
        ))
        .await;
    let head = origin.accept().await.until("\r\n\r\n").await;
    let fields = head.split_once(&format!("Host: {name}\r\n")).unwrap().1;
    fields.strip_suffix("\r\n").unwrap().to_owned()
}

#[test]
fn nothing_is_said_of_the_client_by_default() {
    run(async {
        let proxy = proxy(|_| {}).await;
        let fields = "X-Forwarded-For: 1.2.3.4\r\nForwarded: for=x\r\nVia: 1.0 a\r\n";
        assert_eq!(seen(&proxy, fields).await, fields);
        assert_eq!(seen(&proxy, "").await, "");
    });
}

#[test]
fn forwarded_names_the_client() {
    run(async {
        let proxy = proxy(|config| {
            config.forwarded(Forwarded::Append);
        })
        .await;
        assert_eq!(seen(&proxy, "").await, "Forwarded: for=127.0.0.1\r\n");
        let before = "forwarded: for=x;by=y\r\nX-Forwarded-For: z\r\n";
        assert_eq!(
            seen(&proxy, before).await,
            format!("{before}Forwarded: for=127.0.0.1\r\n")
        );
        // What would swallow the proxy's own word goes.
        let whole = "Forwarded: for=\"a\\\"b\"\r\n";
        let open = "Forwarded: for=\"a\r\nForwarded: for=\"a\\\"\r\n";
        assert_eq!(
            seen(&proxy, &[open, whole].concat()).await,
            format!("{whole}Forwarded: for=127.0.0.1\r\n")
        );
    });
}

#[test]
fn x_forwarded_for_names_the_client_last() {
    run(async {
        let proxy = proxy(|config| {
            config.forwarded(Forwarded::AppendFor);
        })
        .await;
        for (before, after) in [
            ("", "X-Forwarded-For: 127.0.0.1\r\n"),
            (
                "x-forwarded-FOR: ::1\r\nA: b\r\n",
                "x-forwarded-FOR: ::1, 127.0.0.1\r\nA: b\r\n",
            ),
            ("X-Forwarded-For:\r\n", "X-Forwarded-For: 127.0.0.1\r\n"),
            (
                "X-Forwarded-For: a\r\nX-Forwarded-For: b, c\r\nForwarded: for=x\r\n",
                "X-Forwarded-For: a\r\nX-Forwarded-For: b, c, 127.0.0.1\r\nForwarded: for=x\r\n",
            ),
            // What the client had taken out is not brought back.
            (
                "X-Forwarded-For: a\r\nConnection: x-forwarded-for\r\n",
                "X-Forwarded-For: 127.0.0.1\r\n",
            ),
        ] {
            assert_eq!(seen(&proxy, before).await, after, "{before}");
        }
    });
}

#[test]
fn everything_that_tells_of_the_client_can_be_removed() {
    run(async {
        let proxy = proxy(|config| {
            config.forwarded(Forwarded::Remove);
        })
        .await;
        let telling = "Forwarded: for=x\r\nx-forwarded-for: a\r\nX-Forwarded-Host: b\r\n\
                       X-FORWARDED-PROTO: https\r\nX-Forwarded-Port: 1\r\nX-Real-IP: c\r\n";
        let fields = format!("A: b\r\n{telling}{telling}X-Forwarded-Other: d\r\n");
        assert_eq!(
            seen(&proxy, &fields).await,
            "A: b\r\nX-Forwarded-Other: d\r\n"
        );
    });
}

#[test]
fn via_is_shown_both_ways_if_it_is_to_be() {
    run(async {
        let proxy = proxy(|config| {
            config.via("gate").show_via(true);
        })
        .await;
        let origin = Origin::start().await;
        let mut client = proxy.client().await;
        let name = &origin.name;
        let request = |version: &str, fields: &str| {
            format!("GET http://{name}/ HTTP/{version}\r\nHost: {name}\r\n{fields}\r\n")
        };
        client
            .send(request("1.1", "Via: 1.0 a\r\nVia: 1.1 b\r\n"))
            .await;
        let mut server = origin.accept().await;
        let head = server.until("\r\n\r\n").await;
        assert!(
            head.ends_with("\r\nVia: 1.0 a\r\nVia: 1.1 b\r\nVia: 1.1 gate\r\n\r\n"),
            "{head}"
        );
        server
            .send(["HTTP/1.1 103 Early Hints\r\nA: b\r\n\r\n", OK].concat())
            .await;
        assert_eq!(
            client.until("hi").await,
            "HTTP/1.1 103 Early Hints\r\nA: b\r\nVia: 1.1 gate\r\n\r\n\
             HTTP/1.1 200 OK\r\nContent-Length: 2\r\nVia: 1.1 gate\r\n\r\nhi"
        );
        // Each message by the version it was received with.
        client.send(request("1.0", "")).await;
        let head = server.until("\r\n\r\n").await;
        assert!(head.starts_with("GET / HTTP/1.1\r\n"), "{head}");
        assert!(head.ends_with("\r\nVia: 1.0 gate\r\n\r\n"), "{head}");
        server.send(OK.replace("HTTP/1.1", "HTTP/1.0")).await;
        let answer = client.rest().await;
        assert!(answer.contains("\r\nVia: 1.0 gate\r\n"), "{answer}");
    });
}

#[test]
fn p30_a_circle_is_broken_whether_via_is_shown_or_not() {
    run(async {
        for show in [false, true] {
            let proxy = proxy(|config| {
                config.via("gate").show_via(show);
            })
            .await;
            let mut client = proxy.client().await;
            client
                .send("GET http://h/ HTTP/1.1\r\nHost: h\r\nVia: 1.1 a, 1.0 gate (x)\r\n\r\n")
                .await;
            let head = client.until("\r\n\r\n").await;
            assert!(head.starts_with("HTTP/1.1 508 "), "{head}");
        }
        // A name that is not ours is not for us to break.
        let proxy = proxy(|config| {
            config.via("gate");
        })
        .await;
        let fields = "Via: 1.1 gate-2, 1.1 a gate\r\n";
        assert_eq!(seen(&proxy, fields).await, fields);
    });
}
