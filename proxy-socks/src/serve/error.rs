//! Why a connection came to no tunnel, and what the client is told.

use std::io;

use bytes::BytesMut;
use proxy_core::{ConnectError, ConnectErrorKind, Denial, End, Side};
use proxy_relay::Expired;

use crate::{PendingReply, ReplyCode, ServerError, ServerErrorKind};

/// Why a client could not even be answered, or only with the end of the
/// handshake.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ServeError {
    /// The client's stream failed.
    #[error("client: {0}")]
    Client(#[from] io::Error),
    /// The client closed in the middle of the handshake.
    #[error("the client closed the connection in mid-handshake")]
    Closed,
    /// The client broke the protocol, or has no login that would do. It was told
    /// so, if the protocol has an answer for it.
    #[error("handshake: {0}")]
    Handshake(#[from] ServerError),
    /// Ended from outside.
    #[error("ended from outside ({0})")]
    Stopped(End),
    /// The handshake was not complete in time.
    #[error("the handshake took too long")]
    TimedOut,
}

/// The end of a connection that came to no tunnel.
#[derive(Debug)]
pub(super) struct Failure {
    pub(super) end: End,
    /// What the client is told; the output holds it.
    pub(super) answer: Option<u8>,
    pub(super) error: Option<ServeError>,
    /// Why the target was not reached, if it was not.
    pub(super) unreached: Option<ConnectError>,
}

impl Failure {
    /// Appends the reply that `refusal` asks for.
    pub(super) fn refused(refusal: Refusal, reply: PendingReply, output: &mut BytesMut) -> Self {
        let code = refusal
            .code(&reply)
            .map(|code| reply.refuse(code, output).0);
        Self {
            end: refusal.end(),
            answer: code,
            error: match refusal {
                Refusal::Ended(end) => Some(ServeError::Stopped(end)),
                Refusal::Vanished => Some(ServeError::Closed),
                _ => None,
            },
            unreached: match refusal {
                Refusal::Unreached(error) => Some(error),
                _ => None,
            },
        }
    }

    /// A login that was answered "no", because of `denial`.
    pub(super) fn login(error: ServerError, denial: Option<&Denial>) -> Self {
        Self {
            end: denial.map_or(End::Challenged, |denial| end_of_denial(*denial)),
            ..Self::from(error)
        }
    }
}

impl From<Expired> for Failure {
    fn from(expired: Expired) -> Self {
        let (end, error) = match expired {
            Expired::Elapsed => (End::ClientTimeout, ServeError::TimedOut),
            Expired::Stopped(end) => (end, ServeError::Stopped(end)),
        };
        Self {
            end,
            answer: None,
            error: Some(error),
            unreached: None,
        }
    }
}

impl From<io::Error> for Failure {
    fn from(error: io::Error) -> Self {
        let (end, error) = match error.kind() {
            // In good order, but of half a handshake.
            io::ErrorKind::UnexpectedEof => (End::BadRequest, ServeError::Closed),
            _ => (End::ClientReset, ServeError::Client(error)),
        };
        Self {
            end,
            answer: None,
            error: Some(error),
            unreached: None,
        }
    }
}

impl From<ServerError> for Failure {
    fn from(error: ServerError) -> Self {
        Self {
            end: match error.kind {
                ServerErrorKind::LoginRefused
                | ServerErrorKind::LoginRequired
                | ServerErrorKind::NoAcceptableMethod => End::Challenged,
                _ => End::BadRequest,
            },
            answer: error.answer,
            error: Some(error.into()),
            unreached: None,
        }
    }
}

/// Why a request, well formed, is not granted.
#[derive(Debug)]
pub(super) enum Refusal {
    Denied(Denial),
    /// Ended from outside before it came to anything.
    Ended(End),
    Unreached(ConnectError),
    Unsupported,
    /// The client is gone, so there is nobody to refuse anything to.
    Vanished,
}

impl Refusal {
    pub(super) const TIMED_OUT: Self = Self::Unreached(ConnectError {
        kind: ConnectErrorKind::TimedOut,
        side: Side::Origin,
    });

    fn code(&self, reply: &PendingReply) -> Option<ReplyCode> {
        match *self {
            Self::Denied(denial) => Some(ReplyCode::denied(reply.version(), denial)),
            Self::Ended(_) => Some(ReplyCode::GENERAL_FAILURE),
            Self::Unreached(error) => Some(ReplyCode::unreached(reply.version(), error.kind)),
            Self::Unsupported => Some(ReplyCode::COMMAND_UNSUPPORTED),
            Self::Vanished => None,
        }
    }

    fn end(&self) -> End {
        match *self {
            Self::Denied(denial) => end_of_denial(denial),
            Self::Ended(end) => end,
            Self::Unreached(error) => match error.kind {
                ConnectErrorKind::Forbidden | ConnectErrorKind::Loop => End::Forbidden,
                ConnectErrorKind::TimedOut => End::ConnectTimeout,
                _ => End::ConnectFailed,
            },
            Self::Unsupported => End::Forbidden,
            Self::Vanished => End::ClientReset,
        }
    }
}

impl From<Denial> for Refusal {
    fn from(denial: Denial) -> Self {
        Self::Denied(denial)
    }
}

impl From<ConnectError> for Refusal {
    fn from(error: ConnectError) -> Self {
        Self::Unreached(error)
    }
}

fn end_of_denial(denial: Denial) -> End {
    match denial {
        Denial::Busy => End::Busy,
        Denial::Challenge => End::Challenged,
        Denial::Unroutable => End::ConnectFailed,
        _ => End::Forbidden,
    }
}
