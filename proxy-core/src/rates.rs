//! All the rates that one direction of a session obeys.

use std::sync::Arc;
use std::time::Instant;

use crate::Bucket;

/// The buckets that the bytes of one direction come out of: its own, its user's,
/// its listener's. A byte is taken out of all of them.
///
/// Without a bucket, as by default, there is no limit and nothing to pay for it:
/// one pointer that is null. Clones share the buckets.
///
/// ```
/// use std::num::NonZeroU64;
/// use std::time::Instant;
/// use proxy_core::{Bucket, Rates};
///
/// let now = Instant::now();
/// let bucket = |burst| Bucket::new(NonZeroU64::MIN, NonZeroU64::new(burst).unwrap(), now);
/// let rates = Rates::new([bucket(300), bucket(200)]);
/// assert_eq!(rates.take(1000, now), 200);
/// rates.refund(50);
/// assert_eq!(rates.take(1000, now), 50);
/// assert!(Rates::default().is_unlimited());
/// ```
#[derive(Clone, Debug, Default)]
pub struct Rates(Option<Arc<Buckets>>);

#[derive(Debug)]
struct Buckets(Box<[Bucket]>);

impl Rates {
    /// Those of `buckets`; no limit if there are none.
    pub fn new(buckets: impl IntoIterator<Item = Bucket>) -> Self {
        let buckets: Box<[Bucket]> = buckets.into_iter().collect();
        Self((!buckets.is_empty()).then(|| Arc::new(Buckets(buckets))))
    }

    /// Whether there is no limit.
    pub fn is_unlimited(&self) -> bool {
        self.0.is_none()
    }

    /// Takes up to `want` bytes; says how many all buckets had.
    pub fn take(&self, want: u64, now: Instant) -> u64 {
        let mut granted = want;
        for (at, bucket) in self.buckets().iter().enumerate() {
            let taken = bucket.take(granted, now);
            for earlier in &self.buckets()[..at] {
                earlier.refund(granted - taken);
            }
            granted = taken;
        }
        granted
    }

    /// Puts back bytes that were taken and did not come; at most those.
    pub fn refund(&self, unused: u64) {
        for bucket in self.buckets() {
            bucket.refund(unused);
        }
    }

    /// Counts one more that waits at all buckets, or with `false` one less.
    pub fn line_up(&self, more: bool) {
        for bucket in self.buckets() {
            bucket.line_up(more);
        }
    }

    /// The smallest of the buckets' [shares](Bucket::share).
    pub fn share(&self, waits: bool, since: Instant, now: Instant) -> u64 {
        let shares = self.buckets().iter();
        let shares = shares.map(|bucket| bucket.share(waits, since, now));
        shares.min().unwrap_or(u64::MAX)
    }

    fn buckets(&self) -> &[Bucket] {
        self.0.as_ref().map_or(&[], |buckets| &buckets.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::num::NonZeroU64;
    use std::time::Duration;

    fn bucket(rate: u64, burst: u64, now: Instant) -> Bucket {
        let number = |number| NonZeroU64::new(number).expect("not zero");
        Bucket::new(number(rate), number(burst), now)
    }

    #[test]
    fn the_scarcest_bucket_decides_and_the_others_lose_no_more() {
        let now = Instant::now();
        let (wide, narrow, middle) = (bucket(1, 90, now), bucket(1, 20, now), bucket(1, 50, now));
        let rates = Rates::new([wide.clone(), narrow.clone(), middle.clone()]);
        assert_eq!(rates.take(60, now), 20);
        assert_eq!(wide.take(100, now), 70);
        assert_eq!(middle.take(100, now), 30);
        assert_eq!(narrow.take(100, now), 0);
        assert_eq!(rates.take(1, now), 0);
        rates.refund(20);
        let later = now + Duration::from_secs(5);
        assert_eq!(rates.take(100, later), 20, "a burst at most");
    }

    #[test]
    fn without_a_bucket_all_is_granted() {
        let rates = Rates::new([]);
        assert!(rates.is_unlimited());
        assert_eq!(rates.take(u64::MAX, Instant::now()), u64::MAX);
        assert_eq!(size_of::<Rates>(), size_of::<usize>());
    }
}
