//! A port relay: everything that connects is tunnelled to a target, or to one of
//! several.

use proxy_core::{
    ConnectError, ConnectErrorKind, Denial, End, Gateway, Peer, Stop, TargetBuf, Timeouts,
};
use tokio::time::Instant;

use crate::balance::{Balance, Targets};
use crate::tunnel::{Ledger, Tunnel};
use crate::{Passthrough, RelayReport, Transport, relay, unless, vanished};

/// Serves connections by tunnelling each to a fixed target, or to one of
/// several.
///
/// Policy is asked as for any other tunnel: the client is authenticated without
/// credentials and authorized for [`Operation::Tunnel`](proxy_core::Operation::Tunnel).
///
/// Of several targets ([`also`](Self::also)) the next one is tried if policy
/// forbids this client the one before or it cannot be reached; each may take as
/// long as the [`Gateway`] lets it, so all of them take at most as many times
/// that. A target that could not be reached is tried behind all others for ten
/// seconds. What is known of the targets is shared by all connections of the
/// map, on whatever thread.
///
/// ```
/// # use proxy_core::*;
/// # use proxy_relay::{Dialer, PortMap};
/// # use tokio::net::{TcpListener, TcpStream};
/// struct Open(Dialer);
/// impl Gateway for Open {
///     type Identity = ();
///     type Session = ();
///     type Upstream = TcpStream;
///     async fn authenticate(&self, _: &Peer, _: Option<Credentials<'_>>) -> Result<(), Denial> {
///         Ok(())
///     }
///     async fn authorize(&self, _: &(), _: &Ask<'_>) -> Result<(), Denial> {
///         Ok(())
///     }
///     async fn connect(&self, _: &mut (), to: Target<'_>) -> Result<Connected<TcpStream>, ConnectError> {
///         Ok(Connected::fresh(self.0.dial(to).await?))
///     }
/// }
///
/// # async fn example(listener: TcpListener) -> Result<(), Box<dyn std::error::Error>> {
/// let target = Target::parse("db.example:5432", None)?.into();
/// let map = PortMap::new(Open(Dialer::default()), target);
/// let (stream, remote) = listener.accept().await?;
/// let peer = Peer { remote, local: stream.local_addr()? };
/// map.serve(stream, peer).await?;
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
pub struct PortMap<G> {
    tunnels: Passthrough<G>,
    targets: Targets,
}

impl<G> PortMap<G> {
    /// A relay to `target` with default timeouts.
    pub fn new(gateway: G, target: TargetBuf) -> Self {
        Self {
            tunnels: Passthrough::new(gateway),
            targets: Targets::new(target),
        }
    }

    /// One target more, behind those it has.
    pub fn also(&mut self, target: TargetBuf) -> &mut Self {
        self.targets.push(target);
        self
    }

    /// Which target each connection begins at; [`Balance::Failover`] by default.
    pub fn balance(&mut self, balance: Balance) -> &mut Self {
        self.targets.balance = balance;
        self
    }

    /// The timeouts of its tunnels.
    pub fn timeouts(&mut self, timeouts: Timeouts) -> &mut Self {
        self.tunnels.timeouts(timeouts);
        self
    }

    /// The token that ends its tunnels, unless [`Gateway::shaping`] names
    /// another.
    pub fn stop(&mut self, stop: Stop) -> &mut Self {
        self.tunnels.stop(stop);
        self
    }

    /// The policy it was made with.
    pub fn gateway(&self) -> &G {
        self.tunnels.gateway()
    }
}

impl<G: Gateway<Upstream: Transport>> PortMap<G> {
    /// Serves one accepted connection to its end.
    ///
    /// A client for whom no target can be reached is closed in order: a reset
    /// could overtake the end of its own connect. A client that resets while a
    /// target is being dialled cancels the dial.
    ///
    /// [`Gateway::finished`] is called once, with the target that was tried last
    /// and its session.
    ///
    /// # Cancel safety
    /// Dropping the future closes the connection at once; it is then not reported.
    ///
    /// # Errors
    /// If policy refused the client or no target was reached, that of the target
    /// tried last; what happens in the tunnel is in the report only.
    pub fn serve<S: Transport>(
        &self,
        client: S,
        peer: Peer,
    ) -> impl Future<Output = Result<(), PortMapError>> {
        // Not an `async fn`, which would keep its arguments twice.
        let mut tunnel = Box::new(Tunnel::new(client, peer, 0));
        async move {
            // Boxed, so that its room is free again while the tunnel lives.
            Box::pin(self.open(&mut tunnel)).await;
            let relayed = match &mut tunnel.upstream {
                Ok(upstream) => {
                    let relay = {
                        let options = self.tunnels.options(tunnel.ledger.session.as_ref());
                        relay(&mut tunnel.client, upstream, &options)
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
            let target = self.targets.at(target).as_target();
            ledger.close(self.gateway(), &upstream, target, relayed)
        }
    }

    /// Reaches a target, unless the client resets meanwhile.
    async fn open<S: Transport>(&self, tunnel: &mut Tunnel<G, S, usize>) {
        let reach = self.reach(&mut tunnel.ledger, &mut tunnel.target);
        let reached = unless(vanished(&tunnel.client), reach).await;
        tunnel.upstream = reached.unwrap_or(Err(PortMapError::Vanished));
    }

    /// The target that was tried last stays in `at`.
    async fn reach(
        &self,
        ledger: &mut Ledger<G>,
        at: &mut usize,
    ) -> Result<G::Upstream, PortMapError> {
        let tunnels = &self.tunnels;
        let who = tunnels.identify(&ledger.peer).await?;
        let who = ledger.who.insert(who);
        let mut failure = PortMapError::Vanished;
        for (nth, place) in self.targets.order(ledger.start).enumerate() {
            *at = place;
            ledger.session = None;
            let target = self.targets.at(place).as_target();
            let reach = tunnels.reach(&ledger.peer, who, target, &mut ledger.session);
            match reach.await {
                Err(error) if error.is_of_this_target() => {
                    self.note(place, nth == 0, error);
                    failure = error;
                }
                Err(error) => {
                    self.targets.tells_nothing(place, nth == 0);
                    return Err(error);
                }
                Ok(upstream) => {
                    self.targets.works(place);
                    return Ok(upstream);
                }
            }
        }
        Err(failure)
    }

    /// What is not the target's fault says nothing of the next attempt.
    fn note(&self, place: usize, led: bool, error: PortMapError) {
        match error {
            PortMapError::Connect(error) if error.retryable() => {
                self.targets.fails(place, Instant::now());
            }
            _ => self.targets.tells_nothing(place, led),
        }
    }
}

/// Why a connection was not tunnelled.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum PortMapError {
    /// The target was not reached.
    #[error("the target was not reached: {0}")]
    Connect(ConnectError),
    /// Policy refused the client.
    #[error("the client was refused: {0:?}")]
    Denied(Denial),
    /// The client reset the connection before the target was reached.
    #[error("the client left before the target was reached")]
    Vanished,
}

impl PortMapError {
    /// Whether another target may do better.
    fn is_of_this_target(self) -> bool {
        match self {
            Self::Connect(_) => true,
            Self::Denied(denial) => matches!(denial, Denial::Forbid | Denial::Unroutable),
            Self::Vanished => false,
        }
    }

    pub(crate) fn report(self) -> RelayReport {
        let end = match self {
            Self::Connect(error) => match error.kind {
                ConnectErrorKind::Forbidden | ConnectErrorKind::Loop => End::Forbidden,
                ConnectErrorKind::TimedOut => End::ConnectTimeout,
                _ => End::ConnectFailed,
            },
            Self::Denied(Denial::Unroutable) => End::ConnectFailed,
            Self::Denied(Denial::Busy) => End::Busy,
            Self::Denied(Denial::Challenge) => End::Challenged,
            Self::Denied(_) => End::Forbidden,
            Self::Vanished => End::ClientReset,
        };
        RelayReport {
            up: 0,
            down: 0,
            end,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Dialer;
    use proxy_core::{Ask, Connected, Credentials, Target};
    use tokio::net::{TcpListener, TcpStream};

    struct Open;

    impl Gateway for Open {
        type Identity = ();
        type Session = ();
        type Upstream = TcpStream;

        async fn authenticate(&self, _: &Peer, _: Option<Credentials<'_>>) -> Result<(), Denial> {
            Ok(())
        }

        async fn authorize(&self, _: &(), _: &Ask<'_>) -> Result<(), Denial> {
            Ok(())
        }

        async fn connect(
            &self,
            _: &mut (),
            target: Target<'_>,
        ) -> Result<Connected<TcpStream>, ConnectError> {
            Ok(Connected::fresh(Dialer::default().dial(target).await?))
        }
    }

    /// Memory per idle tunnel follows from these.
    #[tokio::test]
    async fn the_future_is_little_more_than_a_relay() {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("bound");
        let address = listener.local_addr().expect("bound");
        let client = TcpStream::connect(address).await.expect("connected");
        let map = PortMap::new(Open, Target::from(address).into());
        let peer = Peer {
            remote: address,
            local: address,
        };
        let served = map.serve(client, peer);
        let is_send = |_: &dyn Send| ();
        is_send(&served);
        let relay = size_of::<crate::Relay<'_, TcpStream, TcpStream>>();
        let (size, apart) = (
            size_of_val(&served),
            size_of::<Tunnel<Open, TcpStream, usize>>(),
        );
        assert!(size <= relay + 32, "{size} bytes around {relay}");
        assert!(apart <= 176, "{apart} bytes apart");
    }
}
