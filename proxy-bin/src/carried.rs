//! The parents that carry an association's datagrams.

use std::cell::RefCell;
use std::net::SocketAddr;
use std::sync::Arc;

use bytes::BytesMut;
use proxy_core::Target;
use proxy_relay::{Carrier, Passage};
use proxy_socks::ParentRelay;

use crate::egress::Permit;
use crate::way::Way;

/// An association with a parent, which counts as a connection towards outside.
#[derive(Debug)]
struct Carried {
    relay: ParentRelay,
    _permit: Option<Permit>,
}

impl Carrier for Carried {
    fn seal(&self, target: Target<'_>, header: &mut BytesMut) {
        self.relay.seal(target, header);
    }

    fn open<'d>(&self, datagram: &'d [u8]) -> Option<(SocketAddr, &'d [u8])> {
        self.relay.open(datagram)
    }

    fn is_open(&self) -> bool {
        self.relay.is_open()
    }
}

/// Those of one association, one for each way that goes through a parent.
#[derive(Debug, Default)]
pub(crate) struct Carriers(RefCell<Vec<(Way, Arc<Carried>)>>);

impl Carriers {
    /// The passage of that way, if its parent still carries datagrams.
    pub(crate) fn get(&self, way: Way) -> Option<Passage> {
        let mut all = self.0.borrow_mut();
        all.retain(|(_, carried)| carried.is_open());
        let (_, carried) = all.iter().find(|(own, _)| *own == way)?;
        Some(passage(carried))
    }

    /// Keeps a new one, unless another target's question was answered first.
    pub(crate) fn keep(&self, way: Way, relay: ParentRelay, permit: Option<Permit>) -> Passage {
        if let Some(passage) = self.get(way) {
            return passage;
        }
        let carried = Arc::new(Carried {
            relay,
            _permit: permit,
        });
        let passage = passage(&carried);
        self.0.borrow_mut().push((way, carried));
        passage
    }
}

fn passage(carried: &Arc<Carried>) -> Passage {
    Passage {
        address: carried.relay.address(),
        source: carried.relay.source(),
        carrier: Some(Arc::clone(carried) as Arc<dyn Carrier>),
    }
}
