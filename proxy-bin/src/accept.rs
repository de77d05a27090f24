//! The accept loop of one listener in one worker.

use std::io;
use std::net::SocketAddr;
use std::rc::Rc;
use std::time::{Duration, Instant};

use tokio::net::{TcpListener, TcpStream};

use crate::cause::Scarce;
use crate::gate::{Admission, Gate};
use crate::outside::Outside;
use crate::service::Service;
use crate::throttle::Throttle;

/// A listener's socket and what becomes of its connections.
pub(crate) struct Acceptor {
    socket: TcpListener,
    service: Rc<Service>,
    /// For those who come when the proxy is at its limit.
    busy: Rc<Service>,
    /// For clients that are at their own.
    crowded: Rc<Service>,
    gate: Rc<Gate>,
    outside: Rc<Outside>,
    refused: Throttle,
    failed: Throttle,
}

impl Acceptor {
    pub(crate) fn new(
        socket: TcpListener,
        service: Service,
        busy: Service,
        crowded: Service,
        gate: &Rc<Gate>,
        outside: &Rc<Outside>,
    ) -> Self {
        Self {
            socket,
            service: Rc::new(service),
            busy: Rc::new(busy),
            crowded: Rc::new(crowded),
            gate: Rc::clone(gate),
            outside: Rc::clone(outside),
            refused: Throttle::default(),
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
                        tracing::info!(listener = self.service.name(), "accepting again");
                    }
                    self.admit(stream, remote);
                }
                Err(error) if is_of_one_connection(&error) => {}
                Err(error) => {
                    failing = true;
                    self.back_off(&error).await;
                }
            }
        }
    }

    fn admit(&self, stream: TcpStream, remote: SocketAddr) {
        match self.gate.admit(remote.ip()) {
            Admission::Serve(slot) => self.service.spawn(stream, remote, slot),
            Admission::Refuse(slot, scarce) => {
                self.count_refusal(scarce, remote);
                let service = match scarce {
                    Scarce::ClientConnections => &self.crowded,
                    _ => &self.busy,
                };
                service.spawn(stream, remote, slot);
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

    /// Without descriptors or memory an accept fails at once, again and again:
    /// a pause keeps the processor free for those who will give some back.
    async fn back_off(&self, error: &io::Error) {
        if let Some(attempts) = self.failed.admit(Instant::now()) {
            tracing::error!(
                listener = self.service.name(),
                %error,
                attempts,
                "cannot accept connections"
            );
        }
        self.outside.clear();
        tokio::time::sleep(PAUSE).await;
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
