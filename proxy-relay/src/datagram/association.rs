//! One association from its socket to its report.

use std::future::poll_fn;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::BytesMut;
use proxy_core::{ConnectError, End, Peer, Rates, Stop, Target, TargetBuf};
use tokio::io::ReadBuf;

use super::associations::Place;
use super::batch::{self, Datagram, Outbox, Room, Sent, Way};
use super::lookups::Lookups;
use super::socket::Socket;
use super::table::{Found, Table};
use super::upstreams::{Upstream, Upstreams};
use super::{AssociationReport, Associations, Framing, Passage, canonical, is_within};
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
    front: Arc<Socket>,
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
    up: Rates,
    down: Rates,
}

impl<W: Framing> Association<W> {
    /// Opens the socket for the client: on the address that the client has
    /// reached us at, since it can reach that one again, and on a free port, of
    /// those that [`Associations::ports`] names.
    ///
    /// Of the options `idle` (without a datagram), `lifetime`, `rates` and `stop`
    /// count. Datagrams beyond the rates are dropped.
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
        let place = all.join(client, stop.clone(), QUIET);
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
            up: options.up.clone(),
            down: options.down.clone(),
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
            up: self.up,
            down: self.down,
            deadline,
            client: None,
            upstreams: Upstreams::default(),
            table: Table::new(MOST_TARGETS),
            lookups: Lookups::default(),
            latest: None,
            heard: None,
            head: BytesMut::new(),
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
    front: Arc<Socket>,
    /// Whose datagrams are taken.
    from: (IpAddr, Option<u16>),
    framing: &'w W,
    place: Place,
    admit: A,
    idle: Ticks,
    lifetime: Tick,
    up: Rates,
    down: Rates,
    deadline: Deadline,
    /// Known from the first valid datagram on.
    client: Option<SocketAddr>,
    upstreams: Upstreams,
    table: Table,
    lookups: Lookups<F>,
    /// Where the last datagram went, which the next one mostly does as well.
    latest: Option<Latest>,
    /// Whose answer was the last to be expected.
    heard: Option<(SocketAddr, usize, Tick)>,
    /// Room for what stands before a payload.
    head: BytesMut,
    report: AssociationReport,
}

/// A verdict at hand.
#[derive(Debug)]
struct Latest {
    target: TargetBuf,
    passage: Passage,
    upstream: usize,
    /// It is good for this tick only.
    tick: Tick,
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
        batch::lend(|room| {
            self.pull_client(cx, room);
            self.pull_answers(cx, &mut room.outbox);
            // Last, since new sockets have to be listened to.
            for upstream in 0..self.upstreams.len() {
                self.pull_upstream(cx, upstream, room);
            }
        });
        if self.report.sent + self.report.received > before {
            self.renew();
            self.place.activity().touch();
        }
        Poll::Pending
    }

    fn pull_client(&mut self, cx: &mut Context<'_>, room: &mut Room) {
        let Room { inbox, outbox } = room;
        for _ in 0..BATCHES {
            match inbox.poll_fill(cx, &self.front) {
                Poll::Pending => return,
                Poll::Ready(Ok(())) => {
                    for datagram in inbox.datagrams() {
                        self.carry_up(cx, datagram, outbox);
                    }
                    self.credit_up(outbox.flush());
                }
                // It tells of a datagram sent before, not of the socket.
                Poll::Ready(Err(_)) => {}
            }
        }
        // There may be more; others first.
        cx.waker().wake_by_ref();
    }

    fn carry_up(&mut self, cx: &mut Context<'_>, datagram: Datagram<'_>, outbox: &mut Outbox) {
        if !self.is_of_client(datagram.from) {
            self.report.drops.strangers += 1;
            return;
        }
        let opened = self.framing.open(datagram.bytes);
        let Some((target, payload)) = opened.filter(|(target, _)| target.port != 0) else {
            self.report.drops.malformed += 1;
            return;
        };
        self.client = Some(datagram.from);
        if !is_within(&self.up, payload) {
            self.report.drops.limited += 1;
            return;
        }
        let now = self.deadline.now();
        if let Some(latest) = &self.latest
            && latest.tick == now
            && latest.target.as_target() == target
        {
            let sent = self.push_up(latest, payload, outbox);
            self.credit_up(sent);
            return;
        }
        match self.table.find(target, now) {
            Found::Ask(last) => self.ask(cx, target.into(), last, payload, outbox),
            Found::Asked => self.keep(target, payload),
            Found::Refused => self.report.drops.refused += 1,
            Found::Send(passage) => self.send_up(target, passage, &[payload], outbox),
        }
    }

    /// Asks policy, which has its answer at once unless it must look a name up.
    fn ask(
        &mut self,
        cx: &mut Context<'_>,
        target: TargetBuf,
        last: Option<SocketAddr>,
        payload: &[u8],
        outbox: &mut Outbox,
    ) {
        if !self.lookups.has_room() {
            self.table.forget(&target);
            self.report.drops.waiting += 1;
            return;
        }
        let mut answer = Box::pin((self.admit)(target.clone(), last));
        if let Poll::Ready(answer) = answer.as_mut().poll(cx) {
            self.settle(&target, answer, &[payload], outbox);
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

    fn pull_answers(&mut self, cx: &mut Context<'_>, outbox: &mut Outbox) {
        while let Poll::Ready(answered) = self.lookups.poll(cx) {
            self.settle(&answered.target, answered.answer, &answered.waiting, outbox);
        }
        self.credit_up(outbox.flush());
    }

    fn settle(
        &mut self,
        target: &TargetBuf,
        answer: Result<Passage, ConnectError>,
        payloads: &[impl AsRef<[u8]>],
        outbox: &mut Outbox,
    ) {
        let answer = answer.map(|passage| Passage {
            address: canonical(passage.address),
            ..passage
        });
        self.table
            .settle(target, answer.clone(), self.deadline.now());
        match answer {
            Ok(passage) => self.send_up(target.as_target(), passage, payloads, outbox),
            Err(_) => self.report.drops.refused += count(payloads.len()),
        }
    }

    fn send_up(
        &mut self,
        target: Target<'_>,
        passage: Passage,
        payloads: &[impl AsRef<[u8]>],
        outbox: &mut Outbox,
    ) {
        let Ok((upstream, new)) = self.upstreams.open(&passage) else {
            self.report.drops.unsent += count(payloads.len());
            return;
        };
        if let Some(local) = new {
            self.place.owns(local);
        }
        self.table.sent(passage.address, upstream);
        let latest = Latest {
            target: target.into(),
            passage,
            upstream,
            tick: self.deadline.now(),
        };
        for payload in payloads {
            let sent = self.push_up(&latest, payload.as_ref(), outbox);
            self.credit_up(sent);
        }
        self.latest = Some(latest);
    }

    fn push_up(&self, to: &Latest, payload: &[u8], outbox: &mut Outbox) -> Sent {
        let Some(upstream) = self.upstreams.get(to.upstream) else {
            return Sent::default();
        };
        let way = Way {
            to: to.passage.address,
            from: None,
        };
        match &upstream.carrier {
            None => outbox.push(&upstream.socket, way, b"", payload),
            Some(carrier) => {
                let mut head = BytesMut::new();
                carrier.seal(to.target.as_target(), &mut head);
                outbox.push(&upstream.socket, way, &head, payload)
            }
        }
    }

    fn credit_up(&mut self, sent: Sent) {
        self.report.up += sent.bytes;
        self.report.sent += sent.datagrams;
        self.report.drops.unsent += sent.unsent;
    }

    fn pull_upstream(&mut self, cx: &mut Context<'_>, at: usize, room: &mut Room) {
        let Some(upstream) = self.upstreams.get(at).cloned() else {
            return;
        };
        let Room { inbox, outbox } = room;
        for _ in 0..BATCHES {
            match inbox.poll_fill(cx, &upstream.socket) {
                Poll::Pending => return,
                Poll::Ready(Ok(())) => {
                    for datagram in inbox.datagrams() {
                        self.carry_down(&upstream, at, datagram, outbox);
                    }
                    self.credit_down(outbox.flush());
                }
                // Some earlier datagram was not delivered.
                Poll::Ready(Err(_)) => {}
            }
        }
        cx.waker().wake_by_ref();
    }

    fn carry_down(
        &mut self,
        upstream: &Upstream,
        at: usize,
        datagram: Datagram<'_>,
        outbox: &mut Outbox,
    ) {
        let is_expected = self.is_expected(datagram.from, at);
        let Some(client) = self.client.filter(|_| is_expected) else {
            self.report.drops.strangers += 1;
            return;
        };
        let opened = match &upstream.carrier {
            None => Some((datagram.from, datagram.bytes)),
            Some(carrier) => carrier.open(datagram.bytes),
        };
        let Some((from, payload)) = opened else {
            self.report.drops.malformed += 1;
            return;
        };
        if !is_within(&self.down, payload) {
            self.report.drops.limited += 1;
            return;
        }
        self.head.clear();
        self.framing.seal(canonical(from), &mut self.head);
        let way = Way {
            to: client,
            from: None,
        };
        let sent = outbox.push(&self.front, way, &self.head, payload);
        self.credit_down(sent);
    }

    fn credit_down(&mut self, sent: Sent) {
        self.report.down += sent.bytes;
        self.report.received += sent.datagrams;
        self.report.drops.unsent += sent.unsent;
    }

    fn is_expected(&mut self, from: SocketAddr, upstream: usize) -> bool {
        let now = self.deadline.now();
        let this = (from, upstream, now);
        if self.heard == Some(this) {
            return true;
        }
        let is_expected = self.table.expects(from, upstream, now);
        if is_expected {
            self.heard = Some(this);
        }
        is_expected
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

fn count(number: usize) -> u64 {
    u64::try_from(number).unwrap_or(u64::MAX)
}

/// Read at once from the control connection.
const CONTROL: usize = 4096;

/// Reads of the control connection in one go.
const BURST: usize = 32;

/// Batches of datagrams of one socket in one go.
const BATCHES: usize = 2;

const MOST_TARGETS: usize = 512;

/// An association that has been idle for so long may have to make room.
const QUIET: Duration = Duration::from_secs(10);
