//! Targets: what is read shows as a text that reads the same.
#![no_main]

use proxy_core::{Host, Target, TargetBuf};

libfuzzer_sys::fuzz_target!(|input: &[u8]| {
    let _ = Host::name(input);
    let Ok(text) = std::str::from_utf8(input) else {
        return;
    };
    for default_port in [None, Some(80)] {
        if let Ok(target) = Target::parse(text, default_port) {
            let shown = target.to_string();
            assert_eq!(Target::parse(&shown, None), Ok(target));
            assert_eq!(TargetBuf::from(target).as_target(), target);
        }
    }
});
