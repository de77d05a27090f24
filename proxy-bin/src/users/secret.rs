//! A password in clear, compared in a time that tells nothing.

use std::hint::black_box;

/// A password in a block of fixed size, its length in the last byte, so that
/// each comparison looks at the same number of bytes.
#[derive(PartialEq, Eq)]
pub(super) struct Secret(Box<[u8; 256]>);

impl Secret {
    pub(super) fn new(password: &[u8]) -> Self {
        // Longer ones do not pass the configuration.
        Self(Box::new(block(password).unwrap_or([0; 256])))
    }

    pub(super) fn is(&self, shown: &[u8]) -> bool {
        let Some(shown) = block(shown) else {
            return false;
        };
        let differences = self
            .0
            .iter()
            .zip(&shown)
            .fold(0, |all, (a, b)| all | (a ^ b));
        black_box(differences) == 0
    }
}

fn block(password: &[u8]) -> Option<[u8; 256]> {
    let mut block = [0; 256];
    block[..password.len().min(256)].copy_from_slice(password.get(..256).unwrap_or(password));
    block[255] = u8::try_from(password.len()).ok()?;
    Some(block)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_same_is_the_same() {
        let long = "p".repeat(255);
        for (password, shown, same) in [
            ("secret", "secret", true),
            ("a:b:c", "a:b:c", true),
            (&long, &long, true),
            ("secret", "secre", false),
            ("secret", "secret\0", false),
            ("secret", "secrets", false),
            ("secret", "", false),
            (&long, &long[1..], false),
            (&long, &"p".repeat(256), false),
            (&long, &"p".repeat(1000), false),
        ] {
            let secret = Secret::new(password.as_bytes());
            assert_eq!(secret.is(shown.as_bytes()), same, "{password} {shown}");
        }
    }
}
