//! Random schedules of everything that two streams can do, against a plain model
//! of what a relay owes them: bytes, counts, ends, and sleep when nothing moves.

mod support;

use std::pin::Pin;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, Wake, Waker};

use proptest::prelude::*;
use proptest::test_runner::{Config, RngAlgorithm, TestRng, TestRunner};
use proxy_core::{End, Side, Stop};
use proxy_relay::{Buffers, Lent, Relay, RelayOptions, RelayReport, TICK, lent, relay};
use support::Noise;
use support::model::{Failure, MOST, Model, SIDES, other};
use support::puppet::{Puppet, SourceEnd};
use support::schedule::{Event, event};

#[test]
fn p44_a_relay_does_what_it_owes_whatever_its_streams_do() {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_time()
        .start_paused(true)
        .build()
        .expect("runtime");
    let data = [1, 2].map(|seed| Rc::from(Noise::bytes(seed, MOST)));
    let config = Config {
        // More with PROPTEST_CASES, always the same ones first.
        cases: 20 * Config::default().cases,
        failure_persistence: None,
        ..Config::default()
    };
    let random = TestRng::deterministic_rng(RngAlgorithm::ChaCha);
    TestRunner::new_with_rng(config, random)
        .run(&plan(), |plan| {
            runtime.block_on(play(&plan, &data));
            Ok(())
        })
        .unwrap_or_else(|error| panic!("{error}"));
}

/// Events that the relay sees at once, and what follows.
#[derive(Clone, Debug)]
struct Step {
    events: Vec<Event>,
    then: Then,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Then {
    /// It runs until it rests.
    Runs,
    /// As well, and enough time passes for it to look around.
    Waits,
    /// As well, and then it is stopped.
    IsStopped,
}

#[derive(Clone, Debug)]
struct Plan {
    /// Bytes that were read before, upwards and downwards.
    early: (usize, usize),
    steps: Vec<Step>,
}

async fn play(plan: &Plan, data: &[Rc<[u8]>; 2]) {
    let [up, down] = data;
    let stop = Stop::new();
    let mut options = RelayOptions::default();
    options.idle(None).half_closed(None).stalled(None);
    options.stop(stop.clone());
    let (early_up, early_down) = plan.early;
    let client = Puppet::new(up, down, early_up);
    let origin = Puppet::new(down, up, early_down);
    let (mut near, mut far) = (client.clone(), origin.clone());
    let relay = relay(&mut near, &mut far, &options).early(&up[..early_up], &down[..early_down]);
    let mut stage = Stage {
        relay: Some(relay),
        client,
        origin,
        model: Model::new(plan.early),
        early: plan.early,
        stop,
        woken: Arc::new(Flag(AtomicBool::new(true))),
        seen: Seen::default(),
    };
    for step in plan.steps.iter().chain(&finale()) {
        if stage.step(step).await {
            break;
        }
    }
    assert!(stage.relay.is_none(), "does not end: {:?}", stage.model);
    assert_eq!(lent(), Lent::default());
}

/// All that a relay needs to end.
fn finale() -> [Step; 2] {
    let open = |side| {
        [
            Event::Pass(side, true, true),
            Event::Widen(side, MOST),
            Event::Ends(side, SourceEnd::Fin),
        ]
    };
    let step = |events, then| Step { events, then };
    [
        step(SIDES.into_iter().flat_map(open).collect(), Then::Runs),
        step(Vec::new(), Then::Waits),
    ]
}

/// The relay, its streams, and their model.
struct Stage<'a> {
    relay: Option<Relay<'a, Puppet, Puppet>>,
    client: Puppet,
    origin: Puppet,
    model: Model,
    early: (usize, usize),
    stop: Stop,
    woken: Arc<Flag>,
    seen: Seen,
}

/// What there was before a step, and how often the relay was polled since.
#[derive(Debug, Default)]
struct Seen {
    wakes: usize,
    read: usize,
    ticks: usize,
    polls: usize,
}

impl Stage<'_> {
    /// Whether the relay has ended.
    async fn step(&mut self, step: &Step) -> bool {
        self.seen = self.see();
        for event in &step.events {
            self.happen(event);
        }
        if let Some(report) = self.settle() {
            self.ended(report);
            return true;
        }
        self.rests();
        match step.then {
            Then::Runs => false,
            Then::Waits => self.wait().await,
            Then::IsStopped => {
                self.is_stopped().await;
                true
            }
        }
    }

    /// Makes it so in the model and with the stream.
    fn happen(&mut self, event: &Event) {
        self.model.apply(event);
        match event {
            Event::Offer(side, _) => self.puppet(*side).offer(self.model.way_from(*side).sent),
            Event::Widen(side, _) => self.puppet(*side).widen(self.model.way_to(*side).room),
            Event::Pass(side, flushes, shuts) => self.puppet(*side).pass(*flushes, *shuts),
            Event::ReadBy(side, turns) => self.puppet(*side).read_by(turns),
            Event::WriteBy(side, turns) => self.puppet(*side).write_by(turns),
            Event::Ends(side, _) | Event::Fails(side, _) => {
                if let Some(end) = self.model.way_from(*side).end {
                    self.puppet(*side).end(end);
                }
                if let Some(fault) = self.model.way_to(*side).fault {
                    self.puppet(*side).fail(fault);
                }
            }
        }
    }

    /// Polls as long as it is woken, which must not be for nothing.
    fn settle(&mut self) -> Option<RelayReport> {
        while self.woken.0.load(Ordering::Relaxed) {
            // Another waker for each poll: only the latest one counts.
            self.woken = Arc::new(Flag(AtomicBool::new(false)));
            let waker = Waker::from(self.woken.clone());
            let relay = self.relay.as_mut().expect("it has not ended");
            let polled = Pin::new(relay).poll(&mut Context::from_waker(&waker));
            if let Poll::Ready(report) = polled {
                self.relay = None;
                return Some(report);
            }
            self.seen.polls += 1;
            let now = self.see();
            let yields = (now.read - self.seen.read) / YIELD;
            let reasons = 1 + now.wakes - self.seen.wakes + yields + self.seen.ticks;
            let polls = self.seen.polls;
            assert!(polls <= reasons, "{polls} polls, {reasons} reasons");
        }
        None
    }

    /// Lets it look around; whether it has ended.
    async fn wait(&mut self) -> bool {
        let unread = self.model.unread_resets();
        for _ in 0..LOOKS {
            if let Some(report) = self.tick().await {
                self.ended(report);
                return true;
            }
        }
        let lingers = !self.model.lingers.is_empty();
        assert!(unread.is_empty() || lingers, "unnoticed: {unread:?}");
        self.rests();
        false
    }

    async fn is_stopped(&mut self) {
        self.stop.stop(End::Drained);
        let mut report = None;
        for _ in 0..3 {
            if report.is_none() {
                report = self.tick().await;
            }
        }
        let report = report.expect("stopped");
        assert_eq!(report.end, End::Drained);
        self.counts(&report);
        for side in SIDES {
            let cut = !self.model.way_to(side).done;
            assert_eq!(self.puppet(side).strings().aborted, cut, "{side:?}");
        }
    }

    async fn tick(&mut self) -> Option<RelayReport> {
        tokio::time::advance(TICK).await;
        // One for whoever leads the clock, one for whom it calls.
        self.seen.ticks += 2;
        self.settle()
    }

    /// It is asleep, and nothing must be left to do.
    fn rests(&mut self) {
        assert!(
            SIDES
                .iter()
                .all(|&side| !self.puppet(side).strings().aborted)
        );
        self.is_bounded();
        if self.model.lingers.is_empty() {
            let failures = self.model.failures();
            let cut = |failure: &Failure| failure.truncated.then_some(failure.side);
            self.model.lingers = failures.iter().filter_map(cut).collect();
            if self.model.lingers.is_empty() {
                assert!(failures.is_empty(), "unnoticed: {failures:?}");
                return self.is_level();
            }
            self.freeze();
        }
        let mut lingers = self.model.lingers.clone();
        lingers.retain(|&side| !self.model.lingering_ends(side));
        assert!(!lingers.is_empty(), "nothing to wait for");
        self.frozen();
    }

    /// All that can be moved was, and no end is owed.
    fn is_level(&mut self) {
        let mut ended = Vec::new();
        for side in SIDES {
            let way = self.model.change(side);
            let before = way.done;
            way.rests();
            if way.done && !before {
                ended.push(side);
            }
            let (moved, flushed, done) = (way.moved, way.flushed, way.done);
            let puppet = self.puppet(other(side)).strings();
            assert_eq!(puppet.sink.taken, moved, "bytes from {side:?}");
            assert!(puppet.sink.flushed >= flushed, "flush from {side:?}");
            assert_eq!(puppet.sink.fin, done, "the end of {side:?}");
        }
        if self.model.first.is_empty() {
            self.model.first = ended;
        }
        assert!(!(self.model.up.done && self.model.down.done), "no end");
        if self.model.up.is_through() && self.model.down.is_through() {
            assert_eq!(lent(), Lent::default(), "held at rest");
        }
    }

    /// Nothing more moves: what has is a part of what could.
    fn freeze(&mut self) {
        self.part_moved();
        for side in SIDES {
            let (taken, fin) = self.puppet(other(side)).sunk();
            let way = self.model.change(side);
            (way.moved, way.done) = (taken, fin);
        }
    }

    fn frozen(&self) {
        for side in SIDES {
            let taken = self.puppet(other(side)).strings().sink.taken;
            assert_eq!(self.model.way_from(side).moved, taken, "{side:?}");
        }
    }

    /// No more is held than a buffer, and what was there before.
    fn is_bounded(&self) {
        for (side, early) in [(Side::Client, self.early.0), (Side::Origin, self.early.1)] {
            let read = self.puppet(side).strings().source.read;
            let taken = self.puppet(other(side)).strings().sink.taken;
            assert!(read - taken <= early.max(Buffers::SIZE), "{side:?}");
        }
    }

    /// It has ended, and rightly.
    fn ended(&self, report: RelayReport) {
        self.counts(&report);
        match report.end {
            End::ClientFinished => self.finished(Side::Client),
            End::OriginFinished => self.finished(Side::Origin),
            End::ClientReset => self.failed(Side::Client),
            End::OriginReset => self.failed(Side::Origin),
            end => panic!("ended by {end}"),
        }
    }

    fn counts(&self, report: &RelayReport) {
        let up = self.origin.strings().sink.taken;
        let down = self.client.strings().sink.taken;
        assert_eq!((report.up, report.down), (up as u64, down as u64));
        match self.model.lingers.is_empty() {
            true => self.part_moved(),
            false => self.frozen(),
        }
    }

    fn part_moved(&self) {
        for side in SIDES {
            let (way, sink) = (
                self.model.way_from(side),
                &self.puppet(other(side)).strings().sink,
            );
            let most = way.goal();
            assert!((way.moved..=most).contains(&sink.taken), "{side:?}");
            assert!(!sink.fin || way.finishes(), "an end made up for {side:?}");
        }
    }

    fn finished(&self, first: Side) {
        for side in SIDES {
            assert!(self.model.way_from(side).finishes(), "{side:?} has not");
            let (sent, puppet) = (self.model.way_from(side).sent, self.puppet(other(side)));
            let puppet = puppet.strings();
            assert!(puppet.sink.fin && !puppet.aborted);
            assert_eq!(puppet.sink.taken, sent, "bytes from {side:?}");
        }
        let before = &self.model.first;
        assert!(before.is_empty() || before.contains(&first), "{before:?}");
    }

    fn failed(&self, side: Side) {
        let aborted = [side, other(side)].map(|side| self.puppet(side).strings().aborted);
        assert!(!aborted[0], "what is gone needs no abort");
        let taken = self.puppet(other(side)).strings().sink.taken;
        let truncated = Failure {
            side,
            truncated: true,
        };
        let failures = self.model.failures();
        let lingered = self.model.lingers.contains(&side);
        if !aborted[1] {
            assert!(lingered || failures.contains(&truncated), "no abort");
            assert!(self.model.lingering_ends(side), "not flushed");
            assert_eq!(
                taken,
                self.model.way_from(side).sent,
                "bytes before the cut"
            );
            return;
        }
        assert!(self.model.lingers.is_empty(), "aborted after a cut");
        let reset = Failure {
            side,
            truncated: false,
        };
        let unread = self.model.unread_resets().contains(&side);
        assert!(unread || failures.contains(&reset), "{side:?} is well");
        let read = self.model.way_from(side).read_fails();
        if read && !self.model.way_to(side).write_fails() && !unread {
            assert_eq!(
                taken,
                self.model.way_from(side).sent,
                "bytes before the reset"
            );
        }
    }

    fn puppet(&self, side: Side) -> &Puppet {
        match side {
            Side::Client => &self.client,
            _ => &self.origin,
        }
    }

    fn see(&self) -> Seen {
        let (client, origin) = (self.client.strings(), self.origin.strings());
        Seen {
            wakes: client.wakes + origin.wakes,
            read: client.source.read + origin.source.read,
            ticks: 0,
            polls: 0,
        }
    }
}

struct Flag(AtomicBool);

impl Wake for Flag {
    fn wake(self: Arc<Self>) {
        self.0.store(true, Ordering::Relaxed);
    }
}

fn plan() -> impl Strategy<Value = Plan> {
    let early = prop_oneof![3 => Just(0), 1 => 1..300_usize, 1 => 1..300_000_usize];
    let step = (proptest::collection::vec(event(), 1..5), then());
    let step = step.prop_map(|(events, then)| Step { events, then });
    let steps = proptest::collection::vec(step, 1..24);
    ((early.clone(), early), steps).prop_map(|(early, steps)| Plan { early, steps })
}

fn then() -> impl Strategy<Value = Then> {
    prop_oneof![
        20 => Just(Then::Runs),
        2 => Just(Then::Waits),
        1 => Just(Then::IsStopped),
    ]
}

/// A relay may yield once it has moved so many bytes; about a mebibyte.
const YIELD: usize = 512 * 1024;

/// Ticks until a relay has looked around for certain.
const LOOKS: usize = 10;
