//! Filters at work in the server, over loopback sockets.
#![cfg(feature = "serve")]
#![allow(missing_docs, clippy::unwrap_used)]

mod support;

use proxy_core::{End, HttpParent, Timeouts};
use proxy_http::{Answer, BodyFramer, Chunk, Config, Direction, Filter, Flow, Framing, HeadEdit};
use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;
use support::*;
use tokio::io::AsyncWriteExt;

const OK: &str = "HTTP/1.1 200 OK\r\nContent-Length: 2\r\nX-A: b\r\n\r\nhi";

type OnHead = Box<dyn Fn(&mut HeadEdit<'_>) -> Flow>;
type OnBody = Box<dyn Fn(Direction, &mut Chunk<'_>) -> Flow>;

/// A filter made of closures.
struct Test {
    request: OnHead,
    response: OnHead,
    body: OnBody,
}

impl Test {
    fn new() -> Self {
        Self {
            request: Box::new(|_| Flow::Pass),
            response: Box::new(|_| Flow::Pass),
            body: Box::new(|_, _| Flow::Pass),
        }
    }

    fn request(mut self, ask: impl Fn(&mut HeadEdit<'_>) -> Flow + 'static) -> Self {
        self.request = Box::new(ask);
        self
    }

    fn response(mut self, ask: impl Fn(&mut HeadEdit<'_>) -> Flow + 'static) -> Self {
        self.response = Box::new(ask);
        self
    }

    fn body(mut self, ask: impl Fn(Direction, &mut Chunk<'_>) -> Flow + 'static) -> Self {
        self.body = Box::new(ask);
        self
    }

    /// Bodies of both directions are in capitals, with a `!` at the end.
    fn loud() -> Self {
        Self::new()
            .request(|_| Flow::Rewrite)
            .response(|_| Flow::Rewrite)
            .body(|_, chunk| {
                let mut bytes = chunk.bytes().to_ascii_uppercase();
                if chunk.is_last() {
                    bytes.push(b'!');
                }
                assert!(chunk.replace(bytes));
                Flow::Rewrite
            })
    }
}

impl Filter<()> for Test {
    fn request(&self, _: &mut (), head: &mut HeadEdit<'_>) -> Flow {
        (self.request)(head)
    }
    fn response(&self, _: &mut (), head: &mut HeadEdit<'_>) -> Flow {
        (self.response)(head)
    }
    fn body(&self, _: &mut (), direction: Direction, chunk: &mut Chunk<'_>) -> Flow {
        (self.body)(direction, chunk)
    }
}

async fn proxy(filter: impl Filter<()> + 'static) -> Proxy {
    Proxy::with(Direct::default(), Config::default(), filter).await
}

fn answer(status: u16, body: &'static str) -> Flow {
    let mut answer = Answer::new(status).unwrap();
    answer.append("X-From", b"filter").unwrap().body(body);
    answer.into()
}

/// The pieces of content that a filter was shown.
#[derive(Clone, Default)]
struct Seen(Rc<RefCell<Vec<(Direction, String, bool)>>>);

impl Seen {
    fn note(&self, direction: Direction, chunk: &Chunk<'_>) {
        let text = String::from_utf8_lossy(chunk.bytes()).into_owned();
        self.0.borrow_mut().push((direction, text, chunk.is_last()));
    }

    /// All content of one direction, and how many pieces claimed to be the last.
    fn take(&self, direction: Direction) -> (String, usize) {
        let seen = self.0.borrow();
        let pieces = seen.iter().filter(|piece| piece.0 == direction);
        let lasts = pieces.clone().filter(|piece| piece.2).count();
        (pieces.map(|piece| &*piece.1).collect(), lasts)
    }
}

/// What a body in chunks says, and the trailers behind it.
fn unchunk(bytes: &[u8]) -> (String, String) {
    let mut framer = BodyFramer::new(Framing::Chunked);
    let (mut rest, mut content) = (bytes, Vec::new());
    loop {
        let piece = framer.payload(rest).expect("chunks");
        content.extend_from_slice(&rest[piece.range]);
        rest = &rest[piece.used..];
        if piece.end {
            assert_eq!(rest, b"", "behind the end");
            break;
        }
        assert!(!rest.is_empty(), "no end");
    }
    let text = String::from_utf8_lossy(bytes);
    let trailers = text.rsplit_once("0\r\n").map_or("", |(_, end)| end);
    let content = String::from_utf8(content).unwrap();
    (content, trailers.trim_end_matches("\r\n").to_owned())
}

fn post(origin: &Origin, rest: &str) -> String {
    let name = &origin.name;
    format!("POST http://{name}/ HTTP/1.1\r\nHost: {name}\r\n{rest}")
}

#[test]
fn an_answer_to_a_request_needs_no_connection() {
    run(async {
        let proxy = proxy(Test::new().request(|_| answer(200, "from the filter"))).await;
        let mut client = proxy.client().await;
        let head = "HTTP/1.1 200 OK\r\nX-From: filter\r\nContent-Length: 15\r\n\r\n";
        let get = "GET http://nowhere.test/ HTTP/1.1\r\nHost: nowhere.test\r\n\r\n";
        for _ in 0..3 {
            client.send(get).await;
            let whole = client.until("filter\r\nContent-Length: 15\r\n\r\n").await;
            assert_eq!(whole, head);
            assert_eq!(client.exactly(15).await, b"from the filter");
        }
        // Pipelined, and without a body in answer to HEAD.
        client
            .send([get, &get.replace("GET", "HEAD"), get].concat())
            .await;
        let all = [head, "from the filter", head, head, "from the filter"].concat();
        let got = client.exactly(all.len()).await;
        assert_eq!(String::from_utf8(got).unwrap(), all);
        // The connection is the client's to keep, as for any other answer.
        client
            .send(get.replace("\r\n\r\n", "\r\nConnection: close\r\n\r\n"))
            .await;
        assert!(client.rest().await.contains("\r\nConnection: close\r\n"));
        let mut old = proxy.client().await;
        old.send("GET http://nowhere.test/ HTTP/1.0\r\nConnection: keep-alive\r\n\r\n")
            .await;
        assert!(
            old.until("\r\n\r\n")
                .await
                .contains("\r\nConnection: keep-alive\r\n")
        );
        let told = proxy.told(8).await;
        assert_eq!((told[0].status, told[0].end), (Some(200), End::Completed));
        assert_eq!((told[0].up, told[0].down), (0, head.len() as u64 + 15));
        assert_eq!(*proxy.gateway.connects.borrow(), 0);
    });
}

#[test]
fn a_refused_request_needs_no_connection() {
    run(async {
        let proxy = proxy(Test::new().request(|_| Flow::Reject(451))).await;
        let mut client = proxy.client().await;
        for _ in 0..2 {
            client
                .send("GET http://nowhere.test/ HTTP/1.1\r\nHost: nowhere.test\r\n\r\n")
                .await;
            assert!(client.until("\r\n\r\n").await.starts_with("HTTP/1.1 451 "));
            client.until("\n").await;
        }
        assert_eq!(proxy.told(2).await[1].end, End::Forbidden);
        assert_eq!(*proxy.gateway.connects.borrow(), 0);
    });
}

#[test]
fn p07_an_early_answer_leaves_no_body_behind() {
    run(async {
        let proxy = proxy(Test::new().request(|_| answer(200, "."))).await;
        let origin = Origin::start().await;
        let evil = "GET http://evil.test/ HTTP/1.1\r\nHost: evil.test\r\n\r\n";
        for (fields, body, kept) in [
            (
                format!("Content-Length: {}\r\n\r\n", evil.len()),
                evil.to_owned(),
                true,
            ),
            (
                "Transfer-Encoding: chunked\r\n\r\n".to_owned(),
                format!("{:x}\r\n{evil}\r\n0\r\n\r\n", evil.len()),
                true,
            ),
            (
                "Content-Length: 10000000\r\n\r\n".to_owned(),
                evil.to_owned(),
                false,
            ),
            (
                "Transfer-Encoding: chunked\r\n\r\n".to_owned(),
                format!("99999\r\n{evil}"),
                false,
            ),
            (
                format!(
                    "Expect: 100-continue\r\nContent-Length: {}\r\n\r\n",
                    evil.len()
                ),
                String::new(),
                false,
            ),
        ] {
            let mut client = proxy.client().await;
            client
                .send(post(&origin, &[&fields, &*body].concat()))
                .await;
            let head = client.until("\r\n\r\n").await;
            assert_eq!(head.contains("Connection: close"), !kept, "{fields}");
            client.until(".").await;
            if kept {
                client.send(origin.get("/")).await;
                client.until("\r\n\r\n.").await;
            } else {
                assert_eq!(client.rest().await, "", "{fields}");
            }
        }
        // A body that is still on its way is waited for.
        let mut client = proxy.client().await;
        client
            .send(post(&origin, "Content-Length: 9\r\n\r\n"))
            .await;
        client.until("\r\n\r\n.").await;
        client.send(["GET http:", &origin.get("/")].concat()).await;
        client.until("\r\n\r\n.").await;
        let told = proxy.told(9).await;
        assert!(
            told.iter().all(|told| told.end == End::Completed),
            "{told:?}"
        );
    });
}

#[test]
fn an_answer_in_the_place_of_the_origins() {
    run(async {
        let origin = Origin::start().await;
        let replace = |head: &mut HeadEdit<'_>| match head.status() {
            Some(404) => answer(200, "found after all"),
            Some(500) => Flow::Reject(504),
            _ => Flow::Pass,
        };
        let proxy = proxy(Test::new().response(replace)).await;
        let mut client = proxy.client().await;
        let mut server = None;
        // Whole answers: the origin's connection goes on.
        for (sent, got) in [
            (
                "404 Gone\r\nContent-Length: 4\r\n\r\nlost",
                "found after all",
            ),
            (
                "500 Bad\r\nContent-Length: 4\r\n\r\nlost",
                "504 Gateway Timeout",
            ),
            (
                "404 Gone\r\nTransfer-Encoding: chunked\r\n\r\n1\r\na\r\n0\r\n\r\n",
                "found after all",
            ),
            ("200 OK\r\nContent-Length: 2\r\n\r\nok", "ok"),
        ] {
            client.send(origin.get("/")).await;
            if server.is_none() {
                server = Some(origin.accept().await);
            }
            let server = server.as_mut().unwrap();
            server.until("\r\n\r\n").await;
            server.send(["HTTP/1.1 ", sent].concat()).await;
            client.until("\r\n\r\n").await;
            let body = client.until(got).await;
            assert!(!body.contains("lost"), "{body}");
            if got.starts_with("504") {
                client.until("\n").await;
            }
        }
        assert_eq!(*proxy.gateway.dials.borrow(), 1);
        // A part of one, or too much: it is closed, the client's is kept.
        for sent in [
            "404 Gone\r\nContent-Length: 4\r\n\r\nlo",
            "404 Gone\r\nTransfer-Encoding: chunked\r\n\r\n1\r\na\r\n",
            "404 Gone\r\nContent-Length: 4\r\n\r\nlostHTTP/1.1 200 Evil",
            "404 Gone\r\n\r\nlost",
        ] {
            client.send(origin.get("/")).await;
            let mut own = match server.take() {
                Some(server) => server,
                None => origin.accept().await,
            };
            own.until("\r\n\r\n").await;
            own.send(["HTTP/1.1 ", sent].concat()).await;
            client.until("found after all").await;
            own.rest().await;
        }
        let told = proxy.told(8).await;
        assert_eq!((told[0].status, told[0].end), (Some(200), End::Completed));
        assert_eq!((told[1].status, told[1].end), (Some(504), End::Forbidden));
    });
}

#[test]
fn a_piece_of_a_body_can_be_answered() {
    run(async {
        let origin = Origin::start().await;
        let judge = |_: Direction, chunk: &mut Chunk<'_>| match chunk.bytes() {
            bytes if bytes.starts_with(b"virus") => answer(422, "infected"),
            bytes if bytes.starts_with(b"worm") => Flow::Reject(403),
            _ => Flow::Inspect,
        };
        let test = Test::new()
            .request(|_| Flow::Inspect)
            .response(|_| Flow::Inspect);
        let proxy = proxy(test.body(judge)).await;
        // With the head: before anything is connected to.
        let mut client = proxy.client().await;
        client
            .send(post(&origin, "Content-Length: 5\r\n\r\nvirus"))
            .await;
        client.until("\r\n\r\ninfected").await;
        assert_eq!(*proxy.gateway.connects.borrow(), 0);
        client
            .send(post(&origin, "Content-Length: 4\r\n\r\nworm"))
            .await;
        assert!(client.until("\r\n\r\n").await.starts_with("HTTP/1.1 403 "));
        // Later: the origin sees half a request, the client the answer.
        let mut client = proxy.client().await;
        client
            .send(post(&origin, "Content-Length: 7\r\n\r\na "))
            .await;
        let mut server = origin.accept().await;
        server.until("\r\n\r\na ").await;
        client.send("virus").await;
        let all = client.rest().await;
        assert!(
            all.starts_with("HTTP/1.1 422 ") && all.ends_with("infected"),
            "{all}"
        );
        assert_eq!(server.rest().await, "");
        // In an answer: before its head has left, and after.
        for (first, second, got) in [
            ("virus", "", "infected"),
            ("a ", "virus", "a "),
            ("a ", "worm", "a "),
        ] {
            let mut client = proxy.client().await;
            client.send(origin.get("/")).await;
            let mut server = origin.accept().await;
            server.until("\r\n\r\n").await;
            server
                .send(format!(
                    "HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\n{first}"
                ))
                .await;
            client.until("\r\n\r\n").await;
            client.until(got).await;
            if !second.is_empty() {
                server.send(second).await;
                assert_eq!(client.rest().await, "", "cut off");
                assert_eq!(proxy.told(1).await.last().unwrap().end, End::Forbidden);
            }
        }
    });
}

#[test]
fn p31_edits_survive_a_second_try_and_are_made_once() {
    run(async {
        let origin = Origin::start().await;
        let asked = Rc::new(Cell::new(0));
        let count = Rc::clone(&asked);
        let proxy = proxy(Test::new().request(move |head| {
            count.set(count.get() + 1);
            head.append("X-Try", count.get().to_string().as_bytes())
                .unwrap();
            head.set_target("/moved").unwrap();
            Flow::Pass
        }))
        .await;
        let mut client = proxy.client().await;
        client.send(origin.get("/1")).await;
        let mut server = origin.accept().await;
        server.until("\r\n\r\n").await;
        server.send(OK).await;
        client.until("hi").await;
        client.send(origin.get("/2")).await;
        let first = server.until("\r\n\r\n").await;
        drop(server);
        let mut server = origin.accept().await;
        let second = server.until("\r\n\r\n").await;
        let name = &origin.name;
        let whole = format!("GET /moved HTTP/1.1\r\nHost: {name}\r\nX-Try: 2\r\n\r\n");
        assert_eq!((&first, &second), (&whole, &whole));
        server.send(OK).await;
        assert_eq!(client.until("hi").await, OK);
        assert_eq!(asked.get(), 2);
    });
}

#[test]
fn p31_a_body_sent_again_is_shown_once() {
    run(async {
        let origin = Origin::start().await;
        for rewrite in [false, true] {
            let seen = Seen::default();
            let note = seen.clone();
            let flow = if rewrite {
                Flow::Rewrite
            } else {
                Flow::Inspect
            };
            let proxy = proxy(Test::new().request(move |_| flow.clone()).body(
                move |way, chunk| {
                    note.note(way, chunk);
                    if rewrite {
                        chunk.replace([b"<", chunk.bytes(), b">"].concat());
                    }
                    Flow::Inspect
                },
            ))
            .await;
            let mut client = proxy.client().await;
            client.send(origin.get("/1")).await;
            let mut server = origin.accept().await;
            server.until("\r\n\r\n").await;
            server.send(OK).await;
            client.until("hi").await;
            let put = post(&origin, "Content-Length: 4\r\n\r\nbody").replace("POST", "PUT");
            client.send(&put).await;
            let mark = if rewrite {
                "6\r\n<body>\r\n0\r\n\r\n"
            } else {
                "body"
            };
            let first = server.until(mark).await;
            drop(server);
            let mut server = origin.accept().await;
            assert_eq!(server.until(mark).await, first);
            server.send(OK).await;
            client.until("hi").await;
            assert_eq!(seen.take(Direction::Request), ("body".to_owned(), 1));
        }
    });
}

#[test]
fn p31_a_body_lost_on_a_stale_connection_is_not_sent_again() {
    run(async {
        let (origin, proxy) = (Origin::start().await, proxy(()).await);
        let mut client = proxy.client().await;
        client.send(origin.get("/1")).await;
        let mut server = origin.accept().await;
        server.until("\r\n\r\n").await;
        server.send(OK).await;
        client.until("hi").await;
        // The head arrives, then the connection is reset; what the client sends
        // behind it is read and cannot be delivered.
        let put = post(&origin, "Content-Length: 5\r\n\r\n").replace("POST", "PUT");
        client.send(&put).await;
        server.until("\r\n\r\n").await;
        server.stream.set_zero_linger().unwrap();
        drop(server);
        client.stream.write_all(b"lost!").await.unwrap();
        let head = client.until("\r\n").await;
        assert!(head.starts_with("HTTP/1.1 502 "), "{head}");
    });
}

#[test]
fn p11_a_new_target_reaches_a_parent_in_absolute_form() {
    run(async {
        let parent = Origin::start().await;
        let login = HttpParent {
            authorization: Some(b"Basic eDp5".to_vec().into()),
        };
        let gateway = Direct {
            parent: Some((parent.name.clone(), Arc::new(login))),
            ..Direct::default()
        };
        let asked = Rc::new(Cell::new(0));
        let count = Rc::clone(&asked);
        let test = Test::new().request(move |head| {
            count.set(count.get() + 1);
            assert_eq!(head.method(), Some("GET"));
            assert_eq!(head.target(), Some("/old?q"));
            assert!(
                head.headers()
                    .all(|field| field.name != "Proxy-Authorization")
            );
            head.set_target("/new?q").unwrap();
            assert_eq!(head.target(), Some("/new?q"));
            Flow::Pass
        });
        let proxy = Proxy::with(gateway, Config::default(), test).await;
        let mut client = proxy.client().await;
        let get = "GET http://o.test/old?q HTTP/1.1\r\nHost: o.test\r\n\r\n";
        let sent = "GET http://o.test/new?q HTTP/1.1\r\nHost: o.test\r\nProxy-Authorization: Basic eDp5\r\n\r\n";
        client.send(get).await;
        let mut server = parent.accept().await;
        assert_eq!(server.until("\r\n\r\n").await, sent);
        server.send(OK).await;
        client.until("hi").await;
        // A second try tells the hop anew, not twice.
        client.send(get).await;
        assert_eq!(server.until("\r\n\r\n").await, sent);
        drop(server);
        let mut server = parent.accept().await;
        assert_eq!(server.until("\r\n\r\n").await, sent);
        server.send(OK).await;
        client.until("hi").await;
        assert_eq!(asked.get(), 2);
    });
}

#[test]
fn content_is_shown_without_its_chunks_and_forwarded_with_them() {
    run(async {
        let origin = Origin::start().await;
        let seen = Seen::default();
        let note = seen.clone();
        let test = Test::new()
            .request(|_| Flow::Inspect)
            .response(|_| Flow::Inspect);
        let proxy = proxy(test.body(move |way, chunk| {
            note.note(way, chunk);
            assert!(!chunk.replace("never"), "it is forwarded as it is");
            Flow::Inspect
        }))
        .await;
        let chunks = "3;x=y\r\nabc\r\n01\r\nd\r\n0;z\r\nT: u\r\n\r\n";
        let mut told = 1;
        for (fields, body, content, lasts) in [
            ("Content-Length: 4\r\n", "abcd", "abcd", 1),
            ("Content-Length: 0\r\n", "", "", 1),
            ("Transfer-Encoding: chunked\r\n", chunks, "abcd", 1),
            ("Transfer-Encoding: chunked\r\n", "0\r\n\r\n", "", 1),
        ] {
            // In one piece, and byte by byte.
            for cut in [body.len(), 1] {
                seen.0.borrow_mut().clear();
                let mut client = proxy.client().await;
                *proxy.gateway.spare.borrow_mut() = None;
                let mut pieces = body.as_bytes().chunks(cut.max(1));
                let first = pieces.next().unwrap_or_default();
                client
                    .send([post(&origin, &format!("{fields}\r\n")).as_bytes(), first].concat())
                    .await;
                let mut server = origin.accept().await;
                server.until("\r\n\r\n").await;
                for piece in pieces {
                    client.send(piece).await;
                    client.taken().await;
                }
                assert_eq!(server.exactly(body.len()).await, body.as_bytes());
                server
                    .send(format!("HTTP/1.1 200 OK\r\n{fields}\r\n"))
                    .await;
                client.until("\r\n\r\n").await;
                for piece in body.as_bytes().chunks(cut.max(1)) {
                    server.send(piece).await;
                    server.taken().await;
                }
                assert_eq!(client.exactly(body.len()).await, body.as_bytes());
                proxy.told(told).await;
                told += 1;
                for way in [Direction::Request, Direction::Response] {
                    assert_eq!(
                        seen.take(way),
                        (content.to_owned(), lasts),
                        "{fields}{body}"
                    );
                }
            }
        }
        // The end of the connection ends a body as well.
        seen.0.borrow_mut().clear();
        let mut client = proxy.client().await;
        client.send(origin.get("/")).await;
        let mut server = origin.accept().await;
        server.until("\r\n\r\n").await;
        server.send("HTTP/1.1 200 OK\r\n\r\nab").await;
        client.until("ab").await;
        server.send("cd").await;
        drop(server);
        assert_eq!(client.rest().await, "cd");
        assert_eq!(seen.take(Direction::Response), ("abcd".to_owned(), 1));
        assert_eq!(seen.take(Direction::Request), (String::new(), 0));
    });
}

#[test]
fn a_filter_can_stop_looking() {
    run(async {
        let origin = Origin::start().await;
        for flow in [Flow::Inspect, Flow::Rewrite] {
            let seen = Seen::default();
            let note = seen.clone();
            let proxy = proxy(Test::new().response(move |_| flow.clone()).body(
                move |way, chunk| {
                    note.note(way, chunk);
                    Flow::Pass
                },
            ))
            .await;
            let mut client = proxy.client().await;
            client.send(origin.get("/")).await;
            let mut server = origin.accept().await;
            server.until("\r\n\r\n").await;
            server
                .send("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n1\r\na\r\n1\r\nb\r\n")
                .await;
            client.until("1\r\na\r\n1\r\nb\r\n").await;
            server.send("1\r\nc\r\n0\r\nT: u\r\n\r\n").await;
            client.until("1\r\nc\r\n0\r\nT: u\r\n\r\n").await;
            assert_eq!(seen.take(Direction::Response), ("a".to_owned(), 0));
        }
    });
}

/// Reads an answer in chunks up to its end.
async fn chunked(client: &mut Client) -> (String, String) {
    let head = client.until("\r\n\r\n").await;
    let fields = head.to_lowercase();
    assert!(
        fields.contains("\r\ntransfer-encoding: chunked\r\n"),
        "{head}"
    );
    assert!(!fields.contains("content-length"), "{head}");
    let mut body = client.until("0\r\n").await;
    while !body.ends_with("\r\n\r\n") {
        body += &client.until("\r\n").await;
    }
    let (content, trailers) = unchunk(body.as_bytes());
    (content, trailers)
}

#[test]
fn p20_a_rewritten_answer_is_sent_in_chunks() {
    run(async {
        let origin = Origin::start().await;
        let proxy = proxy(Test::loud()).await;
        let mut client = proxy.client().await;
        let mut server: Option<Client> = None;
        for (fields, body, content, trailers) in [
            ("Content-Length: 5\r\n", "hello", "HELLO!", ""),
            ("Content-Length: 0\r\n", "", "!", ""),
            ("Transfer-Encoding: chunked\r\n", "0\r\n\r\n", "!", ""),
            (
                "transfer-encoding: Chunked\r\n",
                "2;x\r\nhe\r\n3\r\nllo\r\n0\r\n\r\n",
                "HELLO!",
                "",
            ),
            (
                "Trailer: T\r\nTransfer-Encoding: chunked\r\n",
                "5\r\nhello\r\n0;last\r\nT: u\r\nt2:  V \r\n\r\n",
                "HELLO!",
                "T: u\r\nt2:  V ",
            ),
        ] {
            let whole = format!("HTTP/1.1 200 OK\r\n{fields}\r\n{body}");
            for cut in [whole.len(), 1, 7] {
                client.send(origin.get("/")).await;
                if server.is_none() {
                    server = Some(origin.accept().await);
                }
                let server = server.as_mut().unwrap();
                server.until("\r\n\r\n").await;
                for piece in whole.as_bytes().chunks(cut) {
                    server.send(piece).await;
                    server.taken().await;
                }
                let got = chunked(&mut client).await;
                assert_eq!(
                    got,
                    (content.to_owned(), trailers.to_owned()),
                    "{whole} by {cut}"
                );
            }
        }
        // Both connections went through all of it.
        assert_eq!(*proxy.gateway.dials.borrow(), 1);
        // One without a length: the client's connection can be kept nevertheless.
        client.send(origin.get("/")).await;
        let mut server = server.unwrap();
        server.until("\r\n\r\n").await;
        server.send("HTTP/1.1 200 OK\r\n\r\nhel").await;
        server.taken().await;
        server.send("lo").await;
        drop(server);
        assert_eq!(
            chunked(&mut client).await,
            ("HELLO!".to_owned(), String::new())
        );
        client.send(origin.get("/")).await;
        origin.accept().await.until("\r\n\r\n").await;
    });
}

#[test]
fn p12_p13_answers_without_a_body_stay_without() {
    run(async {
        let origin = Origin::start().await;
        let proxy = proxy(Test::loud()).await;
        let mut client = proxy.client().await;
        let mut server: Option<Client> = None;
        for (method, sent, got) in [
            (
                "HEAD",
                "200 OK\r\nContent-Length: 5\r\nA: b",
                "200 OK\r\nA: b",
            ),
            (
                "HEAD",
                "200 OK\r\nTransfer-Encoding: chunked\r\nA: b",
                "200 OK\r\nA: b",
            ),
            ("GET", "204 No Content\r\nA: b", "204 No Content\r\nA: b"),
            (
                "GET",
                "304 Not Modified\r\nContent-Length: 5\r\nA: b",
                "304 Not Modified\r\nA: b",
            ),
        ] {
            client.send(origin.get("/").replace("GET", method)).await;
            if server.is_none() {
                server = Some(origin.accept().await);
            }
            let server = server.as_mut().unwrap();
            let head = server.until("\r\n\r\n").await;
            assert!(!head.to_lowercase().contains("transfer-encoding"), "{head}");
            server.send(format!("HTTP/1.1 {sent}\r\n\r\n")).await;
            assert_eq!(
                client.until("\r\n\r\n").await,
                format!("HTTP/1.1 {got}\r\n\r\n")
            );
        }
    });
}

#[test]
fn p17_a_rewritten_answer_for_http10_ends_with_the_connection() {
    run(async {
        let origin = Origin::start().await;
        let proxy = proxy(Test::loud()).await;
        for (fields, body) in [
            ("Content-Length: 5\r\n", "hello"),
            (
                "Transfer-Encoding: chunked\r\n",
                "5\r\nhello\r\n0\r\nT: u\r\n\r\n",
            ),
            ("", "hello"),
        ] {
            let mut client = proxy.client().await;
            let get = origin.get("/").replace("HTTP/1.1", "HTTP/1.0");
            client
                .send(get.replace("\r\n\r\n", "\r\nConnection: keep-alive\r\n\r\n"))
                .await;
            let mut server = origin.accept().await;
            server.until("\r\n\r\n").await;
            server
                .send(format!("HTTP/1.1 200 OK\r\n{fields}\r\n{body}"))
                .await;
            drop(server);
            let all = client.rest().await;
            assert_eq!(
                all, "HTTP/1.1 200 OK\r\nConnection: close\r\n\r\nHELLO!",
                "{fields}"
            );
        }
    });
}

#[test]
fn p16_a_rewritten_answer_that_is_cut_off_has_no_end() {
    run(async {
        let origin = Origin::start().await;
        let seen = Seen::default();
        let note = seen.clone();
        let proxy = proxy((
            Test::loud(),
            Test::new().body(move |way, chunk| {
                note.note(way, chunk);
                Flow::Pass
            }),
        ))
        .await;
        for (head, body) in [
            ("HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\n", "hello"),
            (
                "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n",
                "2\r\nhe\r\n3\r\nllo\r\n0\r\nT: u\r\n\r\n",
            ),
        ] {
            for end in 0..body.len() {
                for version in ["HTTP/1.1", "HTTP/1.0"] {
                    let mut client = proxy.client().await;
                    client
                        .send(origin.get("/").replace("HTTP/1.1", version))
                        .await;
                    let mut server = origin.accept().await;
                    server.until("\r\n\r\n").await;
                    server.send([head, &body[..end]].concat()).await;
                    client.until("\r\n\r\n").await;
                    drop(server);
                    let got = match version {
                        "HTTP/1.1" => client.rest().await,
                        // There, only a reset tells a cut from the end.
                        _ => client.reset().await,
                    };
                    assert!(
                        !got.contains("0\r\n") && !got.contains('!'),
                        "{got:?} at {end}"
                    );
                }
            }
        }
        assert_eq!(seen.take(Direction::Response).1, 0, "no piece was the last");
        let told = proxy.told(1).await;
        assert!(
            told.iter().all(|told| told.end == End::Truncated),
            "{told:?}"
        );
    });
}

#[test]
fn p58_one_end_whatever_the_filter_leaves() {
    run(async {
        let origin = Origin::start().await;
        // Holds everything back, and gives it away in the end or never.
        for (all, expected) in [(true, "abc"), (false, "")] {
            let held = RefCell::new(Vec::new());
            let proxy = proxy(
                Test::new()
                    .response(|_| Flow::Rewrite)
                    .body(move |_, chunk| {
                        held.borrow_mut().extend_from_slice(chunk.bytes());
                        let last = chunk.is_last() && all;
                        chunk.replace(if last { held.take() } else { Vec::new() });
                        Flow::Rewrite
                    }),
            )
            .await;
            let mut client = proxy.client().await;
            client.send(origin.get("/")).await;
            let mut server = origin.accept().await;
            server.until("\r\n\r\n").await;
            server
                .send("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n1\r\na\r\n1\r\nb\r\n1\r\nc\r\n0\r\n\r\n")
                .await;
            assert_eq!(
                chunked(&mut client).await,
                (expected.to_owned(), String::new())
            );
            client.send(origin.get("/")).await;
            server.until("\r\n\r\n").await;
            server.send("HTTP/1.1 204 No Content\r\n\r\n").await;
            assert_eq!(
                client.until("\r\n\r\n").await,
                "HTTP/1.1 204 No Content\r\n\r\n"
            );
        }
    });
}

#[test]
fn a_rewritten_request_with_others_behind_it() {
    run(async {
        let origin = Origin::start().await;
        let chunks = "2\r\nhe\r\n3\r\nllo\r\n0\r\nT: u\r\n\r\n";
        for (fields, body, content, trailers) in [
            ("Content-Length: 5\r\n", "hello", "HELLO!", ""),
            ("Content-Length: 0\r\n", "", "!", ""),
            ("Transfer-Encoding: chunked\r\n", chunks, "HELLO!", "T: u"),
        ] {
            let all = [
                post(&origin, &format!("{fields}\r\n{body}")),
                origin.get("/next"),
            ]
            .concat();
            for cut in [all.len(), 1] {
                let mut client = proxy(Test::loud()).await.client().await;
                let write = async {
                    for piece in all.as_bytes().chunks(cut) {
                        client.send(piece).await;
                        client.taken().await;
                    }
                };
                let read = async {
                    let mut server = origin.accept().await;
                    let got = chunked(&mut server).await;
                    assert_eq!(got, (content.to_owned(), trailers.to_owned()));
                    server.send(OK).await;
                    let next = server.until("\r\n\r\n").await;
                    let name = &origin.name;
                    assert_eq!(next, format!("GET /next HTTP/1.1\r\nHost: {name}\r\n\r\n"));
                    server.send(OK).await;
                };
                tokio::join!(write, read);
                assert_eq!(chunked(&mut client).await.0, "HI!");
                assert_eq!(chunked(&mut client).await.0, "HI!");
            }
        }
    });
}

#[test]
fn p21_a_rewritten_request_waits_for_leave() {
    run(async {
        let origin = Origin::start().await;
        let proxy = proxy(Test::loud()).await;
        let mut client = proxy.client().await;
        client
            .send(post(
                &origin,
                "Content-Length: 5\r\nExpect: 100-continue\r\n\r\n",
            ))
            .await;
        let mut server = origin.accept().await;
        let head = server.until("\r\n\r\n").await;
        assert!(head.contains("Expect: 100-continue\r\n"), "{head}");
        assert!(head.contains("Transfer-Encoding: chunked\r\n"), "{head}");
        assert!(!head.contains("Content-Length"), "{head}");
        server.send("HTTP/1.1 100 Continue\r\n\r\n").await;
        assert_eq!(
            client.until("\r\n\r\n").await,
            "HTTP/1.1 100 Continue\r\n\r\n"
        );
        client.send("hello").await;
        assert_eq!(server.until("0\r\n\r\n").await, "6\r\nHELLO!\r\n0\r\n\r\n");
        server.send(OK).await;
        assert_eq!(chunked(&mut client).await.0, "HI!");
    });
}

#[test]
fn p16_a_request_cut_off_while_rewritten_has_no_end() {
    run(async {
        let origin = Origin::start().await;
        let proxy = proxy(Test::loud()).await;
        for (fields, body) in [
            ("Content-Length: 5\r\n", "hello"),
            (
                "Transfer-Encoding: chunked\r\n",
                "5\r\nhello\r\n0\r\nT: u\r\n\r\n",
            ),
        ] {
            for end in 0..body.len() {
                let mut client = proxy.client().await;
                client
                    .send(post(&origin, &format!("{fields}\r\n{}", &body[..end])))
                    .await;
                let mut server = origin.accept().await;
                server.until("\r\n\r\n").await;
                client.finish().await;
                let got = server.rest().await;
                assert!(
                    !got.contains("0\r\n") && !got.contains('!'),
                    "{got:?} at {end}"
                );
                assert!(client.rest().await.starts_with("HTTP/1.1 400 "));
            }
        }
    });
}

#[test]
fn p34_a_slow_reader_holds_the_origin_back() {
    run(async {
        let origin = Origin::start().await;
        let shown = Rc::new(Cell::new(0));
        let count = Rc::clone(&shown);
        let proxy = proxy(
            Test::new()
                .response(|_| Flow::Rewrite)
                .body(move |_, chunk| {
                    count.set(count.get() + chunk.bytes().len());
                    let twice = [chunk.bytes(), chunk.bytes()].concat();
                    chunk.replace(twice);
                    Flow::Rewrite
                }),
        )
        .await;
        let mut client = proxy.client().await;
        client.send(origin.get("/")).await;
        let mut server = origin.accept().await;
        server.until("\r\n\r\n").await;
        const LEN: usize = 64 * 1024 * 1024;
        server
            .send(format!("HTTP/1.1 200 OK\r\nContent-Length: {LEN}\r\n\r\n"))
            .await;
        // Sends until nothing moves any more.
        let (mut sent, block) = (0, vec![b'x'; 64 * 1024]);
        let mut before = (0, usize::MAX);
        within(async {
            while before != (sent, shown.get()) {
                before = (sent, shown.get());
                for _ in 0..1000 {
                    if let Ok(n) = server.stream.try_write(&block) {
                        sent += n;
                    }
                    tokio::task::yield_now().await;
                }
            }
        })
        .await;
        assert!(
            sent < LEN / 2,
            "{sent} bytes taken for a client that reads none"
        );
        // What the filter saw has gone into the client's socket but for one read.
        let waiting = shown.get();
        let mut got = 0;
        while got < 2 * waiting {
            got += client.exactly(1).await.len() + client.read.len();
            client.read.clear();
        }
        assert!(shown.get() < LEN, "{}", shown.get());
    });
}

#[test]
fn a_chain_sees_what_the_ones_before_made_of_it() {
    run(async {
        let origin = Origin::start().await;
        fn tag(tag: &'static str) -> Test {
            let head = move |head: &mut HeadEdit<'_>| {
                let mut value = head.get("x-path").unwrap_or_default().to_vec();
                value.extend_from_slice(tag.as_bytes());
                head.set("X-Path", &value).unwrap();
                Flow::Rewrite
            };
            Test::new()
                .request(head)
                .response(head)
                .body(move |_, chunk| {
                    let bytes = [chunk.bytes(), tag.as_bytes()].concat();
                    chunk.replace(bytes);
                    Flow::Rewrite
                })
        }
        let chain: Vec<Box<dyn Filter<()>>> = vec![Box::new(tag("b")), Box::new(tag("c"))];
        let proxy = proxy((tag("a"), (chain, ()))).await;
        let mut client = proxy.client().await;
        client
            .send(post(&origin, "Content-Length: 1\r\n\r\n."))
            .await;
        let mut server = origin.accept().await;
        assert!(server.until("\r\n\r\n").await.contains("X-Path: abc\r\n"));
        assert_eq!(server.until("0\r\n\r\n").await, "4\r\n.abc\r\n0\r\n\r\n");
        server
            .send("HTTP/1.1 200 OK\r\nContent-Length: 1\r\n\r\n.")
            .await;
        assert!(client.until("\r\n\r\n").await.contains("X-Path: abc\r\n"));
        assert_eq!(client.until("0\r\n\r\n").await, "4\r\n.abc\r\n0\r\n\r\n");
    });
}

#[test]
fn the_first_to_end_a_message_ends_the_round() {
    run(async {
        let asked = Rc::new(Cell::new(0));
        let count = Rc::clone(&asked);
        let later = Test::new().request(move |_| {
            count.set(count.get() + 1);
            Flow::Pass
        });
        let by_field = |head: &mut HeadEdit<'_>| match head.get("x-do") {
            Some(b"answer") => answer(200, "."),
            Some(_) => Flow::Reject(410),
            None => Flow::Inspect,
        };
        let chain: Vec<Box<dyn Filter<()>>> = vec![
            Box::new(()),
            Box::new(Test::new().request(by_field)),
            Box::new(later),
        ];
        let proxy = proxy(chain).await;
        let origin = Origin::start().await;
        let mut client = proxy.client().await;
        for (word, status) in [("answer", 200), ("reject", 410)] {
            let field = format!("\r\nX-Do: {word}\r\n\r\n");
            client
                .send(origin.get("/").replace("\r\n\r\n", &field))
                .await;
            let head = client.until("\r\n\r\n").await;
            assert!(head.starts_with(&format!("HTTP/1.1 {status} ")), "{head}");
            client.until(if status == 200 { "." } else { "\n" }).await;
            assert_eq!(asked.get(), 0);
        }
        client.send(origin.get("/")).await;
        origin.accept().await.until("\r\n\r\n").await;
        assert_eq!(asked.get(), 1);
    });
}

/// Whether a long answer is spliced on its way to a client that reads slowly.
async fn is_spliced(flow: Flow) -> bool {
    let origin = Origin::start().await;
    let proxy = proxy(
        Test::new()
            .response(move |head| {
                head.remove("x-a");
                flow.clone()
            })
            .body(|_, _| Flow::Inspect),
    )
    .await;
    let mut client = proxy.client().await;
    client.send(origin.get("/")).await;
    let mut server = origin.accept().await;
    server.until("\r\n\r\n").await;
    const LEN: usize = 32 * 1024 * 1024;
    server
        .send(format!(
            "HTTP/1.1 200 OK\r\nX-A: b\r\nContent-Length: {LEN}\r\n\r\n"
        ))
        .await;
    assert!(!client.until("\r\n\r\n").await.contains("X-A"));
    let (mut spliced, block) = (false, vec![b'x'; 64 * 1024]);
    let (mut sent, mut got) = (0, client.read.len());
    client.read.clear();
    let mut space = vec![0; 64 * 1024];
    within(async {
        while got < LEN {
            let most = block.len().min(LEN - sent);
            let taken = server.stream.try_write(&block[..most]).unwrap_or(0);
            sent += taken;
            spliced |= proxy_relay::lent().pipes > 0;
            if taken == 0 {
                got += client.stream.try_read(&mut space).unwrap_or(0);
            }
            tokio::task::yield_now().await;
        }
    })
    .await;
    spliced
}

#[test]
#[cfg(target_os = "linux")]
fn a_filter_that_passes_leaves_the_splice() {
    run(async {
        assert!(is_spliced(Flow::Pass).await);
        assert!(!is_spliced(Flow::Inspect).await);
    });
}

#[test]
fn what_a_filter_holds_back_has_moved_all_the_same() {
    run(async {
        let origin = Origin::start().await;
        let mut timeouts = Timeouts::default();
        let soon = Some(Duration::from_secs(1));
        (timeouts.body, timeouts.progress) = (soon, soon);
        let mut config = Config::default();
        config.timeouts(timeouts);
        let held = RefCell::new(Vec::new());
        let test = Test::new()
            .request(|_| Flow::Rewrite)
            .response(|_| Flow::Rewrite)
            .body(move |_, chunk| {
                held.borrow_mut().extend_from_slice(chunk.bytes());
                let all = chunk.is_last().then(|| held.take());
                chunk.replace(all.unwrap_or_default());
                Flow::Rewrite
            });
        let proxy = Proxy::with(Direct::default(), config, test).await;
        let mut client = proxy.client().await;
        client
            .send(post(&origin, "Content-Length: 6\r\n\r\n"))
            .await;
        let mut server = origin.accept().await;
        server.until("\r\n\r\n").await;
        // Longer in all than anything may stand still.
        for byte in ["a", "b", "c", "d", "e", "f"] {
            tokio::time::sleep(Duration::from_millis(300)).await;
            client.send(byte).await;
        }
        assert_eq!(server.until("0\r\n\r\n").await, "6\r\nabcdef\r\n0\r\n\r\n");
        server
            .send("HTTP/1.1 200 OK\r\nContent-Length: 6\r\n\r\n")
            .await;
        for byte in ["a", "b", "c", "d", "e", "f"] {
            tokio::time::sleep(Duration::from_millis(300)).await;
            server.send(byte).await;
        }
        assert_eq!(chunked(&mut client).await.0, "abcdef");
    });
}

#[test]
fn tunnels_are_the_gateways() {
    run(async {
        let origin = Origin::start().await;
        let proxy = proxy(
            Test::new()
                .request(|head| {
                    assert_ne!(head.method(), Some("CONNECT"));
                    answer(200, ".")
                })
                .response(|_| Flow::Reject(502)),
        )
        .await;
        let mut client = proxy.client().await;
        client.send(origin.get("/")).await;
        client.until("\r\n\r\n.").await;
        let name = &origin.name;
        let connect = format!("CONNECT {name} HTTP/1.1\r\nHost: {name}\r\n\r\nhello");
        client.send(connect).await;
        assert!(client.until("\r\n\r\n").await.starts_with("HTTP/1.1 200 "));
        let mut server = origin.accept().await;
        server.until("hello").await;
    });
}
