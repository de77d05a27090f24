//! Datagrams that another proxy carries on.

use std::fmt;
use std::net::SocketAddr;

use bytes::BytesMut;
use proxy_core::Target;

/// A proxy that datagrams go through, such as a SOCKS5 one that was asked for an
/// association of our own: part of a [`Passage`](super::Passage), whose address
/// is where that proxy takes them.
///
/// All passages of an association that have the same carrier share a socket. It
/// is dropped with the association at the latest.
pub trait Carrier: fmt::Debug + Send + Sync {
    /// Appends to `header` what the proxy wants before a payload for `target`.
    fn seal(&self, target: Target<'_>, header: &mut BytesMut);

    /// Reads what came from the proxy: who has sent it there, and the payload.
    /// `None` drops it. Only answers of those that were sent to should come from
    /// it; that is not checked again.
    fn open<'d>(&self, datagram: &'d [u8]) -> Option<(SocketAddr, &'d [u8])>;

    /// Whether the proxy still carries datagrams. If not, the verdict that led to
    /// it holds no longer. Called at most a few times a second for each target.
    fn is_open(&self) -> bool;
}
