//! Datagrams that arrive together, and those that leave together.

use std::cell::Cell;
use std::io::{self, IoSliceMut};
use std::net::{IpAddr, SocketAddr};
use std::ops::AddAssign;
use std::sync::Arc;
use std::task::{Context, Poll};

use quinn_udp::{RecvMeta, Transmit};

use super::canonical;
use super::socket::Socket;

/// Room of the thread for datagrams on their way through, lent by [`lend`].
#[derive(Debug)]
pub(super) struct Room {
    pub(super) inbox: Inbox,
    pub(super) outbox: Outbox,
}

/// Runs `f` with the thread's room. A nested call gets one of its own.
pub(super) fn lend<R>(f: impl FnOnce(&mut Room) -> R) -> R {
    let mut room = LENT.take().unwrap_or_else(|| {
        Box::new(Room {
            inbox: Inbox::new(),
            outbox: Outbox::default(),
        })
    });
    let result = f(&mut room);
    debug_assert!(room.outbox.run.is_none(), "all was sent");
    LENT.set(Some(room));
    result
}

thread_local! {
    static LENT: Cell<Option<Box<Room>>> = const { Cell::new(None) };
}

/// What one call has received.
#[derive(Debug)]
pub(super) struct Inbox {
    /// The system gives memory only to those pages of it that are written to.
    bytes: Box<[u8]>,
    metas: [RecvMeta; SLOTS],
    count: usize,
}

/// One datagram of an [`Inbox`].
#[derive(Clone, Copy, Debug)]
pub(super) struct Datagram<'b> {
    pub(super) from: SocketAddr,
    /// The address of ours that it was sent to.
    pub(super) to: Option<IpAddr>,
    pub(super) bytes: &'b [u8],
}

impl Inbox {
    fn new() -> Self {
        Self {
            bytes: vec![0; SLOTS * STRIDE].into_boxed_slice(),
            metas: [RecvMeta::default(); SLOTS],
            count: 0,
        }
    }

    /// Receives anew; to be called until it is pending.
    ///
    /// # Errors
    /// Those of [`Socket::poll_recv`].
    pub(super) fn poll_fill(
        &mut self,
        cx: &mut Context<'_>,
        socket: &Socket,
    ) -> Poll<io::Result<()>> {
        self.count = 0;
        let mut slots = self.bytes.chunks_exact_mut(STRIDE);
        let mut buffers: [_; SLOTS] = std::array::from_fn(|_| {
            let slot = slots.next().unwrap_or_default();
            IoSliceMut::new(slot.get_mut(..SLOT).unwrap_or_default())
        });
        socket
            .poll_recv(cx, &mut buffers, &mut self.metas)
            .map_ok(|count| self.count = count)
    }

    /// In the order in which they came.
    pub(super) fn datagrams(&self) -> impl Iterator<Item = Datagram<'_>> {
        let slots = self.bytes.chunks_exact(STRIDE);
        let slots = slots.zip(&self.metas).take(self.count);
        slots.flat_map(|(slot, meta)| {
            let bytes = slot.get(..meta.len).unwrap_or(slot);
            let from = canonical(meta.addr);
            let to = meta.dst_ip.map(|ip| ip.to_canonical());
            pieces(bytes, meta.stride).map(move |bytes| Datagram { from, to, bytes })
        })
    }
}

/// The datagrams, each `stride` long but for the last one, of a buffer. An empty
/// one is a datagram too.
fn pieces(bytes: &[u8], stride: usize) -> impl Iterator<Item = &[u8]> {
    let empty = bytes.is_empty().then_some(bytes);
    empty.into_iter().chain(bytes.chunks(stride.max(1)))
}

/// Datagrams on their way out. Those that follow one another to the same address
/// and are of one length leave with one system call.
#[derive(Debug, Default)]
pub(super) struct Outbox {
    bytes: Vec<u8>,
    run: Option<Run>,
}

/// What leaves together.
#[derive(Debug)]
struct Run {
    socket: Arc<Socket>,
    way: Way,
    /// Of all but the last, which may be shorter.
    length: usize,
    /// Of each, what stands before its payload.
    head: usize,
    count: usize,
}

/// Where datagrams go.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Way {
    pub(super) to: SocketAddr,
    /// The address of ours that they come from, if the socket has several.
    pub(super) from: Option<IpAddr>,
}

/// What became of datagrams.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Sent {
    pub(super) datagrams: u64,
    /// Of their payloads.
    pub(super) bytes: u64,
    /// Those that the system did not take.
    pub(super) unsent: u64,
}

impl AddAssign for Sent {
    fn add_assign(&mut self, other: Self) {
        self.datagrams += other.datagrams;
        self.bytes += other.bytes;
        self.unsent += other.unsent;
    }
}

impl Outbox {
    /// Adds a datagram, and answers what became of those that had to leave for
    /// it. The last ones are sent by [`flush`](Self::flush).
    pub(super) fn push(
        &mut self,
        socket: &Arc<Socket>,
        way: Way,
        head: &[u8],
        payload: &[u8],
    ) -> Sent {
        let length = head.len() + payload.len();
        let mut sent = Sent::default();
        let fits = |run: &Run| {
            run.way == way
                && run.head == head.len()
                && length <= run.length
                && length > 0
                && run.length <= LONGEST
                // A shorter one is the last.
                && self.bytes.len() == run.count * run.length
                && self.bytes.len() + length <= MOST_BYTES
                && run.count < run.socket.most_at_once()
                && Arc::ptr_eq(&run.socket, socket)
        };
        match &mut self.run {
            Some(run) if fits(run) => run.count += 1,
            _ => {
                sent = self.flush();
                self.run = Some(Run {
                    socket: Arc::clone(socket),
                    way,
                    length,
                    head: head.len(),
                    count: 1,
                });
            }
        }
        self.bytes.extend_from_slice(head);
        self.bytes.extend_from_slice(payload);
        sent
    }

    /// Sends what is left.
    pub(super) fn flush(&mut self) -> Sent {
        let Some(run) = self.run.take() else {
            return Sent::default();
        };
        let sent = run.send(&self.bytes);
        self.bytes.clear();
        sent
    }
}

impl Run {
    fn send(&self, bytes: &[u8]) -> Sent {
        let all = Sent {
            datagrams: count(self.count),
            bytes: count(bytes.len() - self.count * self.head),
            unsent: 0,
        };
        let none = Sent {
            unsent: count(self.count),
            ..Sent::default()
        };
        let together = (self.count > 1).then_some(self.length);
        match self.socket.send(&self.transmit(bytes, together)) {
            Ok(()) => all,
            Err(error) if together.is_some() && error.kind() != io::ErrorKind::WouldBlock => {
                // The path or the card takes them only one at a time.
                let mut sent = Sent::default();
                for piece in bytes.chunks(self.length) {
                    match self.socket.send(&self.transmit(piece, None)) {
                        Ok(()) => {
                            sent.datagrams += 1;
                            sent.bytes += count(piece.len() - self.head);
                        }
                        Err(_) => sent.unsent += 1,
                    }
                }
                sent
            }
            Err(_) => none,
        }
    }

    fn transmit<'b>(&self, contents: &'b [u8], segment_size: Option<usize>) -> Transmit<'b> {
        Transmit {
            destination: self.way.to,
            ecn: None,
            contents,
            segment_size,
            src_ip: self.way.from,
        }
    }
}

fn count(number: usize) -> u64 {
    u64::try_from(number).unwrap_or(u64::MAX)
}

/// Buffers filled by one call.
const SLOTS: usize = quinn_udp::BATCH_SIZE;

/// No datagram is longer, nor are several that the system has put together: their
/// length is a number of 16 bits (RFC 768).
const SLOT: usize = 65_535;

/// From one buffer to the next: an odd number of cache lines, since short
/// datagrams at the beginning of pages would all compete for the same few.
const STRIDE: usize = SLOT + 1 + 17 * 64;

/// Datagrams longer than this leave alone: where the path takes less than
/// Ethernet does, sending them together fails.
const LONGEST: usize = 1_452;

/// Bytes sent by one call.
const MOST_BYTES: usize = 64_000;

#[cfg(test)]
mod tests {
    use super::*;
    use std::future::poll_fn;

    fn lengths(bytes: usize, stride: usize) -> Vec<usize> {
        pieces(&vec![0; bytes], stride).map(<[u8]>::len).collect()
    }

    #[test]
    fn a_buffer_holds_one_datagram_or_several() {
        assert_eq!(lengths(0, 0), [0]);
        assert_eq!(lengths(7, 7), [7]);
        assert_eq!(lengths(7, 0).len(), 7, "never endless");
        assert_eq!(lengths(7, 3), [3, 3, 1]);
        assert_eq!(lengths(6, 3), [3, 3]);
    }

    async fn receive(socket: &Socket) -> Vec<(SocketAddr, Option<IpAddr>, Vec<u8>)> {
        let mut inbox = Inbox::new();
        poll_fn(|cx| inbox.poll_fill(cx, socket))
            .await
            .expect("received");
        let datagrams = inbox.datagrams();
        datagrams
            .map(|datagram| (datagram.from, datagram.to, datagram.bytes.to_vec()))
            .collect()
    }

    fn any() -> SocketAddr {
        "127.0.0.1:0".parse().expect("an address")
    }

    #[tokio::test]
    async fn what_is_alike_leaves_together_and_arrives_apart() {
        let (from, to) = (Socket::bind(any()), Socket::bind(any()));
        let (from, to) = (from.expect("bound"), to.expect("bound"));
        let way = Way {
            to: to.local_addr().expect("bound"),
            from: None,
        };
        let mut outbox = Outbox::default();
        let mut sent = Sent::default();
        // Two runs: a shorter one ends the first; then lengths that do not match.
        let payloads: [&[u8]; 8] = [b"aa", b"bb", b"c", b"dd", b"eee", b"", b"", b"f"];
        for payload in payloads {
            sent += outbox.push(&from, way, b"head", payload);
        }
        sent += outbox.flush();
        let expected = Sent {
            datagrams: 8,
            bytes: 11,
            unsent: 0,
        };
        assert_eq!(sent, expected);
        assert_eq!(outbox.flush(), Sent::default());
        let mut got = Vec::new();
        while got.len() < payloads.len() {
            got.extend(receive(&to).await);
        }
        for ((sender, to, bytes), payload) in got.into_iter().zip(payloads) {
            assert_eq!(sender, from.local_addr().expect("bound"));
            assert_eq!(to, Some(IpAddr::from([127, 0, 0, 1])));
            assert_eq!(bytes, [b"head", payload].concat());
        }
    }

    #[tokio::test]
    async fn what_the_system_refuses_is_counted() {
        let socket = Socket::bind(any()).expect("bound");
        let way = Way {
            to: socket.local_addr().expect("bound"),
            from: None,
        };
        let mut outbox = Outbox::default();
        assert_eq!(outbox.push(&socket, way, &[0; 9], &[0; 65_507]).unsent, 0);
        let sent = outbox.flush();
        assert_eq!((sent.datagrams, sent.unsent), (0, 1), "longer than can be");
        // It goes on.
        for _ in 0..100 {
            let _ = outbox.push(&socket, way, b"", &[7; 1_000]);
        }
        assert_eq!(outbox.flush().unsent, 0);
        assert_eq!(receive(&socket).await[0].2, [7; 1_000]);
    }
}
