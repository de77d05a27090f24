//! Which of our own addresses a connection goes out from.

use std::hash::{BuildHasher, RandomState};
use std::io;
use std::net::{IpAddr, Ipv6Addr, UdpSocket};
use std::sync::atomic::{AtomicU64, Ordering};

use proxy_core::{ConnectError, ConnectErrorKind};

use crate::config::{Addresses, Choice, Source};

/// The sources of a configuration; one for all workers, or one for each.
#[derive(Debug)]
pub(crate) struct Sources {
    pools: Vec<Pool>,
    /// Secret, so that nobody foresees a fresh address.
    random: RandomState,
}

impl Sources {
    pub(crate) fn new(sources: &[Source]) -> Self {
        Self {
            pools: sources.iter().map(Pool::new).collect(),
            random: RandomState::new(),
        }
    }

    /// The addresses that are not this machine's, so that nothing can go out from
    /// them. A prefix need only be routed here, which cannot be seen from here.
    pub(crate) fn foreign(sources: &[Source]) -> Vec<IpAddr> {
        let single = |source: &Source| match &source.addresses {
            Addresses::Pool(all) => all.clone(),
            Addresses::Prefix(..) => Vec::new(),
        };
        let is_foreign = |ip: &IpAddr| {
            let bound = UdpSocket::bind((*ip, 0));
            bound.is_err_and(|error| error.kind() == io::ErrorKind::AddrNotAvailable)
        };
        sources.iter().flat_map(single).filter(is_foreign).collect()
    }

    /// Whether the configuration has none.
    pub(crate) fn is_empty(&self) -> bool {
        self.pools.is_empty()
    }

    /// The address to connect to `to` from, out of the source at index `source`
    /// of the configuration. A sticky one is the same for the same `stick` and
    /// family, on every worker and after every start.
    ///
    /// # Errors
    /// If the source has no address of that family: who asks for certain
    /// addresses is not served from another one.
    pub(crate) fn pick(&self, source: u16, stick: u64, to: IpAddr) -> Result<IpAddr, ConnectError> {
        let pool = self.pools.get(usize::from(source));
        let picked = pool.and_then(|pool| self.pick_from(pool, stick, to));
        picked.ok_or_else(|| ConnectError::origin(ConnectErrorKind::Source))
    }

    fn pick_from(&self, pool: &Pool, stick: u64, to: IpAddr) -> Option<IpAddr> {
        if let Some((network, length)) = pool.prefix {
            let host = || match pool.choice {
                Choice::Fresh => self.random_bits(pool.turn()),
                Choice::Sticky => wide(stick),
            };
            return to.is_ipv6().then(|| within(network, length, host()).into());
        }
        let addresses = match to {
            IpAddr::V4(_) => &pool.v4,
            IpAddr::V6(_) => &pool.v6,
        };
        let count = u64::try_from(addresses.len()).ok()?;
        let turn = match pool.choice {
            Choice::Fresh => pool.turn(),
            Choice::Sticky => mix(stick),
        };
        let at = turn.checked_rem(count)?;
        addresses.get(usize::try_from(at).ok()?).copied()
    }

    fn random_bits(&self, turn: u64) -> u128 {
        let half = |part: u8| u128::from(self.random.hash_one((turn, part)));
        half(0) << 64 | half(1)
    }
}

/// A number for whoever a sticky choice is to be the same for: a user's name or
/// a client's address.
pub(crate) fn stick(who: &[u8]) -> u64 {
    who.iter().fold(0, |sum, byte| mix(sum ^ u64::from(*byte)))
}

/// One source.
#[derive(Debug)]
struct Pool {
    v4: Vec<IpAddr>,
    v6: Vec<IpAddr>,
    /// Instead of single addresses.
    prefix: Option<(Ipv6Addr, u8)>,
    choice: Choice,
    turns: AtomicU64,
}

impl Pool {
    fn new(source: &Source) -> Self {
        let (addresses, prefix) = match &source.addresses {
            Addresses::Pool(addresses) => (addresses.as_slice(), None),
            Addresses::Prefix(network, length) => (&[][..], Some((*network, *length))),
        };
        let (v4, v6) = addresses.iter().partition(|ip| ip.is_ipv4());
        Self {
            v4,
            v6,
            prefix,
            choice: source.choice,
            turns: AtomicU64::new(0),
        }
    }

    fn turn(&self) -> u64 {
        self.turns.fetch_add(1, Ordering::Relaxed)
    }
}

/// The address of a prefix with these host bits; not the one without any, which
/// is all of the network's routers (RFC 4291 section 2.6.1).
fn within(network: Ipv6Addr, length: u8, host: u128) -> Ipv6Addr {
    let mask = u128::MAX.checked_shr(length.into()).unwrap_or(0);
    Ipv6Addr::from_bits(network.to_bits() | (host & mask).max(1))
}

fn wide(stick: u64) -> u128 {
    let high = mix(stick);
    u128::from(high) << 64 | u128::from(mix(high))
}

/// Spreads a number over all bits (the finisher of SplitMix64). Not the standard
/// library's hash, which may change and with it everybody's address.
fn mix(number: u64) -> u64 {
    let number = number.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let number = (number ^ (number >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let number = (number ^ (number >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    number ^ (number >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;

    const V4: IpAddr = IpAddr::V4(std::net::Ipv4Addr::new(198, 51, 100, 1));
    const V6: IpAddr = IpAddr::V6(Ipv6Addr::new(0x2001, 0xdb8, 0xffff, 0, 0, 0, 0, 1));

    fn sources(addresses: Addresses, choice: Choice) -> Sources {
        Sources::new(&[Source {
            name: "out".into(),
            addresses,
            choice,
        }])
    }

    fn pool(texts: &[&str], choice: Choice) -> Sources {
        let addresses = texts.iter().map(|text| text.parse().expect("an address"));
        sources(Addresses::Pool(addresses.collect()), choice)
    }

    fn prefix(choice: Choice) -> Sources {
        let network = "2001:db8:1::".parse().expect("an address");
        sources(Addresses::Prefix(network, 64), choice)
    }

    #[test]
    fn a_fresh_pool_takes_turns() {
        let sources = pool(&["192.0.2.1", "2001:db8::1", "192.0.2.2"], Choice::Fresh);
        let picked: Vec<String> = (0..4)
            .map(|_| sources.pick(0, 7, V4).expect("an address").to_string())
            .collect();
        assert_eq!(picked, ["192.0.2.1", "192.0.2.2", "192.0.2.1", "192.0.2.2"]);
        let other = sources.pick(0, 7, V6).expect("an address");
        assert_eq!(other.to_string(), "2001:db8::1");
    }

    #[test]
    fn a_sticky_choice_holds_for_one_and_spreads_over_many() {
        for (sources, to, expected) in [
            (
                pool(&["192.0.2.1", "192.0.2.2", "192.0.2.3"], Choice::Sticky),
                V4,
                3,
            ),
            (prefix(Choice::Sticky), V6, 100),
        ] {
            let pick = |who: usize| {
                let stick = stick(format!("user{who}").as_bytes());
                sources.pick(0, stick, to).expect("an address")
            };
            assert!((0..100).all(|who| pick(who) == pick(who)));
            let different: HashSet<IpAddr> = (0..100).map(pick).collect();
            assert_eq!(different.len(), expected);
        }
    }

    #[test]
    fn a_sticky_address_survives_a_new_version() {
        let picked = prefix(Choice::Sticky).pick(0, stick(b"alice"), V6);
        let expected = "2001:db8:1:0:6e2a:51d:4668:91d3"
            .parse::<IpAddr>()
            .expect("an address");
        assert_eq!(picked, Ok(expected));
    }

    #[test]
    fn a_fresh_address_of_a_prefix_is_another_each_time() {
        let sources = prefix(Choice::Fresh);
        let picked: HashSet<IpAddr> = (0..1000)
            .map(|_| sources.pick(0, 7, V6).expect("an address"))
            .collect();
        assert_eq!(picked.len(), 1000);
        for ip in picked {
            assert!(
                ip.to_string().starts_with("2001:db8:1:0:")
                    || ip.to_string().starts_with("2001:db8:1::")
            );
        }
    }

    #[test]
    fn what_a_source_has_not_is_refused() {
        let refused = Err(ConnectError::origin(ConnectErrorKind::Source));
        for choice in [Choice::Fresh, Choice::Sticky] {
            assert_eq!(pool(&["192.0.2.1"], choice).pick(0, 0, V6), refused);
            assert_eq!(pool(&["2001:db8::1"], choice).pick(0, 0, V4), refused);
            assert_eq!(prefix(choice).pick(0, 0, V4), refused);
        }
    }

    #[test]
    fn the_routers_anycast_address_is_not_taken() {
        let network: Ipv6Addr = "2001:db8:1::".parse().expect("an address");
        for (length, host, expected) in [
            (64, 0, "2001:db8:1::1"),
            (64, 1 << 64, "2001:db8:1::1"),
            (64, u128::MAX, "2001:db8:1:0:ffff:ffff:ffff:ffff"),
            (127, 2, "2001:db8:1::1"),
            (48, 5 << 64, "2001:db8:1:5::"),
        ] {
            assert_eq!(within(network, length, host).to_string(), expected);
        }
    }
}
