//! The replies of SOCKS4 and 5 to a request.

use std::net::{IpAddr, Ipv4Addr, SocketAddr, SocketAddrV4};

use bytes::{BufMut, BytesMut};
use proxy_core::Status;

use super::address::{Address, encode_ip};
use super::{VERSION_5, WireError, read};
use crate::ReplyCode;

/// The SOCKS5 reply (RFC 1928 section 6).
///
/// ```
/// use bytes::BytesMut;
/// use proxy_socks::{ReplyCode, wire::Reply};
///
/// let mut wire = BytesMut::new();
/// Reply::refused(ReplyCode::REFUSED).encode(&mut wire);
/// assert_eq!(&wire[..], b"\x05\x05\x00\x01\0\0\0\0\0\0");
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Reply {
    /// How the request went.
    pub code: ReplyCode,
    /// The address that the server uses towards the target; unspecified when
    /// there is none.
    pub bound: SocketAddr,
}

impl Reply {
    /// A refusal; it has no address to tell.
    pub fn refused(code: ReplyCode) -> Self {
        Self {
            code,
            bound: UNSPECIFIED,
        }
    }

    /// Reads a reply from the front of `input`. A bound address given as a name
    /// is read as unspecified: nothing could be done with it.
    ///
    /// # Errors
    /// [`WireError::Version`] and [`WireError::AddressType`].
    pub fn parse(input: &[u8]) -> Result<Status<Self>, WireError> {
        read(input, |reader| {
            reader.version(VERSION_5)?;
            let [code, _reserved] = reader.array()?;
            let ip = match Address::read(reader)? {
                Address::Ip(ip) => ip,
                Address::Name(_) => Ipv4Addr::UNSPECIFIED.into(),
            };
            let port = reader.port()?;
            Ok(Self {
                code: ReplyCode(code),
                bound: SocketAddr::new(ip, port),
            })
        })
    }

    /// Appends the reply to `output`; an IPv4 address that came mapped into IPv6
    /// is written as IPv4.
    pub fn encode(&self, output: &mut BytesMut) {
        output.put_slice(&[VERSION_5, self.code.0, 0]);
        encode_ip(self.bound.ip().to_canonical(), output);
        output.put_u16(self.bound.port());
    }
}

/// The SOCKS4 reply.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Reply4 {
    /// How the request went: [`ReplyCode::GRANTED`] or one of its neighbours.
    pub code: ReplyCode,
    /// The address that the server uses towards the target; unspecified when
    /// there is none or it is not IPv4.
    pub bound: SocketAddrV4,
}

impl Reply4 {
    /// A reply that tells of `bound` what SOCKS4 can: an IPv4 address or none,
    /// and the port.
    pub fn new(code: ReplyCode, bound: SocketAddr) -> Self {
        let ip = match bound.ip().to_canonical() {
            IpAddr::V4(ip) => ip,
            IpAddr::V6(_) => Ipv4Addr::UNSPECIFIED,
        };
        Self {
            code,
            bound: SocketAddrV4::new(ip, bound.port()),
        }
    }

    /// Reads a reply from the front of `input`.
    ///
    /// # Errors
    /// [`WireError::Version`] if the first byte is not 0: a reply carries the
    /// version of the reply format, not of SOCKS.
    pub fn parse(input: &[u8]) -> Result<Status<Self>, WireError> {
        read(input, |reader| {
            reader.version(REPLY_VERSION_4)?;
            let code = ReplyCode(reader.byte()?);
            let port = reader.port()?;
            let ip = Ipv4Addr::from(reader.array::<4>()?);
            Ok(Self {
                code,
                bound: SocketAddrV4::new(ip, port),
            })
        })
    }

    /// Appends the reply to `output`.
    pub fn encode(&self, output: &mut BytesMut) {
        output.put_slice(&[REPLY_VERSION_4, self.code.0]);
        output.put_u16(self.bound.port());
        output.put_slice(&self.bound.ip().octets());
    }
}

/// What stands in for an address where there is none (RFC 1928 section 6 leaves
/// it open; this is what clients expect).
pub(crate) const UNSPECIFIED: SocketAddr =
    SocketAddr::V4(SocketAddrV4::new(Ipv4Addr::UNSPECIFIED, 0));

const REPLY_VERSION_4: u8 = 0;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::law;
    use proptest::prelude::*;

    fn wire_of(bound: &str) -> BytesMut {
        let mut wire = BytesMut::new();
        let reply = Reply {
            code: ReplyCode::SUCCEEDED,
            bound: bound.parse().expect("an address"),
        };
        reply.encode(&mut wire);
        wire
    }

    #[test]
    fn p60_the_address_type_fits_the_address() {
        for (bound, wire) in [
            (
                "192.0.2.1:80",
                &b"\x05\x00\x00\x01\xc0\x00\x02\x01\x00\x50"[..],
            ),
            (
                "[::1]:443",
                b"\x05\x00\x00\x04\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\x01\x01\xbb",
            ),
            (
                "[::ffff:192.0.2.1]:80",
                b"\x05\x00\x00\x01\xc0\x00\x02\x01\x00\x50",
            ),
        ] {
            assert_eq!(&wire_of(bound)[..], wire, "{bound}");
            law::prefixes_are_partial(wire, Reply::parse);
        }
    }

    #[test]
    fn a_name_is_no_address() {
        for wire in [
            &b"\x05\x00\x00\x03\x04host\x00\x07"[..],
            b"\x05\x00\x00\x03\x00\x00\x07",
        ] {
            let Ok(Status::Complete(reply, used)) = Reply::parse(wire) else {
                panic!("{wire:?}");
            };
            assert_eq!(
                (reply.bound.to_string().as_str(), used),
                ("0.0.0.0:7", wire.len())
            );
            law::prefixes_are_partial(wire, Reply::parse);
        }
    }

    #[test]
    fn what_is_no_reply() {
        for (wire, error) in [
            (&b"\x00"[..], WireError::Version(0)),
            (b"\x05\x00\x00\x02", WireError::AddressType(2)),
        ] {
            assert_eq!(Reply::parse(wire), Err(error));
        }
        assert_eq!(Reply4::parse(b"\x04"), Err(WireError::Version(4)));
    }

    #[test]
    fn socks4_tells_ipv4_only() {
        for (bound, wire) in [
            ("192.0.2.1:80", &b"\x00\x5a\x00\x50\xc0\x00\x02\x01"[..]),
            ("[::ffff:192.0.2.1]:80", b"\x00\x5a\x00\x50\xc0\x00\x02\x01"),
            ("[::1]:80", b"\x00\x5a\x00\x50\0\0\0\0"),
        ] {
            let mut output = BytesMut::new();
            Reply4::new(ReplyCode::GRANTED, bound.parse().expect("an address")).encode(&mut output);
            assert_eq!(&output[..], wire, "{bound}");
            law::prefixes_are_partial(wire, Reply4::parse);
        }
    }

    proptest! {
        #[test]
        fn round_trip(code: u8, ip: IpAddr, port: u16) {
            let reply = Reply { code: ReplyCode(code), bound: SocketAddr::new(ip.to_canonical(), port) };
            let mut wire = BytesMut::new();
            reply.encode(&mut wire);
            prop_assert_eq!(Reply::parse(&wire), Ok(Status::Complete(reply, wire.len())));
        }

        #[test]
        fn round_trip4(code: u8, ip: Ipv4Addr, port: u16) {
            let reply = Reply4 { code: ReplyCode(code), bound: SocketAddrV4::new(ip, port) };
            let mut wire = BytesMut::new();
            reply.encode(&mut wire);
            prop_assert_eq!(Reply4::parse(&wire), Ok(Status::Complete(reply, 8)));
        }

        #[test]
        fn a_prefix_never_decides_otherwise(mut wire in proptest::collection::vec(any::<u8>(), 0..300)) {
            if let Some(first) = wire.first_mut() {
                *first = VERSION_5;
            }
            let whole = Reply::parse(&wire);
            for end in 0..wire.len() {
                let part = Reply::parse(&wire[..end]);
                prop_assert!(part == Ok(Status::Partial) || part == whole);
            }
        }
    }
}
