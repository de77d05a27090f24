//! The accept loop of one listener in one worker.

use std::io;
use std::net::SocketAddr;
use std::rc::Rc;
use std::time::{Duration, Instant};

use tokio::net::{TcpListener, TcpStream, UnixListener, UnixStream};

use crate::cause::Scarce;
use crate::gate::{Admission, Gate};
use crate::outside::Outside;
use crate::proxy_header::FrontEnds;
use crate::service::Service;
use crate::throttle::Throttle;
use crate::unix::UNIX_CLIENT;

/// A listener's socket and what becomes of its connections.
pub(crate) struct Acceptor {
    socket: Socket,
    entry: Rc<Entry>,
    outside: Rc<Outside>,
    failed: Throttle,
}

/// What becomes of connections; it outlives the socket while some of them show
/// whom they are for.
struct Entry {
    service: Rc<Service>,
    /// For those who come when the proxy is at its limit.
    busy: Rc<Service>,
    /// For clients that are at their own.
    crowded: Rc<Service>,
    /// If connections begin with the header of a front end.
    front_ends: Option<FrontEnds>,
    gate: Rc<Gate>,
    refused: Throttle,
}

impl Acceptor {
    pub(crate) fn new(
        socket: Socket,
        service: Service,
        busy: Service,
        crowded: Service,
        front_ends: Option<FrontEnds>,
        gate: &Rc<Gate>,
        outside: &Rc<Outside>,
    ) -> Self {
        Self {
            socket,
            entry: Rc::new(Entry {
                service: Rc::new(service),
                busy: Rc::new(busy),
                crowded: Rc::new(crowded),
                front_ends,
                gate: Rc::clone(gate),
                refused: Throttle::default(),
            }),
            outside: Rc::clone(outside),
            failed: Throttle::default(),
        }
    }

    /// Accepts until it is dropped, which closes the socket.
    pub(crate) async fn run(self) {
        let mut failing = false;
        loop {
            match self.socket.accept().await {
                Ok((stream, remote)) => {
                    if failing && self.failed.is_over(Instant::now()) {
                        failing = false;
                        tracing::info!(listener = self.entry.service.name(), "accepting again");
                    }
                    self.entry.receive(stream, remote);
                }
                Err(error) if is_of_one_connection(&error) => {}
                Err(error) => {
                    failing = true;
                    self.back_off(&error).await;
                }
            }
        }
    }

    /// Without descriptors or memory an accept fails at once, again and again:
    /// a pause keeps the processor free for those who will give some back.
    async fn back_off(&self, error: &io::Error) {
        if let Some(attempts) = self.failed.admit(Instant::now()) {
            tracing::error!(
                listener = self.entry.service.name(),
                %error,
                attempts,
                "cannot accept connections"
            );
        }
        self.outside.clear();
        tokio::time::sleep(PAUSE).await;
    }
}

impl Entry {
    /// Takes a connection in; where front ends show whom theirs are for, in a
    /// task of its own until that is known.
    fn receive(self: &Rc<Self>, stream: Stream, remote: SocketAddr) {
        let Some(front_ends) = &self.front_ends else {
            return self.admit(stream, remote);
        };
        let entry = Rc::clone(self);
        match stream {
            Stream::Tcp(stream) => front_ends.receive(stream, remote, move |stream, client| {
                entry.admit(Stream::Tcp(stream), client);
            }),
            Stream::Unix(stream) => front_ends.receive(stream, remote, move |stream, client| {
                entry.admit(Stream::Unix(stream), client);
            }),
        }
    }

    fn admit(&self, stream: Stream, remote: SocketAddr) {
        let spawn = |service: &Rc<Service>, slot| match stream {
            Stream::Tcp(stream) => service.spawn(stream, remote, slot),
            Stream::Unix(stream) => service.spawn_unix(stream, remote, slot),
        };
        match self.gate.admit(remote.ip()) {
            Admission::Serve(slot) => spawn(&self.service, slot),
            Admission::Refuse(slot, scarce) => {
                self.count_refusal(scarce, remote);
                let service = match scarce {
                    Scarce::ClientConnections => &self.crowded,
                    _ => &self.busy,
                };
                spawn(service, slot);
            }
            Admission::Drop(scarce) => self.count_refusal(scarce, remote),
        }
    }

    fn count_refusal(&self, scarce: Scarce, remote: SocketAddr) {
        let Some(clients) = self.refused.admit(Instant::now()) else {
            return;
        };
        let listener = self.service.name();
        if scarce == Scarce::ClientConnections {
            tracing::warn!(
                listener,
                client = %remote.ip(),
                connections = clients,
                "refused: the limit of connections of one client is reached"
            );
        } else {
            tracing::warn!(
                listener,
                clients,
                "refused: the limit of connections is reached"
            );
        }
    }
}

/// A socket that clients come to.
pub(crate) enum Socket {
    Tcp(TcpListener),
    Unix(UnixListener),
}

/// Who came.
enum Stream {
    Tcp(TcpStream),
    Unix(UnixStream),
}

impl Socket {
    /// # Errors
    /// If it cannot be registered with the runtime.
    pub(crate) fn tcp(socket: std::net::TcpListener) -> io::Result<Self> {
        Ok(Self::Tcp(TcpListener::from_std(socket)?))
    }

    /// # Errors
    /// If it cannot be registered with the runtime.
    pub(crate) fn unix(socket: std::os::unix::net::UnixListener) -> io::Result<Self> {
        Ok(Self::Unix(UnixListener::from_std(socket)?))
    }

    async fn accept(&self) -> io::Result<(Stream, SocketAddr)> {
        match self {
            Self::Tcp(socket) => {
                let (stream, remote) = socket.accept().await?;
                Ok((Stream::Tcp(stream), remote))
            }
            Self::Unix(socket) => {
                let (stream, _) = socket.accept().await?;
                Ok((Stream::Unix(stream), UNIX_CLIENT))
            }
        }
    }
}

/// Errors that accept(2) passes on from a connection that is gone already.
fn is_of_one_connection(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        io::ErrorKind::ConnectionAborted
            | io::ErrorKind::ConnectionReset
            | io::ErrorKind::HostUnreachable
            | io::ErrorKind::Interrupted
            | io::ErrorKind::NetworkDown
            | io::ErrorKind::NetworkUnreachable
            | io::ErrorKind::TimedOut
    )
}

const PAUSE: Duration = Duration::from_millis(100);
