//! The sockets of an association towards its targets.

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::sync::Arc;

use super::socket::Socket;
use super::{Carrier, Passage};

/// One socket for each family, source address and carrier in use, opened when
/// first needed.
#[derive(Debug, Default)]
pub(super) struct Upstreams(Vec<Upstream>);

#[derive(Clone, Debug)]
pub(super) struct Upstream {
    source: Option<IpAddr>,
    is_v6: bool,
    pub(super) carrier: Option<Arc<dyn Carrier>>,
    pub(super) socket: Arc<Socket>,
}

impl Upstream {
    /// # Errors
    /// Those of the system.
    pub(super) fn open(passage: &Passage) -> io::Result<Self> {
        let is_v6 = passage.address.is_ipv6();
        Ok(Self {
            source: passage.source,
            is_v6,
            carrier: passage.carrier.clone(),
            socket: Socket::bind(SocketAddr::new(
                passage.source.unwrap_or_else(|| any(is_v6)),
                0,
            ))?,
        })
    }

    fn suits(&self, passage: &Passage) -> bool {
        self.is_v6 == passage.address.is_ipv6()
            && self.source == passage.source
            && is_same(self.carrier.as_ref(), passage.carrier.as_ref())
    }

    fn is_closed(&self) -> bool {
        let carrier = self.carrier.as_ref();
        carrier.is_some_and(|carrier| !carrier.is_open())
    }
}

impl Upstreams {
    /// The place of the socket for a passage, and its address if it is new.
    ///
    /// # Errors
    /// If a new socket is needed and there can be none.
    pub(super) fn open(&mut self, passage: &Passage) -> io::Result<(usize, Option<SocketAddr>)> {
        if let Some(at) = self.0.iter().position(|own| own.suits(passage)) {
            return Ok((at, None));
        }
        let place = self.0.iter().position(Upstream::is_closed);
        if place.is_none() && self.0.len() >= MOST {
            return Err(io::ErrorKind::QuotaExceeded.into());
        }
        let upstream = Upstream::open(passage)?;
        let local = upstream.socket.local_addr()?;
        let at = place.unwrap_or(self.0.len());
        match self.0.get_mut(at) {
            Some(closed) => *closed = upstream,
            None => self.0.push(upstream),
        }
        Ok((at, Some(local)))
    }

    pub(super) fn get(&self, at: usize) -> Option<&Upstream> {
        self.0.get(at)
    }

    pub(super) fn len(&self) -> usize {
        self.0.len()
    }
}

/// Every address of a family.
pub(super) fn any(is_v6: bool) -> IpAddr {
    match is_v6 {
        true => Ipv6Addr::UNSPECIFIED.into(),
        false => Ipv4Addr::UNSPECIFIED.into(),
    }
}

/// Whether it is the very same carrier, or none.
pub(super) fn is_same(one: Option<&Arc<dyn Carrier>>, other: Option<&Arc<dyn Carrier>>) -> bool {
    match (one, other) {
        (None, None) => true,
        (Some(one), Some(other)) => Arc::ptr_eq(one, other),
        _ => false,
    }
}

/// Sockets of one association: policy may choose a source by the target.
const MOST: usize = 8;
