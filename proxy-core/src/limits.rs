//! Limits and timeouts with safe defaults.

use std::time::Duration;

use crate::{Rates, Stop};

/// How large a message head may be. Enforced inside the parsers.
///
/// ```
/// let mut limits = proxy_core::HeadLimits::default();
/// limits.head_bytes(16 * 1024).header_count(64);
/// assert_eq!(limits.max_head_bytes(), 16 * 1024);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HeadLimits {
    head_bytes: usize,
    header_count: usize,
}

impl Default for HeadLimits {
    fn default() -> Self {
        Self {
            head_bytes: 64 * 1024,
            header_count: 128,
        }
    }
}

impl HeadLimits {
    /// The longest head in bytes, start line and final empty line included;
    /// 64 KiB by default. Clamped to 256 bytes and above, 1 MiB and below.
    pub fn head_bytes(&mut self, bytes: usize) -> &mut Self {
        self.head_bytes = bytes.clamp(256, 1024 * 1024);
        self
    }

    /// The largest number of header fields; 128 by default, 1024 at most.
    pub fn header_count(&mut self, count: usize) -> &mut Self {
        self.header_count = count.clamp(1, 1024);
        self
    }

    /// The longest head in bytes.
    pub fn max_head_bytes(&self) -> usize {
        self.head_bytes
    }

    /// The largest number of header fields.
    pub fn max_header_count(&self) -> usize {
        self.header_count
    }
}

/// How long each kind of waiting may last. Ten meanings, ten settings; `None`
/// waits for ever. Enforced on coarse ticks of a quarter of a second, but for
/// `tcp_keepalive`, which is the system's.
///
/// ```
/// use std::time::Duration;
/// let mut timeouts = proxy_core::Timeouts::default();
/// timeouts.head = Some(Duration::from_secs(10));
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Timeouts {
    /// From the first byte of a request head (or the accepted connection of a
    /// handshake) to its last, not renewed by single bytes. 30 s by default.
    pub head: Option<Duration>,
    /// Between two requests on a kept client connection. 75 s by default.
    pub keep_alive: Option<Duration>,
    /// Between two bytes of a request's body. 60 s by default.
    pub body: Option<Duration>,
    /// From the complete request to the first byte of the answer, and between
    /// interim answers. 60 s by default.
    pub first_byte: Option<Duration>,
    /// Between two bytes of an answer, whoever is slow. 60 s by default.
    pub progress: Option<Duration>,
    /// Reaching the origin, name look-up included. 10 s by default.
    pub connect: Option<Duration>,
    /// Without a byte in either direction of a tunnel. One hour by default.
    pub tunnel: Option<Duration>,
    /// Without a byte in the direction that is left once the other has ended.
    /// 60 s by default.
    pub half_closed: Option<Duration>,
    /// For one side of a tunnel to take the next of the bytes that wait for it,
    /// however lively the other direction is. 10 minutes by default.
    pub stalled: Option<Duration>,
    /// Until the peer of a silent TCP connection is probed, in whole seconds; a
    /// dead one is found a minute later. 60 s by default.
    pub tcp_keepalive: Option<Duration>,
}

impl Default for Timeouts {
    fn default() -> Self {
        Self {
            head: Some(Duration::from_secs(30)),
            keep_alive: Some(Duration::from_secs(75)),
            body: Some(Duration::from_secs(60)),
            first_byte: Some(Duration::from_secs(60)),
            progress: Some(Duration::from_secs(60)),
            connect: Some(Duration::from_secs(10)),
            tunnel: Some(Duration::from_secs(3600)),
            half_closed: Some(Duration::from_secs(60)),
            stalled: Some(Duration::from_secs(600)),
            tcp_keepalive: Some(Duration::from_secs(60)),
        }
    }
}

/// What policy imposes on one session, from
/// [`Gateway::shaping`](crate::Gateway::shaping).
#[derive(Clone, Debug, Default)]
#[non_exhaustive]
pub struct Shaping {
    /// Ends the session from outside. Make it a [`child`](Stop::child) of the
    /// server's token: for a tunnel it takes that one's place.
    pub stop: Stop,
    /// The longest a tunnel may live; unlimited by default.
    pub lifetime: Option<Duration>,
    /// A number for how policy wants this target to be reached: directly, from
    /// which address, through whom. The connection of the client's last request
    /// is used again only for the same target and the same number; 0 by default.
    pub way: u64,
    /// How fast the client may send; not at all limited by default. What is not
    /// taken from a socket is held back by TCP.
    pub up: Rates,
    /// How fast the client may be sent to.
    pub down: Rates,
}
