//! Why an upstream could not be reached.

use std::fmt;

/// A failed attempt to reach an origin or a parent proxy.
///
/// Answers what the caller needs: what to tell the client
/// ([`kind`](Self::kind)), whose fault it is ([`side`](Self::side)) and whether
/// another address or parent is worth trying ([`retryable`](Self::retryable)).
/// `Display` is the word used in logs: the kind, with `parent-` before it if the
/// trouble is with a parent.
///
/// ```
/// use proxy_core::{ConnectError, ConnectErrorKind};
/// let error = ConnectError::from(std::io::Error::from(std::io::ErrorKind::ConnectionRefused));
/// assert_eq!(error.kind, ConnectErrorKind::Refused);
/// assert!(error.retryable());
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{}{kind}", self.prefix())]
pub struct ConnectError {
    /// What went wrong.
    pub kind: ConnectErrorKind,
    /// Who was at fault.
    pub side: Side,
}

impl ConnectError {
    /// A failure of the origin itself.
    pub fn origin(kind: ConnectErrorKind) -> Self {
        Self {
            kind,
            side: Side::Origin,
        }
    }

    /// A failure of a parent proxy, or one that it told of.
    pub fn parent(kind: ConnectErrorKind) -> Self {
        Self {
            kind,
            side: Side::Parent,
        }
    }

    /// Whether another address or another parent may do better.
    pub fn retryable(&self) -> bool {
        !matches!(
            self.kind,
            ConnectErrorKind::Forbidden | ConnectErrorKind::Exhausted | ConnectErrorKind::Loop
        )
    }

    /// Tells trouble with a parent from trouble with the origin.
    fn prefix(&self) -> &'static str {
        match self.side {
            Side::Parent => "parent-",
            Side::Client | Side::Origin => "",
        }
    }
}

impl From<std::io::Error> for ConnectError {
    fn from(error: std::io::Error) -> Self {
        Self {
            kind: ConnectErrorKind::of(&error),
            side: Side::Origin,
        }
    }
}

/// The kinds of failure that clients are told apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum ConnectErrorKind {
    /// The peer's certificate is not one of its name, or nobody trusted issued
    /// it.
    Certificate,
    /// The proxy is out of descriptors, ports or memory.
    Exhausted,
    /// The address may not be dialled.
    Forbidden,
    /// No route to the host.
    HostUnreachable,
    /// The login was refused.
    Login,
    /// The target is the proxy itself.
    Loop,
    /// The name has no address.
    NameNotFound,
    /// The name could not be looked up (server failure or timeout).
    NameUnavailable,
    /// No route to the network.
    NetworkUnreachable,
    /// Something else went wrong.
    Other,
    /// The peer broke the protocol of the handshake.
    Protocol,
    /// The peer refused the connection.
    Refused,
    /// The peer reset the connection while it was being set up.
    Reset,
    /// The address to connect from cannot be used: it is not this machine's, or
    /// of another family.
    Source,
    /// It took too long.
    TimedOut,
    /// TLS with the peer failed.
    Tls,
}

impl ConnectErrorKind {
    /// The word used in logs.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Certificate => "certificate-invalid",
            Self::Exhausted => "exhausted",
            Self::Forbidden => "forbidden",
            Self::HostUnreachable => "host-unreachable",
            Self::Login => "login-refused",
            Self::Loop => "loop",
            Self::NameNotFound => "name-not-found",
            Self::NameUnavailable => "name-unavailable",
            Self::NetworkUnreachable => "network-unreachable",
            Self::Other => "other",
            Self::Protocol => "protocol-error",
            Self::Refused => "refused",
            Self::Reset => "reset",
            Self::Source => "source-unavailable",
            Self::TimedOut => "timed-out",
            Self::Tls => "tls-failed",
        }
    }

    fn of(error: &std::io::Error) -> Self {
        use std::io::ErrorKind as Io;
        match error.kind() {
            Io::ConnectionRefused => Self::Refused,
            Io::ConnectionReset | Io::ConnectionAborted | Io::BrokenPipe => Self::Reset,
            Io::TimedOut => Self::TimedOut,
            Io::HostUnreachable => Self::HostUnreachable,
            Io::NetworkUnreachable | Io::NetworkDown => Self::NetworkUnreachable,
            Io::AddrInUse | Io::AddrNotAvailable | Io::OutOfMemory => Self::Exhausted,
            _ => match error.raw_os_error() {
                Some(EMFILE | ENFILE | ENOBUFS) => Self::Exhausted,
                _ => Self::Other,
            },
        }
    }
}

// The same on every Linux architecture but MIPS, SPARC and Alpha, where the
// error is then reported as `Other`.
const ENFILE: i32 = 23;
const EMFILE: i32 = 24;
const ENOBUFS: i32 = 105;

impl fmt::Display for ConnectErrorKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.as_str())
    }
}

/// Which party a failure belongs to.
///
/// Exhaustive on purpose: an exchange has no fourth party.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Side {
    /// The client.
    Client,
    /// The origin server.
    Origin,
    /// A parent proxy on the way.
    Parent,
}

impl fmt::Display for Side {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Client => "client",
            Self::Origin => "origin",
            Self::Parent => "parent",
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io;

    #[test]
    fn p60_each_error_of_the_system_has_its_kind() {
        use ConnectErrorKind as Kind;
        for (error, kind) in [
            (io::ErrorKind::AddrNotAvailable, Kind::Exhausted),
            (io::ErrorKind::ConnectionRefused, Kind::Refused),
            (io::ErrorKind::ConnectionReset, Kind::Reset),
            (io::ErrorKind::HostUnreachable, Kind::HostUnreachable),
            (io::ErrorKind::NetworkDown, Kind::NetworkUnreachable),
            (io::ErrorKind::NetworkUnreachable, Kind::NetworkUnreachable),
            (io::ErrorKind::PermissionDenied, Kind::Other),
            (io::ErrorKind::TimedOut, Kind::TimedOut),
        ] {
            assert_eq!(ConnectError::from(io::Error::from(error)).kind, kind);
        }
        for number in [EMFILE, ENFILE] {
            let error = io::Error::from_raw_os_error(number);
            assert_eq!(ConnectError::from(error).kind, Kind::Exhausted);
        }
    }
}
