//! The request on its way from the client to the origin.

use std::net::IpAddr;
use std::task::{Context, Poll};

use bytes::BytesMut;
use proxy_core::{Gateway, Rates};
use proxy_relay::{Buffers, Meter, Pump, PumpError, Transport, lend};

use super::Server;
use super::exchange::{Fault, Parts, pumped};
use super::request::Request;
use super::view::View;
use super::wire::{Outbox, poll_metered};
use crate::filter::{Answer, Chunk, Direction, Filter, Flow};
use crate::{BodyFramer, EditScript, Extent, Framing, HeadEdit, RequestHead, ToOrigin};

/// One request under way.
#[derive(Debug)]
pub(super) struct Upload {
    /// How many of the early bytes belonged to this request.
    pub(super) used: usize,
    /// Body bytes were read from the client beyond the early ones, so the
    /// request cannot be sent again.
    pub(super) consumed: bool,
    outbox: Outbox,
    /// Bytes that pumps moved.
    pumped: u64,
    script: EditScript,
    framer: BodyFramer,
    framing: Framing,
    /// With the pump while there is one.
    meter: Meter,
    pump: Option<Pump>,
    state: State,
    view: View,
}

/// How far the request has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Body,
    /// The origin takes no more; it may have answered all the same.
    Broken,
    Done,
}

impl Default for Upload {
    fn default() -> Self {
        Self {
            used: 0,
            consumed: false,
            outbox: Outbox::default(),
            pumped: 0,
            script: EditScript::new(),
            framer: BodyFramer::new(Framing::None),
            framing: Framing::None,
            meter: Meter::default(),
            pump: None,
            state: State::Body,
            view: View::Pass,
        }
    }
}

impl Upload {
    /// Forgets one request.
    pub(super) fn clear(&mut self) {
        let script = std::mem::take(&mut self.script);
        *self = Self {
            script,
            ..Self::default()
        };
    }

    /// Reads the body no faster than that.
    pub(super) fn limit(&mut self, rates: &Rates) {
        self.meter = Meter::new(rates);
    }

    /// Nothing wakes it, since it may read nothing for a while.
    pub(super) fn waits(&self) -> bool {
        self.meter.waits() || self.pump.as_ref().is_some_and(Pump::waits)
    }

    /// Asks the filter, and takes in the part of the body that came with the
    /// head: once for each request, whatever connection it goes to.
    pub(super) fn prepare<G: Gateway, F: Filter<G::Session>>(
        &mut self,
        request: &Request<'_>,
        client: IpAddr,
        server: &Server<G, F>,
        session: &mut G::Session,
    ) -> Result<(), Fault> {
        let (head, filter, config) = (request.head, &server.filter, &server.config);
        self.framing = head.framing();
        self.framer = BodyFramer::new(self.framing);
        let mut edit = HeadEdit::request(&mut self.script, head);
        edit.to_origin(ToOrigin {
            upgrade: true,
            ..ToOrigin::default()
        });
        edit.show_client(client, config.forwarded);
        let flow = filter.request(session, &mut edit);
        self.view.begin(flow, Direction::Request, self.framing)?;
        if self.view.is_rewrite() && self.framing != Framing::Chunked {
            edit.reframe(Framing::Chunked);
        }
        edit.settle();
        let mut opening = BytesMut::new();
        let ask = |chunk: &mut Chunk<'_>| filter.body(session, Direction::Request, chunk);
        self.used = self
            .take(request.early, config.body_bytes, &mut opening, ask)?
            .len;
        self.meter.charge(self.used);
        if let View::Rewrite(rewriting) = &mut self.view {
            rewriting.opening = opening;
        }
        Ok(())
    }

    /// Sends the head and the part of the body that came with it, for the first
    /// time or again.
    pub(super) fn begin<S, U, F, Se>(
        &mut self,
        cx: &mut Context<'_>,
        parts: &mut Parts<'_, S, U, F, Se>,
    ) where
        U: Transport,
    {
        self.outbox = Outbox::default();
        self.pumped = 0;
        self.go_on();
        lend(|buffers| {
            let out = &mut buffers.write;
            self.encode_head(parts, out);
            match &self.view {
                View::Rewrite(rewriting) => out.extend_from_slice(&rewriting.opening),
                _ => out.extend_from_slice(&parts.early[..self.used]),
            }
            if self.outbox.send(parts.origin, cx, out, &[]).is_err() {
                self.break_off();
            }
        });
    }

    /// Moves what can be moved of the body; says whether bytes moved.
    pub(super) fn poll<S, U, F, Se>(
        &mut self,
        cx: &mut Context<'_>,
        parts: &mut Parts<'_, S, U, F, Se>,
        ahead: &mut BytesMut,
    ) -> Result<bool, Fault>
    where
        S: Transport,
        U: Transport,
        F: Filter<Se>,
    {
        let before = self.progress();
        loop {
            match self.outbox.poll_flush(parts.origin, cx) {
                Poll::Pending => break,
                Poll::Ready(Err(_)) => self.break_off(),
                Poll::Ready(Ok(())) => {}
            }
            if self.state != State::Body {
                break;
            }
            let step = match self.pump {
                Some(_) => self.poll_pump(cx, parts)?,
                None => self.poll_copy(cx, parts, ahead)?,
            };
            if step.is_pending() {
                break;
            }
        }
        Ok(self.progress() != before)
    }

    /// The answer that a filter gave instead of forwarding the request.
    pub(super) fn take_answer(&mut self) -> Option<Box<Answer>> {
        self.view.take_answer()
    }

    /// Changes whenever bytes of the request come or go. A filter may hold some
    /// back for long.
    fn progress(&self) -> (u64, u64) {
        (self.bytes(), self.framer.content())
    }

    /// Bytes that the origin has taken, head included.
    pub(super) fn bytes(&self) -> u64 {
        self.outbox.sent() + self.pumped
    }

    /// The request was sent in full.
    pub(super) fn is_done(&self) -> bool {
        self.state == State::Done
    }

    /// Nothing more will be sent, be it that the origin does not want it.
    pub(super) fn is_over(&self) -> bool {
        self.state != State::Body
    }

    /// The client waits for leave to send the body; without it none will come
    /// (RFC 9110 section 10.1.1).
    pub(super) fn is_withheld(&self, head: &RequestHead<'_, '_>) -> bool {
        head.expects_continue() && self.used == 0 && !self.consumed
    }

    /// The origin is slow to take bytes.
    pub(super) fn is_blocked(&self) -> bool {
        !self.outbox.is_empty() || self.pump.as_ref().is_some_and(|pump| !pump.is_idle())
    }

    /// Appends the head with what only this hop is told.
    fn encode_head<S, U, F, Se>(&mut self, parts: &Parts<'_, S, U, F, Se>, out: &mut BytesMut) {
        let mut edit = HeadEdit::resume(&mut self.script, parts.head);
        if let Some(parent) = parts.parent {
            edit.send_absolute_form();
            if let Some(login) = &parent.authorization {
                edit.show_login(login);
            }
        }
        if let Some(via) = parts.config.via_towards(parts.parent.is_some()) {
            edit.show_via(via);
        }
        edit.encode(out);
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
        let polled = pump.poll(cx, parts.client, parts.origin);
        let moved = pump.moved() - before;
        self.pumped += moved;
        // What it took and could not deliver is gone as well.
        let lost = matches!(polled, Poll::Ready(Err(PumpError::Write(_))));
        self.consumed |= moved > 0 || !pump.is_idle() || lost;
        self.framer.skip(moved);
        match polled {
            Poll::Pending => return Ok(Poll::Pending),
            Poll::Ready(Ok(())) => {}
            Poll::Ready(Err(PumpError::Write(_))) => {
                self.break_off();
                return Ok(Poll::Ready(()));
            }
            Poll::Ready(Err(PumpError::Truncated)) => return Err(Fault::ClientTruncated),
            Poll::Ready(Err(_)) => return Err(Fault::ClientReset),
        }
        self.stop_pump();
        if self.framer.is_over() {
            self.state = State::Done;
        }
        Ok(Poll::Ready(()))
    }

    fn poll_copy<S: Transport, U: Transport, F: Filter<Se>, Se>(
        &mut self,
        cx: &mut Context<'_>,
        parts: &mut Parts<'_, S, U, F, Se>,
        ahead: &mut BytesMut,
    ) -> Result<Poll<()>, Fault> {
        lend(|buffers| {
            let Buffers { read, write, .. } = buffers;
            let n = match poll_metered(parts.client, cx, read, &mut self.meter) {
                Poll::Pending => return Ok(Poll::Pending),
                Poll::Ready(Ok(0)) => return Err(Fault::ClientTruncated),
                Poll::Ready(Err(_)) => return Err(Fault::ClientReset),
                Poll::Ready(Ok(n)) => n,
            };
            let bytes = &read[..n];
            self.consumed = true;
            self.view.forget_opening();
            let ask =
                |chunk: &mut Chunk<'_>| parts.filter.body(parts.session, Direction::Request, chunk);
            let extent = self.take(bytes, parts.config.body_bytes, write, ask)?;
            self.go_on();
            let (own, next) = bytes.split_at(extent.len);
            ahead.extend_from_slice(next);
            let own = match self.view.is_rewrite() {
                true => &write[..],
                false => own,
            };
            if self.outbox.send(parts.origin, cx, own, &[]).is_err() {
                self.break_off();
            }
            Ok(Poll::Ready(()))
        })
    }

    /// Finds out how much of `bytes` belongs to the body. If that is framed anew,
    /// appends what becomes of it to `out`.
    fn take(
        &mut self,
        bytes: &[u8],
        most: Option<u64>,
        out: &mut BytesMut,
        ask: impl FnMut(&mut Chunk<'_>) -> Flow,
    ) -> Result<Extent, Fault> {
        let (framer, way) = (&mut self.framer, Direction::Request);
        let extent = match self.view {
            View::Inspect => self.view.inspect(framer, way, bytes, ask),
            View::Rewrite(_) => self.view.reframe(framer, (way, true), bytes, out, ask),
            View::Answered(_) | View::Pass => framer.advance(bytes).map_err(Fault::BadBody),
        }?;
        match most {
            Some(most) if self.framer.content().saturating_add(extent.opaque) > most => {
                Err(Fault::TooLarge)
            }
            _ => Ok(extent),
        }
    }

    /// Settles how what follows is moved.
    fn go_on(&mut self) {
        let opaque = self.framer.opaque();
        self.state = State::Body;
        self.stop_pump();
        if self.framer.is_over() {
            self.state = State::Done;
        } else if self.view.is_pass() && pumped(self.framing, opaque) {
            let meter = std::mem::take(&mut self.meter);
            self.pump = Some(Pump::exactly(opaque).metered(meter));
        }
    }

    fn stop_pump(&mut self) {
        if let Some(pump) = self.pump.take() {
            self.meter = pump.into_meter();
        }
    }

    fn break_off(&mut self) {
        self.outbox.give_up();
        self.pump = None;
        self.state = State::Broken;
    }
}
