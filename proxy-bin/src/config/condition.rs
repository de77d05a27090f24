//! The kinds of entry in a rule's lists, read from text.

use std::ops::RangeInclusive;

use proxy_core::{NamePattern, NamePatternError, Network, NetworkError};

use super::problem::{Mismatch, nearest};
use super::rules::{Hours, Kind};
use super::value;

/// Reads a network, or a single address.
pub(super) fn network(text: &str) -> Result<Network, Mismatch> {
    text.parse().map_err(|error| {
        let expected = "a network";
        match error {
            NetworkError::HostBits(network) => Mismatch::new(
                format!("{expected} whose address has no bits behind the prefix"),
                format!("\"{network}\""),
            ),
            _ => Mismatch::new(expected, format!("\"{}\"", meant_network(text))),
        }
    })
}

/// Reads a name, `*.name` or `.name`.
pub(super) fn name(text: &str) -> Result<NamePattern, Mismatch> {
    text.parse().map_err(|error| match error {
        NamePatternError::Address => Mismatch::new(
            "a name (addresses are for networks)",
            format!("networks = [{text:?}]"),
        ),
        _ => Mismatch::new(
            "a name in ASCII, alone or behind \"*.\" or \".\"",
            meant_name(text),
        ),
    })
}

/// Reads a port, or the first and the last of a range.
pub(super) fn ports(text: &str) -> Result<RangeInclusive<u16>, Mismatch> {
    let port = |text: &str| match text.bytes().all(|b| b.is_ascii_digit()) {
        true => text.parse().ok().filter(|port| *port > 0),
        false => None,
    };
    let (first, last) = text.split_once('-').unwrap_or((text, text));
    match (port(first), port(last)) {
        (Some(first), Some(last)) if first <= last => Ok(first..=last),
        (Some(first), Some(last)) => Err(Mismatch::new(PORTS, format!("\"{last}-{first}\""))),
        _ => Err(Mismatch::new(PORTS, "\"443\"")),
    }
}

/// Reads a kind of operation.
pub(crate) fn operation(text: &str) -> Result<Kind, Mismatch> {
    value::choice(&Kind::WORDS, text).map_err(|mismatch| match text.to_ascii_lowercase().as_str() {
        "connect" => Mismatch {
            instead: "\"tunnel\"".to_owned(),
            ..mismatch
        },
        "udp" => Mismatch {
            instead: "\"associate\"".to_owned(),
            ..mismatch
        },
        _ => mismatch,
    })
}

/// Reads a method of requests (RFC 9110 section 9.1).
pub(crate) fn method(text: &str) -> Result<String, Mismatch> {
    let upper = text.to_ascii_uppercase();
    let is_token = |byte: u8| byte.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&byte);
    let fits = (1..=32).contains(&text.len()) && text.bytes().all(is_token);
    match upper.as_str() {
        "CONNECT" => Err(Mismatch::new(
            "a method of requests (CONNECT is a tunnel)",
            "operations = [\"tunnel\"]",
        )),
        // Methods have a case, and those that all know are in capitals.
        known if METHODS.contains(&known) && known != text => {
            Err(Mismatch::new("a method in capitals", format!("{known:?}")))
        }
        _ if fits => Ok(text.to_owned()),
        _ => Err(Mismatch::new("a method", "\"GET\"")),
    }
}

/// Reads a part of the day.
pub(super) fn hours(text: &str) -> Result<Hours, Mismatch> {
    let (start, end) = match text.split_once('-') {
        Some((start, end)) => (minute(start.trim()), minute(end.trim())),
        None => (None, None),
    };
    match (start, end) {
        (Some(start), Some(end)) if start != end && start < DAY => Ok(Hours { start, end }),
        _ => Err(Mismatch::new(
            "a part of the day from one time up to another, as in \"08:00-18:00\"",
            "\"08:00-18:00\"",
        )),
    }
}

/// Reads a weekday, or the first and the last of several.
pub(super) fn days(text: &str) -> Result<u8, Mismatch> {
    let day = |text: &str| DAYS.iter().position(|day| *day == text);
    let (first, last) = text.split_once('-').unwrap_or((text, text));
    let Some((first, last)) = day(first).zip(day(last)) else {
        return Err(wrong_days(text));
    };
    let days = (0..DAYS.len()).map(|at| match first <= last {
        true => (first..=last).contains(&at),
        // Over the end of the week.
        false => at >= first || at <= last,
    });
    Ok(days.rev().fold(0, |all, is_in| all << 1 | u8::from(is_in)))
}

fn wrong_days(text: &str) -> Mismatch {
    let short = |text: &str| {
        let start: String = text.trim().to_lowercase().chars().take(3).collect();
        nearest(&start, &DAYS).unwrap_or("mon")
    };
    let instead = match text.split_once('-') {
        Some((first, last)) => format!("\"{}-{}\"", short(first), short(last)),
        None => format!("{:?}", short(text)),
    };
    Mismatch::new(
        format!(
            "a weekday ({}) or the first and the last of several",
            DAYS.join(", ")
        ),
        instead,
    )
}

/// Minutes since midnight; 24:00 is the end of the day.
fn minute(text: &str) -> Option<u16> {
    let (hour, minute) = text.split_once(':')?;
    let number = |text: &str| -> Option<u16> {
        let fits = text.len() == 2 && text.bytes().all(|b| b.is_ascii_digit());
        text.parse().ok().filter(|_| fits)
    };
    let (hour, minute) = (number(hour)?, number(minute)?);
    Some(hour * 60 + minute).filter(|all| minute < 60 && *all <= DAY)
}

/// The nearest correct network.
fn meant_network(text: &str) -> String {
    let (address, prefix) = text.split_once('/').unwrap_or((text, ""));
    let address = address.trim().trim_start_matches('[').trim_end_matches(']');
    let Ok(ip) = address.parse() else {
        return "192.0.2.0/24".to_owned();
    };
    let bits = prefix.trim().parse().map(|bits| Network::new(ip, bits));
    match bits {
        Ok(Ok(network) | Err(NetworkError::HostBits(network))) => network.to_string(),
        _ => Network::from(ip).to_string(),
    }
}

/// The nearest correct pattern, quoted.
fn meant_name(text: &str) -> String {
    let lower = text.trim().to_ascii_lowercase();
    let rest = lower.split_once("://").map_or(&*lower, |(_, rest)| rest);
    let host = rest.split(['/', ':', '?']).next().unwrap_or(rest);
    match host {
        "" | "*" => return "\".example.com\", or no names for all of them".to_owned(),
        _ if !host.is_ascii() => return "its ASCII form (\"xn--..\")".to_owned(),
        _ => {}
    }
    // As in `*example.com`.
    let bare = host
        .trim_start_matches(['*', '.'])
        .trim_end_matches(['*', '.']);
    let start = match (host.starts_with("*"), host.starts_with('.')) {
        (true, _) => "*.",
        (_, true) => ".",
        _ => "",
    };
    match format!("{start}{bare}").parse::<NamePattern>() {
        Ok(pattern) => format!("\"{pattern}\""),
        Err(_) => "\".example.com\"".to_owned(),
    }
}

const PORTS: &str = "a port from 1 to 65535, or the first and the last of several";

/// From Monday on.
pub(crate) const DAYS: [&str; 7] = ["mon", "tue", "wed", "thu", "fri", "sat", "sun"];

const DAY: u16 = 24 * 60;

/// Those with a meaning of their own (RFC 9110 section 9.3, RFC 5789).
const METHODS: [&str; 8] = [
    "DELETE", "GET", "HEAD", "OPTIONS", "PATCH", "POST", "PUT", "TRACE",
];

#[cfg(test)]
mod tests {
    use super::*;

    fn instead<T>(result: Result<T, Mismatch>) -> String {
        result.err().map_or_else(String::new, |m| m.instead)
    }

    #[test]
    fn networks_and_hints() {
        assert!(network("10.0.0.0/8").is_ok());
        for (text, hint) in [
            ("10.1.2.3/8", "\"10.0.0.0/8\""),
            ("10.1.2.3/33", "\"10.1.2.3/32\""),
            ("[::1]", "\"::1/128\""),
            (" 10.0.0.0 / 8", "\"10.0.0.0/8\""),
            ("example.com", "\"192.0.2.0/24\""),
            ("", "\"192.0.2.0/24\""),
        ] {
            assert_eq!(instead(network(text)), hint, "{text}");
        }
    }

    #[test]
    fn names_and_hints() {
        for text in [
            "example.com",
            "*.example.com",
            ".example.com",
            "EXAMPLE.com.",
            "com",
        ] {
            assert!(name(text).is_ok(), "{text}");
        }
        for (text, hint) in [
            ("https://Example.com/path", "\"example.com\""),
            ("example.com:443", "\"example.com\""),
            ("*example.com", "\"*.example.com\""),
            ("**.example.com", "\"*.example.com\""),
            ("..example.com", "\".example.com\""),
            ("example.*", "\"example\""),
            ("www.*.com", "\".example.com\""),
            ("*", "\".example.com\", or no names for all of them"),
            ("", "\".example.com\", or no names for all of them"),
            ("ü.example", "its ASCII form (\"xn--..\")"),
            ("10.0.0.1", "networks = [\"10.0.0.1\"]"),
            ("a..b", "\".example.com\""),
        ] {
            assert_eq!(instead(name(text)), hint, "{text}");
        }
    }

    #[test]
    fn ports_and_hints() {
        assert_eq!(ports("443"), Ok(443..=443));
        assert_eq!(ports("8000-8999"), Ok(8000..=8999));
        assert_eq!(ports("1-65535"), Ok(1..=65535));
        assert_eq!(instead(ports("90-80")), "\"80-90\"");
        for text in ["", "0", "65536", "+1", "a", "1-", "-1", "1-2-3", "80,443"] {
            assert_eq!(instead(ports(text)), "\"443\"", "{text}");
        }
    }

    #[test]
    fn operations_and_methods() {
        assert_eq!(operation("tunnel"), Ok(Kind::Tunnel));
        assert_eq!(instead(operation("CONNECT")), "\"tunnel\"");
        assert_eq!(instead(operation("tunel")), "\"tunnel\"");
        assert_eq!(method("GET").as_deref(), Ok("GET"));
        assert_eq!(method("X-own").as_deref(), Ok("X-own"));
        assert_eq!(instead(method("get")), "\"GET\"");
        assert_eq!(instead(method("CONNECT")), "operations = [\"tunnel\"]");
        assert_eq!(instead(method("GET /")), "\"GET\"");
        assert_eq!(instead(method("")), "\"GET\"");
    }

    #[test]
    fn times() {
        let day = Hours {
            start: 480,
            end: 1080,
        };
        assert_eq!(hours("08:00-18:00"), Ok(day));
        assert!(day.contains(480) && day.contains(1079) && !day.contains(1080));
        let night = hours("22:00-06:00").expect("hours");
        assert!(night.contains(1320) && night.contains(0) && night.contains(359));
        assert!(!night.contains(360) && !night.contains(1319));
        let all = hours("00:00-24:00").expect("hours");
        assert!(all.contains(0) && all.contains(1439));
        for text in [
            "",
            "8-18",
            "8:00-18:00",
            "08:00",
            "08:00-08:00",
            "08:60-09:00",
            "24:00-01:00",
            "08:00-24:01",
            "+8:00-18:00",
        ] {
            assert!(hours(text).is_err(), "{text}");
        }
    }

    #[test]
    fn weekdays() {
        assert_eq!(days("mon"), Ok(0b000_0001));
        assert_eq!(days("sun"), Ok(0b100_0000));
        assert_eq!(days("mon-fri"), Ok(0b001_1111));
        assert_eq!(days("sat-mon"), Ok(0b110_0001));
        assert_eq!(days("sun-mon"), Ok(0b100_0001));
        assert_eq!(instead(days("Monday-Friday")), "\"mon-fri\"");
        assert_eq!(instead(days("Saturday")), "\"sat\"");
        assert_eq!(instead(days("")), "\"mon\"");
    }
}
