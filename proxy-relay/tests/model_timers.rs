//! The timers of a relay under random schedules, against a plain account of when
//! each of them is due: never early, not much later, and with the right reason.

mod support;

use std::pin::Pin;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, Wake, Waker};
use std::time::Duration;

use proptest::prelude::*;
use proptest::test_runner::{Config, RngAlgorithm, TestRng, TestRunner};
use proxy_core::{End, Side};
use proxy_relay::{Lent, Relay, RelayOptions, RelayReport, TICK, lent, relay};
use support::Noise;
use support::model::{MOST, Model, SIDES, Way, other};
use support::puppet::{Puppet, SourceEnd};
use support::schedule::Event;

#[test]
fn p45_p46_each_timer_ends_a_relay_in_time_and_none_too_early() {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_time()
        .start_paused(true)
        .build()
        .expect("runtime");
    let data = [1, 2].map(|seed| Rc::from(Noise::bytes(seed, MOST)));
    let config = Config {
        // More with PROPTEST_CASES, always the same ones first.
        cases: 4 * Config::default().cases,
        failure_persistence: None,
        ..Config::default()
    };
    let random = TestRng::deterministic_rng(RngAlgorithm::ChaCha);
    TestRunner::new_with_rng(config, random)
        .run(&plan(), |plan| {
            runtime.block_on(play(&plan, &data));
            assert_eq!(lent(), Lent::default());
            Ok(())
        })
        .unwrap_or_else(|error| panic!("{error}"));
}

#[derive(Clone, Debug)]
struct Plan {
    limits: Limits,
    /// How long nothing happens, and then what.
    steps: Vec<(Duration, Event)>,
}

#[derive(Clone, Copy, Debug)]
struct Limits {
    idle: Option<Duration>,
    half_closed: Option<Duration>,
    lifetime: Option<Duration>,
    first_byte: Option<Duration>,
    stalled: Option<Duration>,
}

async fn play(plan: &Plan, data: &[Rc<[u8]>; 2]) {
    let [up, down] = data;
    let limits = plan.limits;
    let mut options = RelayOptions::default();
    options.idle(limits.idle).half_closed(limits.half_closed);
    options.lifetime(limits.lifetime).stalled(limits.stalled);
    options.first_byte(limits.first_byte);
    let (client, origin) = (Puppet::new(up, down, 0), Puppet::new(down, up, 0));
    let (mut near, mut far) = (client.clone(), origin.clone());
    let mut stage = Stage {
        relay: relay(&mut near, &mut far, &options),
        client,
        origin,
        model: Model::new((0, 0)),
        limits,
        now: Duration::ZERO,
        renewed: Duration::ZERO,
        pressed: [None; 2],
        woken: Arc::new(Flag(AtomicBool::new(true))),
    };
    for (wait, event) in &plan.steps {
        if stage.passes(*wait).await || stage.step(Some(event)) {
            return;
        }
    }
    let open = |side| {
        let open = [Event::Pass(side, true, true), Event::Widen(side, MOST)];
        open.into_iter().chain([Event::Ends(side, SourceEnd::Fin)])
    };
    for event in SIDES.into_iter().flat_map(open) {
        if stage.step(Some(&event)) {
            return;
        }
    }
    panic!("does not end: {:?}", stage.model);
}

struct Stage<'a> {
    relay: Relay<'a, Puppet, Puppet>,
    client: Puppet,
    origin: Puppet,
    model: Model,
    limits: Limits,
    /// Since the start.
    now: Duration,
    /// When something last moved, or the first end was passed on.
    renewed: Duration,
    /// Since when the sinks of what comes from each side have taken nothing of
    /// what waits for them.
    pressed: [Option<Duration>; 2],
    woken: Arc<Flag>,
}

impl Stage<'_> {
    /// Whether it ends meanwhile.
    async fn passes(&mut self, time: Duration) -> bool {
        let until = self.now + time;
        while self.now < until {
            let step = TICK.min(until - self.now);
            tokio::time::advance(step).await;
            self.now += step;
            if self.step(None) {
                return true;
            }
        }
        false
    }

    /// Whether it ends at once.
    fn step(&mut self, event: Option<&Event>) -> bool {
        let before = self.due();
        if let Some(event) = event {
            self.happen(event);
        }
        let ended = self.settle();
        self.account();
        match ended {
            None => {
                let late = |due: &Due| self.now > due.at + due.slack;
                let overdue: Vec<_> = self.due().into_iter().filter(late).collect();
                assert!(overdue.is_empty(), "{overdue:?} at {:?}", self.now);
            }
            Some(report) => self.ended(report, before),
        }
        ended.is_some()
    }

    fn happen(&mut self, event: &Event) {
        self.model.apply(event);
        match *event {
            Event::Offer(side, _) => self.puppet(side).offer(self.model.way_from(side).sent),
            Event::Widen(side, _) => self.puppet(side).widen(self.model.way_to(side).room),
            Event::Pass(side, flushes, shuts) => self.puppet(side).pass(flushes, shuts),
            Event::Ends(side, end) => self.puppet(side).end(end),
            _ => {}
        }
    }

    fn settle(&mut self) -> Option<RelayReport> {
        while self.woken.0.load(Ordering::Relaxed) {
            self.woken = Arc::new(Flag(AtomicBool::new(false)));
            let waker = Waker::from(self.woken.clone());
            let polled = Pin::new(&mut self.relay).poll(&mut Context::from_waker(&waker));
            if let Poll::Ready(report) = polled {
                return Some(report);
            }
        }
        None
    }

    /// Writes down what has moved by now.
    fn account(&mut self) {
        let ended = self.model.up.done || self.model.down.done;
        for (side, pressed) in SIDES.into_iter().zip(&mut self.pressed) {
            let way = self.model.change(side);
            let moved = way.moved;
            way.rests();
            let moves = way.moved > moved;
            if moves || way.done && !ended {
                self.renewed = self.now;
            }
            if !presses(way) {
                *pressed = None;
            } else if moves || pressed.is_none() {
                *pressed = Some(self.now);
            }
        }
    }

    /// What will end it if nothing happens, and when.
    fn due(&self) -> Vec<Due> {
        let Limits {
            idle,
            half_closed,
            lifetime,
            first_byte,
            stalled,
        } = self.limits;
        let (up, down) = (&self.model.up, &self.model.down);
        let is_first = |limit: Option<Duration>, other: Option<Duration>| match (limit, other) {
            (Some(limit), Some(other)) => limit <= other,
            (limit, _) => limit.is_some(),
        };
        let mut all = Vec::new();
        let mut add = |end, since: Duration, limit: Option<Duration>, slack| {
            all.extend(limit.map(|limit| Due {
                end,
                at: since + limit,
                slack,
            }));
        };
        match (up.done || down.done) && is_first(half_closed, idle) {
            true => add(End::HalfClosed, self.renewed, half_closed, 2 * TICK),
            false => add(End::Idle, self.renewed, idle, 2 * TICK),
        }
        add(End::Lifetime, Duration::ZERO, lifetime, 2 * TICK);
        if down.moved == 0 && !down.done {
            add(End::OriginTimeout, Duration::ZERO, first_byte, 2 * TICK);
        }
        for since in self.pressed.iter().flatten() {
            add(End::WriteStalled, *since, stalled, LOOK);
        }
        all
    }

    /// It has ended, and in time.
    fn ended(&self, report: RelayReport, before: Vec<Due>) {
        let sunk = [self.client.sunk(), self.origin.sunk()];
        assert_eq!([report.down, report.up], sunk.map(|sunk| sunk.0 as u64));
        let (up, down) = (&self.model.up, &self.model.down);
        if matches!(report.end, End::ClientFinished | End::OriginFinished) {
            assert!(up.done && down.done);
            return;
        }
        assert!(!(up.done && down.done), "{} instead of an end", report.end);
        let mut all = self.due();
        all.extend(before);
        let owed = |due: &Due| due.end == report.end && due.at <= self.now;
        assert!(all.iter().any(owed), "{} of {all:?}", report.end);
        for side in SIDES {
            let way = self.model.way_from(side);
            let cut = match report.end {
                End::HalfClosed | End::Idle => !way.is_through(),
                _ => !way.done,
            };
            let aborted = self.puppet(other(side)).strings().aborted;
            assert_eq!(aborted, cut, "{}: {side:?}", report.end);
        }
    }

    fn puppet(&self, side: Side) -> &Puppet {
        match side {
            Side::Client => &self.client,
            _ => &self.origin,
        }
    }
}

/// Whether the sink has yet to take something: bytes, a flush, the end.
fn presses(way: &Way) -> bool {
    let ends = way.end.is_some() && way.is_through();
    !way.done && (way.sent > way.moved || way.flushed < way.moved || ends)
}

/// When a relay is to end, by what, and how much later it may.
#[derive(Clone, Copy, Debug)]
struct Due {
    end: End,
    at: Duration,
    slack: Duration,
}

struct Flag(AtomicBool);

impl Wake for Flag {
    fn wake(self: Arc<Self>) {
        self.0.store(true, Ordering::Relaxed);
    }
}

fn plan() -> impl Strategy<Value = Plan> {
    let wait = prop_oneof![
        3 => 0..1500_u64,
        3 => 1500..6000_u64,
        1 => 6000..30_000_u64,
    ];
    let step = (wait.prop_map(Duration::from_millis), event());
    let steps = proptest::collection::vec(step, 1..20);
    (limits(), steps).prop_map(|(limits, steps)| Plan { limits, steps })
}

fn limits() -> impl Strategy<Value = Limits> {
    let secs = |most: u64| proptest::option::of((1..most).prop_map(Duration::from_secs));
    (secs(20), secs(20), secs(60), secs(20), secs(10)).prop_map(
        |(idle, half_closed, lifetime, first_byte, stalled)| Limits {
            idle,
            half_closed,
            lifetime,
            first_byte,
            stalled,
        },
    )
}

fn event() -> impl Strategy<Value = Event> {
    let side = || prop_oneof![Just(Side::Client), Just(Side::Origin)];
    prop_oneof![
        6 => (side(), 1..5000_usize).prop_map(|(side, more)| Event::Offer(side, more)),
        6 => (side(), 1..20_000_usize).prop_map(|(side, more)| Event::Widen(side, more)),
        2 => (side(), any::<bool>(), any::<bool>())
            .prop_map(|(side, flushes, shuts)| Event::Pass(side, flushes, shuts)),
        1 => side().prop_map(|side| Event::Ends(side, SourceEnd::Fin)),
    ]
}

/// A side that takes nothing is looked at once a second: to see that it has
/// begun, and that it has lasted.
const LOOK: Duration = Duration::from_secs(2);
