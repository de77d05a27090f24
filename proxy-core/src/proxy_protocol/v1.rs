//! Version 1: one line of text (`proxy-protocol.txt`, section 2.1).

use std::fmt::{self, Write};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV6};
use std::str::FromStr;

use bytes::BytesMut;

use super::{ProxyAddresses, ProxyHeaderError, Wire};
use crate::Status;

/// Reads the line; of `UNKNOWN` there are no addresses.
pub(super) fn parse(input: &[u8]) -> Result<Status<Option<ProxyAddresses>>, ProxyHeaderError> {
    let mut line = Line { rest: input };
    match line.read() {
        Ok(addresses) => Ok(Status::Complete(addresses, input.len() - line.rest.len())),
        Err(Halt::Short) => Ok(Status::Partial),
        Err(Halt::Bad(error)) => Err(error),
    }
}

/// Appends the line, at most 104 bytes.
pub(super) fn encode(addresses: Option<Wire>, output: &mut BytesMut) {
    output.reserve(MAX);
    // Appending to a BytesMut does not fail.
    let _ = match addresses {
        None => output.write_str("PROXY UNKNOWN\r\n"),
        Some(Wire::V4([source, destination])) => write!(
            output,
            "PROXY TCP4 {} {} {} {}\r\n",
            source.ip(),
            destination.ip(),
            source.port(),
            destination.port()
        ),
        Some(Wire::V6([source, destination])) => encode_v6(source, destination, output),
    };
}

fn encode_v6(
    source: SocketAddrV6,
    destination: SocketAddrV6,
    output: &mut BytesMut,
) -> fmt::Result {
    output.write_str("PROXY TCP6 ")?;
    for address in [source.ip(), destination.ip()] {
        // The form with dots is not in the specification's grammar.
        match (address.to_ipv4_mapped(), address.segments()) {
            (Some(_), [.., high, low]) => write!(output, "::ffff:{high:x}:{low:x} ")?,
            (None, _) => write!(output, "{address} ")?,
        }
    }
    write!(output, "{} {}\r\n", source.port(), destination.port())
}

/// The part of the line that is not read yet.
struct Line<'a> {
    rest: &'a [u8],
}

impl Line<'_> {
    fn read(&mut self) -> Result<Option<ProxyAddresses>, Halt> {
        self.expect(b"PROXY ", ProxyHeaderError::Signature)?;
        match self.protocol()? {
            Protocol::Tcp4 => self.addresses::<Ipv4Addr>().map(Some),
            Protocol::Tcp6 => self.addresses::<Ipv6Addr>().map(Some),
            Protocol::Unknown => self.ignored().map(|()| None),
        }
    }

    fn protocol(&mut self) -> Result<Protocol, Halt> {
        let mut halt = Halt::Bad(ProxyHeaderError::Protocol);
        for (word, protocol) in PROTOCOLS {
            match self.expect(word, ProxyHeaderError::Protocol) {
                Ok(()) => return Ok(protocol),
                Err(Halt::Short) => halt = Halt::Short,
                Err(Halt::Bad(_)) => {}
            }
        }
        Err(halt)
    }

    fn addresses<T: Address>(&mut self) -> Result<ProxyAddresses, Halt> {
        let source: T = self.address()?;
        self.expect(b" ", ProxyHeaderError::Line)?;
        let destination: T = self.address()?;
        self.expect(b" ", ProxyHeaderError::Line)?;
        let source_port = self.port()?;
        self.expect(b" ", ProxyHeaderError::Line)?;
        let destination_port = self.port()?;
        self.expect(b"\r\n", ProxyHeaderError::Line)?;
        let source = SocketAddr::new(source.into(), source_port);
        let destination = SocketAddr::new(destination.into(), destination_port);
        Ok(ProxyAddresses::canonical(source, destination))
    }

    /// An address; one at the end of the input might go on.
    fn address<T: Address>(&mut self) -> Result<T, Halt> {
        const BAD: Halt = Halt::Bad(ProxyHeaderError::Address);
        let text = self.take(MAX_ADDRESS, |byte| {
            byte.is_ascii_hexdigit() || matches!(byte, b'.' | b':')
        });
        match self.rest {
            [] if may_become::<T>(text) => Err(Halt::Short),
            [] => Err(BAD),
            _ => std::str::from_utf8(text)
                .ok()
                .and_then(|text| text.parse().ok())
                .ok_or(BAD),
        }
    }

    /// A port; one at the end of the input might go on.
    fn port(&mut self) -> Result<u16, Halt> {
        const BAD: Halt = Halt::Bad(ProxyHeaderError::Port);
        let digits = self.take(MAX_PORT, u8::is_ascii_digit);
        let port = match digits {
            [] if self.rest.is_empty() => return Err(Halt::Short),
            [] | [b'0', _, ..] => return Err(BAD),
            _ => digits.iter().fold(0, |number: u32, digit| {
                number * 10 + u32::from(digit - b'0')
            }),
        };
        let port = u16::try_from(port).map_err(|_| BAD)?;
        match self.rest {
            [] => Err(Halt::Short),
            // A sixth digit.
            [b'0'..=b'9', ..] => Err(BAD),
            _ => Ok(port),
        }
    }

    /// What stands behind `UNKNOWN`, to the end of the line.
    fn ignored(&mut self) -> Result<(), Halt> {
        let skipped = self.take(MAX_IGNORED, |byte| !matches!(byte, b'\r' | b'\n'));
        match (skipped, self.rest) {
            // A longer word.
            ([other, ..], _) if *other != b' ' => Err(Halt::Bad(ProxyHeaderError::Protocol)),
            (_, []) => Err(Halt::Short),
            (_, [b'\r' | b'\n', ..]) => self.expect(b"\r\n", ProxyHeaderError::Line),
            _ => Err(Halt::Bad(ProxyHeaderError::TooLong)),
        }
    }
}

impl<'a> Line<'a> {
    /// Takes `bytes`.
    fn expect(&mut self, bytes: &[u8], error: ProxyHeaderError) -> Result<(), Halt> {
        match self.rest.strip_prefix(bytes) {
            Some(rest) => {
                self.rest = rest;
                Ok(())
            }
            None if bytes.starts_with(self.rest) => Err(Halt::Short),
            None => Err(Halt::Bad(error)),
        }
    }

    /// Takes the bytes at the front that are `wanted`, at most so many.
    fn take(&mut self, most: usize, wanted: impl Fn(&u8) -> bool) -> &'a [u8] {
        let run = self
            .rest
            .iter()
            .take(most)
            .take_while(|byte| wanted(byte))
            .count();
        let (taken, rest) = self.rest.split_at(run);
        self.rest = rest;
        taken
    }
}

/// Whether the text can be the start of an address: one of the shortest ways to
/// go on makes it whole.
fn may_become<T: FromStr>(start: &[u8]) -> bool {
    let mut text = [0; MAX_ADDRESS];
    ENDINGS.iter().any(|ending| {
        let len = start.len() + ending.len();
        let Some(whole) = text.get_mut(..len) else {
            return false;
        };
        whole[..start.len()].copy_from_slice(start);
        whole[start.len()..].copy_from_slice(ending);
        std::str::from_utf8(whole).is_ok_and(|text| text.parse::<T>().is_ok())
    })
}

trait Address: FromStr + Into<IpAddr> {}

impl Address for Ipv4Addr {}
impl Address for Ipv6Addr {}

#[derive(Clone, Copy)]
enum Protocol {
    Tcp4,
    Tcp6,
    Unknown,
}

/// Why [`Line`] stopped.
enum Halt {
    Bad(ProxyHeaderError),
    Short,
}

const PROTOCOLS: [(&[u8], Protocol); 3] = [
    (b"TCP4 ", Protocol::Tcp4),
    (b"TCP6 ", Protocol::Tcp6),
    (b"UNKNOWN", Protocol::Unknown),
];

/// What may be missing of an address; a longer rest is longer than needed.
const ENDINGS: [&[u8]; 10] = [
    b"", b"0", b":", b"::", b".0", b"0.0", b".0.0", b"0.0.0", b".0.0.0", b"0.0.0.0",
];

/// The longest line, with its CRLF.
const MAX: usize = 107;

/// What of it is left between `UNKNOWN` and the CRLF.
const MAX_IGNORED: usize = MAX - b"PROXY UNKNOWN".len() - b"\r\n".len();

/// Eight groups of four digits.
const MAX_ADDRESS: usize = 39;

const MAX_PORT: usize = 5;

#[cfg(test)]
mod tests {
    use super::*;

    fn addresses(source: &str, destination: &str) -> Option<ProxyAddresses> {
        Some(ProxyAddresses {
            source: source.parse().unwrap(),
            destination: destination.parse().unwrap(),
        })
    }

    /// The line is taken, nothing behind it, and each shorter piece is partial.
    fn accepted(line: &str, expected: Option<ProxyAddresses>) {
        for end in 0..line.len() {
            let result = parse(&line.as_bytes()[..end]);
            assert_eq!(result, Ok(Status::Partial), "{end} bytes of {line:?}");
        }
        for follows in ["", "\r\n", "GET / HTTP/1.1\r\n"] {
            let result = parse(format!("{line}{follows}").as_bytes());
            assert_eq!(
                result,
                Ok(Status::Complete(expected, line.len())),
                "{line:?}"
            );
        }
    }

    #[test]
    fn p73_lines_with_addresses_cut_anywhere() {
        let ones = "255.255.255.255";
        let sixes = "ffff:ffff:ffff:ffff:ffff:ffff:ffff:ffff";
        let longest = format!("PROXY TCP4 {ones} {ones} 65535 65535\r\n");
        assert_eq!(longest.len(), 56);
        accepted(
            &longest,
            addresses("255.255.255.255:65535", "255.255.255.255:65535"),
        );
        let longest = format!("PROXY TCP6 {sixes} {sixes} 65535 65535\r\n");
        assert_eq!(longest.len(), 104);
        let end = format!("[{sixes}]:65535");
        accepted(&longest, addresses(&end, &end));
        for (line, source, destination) in [
            (
                "PROXY TCP4 192.168.0.1 192.168.0.11 56324 443\r\n",
                "192.168.0.1:56324",
                "192.168.0.11:443",
            ),
            (
                "PROXY TCP4 0.0.0.0 0.0.0.0 0 0\r\n",
                "0.0.0.0:0",
                "0.0.0.0:0",
            ),
            ("PROXY TCP6 :: ::1 1 2\r\n", "[::]:1", "[::1]:2"),
            (
                "PROXY TCP6 2001:DB8::aBc 1:2:3:4:5:6:7:: 10 20\r\n",
                "[2001:db8::abc]:10",
                "[1:2:3:4:5:6:7:0]:20",
            ),
            (
                "PROXY TCP6 0001:0:0:0:0:0:0:8 ::2:3:4:5:6:7:8 10 20\r\n",
                "[1::8]:10",
                "[0:2:3:4:5:6:7:8]:20",
            ),
            // A mapped address is the IPv4 address, with dots or without.
            (
                "PROXY TCP6 ::ffff:192.0.2.1 ::ffff:c000:202 10 20\r\n",
                "192.0.2.1:10",
                "192.0.2.2:20",
            ),
            (
                "PROXY TCP6 0:0:0:0:0:ffff:192.0.2.1 2001:db8::1 10 20\r\n",
                "192.0.2.1:10",
                "[2001:db8::1]:20",
            ),
        ] {
            accepted(line, addresses(source, destination));
        }
    }

    #[test]
    fn p73_unknown_keeps_the_real_address() {
        let sixes = "ffff:ffff:ffff:ffff:ffff:ffff:ffff:ffff";
        let longest = format!("PROXY UNKNOWN {sixes} {sixes} 65535 65535\r\n");
        assert_eq!(longest.len(), MAX);
        accepted(&longest, None);
        for line in [
            "PROXY UNKNOWN\r\n",
            "PROXY UNKNOWN \r\n",
            "PROXY UNKNOWN TCP4  what\tever\0\r\n",
            "PROXY UNKNOWN 192.0.2.1 192.0.2.2 1 2\r\n",
        ] {
            accepted(line, None);
        }
    }

    #[test]
    fn p73_what_is_no_line_is_refused_with_its_first_wrong_byte() {
        use ProxyHeaderError as E;
        // The wrong byte stands behind the bar.
        for (line, error) in [
            ("PROXY|\tTCP4 1.2.3.4 1.2.3.4 1 2", E::Signature),
            ("PROXY|1 ", E::Signature),
            ("P|rOXY ", E::Signature),
            ("PROXY | TCP4 ", E::Protocol),
            ("PROXY |tcp4 ", E::Protocol),
            ("PROXY TCP|5 ", E::Protocol),
            ("PROXY U|DP4 ", E::Protocol),
            ("PROXY |\r\n", E::Protocol),
            ("PROXY TCP4|\r\n", E::Protocol),
            ("PROXY TCP4|6 ", E::Protocol),
            ("PROXY UNK|\r\n", E::Protocol),
            ("PROXY UNKNOWN|S \r\n", E::Protocol),
            // Spaces and the end of the line.
            ("PROXY TCP4 | 1.2.3.4", E::Address),
            ("PROXY TCP4 1.2.3.4 | 1.2.3.4", E::Address),
            ("PROXY TCP4 1.2.3.4|\t1.2.3.4", E::Line),
            ("PROXY TCP4 1.2.3.4|\r\n", E::Line),
            ("PROXY TCP4 1.2.3.4 1.2.3.4 | 1 2", E::Port),
            ("PROXY TCP4 1.2.3.4 1.2.3.4 1 | 2", E::Port),
            ("PROXY TCP4 1.2.3.4 1.2.3.4 1 2| \r\n", E::Line),
            ("PROXY TCP4 1.2.3.4 1.2.3.4 1 2|\nGET", E::Line),
            ("PROXY TCP4 1.2.3.4 1.2.3.4 1 2\r|\r\n", E::Line),
            ("PROXY TCP4 1.2.3.4 1.2.3.4 1 2\r|GET", E::Line),
            ("PROXY TCP4 1.2.3.4 1.2.3.4 1|\r\n", E::Line),
            ("PROXY UNKNOWN|\n", E::Line),
            ("PROXY UNKNOWN\r| \r\n", E::Line),
            ("PROXY UNKNOWN x|\ny\r\n", E::Line),
            ("PROXY UNKNOWN x\r|y\r\n", E::Line),
            // IPv4: exactly four canonical numbers.
            ("PROXY TCP4 1.2.3| 1.2.3.4 1 2", E::Address),
            ("PROXY TCP4 1.2.3.4|.5 1.2.3.4 1 2", E::Address),
            ("PROXY TCP4 1.2.3.25|6 ", E::Address),
            ("PROXY TCP4 1.2.3.0|4 ", E::Address),
            ("PROXY TCP4 1.|.3.4 ", E::Address),
            ("PROXY TCP4 |.1.2.3 ", E::Address),
            ("PROXY TCP4 |a.2.3.4 ", E::Address),
            ("PROXY TCP4 |::1 ", E::Address),
            ("PROXY TCP4 1|:: ", E::Address),
            ("PROXY TCP4 |-1.2.3.4 ", E::Address),
            ("PROXY TCP4 0|x1.2.3.4 ", E::Address),
            ("PROXY TCP4 1.2.3.4 1.2.3.44|44 1 2", E::Address),
            // IPv6: 128 bits, one double colon.
            ("PROXY TCP6 1|.2.3.4 ", E::Address),
            ("PROXY TCP6 :|1 ", E::Address),
            ("PROXY TCP6 ::|: ", E::Address),
            ("PROXY TCP6 1::2:|:3 ", E::Address),
            ("PROXY TCP6 1234|5:: ", E::Address),
            ("PROXY TCP6 |g:: ", E::Address),
            ("PROXY TCP6 |[::1] ", E::Address),
            ("PROXY TCP6 1:2:3:4:5:6:7:8|:9 ", E::Address),
            ("PROXY TCP6 1:2:3:4:5:6:7| ", E::Address),
            ("PROXY TCP6 1:2:3:4:5:6:7:|.0 ", E::Address),
            ("PROXY TCP6 ::1.2.3.25|6 ", E::Address),
            ("PROXY TCP6 fe80::1|%eth0 ", E::Line),
            // Ports: canonical, 16 bits.
            ("PROXY TCP4 1.2.3.4 1.2.3.4 0|1 2", E::Port),
            ("PROXY TCP4 1.2.3.4 1.2.3.4 |+1 2", E::Port),
            ("PROXY TCP4 1.2.3.4 1.2.3.4 |-1 2", E::Port),
            ("PROXY TCP4 1.2.3.4 1.2.3.4 1|a 2", E::Line),
            ("PROXY TCP4 1.2.3.4 1.2.3.4 6553|6 2", E::Port),
            ("PROXY TCP4 1.2.3.4 1.2.3.4 11111|1 2", E::Port),
            ("PROXY TCP4 1.2.3.4 1.2.3.4 1 9999|9\r\n", E::Port),
            ("PROXY TCP4 1.2.3.4 1.2.3.4 1 0|0\r\n", E::Port),
            ("PROXY TCP4 1.2.3.4 1.2.3.4 1 |\r\n", E::Port),
        ] {
            let (good, bad) = line.split_once('|').expect("a bar");
            assert_eq!(parse(good.as_bytes()), Ok(Status::Partial), "{line:?}");
            let line = format!("{good}{bad}");
            for end in good.len() + 1..=line.len() {
                let result = parse(&line.as_bytes()[..end]);
                assert_eq!(result, Err(error), "{end} bytes of {line:?}");
            }
        }
    }

    #[test]
    fn p73_a_line_without_end_is_refused_at_its_limit() {
        let endless = [b"PROXY UNKNOWN ".as_slice(), &[b'x'; 200]].concat();
        assert_eq!(parse(&endless[..MAX - 2]), Ok(Status::Partial));
        for end in [MAX - 1, MAX, endless.len()] {
            assert_eq!(parse(&endless[..end]), Err(ProxyHeaderError::TooLong));
        }
        // 39 characters are an IPv6 address of the most; with dots it could be longer.
        let long = b"PROXY TCP6 1111:1111:1111:1111:1111:1111:255.255.25";
        assert_eq!(parse(&long[..long.len() - 5]), Ok(Status::Partial));
        for end in long.len() - 4..=long.len() {
            assert_eq!(parse(&long[..end]), Err(ProxyHeaderError::Address));
        }
    }

    #[test]
    fn lines_as_they_are_written() {
        for (source, destination, line) in [
            (
                "192.0.2.1:56324",
                "198.51.100.255:443",
                "PROXY TCP4 192.0.2.1 198.51.100.255 56324 443\r\n",
            ),
            (
                "[2001:db8:0:0:1::]:0",
                "[::1]:65535",
                "PROXY TCP6 2001:db8:0:0:1:: ::1 0 65535\r\n",
            ),
        ] {
            let mut output = BytesMut::from("before ");
            encode(addresses(source, destination).map(Wire::from), &mut output);
            assert_eq!(output, format!("before {line}"));
            accepted(line, addresses(source, destination));
        }
        let mut output = BytesMut::new();
        encode(None, &mut output);
        assert_eq!(output, "PROXY UNKNOWN\r\n");
    }
}
