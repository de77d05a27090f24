//! What to say of a line that is not TOML.

use std::ops::Range;

use super::problem::nearest;

/// A message about the mistake at `span` of `text`, for which the parser has the
/// words `said`. Values are repeated only under a key of `harmless`, so that no
/// password is.
pub(super) fn message(text: &str, span: &Range<usize>, said: &str, harmless: &[&str]) -> String {
    let line = Line::new(text, span.start, harmless);
    let known = match said {
        "duplicate key" => Some(line.double(text.get(span.clone()).unwrap_or(""))),
        _ if said.starts_with("key with no value") || said.starts_with("invalid unquoted key") => {
            line.without_equals_sign()
        }
        _ if said.starts_with("unclosed") && line.text.starts_with('[') => Some(line.open_header()),
        _ if said.starts_with("unclosed array") => {
            Some("expected ] behind the last value, found none; write one instead".to_owned())
        }
        _ => line.value_problem(said),
    };
    known.unwrap_or_else(|| {
        // Such as `invalid table, expected ..`.
        let said = said.replace(", expected", "; TOML expects");
        format!("expected a line such as key = \"value\", found a mistake in it: {said}")
    })
}

/// A line in the parts it seems to have.
struct Line<'t> {
    text: &'t str,
    /// Before the equals sign; empty if there is none.
    key: &'t str,
    value: &'t str,
    harmless: bool,
    keys: &'t [&'t str],
}

impl<'t> Line<'t> {
    fn new(text: &'t str, offset: usize, keys: &'t [&'t str]) -> Self {
        let offset = offset.min(text.len());
        let start = text[..offset].rfind('\n').map_or(0, |at| at + 1);
        let line = text[start..].lines().next().unwrap_or("").trim();
        let (key, value) = line.split_once('=').unwrap_or(("", line));
        let key = key.trim();
        let value = value.trim();
        let harmless = keys.contains(&key) && key != "password";
        Self {
            text: line,
            key,
            value,
            harmless,
            keys,
        }
    }

    fn double(&self, name: &str) -> String {
        let name = name.trim();
        if self.text.starts_with("[[") {
            return format!(
                "expected one kind of table, found [[{name}]] behind [{name}]; write [[{name}]] \
                 at each of them instead"
            );
        }
        match self.text.starts_with('[') {
            true => format!(
                "expected each table once, found [{name}] again; write its keys below the first \
                 one instead"
            ),
            false if is_word(name) => format!(
                "expected each key once, found {name} again; write only one of them instead"
            ),
            false => {
                "expected each key once, found one again; write only one of them instead".to_owned()
            }
        }
    }

    fn without_equals_sign(&self) -> Option<String> {
        let word: &str = self.text.split([' ', ':', '\t']).next()?;
        let key = nearest(word, self.keys).filter(|_| self.key.is_empty())?;
        let found = match self.text.contains(':') {
            true => "a colon",
            false => "no equals sign",
        };
        Some(format!(
            "expected key = value, found {found}; write {key} = .. instead"
        ))
    }

    fn open_header(&self) -> String {
        let name = self.text.trim_matches(['[', ']', ' ']);
        let instead = match is_word(name) {
            true if self.text.starts_with("[[") => format!("[[{name}]]"),
            true => format!("[{name}]"),
            false => "it".to_owned(),
        };
        format!("expected ] behind the name of a table, found none; write {instead} instead")
    }

    fn value_problem(&self, said: &str) -> Option<String> {
        let key = Some(self.key).filter(|key| is_word(key))?;
        let quoted = self.value.starts_with(['"', '\'']);
        let text = if self.value.is_empty() {
            format!("expected a value, found nothing; write {key} = .. instead")
        } else if quoted && said.starts_with("unexpected key or value") {
            format!(
                "expected nothing behind the closing quote, found more; write {key} = '..' \
                 instead, or \\\" for a quote inside"
            )
        } else if quoted && said.contains("string, expected") {
            format!(
                "expected a closing quote, found the end of the line; write {key} = \"..\" instead"
            )
        } else if quoted && (said.contains("escape") || said.contains("unicode")) {
            format!(
                "expected a sequence that TOML knows behind a backslash, found another; write \
                 {key} = '..' instead, or \\\\ for a backslash"
            )
        } else if quoted || self.value.starts_with(['[', '{']) {
            return None;
        } else {
            let value = self.value.split('#').next().unwrap_or("").trim();
            format!(
                "expected text between quotes, a number, true or false, found something else; \
                 write {key} = {} instead",
                self.instead(value)
            )
        };
        Some(text)
    }

    fn instead(&self, value: &str) -> String {
        let lower = value.to_ascii_lowercase();
        let number = value.trim_start_matches('0');
        match self.harmless {
            _ if lower == "true" || lower == "false" => lower,
            true if !number.is_empty() && number.bytes().all(|b| b.is_ascii_digit()) => {
                number.to_owned()
            }
            true => format!("{:?}", value.trim_matches(['"', '\''])),
            false => "\"..\"".to_owned(),
        }
    }
}

fn is_word(text: &str) -> bool {
    let fits = |b: u8| b.is_ascii_alphanumeric() || matches!(b, b'-' | b'_' | b'.');
    (1..=40).contains(&text.len()) && text.bytes().all(fits)
}
