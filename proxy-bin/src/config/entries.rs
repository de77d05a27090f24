//! Lists of rules and listeners: entries written in place, or one a line in files
//! of their own.

use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::problem::{Mismatch, Origin, Problem, Sourced, shown};
use super::reader::Table;

/// A list as written.
#[derive(Clone, Debug)]
pub(super) struct List<T> {
    /// As in `rule.names`.
    key: String,
    read: fn(&str) -> Result<T, Mismatch>,
    written: Vec<Sourced<Entry<T>>>,
}

#[derive(Clone, Debug)]
enum Entry<T> {
    File(PathBuf),
    One(T),
}

impl<T> List<T> {
    /// Reads the list at `key`, each entry with `read`. `@PATH` stands for the
    /// lines of a file, looked for from the folder of the configuration.
    pub(super) fn read(
        table: &Table<'_>,
        key: &'static str,
        read: fn(&str) -> Result<T, Mismatch>,
    ) -> Option<Self> {
        let folder = table.origin().folder();
        Some(Self {
            written: table.texts(key, |text| Entry::parse(text, folder, read))?,
            ..Self::new(table.path(key), read)
        })
    }

    /// An empty list, called `key` in messages.
    pub(super) fn new(key: impl Into<String>, read: fn(&str) -> Result<T, Mismatch>) -> Self {
        Self {
            key: key.into(),
            read,
            written: Vec::new(),
        }
    }

    /// Adds an entry of the command line; files are looked for from the current
    /// folder.
    ///
    /// # Errors
    /// What is wrong with it.
    pub(super) fn add(&mut self, text: &str, origin: &Origin) -> Result<(), Mismatch> {
        let entry = Entry::parse(text, Path::new(""), self.read)?;
        self.written.push(Sourced::new(entry, origin));
        Ok(())
    }

    /// Where its first entry was written.
    pub(super) fn origin(&self) -> Option<&Origin> {
        Some(&self.written.first()?.origin)
    }

    /// All entries, those of files in the place of their files.
    pub(super) fn load(self, problems: &mut Vec<Problem>) -> Vec<Sourced<T>> {
        let mut all = Vec::with_capacity(self.written.len());
        for Sourced { value, origin } in self.written {
            match value {
                Entry::One(value) => all.push(Sourced { value, origin }),
                Entry::File(path) => match read_file(&path) {
                    Ok(bytes) => {
                        read_lines(&self.key, &path, &bytes, self.read, &mut all, problems)
                    }
                    Err(error) => {
                        problems.push(Problem::new(&origin, &*self.key, unreadable(&path, &error)));
                    }
                },
            }
        }
        all
    }
}

impl<T> Entry<T> {
    fn parse(
        text: &str,
        folder: &Path,
        read: fn(&str) -> Result<T, Mismatch>,
    ) -> Result<Self, Mismatch> {
        match text.strip_prefix('@') {
            Some("") => Err(Mismatch::new(
                "the path of a file behind the @",
                "\"@list\"",
            )),
            Some(path) => Ok(Self::File(folder.join(path))),
            None => read(text).map(Self::One),
        }
    }
}

fn read_lines<T>(
    key: &str,
    path: &Path,
    bytes: &[u8],
    read: fn(&str) -> Result<T, Mismatch>,
    all: &mut Vec<Sourced<T>>,
    problems: &mut Vec<Problem>,
) {
    let path: Arc<Path> = path.into();
    let bytes = bytes.strip_prefix(BYTE_ORDER_MARK).unwrap_or(bytes);
    let mut wrong = 0;
    for (at, line) in bytes.split(|byte| *byte == b'\n').enumerate() {
        let line = String::from_utf8_lossy(line);
        let text = without_comment(&line);
        if text.is_empty() {
            continue;
        }
        let origin = Origin::File(Arc::clone(&path), at + 1);
        match read(text) {
            Ok(value) => all.push(Sourced { value, origin }),
            Err(mismatch) => {
                wrong += 1;
                if wrong <= MOST_TOLD {
                    problems.push(Problem::mismatch(&origin, key, &mismatch, &shown(text)));
                }
            }
        }
    }
    if wrong > MOST_TOLD {
        let origin = Origin::File(path, bytes.split(|byte| *byte == b'\n').count());
        let more = wrong - MOST_TOLD;
        let text =
            format!("expected no mistake, found {more} more; write one entry a line instead");
        problems.push(Problem::new(&origin, key, text));
    }
}

/// A `#` begins a comment at the start of a line or behind a blank: elsewhere it
/// may be part of a user's name.
fn without_comment(line: &str) -> &str {
    let is_comment = |at: &usize| {
        line[..*at]
            .chars()
            .next_back()
            .is_none_or(char::is_whitespace)
    };
    let mut marks = line.match_indices('#').map(|(at, _)| at);
    let end = marks.find(is_comment).unwrap_or(line.len());
    line[..end].trim()
}

/// Only of plain files: a pipe would have to be waited for, a device never ends.
fn read_file(path: &Path) -> std::io::Result<Vec<u8>> {
    let metadata = path.metadata()?;
    if !metadata.is_file() && !metadata.is_dir() {
        return Err(std::io::Error::other("it is no plain file"));
    }
    if metadata.len() > MOST_BYTES {
        let text = format!("it has more than {MOST_BYTES} bytes");
        return Err(std::io::Error::other(text));
    }
    std::fs::read(path)
}

fn unreadable(path: &Path, error: &std::io::Error) -> String {
    let found = match error.kind() {
        ErrorKind::NotADirectory | ErrorKind::NotFound => "nothing".to_owned(),
        ErrorKind::IsADirectory => "a folder".to_owned(),
        _ => format!("one that cannot be read ({error})"),
    };
    format!(
        "expected a file of entries, found {found} at {}; write the path of an existing file instead",
        path.display()
    )
}

const BYTE_ORDER_MARK: &[u8] = "\u{feff}".as_bytes();

/// Millions of entries.
const MOST_BYTES: u64 = 256 * 1024 * 1024;

/// A file of the wrong kind has a mistake in every line.
const MOST_TOLD: usize = 10;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn comments() {
        for (line, text) in [
            ("example.com", "example.com"),
            ("  example.com\t# why\r", "example.com"),
            ("# all of it", ""),
            ("a#b", "a#b"),
            ("a#b #c", "a#b"),
            ("\r", ""),
        ] {
            assert_eq!(without_comment(line), text, "{line:?}");
        }
    }
}
