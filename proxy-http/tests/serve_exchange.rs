//! Requests and answers through the server, over loopback sockets.
#![cfg(feature = "serve")]
#![allow(missing_docs, clippy::unwrap_used)]

mod support;

use proxy_core::{End, Stop, Timeouts};
use proxy_http::{Chunk, Config, Direction, Filter, Flow, HeadEdit};
use std::cell::RefCell;
use std::rc::Rc;
use std::time::Duration;
use support::*;
use tokio::io::{AsyncReadExt, AsyncWriteExt};

const OK: &str = "HTTP/1.1 200 OK\r\nContent-Length: 2\r\nX-A: b\r\n\r\nhi";

#[test]
fn p11_an_absolute_target_reaches_the_origin_in_origin_form() {
    run(async {
        let (origin, proxy) = (Origin::start().await, Proxy::start(Direct::default()).await);
        let mut client = proxy.client().await;
        client
            .send(format!(
                "GET http://{0}/a?b HTTP/1.1\r\nhOsT: {0}\r\nX-b: 1\r\nX-b: 2\r\nProxy-Connection: keep-alive\r\n\r\n",
                origin.name
            ))
            .await;
        let mut server = origin.accept().await;
        let head = server.until("\r\n\r\n").await;
        assert_eq!(
            head,
            format!(
                "GET /a?b HTTP/1.1\r\nhOsT: {}\r\nX-b: 1\r\nX-b: 2\r\n\r\n",
                origin.name
            )
        );
        server.send(OK).await;
        assert_eq!(client.until("hi").await, OK);
        let told = proxy.told(1).await;
        assert_eq!(told[0].end, End::Completed);
        assert_eq!(told[0].status, Some(200));
        assert_eq!(told[0].up, head.len() as u64);
        assert_eq!(told[0].down, OK.len() as u64);
    });
}

#[test]
fn p19_both_connections_are_kept() {
    run(async {
        let (origin, proxy) = (Origin::start().await, Proxy::start(Direct::default()).await);
        let mut client = proxy.client().await;
        client.send(origin.get("/0")).await;
        let mut server = origin.accept().await;
        for n in 1..20 {
            server.until("\r\n\r\n").await;
            server.send(OK).await;
            assert_eq!(client.until("hi").await, OK);
            client.send(origin.get(&format!("/{n}"))).await;
        }
        assert_eq!(*proxy.gateway.dials.borrow(), 1);
        assert_eq!(*proxy.gateway.authentications.borrow(), 1);
    });
}

#[test]
fn an_upstream_is_not_kept_for_another_identity() {
    run(async {
        let (origin, proxy) = (Origin::start().await, Proxy::start(Direct::default()).await);
        let mut client = proxy.client().await;
        let login = |text: &str| format!("\r\nProxy-Authorization: Basic {text}\r\n\r\n");
        let mut server = None;
        let shown = [
            ("YTph", 1),
            // The first upstream was for one request only.
            ("YTph", 2),
            ("YTph", 2),
            ("Yjpi", 3),
            ("YTph", 4),
        ];
        for (text, connects) in shown {
            let request = origin.get("/").replace("\r\n\r\n", &login(text));
            client.send(request).await;
            if server.is_none() {
                server = Some(origin.accept().await);
            }
            let server = server.as_mut().expect("accepted");
            server.until("\r\n\r\n").await;
            server.send(OK).await;
            assert_eq!(client.until("hi").await, OK);
            assert_eq!(*proxy.gateway.connects.borrow(), connects, "{text}");
        }
        // The gateway may well give the same connection to both.
        assert_eq!(*proxy.gateway.dials.borrow(), 1);
    });
}

#[test]
fn pipelined_requests_are_answered_in_order() {
    run(async {
        let (origin, proxy) = (Origin::start().await, Proxy::start(Direct::default()).await);
        let mut client = proxy.client().await;
        client
            .send([origin.get("/1"), origin.get("/2"), origin.get("/3")].concat())
            .await;
        let mut server = origin.accept().await;
        for n in 1..=3 {
            let head = server.until("\r\n\r\n").await;
            assert!(head.starts_with(&format!("GET /{n} ")), "{head}");
            server
                .send(format!("HTTP/1.1 200 OK\r\nContent-Length: 1\r\n\r\n{n}"))
                .await;
            assert!(client.until("\r\n\r\n").await.starts_with("HTTP/1.1 200"));
            assert_eq!(client.exactly(1).await, n.to_string().as_bytes());
        }
    });
}

#[test]
fn a_request_a_byte_at_a_time() {
    run(async {
        let (origin, proxy) = (Origin::start().await, Proxy::start(Direct::default()).await);
        let mut client = proxy.client().await;
        let request = format!(
            "POST http://{0}/ HTTP/1.1\r\nHost: {0}\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n0\r\n\r\n",
            origin.name
        );
        for byte in request.as_bytes() {
            client.send([*byte]).await;
            tokio::task::yield_now().await;
        }
        let mut server = origin.accept().await;
        server.until("\r\n\r\n3\r\nabc\r\n0\r\n\r\n").await;
        for byte in OK.as_bytes() {
            server.send([*byte]).await;
            tokio::task::yield_now().await;
        }
        assert_eq!(client.until("hi").await, OK);
    });
}

#[test]
fn large_bodies_both_ways() {
    run(async {
        let (origin, proxy) = (Origin::start().await, Proxy::start(Direct::default()).await);
        let mut client = proxy.client().await;
        let body: Vec<u8> = (0..3_000_000u32).map(|n| (n * 7 / 3) as u8).collect();
        let head = format!(
            "PUT http://{0}/ HTTP/1.1\r\nHost: {0}\r\nContent-Length: {1}\r\n\r\n",
            origin.name,
            body.len()
        );
        let sent = [head.as_bytes(), &body, origin.get("/next").as_bytes()].concat();
        let echo = async {
            let mut server = origin.accept().await;
            server.until("\r\n\r\n").await;
            let got = server.exactly(body.len()).await;
            server
                .send(format!(
                    "HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n",
                    got.len()
                ))
                .await;
            server.send(&got).await;
            let next = server.until("\r\n\r\n").await;
            assert!(next.starts_with("GET /next "), "{next}");
            server.send(OK).await;
        };
        let (mut reader, mut writer) = client.stream.split();
        let write = async {
            AsyncWriteExt::write_all(&mut writer, &sent).await.unwrap();
        };
        let read = async {
            let mut got = Vec::new();
            while !got.ends_with(OK.as_bytes()) {
                let n = within(AsyncReadExt::read_buf(&mut reader, &mut got))
                    .await
                    .unwrap();
                assert!(n > 0);
            }
            let at = got.windows(4).position(|w| w == b"\r\n\r\n").unwrap() + 4;
            assert!(got[at..at + body.len()] == body[..], "the body changed");
        };
        tokio::join!(echo, write, read);
    });
}

#[test]
fn p12_head_has_no_body() {
    run(async {
        let (origin, proxy) = (Origin::start().await, Proxy::start(Direct::default()).await);
        let mut client = proxy.client().await;
        client.send(origin.get("/").replace("GET", "HEAD")).await;
        let mut server = origin.accept().await;
        server.until("\r\n\r\n").await;
        let head = "HTTP/1.1 200 OK\r\nContent-Length: 1000\r\n\r\n";
        server.send(head).await;
        assert_eq!(client.until("\r\n\r\n").await, head);
        client.send(origin.get("/2")).await;
        server.until("\r\n\r\n").await;
        server.send(OK).await;
        assert_eq!(client.until("hi").await, OK);
    });
}

#[test]
fn p15_a_close_delimited_answer_arrives_whole() {
    run(async {
        let (origin, proxy) = (Origin::start().await, Proxy::start(Direct::default()).await);
        let mut client = proxy.client().await;
        client.send(origin.get("/")).await;
        let mut server = origin.accept().await;
        server.until("\r\n\r\n").await;
        server.send("HTTP/1.1 200 OK\r\n\r\npart one,").await;
        client.until("part one,").await;
        server.send("part two").await;
        drop(server);
        assert_eq!(client.rest().await, "part two");
        assert_eq!(proxy.told(1).await[0].end, End::Completed);
    });
}

#[test]
fn p16_a_truncated_answer_looks_truncated() {
    run(async {
        let (origin, proxy) = (Origin::start().await, Proxy::start(Direct::default()).await);
        for (head, body) in [
            ("Content-Length: 100", "ten bytes!"),
            ("Transfer-Encoding: chunked", "a\r\nten bytes!\r\n"),
        ] {
            let mut client = proxy.client().await;
            client.send(origin.get("/")).await;
            let mut server = origin.accept().await;
            server.until("\r\n\r\n").await;
            server
                .send(format!("HTTP/1.1 200 OK\r\n{head}\r\n\r\n{body}"))
                .await;
            client.until(body).await;
            drop(server);
            assert_eq!(client.rest().await, "");
        }
        assert_eq!(proxy.told(2).await[1].end, End::Truncated);
    });
}

#[test]
fn p17_chunks_are_taken_out_for_a_client_of_http10() {
    run(async {
        let (origin, proxy) = (Origin::start().await, Proxy::start(Direct::default()).await);
        let mut client = proxy.client().await;
        client
            .send(format!(
                "GET http://{0}/ HTTP/1.0\r\nConnection: keep-alive\r\n\r\n",
                origin.name
            ))
            .await;
        let mut server = origin.accept().await;
        let head = server.until("\r\n\r\n").await;
        assert!(
            head.contains(&format!("Host: {}\r\n", origin.name)),
            "{head}"
        );
        assert!(head.starts_with("GET / HTTP/1.1\r\n"), "{head}");
        server
            .send("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n")
            .await;
        let head = client.until("\r\n\r\n").await;
        assert!(!head.to_lowercase().contains("transfer-encoding"), "{head}");
        server.send("2;x=y\r\nde\r\n0\r\nT: u\r\n\r\n").await;
        assert_eq!(client.rest().await, "abcde");
    });
}

#[test]
fn p21_expect_is_relayed_both_ways() {
    run(async {
        let (origin, proxy) = (Origin::start().await, Proxy::start(Direct::default()).await);
        let mut client = proxy.client().await;
        let head = format!(
            "POST http://{0}/ HTTP/1.1\r\nHost: {0}\r\nContent-Length: 4\r\nExpect: 100-continue\r\n\r\n",
            origin.name
        );
        client.send(&head).await;
        let mut server = origin.accept().await;
        assert!(
            server
                .until("\r\n\r\n")
                .await
                .contains("Expect: 100-continue")
        );
        server.send("HTTP/1.1 100 Continue\r\n\r\n").await;
        assert_eq!(
            client.until("\r\n\r\n").await,
            "HTTP/1.1 100 Continue\r\n\r\n"
        );
        client.send("body").await;
        server.until("body").await;
        server.send(OK).await;
        assert_eq!(client.until("hi").await, OK);
        // A final answer instead: the body is never sent, the connection ends.
        client.send(&head).await;
        server.until("\r\n\r\n").await;
        server
            .send("HTTP/1.1 417 No\r\nContent-Length: 0\r\n\r\n")
            .await;
        let answer = client.rest().await;
        assert!(answer.starts_with("HTTP/1.1 417 No\r\n"), "{answer}");
        assert!(answer.contains("Connection: close\r\n"), "{answer}");
    });
}

#[test]
fn p22_early_hints_pass_to_http11_only() {
    run(async {
        let (origin, proxy) = (Origin::start().await, Proxy::start(Direct::default()).await);
        let hints = "HTTP/1.1 103 Early Hints\r\nLink: </s.css>\r\n\r\n";
        let mut client = proxy.client().await;
        client.send(origin.get("/")).await;
        let mut server = origin.accept().await;
        server.until("\r\n\r\n").await;
        server.send([hints, hints, OK].concat()).await;
        assert_eq!(client.until("hi").await, [hints, hints, OK].concat());
        let mut client = proxy.client().await;
        client
            .send(origin.get("/").replace("HTTP/1.1", "HTTP/1.0"))
            .await;
        server.until("\r\n\r\n").await;
        server.send([hints, OK].concat()).await;
        let answer = client.rest().await;
        assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
    });
}

#[test]
fn p31_a_stale_connection_is_replaced_once() {
    run(async {
        let (origin, proxy) = (Origin::start().await, Proxy::start(Direct::default()).await);
        let mut client = proxy.client().await;
        client.send(origin.get("/1")).await;
        let mut server = origin.accept().await;
        server.until("\r\n\r\n").await;
        server.send(OK).await;
        client.until("hi").await;
        // It takes the next request and closes without a word.
        client.send(origin.get("/2")).await;
        server.until("\r\n\r\n").await;
        drop(server);
        let mut server = origin.accept().await;
        let again = server.until("\r\n\r\n").await;
        assert!(again.starts_with("GET /2 "), "{again}");
        server.send(OK).await;
        assert_eq!(client.until("hi").await, OK);
        // On a fresh connection there is no second try.
        drop(server);
        client.send(origin.get("/3")).await;
        let mut server = origin.accept().await;
        server.until("\r\n\r\n").await;
        drop(server);
        let answer = client.until("\n").await;
        assert!(answer.starts_with("HTTP/1.1 502 "), "{answer}");
    });
}

#[test]
fn p31_a_408_on_a_kept_connection_is_no_answer() {
    run(async {
        let goodbye =
            "HTTP/1.1 408 Request Timeout\r\nConnection: close\r\nContent-Length: 2\r\n\r\nhi";
        let post = "Content-Length: 0\r\n\r\n";
        for (method, fields, again) in [("GET", "\r\n", true), ("POST", post, false)] {
            let (origin, proxy) = (Origin::start().await, Proxy::start(Direct::default()).await);
            let mut client = proxy.client().await;
            client.send(origin.get("/1")).await;
            let mut server = origin.accept().await;
            server.until("\r\n\r\n").await;
            server.send(OK).await;
            client.until("hi").await;
            let head = format!(
                "{method} http://{0}/2 HTTP/1.1\r\nHost: {0}\r\n",
                origin.name
            );
            client.send([&head[..], fields].concat()).await;
            server.until("\r\n\r\n").await;
            server.send(goodbye).await;
            if again {
                let mut fresh = origin.accept().await;
                fresh.until("\r\n\r\n").await;
                // On a new connection it is meant.
                fresh.send(goodbye).await;
            }
            let answer = client.until("hi").await;
            assert!(answer.starts_with("HTTP/1.1 408 "), "{answer}");
            let connects = if again { 3 } else { 2 };
            assert_eq!(*proxy.gateway.connects.borrow(), connects, "{method}");
        }
    });
}

#[test]
fn p31_a_post_is_not_sent_twice() {
    run(async {
        let (origin, proxy) = (Origin::start().await, Proxy::start(Direct::default()).await);
        let mut client = proxy.client().await;
        client.send(origin.get("/1")).await;
        let mut server = origin.accept().await;
        server.until("\r\n\r\n").await;
        server.send(OK).await;
        client.until("hi").await;
        client
            .send(format!(
                "POST http://{0}/ HTTP/1.1\r\nHost: {0}\r\nContent-Length: 1\r\n\r\nx",
                origin.name
            ))
            .await;
        server.until("\r\n\r\nx").await;
        drop(server);
        let answer = client.until("\n").await;
        assert!(answer.starts_with("HTTP/1.1 502 "), "{answer}");
        assert_eq!(*proxy.gateway.dials.borrow(), 1);
    });
}

#[test]
fn p33_a_client_reset_ends_the_work_at_the_origin() {
    run(async {
        let (origin, proxy) = (Origin::start().await, Proxy::start(Direct::default()).await);
        let mut client = proxy.client().await;
        client.send(origin.get("/")).await;
        let mut server = origin.accept().await;
        server.until("\r\n\r\n").await;
        client.stream.set_zero_linger().unwrap();
        drop(client);
        server.rest().await;
        assert_eq!(proxy.told(1).await[0].end, End::ClientReset);
    });
}

#[test]
fn p33_a_client_reset_cancels_the_dial() {
    run(async {
        let (origin, proxy) = (Origin::start().await, Proxy::start(Direct::default()).await);
        let tunnel = "CONNECT far.test:443 HTTP/1.1\r\nHost: far.test:443\r\n\r\nearly";
        let requests = [
            origin.get("/"),
            origin.get("/").repeat(9),
            tunnel.to_owned(),
        ];
        for (count, request) in (1..).zip(requests) {
            let client = proxy.dialling(request).await;
            client.stream.set_zero_linger().unwrap();
            drop(client);
            let told = proxy.told(count).await;
            assert_eq!(proxy.gateway.held.get(), 0);
            let told = &told[count - 1];
            assert_eq!((told.end, told.error), (End::ClientReset, None));
            assert_eq!((told.status, told.up, told.down), (None, 0, 0));
        }
        assert_eq!(*proxy.gateway.dials.borrow(), 3);
    });
}

#[test]
fn p50_a_fin_does_not_cancel_the_dial() {
    run(async {
        let (origin, proxy) = (Origin::start().await, Proxy::start(Direct::default()).await);
        let mut client = proxy.dialling(origin.get("/")).await;
        client.finish().await;
        client.taken().await;
        assert_eq!(proxy.gateway.held.get(), 1);
        proxy.gateway.hold.set(false);
        let mut server = origin.accept().await;
        server.until("\r\n\r\n").await;
        server.send(OK).await;
        let answer = client.rest().await;
        assert!(answer.ends_with("\r\n\r\nhi"), "{answer}");
    });
}

#[test]
fn p33_a_client_reset_is_heard_while_the_origin_takes_nothing() {
    run(async {
        let (origin, proxy) = (Origin::start().await, Proxy::start(Direct::default()).await);
        let mut client = proxy.client().await;
        let head = format!(
            "POST http://{0}/ HTTP/1.1\r\nHost: {0}\r\nContent-Length: 100000000\r\n\r\n",
            origin.name
        );
        client.send(head).await;
        let _deaf = origin.accept().await;
        // Until nobody on the way takes any more.
        let body = vec![b'x'; 1_000_000];
        let full = Duration::from_millis(500);
        while tokio::time::timeout(full, client.stream.write(&body))
            .await
            .is_ok()
        {}
        client.stream.set_zero_linger().unwrap();
        drop(client);
        assert_eq!(proxy.told(1).await[0].end, End::ClientReset);
    });
}

#[test]
fn p50_a_fin_behind_a_request_is_not_an_abort() {
    run(async {
        let (origin, proxy) = (Origin::start().await, Proxy::start(Direct::default()).await);
        let mut client = proxy.client().await;
        client.send(origin.get("/")).await;
        client.finish().await;
        let mut server = origin.accept().await;
        server.until("\r\n\r\n").await;
        server.send(OK).await;
        let answer = client.rest().await;
        assert!(answer.ends_with("\r\n\r\nhi"), "{answer}");
    });
}

#[test]
fn p50_requests_before_the_fin_are_all_answered() {
    run(async {
        let (origin, proxy) = (Origin::start().await, Proxy::start(Direct::default()).await);
        let mut client = proxy.client().await;
        client.send(origin.get("/").repeat(20)).await;
        client.finish().await;
        let mut server = origin.accept().await;
        for _ in 0..20 {
            server.until("\r\n\r\n").await;
            server.send(OK).await;
        }
        let answers = client.rest().await;
        assert_eq!(answers.matches("\r\n\r\nhi").count(), 20, "{answers}");
        assert_eq!(answers.matches("Connection: close").count(), 1, "{answers}");
    });
}

#[test]
fn p34_a_pipelining_client_is_held_back() {
    run(async {
        let (origin, proxy) = (Origin::start().await, Proxy::start(Direct::default()).await);
        let mut client = proxy.client().await;
        let requests = origin.get("/").repeat(1_000);
        let mut sent = 0;
        let mut server = None;
        // One request at a time is answered, and each time the client sends what
        // it can: what the proxy takes in is bounded by what it answers and the
        // sockets' own buffers, which are full after a while.
        let mut taken = Vec::new();
        for _ in 0..200 {
            loop {
                tokio::task::yield_now().await;
                let Ok(n) = client
                    .stream
                    .try_write(&requests.as_bytes()[sent % requests.len()..])
                else {
                    break;
                };
                sent += n;
            }
            let server = match &mut server {
                Some(server) => server,
                empty => empty.insert(origin.accept().await),
            };
            server.until("\r\n\r\n").await;
            server.send(OK).await;
            client.until("hi").await;
            taken.push(sent);
        }
        let later = taken[199] - taken[100];
        assert!(later < 512 * 1024, "{later} bytes for 100 requests");
    });
}

#[test]
fn a_stalled_peer_is_blamed_for_it() {
    run(async {
        let origin = Origin::start().await;
        let proxy = Proxy::with(Direct::default(), impatient(), ()).await;
        // The origin takes nothing.
        let mut client = proxy.client().await;
        let head = format!(
            "POST http://{0}/ HTTP/1.1\r\nHost: {0}\r\nContent-Length: 100000000\r\n\r\n",
            origin.name
        );
        client.send(head).await;
        let _deaf = origin.accept().await;
        let (mut reader, mut writer) = client.stream.split();
        let mut answer = Vec::new();
        let body = vec![b'x'; 1_000_000];
        let pushing = async {
            while writer.write_all(&body).await.is_ok() {}
            std::future::pending::<()>().await;
        };
        let answered = async {
            while !answer.ends_with(b"\n") {
                assert!(within(reader.read_buf(&mut answer)).await.unwrap() > 0);
            }
        };
        tokio::select! {
            () = answered => {}
            () = pushing => {}
        }
        assert!(answer.starts_with(b"HTTP/1.1 504 "));
        // The client takes nothing.
        let mut lazy = proxy.client().await;
        lazy.send(origin.get("/")).await;
        let mut server = origin.accept().await;
        server.until("\r\n\r\n").await;
        server
            .send("HTTP/1.1 200 OK\r\nContent-Length: 100000000\r\n\r\n")
            .await;
        within(async { while server.stream.write_all(&body).await.is_ok() {} }).await;
        let ends: Vec<_> = proxy.told(2).await.iter().map(|told| told.end).collect();
        assert_eq!(ends, [End::WriteStalled, End::WriteStalled]);
    });
}

#[test]
fn an_answer_head_cannot_be_dripped_for_ever() {
    run(async {
        let origin = Origin::start().await;
        let proxy = Proxy::with(Direct::default(), impatient(), ()).await;
        let mut client = proxy.client().await;
        client.send(origin.get("/")).await;
        let mut server = origin.accept().await;
        server.until("\r\n\r\n").await;
        server.send("HTTP/1.1 200 OK\r\nX: ").await;
        let mut ticks = tokio::time::interval(Duration::from_millis(50));
        let dripping = async {
            loop {
                ticks.tick().await;
                if server.stream.write_all(b"x").await.is_err() {
                    std::future::pending::<()>().await;
                }
            }
        };
        tokio::select! {
            () = dripping => {}
            answer = client.until("\n") => assert!(answer.starts_with("HTTP/1.1 504 ")),
        }
    });
}

#[test]
fn p17_no_transfer_encoding_for_http10_even_in_answer_to_head() {
    run(async {
        let (origin, proxy) = (Origin::start().await, Proxy::start(Direct::default()).await);
        let mut client = proxy.client().await;
        client
            .send(format!("HEAD http://{}/ HTTP/1.0\r\n\r\n", origin.name))
            .await;
        let mut server = origin.accept().await;
        server.until("\r\n\r\n").await;
        server
            .send("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n")
            .await;
        let answer = client.rest().await.to_lowercase();
        assert!(answer.starts_with("http/1.1 200 "), "{answer}");
        assert!(!answer.contains("transfer-encoding"), "{answer}");
        // A body that is broken from the start is no answer at all.
        let mut client = proxy.client().await;
        client
            .send(format!("GET http://{}/ HTTP/1.0\r\n\r\n", origin.name))
            .await;
        server.until("\r\n\r\n").await;
        server
            .send("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n")
            .await;
        assert!(client.rest().await.starts_with("HTTP/1.1 502 "));
    });
}

#[test]
fn what_came_of_a_request_is_told_when_its_client_resets() {
    run(async {
        let proxy = Proxy::start(Direct::default()).await;
        let mut client = proxy.client().await;
        client.send("GET http://h/ HT").await;
        within(client.taken()).await;
        client.stream.set_zero_linger().unwrap();
        drop(client);
        let told = proxy.told(1).await;
        assert_eq!((told[0].end, told[0].status), (End::ClientReset, None));
    });
}

#[test]
fn an_origin_that_answers_early_and_closes_is_heard() {
    run(async {
        let (origin, proxy) = (Origin::start().await, Proxy::start(Direct::default()).await);
        let mut client = proxy.client().await;
        client
            .send(format!(
                "POST http://{0}/ HTTP/1.1\r\nHost: {0}\r\nContent-Length: 100000000\r\n\r\nsome",
                origin.name
            ))
            .await;
        let mut server = origin.accept().await;
        server.until("some").await;
        server
            .send("HTTP/1.1 413 Too Large\r\nContent-Length: 0\r\nConnection: close\r\n\r\n")
            .await;
        drop(server);
        let answer = client.until("\r\n\r\n").await;
        assert!(answer.starts_with("HTTP/1.1 413 "), "{answer}");
        assert!(answer.contains("Connection: close\r\n"), "{answer}");
    });
}

#[test]
fn an_origin_that_answers_early_and_reads_on_gets_the_whole_body() {
    run(async {
        let (origin, proxy) = (Origin::start().await, Proxy::start(Direct::default()).await);
        let mut client = proxy.client().await;
        let body = vec![b'x'; 40_000_000];
        let answer_body = vec![b'y'; 20_000_000];
        let head = format!(
            "POST http://{0}/ HTTP/1.1\r\nHost: {0}\r\nContent-Length: {1}\r\n\r\n",
            origin.name,
            body.len()
        );
        client.send(head).await;
        let mut server = origin.accept().await;
        server.until("\r\n\r\n").await;
        server
            .send(format!(
                "HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n",
                answer_body.len()
            ))
            .await;
        let answer = client.until("\r\n\r\n").await;
        assert!(answer.contains("Connection: close\r\n"), "{answer}");
        // The answer is complete long before the request.
        let (mut from_proxy, mut to_proxy) = client.stream.split();
        let (mut from_client, mut to_client) = server.stream.split();
        let mut got = (Vec::new(), Vec::new());
        let all = async {
            tokio::try_join!(
                to_proxy.write_all(&body),
                to_client.write_all(&answer_body),
                from_proxy.read_to_end(&mut got.0),
                async {
                    while got.1.len() < body.len() && from_client.read_buf(&mut got.1).await? > 0 {}
                    Ok(())
                }
            )
        };
        within(all).await.expect("no reset");
        assert!(got == (answer_body, body), "something was lost");
        assert_eq!(proxy.told(1).await[0].end, End::Completed);
    });
}

#[test]
fn bytes_behind_the_answer_are_nobodys() {
    run(async {
        let (origin, proxy) = (Origin::start().await, Proxy::start(Direct::default()).await);
        let mut client = proxy.client().await;
        client.send(origin.get("/1")).await;
        let mut server = origin.accept().await;
        server.until("\r\n\r\n").await;
        server.send([OK, "HTTP/1.1 200 Evil\r\n"].concat()).await;
        client.until("hi").await;
        client.send(origin.get("/2")).await;
        let mut server = origin.accept().await;
        server.until("\r\n\r\n").await;
        server.send(OK).await;
        assert_eq!(client.until("hi").await, OK);
    });
}

#[test]
fn malformed_answers_become_502() {
    run(async {
        let (origin, proxy) = (Origin::start().await, Proxy::start(Direct::default()).await);
        for bad in [
            "HTTP/1.1 200 OK\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\nab",
            "HTTP/1.1 200 OK\r\nContent-Length: 3\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
            "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n",
            "HTTP/1.1 101 Switching Protocols\r\nUpgrade: x\r\nConnection: upgrade\r\n\r\n",
            "garbage\r\n\r\n",
            "HTTP/1.1 2x0 OK\r\n\r\n",
        ] {
            let mut client = proxy.client().await;
            client.send(origin.get("/")).await;
            let mut server = origin.accept().await;
            server.until("\r\n\r\n").await;
            server.send(bad).await;
            let answer = client.until("\r\n\r\n").await;
            assert!(answer.starts_with("HTTP/1.1 502 "), "{bad:?} gave {answer}");
        }
        assert!(
            proxy
                .told(6)
                .await
                .iter()
                .all(|told| told.end == End::BadResponse)
        );
    });
}

#[test]
fn a_bad_chunk_later_on_cuts_the_answer() {
    run(async {
        let (origin, proxy) = (Origin::start().await, Proxy::start(Direct::default()).await);
        let mut client = proxy.client().await;
        client.send(origin.get("/")).await;
        let mut server = origin.accept().await;
        server.until("\r\n\r\n").await;
        server
            .send("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n1\r\na\r\n")
            .await;
        client.until("1\r\na\r\n").await;
        server.send("-1\r\n").await;
        assert_eq!(client.rest().await, "");
    });
}

#[test]
fn refusals_have_their_status() {
    run(async {
        let proxy = Proxy::start(Direct::default()).await;
        for (request, status) in [
            ("GET / HTTP/1.1\r\nHost: h\r\n\r\n", 400),
            ("GET https://h/ HTTP/1.1\r\nHost: h\r\n\r\n", 501),
            ("GET ftp://h/ HTTP/1.1\r\nHost: h\r\n\r\n", 501),
            ("GET http://127.0.0.1:1/ HTTP/1.1\r\nHost: h\r\n\r\n", 502),
            ("GET http://h/ HTTP/2.0\r\nHost: h\r\n\r\n", 505),
            (
                "CONNECT 127.0.0.1:1 HTTP/1.1\r\nHost: 127.0.0.1:1\r\n\r\n",
                502,
            ),
            ("CONNECT 127.0.0.1 HTTP/1.1\r\nHost: h\r\n\r\n", 400),
            ("CONNECT 127.0.0.1:99999 HTTP/1.1\r\nHost: h\r\n\r\n", 400),
            ("\x16\x03\x01\x00\x01", 400),
        ] {
            let mut client = proxy.client().await;
            client.send(request).await;
            let answer = client.until("\r\n\r\n").await;
            assert!(
                answer.starts_with(&format!("HTTP/1.1 {status} ")),
                "{request:?} gave {answer}"
            );
        }
    });
}

#[test]
fn p26_a_challenge_keeps_the_connection() {
    run(async {
        let origin = Origin::start().await;
        let locked = Direct {
            locked: true,
            ..Direct::default()
        };
        let proxy = Proxy::start(locked).await;
        let mut client = proxy.client().await;
        let post = format!(
            "POST http://{0}/ HTTP/1.1\r\nHost: {0}\r\nContent-Length: 5\r\n\r\n",
            origin.name
        );
        client.send(&post).await;
        let answer = client.until("\r\n\r\n").await;
        assert!(answer.starts_with("HTTP/1.1 407 "), "{answer}");
        assert!(
            answer.contains("Proxy-Authenticate: Basic realm=\"proxy\""),
            "{answer}"
        );
        assert!(!answer.contains("Connection: close"), "{answer}");
        client.until("\n").await;
        client.send("GET h").await;
        client
            .send(post.replace(
                "Content",
                "Proxy-Authorization: Basic YWxpY2U6c2VjcmV0\r\nContent",
            ))
            .await;
        client.send("hello").await;
        let mut server = origin.accept().await;
        let got = server.until("hello").await;
        assert!(!got.contains("Proxy-Authorization"), "{got}");
        server.send(OK).await;
        assert_eq!(client.until("hi").await, OK);
        // Credentials hold for their request only.
        client.send(origin.get("/")).await;
        assert!(client.until("\r\n\r\n").await.starts_with("HTTP/1.1 407 "));
        let told = proxy.told(3).await;
        assert_eq!(
            told.iter().map(|told| told.end).collect::<Vec<_>>(),
            [End::Challenged, End::Completed, End::Challenged]
        );
    });
}

#[test]
fn forbidden_requests_get_403() {
    run(async {
        let proxy = Proxy::start(Direct {
            forbid: true,
            ..Direct::default()
        })
        .await;
        let mut client = proxy.client().await;
        for request in [
            "GET http://127.0.0.1:1/ HTTP/1.1\r\nHost: h\r\n\r\n",
            "CONNECT 127.0.0.1:1 HTTP/1.1\r\nHost: h\r\n\r\n",
        ] {
            client.send(request).await;
            assert!(client.until("\r\n\r\n").await.starts_with("HTTP/1.1 403 "));
            client.until("\n").await;
        }
        assert_eq!(proxy.told(2).await[1].end, End::Forbidden);
    });
}

fn impatient() -> Config {
    let mut timeouts = Timeouts::default();
    timeouts.head = Some(Duration::from_millis(200));
    timeouts.keep_alive = Some(Duration::from_millis(200));
    timeouts.body = Some(Duration::from_millis(200));
    timeouts.first_byte = Some(Duration::from_millis(200));
    timeouts.progress = Some(Duration::from_millis(200));
    let mut config = Config::default();
    config.timeouts(timeouts);
    config
}

#[test]
fn each_wait_has_its_end() {
    run(async {
        let origin = Origin::start().await;
        let proxy = Proxy::with(Direct::default(), impatient(), ()).await;
        // Nothing at all: a silent close.
        assert_eq!(proxy.client().await.rest().await, "");
        // Half a head, fed byte by byte: 408.
        let mut client = proxy.client().await;
        client.send("GET http://h/ HT").await;
        assert!(client.rest().await.starts_with("HTTP/1.1 408 "));
        // Half a body: 408.
        let mut client = proxy.client().await;
        client
            .send(format!(
                "POST http://{0}/ HTTP/1.1\r\nHost: {0}\r\nContent-Length: 5\r\n\r\nab",
                origin.name
            ))
            .await;
        assert!(client.rest().await.starts_with("HTTP/1.1 408 "));
        origin.accept().await.until("ab").await;
        // No answer: 504.
        let mut client = proxy.client().await;
        client.send(origin.get("/")).await;
        let mut silent = origin.accept().await;
        silent.until("\r\n\r\n").await;
        assert!(client.until("\r\n\r\n").await.starts_with("HTTP/1.1 504 "));
        // Half an answer: cut.
        let mut client = proxy.client().await;
        client.send(origin.get("/")).await;
        let mut server = origin.accept().await;
        server.until("\r\n\r\n").await;
        server
            .send("HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nhalf")
            .await;
        let answer = client.rest().await;
        assert!(answer.ends_with("half"), "{answer:?}");
        let ends: Vec<_> = proxy.told(4).await.iter().map(|told| told.end).collect();
        assert_eq!(
            ends,
            [
                End::ClientTimeout,
                End::ClientTimeout,
                End::OriginTimeout,
                End::OriginTimeout
            ]
        );
    });
}

#[test]
fn a_drain_finishes_what_runs_and_closes_what_idles() {
    run(async {
        let origin = Origin::start().await;
        let stop = Stop::new();
        let mut config = Config::default();
        config.stop(stop.clone());
        let proxy = Proxy::with(Direct::default(), config, ()).await;
        let (mut busy, mut idle) = (proxy.client().await, proxy.client().await);
        idle.send(origin.get("/")).await;
        let mut server = origin.accept().await;
        server.until("\r\n\r\n").await;
        server.send(OK).await;
        idle.until("hi").await;
        busy.send(origin.get("/")).await;
        server.until("\r\n\r\n").await;
        stop.drain();
        assert_eq!(idle.rest().await, "");
        server.send(OK).await;
        let answer = busy.rest().await;
        assert!(answer.contains("Connection: close\r\n"), "{answer}");
        assert!(answer.ends_with("hi"), "{answer}");
    });
}

#[test]
fn a_session_can_be_stopped() {
    run(async {
        let origin = Origin::start().await;
        let stop = Stop::new();
        let proxy = Proxy::start(Direct {
            stop: stop.clone(),
            ..Direct::default()
        })
        .await;
        let mut client = proxy.client().await;
        client.send(origin.get("/")).await;
        let mut server = origin.accept().await;
        server.until("\r\n\r\n").await;
        stop.stop(End::Limit);
        assert!(client.until("\r\n\r\n").await.starts_with("HTTP/1.1 503 "));
        assert_eq!(proxy.told(1).await[0].end, End::Limit);
    });
}

/// Removes a field each way, adds one, collects bodies.
#[derive(Clone, Default)]
struct Watcher(Rc<RefCell<Vec<Piece>>>);

type Piece = (Direction, Vec<u8>, bool);

impl Filter<()> for Watcher {
    fn request(&self, _: &mut (), head: &mut HeadEdit<'_>) -> Flow {
        head.remove("cookie");
        match head.get("x-reject") {
            Some(_) => Flow::Reject(451),
            None => Flow::Inspect,
        }
    }
    fn response(&self, _: &mut (), head: &mut HeadEdit<'_>) -> Flow {
        head.remove("x-a");
        head.append("X-Seen", b"yes").unwrap();
        Flow::Inspect
    }
    fn body(&self, _: &mut (), direction: Direction, chunk: &mut Chunk<'_>) -> Flow {
        let piece = (direction, chunk.bytes().to_vec(), chunk.is_last());
        self.0.borrow_mut().push(piece);
        Flow::Inspect
    }
}

#[test]
fn filters_edit_heads_and_watch_bodies() {
    run(async {
        let origin = Origin::start().await;
        let watcher = Watcher::default();
        let proxy = Proxy::with(Direct::default(), Config::default(), (watcher.clone(), ())).await;
        let mut client = proxy.client().await;
        client
            .send(format!(
                "POST http://{0}/ HTTP/1.1\r\nHost: {0}\r\nCookie: c\r\nContent-Length: 4\r\n\r\nbody",
                origin.name
            ))
            .await;
        let mut server = origin.accept().await;
        let head = server.until("body").await;
        assert!(!head.contains("Cookie"), "{head}");
        server.send(OK).await;
        assert_eq!(
            client.until("hi").await,
            "HTTP/1.1 200 OK\r\nContent-Length: 2\r\nX-Seen: yes\r\n\r\nhi"
        );
        assert_eq!(
            *watcher.0.borrow(),
            [
                (Direction::Request, b"body".to_vec(), true),
                (Direction::Response, b"hi".to_vec(), true)
            ]
        );
        client
            .send(
                origin
                    .get("/")
                    .replace("\r\n\r\n", "\r\nX-Reject: 1\r\n\r\n"),
            )
            .await;
        assert!(client.until("\r\n\r\n").await.starts_with("HTTP/1.1 451 "));
    });
}
