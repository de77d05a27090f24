//! Counts the client connections of a worker and keeps them within the limits.

use std::cell::Cell;
use std::net::IpAddr;
use std::rc::Rc;
use std::sync::Arc;

use proxy_core::ClientNet;
use tokio::sync::Notify;

use crate::cause::Scarce;
use crate::config::Limits;
use crate::places::{Places, Share, Shares};

/// The limits of the whole process on client connections.
#[derive(Debug, Default)]
pub(crate) struct Limit {
    all: Option<Places>,
    by_client: Option<Shares>,
}

impl Limit {
    pub(crate) fn new(limits: &Limits) -> Self {
        Self {
            all: limits.connections.map(Places::new),
            by_client: limits.client_connections.map(Shares::new),
        }
    }

    fn take(&self, client: IpAddr) -> Result<Option<Share>, Scarce> {
        let share = match &self.by_client {
            None => None,
            Some(shares) => {
                let share = shares.take(ClientNet::from(client));
                Some(share.ok_or(Scarce::ClientConnections)?)
            }
        };
        if self.all.as_ref().is_none_or(Places::take) {
            return Ok(share);
        }
        self.give_share(share);
        Err(Scarce::Connections)
    }

    fn give(&self, share: Option<Share>) {
        self.give_share(share);
        if let Some(all) = &self.all {
            all.give();
        }
    }

    fn give_share(&self, share: Option<Share>) {
        if let (Some(shares), Some(share)) = (&self.by_client, share) {
            shares.give(share);
        }
    }
}

/// The connections of one worker.
#[derive(Debug, Default)]
pub(crate) struct Gate {
    limit: Arc<Limit>,
    served: Cell<usize>,
    refused: Cell<usize>,
    empty: Notify,
}

/// What becomes of a new connection.
#[derive(Debug)]
pub(crate) enum Admission {
    /// Too many are being told that there are too many.
    Drop(Scarce),
    /// To be told that the proxy is at its limit.
    Refuse(Slot, Scarce),
    Serve(Slot),
}

impl Gate {
    pub(crate) fn new(limit: Arc<Limit>) -> Self {
        Self {
            limit,
            ..Self::default()
        }
    }

    /// Decides about a new connection from there.
    pub(crate) fn admit(self: &Rc<Self>, client: IpAddr) -> Admission {
        let taken = self.limit.take(client);
        let counter = match taken {
            Ok(_) => &self.served,
            Err(scarce) if self.refused.get() >= MOST_REFUSALS => return Admission::Drop(scarce),
            Err(_) => &self.refused,
        };
        counter.set(counter.get() + 1);
        let slot = Slot {
            gate: Rc::clone(self),
            refused: taken.is_err(),
            share: taken.unwrap_or(None),
        };
        match taken {
            Ok(_) => Admission::Serve(slot),
            Err(scarce) => Admission::Refuse(slot, scarce),
        }
    }

    /// How many connections there are.
    pub(crate) fn len(&self) -> usize {
        self.served.get() + self.refused.get()
    }

    /// Waits until there are none. Cancel safe.
    pub(crate) async fn emptied(&self) {
        while self.len() > 0 {
            self.empty.notified().await;
        }
    }
}

/// The place of one connection, free again when this is dropped: at its end, in
/// a panic, with the worker.
#[derive(Debug)]
pub(crate) struct Slot {
    gate: Rc<Gate>,
    refused: bool,
    share: Option<Share>,
}

impl Drop for Slot {
    fn drop(&mut self) {
        let gate = &self.gate;
        if self.refused {
            gate.refused.set(gate.refused.get() - 1);
        } else {
            gate.served.set(gate.served.get() - 1);
            gate.limit.give(self.share);
        }
        if gate.len() == 0 {
            gate.empty.notify_one();
        }
    }
}

/// Connections that are being refused at a time; more are closed at once.
const MOST_REFUSALS: usize = 128;

#[cfg(test)]
mod tests {
    use super::*;

    const CLIENT: IpAddr = IpAddr::V4(std::net::Ipv4Addr::LOCALHOST);

    fn limit(connections: Option<usize>, client_connections: Option<usize>) -> Arc<Limit> {
        Arc::new(Limit::new(&Limits {
            connections,
            client_connections,
            ..Limits::default()
        }))
    }

    #[test]
    fn p51_places_return_on_every_path() {
        let limit = limit(Some(2), None);
        let gate = Rc::new(Gate::new(Arc::clone(&limit)));
        let other = Rc::new(Gate::new(Arc::clone(&limit)));
        let first = gate.admit(CLIENT);
        let second = other.admit(CLIENT);
        assert!(matches!(
            (&first, &second),
            (Admission::Serve(_), Admission::Serve(_))
        ));
        let refused: Vec<Admission> = (0..200).map(|_| gate.admit(CLIENT)).collect();
        let told = refused
            .iter()
            .filter(|a| matches!(a, Admission::Refuse(..)))
            .count();
        assert_eq!(told, MOST_REFUSALS);
        drop(refused);
        assert!(matches!(
            gate.admit(CLIENT),
            Admission::Refuse(_, Scarce::Connections)
        ));

        let panicked = std::panic::catch_unwind(std::panic::AssertUnwindSafe(move || {
            let _slot = first;
            std::panic::resume_unwind(Box::new(()));
        }));
        assert!(panicked.is_err());
        assert!(matches!(gate.admit(CLIENT), Admission::Serve(_)));
        drop(second);
        assert_eq!((gate.len(), other.len()), (0, 0));
        assert_eq!(limit.all.as_ref().map(Places::used), Some(0));
    }

    #[test]
    fn p51_a_client_has_its_own_places_in_all_workers() {
        let limit = limit(Some(3), Some(2));
        let gate = Rc::new(Gate::new(Arc::clone(&limit)));
        let other = Rc::new(Gate::new(Arc::clone(&limit)));
        let ip = |text: &str| text.parse::<IpAddr>().expect("an address");
        // One network of 64 bits is one client.
        let held = [
            gate.admit(ip("2001:db8::1")),
            other.admit(ip("2001:db8::2:3")),
        ];
        assert!(held.iter().all(|a| matches!(a, Admission::Serve(_))));
        assert!(matches!(
            gate.admit(ip("2001:db8::4")),
            Admission::Refuse(_, Scarce::ClientConnections)
        ));
        // Refused for the other reason, it takes no place of its own.
        let third = gate.admit(ip("192.0.2.1"));
        for _ in 0..3 {
            assert!(matches!(
                other.admit(ip("::ffff:192.0.2.1")),
                Admission::Refuse(_, Scarce::Connections)
            ));
        }
        drop(third);
        assert!(matches!(
            gate.admit(ip("2001:db8:0:1::1")),
            Admission::Serve(_)
        ));
        drop(held);
        let used = limit.by_client.as_ref().map(Shares::len);
        assert_eq!((used, gate.len(), other.len()), (Some(0), 0, 0));
        assert_eq!(limit.all.as_ref().map(Places::used), Some(0));
    }

    #[tokio::test]
    async fn empty_is_heard() {
        let gate = Rc::new(Gate::new(Arc::default()));
        gate.emptied().await;
        let slots = [gate.admit(CLIENT), gate.admit(CLIENT)];
        let wait = gate.emptied();
        let leave = async {
            tokio::task::yield_now().await;
            drop(slots);
        };
        tokio::join!(wait, leave);
        assert_eq!(gate.len(), 0);
    }
}
