//! The Basic scheme (RFC 7617): decoding into the caller's memory, and
//! encoding.

use std::fmt::Write;

use base64::Engine;
use base64::alphabet::STANDARD;
use base64::display::Base64Display;
use base64::engine::{DecodePaddingMode, GeneralPurpose, GeneralPurposeConfig};
use bytes::BytesMut;
use proxy_core::Credentials;

use crate::HeadError;
#[cfg(feature = "serve")]
use crate::head::list;
use crate::head::trim;

/// Bytes of scratch that are enough for usual credentials; longer ones are
/// refused.
pub const SCRATCH: usize = 1024;

/// Decodes the value of an `Authorization` or `Proxy-Authorization` field into
/// `scratch`; `None` if it is of another scheme. The password may hold colons,
/// both parts any bytes but controls (RFC 7617 section 2).
///
/// ```
/// let mut scratch = [0; proxy_http::auth::SCRATCH];
/// let found = proxy_http::auth::basic(b"basic dXNlcjpwOnc=", &mut scratch)?.unwrap();
/// assert_eq!((found.user, found.password), (&b"user"[..], &b"p:w"[..]));
/// # Ok::<(), proxy_http::HeadError>(())
/// ```
///
/// # Errors
/// [`HeadError::Credentials`] if they are not Base64 of a text with a colon and
/// without control characters, or do not fit `scratch`.
pub fn basic<'s>(
    value: &[u8],
    scratch: &'s mut [u8],
) -> Result<Option<Credentials<'s>>, HeadError> {
    let scheme_end = value.iter().position(|b| *b == b' ').unwrap_or(value.len());
    let (scheme, token) = value.split_at(scheme_end);
    if !scheme.eq_ignore_ascii_case(b"Basic") {
        return Ok(None);
    }
    let len = BASE64
        .decode_slice(trim(token).1, scratch)
        .map_err(|_| HeadError::Credentials)?;
    split(&scratch[..len]).map(Some)
}

/// Appends `Basic` credentials as a field value. The user must not contain a
/// colon: the recipient would take the rest for the password's beginning.
pub fn encode(credentials: Credentials<'_>, out: &mut BytesMut) {
    let pair = [credentials.user, b":", credentials.password].concat();
    // Writing to memory that grows cannot fail.
    let _ = write!(out, "Basic {}", Base64Display::new(&pair, &BASE64));
}

/// Whether a login or a list of challenges is of a scheme that authenticates a
/// connection instead of a request, so that whoever else used the connection
/// would be taken for the same person.
#[cfg(feature = "serve")]
pub(crate) fn binds_connection(value: &[u8]) -> bool {
    list(value).any(|element| {
        let scheme = element.split(|b| *b == b' ').next().unwrap_or_default();
        [&b"negotiate"[..], b"ntlm"]
            .iter()
            .any(|own| own.eq_ignore_ascii_case(scheme))
    })
}

fn split(pair: &[u8]) -> Result<Credentials<'_>, HeadError> {
    let colon = pair.iter().position(|b| *b == b':');
    match colon {
        Some(colon) if !pair.iter().any(u8::is_ascii_control) => Ok(Credentials {
            user: &pair[..colon],
            password: &pair[colon + 1..],
        }),
        _ => Err(HeadError::Credentials),
    }
}

/// Padding is expected by the RFC and left off by some clients.
const BASE64: GeneralPurpose = GeneralPurpose::new(
    &STANDARD,
    GeneralPurposeConfig::new().with_decode_padding_mode(DecodePaddingMode::Indifferent),
);
