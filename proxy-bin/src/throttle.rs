//! Keeps messages that a flood of events would repeat down to one at a time.

use std::cell::Cell;
use std::time::{Duration, Instant};

/// Lets one event through per interval and counts the others.
#[derive(Debug, Default)]
pub(crate) struct Throttle {
    last: Cell<Option<Instant>>,
    silenced: Cell<u64>,
    /// The latest event, spoken of or not, until its flood was said to be over.
    latest: Cell<Option<Instant>>,
}

impl Throttle {
    /// Whether to speak of an event now; `Some` with the number of events since
    /// the last that was spoken of, this one included.
    pub(crate) fn admit(&self, now: Instant) -> Option<u64> {
        self.latest.set(Some(now));
        let events = self.silenced.get() + 1;
        let wait = |last: Instant| now.duration_since(last) < INTERVAL;
        if self.last.get().is_some_and(wait) {
            self.silenced.set(events);
            return None;
        }
        self.last.set(Some(now));
        self.silenced.set(0);
        Some(events)
    }

    /// Whether to say now that it is over: once for each flood, when an interval
    /// has passed without an event.
    pub(crate) fn is_over(&self, now: Instant) -> bool {
        let passed = |latest| now.duration_since(latest) >= INTERVAL;
        let is_over = self.latest.get().is_some_and(passed);
        if is_over {
            self.latest.set(None);
        }
        is_over
    }
}

const INTERVAL: Duration = Duration::from_secs(5);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_in_an_interval_and_none_is_lost() {
        let throttle = Throttle::default();
        let start = Instant::now();
        let said: Vec<u64> = (0..1000)
            .filter_map(|ms| throttle.admit(start + Duration::from_millis(ms * 10)))
            .collect();
        assert_eq!(said, [1, 500]);
        assert_eq!(throttle.admit(start + Duration::from_secs(60)), Some(500));
    }

    #[test]
    fn the_end_of_a_flood_is_told_once() {
        let throttle = Throttle::default();
        let start = Instant::now();
        assert!(!throttle.is_over(start), "there was nothing");
        // Failures and successes take turns for twenty seconds, then all is well.
        let (mut begun, mut over) = (0, Vec::new());
        for ms in (0..40_000).step_by(100) {
            let now = start + Duration::from_millis(ms);
            if ms < 20_000 {
                begun += u64::from(throttle.admit(now).is_some());
            }
            if throttle.is_over(now) {
                over.push(ms);
            }
        }
        assert_eq!((begun, over), (4, vec![24_900]));
        // The next flood has an end of its own.
        assert!(throttle.admit(start + Duration::from_secs(60)).is_some());
        assert!(throttle.is_over(start + Duration::from_secs(65)));
        assert!(!throttle.is_over(start + Duration::from_secs(66)));
    }
}
