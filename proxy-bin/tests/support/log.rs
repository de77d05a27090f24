//! Lines of the JSON access log.

use serde_json::Value;

/// One exchange or tunnel.
#[derive(Clone, Debug)]
pub(crate) struct LogLine(Value);

impl LogLine {
    /// Those of `lines` that are JSON objects.
    pub(crate) fn all<'l>(lines: impl IntoIterator<Item = &'l String>) -> Vec<Self> {
        let objects = lines.into_iter().filter(|line| line.starts_with('{'));
        objects
            .map(|line| Self(serde_json::from_str(line).expect("an object")))
            .collect()
    }

    /// The text of a field; empty when it is missing or null.
    pub(crate) fn text(&self, key: &str) -> String {
        match self.0.get(key) {
            None | Some(Value::Null) => String::new(),
            Some(Value::String(text)) => text.clone(),
            Some(other) => other.to_string(),
        }
    }

    /// A whole number.
    pub(crate) fn number(&self, key: &str) -> Option<u64> {
        self.0.get(key)?.as_u64()
    }
}
