//! The CONNECT client: any cut of the parent's answer gives the same result.
#![no_main]

#[path = "../../proxy-http/tests/wire_support/mod.rs"]
mod wire_support;

libfuzzer_sys::fuzz_target!(|input: &[u8]| wire_support::connect_client(input));
