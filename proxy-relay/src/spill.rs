//! Bytes that a destination did not take at once.

use crate::{Aside, lent};

/// A tail to be written before anything else; one pointer wide.
#[derive(Debug)]
pub(crate) struct Spill(Box<Tail>);

#[derive(Debug)]
struct Tail {
    bytes: Vec<u8>,
    at: usize,
    aside: Aside,
}

impl Spill {
    pub(crate) fn new(bytes: &[u8]) -> Self {
        lent::count(|lent| lent.spills += 1);
        let mut aside = Aside::default();
        aside.set(bytes.len());
        Self(Box::new(Tail {
            bytes: bytes.to_vec(),
            at: 0,
            aside,
        }))
    }

    pub(crate) fn append(&mut self, bytes: &[u8]) {
        self.0.bytes.extend_from_slice(bytes);
        self.0.aside.set(self.0.bytes.len());
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
