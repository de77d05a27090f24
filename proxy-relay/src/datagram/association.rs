//! One association from its socket to its report.

use std::future::poll_fn;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::pin::Pin;
use std::task::{Context, Poll};

use proxy_core::{ConnectError, End, Peer, Stop, Target, TargetBuf};
use tokio::io::ReadBuf;
use tokio::net::UdpSocket;

use super::associations::Place;
use super::lookups::Lookups;
use super::table::{Found, Table};
use super::upstreams::{Upstreams, send};
use super::{AssociationReport, Associations, Framing, Passage, canonical};
use crate::deadline::{Deadline, Expired, Tick, Ticks};
use crate::{Buffers, RelayOptions, Transport, lend};

/// A socket for the datagrams of one client, ready to be told to it.
///
/// Only datagrams of the client's address are taken, of the port that its first
/// valid one came from, or of the one it announced; and only answers of
/// addresses that the client has sent to are passed back, with the address they
/// really came from. What cannot be passed on is dropped and counted, without an
/// answer, and never ends the association (RFC 1928 section 7).
///
/// Its sockets towards targets are opened when first needed, one for each family
/// and source address. It knows at most 512 targets; the one unused for longest
/// makes room. Idle it holds no buffer.
///
/// ```
/// use bytes::BytesMut;
/// use proxy_core::{ConnectError, Host, Peer, Target, TargetBuf};
/// use proxy_relay::{Association, Associations, Framing, Passage, RelayOptions};
/// use std::net::SocketAddr;
///
/// /// Datagrams without a header, all for one target.
/// struct Bare(TargetBuf);
/// impl Framing for Bare {
///     fn open<'d>(&'d self, datagram: &'d [u8]) -> Option<(Target<'d>, &'d [u8])> {
///         Some((self.0.as_target(), datagram))
///     }
///     fn seal(&self, _: SocketAddr, _: &mut BytesMut) {}
/// }
///
/// # async fn example(mut control: tokio::net::TcpStream, peer: Peer, target: TargetBuf)
/// # -> Result<(), Box<dyn std::error::Error>> {
/// let all = Associations::new();
/// let one = Association::open(&peer, Bare(target), &all, &RelayOptions::default())?;
/// println!("send datagrams to {}", one.advertised());
/// let admit = async |target: TargetBuf, _last| match target.as_target() {
///     Target { host: Host::Ip(ip), port } => Ok(Passage::from(SocketAddr::new(ip, port))),
///     _ => Err(ConnectError::origin(proxy_core::ConnectErrorKind::Forbidden)),
/// };
/// let report = one.run(&mut control, |target, last| admit(target, last)).await;
/// println!("{} up, {} down, ended by {}", report.up, report.down, report.end);
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
pub struct Association<W> {
    front: UdpSocket,
    local: SocketAddr,
    told: SocketAddr,
    client: IpAddr,
    /// The port that the client announced.
    announced: Option<u16>,
    framing: W,
    place: Place,
    stop: Stop,
    idle: Ticks,
    lifetime: Ticks,
}

impl<W: Framing> Association<W> {
    /// Opens the socket for the client: on the address that the client has
    /// reached us at, since it can reach that one again, and on a free port, of
    /// those that [`Associations::ports`] names.
    ///
    /// Of the options `idle` (without a datagram), `lifetime` and `stop` count.
    ///
    /// # Errors
    /// If there are too many associations, the address is unknown, or the system
    /// has no socket.
    ///
    /// # Panics
    /// Outside a tokio runtime with I/O enabled.
    pub fn open(
        peer: &Peer,
        framing: W,
        all: &Associations,
        options: &RelayOptions,
    ) -> Result<Self, AssociationError> {
        let client = peer.remote.ip().to_canonical();
        let local = canonical(peer.local);
        if local.ip().is_unspecified() {
            return Err(AssociationError::Socket(
                io::ErrorKind::AddrNotAvailable.into(),
            ));
        }
        // To be stopped by itself, when it has to make room.
        let stop = options.stop.child();
        let place = all.join(client, stop.clone());
        let mut place = place.ok_or(AssociationError::Full)?;
        let front = all.bind(local.ip())?;
        let local = front.local_addr()?;
        place.owns(local);
        Ok(Self {
            front,
            local,
            told: all.told(local),
            client,
            announced: None,
            framing,
            place,
            stop,
            idle: options.idle,
            lifetime: options.lifetime,
        })
    }

    /// The client's port, if it is known already.
    pub fn announced(&mut self, port: Option<u16>) -> &mut Self {
        self.announced = port;
        self
    }

    /// Where the client is to be told to send its datagrams: to
    /// [`local_addr`](Self::local_addr), unless another address is advertised.
    pub fn advertised(&self) -> SocketAddr {
        self.told
    }

    /// The address of the socket for the client.
    pub fn local_addr(&self) -> SocketAddr {
        self.local
    }

    /// Relays datagrams until the control connection ends, a limit is reached or
    /// the token orders a stop. What comes on the control connection is ignored.
    ///
    /// `admit` is asked about each target before the first datagram goes there,
    /// and again after half a minute; `last` is the address whose answers the
    /// client is getting, which is to be kept as long as it may be sent to. While
    /// its answer is awaited a few datagrams wait, the others are dropped; those
    /// to other targets go on.
    ///
    /// The future must run on a tokio runtime with I/O and time enabled. Cancel
    /// safe in that dropping it ends the association and closes its sockets.
    pub async fn run<S, A, F>(self, control: &mut S, admit: A) -> AssociationReport
    where
        S: Transport + ?Sized,
        A: Fn(TargetBuf, Option<SocketAddr>) -> F,
        F: Future<Output = Result<Passage, ConnectError>>,
    {
        let deadline = Deadline::new(self.stop);
        let mut running = Running {
            front: self.front,
            from: (self.client, self.announced),
            framing: &self.framing,
            place: self.place,
            admit,
            idle: self.idle,
            lifetime: deadline.after(self.lifetime),
            deadline,
            client: None,
            upstreams: Upstreams::default(),
            table: Table::new(MOST_TARGETS),
            lookups: Lookups::default(),
            report: AssociationReport::new(),
        };
        running.renew();
        running.report.end = poll_fn(|cx| running.poll(cx, control)).await;
        running.report
    }
}

/// Why an association cannot begin.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum AssociationError {
    /// There are too many, of this client or in all.
    #[error("too many associations")]
    Full,
    /// There is no socket for the client.
    #[error("no socket for the client: {0}")]
    Socket(#[from] io::Error),
}

struct Running<'w, W, A, F> {
    front: UdpSocket,
    /// Whose datagrams are taken.
    from: (IpAddr, Option<u16>),
    framing: &'w W,
    place: Place,
    admit: A,
    idle: Ticks,
    lifetime: Tick,
    deadline: Deadline,
    /// Known from the first valid datagram on.
    client: Option<SocketAddr>,
    upstreams: Upstreams,
    table: Table,
    lookups: Lookups<F>,
    report: AssociationReport,
}

impl<W, A, F> Running<'_, W, A, F>
where
    W: Framing,
    A: Fn(TargetBuf, Option<SocketAddr>) -> F,
    F: Future<Output = Result<Passage, ConnectError>>,
{
    fn poll<S: Transport + ?Sized>(&mut self, cx: &mut Context<'_>, control: &mut S) -> Poll<End> {
        if let Poll::Ready(expired) = self.deadline.poll(cx) {
            return Poll::Ready(self.overdue(expired));
        }
        if let Poll::Ready(end) = poll_control(cx, control) {
            return Poll::Ready(end);
        }
        let before = self.report.sent + self.report.received;
        self.pull_client(cx);
        self.pull_answers(cx);
        // Last, since new sockets have to be listened to.
        self.pull_upstreams(cx);
        if self.report.sent + self.report.received > before {
            self.renew();
            self.place.touch();
        }
        Poll::Pending
    }

    fn pull_client(&mut self, cx: &mut Context<'_>) {
        lend(|Buffers { read, .. }| {
            for _ in 0..BURST {
                let mut buf = ReadBuf::new(&mut read[..DATAGRAM]);
                match self.front.poll_recv_from(cx, &mut buf) {
                    Poll::Pending => return,
                    Poll::Ready(Ok(from)) => self.carry_up(cx, from, buf.filled()),
                    // It tells of a datagram sent before, not of the socket.
                    Poll::Ready(Err(_)) => {}
                }
            }
            // There may be more; others first.
            cx.waker().wake_by_ref();
        });
    }

    fn carry_up(&mut self, cx: &mut Context<'_>, from: SocketAddr, datagram: &[u8]) {
        if !self.is_of_client(from) {
            self.report.drops.strangers += 1;
            return;
        }
        let opened = self.framing.open(datagram);
        let Some((target, payload)) = opened.filter(|(target, _)| target.port != 0) else {
            self.report.drops.malformed += 1;
            return;
        };
        self.client = Some(from);
        match self.table.find(target, self.deadline.now()) {
            Found::Ask(last) => self.ask(cx, target.into(), last, payload),
            Found::Asked => self.keep(target, payload),
            Found::Refused => self.report.drops.refused += 1,
            Found::Send(passage) => self.send_up(&passage, payload),
        }
    }

    /// Asks policy, which has its answer at once unless it must look a name up.
    fn ask(
        &mut self,
        cx: &mut Context<'_>,
        target: TargetBuf,
        last: Option<SocketAddr>,
        payload: &[u8],
    ) {
        if !self.lookups.has_room() {
            self.table.forget(&target);
            self.report.drops.waiting += 1;
            return;
        }
        let mut answer = Box::pin((self.admit)(target.clone(), last));
        if let Poll::Ready(answer) = answer.as_mut().poll(cx) {
            self.settle(&target, answer, &[payload]);
            return;
        }
        self.lookups.add(target.clone(), answer);
        self.keep(target.as_target(), payload);
    }

    fn keep(&mut self, target: Target<'_>, payload: &[u8]) {
        if !self.lookups.keep(target, payload) {
            self.report.drops.waiting += 1;
        }
    }

    fn pull_answers(&mut self, cx: &mut Context<'_>) {
        while let Poll::Ready(answered) = self.lookups.poll(cx) {
            self.settle(&answered.target, answered.answer, &answered.waiting);
        }
    }

    fn settle(
        &mut self,
        target: &TargetBuf,
        answer: Result<Passage, ConnectError>,
        payloads: &[impl AsRef<[u8]>],
    ) {
        let answer = answer.map(|passage| Passage {
            address: canonical(passage.address),
            ..passage
        });
        self.table.settle(target, answer, self.deadline.now());
        for payload in payloads {
            match &answer {
                Ok(passage) => self.send_up(passage, payload.as_ref()),
                Err(_) => self.report.drops.refused += 1,
            }
        }
    }

    fn send_up(&mut self, passage: &Passage, payload: &[u8]) {
        match self.try_send_up(passage, payload) {
            Ok(()) => {
                self.report.up += length(payload);
                self.report.sent += 1;
            }
            Err(_) => self.report.drops.unsent += 1,
        }
    }

    fn try_send_up(&mut self, passage: &Passage, payload: &[u8]) -> io::Result<()> {
        let (upstream, new) = self.upstreams.open(passage)?;
        if let Some(local) = new {
            self.place.owns(local);
        }
        self.upstreams.send(upstream, payload, passage.address)?;
        self.table.sent(passage.address, upstream);
        Ok(())
    }

    fn pull_upstreams(&mut self, cx: &mut Context<'_>) {
        lend(|buffers| {
            for upstream in 0..self.upstreams.len() {
                self.pull_upstream(cx, upstream, buffers);
            }
        });
    }

    fn pull_upstream(&mut self, cx: &mut Context<'_>, upstream: usize, buffers: &mut Buffers) {
        for _ in 0..BURST {
            let mut buf = ReadBuf::new(&mut buffers.read[HEADROOM..HEADROOM + DATAGRAM]);
            match self.upstreams.poll_recv(cx, upstream, &mut buf) {
                Poll::Pending => return,
                Poll::Ready(Ok(from)) => {
                    let length = buf.filled().len();
                    self.carry_down(canonical(from), upstream, length, buffers);
                }
                // Some earlier datagram was not delivered.
                Poll::Ready(Err(_)) => {}
            }
        }
        cx.waker().wake_by_ref();
    }

    /// Passes on the payload of `length` bytes that lies behind the headroom.
    fn carry_down(
        &mut self,
        from: SocketAddr,
        upstream: usize,
        length: usize,
        buffers: &mut Buffers,
    ) {
        let expected = self.table.expects(from, upstream, self.deadline.now());
        let Some(client) = self.client.filter(|_| expected) else {
            self.report.drops.strangers += 1;
            return;
        };
        let Buffers { read, write } = buffers;
        write.clear();
        self.framing.seal(from, write);
        // The header is put before the payload, which then need not be moved.
        let sent = match HEADROOM.checked_sub(write.len()) {
            Some(start) => {
                read[start..HEADROOM].copy_from_slice(write);
                send(&self.front, &read[start..HEADROOM + length], client)
            }
            None => Err(io::ErrorKind::InvalidData.into()),
        };
        match sent {
            Ok(()) => {
                self.report.down += u64::try_from(length).unwrap_or(u64::MAX);
                self.report.received += 1;
            }
            Err(_) => self.report.drops.unsent += 1,
        }
    }

    /// The client's address is known; which of its ports it is, the first valid
    /// datagram tells. One that an association has sent never does: it would tie
    /// two of them together.
    fn is_of_client(&self, from: SocketAddr) -> bool {
        let (client, announced) = self.from;
        if from.ip().to_canonical() != client {
            return false;
        }
        match (self.client.map(|known| known.port()), announced) {
            (Some(port), _) | (None, Some(port)) => from.port() == port,
            (None, None) => !self.place.is_from_one(canonical(from)),
        }
    }

    fn overdue(&self, expired: Expired) -> End {
        match expired {
            Expired::Stopped(end) => end,
            Expired::Elapsed if self.deadline.is_past(self.lifetime) => End::Lifetime,
            Expired::Elapsed => End::Idle,
        }
    }

    fn renew(&self) {
        self.deadline.set_within(self.idle, self.lifetime);
    }
}

/// Ready once the control connection has ended; what comes on it is thrown away.
fn poll_control<S: Transport + ?Sized>(cx: &mut Context<'_>, control: &mut S) -> Poll<End> {
    lend(|Buffers { read, .. }| {
        for _ in 0..BURST {
            let mut buf = ReadBuf::new(&mut read[..CONTROL]);
            match Pin::new(&mut *control).poll_read(cx, &mut buf) {
                Poll::Pending => return Poll::Pending,
                Poll::Ready(Err(_)) => return Poll::Ready(End::ClientReset),
                Poll::Ready(Ok(())) if buf.filled().is_empty() => {
                    return Poll::Ready(End::ClientFinished);
                }
                Poll::Ready(Ok(())) => {}
            }
        }
        cx.waker().wake_by_ref();
        Poll::Pending
    })
}

fn length(payload: &[u8]) -> u64 {
    u64::try_from(payload.len()).unwrap_or(u64::MAX)
}

/// No datagram is longer: its length is a number of 16 bits (RFC 768).
const DATAGRAM: usize = 65_535;

/// Room for a header before a payload.
const HEADROOM: usize = 64;

/// Read at once from the control connection.
const CONTROL: usize = 4096;

/// Datagrams of one socket in one go.
const BURST: usize = 32;

const MOST_TARGETS: usize = 512;
