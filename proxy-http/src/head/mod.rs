//! Message heads: parsed into offsets, viewed, edited, encoded.

mod edit;
mod field;
mod framing;
mod hops;
mod options;
mod request;
mod response;
mod scan;
mod target;
mod upgrade;
#[cfg(feature = "serve")]
mod way;

pub use edit::{EditError, EditScript, HeadEdit};
pub use field::Header;
pub use framing::Framing;
pub use hops::{Persist, ToClient, ToOrigin};
pub use request::{RequestHead, RequestKind, RequestParser};
pub use response::{ResponseHead, ResponseParser};
pub use target::RequestTarget;

#[cfg(feature = "serve")]
pub(crate) use edit::check_own;
#[cfg(feature = "serve")]
pub(crate) use field::list;
pub(crate) use field::{is_token, is_trailer_forbidden, trim};

use field::{Field, Kind, Kinds};
use options::Options;

/// The version of a message.
///
/// Exhaustive on purpose: every other one is refused.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Version {
    /// HTTP/1.0.
    Http10,
    /// HTTP/1.1.
    #[default]
    Http11,
}

impl Version {
    /// The version that httparse told by its minor number: it knows no others.
    fn of(minor: u8) -> Self {
        match minor {
            0 => Self::Http10,
            _ => Self::Http11,
        }
    }

    /// Whether a word is `HTTP/x.y` (RFC 9112 section 2.3) of another version.
    fn is_other(word: &[u8]) -> bool {
        match word {
            b"HTTP/1.0" | b"HTTP/1.1" => false,
            [b'H', b'T', b'T', b'P', b'/', major, b'.', minor] => {
                major.is_ascii_digit() && minor.is_ascii_digit()
            }
            _ => false,
        }
    }
}

/// The fields of one head as offsets into its bytes, and what was concluded
/// from them.
#[derive(Clone, Debug, Default)]
pub(crate) struct HeaderTable {
    fields: Vec<Field>,
    /// First byte of the start line.
    start: u32,
    /// First byte behind the start line.
    fields_start: u32,
    /// First byte behind the empty line.
    end: u32,
    version: Version,
    seen: Kinds,
    /// Kinds seen more than once.
    repeated: Kinds,
    /// The line of the first field of each kind seen.
    firsts: [u16; Kind::COUNT],
    options: Options,
    body: Framing,
    /// Blanks stand between the name and the colon of some field.
    spaced: bool,
    /// The answer to a CONNECT is expected: a 2xx has no framing.
    to_connect: bool,
}

impl HeaderTable {
    fn clear(&mut self) {
        let mut fields = std::mem::take(&mut self.fields);
        fields.clear();
        *self = Self {
            fields,
            to_connect: self.to_connect,
            ..Self::default()
        };
    }

    /// Takes the fields in, each made of one of `found`. The loop has neither
    /// branches nor sets in memory: names come in no order that could be
    /// predicted.
    #[inline]
    fn fill<T>(&mut self, found: &[T], mut field: impl FnMut(&T) -> Field) {
        let (mut seen, mut repeated) = (Kinds::default(), Kinds::default());
        let firsts = &mut self.firsts;
        // Limits keep the count far below 2^16.
        self.fields
            .extend(found.iter().zip(0u16..).map(|(found, line)| {
                let field = field(found);
                let again = seen.has(field.kind);
                repeated.0 |= seen.0 & field.kind.bit();
                seen.add(field.kind);
                let first = &mut firsts[field.kind as usize];
                *first = if again { *first } else { line };
                field
            }));
        (self.seen, self.repeated) = (seen, repeated);
    }

    /// The line of the first field of a kind.
    fn place_of(&self, kind: Kind) -> Option<usize> {
        let place = usize::from(self.firsts[kind as usize]);
        self.seen.has(kind).then_some(place)
    }

    fn of_kind(&self, kind: Kind) -> impl Iterator<Item = &Field> {
        self.fields.iter().filter(move |field| field.kind == kind)
    }

    /// The value of the first field of a kind.
    fn first<'b>(&self, kind: Kind, bytes: &'b [u8]) -> Option<&'b [u8]> {
        let field = self.fields.get(self.place_of(kind)?)?;
        Some(field.value(bytes))
    }

    fn named<'p, 'b>(
        &'p self,
        name: &'p str,
        bytes: &'b [u8],
    ) -> impl Iterator<Item = &'b [u8]> + use<'p, 'b> {
        let matching = move |field: &&Field| field.is(name.as_bytes(), bytes);
        self.fields
            .iter()
            .filter(matching)
            .map(move |field| field.value(bytes))
    }

    /// The head from its start line to the empty line.
    fn raw<'b>(&self, bytes: &'b [u8]) -> &'b [u8] {
        field::span(bytes, self.start, self.end.saturating_sub(self.start))
    }

    /// The offset of line `index` of the fields; the line behind the last is
    /// the empty one.
    fn line_start(&self, index: usize) -> u32 {
        let empty_line = self.end.saturating_sub(2);
        self.fields
            .get(index)
            .map_or(empty_line, |field| field.name)
    }

    /// RFC 9112 section 9.3.
    fn keep_alive(&self) -> bool {
        let asked = self.version == Version::Http11 || self.options.keep_alive;
        asked && !self.options.close
    }

    /// The protocols offered or chosen, if `Connection` says so too (RFC 9110
    /// section 7.8); HTTP/1.0 has no upgrades.
    fn upgrade<'b>(&self, bytes: &'b [u8]) -> Option<&'b [u8]> {
        let named = self.options.upgrade && self.version == Version::Http11;
        named.then(|| self.first(Kind::Upgrade, bytes)).flatten()
    }
}
