//! Waits and limits of the server, each with its own setting, over loopback
//! sockets.
#![cfg(feature = "serve")]
#![allow(missing_docs, clippy::unwrap_used)]

mod support;

use std::time::Duration;

use proxy_core::{End, Timeouts};
use proxy_http::Config;
use support::*;

const OK: &str = "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nhi";

/// Only one kind of waiting is short.
async fn hurried(set: impl Fn(&mut Timeouts, Option<Duration>)) -> Proxy {
    let mut timeouts = Timeouts::default();
    set(&mut timeouts, Some(Duration::from_millis(200)));
    let mut config = Config::default();
    config.timeouts(timeouts);
    Proxy::with(Direct::default(), config, ()).await
}

/// How the exchange after `request` and `answer` ends, with nothing else sent.
async fn silence(proxy: &Proxy, request: &str, answer: &str) -> (String, End) {
    let origin = Origin::start().await;
    let mut client = proxy.client().await;
    client.send(request.replace("ORIGIN", &origin.name)).await;
    let mut server = origin.accept().await;
    server.until("\r\n\r\n").await;
    server.send(answer).await;
    let end = proxy.told(1).await[0].end;
    let said = client.rest().await;
    (said, end)
}

const GET: &str = "GET http://ORIGIN/ HTTP/1.1\r\nHost: h\r\nConnection: close\r\n\r\n";
const PUT: &str = "PUT http://ORIGIN/ HTTP/1.1\r\nHost: h\r\nContent-Length: 9\r\n\r\nab";

#[test]
fn a_body_that_does_not_come_is_a_408() {
    run(async {
        let proxy = hurried(|timeouts, soon| timeouts.body = soon).await;
        let (said, end) = silence(&proxy, PUT, "").await;
        assert!(said.starts_with("HTTP/1.1 408 "), "{said}");
        assert_eq!(end, End::ClientTimeout);
    });
}

#[test]
fn an_answer_that_does_not_begin_is_a_504() {
    run(async {
        for interim in ["", "HTTP/1.1 103 Early Hints\r\n\r\n"] {
            let proxy = hurried(|timeouts, soon| timeouts.first_byte = soon).await;
            let (said, end) = silence(&proxy, GET, interim).await;
            let said = said.strip_prefix(interim).unwrap();
            assert!(said.starts_with("HTTP/1.1 504 "), "{said}");
            assert_eq!(end, End::OriginTimeout);
        }
    });
}

#[test]
fn a_body_that_waits_for_leave_waits_for_the_origin() {
    run(async {
        let proxy = hurried(|timeouts, soon| timeouts.first_byte = soon).await;
        let request = PUT.replace("\r\n\r\nab", "\r\nExpect: 100-continue\r\n\r\n");
        let (said, _) = silence(&proxy, &request, "").await;
        assert!(said.starts_with("HTTP/1.1 504 "), "{said}");
        // With leave to go on it is the client's turn.
        let proxy = hurried(|timeouts, soon| timeouts.body = soon).await;
        let (said, _) = silence(&proxy, &request, "HTTP/1.1 100 Continue\r\n\r\n").await;
        assert!(said.contains("\r\n\r\nHTTP/1.1 408 "), "{said}");
    });
}

#[test]
fn an_answer_that_does_not_go_on_is_cut() {
    run(async {
        let half = "HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nhalf";
        for (answer, starts, ends) in [
            (half, "HTTP/1.1 200 ", "half"),
            ("HTTP/1.1 200 OK\r\nX-Half: a", "HTTP/1.1 504 ", "\n"),
        ] {
            let proxy = hurried(|timeouts, soon| timeouts.progress = soon).await;
            let (said, end) = silence(&proxy, GET, answer).await;
            assert!(said.starts_with(starts) && said.ends_with(ends), "{said}");
            assert_eq!(end, End::OriginTimeout);
        }
    });
}

#[test]
fn each_piece_of_a_body_renews_its_time() {
    run(async {
        let origin = Origin::start().await;
        let proxy = hurried(|timeouts, soon| timeouts.body = soon).await;
        let mut client = proxy.client().await;
        client.send(PUT.replace("ORIGIN", &origin.name)).await;
        let mut server = origin.accept().await;
        server.until("ab").await;
        for piece in ["c", "d", "e", "f", "g", "h", "i"] {
            // The pieces come in more time than one may take.
            tokio::time::sleep(Duration::from_millis(100)).await;
            client.send(piece).await;
            server.until(piece).await;
        }
        server.send(OK).await;
        client.until("hi").await;
    });
}
