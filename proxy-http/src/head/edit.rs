//! Changes to a head, kept as a script over its original bytes and carried out
//! while it is copied.

use bytes::BytesMut;

use super::field::{Field, Header, Kind, blanks, is_token, offset, span, text};
use super::request::RequestLine;
use super::response::{CODE, StatusLine};
use super::target::Form;
use super::{Framing, HeaderTable, RequestHead, ResponseHead, Version};

/// The memory of a [`HeadEdit`], to be used again for head after head. Empty,
/// it owns nothing.
#[derive(Clone, Default)]
pub struct EditScript {
    /// One bit for each field that is left out.
    cuts: Vec<u64>,
    /// New lines, in the order of their places.
    inserts: Vec<Insert>,
    /// The text of new lines and of a new target.
    text: Vec<u8>,
    target: NewTarget,
    /// The version to send is 1.1 whatever was received.
    upgrade_version: bool,
    /// The length of `text`, and the target, when the changes were settled.
    settled: (u32, NewTarget),
}

impl EditScript {
    /// An empty script.
    pub fn new() -> Self {
        Self::default()
    }

    fn begin(&mut self, fields: usize) {
        self.cuts.clear();
        self.cuts.resize(fields.div_ceil(64), 0);
        self.inserts.clear();
        self.text.clear();
        self.target = NewTarget::Same;
        self.upgrade_version = false;
    }

    pub(super) fn is_cut(&self, index: usize) -> bool {
        self.cuts[index / 64] & (1 << (index % 64)) != 0
    }

    pub(super) fn cut(&mut self, index: usize) {
        self.cuts[index / 64] |= 1 << (index % 64);
    }
}

impl std::fmt::Debug for EditScript {
    /// Shows no text: it may hold secrets.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("EditScript")
            .field("inserts", &self.inserts.len())
            .finish_non_exhaustive()
    }
}

/// A new line in front of line `at` of the original.
#[derive(Clone, Copy)]
struct Insert {
    at: u32,
    name_len: u32,
    start: u32,
    end: u32,
}

#[derive(Clone, Copy, Default, PartialEq, Eq)]
enum NewTarget {
    #[default]
    Same,
    /// The path of an absolute target.
    Origin,
    /// This part of the text.
    Text(u32, u32),
}

/// Changes to one head.
///
/// Nothing is copied until [`encode`](Self::encode), which appends runs of
/// unchanged neighbouring lines as one slice; names, order and repeats stay as
/// received. The framing fields are out of reach of [`set`](Self::set),
/// [`append`](Self::append) and [`remove`](Self::remove): only
/// [`reframe`](Self::reframe) changes them.
///
/// ```
/// use proxy_core::Status;
/// use proxy_http::{EditScript, HeadEdit, HeadLimits, RequestParser, ToOrigin};
///
/// let mut parser = RequestParser::new(HeadLimits::default());
/// let input = b"GET http://h/a HTTP/1.1\r\nHost: h\r\nCookie: x\r\nProxy-Connection: a\r\n\r\n";
/// let Status::Complete(head, _) = parser.parse(input)? else { unreachable!() };
///
/// let mut script = EditScript::new();
/// let mut edit = HeadEdit::request(&mut script, &head);
/// edit.to_origin(ToOrigin::default());
/// edit.remove("cookie");
/// let mut out = bytes::BytesMut::new();
/// edit.encode(&mut out);
/// assert_eq!(&out[..], b"GET /a HTTP/1.1\r\nHost: h\r\n\r\n");
/// # Ok::<(), proxy_http::HeadError>(())
/// ```
pub struct HeadEdit<'a> {
    pub(super) script: &'a mut EditScript,
    pub(super) table: &'a HeaderTable,
    pub(super) bytes: &'a [u8],
    pub(super) line: Line<'a>,
}

/// The start line of the head under change.
#[derive(Clone, Copy)]
pub(super) enum Line<'a> {
    Request(&'a RequestLine),
    Response(&'a StatusLine),
}

impl<'a> HeadEdit<'a> {
    /// No changes yet to a request head.
    pub fn request(script: &'a mut EditScript, head: &RequestHead<'a, 'a>) -> Self {
        Self::new(script, head.table, head.bytes, Line::Request(head.line))
    }

    /// No changes yet to a response head.
    pub fn response(script: &'a mut EditScript, head: &ResponseHead<'a, 'a>) -> Self {
        Self::new(script, head.table, head.bytes, Line::Response(head.line))
    }

    /// Goes on with a request head whose changes were [settled](Self::settle), to
    /// send it again: new lines and a new target that came later are taken back.
    ///
    /// ```
    /// # use proxy_core::Status;
    /// # use proxy_http::{EditScript, HeadEdit, HeadLimits, RequestParser};
    /// # let mut parser = RequestParser::new(HeadLimits::default());
    /// # let input = b"GET http://h/ HTTP/1.1\r\nHost: h\r\n\r\n";
    /// # let Status::Complete(head, _) = parser.parse(input)? else { unreachable!() };
    /// let mut script = EditScript::new();
    /// let mut edit = HeadEdit::request(&mut script, &head);
    /// edit.append("X-Kept", b"1")?;
    /// edit.settle();
    /// edit.append("X-Try", b"1")?;
    /// let mut edit = HeadEdit::resume(&mut script, &head);
    /// edit.append("X-Try", b"2")?;
    /// let values: Vec<_> = edit.headers().map(|header| header.value).collect();
    /// assert_eq!(values, [&b"h"[..], b"1", b"2"]);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn resume(script: &'a mut EditScript, head: &RequestHead<'a, 'a>) -> Self {
        let (text, target) = script.settled;
        if script.text.len() > text as usize {
            script.inserts.retain(|line| line.start < text);
            script.text.truncate(text as usize);
        }
        script.target = target;
        Self {
            script,
            table: head.table,
            bytes: head.bytes,
            line: Line::Request(head.line),
        }
    }

    fn new(
        script: &'a mut EditScript,
        table: &'a HeaderTable,
        bytes: &'a [u8],
        line: Line<'a>,
    ) -> Self {
        script.begin(table.fields.len());
        Self {
            script,
            table,
            bytes,
            line,
        }
    }

    /// Makes the changes so far the ones that [`resume`](Self::resume) goes back
    /// to.
    pub fn settle(&mut self) {
        self.script.settled = (offset(self.script.text.len()), self.script.target);
    }

    /// Leaves out every field called `name`, in any case; says whether there
    /// was one. Framing fields and `Host` stay.
    pub fn remove(&mut self, name: &str) -> bool {
        if is_fixed(name.as_bytes()) {
            return false;
        }
        self.cut_named(name.as_bytes()).is_some()
    }

    /// Puts one field in the place of all called `name`, where the first of
    /// them stands, or behind the last line.
    ///
    /// # Errors
    /// If name or value is malformed, or the field is one that frames or routes
    /// the message.
    pub fn set(&mut self, name: &str, value: &[u8]) -> Result<(), EditError> {
        check(name.as_bytes(), value)?;
        let at = self.cut_named(name.as_bytes());
        self.insert(
            at.unwrap_or(self.table.fields.len()),
            name.as_bytes(),
            value,
        );
        Ok(())
    }

    /// Adds a field behind the last line.
    ///
    /// # Errors
    /// As [`set`](Self::set).
    pub fn append(&mut self, name: &str, value: &[u8]) -> Result<(), EditError> {
        check(name.as_bytes(), value)?;
        self.insert(self.table.fields.len(), name.as_bytes(), value);
        Ok(())
    }

    /// Replaces the target of a request; `Host` stays.
    ///
    /// # Errors
    /// If it is empty, has bytes other than visible ASCII, or the head is a
    /// response.
    pub fn set_target(&mut self, target: &str) -> Result<(), EditError> {
        let visible = target.bytes().all(|b| matches!(b, b'!'..=b'~'));
        if target.is_empty() || !visible || matches!(self.line, Line::Response(_)) {
            return Err(EditError::Target);
        }
        let start = self.script.text.len();
        self.script.text.extend_from_slice(target.as_bytes());
        self.script.target = NewTarget::Text(offset(start), offset(self.script.text.len()));
        Ok(())
    }

    /// Says how the body is really going to be sent, in place of what the head
    /// said. To be called only by who re-frames the body accordingly.
    pub fn reframe(&mut self, framing: Framing) {
        self.cut_kind(Kind::ContentLength);
        self.cut_kind(Kind::TransferEncoding);
        let end = self.table.fields.len();
        match framing {
            Framing::Chunked => self.insert(end, b"Transfer-Encoding", b"chunked"),
            Framing::Length(n) => self.insert(end, b"Content-Length", n.to_string().as_bytes()),
            Framing::None | Framing::UntilClose => {}
        }
    }

    /// The method of a request; `None` for a response.
    pub fn method(&self) -> Option<&'a str> {
        let Line::Request(line) = self.line else {
            return None;
        };
        let method = span(self.bytes, self.table.start, line.method_len);
        Some(text(method))
    }

    /// The target of a request as the head now stands; `None` for a response.
    /// A query without path is shown without the `/` that goes in front of it.
    pub fn target(&self) -> Option<&str> {
        let Line::Request(line) = self.line else {
            return None;
        };
        let old = span(self.bytes, line.target, line.target_len);
        let new = match (self.script.target, line.form) {
            (NewTarget::Text(start, end), _) => span(&self.script.text, start, end - start),
            (NewTarget::Origin, Form::Absolute { path, .. }) => {
                old.get(path as usize..).unwrap_or_default()
            }
            _ => old,
        };
        Some(match new {
            b"" if self.method() == Some("OPTIONS") => "*",
            b"" => "/",
            new => text(new),
        })
    }

    /// The status of a response; `None` for a request.
    pub fn status(&self) -> Option<u16> {
        match self.line {
            Line::Request(_) => None,
            Line::Response(line) => Some(line.status),
        }
    }

    /// The fields in order as the head now stands.
    pub fn headers(&self) -> impl Iterator<Item = Header<'_>> {
        let places = 0..=self.table.fields.len();
        places.flat_map(|place| {
            let new = self.script.inserts.iter();
            let new = new.filter(move |line| line.at as usize == place);
            let own = self.table.fields.get(place);
            let own = own.filter(|_| !self.script.is_cut(place));
            new.map(|line| self.new_header(line))
                .chain(own.map(|field| field.header(self.bytes)))
        })
    }

    /// The value of the first field called `name` as the head now stands.
    pub fn get(&self, name: &str) -> Option<&[u8]> {
        let name = name.as_bytes();
        let own = self.find(name);
        let new = self
            .script
            .inserts
            .iter()
            .find(|line| self.is_named(line, name));
        match (own, new) {
            (own, Some(line)) if own.is_none_or(|index| line.at as usize <= index) => {
                Some(self.new_value(line))
            }
            (own, _) => own.map(|index| self.table.fields[index].value(self.bytes)),
        }
    }

    /// Whether the head may be sent exactly as it was received, from
    /// [`RequestHead::raw`] or [`ResponseHead::raw`].
    pub fn is_unchanged(&self) -> bool {
        self.script.inserts.is_empty()
            && self.script.target == NewTarget::Same
            && self.script.cuts.iter().all(|word| *word == 0)
            && !self.table.spaced
            && self.keeps_start_line()
    }

    /// Appends the changed head, the empty line included.
    pub fn encode(&self, out: &mut BytesMut) {
        out.reserve(self.table.raw(self.bytes).len() + self.script.text.len() + SLACK);
        let run = match self.line {
            Line::Request(line) => self.encode_request_line(line, out),
            Line::Response(line) => self.encode_status_line(line, out),
        };
        self.encode_fields(run, out);
    }

    fn keeps_start_line(&self) -> bool {
        match self.line {
            Line::Request(_) => self.keeps_version(),
            Line::Response(line) => self.keeps_version() && !line.no_blank,
        }
    }

    fn keeps_version(&self) -> bool {
        !self.script.upgrade_version || self.table.version == Version::Http11
    }

    /// Returns the offset that copying goes on from: with an unchanged version
    /// the end of the line already belongs to the first run.
    fn encode_request_line(&self, line: &RequestLine, out: &mut BytesMut) -> u32 {
        let target_end = line.target + line.target_len;
        if self.script.target == NewTarget::Same && self.keeps_version() {
            return self.table.start;
        }
        out.extend_from_slice(self.slice(self.table.start, line.target));
        let kept_from = match self.script.target {
            NewTarget::Same => line.target,
            NewTarget::Origin => self.encode_path_start(line, out),
            NewTarget::Text(start, end) => {
                out.extend_from_slice(span(&self.script.text, start, end - start));
                target_end
            }
        };
        if self.keeps_version() {
            return kept_from;
        }
        out.extend_from_slice(self.slice(kept_from, target_end));
        out.extend_from_slice(b" HTTP/1.1\r\n");
        self.table.fields_start
    }

    /// RFC 9112 section 3.2.1: an empty path becomes `/`; section 3.2.4: or `*`
    /// for OPTIONS without a query.
    fn encode_path_start(&self, line: &RequestLine, out: &mut BytesMut) -> u32 {
        let Form::Absolute { path, .. } = line.form else {
            return line.target;
        };
        let path = line.target + path;
        let target_end = line.target + line.target_len;
        let first = self.slice(path, target_end).first();
        if first != Some(&b'/') {
            let is_options = self.slice(self.table.start, line.target) == b"OPTIONS ";
            let asterisk = is_options && first.is_none();
            out.extend_from_slice(if asterisk { b"*" } else { b"/" });
        }
        path
    }

    /// RFC 9110 section 2.5: a proxy sends its own version.
    fn encode_status_line(&self, line: &StatusLine, out: &mut BytesMut) -> u32 {
        if self.keeps_start_line() {
            return self.table.start;
        }
        let code = self.table.start + CODE;
        let version: &[u8] = match self.keeps_version() {
            true => self.slice(self.table.start, code),
            false => b"HTTP/1.1 ",
        };
        out.extend_from_slice(version);
        out.extend_from_slice(span(self.bytes, code, 3));
        if line.no_blank {
            out.extend_from_slice(b" ");
        }
        code + 3
    }

    /// Copies from `run` to the end, without the lines cut and with the new
    /// ones at their places.
    fn encode_fields(&self, mut run: u32, out: &mut BytesMut) {
        let fields = self.table.fields.len();
        let mut inserts = self.script.inserts.iter().peekable();
        for cut in self.cut_lines().chain([fields]) {
            while let Some(line) = inserts.next_if(|line| line.at as usize <= cut) {
                run = self.copy_to(line.at as usize, run, out);
                out.extend_from_slice(span(&self.script.text, line.start, line.end - line.start));
            }
            if cut < fields {
                self.copy_to(cut, run, out);
                run = self.table.line_start(cut + 1);
            }
        }
        self.copy(run, self.table.end, out);
    }

    /// Copies what lies between `run` and a line; returns where the next run
    /// begins.
    fn copy_to(&self, line: usize, run: u32, out: &mut BytesMut) -> u32 {
        let place = self.table.line_start(line);
        self.copy(run, place, out);
        run.max(place)
    }

    fn copy(&self, run: u32, end: u32, out: &mut BytesMut) {
        match self.table.spaced {
            false => out.extend_from_slice(self.slice(run, end)),
            true => self.copy_closed(run, end, out),
        }
    }

    /// RFC 9112 section 5.1: without the blanks between names and colons.
    #[cold]
    fn copy_closed(&self, mut run: u32, end: u32, out: &mut BytesMut) {
        let lines = run..end;
        let fields = self.table.fields.iter();
        for field in fields.filter(|field| lines.contains(&field.name)) {
            let name_end = field.name + u32::from(field.name_len);
            out.extend_from_slice(self.slice(run, name_end));
            run = name_end + offset(blanks(self.slice(name_end, end)));
        }
        out.extend_from_slice(self.slice(run, end));
    }

    fn cut_lines(&self) -> impl Iterator<Item = usize> {
        self.script
            .cuts
            .iter()
            .enumerate()
            .flat_map(|(word, bits)| {
                std::iter::successors(Some(*bits), |bits| Some(bits & bits.wrapping_sub(1)))
                    .take_while(|bits| *bits != 0)
                    .map(move |bits| word * 64 + bits.trailing_zeros() as usize)
            })
    }

    pub(super) fn slice(&self, start: u32, end: u32) -> &'a [u8] {
        span(self.bytes, start, end.saturating_sub(start))
    }

    /// The first field called `name` that is not cut.
    fn find(&self, name: &[u8]) -> Option<usize> {
        let is_it = |(index, field): (usize, &Field)| {
            field.is(name, self.bytes) && !self.script.is_cut(index)
        };
        let mut fields = self.table.fields.iter().enumerate();
        fields.position(is_it)
    }

    fn is_named(&self, line: &Insert, name: &[u8]) -> bool {
        span(&self.script.text, line.start, line.name_len).eq_ignore_ascii_case(name)
    }

    fn new_header(&self, line: &Insert) -> Header<'_> {
        Header {
            name: text(span(&self.script.text, line.start, line.name_len)),
            value: self.new_value(line),
        }
    }

    fn new_value(&self, line: &Insert) -> &[u8] {
        let start = line.start + line.name_len + 2;
        span(&self.script.text, start, line.end.saturating_sub(start + 2))
    }

    /// Cuts every line of a kind, old and new.
    pub(super) fn cut_kind(&mut self, kind: Kind) {
        self.drop_new(kind);
        if self.table.seen.has(kind) {
            self.cut_where(|field, _| field.kind == kind);
        }
    }

    /// Takes back the new lines of a kind.
    pub(super) fn drop_new(&mut self, kind: Kind) {
        let text = &self.script.text;
        let name = |line: &Insert| span(text, line.start, line.name_len);
        self.script
            .inserts
            .retain(|line| Kind::of(name(line)) != kind);
    }

    /// Cuts every line, old and new, of that name; returns the place of the
    /// first that is left of them.
    fn cut_named(&mut self, name: &[u8]) -> Option<usize> {
        let text = &self.script.text;
        let mut place = None;
        self.script.inserts.retain(|line| {
            let own = span(text, line.start, line.name_len).eq_ignore_ascii_case(name);
            if own {
                place.get_or_insert(line.at as usize);
            }
            !own
        });
        let cut = self.cut_where(|field, bytes| field.is(name, bytes));
        cut.into_iter().chain(place).min()
    }

    /// Cuts the lines that are not cut yet and satisfy `condition`.
    pub(super) fn cut_where(&mut self, condition: impl Fn(&Field, &[u8]) -> bool) -> Option<usize> {
        let mut first = None;
        for (index, field) in self.table.fields.iter().enumerate() {
            if condition(field, self.bytes) && !self.script.is_cut(index) {
                self.script.cut(index);
                first.get_or_insert(index);
            }
        }
        first
    }

    /// Adds a line in front of line `at`, behind what was added there before.
    pub(super) fn insert(&mut self, at: usize, name: &[u8], value: &[u8]) {
        self.insert_with(at, name, |text| text.extend_from_slice(value));
    }

    /// The same with a value that `write` appends.
    pub(super) fn insert_with(&mut self, at: usize, name: &[u8], write: impl FnOnce(&mut Vec<u8>)) {
        let EditScript { inserts, text, .. } = &mut *self.script;
        let start = text.len();
        text.extend_from_slice(name);
        text.extend_from_slice(b": ");
        write(text);
        text.extend_from_slice(b"\r\n");
        let line = Insert {
            at: offset(at),
            name_len: offset(name.len()),
            start: offset(start),
            end: offset(text.len()),
        };
        let place = inserts.partition_point(|other| other.at <= line.at);
        inserts.insert(place, line);
    }

    /// The login for an HTTP parent, in the place of the client's own, which
    /// [`to_origin`](Self::to_origin) has taken out.
    #[cfg(feature = "serve")]
    pub(crate) fn show_login(&mut self, value: &[u8]) {
        self.insert(self.table.fields.len(), b"Proxy-Authorization", value);
    }

    /// The target for an HTTP parent instead of an origin: scheme and authority
    /// stay in front of the path (RFC 9112 section 3.2.2), be it a new one.
    #[cfg(feature = "serve")]
    pub(crate) fn send_absolute_form(&mut self) {
        let Line::Request(line) = self.line else {
            return;
        };
        let Form::Absolute { path, .. } = line.form else {
            return;
        };
        self.script.target = match self.script.target {
            NewTarget::Origin => NewTarget::Same,
            NewTarget::Text(start, end) if self.script.text[start as usize] == b'/' => {
                let front = self.script.text.len();
                let (start, end) = (start as usize, end as usize);
                let text = &mut self.script.text;
                text.extend_from_slice(span(self.bytes, line.target, path));
                text.extend_from_within(start..end);
                NewTarget::Text(offset(front), offset(text.len()))
            }
            same => same,
        };
    }

    pub(super) fn send_origin_form(&mut self) {
        self.script.target = NewTarget::Origin;
    }

    pub(super) fn send_version_11(&mut self) {
        self.script.upgrade_version = true;
    }
}

impl std::fmt::Debug for HeadEdit<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.script.fmt(f)
    }
}

/// Why a change to a head is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, thiserror::Error)]
#[non_exhaustive]
pub enum EditError {
    /// The field frames or routes the message, or is about its connection.
    #[error("a framing, routing or connection field cannot be edited")]
    Fixed,
    /// The name is not a token.
    #[error("not a field name")]
    Name,
    /// The status is none of a final answer, 200 to 599.
    #[error("not the status of a final answer")]
    Status,
    /// The target is not visible ASCII, or there is none to replace.
    #[error("not a request target")]
    Target,
    /// The value holds a control character.
    #[error("control character in a field value")]
    Value,
}

/// A field made here must not open a gap either (RFC 9110 section 5.5).
fn check(name: &[u8], value: &[u8]) -> Result<(), EditError> {
    if name.is_empty() || !name.iter().all(|b| is_token(*b)) {
        return Err(EditError::Name);
    }
    if is_fixed(name) {
        return Err(EditError::Fixed);
    }
    match value
        .iter()
        .all(|b| matches!(b, b'\t' | b' '..=b'~' | 0x80..))
    {
        true => Ok(()),
        false => Err(EditError::Value),
    }
}

/// Whether a field may stand in an answer that a filter gives: the server
/// frames it, and says what becomes of the connection (RFC 9110 section 7.6.1).
#[cfg(feature = "serve")]
pub(crate) fn check_own(name: &[u8], value: &[u8]) -> Result<(), EditError> {
    check(name, value)?;
    match super::hops::HOP_BY_HOP.has(Kind::of(name)) {
        true => Err(EditError::Fixed),
        false => Ok(()),
    }
}

fn is_fixed(name: &[u8]) -> bool {
    matches!(
        Kind::of(name),
        Kind::Connection | Kind::ContentLength | Kind::Host | Kind::TransferEncoding
    )
}

/// Room for a start line that grows.
const SLACK: usize = 32;
