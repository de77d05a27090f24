//! Reading targets: names, IPv4 and IPv6 addresses.

use std::hint::black_box;

use criterion::{Criterion, criterion_group, criterion_main};
use proxy_core::Target;

fn targets(c: &mut Criterion) {
    let mut group = c.benchmark_group("target");
    for (name, text) in [
        ("name", "www.example.com:8080"),
        ("ipv4", "192.0.2.17:8080"),
        ("ipv6", "[2001:db8::17]:8080"),
    ] {
        group.bench_function(name, |b| {
            b.iter(|| Target::parse(black_box(text), Some(80)).is_ok());
        });
    }
    group.finish();
}

criterion_group!(benches, targets);
criterion_main!(benches);
