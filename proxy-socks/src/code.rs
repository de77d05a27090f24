//! Reply codes: their numbers, their names, and what each failure becomes.

use std::fmt;

use proxy_core::{ConnectErrorKind, Denial};

/// The code in a reply of either version; unknown numbers are kept.
///
/// SOCKS5 counts from 0 (RFC 1928 section 6), SOCKS4 from 0x5A, so one type
/// tells them all apart.
///
/// ```
/// use proxy_core::ConnectErrorKind;
/// use proxy_socks::{ReplyCode, Version};
///
/// let code = ReplyCode::unreached(Version::V5, ConnectErrorKind::Refused);
/// assert_eq!(code, ReplyCode::REFUSED);
/// assert_eq!(code.to_string(), "0x05 connection refused");
/// assert_eq!(ReplyCode(0xee).to_string(), "0xee unknown");
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ReplyCode(pub u8);

impl ReplyCode {
    /// SOCKS5: connected.
    pub const SUCCEEDED: Self = Self(0);
    /// SOCKS5: none of the others.
    pub const GENERAL_FAILURE: Self = Self(1);
    /// SOCKS5: not allowed by the rules.
    pub const NOT_ALLOWED: Self = Self(2);
    /// SOCKS5: no route to the network.
    pub const NETWORK_UNREACHABLE: Self = Self(3);
    /// SOCKS5: no route to the host, or no such host.
    pub const HOST_UNREACHABLE: Self = Self(4);
    /// SOCKS5: the target refused.
    pub const REFUSED: Self = Self(5);
    /// SOCKS5: it took too long.
    pub const TTL_EXPIRED: Self = Self(6);
    /// SOCKS5: the command is unknown or not offered.
    pub const COMMAND_UNSUPPORTED: Self = Self(7);
    /// SOCKS5: the address type is unknown.
    pub const ADDRESS_TYPE_UNSUPPORTED: Self = Self(8);
    /// SOCKS4: connected.
    pub const GRANTED: Self = Self(0x5a);
    /// SOCKS4: refused or failed.
    pub const REJECTED: Self = Self(0x5b);
    /// SOCKS4: the client's identd could not be asked.
    pub const IDENT_UNREACHABLE: Self = Self(0x5c);
    /// SOCKS4: the client is not who it says it is.
    pub const IDENT_MISMATCH: Self = Self(0x5d);

    /// What a client is told when policy says no.
    pub fn denied(version: Version, denial: Denial) -> Self {
        match (version, denial) {
            // The nearest that SOCKS4 has to "log in first".
            (Version::V4, Denial::Challenge) => Self::IDENT_MISMATCH,
            (Version::V4, _) => Self::REJECTED,
            (Version::V5, Denial::Challenge | Denial::Forbid) => Self::NOT_ALLOWED,
            (Version::V5, Denial::Unroutable) => Self::HOST_UNREACHABLE,
            (Version::V5, _) => Self::GENERAL_FAILURE,
        }
    }

    /// What a client is told when the target was not reached.
    pub fn unreached(version: Version, kind: ConnectErrorKind) -> Self {
        use ConnectErrorKind as Kind;
        if version == Version::V4 {
            return Self::REJECTED;
        }
        match kind {
            Kind::Forbidden | Kind::Loop => Self::NOT_ALLOWED,
            Kind::HostUnreachable | Kind::NameNotFound | Kind::NameUnavailable => {
                Self::HOST_UNREACHABLE
            }
            Kind::NetworkUnreachable => Self::NETWORK_UNREACHABLE,
            Kind::Refused | Kind::Reset => Self::REFUSED,
            Kind::TimedOut => Self::TTL_EXPIRED,
            _ => Self::GENERAL_FAILURE,
        }
    }

    /// What a server's refusal means: the inverse of
    /// [`unreached`](Self::unreached).
    pub fn failure(self) -> ConnectErrorKind {
        use ConnectErrorKind as Kind;
        match self {
            Self::NOT_ALLOWED => Kind::Forbidden,
            Self::NETWORK_UNREACHABLE => Kind::NetworkUnreachable,
            Self::HOST_UNREACHABLE | Self::ADDRESS_TYPE_UNSUPPORTED => Kind::HostUnreachable,
            Self::REFUSED => Kind::Refused,
            Self::TTL_EXPIRED => Kind::TimedOut,
            Self::IDENT_MISMATCH | Self::IDENT_UNREACHABLE => Kind::Login,
            _ => Kind::Other,
        }
    }

    /// The code of `version` that says the same; a code that is already one of
    /// its own stays.
    pub fn in_version(self, version: Version) -> Self {
        let of_socks4 = Self::GRANTED <= self && self <= Self::IDENT_MISMATCH;
        match version {
            Version::V4 if of_socks4 => self,
            Version::V4 if self == Self::SUCCEEDED => Self::GRANTED,
            Version::V4 => Self::REJECTED,
            Version::V5 if self == Self::GRANTED => Self::SUCCEEDED,
            Version::V5 if of_socks4 => Self::NOT_ALLOWED,
            Version::V5 => self,
        }
    }

    /// Whether the request succeeded, in either version.
    pub fn is_success(self) -> bool {
        self == Self::SUCCEEDED || self == Self::GRANTED
    }

    /// The name of the code, for people.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::SUCCEEDED => "succeeded",
            Self::GENERAL_FAILURE => "general failure",
            Self::NOT_ALLOWED => "not allowed",
            Self::NETWORK_UNREACHABLE => "network unreachable",
            Self::HOST_UNREACHABLE => "host unreachable",
            Self::REFUSED => "connection refused",
            Self::TTL_EXPIRED => "timed out",
            Self::COMMAND_UNSUPPORTED => "command not supported",
            Self::ADDRESS_TYPE_UNSUPPORTED => "address type not supported",
            Self::GRANTED => "granted",
            Self::REJECTED => "rejected or failed",
            Self::IDENT_UNREACHABLE => "rejected: identd unreachable",
            Self::IDENT_MISMATCH => "rejected: not identified",
            _ => "unknown",
        }
    }
}

impl fmt::Display for ReplyCode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:#04x} {}", self.0, self.as_str())
    }
}

/// The version of the protocol that a client speaks; 4a counts as 4.
///
/// Exhaustive on purpose: there will be no other.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Version {
    /// SOCKS4 and 4a.
    V4,
    /// SOCKS5.
    V5,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn p60_each_failure_has_its_own_code() {
        use ConnectErrorKind as Kind;
        for (kind, code) in [
            (Kind::Exhausted, 1),
            (Kind::Forbidden, 2),
            (Kind::HostUnreachable, 4),
            (Kind::Loop, 2),
            (Kind::NameNotFound, 4),
            (Kind::NameUnavailable, 4),
            (Kind::NetworkUnreachable, 3),
            (Kind::Other, 1),
            (Kind::Login, 1),
            (Kind::Protocol, 1),
            (Kind::Refused, 5),
            (Kind::Reset, 5),
            (Kind::Source, 1),
            (Kind::TimedOut, 6),
            (Kind::Tls, 1),
        ] {
            assert_eq!(ReplyCode::unreached(Version::V5, kind), ReplyCode(code));
            assert_eq!(ReplyCode::unreached(Version::V4, kind), ReplyCode(0x5b));
        }
        for (denial, five, four) in [
            (Denial::Busy, 1, 0x5b),
            (Denial::Challenge, 2, 0x5d),
            (Denial::Forbid, 2, 0x5b),
            (Denial::Unroutable, 4, 0x5b),
        ] {
            assert_eq!(ReplyCode::denied(Version::V5, denial), ReplyCode(five));
            assert_eq!(ReplyCode::denied(Version::V4, denial), ReplyCode(four));
        }
    }

    #[test]
    fn what_a_parent_replies_is_a_failure_of_its_own_kind() {
        use ConnectErrorKind as Kind;
        for (code, kind) in [
            (1, Kind::Other),
            (2, Kind::Forbidden),
            (3, Kind::NetworkUnreachable),
            (4, Kind::HostUnreachable),
            (5, Kind::Refused),
            (6, Kind::TimedOut),
            (7, Kind::Other),
            (8, Kind::HostUnreachable),
            (9, Kind::Other),
            (0x5b, Kind::Other),
            (0x5c, Kind::Login),
            (0x5d, Kind::Login),
            (0xff, Kind::Other),
        ] {
            assert_eq!(ReplyCode(code).failure(), kind, "{code}");
        }
    }

    #[test]
    fn codes_cross_versions() {
        for (code, version, other) in [
            (0x00, Version::V4, 0x5a),
            (0x05, Version::V4, 0x5b),
            (0x5d, Version::V4, 0x5d),
            (0xee, Version::V4, 0x5b),
            (0x5a, Version::V5, 0x00),
            (0x5b, Version::V5, 0x02),
            (0x05, Version::V5, 0x05),
            (0xee, Version::V5, 0xee),
        ] {
            assert_eq!(ReplyCode(code).in_version(version), ReplyCode(other));
        }
    }

    #[test]
    fn every_number_has_a_text() {
        for number in 0..=255 {
            assert!(ReplyCode(number).to_string().len() > 5);
        }
    }
}
