//! Password hashes as a users file has them.

use std::fmt;

use argon2::{Algorithm, Argon2, Params, PasswordHash, PasswordHasher, Version};
use sha_crypt::{PasswordVerifier, ShaCrypt};

use super::scratch::Scratch;

/// A hash whose verification takes neither minutes nor all memory. `Debug` hides
/// it.
#[derive(Clone, PartialEq, Eq)]
pub(super) enum Hash {
    Argon2(Box<str>),
    Bcrypt(Box<str>),
    ShaCrypt(Box<str>),
}

/// What is wrong with a hash, without a word of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct NoHash {
    pub(super) expected: String,
    pub(super) found: String,
}

impl Hash {
    /// Reads a hash.
    ///
    /// # Errors
    /// If it is damaged, too slow, or of a kind that is guessed too fast.
    pub(super) fn parse(text: &str) -> Result<Self, NoHash> {
        match text.split('$').nth(1) {
            Some("2a" | "2b" | "2y") if text.starts_with('$') => bcrypt(text),
            Some("5" | "6") if text.starts_with('$') => sha_crypt(text),
            Some("argon2d" | "argon2i" | "argon2id") if text.starts_with('$') => argon2(text),
            _ => Err(NoHash {
                expected: KINDS.to_owned(),
                found: other_kind(text).to_owned(),
            }),
        }
    }

    /// Whether it is the hash of this password. Takes its time.
    pub(super) fn verify(&self, password: &[u8], scratch: &mut Scratch) -> bool {
        match self {
            Self::Argon2(hash) => scratch.argon2(hash, password),
            // It looks at no further bytes, so that longer ones would do as well.
            Self::Bcrypt(hash) => {
                bcrypt::verify(password, hash).unwrap_or(false) && password.len() <= BCRYPT_BYTES
            }
            Self::ShaCrypt(hash) => ShaCrypt::default()
                .verify_password(password, &**hash)
                .is_ok(),
        }
    }
}

impl fmt::Debug for Hash {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Argon2(_) => "Argon2(..)",
            Self::Bcrypt(_) => "Bcrypt(..)",
            Self::ShaCrypt(_) => "ShaCrypt(..)",
        })
    }
}

/// How a new hash is made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Recipe {
    /// argon2id in one lane with this memory in KiB and so many passes.
    Argon2 {
        memory: u32,
        passes: u32,
    },
    Bcrypt {
        cost: u32,
    },
    Sha512 {
        rounds: u32,
    },
}

impl Recipe {
    /// Hashes a password with new salt.
    ///
    /// # Errors
    /// Why the recipe or this password is not for it.
    pub(super) fn hash(self, password: &str) -> Result<String, String> {
        let cost = match self {
            Self::Argon2 { memory, passes } => argon2_cost(memory, passes),
            Self::Bcrypt { cost } => bcrypt_cost(cost),
            Self::Sha512 { rounds } => sha_rounds(rounds),
        };
        cost.map_err(|NoHash { expected, found }| format!("expected {expected}, found {found}"))?;
        self.make(password)
    }

    fn make(self, password: &str) -> Result<String, String> {
        let failed = |error: &dyn fmt::Display| error.to_string();
        match self {
            Self::Argon2 { memory, passes } => {
                let params = Params::new(memory, passes, 1, None).map_err(|e| failed(&e))?;
                let argon2 = Argon2::new(Algorithm::Argon2id, Version::V0x13, params);
                let hash = argon2.hash_password(password.as_bytes());
                Ok(hash.map_err(|e| failed(&e))?.to_string())
            }
            Self::Bcrypt { .. } if password.len() > BCRYPT_BYTES => Err(format!(
                "bcrypt looks at {BCRYPT_BYTES} bytes of a password and this has {}; choose a \
                 shorter one, or another algorithm",
                password.len()
            )),
            Self::Bcrypt { cost } => bcrypt::hash(password, cost).map_err(|e| failed(&e)),
            Self::Sha512 { rounds } => {
                let params = sha_crypt::Params::new(rounds).map_err(|e| failed(&e))?;
                let mut salt = [0; 12];
                aws_lc_rs::rand::fill(&mut salt).map_err(|e| failed(&e))?;
                let hash = PasswordHasher::hash_password_with_salt(
                    &ShaCrypt::new(sha_crypt::Algorithm::Sha512Crypt, params),
                    password.as_bytes(),
                    &salt,
                );
                Ok(hash.map_err(|e| failed(&e))?.to_string())
            }
        }
    }
}

fn bcrypt(text: &str) -> Result<Hash, NoHash> {
    match text.parse::<bcrypt::HashParts>() {
        Ok(parts) => bcrypt_cost(parts.get_cost()).map(|()| Hash::Bcrypt(text.into())),
        Err(_) => damaged("bcrypt"),
    }
}

fn bcrypt_cost(cost: u32) -> Result<(), NoHash> {
    match cost {
        4..=MOST_COST => Ok(()),
        cost => wrong(
            format!("a bcrypt cost of 4 to {MOST_COST}"),
            format!("{cost}"),
        ),
    }
}

/// `$6$rounds=N$salt$hash`, the rounds left out for 5000.
fn sha_crypt(text: &str) -> Result<Hash, NoHash> {
    let fields: Vec<&str> = text.split('$').collect();
    let (rounds, salt, hash) = match fields[..] {
        [_, _, salt, hash] => (None, salt, hash),
        [_, _, rounds, salt, hash] => (rounds.strip_prefix("rounds="), salt, hash),
        _ => return damaged("SHA-crypt"),
    };
    let digits = match fields[1] {
        "5" => 43,
        _ => 86,
    };
    let is_digit = |b: u8| b.is_ascii_alphanumeric() || matches!(b, b'.' | b'/');
    let well_formed = (rounds.is_some() || fields.len() == 4)
        && (1..=16).contains(&salt.len())
        && salt.bytes().all(is_digit)
        && hash.len() == digits
        && hash.bytes().all(is_digit);
    match rounds.map_or(Some(5000), |rounds| rounds.parse().ok()) {
        Some(rounds) if well_formed => sha_rounds(rounds).map(|()| Hash::ShaCrypt(text.into())),
        _ => damaged("SHA-crypt"),
    }
}

fn sha_rounds(rounds: u32) -> Result<(), NoHash> {
    match rounds {
        1000..=MOST_ROUNDS => Ok(()),
        rounds => wrong(
            format!("1000 to {MOST_ROUNDS} rounds of SHA-crypt"),
            format!("{rounds}"),
        ),
    }
}

fn argon2(text: &str) -> Result<Hash, NoHash> {
    let Ok(hash) = PasswordHash::new(text) else {
        return damaged("argon2");
    };
    let Ok(params) = Params::try_from(&hash) else {
        return damaged("argon2");
    };
    let has_version = hash
        .version
        .is_some_and(|version| Version::try_from(version).is_ok());
    let salt = hash.salt.as_ref().map_or(0, |salt| salt.len());
    if !has_version || salt < argon2::MIN_SALT_LEN || hash.hash.is_none() {
        return damaged("argon2");
    }
    argon2_cost(params.m_cost(), params.t_cost()).map(|()| Hash::Argon2(text.into()))
}

/// For this memory in KiB and so many passes.
fn argon2_cost(memory: u32, passes: u32) -> Result<(), NoHash> {
    let work = u64::from(memory) * u64::from(passes);
    if memory <= MOST_MEMORY && work <= MOST_WORK {
        return Ok(());
    }
    let expected = format!(
        "argon2 with at most {MOST_MEMORY} KiB (m), and passes (t) for at most {MOST_WORK} KiB in \
         all"
    );
    wrong(expected, format!("m={memory},t={passes}"))
}

fn damaged<T>(kind: &str) -> Result<T, NoHash> {
    wrong(format!("a whole {kind} hash"), "a damaged one")
}

fn wrong<T>(expected: impl Into<String>, found: impl Into<String>) -> Result<T, NoHash> {
    Err(NoHash {
        expected: expected.into(),
        found: found.into(),
    })
}

fn other_kind(text: &str) -> &'static str {
    let is_des = |b: u8| b.is_ascii_alphanumeric() || matches!(b, b'.' | b'/');
    match text {
        "" => "nothing",
        _ if text.starts_with("$apr1$") || text.starts_with("$1$") => {
            "one of MD5, which is guessed too fast"
        }
        _ if text.starts_with("{SHA}") || text.starts_with("{SSHA}") => {
            "one of SHA-1, which is guessed too fast"
        }
        _ if text.starts_with('$') => "one of another kind",
        _ if text.len() == 13 && text.bytes().all(is_des) => {
            "one of DES, which is guessed too fast, or a password in clear"
        }
        _ => "a password in clear",
    }
}

const KINDS: &str = "a hash of argon2 ($argon2id$), bcrypt ($2b$) or SHA-crypt ($6$)";

/// Four seconds, more or less.
const MOST_COST: u32 = 16;
const BCRYPT_BYTES: usize = 72;
const MOST_ROUNDS: u32 = 5_000_000;
/// KiB.
const MOST_MEMORY: u32 = 1024 * 1024;
/// KiB times passes.
const MOST_WORK: u64 = 8 * 1024 * 1024;

#[cfg(test)]
mod tests {
    use super::*;

    /// Published examples of each kind with their passwords.
    const KNOWN: [(&str, &str); 7] = [
        (
            "U*U",
            "$2a$05$CCCCCCCCCCCCCCCCCCCCC.E5YPO9kmyuRGyh0XouQYb4YMJKvyOeW",
        ),
        (
            "U*U",
            "$2b$05$CCCCCCCCCCCCCCCCCCCCC.E5YPO9kmyuRGyh0XouQYb4YMJKvyOeW",
        ),
        (
            "U*U",
            "$2y$05$CCCCCCCCCCCCCCCCCCCCC.E5YPO9kmyuRGyh0XouQYb4YMJKvyOeW",
        ),
        (
            "Hello world!",
            "$5$saltstring$5B8vYYiY.CVt1RlTTf8KbXBH3hsxY/GNooZaBBGWEc5",
        ),
        (
            "Hello world!",
            "$6$rounds=10000$saltstringsaltst$OW1/O6BYHV6BcXZu8QVeXbDWra3Oeqh0sbHbbMCVNSnCM/\
             UrjmM0Dp8vOuZeHBy/YTBmSK6H9qs/y3RnOaw5v.",
        ),
        (
            "password",
            "$argon2i$v=19$m=256,t=2,p=1$c29tZXNhbHQ$iekCn0Y3spW+sCcFanM2xBT63UP2sghkUoHLIUpWRS8",
        ),
        (
            "password",
            "$argon2id$v=19$m=256,t=2,p=1$c29tZXNhbHQ$nf65EOgLrQMR/uIPnA4rEsF5h7TKyQwu9U1bMCHGi/4",
        ),
    ];

    #[test]
    fn hashes_of_every_kind() {
        let mut scratch = Scratch::default();
        for (password, text) in KNOWN {
            let hash = Hash::parse(text).expect("a hash");
            assert!(hash.verify(password.as_bytes(), &mut scratch), "{text}");
            for wrong in ["", "Password", "U*U*", "hello world!"] {
                assert!(
                    !hash.verify(wrong.as_bytes(), &mut scratch),
                    "{text} {wrong}"
                );
            }
        }
    }

    #[test]
    fn what_was_made_is_known_again() {
        let mut scratch = Scratch::default();
        for (recipe, start) in [
            (
                Recipe::Argon2 {
                    memory: 64,
                    passes: 1,
                },
                "$argon2id$v=19$m=64,t=1,p=1$",
            ),
            (Recipe::Bcrypt { cost: 4 }, "$2b$04$"),
            (Recipe::Sha512 { rounds: 1000 }, "$6$rounds=1000$"),
        ] {
            let text = recipe.hash("päss:word").expect("a hash");
            assert!(text.starts_with(start), "{text}");
            assert_ne!(Ok(&text), recipe.hash("päss:word").as_ref(), "salted");
            let hash = Hash::parse(&text).expect("a hash");
            assert!(hash.verify("päss:word".as_bytes(), &mut scratch), "{text}");
            assert!(!hash.verify(b"pass:word", &mut scratch), "{text}");
        }
    }

    #[test]
    fn what_cannot_be_made() {
        let argon2 = |memory, passes| Recipe::Argon2 { memory, passes };
        for (recipe, password) in [
            (Recipe::Bcrypt { cost: 3 }, "secret"),
            (Recipe::Bcrypt { cost: 4 }, &*"p".repeat(73)),
            (Recipe::Sha512 { rounds: 999 }, "secret"),
            (argon2(64, 0), "secret"),
            (argon2(7, 1), "secret"),
        ] {
            let said = recipe.hash(password).expect_err("no hash");
            assert!(!said.contains(password), "{said}");
        }
    }

    #[test]
    fn weak_damaged_and_endless_ones_are_refused() {
        let bcrypt = |cost: &str| {
            let rest = "CCCCCCCCCCCCCCCCCCCCC.E5YPO9kmyuRGyh0XouQYb4YMJKvyOeW";
            format!("$2y${cost}${rest}")
        };
        let argon2 = |params: &str| {
            let hash = "iekCn0Y3spW+sCcFanM2xBT63UP2sghkUoHLIUpWRS8";
            format!("$argon2i$v=19${params}$c29tZXNhbHQ${hash}")
        };
        let sha = |rounds: &str| {
            let hash = "5B8vYYiY.CVt1RlTTf8KbXBH3hsxY/GNooZaBBGWEc5";
            format!("$5${rounds}saltstring${hash}")
        };
        for (text, found) in [
            ("".to_owned(), "nothing"),
            ("secret".to_owned(), "a password in clear"),
            (
                "rqXexS6ZhobKA".to_owned(),
                "one of DES, which is guessed too fast, or a password in clear",
            ),
            (
                "$apr1$r31.....$HqJZimcKQFAMYayBlzkrA/".to_owned(),
                "one of MD5, which is guessed too fast",
            ),
            (
                "{SHA}5en6G6MezRroT3XKqkdPOmY/BfQ=".to_owned(),
                "one of SHA-1, which is guessed too fast",
            ),
            ("$y$j9T$abc$def".to_owned(), "one of another kind"),
            (bcrypt("05").replace("2y", "2x"), "one of another kind"),
            (bcrypt("05").replace("OeW", "Oe"), "a damaged one"),
            (bcrypt("05").replace("OeW", "Oeü"), "a damaged one"),
            (bcrypt("03"), "3"),
            (bcrypt("17"), "17"),
            (sha("rounds=999$"), "999"),
            (sha("rounds=999999999$"), "999999999"),
            (sha("rounds=99999999999999999999$"), "a damaged one"),
            (sha("salt$"), "a damaged one"),
            (sha("").replace("Ec5", "Ec"), "a damaged one"),
            (sha("").replace("saltstring", ""), "a damaged one"),
            (argon2("m=2097152,t=1,p=1"), "m=2097152,t=1"),
            (argon2("m=65536,t=1000,p=1"), "m=65536,t=1000"),
            (
                argon2("m=4294967295,t=4294967295,p=1"),
                "m=4294967295,t=4294967295",
            ),
            (argon2("m=256,t=2,p=64"), "a damaged one"),
            (
                argon2("m=256,t=2,p=1").replace("v=19$", ""),
                "a damaged one",
            ),
            (
                argon2("m=256,t=2,p=1").replace("$c29tZXNhbHQ", ""),
                "a damaged one",
            ),
        ] {
            let refused = Hash::parse(&text).expect_err(&text);
            assert_eq!(refused.found, found, "{text}");
        }
    }

    #[test]
    fn p29_debug_hides_the_hash() {
        let (_, text) = KNOWN[0];
        let shown = format!("{:?}", Hash::parse(text));
        assert!(!shown.contains("CCC"), "{shown}");
    }
}
