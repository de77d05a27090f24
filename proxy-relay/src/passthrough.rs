//! Tunnels whose target is found anew for each connection.

use std::mem;

use proxy_core::{Ask, Gateway, Operation, Peer, Stop, Target, TargetBuf, Timeouts};

use crate::tunnel::{Ledger, Tunnel};
use crate::{PortMapError, RelayOptions, Transport, relay, unless, vanished};

/// Serves connections by tunnelling each to the target that its embedder has
/// found for it: in a ClientHello, in the packet that a firewall redirected, in
/// a table.
///
/// A [`PortMap`](crate::PortMap) whose target is no setting but an argument.
/// Policy is asked as for any other tunnel: the client is authenticated without
/// credentials and authorized for [`Operation::Tunnel`].
///
/// ```
/// # use proxy_core::*;
/// # use proxy_relay::{Dialer, Passthrough, PortMapError};
/// # use tokio::net::{TcpListener, TcpStream};
/// # struct Open(Dialer);
/// # impl Gateway for Open {
/// #     type Identity = ();
/// #     type Session = ();
/// #     type Upstream = TcpStream;
/// #     async fn authenticate(&self, _: &Peer, _: Option<Credentials<'_>>) -> Result<(), Denial> {
/// #         Ok(())
/// #     }
/// #     async fn authorize(&self, _: &(), _: &Ask<'_>) -> Result<(), Denial> {
/// #         Ok(())
/// #     }
/// #     async fn connect(&self, _: &mut (), to: Target<'_>) -> Result<Connected<TcpStream>, ConnectError> {
/// #         Ok(Connected::fresh(self.0.dial(to).await?))
/// #     }
/// # }
/// /// Leads to the one of these that the client's first byte is the number of.
/// async fn choose(
///     listener: TcpListener,
///     tunnels: Passthrough<Open>,
///     targets: &[TargetBuf],
/// ) -> Result<(), Box<dyn std::error::Error>> {
///     let (stream, remote) = listener.accept().await?;
///     let peer = Peer { remote, local: stream.local_addr()? };
///     let mut first = [0];
///     stream.peek(&mut first).await?;
///     let target = targets.get(usize::from(first[0])).ok_or("no such target")?;
///     // A reader that had taken bytes from the stream would hand them over here.
///     let early = Vec::new();
///     tunnels.serve(stream, peer, target.clone(), early).await?;
///     Ok(())
/// }
/// ```
#[derive(Debug)]
pub struct Passthrough<G> {
    gateway: G,
    timeouts: Timeouts,
    stop: Stop,
}

impl<G> Passthrough<G> {
    /// Tunnels with default timeouts.
    pub fn new(gateway: G) -> Self {
        Self {
            gateway,
            timeouts: Timeouts::default(),
            stop: Stop::never(),
        }
    }

    /// The timeouts of the tunnels.
    pub fn timeouts(&mut self, timeouts: Timeouts) -> &mut Self {
        self.timeouts = timeouts;
        self
    }

    /// The token that ends the tunnels, unless [`Gateway::shaping`] names
    /// another.
    pub fn stop(&mut self, stop: Stop) -> &mut Self {
        self.stop = stop;
        self
    }

    /// The policy it was made with.
    pub fn gateway(&self) -> &G {
        &self.gateway
    }
}

impl<G: Gateway<Upstream: Transport>> Passthrough<G> {
    /// Tunnels one accepted connection to `target`, to its end.
    ///
    /// `early` is what was already read from the client: it goes to the target
    /// first, and counts as relayed. It is copied once and then freed; who reads
    /// it sets its bound.
    ///
    /// With `&mut stream` for `client` the caller still has the stream when the
    /// target was refused or not reached, and can say so in the client's
    /// protocol. A client that resets while the target is being dialled cancels
    /// the dial. [`Gateway::finished`] is called once.
    ///
    /// # Cancel safety
    /// Dropping the future closes the connection at once, or lets go of what was
    /// lent; it is then not reported.
    ///
    /// # Errors
    /// If policy refused the client or the target was not reached; what happens
    /// in the tunnel is in the report only.
    pub fn serve<S: Transport>(
        &self,
        client: S,
        peer: Peer,
        target: TargetBuf,
        early: Vec<u8>,
    ) -> impl Future<Output = Result<(), PortMapError>> {
        // Not an `async fn`, which would keep its arguments twice.
        let bound = Bound { target, early };
        let mut tunnel = Box::new(Tunnel::new(client, peer, bound));
        async move {
            // Boxed, so that its room is free again while the tunnel lives.
            Box::pin(self.open(&mut tunnel)).await;
            let relayed = match &mut tunnel.upstream {
                Ok(upstream) => {
                    let relay = {
                        let options = self.options(tunnel.ledger.session.as_ref());
                        let early = mem::take(&mut tunnel.target.early);
                        relay(&mut tunnel.client, upstream, &options).early(&early, &[])
                    };
                    relay.await
                }
                Err(error) => error.report(),
            };
            let Tunnel {
                upstream,
                target,
                ledger,
                client: _client,
            } = *tunnel;
            let target = target.target.as_target();
            ledger.close(&self.gateway, &upstream, target, relayed)
        }
    }

    /// Reaches the target, unless the client resets meanwhile.
    async fn open<S: Transport>(&self, tunnel: &mut Tunnel<G, S, Bound>) {
        let Ledger {
            peer, who, session, ..
        } = &mut tunnel.ledger;
        let target = tunnel.target.target.as_target();
        let work = async {
            let who = who.insert(self.identify(peer).await?);
            self.reach(peer, who, target, session).await
        };
        let reached = unless(vanished(&tunnel.client), work).await;
        tunnel.upstream = reached.unwrap_or(Err(PortMapError::Vanished));
    }

    /// Asks policy for a client, who has shown nothing.
    pub(crate) async fn identify(&self, peer: &Peer) -> Result<G::Identity, PortMapError> {
        let who = self.gateway.authenticate(peer, None).await;
        who.map_err(PortMapError::Denied)
    }

    /// Asks policy for the way to a target, and goes it.
    pub(crate) async fn reach(
        &self,
        peer: &Peer,
        who: &G::Identity,
        target: Target<'_>,
        session: &mut Option<G::Session>,
    ) -> Result<G::Upstream, PortMapError> {
        let ask = Ask {
            peer,
            operation: Operation::Tunnel,
            target,
            via: None,
            secure: false,
        };
        let authorized = self.gateway.authorize(who, &ask).await;
        let session = session.insert(authorized.map_err(PortMapError::Denied)?);
        let connected = self.gateway.connect(session, target).await;
        Ok(connected.map_err(PortMapError::Connect)?.upstream)
    }

    pub(crate) fn options(&self, session: Option<&G::Session>) -> RelayOptions {
        let shaping = session.map(|session| self.gateway.shaping(session));
        let shaping = shaping.unwrap_or_default();
        let stop = match shaping.stop.is_never() {
            true => self.stop.clone(),
            false => shaping.stop,
        };
        let mut options = RelayOptions::from(&self.timeouts);
        options
            .lifetime(shaping.lifetime)
            .stop(stop)
            .rates(shaping.up, shaping.down);
        options
    }
}

/// Where a connection goes, and what goes there first.
struct Bound {
    target: TargetBuf,
    early: Vec<u8>,
}
