//! Looking up names and addresses in lists of no, ten and a hundred thousand
//! entries: of one rule, and of as many rules.

use std::hint::black_box;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use criterion::{BenchmarkId, Criterion, criterion_group, criterion_main};
use proxy_core::{NamePattern, Names, Network, NetworkError, Networks, Special};

fn names(c: &mut Criterion) {
    let mut group = c.benchmark_group("names");
    for (rules, step) in RULES {
        for size in SIZES {
            let patterns: Vec<NamePattern> = (0..size)
                .map(|at| format!(".d{at}.example.com").parse().expect("a pattern"))
                .collect();
            let list = Names::new(patterns.iter().zip(0..).map(|(own, at)| (own, at * step)));
            for (kind, name) in [
                ("listed", "www.d7.example.com"),
                ("other", "www.example.org"),
            ] {
                let id = BenchmarkId::new(format!("{rules}/{kind}"), size);
                group.bench_function(id, |b| {
                    b.iter(|| list.find(black_box(name)).map(<[u32]>::len).sum::<usize>());
                });
            }
        }
    }
    group.finish();
}

fn networks(c: &mut Criterion) {
    let mut group = c.benchmark_group("networks");
    for (rules, step) in RULES {
        for size in SIZES {
            let entries = (0..size).flat_map(|at| [v4(at), v6(at)].map(|own| (own, at * step)));
            let list = Networks::new(entries);
            for (kind, address) in [
                ("v4", v4(7).address()),
                ("v6", v6(7).address()),
                ("other", IpAddr::from([192, 0, 2, 7])),
            ] {
                let id = BenchmarkId::new(format!("{rules}/{kind}"), size);
                group.bench_function(id, |b| {
                    b.iter(|| {
                        let hits = list.find(black_box(address));
                        hits.map(|(_, rules)| rules.len()).sum::<usize>()
                    });
                });
            }
        }
    }
    group.finish();
}

fn special(c: &mut Criterion) {
    let public = IpAddr::from([9, 9, 9, 9]);
    c.bench_function("special", |b| {
        b.iter(|| Special::of(black_box(public)).is_some());
    });
}

/// Of all lengths from 8 on, scattered.
fn v4(at: u32) -> Network {
    let ip = Ipv4Addr::from_bits(at.wrapping_mul(0x9e37_79b9));
    network(ip.into(), 8 + at % 25)
}

/// Of all lengths from 16 to 64.
fn v6(at: u32) -> Network {
    let ip = Ipv6Addr::from_bits(u128::from(at).wrapping_mul(0x9e37_79b9_7f4a_7c15) << 64);
    network(ip.into(), 16 + at % 49)
}

fn network(ip: IpAddr, prefix: u32) -> Network {
    let prefix = u8::try_from(prefix).expect("a prefix");
    match Network::new(ip, prefix) {
        Ok(network) | Err(NetworkError::HostBits(network)) => network,
        Err(error) => panic!("{error}"),
    }
}

const SIZES: [u32; 3] = [0, 10, 100_000];

/// All entries are of one rule, or each is of its own.
const RULES: [(&str, u32); 2] = [("one-rule", 0), ("many-rules", 1)];

criterion_group!(benches, names, networks, special);
criterion_main!(benches);
