//! Lists of names and networks: compiled, they find what their entries mean one
//! by one. The first line is looked for, each other line is an entry.
#![no_main]

use std::net::{IpAddr, Ipv6Addr};

use proxy_core::{Host, NamePattern, Names, Network, NetworkError, Networks, Special};

libfuzzer_sys::fuzz_target!(|input: &[u8]| {
    let Ok(text) = std::str::from_utf8(input) else {
        return;
    };
    let mut lines = text.lines();
    let wanted = lines.next().unwrap_or("");
    let entries: Vec<&str> = lines.collect();
    names(wanted, &entries);
    networks(wanted, &entries);
});

fn names(wanted: &str, entries: &[&str]) {
    let entries = entries.iter().filter_map(|text| text.parse().ok());
    let patterns: Vec<NamePattern> = entries.collect();
    for pattern in &patterns {
        assert_eq!(pattern.to_string().parse().as_ref(), Ok(pattern));
    }
    let names = Names::new(patterns.iter().zip(0..));
    let mut found: Vec<u32> = Vec::new();
    for rules in names.find(wanted) {
        assert!(!rules.is_empty() && rules.is_sorted_by(|a, b| a < b));
        found.extend(rules);
    }
    found.sort_unstable();
    found.dedup();
    let meant = patterns.iter().zip(0..);
    let meant = meant.filter(|(pattern, _)| pattern.matches(wanted));
    assert!(meant.map(|(_, rule)| rule).eq(found));
}

fn networks(wanted: &str, entries: &[&str]) {
    let networks: Vec<Network> = entries.iter().filter_map(|text| network(text)).collect();
    for network in &networks {
        assert_eq!(network.to_string().parse().as_ref(), Ok(network));
        assert!(network.contains(network.address()));
    }
    let Ok(Host::Ip(ip)) = Host::name(wanted.as_bytes()) else {
        return;
    };
    special(ip);
    let list = Networks::new(networks.iter().copied().zip(0..));
    let hits = list.find(ip);
    let mut found: Vec<(u8, u32)> = Vec::new();
    for (prefix, rules) in hits {
        // The smallest network first.
        assert!(found.last().is_none_or(|(last, _)| prefix < *last));
        found.extend(rules.iter().map(|rule| (prefix, *rule)));
    }
    let meant = networks.iter().zip(0..);
    let meant = meant.filter(|(network, _)| network.contains(ip));
    let mut meant: Vec<(u8, u32)> = meant.map(|(own, rule)| (own.prefix(), rule)).collect();
    meant.sort_by_key(|(prefix, rule)| (u8::MAX - prefix, *rule));
    assert_eq!(found, meant);
}

/// A network as written, or the one that was meant.
fn network(text: &str) -> Option<Network> {
    match text.parse() {
        Ok(network) | Err(NetworkError::HostBits(network)) => Some(network),
        Err(_) => None,
    }
}

/// What carries a special address is special too.
fn special(ip: IpAddr) {
    let IpAddr::V4(v4) = ip else {
        return;
    };
    let [a, b, c, d] = v4.octets().map(u16::from);
    let (high, low) = (a << 8 | b, c << 8 | d);
    let expected = Special::of(ip);
    let mapped = Ipv6Addr::new(0, 0, 0, 0, 0, 0xffff, high, low);
    let nat64 = Ipv6Addr::new(0x64, 0xff9b, 0, 0, 0, 0, high, low);
    let six_to_four = Ipv6Addr::new(0x2002, high, low, 0, 0, 0, 0, 1);
    for carrier in [mapped, nat64, six_to_four] {
        assert_eq!(Special::of(carrier.into()), expected, "{carrier}");
    }
}
