//! The memory that argon2 works in, one hash after the other.

use argon2::{Argon2, Block, Params, PasswordHash, Version};
use aws_lc_rs::constant_time::verify_slices_are_equal;

/// Megabytes that are kept while there are passwords to verify.
#[derive(Default)]
pub(super) struct Scratch(Vec<Block>);

impl Scratch {
    /// Whether `hash` is that of the password; also `false` if it is none of
    /// argon2.
    pub(super) fn argon2(&mut self, hash: &str, password: &[u8]) -> bool {
        self.try_argon2(hash, password).unwrap_or(false)
    }

    /// Gives the memory back to the system.
    pub(super) fn release(&mut self) {
        self.0 = Vec::new();
    }

    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    fn try_argon2(&mut self, hash: &str, password: &[u8]) -> Option<bool> {
        let hash = PasswordHash::new(hash).ok()?;
        let (salt, expected) = (hash.salt.as_ref()?, hash.hash.as_ref()?);
        let params = Params::try_from(&hash).ok()?;
        let blocks = self.blocks(params.block_count());
        let algorithm = hash.algorithm.as_str().parse().ok()?;
        let version = Version::try_from(hash.version?).ok()?;
        let mut found = vec![0; expected.len()];
        Argon2::new(algorithm, version, params)
            .hash_password_into_with_memory(password, salt, &mut found, blocks)
            .ok()?;
        Some(verify_slices_are_equal(&found, expected.as_bytes()).is_ok())
    }

    fn blocks(&mut self, count: usize) -> &mut [Block] {
        if self.0.capacity() < count {
            self.0 = Vec::with_capacity(count.max(MAPPED));
        }
        self.0.resize(count.max(self.0.len()), Block::default());
        &mut self.0[..count]
    }
}

/// Blocks of 1 KiB that are too much for glibc's heaps, in which such pieces
/// find no place of their predecessors and pile up (120 MB for pieces of 19). On
/// its own such a piece is mapped, and unmapped when it is freed; what is not
/// written to takes no memory.
const MAPPED: usize = 33 * 1024;

#[cfg(test)]
mod tests {
    use super::*;

    /// By the reference implementation, for the password `password`.
    const SMALL: &str =
        "$argon2id$v=19$m=256,t=2,p=1$c29tZXNhbHQ$nf65EOgLrQMR/uIPnA4rEsF5h7TKyQwu9U1bMCHGi/4";
    const LANES: &str =
        "$argon2id$v=19$m=256,t=2,p=2$c29tZXNhbHQ$bQk8UB/VmZZF4Oo79iDXuL5/0ttZwg2f/5U52iv1cDc";

    #[test]
    fn old_content_does_no_harm() {
        let mut scratch = Scratch::default();
        for hash in [SMALL, LANES, SMALL, LANES] {
            assert!(scratch.argon2(hash, b"password"), "{hash}");
            assert!(!scratch.argon2(hash, b"Password"), "{hash}");
        }
        assert!(!scratch.is_empty());
        scratch.release();
        assert!(scratch.is_empty());
        assert!(scratch.argon2(SMALL, b"password"));
    }

    #[test]
    fn what_is_no_hash_fits_nothing() {
        for text in ["", "$2b$04$", "$argon2id$v=19$m=256,t=2,p=1$c29tZXNhbHQ"] {
            assert!(!Scratch::default().argon2(text, b"password"), "{text}");
        }
    }
}
