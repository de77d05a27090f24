//! Requests handed to an HTTP parent, and what clients are told of failures.
#![cfg(feature = "serve")]
#![allow(missing_docs, clippy::unwrap_used)]

mod support;

use std::sync::Arc;

use proxy_core::{ConnectError, ConnectErrorKind, End, HttpParent};
use proxy_http::Config;
use support::*;

async fn with_parent(login: Option<&str>) -> (Origin, Proxy) {
    let origin = Origin::start().await;
    let parent = HttpParent {
        authorization: login.map(|login| login.as_bytes().into()),
    };
    let gateway = Direct {
        parent: Some((origin.name.clone(), Arc::new(parent))),
        ..Direct::default()
    };
    let proxy = Proxy::start(gateway).await;
    (origin, proxy)
}

const OK: &str = "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok";

#[test]
fn p11_p24_a_parent_gets_absolute_form_and_its_own_login() {
    run(async {
        let (parent, proxy) = with_parent(Some("Basic b3VyOm93bg==")).await;
        let mut client = proxy.client().await;
        client
            .send(
                "GET http://far.invalid/a?b HTTP/1.1\r\nHost: other.invalid\r\n\
                 Proxy-Authorization: Basic YWxpY2U6b3du\r\nX: y\r\n\r\n",
            )
            .await;
        let mut server = parent.accept().await;
        let head = server.until("\r\n\r\n").await;
        assert!(
            head.starts_with("GET http://far.invalid/a?b HTTP/1.1\r\n"),
            "{head}"
        );
        assert!(head.contains("\r\nHost: far.invalid\r\n"), "{head}");
        assert!(
            head.contains("\r\nProxy-Authorization: Basic b3VyOm93bg==\r\n"),
            "{head}"
        );
        assert!(!head.contains("YWxpY2U6b3du"), "{head}");
        server.send(OK).await;
        client.until("ok").await;
    });
}

#[test]
fn p24_without_a_login_for_the_parent_it_gets_none() {
    run(async {
        let (parent, proxy) = with_parent(None).await;
        let mut client = proxy.client().await;
        client
            .send(
                "GET http://far.invalid/ HTTP/1.1\r\nHost: far.invalid\r\n\
                 proxy-authorization: Basic YWxpY2U6b3du\r\n\r\n",
            )
            .await;
        let head = parent.accept().await.until("\r\n\r\n").await;
        assert!(
            !head.to_ascii_lowercase().contains("proxy-authorization"),
            "{head}"
        );
    });
}

#[test]
fn p11_one_connection_to_the_parent_serves_all_targets() {
    run(async {
        let (parent, proxy) = with_parent(None).await;
        let mut client = proxy.client().await;
        let mut server = None;
        for name in ["one.invalid", "two.invalid", "one.invalid:8080"] {
            client
                .send(format!("GET http://{name}/ HTTP/1.1\r\nHost: x\r\n\r\n"))
                .await;
            if server.is_none() {
                server = Some(parent.accept().await);
            }
            let server = server.as_mut().unwrap();
            let head = server.until("\r\n\r\n").await;
            assert!(head.starts_with(&format!("GET http://{name}/ ")), "{head}");
            server.send(OK).await;
            client.until("ok").await;
        }
        assert_eq!(*proxy.gateway.dials.borrow(), 1);
    });
}

#[test]
fn p24_a_challenge_of_the_parent_is_not_the_clients_to_answer() {
    for interim in ["", "HTTP/1.1 103 Early Hints\r\n\r\n"] {
        run(async {
            let (parent, proxy) = with_parent(Some("Basic d3Jvbmc6")).await;
            let mut client = proxy.client().await;
            client.send(parent.get("/")).await;
            let mut server = parent.accept().await;
            server.until("\r\n\r\n").await;
            let challenge = "HTTP/1.1 407 Login\r\nProxy-Authenticate: Basic realm=\"r\"\r\n\
                             Content-Length: 2\r\n\r\nno";
            server.send([interim, challenge].concat()).await;
            if !interim.is_empty() {
                client.until("\r\n\r\n").await;
            }
            let head = client.until("\r\n\r\n").await;
            assert!(head.starts_with("HTTP/1.1 502 Bad Gateway\r\n"), "{head}");
            assert!(!head.contains("Proxy-Authenticate"), "{head}");
            let status = "\r\nProxy-Status: proxy; error=proxy_configuration_error\r\n";
            assert!(head.contains(status), "{head}");
            client.until("refused the login of this proxy\n").await;
            let told = proxy.told(1).await;
            assert_eq!(
                (told[0].status, told[0].end),
                (Some(502), End::ConnectFailed)
            );
            let error = ConnectError::parent(ConnectErrorKind::Login);
            assert_eq!(told[0].error, Some(error));
            // Its connection is not used again, the client's is.
            assert_eq!(server.rest().await, "");
            client.send(parent.get("/")).await;
            parent.accept().await.until("\r\n\r\n").await;
        });
    }
}

/// What the client of a proxy without parent is told when the origin says this.
async fn told_of(said: &str) -> String {
    let (origin, proxy) = (Origin::start().await, Proxy::start(Direct::default()).await);
    let mut client = proxy.client().await;
    client.send(origin.get("/")).await;
    let mut server = origin.accept().await;
    server.until("\r\n\r\n").await;
    server.send(said).await;
    client.until("\r\n\r\n").await
}

#[test]
fn p23_an_origin_does_not_speak_for_the_proxy() {
    run(async {
        // RFC 9110 sections 11.7.1 and 11.7.3: both fields are of the hop to the client.
        let fields = "Proxy-Authenticate: Basic realm=\"proxy\"\r\nServer: s\r\n\
                      proxy-authentication-info : nextnonce=\"n\"\r\nContent-Length: 0\r\n\r\n";
        for status in ["200 OK", "401 Login", "407 Login"] {
            let line = format!("HTTP/1.1 {status}\r\n");
            assert_eq!(
                told_of(&[&line, fields].concat()).await,
                line + "Server: s\r\nContent-Length: 0\r\n\r\n"
            );
        }
        // What concerns the origin goes on.
        let own = "HTTP/1.1 401 x\r\nWWW-Authenticate: Basic realm=\"o\"\r\n\
                   Authentication-Info: nextnonce=\"n\"\r\nContent-Length: 0\r\n\r\n";
        assert_eq!(told_of(own).await, own);
    });
}

#[test]
fn p30_parents_see_the_path_and_a_circle_is_broken() {
    run(async {
        let parent = Origin::start().await;
        let gateway = Direct {
            parent: Some((parent.name.clone(), Arc::default())),
            ..Direct::default()
        };
        let mut config = Config::default();
        config.via("gate-1");
        let proxy = Proxy::with(gateway, config, ()).await;
        let mut client = proxy.client().await;
        let request = |via: &str| {
            format!("GET http://far.invalid/ HTTP/1.1\r\nHost: far.invalid\r\nVia: {via}\r\n\r\n")
        };
        client.send(request("1.0 fred")).await;
        let mut server = parent.accept().await;
        let head = server.until("\r\n\r\n").await;
        assert!(
            head.contains("\r\nVia: 1.0 fred\r\nVia: 1.1 gate-1\r\n"),
            "{head}"
        );
        server.send(OK).await;
        client.until("ok").await;
        client.send(request("1.1 other, 1.1 gate-1")).await;
        let head = client.until("\r\n\r\n").await;
        assert!(head.starts_with("HTTP/1.1 508 Loop Detected\r\n"), "{head}");
        assert!(head.contains("; error=proxy_loop_detected\r\n"), "{head}");
        let told = proxy.told(2).await;
        assert_eq!(told[1].end, End::Forbidden);
    });
}

#[test]
fn the_name_in_proxy_status_is_the_embedders() {
    run(async {
        for (name, field) in [
            (
                Some("gate"),
                Some("Proxy-Status: gate; error=connection_refused\r\n"),
            ),
            (Some("not a token"), None),
            (None, None),
        ] {
            let mut config = Config::default();
            config.name(name);
            let proxy = Proxy::with(Direct::default(), config, ()).await;
            let mut client = proxy.client().await;
            client
                .send("GET http://127.0.0.1:1/ HTTP/1.1\r\nHost: x\r\n\r\n")
                .await;
            let head = client.until("\r\n\r\n").await;
            match field {
                Some(field) => assert!(head.contains(field), "{head}"),
                None => assert!(!head.contains("Proxy-Status"), "{head}"),
            }
            client
                .until("502 Bad Gateway: the target refused the connection\n")
                .await;
            let told = proxy.told(1).await;
            let error = ConnectError::origin(ConnectErrorKind::Refused);
            assert_eq!(told[0].error, Some(error));
        }
    });
}

#[test]
fn no_reply_repeats_what_the_client_sent() {
    run(async {
        let proxy = Proxy::start(Direct::default()).await;
        for request in [
            "GET http://hunter2.invalid:1x/ HTTP/1.1\r\nHost: hunter2\r\n\r\n",
            "GET http://h/hunter2 HTTP/9.9\r\n\r\n",
            "hunter2\r\n\r\n",
            "GET ftp://hunter2/ HTTP/1.1\r\nHost: x\r\n\r\n",
        ] {
            let mut client = proxy.client().await;
            client.send(request).await;
            let answer = client.rest().await;
            assert!(
                answer.contains("; error=http_request_error\r\n"),
                "{answer}"
            );
            assert!(!answer.contains("hunter2"), "{answer}");
        }
    });
}

#[test]
fn a_browser_gets_a_page() {
    run(async {
        let proxy = Proxy::start(Direct::default()).await;
        let request = |method: &str, accept: &str| {
            format!("{method} http://127.0.0.1:1/ HTTP/1.1\r\nHost: x\r\nAccept: {accept}\r\n\r\n")
        };
        let mut client = proxy.client().await;
        client.send(request("GET", "text/html,*/*;q=0.8")).await;
        let head = client.until("\r\n\r\n").await;
        assert!(head.contains("\r\nContent-Type: text/html\r\n"), "{head}");
        let page = client.until("</html>\n").await;
        let length = format!("\r\nContent-Length: {}\r\n", page.len());
        assert!(head.contains(&length), "{head}");
        assert!(page.starts_with("<!DOCTYPE html>\n"), "{page}");
        let cause = "<p>502 Bad Gateway: the target refused the connection</p>";
        assert!(page.contains(cause), "{page}");
        assert!(!page.contains("src=") && !page.contains("http"), "{page}");
        // HEAD is told the same, without the page.
        client.send(request("HEAD", "text/html")).await;
        let told = client.until("\r\n\r\n").await;
        assert!(told.contains(&length), "{told}");
        client.send(request("GET", "*/*")).await;
        let head = client.until("\r\n\r\n").await;
        assert!(head.starts_with("HTTP/1.1 502 "), "{head}");
        assert!(head.contains("\r\nContent-Type: text/plain\r\n"), "{head}");
    });
}
