//! Both directions between a client and its upstream.

use std::fmt;
use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use proxy_core::{End, Side};
use tokio::io::ReadBuf;

use crate::deadline::{Deadline, Expired, Tick, Ticks};
use crate::{Meter, Pump, PumpError, RelayOptions, Transport, lend};

/// Relays between a client and its upstream until both have finished, one of
/// them fails, or a limit is reached.
///
/// The end of one direction is passed on, behind its data, while the other runs
/// on (RFC 9293 section 3.6). A reset is passed on as a reset: the other stream
/// is aborted ([`Transport::abort`]). The caller drops both streams afterwards.
///
/// What is cut does not look finished:
/// * When the lifetime, the first-byte limit, a stalled side or the stop token
///   ends the relay, the destination of each direction that has not ended is
///   aborted, also when nothing is under way: more may have been to come.
/// * When nothing has moved for too long (`Idle`, `HalfClosed`), only one for
///   which bytes are still held is; otherwise both are closed in order (TLS
///   without close_notify). These two are also the reason if they pass before
///   the limit for a stalled side.
/// * A source that is cut off without a reset ([`io::ErrorKind::UnexpectedEof`]:
///   TLS without close_notify) counts as reset, but its destination is not
///   aborted, since that would destroy bytes that were accepted and are not yet
///   sent. It is flushed and, if a plain socket, closed in order, which leaves
///   the truncation to be told by the protocol inside; over TLS it lacks the
///   close_notify in its turn.
///
/// A reset is noticed within about a second also on a stream that is not being
/// read because the other side takes nothing. Idle, a relay holds no buffer and
/// no pipe.
///
/// The future must run on the thread's tokio runtime, with time enabled.
/// Cancel safe in that dropping it leaves the streams usable, but bytes read
/// and not yet written are lost.
///
/// ```
/// use std::time::Duration;
/// use proxy_relay::{RelayOptions, relay};
/// # async fn example(mut client: tokio::net::TcpStream, mut upstream: tokio::net::TcpStream) {
/// let mut options = RelayOptions::default();
/// options.idle(Duration::from_secs(300)).first_byte(Duration::from_secs(30));
/// let report = relay(&mut client, &mut upstream, &options).await;
/// println!("{} up, {} down, ended by {}", report.up, report.down, report.end);
/// # }
/// ```
pub fn relay<'a, A: Transport + ?Sized, B: Transport + ?Sized>(
    client: &'a mut A,
    upstream: &'a mut B,
    options: &RelayOptions,
) -> Relay<'a, A, B> {
    let deadline = Deadline::new(options.stop.clone());
    let lifetime = deadline.after(options.lifetime);
    let relay = Relay {
        client,
        upstream,
        up: Pump::new().metered(Meter::new(&options.up)),
        down: Pump::new().metered(Meter::new(&options.down)),
        idle: options.idle,
        half_closed: options.half_closed,
        lifetime,
        first_byte: deadline.after(options.first_byte),
        stalled: options.stalled,
        up_stall: Stall::NONE,
        down_stall: Stall::NONE,
        first_end: None,
        truncated: None,
        deadline,
    };
    relay.renew();
    relay
}

/// The future of [`relay`]; small, since there is one per tunnel.
#[must_use = "futures do nothing unless polled"]
pub struct Relay<'a, A: ?Sized, B: ?Sized> {
    client: &'a mut A,
    upstream: &'a mut B,
    up: Pump,
    down: Pump,
    deadline: Deadline,
    idle: Ticks,
    half_closed: Ticks,
    lifetime: Tick,
    first_byte: Tick,
    stalled: Ticks,
    up_stall: Stall,
    down_stall: Stall,
    /// Who finished first.
    first_end: Option<Side>,
    /// Whose stream was cut off without a reset.
    truncated: Option<Side>,
}

impl<A: Transport + ?Sized, B: Transport + ?Sized> Relay<'_, A, B> {
    /// Adds bytes that were already read from the client or from the upstream;
    /// they are sent first. To be called before the first poll.
    pub fn early(mut self, from_client: &[u8], from_upstream: &[u8]) -> Self {
        self.up.early(from_client);
        self.down.early(from_upstream);
        self
    }

    fn pump(&mut self, cx: &mut Context<'_>) -> Poll<End> {
        if self.truncated.is_none()
            && let Some(end) = ready!(self.run(cx))
        {
            return Poll::Ready(end);
        }
        match self.truncated {
            Some(Side::Client) => poll_linger(cx, self.upstream).map(|()| End::ClientReset),
            _ => poll_linger(cx, self.client).map(|()| End::OriginReset),
        }
    }

    /// Runs both directions; ready with nothing once one is truncated.
    fn run(&mut self, cx: &mut Context<'_>) -> Poll<Option<End>> {
        // Downwards first: what a resetting origin still sent is delivered.
        if let Poll::Ready(result) = self.down.poll(cx, self.upstream, self.client) {
            if let Err(error) = result {
                return Poll::Ready(self.fail(error, Side::Origin));
            }
            self.ended(Side::Origin);
        }
        if let Poll::Ready(result) = self.up.poll(cx, self.client, self.upstream) {
            if let Err(error) = result {
                return Poll::Ready(self.fail(error, Side::Client));
            }
            self.ended(Side::Client);
        }
        match (self.up.is_done() && self.down.is_done(), self.first_end) {
            (true, Some(Side::Client)) => Poll::Ready(Some(End::ClientFinished)),
            (true, _) => Poll::Ready(Some(End::OriginFinished)),
            (false, _) => self.look_around(),
        }
    }

    /// What no waker tells, looked for every now and then while a destination
    /// is full: that its source, which is not read, was reset, and that it has
    /// taken nothing for too long.
    fn look_around(&mut self) -> Poll<Option<End>> {
        if self.up.waits() || self.down.waits() {
            self.deadline.call_soon();
        }
        let pressed = self.up.presses() || self.down.presses();
        if !pressed {
            self.up_stall.over = Tick::NEVER;
            self.down_stall.over = Tick::NEVER;
        }
        if !pressed || !self.deadline.recheck() {
            return Poll::Pending;
        }
        let reset = PumpError::Read(io::ErrorKind::ConnectionReset);
        if !self.down.is_idle() && self.upstream.is_reset() {
            return Poll::Ready(self.fail(reset, Side::Origin));
        }
        if !self.up.is_idle() && self.client.is_reset() {
            return Poll::Ready(self.fail(reset, Side::Client));
        }
        match self.is_stalled() {
            true => {
                self.abort(End::WriteStalled);
                Poll::Ready(Some(End::WriteStalled))
            }
            false => Poll::Pending,
        }
    }

    /// Whether a side has taken nothing for too long. To be asked at intervals.
    fn is_stalled(&mut self) -> bool {
        let over = self.deadline.after(self.stalled);
        self.up_stall.look(&self.up, over);
        self.down_stall.look(&self.down, over);
        let first = self.up_stall.over.min(self.down_stall.over);
        self.deadline.is_past(first)
    }

    fn ended(&mut self, side: Side) {
        if self.first_end.is_none() {
            self.first_end = Some(side);
            // Its own timer begins now (and not with the last byte).
            self.renew();
        }
    }

    /// Passes a failure on to the other side; `source` is the side that the
    /// failed direction reads from. A truncation is left to the lingering.
    fn fail(&mut self, error: PumpError, source: Side) -> Option<End> {
        if error == PumpError::Read(io::ErrorKind::UnexpectedEof) {
            self.truncated = Some(source);
            // The lingering is limited as a half-closed tunnel is.
            self.renew();
            return None;
        }
        let by_source = !matches!(error, PumpError::Write(_));
        if by_source == (source == Side::Client) {
            self.upstream.abort();
            Some(End::ClientReset)
        } else {
            self.client.abort();
            Some(End::OriginReset)
        }
    }

    /// What it means that the deadline has passed.
    fn overdue(&self) -> End {
        match self.truncated {
            Some(Side::Client) => return End::ClientReset,
            Some(_) => return End::OriginReset,
            None => {}
        }
        if self.deadline.is_past(self.lifetime) {
            return End::Lifetime;
        }
        if self.awaits_first_byte() && self.deadline.is_past(self.first_byte) {
            return End::OriginTimeout;
        }
        match self.first_end {
            Some(_) if self.half_closed <= self.idle => End::HalfClosed,
            _ => End::Idle,
        }
    }

    /// Ends before both sides have finished: a cut must not look like an end.
    fn abort(&mut self, end: End) {
        // What rests has nothing more to come, as far as anybody can tell. Nor
        // has a truncated stream, and it must not lose what is being sent.
        let rests = |pump: &Pump| pump.is_idle() && !pump.waits();
        let (up, down) = match end {
            End::HalfClosed | End::Idle => (!rests(&self.up), !rests(&self.down)),
            End::ClientReset | End::OriginReset => (false, false),
            _ => (!self.up.is_done(), !self.down.is_done()),
        };
        if up {
            self.upstream.abort();
        }
        if down {
            self.client.abort();
        }
    }

    fn renew(&self) {
        let after = match self.first_end.or(self.truncated) {
            Some(_) => self.idle.min(self.half_closed),
            None => self.idle,
        };
        let limit = match self.awaits_first_byte() {
            true => self.lifetime.min(self.first_byte),
            false => self.lifetime,
        };
        self.deadline.set_within(after, limit);
    }

    fn awaits_first_byte(&self) -> bool {
        self.down.moved() == 0 && !self.down.is_done() && !self.down.waits()
    }

    fn moved(&self) -> u64 {
        self.up.moved() + self.down.moved()
    }

    fn report(&self, end: End) -> RelayReport {
        RelayReport {
            up: self.up.moved(),
            down: self.down.moved(),
            end,
        }
    }
}

/// Since when a direction stands still while its destination has yet to take
/// something. It is looked at now and then: what has not moved from one time to
/// the next stood still in between, so that no message has to note anything.
#[derive(Clone, Copy, Debug)]
struct Stall {
    /// What had moved when it began.
    moved: u64,
    /// When it will have lasted too long; never if it does not last.
    over: Tick,
}

impl Stall {
    const NONE: Self = Self {
        moved: 0,
        over: Tick::NEVER,
    };

    /// `over` is when one that begins now will have lasted too long.
    fn look(&mut self, pump: &Pump, over: Tick) {
        let moved = pump.moved();
        if !pump.presses() {
            *self = Self::NONE;
        } else if self.over == Tick::NEVER || self.moved != moved {
            *self = Self { moved, over };
        }
    }
}

/// Sends all that `to` was given and then, on a plain socket, the end; reads on
/// until its peer has closed too, since closing a socket with unread bytes is a
/// reset, which would overtake what is on its way.
fn poll_linger<T: Transport + ?Sized>(cx: &mut Context<'_>, to: &mut T) -> Poll<()> {
    let flushed = ready!(Pin::new(&mut *to).poll_flush(cx));
    if flushed.is_err() || to.socket().is_none() {
        return Poll::Ready(());
    }
    if ready!(Pin::new(&mut *to).poll_shutdown(cx)).is_err() {
        return Poll::Ready(());
    }
    lend(|buffers| {
        // No more than a few reads at a time: this is nobody's hot path.
        for _ in 0..4 {
            let mut buf = ReadBuf::new(&mut buffers.read);
            let read = ready!(Pin::new(&mut *to).poll_read(cx, &mut buf));
            if read.is_err() || buf.filled().is_empty() {
                return Poll::Ready(());
            }
        }
        cx.waker().wake_by_ref();
        Poll::Pending
    })
}

impl<A: Transport + ?Sized, B: Transport + ?Sized> Future for Relay<'_, A, B> {
    type Output = RelayReport;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<RelayReport> {
        let this = self.get_mut();
        if let Poll::Ready(Expired::Stopped(end)) = this.deadline.poll(cx) {
            this.abort(end);
            return Poll::Ready(this.report(end));
        }
        let before = this.moved();
        if let Poll::Ready(end) = this.pump(cx) {
            return Poll::Ready(this.report(end));
        }
        // What a rate holds back is nobody's silence.
        if this.moved() != before || this.up.waits() || this.down.waits() {
            this.renew();
        }
        if this.deadline.has_elapsed() {
            let end = this.overdue();
            this.abort(end);
            return Poll::Ready(this.report(end));
        }
        Poll::Pending
    }
}

impl<A: ?Sized, B: ?Sized> fmt::Debug for Relay<'_, A, B> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Relay")
            .field("up", &self.up)
            .field("down", &self.down)
            .finish_non_exhaustive()
    }
}

/// What a [`relay`] did; exact whatever ended it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct RelayReport {
    /// Bytes taken by the upstream.
    pub up: u64,
    /// Bytes taken by the client.
    pub down: u64,
    /// Why it ended: `ClientFinished` or `OriginFinished` (who finished
    /// first), `ClientReset`, `OriginReset`, `HalfClosed`, `Idle`, `Lifetime`,
    /// `OriginTimeout`, `WriteStalled`, or what the stop token said.
    pub end: End,
}

/// Moves exactly `len` bytes one way, as [`Pump::exactly`] does, under the
/// `idle` and `lifetime` limits and the stop token of `options`.
///
/// Nothing is aborted on failure. Cancel safe as [`relay`] is.
///
/// ```
/// # async fn example(mut from: tokio::net::TcpStream, mut to: tokio::net::TcpStream) {
/// let options = proxy_relay::RelayOptions::default();
/// let report = proxy_relay::forward(&mut from, &mut to, 1024, &options).await;
/// assert!(report.outcome.is_err() || report.moved == 1024);
/// # }
/// ```
pub fn forward<'a, A: Transport + ?Sized, B: Transport + ?Sized>(
    from: &'a mut A,
    to: &'a mut B,
    len: u64,
    options: &RelayOptions,
) -> Forward<'a, A, B> {
    let deadline = Deadline::new(options.stop.clone());
    let lifetime = deadline.after(options.lifetime);
    deadline.set_within(options.idle, lifetime);
    Forward {
        from,
        to,
        pump: Pump::exactly(len),
        deadline,
        idle: options.idle,
        lifetime,
    }
}

/// The future of [`forward`].
#[must_use = "futures do nothing unless polled"]
pub struct Forward<'a, A: ?Sized, B: ?Sized> {
    from: &'a mut A,
    to: &'a mut B,
    pump: Pump,
    deadline: Deadline,
    idle: Ticks,
    lifetime: Tick,
}

impl<A: Transport + ?Sized, B: Transport + ?Sized> Forward<'_, A, B> {
    fn advance(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), ForwardError>> {
        if let Poll::Ready(Expired::Stopped(end)) = self.deadline.poll(cx) {
            return Poll::Ready(Err(ForwardError::Ended(end)));
        }
        let before = self.pump.moved();
        if let Poll::Ready(result) = self.pump.poll(cx, self.from, self.to) {
            return Poll::Ready(result.map_err(ForwardError::Failed));
        }
        if self.pump.moved() != before {
            self.deadline.set_within(self.idle, self.lifetime);
        }
        if !self.deadline.has_elapsed() {
            return Poll::Pending;
        }
        let end = match self.deadline.is_past(self.lifetime) {
            true => End::Lifetime,
            false => End::Idle,
        };
        Poll::Ready(Err(ForwardError::Ended(end)))
    }
}

impl<A: Transport + ?Sized, B: Transport + ?Sized> Future for Forward<'_, A, B> {
    type Output = ForwardReport;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<ForwardReport> {
        let this = self.get_mut();
        let outcome = ready!(this.advance(cx));
        Poll::Ready(ForwardReport {
            moved: this.pump.moved(),
            outcome,
        })
    }
}

impl<A: ?Sized, B: ?Sized> fmt::Debug for Forward<'_, A, B> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Forward")
            .field("pump", &self.pump)
            .finish_non_exhaustive()
    }
}

/// What a [`forward`] did; the count is exact whatever ended it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct ForwardReport {
    /// Bytes taken by the destination.
    pub moved: u64,
    /// Whether that were all.
    pub outcome: Result<(), ForwardError>,
}

/// Why a [`forward`] moved less than asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ForwardError {
    /// A limit or the stop token ended it: `Idle`, `Lifetime`, or what the
    /// token said.
    #[error("ended: {0}")]
    Ended(End),
    /// A stream failed.
    #[error(transparent)]
    Failed(PumpError),
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::net::TcpStream;

    #[test]
    fn a_tunnel_is_small() {
        let size = size_of::<Relay<'_, TcpStream, TcpStream>>();
        assert!(size <= 256, "{size} bytes");
        assert!(size_of::<Pump>() <= 56, "{} bytes", size_of::<Pump>());
        assert!(size_of::<PumpError>() <= 8);
        assert!(size_of::<ForwardError>() <= 8);
    }
}
