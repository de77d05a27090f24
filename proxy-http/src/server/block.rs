//! The pooled memory of an exchange in flight.

use std::cell::RefCell;

use bytes::BytesMut;
use proxy_core::{FreeList, HeadLimits};
use tokio::time::Instant;

use super::exchange::Exchange;
use crate::RequestParser;

/// Everything an exchange needs between two polls: a copy of the request head,
/// the tables of its fields, unsent tails. Idle connections own none.
#[derive(Debug)]
pub(super) struct Block {
    /// Bytes from the client, from the current request on.
    pub(super) input: BytesMut,
    /// The offsets of the request head in `input`.
    pub(super) parser: RequestParser,
    /// The two directions of the exchange.
    pub(super) exchange: Exchange,
    /// When the first byte of the current request was here.
    pub(super) started: Instant,
    limits: HeadLimits,
}

impl Block {
    /// A used block of this thread, or a new one.
    pub(super) fn take(limits: HeadLimits) -> Box<Self> {
        match FREE.with_borrow_mut(FreeList::take) {
            Some(mut block) if block.limits == limits => {
                block.started = Instant::now();
                block
            }
            _ => Box::new(Self {
                input: BytesMut::new(),
                parser: RequestParser::new(limits),
                exchange: Exchange::new(limits),
                started: Instant::now(),
                limits,
            }),
        }
    }

    /// Ready for the request whose first bytes are in `input`; without any, the
    /// block goes to the next exchange of the thread.
    pub(super) fn renew(mut self: Box<Self>) -> Option<Box<Self>> {
        self.parser.reset();
        self.exchange.clear();
        if !self.input.is_empty() {
            self.started = Instant::now();
            return Some(self);
        }
        if self.input.capacity() > KEPT {
            self.input = BytesMut::new();
        }
        FREE.with_borrow_mut(|free| free.give(self));
        None
    }
}

/// Input memory worth keeping: most heads fit, and few blocks are in use at once.
const KEPT: usize = 8 * 1024;

/// Blocks a thread keeps ready.
const SPARE: usize = 128;

thread_local! {
    static FREE: RefCell<FreeList<Box<Block>>> = const { RefCell::new(FreeList::new(SPARE)) };
}
