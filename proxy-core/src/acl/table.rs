//! Hashed entries that were all known beforehand.

use std::cmp::Ordering;

/// Entries in the order of their hashes, and where each range of hashes begins:
/// a look-up goes straight to one or two entries.
///
/// The entries with a hash in common are in order too. Whoever writes lists so
/// that hashes collide makes look-ups logarithmic, not linear; so the hash needs
/// no secret.
#[derive(Clone, Debug)]
pub(super) struct Table<K, V> {
    entries: Box<[Entry<K, V>]>,
    /// One more than there are ranges.
    starts: Box<[usize]>,
    /// How many bits of a hash are left out of the number of its range.
    shift: u32,
}

/// A key with its hash, and what it leads to.
#[derive(Clone, Debug)]
pub(super) struct Entry<K, V> {
    pub(super) hash: u64,
    pub(super) key: K,
    pub(super) value: V,
}

impl<K: Ord, V> Table<K, V> {
    /// Keys must differ.
    pub(super) fn new(mut entries: Vec<Entry<K, V>>) -> Self {
        entries.sort_unstable_by(|a, b| (a.hash, &a.key).cmp(&(b.hash, &b.key)));
        let bits = entries.len().next_power_of_two().trailing_zeros().max(1);
        let shift = u64::BITS - bits;
        let mut starts = vec![0; (1 << bits) + 1];
        for entry in &entries {
            starts[range(entry.hash, shift) + 1] += 1;
        }
        let mut sum = 0;
        for start in &mut starts {
            sum += *start;
            *start = sum;
        }
        Self {
            entries: entries.into(),
            starts: starts.into(),
            shift,
        }
    }

    /// The value of the key with this hash that `order` finds equal.
    pub(super) fn find(&self, hash: u64, mut order: impl FnMut(&K) -> Ordering) -> Option<&V> {
        let range = range(hash, self.shift);
        let near = &self.entries[self.starts[range]..self.starts[range + 1]];
        let by_key = |entry: &Entry<K, V>| entry.hash.cmp(&hash).then_with(|| order(&entry.key));
        let at = near.binary_search_by(by_key).ok()?;
        Some(&near[at].value)
    }
}

/// Spreads the bits of a number over all of a hash.
pub(super) fn mix(number: u64) -> u64 {
    let number = (number ^ (number >> 32)).wrapping_mul(0xd6e8_feb8_6659_fd93);
    let number = (number ^ (number >> 32)).wrapping_mul(0xd6e8_feb8_6659_fd93);
    number ^ (number >> 32)
}

fn range(hash: u64, shift: u32) -> usize {
    // At most as many bits as the number of entries has.
    usize::try_from(hash >> shift).unwrap_or(usize::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn table(size: u64, hash: impl Fn(u64) -> u64) -> Table<u64, u64> {
        let entry = |key| Entry {
            hash: hash(key),
            key,
            value: key * 2,
        };
        Table::new((0..size).map(entry).collect())
    }

    /// The most keys with its hash that a key is compared with.
    fn comparisons(table: &Table<u64, u64>, size: u64, hash: impl Fn(u64) -> u64) -> Option<u32> {
        let counts = (0..size).map(|key| {
            let mut count = 0;
            let found = table.find(hash(key), |other| {
                count += 1;
                other.cmp(&key)
            });
            assert_eq!(found, Some(&(key * 2)));
            count
        });
        counts.max()
    }

    #[test]
    fn one_key_is_looked_at_in_any_number_of_entries() {
        for size in [1, 10, 1_000, 100_000] {
            // The search may look at its last one twice.
            assert!(comparisons(&table(size, mix), size, mix) <= Some(2));
        }
    }

    #[test]
    fn ranges_are_small_in_any_number_of_entries() {
        for size in [10, 1_000, 100_000] {
            let table = table(size, mix);
            let sizes = table.starts.windows(2).map(|pair| pair[1] - pair[0]);
            assert!(sizes.max() <= Some(10), "{size}");
        }
    }

    #[test]
    fn equal_hashes_are_no_way_to_slow_it_down() {
        let same = |_| 7;
        let most = comparisons(&table(100_000, same), 100_000, same);
        assert!(most <= Some(18), "{most:?}");
    }

    #[test]
    fn what_is_not_there() {
        let table = table(1_000, mix);
        assert_eq!(table.find(mix(1_000), |key| key.cmp(&1_000)), None);
        let empty = Table::<u64, u64>::new(Vec::new());
        assert_eq!(empty.find(u64::MAX, |_| Ordering::Equal), None);
    }
}
