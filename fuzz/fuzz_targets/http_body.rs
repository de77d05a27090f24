//! Bodies: any cut gives the same result, with content looked at or skipped.
#![no_main]

#[path = "../../proxy-http/tests/wire_support/mod.rs"]
mod wire_support;

libfuzzer_sys::fuzz_target!(|input: &[u8]| wire_support::body(input));
