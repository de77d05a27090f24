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

async fn small_bodies(most: u64) -> Proxy {
    let mut config = Config::default();
    config.body_bytes(most);
    Proxy::with(Direct::default(), config, ()).await
}

#[test]
fn a_long_body_is_refused_before_the_dial() {
    run(async {
        let (origin, proxy) = (Origin::start().await, small_bodies(10).await);
        let mut client = proxy.client().await;
        let put = |n: usize| PUT.replace("9\r\n\r\nab", &format!("{n}\r\n\r\n"));
        let put = |n| put(n).replace("ORIGIN", &origin.name) + &"x".repeat(n);
        // What is short enough to be read is read, and the connection goes on.
        client.send(put(11)).await;
        let head = client.until("\r\n\r\n").await;
        assert!(
            head.starts_with("HTTP/1.1 413 Content Too Large\r\n"),
            "{head}"
        );
        assert!(!head.contains("Connection: close"), "{head}");
        client.until("than this proxy allows\n").await;
        assert_eq!(*proxy.gateway.connects.borrow(), 0);
        client.send(put(10)).await;
        let mut server = origin.accept().await;
        server.until("xxxxxxxxxx").await;
        server.send(OK).await;
        client.until("hi").await;
        client.send(put(100_000)).await;
        let head = client.until("\r\n\r\n").await;
        assert!(head.contains("Connection: close\r\n"), "{head}");
        let told = proxy.told(3).await;
        for told in [&told[0], &told[2]] {
            assert_eq!((told.end, told.fault), (End::Limit, Some("body-too-large")));
            assert_eq!((told.status, told.up), (Some(413), 0));
            assert_eq!(told.target, origin.name);
        }
    });
}

#[test]
fn nobody_is_given_leave_to_send_a_long_body() {
    run(async {
        let proxy = small_bodies(8).await;
        let mut client = proxy.client().await;
        client
            .send(PUT.replace("\r\n\r\nab", "\r\nExpect: 100-continue\r\n\r\n"))
            .await;
        let answer = client.rest().await;
        assert!(answer.starts_with("HTTP/1.1 413 "), "{answer}");
        assert!(answer.contains("Connection: close\r\n"), "{answer}");
    });
}

fn chunked(origin: &Origin) -> String {
    format!(
        "PUT http://{0}/ HTTP/1.1\r\nHost: {0}\r\nTransfer-Encoding: chunked\r\n\r\n",
        origin.name
    )
}

#[test]
fn chunks_are_counted_as_they_come() {
    run(async {
        let (origin, proxy) = (Origin::start().await, small_bodies(10).await);
        // Framing does not count.
        let mut client = proxy.client().await;
        let whole = "5;a=b\r\nhello\r\n5\r\nworld\r\n0\r\nT: u\r\n\r\n";
        client.send([&chunked(&origin)[..], whole].concat()).await;
        let mut server = origin.accept().await;
        server.until(whole).await;
        let close = OK.replace("\r\n\r\n", "\r\nConnection: close\r\n\r\n");
        server.send(close).await;
        client.until("hi").await;
        // One chunk too many, and one that would be too long.
        for more in ["1\r\n", "400\r\n"] {
            let mut client = proxy.client().await;
            let body = "5\r\nhello\r\n5\r\nworld\r\n";
            client.send([&chunked(&origin)[..], body].concat()).await;
            let mut server = origin.accept().await;
            server.until(body).await;
            client.send([more, "x"].concat()).await;
            let answer = client.until("\r\n\r\n").await;
            assert!(answer.starts_with("HTTP/1.1 413 "), "{answer}");
            assert!(answer.contains("Connection: close\r\n"), "{answer}");
            // The origin sees that it has not got all.
            assert_eq!(server.rest().await, "");
        }
        let told = proxy.told(3).await;
        assert_eq!(
            (told[2].end, told[2].fault),
            (End::Limit, Some("body-too-large"))
        );
    });
}

#[test]
fn a_long_body_behind_an_early_answer_is_cut() {
    run(async {
        let (origin, proxy) = (Origin::start().await, small_bodies(10).await);
        let mut client = proxy.client().await;
        client
            .send([&chunked(&origin)[..], "5\r\nhello\r\n"].concat())
            .await;
        let mut server = origin.accept().await;
        server.until("hello\r\n").await;
        server
            .send("HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhal")
            .await;
        client.until("hal").await;
        client.send("6\r\nworld!\r\n").await;
        let told = proxy.told(1).await;
        assert_eq!((told[0].status, told[0].end), (Some(200), End::Limit));
        assert_eq!(server.rest().await, "");
    });
}

#[test]
fn the_last_request_of_a_connection_is_told_so() {
    run(async {
        let origin = Origin::start().await;
        let mut config = Config::default();
        config.requests(3);
        let proxy = Proxy::with(Direct::default(), config, ()).await;
        let mut client = proxy.client().await;
        // The second is refused, which counts as well; the fourth is too many.
        let refused = "CONNECT 127.0.0.1:1 HTTP/1.1\r\nHost: h\r\n\r\n";
        client.send(origin.get("/1")).await;
        let mut server = origin.accept().await;
        server.until("\r\n\r\n").await;
        server.send(OK).await;
        assert_eq!(client.until("hi").await, OK);
        client.send(refused).await;
        let head = client.until("\r\n\r\n").await;
        assert!(!head.contains("Connection: close"), "{head}");
        client.until("\n").await;
        client
            .send([origin.get("/3"), origin.get("/4")].concat())
            .await;
        let mut server = origin.accept().await;
        server.until("GET /3 HTTP/1.1\r\n").await;
        server.until("\r\n\r\n").await;
        server.send(OK).await;
        let answer = client.rest().await;
        assert!(answer.contains("Connection: close\r\n"), "{answer}");
        assert!(answer.ends_with("\r\n\r\nhi"), "{answer}");
        assert_eq!(proxy.told(3).await.len(), 3);
    });
}

#[test]
fn the_last_request_may_be_one_that_is_refused() {
    run(async {
        let mut config = Config::default();
        config.requests(1);
        let proxy = Proxy::with(Direct::default(), config, ()).await;
        let mut client = proxy.client().await;
        client
            .send("GET http://127.0.0.1:1/ HTTP/1.1\r\nHost: h\r\n\r\n".repeat(2))
            .await;
        let answer = client.rest().await;
        assert_eq!(answer.matches("HTTP/1.1 502 ").count(), 1, "{answer}");
        assert!(answer.contains("Connection: close\r\n"), "{answer}");
    });
}

#[test]
fn what_is_wrong_with_a_message_is_told_in_a_word() {
    run(async {
        let proxy = Proxy::start(Direct::default()).await;
        let host = "http://h.test:81/a";
        for (request, fault, asked) in [
            (
                format!("GET {host} HTTP/1.1\r\nHost: b@d\r\n\r\n"),
                "host",
                ("GET", "h.test:81"),
            ),
            (
                format!("\r\nGET {host} HTTP/1.1\r\nX : y\r\n\r\n"),
                "blank-before-colon",
                ("GET", "h.test:81"),
            ),
            (
                "CONNECT h.test:1 HTTP/1.1\r\nHost: h\r\nContent-Length: 1\r\n\r\n".into(),
                "connect-body",
                ("CONNECT", "h.test:1"),
            ),
            (
                "GET ftp://h.test/ HTTP/1.1\r\nHost: h\r\n\r\n".into(),
                "scheme",
                ("GET", ""),
            ),
            (
                "GET https://h.test/ HTTP/1.1\r\nHost: h\r\n\r\n".into(),
                "scheme",
                ("GET", "h.test:443"),
            ),
            (
                "GET / HTTP/1.1\r\nHost: h.test\r\n\r\n".into(),
                "target",
                ("GET", "h.test:80"),
            ),
            ("GET  / HTTP/1.1\r\n\r\n".into(), "request-line", ("", "")),
        ] {
            let mut client = proxy.client().await;
            client.send(&request).await;
            client.rest().await;
            let told = proxy.gateway.told.take();
            let told = &told[0];
            assert_eq!(told.end, End::BadRequest, "{request}");
            assert_eq!(told.fault, Some(fault), "{request}");
            assert_eq!(told.secure, request.contains("https:"));
            assert_eq!((&told.word[..], &told.target[..]), asked, "{request}");
        }
    });
}

#[test]
fn p05_a_body_known_to_be_bad_is_refused_without_a_connection() {
    run(async {
        for (body, fault) in [
            ("0x3\r\n", "chunk-size"),
            ("3\r\nabc0\r\n", "chunk-end"),
            ("3\r\nabc\r\n-1\r\n", "chunk-size"),
            ("0\r\nHost: h\r\n\r\n", "trailer-forbidden"),
        ] {
            let proxy = Proxy::start(Direct::default()).await;
            let mut client = proxy.client().await;
            let head = "POST http://127.0.0.1:1/ HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n";
            client.send([head, body].concat()).await;
            let answer = client.rest().await;
            assert!(answer.starts_with("HTTP/1.1 400 "), "{body:?}: {answer}");
            let told = &proxy.told(1).await[0];
            assert_eq!((told.end, told.fault), (End::BadRequest, Some(fault)));
            assert_eq!(*proxy.gateway.connects.borrow(), 0, "{body:?}");
        }
    });
}

#[test]
fn what_is_wrong_with_an_answer_is_told_in_a_word() {
    run(async {
        let (origin, proxy) = (Origin::start().await, Proxy::start(Direct::default()).await);
        for (answer, fault) in [
            (
                "HTTP/1.1 200 OK\r\nContent-Length: x\r\n\r\n",
                "content-length",
            ),
            (
                "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nx",
                "chunk-size",
            ),
            ("HTTP/1.1 101 Go\r\n\r\n", "interim-answer"),
        ] {
            let mut client = proxy.client().await;
            client.send(origin.get("/")).await;
            let mut server = origin.accept().await;
            server.until("\r\n\r\n").await;
            server.send(answer).await;
            client.until("\r\n\r\n").await;
            let told = proxy.told(1).await;
            assert_eq!(
                (told[0].end, told[0].fault),
                (End::BadResponse, Some(fault))
            );
            proxy.gateway.told.take();
        }
        // Behind the first bytes there is no answer any more.
        let mut client = proxy.client().await;
        client.send(origin.get("/")).await;
        let mut server = origin.accept().await;
        server.until("\r\n\r\n").await;
        server
            .send("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n1\r\na\r\n")
            .await;
        client.until("a\r\n").await;
        server.send("0\r\nHost: x\r\n\r\n").await;
        let told = proxy.told(1).await;
        assert_eq!(told[0].fault, Some("trailer-forbidden"));
    });
}
