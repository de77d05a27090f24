//! Patterns of host names, and a compiled list of them.

use std::fmt;
use std::ops::Range;
use std::str::FromStr;

use super::table::{Entry, Table, mix};
use crate::Host;

/// Which names an entry of a list means: `example.com` that name only,
/// `*.example.com` all names below it, `.example.com` both. In any case, with or
/// without a final dot.
///
/// ```
/// use proxy_core::NamePattern;
/// let pattern: NamePattern = ".example.com".parse()?;
/// assert!(pattern.matches("example.com") && pattern.matches("WWW.Example.com."));
/// assert!(!pattern.matches("badexample.com"));
/// # Ok::<(), proxy_core::NamePatternError>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct NamePattern {
    /// In lower case, without a final dot.
    name: Box<str>,
    itself: bool,
    below: bool,
}

impl NamePattern {
    /// Whether it means `name`.
    pub fn matches(&self, name: &str) -> bool {
        let name = trimmed(name);
        let (own, rest) = (
            self.name.as_bytes(),
            name.len().checked_sub(self.name.len()),
        );
        match rest {
            Some(rest) if name[rest..].eq_ignore_ascii_case(own) => match rest {
                0 => self.itself,
                rest => self.below && name[rest - 1] == b'.',
            },
            _ => false,
        }
    }
}

impl FromStr for NamePattern {
    type Err = NamePatternError;

    fn from_str(text: &str) -> Result<Self, NamePatternError> {
        let (name, itself, below) = match (text.strip_prefix("*."), text.strip_prefix('.')) {
            (Some(name), _) => (name, false, true),
            (None, Some(name)) => (name, true, true),
            (None, None) => (text, true, false),
        };
        let name = name.strip_suffix('.').unwrap_or(name);
        match Host::name(name.as_bytes()) {
            Ok(Host::Ip(_)) => Err(NamePatternError::Address),
            Ok(Host::Name(name)) if name.split('.').all(|label| !label.is_empty()) => Ok(Self {
                name: name.to_ascii_lowercase().into(),
                itself,
                below,
            }),
            _ => Err(NamePatternError::Name),
        }
    }
}

impl fmt::Display for NamePattern {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let start = match (self.itself, self.below) {
            (true, true) => ".",
            (false, true) => "*.",
            _ => "",
        };
        write!(f, "{start}{}", self.name)
    }
}

/// Why text is not a pattern of names.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum NamePatternError {
    /// An IP address, which is no name.
    #[error("an address, not a name")]
    Address,
    /// No host name, or a star elsewhere than before its first dot.
    #[error("not a host name, alone or behind '*.' or '.'")]
    Name,
}

/// Names, each with the numbers of the rules that have it in their lists.
///
/// A look-up costs a hash for each label of the name, however many entries there
/// are. It allocates nothing.
///
/// ```
/// use proxy_core::Names;
/// let (all, one) = (".example.com".parse()?, "www.example.com".parse()?);
/// let names = Names::new([(&all, 3), (&all, 5), (&one, 4)]);
/// let hits: Vec<&[u32]> = names.find("www.example.com").collect();
/// assert_eq!(hits, [&[3, 5][..], &[4]]);
/// assert!(names.find("example.org").next().is_none());
/// # Ok::<(), proxy_core::NamePatternError>(())
/// ```
#[derive(Clone, Debug)]
pub struct Names {
    table: Table<Box<str>, Lists>,
    rules: Box<[u32]>,
    /// The labels of the longest entry: further ones need no look.
    deepest: usize,
}

/// Where the rules of a name are.
#[derive(Clone, Debug)]
struct Lists {
    itself: Range<usize>,
    below: Range<usize>,
}

impl Names {
    /// Compiles the entries of all rules, in any order.
    pub fn new<'p>(entries: impl IntoIterator<Item = (&'p NamePattern, u32)>) -> Self {
        let mut rows = Vec::new();
        for (pattern, rule) in entries {
            // The name itself sorts before those below it.
            rows.extend(pattern.itself.then_some((&*pattern.name, false, rule)));
            rows.extend(pattern.below.then_some((&*pattern.name, true, rule)));
        }
        rows.sort_unstable();
        rows.dedup();
        let rules = rows.iter().map(|(.., rule)| *rule).collect();
        let mut start = 0;
        let table = rows.chunk_by(|a, b| a.0 == b.0).map(|group| {
            let middle = start + group.partition_point(|(_, below, _)| !below);
            let end = start + group.len();
            let lists = Lists {
                itself: start..middle,
                below: middle..end,
            };
            start = end;
            Entry {
                hash: mix(hash(START, group[0].0.as_bytes())),
                key: group[0].0.into(),
                value: lists,
            }
        });
        let table = Table::new(table.collect());
        let labels = rows.iter().map(|(name, ..)| name.split('.').count());
        Self {
            table,
            rules,
            deepest: labels.max().unwrap_or(0),
        }
    }

    /// The rules of every entry that means `name`: of each the numbers in
    /// ascending order, from the shortest entry to the longest.
    pub fn find<'t, 'n>(&'t self, name: &'n str) -> NameHits<'t, 'n> {
        NameHits {
            names: self,
            suffixes: Suffixes::new(name),
        }
    }

    /// Whether there is no entry at all.
    pub fn is_empty(&self) -> bool {
        self.rules.is_empty()
    }
}

/// The rules whose entries mean a name, from [`Names::find`].
#[derive(Clone, Debug)]
pub struct NameHits<'t, 'n> {
    names: &'t Names,
    suffixes: Suffixes<'n>,
}

impl<'t> Iterator for NameHits<'t, '_> {
    type Item = &'t [u32];

    fn next(&mut self) -> Option<&'t [u32]> {
        while self.suffixes.labels < self.names.deepest {
            let suffix = self.suffixes.next()?;
            let lower = || suffix.text.iter().map(u8::to_ascii_lowercase);
            let found = self
                .names
                .table
                .find(suffix.hash, |key| key.bytes().cmp(lower()));
            let list = found.map(|lists| match suffix.is_whole {
                true => lists.itself.clone(),
                false => lists.below.clone(),
            });
            if let Some(list) = list.filter(|list| !list.is_empty()) {
                return Some(&self.names.rules[list]);
            }
        }
        None
    }
}

/// The last label of a name, its last two labels, and so on: each with its hash,
/// in one pass.
#[derive(Clone, Debug)]
struct Suffixes<'n> {
    name: &'n [u8],
    /// Where the one before began; `None` behind the end.
    start: Option<usize>,
    hash: u64,
    /// How many were there so far.
    labels: usize,
}

struct Suffix<'n> {
    text: &'n [u8],
    hash: u64,
    is_whole: bool,
}

impl<'n> Suffixes<'n> {
    fn new(name: &'n str) -> Self {
        let name = trimmed(name);
        Self {
            name,
            start: Some(name.len()),
            hash: START,
            labels: 0,
        }
    }

    fn next(&mut self) -> Option<Suffix<'n>> {
        let end = self.start?;
        // Behind the first label its dot comes first.
        let before = &self.name[..end - usize::from(self.labels > 0)];
        let dot = before.iter().rposition(|byte| *byte == b'.');
        let start = dot.map_or(0, |dot| dot + 1);
        self.hash = hash(self.hash, &self.name[start..end]);
        self.start = dot.map(|dot| dot + 1);
        self.labels += 1;
        Some(Suffix {
            text: &self.name[start..],
            hash: mix(self.hash),
            is_whole: dot.is_none(),
        })
    }
}

/// Goes on with a hash over `bytes`, from the last to the first.
fn hash(start: u64, bytes: &[u8]) -> u64 {
    bytes.iter().rev().fold(start, |hash, byte| {
        (hash ^ u64::from(byte.to_ascii_lowercase())).wrapping_mul(PRIME)
    })
}

fn trimmed(name: &str) -> &[u8] {
    name.trim_end_matches('.').as_bytes()
}

/// Those of FNV-1a with 64 bits.
const START: u64 = 0xcbf2_9ce4_8422_2325;
const PRIME: u64 = 0x0100_0000_01b3;

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn pattern(text: &str) -> NamePattern {
        text.parse().expect(text)
    }

    fn compiled(patterns: &[NamePattern]) -> Names {
        Names::new(patterns.iter().zip(0..))
    }

    fn found(names: &Names, name: &str) -> Vec<u32> {
        let mut rules: Vec<u32> = names.find(name).flatten().copied().collect();
        rules.sort_unstable();
        rules.dedup();
        rules
    }

    #[test]
    fn what_each_form_means() {
        for (text, name, meant) in [
            ("example.com", "example.com", true),
            ("example.com", "EXAMPLE.com.", true),
            ("Example.COM.", "example.com", true),
            ("example.com", "www.example.com", false),
            ("*.example.com", "example.com", false),
            ("*.example.com", "www.example.com", true),
            ("*.example.com", "a.b.c.example.com.", true),
            ("*.example.com", "badexample.com", false),
            (".example.com", "example.com", true),
            (".example.com", "www.example.com", true),
            (".example.com", "badexample.com", false),
            (".example.com", "com", false),
            // More dots at the end are the same name to some resolvers.
            (".example.com", "www.example.com..", true),
            (".com", "example.com", true),
            ("*.com", "com", false),
        ] {
            let pattern = pattern(text);
            assert_eq!(pattern.matches(name), meant, "{text} {name}");
            let names = compiled(&[pattern]);
            assert_eq!(names.find(name).next().is_some(), meant, "{text} {name}");
        }
    }

    #[test]
    fn what_is_no_pattern() {
        use NamePatternError::{Address, Name};
        for (text, error) in [
            ("", Name),
            (".", Name),
            ("*", Name),
            ("*.", Name),
            ("*example.com", Name),
            ("www.*.com", Name),
            ("**.example.com", Name),
            ("..example.com", Name),
            ("example..com", Name),
            ("example.com..", Name),
            ("exa mple.com", Name),
            ("ü.example", Name),
            ("127.1", Name),
            ("192.0.2.1", Address),
            (".192.0.2.1", Address),
            ("::1", Address),
        ] {
            assert_eq!(text.parse::<NamePattern>(), Err(error), "{text}");
        }
    }

    #[test]
    fn rules_come_in_ascending_lists() {
        let (wide, below, one) = (
            pattern(".example.com"),
            pattern("*.example.com"),
            pattern("a.example.com"),
        );
        let names = Names::new([(&wide, 7), (&below, 2), (&one, 5), (&wide, 1), (&one, 5)]);
        let hits: Vec<&[u32]> = names.find("a.example.com").collect();
        assert_eq!(hits, [&[1, 2, 7][..], &[5]]);
        let hits: Vec<&[u32]> = names.find("example.com").collect();
        assert_eq!(hits, [&[1, 7][..]]);
        assert!(compiled(&[]).is_empty() && !names.is_empty());
    }

    #[test]
    fn as_many_hashes_as_the_entries_have_labels_at_most() {
        let patterns: Vec<NamePattern> = (0..100_000)
            .map(|at| pattern(&format!(".d{at}.example")))
            .collect();
        let names = compiled(&patterns);
        assert_eq!(found(&names, "www.d77777.example"), [77_777]);
        assert!(found(&names, "www.d100000.example").is_empty());
        let mut hits = names.find("a.b.c.d.e.f.g.h.d5.example");
        while hits.next().is_some() {}
        assert_eq!(hits.suffixes.labels, 2);
    }

    proptest! {
        #[test]
        fn a_list_finds_what_its_patterns_mean(
            texts in prop::collection::vec("([*]?[.])?([ab][.]){0,3}[abAB]{1,2}[.]?", 0..20),
            name in "[.]?([abAB][.]){0,5}[ab]{1,2}[.]{0,2}",
        ) {
            let patterns: Vec<NamePattern> = texts.iter().map(|text| pattern(text)).collect();
            let meant = patterns.iter().zip(0..).filter(|(pattern, _)| pattern.matches(&name));
            let meant: Vec<u32> = meant.map(|(_, rule)| rule).collect();
            prop_assert_eq!(found(&compiled(&patterns), &name), meant);
        }

        #[test]
        fn no_text_panics(text in "\\PC{0,40}", name in "\\PC{0,40}") {
            if let Ok(pattern) = text.parse::<NamePattern>() {
                prop_assert_eq!(pattern.to_string().parse(), Ok(pattern.clone()));
                pattern.matches(&name);
                found(&compiled(&[pattern]), &name);
            }
        }
    }
}
