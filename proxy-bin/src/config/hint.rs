//! What somebody probably meant: the values that messages suggest.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use proxy_core::Target;

/// The nearest correct address: what is missing is filled in, what is too much
/// taken away.
pub(super) fn address(text: &str) -> SocketAddr {
    let text = without_scheme(text);
    if let Some(port) = all_addresses(text) {
        return (Ipv4Addr::UNSPECIFIED, port).into();
    }
    if let Ok(port) = text.parse() {
        return (Ipv4Addr::LOCALHOST, port).into();
    }
    let port = text.rsplit_once(':').and_then(|(host, digits)| {
        // As in `::1:3128`: one digit is more likely a part of the address.
        let is_port = !host.contains(':') || host.contains('[') || digits.len() > 1;
        let port = digits.parse().ok().filter(|_| is_port)?;
        Some((host, port))
    });
    if let Some((host, port)) = port
        && let Some(ip) = ip(host)
    {
        return (ip, port).into();
    }
    if let Some(ip) = ip(text) {
        return (ip, HTTP_PORT).into();
    }
    match text.rsplit_once(':') {
        Some((host, port)) => {
            let ip = ip(host).unwrap_or_else(|| Ipv4Addr::LOCALHOST.into());
            (ip, port.parse().unwrap_or(HTTP_PORT)).into()
        }
        None => (Ipv4Addr::LOCALHOST, HTTP_PORT).into(),
    }
}

/// The port, if no address or a star stands before it: that means all of them,
/// elsewhere.
pub(super) fn all_addresses(text: &str) -> Option<u16> {
    let port = text.strip_prefix('*').unwrap_or(text).strip_prefix(':');
    match port {
        Some(port) => port.parse().ok(),
        None => (text == "*").then_some(HTTP_PORT),
    }
}

/// Whether a port stands there that no port can be.
pub(super) fn has_too_high_port(text: &str) -> bool {
    let digits = text.rsplit_once(':').map_or("", |(_, port)| port);
    digits.len() > 4 && digits.bytes().all(|b| b.is_ascii_digit()) && digits.parse::<u16>().is_err()
}

/// The nearest correct host and port.
pub(super) fn target(text: &str) -> String {
    let text = without_scheme(text).trim_end_matches(['/', ':']);
    if let Ok(ip) = text.parse::<Ipv6Addr>() {
        return format!("[{ip}]:{TARGET_PORT}");
    }
    if Target::parse(text, None).is_ok() {
        return text.to_owned();
    }
    match !text.is_empty() && Target::parse(text, Some(TARGET_PORT)).is_ok() {
        true => format!("{text}:{TARGET_PORT}"),
        false => format!("db.example:{TARGET_PORT}"),
    }
}

/// Address and target of a port relay that were joined as `ssh -L` has it.
pub(super) fn relay(text: &str) -> Option<(SocketAddr, String)> {
    text.match_indices(':').find_map(|(at, _)| {
        let (near, far) = (&text[..at], &text[at + 1..]);
        let near = match near.parse::<u16>() {
            Ok(port) => (Ipv4Addr::LOCALHOST, port).into(),
            Err(_) => near.parse().ok()?,
        };
        Target::parse(far, None).ok()?;
        Some((near, far.to_owned()))
    })
}

/// The number that was meant, if it is one: with a multiple, with separators, or
/// as a fraction that is none. A `k` is 1000, or 1024 of bytes.
pub(super) fn number(text: &str, bytes: bool) -> Option<usize> {
    let text = text
        .trim()
        .to_ascii_lowercase()
        .replace(['_', ',', '\''], "");
    let text = text
        .split_once(".0")
        .map_or(text.as_str(), |(number, rest)| {
            match rest.trim_start_matches('0') {
                "" => number,
                _ => text.as_str(),
            }
        });
    let digits = text.len() - text.trim_start_matches(|c: char| c.is_ascii_digit()).len();
    let (number, unit) = text.split_at(digits);
    let kilo = if bytes { 1024 } else { 1000 };
    let multiple = match unit.trim() {
        "" | "b" => 1,
        "k" | "kb" => kilo,
        "ki" | "kib" => 1024,
        "m" | "mb" => kilo * kilo,
        "mi" | "mib" => 1024 * 1024,
        _ => return None,
    };
    let number: usize = match number.len() {
        0 => return None,
        1..=19 => number.parse().ok()?,
        _ => usize::MAX,
    };
    Some(number.saturating_mul(multiple))
}

/// The length of time that was meant, in milliseconds: with the unit spelt out,
/// missing (then seconds) or of days or weeks, or as a fraction.
pub(super) fn millis(text: &str) -> Option<u64> {
    let text = text.trim().to_ascii_lowercase();
    let is_number = |c: char| c.is_ascii_digit() || c == '.';
    let (number, unit) = text.split_at(text.len() - text.trim_start_matches(is_number).len());
    let unit: u64 = match unit.trim() {
        "ms" | "msec" | "msecs" | "millis" | "millisecond" | "milliseconds" => 1,
        "" | "s" | "sec" | "secs" | "second" | "seconds" => 1_000,
        "m" | "min" | "mins" | "minute" | "minutes" => 60_000,
        "h" | "hr" | "hrs" | "hour" | "hours" => 3_600_000,
        "d" | "day" | "days" => 24 * 3_600_000,
        "w" | "week" | "weeks" => 7 * 24 * 3_600_000,
        _ => return None,
    };
    let (whole, fraction) = number.split_once('.').unwrap_or((number, ""));
    if whole.is_empty() || fraction.len() > 6 {
        return None;
    }
    let parts = match fraction {
        "" => 0,
        digits => {
            digits.parse::<u64>().ok()? * unit / 10_u64.pow(u32::try_from(digits.len()).ok()?)
        }
    };
    let whole = whole.parse().unwrap_or(u64::MAX);
    Some(unit.saturating_mul(whole).saturating_add(parts))
}

/// A length of time as it is written, in the unit of `like` if that can be.
pub(super) fn time(millis: u64, like: &str) -> String {
    let seconds = !like.contains(|c: char| c.is_ascii_alphabetic()) || like.contains("sec");
    let units = [(3_600_000, "h"), (60_000, "m"), (1_000, "s"), (1, "ms")];
    let fits = |(unit, name): &&(u64, &str)| {
        millis.is_multiple_of(*unit) && (!seconds || name.ends_with('s'))
    };
    match units.iter().find(fits) {
        Some((unit, name)) if millis > 0 => format!("{}{name}", millis / unit),
        _ => "0s".to_owned(),
    }
}

fn ip(text: &str) -> Option<IpAddr> {
    let bare = text
        .strip_prefix('[')
        .and_then(|text| text.strip_suffix(']'));
    match text {
        "localhost" => Some(Ipv4Addr::LOCALHOST.into()),
        "*" => Some(Ipv4Addr::UNSPECIFIED.into()),
        _ => bare.unwrap_or(text).parse().ok(),
    }
}

fn without_scheme(text: &str) -> &str {
    text.split_once("://").map_or(text, |(_, rest)| rest)
}

const HTTP_PORT: u16 = 3128;
const TARGET_PORT: u16 = 5432;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses() {
        for (text, hint) in [
            ("localhost:3128", "127.0.0.1:3128"),
            ("proxy.example:80", "127.0.0.1:80"),
            (":3128", "0.0.0.0:3128"),
            ("*:3128", "0.0.0.0:3128"),
            ("*", "0.0.0.0:3128"),
            ("8080", "127.0.0.1:8080"),
            ("0.0.0.0", "0.0.0.0:3128"),
            ("::", "[::]:3128"),
            ("::1", "[::1]:3128"),
            ("[::1]", "[::1]:3128"),
            ("::1:1080", "[::1]:1080"),
            ("2001:db8::1", "[2001:db8::1]:3128"),
            ("2001:db8::1:1080", "[2001:db8::1]:1080"),
            ("[2001:db8::1]:70000", "[2001:db8::1]:3128"),
            ("192.0.2.1:70000", "192.0.2.1:3128"),
            ("http://127.0.0.1:80", "127.0.0.1:80"),
            ("", "127.0.0.1:3128"),
        ] {
            assert_eq!(address(text).to_string(), hint, "{text}");
        }
        assert!(has_too_high_port("127.0.0.1:70000"));
        assert!(!has_too_high_port("127.0.0.1:7000"));
        assert!(!has_too_high_port("::12345a"));
    }

    #[test]
    fn targets() {
        for (text, hint) in [
            ("db", "db:5432"),
            ("db:", "db:5432"),
            ("tcp://db:1", "db:1"),
            ("::1", "[::1]:5432"),
            ("a b:1", "db.example:5432"),
            ("", "db.example:5432"),
        ] {
            assert_eq!(target(text), hint, "{text}");
        }
        let joined = relay("127.0.0.1:1:db:5432").expect("both");
        assert_eq!(joined.0.to_string(), "127.0.0.1:1");
        assert_eq!(joined.1, "db:5432");
        assert!(relay("[::1]:1:[::2]:3").is_some());
        assert!(relay("1:db:5432").is_some());
        assert!(relay("127.0.0.1:1").is_none());
    }

    #[test]
    fn numbers() {
        for (text, bytes, meant) in [
            ("10k", false, Some(10_000)),
            ("10 k", false, Some(10_000)),
            ("64K", true, Some(65_536)),
            ("1,000", false, Some(1_000)),
            ("4.0", false, Some(4)),
            ("4.05", false, None),
            ("99999999999999999999", false, Some(usize::MAX)),
            ("many", false, None),
            ("-1", false, None),
            ("", false, None),
        ] {
            assert_eq!(number(text, bytes), meant, "{text}");
        }
    }

    #[test]
    fn times() {
        for (text, hint) in [
            ("30", Some("30s")),
            ("120", Some("120s")),
            ("10 sec", Some("10s")),
            ("1 min", Some("1m")),
            ("1.5s", Some("1500ms")),
            ("1.5h", Some("90m")),
            ("1d", Some("24h")),
            ("2 weeks", Some("336h")),
            ("0", Some("0s")),
            ("-1s", None),
            ("soon", None),
            (".", None),
        ] {
            let meant = millis(text).map(|millis| time(millis, text));
            assert_eq!(meant.as_deref(), hint, "{text}");
        }
        assert_eq!(millis("99999999999999999999s"), Some(u64::MAX));
    }
}
