//! The request on its way from the client to the origin.

use std::task::{Context, Poll};

use bytes::BytesMut;
use proxy_relay::{Pump, PumpError, Transport, lend};

use super::exchange::{Fault, Parts, pumped};
use super::wire::{Outbox, poll_read};
use crate::filter::{Direction, Filter, Flow};
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
    pump: Option<Pump>,
    state: State,
    inspect: bool,
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
            pump: None,
            state: State::Body,
            inspect: false,
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

    /// Sends the head and the part of the body that came with it.
    pub(super) fn begin<S, U, F, Se>(
        &mut self,
        cx: &mut Context<'_>,
        parts: &mut Parts<'_, S, U, F, Se>,
    ) -> Result<(), Fault>
    where
        U: Transport,
        F: Filter<Se>,
    {
        self.clear();
        self.framing = parts.head.framing();
        self.framer = BodyFramer::new(self.framing);
        lend(|buffers| {
            let out = &mut buffers.write;
            self.encode_head(parts, out)?;
            let extent = self.take(parts.early, parts)?;
            out.extend_from_slice(&parts.early[..extent.len]);
            self.used = extent.len;
            if self.outbox.send(parts.origin, cx, out, &[]).is_err() {
                self.break_off();
            }
            Ok(())
        })
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
        let before = self.bytes();
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
        Ok(self.bytes() != before)
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

    fn encode_head<S, U, F: Filter<Se>, Se>(
        &mut self,
        parts: &mut Parts<'_, S, U, F, Se>,
        out: &mut BytesMut,
    ) -> Result<(), Fault> {
        let mut edit = HeadEdit::request(&mut self.script, parts.head);
        edit.to_origin(ToOrigin {
            absolute: parts.parent.is_some(),
            upgrade: true,
            ..ToOrigin::default()
        });
        if let Some(login) = parts.parent.and_then(|p| p.authorization.as_deref()) {
            edit.show_login(login);
        }
        if let Some(via) = parts.config.via_towards(parts.parent.is_some()) {
            edit.show_via(via);
        }
        edit.show_client(parts.client_address, parts.config.forwarded);
        match parts.filter.request(parts.session, &mut edit) {
            Flow::Reject(status) => return Err(Fault::Rejected(Direction::Request, status)),
            flow => self.inspect = flow == Flow::Inspect,
        }
        edit.encode(out);
        Ok(())
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
        self.consumed |= moved > 0;
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
        self.pump = None;
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
            let n = match poll_read(parts.client, cx, &mut buffers.read) {
                Poll::Pending => return Ok(Poll::Pending),
                Poll::Ready(Ok(0)) => return Err(Fault::ClientTruncated),
                Poll::Ready(Err(_)) => return Err(Fault::ClientReset),
                Poll::Ready(Ok(n)) => n,
            };
            let bytes = &buffers.read[..n];
            self.consumed = true;
            let extent = self.take(bytes, parts)?;
            let (own, next) = bytes.split_at(extent.len);
            ahead.extend_from_slice(next);
            if self.outbox.send(parts.origin, cx, own, &[]).is_err() {
                self.break_off();
            }
            Ok(Poll::Ready(()))
        })
    }

    /// Finds out how much of `bytes` belongs to the body and how to go on.
    fn take<S, U, F: Filter<Se>, Se>(
        &mut self,
        bytes: &[u8],
        parts: &mut Parts<'_, S, U, F, Se>,
    ) -> Result<Extent, Fault> {
        let extent = self.framer.advance(bytes).map_err(Fault::BadBody)?;
        if let Some(most) = parts.config.body_bytes
            && self.framer.content().saturating_add(extent.opaque) > most
        {
            return Err(Fault::TooLarge);
        }
        if extent.end {
            self.state = State::Done;
        }
        if self.inspect {
            self.inspect = parts.inspect(Direction::Request, &bytes[..extent.len], extent.end)?;
        }
        if !extent.end && !self.inspect && pumped(self.framing, extent.opaque) {
            self.pump = Some(Pump::exactly(extent.opaque));
        }
        Ok(extent)
    }

    fn break_off(&mut self) {
        self.outbox.give_up();
        self.pump = None;
        self.state = State::Broken;
    }
}
