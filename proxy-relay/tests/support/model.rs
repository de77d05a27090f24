//! What a relay owes two streams, told plainly: bytes, order, ends, failures.

#![allow(dead_code, reason = "each test binary uses a part")]

use proxy_core::Side;

use super::puppet::{SinkFault, SourceEnd};
use super::schedule::Event;

/// What must have become of one direction.
#[derive(Clone, Debug)]
pub(crate) struct Way {
    /// All that came from its source.
    pub(crate) sent: usize,
    pub(crate) end: Option<SourceEnd>,
    pub(crate) room: usize,
    pub(crate) flushes: bool,
    pub(crate) shuts: bool,
    pub(crate) fault: Option<SinkFault>,
    /// As of the last rest.
    pub(crate) moved: usize,
    pub(crate) flushed: usize,
    /// Whether the last flush is over.
    closing: bool,
    pub(crate) done: bool,
}

impl Way {
    pub(crate) fn new(early: usize) -> Self {
        Self {
            sent: early,
            end: None,
            room: 0,
            flushes: true,
            shuts: true,
            fault: None,
            moved: 0,
            flushed: 0,
            closing: false,
            done: false,
        }
    }

    /// How many bytes the sink has in the end if nothing ends the relay.
    pub(crate) fn goal(&self) -> usize {
        match self.fault {
            Some(_) => self.moved,
            None => self.sent.min(self.room),
        }
    }

    pub(crate) fn is_through(&self) -> bool {
        self.goal() == self.sent
    }

    /// Whether the end is told to the sink.
    pub(crate) fn finishes(&self) -> bool {
        self.done || self.is_flushed_to_the_end() && self.shuts
    }

    /// Whether nothing but the end is still to be told.
    fn is_flushed_to_the_end(&self) -> bool {
        let ends = self.end == Some(SourceEnd::Fin) && self.is_through();
        ends && self.fault != Some(SinkFault::Broken) && (self.flushes || self.closing)
    }

    pub(crate) fn write_fails(&self) -> bool {
        let writes = self.sent > self.moved;
        match self.fault {
            None => false,
            Some(SinkFault::Zero) => writes,
            Some(SinkFault::Broken) => {
                writes || self.flushed < self.moved || self.end == Some(SourceEnd::Fin)
            }
        }
    }

    pub(crate) fn read_fails(&self) -> bool {
        self.is_through() && self.end.is_some_and(|end| end != SourceEnd::Fin)
    }

    pub(crate) fn rests(&mut self) {
        self.moved = self.goal();
        self.done = self.finishes();
        self.closing = self.is_flushed_to_the_end();
        if self.is_through() && self.flushes {
            self.flushed = self.moved;
        }
    }
}

/// Which stream failed, and whether without a reset.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Failure {
    pub(crate) side: Side,
    pub(crate) truncated: bool,
}

/// Both directions as they must be, and what may end them.
#[derive(Debug)]
pub(crate) struct Model {
    pub(crate) up: Way,
    pub(crate) down: Way,
    /// Which end came first; both if they came at once.
    pub(crate) first: Vec<Side>,
    /// Who may be cut off, so that only a flush is waited for.
    pub(crate) lingers: Vec<Side>,
}

impl Model {
    pub(crate) fn new(early: (usize, usize)) -> Self {
        Self {
            up: Way::new(early.0),
            down: Way::new(early.1),
            first: Vec::new(),
            lingers: Vec::new(),
        }
    }

    /// The direction out of `side`.
    pub(crate) fn way_from(&self, side: Side) -> &Way {
        match side {
            Side::Client => &self.up,
            _ => &self.down,
        }
    }

    /// The direction to `side`.
    pub(crate) fn way_to(&self, side: Side) -> &Way {
        self.way_from(other(side))
    }

    pub(crate) fn change(&mut self, side: Side) -> &mut Way {
        match side {
            Side::Client => &mut self.up,
            _ => &mut self.down,
        }
    }

    fn change_to(&mut self, side: Side) -> &mut Way {
        self.change(other(side))
    }

    pub(crate) fn apply(&mut self, event: &Event) {
        match *event {
            Event::Offer(side, more) => {
                let way = self.change(side);
                if way.end.is_none() {
                    way.sent = (way.sent + more).min(MOST);
                }
            }
            Event::Widen(side, more) => {
                let way = self.change_to(side);
                way.room = (way.room + more).min(MOST);
            }
            Event::Pass(side, flushes, shuts) => {
                let way = self.change_to(side);
                (way.flushes, way.shuts) = (flushes, shuts);
            }
            Event::Ends(side, end) => {
                let way = self.change(side);
                if way.end.is_none() {
                    way.end = Some(end);
                    if end == SourceEnd::Reset {
                        self.change_to(side).fault = Some(SinkFault::Broken);
                    }
                }
            }
            Event::Fails(side, fault) => {
                let way = self.change_to(side);
                way.fault = way.fault.or(Some(fault));
            }
            Event::ReadBy(..) | Event::WriteBy(..) => {}
        }
    }

    /// What the relay cannot miss.
    pub(crate) fn failures(&self) -> Vec<Failure> {
        let mut all = Vec::new();
        for side in SIDES {
            let way = self.way_from(side);
            if way.done {
                continue;
            }
            if way.write_fails() {
                let side = other(side);
                all.push(Failure {
                    side,
                    truncated: false,
                });
            }
            if way.read_fails() {
                let truncated = way.end == Some(SourceEnd::Truncated);
                all.push(Failure { side, truncated });
            }
        }
        all
    }

    /// Sources that were reset and are perhaps not read, since their sinks are
    /// full or have yet to be asked again. It may be noticed at once.
    pub(crate) fn unread_resets(&self) -> Vec<Side> {
        let unread = |way: &Way| way.end == Some(SourceEnd::Reset) && way.sent > way.moved;
        let mut sides = SIDES.to_vec();
        sides.retain(|&side| unread(self.way_from(side)));
        sides
    }

    /// Whether nothing more is waited for once `side` was cut off.
    pub(crate) fn lingering_ends(&self, side: Side) -> bool {
        let way = self.way_from(side);
        way.flushes || way.fault == Some(SinkFault::Broken)
    }
}

pub(crate) fn other(side: Side) -> Side {
    match side {
        Side::Client => Side::Origin,
        _ => Side::Client,
    }
}

pub(crate) const SIDES: [Side; 2] = [Side::Client, Side::Origin];

/// The most that one source has.
pub(crate) const MOST: usize = 8 << 20;
