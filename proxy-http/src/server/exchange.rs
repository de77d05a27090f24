//! One request and its answer: both directions, polled together.

use std::task::{Context, Poll};

use bytes::BytesMut;
use proxy_core::{End, HeadLimits, HttpParent, StopState};
use proxy_relay::{Deadline, Expired, Transport};

use super::config::Config;
use super::download::Download;
use super::upload::Upload;
use super::wire::poll_read;
use crate::filter::{Answer, Direction, Filter};
use crate::{BodyError, Framing, HeadError, RequestHead};

/// The state of both directions.
///
/// A response may come before the request body ends (100, 413, any early
/// answer), so neither direction waits for the other.
#[derive(Debug)]
pub(super) struct Exchange {
    pub(super) up: Upload,
    pub(super) down: Download,
    /// Bytes the client sent behind this request.
    pub(super) ahead: BytesMut,
    /// The client sent its FIN.
    pub(super) client_finished: bool,
    /// What the deadline was last set for.
    waiting: Waiting,
}

/// What an exchange works on.
pub(super) struct Parts<'x, S, U, F, Se> {
    pub(super) client: &'x mut S,
    pub(super) origin: &'x mut U,
    /// The HTTP proxy that the origin is reached through.
    pub(super) parent: Option<&'x HttpParent>,
    pub(super) config: &'x Config,
    pub(super) filter: &'x F,
    pub(super) session: &'x mut Se,
    pub(super) head: &'x RequestHead<'x, 'x>,
    /// Bytes that came in one piece with the head.
    pub(super) early: &'x [u8],
    /// The client connection takes no further request.
    pub(super) last: bool,
    /// The origin connection has carried requests before.
    pub(super) reused: bool,
}

impl<S, U, F, Se> Parts<'_, S, U, F, Se> {
    /// Whether the origin may have given its connection up before the request came,
    /// which can be sent again as it is.
    pub(super) fn may_be_stale(&self) -> bool {
        self.reused && is_idempotent(self.head.method()) && !self.head.has_body()
    }
}

/// How an exchange came out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Verdict {
    /// The answer was delivered in full.
    Complete,
    /// It failed.
    Failed(Fault),
    /// The origin switched protocols; bytes behind its 101 are in
    /// [`Download::surplus`].
    Upgraded,
}

/// Why an exchange failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Fault {
    /// A filter gave an answer of its own, with this status; it is kept in
    /// [`Exchange::take_answer`].
    Answered(u16),
    /// The request body broke the protocol.
    BadBody(BodyError),
    /// The response body broke the protocol.
    BadAnswer(BodyError),
    /// The response head broke the protocol.
    BadHead(HeadError),
    /// The client reset the connection.
    ClientReset,
    /// The client sent its FIN within the request.
    ClientTruncated,
    /// The origin closed or reset the connection before it answered.
    OriginGone,
    /// The origin sent a 101 nobody asked for, or interim answers without end.
    Interim,
    /// The parent asks for another login than the one it was shown. That is not
    /// for the client to answer: its login is for us.
    ParentLogin,
    /// A filter refused.
    Rejected(Direction, u16),
    /// Stopped from outside.
    Stopped(End),
    /// The request body is longer than allowed.
    TooLarge,
    /// Nothing moved for too long.
    TimedOut(Waiting),
    /// The origin broke off its answer.
    Truncated,
}

/// What an exchange waits for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Waiting {
    /// The origin, to go on with its answer.
    Answer,
    /// The client, to send.
    Client,
    /// The origin, to answer.
    #[default]
    Origin,
    /// A peer, to take bytes.
    Writing,
}

impl Exchange {
    /// Both directions at rest.
    pub(super) fn new(limits: HeadLimits) -> Self {
        Self {
            up: Upload::default(),
            down: Download::new(limits),
            ahead: BytesMut::new(),
            client_finished: false,
            waiting: Waiting::default(),
        }
    }

    /// Forgets one exchange to be ready for the next.
    pub(super) fn clear(&mut self) {
        self.up.clear();
        self.down.clear();
        self.ahead.clear();
        if self.ahead.capacity() > AHEAD {
            self.ahead = BytesMut::new();
        }
        self.client_finished = false;
    }

    /// Sends the request, which was prepared, as far as it is here. The deadline is
    /// set for an answer then.
    pub(super) fn begin<S, U, F, Se>(
        &mut self,
        cx: &mut Context<'_>,
        parts: &mut Parts<'_, S, U, F, Se>,
    ) where
        U: Transport,
    {
        // The answer's side is at rest: a request that has had a byte of an answer
        // is not sent again.
        debug_assert!(self.down.is_untouched());
        self.waiting = Waiting::default();
        self.up.begin(cx, parts);
    }

    /// The answer that a filter gave.
    pub(super) fn take_answer(&mut self) -> Option<Box<Answer>> {
        self.up.take_answer().or_else(|| self.down.take_answer())
    }

    /// Whether the request can be sent again on another connection: nothing of
    /// it has to be read from the client again, and doing it twice is the same
    /// as doing it once (RFC 9110 section 9.2.2).
    pub(super) fn may_repeat(&self, method: &str) -> bool {
        is_idempotent(method) && !self.up.consumed && self.down.is_untouched()
    }

    /// Moves what can be moved.
    pub(super) fn poll<S, U, F, Se>(
        &mut self,
        cx: &mut Context<'_>,
        deadline: &mut Deadline,
        parts: &mut Parts<'_, S, U, F, Se>,
    ) -> Poll<Verdict>
    where
        S: Transport,
        U: Transport,
        F: Filter<Se>,
    {
        match self.advance(cx, deadline, parts) {
            Ok(poll) => poll,
            Err(fault) => Poll::Ready(Verdict::Failed(fault)),
        }
    }

    fn advance<S, U, F, Se>(
        &mut self,
        cx: &mut Context<'_>,
        deadline: &mut Deadline,
        parts: &mut Parts<'_, S, U, F, Se>,
    ) -> Result<Poll<Verdict>, Fault>
    where
        S: Transport,
        U: Transport,
        F: Filter<Se>,
    {
        if let Poll::Ready(expired) = deadline.poll(cx) {
            return Err(match expired {
                Expired::Stopped(end) => Fault::Stopped(end),
                Expired::Elapsed => Fault::TimedOut(self.waiting),
            });
        }
        let mut moved = self.up.poll(cx, parts, &mut self.ahead)?;
        let last = parts.last || deadline.stop_state() != StopState::Running;
        let waiting = self.waiting(parts.early);
        // A client that is still sending may be cut off in what it sends next.
        self.down.unwelcome = last || !self.up.is_done() || (self.client_finished && waiting == 0);
        let (active, ended) = self.down.poll(cx, parts)?;
        moved |= active;
        let awaited = self.awaited(parts.head);
        let waits = self.up.waits() || self.down.waits();
        // What a rate holds back is nobody's silence.
        if moved || waits || awaited != self.waiting {
            self.waiting = awaited;
            deadline.set(parts.config.pace.of(awaited));
        }
        // An origin that answers before it has taken all of the request would take what
        // follows for the rest of it.
        let sent = !self.up.is_blocked();
        match ended {
            Poll::Ready(verdict)
                if self.up.is_withheld(parts.head)
                    || sent && (self.up.is_over() || verdict == Verdict::Upgraded) =>
            {
                return Ok(Poll::Ready(verdict));
            }
            Poll::Ready(_) | Poll::Pending => {}
        }
        let unheard = match self.up.is_done() {
            true => self.poll_ahead(cx, parts)?,
            false => self.up.is_blocked() || self.up.waits(),
        };
        if waits {
            deadline.call_soon();
        }
        if unheard && deadline.recheck() && parts.client.is_reset() {
            return Err(Fault::ClientReset);
        }
        Ok(Poll::Pending)
    }

    /// Bytes of further requests that are here already.
    fn waiting(&self, early: &[u8]) -> usize {
        early.len() - self.up.used + self.ahead.len()
    }

    /// Keeps an eye on a client whose request is complete: a reset ends the
    /// work at once, a FIN does not (it only means that no further request
    /// follows, RFC 9112 section 9.6), further bytes are kept, up to a bound.
    /// Says whether nothing is read from it any more, which would tell a reset.
    fn poll_ahead<S: Transport, U, F, Se>(
        &mut self,
        cx: &mut Context<'_>,
        parts: &mut Parts<'_, S, U, F, Se>,
    ) -> Result<bool, Fault> {
        while !self.client_finished && self.waiting(parts.early) < AHEAD {
            let ahead = &mut self.ahead;
            let read = proxy_relay::lend(|buffers| {
                let space = &mut buffers.read[..AHEAD];
                let read = poll_read(parts.client, cx, space);
                if let Poll::Ready(Ok(n)) = read {
                    ahead.extend_from_slice(&space[..n]);
                }
                read
            });
            match read {
                Poll::Pending => return Ok(false),
                Poll::Ready(Ok(0)) => self.client_finished = true,
                Poll::Ready(Ok(_)) => {}
                Poll::Ready(Err(_)) => return Err(Fault::ClientReset),
            }
        }
        Ok(true)
    }

    /// What has to happen next.
    fn awaited(&self, head: &RequestHead<'_, '_>) -> Waiting {
        let (up, down) = (&self.up, &self.down);
        if down.is_blocked() || up.is_blocked() {
            Waiting::Writing
        } else if down.is_under_way() {
            Waiting::Answer
        } else if up.is_over() || (down.is_untouched() && up.is_withheld(head)) {
            Waiting::Origin
        } else {
            Waiting::Client
        }
    }
}

impl Fault {
    /// The status for the client if nothing of an answer has left yet.
    pub(super) fn status(self) -> Option<u16> {
        match self {
            Self::Answered(status) => Some(status),
            Self::BadBody(_) | Self::ClientTruncated => Some(400),
            Self::BadAnswer(_)
            | Self::BadHead(_)
            | Self::Interim
            | Self::OriginGone
            | Self::ParentLogin
            | Self::Truncated => Some(502),
            Self::ClientReset => None,
            Self::Rejected(Direction::Request, status) => Some(refusal(status, 403)),
            Self::Rejected(Direction::Response, status) => Some(refusal(status, 502)),
            Self::Stopped(_) => Some(503),
            Self::TooLarge => Some(413),
            Self::TimedOut(Waiting::Client) => Some(408),
            Self::TimedOut(Waiting::Answer | Waiting::Origin | Waiting::Writing) => Some(504),
        }
    }

    /// The reason for logs.
    pub(super) fn end(self) -> End {
        match self {
            Self::BadBody(_) => End::BadRequest,
            Self::BadAnswer(_) | Self::BadHead(_) | Self::Interim => End::BadResponse,
            Self::ClientReset | Self::ClientTruncated => End::ClientReset,
            Self::OriginGone => End::OriginReset,
            Self::ParentLogin => End::ConnectFailed,
            Self::Answered(_) | Self::Rejected(..) => End::Forbidden,
            Self::Stopped(end) => end,
            Self::TooLarge => End::Limit,
            Self::TimedOut(Waiting::Client) => End::ClientTimeout,
            Self::TimedOut(Waiting::Answer | Waiting::Origin) => End::OriginTimeout,
            Self::TimedOut(Waiting::Writing) => End::WriteStalled,
            Self::Truncated => End::Truncated,
        }
    }

    /// The word for what was wrong with a message.
    pub(super) fn word(self) -> Option<&'static str> {
        match self {
            Self::BadBody(error) | Self::BadAnswer(error) => Some(error.word()),
            Self::BadHead(error) => Some(error.word()),
            Self::Interim => Some("interim-answer"),
            Self::TooLarge => Some(TOO_LARGE),
            _ => None,
        }
    }
}

/// Whether doing it twice is the same as doing it once (RFC 9110 section 9.2.2).
fn is_idempotent(method: &str) -> bool {
    matches!(
        method,
        "DELETE" | "GET" | "HEAD" | "OPTIONS" | "PUT" | "TRACE"
    )
}

/// How a body of this framing is moved.
pub(super) fn pumped(framing: Framing, opaque: u64) -> bool {
    matches!(framing, Framing::Length(_)) || opaque >= PUMPED
}

fn refusal(status: u16, otherwise: u16) -> u16 {
    match status {
        400..=599 => status,
        _ => otherwise,
    }
}

/// The word for a body beyond the limit.
pub(super) const TOO_LARGE: &str = "body-too-large";

/// The longest stretch of following requests taken in before their turn.
const AHEAD: usize = 16 * 1024;

/// A chunk of at least this many bytes is worth a pump of its own; smaller ones
/// are scanned many at a time.
const PUMPED: u64 = 64 * 1024;
