//! Random conversations over real sockets, copied and spliced, against the same
//! plain model of what a relay owes them.

mod support;

use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use proptest::prelude::*;
use proptest::test_runner::{Config, RngAlgorithm, TestRng, TestRunner};
use proxy_core::{End, Side, Stop};
use proxy_relay::{Lent, RelayOptions, RelayReport, Transport, lent, relay};
use support::model::{MOST, Model, SIDES, other};
use support::puppet::SourceEnd;
use support::schedule::Event;
use support::{How, Maybe, Noise, expect_end, expect_reset, pair_of, until, within};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::sync::Notify;
use tokio::task::JoinHandle;

#[test]
fn p49_spliced_and_copied_conversations_are_the_same() {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .expect("runtime");
    let data = [1, 2].map(|seed| Noise::bytes(seed, MOST));
    let config = Config {
        // More with PROPTEST_CASES, always the same ones first.
        cases: Config::default().cases.div_ceil(8),
        failure_persistence: None,
        // Each may take as long as a relay that hangs.
        max_shrink_iters: 4,
        ..Config::default()
    };
    let spliced = AtomicUsize::new(0);
    let random = TestRng::deterministic_rng(RngAlgorithm::ChaCha);
    TestRunner::new_with_rng(config, random)
        .run(&plan(), |plan| {
            for how in [How::Copy, How::Splice] {
                let seen = runtime.block_on(async {
                    let played = within(20, play(&plan, how, &data)).await;
                    played.unwrap_or_else(|| panic!("{how:?} hangs"))
                });
                assert!(!seen || how == How::Splice, "a pipe for a copy");
                spliced.fetch_add(usize::from(seen), Ordering::Relaxed);
            }
            Ok(())
        })
        .unwrap_or_else(|error| panic!("{error}"));
    assert!(spliced.into_inner() > 5, "hardly ever spliced");
}

#[derive(Clone, Debug)]
struct Plan {
    /// Bytes that the buffers of the sockets hold, about.
    buffers: usize,
    up: Vec<Phase>,
    down: Vec<Phase>,
    ending: Ending,
}

/// A part of what goes one way; the next begins when all of it has arrived.
#[derive(Clone, Copy, Debug)]
enum Phase {
    Bulk {
        bytes: usize,
        /// Whether it is read only once the relay has to hold some of it.
        late: bool,
    },
    /// Small messages, each sent when the one before has arrived.
    Chat {
        messages: usize,
        size: usize,
    },
    Pause(u64),
}

#[derive(Clone, Copy, Debug)]
enum Ending {
    /// One side closes as soon as it has sent all; the other hears it, sends
    /// some more and closes.
    Closes {
        first: Side,
        more: usize,
    },
    /// With nothing under way.
    Resets(Side),
    /// While it receives.
    ResetsReading {
        side: Side,
        read: usize,
    },
    /// While it sends to somebody who does not read.
    ResetsWriting(Side),
    IsStopped,
}

/// A client and an origin with a relay between them.
struct Line {
    client: TcpStream,
    origin: TcpStream,
    relay: JoinHandle<RelayReport>,
    stop: Stop,
    model: Model,
}

/// Whether a pipe was seen at work.
async fn play(plan: &Plan, how: How, data: &[Vec<u8>; 2]) -> bool {
    let mut line = Line::new(plan.buffers, how).await;
    let spliced = match plan.ending {
        Ending::Closes { first, more } => line.closes(plan, data, first, more).await,
        _ => line.both(plan, data).await,
    };
    let sent = [&plan.up, &plan.down].map(|phases| total(phases));
    match plan.ending {
        Ending::Closes { .. } => {}
        Ending::Resets(side) => line.resets(side).await,
        Ending::ResetsReading { side, read } => line.resets_reading(side, read, data, sent).await,
        Ending::ResetsWriting(side) => line.resets_writing(side, data, sent).await,
        Ending::IsStopped => line.is_stopped().await,
    }
    assert_eq!(lent(), Lent::default());
    spliced
}

impl Line {
    async fn new(buffers: usize, how: How) -> Self {
        let (client, near) = pair_of(buffers).await;
        let (far, origin) = pair_of(buffers).await;
        let stop = Stop::new();
        let mut options = RelayOptions::default();
        options.stop(stop.clone());
        let (mut near, mut far) = (Maybe::new(near, how), Maybe::new(far, how));
        let relay = tokio::spawn(async move { relay(&mut near, &mut far, &options).await });
        Self {
            client,
            origin,
            relay,
            stop,
            model: Model::new((0, 0)),
        }
    }

    /// Both directions at once, up to where all has arrived.
    async fn both(&mut self, plan: &Plan, data: &[Vec<u8>; 2]) -> bool {
        self.sent(Side::Client, total(&plan.up));
        self.sent(Side::Origin, total(&plan.down));
        let (mut near, mut near_in) = self.client.split();
        let (mut far, mut far_in) = self.origin.split();
        let (mut near_data, mut far_data) = (&data[0][..], &data[1][..]);
        let up = converse(&plan.up, &mut near_in, &mut far, &mut near_data);
        let down = converse(&plan.down, &mut far_in, &mut near, &mut far_data);
        let (up, down) = tokio::join!(up, down);
        until("all given back", || lent() == Lent::default()).await;
        up | down
    }

    async fn closes(&mut self, plan: &Plan, data: &[Vec<u8>; 2], first: Side, more: usize) -> bool {
        let (near, far) = (&mut self.client, &mut self.origin);
        let [up, down] = [&data[0][..], &data[1][..]];
        let up = (&plan.up[..], up);
        let down = (&plan.down[..], down);
        let (one, two, leading, following) = match first {
            Side::Client => (near, far, up, down),
            _ => (far, near, down, up),
        };
        let (mut one_out, mut one_in) = one.split();
        let (mut two_out, mut two_in) = two.split();
        let heard = Notify::new();
        let leads = async {
            let (phases, mut data) = leading;
            let spliced = converse(phases, &mut one_in, &mut two_out, &mut data).await;
            one_in.shutdown().await.expect("shutdown");
            expect_end(&mut two_out).await;
            heard.notify_one();
            spliced
        };
        let follows = async {
            let (phases, mut data) = following;
            let spliced = converse(phases, &mut two_in, &mut one_out, &mut data).await;
            heard.notified().await;
            let last = [Phase::Bulk {
                bytes: more,
                late: false,
            }];
            converse(&last, &mut two_in, &mut one_out, &mut data).await;
            two_in.shutdown().await.expect("shutdown");
            expect_end(&mut one_out).await;
            spliced
        };
        let (one, two) = tokio::join!(leads, follows);
        self.sent(first, total(leading.0));
        self.ends(first, SourceEnd::Fin);
        self.sent(other(first), total(following.0) + more);
        self.ends(other(first), SourceEnd::Fin);
        self.reports_exactly().await;
        one | two
    }

    async fn resets(&mut self, side: Side) {
        self.reset(side).await;
        self.ends(side, SourceEnd::Reset);
        expect_reset(self.stream(other(side))).await;
        self.reports_exactly().await;
    }

    async fn resets_reading(
        &mut self,
        side: Side,
        read: usize,
        data: &[Vec<u8>; 2],
        sent: [usize; 2],
    ) {
        let (index, moved) = match side {
            Side::Client => (1, sent[1]),
            _ => (0, sent[0]),
        };
        let bulk = &data[index][moved..moved + BULK];
        let (receiver, sender) = match side {
            Side::Client => (&mut self.client, &mut self.origin),
            _ => (&mut self.origin, &mut self.client),
        };
        let reading = async {
            expect(receiver, &bulk[..read]).await;
            receiver.abort();
            // Closed here, while the other still sends.
            let (other_end, _) = pair_of(64 * 1024).await;
            drop(std::mem::replace(receiver, other_end));
        };
        let sending = async {
            // The reset is told once: by a write, or by a read behind the last.
            if sender.write_all(bulk).await.is_ok() {
                expect_reset(sender).await;
            }
        };
        tokio::join!(reading, sending);
        self.sent(other(side), BULK);
        self.ends(side, SourceEnd::Reset);
        self.reports_within(other(side), moved + read).await;
    }

    async fn resets_writing(&mut self, side: Side, data: &[Vec<u8>; 2], sent: [usize; 2]) {
        let index = usize::from(side != Side::Client);
        let moved = sent[index];
        let bulk = &data[index][moved..moved + BULK];
        let mut given = 0;
        while given < BULK {
            let writing = self.stream(side).write(&bulk[given..]);
            match tokio::time::timeout(Duration::from_millis(50), writing).await {
                Ok(written) => given += written.expect("write"),
                Err(_) => break,
            }
        }
        self.reset(side).await;
        let mut got = Vec::new();
        let end = self.stream(other(side)).read_to_end(&mut got).await;
        assert_eq!(
            end.expect_err("no orderly end").kind(),
            std::io::ErrorKind::ConnectionReset
        );
        assert!(bulk.starts_with(&got), "differs");
        self.sent(side, given);
        self.ends(side, SourceEnd::Reset);
        self.reports_within(side, moved + got.len()).await;
    }

    async fn is_stopped(&mut self) {
        self.stop.stop(End::Stopped);
        expect_reset(&mut self.client).await;
        expect_reset(&mut self.origin).await;
        let report = self.report().await;
        assert_eq!(report.end, End::Stopped);
        self.counts(&report, None);
    }

    async fn reset(&mut self, side: Side) {
        let (fresh, _) = pair_of(64 * 1024).await;
        let mut gone = std::mem::replace(self.stream(side), fresh);
        gone.abort();
        drop(gone);
    }

    /// All of it arrived.
    fn sent(&mut self, side: Side, bytes: usize) {
        self.model.apply(&Event::Widen(other(side), MOST));
        self.model.apply(&Event::Offer(side, bytes));
    }

    fn ends(&mut self, side: Side, end: SourceEnd) {
        for side in SIDES {
            self.model.change(side).rests();
        }
        self.model.apply(&Event::Ends(side, end));
    }

    async fn reports_exactly(&mut self) {
        let report = self.report().await;
        self.is_owed(report.end);
        self.counts(&report, None);
    }

    /// From `side` at least `least` bytes went, and no more than were sent.
    async fn reports_within(&mut self, side: Side, least: usize) {
        let report = self.report().await;
        self.is_owed(report.end);
        self.counts(&report, Some((side, least)));
    }

    fn is_owed(&self, end: End) {
        let failures = self.model.failures();
        let mut owed: Vec<End> = failures.iter().map(|f| reset_by(f.side)).collect();
        if owed.is_empty() {
            assert!(self.model.up.finishes() && self.model.down.finishes());
            // The one that was done first.
            owed.push(match self.model.up.done {
                true => End::ClientFinished,
                false => End::OriginFinished,
            });
        }
        assert!(owed.contains(&end), "{end}, not {owed:?}");
    }

    fn counts(&self, report: &RelayReport, partly: Option<(Side, usize)>) {
        for (side, moved) in [(Side::Client, report.up), (Side::Origin, report.down)] {
            let sent = self.model.way_from(side).sent;
            let least = match partly {
                Some((this, least)) if this == side => least,
                _ => sent,
            };
            let moved = usize::try_from(moved).expect("small");
            assert!((least..=sent).contains(&moved), "{side:?}: {report:?}");
        }
    }

    async fn report(&mut self) -> RelayReport {
        let report = within(10, &mut self.relay).await;
        report.expect("the relay ends").expect("no panic")
    }

    fn stream(&mut self, side: Side) -> &mut TcpStream {
        match side {
            Side::Client => &mut self.client,
            _ => &mut self.origin,
        }
    }
}

/// Lets all phases pass one way; whether a pipe was seen at work.
async fn converse(
    phases: &[Phase],
    from: &mut (impl AsyncWrite + Unpin),
    to: &mut (impl AsyncRead + Unpin),
    data: &mut &[u8],
) -> bool {
    let mut spliced = false;
    for phase in phases {
        match *phase {
            Phase::Bulk { bytes, late } => {
                let piece = data.split_off(..bytes).expect("enough data");
                let reading = async {
                    if late {
                        until_held().await;
                    }
                    expect(to, piece).await
                };
                let (written, seen) = tokio::join!(from.write_all(piece), reading);
                written.expect("write");
                spliced |= seen;
            }
            Phase::Chat { messages, size } => {
                for _ in 0..messages {
                    let piece = data.split_off(..size).expect("enough data");
                    from.write_all(piece).await.expect("write");
                    spliced |= expect(to, piece).await;
                }
            }
            Phase::Pause(millis) => tokio::time::sleep(Duration::from_millis(millis)).await,
        }
    }
    spliced
}

/// Waits until the relay holds bytes. What fits into the sockets is never held,
/// so not for long.
async fn until_held() {
    for _ in 0..50 {
        if lent() != Lent::default() {
            return;
        }
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
}

/// Reads `wanted`; whether a pipe was seen at work.
async fn expect(from: &mut (impl AsyncRead + Unpin), mut wanted: &[u8]) -> bool {
    let mut got = vec![0; 128 * 1024];
    let mut spliced = false;
    while !wanted.is_empty() {
        spliced |= lent().pipes > 0;
        let room = wanted.len().min(got.len());
        let n = from.read(&mut got[..room]).await.expect("read");
        assert!(n > 0, "ended with {} bytes to come", wanted.len());
        assert!(got[..n] == wanted[..n], "differs");
        wanted = &wanted[n..];
    }
    spliced
}

fn total(phases: &[Phase]) -> usize {
    let bytes = phases.iter().map(|phase| match *phase {
        Phase::Bulk { bytes, .. } => bytes,
        Phase::Chat { messages, size } => messages * size,
        Phase::Pause(_) => 0,
    });
    bytes.sum()
}

fn reset_by(side: Side) -> End {
    match side {
        Side::Client => End::ClientReset,
        _ => End::OriginReset,
    }
}

fn plan() -> impl Strategy<Value = Plan> {
    let phases = || proptest::collection::vec(phase(), 0..4);
    (65_536..400_000_usize, phases(), phases(), ending()).prop_map(|(buffers, up, down, ending)| {
        Plan {
            buffers,
            up,
            down,
            ending,
        }
    })
}

fn phase() -> impl Strategy<Value = Phase> {
    prop_oneof![
        4 => (1..BULK, any::<bool>()).prop_map(|(bytes, late)| Phase::Bulk { bytes, late }),
        2 => Just(Phase::Bulk { bytes: BULK, late: true }),
        3 => (1..30_usize, 1..3000_usize)
            .prop_map(|(messages, size)| Phase::Chat { messages, size }),
        1 => (0..5_u64).prop_map(Phase::Pause),
    ]
}

fn ending() -> impl Strategy<Value = Ending> {
    let side = || prop_oneof![Just(Side::Client), Just(Side::Origin)];
    prop_oneof![
        4 => (side(), 0..100_000_usize).prop_map(|(first, more)| Ending::Closes { first, more }),
        1 => side().prop_map(Ending::Resets),
        1 => (side(), 0..BULK).prop_map(|(side, read)| Ending::ResetsReading { side, read }),
        1 => side().prop_map(Ending::ResetsWriting),
        1 => Just(Ending::IsStopped),
    ]
}

/// Enough to be spliced if it is read late.
const BULK: usize = 2 << 20;
