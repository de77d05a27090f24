//! The origin connection that stays with a client connection.

use std::sync::Arc;

use proxy_core::{Ask, ConnectError, ConnectErrorKind, Connected, Gateway, HttpParent, TargetBuf};
use proxy_relay::{Deadline, Expired, Ticks, unless};

use super::wire::watch;

/// An origin connection and where it leads.
pub(super) struct Sticky<U> {
    pub(super) stream: U,
    /// It has carried a request, so its origin may have closed it meanwhile.
    pub(super) reused: bool,
    /// The HTTP proxy at its end, if it is not the origin.
    pub(super) parent: Option<Arc<HttpParent>>,
    /// It carries a login of its own: it is for this client alone, and ends with
    /// it.
    pub(super) pinned: bool,
    target: TargetBuf,
    way: u64,
    /// Inside TLS with the target.
    secure: bool,
}

impl<U> Sticky<U> {
    /// Whether a request for this that is to go this way can use it.
    pub(super) fn leads_to(&self, ask: &Ask<'_>, way: u64) -> bool {
        self.way == way && self.secure == ask.secure && self.target.as_target() == ask.target
    }

    /// Gives it back to the gateway, if others may use it.
    pub(super) fn recycle<G: Gateway<Upstream = U>>(self, gateway: &G) {
        if !self.pinned {
            gateway.recycle(self.target.as_target(), self.stream);
        }
    }
}

/// Asks the gateway for the connection that `ask` needs, unless `gone` is over
/// first.
pub(super) async fn connect<G: Gateway>(
    gateway: &G,
    deadline: &mut Deadline,
    patience: Ticks,
    session: &mut G::Session,
    ask: &Ask<'_>,
    gone: impl Future<Output = ()>,
) -> Result<Sticky<G::Upstream>, Unconnected> {
    deadline.set(patience);
    let dialling = unless(gone, gateway.connect(session, ask.target));
    match watch(deadline, dialling).await {
        Ok(Some(Ok(connected))) if !is_fit(&connected, ask) => Err(Unconnected::Unfit),
        Ok(Some(Ok(connected))) => Ok(Sticky {
            stream: connected.upstream,
            reused: connected.reused,
            parent: connected.parent,
            pinned: false,
            target: ask.target.into(),
            secure: ask.secure,
            way: gateway.shaping(session).way,
        }),
        Ok(Some(Err(error))) => Err(Unconnected::Failed(error)),
        Ok(None) => Err(Unconnected::Vanished),
        Err(Expired::Elapsed) => Err(Unconnected::Failed(ConnectError::origin(
            ConnectErrorKind::TimedOut,
        ))),
        Err(expired) => Err(Unconnected::Stopped(expired)),
    }
}

/// Nothing leaves in clear that was meant to be encrypted, not towards a parent
/// either; and what is encrypted is not for those who did not ask for it.
fn is_fit<U>(connected: &Connected<U>, ask: &Ask<'_>) -> bool {
    connected.secure == ask.secure && !(ask.secure && connected.parent.is_some())
}

/// Why there is no connection.
pub(super) enum Unconnected {
    /// The gateway could not reach the target.
    Failed(ConnectError),
    /// Stopped from outside meanwhile.
    Stopped(Expired),
    /// It is in clear and should not be, or the other way round.
    Unfit,
    /// The client reset its connection meanwhile.
    Vanished,
}
