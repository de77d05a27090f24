//! What one direction may read now, by the rates it obeys.

use std::time::{Duration, Instant};

use proxy_core::Rates;

/// Grants reads to one direction of a session.
///
/// Without rates it is a null pointer and grants everything. With them the clock
/// is read for each read, and a direction that is granted nothing
/// [waits](Self::waits): whoever drives it asks its
/// [`Deadline`](crate::Deadline) to [`call_soon`](crate::Deadline::call_soon),
/// which needs no timer.
///
/// Those that wait at the same bucket divide it evenly, whoever comes first. So
/// a share is taken at intervals of half a [`TICK`](crate::TICK), and no crumb is
/// read as it falls.
///
/// ```
/// use std::num::NonZeroU64;
/// use std::time::Instant;
/// use proxy_core::{Bucket, Rates};
/// use proxy_relay::Meter;
///
/// let burst = NonZeroU64::new(100).unwrap();
/// let mut meter = Meter::new(&Rates::new([Bucket::new(burst, burst, Instant::now())]));
/// assert_eq!(meter.grant(4096), 100);
/// // A read brought ten bytes.
/// meter.settle(100, 10);
/// assert!(!meter.waits());
/// assert!(Meter::default().grant(4096) == 4096);
/// ```
#[derive(Debug, Default)]
pub struct Meter(Option<Box<Limited>>);

#[derive(Debug)]
struct Limited {
    rates: Rates,
    /// What is left of its share.
    allowance: u64,
    /// When that was given.
    since: Instant,
    /// Whether nothing was granted last; then it is in line at the buckets.
    waits: bool,
}

impl Limited {
    fn grant(&mut self, want: u64, now: Instant) -> u64 {
        if now.saturating_duration_since(self.since) >= SHARE_TIME {
            self.share(now);
        }
        let most = want.min(self.allowance);
        let granted = self.rates.take(most, now);
        self.allowance = match granted < most {
            // Others were faster.
            true => 0,
            false => self.allowance - granted,
        };
        self.wait(granted == 0 && want > 0);
        granted
    }

    fn share(&mut self, now: Instant) {
        self.allowance = self.rates.share(self.waits, self.since, now);
        self.since = now;
    }

    fn wait(&mut self, waits: bool) {
        if self.waits != waits {
            self.waits = waits;
            self.rates.line_up(waits);
        }
    }
}

impl Drop for Limited {
    fn drop(&mut self) {
        self.wait(false);
    }
}

impl Meter {
    /// The most that is granted at once.
    pub(crate) const TURN: usize = 16 * 1024;

    /// One that obeys `rates`.
    pub fn new(rates: &Rates) -> Self {
        Self((!rates.is_unlimited()).then(|| {
            let now = Instant::now();
            Box::new(Limited {
                rates: rates.clone(),
                allowance: rates.share(false, now, now),
                since: now,
                waits: false,
            })
        }))
    }

    /// How much of `want` bytes may be read now, which is then to be
    /// [settled](Self::settle). At most 16 KiB at a time, so that those who share
    /// a rate take turns; 0 if there is nothing to be had.
    pub fn grant(&mut self, want: usize) -> usize {
        let Some(limited) = &mut self.0 else {
            return want;
        };
        let granted = limited.grant(want.min(Self::TURN) as u64, Instant::now());
        usize::try_from(granted).unwrap_or(want)
    }

    /// Puts back what was granted and not read.
    pub fn settle(&mut self, granted: usize, read: usize) {
        if let Some(limited) = &mut self.0
            && read < granted
        {
            let unused = (granted - read) as u64;
            limited.rates.refund(unused);
            limited.allowance = limited.allowance.saturating_add(unused);
        }
    }

    /// Takes what is there of `n` bytes that were read already.
    pub fn charge(&mut self, n: usize) {
        if let Some(limited) = &self.0 {
            limited.rates.take(n as u64, Instant::now());
        }
    }

    /// Whether there are rates.
    pub fn is_limited(&self) -> bool {
        self.0.is_some()
    }

    /// Whether nothing was granted last.
    pub fn waits(&self) -> bool {
        self.0.as_ref().is_some_and(|limited| limited.waits)
    }
}

/// From one share to the next: less than a tick, at which those that wait are
/// called.
const SHARE_TIME: Duration = Duration::from_millis(125);

#[cfg(test)]
mod tests {
    use super::*;
    use proxy_core::Bucket;
    use std::num::NonZeroU64;

    const TURN: usize = Meter::TURN;

    #[test]
    fn those_who_share_a_rate_take_turns() {
        let number = |number| NonZeroU64::new(number).expect("not zero");
        let bucket = Bucket::new(NonZeroU64::MIN, number(40_000), Instant::now());
        let mut meters = [0; 2].map(|_| Meter::new(&Rates::new([bucket.clone()])));
        assert_eq!(meters[0].grant(100_000), TURN);
        assert_eq!(meters[1].grant(100_000), TURN);
        meters[1].settle(TURN, 16);
        let rest = meters[0].grant(100_000);
        assert!((16_384..=16_385).contains(&rest), "{rest}");
        assert!(!meters[0].waits());
        meters[0].charge(100_000);
        assert_eq!(meters[0].grant(1), 0);
        assert!(meters[0].waits() && !meters[1].waits());
        assert_eq!(meters[1].grant(0), 0);
        assert!(!meters[1].waits(), "it asked for nothing");
    }

    /// Reads all that each may read, always in the same order, at each tick.
    fn relay(rate: u64, meters: &mut [Limited], ticks: u32) -> (Vec<u64>, u64) {
        let start = meters[0].since;
        let (mut bytes, mut reads) = (vec![0; meters.len()], 0);
        for tick in 1..=ticks {
            let now = start + crate::TICK * tick;
            for (meter, bytes) in meters.iter_mut().zip(&mut bytes) {
                while let granted @ 1.. = meter.grant(TURN as u64, now) {
                    *bytes += granted;
                    reads += 1;
                }
            }
        }
        let most = rate / 4 * u64::from(ticks) + rate;
        assert!(bytes.iter().sum::<u64>() <= most);
        (bytes, reads)
    }

    fn meters(rate: u64, count: usize) -> Vec<Limited> {
        let number = |number| NonZeroU64::new(number).expect("not zero");
        let start = Instant::now();
        let bucket = Bucket::new(number(rate), number(rate / 2), start);
        let rates = Rates::new([bucket]);
        let meter = |_| Limited {
            rates: rates.clone(),
            allowance: 0,
            since: start,
            waits: false,
        };
        (0..count).map(meter).collect()
    }

    #[test]
    fn whoever_comes_first_gets_no_more_than_the_others() {
        for rate in [20_000, 50_000, 1_000_000, 100_000_000] {
            for count in [2, 3, 10] {
                let (bytes, _) = relay(rate, &mut meters(rate, count), 100);
                let fair = rate / 4 * 100 / count as u64;
                for own in &bytes {
                    assert!(own.abs_diff(fair) < fair / 5, "{rate}: {bytes:?}");
                }
            }
        }
    }

    #[test]
    fn one_alone_has_all_of_it_in_large_reads() {
        for rate in [20_000, 1_000_000, 10_000_000, 100_000_000] {
            let (bytes, reads) = relay(rate, &mut meters(rate, 1), 100);
            assert!(bytes[0] >= rate / 4 * 100, "{rate}: {bytes:?}");
            assert!(reads <= bytes[0] / TURN as u64 + 200, "{rate}: {reads}");
        }
    }

    #[test]
    fn those_that_do_not_read_cost_the_others_nothing() {
        let rate = 1_000_000;
        let mut all = meters(rate, 3);
        relay(rate, &mut all, 4);
        let mut active = all.pop().expect("three");
        // The others were granted some and never come back.
        for meter in &mut all {
            let later = meter.since + crate::TICK;
            assert!(meter.grant(1, later) > 0);
        }
        let start = active.since;
        let mut bytes = 0;
        for tick in 1..=40 {
            let now = start + crate::TICK * tick;
            while let granted @ 1.. = active.grant(TURN as u64, now) {
                bytes += granted;
            }
        }
        assert!(bytes >= rate * 9, "{bytes}");
    }

    #[test]
    fn a_meter_that_is_gone_waits_no_longer() {
        let mut all = meters(1_000, 2);
        let start = all[0].since;
        while all[0].grant(1_000, start) > 0 {}
        all[1].rates.take(1_000, start);
        assert_eq!(all[1].grant(1, start), 0);
        let rates = all[0].rates.clone();
        let later = start + Duration::from_secs(1);
        assert_eq!(rates.share(false, start, later), 167);
        all.truncate(1);
        assert_eq!(rates.share(false, start, later), 250);
        drop(all);
        assert_eq!(rates.share(false, start, later), 500);
    }
}
