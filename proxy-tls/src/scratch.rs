//! The thread's room for ciphertext, lent for the length of one poll.

use std::cell::RefCell;

use proxy_core::FreeList;

/// Runs `f` with [`SIZE`] bytes of arbitrary content.
///
/// Idle connections hold nothing of it. TLS inside TLS takes a second piece.
pub(crate) fn lend<R>(f: impl FnOnce(&mut [u8]) -> R) -> R {
    let kept = FREE.with_borrow_mut(FreeList::take);
    let mut scratch = kept.unwrap_or_else(|| vec![0; SIZE].into_boxed_slice());
    let result = f(&mut scratch);
    FREE.with_borrow_mut(|free| free.give(scratch));
    result
}

/// The longest plaintext of one record (RFC 8446 section 5.1).
pub(crate) const RECORD: usize = 1 << 14;

/// The most plaintext that is encrypted at once: with fewer bytes a bulk stream
/// needs more system calls.
pub(crate) const BULK: usize = 256 * 1024;

/// [`BULK`] as ciphertext, the gathered plaintext of a vectored write before
/// it, and room for headers, tags and a key update.
pub(crate) const SIZE: usize = BULK + 2 * RECORD;

thread_local! {
    static FREE: RefCell<FreeList<Box<[u8]>>> = const { RefCell::new(FreeList::new(2)) };
}
