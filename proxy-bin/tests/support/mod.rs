//! What the end-to-end tests share: the running `proxyd`, clients, origins.
//!
//! Everything blocks and every wait has a deadline, so that a fault shows as a
//! failed test and never as a test that hangs.

#![allow(dead_code, reason = "each test binary uses its own part")]
#![allow(
    unused_imports,
    reason = "each test binary uses its own part of the names below"
)]

mod certs;
mod check;
mod conn;
mod curl;
mod dns;
mod fault;
mod http;
mod log;
mod mode;
mod netns;
mod origin;
mod passage;
mod pattern;
mod proc;
mod proxyd;
mod stage;
mod udp;

use std::time::{Duration, Instant};

pub(crate) use certs::Certs;
pub(crate) use check::{check, run_beside};
pub(crate) use conn::{Conn, Ended, client_hello, find};
pub(crate) use curl::{Curl, Fetched};
pub(crate) use dns::{A, AAAA, NameServer, Reply};
pub(crate) use fault::{Cut, Fault, FaultRelay, Place};
pub(crate) use http::{Answer, Request, basic, check_chunks, ok, take_head};
pub(crate) use log::LogLine;
pub(crate) use mode::{Mode, socks5_reply};
pub(crate) use netns::{Net, Place as At, enter};
pub(crate) use origin::{Accepted, Origin, closed_port};
pub(crate) use passage::{Passage, Passing};
pub(crate) use pattern::{DOWN, Pattern, UP};
pub(crate) use proc::{Descriptors, Process};
pub(crate) use proxyd::{Proxyd, Stopped};
pub(crate) use stage::Stage;
pub(crate) use udp::{ASSOCIATE, Echo, Udp, datagram};

/// How long anything that should happen at once may take on a loaded machine.
pub(crate) const DEADLINE: Duration = Duration::from_secs(20);

/// Waits until `condition` holds.
///
/// # Panics
/// When it does not within [`DEADLINE`]; `what` says what was waited for.
pub(crate) fn wait_for(what: &str, mut condition: impl FnMut() -> bool) {
    let start = Instant::now();
    while !condition() {
        assert!(start.elapsed() < DEADLINE, "waited in vain for {what}");
        std::thread::sleep(Duration::from_millis(2));
    }
}

/// A fixed sequence of pseudo-random numbers (xorshift64).
pub(crate) struct Random(u64);

impl Random {
    pub(crate) fn new(seed: u64) -> Self {
        Self(seed | 1)
    }

    pub(crate) fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }

    /// A number below `limit`.
    pub(crate) fn below(&mut self, limit: usize) -> usize {
        usize::try_from(self.next() % limit as u64).expect("below a usize")
    }

    pub(crate) fn bytes(&mut self, count: usize) -> Vec<u8> {
        (0..count).map(|_| self.next().to_le_bytes()[3]).collect()
    }
}
