//! The PROXY protocol: a header that tells who a connection is made for.

mod v1;
mod v2;

use std::net::{SocketAddr, SocketAddrV4, SocketAddrV6};

use bytes::BytesMut;

use crate::Status;

/// The header that a proxy sends before anything else, so that the next one
/// learns the client's address (HAProxy's `proxy-protocol.txt`, section 2).
///
/// A receiver must know from its configuration that a header comes, from which
/// peers, and until when: it never guesses, since everybody can write one.
///
/// ```
/// use proxy_core::{ProxyHeader, ProxyHeaderError, Status};
///
/// let input = b"PROXY TCP4 192.0.2.1 198.51.100.7 56324 443\r\nGET / ";
/// let Status::Complete(header, used) = ProxyHeader::parse(input)? else { panic!() };
/// let addresses = header.addresses.expect("made for a client");
/// assert_eq!(addresses.source, "192.0.2.1:56324".parse().unwrap());
/// assert_eq!(&input[used..], b"GET / ");
///
/// let mut output = bytes::BytesMut::new();
/// header.encode(&mut output);
/// assert_eq!(output, input[..used]);
/// # Ok::<(), ProxyHeaderError>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ProxyHeader {
    /// The format that it has on the wire.
    pub version: ProxyVersion,
    /// Whose connection it is. `None` if the addresses of the connection itself
    /// are the ones to use: the proxy speaks for itself (`LOCAL`), or names no
    /// address that has an IP and a port (`UNKNOWN`, `AF_UNSPEC`, `AF_UNIX`).
    pub addresses: Option<ProxyAddresses>,
}

/// The two ends of a connection from a client to a proxy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ProxyAddresses {
    /// The client.
    pub source: SocketAddr,
    /// Where the client connected to.
    pub destination: SocketAddr,
}

/// The format of a header.
///
/// Not `non_exhaustive`: who sends a header has to choose among all of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ProxyVersion {
    /// A line of text (section 2.1), at most 107 bytes.
    V1,
    /// Binary (section 2.2).
    V2,
}

/// Why bytes are not the start of a header.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ProxyHeaderError {
    /// Version 1: no address of the announced family where one must stand.
    #[error("not an address of the announced family")]
    Address,
    /// Version 2: a command other than `LOCAL` and `PROXY`.
    #[error("unknown command {0}")]
    Command(u8),
    /// Version 2: an unknown address family or transport, or both.
    #[error("unknown address family and transport {0:#04x}")]
    Family(u8),
    /// Version 2: the length leaves no room for the addresses.
    #[error("shorter than its addresses")]
    Length,
    /// Version 1: something other than one space between two fields, or than a
    /// CRLF behind the last.
    #[error("a space or the end of the line is not where it must be")]
    Line,
    /// Version 1: not a decimal number up to 65,535 without leading zeros.
    #[error("not a port")]
    Port,
    /// Version 1: something other than `TCP4`, `TCP6` and `UNKNOWN`.
    #[error("unknown protocol")]
    Protocol,
    /// Neither version starts like this.
    #[error("no PROXY protocol header")]
    Signature,
    /// Version 2: an additional field does not end where the header ends.
    #[error("an additional field does not fit")]
    Tlv,
    /// Longer than its version may be: 107 bytes, or [`ProxyHeader::MAX`].
    #[error("header too long")]
    TooLong,
    /// Version 2: the version is another one.
    #[error("unknown version {0}")]
    Version(u8),
}

impl ProxyHeader {
    /// No longer header is taken, in bytes. Additional fields of version 2 are the
    /// only reason for more than 232; 64 KiB of them could be announced, while
    /// real ones (a host name, a certificate's name) take some hundred bytes.
    pub const MAX: usize = 4096;

    /// Reads the header from the front of `input`; what follows is the client's.
    ///
    /// The input may end anywhere, and is refused with the first byte that no
    /// valid header has there. Nothing needs to be remembered between calls on a
    /// growing input: a call looks at no more than 107 bytes of version 1, and of
    /// version 2 only at the fixed part and the lengths.
    ///
    /// An IPv4-mapped IPv6 address becomes the IPv4 address (RFC 4291 section
    /// 2.5.5.2). The addresses are the client's whatever the transport: a proxy
    /// may have taken its connection over UDP. Additional fields (section 2.2,
    /// "TLV") are checked for their length only, where addresses tell where they
    /// begin; checksums among them, which are optional, are not looked at.
    ///
    /// # Errors
    /// Every [`ProxyHeaderError`]. The connection is then to be closed (section
    /// 2): it must not be served as if there had been no header.
    pub fn parse(input: &[u8]) -> Result<Status<Self>, ProxyHeaderError> {
        let (version, addresses) = match input.first() {
            None => return Ok(Status::Partial),
            Some(b'P') => (ProxyVersion::V1, v1::parse(input)?),
            Some(b'\r') => (ProxyVersion::V2, v2::parse(input)?),
            Some(_) => return Err(ProxyHeaderError::Signature),
        };
        Ok(addresses.map(|addresses| Self { version, addresses }))
    }

    /// Appends the header to `output`: at most 104 bytes in version 1, 52 in
    /// version 2. They are to be sent together with what follows (section 2).
    ///
    /// An address of each family in one header has no form of its own, so both
    /// are written as IPv6, the IPv4 one mapped (RFC 4291 section 2.5.5.2): a
    /// dual-stack socket would show the same, and `UNKNOWN` is only for what
    /// cannot be told (section 2.1). Without addresses it is `UNKNOWN` or `LOCAL`.
    /// The transport is a stream; zones and flow labels of IPv6 have no place.
    pub fn encode(&self, output: &mut BytesMut) {
        let wire = self.addresses.map(Wire::from);
        match self.version {
            ProxyVersion::V1 => v1::encode(wire, output),
            ProxyVersion::V2 => v2::encode(wire, output),
        }
    }
}

impl ProxyAddresses {
    /// With IPv4 addresses as such, and without zones and flow labels.
    fn canonical(source: SocketAddr, destination: SocketAddr) -> Self {
        let canonical = |end: SocketAddr| SocketAddr::new(end.ip().to_canonical(), end.port());
        Self {
            source: canonical(source),
            destination: canonical(destination),
        }
    }
}

/// Addresses of one family, as the wire has them.
enum Wire {
    V4([SocketAddrV4; 2]),
    V6([SocketAddrV6; 2]),
}

impl From<ProxyAddresses> for Wire {
    fn from(addresses: ProxyAddresses) -> Self {
        let addresses = ProxyAddresses::canonical(addresses.source, addresses.destination);
        match (addresses.source, addresses.destination) {
            (SocketAddr::V4(source), SocketAddr::V4(destination)) => {
                Self::V4([source, destination])
            }
            (source, destination) => Self::V6([mapped(source), mapped(destination)]),
        }
    }
}

fn mapped(end: SocketAddr) -> SocketAddrV6 {
    match end {
        SocketAddr::V4(end) => SocketAddrV6::new(end.ip().to_ipv6_mapped(), end.port(), 0, 0),
        SocketAddr::V6(end) => end,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn errors_are_small() {
        assert!(size_of::<ProxyHeaderError>() <= 2);
    }

    #[test]
    fn nothing_is_a_beginning() {
        assert_eq!(ProxyHeader::parse(b""), Ok(Status::Partial));
    }

    #[test]
    fn p73_other_protocols_are_refused_with_their_first_wrong_byte() {
        for input in [
            &b"GET / HTTP/1.1\r\n\r\n"[..],
            b"\x05\x01\x00",
            b"\x04\x01",
            b"\x16\x03\x01\x02\x00",
            b" PROXY",
            b"\n",
            b"\0",
            b"proxy TCP4",
        ] {
            assert_eq!(
                ProxyHeader::parse(&input[..1]),
                Err(ProxyHeaderError::Signature)
            );
            assert_eq!(ProxyHeader::parse(input), Err(ProxyHeaderError::Signature));
        }
        // These begin as a header does.
        for (input, good) in [
            (&b"POST / HTTP/1.1\r\n"[..], 1),
            (b"PROPFIND", 3),
            (b"PROXY\r\n", 5),
            (b"\r\nGET / HTTP/1.1", 2),
            (b"\r\n\r\nGET", 4),
        ] {
            assert_eq!(ProxyHeader::parse(&input[..good]), Ok(Status::Partial));
            for end in good + 1..=input.len() {
                let result = ProxyHeader::parse(&input[..end]);
                assert_eq!(result, Err(ProxyHeaderError::Signature), "{input:?} {end}");
            }
        }
    }

    #[test]
    fn addresses_of_two_families_are_both_told() {
        let addresses = ProxyAddresses {
            source: "192.0.2.1:1".parse().unwrap(),
            destination: "[2001:db8::1]:2".parse().unwrap(),
        };
        for version in [ProxyVersion::V1, ProxyVersion::V2] {
            let header = ProxyHeader {
                version,
                addresses: Some(addresses),
            };
            let mut wire = BytesMut::new();
            header.encode(&mut wire);
            assert_eq!(
                ProxyHeader::parse(&wire),
                Ok(Status::Complete(header, wire.len()))
            );
            if version == ProxyVersion::V1 {
                assert_eq!(wire, "PROXY TCP6 ::ffff:c000:201 2001:db8::1 1 2\r\n");
            }
        }
    }

    #[test]
    fn a_mapped_pair_is_written_as_ipv4() {
        let header = ProxyHeader {
            version: ProxyVersion::V1,
            addresses: Some(ProxyAddresses {
                source: "[::ffff:192.0.2.1]:1".parse().unwrap(),
                destination: "[::ffff:192.0.2.2]:2".parse().unwrap(),
            }),
        };
        let mut wire = BytesMut::new();
        header.encode(&mut wire);
        assert_eq!(wire, "PROXY TCP4 192.0.2.1 192.0.2.2 1 2\r\n");
    }
}
