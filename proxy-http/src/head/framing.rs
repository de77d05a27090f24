//! How long a body is: RFC 9112 section 6, one function per rule. What two
//! recipients could read in two ways is refused, not repaired.

use super::field::{Kind, list};
use super::{HeaderTable, RequestKind, Version};
use crate::HeadError;

/// How the end of a message body is found.
///
/// Exhaustive on purpose: HTTP/1.1 has no fifth way.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Framing {
    /// There is no body.
    #[default]
    None,
    /// The body has so many bytes.
    Length(u64),
    /// The body is sent in chunks, with a last one that says so.
    Chunked,
    /// The body ends with the connection (responses only).
    UntilClose,
}

impl Framing {
    /// Whether at least one byte of body follows the head.
    pub fn has_body(self) -> bool {
        !matches!(self, Self::None | Self::Length(0))
    }
}

/// The body of a request (RFC 9112 section 6.3, rules 4 to 7).
pub(super) fn of_request(table: &HeaderTable, bytes: &[u8]) -> Result<Framing, HeadError> {
    Ok(stated(table, bytes)?.unwrap_or(Framing::None))
}

/// The body that a response has if its kind has one (RFC 9112 section 6.3,
/// rules 4 to 8).
pub(super) fn of_response(table: &HeaderTable, bytes: &[u8]) -> Result<Framing, HeadError> {
    Ok(stated(table, bytes)?.unwrap_or(Framing::UntilClose))
}

/// Responses that never have a body (RFC 9112 section 6.3, rules 1 and 2).
pub(super) fn is_bodiless(status: u16, to: RequestKind) -> bool {
    let no_content = matches!(status, 100..200 | 204 | 304);
    let tunnel = to == RequestKind::Connect && matches!(status, 200..300);
    to == RequestKind::Head || no_content || tunnel
}

/// What the framing fields state, if there are any.
fn stated(table: &HeaderTable, bytes: &[u8]) -> Result<Option<Framing>, HeadError> {
    let length = table.seen.has(Kind::ContentLength);
    match (table.seen.has(Kind::TransferEncoding), length) {
        (false, false) => Ok(None),
        (false, true) => content_length(table, bytes).map(|n| Some(Framing::Length(n))),
        (true, false) => transfer_encoding(table, bytes).map(|()| Some(Framing::Chunked)),
        // RFC 9112 section 6.1: the classic request smuggling vector.
        (true, true) => Err(HeadError::LengthAndCoding),
    }
}

/// RFC 9110 section 8.6 and RFC 9112 section 6.3 rule 5: one field, digits only.
/// Repeated equal values are refused as well; 18 digits are below 2^63, so every
/// recipient reads the same number.
fn content_length(table: &HeaderTable, bytes: &[u8]) -> Result<u64, HeadError> {
    let value = table.first(Kind::ContentLength, bytes).unwrap_or_default();
    let repeated = table.repeated.has(Kind::ContentLength);
    if repeated || !(1..=MAX_LENGTH_DIGITS).contains(&value.len()) {
        return Err(HeadError::ContentLength);
    }
    value.iter().try_fold(0u64, |n, digit| match digit {
        b'0'..=b'9' => Ok(n * 10 + u64::from(digit - b'0')),
        _ => Err(HeadError::ContentLength),
    })
}

/// RFC 9112 sections 6.1 and 7: exactly one element over all fields, `chunked`,
/// and only in HTTP/1.1.
fn transfer_encoding(table: &HeaderTable, bytes: &[u8]) -> Result<(), HeadError> {
    if table.version == Version::Http10 {
        return Err(HeadError::TransferEncoding);
    }
    if table.first(Kind::TransferEncoding, bytes) == Some(b"chunked")
        && !table.repeated.has(Kind::TransferEncoding)
    {
        return Ok(());
    }
    let mut chunked = 0;
    let mut others = 0;
    let mut last_is_chunked = false;
    let values = table.of_kind(Kind::TransferEncoding);
    for coding in values.flat_map(|field| list(field.value(bytes))) {
        if coding.is_empty() {
            return Err(HeadError::TransferEncoding);
        }
        last_is_chunked = coding.eq_ignore_ascii_case(b"chunked");
        chunked += usize::from(last_is_chunked);
        others += usize::from(!last_is_chunked);
    }
    match (chunked, others) {
        (1, 0) => Ok(()),
        (0, _) => Err(HeadError::TransferCoding),
        (1, _) if last_is_chunked => Err(HeadError::TransferCoding),
        _ => Err(HeadError::TransferEncoding),
    }
}

const MAX_LENGTH_DIGITS: usize = 18;
