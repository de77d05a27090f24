//! The access log: a line per exchange or tunnel, batched per worker, written by
//! one thread.

mod clock;
mod line;
mod writer;

use std::cell::RefCell;
use std::time::{Duration, SystemTime};

use tokio::sync::Notify;

use crate::config::Format;
use clock::Clock;
pub(crate) use line::Entry;
pub(crate) use writer::{Handle, Writer};

/// One worker's end of the access log. A line costs no system call and, once
/// the buffers have grown, no allocation.
#[derive(Debug, Default)]
pub(crate) struct AccessLog {
    batch: Option<RefCell<Batch>>,
    begun: Notify,
}

#[derive(Debug)]
struct Batch {
    bytes: Vec<u8>,
    lines: u64,
    format: Format,
    clock: Clock,
    to: Handle,
}

impl AccessLog {
    /// Writes nothing.
    pub(crate) fn off() -> Self {
        Self::default()
    }

    pub(crate) fn new(format: Format, to: Handle) -> Self {
        Self {
            batch: Some(RefCell::new(Batch {
                bytes: Vec::with_capacity(BATCH_BYTES + BATCH_BYTES / 4),
                lines: 0,
                format,
                clock: Clock::default(),
                to,
            })),
            begun: Notify::new(),
        }
    }

    /// Whether lines go anywhere.
    pub(crate) fn is_on(&self) -> bool {
        self.batch.is_some()
    }

    /// Adds a line.
    pub(crate) fn write(&self, entry: &Entry<'_>) {
        let Some(batch) = &self.batch else {
            return;
        };
        let batch = &mut *batch.borrow_mut();
        if batch.bytes.is_empty() {
            self.begun.notify_one();
        }
        let time = batch.clock.stamp(SystemTime::now());
        line::write(&mut batch.bytes, batch.format, time, entry);
        batch.lines += 1;
        if batch.bytes.len() >= BATCH_BYTES {
            batch.send();
        }
    }

    /// Hands over what is there.
    pub(crate) fn flush(&self) {
        if let Some(batch) = &self.batch {
            batch.borrow_mut().send();
        }
    }

    /// Flushes a while after the first line of each batch, for ever. Cancel
    /// safe: what is there stays for the next [`flush`](Self::flush).
    pub(crate) async fn keep_flushing(&self) {
        loop {
            self.begun.notified().await;
            tokio::time::sleep(BATCH_TIME).await;
            self.flush();
        }
    }
}

impl Batch {
    fn send(&mut self) {
        if !self.bytes.is_empty() {
            self.to.send(&mut self.bytes, self.lines);
            self.lines = 0;
        }
    }
}

/// A batch is handed over when it is as large or as old as this.
const BATCH_BYTES: usize = 64 * 1024;
const BATCH_TIME: Duration = Duration::from_millis(250);
