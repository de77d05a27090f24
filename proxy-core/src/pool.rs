//! A capped free list for buffers and other things that are costly to make.

/// Keeps up to a fixed number of returned values for the next taker.
///
/// Crates keep one in a `thread_local!`, so that what is leased stays `Send`:
/// a lease taken on one thread may be given back on another.
///
/// ```
/// let mut list = proxy_core::FreeList::new(1);
/// list.give(vec![1u8]);
/// list.give(vec![2u8]);           // over the cap: dropped
/// assert_eq!(list.take(), Some(vec![1u8]));
/// assert_eq!(list.take(), None);
/// ```
#[derive(Debug)]
pub struct FreeList<T> {
    free: Vec<T>,
    cap: usize,
}

impl<T> FreeList<T> {
    /// An empty list that keeps at most `cap` values.
    pub const fn new(cap: usize) -> Self {
        Self {
            free: Vec::new(),
            cap,
        }
    }

    /// The value returned last, if any.
    pub fn take(&mut self) -> Option<T> {
        self.free.pop()
    }

    /// Keeps `value` for the next taker, or drops it when the list is full.
    pub fn give(&mut self, value: T) {
        if self.free.len() < self.cap {
            self.free.push(value);
        }
    }

    /// How many values lie ready.
    pub fn len(&self) -> usize {
        self.free.len()
    }

    /// Whether no value lies ready.
    pub fn is_empty(&self) -> bool {
        self.free.is_empty()
    }
}
