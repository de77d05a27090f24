//! What can happen to the two streams of a relay, at random.
#![allow(dead_code, reason = "each test binary uses a part")]

use proptest::prelude::*;
use proxy_core::Side;

use super::puppet::{SinkFault, SourceEnd};

/// One thing that happens outside the relay.
#[derive(Clone, Debug)]
pub(crate) enum Event {
    /// A source has so many bytes more.
    Offer(Side, usize),
    /// A sink takes so many bytes more.
    Widen(Side, usize),
    /// Whether flushes and shutdowns of a sink get through.
    Pass(Side, bool, bool),
    ReadBy(Side, Vec<usize>),
    WriteBy(Side, Vec<usize>),
    /// A source ends. One that is reset takes nothing either.
    Ends(Side, SourceEnd),
    Fails(Side, SinkFault),
}

/// Anything that can happen; failures are rare.
pub(crate) fn event() -> impl Strategy<Value = Event> {
    prop_oneof![
        16 => (side(), size()).prop_map(|(side, more)| Event::Offer(side, more)),
        16 => (side(), size()).prop_map(|(side, more)| Event::Widen(side, more)),
        6 => (side(), any::<bool>(), any::<bool>())
            .prop_map(|(side, flushes, shuts)| Event::Pass(side, flushes, shuts)),
        4 => (side(), turns()).prop_map(|(side, turns)| Event::ReadBy(side, turns)),
        4 => (side(), turns()).prop_map(|(side, turns)| Event::WriteBy(side, turns)),
        4 => side().prop_map(|side| Event::Ends(side, SourceEnd::Fin)),
        1 => side().prop_map(|side| Event::Ends(side, SourceEnd::Reset)),
        1 => side().prop_map(|side| Event::Ends(side, SourceEnd::Truncated)),
        1 => (side(), fault()).prop_map(|(side, fault)| Event::Fails(side, fault)),
    ]
}

fn side() -> impl Strategy<Value = Side> {
    prop_oneof![Just(Side::Client), Just(Side::Origin)]
}

fn fault() -> impl Strategy<Value = SinkFault> {
    prop_oneof![Just(SinkFault::Broken), Just(SinkFault::Zero)]
}

/// From a few bytes to more than a relay moves in one go.
fn size() -> impl Strategy<Value = usize> {
    prop_oneof![
        6 => 1..200_usize,
        4 => 1..20_000_usize,
        2 => 50_000..400_000_usize,
        1 => 900_000..1_600_000_usize,
    ]
}

fn turns() -> impl Strategy<Value = Vec<usize>> {
    let turn = prop_oneof![Just(0), 1..10_usize, 1..70_000_usize];
    proptest::collection::vec(turn, 1..6)
}
