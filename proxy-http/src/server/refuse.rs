//! The proxy's own answers, and ending a connection so that they arrive.

use std::future::poll_fn;
use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use bytes::BytesMut;
use proxy_core::{ConnectError, ConnectErrorKind, Denial, End, Gateway, Report};
use proxy_relay::{Expired, Transport, lend};

use super::config::Config;
use super::connection::{Connection, Next};
use super::exchange::{Exchange, Fault, TOO_LARGE, Waiting};
use super::own::Own;
use super::request::{Asked, Request, glimpse};
use super::wire::{Outbox, poll_read, watch};
use crate::accept::prefers_html;
use crate::filter::{Direction, Filter};
use crate::{BodyFramer, Framing, HeadError, Persist, Reply, RequestHead, RequestKind};

/// An answer of the proxy itself, and the reason for logs.
#[derive(Clone, Copy, Debug)]
pub(super) struct Refusal {
    reply: Reply<'static>,
    /// In place of the reply.
    own: Option<Own>,
    end: End,
    /// Why the target was not reached, if it was not.
    error: Option<ConnectError>,
    /// What was wrong with a message, in a word.
    fault: Option<&'static str>,
    /// Where the next request would begin is known.
    framed: bool,
}

impl Refusal {
    /// The answer to a client that did not send its request in time.
    pub(super) fn too_slow() -> Self {
        let reply = bad_request(408).cause("the request took too long to arrive");
        Self::unframed(reply, End::ClientTimeout)
    }

    /// The answer to a request that ends in the middle.
    pub(super) fn cut_off() -> Self {
        let reply = bad_request(400).cause("the request ends in the middle");
        Self::unframed(reply, End::ClientReset)
    }

    /// The answer to a failed exchange of which nothing has been answered yet.
    pub(super) fn failed(fault: Fault, status: u16) -> Self {
        let error = match fault {
            Fault::ParentLogin => Some(ConnectError::parent(ConnectErrorKind::Login)),
            _ => None,
        };
        Self {
            reply: failed(fault, status),
            own: None,
            end: match fault {
                Fault::Answered(_) => End::Completed,
                fault => fault.end(),
            },
            error,
            fault: fault.word(),
            framed: !matches!(fault, Fault::BadBody(_) | Fault::ClientTruncated),
        }
    }

    /// The answer to what is no request at all.
    pub(super) fn bad_request() -> Self {
        let reply = bad_request(400).cause("not an HTTP request");
        Self {
            fault: Some("not-http"),
            ..Self::unframed(reply, End::BadRequest)
        }
    }

    /// The answer to a request with a longer body than is allowed.
    pub(super) fn too_large() -> Self {
        Self {
            fault: Some(TOO_LARGE),
            ..Self::framed(too_large(), End::Limit)
        }
    }

    /// The answer to a request that ends at this proxy.
    pub(super) fn own(head: &RequestHead<'_, '_>) -> Self {
        Self {
            own: Some(Own::to(head)),
            ..Self::framed(Reply::new(200), End::Completed)
        }
    }

    /// Whether it is no refusal but an answer for those who may ask.
    pub(super) fn is_own(&self) -> bool {
        self.own.is_some()
    }

    /// The answer when what the gateway connected is in clear and should not be,
    /// or the other way round.
    pub(super) fn unfit() -> Self {
        let error = ConnectError::origin(ConnectErrorKind::Tls);
        let cause = "there is no connection of the kind that the URL asks for";
        Self {
            reply: Reply::connect_failed(error).cause(cause),
            ..error.into()
        }
    }

    /// The reason for logs.
    pub(super) fn end(&self) -> End {
        self.end
    }

    fn framed(reply: Reply<'static>, end: End) -> Self {
        Self {
            reply,
            own: None,
            end,
            error: None,
            fault: None,
            framed: true,
        }
    }

    fn unframed(reply: Reply<'static>, end: End) -> Self {
        Self {
            reply,
            own: None,
            end,
            error: None,
            fault: None,
            framed: false,
        }
    }

    fn encode(
        &self,
        config: &Config,
        persist: Persist,
        head: Option<&RequestHead<'_, '_>>,
        out: &mut BytesMut,
    ) {
        if let (Some(own), Some(head)) = (self.own, head) {
            return own.encode(head, persist, out);
        }
        let mut reply = self
            .reply
            .persist(persist)
            .head_only(head.is_some_and(|head| head.kind() == RequestKind::Head))
            .html(head.is_some_and(prefers_html));
        if let Some(name) = &config.name {
            reply = reply.proxy(name);
        }
        match reply.status() {
            407 => reply.challenge(&config.realm).encode(out),
            _ => reply.encode(out),
        }
    }
}

impl From<HeadError> for Refusal {
    fn from(error: HeadError) -> Self {
        Self {
            fault: Some(error.word()),
            ..Self::unframed(Reply::bad_request(error), End::BadRequest)
        }
    }
}

impl From<Denial> for Refusal {
    fn from(denial: Denial) -> Self {
        let end = match denial {
            Denial::Busy => End::Busy,
            Denial::Challenge => End::Challenged,
            Denial::Unroutable => End::ConnectFailed,
            _ => End::Forbidden,
        };
        Self::framed(Reply::denied(denial), end)
    }
}

impl From<ConnectError> for Refusal {
    fn from(error: ConnectError) -> Self {
        let end = match error.kind {
            ConnectErrorKind::Forbidden | ConnectErrorKind::Loop => End::Forbidden,
            ConnectErrorKind::TimedOut => End::ConnectTimeout,
            _ => End::ConnectFailed,
        };
        Self {
            error: Some(error),
            ..Self::framed(Reply::connect_failed(error), end)
        }
    }
}

/// Policy that did not answer in time, or a stop while it thought.
impl From<Expired> for Refusal {
    fn from(expired: Expired) -> Self {
        match expired {
            Expired::Elapsed => Self::unframed(Reply::denied(Denial::Busy), End::Busy),
            Expired::Stopped(end) => Self::unframed(stopping(), end),
        }
    }
}

impl<G, F, S> Connection<'_, G, F, S>
where
    G: Gateway,
    G::Upstream: Transport,
    F: Filter<G::Session>,
    S: Transport,
{
    /// Answers a request that is not (or no longer) forwarded.
    ///
    /// The connection is kept where the request can be read to its end, so that
    /// a client may try again with credentials (RFC 9110 section 15.5.8).
    pub(super) async fn refuse(
        &mut self,
        request: &Request<'_>,
        exchange: &mut Exchange,
        asked: Asked<'_>,
        session: Option<G::Session>,
        refusal: Refusal,
    ) -> Next<G> {
        let rest = match refusal.framed && self.wants_more(request.head) {
            true => unread_body(request, exchange),
            false => None,
        };
        let mut out = BytesMut::new();
        let head = request.head;
        let persist = Persist::towards(head.version(), rest.is_none());
        match exchange.take_answer() {
            Some(answer) => answer.encode(persist, head.kind() == RequestKind::Head, &mut out),
            None => refusal.encode(&self.server.config, persist, Some(head), &mut out),
        }
        let said = self.say(&out).await;

        let mut report = Report::new(&self.peer, said.err().unwrap_or(refusal.end));
        asked.tell(&mut report);
        report.status = Some(refusal.reply.status());
        report.up = exchange.up.bytes();
        report.down = out.len() as u64;
        report.duration = request.started.elapsed();
        report.error = refusal.error;
        report.fault = refusal.fault;
        let who = self.known.as_ref().map(|known| &known.identity);
        self.server.gateway.finished(who, session, &report);

        match (said, rest) {
            (Err(end), _) => Next::End(end),
            (Ok(()), None) => {
                self.hang_up(true).await;
                Next::End(refusal.end)
            }
            (Ok(()), Some(rest)) => match self.discard(rest).await {
                Ok(()) => Next::Again,
                Err(end) => Next::End(end),
            },
        }
    }

    /// Answers what could not be read as a request.
    pub(super) async fn refuse_unread(&mut self, refusal: Refusal) -> Next<G> {
        let mut out = BytesMut::new();
        refusal.encode(&self.server.config, Persist::Close, None, &mut out);
        let said = self.say(&out).await;
        let mut report = Report::new(&self.peer, refusal.end);
        report.status = Some(refusal.reply.status());
        report.down = out.len() as u64;
        report.fault = refusal.fault;
        self.finish_unread(report);
        if said.is_ok() {
            self.hang_up(true).await;
        }
        Next::End(refusal.end)
    }

    /// Reports a request of which only a part arrived, if one did.
    pub(super) fn report_unread(&self, end: End) {
        if self.block.is_some() {
            self.finish_unread(Report::new(&self.peer, end));
        }
    }

    /// Nobody is named: whoever sent it has not shown who they are.
    fn finish_unread(&self, mut report: Report<'_>) {
        let Some(block) = &self.block else {
            self.server.gateway.finished(None, None, &report);
            return;
        };
        report.duration = block.started.elapsed();
        glimpse(&block.input, |asked| {
            let mut report = report;
            asked.tell(&mut report);
            self.server.gateway.finished(None, None, &report);
        });
    }

    /// Writes `bytes` to the client, all of them.
    pub(super) async fn say(&mut self, bytes: &[u8]) -> Result<(), End> {
        let Self {
            client, deadline, ..
        } = self;
        deadline.set(self.server.config.pace.progress);
        let mut outbox = Outbox::default();
        let mut begun = false;
        let written = watch(
            deadline,
            poll_fn(|cx| {
                if !begun {
                    begun = true;
                    outbox.send(client, cx, bytes, &[])?;
                }
                outbox.poll_flush(client, cx)
            }),
        )
        .await;
        match written {
            Ok(Ok(())) => Ok(()),
            Ok(Err(_)) => Err(End::ClientReset),
            Err(Expired::Elapsed) => Err(End::WriteStalled),
            Err(Expired::Stopped(end)) => Err(end),
        }
    }

    /// Ends the connection in good order. With `linger`, what the client still
    /// sends is read and dropped for a while: unread input would turn the close
    /// into a reset, which can destroy an answer on its way (RFC 9112 section
    /// 9.6).
    pub(super) async fn hang_up(&mut self, linger: bool) {
        if !linger && self.client.socket().is_some() {
            // A plain socket says goodbye by being closed.
            return;
        }
        self.deadline.set(LINGER.into());
        let client = &mut self.client;
        let goodbye = async {
            poll_fn(|cx| Pin::new(&mut *client).poll_shutdown(cx)).await?;
            let mut rest = if linger { LINGER_BYTES } else { 0 };
            poll_fn(|cx| poll_discard(client, cx, &mut rest)).await
        };
        // Whatever comes of it, the connection is over.
        let _ = watch(&mut self.deadline, goodbye).await;
    }

    /// Reads and drops the rest of a refused request's body.
    async fn discard(&mut self, mut rest: u64) -> Result<(), End> {
        if rest == 0 {
            return Ok(());
        }
        self.deadline.set(self.server.config.pace.body);
        let client = &mut self.client;
        let reading = poll_fn(|cx| poll_discard(client, cx, &mut rest));
        match watch(&mut self.deadline, reading).await {
            Ok(Ok(())) if rest == 0 => Ok(()),
            Ok(_) => Err(End::ClientReset),
            Err(Expired::Elapsed) => Err(End::ClientTimeout),
            Err(Expired::Stopped(end)) => Err(end),
        }
    }

    fn wants_more(&self, head: &RequestHead<'_, '_>) -> bool {
        head.keep_alive() && !self.is_last()
    }
}

/// The answer to a failed exchange.
fn failed(fault: Fault, status: u16) -> Reply<'static> {
    match fault {
        // The filter's own answer is sent.
        Fault::Answered(_) => Reply::new(status),
        Fault::BadAnswer(_) | Fault::BadHead(_) | Fault::Interim => Reply::bad_response(),
        Fault::BadBody(_) => bad_request(status).cause("the request body broke the protocol"),
        Fault::ClientReset | Fault::ClientTruncated => {
            bad_request(status).cause("the request ends in the middle")
        }
        Fault::OriginGone => Reply::new(status)
            .error("connection_terminated")
            .cause("the connection was closed before an answer came"),
        Fault::ParentLogin => Reply::connect_failed(ConnectError::parent(ConnectErrorKind::Login)),
        Fault::Rejected(Direction::Request, _) => Reply::new(status).error("http_request_denied"),
        Fault::Rejected(Direction::Response, _) => Reply::new(status),
        Fault::Stopped(_) => stopping(),
        Fault::TooLarge => too_large(),
        Fault::TimedOut(Waiting::Client) => {
            bad_request(status).cause("the request took too long to arrive")
        }
        Fault::TimedOut(Waiting::Answer | Waiting::Origin) => Reply::new(status)
            .error("http_response_timeout")
            .cause("no answer came in time"),
        Fault::TimedOut(Waiting::Writing) => Reply::new(status)
            .error("connection_write_timeout")
            .cause("a peer took no bytes for too long"),
        Fault::Truncated => Reply::new(status)
            .error("http_response_incomplete")
            .cause("the answer was broken off"),
    }
}

fn bad_request(status: u16) -> Reply<'static> {
    Reply::new(status).error("http_request_error")
}

fn too_large() -> Reply<'static> {
    bad_request(413).cause("the body is longer than this proxy allows")
}

fn stopping() -> Reply<'static> {
    Reply::denied(Denial::Busy).cause("the proxy ends this connection")
}

/// How many bytes of the body have to be dropped before the next request;
/// `None` if that is unknown or too many.
fn unread_body(request: &Request<'_>, exchange: &mut Exchange) -> Option<u64> {
    if exchange.up.is_done() {
        return Some(0);
    }
    // Of a body that was sent in part nobody knows how much is still to come.
    let begun = exchange.up.bytes() > 0 || exchange.up.consumed;
    if begun || request.head.expects_continue() {
        return None;
    }
    if request.head.kind() == RequestKind::Connect {
        // Bytes behind a refused CONNECT were meant for the tunnel.
        return request.early.is_empty().then_some(0);
    }
    let framing = request.head.framing();
    let extent = BodyFramer::new(framing).advance(request.early).ok()?;
    exchange.up.used = extent.len;
    match framing {
        _ if extent.end => Some(0),
        Framing::Length(_) if extent.opaque <= DISCARDED => Some(extent.opaque),
        _ => None,
    }
}

/// Reads and drops up to `rest` bytes; ready at their end or the stream's.
fn poll_discard<S: Transport>(
    client: &mut S,
    cx: &mut Context<'_>,
    rest: &mut u64,
) -> Poll<io::Result<()>> {
    lend(|buffers| {
        while *rest > 0 {
            let space = usize::try_from(*rest).unwrap_or(usize::MAX);
            let space = space.min(buffers.read.len());
            match ready!(poll_read(client, cx, &mut buffers.read[..space]))? {
                0 => break,
                n => *rest -= n as u64,
            }
        }
        Poll::Ready(Ok(()))
    })
}

/// The longest body read and dropped to keep a refused client's connection.
const DISCARDED: u64 = 64 * 1024;

/// How long a closing connection is listened to.
const LINGER: Duration = Duration::from_secs(2);

/// How much of it is read meanwhile.
const LINGER_BYTES: u64 = 1024 * 1024;
