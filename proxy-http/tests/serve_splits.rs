//! A whole conversation through the server in memory, with the bytes of either
//! side cut at every offset: the same comes of it each time.
#![cfg(feature = "serve")]
#![allow(missing_docs, clippy::unwrap_used)]

use std::cell::RefCell;
use std::io;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll};
use std::time::Duration;

use proxy_core::{
    Ask, ConnectError, Connected, Credentials, Denial, End, Gateway, Peer, Report, Target,
};
use proxy_http::{Chunk, Direction, Filter, Flow, HeadEdit, Server};
use proxy_relay::Transport;
use tokio::io::{
    AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt, DuplexStream, ReadBuf, duplex,
};

/// A stream in memory.
struct Wire(DuplexStream);

impl Wire {
    fn pair() -> (Self, DuplexStream) {
        let (own, other) = duplex(64 * 1024);
        (Self(own), other)
    }
}

impl Transport for Wire {}

impl AsyncRead for Wire {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_read(cx, buf)
    }
}

impl AsyncWrite for Wire {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.0).poll_write(cx, buf)
    }
    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_flush(cx)
    }
    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_shutdown(cx)
    }
}

/// Method, status, bytes up and down, end.
type Told = (String, Option<u16>, u64, u64, End);

/// Leads to one origin in memory, and notes what it is told.
struct Memory {
    origin: RefCell<Option<Wire>>,
    told: RefCell<Vec<Told>>,
}

impl Gateway for Memory {
    type Identity = ();
    type Session = ();
    type Upstream = Wire;

    async fn authenticate(&self, _: &Peer, _: Option<Credentials<'_>>) -> Result<(), Denial> {
        Ok(())
    }

    async fn authorize(&self, (): &(), _: &Ask<'_>) -> Result<(), Denial> {
        Ok(())
    }

    async fn connect(&self, (): &mut (), _: Target<'_>) -> Result<Connected<Wire>, ConnectError> {
        let origin = self.origin.take();
        Ok(Connected::fresh(origin.expect("one connection is enough")))
    }

    fn recycle(&self, _: Target<'_>, origin: Wire) {
        self.origin.replace(Some(origin));
    }

    fn finished(&self, _: Option<&()>, _: Option<()>, report: &Report<'_>) {
        let word = report.operation.unwrap().word().to_owned();
        let told = (word, report.status, report.up, report.down, report.end);
        self.told.borrow_mut().push(told);
    }
}

/// What one side sends: the bytes, cut where it is told to pause.
struct Cut {
    at: Vec<usize>,
    sent: usize,
}

impl Cut {
    fn new(at: impl IntoIterator<Item = usize>) -> Self {
        let at = at.into_iter().collect();
        Self { at, sent: 0 }
    }

    async fn send(&mut self, stream: &mut (impl AsyncWrite + Unpin), mut bytes: &[u8]) {
        while !bytes.is_empty() {
            let until = self.at.iter().find(|at| **at > self.sent);
            let len = until.map_or(bytes.len(), |at| bytes.len().min(at - self.sent));
            stream.write_all(&bytes[..len]).await.unwrap();
            self.sent += len;
            bytes = &bytes[len..];
            // Everything here runs on one thread: the others get their turns.
            for _ in 0..8 {
                tokio::task::yield_now().await;
            }
        }
    }
}

/// What the client sends, what the origin is to get and answers, and what the
/// client is to get.
struct Step {
    asked: &'static str,
    parts: &'static [(&'static str, &'static str)],
    answered: &'static str,
    told: (&'static str, u16),
}

const STEPS: &[Step] = &[
    Step {
        asked: "GET http://o.test/1 HTTP/1.1\r\nHost: o.test\r\nProxy-Connection: x\r\n\r\n",
        parts: &[(
            "GET /1 HTTP/1.1\r\nHost: o.test\r\n\r\n",
            "HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\none",
        )],
        answered: "HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\none",
        told: ("GET", 200),
    },
    Step {
        asked: "POST http://o.test/2 HTTP/1.1\r\nHost: o.test\r\nContent-Length: 5\r\n\r\nhello",
        parts: &[(
            "POST /2 HTTP/1.1\r\nHost: o.test\r\nContent-Length: 5\r\n\r\nhello",
            "HTTP/1.1 103 Hints\r\nA : b\r\n\r\n\
             HTTP/1.0 200 OK\r\nConnection : keep-alive\r\nX\t: y\r\nContent-Length : 3\r\n\r\ntwo",
        )],
        answered: "HTTP/1.1 103 Hints\r\nA: b\r\n\r\n\
                   HTTP/1.1 200 OK\r\nX: y\r\nContent-Length: 3\r\n\r\ntwo",
        told: ("POST", 200),
    },
    Step {
        asked: "PUT http://o.test/3 HTTP/1.1\r\nHost: o.test\r\nTransfer-Encoding: chunked\r\n\r\n\
                3;x=y\r\nabc\r\n1\r\nd\r\n0\r\nT: u\r\n\r\n",
        parts: &[(
            "PUT /3 HTTP/1.1\r\nHost: o.test\r\nTransfer-Encoding: chunked\r\n\r\n\
             3;x=y\r\nabc\r\n1\r\nd\r\n0\r\nT: u\r\n\r\n",
            "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nthree\r\n0\r\nV: w\r\n\r\n",
        )],
        answered: "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n\
                   5\r\nthree\r\n0\r\nV: w\r\n\r\n",
        told: ("PUT", 200),
    },
    Step {
        asked: "POST http://o.test/4 HTTP/1.1\r\nHost: o.test\r\nExpect: 100-continue\r\n\
                Content-Length: 2\r\n\r\nhi",
        parts: &[
            (
                "POST /4 HTTP/1.1\r\nHost: o.test\r\nExpect: 100-continue\r\n\
                 Content-Length: 2\r\n\r\n",
                "HTTP/1.1 100 Continue\r\n\r\n",
            ),
            ("hi", "HTTP/1.1 204 None\r\n\r\n"),
        ],
        answered: "HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 204 None\r\n\r\n",
        told: ("POST", 204),
    },
    Step {
        asked: "HEAD http://o.test/5 HTTP/1.1\r\nHost: o.test\r\n\r\n",
        parts: &[(
            "HEAD /5 HTTP/1.1\r\nHost: o.test\r\n\r\n",
            "HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\n",
        )],
        answered: "HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\n",
        told: ("HEAD", 200),
    },
    Step {
        asked: "GET http://o.test/6 HTTP/1.1\r\nHost: o.test\r\nConnection: upgrade\r\n\
                Upgrade: websocket\r\n\r\nearly",
        parts: &[
            (
                "GET /6 HTTP/1.1\r\nHost: o.test\r\nConnection: Upgrade\r\n\
                 Upgrade: websocket\r\n\r\n",
                "HTTP/1.1 101 Go\r\nConnection: upgrade\r\nUpgrade: websocket\r\n\r\nwelcome",
            ),
            ("early", "!"),
        ],
        answered: "HTTP/1.1 101 Go\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\nwelcome!",
        told: ("GET", 101),
    },
];

fn joined(part: impl Fn(&Step) -> String) -> String {
    STEPS.iter().map(part).collect()
}

fn asked() -> String {
    joined(|step| step.asked.to_owned())
}

fn sent_by_origin() -> String {
    joined(|step| step.parts.iter().map(|part| part.1).collect())
}

async fn play_origin(mut stream: DuplexStream, mut cut: Cut) {
    let mut got = Vec::new();
    for (expected, answer) in STEPS.iter().flat_map(|step| step.parts) {
        while got.len() < expected.len() {
            assert!(stream.read_buf(&mut got).await.unwrap() > 0);
        }
        let rest = got.split_off(expected.len());
        assert_eq!(String::from_utf8_lossy(&got), *expected);
        got = rest;
        cut.send(&mut stream, answer.as_bytes()).await;
    }
    stream.read_to_end(&mut got).await.unwrap();
    assert_eq!(String::from_utf8_lossy(&got), "");
}

/// The conversation, with these cuts in what the two sides send.
async fn converse(client_cut: Cut, origin_cut: Cut) {
    converse_under((), client_cut, origin_cut).await;
}

/// The same under the eyes of a filter.
async fn converse_under(filter: impl Filter<()>, client_cut: Cut, origin_cut: Cut) {
    let (client_end, client) = Wire::pair();
    let (origin_end, origin) = Wire::pair();
    let gateway = Rc::new(Memory {
        origin: RefCell::new(Some(origin_end)),
        told: RefCell::default(),
    });
    let server = Server::new(Rc::clone(&gateway)).filter(filter);
    let address = "127.0.0.1:1".parse().unwrap();
    let peer = Peer {
        remote: address,
        local: address,
    };
    let (mut from_proxy, mut to_proxy) = tokio::io::split(client);
    let answered = joined(|step| step.answered.to_owned());
    let client = async {
        let mut cut = client_cut;
        let mut got = vec![0; answered.len()];
        let asked = asked();
        let sent = cut.send(&mut to_proxy, asked.as_bytes());
        let (_, read) = tokio::join!(sent, from_proxy.read_exact(&mut got));
        read.unwrap();
        assert_eq!(String::from_utf8_lossy(&got), answered);
        to_proxy.shutdown().await.unwrap();
        got.clear();
        from_proxy.read_to_end(&mut got).await.unwrap();
        assert_eq!(String::from_utf8_lossy(&got), "");
    };
    let all = async {
        tokio::join!(
            server.serve(client_end, peer),
            play_origin(origin, origin_cut),
            client
        )
    };
    let (served, ..) = tokio::time::timeout(Duration::from_secs(10), all)
        .await
        .expect("it comes to its end");
    served.unwrap();
    let told = gateway.told.take();
    assert_eq!(told.len(), STEPS.len());
    for (told, step) in told.iter().zip(STEPS) {
        let up: usize = step.parts.iter().map(|part| part.0.len()).sum();
        let end = match step.told.1 {
            101 => End::ClientFinished,
            _ => End::Completed,
        };
        let moved = (up as u64, step.answered.len() as u64);
        let (word, status) = step.told;
        assert_eq!(*told, (word.into(), Some(status), moved.0, moved.1, end));
    }
}

fn run(test: impl Future<Output = ()>) {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_time()
        .build()
        .unwrap();
    runtime.block_on(test);
}

#[test]
fn p21_p41_p47_the_clients_bytes_may_be_cut_anywhere() {
    run(async {
        for at in 0..asked().len() {
            converse(Cut::new([at]), Cut::new([])).await;
        }
    });
}

#[test]
fn p20_p22_p41_the_origins_bytes_may_be_cut_anywhere() {
    run(async {
        for at in 0..sent_by_origin().len() {
            converse(Cut::new([]), Cut::new([at])).await;
        }
    });
}

#[test]
fn both_sides_may_send_a_byte_at_a_time() {
    run(async {
        converse(
            Cut::new(0..asked().len()),
            Cut::new(0..sent_by_origin().len()),
        )
        .await;
    });
}

/// Looks at everything.
struct Watcher;

impl Filter<()> for Watcher {
    fn request(&self, (): &mut (), _: &mut HeadEdit<'_>) -> Flow {
        Flow::Inspect
    }
    fn response(&self, (): &mut (), _: &mut HeadEdit<'_>) -> Flow {
        Flow::Inspect
    }
    fn body(&self, (): &mut (), _: Direction, _: &mut Chunk<'_>) -> Flow {
        Flow::Inspect
    }
}

#[test]
fn a_filter_that_looks_changes_nothing() {
    run(async {
        for at in 0..asked().len() {
            converse_under(Watcher, Cut::new([at]), Cut::new([])).await;
        }
        for at in 0..sent_by_origin().len() {
            converse_under(Watcher, Cut::new([]), Cut::new([at])).await;
        }
    });
}
