//! The answer on its way from the origin to the client.

use std::task::{Context, Poll};

use bytes::BytesMut;
use proxy_core::{HeadLimits, Rates, Status};
use proxy_relay::{Buffers, Meter, Pump, PumpError, Transport, lend};

use super::exchange::{Fault, Parts, Verdict, pumped};
use super::view::View;
use super::wire::{Outbox, poll_metered};
use crate::filter::{Answer, Chunk, Direction, Filter, Flow};
use crate::{
    BodyFramer, EditScript, Extent, Framing, HeadEdit, Persist, RequestHead, ResponseHead,
    ResponseParser, ToClient, Version,
};

/// One answer under way.
#[derive(Debug)]
pub(super) struct Download {
    /// The status of the final answer; 0 before it arrived.
    pub(super) status: u16,
    /// The client connection has to end after this answer.
    pub(super) closing: bool,
    /// As things stand, no further request should come.
    pub(super) unwelcome: bool,
    /// The origin connection can carry another request.
    pub(super) reusable: bool,
    /// The origin connection is for one person from now on.
    pub(super) binding: bool,
    /// Bytes the origin sent behind its 101.
    pub(super) surplus: BytesMut,
    outbox: Outbox,
    /// Bytes that pumps moved.
    pumped: u64,
    /// Boxed, since it is lent and given back for each answer; `None` while it is
    /// lent.
    parser: Option<Box<ResponseParser>>,
    script: EditScript,
    /// A head that has not arrived in full.
    partial: BytesMut,
    framer: BodyFramer,
    framing: Framing,
    /// With the pump while there is one.
    meter: Meter,
    pump: Option<Pump>,
    phase: Phase,
    interims: u8,
    /// How the client is told where the body ends.
    sent: Framing,
    view: View,
    /// A byte of the origin has arrived.
    touched: bool,
    /// A byte of the final answer may have left.
    begun: bool,
}

/// How far the answer has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    Body,
    Complete,
    Head,
    Upgraded,
}

impl Download {
    /// At rest.
    pub(super) fn new(limits: HeadLimits) -> Self {
        Self::with(Box::new(ResponseParser::new(limits)), EditScript::new())
    }

    fn with(parser: Box<ResponseParser>, script: EditScript) -> Self {
        Self {
            status: 0,
            closing: false,
            unwelcome: false,
            reusable: false,
            binding: false,
            surplus: BytesMut::new(),
            outbox: Outbox::default(),
            pumped: 0,
            parser: Some(parser),
            script,
            partial: BytesMut::new(),
            framer: BodyFramer::new(Framing::None),
            framing: Framing::None,
            meter: Meter::default(),
            pump: None,
            phase: Phase::Head,
            interims: 0,
            sent: Framing::None,
            view: View::Pass,
            touched: false,
            begun: false,
        }
    }

    /// Forgets one answer.
    pub(super) fn clear(&mut self) {
        let mut parser = self.lend_parser();
        parser.reset();
        *self = Self::with(parser, std::mem::take(&mut self.script));
    }

    /// Reads the answer no faster than that.
    pub(super) fn limit(&mut self, rates: &Rates) {
        self.meter = Meter::new(rates);
    }

    /// Nothing wakes it, since it may read nothing for a while.
    pub(super) fn waits(&self) -> bool {
        self.meter.waits() || self.pump.as_ref().is_some_and(Pump::waits)
    }

    fn lend_parser(&mut self) -> Box<ResponseParser> {
        let new = || Box::new(ResponseParser::new(HeadLimits::default()));
        self.parser.take().unwrap_or_else(new)
    }

    /// Moves what can be moved; says whether bytes moved, and how it ended.
    pub(super) fn poll<S: Transport, U: Transport, F: Filter<Se>, Se>(
        &mut self,
        cx: &mut Context<'_>,
        parts: &mut Parts<'_, S, U, F, Se>,
    ) -> Result<(bool, Poll<Verdict>), Fault> {
        let before = self.progress();
        let ended = self.advance(cx, parts)?;
        Ok((self.progress() != before, ended))
    }

    /// Changes whenever bytes of the answer come or go. The first bytes of a head
    /// are progress, the later ones are not: a head must not be dripped for ever.
    /// A filter may hold bytes back for long.
    fn progress(&self) -> (u64, u64, bool) {
        let seen = self.framer.content();
        (self.bytes(), seen, self.partial.is_empty())
    }

    /// Bytes that the client has taken, head included.
    pub(super) fn bytes(&self) -> u64 {
        self.outbox.sent() + self.pumped
    }

    /// A byte of the final answer may have left for the client, or half of an
    /// interim one: no other answer can follow.
    pub(super) fn has_begun(&self) -> bool {
        self.begun || self.is_blocked()
    }

    /// Some of the final answer is here, and some of it is not.
    pub(super) fn is_under_way(&self) -> bool {
        match self.phase {
            Phase::Head => !self.partial.is_empty(),
            Phase::Body => true,
            Phase::Complete | Phase::Upgraded => false,
        }
    }

    /// The origin has not sent a single byte.
    pub(super) fn is_untouched(&self) -> bool {
        !self.touched
    }

    /// The client is slow to take bytes.
    pub(super) fn is_blocked(&self) -> bool {
        !self.outbox.is_empty() || self.pump.as_ref().is_some_and(|pump| !pump.is_idle())
    }

    /// The end of the answer can only be told by the end of the connection, so
    /// that cutting it needs a reset.
    pub(super) fn ends_with_connection(&self) -> bool {
        self.sent == Framing::UntilClose
    }

    /// A filter put something else in the place of the answer, which was here in
    /// full: the origin connection can carry another request.
    pub(super) fn is_dropped(&self) -> bool {
        self.phase == Phase::Head && self.reusable
    }

    /// The answer that a filter gave instead of the origin's.
    pub(super) fn take_answer(&mut self) -> Option<Box<Answer>> {
        self.view.take_answer()
    }

    fn advance<S: Transport, U: Transport, F: Filter<Se>, Se>(
        &mut self,
        cx: &mut Context<'_>,
        parts: &mut Parts<'_, S, U, F, Se>,
    ) -> Result<Poll<Verdict>, Fault> {
        loop {
            match self.outbox.poll_flush(parts.client, cx) {
                Poll::Pending => return Ok(Poll::Pending),
                Poll::Ready(Err(_)) => return Err(Fault::ClientReset),
                Poll::Ready(Ok(())) => {}
            }
            let step = match self.phase {
                Phase::Complete => return Ok(Poll::Ready(Verdict::Complete)),
                Phase::Upgraded => return Ok(Poll::Ready(Verdict::Upgraded)),
                Phase::Head => self.poll_head(cx, parts)?,
                Phase::Body if self.pump.is_some() => self.poll_pump(cx, parts)?,
                Phase::Body => self.poll_copy(cx, parts)?,
            };
            if step.is_pending() {
                return Ok(Poll::Pending);
            }
        }
    }

    fn poll_head<S: Transport, U: Transport, F: Filter<Se>, Se>(
        &mut self,
        cx: &mut Context<'_>,
        parts: &mut Parts<'_, S, U, F, Se>,
    ) -> Result<Poll<()>, Fault> {
        lend(|buffers| {
            let Buffers { read, write, .. } = buffers;
            let n = match poll_metered(parts.origin, cx, read, &mut self.meter) {
                Poll::Pending => return Ok(Poll::Pending),
                Poll::Ready(Ok(0) | Err(_)) => return Err(Fault::OriginGone),
                Poll::Ready(Ok(n)) => n,
            };
            self.touched = true;
            if self.partial.is_empty() {
                self.take_heads(cx, parts, &read[..n], write)?;
            } else {
                let mut whole = std::mem::take(&mut self.partial);
                whole.extend_from_slice(&read[..n]);
                self.take_heads(cx, parts, &whole, write)?;
            }
            Ok(Poll::Ready(()))
        })
    }

    /// Takes interim heads and the final one from the front of `bytes`.
    fn take_heads<S: Transport, U: Transport, F: Filter<Se>, Se>(
        &mut self,
        cx: &mut Context<'_>,
        parts: &mut Parts<'_, S, U, F, Se>,
        bytes: &[u8],
        out: &mut BytesMut,
    ) -> Result<(), Fault> {
        let mut parser = self.lend_parser();
        let mut rest = bytes;
        let result = loop {
            match parser.parse(rest) {
                Err(error) => break Err(Fault::BadHead(error)),
                Ok(Status::Partial) => {
                    self.partial.extend_from_slice(rest);
                    break Ok(());
                }
                Ok(Status::Complete(head, used)) => {
                    let whole = rest;
                    let (own, next) = rest.split_at(used);
                    rest = next;
                    if head.is_interim() || head.status() == 101 {
                        match self.interim(cx, parts, &head, (own, next), out) {
                            Ok(()) if self.phase == Phase::Head => continue,
                            other => break other,
                        }
                    }
                    if is_goodbye(&head) && self.interims == 0 && parts.may_be_stale() {
                        // As good as closed without a word.
                        self.touched = false;
                        break Err(Fault::OriginGone);
                    }
                    if head.status() == 407 && parts.parent.is_some() {
                        break Err(Fault::ParentLogin);
                    }
                    break self.last(cx, parts, &head, (whole, used), out);
                }
            }
        };
        self.parser = Some(parser);
        result
    }

    /// Passes an interim answer on: to HTTP/1.1 clients only (RFC 9110 section
    /// 15.2), and a 101 only if an upgrade was asked for.
    fn interim<S: Transport, U, F, Se>(
        &mut self,
        cx: &mut Context<'_>,
        parts: &mut Parts<'_, S, U, F, Se>,
        head: &ResponseHead<'_, '_>,
        (own, next): (&[u8], &[u8]),
        out: &mut BytesMut,
    ) -> Result<(), Fault> {
        let upgrade = head.status() == 101;
        if upgrade {
            if !parts.head.passes_upgrade() || !head.takes_up(parts.head) {
                return Err(Fault::Interim);
            }
            self.status = 101;
            self.begun = true;
            self.phase = Phase::Upgraded;
            self.surplus.extend_from_slice(next);
        } else {
            self.interims += 1;
            if self.interims > MAX_INTERIMS {
                return Err(Fault::Interim);
            }
            if parts.head.version() == Version::Http10 {
                return Ok(());
            }
        }
        let mut edit = HeadEdit::response(&mut self.script, head);
        edit.to_client(ToClient {
            persist: Persist::Default,
            upgrade,
        });
        if let Some(via) = parts.config.via_towards(false) {
            edit.show_via(via);
        }
        if edit.is_unchanged() {
            return self.send(cx, parts, own, &[]);
        }
        out.clear();
        edit.encode(out);
        let sent = self.send(cx, parts, out, &[]);
        out.clear();
        sent
    }

    /// Passes the final head on, with the part of the body that came with it.
    /// `bytes` begins with the head, which takes `used` of them.
    fn last<S: Transport, U, F: Filter<Se>, Se>(
        &mut self,
        cx: &mut Context<'_>,
        parts: &mut Parts<'_, S, U, F, Se>,
        head: &ResponseHead<'_, '_>,
        (bytes, used): (&[u8], usize),
        out: &mut BytesMut,
    ) -> Result<(), Fault> {
        let rest = &bytes[used..];
        self.decide(parts, head);
        if let Err(fault) = self.encode_head(parts, head, out) {
            let body = self.framer.advance(rest);
            self.reusable &= body.is_ok_and(|body| body.end && body.len == rest.len());
            return Err(fault);
        }
        self.phase = Phase::Body;
        if self.is_reframed() {
            if out.is_empty() {
                out.extend_from_slice(&bytes[..used]);
            }
            return self.send_reframed(cx, parts, rest, out);
        }
        let extent = self.take(rest, parts)?;
        let end = used + extent.len;
        // Bytes behind the answer are nobody's (RFC 9112 section 9.3).
        self.reusable &= end == bytes.len();
        self.begun = true;
        let body = &bytes[used..end];
        if out.is_empty() {
            // Nothing changed: what was read is what is written.
            return self.send(cx, parts, &bytes[..end], &[]);
        }
        if body.len() <= COPIED {
            out.extend_from_slice(body);
            return self.send(cx, parts, out, &[]);
        }
        self.send(cx, parts, out, body)
    }

    /// Appends the changed head, or nothing if it needs no change.
    fn encode_head<S, U, F: Filter<Se>, Se>(
        &mut self,
        parts: &mut Parts<'_, S, U, F, Se>,
        head: &ResponseHead<'_, '_>,
        out: &mut BytesMut,
    ) -> Result<(), Fault> {
        let mut edit = HeadEdit::response(&mut self.script, head);
        edit.to_client(ToClient {
            persist: Persist::towards(parts.head.version(), self.closing),
            upgrade: false,
        });
        if parts.head.version() == Version::Http10 && head.get("transfer-encoding").is_some() {
            // RFC 9112 section 6.1: none for HTTP/1.0, not even in answer to HEAD.
            edit.reframe(Framing::UntilClose);
        }
        if let Some(via) = parts.config.via_towards(false) {
            edit.show_via(via);
        }
        let flow = parts.filter.response(parts.session, &mut edit);
        let rewrite = flow == Flow::Rewrite;
        self.view.begin(flow, Direction::Response, self.framing)?;
        if rewrite {
            let client = parts.head;
            self.sent = rewritten(self.framing, client.version());
            self.closing = self.unwelcome || closes_after(client, self.sent);
            edit.to_client(ToClient {
                persist: Persist::towards(client.version(), self.closing),
                upgrade: false,
            });
            if self.sent != self.framing || self.sent == Framing::None {
                edit.reframe(self.sent);
            }
        }
        if !edit.is_unchanged() {
            edit.encode(out);
        }
        Ok(())
    }

    /// Settles how the answer is delimited and what becomes of both connections.
    fn decide<S, U, F, Se>(&mut self, parts: &Parts<'_, S, U, F, Se>, head: &ResponseHead<'_, '_>) {
        self.status = head.status();
        self.framing = head.framing(parts.head.kind());
        self.framer = BodyFramer::new(self.framing);
        self.sent = match (self.framing, parts.head.version()) {
            // RFC 9112 section 6.1: no chunks for a client of HTTP/1.0.
            (Framing::Chunked, Version::Http10) => Framing::UntilClose,
            (framing, _) => framing,
        };
        self.closing = self.unwelcome || closes_after(parts.head, self.sent);
        self.binding = head.binds_connection();
        self.reusable = head.keep_alive() && self.framing != Framing::UntilClose;
    }

    fn poll_pump<S: Transport, U: Transport, F, Se>(
        &mut self,
        cx: &mut Context<'_>,
        parts: &mut Parts<'_, S, U, F, Se>,
    ) -> Result<Poll<()>, Fault> {
        let Some(pump) = &mut self.pump else {
            return Ok(Poll::Ready(()));
        };
        let before = pump.moved();
        let polled = pump.poll(cx, parts.origin, parts.client);
        let moved = pump.moved() - before;
        self.pumped += moved;
        self.framer.skip(moved);
        match polled {
            Poll::Pending => return Ok(Poll::Pending),
            Poll::Ready(Ok(())) => {}
            Poll::Ready(Err(PumpError::Write(_))) => return Err(Fault::ClientReset),
            Poll::Ready(Err(_)) => return Err(Fault::Truncated),
        }
        if let Some(pump) = self.pump.take() {
            self.meter = pump.into_meter();
        }
        if self.framer.may_end_here() {
            self.phase = Phase::Complete;
        }
        Ok(Poll::Ready(()))
    }

    fn poll_copy<S: Transport, U: Transport, F: Filter<Se>, Se>(
        &mut self,
        cx: &mut Context<'_>,
        parts: &mut Parts<'_, S, U, F, Se>,
    ) -> Result<Poll<()>, Fault> {
        lend(|buffers| {
            let Buffers { read, write, .. } = buffers;
            let n = match poll_metered(parts.origin, cx, read, &mut self.meter) {
                Poll::Pending => return Ok(Poll::Pending),
                Poll::Ready(Ok(0)) if self.framing == Framing::UntilClose => {
                    self.close(cx, parts, write)?;
                    return Ok(Poll::Ready(()));
                }
                Poll::Ready(Ok(0) | Err(_)) => return Err(Fault::Truncated),
                Poll::Ready(Ok(n)) => n,
            };
            if self.is_reframed() {
                self.send_reframed(cx, parts, &read[..n], write)?;
            } else {
                let extent = self.take(&read[..n], parts)?;
                self.reusable &= extent.len == n;
                self.send(cx, parts, &read[..extent.len], &[])?;
            }
            Ok(Poll::Ready(()))
        })
    }

    /// Sends `out` and the content of `bytes` in the framing that the client gets.
    fn send_reframed<S: Transport, U, F: Filter<Se>, Se>(
        &mut self,
        cx: &mut Context<'_>,
        parts: &mut Parts<'_, S, U, F, Se>,
        bytes: &[u8],
        out: &mut BytesMut,
    ) -> Result<(), Fault> {
        let way = (Direction::Response, self.sent == Framing::Chunked);
        let ask = |chunk: &mut Chunk<'_>| parts.filter.body(parts.session, way.0, chunk);
        let view = &mut self.view;
        let extent = view.reframe(&mut self.framer, way, bytes, out, ask)?;
        if extent.end {
            self.phase = Phase::Complete;
        }
        self.reusable &= extent.len == bytes.len();
        self.begun = true;
        self.send(cx, parts, out, &[])
    }

    /// The origin has closed its connection, and with it the body.
    fn close<S: Transport, U, F: Filter<Se>, Se>(
        &mut self,
        cx: &mut Context<'_>,
        parts: &mut Parts<'_, S, U, F, Se>,
        out: &mut BytesMut,
    ) -> Result<(), Fault> {
        self.phase = Phase::Complete;
        let way = (Direction::Response, self.sent == Framing::Chunked);
        let ask = |chunk: &mut Chunk<'_>| parts.filter.body(parts.session, way.0, chunk);
        self.view.close(way, out, ask)?;
        self.send(cx, parts, out, &[])
    }

    /// The body is not sent in the framing it came in, or may be another one.
    fn is_reframed(&self) -> bool {
        self.view.is_rewrite() || self.sent != self.framing
    }

    /// Finds out how much of `bytes` belongs to the body and how to go on.
    fn take<S, U, F: Filter<Se>, Se>(
        &mut self,
        bytes: &[u8],
        parts: &mut Parts<'_, S, U, F, Se>,
    ) -> Result<Extent, Fault> {
        let (framer, way) = (&mut self.framer, Direction::Response);
        let extent = match self.view.is_pass() {
            true => framer.advance(bytes).map_err(Fault::BadAnswer)?,
            false => self.view.inspect(framer, way, bytes, |chunk| {
                parts.filter.body(parts.session, way, chunk)
            })?,
        };
        if extent.end {
            self.phase = Phase::Complete;
        } else if self.view.is_pass() && pumped(self.framing, extent.opaque) {
            let pump = match self.framing {
                Framing::UntilClose => Pump::new(),
                _ => Pump::exactly(extent.opaque),
            };
            self.pump = Some(pump.metered(std::mem::take(&mut self.meter)));
        }
        Ok(extent)
    }

    fn send<S: Transport, U, F, Se>(
        &mut self,
        cx: &mut Context<'_>,
        parts: &mut Parts<'_, S, U, F, Se>,
        head: &[u8],
        body: &[u8],
    ) -> Result<(), Fault> {
        self.outbox
            .send(parts.client, cx, head, body)
            .map_err(|_| Fault::ClientReset)
    }
}

/// Whether the client connection ends behind an answer to `request` that is sent in
/// this framing.
fn closes_after(request: &RequestHead<'_, '_>, sent: Framing) -> bool {
    !request.keep_alive() || sent == Framing::UntilClose
}

/// How a body is sent whose new length is unknown.
fn rewritten(framing: Framing, version: Version) -> Framing {
    match (framing, version) {
        (Framing::None, _) => Framing::None,
        (_, Version::Http10) => Framing::UntilClose,
        (_, Version::Http11) => Framing::Chunked,
    }
}

/// Whether an origin that waited for long says so before it closes the connection
/// (RFC 9110 section 15.5.9).
fn is_goodbye(head: &ResponseHead<'_, '_>) -> bool {
    head.status() == 408 && !head.keep_alive()
}

/// Bodies up to this size are copied behind an edited head; longer ones go by a
/// vectored write, which costs more per call but spares the copy.
const COPIED: usize = 8 * 1024;

/// Interim answers to one request beyond which an origin is playing games.
const MAX_INTERIMS: u8 = 32;
