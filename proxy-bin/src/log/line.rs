//! One access-log line, as text or JSON.
//!
//! Everything a client can choose is escaped, so that it can neither start a
//! line or field of its own nor reach a terminal.

use std::io::Write;
use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use proxy_core::{Operation, Report};

use crate::config::Format;
use crate::unix::UNIX_CLIENT;

/// What a line tells.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Entry<'a> {
    pub(crate) report: &'a Report<'a>,
    pub(crate) user: Option<&'a str>,
    /// The listener's name.
    pub(crate) service: &'a str,
    /// Where the connection to the origin went.
    pub(crate) upstream: Option<SocketAddr>,
    /// What exactly stood in its way, if that is more than the report tells.
    pub(crate) cause: Option<&'a str>,
}

/// Appends a line, its end included.
pub(super) fn write(out: &mut Vec<u8>, format: Format, time: &str, entry: &Entry<'_>) {
    match format {
        Format::Json => write_json(out, time, entry),
        Format::Text => write_text(out, time, entry),
    }
}

/// `TIME CLIENT USER SERVICE METHOD TARGET STATUS UP DOWN SECONDS END UPSTREAM
/// ERROR`, a hyphen for what there is not.
fn write_text(out: &mut Vec<u8>, time: &str, entry: &Entry<'_>) {
    let report = entry.report;
    out.extend_from_slice(time.as_bytes());
    out.push(b' ');
    push_client(out, report.peer.remote);
    out.push(b' ');
    push_word(out, entry.user);
    out.push(b' ');
    out.extend_from_slice(entry.service.as_bytes());
    out.push(b' ');
    push_word(out, report.operation.as_ref().map(Operation::word));
    out.push(b' ');
    match report.target {
        Some(_) => push_target(out, report, &TEXT),
        None => out.push(b'-'),
    }
    out.push(b' ');
    match report.status {
        Some(status) => push_number(out, status.into()),
        None => out.push(b'-'),
    }
    out.push(b' ');
    push_number(out, report.up);
    out.push(b' ');
    push_number(out, report.down);
    out.push(b' ');
    push_seconds(out, report.duration);
    out.push(b' ');
    out.extend_from_slice(report.end.as_str().as_bytes());
    out.push(b' ');
    match entry.upstream {
        Some(upstream) => push_address(out, upstream),
        None => out.push(b'-'),
    }
    out.push(b' ');
    match (entry.cause, report.error) {
        (None, Some(error)) => infallible(write!(out, "{error}")),
        (cause, _) => push_word(out, cause.or(report.fault)),
    }
    out.push(b'\n');
}

fn write_json(out: &mut Vec<u8>, time: &str, entry: &Entry<'_>) {
    let report = entry.report;
    out.extend_from_slice(b"{\"time\":\"");
    out.extend_from_slice(time.as_bytes());
    out.extend_from_slice(b"\",\"client\":\"");
    push_client(out, report.peer.remote);
    out.extend_from_slice(b"\",\"user\":");
    push_json_string(out, entry.user);
    out.extend_from_slice(b",\"service\":");
    push_json_string(out, Some(entry.service));
    out.extend_from_slice(b",\"method\":");
    push_json_string(out, report.operation.as_ref().map(Operation::word));
    out.extend_from_slice(b",\"target\":");
    match report.target {
        Some(_) => {
            out.push(b'"');
            push_target(out, report, &JSON);
            out.push(b'"');
        }
        None => out.extend_from_slice(b"null"),
    }
    out.extend_from_slice(b",\"status\":");
    match report.status {
        Some(status) => push_number(out, status.into()),
        None => out.extend_from_slice(b"null"),
    }
    out.extend_from_slice(b",\"up\":");
    push_number(out, report.up);
    out.extend_from_slice(b",\"down\":");
    push_number(out, report.down);
    out.extend_from_slice(b",\"duration\":");
    push_seconds(out, report.duration);
    out.extend_from_slice(b",\"end\":\"");
    out.extend_from_slice(report.end.as_str().as_bytes());
    out.extend_from_slice(b"\",\"upstream\":");
    match entry.upstream {
        Some(upstream) => {
            out.push(b'"');
            push_address(out, upstream);
            out.push(b'"');
        }
        None => out.extend_from_slice(b"null"),
    }
    out.extend_from_slice(b",\"error\":");
    match (entry.cause, report.error) {
        (None, Some(error)) => infallible(write!(out, "\"{error}\"")),
        (cause, _) => push_json_string(out, cause.or(report.fault)),
    }
    out.extend_from_slice(b"}\n");
}

/// The client; one at a Unix socket has no address.
fn push_client(out: &mut Vec<u8>, client: SocketAddr) {
    match client == UNIX_CLIENT {
        true => out.extend_from_slice(b"unix"),
        false => push_address(out, client),
    }
}

/// The target: a URL for a forwarded request, else host and port.
fn push_target(out: &mut Vec<u8>, report: &Report<'_>, escapes: &Escapes) {
    let Some(target) = report.target else {
        return;
    };
    let path = match report.operation {
        Some(Operation::Request { path, .. }) => Some(path),
        _ => None,
    };
    if path.is_some() {
        let scheme: &[u8] = if report.secure {
            b"https://"
        } else {
            b"http://"
        };
        out.extend_from_slice(scheme);
    }
    // Of a target, only a name holds what a client chose, and its letters are
    // checked where it is parsed; still, nothing here relies on it.
    let is_ip = match target.host {
        proxy_core::Host::Name(name) => {
            push_escaped(out, name, escapes);
            false
        }
        proxy_core::Host::Ip(ip) => {
            push_ip(out, ip, true);
            true
        }
    };
    // A Unix socket has none.
    if is_ip || target.port != 0 {
        out.push(b':');
        push_number(out, target.port.into());
    }
    match path {
        None | Some("*") => {}
        Some(path) => push_escaped(out, path, escapes),
    }
}

/// A field of a text line.
fn push_word(out: &mut Vec<u8>, word: Option<&str>) {
    match word {
        None => out.push(b'-'),
        // Not to be taken for "none".
        Some("-") => out.extend_from_slice(b"\\x2d"),
        Some("") => out.extend_from_slice(b"\"\""),
        Some(word) => push_escaped(out, word, &TEXT),
    }
}

fn push_json_string(out: &mut Vec<u8>, text: Option<&str>) {
    let Some(text) = text else {
        out.extend_from_slice(b"null");
        return;
    };
    out.push(b'"');
    push_escaped(out, text, &JSON);
    out.push(b'"');
}

fn push_escaped(out: &mut Vec<u8>, text: &str, escapes: &Escapes) {
    let kept = shortened(text);
    let mut rest = kept.as_bytes();
    while let Some(at) = rest.iter().position(|b| escapes.needed[usize::from(*b)]) {
        let (clean, odd) = rest.split_at(at);
        out.extend_from_slice(clean);
        rest = (escapes.push)(out, odd);
    }
    out.extend_from_slice(rest);
    if kept.len() < text.len() {
        out.extend_from_slice(b"...");
    }
}

/// Which bytes must be escaped, and how the first of some is. `push` answers
/// what follows it.
struct Escapes {
    needed: [bool; 256],
    push: for<'b> fn(&mut Vec<u8>, &'b [u8]) -> &'b [u8],
}

/// In a text line only printable ASCII without blanks stands for itself.
const TEXT: Escapes = Escapes {
    needed: {
        let mut needed = [true; 256];
        let mut byte = 0x21;
        while byte < 0x7f {
            needed[byte] = byte == 0x22 || byte == 0x5c;
            byte += 1;
        }
        needed
    },
    push: |out, odd| {
        let [first, rest @ ..] = odd else {
            return odd;
        };
        out.extend_from_slice(b"\\x");
        push_hex(out, *first);
        rest
    },
};

/// RFC 8259 section 7, and the control characters beyond ASCII.
const JSON: Escapes = Escapes {
    needed: {
        let mut needed = [false; 256];
        let mut byte = 0;
        while byte < 256 {
            needed[byte] =
                byte < 0x20 || byte == 0x22 || byte == 0x5c || byte == 0x7f || byte == 0xc2;
            byte += 1;
        }
        needed
    },
    push: |out, odd| match odd {
        [quote @ (b'"' | b'\\'), rest @ ..] => {
            out.extend_from_slice(&[b'\\', *quote]);
            rest
        }
        // U+0080 to U+009F: some terminals obey them.
        [0xc2, control @ 0x80..0xa0, rest @ ..] => {
            out.extend_from_slice(b"\\u00");
            push_hex(out, *control);
            rest
        }
        [other @ 0xc2, rest @ ..] => {
            out.push(*other);
            rest
        }
        [control, rest @ ..] => {
            out.extend_from_slice(b"\\u00");
            push_hex(out, *control);
            rest
        }
        [] => odd,
    },
};

fn push_hex(out: &mut Vec<u8>, byte: u8) {
    const DIGITS: &[u8; 16] = b"0123456789abcdef";
    out.push(DIGITS[usize::from(byte >> 4)]);
    out.push(DIGITS[usize::from(byte & 15)]);
}

fn push_address(out: &mut Vec<u8>, address: SocketAddr) {
    push_ip(out, address.ip(), true);
    out.push(b':');
    push_number(out, address.port().into());
}

/// IPv4 clients of a dual-stack listener are shown as what they are.
fn push_ip(out: &mut Vec<u8>, ip: IpAddr, brackets: bool) {
    match ip.to_canonical() {
        IpAddr::V4(ip) => {
            for (at, octet) in ip.octets().into_iter().enumerate() {
                if at > 0 {
                    out.push(b'.');
                }
                push_number(out, octet.into());
            }
        }
        IpAddr::V6(ip) if brackets => infallible(write!(out, "[{ip}]")),
        IpAddr::V6(ip) => infallible(write!(out, "{ip}")),
    }
}

/// Seconds with six digits behind the point.
fn push_seconds(out: &mut Vec<u8>, duration: Duration) {
    push_number(out, duration.as_secs());
    out.push(b'.');
    let start = out.len();
    // The leading one makes room for the zeros behind the point.
    push_number(out, u64::from(duration.subsec_micros()) + 1_000_000);
    out.remove(start);
}

fn push_number(out: &mut Vec<u8>, mut number: u64) {
    let mut digits = [b'0'; 20];
    let mut at = digits.len();
    loop {
        at -= 1;
        // The remainder is a single digit.
        digits[at] += u8::try_from(number % 10).unwrap_or_default();
        number /= 10;
        if number == 0 {
            break;
        }
    }
    out.extend_from_slice(&digits[at..]);
}

/// Writing to memory cannot fail.
fn infallible(result: std::io::Result<()>) {
    debug_assert!(result.is_ok());
}

fn shortened(text: &str) -> &str {
    let mut end = text.len().min(LONGEST_TEXT);
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    &text[..end]
}

/// Longer paths are cut and end in `...`: the log's memory is bounded.
const LONGEST_TEXT: usize = 4096;

#[cfg(test)]
mod tests {
    use super::*;
    use proxy_core::{ConnectError, ConnectErrorKind, End, Host, Peer, Target};
    use serde_json::{Value, json};

    const TIME: &str = "2026-01-02T03:04:05.678Z";

    fn peer() -> Peer {
        Peer {
            remote: "127.0.0.1:50000".parse().expect("an address"),
            local: "127.0.0.1:3128".parse().expect("an address"),
        }
    }

    fn text(format: Format, entry: &Entry<'_>) -> String {
        let mut out = Vec::new();
        write(&mut out, format, TIME, entry);
        String::from_utf8(out).expect("UTF-8")
    }

    fn request<'a>(peer: &'a Peer, method: &'a str, path: &'a str) -> Report<'a> {
        let mut report = Report::new(peer, End::Completed);
        report.operation = Some(Operation::Request { method, path });
        report.target = Some(Target {
            host: Host::Name("example.com"),
            port: 80,
        });
        report.status = Some(200);
        report.up = 120;
        report.down = 1_000_000_000_000;
        report.duration = Duration::from_micros(12_345);
        report
    }

    #[test]
    fn an_exchange() {
        let peer = peer();
        let report = request(&peer, "GET", "/a?b=c");
        let entry = Entry {
            report: &report,
            user: Some("alice"),
            service: "http-3128",
            upstream: Some("192.0.2.1:80".parse().expect("an address")),
            cause: Some("rule a b.toml:12"),
        };
        assert_eq!(
            text(Format::Text, &entry),
            "2026-01-02T03:04:05.678Z 127.0.0.1:50000 alice http-3128 GET \
             http://example.com:80/a?b=c 200 120 1000000000000 0.012345 completed 192.0.2.1:80 \
             rule\\x20a\\x20b.toml:12\n"
        );
        let value: Value = serde_json::from_str(&text(Format::Json, &entry)).expect("JSON");
        assert_eq!(
            value,
            json!({
                "time": TIME, "client": "127.0.0.1:50000", "user": "alice",
                "service": "http-3128", "method": "GET",
                "target": "http://example.com:80/a?b=c", "status": 200, "up": 120,
                "down": 1_000_000_000_000u64, "duration": 0.012345, "end": "completed",
                "upstream": "192.0.2.1:80", "error": "rule a b.toml:12"
            })
        );
    }

    #[test]
    fn nothing_known() {
        let mut peer = peer();
        peer.remote = "[::ffff:192.0.2.7]:9".parse().expect("an address");
        let report = Report::new(&peer, End::BadRequest);
        let entry = Entry {
            report: &report,
            user: None,
            service: "s",
            upstream: None,
            cause: None,
        };
        assert_eq!(
            text(Format::Text, &entry),
            "2026-01-02T03:04:05.678Z 192.0.2.7:9 - s - - - 0 0 0.000000 bad-request - -\n"
        );
        let value: Value = serde_json::from_str(&text(Format::Json, &entry)).expect("JSON");
        assert_eq!(value["user"], Value::Null);
        assert_eq!(value["status"], Value::Null);
        assert_eq!(value["target"], Value::Null);
        assert_eq!(value["upstream"], Value::Null);
        assert_eq!(value["error"], Value::Null);
    }

    #[test]
    fn a_fault_is_told_where_nothing_else_is() {
        let peer = peer();
        let mut report = request(&peer, "GET", "/a");
        report.secure = true;
        report.fault = Some("host");
        for (error, cause, told) in [
            (None, None, "host"),
            (None, Some("rule:p.toml:1"), "rule:p.toml:1"),
            (Some(ConnectErrorKind::Refused), None, "refused"),
        ] {
            report.error = error.map(ConnectError::origin);
            let entry = Entry {
                report: &report,
                user: None,
                service: "s",
                upstream: None,
                cause,
            };
            let line = text(Format::Text, &entry);
            assert!(line.contains(" https://example.com:80/a "), "{line}");
            assert!(line.ends_with(&format!(" {told}\n")), "{line}");
            let value: Value = serde_json::from_str(&text(Format::Json, &entry)).expect("JSON");
            assert_eq!(value["target"], "https://example.com:80/a");
            assert_eq!(value["error"], told);
        }
    }

    #[test]
    fn a_tunnel_over_ipv6() {
        let peer = peer();
        let mut report = Report::new(&peer, End::OriginFinished);
        report.operation = Some(Operation::Tunnel);
        let to: SocketAddr = "[2001:db8::1]:443".parse().expect("an address");
        report.target = Some(to.into());
        let entry = Entry {
            report: &report,
            user: None,
            service: "s",
            upstream: Some(to),
            cause: None,
        };
        let line = text(Format::Text, &entry);
        assert!(line.contains(" CONNECT [2001:db8::1]:443 - "), "{line}");
        assert!(line.ends_with(" [2001:db8::1]:443 -\n"), "{line}");
    }

    #[test]
    fn a_client_cannot_forge_a_line_or_field() {
        let peer = peer();
        let odd = "/\r\n2026 x\t\"\\\u{1b}[2J\u{7f}\u{9b}\0é\u{2028}";
        let report = request(&peer, "G\"\n", odd);
        for user in ["-", "", "a b", "x\ny", "ü\u{85}\"\\"] {
            let entry = Entry {
                report: &report,
                user: Some(user),
                service: "s",
                upstream: None,
                cause: None,
            };
            let line = text(Format::Text, &entry);
            assert_eq!(line.matches('\n').count(), 1, "{line}");
            assert_eq!(line.split(' ').count(), 13, "{line}");
            assert!(line.trim_end().bytes().all(|b| (0x20..0x7f).contains(&b)));
            assert_ne!(line.split(' ').nth(2), Some("-"));

            let line = text(Format::Json, &entry);
            assert_eq!(line.matches('\n').count(), 1, "{line}");
            assert!(!line.trim_end().chars().any(char::is_control), "{line}");
            let value: Value = serde_json::from_str(&line).expect("JSON");
            assert_eq!(value["user"], user);
            assert_eq!(value["method"], "G\"\n");
            assert_eq!(value["target"], format!("http://example.com:80{odd}"));
        }
    }

    #[test]
    fn every_character_survives_json() {
        let peer = peer();
        for c in (0..0x3000).filter_map(char::from_u32) {
            let path = format!("/{c}.");
            let report = request(&peer, "GET", &path);
            let entry = Entry {
                report: &report,
                user: None,
                service: "s",
                upstream: None,
                cause: None,
            };
            let value: Value = serde_json::from_str(&text(Format::Json, &entry)).expect("JSON");
            assert_eq!(value["target"], format!("http://example.com:80/{c}."));
        }
    }

    #[test]
    fn a_long_path_is_cut() {
        let peer = peer();
        let path = "é".repeat(60_000);
        let report = request(&peer, "GET", &path);
        let entry = Entry {
            report: &report,
            user: None,
            service: "s",
            upstream: None,
            cause: None,
        };
        assert!(text(Format::Text, &entry).len() < 5 * LONGEST_TEXT);
        let line = text(Format::Json, &entry);
        let value: Value = serde_json::from_str(&line).expect("JSON");
        let target = value["target"].as_str().expect("a string");
        assert!(target.ends_with("é...") && target.len() < LONGEST_TEXT + 40);
    }

    #[test]
    fn numbers() {
        for number in [0, 7, 10, 999, 12_345, u64::MAX] {
            let mut out = Vec::new();
            push_number(&mut out, number);
            assert_eq!(out, number.to_string().into_bytes());
        }
        let mut out = Vec::new();
        push_seconds(&mut out, Duration::new(3661, 7_000));
        assert_eq!(out, b"3661.000007");
    }
}
