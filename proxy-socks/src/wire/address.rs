//! The address in SOCKS5 requests and replies: type, address or name, port.

use std::net::IpAddr;

use bytes::{BufMut, BytesMut};
use proxy_core::{Host, Target};

use super::{Halt, Reader, WireError, length};

/// An address as it stands on the wire (RFC 1928 section 5); names unchecked.
pub(super) enum Address<'a> {
    Ip(IpAddr),
    Name(&'a [u8]),
}

impl<'a> Address<'a> {
    /// Reads the address type and the address, not the port.
    pub(super) fn read(reader: &mut Reader<'a>) -> Result<Self, Halt> {
        Ok(match reader.byte()? {
            IPV4 => Self::Ip(IpAddr::from(reader.array::<4>()?)),
            IPV6 => Self::Ip(IpAddr::from(reader.array::<16>()?)),
            NAME => Self::Name(reader.counted()?),
            other => return Err(WireError::AddressType(other).into()),
        })
    }

    pub(super) fn host(self) -> Result<Host<'a>, WireError> {
        match self {
            Self::Ip(ip) => Ok(Host::Ip(ip)),
            Self::Name(name) => Host::name(name).map_err(|_| WireError::Name),
        }
    }
}

/// Appends address type, address or name, and port.
pub(super) fn encode(target: Target<'_>, output: &mut BytesMut) -> Result<(), WireError> {
    match checked(target.host)? {
        Host::Ip(ip) => encode_ip(ip, output),
        Host::Name(name) => {
            let length = length(name.as_bytes(), WireError::Name)?;
            output.put_slice(&[NAME, length]);
            output.put_slice(name.as_bytes());
        }
    }
    output.put_u16(target.port);
    Ok(())
}

/// Appends address type and address.
pub(super) fn encode_ip(ip: IpAddr, output: &mut BytesMut) {
    match ip {
        IpAddr::V4(ip) => {
            output.put_u8(IPV4);
            output.put_slice(&ip.octets());
        }
        IpAddr::V6(ip) => {
            output.put_u8(IPV6);
            output.put_slice(&ip.octets());
        }
    }
}

/// A caller can put any text into [`Host::Name`]; the wire must not carry it.
pub(super) fn checked(host: Host<'_>) -> Result<Host<'_>, WireError> {
    match host {
        Host::Ip(_) => Ok(host),
        Host::Name(name) => Host::name(name.as_bytes()).map_err(|_| WireError::Name),
    }
}

pub(super) const IPV4: u8 = 1;
pub(super) const NAME: u8 = 3;
pub(super) const IPV6: u8 = 4;
