//! The sockets of an association towards its targets.

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::task::{Context, Poll};

use socket2::{Domain, Protocol, SockRef, Socket, Type};
use tokio::io::ReadBuf;
use tokio::net::UdpSocket;

use super::Passage;

/// One socket for each family and source address in use, opened when first
/// needed.
#[derive(Debug, Default)]
pub(super) struct Upstreams(Vec<Upstream>);

#[derive(Debug)]
struct Upstream {
    source: Option<IpAddr>,
    is_v6: bool,
    socket: UdpSocket,
}

impl Upstreams {
    /// The place of the socket for a passage, and its address if it is new.
    ///
    /// # Errors
    /// If a new socket is needed and there can be none.
    pub(super) fn open(&mut self, passage: &Passage) -> io::Result<(usize, Option<SocketAddr>)> {
        let is_v6 = passage.address.is_ipv6();
        let same = |own: &Upstream| own.is_v6 == is_v6 && own.source == passage.source;
        if let Some(at) = self.0.iter().position(same) {
            return Ok((at, None));
        }
        if self.0.len() >= MOST {
            return Err(io::ErrorKind::QuotaExceeded.into());
        }
        let any = match is_v6 {
            true => IpAddr::V6(Ipv6Addr::UNSPECIFIED),
            false => IpAddr::V4(Ipv4Addr::UNSPECIFIED),
        };
        let socket = bind(SocketAddr::new(passage.source.unwrap_or(any), 0))?;
        let local = socket.local_addr()?;
        self.0.push(Upstream {
            source: passage.source,
            is_v6,
            socket,
        });
        Ok((self.0.len() - 1, Some(local)))
    }

    /// Sends from the socket at that place.
    ///
    /// # Errors
    /// Those of the system; also if its buffer is full, since a datagram that
    /// would have to wait is better dropped.
    pub(super) fn send(&self, at: usize, payload: &[u8], to: SocketAddr) -> io::Result<()> {
        let upstream = self.0.get(at).ok_or(io::ErrorKind::NotFound)?;
        send(&upstream.socket, payload, to)
    }

    /// The next datagram that came to the socket at that place, and from where.
    pub(super) fn poll_recv(
        &self,
        cx: &mut Context<'_>,
        at: usize,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<SocketAddr>> {
        match self.0.get(at) {
            Some(upstream) => upstream.socket.poll_recv_from(cx, buf),
            None => Poll::Pending,
        }
    }

    pub(super) fn len(&self) -> usize {
        self.0.len()
    }
}

/// A socket on `address` for the runtime.
///
/// # Errors
/// Those of the system.
pub(super) fn bind(address: SocketAddr) -> io::Result<UdpSocket> {
    let socket = bind_blocking(address)?;
    socket.set_nonblocking(true)?;
    UdpSocket::from_std(socket.into())
}

/// A socket on `address`, for one family only.
///
/// # Errors
/// Those of the system.
pub(super) fn bind_blocking(address: SocketAddr) -> io::Result<Socket> {
    let socket = Socket::new(
        Domain::for_address(address),
        Type::DGRAM,
        Some(Protocol::UDP),
    )?;
    if address.is_ipv6() {
        socket.set_only_v6(true)?;
        free(&socket);
    }
    socket.bind(&address.into())?;
    Ok(socket)
}

/// Sends past the runtime, which would first wait to hear that a new socket is
/// ready.
///
/// # Errors
/// Those of the system; `WouldBlock` if its buffer is full.
pub(super) fn send(socket: &UdpSocket, datagram: &[u8], to: SocketAddr) -> io::Result<()> {
    SockRef::from(socket)
        .send_to(datagram, &to.into())
        .map(drop)
}

/// Lets an IPv6 source be any of a prefix that is routed here. Best effort.
#[cfg(target_os = "linux")]
fn free(socket: &Socket) {
    use nix::sys::socket::{setsockopt, sockopt};
    let _ = setsockopt(socket, sockopt::IpFreebind, &true);
}

#[cfg(not(target_os = "linux"))]
fn free(_: &Socket) {}

/// Sockets of one association: policy may choose a source by the target.
const MOST: usize = 8;
