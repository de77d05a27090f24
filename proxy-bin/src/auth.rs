//! Users and their passwords, compared in a time that tells nothing.

use std::collections::HashMap;
use std::fmt;
use std::hint::black_box;
use std::rc::Rc;

use proxy_core::Credentials;

use crate::config::User;

/// The users of one worker. `Debug` hides the passwords.
pub(crate) struct Users {
    by_name: HashMap<Box<[u8]>, Known>,
    /// What the password of an unknown user is compared with.
    nobody: Secret,
}

struct Known {
    name: Rc<str>,
    secret: Secret,
}

impl Users {
    pub(crate) fn new(users: &[User]) -> Self {
        let by_name = users.iter().map(|user| {
            let known = Known {
                name: user.name.as_str().into(),
                secret: Secret::new(user.password.as_bytes()),
            };
            (user.name.as_bytes().into(), known)
        });
        Self {
            by_name: by_name.collect(),
            nobody: Secret::new(b""),
        }
    }

    /// The name of the user who shows these credentials.
    ///
    /// An unknown name costs what a wrong password costs, and how much of a
    /// password was right does not show.
    pub(crate) fn check(&self, shown: Credentials<'_>) -> Option<Rc<str>> {
        let known = self.by_name.get(shown.user);
        let secret = known.map_or(&self.nobody, |known| &known.secret);
        let same = secret.is(shown.password);
        // No password is empty, so nobody's is never right.
        known.filter(|_| same).map(|known| Rc::clone(&known.name))
    }
}

impl fmt::Debug for Users {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_set()
            .entries(self.by_name.values().map(|known| &known.name))
            .finish()
    }
}

/// A password in a block of fixed size, its length in the last byte, so that
/// each comparison looks at the same number of bytes.
struct Secret(Box<[u8; 256]>);

impl Secret {
    fn new(password: &[u8]) -> Self {
        // Longer ones do not pass the configuration.
        Self(Box::new(block(password).unwrap_or([0; 256])))
    }

    fn is(&self, shown: &[u8]) -> bool {
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

    fn users() -> Users {
        let user = |name: &str, password: &str| User {
            name: name.to_owned(),
            password: password.to_owned(),
            source: None,
        };
        let long = "p".repeat(255);
        Users::new(&[
            user("alice", "secret"),
            user("bob", "a:b:c"),
            user("ü", &long),
        ])
    }

    fn check(user: &str, password: &str) -> Option<String> {
        let shown = Credentials {
            user: user.as_bytes(),
            password: password.as_bytes(),
        };
        users().check(shown).map(|name| name.to_string())
    }

    #[test]
    fn the_right_password() {
        assert_eq!(check("alice", "secret").as_deref(), Some("alice"));
        assert_eq!(check("bob", "a:b:c").as_deref(), Some("bob"));
        assert_eq!(check("ü", &"p".repeat(255)).as_deref(), Some("ü"));
    }

    #[test]
    fn everything_else() {
        for (user, password) in [
            ("alice", "secre"),
            ("alice", "secret\0"),
            ("alice", "secrets"),
            ("alice", ""),
            ("Alice", "secret"),
            ("alice", "a:b:c"),
            ("nobody", ""),
            ("", ""),
            ("ü", &"p".repeat(254)),
            ("ü", &"p".repeat(256)),
            ("ü", &"p".repeat(1000)),
        ] {
            assert_eq!(check(user, password), None, "{user} {password}");
        }
    }

    #[test]
    fn p29_debug_hides_passwords() {
        let text = format!("{:?}", users());
        assert!(text.contains("alice") && !text.contains("secret"), "{text}");
    }
}
