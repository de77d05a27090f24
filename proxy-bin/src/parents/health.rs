//! Passive health: a parent that keeps failing is passed over for a while.

use std::cell::Cell;
use std::time::{Duration, Instant};

/// What is known of a parent from its use.
///
/// It only moves a parent behind the others: one without others is always tried.
#[derive(Debug, Default)]
pub(super) struct Health {
    /// Failures in a row.
    failures: Cell<u32>,
    unfit_until: Cell<Option<Instant>>,
}

impl Health {
    /// The parent did what it was asked.
    pub(super) fn works(&self) {
        self.failures.set(0);
        self.unfit_until.set(None);
    }

    /// The parent failed by its own fault.
    pub(super) fn fails(&self, now: Instant) {
        let failures = self.failures.get().saturating_add(1);
        self.failures.set(failures);
        if let Some(beyond) = failures.checked_sub(TOLERATED) {
            let time = FIRST.saturating_mul(1 << beyond.min(16)).min(LONGEST);
            self.unfit_until.set(Some(now + time));
        }
    }

    /// Whether it should be tried. Reads no clock unless it failed lately.
    pub(super) fn is_fit(&self) -> bool {
        self.is_fit_at(Instant::now)
    }

    fn is_fit_at(&self, now: impl FnOnce() -> Instant) -> bool {
        match self.unfit_until.get() {
            None => true,
            Some(until) => now() >= until,
        }
    }
}

/// The failure in a row that makes a parent unfit.
const TOLERATED: u32 = 3;

/// How long it is passed over at first; twice as long with each further failure.
const FIRST: Duration = Duration::from_secs(2);

/// And at most.
const LONGEST: Duration = Duration::from_secs(60);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn failures_in_a_row_have_growing_pauses() {
        let health = Health::default();
        let start = Instant::now();
        let mut pauses = Vec::new();
        for _ in 0..10 {
            health.fails(start);
            let until = health.unfit_until.get();
            pauses.push(until.map_or(0, |until| (until - start).as_secs()));
        }
        assert_eq!(pauses, [0, 0, 2, 4, 8, 16, 32, 60, 60, 60]);
        assert!(!health.is_fit_at(|| start + Duration::from_secs(59)));
        assert!(health.is_fit_at(|| start + Duration::from_secs(60)));
        health.works();
        assert!(health.is_fit());
        health.fails(start);
        assert!(
            health.is_fit(),
            "one failure after a success is none in a row"
        );
    }
}
