//! UDP ASSOCIATE: how the datagrams are carried.

use std::net::SocketAddr;

use bytes::BytesMut;
use proxy_core::{ConnectError, ConnectErrorKind, Gateway, Host, Peer, Status, Target, TargetBuf};
use proxy_relay::{
    Association, AssociationError, AssociationReport, Associations, Datagrams, Framing,
    RelayOptions, Transport,
};

use super::error::Refusal;
use crate::wire::UdpHeader;

/// Whether a server relays datagrams.
pub(super) trait Offer<G: Gateway> {
    /// `None` if it does not.
    fn associations(gateway: &G) -> Option<&Associations>;

    /// Relays to the end.
    fn carry<S: Transport>(
        gateway: &G,
        session: &G::Session,
        association: Association<Wrapped>,
        client: &mut S,
    ) -> impl Future<Output = AssociationReport>;
}

/// It does.
pub(super) struct WithDatagrams;

impl<G: Datagrams> Offer<G> for WithDatagrams {
    fn associations(gateway: &G) -> Option<&Associations> {
        Some(gateway.associations())
    }

    async fn carry<S: Transport>(
        gateway: &G,
        session: &G::Session,
        association: Association<Wrapped>,
        client: &mut S,
    ) -> AssociationReport {
        let admit = |target: TargetBuf, last| async move {
            gateway.admit(session, target.as_target(), last).await
        };
        let report = association.run(client, admit).await;
        gateway.dissociated(session, &report);
        report
    }
}

/// It does not.
pub(super) struct WithoutDatagrams;

impl<G: Gateway> Offer<G> for WithoutDatagrams {
    fn associations(_: &G) -> Option<&Associations> {
        None
    }

    async fn carry<S: Transport>(
        _: &G,
        _: &G::Session,
        association: Association<Wrapped>,
        client: &mut S,
    ) -> AssociationReport {
        let refuse = |_, _| async { Err(ConnectError::origin(ConnectErrorKind::Forbidden)) };
        association.run(client, refuse).await
    }
}

/// Opens the socket for a client that asked with this target.
pub(super) fn open(
    peer: &Peer,
    target: Target<'_>,
    all: &Associations,
    options: &RelayOptions,
) -> Result<Association<Wrapped>, Refusal> {
    let mut association = Association::open(peer, Wrapped, all, options)?;
    association.announced(announced(target, peer));
    Ok(association)
}

/// The port that a client says it will send from. Who names an address that is
/// not the one it comes from is behind a translator, which changes the port too.
fn announced(target: Target<'_>, peer: &Peer) -> Option<u16> {
    let Host::Ip(ip) = target.host else {
        return None;
    };
    let is_own = ip.is_unspecified() || ip.to_canonical() == peer.remote.ip().to_canonical();
    (is_own && target.port != 0).then_some(target.port)
}

/// Datagrams with a SOCKS5 header. Fragments are dropped, as RFC 1928 section 7
/// asks of those that do not put them together.
#[derive(Clone, Copy, Debug)]
pub(super) struct Wrapped;

impl Framing for Wrapped {
    fn open<'d>(&'d self, datagram: &'d [u8]) -> Option<(Target<'d>, &'d [u8])> {
        match UdpHeader::parse(datagram) {
            Ok(Status::Complete(header, used)) if header.fragment == 0 => {
                Some((header.target, &datagram[used..]))
            }
            _ => None,
        }
    }

    fn seal(&self, from: SocketAddr, header: &mut BytesMut) {
        UdpHeader::encode_from(from, header);
    }
}

impl From<AssociationError> for Refusal {
    fn from(error: AssociationError) -> Self {
        match error {
            AssociationError::Socket(error) => Self::Unreached(error.into()),
            _ => Self::Denied(proxy_core::Denial::Busy),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn p65_when_an_announced_port_counts() {
        let peer = Peer {
            remote: "192.0.2.1:1000".parse().expect("an address"),
            local: "192.0.2.9:1080".parse().expect("an address"),
        };
        for (target, port) in [
            ("0.0.0.0:0", None),
            ("0.0.0.0:7", Some(7)),
            ("[::]:7", Some(7)),
            ("192.0.2.1:7", Some(7)),
            ("[::ffff:192.0.2.1]:7", Some(7)),
            ("192.0.2.1:0", None),
            ("10.0.0.1:7", None),
            ("localhost:7", None),
        ] {
            let parsed = match target.strip_suffix(":0") {
                Some(host) => Target {
                    host: Host::parse(host).expect("a host"),
                    port: 0,
                },
                None => Target::parse(target, None).expect("a target"),
            };
            assert_eq!(announced(parsed, &peer), port, "{target}");
        }
    }
}
