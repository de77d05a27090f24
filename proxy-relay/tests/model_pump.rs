//! Exact lengths under random schedules: never a byte beyond, and the failure
//! that is owed. When splicing begins and ends.

mod support;

use std::future::poll_fn;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, Wake, Waker};

use proptest::prelude::*;
use proptest::test_runner::{Config, RngAlgorithm, TestRng, TestRunner};
use proxy_core::Side;
use proxy_relay::{Lent, Pump, PumpError, lent};
use support::model::{MOST, Way};
use support::puppet::{Puppet, SourceEnd};
use support::schedule::{Event, event};
use support::{Noise, check_noise, pair, send_noise, until, within};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

#[test]
fn p49_exactly_what_was_asked_for_is_moved_whatever_the_streams_do() {
    let data = Rc::from(Noise::bytes(3, MOST));
    let config = Config {
        // More with PROPTEST_CASES, always the same ones first.
        cases: 20 * Config::default().cases,
        failure_persistence: None,
        ..Config::default()
    };
    let random = TestRng::deterministic_rng(RngAlgorithm::ChaCha);
    TestRunner::new_with_rng(config, random)
        .run(&plan(), |plan| {
            play(&plan, &data);
            assert_eq!(lent(), Lent::default());
            Ok(())
        })
        .unwrap_or_else(|error| panic!("{error}"));
}

/// Steps of events that a pump sees at once.
#[derive(Clone, Debug)]
struct Plan {
    len: usize,
    early: usize,
    steps: Vec<Vec<Event>>,
}

fn play(plan: &Plan, data: &Rc<[u8]>) {
    let mut pump = Pump::exactly(plan.len as u64);
    let early = pump.early(&data[..plan.early]);
    assert_eq!(early, plan.early.min(plan.len));
    let mut stage = Stage {
        pump,
        from: Puppet::new(data, data, early),
        to: Puppet::new(data, data, 0),
        way: Way::new(early),
        len: plan.len,
        woken: Arc::new(Flag(AtomicBool::new(true))),
    };
    let last = vec![
        Event::Pass(Side::Origin, true, true),
        Event::Widen(Side::Origin, MOST),
        Event::Ends(Side::Client, SourceEnd::Fin),
    ];
    let over = plan
        .steps
        .iter()
        .chain([&last])
        .any(|step| stage.step(step));
    assert!(over, "does not end: {:?}", stage.way);
}

/// A pump from a client to an origin.
struct Stage {
    pump: Pump,
    from: Puppet,
    to: Puppet,
    /// What the source has, also beyond the length.
    way: Way,
    len: usize,
    woken: Arc<Flag>,
}

impl Stage {
    /// Whether it is over.
    fn step(&mut self, events: &[Event]) -> bool {
        for event in events {
            self.happen(event);
        }
        let polled = self.settle();
        assert!(self.from.strings().source.read <= self.len, "read beyond");
        assert_eq!(self.pump.moved(), self.to.sunk().0 as u64);
        assert!(!self.to.sunk().1, "an end that nobody asked for");
        match polled {
            Some(result) => {
                self.ended(result);
                true
            }
            None => {
                self.rests();
                false
            }
        }
    }

    fn happen(&mut self, event: &Event) {
        let way = &mut self.way;
        match event {
            Event::Offer(Side::Client, more) if way.end.is_none() => {
                way.sent = (way.sent + more).min(MOST);
                self.from.offer(way.sent);
            }
            Event::Widen(Side::Origin, more) => {
                way.room = (way.room + more).min(MOST);
                self.to.widen(way.room);
            }
            Event::Pass(Side::Origin, flushes, shuts) => {
                way.flushes = *flushes;
                self.to.pass(*flushes, *shuts);
            }
            Event::ReadBy(Side::Client, turns) => self.from.read_by(turns),
            Event::WriteBy(Side::Origin, turns) => self.to.write_by(turns),
            Event::Ends(Side::Client, end) if way.end.is_none() => {
                way.end = Some(*end);
                self.from.end(*end);
            }
            Event::Fails(Side::Origin, fault) if way.fault.is_none() => {
                way.fault = Some(*fault);
                self.to.fail(*fault);
            }
            _ => {}
        }
    }

    fn settle(&mut self) -> Option<Result<(), PumpError>> {
        while self.woken.0.load(Ordering::Relaxed) {
            self.woken = Arc::new(Flag(AtomicBool::new(false)));
            let waker = Waker::from(self.woken.clone());
            let mut cx = Context::from_waker(&waker);
            if let Poll::Ready(result) = self.pump.poll(&mut cx, &mut self.from, &mut self.to) {
                return Some(result);
            }
        }
        None
    }

    /// The same with an end behind the length, which is not told on.
    fn cut(&self) -> Way {
        let mut way = self.way.clone();
        if way.sent >= self.len {
            way.sent = self.len;
            way.end = Some(SourceEnd::Fin);
        }
        way.shuts = true;
        way
    }

    fn rests(&mut self) {
        let mut way = self.cut();
        assert!(!way.finishes() && !way.write_fails() && !way.read_fails());
        let truncated = way.end.is_some() && way.sent < self.len && way.is_through();
        assert!(!truncated, "unnoticed");
        assert_eq!(self.to.sunk().0, way.goal());
        let idle = way.is_through();
        assert_eq!(self.pump.is_idle(), idle);
        assert_eq!(lent().spills, i64::from(!idle));
        assert!(!self.pump.is_done());
        way.rests();
        (self.way.moved, self.way.flushed) = (way.moved, way.flushed);
    }

    fn ended(&self, result: Result<(), PumpError>) {
        let (way, taken) = (self.cut(), self.to.sunk().0);
        match result {
            Ok(()) => {
                assert!(way.finishes() && self.pump.is_done() && self.pump.is_idle());
                assert_eq!(
                    (taken, self.to.strings().sink.flushed),
                    (self.len, self.len)
                );
            }
            Err(PumpError::Write(_)) => assert!(way.write_fails()),
            Err(error) => {
                let cut = way.end == Some(SourceEnd::Fin) && error == PumpError::Truncated;
                assert!(cut || way.read_fails(), "{error}");
                assert!(taken == way.sent && taken < self.len);
            }
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
    let size = || prop_oneof![Just(0), 1..300_usize, 1..300_000_usize, 1..3_000_000_usize];
    let steps = proptest::collection::vec(proptest::collection::vec(event(), 1..6), 1..24);
    (size(), size(), steps).prop_map(|(len, early, steps)| Plan {
        len,
        early: early.min(400_000),
        steps,
    })
}

#[tokio::test]
async fn p49_only_what_proved_long_is_spliced_and_only_as_long_as_it_is() {
    let (mut ours, mut theirs) = (pair().await, pair().await);
    let (source, sink) = (&mut ours.0, &mut theirs.1);
    let mut pump = Pump::new();
    for round in 0..3 {
        let chat = async {
            for _ in 0..10 {
                source.write_all(&[1; 5000]).await.expect("write");
                sink.read_exact(&mut [0; 5000]).await.expect("read");
            }
        };
        pumped(&mut pump, &mut ours.1, &mut theirs.0, chat).await;
        assert!(!is_splicing(&pump), "for a few messages");
        let bulk = async {
            let reading = async {
                until("held bytes", || lent() != Lent::default()).await;
                check_noise(sink, round, BULK).await
            };
            let (sent, spliced) = tokio::join!(send_noise(source, round, BULK), reading);
            sent.expect("send");
            assert!(spliced, "never spliced");
        };
        pumped(&mut pump, &mut ours.1, &mut theirs.0, bulk).await;
    }
}

/// Does `work` with the pump running beside it.
async fn pumped(pump: &mut Pump, from: &mut TcpStream, to: &mut TcpStream, work: impl Future) {
    let pumping = poll_fn(|cx| pump.poll(cx, from, to));
    tokio::select! {
        done = within(10, work) => assert!(done.is_some(), "hangs"),
        end = pumping => panic!("ended: {end:?}"),
    }
}

/// Told by its looks, since nothing else shows it.
fn is_splicing(pump: &Pump) -> bool {
    format!("{pump:?}").contains("mode: Splice")
}

/// Enough to be spliced if it is read late.
const BULK: usize = 6 << 20;
