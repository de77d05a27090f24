//! Request heads: any cut gives the same result, a plain reading agrees, and
//! what is forwarded has one reading.
#![no_main]

#[path = "../../proxy-http/tests/wire_support/mod.rs"]
mod wire_support;

libfuzzer_sys::fuzz_target!(|input: &[u8]| wire_support::request(input));
