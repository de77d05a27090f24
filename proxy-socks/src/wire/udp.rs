//! The header before the payload of each SOCKS5 datagram.

use std::net::SocketAddr;

use bytes::{BufMut, BytesMut};
use proxy_core::{Status, Target};

use super::address::{self, Address};
use super::{WireError, read};

/// What stands before the payload of a datagram between a client and the relay
/// (RFC 1928 section 7). The payload is the rest of the datagram.
///
/// ```
/// use proxy_core::Status;
/// use proxy_socks::wire::UdpHeader;
///
/// let datagram = b"\x00\x00\x00\x03\x0bexample.com\x00\x35question";
/// let Status::Complete(header, 18) = UdpHeader::parse(datagram)? else { panic!() };
/// assert_eq!(header.target.to_string(), "example.com:53");
/// assert_eq!(&datagram[18..], b"question");
/// # Ok::<(), proxy_socks::wire::WireError>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct UdpHeader<'a> {
    /// 0 for a datagram of its own, else its place among the fragments of one.
    pub fragment: u8,
    /// Where it goes; from the relay, where it came from.
    pub target: Target<'a>,
}

impl<'a> UdpHeader<'a> {
    /// Reads the header from the front of a datagram. A name that is the text of
    /// an address becomes the address; the reserved bytes are ignored. A datagram
    /// does not grow: what is [`Status::Partial`] is malformed.
    ///
    /// # Errors
    /// [`WireError::AddressType`], [`WireError::Name`].
    pub fn parse(datagram: &'a [u8]) -> Result<Status<Self>, WireError> {
        read(datagram, |reader| {
            let [_, _, fragment] = reader.array()?;
            let address = Address::read(reader)?;
            let port = reader.port()?;
            Ok(Self {
                fragment,
                target: Target {
                    host: address.host()?,
                    port,
                },
            })
        })
    }

    /// Appends the header to `output`.
    ///
    /// # Errors
    /// [`WireError::Name`] if the host is a name that no peer should accept; a
    /// part may have been appended.
    pub fn encode(&self, output: &mut BytesMut) -> Result<(), WireError> {
        output.put_slice(&[0, 0, self.fragment]);
        address::encode(self.target, output)
    }

    /// Appends the header of a datagram that came from `address`; at most 22
    /// bytes.
    pub fn encode_from(address: SocketAddr, output: &mut BytesMut) {
        output.put_slice(&[0, 0, 0]);
        address::encode_ip(address.ip(), output);
        output.put_u16(address.port());
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::law;
    use proptest::prelude::*;
    use proxy_core::Host;
    use std::net::IpAddr;

    #[test]
    fn the_forms_of_a_header() {
        for (wire, fragment, target) in [
            (
                &b"\0\0\0\x01\x7f\x00\x00\x01\x00\x35"[..],
                0,
                "127.0.0.1:53",
            ),
            (
                b"\0\0\x81\x04\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\x01\x01\xbb",
                0x81,
                "[::1]:443",
            ),
            (b"\0\0\0\x03\x01a\x00\x35", 0, "a:53"),
            (b"\0\0\0\x03\x07\x31.2.3.4\x00\x35", 0, "1.2.3.4:53"),
            // The reserved bytes carry no meaning.
            (b"\xff\xff\0\x03\x01a\x00\x00", 0, "a:0"),
        ] {
            let Ok(Status::Complete(header, used)) = UdpHeader::parse(wire) else {
                panic!("{wire:?}");
            };
            assert_eq!((header.fragment, used), (fragment, wire.len()));
            assert_eq!(header.target.to_string(), target);
            law::prefixes_are_partial(wire, |input| {
                UdpHeader::parse(input).map(|status| status.map(|_| ()))
            });
        }
    }

    #[test]
    fn what_is_no_header() {
        for (wire, error) in [
            (&b"\0\0\0\0"[..], WireError::AddressType(0)),
            (b"\0\0\0\x09abcdefgh", WireError::AddressType(9)),
            (b"\0\0\0\x03\x00\x00\x50x", WireError::Name),
            (b"\0\0\0\x03\x03a\0b\x00\x50", WireError::Name),
        ] {
            assert_eq!(UdpHeader::parse(wire), Err(error), "{wire:?}");
        }
    }

    proptest! {
        #[test]
        fn round_trip(fragment: u8, ip: IpAddr, name in "[a-z][a-z-]{0,60}", port: u16) {
            for host in [Host::Ip(ip), Host::Name(&name)] {
                let header = UdpHeader { fragment, target: Target { host, port } };
                let mut wire = BytesMut::new();
                header.encode(&mut wire).expect("a valid name");
                prop_assert_eq!(UdpHeader::parse(&wire), Ok(Status::Complete(header, wire.len())));
            }
            let mut wire = BytesMut::new();
            UdpHeader::encode_from(SocketAddr::new(ip, port), &mut wire);
            prop_assert!(wire.len() <= 22);
            let header = UdpHeader { fragment: 0, target: SocketAddr::new(ip, port).into() };
            prop_assert_eq!(UdpHeader::parse(&wire), Ok(Status::Complete(header, wire.len())));
        }

        #[test]
        fn no_bytes_panic(datagram: Vec<u8>) {
            let _ = UdpHeader::parse(&datagram);
        }
    }
}
