//! What is in a datagram, and whether it came back unharmed.

/// Flow, slot and sequence number.
pub(crate) const HEAD: usize = 16;
const OFFSETS: u64 = 4096;

pub(crate) struct Pattern {
    table: Vec<u8>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Mark {
    pub(crate) flow: u32,
    pub(crate) slot: u32,
    pub(crate) sequence: u64,
}

impl Pattern {
    /// For payloads of up to `size` bytes.
    pub(crate) fn new(size: usize) -> Self {
        let mut state = 0x9e37_79b9_7f4a_7c15_u64;
        let table = (0..4096 + size)
            .map(|_| {
                state ^= state << 13;
                state ^= state >> 7;
                state ^= state << 17;
                (state >> 32) as u8
            })
            .collect();
        Self { table }
    }

    fn body(&self, mark: Mark, size: usize) -> &[u8] {
        let offset = mark
            .sequence
            .wrapping_mul(61)
            .wrapping_add(u64::from(mark.flow) * 7)
            % OFFSETS;
        let offset = offset as usize;
        &self.table[offset..offset + size]
    }

    pub(crate) fn write(&self, mark: Mark, payload: &mut [u8]) {
        let (head, body) = payload.split_at_mut(HEAD);
        head[..4].copy_from_slice(&mark.flow.to_be_bytes());
        head[4..8].copy_from_slice(&mark.slot.to_be_bytes());
        head[8..].copy_from_slice(&mark.sequence.to_be_bytes());
        body.copy_from_slice(self.body(mark, body.len()));
    }

    /// The mark, if the payload has `size` bytes and each is right.
    pub(crate) fn check(&self, payload: &[u8], size: usize) -> Result<Mark, String> {
        if payload.len() != size {
            return Err(format!("{} bytes instead of {size}", payload.len()));
        }
        let (head, body) = payload.split_at(HEAD);
        let word = |at: usize| {
            head[at..at + 4]
                .iter()
                .fold(0, |word: u32, byte| word << 8 | u32::from(*byte))
        };
        let mark = Mark {
            flow: word(0),
            slot: word(4),
            sequence: u64::from(word(8)) << 32 | u64::from(word(12)),
        };
        let expected = self.body(mark, body.len());
        if body != expected {
            let at = body.iter().zip(expected).position(|(a, b)| a != b);
            return Err(format!(
                "{mark:?}: a wrong byte at {}",
                HEAD + at.unwrap_or(0)
            ));
        }
        Ok(mark)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_wrong_byte_is_seen() {
        let pattern = Pattern::new(64);
        let mark = Mark {
            flow: 3,
            slot: 7,
            sequence: 1 << 33,
        };
        let mut payload = [0; 64];
        pattern.write(mark, &mut payload);
        assert_eq!(pattern.check(&payload, 64), Ok(mark));
        assert!(pattern.check(&payload[..63], 64).is_err());
        for at in 0..64 {
            payload[at] ^= 1;
            assert_ne!(pattern.check(&payload, 64), Ok(mark), "{at}");
            payload[at] ^= 1;
        }
    }
}
