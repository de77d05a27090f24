//! A rate that several connections share: a token bucket.

use std::num::NonZeroU64;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// Grants so many units (bytes, requests) a second, and a burst of them after
/// quiet times. Without a clock or a timer: time is an argument.
///
/// Cloning shares the bucket. In any stretch of time no more is granted than the
/// burst and what the rate gives for it, rounded up to a unit; that holds from
/// any number of threads, of which none ever waits for another.
///
/// ```
/// use std::num::NonZeroU64;
/// use std::time::{Duration, Instant};
/// use proxy_core::Bucket;
///
/// let (rate, burst) = (NonZeroU64::new(1000).unwrap(), NonZeroU64::new(300).unwrap());
/// let now = Instant::now();
/// let bucket = Bucket::new(rate, burst, now);
/// assert_eq!(bucket.take(200, now), 200);
/// assert_eq!(bucket.take(200, now), 100);
/// assert_eq!(bucket.wait(200, now), Duration::from_millis(200));
/// assert_eq!(bucket.take(200, now + Duration::from_millis(200)), 200);
/// ```
#[derive(Clone, Debug)]
pub struct Bucket(Arc<Shared>);

/// Units are numbered in the order in which they come to be: the first `burst`
/// are there from the start, the rate adds the others. The bucket holds those
/// between `taken` and what has come to be, the latest `burst` at most.
#[derive(Debug)]
struct Shared {
    rate: u64,
    burst: u64,
    start: Instant,
    taken: AtomicU64,
    waiting: AtomicU64,
}

impl Bucket {
    /// A full bucket of `burst` units, to which `rate` are added each second.
    ///
    /// It counts to 2^64 units and then stays empty: 58 years with 10^10 a
    /// second.
    pub fn new(rate: NonZeroU64, burst: NonZeroU64, now: Instant) -> Self {
        Self(Arc::new(Shared {
            rate: rate.get(),
            burst: burst.get(),
            start: now,
            taken: AtomicU64::new(0),
            waiting: AtomicU64::new(0),
        }))
    }

    /// Takes up to `want` units; says how many were there. A `now` before that of
    /// another call gets what is left of the earlier time.
    pub fn take(&self, want: u64, now: Instant) -> u64 {
        let Shared { burst, taken, .. } = &*self.0;
        let made = self.made(now);
        let mut seen = taken.load(Ordering::Relaxed);
        loop {
            let first = seen.max(made.saturating_sub(*burst));
            let granted = want.min(made.saturating_sub(first));
            if granted == 0 {
                return 0;
            }
            // Nothing else is published with the number, so the order is free.
            let next = first + granted;
            match taken.compare_exchange_weak(seen, next, Ordering::Relaxed, Ordering::Relaxed) {
                Ok(_) => return granted,
                Err(other) => seen = other,
            }
        }
    }

    /// Counts one more that waits for units, or with `false` one less.
    pub fn line_up(&self, more: bool) {
        // Nothing else is published with the number.
        match more {
            true => self.0.waiting.fetch_add(1, Ordering::Relaxed),
            false => self.0.waiting.fetch_sub(1, Ordering::Relaxed),
        };
    }

    /// How many units are a fair share for one of those who [wait](Self::line_up)
    /// and had its last at `since`: its part of those that have come to be
    /// meanwhile, or of those that are there, whichever is more. Who does not wait
    /// itself counts as one more.
    ///
    /// ```
    /// # use std::num::NonZeroU64;
    /// # use std::time::{Duration, Instant};
    /// # use proxy_core::Bucket;
    /// let rate = NonZeroU64::new(1000).unwrap();
    /// let (start, tick) = (Instant::now(), Duration::from_millis(100));
    /// let bucket = Bucket::new(rate, rate, start);
    /// assert_eq!(bucket.take(1000, start), 1000);
    /// bucket.line_up(true);
    /// bucket.line_up(true);
    /// // Whoever comes first.
    /// for _ in 0..2 {
    ///     let share = bucket.share(true, start, start + tick);
    ///     assert_eq!(share, 50);
    ///     assert_eq!(bucket.take(share, start + tick), 50);
    /// }
    /// ```
    pub fn share(&self, waits: bool, since: Instant, now: Instant) -> u64 {
        let waiting = self.0.waiting.load(Ordering::Relaxed);
        let all = waiting.saturating_add(u64::from(!waits)).max(1);
        let made = self.made(now);
        let taken = self.0.taken.load(Ordering::Relaxed);
        let there = made.saturating_sub(taken.max(made.saturating_sub(self.0.burst)));
        let new = made.saturating_sub(self.made(since)).min(self.0.burst);
        new.max(there).div_ceil(all).min(there)
    }

    /// Puts back units that were taken and not used; at most those.
    pub fn refund(&self, unused: u64) {
        let put_back = |taken: u64| Some(taken.saturating_sub(unused));
        // An update that always gives a value does not fail.
        let _ = (self.0.taken).fetch_update(Ordering::Relaxed, Ordering::Relaxed, put_back);
    }

    /// How long until `want` units, or a burst if that is less, can be taken,
    /// provided that nobody else takes any. Zero if they are there,
    /// [`Duration::MAX`] if they never come.
    pub fn wait(&self, want: u64, now: Instant) -> Duration {
        let Shared { rate, burst, .. } = *self.0;
        let taken = self.0.taken.load(Ordering::Relaxed);
        let first = taken.max(self.made(now).saturating_sub(burst));
        let Some(last) = first.checked_add(want.min(burst)) else {
            return Duration::MAX;
        };
        let needed = last.saturating_sub(burst);
        let parts = u128::from(needed % rate) * NANOS;
        // Less than the rate of them are left over: at most a second.
        let nanos = u64::try_from(parts.div_ceil(rate.into())).unwrap_or(u64::MAX);
        let at = Duration::from_secs(needed / rate).saturating_add(Duration::from_nanos(nanos));
        at.saturating_sub(now.saturating_duration_since(self.0.start))
    }

    /// How many units have come to be.
    fn made(&self, now: Instant) -> u64 {
        let Shared { rate, burst, .. } = *self.0;
        let time = now.saturating_duration_since(self.0.start);
        let added = time.as_nanos().saturating_mul(rate.into()) / NANOS;
        u64::try_from(added)
            .unwrap_or(u64::MAX)
            .saturating_add(burst)
    }
}

const NANOS: u128 = 1_000_000_000;

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn bucket(rate: u64, burst: u64, now: Instant) -> Bucket {
        let number = |number| NonZeroU64::new(number).expect("not zero");
        Bucket::new(number(rate), number(burst), now)
    }

    const SECOND: Duration = Duration::from_secs(1);

    #[test]
    fn a_burst_then_the_rate() {
        let now = Instant::now();
        let bucket = bucket(10, 3, now);
        assert_eq!(bucket.take(0, now), 0);
        assert_eq!(bucket.take(2, now), 2);
        assert_eq!(bucket.take(2, now), 1);
        assert_eq!(bucket.take(1, now), 0);
        assert_eq!(bucket.take(9, now + SECOND / 10), 1);
        assert_eq!(
            bucket.take(9, now + SECOND),
            3,
            "more than a burst was kept"
        );
        assert_eq!(
            bucket.clone().take(9, now + SECOND),
            0,
            "a clone is another bucket"
        );
    }

    #[test]
    fn time_that_goes_back_gives_nothing() {
        let now = Instant::now();
        let bucket = bucket(10, 3, now + SECOND);
        assert_eq!(bucket.take(9, now), 3);
        assert_eq!(bucket.take(9, now + 2 * SECOND), 3);
        assert_eq!(bucket.take(9, now + SECOND), 0);
        assert_eq!(bucket.take(9, now + 2 * SECOND), 0);
    }

    #[test]
    fn what_is_put_back_is_taken_again_but_never_more_than_a_burst() {
        let now = Instant::now();
        let bucket = bucket(10, 8, now);
        assert_eq!(bucket.take(8, now), 8);
        bucket.refund(3);
        assert_eq!(bucket.take(8, now), 3);
        bucket.refund(3);
        assert_eq!(bucket.take(100, now + SECOND), 8);
        bucket.refund(u64::MAX);
        assert_eq!(bucket.take(100, now + SECOND), 8);
    }

    #[test]
    fn the_largest_numbers() {
        let now = Instant::now();
        let largest = bucket(u64::MAX, u64::MAX, now);
        assert_eq!(largest.take(u64::MAX, now), u64::MAX);
        assert_eq!(largest.take(u64::MAX, now + 9999 * SECOND), 0);
        let slow = bucket(1, u64::MAX, now);
        assert_eq!(slow.take(u64::MAX, now), u64::MAX);
        assert_eq!(slow.wait(u64::MAX, now), Duration::MAX);
    }

    proptest! {
        #[test]
        fn as_an_exact_one_to_within_a_unit(
            rate in prop_oneof![1..20u64, 1..10_000_000_000u64],
            burst in prop_oneof![1..5u64, 1..1_000_000u64],
            steps in prop::collection::vec(
                (prop_oneof![0..2_000u64, 0..3_000_000_000u64], 0..2_000_000u64, 0..3u64),
                0..60,
            ),
        ) {
            let start = Instant::now();
            let mut now = start;
            let bucket = bucket(rate, burst, now);
            let most = u128::from(burst) * NANOS;
            // What an exact bucket holds, in thousand-millionths of a unit.
            let mut exact = most;
            let mut total = 0;
            for (nanos, want, part) in steps {
                now += Duration::from_nanos(nanos);
                exact = most.min(exact + u128::from(nanos) * u128::from(rate));
                let granted = bucket.take(want, now);
                prop_assert!(granted <= want.min(burst));
                let granted_exact = u128::from(granted) * NANOS;
                prop_assert!(granted_exact < exact + NANOS, "more than there is");
                if granted < want {
                    prop_assert!(exact < granted_exact + NANOS, "less than there is");
                }
                let used = granted - granted * part / 2;
                bucket.refund(granted - used);
                total += u128::from(used);
                let used = u128::from(used) * NANOS;
                exact = exact.saturating_sub(used);
            }
            let added = (now - start).as_nanos() * u128::from(rate);
            prop_assert!(total * NANOS <= most + added);
        }

        #[test]
        fn what_was_waited_for_is_there_and_not_earlier(
            rate in prop_oneof![1..20u64, 1..10_000_000_000u64],
            burst in 1..1_000_000u64,
            taken in 0..1_000_000u64,
            later in 0..2_000_000_000u64,
            want in 1..1_000_000u64,
        ) {
            let now = Instant::now();
            let bucket = bucket(rate, burst, now);
            bucket.take(taken, now);
            let now = now + Duration::from_nanos(later);
            let want = want.min(burst);
            let wait = bucket.wait(want, now);
            if let Some(shorter) = wait.checked_sub(Duration::from_nanos(1)) {
                let early = bucket.take(want, now + shorter);
                prop_assert!(early < want);
                bucket.refund(early);
            }
            prop_assert_eq!(bucket.take(want, now + wait), want);
        }
    }

    #[test]
    fn two_threads_get_together_what_there_is() {
        let start = Instant::now();
        let (rate, burst) = (1_000_003, 50_000);
        let bucket = bucket(rate, burst, start);
        let clock = AtomicU64::new(0);
        let at = |nanos| start + Duration::from_nanos(nanos);
        // The first burst is gone, so that none of what follows overflows.
        assert_eq!(bucket.take(u64::MAX, start), burst);
        let work = || {
            let mut total = 0;
            for want in 0..20_000 {
                let now = at(clock.fetch_add(1000, Ordering::Relaxed));
                let granted = bucket.take(want % 7, now);
                bucket.refund(granted / 2);
                total += granted - granted / 2;
            }
            total
        };
        let total: u64 = std::thread::scope(|scope| {
            let threads = [scope.spawn(work), scope.spawn(work)];
            threads
                .map(|thread| thread.join().expect("no panic"))
                .iter()
                .sum()
        });
        let end = clock.load(Ordering::Relaxed);
        let rest = bucket.take(u64::MAX, at(end));
        assert_eq!(total + rest, end * rate / 1_000_000_000);
    }
}
