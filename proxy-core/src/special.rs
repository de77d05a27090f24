//! Addresses that are no public hosts: what a proxy must not be a way to.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// Why an address is not one of the public Internet (RFC 6890, RFC 8190).
///
/// An IPv6 address that carries an IPv4 address is also judged by that one:
/// IPv4-mapped and IPv4-compatible (RFC 4291 section 2.5.5), NAT64 (RFC 6052
/// section 2.1, RFC 8215), 6to4 (RFC 3056 section 2), Teredo (RFC 4380
/// section 4), ISATAP (RFC 5214 section 6.1).
///
/// ```
/// use proxy_core::Special;
/// let of = |text: &str| Special::of(text.parse().unwrap());
/// assert_eq!(of("10.1.2.3"), Some(Special::Private));
/// assert_eq!(of("64:ff9b::7f00:1"), Some(Special::Loopback));
/// assert_eq!(of("169.254.169.254"), Some(Special::Metadata));
/// assert_eq!(of("9.9.9.9"), None);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Special {
    /// 100.64.0.0/10, between carriers and their customers (RFC 6598).
    Cgnat,
    /// 169.254.0.0/16 and fe80::/10.
    LinkLocal,
    /// 127.0.0.0/8 and ::1.
    Loopback,
    /// Where a cloud gives its machines their secrets.
    Metadata,
    /// 224.0.0.0/4 and ff00::/8.
    Multicast,
    /// RFC 1918, fc00::/7 (RFC 4193) and the former fec0::/10.
    Private,
    /// For documentation, benchmarks, protocols or the future, and all of IPv6
    /// that nobody was given yet.
    Reserved,
    /// 0.0.0.0/8 and ::, which lead to the machine itself.
    Unspecified,
}

impl Special {
    /// What is special about `address`; `None` if it is public.
    pub fn of(address: IpAddr) -> Option<Self> {
        match address {
            IpAddr::V4(ip) => v4(ip),
            IpAddr::V6(ip) => v6(ip),
        }
    }

    /// The word for logs.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Cgnat => "cgnat",
            Self::LinkLocal => "link-local",
            Self::Loopback => "loopback",
            Self::Metadata => "metadata",
            Self::Multicast => "multicast",
            Self::Private => "private",
            Self::Reserved => "reserved",
            Self::Unspecified => "unspecified",
        }
    }
}

fn v4(ip: Ipv4Addr) -> Option<Special> {
    Some(match ip.octets() {
        _ if METADATA_V4.contains(&ip) => Special::Metadata,
        [0, ..] => Special::Unspecified,
        [10, ..] | [172, 16..=31, ..] | [192, 168, ..] => Special::Private,
        [100, 64..=127, ..] => Special::Cgnat,
        [127, ..] => Special::Loopback,
        [169, 254, ..] => Special::LinkLocal,
        // Protocols, documentation, the former anycast of 6to4 relays.
        [192, 0, 0 | 2, _] | [192, 88, 99, _] => Special::Reserved,
        // Benchmarks, documentation.
        [198, 18 | 19, ..] | [198, 51, 100, _] | [203, 0, 113, _] => Special::Reserved,
        [224..=239, ..] => Special::Multicast,
        [240..=255, ..] => Special::Reserved,
        _ => return None,
    })
}

fn v6(ip: Ipv6Addr) -> Option<Special> {
    if METADATA_V6.contains(&ip) {
        return Some(Special::Metadata);
    }
    Some(match ip.segments() {
        [0, 0, 0, 0, 0, 0, 0, 0] => Special::Unspecified,
        [0, 0, 0, 0, 0, 0, 0, 1] => Special::Loopback,
        [0, 0, 0, 0, 0, 0xffff, high, low] => return v4(embedded(high, low)),
        [0x64, 0xff9b, 0, 0, 0, 0, high, low] => return v4(embedded(high, low)),
        // Of no use outside of the site (RFC 8215 section 5), nor any more
        // (RFC 4291 section 2.5.5.1).
        [0x64, 0xff9b, 1, .., high, low] | [0, 0, 0, 0, 0, 0, high, low] => {
            v4(embedded(high, low)).unwrap_or(Special::Reserved)
        }
        [0x2002, high, low, ..] => return v4(embedded(high, low)).or_else(|| isatap(ip)),
        [0x2001, 0, high, low, _, _, client_high, client_low] => {
            // The client's address has all its bits turned over.
            return v4(embedded(high, low)).or_else(|| v4(embedded(!client_high, !client_low)));
        }
        // Protocols: benchmarks, ORCHID and others (RFC 2928).
        [0x2001, 0..=0x1ff, ..] => Special::Reserved,
        [0x2001, 0xdb8, ..] | [0x3fff, 0..=0xfff, ..] => Special::Reserved,
        [0x2000..=0x3fff, ..] => return isatap(ip),
        [0xfc00..=0xfdff, ..] | [0xfec0..=0xfeff, ..] => Special::Private,
        [0xfe80..=0xfebf, ..] => Special::LinkLocal,
        [0xff00..=0xffff, ..] => Special::Multicast,
        // Global unicast is only 2000::/3 (RFC 4291 section 2.4, as assigned).
        _ => Special::Reserved,
    })
}

/// The IPv4 address in an interface identifier of ISATAP.
fn isatap(ip: Ipv6Addr) -> Option<Special> {
    match ip.segments() {
        [_, _, _, _, 0 | 0x200, 0x5efe, high, low] => v4(embedded(high, low)),
        _ => None,
    }
}

fn embedded(high: u16, low: u16) -> Ipv4Addr {
    Ipv4Addr::from_bits(u32::from(high) << 16 | u32::from(low))
}

/// As their providers document them. The one that is a public address is
/// Azure's; the others would be refused all the same, by another name.
const METADATA_V4: [Ipv4Addr; 8] = [
    // Alibaba Cloud
    Ipv4Addr::new(100, 100, 100, 200),
    // Azure's wire server
    Ipv4Addr::new(168, 63, 129, 16),
    // Tencent Cloud
    Ipv4Addr::new(169, 254, 0, 23),
    // Scaleway
    Ipv4Addr::new(169, 254, 42, 42),
    // nearly everybody
    Ipv4Addr::new(169, 254, 169, 254),
    // credentials of AWS ECS tasks and EKS pods
    Ipv4Addr::new(169, 254, 170, 2),
    Ipv4Addr::new(169, 254, 170, 23),
    // Oracle Cloud
    Ipv4Addr::new(192, 0, 0, 192),
];

const METADATA_V6: [Ipv6Addr; 5] = [
    // AWS: instances, and EKS pods
    Ipv6Addr::new(0xfd00, 0xec2, 0, 0, 0, 0, 0, 0x254),
    Ipv6Addr::new(0xfd00, 0xec2, 0, 0, 0, 0, 0, 0x23),
    // Google Cloud
    Ipv6Addr::new(0xfd20, 0xce, 0, 0, 0, 0, 0, 0x254),
    // Scaleway
    Ipv6Addr::new(0xfd00, 0x42, 0, 0, 0, 0, 0, 0x42),
    // OpenStack
    Ipv6Addr::new(0xfe80, 0, 0, 0, 0, 0, 0xa9fe, 0xa9fe),
];

#[cfg(test)]
mod tests {
    use super::Special::{
        Cgnat, LinkLocal, Loopback, Metadata, Multicast, Private, Reserved, Unspecified,
    };
    use super::*;

    fn of(text: &str) -> Option<Special> {
        Special::of(text.parse().expect(text))
    }

    /// Both ends of each range, and their neighbours outside.
    #[test]
    fn p39_the_edges_of_ipv4() {
        for (before, first, last, after, special) in [
            ("", "0.0.0.0", "0.255.255.255", "1.0.0.0", Unspecified),
            (
                "9.255.255.255",
                "10.0.0.0",
                "10.255.255.255",
                "11.0.0.0",
                Private,
            ),
            (
                "100.63.255.255",
                "100.64.0.0",
                "100.127.255.255",
                "100.128.0.0",
                Cgnat,
            ),
            (
                "126.255.255.255",
                "127.0.0.0",
                "127.255.255.255",
                "128.0.0.0",
                Loopback,
            ),
            (
                "169.253.255.255",
                "169.254.0.0",
                "169.254.255.255",
                "169.255.0.0",
                LinkLocal,
            ),
            (
                "172.15.255.255",
                "172.16.0.0",
                "172.31.255.255",
                "172.32.0.0",
                Private,
            ),
            (
                "191.255.255.255",
                "192.0.0.0",
                "192.0.0.255",
                "192.0.1.0",
                Reserved,
            ),
            (
                "192.0.1.255",
                "192.0.2.0",
                "192.0.2.255",
                "192.0.3.0",
                Reserved,
            ),
            (
                "192.88.98.255",
                "192.88.99.0",
                "192.88.99.255",
                "192.88.100.0",
                Reserved,
            ),
            (
                "192.167.255.255",
                "192.168.0.0",
                "192.168.255.255",
                "192.169.0.0",
                Private,
            ),
            (
                "198.17.255.255",
                "198.18.0.0",
                "198.19.255.255",
                "198.20.0.0",
                Reserved,
            ),
            (
                "198.51.99.255",
                "198.51.100.0",
                "198.51.100.255",
                "198.51.101.0",
                Reserved,
            ),
            (
                "203.0.112.255",
                "203.0.113.0",
                "203.0.113.255",
                "203.0.114.0",
                Reserved,
            ),
            (
                "223.255.255.255",
                "224.0.0.0",
                "239.255.255.255",
                "",
                Multicast,
            ),
            ("", "240.0.0.0", "255.255.255.255", "", Reserved),
        ] {
            for inside in [first, last] {
                assert_eq!(of(inside), Some(special), "{inside}");
                // However it is wrapped.
                let mapped = format!("::ffff:{inside}");
                assert_eq!(of(&mapped), Some(special), "{mapped}");
                let nat64 = format!("64:ff9b::{inside}");
                assert_eq!(of(&nat64), Some(special), "{nat64}");
                let local_nat64 = format!("64:ff9b:1::{inside}");
                assert_eq!(of(&local_nat64), Some(special), "{local_nat64}");
            }
            for outside in [before, after] {
                if !outside.is_empty() {
                    assert_eq!(of(outside), None, "{outside}");
                    assert_eq!(of(&format!("::ffff:{outside}")), None, "{outside}");
                    assert_eq!(of(&format!("64:ff9b::{outside}")), None, "{outside}");
                }
            }
        }
    }

    #[test]
    fn p39_the_edges_of_ipv6() {
        const ALL: &str = "ffff:ffff:ffff:ffff:ffff";
        let end = |start: &str| format!("{start}:{ALL}");
        for (address, special) in [
            ("::", Some(Unspecified)),
            ("::1", Some(Loopback)),
            ("::2", Some(Unspecified)),
            ("::8.8.8.8", Some(Reserved)),
            ("::127.0.0.1", Some(Loopback)),
            ("::10.0.0.1", Some(Private)),
            ("::fffe:8.8.8.8", Some(Reserved)),
            ("::ffff:0:8.8.8.8", Some(Reserved)),
            ("64:ff9b::8.8.8.8", None),
            ("64:ff9b:0:0:1::8.8.8.8", Some(Reserved)),
            ("64:ff9b:1::8.8.8.8", Some(Reserved)),
            ("64:ff9b:1:ffff::10.0.0.1", Some(Private)),
            ("64:ff9b:2::8.8.8.8", Some(Reserved)),
            ("100::", Some(Reserved)),
            ("1fff:ffff:ffff:ffff:ffff:ffff:ffff:ffff", Some(Reserved)),
            ("2000::", None),
            (&end("2000:ffff:ffff"), None),
            // Teredo: server, then client.
            ("2001:0:808:808::f7f7:f7f7", None),
            ("2001:0:a00:1::f7f7:f7f7", Some(Private)),
            ("2001:0:808:808::80ff:fffe", Some(Loopback)),
            ("2001:0:808:808::5601:5601", Some(Metadata)),
            ("2001:1::1", Some(Reserved)),
            ("2001:2::1", Some(Reserved)),
            ("2001:10::1", Some(Reserved)),
            ("2001:20::1", Some(Reserved)),
            (&end("2001:1ff:ffff"), Some(Reserved)),
            ("2001:200::", None),
            (&end("2001:db7:ffff"), None),
            ("2001:db8::", Some(Reserved)),
            (&end("2001:db8:ffff"), Some(Reserved)),
            ("2001:db9::", None),
            (&end("2001:ffff:ffff"), None),
            ("2002:808:808::1", None),
            ("2002:7f00:1::1", Some(Loopback)),
            ("2002:a00:1::1", Some(Private)),
            ("2002:a9fe:a9fe::1", Some(Metadata)),
            ("2002:c0a8:ffff::1", Some(Private)),
            ("2002:e000:1::1", Some(Multicast)),
            ("2003::", None),
            ("2a00:1450::1", None),
            ("2a00:1450::5efe:10.0.0.1", Some(Private)),
            ("2a00:1450::200:5efe:127.0.0.1", Some(Loopback)),
            ("2a00:1450::200:5efe:8.8.8.8", None),
            (&end("3ffe:ffff:ffff"), None),
            ("3fff::", Some(Reserved)),
            (&end("3fff:fff:ffff"), Some(Reserved)),
            ("3fff:1000::", None),
            ("4000::", Some(Reserved)),
            ("5f00::1", Some(Reserved)),
            (&end("fbff:ffff:ffff"), Some(Reserved)),
            ("fc00::", Some(Private)),
            (&end("fdff:ffff:ffff"), Some(Private)),
            ("fe00::", Some(Reserved)),
            (&end("fe7f:ffff:ffff"), Some(Reserved)),
            ("fe80::", Some(LinkLocal)),
            (&end("febf:ffff:ffff"), Some(LinkLocal)),
            ("fec0::", Some(Private)),
            (&end("feff:ffff:ffff"), Some(Private)),
            ("ff00::", Some(Multicast)),
            (&end("ffff:ffff:ffff"), Some(Multicast)),
        ] {
            assert_eq!(of(address), special, "{address}");
        }
    }

    #[test]
    fn p39_metadata_by_any_name() {
        for address in [
            "169.254.169.254",
            "::ffff:169.254.169.254",
            "64:ff9b::a9fe:a9fe",
            "fe80::a9fe:a9fe",
            "100.100.100.200",
            "168.63.129.16",
            "192.0.0.192",
            "fd00:ec2::254",
            "fd20:ce::254",
        ] {
            assert_eq!(of(address), Some(Metadata), "{address}");
        }
        assert_eq!(of("168.63.129.15"), None);
        assert_eq!(of("168.63.129.17"), None);
    }

    #[test]
    fn public_addresses() {
        for address in ["1.1.1.1", "8.8.8.8", "192.31.196.1", "2606:4700::1111"] {
            assert_eq!(of(address), None, "{address}");
        }
    }
}
