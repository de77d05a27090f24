//! The PROXY header by which front ends show whom a connection is for.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::fmt;
use std::future::poll_fn;
use std::io::{self, ErrorKind};
use std::net::SocketAddr;
use std::rc::Rc;
use std::task::{Context, Poll, ready};
use std::time::Instant;

use proxy_core::{Network, ProxyHeader, ProxyHeaderError, Status, Stop, StopState};
use proxy_relay::{Deadline, Ticks, lend};
use rustix::net::RecvFlags;
use tokio::io::{Interest, ReadBuf};
use tokio::net::{TcpStream, UnixStream};
use tokio::task::{AbortHandle, spawn_local};

use crate::config::{Config, Listener};
use crate::sniff;
use crate::throttle::Throttle;

/// Those who may, and must, begin each connection to a listener with a header.
///
/// Others are not served there at all: whoever could choose to come without a
/// header would choose what rules take him for.
pub(crate) struct FrontEnds(Rc<Shared>);

struct Shared {
    networks: Vec<Network>,
    /// As messages name the listener.
    name: Box<str>,
    time: Ticks,
    stop: Stop,
    waiting: Waiting,
    unlisted: Throttle,
    broken: Throttle,
}

impl FrontEnds {
    /// Those of a listener that messages call `name`; `None` if it has none.
    pub(crate) fn new(
        listener: &Listener,
        name: &str,
        config: &Config,
        stop: &Stop,
    ) -> Option<Self> {
        Some(Self(Rc::new(Shared {
            networks: listener.proxy_protocol.clone()?,
            name: name.into(),
            time: config.timeouts.head.into(),
            stop: stop.clone(),
            waiting: Waiting::default(),
            unlisted: Throttle::default(),
            broken: Throttle::default(),
        })))
    }

    /// Reads the header of a connection, in a task of its own, and hands the bare
    /// connection on with its client's address. One that is not to be served is
    /// closed.
    ///
    /// # Panics
    /// Outside a `LocalSet`.
    pub(crate) fn receive<S: Peek + 'static>(
        &self,
        stream: S,
        peer: SocketAddr,
        serve: impl FnOnce(S, SocketAddr) + 'static,
    ) {
        let shared = Rc::clone(&self.0);
        if !shared.lists(peer) {
            return shared.refuse(peer);
        }
        let number = shared.waiting.number();
        let task = spawn_local({
            let shared = Rc::clone(&shared);
            async move {
                let read = shared.read(&stream).await;
                shared.waiting.leave(number);
                match read {
                    Ok(header) => serve(stream, client(peer, &header)),
                    Err(error) => shared.tell(peer, &error),
                }
            }
        });
        if let Some(oldest) = shared.waiting.enter(number, peer, task.abort_handle()) {
            shared.tell(oldest, &Broken::Crowded);
        }
    }
}

impl Shared {
    fn lists(&self, peer: SocketAddr) -> bool {
        let listed = |network: &Network| network.contains(peer.ip());
        self.networks.iter().any(listed)
    }

    async fn read(&self, stream: &impl Peek) -> Result<ProxyHeader, Broken> {
        let mut deadline = Deadline::new(self.stop.clone());
        deadline.set(self.time);
        let read = sniff::unless_closing(&mut deadline, read(stream)).await;
        read.unwrap_or_else(|| match deadline.stop_state() {
            StopState::Running => Err(Broken::Late),
            _ => Err(Broken::Gone),
        })
    }

    fn refuse(&self, peer: SocketAddr) {
        if let Some(connections) = self.unlisted.admit(Instant::now()) {
            tracing::warn!(
                listener = &*self.name,
                peer = %peer.ip(),
                connections,
                "closed: this listener is for those in proxy_protocol only; write the peer there \
                 if it sends a PROXY header, or let it come to another listener"
            );
        }
    }

    fn tell(&self, peer: SocketAddr, error: &Broken) {
        if matches!(error, Broken::Gone) {
            // A health check that only connects, or the end of the process.
            tracing::debug!(listener = &*self.name, %peer, "left before its PROXY header");
        } else if let Some(connections) = self.broken.admit(Instant::now()) {
            tracing::warn!(
                listener = &*self.name,
                peer = %peer.ip(),
                connections,
                "closed: {error}"
            );
        }
    }
}

/// Whom a connection from `peer` is for.
///
/// A loopback address is one of the machine that wrote it. Of another machine it
/// tells nothing but that the client is there, and must not be taken for a client
/// of this one, who may go where others may not.
fn client(peer: SocketAddr, header: &ProxyHeader) -> SocketAddr {
    let is_here = |end: SocketAddr| end.ip().to_canonical().is_loopback();
    match header.addresses {
        Some(ends) if !is_here(ends.source) || is_here(peer) => ends.source,
        _ => peer,
    }
}

/// A socket whose bytes can be looked at before they are taken.
pub(crate) trait Peek {
    fn poll_peek(&self, cx: &mut Context<'_>, room: &mut [u8]) -> Poll<io::Result<usize>>;
    fn try_read(&self, room: &mut [u8]) -> io::Result<usize>;
}

impl Peek for TcpStream {
    fn poll_peek(&self, cx: &mut Context<'_>, room: &mut [u8]) -> Poll<io::Result<usize>> {
        self.poll_peek(cx, &mut ReadBuf::new(room))
    }

    fn try_read(&self, room: &mut [u8]) -> io::Result<usize> {
        self.try_read(room)
    }
}

impl Peek for UnixStream {
    fn poll_peek(&self, cx: &mut Context<'_>, room: &mut [u8]) -> Poll<io::Result<usize>> {
        loop {
            ready!(self.poll_read_ready(cx))?;
            let peeked = self.try_io(Interest::READABLE, || {
                let (_, seen) = rustix::net::recv(self, &mut *room, RecvFlags::PEEK)?;
                Ok(seen)
            });
            match peeked {
                Err(error) if error.kind() == ErrorKind::WouldBlock => {}
                peeked => return Poll::Ready(peeked),
            }
        }
    }

    fn try_read(&self, room: &mut [u8]) -> io::Result<usize> {
        self.try_read(room)
    }
}

/// Takes a header from the front of a stream, and not a byte more.
async fn read(stream: &impl Peek) -> Result<ProxyHeader, Broken> {
    let mut held = Vec::new();
    loop {
        let step = poll_fn(|cx| {
            lend(|buffers| poll_step(cx, stream, &mut held, &mut buffers.read[..ProxyHeader::MAX]))
        });
        if let Some(header) = step.await? {
            return Ok(header);
        }
    }
}

/// Looks at what there is and takes what is sure to be of the header: bytes that
/// stayed would be told of again and again. `None` if more must come, and `held`
/// has the beginning.
fn poll_step(
    cx: &mut Context<'_>,
    stream: &impl Peek,
    held: &mut Vec<u8>,
    room: &mut [u8],
) -> Poll<Result<Option<ProxyHeader>, Broken>> {
    let start = held.len();
    room[..start].copy_from_slice(held);
    let seen = match ready!(stream.poll_peek(cx, &mut room[start..])) {
        Ok(0) if start > 0 => return Poll::Ready(Err(Broken::Ended)),
        Ok(0) | Err(_) => return Poll::Ready(Err(Broken::Gone)),
        Ok(seen) => start + seen,
    };
    let (header, end) = match ProxyHeader::parse(&room[..seen]) {
        Ok(Status::Complete(header, end)) => (Some(header), end),
        Ok(Status::Partial) => (None, seen),
        Err(error) => return Poll::Ready(Err(Broken::Invalid(error))),
    };
    let taken = match stream.try_read(&mut room[start..end]) {
        Ok(taken) => start + taken,
        Err(error) if error.kind() == ErrorKind::WouldBlock => start,
        Err(_) => return Poll::Ready(Err(Broken::Gone)),
    };
    if taken == end && header.is_some() {
        return Poll::Ready(Ok(header));
    }
    held.extend_from_slice(&room[start..taken]);
    Poll::Ready(Ok(None))
}

/// Why a connection has no header.
#[derive(Clone, Copy, Debug)]
enum Broken {
    /// Another had to make room.
    Crowded,
    /// It ended within.
    Ended,
    /// Before anything was said, or the proxy closes.
    Gone,
    Invalid(ProxyHeaderError),
    Late,
}

impl fmt::Display for Broken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Crowded => write!(
                f,
                "more than {MOST_WAITING} connections are without their PROXY header; the oldest \
                 makes room"
            ),
            Self::Ended => f.write_str("the connection ended within its PROXY header"),
            Self::Gone => f.write_str("the connection ended before its PROXY header"),
            Self::Invalid(error) => write!(f, "its PROXY header is wrong: {error}"),
            Self::Late => f.write_str("its PROXY header did not come in time"),
        }
    }
}

/// The connections of a listener, in one worker, whose header has not come. Nobody
/// knows yet whose places they take; so they have their own, and the one that came
/// first makes room: front ends send their header at once.
#[derive(Default)]
struct Waiting {
    next: Cell<u64>,
    /// In the order in which they came.
    tasks: RefCell<BTreeMap<u64, (SocketAddr, AbortHandle)>>,
}

impl Waiting {
    fn number(&self) -> u64 {
        let number = self.next.get();
        self.next.set(number + 1);
        number
    }

    /// Takes in the task of a connection from there. If there are too many, it ends
    /// the oldest and tells where that came from.
    fn enter(&self, number: u64, peer: SocketAddr, task: AbortHandle) -> Option<SocketAddr> {
        let mut tasks = self.tasks.borrow_mut();
        tasks.insert(number, (peer, task));
        if tasks.len() <= MOST_WAITING {
            return None;
        }
        let (_, (peer, oldest)) = tasks.pop_first()?;
        oldest.abort();
        Some(peer)
    }

    fn leave(&self, number: u64) {
        self.tasks.borrow_mut().remove(&number);
    }
}

/// Several times what front ends have under way, even over a long distance.
const MOST_WAITING: usize = 256;

#[cfg(test)]
mod tests {
    use super::*;
    use proxy_core::{ProxyAddresses, ProxyVersion};
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tokio::net::TcpListener;

    fn at(text: &str) -> SocketAddr {
        text.parse().expect("an address")
    }

    fn header(source: Option<&str>) -> ProxyHeader {
        ProxyHeader {
            version: ProxyVersion::V2,
            addresses: source.map(|source| ProxyAddresses {
                source: at(source),
                destination: at("192.0.2.9:80"),
            }),
        }
    }

    #[test]
    fn p73_nobody_becomes_a_client_of_this_machine_by_a_header_from_another() {
        for (peer, source, expected) in [
            ("10.0.0.1:5", Some("192.0.2.1:7"), "192.0.2.1:7"),
            ("10.0.0.1:5", Some("127.0.0.1:7"), "10.0.0.1:5"),
            ("10.0.0.1:5", Some("[::1]:7"), "10.0.0.1:5"),
            ("10.0.0.1:5", Some("[::ffff:127.0.0.1]:7"), "10.0.0.1:5"),
            ("10.0.0.1:5", None, "10.0.0.1:5"),
            ("127.0.0.1:5", Some("127.0.0.2:7"), "127.0.0.2:7"),
            ("[::ffff:127.0.0.1]:5", Some("[::1]:7"), "[::1]:7"),
            ("127.0.0.1:5", Some("192.0.2.1:7"), "192.0.2.1:7"),
            ("127.0.0.1:5", None, "127.0.0.1:5"),
        ] {
            assert_eq!(
                client(at(peer), &header(source)),
                at(expected),
                "{peer} {source:?}"
            );
        }
    }

    async fn pair() -> (TcpStream, TcpStream) {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("bound");
        let address = listener.local_addr().expect("bound");
        let client = TcpStream::connect(address).await.expect("connected");
        let (server, _) = listener.accept().await.expect("accepted");
        (client, server)
    }

    #[tokio::test]
    async fn p73_what_follows_the_header_stays_in_the_socket() {
        let wire = b"PROXY TCP4 192.0.2.1 192.0.2.9 7 80\r\nGET /";
        for cut in 0..wire.len() {
            let (mut client, mut server) = pair().await;
            let write = async {
                client.write_all(&wire[..cut]).await.expect("sent");
                // Whatever is read of the first part by then.
                tokio::task::yield_now().await;
                client.write_all(&wire[cut..]).await.expect("sent");
            };
            let (read, ()) = tokio::join!(read(&server), write);
            let ends = read.expect("a header").addresses.expect("a client");
            assert_eq!(ends.source, at("192.0.2.1:7"));
            let mut rest = [0; 5];
            server.read_exact(&mut rest).await.expect("the rest");
            assert_eq!(&rest, b"GET /");
        }
    }

    #[tokio::test]
    async fn p73_a_header_that_cannot_be_one_is_refused_at_once() {
        let long = [&b"PROXY UNKNOWN "[..], &[b'x'; 200]].concat();
        for (wire, expected) in [
            (&b"GET / HTTP/1.1\r\n"[..], "no PROXY protocol header"),
            (b"\x16\x03\x01", "no PROXY protocol header"),
            (b"PROXY TCP4 1.2.3.4\r\n", "not where it must be"),
            (&long, "header too long"),
            (b"\r\n\r\n\0\r\nQUIT\n\x21\x11\xff\xff", "header too long"),
        ] {
            let (mut client, server) = pair().await;
            client.write_all(wire).await.expect("sent");
            let error = read(&server).await.expect_err("refused").to_string();
            assert!(error.contains(expected), "{error}");
        }
        let (mut client, server) = pair().await;
        client.write_all(b"PROX").await.expect("sent");
        drop(client);
        assert!(matches!(read(&server).await, Err(Broken::Ended)));
        let (client, server) = pair().await;
        drop(client);
        assert!(matches!(read(&server).await, Err(Broken::Gone)));
    }

    #[tokio::test]
    async fn p73_the_oldest_of_too_many_makes_room() {
        let waiting = Waiting::default();
        let local = tokio::task::LocalSet::new();
        let tasks: Vec<_> = (0..MOST_WAITING + 3)
            .map(|_| local.spawn_local(std::future::pending::<()>()))
            .collect();
        let enter = |task: &tokio::task::JoinHandle<()>| {
            let number = waiting.number();
            let port = u16::try_from(number).expect("a port");
            waiting.enter(number, ([127, 0, 0, 1], port).into(), task.abort_handle())
        };
        let ended = tasks.iter().filter_map(enter).map(|peer| peer.port());
        assert!(ended.eq(0..3));
        assert_eq!(waiting.tasks.borrow().len(), MOST_WAITING);
        waiting.leave(100);
        assert_eq!(waiting.tasks.borrow().len(), MOST_WAITING - 1);
        local.run_until(tokio::task::yield_now()).await;
        let ended = tasks.iter().map(tokio::task::JoinHandle::is_finished);
        let expected = (0..tasks.len()).map(|at| at < 3);
        assert!(ended.eq(expected));
    }
}
