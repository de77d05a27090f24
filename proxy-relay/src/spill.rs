//! Bytes that a destination did not take at once.

use crate::lent;

/// A tail to be written before anything else; one pointer wide.
#[derive(Debug)]
pub(crate) struct Spill(Box<Tail>);

#[derive(Debug)]
struct Tail {
    bytes: Vec<u8>,
    at: usize,
}

impl Spill {
    pub(crate) fn new(bytes: &[u8]) -> Self {
        lent::count(|lent| lent.spills += 1);
        Self(Box::new(Tail {
            bytes: bytes.to_vec(),
            at: 0,
        }))
    }

    pub(crate) fn append(&mut self, bytes: &[u8]) {
        self.0.bytes.extend_from_slice(bytes);
    }

    pub(crate) fn consume(&mut self, n: usize) {
        self.0.at += n;
    }

    pub(crate) fn bytes(&self) -> &[u8] {
        &self.0.bytes[self.0.at..]
    }
}

impl Drop for Spill {
    fn drop(&mut self) {
        lent::count(|lent| lent.spills -= 1);
    }
}
