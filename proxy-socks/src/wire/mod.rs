//! The messages of SOCKS4, 4a and 5, one type each, to parse and to encode.
//!
//! Everything here is stateless. `parse` looks at a growing slice and says
//! [`Status::Partial`] until the message is whole; `encode` appends to a buffer.
//! Each limit of the wire is enforced here: no message is longer than 520
//! bytes, and a field without an end is refused once it passes its limit.

mod address;
mod greeting;
mod login;
mod reply;
mod request;
mod request4;
mod udp;

use proxy_core::Status;

pub use greeting::{Greeting, Method, Selection};
pub use login::{Login, LoginReply};
pub use reply::{Reply, Reply4};
pub use request::{Command, Request};
pub use request4::Request4;
pub use udp::UdpHeader;

pub(crate) use reply::UNSPECIFIED;
pub(crate) use request4::check_user_id;

/// Why bytes are not the message they should be, or a value has no encoding.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum WireError {
    /// An address type other than IPv4, name and IPv6 (RFC 1928 section 5).
    #[error("unknown address type {0}")]
    AddressType(u8),
    /// SOCKS4 carries IPv4 addresses and (as 4a) names only.
    #[error("SOCKS4 has no way to name this address")]
    Family,
    /// A user name is not 1 to 255 bytes or holds a NUL, or a password is longer
    /// than 255 bytes (RFC 1929 section 2).
    #[error("user name or password has a length or byte that the protocol does not allow")]
    Login,
    /// More than 255 methods (RFC 1928 section 3).
    #[error("more than 255 methods")]
    Methods,
    /// A host name is empty, too long, or holds a byte that no name has.
    #[error("not a valid host name")]
    Name,
    /// A SOCKS4 user id is longer than 255 bytes or holds a NUL.
    #[error("SOCKS4 user id too long, or with a NUL")]
    UserId,
    /// The version byte is not the one of this message.
    #[error("unexpected version byte {0}")]
    Version(u8),
}

/// Runs `parse` over the front of `input`.
fn read<'a, T>(
    input: &'a [u8],
    parse: impl FnOnce(&mut Reader<'a>) -> Result<T, Halt>,
) -> Result<Status<T>, WireError> {
    let mut reader = Reader { rest: input };
    match parse(&mut reader) {
        Ok(value) => Ok(Status::Complete(value, input.len() - reader.rest.len())),
        Err(Halt::Short) => Ok(Status::Partial),
        Err(Halt::Bad(error)) => Err(error),
    }
}

/// The part of the input that is not read yet.
struct Reader<'a> {
    rest: &'a [u8],
}

impl<'a> Reader<'a> {
    fn version(&mut self, expected: u8) -> Result<(), Halt> {
        match self.byte()? {
            byte if byte == expected => Ok(()),
            other => Err(WireError::Version(other).into()),
        }
    }

    fn byte(&mut self) -> Result<u8, Halt> {
        self.array().map(|[byte]| byte)
    }

    fn array<const N: usize>(&mut self) -> Result<[u8; N], Halt> {
        let (array, rest) = self.rest.split_first_chunk().ok_or(Halt::Short)?;
        self.rest = rest;
        Ok(*array)
    }

    fn port(&mut self) -> Result<u16, Halt> {
        self.array().map(u16::from_be_bytes)
    }

    /// A field behind its length byte.
    fn counted(&mut self) -> Result<&'a [u8], Halt> {
        let length = self.byte()?;
        let (field, rest) = self
            .rest
            .split_at_checked(length.into())
            .ok_or(Halt::Short)?;
        self.rest = rest;
        Ok(field)
    }

    /// A field before a NUL, refused with `error` as soon as it is known to be
    /// longer than 255 bytes.
    fn terminated(&mut self, error: WireError) -> Result<&'a [u8], Halt> {
        let window = &self.rest[..self.rest.len().min(MAX_FIELD + 1)];
        match memchr::memchr(0, window) {
            Some(end) => {
                self.rest = &self.rest[end + 1..];
                Ok(&window[..end])
            }
            None if window.len() > MAX_FIELD => Err(error.into()),
            None => Err(Halt::Short),
        }
    }
}

/// Why a [`Reader`] stopped.
enum Halt {
    Bad(WireError),
    Short,
}

impl From<WireError> for Halt {
    fn from(error: WireError) -> Self {
        Self::Bad(error)
    }
}

/// The length byte of a field, or `error` if it has none.
fn length(field: &[u8], error: WireError) -> Result<u8, WireError> {
    u8::try_from(field.len()).map_err(|_| error)
}

/// Where the length is not on the wire (SOCKS4), the same bound as where it is.
const MAX_FIELD: usize = 255;

const VERSION_4: u8 = 4;
const VERSION_5: u8 = 5;

/// What the unit tests of every message ask of it.
#[cfg(test)]
mod law {
    use super::*;

    /// Every proper prefix is partial; the whole takes all but what follows.
    pub(super) fn prefixes_are_partial<T: PartialEq + std::fmt::Debug>(
        wire: &[u8],
        parse: impl Fn(&[u8]) -> Result<Status<T>, WireError>,
    ) {
        for end in 0..wire.len() {
            assert_eq!(parse(&wire[..end]), Ok(Status::Partial), "{end} bytes");
        }
        let Ok(Status::Complete(_, used)) = parse(wire) else {
            panic!("{wire:?} is not whole");
        };
        assert_eq!(used, wire.len());
        let longer = [wire, b"\x05more"].concat();
        let Ok(Status::Complete(_, used)) = parse(&longer) else {
            panic!("{longer:?} is not whole");
        };
        assert_eq!(used, wire.len(), "took what follows");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn errors_are_small() {
        assert!(size_of::<WireError>() <= 2);
    }

    #[test]
    fn the_numbers_of_another_implementation() {
        use fast_socks5::consts as theirs;
        assert_eq!(VERSION_5, theirs::SOCKS5_VERSION);
        for (ours, theirs) in [
            (Method::NONE, theirs::SOCKS5_AUTH_METHOD_NONE),
            (Method::PASSWORD, theirs::SOCKS5_AUTH_METHOD_PASSWORD),
            (
                Method::UNACCEPTABLE,
                theirs::SOCKS5_AUTH_METHOD_NOT_ACCEPTABLE,
            ),
        ] {
            assert_eq!(ours.0, theirs);
        }
        for (ours, theirs) in [
            (Command::CONNECT, theirs::SOCKS5_CMD_TCP_CONNECT),
            (Command::BIND, theirs::SOCKS5_CMD_TCP_BIND),
            (Command::ASSOCIATE, theirs::SOCKS5_CMD_UDP_ASSOCIATE),
        ] {
            assert_eq!(ours.0, theirs);
        }
        for (ours, theirs) in [
            (address::IPV4, theirs::SOCKS5_ADDR_TYPE_IPV4),
            (address::NAME, theirs::SOCKS5_ADDR_TYPE_DOMAIN_NAME),
            (address::IPV6, theirs::SOCKS5_ADDR_TYPE_IPV6),
        ] {
            assert_eq!(ours, theirs);
        }
        use crate::ReplyCode as Ours;
        for (ours, theirs) in [
            (Ours::SUCCEEDED, theirs::SOCKS5_REPLY_SUCCEEDED),
            (Ours::GENERAL_FAILURE, theirs::SOCKS5_REPLY_GENERAL_FAILURE),
            (
                Ours::NOT_ALLOWED,
                theirs::SOCKS5_REPLY_CONNECTION_NOT_ALLOWED,
            ),
            (
                Ours::NETWORK_UNREACHABLE,
                theirs::SOCKS5_REPLY_NETWORK_UNREACHABLE,
            ),
            (
                Ours::HOST_UNREACHABLE,
                theirs::SOCKS5_REPLY_HOST_UNREACHABLE,
            ),
            (Ours::REFUSED, theirs::SOCKS5_REPLY_CONNECTION_REFUSED),
            (Ours::TTL_EXPIRED, theirs::SOCKS5_REPLY_TTL_EXPIRED),
            (
                Ours::COMMAND_UNSUPPORTED,
                theirs::SOCKS5_REPLY_COMMAND_NOT_SUPPORTED,
            ),
            (
                Ours::ADDRESS_TYPE_UNSUPPORTED,
                theirs::SOCKS5_REPLY_ADDRESS_TYPE_NOT_SUPPORTED,
            ),
        ] {
            assert_eq!(ours.0, theirs);
        }
    }
}
