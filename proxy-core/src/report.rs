//! What is told about an exchange or tunnel once it is over.

use std::time::Duration;

use crate::{ConnectError, Operation, Peer, Target};

/// One finished exchange or tunnel, as handed to
/// [`Gateway::finished`](crate::Gateway::finished).
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct Report<'a> {
    /// The client connection.
    pub peer: &'a Peer,
    /// What was asked for; `None` when the request could not be read.
    pub operation: Option<Operation<'a>>,
    /// Where it should go; `None` when the request could not be read.
    pub target: Option<Target<'a>>,
    /// Whether that is meant inside TLS: the request is for an `https` URL.
    pub secure: bool,
    /// The HTTP status or SOCKS reply code sent to the client; `None` when no
    /// answer was sent or the service has none (port relays).
    pub status: Option<u16>,
    /// Bytes from the client to the origin. For an HTTP exchange the head and
    /// body as sent to the origin, for a tunnel what was relayed.
    pub up: u64,
    /// Bytes from the origin (or the proxy's own answer) to the client.
    pub down: u64,
    /// From the first byte of the request to the end.
    pub duration: Duration,
    /// Why it ended.
    pub end: End,
    /// Why the target was not reached, if it was not.
    pub error: Option<ConnectError>,
    /// A word for the rule or limit that a message broke, such as
    /// `length-and-coding`; to go with an [`end`](Self::end) that says whose
    /// message it was.
    pub fault: Option<&'static str>,
}

impl<'a> Report<'a> {
    /// A report on `peer` that ended by `end`; the other fields are empty.
    pub fn new(peer: &'a Peer, end: End) -> Self {
        Self {
            peer,
            operation: None,
            target: None,
            secure: false,
            status: None,
            up: 0,
            down: 0,
            duration: Duration::ZERO,
            end,
            error: None,
            fault: None,
        }
    }
}

/// Why an exchange, tunnel or connection ended: the one list of reasons for
/// logs and metrics of every protocol.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum End {
    /// The origin's answer broke the protocol.
    BadResponse,
    /// The client's request broke the protocol.
    BadRequest,
    /// The proxy is at its limit and took no more work.
    Busy,
    /// Credentials are missing or wrong.
    Challenged,
    /// The client finished (its FIN was passed on, the other side followed).
    ClientFinished,
    /// The client reset the connection or vanished.
    ClientReset,
    /// The client was too slow to send its request.
    ClientTimeout,
    /// An HTTP exchange was answered in full.
    Completed,
    /// The origin could not be reached: refused, unreachable, unknown name.
    ConnectFailed,
    /// Connecting to the origin took too long.
    ConnectTimeout,
    /// The drain deadline of a shutdown passed.
    Drained,
    /// Policy refused it.
    Forbidden,
    /// One direction had ended and the other stayed open for too long.
    HalfClosed,
    /// No bytes moved in either direction for too long.
    Idle,
    /// The longest permitted lifetime was over.
    Lifetime,
    /// A quota or size limit was reached.
    Limit,
    /// The origin finished (its FIN was passed on, the other side followed).
    OriginFinished,
    /// The origin reset the connection or vanished.
    OriginReset,
    /// The origin was too slow to answer.
    OriginTimeout,
    /// Ended from outside through a [`Stop`](crate::Stop) token.
    Stopped,
    /// The origin's answer ended before its stated end.
    Truncated,
    /// A peer took no bytes for too long.
    WriteStalled,
}

impl End {
    /// Each of them once; more may be added.
    pub const ALL: [Self; 22] = [
        Self::BadResponse,
        Self::BadRequest,
        Self::Busy,
        Self::Challenged,
        Self::ClientFinished,
        Self::ClientReset,
        Self::ClientTimeout,
        Self::Completed,
        Self::ConnectFailed,
        Self::ConnectTimeout,
        Self::Drained,
        Self::Forbidden,
        Self::HalfClosed,
        Self::Idle,
        Self::Lifetime,
        Self::Limit,
        Self::OriginFinished,
        Self::OriginReset,
        Self::OriginTimeout,
        Self::Stopped,
        Self::Truncated,
        Self::WriteStalled,
    ];

    /// The word used in logs and metrics.
    ///
    /// ```
    /// assert_eq!(proxy_core::End::HalfClosed.as_str(), "half-closed");
    /// ```
    pub fn as_str(self) -> &'static str {
        match self {
            Self::BadResponse => "bad-response",
            Self::BadRequest => "bad-request",
            Self::Busy => "busy",
            Self::Challenged => "challenged",
            Self::ClientFinished => "client-finished",
            Self::ClientReset => "client-reset",
            Self::ClientTimeout => "client-timeout",
            Self::Completed => "completed",
            Self::ConnectFailed => "connect-failed",
            Self::ConnectTimeout => "connect-timeout",
            Self::Drained => "drained",
            Self::Forbidden => "forbidden",
            Self::HalfClosed => "half-closed",
            Self::Idle => "idle",
            Self::Lifetime => "lifetime",
            Self::Limit => "limit",
            Self::OriginFinished => "origin-finished",
            Self::OriginReset => "origin-reset",
            Self::OriginTimeout => "origin-timeout",
            Self::Stopped => "stopped",
            Self::Truncated => "truncated",
            Self::WriteStalled => "write-stalled",
        }
    }
}

impl std::fmt::Display for End {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.pad(self.as_str())
    }
}
