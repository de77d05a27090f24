//! How many bytes wait in the whole process for peers that do not take them.

use std::sync::atomic::{AtomicU64, Ordering};

/// Bytes that were read and put aside, since their destination did not take them;
/// counted for the whole process until this is dropped or [set](Self::set) anew.
///
/// What one direction of a relay puts aside is bounded in any case: it reads no
/// more before that is gone. A [limit](Self::limit) for the process narrows what is
/// read at once while much waits: each may read a sixteenth of what is left, but
/// always 2 KiB. So those that hold most wait for their peers, while others go on,
/// and with `n` directions that stand still no more waits than the limit, 2 KiB for
/// each of them, and one read for each thread. Nobody waits for a place, so that
/// nothing can lock up.
///
/// Counted are tails of short writes and the pipes of spliced directions, with
/// their capacity; not what the system holds in its socket buffers, nor records
/// that TLS has ready to send (64 KiB at most for a connection).
///
/// ```
/// use proxy_relay::Aside;
///
/// let mut aside = Aside::default();
/// aside.set(1000);
/// assert!(Aside::total() >= 1000);
/// Aside::limit(1 << 20);
/// assert!(Aside::room(1 << 20) <= 1 << 16);
/// assert_eq!(Aside::room(100), 100);
/// Aside::limit(None);
/// assert_eq!(Aside::room(1 << 20), 1 << 20);
/// ```
#[derive(Debug, Default)]
pub struct Aside(u64);

impl Aside {
    /// Sets the limit of the process; none by default.
    pub fn limit(most: impl Into<Option<u64>>) {
        LIMIT.store(most.into().unwrap_or(NONE), Ordering::Relaxed);
    }

    /// How many bytes are put aside in the process.
    pub fn total() -> u64 {
        TOTAL.load(Ordering::Relaxed)
    }

    /// How much of `want` bytes may be read now, in case that none of them are
    /// taken. One load if there is no limit.
    pub fn room(want: usize) -> usize {
        let limit = LIMIT.load(Ordering::Relaxed);
        if limit == NONE {
            return want;
        }
        let left = limit.saturating_sub(Self::total()) / SHARE;
        let left = usize::try_from(left).unwrap_or(usize::MAX);
        want.min(left.max(LEAST))
    }

    /// Counts so many bytes from now on.
    pub fn set(&mut self, bytes: usize) {
        let before = std::mem::replace(&mut self.0, bytes as u64);
        Self::add(self.0);
        Self::remove(before);
    }

    /// Counts more without a place to remember it.
    pub(crate) fn add(bytes: u64) {
        TOTAL.fetch_add(bytes, Ordering::Relaxed);
    }

    pub(crate) fn remove(bytes: u64) {
        TOTAL.fetch_sub(bytes, Ordering::Relaxed);
    }
}

impl Drop for Aside {
    fn drop(&mut self) {
        if self.0 > 0 {
            Self::remove(self.0);
        }
    }
}

/// No limit.
const NONE: u64 = u64::MAX;

/// The part of what is left that one read may take.
const SHARE: u64 = 16;

/// What may always be read.
const LEAST: usize = 2048;

static LIMIT: AtomicU64 = AtomicU64::new(NONE);
static TOTAL: AtomicU64 = AtomicU64::new(0);
