//! Keeps a message that a flood of events would repeat down to one at a time.

use std::cell::Cell;
use std::time::{Duration, Instant};

/// Lets one event through per interval and counts the others.
#[derive(Debug, Default)]
pub(crate) struct Throttle {
    last: Cell<Option<Instant>>,
    silenced: Cell<u64>,
}

impl Throttle {
    /// Whether to speak of an event now; `Some` with the number of events since
    /// the last that was spoken of, this one included.
    pub(crate) fn admit(&self, now: Instant) -> Option<u64> {
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
}
