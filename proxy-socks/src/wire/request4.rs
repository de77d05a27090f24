//! The SOCKS4 request, with the 4a extension for names.

use std::net::{IpAddr, Ipv4Addr};

use bytes::{BufMut, BytesMut};
use proxy_core::{Host, Status, Target};

use super::address::checked;
use super::{Command, Halt, MAX_FIELD, Reader, VERSION_4, WireError, read};

/// A SOCKS4 or 4a request. There is no RFC; the notes of its authors are the
/// standard: `04 command port address user-id 00`, and in 4a the address
/// `0.0.0.x` with `x` not 0 announces `name 00` behind it.
///
/// ```
/// use proxy_core::Status;
/// use proxy_socks::wire::Request4;
///
/// let wire = b"\x04\x01\x00\x50\x00\x00\x00\x01me\0example.com\0";
/// let Status::Complete(request, 23) = Request4::parse(wire)? else { panic!() };
/// assert_eq!(request.target.to_string(), "example.com:80");
/// assert_eq!(request.user_id, b"me");
/// # Ok::<(), proxy_socks::wire::WireError>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Request4<'a> {
    /// What to do.
    pub command: Command,
    /// Where.
    pub target: Target<'a>,
    /// Who the client says it is, at most 255 bytes: a hint that nothing
    /// vouches for.
    pub user_id: &'a [u8],
}

impl<'a> Request4<'a> {
    /// Reads a request from the front of `input`.
    ///
    /// # Errors
    /// [`WireError::Version`] if the first byte is not 4; [`WireError::UserId`]
    /// and [`WireError::Name`] as soon as 256 bytes have come without a NUL, the
    /// latter also for a name that is none.
    pub fn parse(input: &'a [u8]) -> Result<Status<Self>, WireError> {
        read(input, |reader| {
            reader.version(VERSION_4)?;
            let command = Command(reader.byte()?);
            let port = reader.port()?;
            let address = Ipv4Addr::from(reader.array::<4>()?);
            let user_id = reader.terminated(WireError::UserId)?;
            let host = match announces_name(address) {
                true => read_name(reader)?,
                false => Host::Ip(address.into()),
            };
            Ok(Self {
                command,
                target: Target { host, port },
                user_id,
            })
        })
    }

    /// Appends the request to `output`, in the 4a form if the host is a name.
    ///
    /// # Errors
    /// If the host is an IPv6 address or of the form that announces a name
    /// ([`WireError::Family`]), a name that no peer should accept
    /// ([`WireError::Name`]), or the user id is too long or holds a NUL
    /// ([`WireError::UserId`]); nothing is appended.
    pub fn encode(&self, output: &mut BytesMut) -> Result<(), WireError> {
        let host = checked(self.target.host)?;
        let address = match host {
            Host::Ip(ip) => expressible(ip)?,
            Host::Name(_) => NAME_FOLLOWS,
        };
        check_user_id(self.user_id)?;
        output.put_slice(&[VERSION_4, self.command.0]);
        output.put_u16(self.target.port);
        output.put_slice(&address.octets());
        output.put_slice(self.user_id);
        output.put_u8(0);
        if let Host::Name(name) = host {
            output.put_slice(name.as_bytes());
            output.put_u8(0);
        }
        Ok(())
    }
}

/// Whether a user id fits into a request.
pub(crate) fn check_user_id(user_id: &[u8]) -> Result<(), WireError> {
    match user_id.len() > MAX_FIELD || memchr::memchr(0, user_id).is_some() {
        true => Err(WireError::UserId),
        false => Ok(()),
    }
}

fn read_name<'a>(reader: &mut Reader<'a>) -> Result<Host<'a>, Halt> {
    let name = reader.terminated(WireError::Name)?;
    Host::name(name).map_err(|_| WireError::Name.into())
}

fn announces_name(address: Ipv4Addr) -> bool {
    matches!(address.octets(), [0, 0, 0, last] if last != 0)
}

fn expressible(ip: IpAddr) -> Result<Ipv4Addr, WireError> {
    match ip.to_canonical() {
        IpAddr::V4(ip) if !announces_name(ip) => Ok(ip),
        _ => Err(WireError::Family),
    }
}

const NAME_FOLLOWS: Ipv4Addr = Ipv4Addr::new(0, 0, 0, 1);

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::law;
    use proptest::prelude::*;

    fn request<'a>(host: Host<'a>, user_id: &'a [u8]) -> Request4<'a> {
        Request4 {
            command: Command::CONNECT,
            target: Target { host, port: 80 },
            user_id,
        }
    }

    #[test]
    fn the_forms_of_a_request() {
        for (wire, target, user) in [
            (
                &b"\x04\x01\x00\x50\x7f\x00\x00\x01me\0"[..],
                "127.0.0.1:80",
                &b"me"[..],
            ),
            (b"\x04\x01\x00\x50\x7f\x00\x00\x01\0", "127.0.0.1:80", b""),
            (b"\x04\x01\x00\x50\x00\x00\x00\x00u\0", "0.0.0.0:80", b"u"),
            (
                b"\x04\x01\x00\x50\x00\x00\x00\xffu\0localhost\0",
                "localhost:80",
                b"u",
            ),
            (b"\x04\x01\x00\x50\x00\x00\x00\x01\0::1\0", "[::1]:80", b""),
        ] {
            let Ok(Status::Complete(request, used)) = Request4::parse(wire) else {
                panic!("{wire:?}");
            };
            assert_eq!(used, wire.len());
            assert_eq!(request.target.to_string(), target);
            assert_eq!(request.user_id, user);
            law::prefixes_are_partial(wire, |input| {
                Request4::parse(input).map(|status| status.map(|_| ()))
            });
        }
    }

    #[test]
    fn p61_fields_without_end() {
        let head = b"\x04\x01\x00\x50\x00\x00\x00\x01";
        for (user, name, result) in [
            (255, 255, Ok(Status::Complete(80, 8 + 256 + 256))),
            (256, 1, Err(WireError::UserId)),
            (1, 256, Err(WireError::Name)),
            (1, 0, Err(WireError::Name)),
        ] {
            let wire = [head, &vec![b'u'; user][..], b"\0", &vec![b'n'; name], b"\0"].concat();
            let parsed = Request4::parse(&wire).map(|s| s.map(|request| request.target.port));
            assert_eq!(parsed, result, "{user} {name}");
        }
        let endless = [&head[..], &[b'u'; 256]].concat();
        assert_eq!(Request4::parse(&endless), Err(WireError::UserId));
        assert_eq!(Request4::parse(&endless[..263]), Ok(Status::Partial));
    }

    #[test]
    fn what_has_no_encoding() {
        let long = [b'u'; 256];
        let name = Host::Name("a");
        let ip = |text: &str| Host::Ip(text.parse().expect("an address"));
        for (host, user, error) in [
            (ip("::1"), &b"u"[..], WireError::Family),
            (ip("0.0.0.7"), b"u", WireError::Family),
            (Host::Name("a b"), b"u", WireError::Name),
            (name, &long, WireError::UserId),
            (name, b"u\0", WireError::UserId),
        ] {
            let mut wire = BytesMut::new();
            assert_eq!(request(host, user).encode(&mut wire), Err(error));
            assert!(wire.is_empty());
        }
    }

    #[test]
    fn mapped_addresses_travel_as_ipv4() {
        let mut wire = BytesMut::new();
        let host = Host::Ip("::ffff:192.0.2.1".parse().expect("an address"));
        request(host, b"").encode(&mut wire).expect("IPv4 within");
        assert_eq!(&wire[..], b"\x04\x01\x00\x50\xc0\x00\x02\x01\0");
    }

    proptest! {
        #[test]
        fn round_trip(
            command: u8,
            ip: Option<Ipv4Addr>,
            name in "[a-z][a-z0-9.-]{0,253}[a-z]",
            user_id in proptest::collection::vec(1u8.., 0..=255),
            port: u16,
        ) {
            let ip = ip.filter(|ip| !announces_name(*ip));
            let request = Request4 {
                command: Command(command),
                target: Target { host: ip.map_or(Host::Name(&name), |ip| Host::Ip(ip.into())), port },
                user_id: &user_id,
            };
            let mut wire = BytesMut::new();
            request.encode(&mut wire).expect("within limits");
            prop_assert_eq!(Request4::parse(&wire), Ok(Status::Complete(request, wire.len())));
        }

        #[test]
        fn a_prefix_never_decides_otherwise(
            head in any::<[u8; 3]>(),
            named: bool,
            tail in proptest::collection::vec(0u8..4, 0..600),
        ) {
            let address = if named { [0, 0, 0, 1] } else { [1, 1, 1, 1] };
            let wire = [&[VERSION_4][..], &head, &address, &tail].concat();
            let whole = Request4::parse(&wire);
            for end in 0..wire.len() {
                let part = Request4::parse(&wire[..end]);
                prop_assert!(part == Ok(Status::Partial) || part == whole);
            }
        }
    }
}
