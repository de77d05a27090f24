//! Weekday and time of day on this machine.

use std::cell::Cell;
use std::fmt;
use std::time::{Duration, Instant};

use jiff::ZonedDateTime;
use jiff::civil::DateTime;

use crate::config::DAYS;

/// A minute of the week.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Moment {
    /// 0 is Monday.
    pub(crate) weekday: u8,
    /// Since midnight.
    pub(crate) minute: u16,
}

impl From<DateTime> for Moment {
    fn from(time: DateTime) -> Self {
        // Neither is ever negative.
        let part = |number: i8| u8::try_from(number).unwrap_or(0);
        Self {
            weekday: part(time.weekday().to_monday_zero_offset()),
            minute: u16::from(part(time.hour())) * 60 + u16::from(part(time.minute())),
        }
    }
}

impl fmt::Display for Moment {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let day = DAYS.get(usize::from(self.weekday)).unwrap_or(&"");
        let (hour, minute) = (self.minute / 60, self.minute % 60);
        write!(f, "{day} {hour:02}:{minute:02}")
    }
}

/// Where the time of a policy comes from.
#[derive(Clone, Copy, Debug)]
pub(super) enum Clock {
    Fixed(Moment),
    Machine,
}

impl Clock {
    pub(super) fn now(self) -> Moment {
        match self {
            Self::Fixed(moment) => moment,
            Self::Machine => machine(),
        }
    }
}

/// The calendar is asked at most once a second.
fn machine() -> Moment {
    let now = Instant::now();
    if let Some((read, moment)) = LAST.get()
        && now.duration_since(read) < FRESH
    {
        return moment;
    }
    let moment = ZonedDateTime::now().datetime().into();
    LAST.set(Some((now, moment)));
    moment
}

thread_local! {
    static LAST: Cell<Option<(Instant, Moment)>> = const { Cell::new(None) };
}

const FRESH: Duration = Duration::from_secs(1);

#[cfg(test)]
mod tests {
    use super::*;
    use crate::policy::Policy;
    use crate::policy::tests::config;
    use proxy_core::{Operation, Target};

    #[test]
    fn moments() {
        let moment = |text: &str| Moment::from(text.parse::<DateTime>().expect(text));
        assert_eq!(
            moment("2026-11-30T12:05"),
            Moment {
                weekday: 0,
                minute: 725
            }
        );
        assert_eq!(moment("2026-12-06T23:59").weekday, 6);
        assert_eq!(moment("2026-11-30T09:05").to_string(), "mon 09:05");
    }

    /// When the clock was read last, once a policy with these rules has judged.
    fn read_by(rules: &str) -> Option<Instant> {
        let policy = Policy::new(&config(rules));
        let person = policy.person([192, 0, 2, 7].into(), None, 0);
        let act = policy.act(&Operation::Tunnel);
        let target = Target::parse("h.example:80", None).expect("a target");
        policy.judge(&person, act, target, None);
        LAST.get().map(|(read, _)| read)
    }

    #[test]
    fn the_clock_is_read_for_rules_that_need_it_and_once_a_second() {
        let timed = "[[rule]]\naction = \"deny\"\nhours = \"00:00-24:00\"\nports = ";
        let reads = std::thread::spawn(move || {
            assert_eq!(read_by("[[rule]]\naction = \"deny\"\n"), None);
            assert_eq!(read_by(&format!("{timed}\"81\"")), None);
            let reads = [0; 2].map(|_| read_by(&format!("{timed}\"80\"")));
            // However slow this machine is.
            let is_late = reads[0].is_some_and(|read| read.elapsed() > FRESH);
            (reads, is_late)
        });
        let ([first, second], is_late) = reads.join().expect("no panic");
        assert!(first.is_some() && (first == second || is_late));
    }
}
