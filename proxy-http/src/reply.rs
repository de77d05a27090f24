//! The proxy's own answers, and the one place where refusals and failures get
//! their status.

use bytes::{BufMut, BytesMut};
use proxy_core::{ConnectErrorKind, Denial};

use crate::head::is_token;
use crate::{HeadError, Persist};

/// An answer of the proxy itself: a status, a line of text, and what the client
/// must know to go on.
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
    error: Option<&'static str>,
    proxy: Option<&'a str>,
    realm: Option<&'a str>,
    persist: Persist,
    head_only: bool,
}

impl<'a> Reply<'a> {
    /// An answer with this status, 200 to 599.
    pub fn new(status: u16) -> Self {
        Self {
            status,
            error: None,
            proxy: None,
            realm: None,
            persist: Persist::Default,
            head_only: false,
        }
    }

    /// The answer to a request that policy refused.
    pub fn denied(denial: Denial) -> Self {
        let (status, error) = match denial {
            Denial::Busy => (503, Some("connection_limit_reached")),
            Denial::Challenge => (407, None),
            Denial::Unroutable => (502, Some("destination_ip_unroutable")),
            // `Forbid`, and whatever policy may learn to say.
            _ => (403, Some("http_request_denied")),
        };
        Self::new(status).error_if(error)
    }

    /// The answer when the origin could not be reached.
    pub fn connect_failed(kind: ConnectErrorKind) -> Self {
        use ConnectErrorKind as Kind;
        let (status, error) = match kind {
            Kind::Exhausted => (503, "connection_limit_reached"),
            Kind::Forbidden => (403, "destination_ip_prohibited"),
            Kind::HostUnreachable | Kind::NetworkUnreachable => (502, "destination_ip_unroutable"),
            Kind::Loop => (508, "proxy_loop_detected"),
            Kind::NameNotFound | Kind::NameUnavailable => (502, "dns_error"),
            Kind::Protocol => (502, "http_protocol_error"),
            Kind::Login => (502, "proxy_configuration_error"),
            Kind::Refused => (502, "connection_refused"),
            Kind::Reset => (502, "connection_terminated"),
            Kind::TimedOut => (504, "connection_timeout"),
            Kind::Tls => (502, "tls_protocol_error"),
            _ => (502, "destination_unavailable"),
        };
        Self::new(status).error(error)
    }

    /// The answer to a request whose head is refused; the connection closes,
    /// since where the next request begins is unknown.
    pub fn bad_request(error: HeadError) -> Self {
        Self::new(error.status())
            .error("http_request_error")
            .persist(Persist::Close)
    }

    /// The answer when the origin's one is malformed.
    pub fn bad_response() -> Self {
        Self::new(502).error("http_protocol_error")
    }

    /// The `Proxy-Status` error of the reply (RFC 9209 section 2.3), sent when
    /// the [`proxy`](Self::proxy) is named.
    #[must_use]
    pub fn error(self, error: &'static str) -> Self {
        self.error_if(Some(error))
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
        // The body is the status line's text again and a line feed.
        let len = digits.len() + 1 + reason.len() + 1;
        put(out, &["HTTP/1.1 ", &digits, " ", reason, "\r\n"]);
        put(
            out,
            &[
                "Content-Type: text/plain\r\nContent-Length: ",
                &len.to_string(),
                "\r\n",
            ],
        );
        self.encode_fields(out);
        out.put_slice(b"\r\n");
        if !self.head_only {
            put(out, &[&digits, " ", reason, "\n"]);
        }
    }

    fn encode_fields(&self, out: &mut BytesMut) {
        match self.persist {
            Persist::Close => out.put_slice(b"Connection: close\r\n"),
            Persist::Default => {}
            Persist::KeepAlive => out.put_slice(b"Connection: keep-alive\r\n"),
        }
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

    fn error_if(mut self, error: Option<&'static str>) -> Self {
        self.error = error;
        self
    }
}

/// The reason phrase of a status, for those that a proxy sends.
fn reason(status: u16) -> &'static str {
    match status {
        200 => "OK",
        204 => "No Content",
        400 => "Bad Request",
        401 => "Unauthorized",
        403 => "Forbidden",
        404 => "Not Found",
        405 => "Method Not Allowed",
        407 => "Proxy Authentication Required",
        408 => "Request Timeout",
        410 => "Gone",
        413 => "Content Too Large",
        414 => "URI Too Long",
        417 => "Expectation Failed",
        421 => "Misdirected Request",
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
