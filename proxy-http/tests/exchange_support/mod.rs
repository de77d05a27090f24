//! Whole exchanges in memory: a transcript says what client and origin send and when, the real
//! server runs in between, and what came out is held against what went in. Used by the fuzz target
//! and by the tests that replay its corpus.
#![allow(dead_code, reason = "each user needs some of it")]

mod gateway;
mod judge;
mod transcript;
mod wire;

pub(crate) use transcript::play;
