//! Questions to policy that are under way, and the datagrams that wait for them.

use std::pin::Pin;
use std::task::{Context, Poll};

use proxy_core::{Target, TargetBuf};

/// A bounded number of questions with a bounded number of datagrams.
#[derive(Debug)]
pub(super) struct Lookups<F> {
    asked: Vec<Asked<F>>,
    bytes: usize,
}

#[derive(Debug)]
struct Asked<F> {
    target: TargetBuf,
    answer: Pin<Box<F>>,
    waiting: Vec<Box<[u8]>>,
}

impl<F> Default for Lookups<F> {
    fn default() -> Self {
        Self {
            asked: Vec::new(),
            bytes: 0,
        }
    }
}

impl<F: Future> Lookups<F> {
    /// Whether one more question may be asked.
    pub(super) fn has_room(&self) -> bool {
        self.asked.len() < MOST
    }

    /// Waits for an answer that is not there at once.
    pub(super) fn add(&mut self, target: TargetBuf, answer: Pin<Box<F>>) {
        self.asked.push(Asked {
            target,
            answer,
            waiting: Vec::new(),
        });
    }

    /// Keeps a datagram until there is an answer; false if there is no room.
    pub(super) fn keep(&mut self, target: Target<'_>, payload: &[u8]) -> bool {
        let mut asked = self.asked.iter_mut();
        let Some(asked) = asked.find(|asked| asked.target.as_target() == target) else {
            return false;
        };
        // A single one may be as large as it likes.
        let fits = self.bytes == 0 || self.bytes + payload.len() <= MOST_BYTES;
        if !fits || asked.waiting.len() >= MOST_WAITING {
            return false;
        }
        self.bytes += payload.len();
        asked.waiting.push(payload.into());
        true
    }

    /// The next answer, with what waited for it.
    pub(super) fn poll(
        &mut self,
        cx: &mut Context<'_>,
    ) -> Poll<(TargetBuf, F::Output, Vec<Box<[u8]>>)> {
        for at in 0..self.asked.len() {
            if let Poll::Ready(answer) = self.asked[at].answer.as_mut().poll(cx) {
                let Asked {
                    target, waiting, ..
                } = self.asked.swap_remove(at);
                self.bytes -= waiting.iter().map(|payload| payload.len()).sum::<usize>();
                return Poll::Ready((target, answer, waiting));
            }
        }
        Poll::Pending
    }
}

/// Questions at a time.
const MOST: usize = 16;

/// Datagrams that wait for one answer, which is what a client sends before it
/// begins to wait itself.
const MOST_WAITING: usize = 4;

/// Bytes that wait in one association.
const MOST_BYTES: usize = 16 * 1024;
