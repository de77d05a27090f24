//! What one direction may read now, by the rates it obeys.

use std::time::Instant;

use proxy_core::Rates;

/// Grants reads to one direction of a session.
///
/// Without rates it is a null pointer and grants everything. With them the clock
/// is read for each read, and a direction that is granted nothing
/// [waits](Self::waits): whoever drives it asks its
/// [`Deadline`](crate::Deadline) to [`call_soon`](crate::Deadline::call_soon),
/// which needs no timer.
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
    waits: bool,
}

impl Meter {
    /// The most that is granted at once.
    pub(crate) const TURN: usize = 16 * 1024;

    /// One that obeys `rates`.
    pub fn new(rates: &Rates) -> Self {
        Self((!rates.is_unlimited()).then(|| {
            Box::new(Limited {
                rates: rates.clone(),
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
        let most = want.min(Self::TURN) as u64;
        let granted = limited.rates.take(most, Instant::now());
        limited.waits = granted == 0 && want > 0;
        usize::try_from(granted).unwrap_or(want)
    }

    /// Puts back what was granted and not read.
    pub fn settle(&mut self, granted: usize, read: usize) {
        if let Some(limited) = &self.0
            && read < granted
        {
            limited.rates.refund((granted - read) as u64);
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
}
