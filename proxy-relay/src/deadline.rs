//! Coarse deadlines: a tick stamp per session, swept by one of the sessions.
//!
//! Renewing a deadline is two loads and a store: no timer is registered, no
//! lock taken, no clock read. All sessions begun on a thread share its clock.
//! One of them, the leader, keeps a real timer and at each tick wakes those
//! whose stamp has passed or whose [`Stop`] token has changed; when it ends,
//! another takes over. Nothing needs to be spawned.

use std::pin::Pin;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use proxy_core::{End, Stop, StopState};
use tokio::time::{Instant, Sleep};

use crate::splice;

/// The grain of all deadlines of sessions.
pub const TICK: Duration = Duration::from_millis(250);

/// A deadline that can be renewed for almost nothing, and the session's ear for
/// its [`Stop`] token.
///
/// Poll it first whenever the session's task is polled: the session may be the
/// one that leads the clock for all others.
#[derive(Debug)]
pub struct Deadline {
    entry: Arc<Entry>,
    slot: usize,
    registered: Option<Waker>,
    lead: Option<Pin<Box<Sleep>>>,
    follows: bool,
}

impl Deadline {
    /// A deadline that never elapses until [`set`](Self::set).
    ///
    /// # Panics
    /// Outside a tokio runtime with time enabled, at the first poll.
    pub fn new(stop: Stop) -> Self {
        Self::with(stop, false)
    }

    /// A deadline for a task that polls another one all the time: it may be
    /// left unpolled for a while, since it never leads the clock.
    pub fn follower(stop: Stop) -> Self {
        Self::with(stop, true)
    }

    fn with(stop: Stop, follows: bool) -> Self {
        let clock = CLOCK.with(Arc::clone);
        clock.refresh();
        let entry = Arc::new(Entry {
            due: AtomicU32::new(NEVER),
            told: AtomicU8::new(0),
            recheck: AtomicU8::new(0),
            soon: AtomicBool::new(false),
            stop,
            clock,
            waker: Mutex::new(None),
        });
        let slot = entry.clock.lock().insert(Arc::clone(&entry));
        Self {
            entry,
            slot,
            registered: None,
            lead: None,
            follows,
        }
    }

    /// Puts the deadline `after` from now.
    pub fn set(&self, after: Ticks) {
        self.set_within(after, Tick::NEVER);
    }

    /// Puts the deadline `after` from now, but no later than `limit`.
    pub(crate) fn set_within(&self, after: Ticks, limit: Tick) {
        let due = self.after(after).min(limit);
        self.entry.due.store(due.0, Ordering::Relaxed);
    }

    /// The tick at which `after` from now is over.
    pub(crate) fn after(&self, after: Ticks) -> Tick {
        Tick(match after.0 {
            NEVER => NEVER,
            // One more, since the current tick is partly over.
            ticks => self
                .entry
                .clock
                .now()
                .saturating_add(ticks.saturating_add(1))
                .min(NEVER - 1),
        })
    }

    /// The present, as the thread's clock was last set.
    pub(crate) fn now(&self) -> Tick {
        Tick(self.entry.clock.now())
    }

    /// Whether `tick` has come.
    pub(crate) fn is_past(&self, tick: Tick) -> bool {
        tick.0 <= self.entry.clock.now()
    }

    /// Whether the time set is over.
    pub(crate) fn has_elapsed(&self) -> bool {
        self.is_past(Tick(self.entry.due.load(Ordering::Relaxed)))
    }

    /// For a session that waits for something that no waker tells it, such as
    /// the reset of a stream that it does not read ([`Transport::is_reset`]).
    ///
    /// True if it is time to look, which is once a second at most, and then the
    /// task is woken a second later to ask again. To be asked only while the
    /// session does wait; it costs a load otherwise.
    ///
    /// [`Transport::is_reset`]: crate::Transport::is_reset
    pub fn recheck(&self) -> bool {
        let due = self.entry.recheck.load(Ordering::Relaxed) == 0;
        if due {
            self.entry.recheck.store(RECHECK, Ordering::Relaxed);
        }
        due
    }

    /// Wakes the task at the next tick, for a session that waits for time to pass:
    /// one whose [`Meter`](crate::Meter) grants nothing.
    pub fn call_soon(&self) {
        self.entry.soon.store(true, Ordering::Relaxed);
    }

    /// What the stop token says.
    pub fn stop_state(&self) -> StopState {
        self.entry.stop.state()
    }

    /// Ready once the deadline has passed or the token orders a stop.
    ///
    /// Also wakes the task when the token begins to drain, which
    /// [`stop_state`](Self::stop_state) then shows.
    pub fn poll(&mut self, cx: &mut Context<'_>) -> Poll<Expired> {
        self.register(cx);
        self.lead(cx);
        if let StopState::Stopped(end) = self.entry.stop.state() {
            return Poll::Ready(Expired::Stopped(end));
        }
        match self.has_elapsed() {
            true => Poll::Ready(Expired::Elapsed),
            false => Poll::Pending,
        }
    }

    fn register(&mut self, cx: &Context<'_>) {
        if !self
            .registered
            .as_ref()
            .is_some_and(|own| own.will_wake(cx.waker()))
        {
            self.registered = Some(cx.waker().clone());
            *lock(&self.entry.waker) = Some(cx.waker().clone());
        }
    }

    fn lead(&mut self, cx: &mut Context<'_>) {
        if self.lead.is_none() {
            let led = &self.entry.clock.led;
            if self.follows || led.load(Ordering::Relaxed) || led.swap(true, Ordering::AcqRel) {
                return;
            }
            self.entry.clock.refresh();
            let next = self.entry.clock.next_tick();
            self.lead = Some(Box::pin(tokio::time::sleep_until(next)));
        }
        if let Some(sleep) = &mut self.lead {
            while sleep.as_mut().poll(cx).is_ready() {
                self.entry.clock.refresh();
                self.entry.clock.sweep();
                splice::trim();
                sleep.as_mut().reset(self.entry.clock.next_tick());
            }
        }
    }
}

impl Drop for Deadline {
    fn drop(&mut self) {
        let clock = &self.entry.clock;
        let mut entries = clock.lock();
        entries.remove(self.slot);
        if self.lead.is_some() {
            clock.led.store(false, Ordering::Release);
        }
        if clock.led.load(Ordering::Acquire) {
            return;
        }
        // Nobody leads: call on somebody who can.
        let next = entries.wakers().next();
        drop(entries);
        if let Some(waker) = next {
            waker.wake();
        }
    }
}

/// Why a [`Deadline`] became ready.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Expired {
    /// The time set is over.
    Elapsed,
    /// The session's [`Stop`] token ended it, with this reason.
    Stopped(End),
}

/// A duration in ticks, rounded up; at least one.
///
/// ```
/// use std::time::Duration;
/// use proxy_relay::Ticks;
/// assert_eq!(Ticks::from(Duration::from_millis(1)), Ticks::from(proxy_relay::TICK));
/// assert_eq!(Ticks::from(None), Ticks::NEVER);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Ticks(u32);

impl Ticks {
    /// No deadline.
    pub const NEVER: Self = Self(NEVER);

    /// What is left of it after so many others; of no end, no end.
    pub(crate) fn less(self, others: Self) -> Self {
        match self {
            Self::NEVER => self,
            Self(ticks) => Self(ticks.saturating_sub(others.0)),
        }
    }
}

impl From<Duration> for Ticks {
    fn from(duration: Duration) -> Self {
        let ticks = duration.as_millis().div_ceil(TICK.as_millis());
        Self(u32::try_from(ticks).map_or(NEVER, |ticks| ticks.max(1)))
    }
}

impl From<Option<Duration>> for Ticks {
    fn from(duration: Option<Duration>) -> Self {
        duration.map_or(Self::NEVER, Self::from)
    }
}

/// A point in time on the thread's clock.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Tick(u32);

impl Tick {
    /// Does not come.
    pub(crate) const NEVER: Self = Self(NEVER);

    /// The present, read from the system's clock.
    pub(crate) fn now() -> Self {
        CLOCK.with(|clock| {
            clock.refresh();
            Self(clock.now())
        })
    }

    /// Ticks gone by since.
    pub(crate) fn age(self, now: Self) -> Ticks {
        Ticks(now.0.saturating_sub(self.0))
    }
}

#[derive(Debug)]
struct Entry {
    due: AtomicU32,
    told: AtomicU8,
    /// Ticks to go until the session is woken to look around.
    recheck: AtomicU8,
    /// The session is to be woken at the next tick.
    soon: AtomicBool,
    stop: Stop,
    clock: Arc<Clock>,
    waker: Mutex<Option<Waker>>,
}

impl Entry {
    /// Whether the session has to be woken at tick `now`.
    fn calls(&self, now: u32) -> bool {
        let state = match self.stop.state() {
            StopState::Running => 0,
            StopState::Draining => 1,
            StopState::Stopped(_) => 2,
        };
        // All of them, since each counts down or is taken back.
        let called = self.rechecks() | self.is_called();
        self.due.load(Ordering::Relaxed) <= now
            || called
            || (state != self.told.load(Ordering::Relaxed)
                && state != self.told.swap(state, Ordering::Relaxed))
    }

    /// Counts a tick down. Only the leader does, and the session starts it anew
    /// only at zero.
    fn rechecks(&self) -> bool {
        match self.recheck.load(Ordering::Relaxed) {
            0 => false,
            ticks => {
                self.recheck.store(ticks - 1, Ordering::Relaxed);
                ticks == 1
            }
        }
    }

    fn is_called(&self) -> bool {
        self.soon.load(Ordering::Relaxed) && self.soon.swap(false, Ordering::Relaxed)
    }

    fn waker(&self) -> Option<Waker> {
        lock(&self.waker).clone()
    }
}

/// One thread's tick count and the sessions that go by it.
#[derive(Debug)]
struct Clock {
    now: AtomicU32,
    led: AtomicBool,
    epoch: Instant,
    entries: Mutex<Entries>,
}

impl Clock {
    fn new() -> Self {
        Self {
            now: AtomicU32::new(0),
            led: AtomicBool::new(false),
            epoch: Instant::now(),
            entries: Mutex::default(),
        }
    }

    fn now(&self) -> u32 {
        self.now.load(Ordering::Relaxed)
    }

    fn refresh(&self) {
        let ticks = self.epoch.elapsed().as_millis() / TICK.as_millis();
        let ticks = u32::try_from(ticks).unwrap_or(NEVER - 1);
        self.now.fetch_max(ticks, Ordering::Relaxed);
    }

    /// When the tick that was last set is over. Not just a tick from now: what
    /// begins by a clock that is behind would be over too early.
    fn next_tick(&self) -> Instant {
        let next = self.epoch + TICK * (self.now() + 1);
        next.min(Instant::now() + TICK)
    }

    fn sweep(&self) {
        let now = self.now();
        // Woken after the lock is gone: a waker may run what it likes.
        let due: Vec<Waker> = self.lock().due(now).collect();
        for waker in due {
            waker.wake();
        }
    }

    fn lock(&self) -> MutexGuard<'_, Entries> {
        lock(&self.entries)
    }
}

/// A slab of registered sessions.
#[derive(Debug, Default)]
struct Entries {
    slots: Vec<Option<Arc<Entry>>>,
    free: Vec<usize>,
}

impl Entries {
    fn insert(&mut self, entry: Arc<Entry>) -> usize {
        match self.free.pop() {
            Some(slot) => {
                self.slots[slot] = Some(entry);
                slot
            }
            None => {
                self.slots.push(Some(entry));
                self.slots.len() - 1
            }
        }
    }

    fn remove(&mut self, slot: usize) {
        self.slots[slot] = None;
        self.free.push(slot);
    }

    /// In another order each time: who shares a rate is not to come last always.
    fn due(&self, now: u32) -> impl Iterator<Item = Waker> {
        let (last, first) = self.slots.split_at(now as usize % self.slots.len().max(1));
        let entries = first.iter().chain(last).flatten();
        entries
            .filter(move |entry| entry.calls(now))
            .filter_map(|entry| entry.waker())
    }

    fn wakers(&self) -> impl Iterator<Item = Waker> {
        self.slots
            .iter()
            .flatten()
            .filter_map(|entry| entry.waker())
    }
}

/// Nothing that runs under these locks can panic half-way.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

const NEVER: u32 = u32::MAX;

/// Ticks between two looks around.
const RECHECK: u8 = 4;

thread_local! {
    static CLOCK: Arc<Clock> = Arc::new(Clock::new());
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::future::poll_fn;

    fn secs(n: u64) -> Ticks {
        Ticks::from(Duration::from_secs(n))
    }

    async fn expire(mut deadline: Deadline) -> (Expired, Duration) {
        let start = Instant::now();
        let expired = poll_fn(|cx| deadline.poll(cx)).await;
        (expired, start.elapsed())
    }

    #[tokio::test(start_paused = true)]
    async fn elapses_within_two_ticks() {
        let deadline = Deadline::new(Stop::never());
        deadline.set(secs(5));
        let (expired, took) = expire(deadline).await;
        assert_eq!(expired, Expired::Elapsed);
        assert!(took >= Duration::from_secs(5) && took <= Duration::from_secs(5) + 2 * TICK);
    }

    #[tokio::test(start_paused = true)]
    async fn renewal_postpones() {
        let mut deadline = Deadline::new(Stop::never());
        for _ in 0..10 {
            deadline.set(secs(2));
            tokio::time::timeout(Duration::from_secs(1), poll_fn(|cx| deadline.poll(cx)))
                .await
                .expect_err("renewed each second");
        }
        let (_, took) = expire(deadline).await;
        assert!(took >= Duration::from_millis(750));
    }

    #[tokio::test(start_paused = true)]
    async fn the_lead_is_handed_on() {
        let mut tasks = Vec::new();
        for n in 1..=5 {
            tasks.push(tokio::spawn(async move {
                let deadline = Deadline::new(Stop::never());
                deadline.set(secs(n));
                expire(deadline).await.1
            }));
        }
        for (n, task) in (1..).zip(tasks) {
            let took = task.await.expect("no panic");
            assert!(took >= Duration::from_secs(n) && took <= Duration::from_secs(n) + 2 * TICK);
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_dropped_leader_leaves_the_clock_running() {
        let leader = tokio::spawn(expire(Deadline::new(Stop::never())));
        tokio::task::yield_now().await;
        let deadline = Deadline::new(Stop::never());
        deadline.set(secs(3));
        let follower = tokio::spawn(expire(deadline));
        tokio::task::yield_now().await;
        leader.abort();
        let (expired, took) = follower.await.expect("no panic");
        assert_eq!(expired, Expired::Elapsed);
        assert!(took <= Duration::from_secs(4));
    }

    #[tokio::test(start_paused = true)]
    async fn a_follower_never_leads() {
        let stop = Stop::new();
        let mut follower = Deadline::follower(stop.clone());
        let mut leader = Deadline::new(Stop::never());
        let both = tokio::spawn(poll_fn(move |cx| {
            let heard = follower.poll(cx);
            assert!(follower.lead.is_none());
            assert!(leader.poll(cx).is_pending() && leader.lead.is_some());
            heard
        }));
        stop.stop(End::Limit);
        assert_eq!(both.await.expect("no panic"), Expired::Stopped(End::Limit));
    }

    #[tokio::test(start_paused = true)]
    async fn a_stop_is_heard_within_a_tick() {
        let stop = Stop::new();
        let task = tokio::spawn(expire(Deadline::new(stop.clone())));
        tokio::time::sleep(Duration::from_secs(1)).await;
        stop.stop(End::Drained);
        let (expired, took) = task.await.expect("no panic");
        assert_eq!(expired, Expired::Stopped(End::Drained));
        assert!(took <= Duration::from_secs(1) + 2 * TICK);
    }

    #[tokio::test(start_paused = true)]
    async fn a_drain_wakes_once() {
        let leader = tokio::spawn(expire(Deadline::new(Stop::never())));
        tokio::task::yield_now().await;
        let stop = Stop::new();
        let mut deadline = Deadline::new(stop.clone());
        let polls = Arc::new(AtomicU32::new(0));
        let counter = Arc::clone(&polls);
        // Follows the leader, so each poll but the first is a wake.
        let follower = tokio::spawn(poll_fn(move |cx| {
            counter.fetch_add(1, Ordering::Relaxed);
            deadline.poll(cx)
        }));
        tokio::time::sleep(Duration::from_secs(5)).await;
        assert_eq!(polls.load(Ordering::Relaxed), 1, "woken without a cause");
        stop.drain();
        tokio::time::sleep(Duration::from_secs(5)).await;
        assert_eq!(polls.load(Ordering::Relaxed), 2, "woken once by the drain");
        stop.stop(End::Drained);
        let expired = follower.await.expect("no panic");
        assert_eq!(expired, Expired::Stopped(End::Drained));
        leader.abort();
    }

    #[tokio::test(start_paused = true)]
    async fn a_session_that_looks_around_is_woken_each_second() {
        let mut deadline = Deadline::new(Stop::never());
        deadline.set(secs(10));
        let mut looks = 0;
        let start = Instant::now();
        poll_fn(|cx| {
            let over = deadline.poll(cx);
            looks += u32::from(deadline.recheck());
            over
        })
        .await;
        assert!(start.elapsed() >= Duration::from_secs(10));
        assert!((10..=11).contains(&looks), "{looks} times");
    }

    #[tokio::test(start_paused = true)]
    async fn a_limit_caps_every_renewal() {
        let mut deadline = Deadline::new(Stop::never());
        let limit = deadline.after(secs(5));
        let start = Instant::now();
        while !deadline.is_past(limit) {
            deadline.set_within(secs(2), limit);
            let expired = poll_fn(|cx| deadline.poll(cx));
            let _ = tokio::time::timeout(Duration::from_secs(1), expired).await;
        }
        assert!(deadline.has_elapsed());
        assert!(start.elapsed() >= Duration::from_secs(5));
        assert!(start.elapsed() <= Duration::from_secs(5) + 2 * TICK);
    }
}
