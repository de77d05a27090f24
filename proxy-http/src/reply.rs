//! The proxy's own answers, and the one place where refusals and failures get
//! their status.

use std::fmt;

use bytes::{BufMut, BytesMut};
use proxy_core::{ConnectError, ConnectErrorKind, Denial, Side};

use crate::head::is_token;
use crate::{HeadError, Persist};

/// An answer of the proxy itself: a status, a line of text that names the cause,
/// and what the client must know to go on.
///
/// Nothing of the request is repeated in it.
///
/// ```
/// use proxy_core::Denial;
/// let mut out = bytes::BytesMut::new();
/// proxy_http::Reply::denied(Denial::Challenge).challenge("proxy").encode(&mut out);
/// let text = std::str::from_utf8(&out).unwrap();
/// assert!(text.starts_with("HTTP/1.1 407 Proxy Authentication Required\r\n"));
/// assert!(text.contains("Proxy-Authenticate: Basic realm=\"proxy\", charset=\"UTF-8\"\r\n"));
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Reply<'a> {
    status: u16,
    cause: Cause,
    error: Option<&'static str>,
    proxy: Option<&'a str>,
    realm: Option<&'a str>,
    persist: Persist,
    head_only: bool,
    html: bool,
}

/// What people are told behind the status.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Cause {
    Head(HeadError),
    None,
    Text(&'static str),
}

impl fmt::Display for Cause {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Head(error) => write!(f, ": {error}"),
            Self::None => Ok(()),
            Self::Text(text) => write!(f, ": {text}"),
        }
    }
}

impl<'a> Reply<'a> {
    /// An answer with this status, 200 to 599.
    pub fn new(status: u16) -> Self {
        Self {
            status,
            cause: Cause::None,
            error: None,
            proxy: None,
            realm: None,
            persist: Persist::Default,
            head_only: false,
            html: false,
        }
    }

    /// The answer to a request that policy refused.
    pub fn denied(denial: Denial) -> Self {
        match denial {
            Denial::Busy => Self::new(503)
                .error("connection_limit_reached")
                .cause("the proxy is at its limit"),
            Denial::Challenge => Self::new(407),
            Denial::Unroutable => Self::new(502)
                .error("destination_ip_unroutable")
                .cause("the proxy has no way to go there"),
            // `Forbid`, and whatever policy may learn to say.
            _ => Self::new(403)
                .error("http_request_denied")
                .cause("the rules of this proxy do not allow it"),
        }
    }

    /// The answer when the target could not be reached, or a parent on the way
    /// to it.
    pub fn connect_failed(error: ConnectError) -> Self {
        let (status, token) = verdict(error);
        let cause = match error.side {
            Side::Parent => parent_cause(error.kind),
            Side::Client | Side::Origin => cause(error.kind),
        };
        Self::new(status).error(token).cause(cause)
    }

    /// The answer to a request whose head is refused; the connection closes,
    /// since where the next request begins is unknown.
    pub fn bad_request(error: HeadError) -> Self {
        let reply = Self::new(error.status()).error("http_request_error");
        Self {
            cause: Cause::Head(error),
            ..reply
        }
        .persist(Persist::Close)
    }

    /// The answer when the origin's one is malformed.
    pub fn bad_response() -> Self {
        Self::new(502)
            .error("http_protocol_error")
            .cause("the answer broke the protocol")
    }

    /// What people read behind the status: a few words, no line breaks.
    #[must_use]
    pub fn cause(self, cause: &'static str) -> Self {
        Self {
            cause: Cause::Text(cause),
            ..self
        }
    }

    /// The `Proxy-Status` error of the reply (RFC 9209 section 2.3), sent when
    /// the [`proxy`](Self::proxy) is named.
    #[must_use]
    pub fn error(mut self, error: &'static str) -> Self {
        self.error = Some(error);
        self
    }

    /// Names this proxy in a `Proxy-Status` field (RFC 9209 section 2); a name
    /// that is not a token is left out.
    #[must_use]
    pub fn proxy(mut self, name: &'a str) -> Self {
        self.proxy = Some(name);
        self
    }

    /// Asks for Basic credentials (RFC 7617 section 2) in this realm; for 407.
    #[must_use]
    pub fn challenge(mut self, realm: &'a str) -> Self {
        self.realm = Some(realm);
        self
    }

    /// What the reply says about the connection.
    #[must_use]
    pub fn persist(mut self, persist: Persist) -> Self {
        self.persist = persist;
        self
    }

    /// Leaves the body out, for HEAD (RFC 9110 section 9.3.2).
    #[must_use]
    pub fn head_only(mut self, head_only: bool) -> Self {
        self.head_only = head_only;
        self
    }

    /// Makes the body a page of HTML instead of plain text, with the same words
    /// and without anything that would have to be loaded.
    #[must_use]
    pub fn html(mut self, html: bool) -> Self {
        self.html = html;
        self
    }

    /// The status.
    pub fn status(&self) -> u16 {
        self.status
    }

    /// The `Proxy-Status` error, if there is one.
    pub fn proxy_error(&self) -> Option<&'static str> {
        self.error
    }

    /// Appends the reply.
    pub fn encode(&self, out: &mut BytesMut) {
        let reason = reason(self.status);
        let digits = self.status.clamp(100, 999).to_string();
        let (kind, body) = match self.html {
            true => ("html", page(&format!("{digits} {reason}"), self.cause)),
            false => ("plain", format!("{digits} {reason}{}\n", self.cause)),
        };
        put(out, &["HTTP/1.1 ", &digits, " ", reason, "\r\n"]);
        put(out, &["Content-Type: text/", kind, "\r\n"]);
        put(out, &["Content-Length: ", &body.len().to_string(), "\r\n"]);
        self.encode_fields(out);
        out.put_slice(b"\r\n");
        if !self.head_only {
            put(out, &[&body]);
        }
    }

    fn encode_fields(&self, out: &mut BytesMut) {
        self.persist.encode(out);
        if let Some(realm) = self.realm {
            out.put_slice(b"Proxy-Authenticate: Basic realm=\"");
            put_quoted(out, realm);
            out.put_slice(b"\", charset=\"UTF-8\"\r\n");
        }
        if let (Some(name), Some(error)) = (self.proxy, self.error)
            && is_sf_token(name)
        {
            put(out, &["Proxy-Status: ", name, "; error=", error, "\r\n"]);
        }
    }
}

impl Persist {
    /// Appends the field that says it, if there is one.
    pub(crate) fn encode(self, out: &mut BytesMut) {
        match self {
            Self::Close => out.put_slice(b"Connection: close\r\n"),
            Self::Default => {}
            Self::KeepAlive => out.put_slice(b"Connection: keep-alive\r\n"),
        }
    }
}

/// The same words for a browser.
fn page(title: &str, cause: Cause) -> String {
    let text = escape(&format!("{title}{cause}"));
    let title = escape(title);
    format!(
        "<!DOCTYPE html>\n<html lang=\"en\"><head><meta charset=\"utf-8\">\
         <title>{title}</title></head>\n<body><h1>{title}</h1>\n<p>{text}</p></body></html>\n"
    )
}

/// Text that means nothing to an HTML parser, in elements and attributes.
fn escape(text: &str) -> String {
    text.replace('&', "&amp;")
        .replace('<', "&lt;")
        .replace('>', "&gt;")
        .replace('"', "&quot;")
        .replace('\'', "&#39;")
}

/// The status of a failure, and its name in RFC 9209 section 2.3.
fn verdict(error: ConnectError) -> (u16, &'static str) {
    use ConnectErrorKind as Kind;
    let of_parent = error.side == Side::Parent;
    match error.kind {
        Kind::Exhausted | Kind::Forbidden | Kind::Protocol if of_parent => {
            parent_verdict(error.kind)
        }
        Kind::Certificate => (502, "tls_certificate_error"),
        Kind::Exhausted => (503, "connection_limit_reached"),
        Kind::Forbidden => (403, "destination_ip_prohibited"),
        Kind::HostUnreachable | Kind::NetworkUnreachable => (502, "destination_ip_unroutable"),
        Kind::Login => (502, "proxy_configuration_error"),
        Kind::Loop => (508, "proxy_loop_detected"),
        Kind::NameNotFound | Kind::NameUnavailable => (502, "dns_error"),
        Kind::Protocol => (502, "http_protocol_error"),
        Kind::Refused => (502, "connection_refused"),
        Kind::Reset => (502, "connection_terminated"),
        Kind::Source => (502, "proxy_configuration_error"),
        Kind::TimedOut => (504, "connection_timeout"),
        Kind::Tls => (502, "tls_protocol_error"),
        _ => (502, "destination_unavailable"),
    }
}

/// Where the names for an origin's failure would say something else.
fn parent_verdict(kind: ConnectErrorKind) -> (u16, &'static str) {
    match kind {
        ConnectErrorKind::Exhausted => (503, "destination_unavailable"),
        ConnectErrorKind::Forbidden => (403, "http_request_denied"),
        // It need not have been HTTP.
        _ => (502, "destination_unavailable"),
    }
}

fn cause(kind: ConnectErrorKind) -> &'static str {
    use ConnectErrorKind as Kind;
    match kind {
        Kind::Certificate => "the certificate of the target cannot be trusted",
        Kind::Exhausted => "the proxy can open no more connections",
        Kind::Forbidden => "the address may not be reached through this proxy",
        Kind::HostUnreachable => "there is no route to the host",
        Kind::Login => "the login was refused",
        Kind::Loop => "the target is this proxy itself",
        Kind::NameNotFound => "the name has no address",
        Kind::NameUnavailable => "the name could not be looked up",
        Kind::NetworkUnreachable => "there is no route to the network",
        Kind::Protocol => "the target broke the protocol",
        Kind::Refused => "the target refused the connection",
        Kind::Reset => "the target broke the connection off",
        Kind::Source => "this proxy cannot use the address it is to connect from",
        Kind::TimedOut => "the target took too long to connect to",
        Kind::Tls => "TLS with the target failed",
        _ => "the target could not be reached",
    }
}

fn parent_cause(kind: ConnectErrorKind) -> &'static str {
    use ConnectErrorKind as Kind;
    match kind {
        Kind::Exhausted => "a parent proxy is overloaded or cannot reach the target",
        Kind::Forbidden => "a parent proxy does not allow it",
        Kind::HostUnreachable => "a parent proxy has no route to the host, or there is none to it",
        Kind::Login => "a parent proxy refused the login of this proxy",
        Kind::Loop => "a parent proxy leads back to this proxy",
        Kind::NameNotFound => "a parent proxy found no address for the name",
        Kind::NameUnavailable => "a name could not be looked up on the way through a parent proxy",
        Kind::NetworkUnreachable => {
            "a parent proxy has no route to the network, or there is none to it"
        }
        Kind::Protocol => "a parent proxy broke the protocol",
        Kind::Refused => "a parent proxy refused the connection, or the target behind it did",
        Kind::Reset => "a parent proxy broke the connection off",
        Kind::Source => "this proxy cannot reach a parent proxy from the address it is to use",
        Kind::TimedOut => "a parent proxy, or the target behind it, took too long",
        Kind::Tls => "TLS with a parent proxy failed",
        _ => "a parent proxy could not reach the target",
    }
}

/// The reason phrase of a status (RFC 9110 section 15), for those that a proxy or
/// a filter of it is likely to send.
pub(crate) fn reason(status: u16) -> &'static str {
    match status {
        200 => "OK",
        201 => "Created",
        202 => "Accepted",
        204 => "No Content",
        205 => "Reset Content",
        206 => "Partial Content",
        300 => "Multiple Choices",
        301 => "Moved Permanently",
        302 => "Found",
        303 => "See Other",
        304 => "Not Modified",
        307 => "Temporary Redirect",
        308 => "Permanent Redirect",
        400 => "Bad Request",
        401 => "Unauthorized",
        403 => "Forbidden",
        404 => "Not Found",
        405 => "Method Not Allowed",
        406 => "Not Acceptable",
        407 => "Proxy Authentication Required",
        408 => "Request Timeout",
        409 => "Conflict",
        410 => "Gone",
        412 => "Precondition Failed",
        413 => "Content Too Large",
        414 => "URI Too Long",
        415 => "Unsupported Media Type",
        416 => "Range Not Satisfiable",
        417 => "Expectation Failed",
        421 => "Misdirected Request",
        422 => "Unprocessable Content",
        426 => "Upgrade Required",
        429 => "Too Many Requests",
        431 => "Request Header Fields Too Large",
        451 => "Unavailable For Legal Reasons",
        500 => "Internal Server Error",
        501 => "Not Implemented",
        502 => "Bad Gateway",
        503 => "Service Unavailable",
        504 => "Gateway Timeout",
        505 => "HTTP Version Not Supported",
        508 => "Loop Detected",
        _ => "Status",
    }
}

fn put(out: &mut BytesMut, parts: &[&str]) {
    parts.iter().for_each(|part| out.put_slice(part.as_bytes()));
}

/// RFC 9110 section 5.6.4; what cannot be quoted is left out.
fn put_quoted(out: &mut BytesMut, text: &str) {
    for byte in text.bytes().filter(|byte| !byte.is_ascii_control()) {
        if matches!(byte, b'"' | b'\\') {
            out.put_u8(b'\\');
        }
        out.put_u8(byte);
    }
}

/// RFC 8941 section 3.3.4.
fn is_sf_token(name: &str) -> bool {
    name.starts_with(|c: char| c.is_ascii_alphabetic() || c == '*')
        && name
            .bytes()
            .all(|b| is_token(b) || matches!(b, b':' | b'/'))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn p08_a_page_means_nothing_but_its_words() {
        let reply = Reply::new(400).cause("<b title='x'> & \"y\"").html(true);
        let mut out = BytesMut::new();
        reply.encode(&mut out);
        let text = String::from_utf8_lossy(&out);
        let cause = "<p>400 Bad Request: &lt;b title=&#39;x&#39;&gt; &amp; &quot;y&quot;</p>";
        assert!(text.contains(cause), "{text}");
        assert!(text.contains("<h1>400 Bad Request</h1>"), "{text}");
    }
}
