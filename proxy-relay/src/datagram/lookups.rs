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
    pub(super) fn poll(&mut self, cx: &mut Context<'_>) -> Poll<Answered<F::Output>> {
        for at in 0..self.asked.len() {
            if let Poll::Ready(answer) = self.asked[at].answer.as_mut().poll(cx) {
                let asked = self.asked.swap_remove(at);
                let waiting = asked.waiting;
                self.bytes -= waiting.iter().map(|payload| payload.len()).sum::<usize>();
                return Poll::Ready(Answered {
                    target: asked.target,
                    answer,
                    waiting,
                });
            }
        }
        Poll::Pending
    }
}

/// What was asked, what came of it, and what waited for that.
#[derive(Debug)]
pub(super) struct Answered<T> {
    pub(super) target: TargetBuf,
    pub(super) answer: T,
    pub(super) waiting: Vec<Box<[u8]>>,
}

/// Questions at a time.
const MOST: usize = 16;

/// Datagrams that wait for one answer, which is what a client sends before it
/// begins to wait itself.
const MOST_WAITING: usize = 4;

/// Bytes that wait in one association.
const MOST_BYTES: usize = 16 * 1024;

#[cfg(test)]
mod tests {
    use super::*;
    use std::future::{Ready, ready};
    use std::task::Waker;

    fn target(text: &str) -> Target<'_> {
        Target::parse(text, None).expect(text)
    }

    #[test]
    fn what_waits_is_bounded() {
        let mut lookups: Lookups<Ready<u8>> = Lookups::default();
        assert!(!lookups.keep(target("a:1"), b"nobody asked"));
        for number in 0..MOST {
            assert!(lookups.has_room());
            let name = format!("n{number}:1");
            lookups.add(target(&name).into(), Box::pin(ready(7)));
        }
        assert!(!lookups.has_room());
        // The first may be of any size; then bytes and datagrams are counted.
        assert!(lookups.keep(target("n0:1"), &[0; 60_000]));
        assert!(!lookups.keep(target("n1:1"), b"x"));
        let mut cx = Context::from_waker(Waker::noop());
        let Poll::Ready(first) = lookups.poll(&mut cx) else {
            panic!("it is ready");
        };
        assert_eq!(first.target.as_target(), target("n0:1"));
        assert_eq!((first.answer, first.waiting.len()), (7, 1));
        for _ in 0..MOST_WAITING {
            assert!(lookups.keep(target("n1:1"), b"x"));
        }
        assert!(!lookups.keep(target("n1:1"), b"x"));
        assert!(!lookups.keep(target("n2:1"), &[0; MOST_BYTES]));
        assert!(lookups.keep(target("n2:1"), &[0; MOST_BYTES - MOST_WAITING]));
        while lookups.poll(&mut cx).is_ready() {}
        assert_eq!((lookups.asked.len(), lookups.bytes), (0, 0));
    }
}
