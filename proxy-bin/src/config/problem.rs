//! A mistake in the configuration: where, which key, what is wrong, what to write.

use std::borrow::Cow;
use std::fmt;
use std::path::Path;
use std::sync::Arc;

/// One mistake, shown as `proxyd.toml:12: listener.cert: expected .., found ..;
/// write .. instead`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Problem {
    pub(crate) origin: Origin,
    pub(crate) key: String,
    pub(crate) text: String,
}

impl Problem {
    pub(crate) fn new(origin: &Origin, key: impl Into<String>, text: impl Into<String>) -> Self {
        Self {
            origin: origin.clone(),
            key: key.into(),
            text: text.into(),
        }
    }

    /// The order in which mistakes are told: those of the file by their lines,
    /// then those of the command line.
    pub(crate) fn place(&self) -> usize {
        match self.origin {
            Origin::File(_, line) => line,
            Origin::Argument(_) | Origin::Default => usize::MAX,
        }
    }

    /// The usual sentence.
    pub(crate) fn mismatch(
        origin: &Origin,
        key: impl Into<String>,
        mismatch: &Mismatch,
        found: &str,
    ) -> Self {
        let Mismatch { expected, instead } = mismatch;
        let text = format!("expected {expected}, found {found}; write {instead} instead");
        Self::new(origin, key, text)
    }
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: ", self.origin)?;
        let key = match &self.origin {
            // An option names itself; of `listener.cert` only `cert` is news.
            Origin::Argument(_) => self.key.rsplit_once('.').map_or("", |(_, key)| key),
            Origin::Default | Origin::File(..) => &self.key,
        };
        if !key.is_empty() {
            write!(f, "{key}: ")?;
        }
        f.write_str(&self.text)
    }
}

/// Where a value was written.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Origin {
    /// On the command line; shown as the option and its value, secrets hidden.
    Argument(Arc<str>),
    /// Nowhere.
    Default,
    /// In a file, at a line counted from 1.
    File(Arc<Path>, usize),
}

impl Origin {
    pub(crate) fn argument(text: impl Into<String>) -> Self {
        Self::Argument(text.into().into())
    }

    /// The folder that relative paths start from.
    pub(crate) fn folder(&self) -> &Path {
        match self {
            Self::File(path, _) => path.parent().unwrap_or_else(|| Path::new("")),
            Self::Argument(_) | Self::Default => Path::new(""),
        }
    }
}

impl fmt::Display for Origin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Argument(text) => f.write_str(text),
            Self::Default => f.write_str("default"),
            Self::File(path, line) => write!(f, "{}:{line}", path.display()),
        }
    }
}

/// A value and where it was written.
#[derive(Clone, Debug)]
pub(crate) struct Sourced<T> {
    pub(crate) value: T,
    pub(crate) origin: Origin,
}

impl<T> Sourced<T> {
    pub(crate) fn new(value: T, origin: &Origin) -> Self {
        Self {
            value,
            origin: origin.clone(),
        }
    }
}

/// What a value should have been, and what to write.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Mismatch {
    pub(crate) expected: String,
    pub(crate) instead: String,
}

impl Mismatch {
    pub(crate) fn new(expected: impl Into<String>, instead: impl Into<String>) -> Self {
        Self {
            expected: expected.into(),
            instead: instead.into(),
        }
    }
}

/// The entry of `known` that `word` was probably meant to be.
pub(crate) fn nearest<'k>(word: &str, known: &[&'k str]) -> Option<&'k str> {
    let word = word.to_ascii_lowercase();
    let reach = |name: &str| word.len().max(name.len()).div_ceil(3);
    known
        .iter()
        .map(|name| (distance(&word, name), *name))
        .filter(|(distance, name)| *distance <= reach(name))
        .min()
        .map(|(_, name)| name)
}

/// `text` as it may be shown in a message: without what looks like a password,
/// quoted, escaped, shortened.
pub(crate) fn shown(text: &str) -> String {
    let text = &*masked(text);
    let mut short: String = text.chars().take(SHOWN_CHARS).collect();
    if short.len() < text.len() {
        short.push_str("..");
    }
    format!("{short:?}")
}

/// [`shown`] for the name of a user, behind which there may be a password.
pub(crate) fn shown_user(text: &str) -> String {
    match text.split_once(':') {
        Some((name, _)) => shown(&format!("{name}:***")),
        None => shown(text),
    }
}

/// `text` with what looks like a password made unreadable: a login in a URL, or
/// words behind a colon. A wrong guess costs clarity, not a secret.
pub(crate) fn masked(text: &str) -> Cow<'_, str> {
    if let Some((scheme, rest)) = text.split_once("://") {
        if let Some(at) = rest.rfind('@') {
            return format!("{scheme}://***{}", &rest[at..]).into();
        }
        let end = rest.find(['/', '?', '#']).unwrap_or(rest.len());
        let (authority, path) = rest.split_at(end);
        return match authority.split_once(':') {
            Some((name, port)) if !is_address(authority) && !is_port(port) => {
                format!("{scheme}://{name}:***{path}").into()
            }
            _ => text.into(),
        };
    }
    match text.split_once(':') {
        Some((name, rest)) if name.contains(char::is_alphabetic) => {
            match is_address(text) || is_port(rest) || name.contains(' ') {
                true => text.into(),
                false => format!("{name}:***").into(),
            }
        }
        _ => text.into(),
    }
}

/// Of what IP addresses are written with, be they right or wrong.
fn is_address(text: &str) -> bool {
    let fits = |b: u8| b.is_ascii_hexdigit() || b":./%[]".contains(&b);
    text.bytes().all(fits)
}

fn is_port(text: &str) -> bool {
    text.bytes().all(|b| b.is_ascii_digit())
}

/// How many letters must be added, removed or replaced, or neighbours swapped.
fn distance(a: &str, b: &str) -> usize {
    let (a, b): (Vec<char>, Vec<char>) = (a.chars().collect(), b.chars().collect());
    let mut rows = vec![vec![0; b.len() + 1]; a.len() + 1];
    for i in 0..=a.len() {
        for j in 0..=b.len() {
            rows[i][j] = match (i, j) {
                (0, _) => j,
                (_, 0) => i,
                _ => {
                    let differs = usize::from(a[i - 1] != b[j - 1]);
                    let swapped = i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1];
                    let swap = match swapped {
                        true => rows[i - 2][j - 2] + 1,
                        false => usize::MAX,
                    };
                    swap.min(rows[i - 1][j] + 1)
                        .min(rows[i][j - 1] + 1)
                        .min(rows[i - 1][j - 1] + differs)
                }
            };
        }
    }
    rows[a.len()][b.len()]
}

const SHOWN_CHARS: usize = 60;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn p29_what_looks_like_a_password_is_not_shown() {
        for (text, safe) in [
            ("http://u:SEKRET@h:1/x", "http://***@h:1/x"),
            ("http://u:SEK/RET@h", "http://***@h"),
            ("http://u:SEKRET", "http://u:***"),
            ("socks5://u:SEKRET/path", "socks5://u:***/path"),
            ("alice:SEKRET", "alice:***"),
            ("abba:SEK:RET", "abba:***"),
            ("localhost:http", "localhost:***"),
        ] {
            assert_eq!(masked(text), safe);
        }
        for text in [
            "http://h:80/x",
            "http://[2001:db8::1]:80/",
            "localhost:80",
            "fe80::1%25",
            "2001:db8::zz",
            "08:00-18:0x",
            "example.com",
        ] {
            assert_eq!(masked(text), text);
        }
        assert_eq!(shown_user("alice:123"), "\"alice:***\"");
    }

    #[test]
    fn typos_find_their_word() {
        let known = ["address", "auth", "cert", "key", "protocol", "target"];
        for (word, meant) in [
            ("adress", Some("address")),
            ("adddress", Some("address")),
            ("Cert", Some("cert")),
            ("cret", Some("cert")),
            ("protocl", Some("protocol")),
            ("zzz", None),
            ("", None),
        ] {
            assert_eq!(nearest(word, &known), meant, "{word}");
        }
    }

    #[test]
    fn what_is_shown_is_short_and_escaped() {
        assert_eq!(shown("a\n\"b"), r#""a\n\"b""#);
        assert_eq!(shown(&"x".repeat(100)).len(), SHOWN_CHARS + 4);
    }
}
