//! A token through which sessions are drained or ended from outside.

use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};

use crate::End;

/// Ends exactly the sessions that hold it: a worker's, a listener's, a user's.
///
/// Cloning shares the token; [`child`](Self::child) makes one that also obeys
/// its parent. Nothing is woken through it: sessions look at it when they do
/// work and at each coarse tick, so it costs one load while nobody stops, and a
/// stop takes effect within a tick.
///
/// ```
/// use proxy_core::{End, Stop, StopState};
///
/// let worker = Stop::new();
/// let user = worker.child();
/// user.stop(End::Stopped);
/// assert_eq!(user.state(), StopState::Stopped(End::Stopped));
/// assert_eq!(worker.state(), StopState::Running);
/// worker.drain();
/// assert_eq!(worker.child().state(), StopState::Draining);
/// ```
#[derive(Clone, Debug, Default)]
pub struct Stop(Option<Arc<Token>>);

/// What a [`Stop`] says at the moment.
///
/// Exhaustive on purpose: a session must decide for each.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StopState {
    /// Go on.
    Running,
    /// Finish the exchange at hand, take no new one; tunnels go on.
    Draining,
    /// End now, with this reason.
    Stopped(End),
}

impl Stop {
    /// A token of its own.
    pub fn new() -> Self {
        Self(Some(Arc::new(Token::default())))
    }

    /// A token that never stops anything and costs nothing; the default.
    pub fn never() -> Self {
        Self(None)
    }

    /// Whether this is a token that can never stop anything.
    pub fn is_never(&self) -> bool {
        self.0.is_none()
    }

    /// A token that stops when this one does, or by itself.
    pub fn child(&self) -> Self {
        Self(Some(Arc::new(Token {
            flag: AtomicU8::new(RUNNING),
            parent: self.clone(),
        })))
    }

    /// Lets work at hand finish; nothing new is begun.
    pub fn drain(&self) {
        if let Some(token) = &self.0 {
            // A stop already ordered stays.
            let _ = token.flag.compare_exchange(
                RUNNING,
                DRAINING,
                Ordering::Relaxed,
                Ordering::Relaxed,
            );
        }
    }

    /// Ends the sessions that hold this token, with `end` as their reason:
    /// [`End::Drained`], [`End::Limit`] or, for every other value,
    /// [`End::Stopped`].
    pub fn stop(&self, end: End) {
        if let Some(token) = &self.0 {
            let flag = match end {
                End::Drained => STOPPED_DRAINED,
                End::Limit => STOPPED_LIMIT,
                _ => STOPPED,
            };
            token.flag.store(flag, Ordering::Relaxed);
        }
    }

    /// The stricter of what this token and its parents say.
    pub fn state(&self) -> StopState {
        let mut state = StopState::Running;
        let mut next = &self.0;
        while let Some(token) = next {
            match token.flag.load(Ordering::Relaxed) {
                RUNNING => {}
                DRAINING => state = StopState::Draining,
                STOPPED_DRAINED => return StopState::Stopped(End::Drained),
                STOPPED_LIMIT => return StopState::Stopped(End::Limit),
                _ => return StopState::Stopped(End::Stopped),
            }
            next = &token.parent.0;
        }
        state
    }

    /// Whether sessions go on as usual.
    pub fn is_running(&self) -> bool {
        self.state() == StopState::Running
    }
}

#[derive(Debug, Default)]
struct Token {
    flag: AtomicU8,
    parent: Stop,
}

const RUNNING: u8 = 0;
const DRAINING: u8 = 1;
const STOPPED: u8 = 2;
const STOPPED_DRAINED: u8 = 3;
const STOPPED_LIMIT: u8 = 4;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn never_ignores_orders() {
        let stop = Stop::never();
        stop.drain();
        stop.stop(End::Stopped);
        assert!(stop.is_running());
    }

    #[test]
    fn a_drain_does_not_undo_a_stop() {
        let stop = Stop::new();
        stop.stop(End::Drained);
        stop.drain();
        assert_eq!(stop.state(), StopState::Stopped(End::Drained));
    }

    #[test]
    fn the_parent_reaches_its_grandchildren() {
        let root = Stop::new();
        let leaf = root.child().child();
        root.stop(End::Limit);
        assert_eq!(leaf.state(), StopState::Stopped(End::Limit));
    }

    #[test]
    fn a_stopped_child_of_a_draining_parent_is_stopped() {
        let root = Stop::new();
        let leaf = root.child();
        root.drain();
        assert_eq!(leaf.state(), StopState::Draining);
        leaf.stop(End::Stopped);
        assert_eq!(leaf.state(), StopState::Stopped(End::Stopped));
    }
}
