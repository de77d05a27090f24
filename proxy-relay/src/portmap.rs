//! A port relay: everything that connects is tunnelled to one target.

use std::time::Duration;

use proxy_core::{
    Ask, ConnectError, ConnectErrorKind, Denial, End, Gateway, Operation, Peer, Report, Shaping,
    Stop, TargetBuf, Timeouts,
};
use tokio::time::Instant;

use crate::{RelayOptions, RelayReport, Transport, relay, unless, vanished};

/// Serves connections by tunnelling each to a fixed target.
///
/// Policy is asked as for any other tunnel: the client is authenticated without
/// credentials and authorized for [`Operation::Tunnel`].
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
    gateway: G,
    target: TargetBuf,
    timeouts: Timeouts,
    stop: Stop,
}

impl<G> PortMap<G> {
    /// A relay to `target` with default timeouts.
    pub fn new(gateway: G, target: TargetBuf) -> Self {
        Self {
            gateway,
            target,
            timeouts: Timeouts::default(),
            stop: Stop::never(),
        }
    }

    /// The timeouts of its tunnels.
    pub fn timeouts(&mut self, timeouts: Timeouts) -> &mut Self {
        self.timeouts = timeouts;
        self
    }

    /// The token that ends its tunnels, unless [`Gateway::shaping`] names
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

impl<G: Gateway<Upstream: Transport>> PortMap<G> {
    /// Serves one accepted connection to its end.
    ///
    /// A client whose target cannot be reached is closed in order: a reset could
    /// overtake the end of its own connect. A client that resets while the target is being dialled
    /// cancels the dial. [`Gateway::finished`] is called once, unless the
    /// future is dropped.
    ///
    /// # Errors
    /// If policy refused the client or the target was not reached; what happens
    /// in the tunnel is in the report only.
    pub async fn serve<S: Transport>(&self, mut client: S, peer: Peer) -> Result<(), PortMapError> {
        let start = Instant::now();
        // Boxed, so that its room is free again while the tunnel lives.
        let opened = Box::pin(self.open(&client, &peer)).await;
        let Opened {
            who,
            session,
            upstream,
        } = opened;
        let (result, report) = match upstream {
            Ok((mut upstream, options)) => {
                (Ok(()), relay(&mut client, &mut upstream, &options).await)
            }
            Err(error) => (Err(error), error.report()),
        };
        let mut report = self.report(&peer, start.elapsed(), report);
        if let Err(PortMapError::Connect(error)) = result {
            report.error = Some(error);
        }
        self.gateway.finished(who.as_ref(), session, &report);
        result
    }

    async fn open<S: Transport>(&self, client: &S, peer: &Peer) -> Opened<G> {
        let mut opened = Opened {
            who: None,
            session: None,
            upstream: Err(PortMapError::Vanished),
        };
        let reached = {
            let reach = self.reach(peer, &mut opened.who, &mut opened.session);
            unless(vanished(client), reach).await
        };
        opened.upstream = reached.unwrap_or(Err(PortMapError::Vanished));
        opened
    }

    async fn reach(
        &self,
        peer: &Peer,
        who: &mut Option<G::Identity>,
        session: &mut Option<G::Session>,
    ) -> Result<(G::Upstream, RelayOptions), PortMapError> {
        let target = self.target.as_target();
        let operation = Operation::Tunnel;
        let ask = Ask {
            peer,
            operation,
            target,
            via: None,
            secure: false,
        };
        let denied = PortMapError::Denied;
        let who = who.insert(
            self.gateway
                .authenticate(peer, None)
                .await
                .map_err(denied)?,
        );
        let session = session.insert(self.gateway.authorize(who, &ask).await.map_err(denied)?);
        let options = self.options(self.gateway.shaping(session));
        let connected = self.gateway.connect(session, target).await;
        let connected = connected.map_err(PortMapError::Connect)?;
        Ok((connected.upstream, options))
    }

    fn options(&self, shaping: Shaping) -> RelayOptions {
        let stop = match shaping.stop.is_never() {
            true => self.stop.clone(),
            false => shaping.stop,
        };
        let mut options = RelayOptions::from(&self.timeouts);
        options.lifetime(shaping.lifetime).stop(stop);
        options
    }

    fn report<'a>(&'a self, peer: &'a Peer, took: Duration, relayed: RelayReport) -> Report<'a> {
        let mut report = Report::new(peer, relayed.end);
        report.operation = Some(Operation::Tunnel);
        report.target = Some(self.target.as_target());
        report.up = relayed.up;
        report.down = relayed.down;
        report.duration = took;
        report
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
    fn report(self) -> RelayReport {
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

/// How far the stage before the tunnel came.
struct Opened<G: Gateway> {
    who: Option<G::Identity>,
    session: Option<G::Session>,
    upstream: Result<(G::Upstream, RelayOptions), PortMapError>,
}
