//! The time of day as text, made anew once a second.

use std::time::{SystemTime, UNIX_EPOCH};

use jiff::Timestamp;

/// Remembers the text of the current second.
#[derive(Debug)]
pub(super) struct Clock {
    second: u64,
    text: String,
}

impl Default for Clock {
    fn default() -> Self {
        Self {
            second: u64::MAX,
            text: String::with_capacity(32),
        }
    }
}

impl Clock {
    /// `2026-01-02T03:04:05.678Z` (RFC 3339 section 5.6).
    pub(super) fn stamp(&mut self, now: SystemTime) -> &str {
        // A clock before 1970 is no reason to lose a line.
        let since = now.duration_since(UNIX_EPOCH).unwrap_or_default();
        if since.as_secs() != self.second {
            self.second = since.as_secs();
            self.text = second(self.second);
        }
        let millis = since.subsec_millis();
        let digits = [millis / 100, millis / 10 % 10, millis % 10];
        self.text.truncate(SECOND_LENGTH);
        for digit in digits {
            self.text.push(char::from_digit(digit, 10).unwrap_or('0'));
        }
        self.text.push('Z');
        &self.text
    }
}

/// Up to and with the point before the fraction.
fn second(second: u64) -> String {
    let time = i64::try_from(second).ok();
    let time = time.and_then(|time| Timestamp::from_second(time).ok());
    let mut text = time.unwrap_or(Timestamp::UNIX_EPOCH).to_string();
    text.truncate(SECOND_LENGTH - 1);
    text.push('.');
    text
}

const SECOND_LENGTH: usize = "2026-01-02T03:04:05.".len();

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    #[test]
    fn stamps() {
        let mut clock = Clock::default();
        for (millis, text) in [
            (0, "1970-01-01T00:00:00.000Z"),
            (1_767_323_045_678, "2026-01-02T03:04:05.678Z"),
            (1_767_323_045_009, "2026-01-02T03:04:05.009Z"),
            (1_767_323_046_000, "2026-01-02T03:04:06.000Z"),
            (253_402_207_200_999, "9999-12-30T22:00:00.999Z"),
        ] {
            let now = UNIX_EPOCH + Duration::from_millis(millis);
            assert_eq!(clock.stamp(now), text);
        }
    }

    #[test]
    fn a_clock_out_of_range_is_no_panic() {
        let mut clock = Clock::default();
        let before = UNIX_EPOCH - Duration::from_secs(9);
        assert_eq!(clock.stamp(before), "1970-01-01T00:00:00.000Z");
        let after = UNIX_EPOCH + Duration::from_secs(1 << 40);
        assert_eq!(clock.stamp(after), "1970-01-01T00:00:00.000Z");
    }
}
