//! Typed reading of TOML tables that reports every mistake with its line.

use std::cell::RefCell;
use std::ops::RangeInclusive;
use std::path::Path;
use std::sync::Arc;

use toml::Spanned;
use toml::de::{DeTable, DeValue};

use super::problem::{Mismatch, Origin, Problem, Sourced, nearest, shown};
use super::{hint, value};

/// A document, and the mistakes found in it so far.
pub(super) struct Document {
    path: Arc<Path>,
    /// The keys that may stand outside of tables.
    top: &'static [&'static str],
    line_starts: Vec<usize>,
    problems: RefCell<Vec<Problem>>,
}

impl Document {
    pub(super) fn new(path: &Path, text: &str, top: &'static [&'static str]) -> Self {
        let breaks = text.match_indices('\n').map(|(at, _)| at + 1);
        Self {
            path: path.into(),
            top,
            line_starts: std::iter::once(0).chain(breaks).collect(),
            problems: RefCell::default(),
        }
    }

    pub(super) fn into_problems(self) -> Vec<Problem> {
        self.problems.into_inner()
    }

    pub(super) fn origin(&self, offset: usize) -> Origin {
        let line = self.line_starts.partition_point(|start| *start <= offset);
        Origin::File(Arc::clone(&self.path), line)
    }

    pub(super) fn report(&self, problem: Problem) {
        self.problems.borrow_mut().push(problem);
    }

    /// The table of the whole document.
    pub(super) fn root<'a>(&'a self, table: &'a DeTable<'a>) -> Table<'a> {
        Table::new(self, "", self.origin(0), table, self.top)
    }
}

/// One table of a document. Asking for a key reports what is wrong with it and
/// answers `None` if it is missing or wrong.
pub(super) struct Table<'a> {
    document: &'a Document,
    /// As in `timeouts`, empty at the top.
    name: &'static str,
    origin: Origin,
    entries: &'a DeTable<'a>,
}

impl<'a> Table<'a> {
    fn new(
        document: &'a Document,
        name: &'static str,
        origin: Origin,
        entries: &'a DeTable<'a>,
        known: &[&str],
    ) -> Self {
        let table = Self {
            document,
            name,
            origin,
            entries,
        };
        table.report_unknown(known);
        table
    }

    pub(super) fn origin(&self) -> &Origin {
        &self.origin
    }

    /// A table of its own: `[name]`.
    pub(super) fn table(&self, name: &'static str, known: &[&str]) -> Option<Self> {
        let value = self.entries.get(name)?;
        match value.get_ref() {
            DeValue::Table(entries) => Some(self.inner(name, value, entries, known)),
            _ => {
                let mismatch = Mismatch::new("a table", format!("[{name}]"));
                self.wrong(name, value, &mismatch);
                None
            }
        }
    }

    /// All of `[[name]]`.
    pub(super) fn tables(&self, name: &'static str, known: &[&str]) -> Vec<Self> {
        let mismatch = Mismatch::new("an array of tables", format!("[[{name}]]"));
        let Some(value) = self.entries.get(name) else {
            return Vec::new();
        };
        let DeValue::Array(items) = value.get_ref() else {
            self.wrong(name, value, &mismatch);
            return Vec::new();
        };
        let mut tables = Vec::new();
        for item in items.iter() {
            match item.get_ref() {
                DeValue::Table(entries) => tables.push(self.inner(name, item, entries, known)),
                _ => self.wrong(name, item, &mismatch),
            }
        }
        tables
    }

    /// Text that `read` understands.
    pub(super) fn text<T>(
        &self,
        key: &str,
        read: impl FnOnce(&str) -> Result<T, Mismatch>,
    ) -> Option<Sourced<T>> {
        let value = self.entries.get(key)?;
        let origin = self.document.origin(value.span().start);
        let mismatch = match value.get_ref() {
            DeValue::String(text) => match read(text) {
                Ok(value) => return Some(Sourced::new(value, &origin)),
                Err(mismatch) => mismatch,
            },
            // Only for what `read` says of its expectations.
            other => match read(&plain(other)) {
                Ok(_) => {
                    let instead = format!("{:?}", plain(other));
                    Mismatch::new("a string", instead)
                }
                Err(mismatch) => mismatch,
            },
        };
        self.wrong(key, value, &mismatch);
        None
    }

    /// A list of texts that `read` understands, or a single one. `None` if the
    /// key is missing or none is right.
    pub(super) fn texts<T>(
        &self,
        key: &str,
        read: impl Fn(&str) -> Result<T, Mismatch>,
    ) -> Option<Vec<Sourced<T>>> {
        self.texts_as(key, read, shown)
    }

    /// [`texts`](Self::texts); a wrong one is repeated in messages as `show`
    /// says.
    pub(super) fn texts_as<T>(
        &self,
        key: &str,
        read: impl Fn(&str) -> Result<T, Mismatch>,
        show: impl Fn(&str) -> String,
    ) -> Option<Vec<Sourced<T>>> {
        let value = self.entries.get(key)?;
        let items = match value.get_ref() {
            DeValue::Array(items) => &items[..],
            _ => std::slice::from_ref(value),
        };
        let mut found = Vec::with_capacity(items.len());
        for item in items {
            let origin = self.document.origin(item.span().start);
            let (mismatch, wrong) = match item.get_ref() {
                DeValue::String(text) => match read(text) {
                    Ok(value) => {
                        found.push(Sourced::new(value, &origin));
                        continue;
                    }
                    Err(mismatch) => (mismatch, show(text)),
                },
                other => {
                    let instead = format!("{:?}", plain(other));
                    (Mismatch::new("a string", instead), describe(other))
                }
            };
            let problem = Problem::mismatch(&origin, self.path(key), &mismatch, &wrong);
            self.document.report(problem);
        }
        if items.is_empty() {
            let mismatch = Mismatch::new("at least one entry", "one, or leave the key out");
            let origin = self.document.origin(value.span().start);
            let problem = Problem::mismatch(&origin, self.path(key), &mismatch, "an empty array");
            self.document.report(problem);
        }
        (!found.is_empty()).then_some(found)
    }

    /// Whether the key is there with `[]`.
    pub(super) fn is_empty_list(&self, key: &str) -> bool {
        let value = self.entries.get(key).map(Spanned::get_ref);
        matches!(value, Some(DeValue::Array(items)) if items.is_empty())
    }

    /// Text that must not be repeated in a message.
    pub(super) fn secret<T>(
        &self,
        key: &str,
        read: impl FnOnce(&str) -> Result<T, Mismatch>,
    ) -> Option<Sourced<T>> {
        let value = self.entries.get(key)?;
        let origin = self.document.origin(value.span().start);
        let (mismatch, found) = match value.get_ref() {
            DeValue::String(text) => match read(text) {
                Ok(value) => return Some(Sourced::new(value, &origin)),
                Err(mismatch) => (mismatch, value::wrong_password(text)),
            },
            other => (
                Mismatch::new("a string", "the value between quotes"),
                kind(other),
            ),
        };
        self.document
            .report(Problem::mismatch(&origin, self.path(key), &mismatch, found));
        None
    }

    pub(super) fn boolean(&self, key: &str) -> Option<Sourced<bool>> {
        let value = self.entries.get(key)?;
        let origin = self.document.origin(value.span().start);
        if let DeValue::Boolean(value) = value.get_ref() {
            return Some(Sourced::new(*value, &origin));
        }
        let instead = match plain(value.get_ref()).to_ascii_lowercase().as_str() {
            "true" | "on" | "yes" | "1" => "true",
            "false" | "off" | "no" | "0" => "false",
            _ => "true or false",
        };
        self.wrong(key, value, &Mismatch::new("true or false", instead));
        None
    }

    /// Whether `key` is there with a string.
    pub(super) fn is_text(&self, key: &str) -> bool {
        let value = self.entries.get(key).map(Spanned::get_ref);
        matches!(value, Some(DeValue::String(_)))
    }

    pub(super) fn integer(
        &self,
        key: &str,
        range: RangeInclusive<usize>,
    ) -> Option<Sourced<usize>> {
        let value = self.entries.get(key)?;
        let origin = self.document.origin(value.span().start);
        let number = integer(value.get_ref());
        if let Some(number) = number.filter(|number| range.contains(number)) {
            return Some(Sourced::new(number, &origin));
        }
        let (low, high) = (*range.start(), *range.end());
        let expected = match high {
            usize::MAX => format!("a whole number of at least {low}"),
            _ => format!("a whole number from {low} to {high}"),
        };
        let meant = || hint::number(&plain(value.get_ref()), key.ends_with("bytes"));
        let instead = number.or_else(meant).unwrap_or(low).clamp(low, high);
        self.wrong(key, value, &Mismatch::new(expected, instead.to_string()));
        None
    }

    /// Whether `key` was written, rightly or not.
    pub(super) fn has(&self, key: &str) -> bool {
        self.entries.contains_key(key)
    }

    pub(super) fn report(&self, problem: Problem) {
        self.document.report(problem);
    }

    /// Reports that `key` must be there, unless it is.
    pub(super) fn require(&self, key: &str, mismatch: &Mismatch) {
        if !self.entries.contains_key(key) {
            let problem = Problem::mismatch(&self.origin, self.path(key), mismatch, "nothing");
            self.document.report(problem);
        }
    }

    fn inner(
        &self,
        name: &'static str,
        value: &Spanned<DeValue<'a>>,
        entries: &'a DeTable<'a>,
        known: &[&str],
    ) -> Self {
        let origin = self.document.origin(value.span().start);
        Table::new(self.document, name, origin, entries, known)
    }

    fn report_unknown(&self, known: &[&str]) {
        for key in self.entries.keys() {
            let name = key.get_ref().as_ref();
            if known.contains(&name) {
                continue;
            }
            let mut sorted = known.to_vec();
            sorted.sort_unstable();
            let hint = nearest(name, &sorted).unwrap_or("one of these");
            let origin = self.document.origin(key.span().start);
            let path = self.path(&name.escape_debug().to_string());
            let mismatch = Mismatch::new(sorted.join(", "), hint);
            // TOML has no way back out of a table.
            let problem = match self.document.top.contains(&name) {
                true => Problem::mismatch(
                    &origin,
                    path,
                    &Mismatch {
                        instead: format!("{name} above the first [table]"),
                        ..mismatch
                    },
                    &format!("{name}, a top-level key"),
                ),
                false => Problem::mismatch(&origin, path, &mismatch, "an unknown key"),
            };
            self.document.report(problem);
        }
    }

    fn wrong(&self, key: &str, value: &Spanned<DeValue<'_>>, mismatch: &Mismatch) {
        let origin = self.document.origin(value.span().start);
        let found = describe(value.get_ref());
        let problem = Problem::mismatch(&origin, self.path(key), mismatch, &found);
        self.document.report(problem);
    }

    /// The key as messages name it.
    pub(super) fn path(&self, key: &str) -> String {
        match self.name {
            "" => key.to_owned(),
            name => format!("{name}.{key}"),
        }
    }
}

fn integer(value: &DeValue<'_>) -> Option<usize> {
    let integer = value.as_integer()?;
    usize::from_str_radix(integer.as_str(), integer.radix()).ok()
}

/// The bare text of a value without parts.
fn plain(value: &DeValue<'_>) -> String {
    match value {
        DeValue::String(text) => text.to_string(),
        DeValue::Integer(number) => number.to_string(),
        DeValue::Float(number) => number.to_string(),
        DeValue::Boolean(value) => value.to_string(),
        DeValue::Datetime(time) => time.to_string(),
        DeValue::Array(_) | DeValue::Table(_) => String::new(),
    }
}

fn describe(value: &DeValue<'_>) -> String {
    match value {
        DeValue::String(text) => shown(text),
        DeValue::Integer(_) => format!("the integer {}", plain(value)),
        DeValue::Float(_) => format!("the number {}", plain(value)),
        DeValue::Boolean(value) => value.to_string(),
        DeValue::Datetime(_) => format!("the date {}", plain(value)),
        DeValue::Array(_) | DeValue::Table(_) => kind(value).to_owned(),
    }
}

fn kind(value: &DeValue<'_>) -> &'static str {
    match value {
        DeValue::String(_) => "a string",
        DeValue::Integer(_) => "an integer",
        DeValue::Float(_) => "a number",
        DeValue::Boolean(_) => "a boolean",
        DeValue::Datetime(_) => "a date",
        DeValue::Array(_) => "an array",
        DeValue::Table(_) => "a table",
    }
}
