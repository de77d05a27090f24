//! Request heads: the parser and the view.

use std::mem::MaybeUninit;

use proxy_core::{Credentials, HeadLimits, Status, Target};

use super::field::{Kind, is_token, offset, place, span, text};
use super::scan::{Parsed, Scan, StartLine, start_fault};
use super::target::{self, Form, RequestTarget};
use super::{Framing, Header, HeaderTable, Options, Version, framing};
use crate::{HeadError, auth};

/// Parses request heads (RFC 9112 sections 2 to 6), strictly and without
/// copying.
///
/// Holds offsets, not bytes, and keeps its memory from head to head: in a
/// steady state nothing is allocated. The limits hold from the first byte on.
///
/// ```
/// use proxy_core::Status;
/// use proxy_http::{Framing, HeadLimits, RequestParser};
///
/// let mut parser = RequestParser::new(HeadLimits::default());
/// assert!(parser.parse(b"GET http://example.com/a HTTP/1.1\r\n")?.is_partial());
/// let whole = b"GET http://example.com/a HTTP/1.1\r\nHost: example.com\r\n\r\n";
/// let Status::Complete(head, used) = parser.parse(whole)? else { unreachable!() };
/// assert_eq!(used, whole.len());
/// assert_eq!(head.destination()?.to_string(), "example.com:80");
/// assert_eq!(head.framing(), Framing::None);
/// # Ok::<(), proxy_http::HeadError>(())
/// ```
#[derive(Clone, Debug)]
pub struct RequestParser {
    scan: Scan<RequestLine>,
}

impl RequestParser {
    /// A parser with these limits.
    pub fn new(limits: HeadLimits) -> Self {
        Self {
            scan: Scan::new(limits),
        }
    }

    /// Looks for a whole head at the front of `input`; the count includes empty
    /// lines skipped before it (RFC 9112 section 2.2).
    ///
    /// After [`Status::Partial`] call again with a longer slice that begins with
    /// the same bytes: only the new ones are looked at. After anything else the
    /// next call begins a new head.
    ///
    /// # Errors
    /// As soon as the bytes cannot become a request line, a line does not end in
    /// CRLF, or a limit is passed; for anything else about the fields when the
    /// head ends. The same bytes give the same error however they are cut.
    pub fn parse<'p, 'b>(
        &'p mut self,
        input: &'b [u8],
    ) -> Result<Status<RequestHead<'p, 'b>>, HeadError> {
        let status = self.scan.advance(input)?;
        Ok(status.map(|()| self.head(input)))
    }

    /// Forgets a head that was begun; for a parser that goes on to serve
    /// another connection.
    pub fn reset(&mut self) {
        self.scan.reset();
    }

    /// The head parsed last, over a copy of the bytes that it was parsed from
    /// (at least as many as [`parse`](Self::parse) counted).
    ///
    /// This is how a head outlives the buffer it arrived in: copy the bytes,
    /// keep the parser. Over other bytes the view shows nonsense, but does not
    /// panic.
    pub fn head<'p, 'b>(&'p self, bytes: &'b [u8]) -> RequestHead<'p, 'b> {
        RequestHead {
            table: &self.scan.table,
            line: &self.scan.line,
            bytes,
        }
    }
}

/// A parsed request head: offsets of a [`RequestParser`] over the bytes.
#[derive(Clone, Copy)]
pub struct RequestHead<'p, 'b> {
    pub(super) table: &'p HeaderTable,
    pub(super) line: &'p RequestLine,
    pub(super) bytes: &'b [u8],
}

impl<'p, 'b> RequestHead<'p, 'b> {
    /// The bytes of the head, from the method to the empty line.
    pub fn raw(&self) -> &'b [u8] {
        self.table.raw(self.bytes)
    }

    /// The method as received, a token of 1 to 32 bytes; methods have case.
    pub fn method(&self) -> &'b str {
        text(span(self.bytes, self.table.start, self.line.method_len))
    }

    /// What the method means for the answer's body.
    pub fn kind(&self) -> RequestKind {
        self.line.kind
    }

    /// The version.
    pub fn version(&self) -> Version {
        self.table.version
    }

    /// The request target in its form.
    pub fn target(&self) -> RequestTarget<'b> {
        self.line.form.of(self.target_text())
    }

    /// The request target as received: visible ASCII without `#`.
    pub fn target_text(&self) -> &'b str {
        text(span(self.bytes, self.line.target, self.line.target_len))
    }

    /// Path and query as an origin server is to see them: those of an absolute
    /// or origin-form target as received, `/` (for OPTIONS `*`) in place of an
    /// empty one, and the authority of a CONNECT. A query without path is shown
    /// without the `/` that goes in front of it.
    pub fn path(&self) -> &'b str {
        self.path_of(self.target())
    }

    /// The same, of the [`target`](Self::target) that the caller has.
    pub(crate) fn path_of(&self, target: RequestTarget<'b>) -> &'b str {
        match target {
            RequestTarget::Absolute {
                path_and_query: "", ..
            } => self.empty_path(),
            RequestTarget::Absolute {
                path_and_query: path,
                ..
            }
            | RequestTarget::Authority(path)
            | RequestTarget::Origin(path) => path,
            RequestTarget::Asterisk => "*",
        }
    }

    /// What stands for an empty path (RFC 9112 section 3.2.4).
    fn empty_path(&self) -> &'static str {
        match self.method() {
            "OPTIONS" => "*",
            _ => "/",
        }
    }

    /// Where a proxy must connect to: the authority of an absolute target
    /// (default port 80, or 443 for `https`, which the caller may want to
    /// refuse), that of CONNECT, which must name a port, or else `Host`. The
    /// target wins over `Host` (RFC 9112 section 3.2.2).
    ///
    /// # Errors
    /// [`HeadError::Destination`] if there is none or it is malformed (user
    /// information is), [`HeadError::Scheme`] if the scheme is another one.
    pub fn destination(&self) -> Result<Target<'b>, HeadError> {
        self.destination_of(self.target())
    }

    /// The same, of the [`target`](Self::target) that the caller has.
    pub(crate) fn destination_of(
        &self,
        target: RequestTarget<'b>,
    ) -> Result<Target<'b>, HeadError> {
        target::destination(target, self.table.first(Kind::Host, self.bytes))
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

    /// How the body ends; never [`Framing::UntilClose`], and without a body for
    /// CONNECT.
    pub fn framing(&self) -> Framing {
        self.table.body
    }

    /// Whether at least one byte of body follows.
    pub fn has_body(&self) -> bool {
        self.framing().has_body()
    }

    /// Whether the client wants to go on afterwards (RFC 9112 section 9.3):
    /// HTTP/1.1 unless it says `close`, HTTP/1.0 only if it says `keep-alive`.
    pub fn keep_alive(&self) -> bool {
        self.table.keep_alive()
    }

    /// Whether the client waits for a 100 before it sends the body (RFC 9110
    /// section 10.1.1).
    pub fn expects_continue(&self) -> bool {
        self.version() == Version::Http11
            && self
                .table
                .first(Kind::Expect, self.bytes)
                .is_some_and(|value| value.eq_ignore_ascii_case(b"100-continue"))
    }

    /// How many more proxies may forward this OPTIONS or TRACE (RFC 9110 section
    /// 7.6.2), by `Max-Forwards`: with 0 it ends here. `None` without the field,
    /// and for any other method, to which it means nothing.
    ///
    /// # Errors
    /// [`HeadError::MaxForwards`] if it is not a plain decimal number, or there
    /// are several.
    pub fn max_forwards(&self) -> Result<Option<u32>, HeadError> {
        let method = span(self.bytes, self.table.start, self.line.method_len);
        if !matches!(method, b"OPTIONS" | b"TRACE") {
            return Ok(None);
        }
        let mut values = self.get_all("max-forwards");
        let Some(value) = values.next() else {
            return Ok(None);
        };
        if value.is_empty() || !value.iter().all(u8::is_ascii_digit) || values.next().is_some() {
            return Err(HeadError::MaxForwards);
        }
        // More than can be counted is as good as the highest number.
        Ok(Some(value.iter().fold(0u32, |n, digit| {
            n.saturating_mul(10).saturating_add(u32::from(digit - b'0'))
        })))
    }

    /// Whether [`upgrade`](Self::upgrade) offers anything that is passed on.
    #[cfg(feature = "serve")]
    pub(crate) fn passes_upgrade(&self) -> bool {
        self.table.passes_upgrade(self.bytes)
    }

    /// The protocols the client wants to switch to, if `Connection` names the
    /// field as well (RFC 9110 section 7.8).
    pub fn upgrade(&self) -> Option<&'b [u8]> {
        self.table.upgrade(self.bytes)
    }

    /// Whether a proxy of this name is in `Via` (RFC 9110 section 7.6.3).
    pub fn came_through(&self, name: &str) -> bool {
        let hops = self
            .get_all("via")
            .flat_map(|value| value.split(|b| *b == b','));
        hops.into_iter().any(|hop| {
            let mut words = hop
                .split(|b| b.is_ascii_whitespace())
                .filter(|word| !word.is_empty());
            words.nth(1) == Some(name.as_bytes())
        })
    }

    /// Whether the login it shows to the origin is one for the whole connection
    /// (RFC 4559 section 6).
    #[cfg(feature = "serve")]
    pub(crate) fn binds_connection(&self) -> bool {
        // Nobody knows which of several an origin takes.
        self.table.seen.has(Kind::Authorization)
            && self
                .table
                .of_kind(Kind::Authorization)
                .any(|field| auth::binds_connection(field.value(self.bytes)))
    }

    /// The raw value of `Proxy-Authorization`: a secret. With several, the
    /// first; [`credentials`](Self::credentials) refuses that.
    pub fn proxy_authorization(&self) -> Option<&'b [u8]> {
        self.table.first(Kind::ProxyAuthorization, self.bytes)
    }

    /// The Basic credentials shown to the proxy, decoded into `scratch`
    /// ([`auth::SCRATCH`] bytes are enough for usual ones); `None` if there are
    /// none or they are of another scheme.
    ///
    /// # Errors
    /// [`HeadError::Credentials`] if they are malformed, too long or shown
    /// twice.
    pub fn credentials<'s>(
        &self,
        scratch: &'s mut [u8],
    ) -> Result<Option<Credentials<'s>>, HeadError> {
        match self.proxy_authorization() {
            None => Ok(None),
            Some(_) if self.table.repeated.has(Kind::ProxyAuthorization) => {
                Err(HeadError::Credentials)
            }
            Some(value) => auth::basic(value, scratch),
        }
    }
}

impl std::fmt::Debug for RequestHead<'_, '_> {
    /// Shows neither target nor fields: both may carry secrets.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("RequestHead")
            .field("method", &self.method())
            .field("version", &self.version())
            .field("fields", &self.table.fields.len())
            .field("framing", &self.framing())
            .finish_non_exhaustive()
    }
}

/// What a request's method means for the framing of its response (RFC 9112
/// section 6.3).
///
/// Exhaustive on purpose: no other method matters.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum RequestKind {
    /// CONNECT: a 2xx begins a tunnel.
    Connect,
    /// HEAD: no response has a body.
    Head,
    /// Any other method.
    #[default]
    Other,
}

impl RequestKind {
    fn of(method: &[u8]) -> Self {
        match method {
            b"CONNECT" => Self::Connect,
            b"HEAD" => Self::Head,
            _ => Self::Other,
        }
    }
}

/// The request line as offsets.
#[derive(Clone, Debug, Default)]
pub(super) struct RequestLine {
    pub(super) method_len: u32,
    pub(super) target: u32,
    pub(super) target_len: u32,
    pub(super) form: Form,
    pub(super) kind: RequestKind,
}

impl StartLine for RequestLine {
    const LEADING_BLANKS: u8 = 4;
    const SPACED_NAMES: bool = false;
    const UNENDED: HeadError = HeadError::UriTooLong;

    /// Stops a TLS handshake, a banner or other garbage at its first bytes
    /// instead of letting it wait for the head timeout.
    fn could_begin(prefix: &[u8], new: usize) -> Result<(), HeadError> {
        let method = &prefix[..prefix.len().min(MAX_METHOD + 1)];
        match method.iter().position(|b| !is_token(*b)) {
            None if method.len() > MAX_METHOD => return Err(HeadError::Method),
            None => return Ok(()),
            Some(end) if end > 0 && method[end] == b' ' => {}
            Some(_) => return Err(HeadError::RequestLine),
        }
        // Without an early exit this is compiled to vector code.
        let visible = |ok: bool, b: &u8| ok & matches!(b, b' '..=b'~');
        match prefix[new..].iter().fold(true, visible) {
            true => Ok(()),
            false => Err(HeadError::RequestLine),
        }
    }

    /// RFC 9112 section 3: single blanks, three words.
    fn parse<'s, 'b>(
        input: &'b [u8],
        start: usize,
        _spaced: bool,
        slots: &'s mut [MaybeUninit<httparse::Header<'b>>],
    ) -> Result<Parsed<'s, 'b, Self>, HeadError> {
        let head = &input[start..];
        let mut found = httparse::Request::new(&mut []);
        let len = found
            .parse_with_uninit_headers(head, slots)
            .map_err(|error| start_fault(error, head, 2, HeadError::RequestLine))?;
        let (Some(method), Some(target), Some(minor)) = (found.method, found.path, found.version)
        else {
            return Err(HeadError::RequestLine);
        };
        Ok(Parsed {
            line: Self::new(method.as_bytes(), target.as_bytes(), input)?,
            version: Version::of(minor),
            fields: found.headers,
            len,
        })
    }

    fn finish(&self, table: &mut HeaderTable, bytes: &[u8]) -> Result<(), HeadError> {
        self.check_host(table, bytes)?;
        table.options = Options::read(table, bytes)?;
        table.body = framing::of_request(table, bytes)?;
        // RFC 9110 section 9.3.6: whether such bytes would be content or the
        // tunnel's first is for nobody to guess.
        if self.kind == RequestKind::Connect && table.body.has_body() {
            return Err(HeadError::ConnectBody);
        }
        let method = span(bytes, table.start, self.method_len);
        if method == b"TRACE" && table.body.has_body() {
            return Err(HeadError::TraceBody);
        }
        Ok(())
    }
}

impl RequestLine {
    /// The line as offsets into `input`, with the rules that httparse lacks:
    /// methods are short, targets are ASCII.
    fn new(method: &[u8], target: &[u8], input: &[u8]) -> Result<Self, HeadError> {
        if method.len() > MAX_METHOD {
            return Err(HeadError::Method);
        }
        if !target.is_ascii() {
            return Err(HeadError::RequestLine);
        }
        Ok(Self {
            method_len: offset(method.len()),
            target: place(target, input),
            target_len: offset(target.len()),
            form: Form::parse(method, target)?,
            kind: RequestKind::of(method),
        })
    }

    /// RFC 9112 section 3.2: exactly one valid `Host` in HTTP/1.1, whatever the
    /// form of the target; at most one in HTTP/1.0.
    fn check_host(&self, table: &HeaderTable, bytes: &[u8]) -> Result<(), HeadError> {
        if !table.seen.has(Kind::Host) {
            return match table.version {
                Version::Http10 => Ok(()),
                Version::Http11 => Err(HeadError::Host),
            };
        }
        if table.repeated.has(Kind::Host) {
            return Err(HeadError::Host);
        }
        let host = table.first(Kind::Host, bytes).unwrap_or_default();
        let target = span(bytes, self.target, self.target_len);
        match self.form {
            // The target decides then; an equal or empty host has no say.
            Form::Absolute { authority, path }
                if host.is_empty() || span(target, authority, path - authority) == host =>
            {
                Ok(())
            }
            Form::Authority if host.is_empty() || target == host => Ok(()),
            Form::Asterisk if host.is_empty() => Ok(()),
            _ => valid_host(host),
        }
    }
}

fn valid_host(host: &[u8]) -> Result<(), HeadError> {
    let host = std::str::from_utf8(host).map_err(|_| HeadError::Host)?;
    match Target::parse(host, Some(80)) {
        Ok(_) => Ok(()),
        Err(_) => Err(HeadError::Host),
    }
}

/// Longer than any registered method.
const MAX_METHOD: usize = 32;
