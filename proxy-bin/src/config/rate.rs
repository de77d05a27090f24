//! How fast: a rate in bytes a second, and the places where one is written.

use std::num::NonZeroU64;

use super::problem::Mismatch;
use super::reader::Table;

/// The rates of a listener, a user, or what all have.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Rates {
    /// From the client; `None` is no limit.
    pub(crate) up: Option<NonZeroU64>,
    /// To the client.
    pub(crate) down: Option<NonZeroU64>,
}

impl Rates {
    pub(super) fn read(table: &Table<'_>, up: &str, down: &str) -> Self {
        let read = |key| table.text(key, rate).map(|rate| rate.value);
        Self {
            up: read(up),
            down: read(down),
        }
    }

    pub(crate) fn is_unlimited(self) -> bool {
        self == Self::default()
    }

    /// These where there are any, else those.
    pub(crate) fn or(self, other: Self) -> Self {
        Self {
            up: self.up.or(other.up),
            down: self.down.or(other.down),
        }
    }
}

/// Reads a rate: a whole number and a unit of bytes or bits a second.
pub(super) fn rate(text: &str) -> Result<NonZeroU64, Mismatch> {
    let digits = text.bytes().take_while(u8::is_ascii_digit).count();
    let (number, unit) = text.split_at(digits);
    let unit = unit.trim_start();
    let factor = UNITS.iter().find(|(word, ..)| *word == unit);
    let bytes = factor.and_then(|(_, times, bits)| {
        let all = number.parse::<u64>().ok()?.checked_mul(*times)?;
        NonZeroU64::new(if *bits { all / 8 } else { all })
    });
    let fits = |bytes: &NonZeroU64| (LEAST..=MOST).contains(&bytes.get());
    bytes.filter(fits).ok_or_else(|| {
        let number = number.parse::<u64>().ok().filter(|number| *number > 0);
        Mismatch::new(
            "a rate with a unit (B/s, KB/s, MB/s, GB/s, KiB/s, MiB/s, GiB/s, kbit/s, Mbit/s or \
             Gbit/s) from 1 KB/s to 1000 GB/s",
            format!("\"{} {}\"", number.unwrap_or(500), nearest(unit)),
        )
    })
}

/// What somebody who wrote that may have meant.
fn nearest(unit: &str) -> &'static str {
    let lower = unit.to_ascii_lowercase();
    let bits = lower.contains("bit") || lower.contains("bps") || unit.ends_with("b/s");
    match (lower.as_bytes().first(), bits) {
        (Some(b'g'), true) => "Gbit/s",
        (Some(b'm'), true) => "Mbit/s",
        (_, true) => "kbit/s",
        (Some(b'g'), false) => "GB/s",
        (Some(b'm'), false) => "MB/s",
        (_, false) => "KB/s",
    }
}

/// The word, what it stands for, and whether that are bits.
const UNITS: [(&str, u64, bool); 10] = [
    ("B/s", 1, false),
    ("KB/s", 1_000, false),
    ("MB/s", 1_000_000, false),
    ("GB/s", 1_000_000_000, false),
    ("KiB/s", 1 << 10, false),
    ("MiB/s", 1 << 20, false),
    ("GiB/s", 1 << 30, false),
    ("kbit/s", 1_000, true),
    ("Mbit/s", 1_000_000, true),
    ("Gbit/s", 1_000_000_000, true),
];

pub(super) const LISTENER_KEYS: [&str; 4] = [
    "rate_up",
    "rate_down",
    "session_rate_up",
    "session_rate_down",
];

const LEAST: u64 = 1_000;
const MOST: u64 = 1_000_000_000_000;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rates_in_their_units() {
        for (text, bytes) in [
            ("1000B/s", 1_000),
            ("500KB/s", 500_000),
            ("500 KB/s", 500_000),
            ("1MiB/s", 1_048_576),
            ("2GB/s", 2_000_000_000),
            ("10Mbit/s", 1_250_000),
            ("8 kbit/s", 1_000),
            ("1Gbit/s", 125_000_000),
        ] {
            assert_eq!(rate(text).map(NonZeroU64::get).ok(), Some(bytes), "{text}");
        }
    }

    #[test]
    fn what_is_no_rate_and_what_was_meant() {
        for (text, instead) in [
            ("0KB/s", "\"500 KB/s\""),
            ("999B/s", "\"999 KB/s\""),
            ("500", "\"500 KB/s\""),
            ("10M", "\"10 MB/s\""),
            ("10Mb/s", "\"10 Mbit/s\""),
            ("10mbps", "\"10 Mbit/s\""),
            ("fast", "\"500 KB/s\""),
            ("", "\"500 KB/s\""),
            ("99999999999999999999GB/s", "\"500 GB/s\""),
            ("2000GB/s", "\"2000 GB/s\""),
            ("-5MB/s", "\"500 KB/s\""),
        ] {
            let mismatch = rate(text).expect_err(text);
            assert_eq!(mismatch.instead, instead, "{text}");
        }
    }
}
