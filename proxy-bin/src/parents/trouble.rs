//! What can go wrong with a parent, and whose fault that is.

use std::fmt;

use proxy_core::{ConnectError, ConnectErrorKind};
use proxy_http::TunnelError;
use proxy_relay::DriveError;
use proxy_socks::ClientError;
use proxy_socks::wire::WireError;
use proxy_tls::TlsErrorKind;

/// How far a chain has come.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Stage {
    /// The hop that is spoken to, counted from 0.
    pub(super) hop: usize,
    /// It was asked for the target itself.
    pub(super) last: bool,
}

/// A chain that led nowhere.
#[derive(Debug)]
pub(super) struct Failure {
    stage: Stage,
    trouble: Trouble,
}

/// What went wrong.
#[derive(Debug)]
pub(super) enum Trouble {
    /// Too many alike are being set up.
    Circle,
    Dial(ConnectError),
    Http(DriveError<TunnelError>),
    Late,
    Socks(DriveError<ClientError>),
    Tls(TlsErrorKind),
    Wire(WireError),
}

/// Whose fault it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Blame {
    /// Our own: no other parent would do better.
    Ours,
    /// The parent's own: another one may do better.
    Parent,
    /// The target's, or the parent's rules for it.
    Target,
    /// Nobody can tell; another parent may do better.
    Unclear,
}

impl Failure {
    pub(super) fn new(stage: Stage, trouble: impl Into<Trouble>) -> Self {
        let trouble = trouble.into();
        Self { stage, trouble }
    }

    /// It took too long.
    pub(super) fn late(stage: Stage) -> Self {
        Self::new(stage, Trouble::Late)
    }

    /// The hop it happened at.
    pub(super) fn hop(&self) -> usize {
        self.stage.hop
    }

    /// What the client and the log are told.
    pub(super) fn error(&self) -> ConnectError {
        const EXHAUSTED: ConnectErrorKind = ConnectErrorKind::Exhausted;
        ConnectError::parent(match &self.trouble {
            // Of our own descriptors and ports.
            Trouble::Dial(error) if error.kind == EXHAUSTED => {
                return ConnectError::origin(EXHAUSTED);
            }
            Trouble::Circle => ConnectErrorKind::Loop,
            Trouble::Dial(error) => error.kind,
            Trouble::Http(error) => drive_kind(error),
            Trouble::Late => ConnectErrorKind::TimedOut,
            Trouble::Socks(error) => drive_kind(error),
            Trouble::Tls(error) => tls_kind(error),
            Trouble::Wire(error) => ConnectError::from(ClientError::from(*error)).kind,
        })
    }

    pub(super) fn blame(&self) -> Blame {
        use ConnectErrorKind as Kind;
        match (&self.trouble, self.error().kind) {
            // Failing over would only start another circle, and no client shall be
            // able to make a parent look unfit.
            (Trouble::Circle, _) | (Trouble::Dial(_), Kind::Exhausted) => Blame::Ours,
            (Trouble::Wire(_), _) => Blame::Unclear,
            // What a hop says of the next one is the chain's own matter.
            (Trouble::Dial(_) | Trouble::Tls(_), _) => Blame::Parent,
            _ if !self.stage.last => Blame::Parent,
            // The target may be what is slow.
            (Trouble::Late, _) => Blame::Unclear,
            (_, Kind::Login | Kind::Protocol) => Blame::Parent,
            (_, Kind::Reset) if !self.was_told() => Blame::Parent,
            (_, Kind::Exhausted | Kind::Other) => Blame::Unclear,
            _ => Blame::Target,
        }
    }

    /// The parent answered.
    fn was_told(&self) -> bool {
        matches!(
            self.trouble,
            Trouble::Http(DriveError::Handshake(_)) | Trouble::Socks(DriveError::Handshake(_))
        )
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.trouble {
            Trouble::Circle => f.write_str(
                "too many connections alike are being set up; it seems to lead back here",
            ),
            Trouble::Dial(error) => write!(f, "it cannot be reached ({})", error.kind),
            Trouble::Http(error) => error.fmt(f),
            Trouble::Late => f.write_str("it takes too long"),
            Trouble::Socks(error) => error.fmt(f),
            Trouble::Tls(error) => error.fmt(f),
            Trouble::Wire(error) => error.fmt(f),
        }
    }
}

impl From<DriveError<TunnelError>> for Trouble {
    fn from(error: DriveError<TunnelError>) -> Self {
        Self::Http(error)
    }
}

impl From<DriveError<ClientError>> for Trouble {
    fn from(error: DriveError<ClientError>) -> Self {
        Self::Socks(error)
    }
}

fn drive_kind<E: Copy + Into<ConnectError>>(error: &DriveError<E>) -> ConnectErrorKind {
    match error {
        DriveError::Handshake(error) => (*error).into().kind,
        DriveError::Io(error) => io_kind(error),
        // Closed before it answered, or answered without end.
        _ => ConnectErrorKind::Protocol,
    }
}

fn tls_kind(error: &TlsErrorKind) -> ConnectErrorKind {
    match error {
        TlsErrorKind::Io(error) => io_kind(error),
        TlsErrorKind::TimedOut => ConnectErrorKind::TimedOut,
        _ => ConnectErrorKind::Tls,
    }
}

/// An end without TLS's own goodbye is an end like others.
fn io_kind(error: &std::io::Error) -> ConnectErrorKind {
    match error.kind() {
        std::io::ErrorKind::UnexpectedEof => ConnectErrorKind::Protocol,
        kind => ConnectError::from(std::io::Error::from(kind)).kind,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proxy_socks::ReplyCode;
    use std::io;

    const FIRST: Stage = Stage {
        hop: 0,
        last: false,
    };
    const LAST: Stage = Stage { hop: 1, last: true };

    fn http(error: DriveError<TunnelError>) -> Trouble {
        error.into()
    }

    fn refused(code: u8) -> Trouble {
        DriveError::Handshake(ClientError::Refused(ReplyCode(code))).into()
    }

    #[test]
    fn whose_fault_it_is() {
        use ConnectErrorKind as Kind;
        let io = |kind| DriveError::Io(io::Error::from(kind));
        let status = |status| DriveError::Handshake(TunnelError::Refused(status));
        let exhausted = ConnectError::origin(Kind::Exhausted);
        let down = ConnectError::origin(Kind::Refused);
        for (stage, trouble, kind, blame) in [
            (FIRST, Trouble::Circle, Kind::Loop, Blame::Ours),
            (FIRST, Trouble::Dial(down), Kind::Refused, Blame::Parent),
            (
                FIRST,
                Trouble::Tls(TlsErrorKind::ClearText),
                Kind::Tls,
                Blame::Parent,
            ),
            (FIRST, Trouble::Late, Kind::TimedOut, Blame::Parent),
            (LAST, Trouble::Late, Kind::TimedOut, Blame::Unclear),
            (FIRST, http(status(403)), Kind::Forbidden, Blame::Parent),
            (LAST, http(status(403)), Kind::Forbidden, Blame::Target),
            (LAST, http(status(407)), Kind::Login, Blame::Parent),
            (LAST, http(status(502)), Kind::Other, Blame::Unclear),
            (LAST, http(status(503)), Kind::Exhausted, Blame::Unclear),
            (LAST, http(status(504)), Kind::TimedOut, Blame::Target),
            (
                LAST,
                http(DriveError::Closed),
                Kind::Protocol,
                Blame::Parent,
            ),
            (
                LAST,
                http(DriveError::TooLong),
                Kind::Protocol,
                Blame::Parent,
            ),
            (
                LAST,
                http(io(io::ErrorKind::ConnectionReset)),
                Kind::Reset,
                Blame::Parent,
            ),
            (
                LAST,
                http(io(io::ErrorKind::UnexpectedEof)),
                Kind::Protocol,
                Blame::Parent,
            ),
            (LAST, refused(5), Kind::Refused, Blame::Target),
            (LAST, refused(1), Kind::Other, Blame::Unclear),
            (
                LAST,
                Trouble::Wire(WireError::Family),
                Kind::HostUnreachable,
                Blame::Unclear,
            ),
        ] {
            let failure = Failure::new(stage, trouble);
            assert_eq!(failure.error(), ConnectError::parent(kind), "{failure}");
            assert_eq!(failure.blame(), blame, "{failure}");
        }
        let ours = Failure::new(FIRST, Trouble::Dial(exhausted));
        assert_eq!((ours.error(), ours.blame()), (exhausted, Blame::Ours));
    }
}
