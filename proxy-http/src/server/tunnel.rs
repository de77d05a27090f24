//! What remains of a connection once it is only bytes both ways.

use std::time::Duration;

use bytes::BytesMut;
use proxy_core::{End, Gateway, Operation, Peer, Report, Shaping, TargetBuf};
use proxy_relay::{Transport, relay};
use tokio::time::Instant;

use super::Server;

/// A CONNECT tunnel or an upgraded connection.
pub(super) struct Tunnel<G: Gateway, S> {
    pub(super) client: S,
    pub(super) upstream: G::Upstream,
    /// Boxed: a relay needs none of it before it ends.
    pub(super) ledger: Box<Ledger<G>>,
}

/// What the report on a tunnel is made of.
pub(super) struct Ledger<G: Gateway> {
    pub(super) identity: Option<G::Identity>,
    pub(super) session: G::Session,
    pub(super) target: TargetBuf,
    /// Method and path of the request that was upgraded.
    pub(super) upgraded: Option<(Box<str>, Box<str>)>,
    pub(super) status: u16,
    pub(super) started: Instant,
    /// Bytes moved before the relay begins, the upgrade's heads, say.
    pub(super) moved: (u64, u64),
    /// Bytes from the client and the origin that were read already.
    pub(super) early: (BytesMut, BytesMut),
}

impl<G: Gateway, S: Transport> Tunnel<G, S>
where
    G::Upstream: Transport,
{
    /// Relays until the end, and reports it.
    pub(super) async fn run<F>(mut self, server: &Server<G, F>, peer: &Peer) -> End {
        let Shaping { stop, lifetime, .. } = server.gateway.shaping(&self.ledger.session);
        let mut options = server.pace.tunnel.clone();
        options.lifetime(lifetime);
        if !stop.is_never() {
            options.stop(stop);
        }
        let (from_client, from_upstream) = std::mem::take(&mut self.ledger.early);
        let relayed = relay(&mut self.client, &mut self.upstream, &options)
            .early(&from_client, &from_upstream)
            .await;
        drop((from_client, from_upstream));
        let ledger = *self.ledger;
        ledger.close(server, peer, relayed.end, (relayed.up, relayed.down));
        relayed.end
    }
}

impl<G: Gateway> Ledger<G> {
    fn close<F>(self, server: &Server<G, F>, peer: &Peer, end: End, (up, down): (u64, u64)) {
        let mut report = Report::new(peer, end);
        report.operation = Some(match &self.upgraded {
            Some((method, path)) => Operation::Request { method, path },
            None => Operation::Tunnel,
        });
        report.target = Some(self.target.as_target());
        report.status = Some(self.status);
        report.up = self.moved.0 + up;
        report.down = self.moved.1 + down;
        report.duration = elapsed(self.started);
        server
            .gateway
            .finished(self.identity.as_ref(), Some(self.session), &report);
    }
}

/// Time since `started`.
pub(super) fn elapsed(started: Instant) -> Duration {
    started.elapsed()
}
