//! Basic credentials: what is read is what would be written.
#![no_main]

#[path = "../../proxy-http/tests/wire_support/mod.rs"]
mod wire_support;

libfuzzer_sys::fuzz_target!(|input: &[u8]| wire_support::credentials(input));
