//! A socket for datagrams, which come and go in batches.

use std::io::{self, IoSliceMut};
use std::net::SocketAddr;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use quinn_udp::{RecvMeta, Transmit, UdpSocketState};
use socket2::{Domain, Protocol, SockRef, Type};
use tokio::io::Interest;
use tokio::net::UdpSocket;

/// A socket of the runtime that sends and receives several datagrams with one
/// system call, where the system can.
#[derive(Debug)]
pub(super) struct Socket {
    io: UdpSocket,
    batches: UdpSocketState,
}

impl Socket {
    /// A socket on `address`, for one family only.
    ///
    /// # Errors
    /// Those of the system.
    pub(super) fn bind(address: SocketAddr) -> io::Result<Arc<Self>> {
        let socket = bind_blocking(address)?;
        socket.set_nonblocking(true)?;
        Self::new(UdpSocket::from_std(socket.into())?)
    }

    /// Takes over a socket.
    ///
    /// # Errors
    /// Those of the system.
    pub(super) fn new(io: UdpSocket) -> io::Result<Arc<Self>> {
        let batches = UdpSocketState::new((&io).into())?;
        plain(&io)?;
        let socket = SockRef::from(&io);
        if socket.recv_buffer_size()? < ROOM {
            // As far as the system lets it grow.
            let _ = socket.set_recv_buffer_size(ROOM);
        }
        Ok(Arc::new(Self { io, batches }))
    }

    pub(super) fn local_addr(&self) -> io::Result<SocketAddr> {
        self.io.local_addr()
    }

    /// The most datagrams that one call sends.
    pub(super) fn most_at_once(&self) -> usize {
        self.batches.max_gso_segments()
    }

    /// Receives what is there, at most one for each of the buffers, and answers
    /// how many of them and of the descriptions are in use.
    ///
    /// It must be called until it is pending: what does not fill all buffers was
    /// all there is, but nobody is woken yet for what comes.
    ///
    /// # Errors
    /// Those of the system; they tell of a datagram sent before, not of the
    /// socket.
    pub(super) fn poll_recv(
        &self,
        cx: &mut Context<'_>,
        buffers: &mut [IoSliceMut<'_>],
        metas: &mut [RecvMeta],
    ) -> Poll<io::Result<usize>> {
        loop {
            ready!(self.io.poll_recv_ready(cx))?;
            let mut count = 0;
            let tried = self.io.try_io(Interest::READABLE, || {
                count = self.batches.recv((&self.io).into(), buffers, metas)?;
                match count < buffers.len() {
                    // It is empty: to find that out otherwise takes a call more.
                    true => Err(io::ErrorKind::WouldBlock.into()),
                    false => Ok(()),
                }
            });
            match tried {
                _ if count > 0 => return Poll::Ready(Ok(count)),
                Err(error) if error.kind() != io::ErrorKind::WouldBlock => {
                    return Poll::Ready(Err(error));
                }
                _ => {}
            }
        }
    }

    /// Sends past the runtime, which would first wait to hear that a new socket is
    /// ready.
    ///
    /// # Errors
    /// Those of the system; `WouldBlock` if its buffer is full: a datagram that
    /// would have to wait is better dropped.
    pub(super) fn send(&self, transmit: &Transmit<'_>) -> io::Result<()> {
        self.batches.try_send((&self.io).into(), transmit)
    }
}

/// A socket on `address`, for one family only, without a runtime.
///
/// # Errors
/// Those of the system.
pub(super) fn bind_blocking(address: SocketAddr) -> io::Result<socket2::Socket> {
    let socket = socket2::Socket::new(
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

/// Takes back what suits only a protocol that finds out by itself how large its
/// datagrams may be, and time stamps, which nobody reads.
#[cfg(target_os = "linux")]
fn plain(io: &UdpSocket) -> io::Result<()> {
    use nix::sys::socket::{setsockopt, sockopt};
    use rustix::net::sockopt::{
        Ipv4PathMtuDiscovery, Ipv6PathMtuDiscovery, set_ip_mtu_discover, set_ipv6_mtu_discover,
    };
    set_ip_mtu_discover(io, Ipv4PathMtuDiscovery::WANT)?;
    if io.local_addr()?.is_ipv6() {
        set_ipv6_mtu_discover(io, Ipv6PathMtuDiscovery::WANT)?;
        setsockopt(io, sockopt::Ipv6DontFrag, &false)?;
    }
    setsockopt(io, sockopt::ReceiveTimestampns, &false)?;
    Ok(())
}

#[cfg(not(target_os = "linux"))]
fn plain(_: &UdpSocket) -> io::Result<()> {
    Ok(())
}

/// Lets an IPv6 source be any of a prefix that is routed here. Best effort.
#[cfg(target_os = "linux")]
fn free(socket: &socket2::Socket) {
    use nix::sys::socket::{setsockopt, sockopt};
    let _ = setsockopt(socket, sockopt::IpFreebind, &true);
}

#[cfg(not(target_os = "linux"))]
fn free(_: &socket2::Socket) {}

/// Bytes that may have arrived before they are read: a few thousand datagrams, as
/// come while a busy worker is elsewhere. The system takes no memory for it
/// before.
const ROOM: usize = 1024 * 1024;

#[cfg(all(test, target_os = "linux"))]
mod tests {
    use super::*;
    use rustix::net::sockopt::{self, Ipv4PathMtuDiscovery, Ipv6PathMtuDiscovery};

    fn bound(address: &str) -> Arc<Socket> {
        Socket::bind(address.parse().expect("an address")).expect("bound")
    }

    #[tokio::test]
    async fn long_datagrams_may_be_cut_up_on_their_way() {
        let found = sockopt::ip_mtu_discover(&bound("127.0.0.1:0").io);
        assert_eq!(found.expect("told"), Ipv4PathMtuDiscovery::WANT);
        let found = sockopt::ipv6_mtu_discover(&bound("[::1]:0").io);
        assert_eq!(found.expect("told"), Ipv6PathMtuDiscovery::WANT);
    }
}
