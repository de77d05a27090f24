//! Test data whose every byte is known by its position, cheap to send and check.
//!
//! The tests are compiled without optimisation; moving and comparing whole
//! slices keeps a gigabyte at the speed of memory all the same.

use std::io::{self, Read, Write};
use std::sync::LazyLock;

use super::{Conn, Ended, Random};

/// What a client sends in the bulk tests.
pub(crate) const UP: Pattern = Pattern { shift: 0 };
/// What an origin sends in the bulk tests.
pub(crate) const DOWN: Pattern = Pattern { shift: 500_009 };

/// An endless sequence of bytes.
#[derive(Clone, Copy)]
pub(crate) struct Pattern {
    shift: u64,
}

impl Pattern {
    /// One of a million sequences.
    pub(crate) fn seeded(seed: u32) -> Self {
        Self { shift: seed.into() }
    }

    /// Up to [`CHUNK`] bytes from `position` on, at least one of `count`.
    pub(crate) fn at(self, position: u64, count: u64) -> &'static [u8] {
        let start = usize::try_from((position + self.shift) % PERIOD).expect("below the period");
        let count = usize::try_from(count.min(CHUNK)).expect("at most a chunk");
        &BYTES[start..start + count]
    }

    /// The first `count` bytes, at most 256 KiB.
    pub(crate) fn first(self, count: u64) -> &'static [u8] {
        assert!(count <= CHUNK);
        self.at(0, count)
    }

    /// Sends the bytes from `from` up to `to`.
    pub(crate) fn send(self, mut to_peer: impl Write, from: u64, to: u64) -> io::Result<()> {
        let mut position = from;
        while position < to {
            let chunk = self.at(position, to - position);
            to_peer.write_all(chunk)?;
            position += chunk.len() as u64;
        }
        Ok(())
    }

    /// Reads the bytes from `from` up to `to` and compares them.
    pub(crate) fn check(self, mut from_peer: impl Read, from: u64, to: u64) -> io::Result<()> {
        let mut buffer = vec![0; usize::try_from(CHUNK).expect("small")];
        let mut position = from;
        while position < to {
            let room = (to - position).min(CHUNK);
            let room = usize::try_from(room).expect("at most a chunk");
            let count = from_peer.read(&mut buffer[..room])?;
            if count == 0 {
                return Err(io::Error::other(format!("ended at {position} of {to}")));
            }
            if buffer[..count] != *self.at(position, count as u64) {
                return Err(io::Error::other(format!("differs behind byte {position}")));
            }
            position += count as u64;
        }
        Ok(())
    }

    /// As [`check`](Self::check), and nothing but the end may follow.
    pub(crate) fn check_all(self, mut from_peer: impl Read, count: u64) -> io::Result<()> {
        self.check(&mut from_peer, 0, count)?;
        match from_peer.read(&mut [0])? {
            0 => Ok(()),
            _ => Err(io::Error::other("more than was sent")),
        }
    }

    /// Reads and compares up to the end, with a look at how many bytes have come
    /// in between. How many came at last, and how it ended.
    pub(crate) fn check_rest(self, from_peer: &Conn, look: impl Fn(u64)) -> (u64, Ended) {
        let mut position = 0;
        let mut buffer = vec![0; usize::try_from(CHUNK).expect("small")];
        let how = loop {
            let mut from_peer = from_peer;

            match from_peer.read(&mut buffer) {
                Ok(0) => break Ended::Finished,
                Ok(count) => {
                    let expected = self.at(position, count as u64);
                    assert!(buffer[..count] == *expected, "differs behind {position}");
                    position += count as u64;
                }
                Err(error) => break Ended::of(&error),
            }
            look(position);
        };
        (position, how)
    }
}

// A prime, so that a block lost or doubled by any buffer or page size shows.
const PERIOD: u64 = 1_048_573;
const CHUNK: u64 = 256 * 1024;

static BYTES: LazyLock<Vec<u8>> = LazyLock::new(|| {
    let mut random = Random::new(0x9E37_79B9_7F4A_7C15);
    let mut bytes = Vec::new();
    while (bytes.len() as u64) < PERIOD {
        bytes.extend_from_slice(&random.next().to_le_bytes());
    }
    bytes.truncate(usize::try_from(PERIOD).expect("small"));
    bytes.extend_from_within(..usize::try_from(CHUNK).expect("small"));
    bytes
});
