//! One flow of a datagram port relay: a client's address with a socket upstream.

use std::future::poll_fn;
use std::net::{IpAddr, SocketAddr};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::BytesMut;
use proxy_core::{
    Ask, End, Gateway, Operation, Peer, Rates, Report, Stop, StopState, Target, TargetBuf,
};
use tokio::time::Instant;

use super::associations::{Activity, Place};
use super::batch::{self, Outbox, Room, Sent, Way};
use super::policy::Datagrams;
use super::socket::Socket;
use super::table;
use super::upstreams::Upstream;
use super::{AssociationReport, Drops, Passage, canonical, is_within};
use crate::deadline::{Deadline, Expired, Tick, Ticks};
use crate::{PortMapError, unless};

/// Which flow a datagram of a client belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct Key {
    pub(super) client: SocketAddr,
    /// The address of ours that the client sends to, if the socket has several.
    pub(super) to: Option<IpAddr>,
}

/// What the reader of the socket for all clients shares with the future that runs
/// a flow.
#[derive(Debug)]
pub(super) struct Flow {
    pub(super) key: Key,
    activity: Activity,
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    stage: Stage,
    rates: Rates,
    /// The last datagram of the client that was passed on.
    heard: Tick,
    up: Sent,
    drops: Drops,
}

#[derive(Debug)]
enum Stage {
    /// Policy has been asked; meanwhile a few datagrams wait.
    Asking(Vec<Box<[u8]>>),
    Open(Outward),
    /// Nothing is passed on.
    Refused,
}

/// The way to the target.
#[derive(Clone, Debug)]
struct Outward {
    upstream: Upstream,
    way: Way,
    /// What a carrier wants before each payload.
    head: BytesMut,
}

impl Flow {
    pub(super) fn new(key: Key, place: &Place) -> Arc<Self> {
        Arc::new(Self {
            key,
            activity: place.activity().clone(),
            state: Mutex::new(State {
                stage: Stage::Asking(Vec::new()),
                rates: Rates::default(),
                heard: Tick::now(),
                up: Sent::default(),
                drops: Drops::default(),
            }),
        })
    }

    /// Takes a datagram of the client; what became of it is told by
    /// [`credit`](Self::credit).
    pub(super) fn take(&self, payload: &[u8], outbox: &mut Outbox) {
        let mut state = self.lock();
        let State {
            stage,
            rates,
            up,
            drops,
            ..
        } = &mut *state;
        match stage {
            Stage::Open(_) if !is_within(rates, payload) => drops.limited += 1,
            Stage::Asking(waiting) if waiting.len() < MOST_WAITING => {
                waiting.push(payload.into());
            }
            Stage::Asking(_) => drops.waiting += 1,
            Stage::Open(to) => *up += outbox.push(&to.upstream.socket, to.way, &to.head, payload),
            Stage::Refused => drops.refused += 1,
        }
    }

    /// Counts what was sent of it.
    pub(super) fn credit(&self, sent: Sent) {
        let mut state = self.lock();
        state.up += sent;
        state.heard = Tick::now();
        drop(state);
        self.activity.touch();
    }

    /// Opens the way, and sends what has waited for that.
    fn open(&self, to: Outward, rates: Rates) {
        let mut state = self.lock();
        state.rates = rates;
        let waiting = match std::mem::replace(&mut state.stage, Stage::Refused) {
            Stage::Asking(waiting) => waiting,
            Stage::Open(_) | Stage::Refused => Vec::new(),
        };
        state.up += batch::lend(|Room { outbox, .. }| {
            let mut sent = Sent::default();
            for payload in &waiting {
                sent += outbox.push(&to.upstream.socket, to.way, &to.head, payload);
            }
            sent += outbox.flush();
            sent
        });
        state.stage = Stage::Open(to);
    }

    /// Passes nothing on from now on.
    fn refuse(&self) {
        let mut state = self.lock();
        if let Stage::Asking(waiting) = std::mem::replace(&mut state.stage, Stage::Refused) {
            state.drops.refused += u64::try_from(waiting.len()).unwrap_or(u64::MAX);
        }
    }

    fn way(&self) -> Option<Way> {
        match &self.lock().stage {
            Stage::Open(to) => Some(to.way),
            Stage::Asking(_) | Stage::Refused => None,
        }
    }

    fn heard(&self) -> Tick {
        self.lock().heard
    }

    /// Nothing that runs under this lock can panic half-way.
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// What a flow needs besides policy.
#[derive(Debug)]
pub(super) struct Start {
    pub(super) flow: Arc<Flow>,
    pub(super) place: Place,
    pub(super) peer: Peer,
    /// The socket that the client sends to.
    pub(super) front: Arc<Socket>,
    pub(super) idle: Ticks,
    pub(super) stop: Stop,
}

/// Runs a flow to its end, and reports it. One that policy has refused stays for
/// half a minute, in which policy is not asked again; one that has come to nothing
/// for another reason only for a moment.
pub(super) async fn run<G: Datagrams>(gateway: &G, target: &TargetBuf, start: Start) -> Key {
    let Start {
        flow,
        place,
        peer,
        front,
        idle,
        stop,
    } = start;
    let mut running = Running {
        flow: &flow,
        front,
        idle,
        lifetime: Tick::NEVER,
        down: Rates::default(),
        heard: Tick::now(),
        deadline: Deadline::new(stop),
        report: AssociationReport::new(),
    };
    let began = Instant::now();
    let target = target.as_target();
    let (mut who, mut session) = (None, None);
    let reach = reach(gateway, &peer, target, &mut who, &mut session);
    let reached = unless(running.stopped(), Box::pin(reach)).await;
    let reached = reached.unwrap_or(Err(PortMapError::Vanished));
    let shaping = session.as_ref().map(|session| gateway.shaping(session));
    let shaping = shaping.unwrap_or_default();
    running.down = shaping.down;
    running.lifetime = running.deadline.after(shaping.lifetime.into());
    let opened = reached.and_then(|passage| open(&flow, &passage, shaping.up, target));
    let error = match opened {
        Ok(upstream) => {
            let mut place = place;
            if let Ok(local) = upstream.socket.local_addr() {
                place.owns(local);
            }
            running.deadline.set_within(idle, running.lifetime);
            running.report.end = poll_fn(|cx| running.poll(cx, &upstream)).await;
            flow.refuse();
            report(gateway, &running, &peer, target, began, who, session, None);
            return flow.key;
        }
        Err(error) => error,
    };
    flow.refuse();
    running.report.end = match running.deadline.stop_state() {
        StopState::Stopped(end) => end,
        _ => error.report().end,
    };
    report(
        gateway,
        &running,
        &peer,
        target,
        began,
        who,
        session,
        Some(error),
    );
    running.linger(keep(error)).await;
    drop(place);
    flow.key
}

/// How long a refusal holds.
fn keep(error: PortMapError) -> Duration {
    match error {
        PortMapError::Connect(error) => table::keep(error.kind),
        _ => table::KEEP,
    }
}

/// Asks policy for the way.
async fn reach<G: Datagrams>(
    gateway: &G,
    peer: &Peer,
    target: Target<'_>,
    who: &mut Option<G::Identity>,
    session: &mut Option<G::Session>,
) -> Result<Passage, PortMapError> {
    let identified = gateway.authenticate(peer, None).await;
    let who = who.insert(identified.map_err(PortMapError::Denied)?);
    let ask = Ask {
        peer,
        operation: Operation::Associate,
        target,
        via: None,
        secure: false,
    };
    let authorized = gateway.authorize(who, &ask).await;
    let session = session.insert(authorized.map_err(PortMapError::Denied)?);
    let admitted = gateway.admit(session, target, None).await;
    admitted.map_err(PortMapError::Connect)
}

fn open(
    flow: &Flow,
    passage: &Passage,
    rates: Rates,
    target: Target<'_>,
) -> Result<Upstream, PortMapError> {
    let upstream = Upstream::open(passage).map_err(|error| PortMapError::Connect(error.into()))?;
    let mut head = BytesMut::new();
    if let Some(carrier) = &upstream.carrier {
        carrier.seal(target, &mut head);
    }
    let outward = Outward {
        upstream: upstream.clone(),
        way: Way {
            to: canonical(passage.address),
            from: None,
        },
        head,
    };
    flow.open(outward, rates);
    Ok(upstream)
}

#[expect(clippy::too_many_arguments, reason = "called where all of it ends")]
fn report<G: Datagrams>(
    gateway: &G,
    running: &Running<'_>,
    peer: &Peer,
    target: Target<'_>,
    began: Instant,
    who: Option<G::Identity>,
    session: Option<G::Session>,
    error: Option<PortMapError>,
) {
    let relayed = running.total();
    if let Some(session) = &session {
        gateway.dissociated(session, &relayed);
    }
    let mut report = Report::new(peer, relayed.end);
    report.operation = Some(Operation::Associate);
    report.target = Some(target);
    report.up = relayed.up;
    report.down = relayed.down;
    report.duration = began.elapsed();
    if let Some(PortMapError::Connect(error)) = error {
        report.error = Some(error);
    }
    Gateway::finished(gateway, who.as_ref(), session, &report);
}

struct Running<'f> {
    flow: &'f Flow,
    front: Arc<Socket>,
    idle: Ticks,
    lifetime: Tick,
    down: Rates,
    /// The last answer that was passed on.
    heard: Tick,
    deadline: Deadline,
    report: AssociationReport,
}

impl Running<'_> {
    fn poll(&mut self, cx: &mut Context<'_>, upstream: &Upstream) -> Poll<End> {
        batch::lend(|room| self.pull_upstream(cx, upstream, room));
        loop {
            let expired = self.deadline.poll(cx);
            match expired {
                Poll::Ready(Expired::Stopped(end)) => return Poll::Ready(end),
                Poll::Ready(Expired::Elapsed) => {}
                Poll::Pending if self.deadline.stop_state() == StopState::Running => {
                    return Poll::Pending;
                }
                Poll::Pending => {}
            }
            if let Some(end) = self.overdue() {
                return Poll::Ready(end);
            }
            if expired.is_pending() {
                return Poll::Pending;
            }
        }
    }

    /// The end of a flow that has been silent for too long; otherwise the time
    /// is set when it may be.
    fn overdue(&self) -> Option<End> {
        let (idle, end) = match self.deadline.stop_state() {
            StopState::Running => (self.idle, End::Idle),
            // Nothing tells when a flow is over but that it falls silent.
            _ => (self.idle.min(DRAIN_IDLE.into()), End::Stopped),
        };
        if self.deadline.is_past(self.lifetime) {
            return Some(End::Lifetime);
        }
        let last = self.heard.max(self.flow.heard());
        let silent = last.age(self.deadline.now());
        if silent >= idle {
            return Some(end);
        }
        self.deadline.set_within(idle.less(silent), self.lifetime);
        None
    }

    fn pull_upstream(&mut self, cx: &mut Context<'_>, upstream: &Upstream, room: &mut Room) {
        let Room { inbox, outbox } = room;
        for _ in 0..BATCHES {
            match inbox.poll_fill(cx, &upstream.socket) {
                Poll::Pending => return,
                Poll::Ready(Ok(())) => {
                    for datagram in inbox.datagrams() {
                        let sent = self.carry_down(upstream, datagram, outbox);
                        self.credit(sent);
                    }
                    self.credit(outbox.flush());
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
        datagram: batch::Datagram<'_>,
        outbox: &mut Outbox,
    ) -> Sent {
        if Some(datagram.from) != self.flow.way().map(|way| way.to) {
            self.report.drops.strangers += 1;
            return Sent::default();
        }
        let payload = match &upstream.carrier {
            None => Some(datagram.bytes),
            Some(carrier) => carrier.open(datagram.bytes).map(|(_, payload)| payload),
        };
        let Some(payload) = payload else {
            self.report.drops.malformed += 1;
            return Sent::default();
        };
        if !is_within(&self.down, payload) {
            self.report.drops.limited += 1;
            return Sent::default();
        }
        let Key { client, to } = self.flow.key;
        let way = Way {
            to: client,
            from: to,
        };
        outbox.push(&self.front, way, b"", payload)
    }

    fn credit(&mut self, sent: Sent) {
        self.report.received += sent.datagrams;
        self.report.down += sent.bytes;
        self.report.drops.unsent += sent.unsent;
        if sent.datagrams > 0 {
            self.heard = self.deadline.now();
            self.flow.activity.touch();
        }
    }

    /// Both directions together.
    fn total(&self) -> AssociationReport {
        let state = self.flow.lock();
        let mut total = self.report;
        total.up = state.up.bytes;
        total.sent = state.up.datagrams;
        total.drops.unsent += state.up.unsent;
        total.drops.waiting += state.drops.waiting;
        total.drops.refused += state.drops.refused;
        total.drops.limited += state.drops.limited;
        total
    }

    async fn stopped(&mut self) {
        self.deadline.set(Ticks::NEVER);
        poll_fn(|cx| self.deadline.poll(cx)).await;
    }

    /// Stays for as long as a refusal holds.
    async fn linger(&mut self, time: Duration) {
        self.deadline.set(time.into());
        poll_fn(|cx| match self.deadline.stop_state() {
            StopState::Running => self.deadline.poll(cx).map(drop),
            _ => Poll::Ready(()),
        })
        .await;
    }
}

/// Datagrams that wait for policy, which is what a client sends before it begins
/// to wait itself.
const MOST_WAITING: usize = 4;

/// Batches of answers in one go.
const BATCHES: usize = 2;

/// How long a flow may be silent while the proxy closes.
const DRAIN_IDLE: Duration = Duration::from_secs(1);
