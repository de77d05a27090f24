//! `redirect` and `tproxy` listeners: connections go where they were bound for
//! before the firewall sent them here.

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::rc::Rc;
use std::time::Instant;

use proxy_core::{
    ConnectError, ConnectErrorKind, End, Gateway, Operation, Peer, Report, Target, TargetBuf,
};
use proxy_relay::Passthrough;
use socket2::SockRef;
use tokio::net::TcpStream;

use crate::gateway::Proxyd;
use crate::throttle::Throttle;

/// Leads each client to its original destination.
pub(crate) struct Original {
    tunnels: Passthrough<Rc<Proxyd>>,
    sent: Sent,
    straight: Throttle,
}

/// How the firewall sends connections here.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Sent {
    /// With another destination in its packets; the kernel knows the old one.
    Redirected,
    /// With packets as they were.
    Untouched,
}

impl Original {
    pub(crate) fn new(tunnels: Passthrough<Rc<Proxyd>>, sent: Sent) -> Self {
        Self {
            tunnels,
            sent,
            straight: Throttle::default(),
        }
    }

    pub(crate) fn tunnels(&self) -> &Passthrough<Rc<Proxyd>> {
        &self.tunnels
    }

    /// Where a connection was bound for. `None` if it is gone, or if that leads
    /// back to the proxy, as for all that was not sent here by the firewall (P72);
    /// that is logged.
    pub(crate) fn target(&self, stream: &TcpStream, peer: &Peer) -> Option<TargetBuf> {
        let reached = canonical(stream.local_addr().ok()?);
        let (wanted, straight) = match self.sent {
            Sent::Untouched => (reached, false),
            Sent::Redirected => match redirected(stream, reached.ip()) {
                Ok(wanted) => (wanted, wanted == reached),
                // Nothing was ever changed in its packets.
                Err(_) => (reached, true),
            },
        };
        let target = Target::from(wanted);
        if straight || self.tunnels.gateway().outside().leads_back(wanted) {
            self.refuse(peer, target);
            return None;
        }
        Some(target.into())
    }

    fn refuse(&self, peer: &Peer, target: Target<'_>) {
        let gateway = self.tunnels.gateway();
        let mut report = Report::new(peer, End::Forbidden);
        report.operation = Some(Operation::Tunnel);
        report.target = Some(target);
        report.error = Some(ConnectError::origin(ConnectErrorKind::Loop));
        gateway.finished(None, None, &report);
        if let Some(clients) = self.straight.admit(Instant::now()) {
            tracing::warn!(
                listener = gateway.service(),
                client = %peer.remote,
                %target,
                clients,
                "refused: not sent here by the firewall, so that it would lead back here"
            );
        }
    }
}

/// The destination before it was changed. Each family has a question of its own;
/// IPv4 on a socket for IPv6 has that of IPv4.
fn redirected(stream: &TcpStream, reached: IpAddr) -> io::Result<SocketAddr> {
    let socket = SockRef::from(stream);
    let wanted = match reached {
        IpAddr::V4(_) => socket.original_dst_v4(),
        IpAddr::V6(_) => socket.original_dst_v6(),
    };
    let wanted = wanted?.as_socket().ok_or(io::ErrorKind::InvalidData)?;
    Ok(canonical(wanted))
}

/// Without IPv4 in the form of IPv6, and without flow and scope.
fn canonical(address: SocketAddr) -> SocketAddr {
    SocketAddr::new(address.ip().to_canonical(), address.port())
}
