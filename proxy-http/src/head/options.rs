//! What the `Connection` field says (RFC 9110 section 7.6.1).

use memchr::memchr;

use super::HeaderTable;
use super::field::{Kind, list};
use crate::HeadError;

/// The connection options of a head.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Options {
    pub(crate) close: bool,
    pub(crate) keep_alive: bool,
    pub(crate) te: bool,
    pub(crate) upgrade: bool,
    /// Some other field is named, which must not be forwarded.
    pub(crate) named: bool,
}

impl Options {
    pub(crate) fn read(table: &HeaderTable, bytes: &[u8]) -> Result<Self, HeadError> {
        let mut options = Self::default();
        match table.first(Kind::Connection, bytes) {
            None => return Ok(options),
            // Nearly always it is one word.
            Some(value) if !table.repeated.has(Kind::Connection) && is_word(value) => {
                options.add(value);
                return Ok(options);
            }
            Some(_) => {}
        }
        for (count, name) in names(table, bytes).enumerate() {
            // Each name is later compared with each field.
            if count == MAX_OPTIONS {
                return Err(HeadError::ConnectionOptions);
            }
            options.add(name);
        }
        Ok(options)
    }

    fn add(&mut self, name: &[u8]) {
        match name.len() {
            2 if name.eq_ignore_ascii_case(b"te") => self.te = true,
            5 if name.eq_ignore_ascii_case(b"close") => self.close = true,
            7 if name.eq_ignore_ascii_case(b"upgrade") => self.upgrade = true,
            10 if name.eq_ignore_ascii_case(b"keep-alive") => self.keep_alive = true,
            _ => self.named |= !is_protected(name),
        }
    }
}

fn is_word(value: &[u8]) -> bool {
    !value.is_empty() && memchr(b',', value).is_none()
}

/// All options of all `Connection` lines.
pub(crate) fn names<'b>(table: &HeaderTable, bytes: &'b [u8]) -> impl Iterator<Item = &'b [u8]> {
    table
        .of_kind(Kind::Connection)
        .flat_map(move |field| list(field.value(bytes)))
        .filter(|name| !name.is_empty())
}

/// Fields that a sender cannot have stripped by naming them: they say how the
/// message is framed and routed. Everything else goes (RFC 9110 section 7.6.1).
pub(crate) fn is_protected(name: &[u8]) -> bool {
    PROTECTED.iter().any(|own| own.eq_ignore_ascii_case(name))
}

const PROTECTED: [&[u8]; 3] = [b"content-length", b"host", b"transfer-encoding"];

const MAX_OPTIONS: usize = 64;
