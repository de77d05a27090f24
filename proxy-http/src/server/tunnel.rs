//! What remains of a connection once it is only bytes both ways.

use bytes::BytesMut;
use proxy_core::{End, Gateway, Operation, Peer, Report, TargetBuf};
use proxy_relay::{RelayOptions, Transport, relay};
use tokio::time::Instant;

use super::Server;

/// A CONNECT tunnel or an upgraded connection.
pub(super) struct Tunnel<G: Gateway, S> {
    pub(super) client: S,
    pub(super) upstream: G::Upstream,
    /// Boxed: a relay needs none of it before it ends.
    pub(super) ledger: Box<Ledger<G>>,
    /// Boxed, since most tunnels have none and none has it for long.
    pub(super) early: Option<Box<Early>>,
}

/// Bytes from either side that were read before the relay begins.
#[derive(Default)]
pub(super) struct Early {
    pub(super) from_client: BytesMut,
    pub(super) from_upstream: BytesMut,
}

impl Early {
    /// `None` if there are no such bytes.
    pub(super) fn boxed(self) -> Option<Box<Self>> {
        let none = self.from_client.is_empty() && self.from_upstream.is_empty();
        (!none).then(|| Box::new(self))
    }
}

/// What the report on a tunnel is made of.
pub(super) struct Ledger<G: Gateway> {
    pub(super) peer: Peer,
    pub(super) identity: Option<G::Identity>,
    pub(super) session: G::Session,
    pub(super) target: TargetBuf,
    pub(super) started: Instant,
    /// The request that was upgraded, if it was not CONNECT.
    pub(super) upgrade: Option<Box<Upgrade>>,
}

/// The request and answer before an upgraded connection.
pub(super) struct Upgrade {
    pub(super) method: Box<str>,
    pub(super) path: Box<str>,
    /// It was for an `https` URL.
    pub(super) secure: bool,
    /// Bytes of the heads, to the origin and to the client.
    pub(super) moved: (u64, u64),
}

impl<G: Gateway, S: Transport> Tunnel<G, S>
where
    G::Upstream: Transport,
{
    /// Relays until the end, and reports it.
    ///
    /// Not an `async fn`, which would keep room for the tunnel twice.
    pub(super) fn run<F>(
        self,
        server: &Server<G, F>,
    ) -> impl Future<Output = End> + use<'_, G, F, S> {
        let Self {
            mut client,
            mut upstream,
            ledger,
            mut early,
        } = self;
        async move {
            let relayed = {
                let options = ledger.options(server);
                let early = early.take().unwrap_or_default();
                relay(&mut client, &mut upstream, &options)
                    .early(&early.from_client, &early.from_upstream)
            };
            let relayed = relayed.await;
            ledger.close(server, relayed.end, (relayed.up, relayed.down));
            relayed.end
        }
    }
}

impl<G: Gateway> Ledger<G> {
    fn options<F>(&self, server: &Server<G, F>) -> RelayOptions {
        let shaping = server.gateway.shaping(&self.session);
        let mut options = server.config.pace.tunnel.clone();
        let stop = match shaping.stop.is_never() {
            true => server.config.stop.clone(),
            false => shaping.stop,
        };
        options
            .lifetime(shaping.lifetime)
            .stop(stop)
            .rates(shaping.up, shaping.down);
        options
    }

    fn close<F>(self, server: &Server<G, F>, end: End, (up, down): (u64, u64)) {
        let mut report = Report::new(&self.peer, end);
        let (operation, status, before) = match &self.upgrade {
            Some(upgrade) => (upgrade.operation(), SWITCHED, upgrade.moved),
            None => (Operation::Tunnel, OK, (0, 0)),
        };
        report.operation = Some(operation);
        report.target = Some(self.target.as_target());
        report.secure = self.upgrade.as_ref().is_some_and(|upgrade| upgrade.secure);
        report.status = Some(status);
        report.up = before.0 + up;
        report.down = before.1 + down;
        report.duration = self.started.elapsed();
        server
            .gateway
            .finished(self.identity.as_ref(), Some(self.session), &report);
    }
}

impl Upgrade {
    fn operation(&self) -> Operation<'_> {
        Operation::Request {
            method: &self.method,
            path: &self.path,
        }
    }
}

const OK: u16 = 200;

/// RFC 9110 section 15.2.2.
pub(super) const SWITCHED: u16 = 101;
