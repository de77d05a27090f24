//! Version 2: binary (`proxy-protocol.txt`, section 2.2).

use std::net::{IpAddr, SocketAddr};

use bytes::{BufMut, BytesMut};

use super::{ProxyAddresses, ProxyHeader, ProxyHeaderError, Wire};
use crate::Status;

/// Reads the header; there are addresses only of a connection over IP that is
/// made for somebody else.
pub(super) fn parse(input: &[u8]) -> Result<Status<Option<ProxyAddresses>>, ProxyHeaderError> {
    let (signature, rest) = input.split_at(input.len().min(SIGNATURE.len()));
    if !SIGNATURE.starts_with(signature) {
        return Err(ProxyHeaderError::Signature);
    }
    let [command, rest @ ..] = rest else {
        return Ok(Status::Partial);
    };
    let local = is_local(*command)?;
    let [kind, rest @ ..] = rest else {
        return Ok(Status::Partial);
    };
    let family = match local {
        // The block is to be discarded, "including the family which is ignored".
        true => Family::Unspecified,
        false => Family::read(*kind)?,
    };
    let (length, rest) = match rest {
        [high, low, rest @ ..] => ([*high, *low], rest),
        [high] => return checked_length([*high, 0]).map(|_| Status::Partial),
        [] => return Ok(Status::Partial),
    };
    let length = checked_length(length)?;
    let block = &rest[..rest.len().min(length)];
    family.check(block, length)?;
    match block.len() == length {
        true => Ok(Status::Complete(family.addresses(block), FIXED + length)),
        false => Ok(Status::Partial),
    }
}

/// Appends the header, at most 52 bytes.
pub(super) fn encode(addresses: Option<Wire>, output: &mut BytesMut) {
    output.reserve(FIXED + usize::from(INET6));
    output.put_slice(&SIGNATURE);
    match addresses {
        None => output.put_slice(&[VERSION | LOCAL, 0, 0, 0]),
        Some(Wire::V4(ends)) => {
            output.put_slice(&[VERSION | PROXY, TCP4, 0, INET]);
            ends.iter()
                .for_each(|end| output.put_slice(&end.ip().octets()));
            ends.iter().for_each(|end| output.put_u16(end.port()));
        }
        Some(Wire::V6(ends)) => {
            output.put_slice(&[VERSION | PROXY, TCP6, 0, INET6]);
            ends.iter()
                .for_each(|end| output.put_slice(&end.ip().octets()));
            ends.iter().for_each(|end| output.put_u16(end.port()));
        }
    }
}

fn is_local(byte: u8) -> Result<bool, ProxyHeaderError> {
    match (byte & 0xf0, byte & 0x0f) {
        (VERSION, LOCAL) => Ok(true),
        (VERSION, PROXY) => Ok(false),
        (VERSION, command) => Err(ProxyHeaderError::Command(command)),
        _ => Err(ProxyHeaderError::Version(byte >> 4)),
    }
}

/// The length of what follows the fixed part.
fn checked_length(bytes: [u8; 2]) -> Result<usize, ProxyHeaderError> {
    let length = usize::from(u16::from_be_bytes(bytes));
    match FIXED + length <= ProxyHeader::MAX {
        true => Ok(length),
        false => Err(ProxyHeaderError::TooLong),
    }
}

/// What the block begins with.
#[derive(Clone, Copy)]
enum Family {
    Inet,
    Inet6,
    Unix,
    /// Something that only the length tells how to skip.
    Unspecified,
}

impl Family {
    fn read(byte: u8) -> Result<Self, ProxyHeaderError> {
        match (byte >> 4, byte & 0x0f) {
            (0, 0..=2) | (1..=3, 0) => Ok(Self::Unspecified),
            (1, 1..=2) => Ok(Self::Inet),
            (2, 1..=2) => Ok(Self::Inet6),
            (3, 1..=2) => Ok(Self::Unix),
            _ => Err(ProxyHeaderError::Family(byte)),
        }
    }

    /// Whether a block of `length` bytes can begin with `block`.
    fn check(self, block: &[u8], length: usize) -> Result<(), ProxyHeaderError> {
        let size = usize::from(match self {
            Self::Inet => INET,
            Self::Inet6 => INET6,
            Self::Unix => UNIX,
            Self::Unspecified => return Ok(()),
        });
        let fields = length.checked_sub(size).ok_or(ProxyHeaderError::Length)?;
        check_fields(block.get(size..).unwrap_or_default(), fields)
    }

    /// The addresses in a whole block.
    fn addresses(self, block: &[u8]) -> Option<ProxyAddresses> {
        match self {
            Self::Inet => pair::<4>(block),
            Self::Inet6 => pair::<16>(block),
            Self::Unix | Self::Unspecified => None,
        }
    }
}

fn pair<const N: usize>(block: &[u8]) -> Option<ProxyAddresses>
where
    IpAddr: From<[u8; N]>,
{
    let (source, rest) = block.split_first_chunk::<N>()?;
    let (destination, rest) = rest.split_first_chunk::<N>()?;
    let (ports, _) = rest.split_first_chunk()?;
    let [a, b, c, d] = *ports;
    let source = SocketAddr::new((*source).into(), u16::from_be_bytes([a, b]));
    let destination = SocketAddr::new((*destination).into(), u16::from_be_bytes([c, d]));
    Some(ProxyAddresses::canonical(source, destination))
}

/// Whether additional fields of together `left` bytes can begin with `fields`.
fn check_fields(mut fields: &[u8], mut left: usize) -> Result<(), ProxyHeaderError> {
    while left > 0 {
        let room = left.checked_sub(FIELD).ok_or(ProxyHeaderError::Tlv)?;
        let (length, whole) = match fields {
            [_, high, low, ..] => ([*high, *low], true),
            [_, high] => ([*high, 0], false),
            _ => return Ok(()),
        };
        let length = usize::from(u16::from_be_bytes(length));
        left = room.checked_sub(length).ok_or(ProxyHeaderError::Tlv)?;
        if !whole {
            return Ok(());
        }
        fields = fields.get(FIELD + length..).unwrap_or_default();
    }
    Ok(())
}

const SIGNATURE: [u8; 12] = *b"\r\n\r\n\0\r\nQUIT\n";

/// The upper half of the byte behind it, and the lower.
const VERSION: u8 = 0x20;
const LOCAL: u8 = 0;
const PROXY: u8 = 1;

/// The signature, command, family and length, in bytes.
const FIXED: usize = SIGNATURE.len() + 4;

/// The address family above the transport: a stream.
const TCP4: u8 = 0x11;
const TCP6: u8 = 0x21;

/// Two addresses and two ports, in bytes.
const INET: u8 = 2 * (4 + 2);
const INET6: u8 = 2 * (16 + 2);
/// Two paths.
const UNIX: u8 = 2 * 108;

/// The type and the length of an additional field.
const FIELD: usize = 3;

#[cfg(test)]
mod tests {
    use super::*;

    fn header(command: u8, family: u8, block: &[u8]) -> Vec<u8> {
        let length = u16::try_from(block.len()).unwrap().to_be_bytes();
        [&SIGNATURE, &[command, family][..], &length, block].concat()
    }

    fn addresses(source: &str, destination: &str) -> Option<ProxyAddresses> {
        Some(ProxyAddresses {
            source: source.parse().unwrap(),
            destination: destination.parse().unwrap(),
        })
    }

    /// The header is taken, nothing behind it, and each shorter piece is partial.
    fn accepted(header: &[u8], expected: Option<ProxyAddresses>) {
        for end in 0..header.len() {
            let result = parse(&header[..end]);
            assert_eq!(result, Ok(Status::Partial), "{end} bytes of {header:?}");
        }
        for follows in [&b""[..], b"\0", b"\r\n\r\n\0\r\nQUIT\n"] {
            let result = parse(&[header, follows].concat());
            assert_eq!(
                result,
                Ok(Status::Complete(expected, header.len())),
                "{header:?}"
            );
        }
    }

    /// The header is refused with the first byte behind `good`.
    fn refused(header: &[u8], good: usize, error: ProxyHeaderError) {
        assert_eq!(parse(&header[..good]), Ok(Status::Partial), "{header:?}");
        for end in good + 1..=header.len() {
            assert_eq!(
                parse(&header[..end]),
                Err(error),
                "{end} bytes of {header:?}"
            );
        }
    }

    const INET_BLOCK: &[u8] = b"\xc0\x00\x02\x01\xc6\x33\x64\x02\xdc\x04\x01\xbb";

    #[test]
    fn p73_headers_with_addresses_cut_anywhere() {
        let four = addresses("192.0.2.1:56324", "198.51.100.2:443");
        accepted(&header(0x21, 0x11, INET_BLOCK), four);
        accepted(&header(0x21, 0x12, INET_BLOCK), four);
        let six = b"\x20\x01\x0d\xb8\0\0\0\0\0\0\0\0\0\0\0\x01\
            \x20\x01\x0d\xb8\0\0\0\0\0\0\0\0\0\0\0\x02\x00\x50\xff\xff";
        let expected = addresses("[2001:db8::1]:80", "[2001:db8::2]:65535");
        accepted(&header(0x21, 0x21, six), expected);
        accepted(&header(0x21, 0x22, six), expected);
        let mapped = b"\0\0\0\0\0\0\0\0\0\0\xff\xff\xc0\x00\x02\x01\
            \x20\x01\x0d\xb8\0\0\0\0\0\0\0\0\0\0\0\x02\x00\x50\xff\xff";
        let expected = addresses("192.0.2.1:80", "[2001:db8::2]:65535");
        accepted(&header(0x21, 0x21, mapped), expected);
    }

    #[test]
    fn p73_local_and_unspecified_keep_the_real_address() {
        // The block of LOCAL is skipped whatever it and the family are.
        for (family, block) in [
            (0x00, &b""[..]),
            (0x11, b""),
            (0x11, INET_BLOCK),
            (0xff, b"x"),
            (0x21, b"\x04\xff\xff"),
        ] {
            accepted(&header(0x20, family, block), None);
        }
        for (family, block) in [
            (0x00, &b""[..]),
            (0x00, b"ab"),
            (0x01, INET_BLOCK),
            (0x02, b"\x04\xff\xff"),
            (0x10, INET_BLOCK),
            (0x20, b""),
            (0x30, b"x"),
            (0x31, &[b'p'; 216]),
            (0x32, &[0; 216]),
            (0x31, &[0; 219]),
        ] {
            accepted(&header(0x21, family, block), None);
        }
    }

    #[test]
    fn additional_fields_are_skipped() {
        let four = addresses("192.0.2.1:56324", "198.51.100.2:443");
        for fields in [
            &b"\x04\0\0"[..],
            b"\x02\x00\x0bexample.com",
            b"\x03\x00\x04\xde\xad\xbe\xef\x04\x00\x01x\xe0\x00\x00",
            b"\x20\x00\x08\x01\0\0\0\0\x21\xff\xff",
        ] {
            accepted(&header(0x21, 0x11, &[INET_BLOCK, fields].concat()), four);
        }
        let largest = ProxyHeader::MAX - FIXED - INET_BLOCK.len() - FIELD;
        let [high, low] = u16::try_from(largest).unwrap().to_be_bytes();
        let fields = [&[0x04, high, low][..], &vec![0; largest]].concat();
        let longest = header(0x21, 0x11, &[INET_BLOCK, &fields].concat());
        assert_eq!(longest.len(), ProxyHeader::MAX);
        accepted(&longest, four);
    }

    #[test]
    fn additional_fields_that_do_not_fit() {
        for (fields, good) in [
            // Known from the length already.
            (&b"\x04"[..], 15),
            (b"\x04\0", 15),
            (b"\x04\0\x01", FIXED + INET_BLOCK.len() + 2),
            (b"\x04\x01\x00", FIXED + INET_BLOCK.len() + 1),
            (b"\x04\0\0\x04\0\x02x", FIXED + INET_BLOCK.len() + 5),
            // One byte is left over.
            (b"\x04\0\x02xx\x04", FIXED + INET_BLOCK.len() + 2),
        ] {
            let header = header(0x21, 0x11, &[INET_BLOCK, fields].concat());
            refused(&header, good, ProxyHeaderError::Tlv);
        }
        let unix = [&[0; 216][..], b"\x04\0\x01"].concat();
        let header = header(0x21, 0x31, &unix);
        refused(&header, header.len() - 1, ProxyHeaderError::Tlv);
    }

    #[test]
    fn p73_what_is_no_header_is_refused_with_its_first_wrong_byte() {
        use ProxyHeaderError as E;
        for at in 0..SIGNATURE.len() {
            let mut header = header(0x21, 0x11, INET_BLOCK);
            header[at] ^= 0x20;
            refused(&header, at, E::Signature);
        }
        for (command, family, error) in [
            (0x11, 0x11, E::Version(1)),
            (0x31, 0x11, E::Version(3)),
            (0x01, 0x11, E::Version(0)),
            (0x22, 0x11, E::Command(2)),
            (0x2f, 0x11, E::Command(15)),
        ] {
            refused(&header(command, family, INET_BLOCK), 12, error);
        }
        for family in [0x03, 0x0f, 0x13, 0x33, 0x40, 0x41, 0xf1] {
            refused(&header(0x21, family, INET_BLOCK), 13, E::Family(family));
        }
        for (family, length) in [(0x11, 0), (0x11, 11), (0x21, 35), (0x22, 12), (0x31, 215)] {
            refused(&header(0x21, family, &vec![0; length]), 15, E::Length);
        }
    }

    #[test]
    fn p73_no_length_is_waited_for_beyond_the_limit() {
        for command in [0x20, 0x21] {
            let longest = ProxyHeader::MAX - FIXED;
            accepted(&header(command, 0, &vec![0; longest]), None);
            let longer = header(command, 0, &vec![0; longest + 1]);
            refused(&longer, 15, ProxyHeaderError::TooLong);
            refused(
                &header(command, 0, &[0; 4096]),
                14,
                ProxyHeaderError::TooLong,
            );
        }
    }

    #[test]
    fn headers_as_they_are_written() {
        let mut output = BytesMut::from("before");
        let four = addresses("192.0.2.1:56324", "198.51.100.2:443");
        encode(four.map(Wire::from), &mut output);
        assert_eq!(output[6..], header(0x21, 0x11, INET_BLOCK));
        let mut output = BytesMut::new();
        encode(None, &mut output);
        assert_eq!(output[..], header(0x20, 0, b""));
        let mut output = BytesMut::new();
        let six = addresses("[2001:db8::1]:80", "[2001:db8::2]:443");
        encode(six.map(Wire::from), &mut output);
        assert_eq!(output[12..16], [0x21, 0x21, 0, 36]);
        assert_eq!(output.len(), 52);
        accepted(&output, six);
    }
}
