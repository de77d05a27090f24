//! A connection on its way to a target, and what its report is made of.

use proxy_core::{Gateway, Operation, Peer, Report, Target};
use tokio::time::Instant;

use crate::{PortMapError, RelayReport};

/// A connection and what is at its other end, to be boxed: its parts have one
/// place, whatever stage it is in. `T` leads to the target.
pub(crate) struct Tunnel<G: Gateway, S, T> {
    pub(crate) client: S,
    pub(crate) upstream: Result<G::Upstream, PortMapError>,
    pub(crate) target: T,
    pub(crate) ledger: Ledger<G>,
}

/// What the report on a connection is made of.
pub(crate) struct Ledger<G: Gateway> {
    pub(crate) peer: Peer,
    pub(crate) start: Instant,
    pub(crate) who: Option<G::Identity>,
    pub(crate) session: Option<G::Session>,
}

impl<G: Gateway, S, T> Tunnel<G, S, T> {
    pub(crate) fn new(client: S, peer: Peer, target: T) -> Self {
        Self {
            client,
            upstream: Err(PortMapError::Vanished),
            target,
            ledger: Ledger {
                peer,
                start: Instant::now(),
                who: None,
                session: None,
            },
        }
    }
}

impl<G: Gateway> Ledger<G> {
    /// Reports a connection, whose streams are still open, and answers what
    /// became of it.
    pub(crate) fn close(
        self,
        gateway: &G,
        upstream: &Result<G::Upstream, PortMapError>,
        target: Target<'_>,
        relayed: RelayReport,
    ) -> Result<(), PortMapError> {
        let mut report = Report::new(&self.peer, relayed.end);
        report.operation = Some(Operation::Tunnel);
        report.target = Some(target);
        report.up = relayed.up;
        report.down = relayed.down;
        report.duration = self.start.elapsed();
        let result = upstream.as_ref().map(|_| ()).map_err(|error| *error);
        if let Err(PortMapError::Connect(error)) = result {
            report.error = Some(error);
        }
        gateway.finished(self.who.as_ref(), self.session, &report);
        result
    }
}
