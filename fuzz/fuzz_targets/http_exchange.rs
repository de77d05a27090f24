//! Whole exchanges: what origins and clients receive is what was decided about what they sent.
#![no_main]

#[path = "../../proxy-http/tests/exchange_support/mod.rs"]
mod exchange_support;

libfuzzer_sys::fuzz_target!(|input: &[u8]| exchange_support::play(input));
