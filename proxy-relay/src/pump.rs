//! One direction: moves bytes from one stream to another, by copying or splicing.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use tokio::io::ReadBuf;

use crate::spill::Spill;
use crate::splice::{Pipe, Splicing};
use crate::{Aside, Meter, PumpError, Socket, Transport, lend};

/// Moves bytes one way, until the source ends or for an exact length.
///
/// It starts by copying through the thread's buffer ([`lend`]): one read and
/// one write per message, no buffer of its own. What the destination does not
/// take at once is put aside, and nothing more is read until that is gone, so
/// at most [`Buffers::SIZE`](crate::Buffers::SIZE) bytes are held. A direction
/// that proves to be bulk between two kernel sockets ([`Transport::socket`]) is
/// spliced through a pipe on Linux, until it turns chatty.
///
/// Between bursts it owns neither buffer nor pipe. The thread pools a few pipes
/// for it and closes them when they are not used ([`release_pipes`](crate::release_pipes)).
#[derive(Debug)]
pub struct Pump {
    /// Bytes still to be read from the source.
    left: u64,
    moved: u64,
    meter: Meter,
    // Before `mode`: a pipe is given back while its pool still stands.
    held: Held,
    mode: Mode,
    stage: Stage,
    until_end: bool,
    /// Whether the destination took the last large read whole.
    eager: bool,
    /// Written since the last flush.
    unflushed: bool,
    /// How bulky the last reads were while copying.
    bulk: u8,
    /// How many small fills in a row while splicing.
    poor: u8,
}

impl Pump {
    /// A pump that runs until its source ends, then flushes and shuts down the
    /// write side of its destination: a FIN for a FIN (RFC 9293 section 3.6).
    pub fn new() -> Self {
        Self::with(u64::MAX, true)
    }

    /// A pump that moves exactly `len` bytes, then flushes. It never reads
    /// beyond them and leaves the destination open.
    pub fn exactly(len: u64) -> Self {
        Self::with(len, false)
    }

    fn with(left: u64, until_end: bool) -> Self {
        Self {
            left,
            moved: 0,
            meter: Meter::default(),
            held: Held::Nothing,
            mode: Mode::Copy,
            stage: Stage::Flow,
            until_end,
            eager: false,
            unflushed: false,
            bulk: 0,
            poor: 0,
        }
    }

    /// Puts bytes in front that were already read from the source, and returns
    /// how many were taken: of an exact length no more than that, and they
    /// count towards it. To be called before the first poll.
    pub fn early(&mut self, bytes: &[u8]) -> usize {
        let room = usize::try_from(self.left).unwrap_or(usize::MAX);
        let bytes = &bytes[..bytes.len().min(room)];
        if !bytes.is_empty() {
            self.left -= bytes.len() as u64;
            match &mut self.held {
                Held::Spill(spill) => spill.append(bytes),
                held => *held = Held::Spill(Spill::new(bytes)),
            }
        }
        bytes.len()
    }

    /// The same, reading no faster than `meter` grants. To be called before the
    /// first poll; a pump that [waits](Self::waits) is to be polled again soon.
    #[must_use]
    pub fn metered(mut self, meter: Meter) -> Self {
        self.meter = meter;
        self
    }

    /// Moves what can be moved, about a mebibyte at most before it yields.
    ///
    /// Ready once the source ended and the destination was shut down, or the
    /// exact length was flushed; polling again is harmless and ready again.
    /// Cancel safe: nothing is lost by not polling any more.
    ///
    /// # Errors
    /// Which side failed; the counts stay exact. A source that ends before an
    /// exact length is [`PumpError::Truncated`].
    pub fn poll<A: Transport + ?Sized, B: Transport + ?Sized>(
        &mut self,
        cx: &mut Context<'_>,
        from: &mut A,
        to: &mut B,
    ) -> Poll<Result<(), PumpError>> {
        let mut budget = match self.meter.is_limited() {
            true => Meter::TURN,
            false => BUDGET,
        };
        loop {
            match self.stage {
                Stage::Flow if matches!(self.mode, Mode::Splice(_)) => {
                    match (from.socket(), to.socket()) {
                        (Some(from), Some(to)) => {
                            ready!(self.splice(cx, from, to, &mut budget))?;
                        }
                        _ => self.leave_splice(Mode::Copy),
                    }
                }
                Stage::Flow => ready!(self.copy(cx, from, to, &mut budget))?,
                Stage::Flush => {
                    ready!(Pin::new(&mut *to).poll_flush(cx)).map_err(PumpError::write)?;
                    self.stage = match self.until_end {
                        true => Stage::Shutdown,
                        false => Stage::Done,
                    };
                }
                Stage::Shutdown => {
                    ready!(Pin::new(&mut *to).poll_shutdown(cx)).map_err(PumpError::write)?;
                    self.stage = Stage::Done;
                }
                Stage::Done => return Poll::Ready(Ok(())),
            }
        }
    }

    /// Bytes that the destination has taken so far.
    pub fn moved(&self) -> u64 {
        self.moved
    }

    /// Whether everything was moved and flushed.
    pub fn is_done(&self) -> bool {
        matches!(self.stage, Stage::Done)
    }

    /// Whether it holds no byte, and so no buffer and no pipe.
    pub fn is_idle(&self) -> bool {
        matches!(self.held, Held::Nothing)
    }

    /// Whether nothing wakes it, since it may read nothing for a while.
    pub fn waits(&self) -> bool {
        self.meter.waits()
    }

    /// Takes back what it obeyed, for the pump after it.
    pub fn into_meter(self) -> Meter {
        self.meter
    }

    /// Whether its destination has yet to take what it was given: bytes held
    /// here, those that a flush would move on, or the end itself.
    pub(crate) fn presses(&self) -> bool {
        match self.stage {
            Stage::Flow => self.unflushed || !self.is_idle(),
            Stage::Flush | Stage::Shutdown => true,
            Stage::Done => false,
        }
    }

    /// Copies until the source blocks or ends, or splicing pays.
    fn copy<A: Transport + ?Sized, B: Transport + ?Sized>(
        &mut self,
        cx: &mut Context<'_>,
        from: &mut A,
        to: &mut B,
        budget: &mut usize,
    ) -> Poll<Result<(), PumpError>> {
        let mut weight = 1;
        lend(|buffers| {
            loop {
                ready!(self.drain_spill(cx, to))?;
                if self.left == 0 {
                    self.stage = Stage::Flush;
                    return Poll::Ready(Ok(()));
                }
                if self.bulk >= BULK && self.enter_splice(&*from, &*to) {
                    return Poll::Ready(Ok(()));
                }
                ready!(pay(cx, budget));
                let room = self.meter.grant(self.room());
                if room == 0 {
                    return self.pause(cx, to);
                }
                let mut buf = ReadBuf::new(&mut buffers.read[..room]);
                let read = Pin::new(&mut *from).poll_read(cx, &mut buf);
                let bytes = buf.filled();
                self.meter.settle(room, bytes.len());
                let Poll::Ready(read) = read else {
                    return self.pause(cx, to);
                };
                read.map_err(PumpError::read)?;
                self.took(bytes.len(), budget)?;
                let whole = self.write(cx, to, bytes)?;
                if bytes.len() < LARGE {
                    self.bulk = 0;
                } else {
                    self.bulk = self.bulk.saturating_add(weight);
                    self.eager = whole;
                }
                weight = WITHOUT_BLOCKING;
            }
        })
    }

    /// How much to read at once. Large reads are for a destination that takes
    /// them: what it leaves has to be kept.
    fn room(&self) -> usize {
        let most = match self.eager {
            true => crate::Buffers::SIZE,
            false => LARGE,
        };
        let left = usize::try_from(self.left).map_or(most, |left| left.min(most));
        Aside::room(left)
    }

    /// Accounts for a read; none at all is the end of the source.
    fn took(&mut self, n: usize, budget: &mut usize) -> Result<(), PumpError> {
        if n == 0 && !self.until_end {
            return Err(PumpError::Truncated);
        }
        if n == 0 {
            self.left = 0;
        }
        self.left = self.left.saturating_sub(n as u64);
        *budget = budget.saturating_sub(n);
        Ok(())
    }

    /// Writes `bytes` and keeps what is not taken; whether all was.
    fn write<B: Transport + ?Sized>(
        &mut self,
        cx: &mut Context<'_>,
        to: &mut B,
        mut bytes: &[u8],
    ) -> Result<bool, PumpError> {
        while !bytes.is_empty() {
            let Poll::Ready(written) = poll_write(cx, to, bytes) else {
                self.held = Held::Spill(Spill::new(bytes));
                return Ok(false);
            };
            let n = written?;
            self.moved += n as u64;
            bytes = &bytes[n..];
        }
        self.unflushed = true;
        Ok(true)
    }

    fn drain_spill<B: Transport + ?Sized>(
        &mut self,
        cx: &mut Context<'_>,
        to: &mut B,
    ) -> Poll<Result<(), PumpError>> {
        while let Held::Spill(spill) = &mut self.held {
            let n = ready!(poll_write(cx, to, spill.bytes()))?;
            self.moved += n as u64;
            self.unflushed = true;
            spill.consume(n);
            if spill.bytes().is_empty() {
                self.held = Held::Nothing;
            }
        }
        Poll::Ready(Ok(()))
    }

    /// Before waiting for the source: nothing may stay behind in the
    /// destination (TLS keeps records that did not fit).
    fn pause<B: Transport + ?Sized>(
        &mut self,
        cx: &mut Context<'_>,
        to: &mut B,
    ) -> Poll<Result<(), PumpError>> {
        if self.unflushed {
            ready!(Pin::new(to).poll_flush(cx)).map_err(PumpError::write)?;
            self.unflushed = false;
        }
        Poll::Pending
    }

    /// Goes over to splicing if both ends are sockets, enough is left and a
    /// pipe can be had.
    fn enter_splice<A: Transport + ?Sized, B: Transport + ?Sized>(
        &mut self,
        from: &A,
        to: &B,
    ) -> bool {
        self.bulk = 0;
        if matches!(self.mode, Mode::CopyOnly)
            || self.left < WORTH_A_PIPE
            // It reads in small turns.
            || self.meter.is_limited()
            || from.socket().is_none()
            || to.socket().is_none()
        {
            return false;
        }
        let splicing = Splicing::begin();
        match Pipe::lease() {
            Some(pipe) => {
                self.held = Held::Pipe(pipe);
                // A socket has nothing to flush.
                self.unflushed = false;
                self.mode = Mode::Splice(splicing);
                true
            }
            None => false,
        }
    }

    fn leave_splice(&mut self, mode: Mode) {
        // In this order, as when dropped.
        if let Held::Pipe(_) = self.held {
            self.held = Held::Nothing;
        }
        self.mode = mode;
        self.bulk = 0;
        self.poor = 0;
    }

    /// Splices until the source blocks or ends, or copying pays.
    fn splice(
        &mut self,
        cx: &mut Context<'_>,
        from: Socket<'_>,
        to: Socket<'_>,
        budget: &mut usize,
    ) -> Poll<Result<(), PumpError>> {
        loop {
            ready!(self.drain_pipe(cx, to))?;
            if !matches!(self.mode, Mode::Splice(_)) {
                return Poll::Ready(Ok(()));
            }
            if self.left == 0 {
                self.leave_splice(Mode::Copy);
                self.stage = Stage::Flush;
                return Poll::Ready(Ok(()));
            }
            ready!(pay(cx, budget));
            if self.is_idle() {
                // Or else each wake would borrow a pipe for nothing.
                ready!(from.poll_readable(cx)).map_err(PumpError::read)?;
            }
            let len = usize::try_from(self.left).unwrap_or(usize::MAX);
            let Some(pipe) = self.pipe() else {
                self.leave_splice(Mode::Copy);
                return Poll::Ready(Ok(()));
            };
            let Poll::Ready(filled) = pipe.poll_fill(cx, from, len) else {
                self.held = Held::Nothing;
                return Poll::Pending;
            };
            match filled {
                Ok(n) => self.spliced(n, budget)?,
                Err(error) if error.kind() == io::ErrorKind::InvalidInput => {
                    self.leave_splice(Mode::CopyOnly);
                }
                Err(error) => return Poll::Ready(Err(PumpError::read(error))),
            }
        }
    }

    /// Accounts for a fill, and counts the ones that were not worth it.
    fn spliced(&mut self, n: usize, budget: &mut usize) -> Result<(), PumpError> {
        self.took(n, budget)?;
        self.poor = match n < POOR {
            true => self.poor + 1,
            false => 0,
        };
        Ok(())
    }

    /// The pipe at hand or a leased one, if one can be had.
    fn pipe(&mut self) -> Option<&mut Pipe> {
        if let Held::Nothing = self.held {
            self.held = Held::Pipe(Pipe::lease()?);
        }
        match &mut self.held {
            Held::Pipe(pipe) => Some(pipe),
            _ => None,
        }
    }

    /// Empties the pipe; leaves splicing when that proves impossible or vain.
    fn drain_pipe(&mut self, cx: &mut Context<'_>, to: Socket<'_>) -> Poll<Result<(), PumpError>> {
        while let Held::Pipe(pipe) = &mut self.held
            && pipe.held() > 0
        {
            match ready!(pipe.poll_drain(cx, to)) {
                Ok(n) => self.moved += n as u64,
                Err(error) if error.kind() == io::ErrorKind::InvalidInput => {
                    let rest = pipe.take_out().map_err(PumpError::read)?;
                    self.leave_splice(Mode::CopyOnly);
                    self.held = Held::Spill(rest);
                }
                Err(error) => return Poll::Ready(Err(PumpError::write(error))),
            }
        }
        if self.poor >= POOR_FILLS {
            self.leave_splice(Mode::Copy);
        }
        Poll::Ready(Ok(()))
    }
}

impl Default for Pump {
    fn default() -> Self {
        Self::new()
    }
}

/// What a pump owns while bytes are under way.
#[derive(Debug, Default)]
enum Held {
    #[default]
    Nothing,
    Pipe(Pipe),
    Spill(Spill),
}

#[derive(Debug)]
enum Mode {
    Copy,
    /// The kernel refused to splice these sockets.
    CopyOnly,
    /// The token is held for its drop.
    Splice(Splicing),
}

#[derive(Clone, Copy, Debug)]
enum Stage {
    Flow,
    Flush,
    Shutdown,
    Done,
}

fn poll_write<B: Transport + ?Sized>(
    cx: &mut Context<'_>,
    to: &mut B,
    bytes: &[u8],
) -> Poll<Result<usize, PumpError>> {
    match ready!(Pin::new(to).poll_write(cx, bytes)) {
        Ok(0) => Poll::Ready(Err(PumpError::Write(io::ErrorKind::WriteZero))),
        Ok(n) => Poll::Ready(Ok(n)),
        Err(error) => Poll::Ready(Err(PumpError::write(error))),
    }
}

/// Yields once the poll has moved its share, so that one endless stream does
/// not hold up the others.
fn pay(cx: &Context<'_>, budget: &usize) -> Poll<()> {
    match *budget {
        0 => {
            cx.waker().wake_by_ref();
            Poll::Pending
        }
        _ => Poll::Ready(()),
    }
}

/// Bytes per poll. Small budgets make the tail latency worse, not better.
const BUDGET: usize = 1024 * 1024;

/// A read of this size or more is a sign of bulk.
const LARGE: usize = 64 * 1024;

/// Four large reads in a row without blocking, or thirteen with.
const BULK: u8 = 1 + 3 * WITHOUT_BLOCKING;
const WITHOUT_BLOCKING: u8 = 4;

/// With less than this to come, setting up a pipe costs more than it saves.
const WORTH_A_PIPE: u64 = 256 * 1024;

/// A fill below this size would have been cheaper to copy.
const POOR: usize = 16 * 1024;
const POOR_FILLS: u8 = 4;
