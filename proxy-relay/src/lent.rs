//! Counts what pumps hold, so that tests and metrics can see it.

use std::cell::Cell;

/// What the pumps of a thread hold at the moment, from [`lent`].
///
/// A pump that moves to another thread is counted where it took and where it
/// gave back, so one thread's figures may be negative; their sum is exact.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Lent {
    /// Pipes with bytes in them, or about to be filled.
    pub pipes: i64,
    /// Buffers of bytes that a destination did not take yet.
    pub spills: i64,
}

/// What the pumps of this thread hold at the moment: nothing while all are
/// idle.
///
/// ```
/// assert_eq!(proxy_relay::lent(), proxy_relay::Lent::default());
/// ```
pub fn lent() -> Lent {
    LENT.get()
}

pub(crate) fn count(change: impl FnOnce(&mut Lent)) {
    let mut lent = LENT.get();
    change(&mut lent);
    LENT.set(lent);
}

thread_local! {
    static LENT: Cell<Lent> = const { Cell::new(Lent { pipes: 0, spills: 0 }) };
}
