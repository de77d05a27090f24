//! The four forms of a request target (RFC 9112 section 3.2).

use memchr::{memchr, memchr2};
use proxy_core::Target;

use super::field::{offset, text};
use crate::HeadError;

/// A request target as received.
///
/// Exhaustive on purpose: RFC 9112 section 3.2 has four forms.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum RequestTarget<'b> {
    /// `scheme://authority/path?query`: a request to a proxy.
    Absolute {
        /// The scheme in the case received.
        scheme: &'b str,
        /// Host and port as received.
        authority: &'b str,
        /// Path and query as received; may be empty or begin with `?`.
        path_and_query: &'b str,
    },
    /// `*`: OPTIONS about the server as a whole.
    Asterisk,
    /// `host:port`: CONNECT.
    Authority(&'b str),
    /// `/path?query`: a request to an origin server.
    Origin(&'b str),
}

/// Where the parts of a target stand, as offsets into it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Form {
    Absolute {
        /// Offset of the authority, behind `scheme://`.
        authority: u32,
        /// Offset of path and query.
        path: u32,
    },
    #[default]
    Asterisk,
    Authority,
    Origin,
}

impl Form {
    /// Tells the form. The bytes are visible ASCII already.
    pub(super) fn parse(method: &[u8], target: &[u8]) -> Result<Self, HeadError> {
        // A fragment is never sent (RFC 9112 section 3.2 has no place for one).
        if memchr(b'#', target).is_some() {
            return Err(HeadError::Target);
        }
        match target {
            _ if method == b"CONNECT" => Ok(Self::Authority),
            [b'/', ..] => Ok(Self::Origin),
            b"*" if method == b"OPTIONS" => Ok(Self::Asterisk),
            _ => Self::absolute(target),
        }
    }

    /// RFC 3986 section 3: a scheme, `://`, and the authority up to `/` or `?`.
    fn absolute(target: &[u8]) -> Result<Self, HeadError> {
        let colon = target.iter().position(|b| !is_scheme(*b)).unwrap_or(0);
        if !target[..colon].first().is_some_and(u8::is_ascii_alphabetic)
            || !target[colon..].starts_with(b"://")
        {
            return Err(HeadError::Target);
        }
        let authority = colon + 3;
        let rest = &target[authority..];
        let len = memchr2(b'/', b'?', rest).unwrap_or(rest.len());
        Ok(Self::Absolute {
            authority: offset(authority),
            path: offset(authority + len),
        })
    }

    /// The authority in `target`, which this form was read from, if it has one.
    pub(super) fn authority_of(self, target: &[u8]) -> Option<&[u8]> {
        match self {
            Self::Absolute { authority, path } => target.get(authority as usize..path as usize),
            Self::Authority => Some(target),
            Self::Asterisk | Self::Origin => None,
        }
    }

    /// The parts of `target`, which this form was read from.
    pub(super) fn of(self, target: &str) -> RequestTarget<'_> {
        match self {
            Self::Absolute { authority, path } => RequestTarget::Absolute {
                scheme: part(target, 0, authority.saturating_sub(3)),
                authority: part(target, authority, path),
                path_and_query: part(target, path, u32::MAX),
            },
            Self::Asterisk => RequestTarget::Asterisk,
            Self::Authority => RequestTarget::Authority(target),
            Self::Origin => RequestTarget::Origin(target),
        }
    }
}

/// Where a proxy must connect to (RFC 9112 section 3.2): `host` is the value of
/// the only `Host` field, which decides for the origin form alone.
pub(super) fn destination<'b>(
    target: RequestTarget<'b>,
    host: Option<&'b [u8]>,
) -> Result<Target<'b>, HeadError> {
    let (authority, port) = match target {
        RequestTarget::Absolute {
            scheme, authority, ..
        } => (authority, Some(port_of(scheme)?)),
        RequestTarget::Asterisk => return Err(HeadError::Destination),
        RequestTarget::Authority(authority) => (authority, None),
        RequestTarget::Origin(_) => (text(host.unwrap_or_default()), Some(80)),
    };
    Target::parse(authority, port).map_err(|_| HeadError::Destination)
}

/// RFC 9110 sections 4.2.1 and 4.2.2: the default ports.
fn port_of(scheme: &str) -> Result<u16, HeadError> {
    match scheme {
        _ if scheme.eq_ignore_ascii_case("http") => Ok(80),
        _ if scheme.eq_ignore_ascii_case("https") => Ok(443),
        _ => Err(HeadError::Scheme),
    }
}

fn is_scheme(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || matches!(byte, b'+' | b'-' | b'.')
}

fn part(target: &str, start: u32, end: u32) -> &str {
    let end = target.len().min(end as usize);
    target.get(start as usize..end).unwrap_or_default()
}
