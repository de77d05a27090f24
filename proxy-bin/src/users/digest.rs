//! Credentials as they are remembered: keyed digests, never the words themselves.

use aws_lc_rs::error::Unspecified;
use aws_lc_rs::hmac::{Context, HMAC_SHA256, Key};
use aws_lc_rs::rand::SystemRandom;
use proxy_core::Credentials;

/// What stands for a user name and a password together.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub(super) struct Digest([u8; 32]);

/// A random key of this process: without it a digest says nothing, and nobody
/// finds two credentials that share one.
pub(super) struct Keyed(Key);

impl Keyed {
    /// # Errors
    /// If the system has no random numbers.
    pub(super) fn new() -> Result<Self, Unspecified> {
        Key::generate(HMAC_SHA256, &SystemRandom::new()).map(Self)
    }

    pub(super) fn credentials(&self, shown: Credentials<'_>) -> Digest {
        Digest(self.digest(&[shown.user, shown.password]))
    }

    /// A number that always is the same for a name, and that nobody can guess.
    pub(super) fn number(&self, name: &[u8]) -> u64 {
        let [a, b, c, d, e, f, g, h, ..] = self.digest(&[name]);
        u64::from_le_bytes([a, b, c, d, e, f, g, h])
    }

    /// Each part goes behind its length, so that no two lists are alike.
    fn digest(&self, parts: &[&[u8]]) -> [u8; 32] {
        let mut context = Context::with_key(&self.0);
        for part in parts {
            context.update(&(part.len() as u64).to_le_bytes());
            context.update(part);
        }
        let mut digest = [0; 32];
        digest.copy_from_slice(context.sign().as_ref());
        digest
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn user_and_password_are_not_run_together() {
        let keyed = Keyed::new().expect("random numbers");
        let digest = |user: &'static str, password: &'static str| {
            keyed.credentials(Credentials {
                user: user.as_bytes(),
                password: password.as_bytes(),
            })
        };
        assert!(digest("alice", "secret") == digest("alice", "secret"));
        assert!(digest("alice", "secret") != digest("alices", "ecret"));
        assert!(digest("alice", "") != digest("", "alice"));
        let other = Keyed::new().expect("random numbers");
        assert_ne!(keyed.number(b"alice"), other.number(b"alice"));
    }
}
