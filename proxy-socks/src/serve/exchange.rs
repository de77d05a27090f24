//! What is told about a client's request, exactly once.

use std::ops::Deref;

use proxy_core::{ConnectError, End, Gateway, Operation, Peer, Report, TargetBuf};
use tokio::time::Instant;

use super::Server;

/// A connection from its first byte to its report.
///
/// Of a server behind a pointer. The report is due on every way out, also when
/// the future that serves the client is dropped.
pub(super) struct Reported<P, G>
where
    P: Deref<Target = Server<G>>,
    G: Gateway,
{
    pub(super) server: P,
    pub(super) exchange: Exchange<G>,
}

impl<P, G> Reported<P, G>
where
    P: Deref<Target = Server<G>>,
    G: Gateway,
{
    pub(super) fn new(server: P, peer: Peer) -> Self {
        Self {
            server,
            exchange: Exchange::new(peer),
        }
    }
}

impl<P, G> Drop for Reported<P, G>
where
    P: Deref<Target = Server<G>>,
    G: Gateway,
{
    fn drop(&mut self) {
        let gateway = self.server.gateway();
        self.exchange.finish(gateway, End::Stopped, None, (0, 0));
    }
}

/// What is known of a connection and its request.
pub(super) struct Exchange<G: Gateway> {
    pub(super) peer: Peer,
    pub(super) who: Option<G::Identity>,
    pub(super) session: Option<G::Session>,
    pub(super) wanted: Option<Wanted>,
    pub(super) target: Option<TargetBuf>,
    /// Why its target was not reached.
    pub(super) unreached: Option<ConnectError>,
    /// When the first byte came; `None` while or since there is nothing to tell.
    begun: Option<Instant>,
}

impl<G: Gateway> Exchange<G> {
    fn new(peer: Peer) -> Self {
        Self {
            peer,
            who: None,
            session: None,
            wanted: None,
            target: None,
            unreached: None,
            begun: None,
        }
    }

    /// Notes that bytes have come; the first call counts.
    pub(super) fn begin(&mut self) {
        self.begun.get_or_insert_with(Instant::now);
    }

    /// Reports, unless that was done or nothing has come. `moved` is bytes up and
    /// down.
    pub(super) fn finish(&mut self, gateway: &G, end: End, status: Option<u8>, moved: (u64, u64)) {
        let Some(begun) = self.begun.take() else {
            return;
        };
        let mut report = Report::new(&self.peer, end);
        report.operation = self.wanted.map(Wanted::operation);
        report.target = self.target.as_ref().map(TargetBuf::as_target);
        report.status = status.map(u16::from);
        (report.up, report.down) = moved;
        report.duration = begun.elapsed();
        report.error = self.unreached;
        gateway.finished(self.who.as_ref(), self.session.take(), &report);
    }
}

/// What SOCKS clients ask for; each tunnel keeps it, and in an [`Operation`] it
/// would be five words.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Wanted {
    Associate,
    Bind,
    Tunnel,
}

impl Wanted {
    pub(super) fn operation(self) -> Operation<'static> {
        match self {
            Self::Associate => Operation::Associate,
            Self::Bind => Operation::Bind,
            Self::Tunnel => Operation::Tunnel,
        }
    }
}

impl From<Operation<'_>> for Wanted {
    fn from(operation: Operation<'_>) -> Self {
        match operation {
            Operation::Associate => Self::Associate,
            Operation::Bind => Self::Bind,
            _ => Self::Tunnel,
        }
    }
}
