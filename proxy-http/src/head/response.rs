//! Response heads: the parser and the view.

use std::mem::MaybeUninit;

use proxy_core::{HeadLimits, Status};

#[cfg(feature = "serve")]
use super::RequestHead;
use super::field::span;
use super::scan::{Parsed, Scan, StartLine, start_fault};
use super::{Framing, Header, HeaderTable, Options, RequestKind, Version, framing};
use crate::HeadError;
#[cfg(feature = "serve")]
use crate::auth;

/// Parses response heads (RFC 9112 sections 2, 4 to 6), strictly and without
/// copying; the counterpart of [`RequestParser`](crate::RequestParser).
///
/// Blanks between a field's name and its colon belong to neither; an encoded
/// [`HeadEdit`](crate::HeadEdit) is without them (RFC 9112 section 5.1).
///
/// ```
/// use proxy_core::Status;
/// use proxy_http::{Framing, HeadLimits, RequestKind, ResponseParser};
///
/// let mut parser = ResponseParser::new(HeadLimits::default());
/// let answer = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nhi";
/// let Status::Complete(head, used) = parser.parse(answer)? else { unreachable!() };
/// assert_eq!((head.status(), &answer[used..]), (200, &b"hi"[..]));
/// assert_eq!(head.framing(RequestKind::Other), Framing::Length(2));
/// assert_eq!(head.framing(RequestKind::Head), Framing::None);
/// # Ok::<(), proxy_http::HeadError>(())
/// ```
#[derive(Clone, Debug)]
pub struct ResponseParser {
    scan: Scan<StatusLine>,
}

impl ResponseParser {
    /// A parser with these limits.
    pub fn new(limits: HeadLimits) -> Self {
        Self {
            scan: Scan::new(limits),
        }
    }

    /// A parser for the answer to a CONNECT, whose framing fields mean nothing if
    /// it is a 2xx (RFC 9110 section 9.3.6).
    pub(crate) fn of_tunnel(limits: HeadLimits) -> Self {
        let mut parser = Self::new(limits);
        parser.scan.table.to_connect = true;
        parser
    }

    /// Looks for a whole head at the front of `input`.
    ///
    /// After [`Status::Partial`] call again with a longer slice that begins with
    /// the same bytes: only the new ones are looked at. After anything else the
    /// next call begins a new head.
    ///
    /// # Errors
    /// As soon as the bytes cannot become a status line, a line does not end in
    /// CRLF, or a limit is passed; for anything else about the fields when the
    /// head ends. The client is then told 502. The same bytes give the same
    /// error however they are cut.
    pub fn parse<'p, 'b>(
        &'p mut self,
        input: &'b [u8],
    ) -> Result<Status<ResponseHead<'p, 'b>>, HeadError> {
        let status = self.scan.advance(input)?;
        Ok(status.map(|()| self.head(input)))
    }

    /// Forgets a head that was begun; for a parser that goes on to serve
    /// another connection.
    pub fn reset(&mut self) {
        self.scan.reset();
    }

    /// The head parsed last, over a copy of the bytes that it was parsed from
    /// (at least as many as [`parse`](Self::parse) counted). Over other bytes
    /// the view shows nonsense, but does not panic.
    pub fn head<'p, 'b>(&'p self, bytes: &'b [u8]) -> ResponseHead<'p, 'b> {
        ResponseHead {
            table: &self.scan.table,
            line: &self.scan.line,
            bytes,
        }
    }
}

/// A parsed response head: offsets of a [`ResponseParser`] over the bytes.
#[derive(Clone, Copy)]
pub struct ResponseHead<'p, 'b> {
    pub(super) table: &'p HeaderTable,
    pub(super) line: &'p StatusLine,
    pub(super) bytes: &'b [u8],
}

impl<'p, 'b> ResponseHead<'p, 'b> {
    /// The bytes of the head, from the version to the empty line.
    pub fn raw(&self) -> &'b [u8] {
        self.table.raw(self.bytes)
    }

    /// The status code, 100 to 599.
    pub fn status(&self) -> u16 {
        self.line.status
    }

    /// Whether another response to the same request follows: 1xx other than
    /// 101.
    pub fn is_interim(&self) -> bool {
        self.status() < 200 && self.status() != 101
    }

    /// Whether it asks for a login that is one for the whole connection (RFC 4559
    /// section 6).
    #[cfg(feature = "serve")]
    pub(crate) fn binds_connection(&self) -> bool {
        let name = match self.status() {
            401 => "www-authenticate",
            407 => "proxy-authenticate",
            _ => return false,
        };
        self.get_all(name).any(auth::binds_connection)
    }

    /// Whether it switches to what `request` offered and a proxy passes on (RFC 9110
    /// section 7.8).
    #[cfg(feature = "serve")]
    pub(crate) fn takes_up(&self, request: &RequestHead<'_, '_>) -> bool {
        self.table
            .takes_up(self.bytes, (request.table, request.bytes))
    }

    /// The version.
    pub fn version(&self) -> Version {
        self.table.version
    }

    /// The reason phrase, without meaning and often empty.
    pub fn reason(&self) -> &'b [u8] {
        let line_end = self.table.fields_start.saturating_sub(2);
        let start = self.table.start + REASON;
        span(self.bytes, start, line_end.saturating_sub(start))
    }

    /// The fields in order.
    pub fn headers(&self) -> impl ExactSizeIterator<Item = Header<'b>> + use<'p, 'b> {
        let bytes = self.bytes;
        self.table
            .fields
            .iter()
            .map(move |field| field.header(bytes))
    }

    /// The value of the first field called `name`, in any case.
    pub fn get(&self, name: &str) -> Option<&'b [u8]> {
        self.table.named(name, self.bytes).next()
    }

    /// The values of all fields called `name`, in any case and in order.
    pub fn get_all<'n>(&self, name: &'n str) -> impl Iterator<Item = &'b [u8]> + use<'n, 'b>
    where
        'p: 'n,
    {
        let (table, bytes): (&'n HeaderTable, _) = (self.table, self.bytes);
        table.named(name, bytes)
    }

    /// How the body ends, given what was asked (RFC 9112 section 6.3).
    pub fn framing(&self, asked: RequestKind) -> Framing {
        match framing::is_bodiless(self.status(), asked) {
            true => Framing::None,
            false => self.table.body,
        }
    }

    /// Whether the origin goes on afterwards (RFC 9112 section 9.3): HTTP/1.1
    /// unless it says `close`, HTTP/1.0 only if it says `keep-alive`. A body
    /// that ends with the connection rules it out as well.
    pub fn keep_alive(&self) -> bool {
        self.table.keep_alive()
    }

    /// The protocol chosen by a 101, if `Connection` names the field as well.
    pub fn upgrade(&self) -> Option<&'b [u8]> {
        self.table.upgrade(self.bytes)
    }
}

impl std::fmt::Debug for ResponseHead<'_, '_> {
    /// Shows no fields: they may carry secrets.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ResponseHead")
            .field("status", &self.status())
            .field("version", &self.version())
            .field("fields", &self.table.fields.len())
            .finish_non_exhaustive()
    }
}

/// The status line.
#[derive(Clone, Debug, Default)]
pub(super) struct StatusLine {
    pub(super) status: u16,
    /// Whether the blank behind the code is missing, which RFC 9112 section 4
    /// forbids and many servers do when they have no reason to give.
    pub(super) no_blank: bool,
}

impl StartLine for StatusLine {
    const LEADING_BLANKS: u8 = 0;
    const SPACED_NAMES: bool = true;
    const UNENDED: HeadError = HeadError::TooLarge;

    fn could_begin(prefix: &[u8], new: usize) -> Result<(), HeadError> {
        let known = prefix.len().min(PROTOCOL.len());
        let is_text = |b: &u8| matches!(b, b'\t' | b' '..=b'~' | 0x80..);
        match prefix[..known] == PROTOCOL[..known] && prefix[new..].iter().all(is_text) {
            true => Ok(()),
            false => Err(HeadError::StatusLine),
        }
    }

    /// RFC 9112 section 4.
    fn parse<'s, 'b>(
        input: &'b [u8],
        start: usize,
        spaced: bool,
        slots: &'s mut [MaybeUninit<httparse::Header<'b>>],
    ) -> Result<Parsed<'s, 'b, Self>, HeadError> {
        let head = &input[start..];
        let mut found = httparse::Response::new(&mut []);
        let len = httparse::ParserConfig::default()
            .allow_spaces_after_header_name_in_responses(spaced)
            .parse_response_with_uninit_headers(&mut found, head, slots)
            .map_err(|error| start_fault(error, head, 0, HeadError::StatusLine))?;
        let (Some(status @ 100..600), Some(minor)) = (found.code, found.version) else {
            return Err(HeadError::StatusLine);
        };
        let line = Self {
            status,
            no_blank: head.get(CODE as usize + 3) != Some(&b' '),
        };
        Ok(Parsed {
            line,
            version: Version::of(minor),
            fields: found.headers,
            len,
        })
    }

    fn finish(&self, table: &mut HeaderTable, bytes: &[u8]) -> Result<(), HeadError> {
        table.options = Options::read(table, bytes)?;
        table.body = match table.to_connect && (200..300).contains(&self.status) {
            true => Framing::None,
            false => framing::of_response(table, bytes)?,
        };
        Ok(())
    }
}

const PROTOCOL: &[u8] = b"HTTP/";

/// Offset of the code and of the reason in a status line.
pub(super) const CODE: u32 = 9;
const REASON: u32 = 13;
