//! The SOCKS5 request: what to do, and where.

use std::net::{IpAddr, Ipv4Addr};

use bytes::{BufMut, BytesMut};
use proxy_core::{Host, Status, Target};

use super::address::{self, Address};
use super::{VERSION_5, WireError, read};

/// A SOCKS5 request (RFC 1928 section 4).
///
/// ```
/// use proxy_core::Status;
/// use proxy_socks::wire::{Command, Request};
///
/// let wire = b"\x05\x01\x00\x03\x0bexample.com\x01\xbb";
/// let Status::Complete(request, 18) = Request::parse(wire)? else { panic!() };
/// assert_eq!(request.command, Command::CONNECT);
/// assert_eq!(request.target.to_string(), "example.com:443");
/// # Ok::<(), proxy_socks::wire::WireError>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Request<'a> {
    /// What to do.
    pub command: Command,
    /// Where. The port may be 0, which only UDP ASSOCIATE and BIND can mean.
    pub target: Target<'a>,
}

impl<'a> Request<'a> {
    /// Reads a request from the front of `input`. A name that is the text of an
    /// address becomes the address; the reserved byte is ignored. Of ASSOCIATE,
    /// whose address is not a target, a name that none can have becomes the
    /// unspecified address: `PySocks` writes `0` for it (RFC 1928 section 6).
    ///
    /// # Errors
    /// [`WireError::Version`], [`WireError::AddressType`] as soon as the byte is
    /// there; [`WireError::Name`] once the request is complete.
    pub fn parse(input: &'a [u8]) -> Result<Status<Self>, WireError> {
        read(input, |reader| {
            reader.version(VERSION_5)?;
            let [command, _reserved] = reader.array()?;
            let command = Command(command);
            let address = Address::read(reader)?;
            let port = reader.port()?;
            let host = match address.host() {
                Err(WireError::Name) if command == Command::ASSOCIATE => UNSPECIFIED,
                host => host?,
            };
            Ok(Self {
                command,
                target: Target { host, port },
            })
        })
    }

    /// Appends the request to `output`.
    ///
    /// # Errors
    /// [`WireError::Name`] if the host is a name that no peer should accept; a
    /// part may have been appended.
    pub fn encode(&self, output: &mut BytesMut) -> Result<(), WireError> {
        output.put_slice(&[VERSION_5, self.command.0, 0]);
        address::encode(self.target, output)
    }
}

/// The number of a command, the same in SOCKS4 and 5; unknown numbers are kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Command(pub u8);

impl Command {
    /// Connect to the target and relay.
    pub const CONNECT: Self = Self(1);
    /// Wait for one connection from the target.
    pub const BIND: Self = Self(2);
    /// Relay datagrams (SOCKS5 only).
    pub const ASSOCIATE: Self = Self(3);
}

const UNSPECIFIED: Host<'static> = Host::Ip(IpAddr::V4(Ipv4Addr::UNSPECIFIED));

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::law;
    use proptest::prelude::*;

    #[test]
    fn the_forms_of_a_request() {
        for (wire, command, target) in [
            (
                &b"\x05\x01\x00\x01\x7f\x00\x00\x01\x00\x50"[..],
                Command::CONNECT,
                "127.0.0.1:80",
            ),
            (
                b"\x05\x02\x00\x04\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\x01\x01\xbb",
                Command::BIND,
                "[::1]:443",
            ),
            (b"\x05\x03\x00\x03\x01a\x00\x00", Command::ASSOCIATE, "a:0"),
            (
                b"\x05\x03\x00\x03\x010\x01\xbb",
                Command::ASSOCIATE,
                "0.0.0.0:443",
            ),
            (
                b"\x05\x03\x00\x03\x00\x00\x00",
                Command::ASSOCIATE,
                "0.0.0.0:0",
            ),
            (
                b"\x05\x09\x00\x03\x07\x31.2.3.4\x00\x07",
                Command(9),
                "1.2.3.4:7",
            ),
            // The reserved byte carries no meaning.
            (b"\x05\x01\xff\x03\x01a\x00\x07", Command::CONNECT, "a:7"),
        ] {
            let Ok(Status::Complete(request, used)) = Request::parse(wire) else {
                panic!("{wire:?}");
            };
            assert_eq!(used, wire.len());
            assert_eq!(request.command, command);
            assert_eq!(request.target.to_string(), target);
            law::prefixes_are_partial(wire, |input| {
                Request::parse(input).map(|status| status.map(|_| ()))
            });
        }
    }

    #[test]
    fn p61_bad_names_and_lengths() {
        for name in [
            &b""[..],
            b"127.0.0.1\0.evil",
            b"local host",
            b"127.0.0.1/x",
            b"a\r\nb",
            b"\xff\xfe",
            b"[127.0.0.1]",
        ] {
            let length = u8::try_from(name.len()).expect("short");
            let wire = [b"\x05\x01\x00\x03", &[length][..], name, b"\x00\x50"].concat();
            assert_eq!(Request::parse(&wire), Err(WireError::Name), "{name:?}");
            assert_eq!(
                Request::parse(&wire[..wire.len() - 1]),
                Ok(Status::Partial),
                "{name:?}"
            );
        }
    }

    #[test]
    fn what_is_no_request() {
        for (wire, error) in [
            (&b"\x04"[..], WireError::Version(4)),
            (b"\x05\x01\x00\x00", WireError::AddressType(0)),
            (b"\x05\x01\x00\x05", WireError::AddressType(5)),
        ] {
            assert_eq!(Request::parse(wire), Err(error));
        }
    }

    #[test]
    fn names_are_checked_when_encoded() {
        for name in ["", "a b", "a\0", &"n".repeat(256)] {
            let request = Request {
                command: Command::CONNECT,
                target: Target {
                    host: Host::Name(name),
                    port: 1,
                },
            };
            let result = request.encode(&mut BytesMut::new());
            assert_eq!(result, Err(WireError::Name), "{name:?}");
        }
    }

    proptest! {
        #[test]
        fn round_trip(command: u8, ip: Option<IpAddr>, name in "[a-z][a-z0-9.-]{0,253}[a-z]", port: u16) {
            let request = Request {
                command: Command(command),
                target: Target { host: ip.map_or(Host::Name(&name), Host::Ip), port },
            };
            let mut wire = BytesMut::new();
            request.encode(&mut wire).expect("a valid name");
            prop_assert_eq!(Request::parse(&wire), Ok(Status::Complete(request, wire.len())));
        }

        #[test]
        fn a_prefix_never_decides_otherwise(mut wire in proptest::collection::vec(any::<u8>(), 0..300)) {
            if let Some(first) = wire.first_mut() {
                *first = VERSION_5;
            }
            let whole = Request::parse(&wire);
            for end in 0..wire.len() {
                let part = Request::parse(&wire[..end]);
                prop_assert!(part == Ok(Status::Partial) || part == whole);
            }
        }
    }
}
