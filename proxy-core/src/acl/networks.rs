//! A compiled list of networks.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::ops::Range;

use super::table::{Entry, Table, mix};
use crate::Network;
use crate::network::{left_aligned, mask};

/// Networks, each with the numbers of the rules that have it in their lists.
///
/// A look-up costs at most six hashes for IPv4 and eight for IPv6, however many
/// entries there are. It allocates nothing.
///
/// ```
/// use proxy_core::Networks;
/// let networks = Networks::new([
///     ("10.0.0.0/8".parse()?, 3),
///     ("10.1.0.0/16".parse()?, 1),
///     ("10.1.0.0/16".parse()?, 4),
/// ]);
/// let hits: Vec<(u8, &[u32])> = networks.find("10.1.2.3".parse().unwrap()).collect();
/// assert_eq!(hits, [(16, &[1, 4][..]), (8, &[3])]);
/// # Ok::<(), proxy_core::NetworkError>(())
/// ```
#[derive(Clone, Debug)]
pub struct Networks {
    v4: Family,
    v6: Family,
}

impl Networks {
    /// Compiles the entries of all rules, in any order.
    pub fn new(entries: impl IntoIterator<Item = (Network, u32)>) -> Self {
        let (mut v4, mut v6) = (Vec::new(), Vec::new());
        for (network, rule) in entries {
            let address = network.address();
            let row = (left_aligned(address), network.prefix(), rule);
            match address {
                IpAddr::V4(_) => v4.push(row),
                IpAddr::V6(_) => v6.push(row),
            }
        }
        Self {
            v4: Family::new(v4),
            v6: Family::new(v6),
        }
    }

    /// Every network that contains `address`, the smallest first: the length of
    /// its prefix and its rules in ascending order.
    pub fn find(&self, address: IpAddr) -> NetworkHits<'_> {
        let address = address.to_canonical();
        let family = match address {
            IpAddr::V4(_) => &self.v4,
            IpAddr::V6(_) => &self.v6,
        };
        NetworkHits {
            family,
            next: family.smallest(left_aligned(address)),
        }
    }

    /// Whether there is no entry at all.
    pub fn is_empty(&self) -> bool {
        self.v4.nodes.is_empty() && self.v6.nodes.is_empty()
    }
}

/// The networks that contain an address, from [`Networks::find`].
#[derive(Clone, Debug)]
pub struct NetworkHits<'t> {
    family: &'t Family,
    next: Option<usize>,
}

impl<'t> Iterator for NetworkHits<'t> {
    type Item = (u8, &'t [u32]);

    fn next(&mut self) -> Option<Self::Item> {
        let node = &self.family.nodes[self.next?];
        self.next = node.parent;
        Some((node.prefix, &self.family.rules[node.rules.clone()]))
    }
}

/// The networks of one family, searched by halving the lengths of their
/// prefixes: where a network of middle length is, or a mark that there are longer
/// ones, the search goes on among the longer, else among the shorter (Waldvogel
/// and others, "Scalable High Speed IP Routing Lookups", 1997).
#[derive(Clone, Debug)]
struct Family {
    /// Each length there is, ascending.
    lengths: Box<[u8]>,
    /// By length and first bits: the smallest network that contains all of these.
    table: Table<(u8, u128), Option<usize>>,
    nodes: Box<[Node]>,
    rules: Box<[u32]>,
}

#[derive(Clone, Debug)]
struct Node {
    bits: u128,
    prefix: u8,
    /// The next larger network around it.
    parent: Option<usize>,
    rules: Range<usize>,
}

impl Family {
    fn new(mut rows: Vec<(u128, u8, u32)>) -> Self {
        rows.sort_unstable();
        rows.dedup();
        let nodes = nodes(&rows);
        let mut lengths: Vec<u8> = nodes.iter().map(|node| node.prefix).collect();
        lengths.sort_unstable();
        lengths.dedup();
        let marks = marks(&nodes, &lengths).into_iter();
        let table = marks.map(|(key, value)| Entry {
            hash: hash(key),
            key,
            value,
        });
        Self {
            lengths: lengths.into(),
            table: Table::new(table.collect()),
            nodes: nodes.into(),
            rules: rows.into_iter().map(|(.., rule)| rule).collect(),
        }
    }

    fn smallest(&self, bits: u128) -> Option<usize> {
        let mut best = None;
        halve(&self.lengths, |length| {
            let key = (length, mask(bits, length));
            match self.table.find(hash(key), |other| other.cmp(&key)) {
                Some(smallest) => {
                    best = *smallest;
                    Turn::Longer
                }
                None => Turn::Shorter,
            }
        });
        best
    }
}

enum Turn {
    Longer,
    Shorter,
    Stop,
}

fn halve(lengths: &[u8], mut visit: impl FnMut(u8) -> Turn) {
    let mut left = lengths;
    while let Some(length) = left.get(left.len() / 2) {
        let (shorter, longer) = left.split_at(left.len() / 2);
        left = match visit(*length) {
            Turn::Longer => &longer[1..],
            Turn::Shorter => shorter,
            Turn::Stop => return,
        };
    }
}

/// One for each network, in the order of their addresses, larger ones before
/// those inside.
fn nodes(rows: &[(u128, u8, u32)]) -> Vec<Node> {
    let mut nodes: Vec<Node> = Vec::new();
    let mut around: Vec<usize> = Vec::new();
    let mut start = 0;
    for group in rows.chunk_by(|a, b| (a.0, a.1) == (b.0, b.1)) {
        let (bits, prefix, _) = group[0];
        let contains = |at: &usize| mask(bits, nodes[*at].prefix) == nodes[*at].bits;
        while around.last().is_some_and(|at| !contains(at)) {
            around.pop();
        }
        let parent = around.last().copied();
        around.push(nodes.len());
        nodes.push(Node {
            bits,
            prefix,
            parent,
            rules: start..start + group.len(),
        });
        start += group.len();
    }
    nodes
}

/// The networks, and what leads the search to them.
fn marks(nodes: &[Node], lengths: &[u8]) -> BTreeMap<(u8, u128), Option<usize>> {
    let mut marks = BTreeMap::new();
    for (at, node) in nodes.iter().enumerate() {
        halve(lengths, |length| {
            if length > node.prefix {
                return Turn::Shorter;
            }
            let mut smallest = Some(at);
            while let Some(at) = smallest
                && nodes[at].prefix > length
            {
                smallest = nodes[at].parent;
            }
            marks.insert((length, mask(node.bits, length)), smallest);
            match length == node.prefix {
                true => Turn::Stop,
                false => Turn::Longer,
            }
        });
    }
    marks
}

fn hash((length, bits): (u8, u128)) -> u64 {
    let [high, low] = [bits >> 64, bits & u128::from(u64::MAX)].map(|half| {
        // Half of the bits fit.
        u64::try_from(half).unwrap_or(u64::MAX)
    });
    mix(high ^ mix(low ^ (u64::from(length) << 56)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::net::{Ipv4Addr, Ipv6Addr};

    fn compiled(networks: &[Network]) -> Networks {
        Networks::new(networks.iter().copied().zip(0..))
    }

    /// The prefixes that an address has, and the rules of each.
    fn found(networks: &Networks, address: &str) -> Vec<(u8, Vec<u32>)> {
        let address = address.parse().expect("an address");
        let hits = networks.find(address);
        hits.map(|(prefix, rules)| (prefix, rules.to_vec()))
            .collect()
    }

    fn network(text: &str) -> Network {
        text.parse().expect(text)
    }

    #[test]
    fn the_smallest_network_comes_first() {
        let networks = Networks::new([
            (network("0.0.0.0/0"), 9),
            (network("10.0.0.0/8"), 3),
            (network("10.1.0.0/16"), 4),
            (network("10.1.2.3"), 1),
            (network("10.1.0.0/16"), 2),
            (network("::/0"), 8),
            (network("2001:db8::/32"), 7),
        ]);
        let all: Vec<(u8, Vec<u32>)> =
            vec![(32, vec![1]), (16, vec![2, 4]), (8, vec![3]), (0, vec![9])];
        assert_eq!(found(&networks, "10.1.2.3"), all);
        assert_eq!(found(&networks, "::ffff:10.1.2.3"), all);
        assert_eq!(found(&networks, "10.1.2.4"), all[1..]);
        assert_eq!(found(&networks, "10.2.0.0"), all[2..]);
        assert_eq!(found(&networks, "11.0.0.0"), all[3..]);
        assert_eq!(
            found(&networks, "2001:db8::1"),
            [(32, vec![7]), (0, vec![8])]
        );
        assert_eq!(found(&networks, "2001:db9::1"), [(0, vec![8])]);
        assert!(compiled(&[]).is_empty() && !networks.is_empty());
    }

    /// How many lengths a search tries.
    fn tries(family: &Family, bits: u128) -> u32 {
        let mut tries = 0;
        halve(&family.lengths, |length| {
            tries += 1;
            let key = (length, mask(bits, length));
            match family.table.find(hash(key), |other| other.cmp(&key)) {
                Some(_) => Turn::Longer,
                None => Turn::Shorter,
            }
        });
        tries
    }

    #[test]
    fn a_few_hashes_in_any_number_of_entries() {
        for size in [10_u32, 1_000, 100_000] {
            let entries = (0..size).flat_map(|at| {
                let bits = at.wrapping_mul(0x9e37_79b9);
                let v4 = IpAddr::from(Ipv4Addr::from_bits(bits));
                let v6 = IpAddr::from(Ipv6Addr::from_bits(u128::from(bits) << 96 | u128::from(at)));
                let of = |ip, bits: u32| {
                    let prefix = u8::try_from(at % bits + 1).expect("a prefix");
                    match Network::new(ip, prefix) {
                        Ok(network) | Err(crate::NetworkError::HostBits(network)) => (network, at),
                        Err(error) => panic!("{error}"),
                    }
                };
                [of(v4, 32), of(v6, 128)]
            });
            let networks = Networks::new(entries);
            for at in 0..1_000_u128 {
                let bits = at.wrapping_mul(0x9e37_79b9_7f4a_7c15_9e37_79b9_7f4a_7c15);
                assert!(tries(&networks.v4, bits) <= 6);
                assert!(tries(&networks.v6, bits) <= 8);
            }
        }
    }

    fn any_network() -> impl Strategy<Value = Network> {
        // Few bits, so that networks are in one another.
        let v4 = (0u32..16, 0u8..=32).prop_map(|(bits, prefix)| (bits << 28 | bits, prefix));
        let v4 = v4.prop_map(|(bits, prefix)| (IpAddr::from(Ipv4Addr::from_bits(bits)), prefix));
        let v6 = (0u128..16, 0u8..=128).prop_map(|(bits, prefix)| (bits << 124 | bits, prefix));
        let v6 = v6.prop_map(|(bits, prefix)| (IpAddr::from(Ipv6Addr::from_bits(bits)), prefix));
        prop_oneof![v4, v6].prop_map(|(ip, prefix)| match Network::new(ip, prefix) {
            Ok(network) | Err(crate::NetworkError::HostBits(network)) => network,
            Err(error) => panic!("{error}"),
        })
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(1_000))]

        #[test]
        fn a_list_finds_what_its_networks_contain(
            networks in prop::collection::vec(any_network(), 0..40),
            like in any_network(),
        ) {
            let list = compiled(&networks);
            let address = like.address();
            let mut meant: Vec<(u8, u32)> = networks
                .iter()
                .zip(0..)
                .filter(|(network, _)| network.contains(address))
                .map(|(network, rule)| (network.prefix(), rule))
                .collect();
            meant.sort_by_key(|(prefix, rule)| (u8::MAX - prefix, *rule));
            let hits = list.find(address);
            let found: Vec<(u8, u32)> = hits
                .flat_map(|(prefix, rules)| rules.iter().map(move |rule| (prefix, *rule)))
                .collect();
            prop_assert_eq!(found, meant);
        }
    }
}
