//! Where a client wants to go: a host and a port.

use std::fmt;
use std::net::{IpAddr, Ipv6Addr, SocketAddr};

/// The host of a [`Target`]: an address or a name.
///
/// Exhaustive on purpose: RFC 3986 section 3.2.2 has no third kind in use.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Host<'a> {
    /// A literal address.
    Ip(IpAddr),
    /// A name to be resolved: 1 to 255 ASCII letters, digits, `-`, `_`, `.` and
    /// `~`, as checked by [`Host::parse`].
    Name(&'a str),
}

impl<'a> Host<'a> {
    /// Reads a host as it stands in a URI (RFC 3986 section 3.2.2): a name, an
    /// IPv4 address, or an IPv6 address in brackets without a zone.
    ///
    /// # Errors
    /// If it is none of these.
    pub fn parse(text: &'a str) -> Result<Self, TargetError> {
        if let Some(rest) = text.strip_prefix('[') {
            let inner = rest.strip_suffix(']').ok_or(TargetError::Host)?;
            let ip: Ipv6Addr = inner.parse().map_err(|_| TargetError::Host)?;
            return Ok(Self::Ip(ip.into()));
        }
        Self::name(text.as_bytes())
    }

    /// Reads a host without brackets as SOCKS carries it: a name, which may be
    /// the text of an IPv4 or IPv6 address.
    ///
    /// # Errors
    /// If a byte is not allowed in a name, the length is not 1 to 255, or the
    /// last label is a number: other spellings of an IPv4 address, such as
    /// `127.1` or `0x7f000001`, are neither names nor addresses.
    pub fn name(bytes: &'a [u8]) -> Result<Self, TargetError> {
        if bytes.is_empty() || bytes.len() > MAX_NAME {
            return Err(TargetError::Host);
        }
        let text = std::str::from_utf8(bytes).map_err(|_| TargetError::Host)?;
        if could_be_address(bytes)
            && let Ok(ip) = text.parse::<IpAddr>()
        {
            return Ok(Self::Ip(ip));
        }
        match bytes.iter().all(|b| is_name_byte(*b)) && !ends_in_number(text) {
            true => Ok(Self::Name(text)),
            false => Err(TargetError::Host),
        }
    }

    /// Whether this is `localhost` or a name below it, which mean loopback
    /// whatever a resolver says (RFC 6761 section 6.3).
    ///
    /// ```
    /// use proxy_core::Host;
    /// assert!(Host::Name("a.LocalHost.").is_localhost());
    /// assert!(!Host::Name("localhost.example").is_localhost());
    /// ```
    pub fn is_localhost(&self) -> bool {
        let Self::Name(name) = self else {
            return false;
        };
        let last = name.trim_end_matches('.').rsplit('.').next();
        last.is_some_and(|last| last.eq_ignore_ascii_case("localhost"))
    }

    /// Whether this is the name `name`, in any case and with or without a final
    /// dot.
    pub fn is_name(&self, name: &str) -> bool {
        matches!(self, Self::Name(own) if trim_dot(own).eq_ignore_ascii_case(trim_dot(name)))
    }
}

impl fmt::Display for Host<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Ip(IpAddr::V4(ip)) => ip.fmt(f),
            Self::Ip(IpAddr::V6(ip)) => write!(f, "[{ip}]"),
            Self::Name(name) => f.write_str(name),
        }
    }
}

/// A host and a port to connect to; displays as an authority, with IPv6 in
/// brackets.
///
/// ```
/// use proxy_core::{Host, Target};
/// let target = Target::parse("[2001:db8::1]:443", None)?;
/// assert_eq!(target.host, Host::Ip("2001:db8::1".parse().unwrap()));
/// assert_eq!(target.to_string(), "[2001:db8::1]:443");
/// assert_eq!(Target::parse("example.com", Some(80))?.port, 80);
/// # Ok::<(), proxy_core::TargetError>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Target<'a> {
    /// The host.
    pub host: Host<'a>,
    /// The port, never 0 when parsed.
    pub port: u16,
}

impl<'a> Target<'a> {
    /// Reads `host:port` (RFC 3986 section 3.2, without user information).
    /// `default_port` stands in for a missing or empty port; with `None` the
    /// port must be there.
    ///
    /// # Errors
    /// If host or port is malformed, or the port is 0 or above 65535.
    pub fn parse(text: &'a str, default_port: Option<u16>) -> Result<Self, TargetError> {
        let host_end = match text.starts_with('[') {
            true => text.find(']').ok_or(TargetError::Host)? + 1,
            false => text.find(':').unwrap_or(text.len()),
        };
        let (host, rest) = text.split_at(host_end);
        let host = Host::parse(host)?;
        let port = match rest.strip_prefix(':') {
            Some(digits) if !digits.is_empty() => parse_port(digits)?,
            None if !rest.is_empty() => return Err(TargetError::Host),
            _ => default_port.ok_or(TargetError::Port)?,
        };
        Ok(Self { host, port })
    }
}

impl fmt::Display for Target<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.host, self.port)
    }
}

impl From<SocketAddr> for Target<'_> {
    fn from(address: SocketAddr) -> Self {
        Self {
            host: Host::Ip(address.ip()),
            port: address.port(),
        }
    }
}

/// An owned [`Target`] whose memory can be used again.
///
/// ```
/// use proxy_core::{Target, TargetBuf};
/// let mut kept = TargetBuf::from(Target::parse("example.com:80", None)?);
/// kept.set(Target::parse("example.org:80", None)?);
/// assert_eq!(kept.as_target().to_string(), "example.org:80");
/// # Ok::<(), proxy_core::TargetError>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct TargetBuf {
    ip: Option<IpAddr>,
    name: String,
    port: u16,
}

impl TargetBuf {
    /// Replaces the content.
    pub fn set(&mut self, target: Target<'_>) {
        self.name.clear();
        self.ip = None;
        self.port = target.port;
        match target.host {
            Host::Ip(ip) => self.ip = Some(ip),
            Host::Name(name) => self.name.push_str(name),
        }
    }

    /// A view of the content.
    pub fn as_target(&self) -> Target<'_> {
        Target {
            host: self.ip.map_or(Host::Name(&self.name), Host::Ip),
            port: self.port,
        }
    }
}

impl From<Target<'_>> for TargetBuf {
    fn from(target: Target<'_>) -> Self {
        let mut own = Self {
            ip: None,
            name: String::new(),
            port: 0,
        };
        own.set(target);
        own
    }
}

impl fmt::Display for TargetBuf {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.as_target().fmt(f)
    }
}

/// Why text is not a target.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum TargetError {
    /// Not a host name, IPv4 address, or IPv6 address in brackets.
    #[error("not a valid host name or address")]
    Host,
    /// The port is missing, 0, above 65535 or not a number.
    #[error("not a port from 1 to 65535")]
    Port,
}

fn parse_port(digits: &str) -> Result<u16, TargetError> {
    // `u16::from_str` would take a sign.
    if digits.len() > 5 || !digits.bytes().all(|b| b.is_ascii_digit()) {
        return Err(TargetError::Port);
    }
    match digits.parse() {
        Ok(0) | Err(_) => Err(TargetError::Port),
        Ok(port) => Ok(port),
    }
}

fn is_name_byte(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_' | b'.' | b'~')
}

/// Spares most names the attempt to read them as an address.
fn could_be_address(bytes: &[u8]) -> bool {
    bytes.last().is_some_and(u8::is_ascii_digit) || bytes.contains(&b':')
}

/// Whether the last label is a number. No top-level domain is one, and many
/// resolvers read such a name as an IPv4 address: `127.1`, `0x7f000001`,
/// `0177.0.0.1` would lead to where `127.0.0.1` may not.
fn ends_in_number(name: &str) -> bool {
    let last = trim_dot(name).rsplit('.').next().unwrap_or(name);
    let hex = last.strip_prefix("0x").or_else(|| last.strip_prefix("0X"));
    match hex {
        Some(digits) => digits.bytes().all(|b| b.is_ascii_hexdigit()),
        None => last.bytes().all(|b| b.is_ascii_digit()) && !last.is_empty(),
    }
}

fn trim_dot(name: &str) -> &str {
    name.strip_suffix('.').unwrap_or(name)
}

const MAX_NAME: usize = 255;

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn the_forms_of_a_target() {
        for (text, default, shown) in [
            ("example.com:80", None, "example.com:80"),
            ("example.com", Some(80), "example.com:80"),
            ("example.com:", Some(80), "example.com:80"),
            ("EXAMPLE.com.:8080", None, "EXAMPLE.com.:8080"),
            ("a_b-c~d:1", None, "a_b-c~d:1"),
            ("192.0.2.1:65535", None, "192.0.2.1:65535"),
            ("[::1]:443", None, "[::1]:443"),
            ("[::1]", Some(443), "[::1]:443"),
            ("[::ffff:192.0.2.1]:443", None, "[::ffff:192.0.2.1]:443"),
            ("h:00080", None, "h:80"),
        ] {
            let target = Target::parse(text, default).expect(text);
            assert_eq!(target.to_string(), shown);
        }
    }

    #[test]
    fn what_is_no_target() {
        use TargetError::{Host as H, Port as P};
        for (text, error) in [
            ("", H),
            (":80", H),
            ("example.com", P),
            ("example.com:", P),
            ("example.com:0", P),
            ("example.com:65536", P),
            ("example.com:000080", P),
            ("example.com:+80", P),
            ("example.com:80 ", P),
            ("example.com:80:80", P),
            ("user@example.com:80", H),
            ("exa mple.com:80", H),
            ("exam\0ple:80", H),
            ("exämple:80", H),
            ("a%41:80", H),
            ("::1:443", H),
            ("[::1%25eth0]:443", H),
            ("[::1%eth0]:443", H),
            ("[::1:443", H),
            ("[::1]443", H),
            ("[::1]x:443", H),
            ("[192.0.2.1]:443", H),
            ("[]:443", H),
        ] {
            assert_eq!(Target::parse(text, None), Err(error), "{text:?}");
        }
        assert_eq!(Target::parse(&"a".repeat(256), Some(1)), Err(H));
    }

    #[test]
    fn p39_other_spellings_of_an_address_are_no_names() {
        for text in [
            "127.1",
            "0177.0.0.1",
            "0x7f.1",
            "0x7f000001",
            "2130706433",
            "127.0.0.1.",
            "0",
            "0x",
            "h.0X7F",
            "256.0.0.1",
            "127.0.0.0x1",
            "1.2.3.4.5",
            "example.com.1",
        ] {
            assert_eq!(
                Host::name(text.as_bytes()),
                Err(TargetError::Host),
                "{text}"
            );
        }
        for text in [
            "1.example",
            "a1",
            "0x7g",
            "127.0.0.1.example.",
            "x0",
            "1e100.net",
        ] {
            assert_eq!(Host::name(text.as_bytes()), Ok(Host::Name(text)));
        }
    }

    #[test]
    fn socks_names() {
        assert_eq!(Host::name(b"example.com"), Ok(Host::Name("example.com")));
        assert_eq!(
            Host::name(b"::1"),
            Ok(Host::Ip("::1".parse().expect("an address")))
        );
        for bad in [
            &b""[..],
            b"a\0",
            b"a b",
            b"a/b",
            b"a\r\nb",
            b"\xff",
            b"[::1]",
        ] {
            assert_eq!(Host::name(bad), Err(TargetError::Host), "{bad:?}");
        }
    }

    #[test]
    fn names_compare_without_case_and_final_dot() {
        assert!(Host::Name("Example.COM.").is_name("example.com"));
        assert!(!Host::Name("example.com").is_name("example.org"));
    }

    proptest! {
        #[test]
        fn display_and_parse_agree(name in "([a-z0-9-]{1,9}[.]){0,4}[a-z][a-z-]{0,9}", port in 1u16..) {
            let target = Target { host: Host::Name(&name), port };
            let text = target.to_string();
            prop_assert_eq!(Target::parse(&text, None), Ok(target));
        }

        #[test]
        fn addresses_survive(ip: IpAddr, port in 1u16..) {
            let target = Target::from(SocketAddr::new(ip, port));
            let text = target.to_string();
            prop_assert_eq!(Target::parse(&text, None), Ok(target));
        }

        #[test]
        fn no_text_panics(text in "\\PC{0,40}") {
            let _ = Target::parse(&text, None);
            let _ = Host::name(text.as_bytes());
        }
    }
}
