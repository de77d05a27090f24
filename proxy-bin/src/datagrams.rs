//! proxyd's policy for datagrams, those of SOCKS5 UDP ASSOCIATE and of port
//! relays: each target is judged like that of a tunnel.

use std::cell::RefCell;
use std::net::{IpAddr, SocketAddr};
use std::time::Instant;

use proxy_core::{ConnectError, ConnectErrorKind, Target};
use proxy_relay::{AssociationReport, Associations, Passage};
use proxy_socks::Datagrams;

use crate::gateway::{Proxyd, Session};
use crate::throttle::Throttle;

impl Datagrams for Proxyd {
    fn associations(&self) -> &Associations {
        self.outside().associations()
    }

    async fn admit(
        &self,
        session: &Session,
        target: Target<'_>,
        last: Option<SocketAddr>,
    ) -> Result<Passage, ConnectError> {
        let outside = self.outside();
        let Some(errand) = session.errand() else {
            return Err(ConnectError::origin(ConnectErrorKind::Other));
        };
        let passage = outside.pass(errand, target, last).await;
        // Of this target; nothing is kept from the association itself.
        let cause = errand.cause.take();
        match &passage {
            Ok(passage) => session.flows(Some(passage.address), None),
            Err(error) => {
                session.flows(None, cause);
                self.tell_dropped(errand.person.client(), target, || match cause {
                    Some(cause) => cause.text(outside.policy()),
                    None => error.to_string(),
                });
            }
        }
        passage
    }

    fn takes(&self, client: SocketAddr) -> bool {
        let takes = self.takes_from(client.ip());
        if !takes && let Some(datagrams) = self.dropped().strangers.admit(Instant::now()) {
            tracing::info!(
                listener = self.service(),
                client = %client.ip(),
                datagrams,
                "datagrams are dropped: clients may not come from there"
            );
        }
        takes
    }

    fn crowded_out(&self, client: SocketAddr) {
        if let Some(datagrams) = self.dropped().crowd.admit(Instant::now()) {
            tracing::warn!(
                listener = self.service(),
                client = %client.ip(),
                datagrams,
                "datagrams are dropped: a limit of [udp] on associations is reached"
            );
        }
    }

    fn dissociated(&self, session: &Session, report: &AssociationReport) {
        let drops = report.drops;
        if drops.total() > 0
            && let Some(errand) = session.errand()
        {
            tracing::debug!(
                listener = self.service(),
                client = %errand.person.client(),
                sent = report.sent,
                received = report.received,
                refused = drops.refused,
                malformed = drops.malformed,
                strangers = drops.strangers,
                unsent = drops.unsent,
                waiting = drops.waiting,
                limited = drops.limited,
                "some datagrams of an association were dropped"
            );
        }
    }
}

impl Proxyd {
    /// Says, not too often, why datagrams to a target are dropped.
    pub(crate) fn tell_dropped(
        &self,
        client: IpAddr,
        target: Target<'_>,
        reason: impl FnOnce() -> String,
    ) {
        if let Some(targets) = self.dropped().targets.admit(Instant::now()) {
            tracing::info!(
                listener = self.service(),
                %client,
                %target,
                reason = reason(),
                targets,
                "datagrams are dropped"
            );
        }
    }
}

/// Keeps messages about dropped datagrams few: those to targets where they may not
/// go, those of clients who may not come, and those for whom there is no room.
#[derive(Debug, Default)]
pub(crate) struct Dropped {
    targets: Throttle,
    strangers: Throttle,
    crowd: Throttle,
}

/// The addresses that an association sends from, by entry of
/// [`Config::sources`](crate::config::Config): the same to all its targets, also
/// where each connection would have one of its own.
#[derive(Debug, Default)]
pub(crate) struct Picked(RefCell<Vec<(u16, IpAddr)>>);

impl Picked {
    /// The address for targets of the family of `to`, chosen by `pick` if it was
    /// not before.
    pub(crate) fn get(
        &self,
        source: u16,
        to: IpAddr,
        pick: impl FnOnce() -> Result<IpAddr, ConnectError>,
    ) -> Result<IpAddr, ConnectError> {
        let mut picked = self.0.borrow_mut();
        let same = |(own, ip): &&(u16, IpAddr)| *own == source && ip.is_ipv4() == to.is_ipv4();
        if let Some((_, ip)) = picked.iter().find(same) {
            return Ok(*ip);
        }
        let ip = pick()?;
        picked.push((source, ip));
        Ok(ip)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_association_keeps_to_its_addresses() {
        let ip = |text: &str| text.parse::<IpAddr>().expect("an address");
        let picked = Picked::default();
        let none = ConnectError::origin(ConnectErrorKind::NetworkUnreachable);
        let (v4, v6) = (ip("198.51.100.1"), ip("2001:db8::1"));
        assert_eq!(picked.get(0, v4, || Err(none)), Err(none));
        for (source, to, first, expected) in [
            (0, v4, "192.0.2.1", "192.0.2.1"),
            (0, v4, "192.0.2.2", "192.0.2.1"),
            (0, v6, "2001:db8:1::1", "2001:db8:1::1"),
            (1, v4, "192.0.2.3", "192.0.2.3"),
            (0, v6, "2001:db8:1::2", "2001:db8:1::1"),
        ] {
            assert_eq!(picked.get(source, to, || Ok(ip(first))), Ok(ip(expected)));
        }
    }
}
