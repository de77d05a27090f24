//! The thread's large buffers, lent for the length of one poll.

use std::cell::Cell;

use bytes::BytesMut;

/// Two large buffers that belong to the thread, not to a connection.
///
/// A driver borrows them inside one `poll` through [`lend`], so that ten
/// thousand idle connections hold none of them.
#[derive(Debug)]
pub struct Buffers {
    /// Scratch to read into; always [`Buffers::SIZE`] bytes, content arbitrary.
    pub read: Box<[u8]>,
    /// Scratch to assemble output in; empty when lent, capacity at least
    /// [`Buffers::SIZE`].
    pub write: BytesMut,
}

impl Buffers {
    /// Bytes in each buffer: large enough that a bulk stream needs few system
    /// calls, small enough to stay in a core's second-level cache.
    pub const SIZE: usize = 256 * 1024;

    fn new() -> Box<Self> {
        Box::new(Self {
            read: vec![0; Self::SIZE].into_boxed_slice(),
            write: BytesMut::with_capacity(Self::SIZE),
        })
    }
}

/// Runs `f` with the thread's buffers.
///
/// A nested call gets a pair of its own, at the price of an allocation; it
/// never fails.
///
/// ```
/// let n = proxy_relay::lend(|buffers| buffers.read.len());
/// assert_eq!(n, proxy_relay::Buffers::SIZE);
/// ```
pub fn lend<R>(f: impl FnOnce(&mut Buffers) -> R) -> R {
    let mut buffers = LENT.take().unwrap_or_else(Buffers::new);
    let result = f(&mut buffers);
    buffers.write.clear();
    if buffers.write.capacity() > 2 * Buffers::SIZE {
        // An outgrown buffer would stay with the thread for good.
        buffers.write = BytesMut::with_capacity(Buffers::SIZE);
    }
    LENT.set(Some(buffers));
    result
}

thread_local! {
    static LENT: Cell<Option<Box<Buffers>>> = const { Cell::new(None) };
}
