//! Changed heads: whatever the changes, one reading and the same framing.
#![no_main]

#[path = "../../proxy-http/tests/wire_support/mod.rs"]
mod wire_support;

libfuzzer_sys::fuzz_target!(|input: &[u8]| wire_support::edit(input));
