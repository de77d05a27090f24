//! Bytes that wait for their taker, and no memory when there are none.

/// A queue of bytes; empty, it owns no memory.
#[derive(Default)]
pub(crate) struct Spill {
    bytes: Vec<u8>,
    from: usize,
}

impl Spill {
    pub(crate) fn push(&mut self, bytes: &[u8]) {
        self.bytes.extend_from_slice(bytes);
    }

    /// Adds `len` bytes and returns them for writing.
    pub(crate) fn grow(&mut self, len: usize) -> &mut [u8] {
        let end = self.bytes.len();
        self.bytes.resize(end + len, 0);
        &mut self.bytes[end..]
    }

    pub(crate) fn consume(&mut self, len: usize) {
        self.from += len;
        if self.from >= self.bytes.len() {
            *self = Self::default();
        }
    }

    pub(crate) fn bytes(&self) -> &[u8] {
        &self.bytes[self.from..]
    }

    #[cfg(test)]
    pub(crate) fn capacity(&self) -> usize {
        self.bytes.capacity()
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.bytes().is_empty()
    }
}
