//! Relays datagrams: one association is a client's socket and those upstream.

mod association;
mod associations;
mod batch;
mod carrier;
mod flow;
mod lookups;
mod map;
mod policy;
mod socket;
mod table;
mod upstreams;

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Instant;

use bytes::BytesMut;
use proxy_core::{End, Rates, Target};

pub use association::{Association, AssociationError};
pub use associations::Associations;
pub use carrier::Carrier;
pub use map::DatagramMap;
pub use policy::Datagrams;

/// How datagrams look between a client and the proxy.
///
/// Both methods are called for each datagram, so they should cost little.
pub trait Framing {
    /// Reads a datagram of the client: where it goes, and its payload. `None`
    /// drops it.
    fn open<'d>(&'d self, datagram: &'d [u8]) -> Option<(Target<'d>, &'d [u8])>;

    /// Appends to `header` (empty, at most 64 bytes) what stands before a
    /// payload that came from `from`. An IPv4 address is never mapped into IPv6.
    fn seal(&self, from: SocketAddr, header: &mut BytesMut);
}

/// The way of the datagrams to one target, as policy has judged it.
///
/// Exhaustive on purpose, so that anybody can make one. Two with carriers are
/// equal if they share the carrier.
#[derive(Clone, Debug)]
pub struct Passage {
    /// The very address that was judged, or that of the carrier.
    pub address: SocketAddr,
    /// The address, of the same family, to send from; `None` leaves it to the
    /// system.
    pub source: Option<IpAddr>,
    /// The proxy at that address; `None` if it is the target's own.
    pub carrier: Option<Arc<dyn Carrier>>,
}

impl Passage {
    /// Whether the system has a route from the source to the address. Nothing is
    /// sent. Between several addresses of a name this stands in for the attempt
    /// to connect, which datagrams do not make.
    pub fn has_route(&self) -> bool {
        let any = upstreams::any(self.address.is_ipv6());
        let socket = socket::bind_blocking(SocketAddr::new(self.source.unwrap_or(any), 0));
        socket.is_ok_and(|socket| socket.connect(&self.address.into()).is_ok())
    }
}

impl From<SocketAddr> for Passage {
    /// From whatever address the system sees fit.
    fn from(address: SocketAddr) -> Self {
        Self {
            address,
            source: None,
            carrier: None,
        }
    }
}

impl PartialEq for Passage {
    fn eq(&self, other: &Self) -> bool {
        self.address == other.address
            && self.source == other.source
            && upstreams::is_same(self.carrier.as_ref(), other.carrier.as_ref())
    }
}

impl Eq for Passage {}

/// What an [`Association`] came to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct AssociationReport {
    /// Payload bytes sent to targets.
    pub up: u64,
    /// Payload bytes sent to the client.
    pub down: u64,
    /// Datagrams sent to targets.
    pub sent: u64,
    /// Datagrams sent to the client.
    pub received: u64,
    /// Datagrams that came and were not passed on.
    pub drops: Drops,
    /// Why it ended.
    pub end: End,
}

/// How many datagrams were dropped, and why.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Drops {
    /// The client's framing could not be read or is not supported.
    pub malformed: u64,
    /// Policy refused the target, or it has no address.
    pub refused: u64,
    /// They came from neither the client nor a target it had sent to.
    pub strangers: u64,
    /// The system did not take them: too large, no route, no room.
    pub unsent: u64,
    /// Too many were waiting for a name to be looked up.
    pub waiting: u64,
    /// They were more than the rates allow.
    pub limited: u64,
}

impl AssociationReport {
    /// Of one that nothing has happened to yet.
    fn new() -> Self {
        Self {
            up: 0,
            down: 0,
            sent: 0,
            received: 0,
            drops: Drops::default(),
            end: End::Stopped,
        }
    }
}

impl Drops {
    /// All of them.
    pub fn total(&self) -> u64 {
        self.malformed + self.refused + self.strangers + self.unsent + self.waiting + self.limited
    }
}

/// Whether rates let a payload pass: one that would have to wait is dropped.
fn is_within(rates: &Rates, payload: &[u8]) -> bool {
    if rates.is_unlimited() {
        return true;
    }
    let length = u64::try_from(payload.len()).unwrap_or(u64::MAX);
    let granted = rates.take(length, Instant::now());
    let is_within = granted == length;
    if !is_within {
        rates.refund(granted);
    }
    is_within
}

/// The address without a mapping: an IPv4 one stays so on an IPv6 socket
/// (RFC 4291 section 2.5.5.2).
fn canonical(address: SocketAddr) -> SocketAddr {
    match (address, address.ip().to_canonical()) {
        (SocketAddr::V6(v6), ip @ IpAddr::V4(_)) => SocketAddr::new(ip, v6.port()),
        _ => address,
    }
}
