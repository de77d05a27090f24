//! What is told about a client's request, exactly once.

use proxy_core::{ConnectError, End, Gateway, Operation, Peer, Report, TargetBuf};
use tokio::time::Instant;

/// A connection from its first byte to its report.
///
/// The report is due on every way out, also when the future that serves the
/// client is dropped.
#[derive(Debug)]
pub(super) struct Exchange<'g, G: Gateway> {
    gateway: &'g G,
    pub(super) peer: Peer,
    pub(super) who: Option<G::Identity>,
    pub(super) session: Option<G::Session>,
    pub(super) request: Option<(Operation<'static>, TargetBuf)>,
    /// Why its target was not reached.
    pub(super) unreached: Option<ConnectError>,
    /// When the first byte came; `None` while or since there is nothing to tell.
    begun: Option<Instant>,
}

impl<'g, G: Gateway> Exchange<'g, G> {
    pub(super) fn new(gateway: &'g G, peer: Peer) -> Self {
        Self {
            gateway,
            peer,
            who: None,
            session: None,
            request: None,
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
    pub(super) fn finish(&mut self, end: End, status: Option<u8>, moved: (u64, u64)) {
        let Some(begun) = self.begun.take() else {
            return;
        };
        let mut report = Report::new(&self.peer, end);
        if let Some((operation, target)) = &self.request {
            report.operation = Some(*operation);
            report.target = Some(target.as_target());
        }
        report.status = status.map(u16::from);
        (report.up, report.down) = moved;
        report.duration = begun.elapsed();
        report.error = self.unreached;
        self.gateway
            .finished(self.who.as_ref(), self.session.take(), &report);
    }
}

impl<G: Gateway> Drop for Exchange<'_, G> {
    fn drop(&mut self) {
        self.finish(End::Stopped, None, (0, 0));
    }
}
