//! The kinds of value in a configuration, read from text.

use std::net::SocketAddr;
use std::time::Duration;

use proxy_core::{Network, ProxyVersion, Target, TargetBuf};

use super::hint;
use super::problem::{Mismatch, nearest};

/// Reads the address of a listener: an IP address and a port, which may be 0
/// for any free one.
pub(crate) fn address(text: &str) -> Result<SocketAddr, Mismatch> {
    text.parse().map_err(|_| {
        let instead = match hint::all_addresses(text) {
            Some(port) => format!("\"0.0.0.0:{port}\" or \"[::]:{port}\""),
            None => format!("\"{}\"", hint::address(text)),
        };
        Mismatch::new(with_port("an IP address and a port", text), instead)
    })
}

/// Reads a host and a port to connect to.
pub(crate) fn target(text: &str) -> Result<TargetBuf, Mismatch> {
    Target::parse(text, None).map(TargetBuf::from).map_err(|_| {
        let instead = format!("{:?}", hint::target(text));
        Mismatch::new(with_port("a host and a port", text), instead)
    })
}

/// Reads a network, or a single address.
pub(crate) fn network(text: &str) -> Result<Network, Mismatch> {
    text.parse().map_err(|error: proxy_core::NetworkError| {
        let instead = match error {
            proxy_core::NetworkError::HostBits(network) => network.to_string(),
            _ => "192.168.0.0/16".to_owned(),
        };
        Mismatch::new(
            "a network such as 192.168.0.0/16 or 2001:db8::/32, or an address",
            format!("{instead:?}"),
        )
    })
}

/// Reads the version of a PROXY header.
pub(crate) fn proxy_version(text: &str) -> Result<ProxyVersion, Mismatch> {
    choice(&[("v1", ProxyVersion::V1), ("v2", ProxyVersion::V2)], text)
}

fn with_port(expected: &str, text: &str) -> String {
    match hint::has_too_high_port(text) {
        true => format!("{expected} of at most 65535"),
        false => expected.to_owned(),
    }
}

/// Reads one of a few words.
pub(crate) fn choice<T: Copy>(choices: &[(&str, T)], text: &str) -> Result<T, Mismatch> {
    if let Some((_, value)) = choices.iter().find(|(word, _)| *word == text) {
        return Ok(*value);
    }
    let words: Vec<&str> = choices.iter().map(|(word, _)| *word).collect();
    let hint = nearest(text, &words).map(|hint| format!("{hint:?}"));
    let hint = hint.unwrap_or_else(|| "one of these".to_owned());
    Err(Mismatch::new(one_of(&words), hint))
}

/// Reads a length of time: a whole number and a unit.
pub(crate) fn duration(text: &str) -> Result<Duration, Mismatch> {
    let digits = text.bytes().take_while(u8::is_ascii_digit).count();
    let (number, unit) = text.split_at(digits);
    let unit = match unit.trim_start() {
        "ms" => Some(1),
        "s" => Some(1_000),
        "m" => Some(60_000),
        "h" => Some(3_600_000),
        _ => None,
    };
    let millis = unit.and_then(|unit| number.parse::<u64>().ok()?.checked_mul(unit));
    millis
        .filter(|millis| *millis <= LONGEST_MILLIS)
        .map(Duration::from_millis)
        .ok_or_else(|| {
            let instead = match hint::millis(text) {
                Some(millis) => hint::time(millis.min(LONGEST_MILLIS), text),
                None => "30s".to_owned(),
            };
            Mismatch::new(
                "a time with a unit (ms, s, m or h) of at most a year",
                format!("{instead:?}"),
            )
        })
}

/// Reads a length of time above zero, or `never`.
pub(crate) fn timeout(text: &str) -> Result<Option<Duration>, Mismatch> {
    if text == "never" {
        return Ok(None);
    }
    let endless = [
        "forever",
        "infinite",
        "infinity",
        "none",
        "off",
        "unlimited",
    ];
    let lower = text.to_ascii_lowercase();
    let instead = match duration(text) {
        Ok(time) if !time.is_zero() => return Ok(Some(time)),
        _ if hint::millis(text) == Some(0) => "\"1ms\" (the least: 0 is not possible)".to_owned(),
        _ if lower == "never" || endless.contains(&lower.as_str()) => "\"never\"".to_owned(),
        Err(mismatch) => mismatch.instead,
        Ok(_) => "\"30s\"".to_owned(),
    };
    Err(Mismatch::new(
        "a time above zero with a unit (ms, s, m or h) of at most a year, or \"never\"",
        instead,
    ))
}

/// Reads how many worker threads there shall be.
pub(crate) fn workers(text: &str) -> Result<usize, Mismatch> {
    match text.parse() {
        Ok(workers) if (1..=MOST_WORKERS).contains(&workers) => Ok(workers),
        _ => Err(Mismatch::new(
            format!("a whole number from 1 to {MOST_WORKERS}"),
            hint::number(text, false)
                .unwrap_or(1)
                .clamp(1, MOST_WORKERS)
                .to_string(),
        )),
    }
}

/// Reads the name of a listener.
pub(crate) fn name(text: &str) -> Result<String, Mismatch> {
    let fits = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.');
    if (1..=64).contains(&text.len()) && text.chars().all(fits) {
        return Ok(text.to_owned());
    }
    // What is no name at all may hold a password.
    let text = if text.contains([':', '@', '/']) {
        ""
    } else {
        text
    };
    let mut hint: String = text
        .chars()
        .map(|c| if fits(c) { c } else { '-' })
        .take(64)
        .collect();
    if hint.is_empty() {
        hint.push_str("office");
    }
    Err(Mismatch::new(
        "a name of 1 to 64 letters, digits, '-', '_' and '.'",
        format!("{hint:?}"),
    ))
}

/// Reads a user's name: what Basic (RFC 7617 section 2) and SOCKS5 (RFC 1929
/// section 2) can both carry.
pub(crate) fn user_name(text: &str) -> Result<String, Mismatch> {
    match is_credential(text) && !text.contains(':') {
        true => Ok(text.to_owned()),
        false => Err(Mismatch::new(
            "a user name of 1 to 255 bytes without colons and control characters",
            "\"alice\"",
        )),
    }
}

/// Reads a user's password, with the limits of [`user_name`] but for colons.
pub(crate) fn password(text: &str) -> Result<String, Mismatch> {
    match is_credential(text) {
        true => Ok(text.to_owned()),
        false => Err(Mismatch::new(
            "a password of 1 to 255 bytes without control characters",
            "a password between quotes",
        )),
    }
}

/// What is wrong with a password, without repeating it.
pub(crate) fn wrong_password(text: &str) -> &'static str {
    match text.len() {
        0 => "an empty string",
        1..=255 => "a control character in it",
        _ => "a longer one",
    }
}

/// `a, b or c`, each quoted.
pub(crate) fn one_of(words: &[&str]) -> String {
    let quoted: Vec<String> = words.iter().map(|word| format!("{word:?}")).collect();
    match quoted.split_last() {
        Some((last, [])) => last.clone(),
        Some((last, rest)) => format!("{} or {last}", rest.join(", ")),
        None => String::new(),
    }
}

fn is_credential(text: &str) -> bool {
    (1..=255).contains(&text.len()) && !text.chars().any(char::is_control)
}

/// More threads than any machine has cores for.
pub(crate) const MOST_WORKERS: usize = 1024;

const LONGEST_MILLIS: u64 = 366 * 24 * 3_600_000;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_and_hints() {
        assert!(address("127.0.0.1:0").is_ok());
        assert!(address("[::]:1080").is_ok());
        for (text, hint) in [
            ("localhost:3128", "\"127.0.0.1:3128\""),
            (":3128", "\"0.0.0.0:3128\" or \"[::]:3128\""),
            ("::1", "\"[::1]:3128\""),
        ] {
            assert_eq!(
                address(text).map_err(|m| m.instead),
                Err(hint.to_owned()),
                "{text}"
            );
        }
    }

    #[test]
    fn durations() {
        assert_eq!(duration("30s"), Ok(Duration::from_secs(30)));
        assert_eq!(duration("250 ms"), Ok(Duration::from_millis(250)));
        assert_eq!(duration("2h"), Ok(Duration::from_secs(7200)));
        assert_eq!(duration("0s"), Ok(Duration::ZERO));
        for (text, hint) in [
            ("30", "\"30s\""),
            ("", "\"30s\""),
            ("-1s", "\"30s\""),
            ("10 sec", "\"10s\""),
            ("9000h", "\"8784h\""),
            ("99999999999999999999s", "\"8784h\""),
        ] {
            let wrong = duration(text).map_err(|m| m.instead);
            assert_eq!(wrong, Err(hint.to_owned()), "{text}");
        }
        assert_eq!(timeout("never"), Ok(None));
        for (text, hint) in [
            ("0", "\"1ms\" (the least: 0 is not possible)"),
            ("0s", "\"1ms\" (the least: 0 is not possible)"),
            ("forever", "\"never\""),
            ("Never", "\"never\""),
            ("1d", "\"24h\""),
        ] {
            let wrong = timeout(text).map_err(|m| m.instead);
            assert_eq!(wrong, Err(hint.to_owned()), "{text}");
        }
    }

    #[test]
    fn targets() {
        assert!(target("db.example:5432").is_ok());
        assert_eq!(
            target("db.example").map_err(|m| m.instead),
            Err("\"db.example:5432\"".into())
        );
        assert_eq!(
            target("a b:1").map_err(|m| m.instead),
            Err("\"db.example:5432\"".into())
        );
    }

    #[test]
    fn users() {
        assert!(user_name("älice").is_ok());
        assert!(user_name("a:b").is_err());
        assert!(user_name("").is_err());
        assert!(user_name("a\n").is_err());
        assert!(password("a:b:c").is_ok());
        assert!(password(&"p".repeat(256)).is_err());
    }

    #[test]
    fn choices() {
        let words = [("json", 1), ("text", 2)];
        assert_eq!(choice(&words, "text"), Ok(2));
        assert_eq!(
            choice(&words, "jsn"),
            Err(Mismatch::new("\"json\" or \"text\"", "\"json\""))
        );
    }
}
