//! The origin connection that stays with a client connection.

use std::sync::Arc;

use proxy_core::{ConnectError, ConnectErrorKind, Gateway, HttpParent, Target, TargetBuf};
use proxy_relay::{Deadline, Expired, Ticks, unless};

use super::wire::watch;

/// An origin connection and where it leads.
pub(super) struct Sticky<U> {
    pub(super) stream: U,
    /// It has carried a request, so its origin may have closed it meanwhile.
    pub(super) reused: bool,
    /// The HTTP proxy at its end, if it is not the origin.
    pub(super) parent: Option<Arc<HttpParent>>,
    target: TargetBuf,
    way: u64,
}

impl<U> Sticky<U> {
    /// Whether a request for `target` that is to go this way can use it.
    pub(super) fn leads_to(&self, target: Target<'_>, way: u64) -> bool {
        self.way == way && self.target.as_target() == target
    }

    /// Gives it back to the gateway.
    pub(super) fn recycle<G: Gateway<Upstream = U>>(self, gateway: &G) {
        gateway.recycle(self.target.as_target(), self.stream);
    }
}

/// Asks the gateway for a connection to `target`, unless `gone` is over first.
pub(super) async fn connect<G: Gateway>(
    gateway: &G,
    deadline: &mut Deadline,
    patience: Ticks,
    session: &mut G::Session,
    target: Target<'_>,
    gone: impl Future<Output = ()>,
) -> Result<Sticky<G::Upstream>, Unconnected> {
    deadline.set(patience);
    let dialling = unless(gone, gateway.connect(session, target));
    match watch(deadline, dialling).await {
        Ok(Some(Ok(connected))) => Ok(Sticky {
            stream: connected.upstream,
            reused: connected.reused,
            parent: connected.parent,
            target: target.into(),
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

/// Why there is no connection.
pub(super) enum Unconnected {
    /// The gateway could not reach the target.
    Failed(ConnectError),
    /// Stopped from outside meanwhile.
    Stopped(Expired),
    /// The client reset its connection meanwhile.
    Vanished,
}
