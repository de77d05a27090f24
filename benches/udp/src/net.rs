//! Batches of datagrams: recvmmsg and sendmmsg, with GRO and GSO where they are asked for.

use std::array;
use std::io::{self, IoSlice, IoSliceMut};
use std::net::{SocketAddr, SocketAddrV4, UdpSocket};
use std::ops::Range;
use std::os::fd::AsRawFd;

use nix::cmsg_space;
use nix::errno::Errno;
use nix::sys::socket::sockopt::{RcvBufForce, SndBufForce, UdpGroSegment, UdpGsoSegment};
use nix::sys::socket::{
    ControlMessageOwned, MsgFlags, MultiHeaders, SockaddrIn, recvmmsg, sendmmsg, sendmsg,
    setsockopt,
};

use crate::socks;

/// What the kernel takes in one GSO send: UDP_MAX_SEGMENTS was 64 for long.
const SEGMENTS: usize = 64;
/// The payload of one GSO send, below what an IPv4 packet can hold.
const JOINED: usize = 65_000;
/// In bytes, for bursts of all flows at a socket that they share.
const SOCKET_BUFFER: usize = 32 << 20;
/// What one GRO receive can return at most.
pub(crate) const GRO_STRIDE: usize = 1 << 16;

/// A socket, and the GSO segment size that is set on it.
pub(crate) struct Sock {
    pub(crate) udp: UdpSocket,
    segment: usize,
}

impl Sock {
    /// Bound to `address`, with large buffers.
    pub(crate) fn bind(address: SocketAddrV4) -> io::Result<Self> {
        let udp = UdpSocket::bind(address)?;
        setsockopt(&udp, RcvBufForce, &SOCKET_BUFFER)?;
        setsockopt(&udp, SndBufForce, &SOCKET_BUFFER)?;
        Ok(Self { udp, segment: 0 })
    }

    pub(crate) fn local(&self) -> io::Result<SocketAddrV4> {
        v4(self.udp.local_addr()?)
    }

    pub(crate) fn receive_gro(&self) -> io::Result<()> {
        Ok(setsockopt(&self.udp, UdpGroSegment, &true)?)
    }

    /// Later sends of more than `size` bytes are cut into datagrams of `size`.
    pub(crate) fn cut_at(&mut self, size: usize) -> io::Result<()> {
        if self.segment != size {
            let segment = i32::try_from(size).map_err(io::Error::other)?;
            setsockopt(&self.udp, UdpGsoSegment, &segment)?;
            self.segment = size;
        }
        Ok(())
    }

    /// Sends the frames of `size` bytes in `frames` with as few calls as GSO allows. Returns how many were not sent.
    pub(crate) fn send_cut(&mut self, frames: &[u8], size: usize) -> io::Result<usize> {
        self.cut_at(size)?;
        let most = SEGMENTS.min(JOINED / size) * size;
        let mut unsent = 0;
        for part in frames.chunks(most) {
            if self
                .udp
                .send(part)
                .or_else(|_| self.udp.send(part))
                .is_err()
            {
                unsent += part.len().div_ceil(size);
            }
        }
        Ok(unsent)
    }
}

pub(crate) fn v4(address: SocketAddr) -> io::Result<SocketAddrV4> {
    match address {
        SocketAddr::V4(address) => Ok(address),
        SocketAddr::V6(_) => Err(io::Error::other("an IPv6 address")),
    }
}

/// What happens to the SOCKS header on the way.
#[derive(Clone, Copy)]
pub(crate) enum Framing<'a> {
    Same,
    /// Datagrams lose this header. Those without it are dropped.
    Strip(&'a [u8; socks::HEADER]),
    /// Datagrams get this header.
    Add(&'a [u8; socks::HEADER]),
}

/// Up to `N` messages that were received in one call.
pub(crate) struct Rx<const N: usize> {
    buffer: Vec<u8>,
    stride: usize,
    gro: bool,
    headers: MultiHeaders<SockaddrIn>,
    messages: [Message; N],
}

#[derive(Clone, Copy)]
pub(crate) struct Message {
    pub(crate) len: usize,
    /// The length of each datagram in it, but for the last.
    pub(crate) segment: usize,
    pub(crate) from: SockaddrIn,
}

impl<const N: usize> Rx<N> {
    /// For messages of up to `stride` bytes less [`socks::HEADER`], or for GRO.
    pub(crate) fn new(stride: usize, gro: bool) -> Self {
        let stride = if gro { GRO_STRIDE } else { stride } + socks::HEADER;
        let nobody = SockaddrIn::new(0, 0, 0, 0, 0);
        Self {
            buffer: vec![0; stride * N],
            stride,
            gro,
            headers: MultiHeaders::preallocate(N, None),
            messages: [Message {
                len: 0,
                segment: 0,
                from: nobody,
            }; N],
        }
    }

    /// How many messages there were. None is no error.
    pub(crate) fn receive(&mut self, sock: &Sock) -> io::Result<usize> {
        if self.gro {
            // nix leaves the control lengths as the kernel has shortened them.
            self.headers = MultiHeaders::preallocate(N, Some(cmsg_space!(i32)));
        }
        let mut chunks = self.buffer.chunks_exact_mut(self.stride);
        let mut slices: [[IoSliceMut<'_>; 1]; N] = array::from_fn(|_| {
            let chunk = chunks.next().unwrap_or_default();
            [IoSliceMut::new(
                chunk.get_mut(socks::HEADER..).unwrap_or_default(),
            )]
        });
        let fd = sock.udp.as_raw_fd();
        let flags = MsgFlags::MSG_DONTWAIT;
        let results = match recvmmsg(fd, &mut self.headers, slices.iter_mut(), flags, None) {
            Ok(results) => results,
            // A refusal is about an earlier datagram of ours.
            Err(Errno::EAGAIN | Errno::EINTR | Errno::ECONNREFUSED) => return Ok(0),
            Err(error) => return Err(error.into()),
        };
        let mut count = 0;
        for (message, result) in self.messages.iter_mut().zip(results) {
            if result.flags.contains(MsgFlags::MSG_TRUNC) {
                return Err(io::Error::other("a datagram that is too long"));
            }
            message.len = result.bytes;
            message.segment = result.bytes;
            if let Some(from) = result.address {
                message.from = from;
            }
            if self.gro {
                for control in result.cmsgs()? {
                    if let ControlMessageOwned::UdpGroSegments(size) = control {
                        message.segment = usize::try_from(size).map_err(io::Error::other)?;
                    }
                }
            }
            count += 1;
        }
        Ok(count)
    }

    pub(crate) fn message(&self, index: usize) -> Message {
        self.messages[index]
    }

    pub(crate) fn data(&self, index: usize) -> &[u8] {
        let start = index * self.stride + socks::HEADER;
        &self.buffer[start..start + self.messages[index].len]
    }

    /// Puts `header` before each of the first `count` messages.
    fn prefix(&mut self, count: usize, header: &[u8; socks::HEADER]) {
        for chunk in self.buffer.chunks_exact_mut(self.stride).take(count) {
            chunk[..socks::HEADER].copy_from_slice(header);
        }
    }

    fn prefixed(&self, index: usize) -> &[u8] {
        let start = index * self.stride;
        &self.buffer[start..start + socks::HEADER + self.messages[index].len]
    }
}

/// Sends up to `N` messages in one call.
pub(crate) struct Tx<const N: usize> {
    headers: MultiHeaders<SockaddrIn>,
}

impl<const N: usize> Tx<N> {
    pub(crate) fn new() -> Self {
        Self {
            headers: MultiHeaders::preallocate(N, None),
        }
    }

    /// Sends `piece(i)` to `to[i]`, for each i below the length of `to`. Returns how many were not sent.
    pub(crate) fn send<'a>(
        &mut self,
        sock: &Sock,
        to: &[Option<SockaddrIn>],
        piece: impl Fn(usize) -> &'a [u8],
    ) -> usize {
        let pieces: [[IoSlice<'_>; 1]; N] =
            array::from_fn(|i| [IoSlice::new(if i < to.len() { piece(i) } else { &[] })]);
        let fd = sock.udp.as_raw_fd();
        let (mut sent, mut unsent, mut failed) = (0, 0, false);
        while sent < to.len() {
            let rest = pieces[sent..to.len()].iter();
            let flags = MsgFlags::MSG_DONTWAIT;
            match sendmmsg(fd, &mut self.headers, rest, &to[sent..], [], flags) {
                Ok(results) => {
                    sent += results.count();
                    failed = false;
                }
                // The first time it may be a refusal of an earlier datagram.
                Err(_) if !failed => failed = true,
                Err(_) => {
                    sent += 1;
                    unsent += 1;
                    failed = false;
                }
            }
        }
        unsent
    }

    /// Passes on messages `range` of `rx` to one address, or to whom `sock` is connected to.
    pub(crate) fn forward(
        &mut self,
        rx: &mut Rx<N>,
        range: Range<usize>,
        sock: &mut Sock,
        to: Option<SockaddrIn>,
        framing: Framing<'_>,
        join: bool,
    ) -> io::Result<()> {
        if join {
            return send_joined(rx, range, sock, |_| to, framing).map(drop);
        }
        let to = [to; N];
        let to = &to[range.clone()];
        match framing {
            Framing::Same => self.send(sock, to, |i| rx.data(range.start + i)),
            Framing::Add(header) => {
                rx.prefix(range.end, header);
                self.send(sock, to, |i| rx.prefixed(range.start + i))
            }
            Framing::Strip(header) => {
                if range.clone().any(|i| !rx.data(i).starts_with(header)) {
                    return Err(io::Error::other("a datagram with another SOCKS header"));
                }
                self.send(sock, to, |i| &rx.data(range.start + i)[socks::HEADER..])
            }
        };
        Ok(())
    }
}

/// Datagrams that can leave in one GSO send.
struct Run<'a> {
    slices: Vec<IoSlice<'a>>,
    to: Option<SockaddrIn>,
    size: usize,
    segments: usize,
    bytes: usize,
    /// Whether the last datagram has the full size, so that more may follow.
    open: bool,
}

impl<'a> Run<'a> {
    /// Whether `segments` datagrams of `size` each, the last perhaps shorter, can still go along.
    fn takes(&self, to: Option<SockaddrIn>, size: usize, segments: usize, bytes: usize) -> bool {
        self.open
            && self.to == to
            && (size == self.size || (segments == 1 && size < self.size))
            && self.segments + segments <= SEGMENTS
            && self.bytes + bytes <= JOINED
    }

    fn start(&mut self, to: Option<SockaddrIn>, size: usize) {
        self.to = to;
        self.size = size;
        self.open = true;
    }

    fn push(&mut self, slices: &[&'a [u8]], segments: usize) {
        let bytes: usize = slices.iter().map(|slice| slice.len()).sum();
        self.slices
            .extend(slices.iter().map(|slice| IoSlice::new(slice)));
        self.segments += segments;
        self.bytes += bytes;
        self.open = bytes == segments * self.size;
    }

    /// Returns how many were not sent.
    fn flush(&mut self, sock: &mut Sock) -> io::Result<usize> {
        if self.segments == 0 {
            return Ok(0);
        }
        if self.segments > 1 {
            sock.cut_at(self.size)?;
        }
        let fd = sock.udp.as_raw_fd();
        let again = || {
            let flags = MsgFlags::MSG_DONTWAIT;
            sendmsg(fd, &self.slices, &[], flags, self.to.as_ref())
        };
        let unsent = if again().or_else(|_| again()).is_err() {
            self.segments
        } else {
            0
        };
        self.slices.clear();
        self.segments = 0;
        self.bytes = 0;
        self.open = false;
        Ok(unsent)
    }
}

/// Passes on messages `range` of `rx`, joining those that GSO can send at once. Returns how many were not sent.
pub(crate) fn send_joined<const N: usize>(
    rx: &Rx<N>,
    range: Range<usize>,
    sock: &mut Sock,
    to: impl Fn(usize) -> Option<SockaddrIn>,
    framing: Framing<'_>,
) -> io::Result<usize> {
    let mut unsent = 0;
    let mut run = Run {
        slices: Vec::with_capacity(2 * SEGMENTS),
        to: None,
        size: 0,
        segments: 0,
        bytes: 0,
        open: false,
    };
    for index in range {
        let (data, segment) = (rx.data(index), rx.message(index).segment);
        let to = to(index);
        if let Framing::Same = framing {
            let segments = data.len().div_ceil(segment.max(1)).max(1);
            if !run.takes(to, segment, segments, data.len()) {
                unsent += run.flush(sock)?;
                run.start(to, segment);
            }
            run.push(&[data], segments);
            continue;
        }
        for datagram in data.chunks(segment.max(1)) {
            let (head, body): (&[u8], &[u8]) = match framing {
                Framing::Same => (&[], datagram),
                Framing::Add(header) => (header, datagram),
                Framing::Strip(header) => match datagram.strip_prefix(header) {
                    Some(body) => (&[], body),
                    None => return Err(io::Error::other("a datagram with another SOCKS header")),
                },
            };
            let size = head.len() + body.len();
            if !run.takes(to, size, 1, size) {
                unsent += run.flush(sock)?;
                run.start(to, size);
            }
            if head.is_empty() {
                run.push(&[body], 1);
            } else {
                run.push(&[head, body], 1);
            }
        }
    }
    Ok(unsent + run.flush(sock)?)
}
