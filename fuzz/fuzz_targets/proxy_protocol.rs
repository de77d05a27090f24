//! PROXY protocol headers: any cut gives the same result, a plain reading agrees,
//! and what is read is what would be written.
#![no_main]

#[path = "../../proxy-core/tests/proxy_protocol_support/mod.rs"]
mod proxy_protocol_support;

libfuzzer_sys::fuzz_target!(|input: &[u8]| proxy_protocol_support::header(input));
