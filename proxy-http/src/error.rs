//! Why a head or a body was refused.

use proxy_core::ConnectErrorKind;

/// Why a message head is refused.
///
/// A head that two recipients could read in two ways is never repaired: the
/// exchange ends with [`status`](Self::status) and the connection closes.
///
/// ```
/// use proxy_http::{HeadError, HeadLimits, RequestParser};
/// let mut parser = RequestParser::new(HeadLimits::default());
/// let error = parser.parse(b"GET http://h/ HTTP/1.1\r\nHost : h\r\n\r\n").unwrap_err();
/// assert_eq!((error, error.status()), (HeadError::BlankBeforeColon, 400));
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, thiserror::Error)]
#[non_exhaustive]
pub enum HeadError {
    /// A blank between a field name and its colon in a request (RFC 9112 section
    /// 5.1).
    #[error("blank before the colon of a field")]
    BlankBeforeColon,
    /// A CONNECT with a body (RFC 9110 section 9.3.6).
    #[error("CONNECT with a body")]
    ConnectBody,
    /// `Connection` names more options than anybody needs.
    #[error("too many connection options")]
    ConnectionOptions,
    /// `Content-Length` is not one plain decimal number (RFC 9112 section 6.3).
    #[error("invalid or repeated content length")]
    ContentLength,
    /// A control character in a field value (RFC 9110 section 5.5).
    #[error("control character in a field")]
    Control,
    /// Credentials that cannot be read (RFC 7617 section 2); to be answered
    /// with a challenge.
    #[error("malformed proxy credentials")]
    Credentials,
    /// The request does not say where it goes, or says it wrongly.
    #[error("no valid destination")]
    Destination,
    /// A field name that is not a token, or a line without a colon.
    #[error("invalid field name")]
    FieldName,
    /// No `Host` where one is due, more than one, or an invalid one (RFC 9112
    /// section 3.2).
    #[error("missing, repeated or invalid host")]
    Host,
    /// `Content-Length` together with `Transfer-Encoding` (RFC 9112 section
    /// 6.1).
    #[error("both content length and transfer encoding")]
    LengthAndCoding,
    /// A line that does not end in CRLF (RFC 9112 section 2.2).
    #[error("line not ended by CRLF")]
    LineEnd,
    /// `Max-Forwards` is not one plain decimal number (RFC 9110 section 7.6.2):
    /// where the request would end is for nobody to guess.
    #[error("invalid or repeated max forwards")]
    MaxForwards,
    /// The method is longer than any method known.
    #[error("method not implemented")]
    Method,
    /// A field value continued on the next line (RFC 9112 section 5.2).
    #[error("folded field")]
    ObsoleteFold,
    /// The request line is not `method SP target SP version` (RFC 9112 section
    /// 3).
    #[error("malformed request line")]
    RequestLine,
    /// An absolute target of a scheme other than `http` and `https`.
    #[error("scheme not implemented")]
    Scheme,
    /// The status line is not `version SP code SP reason` (RFC 9112 section 4).
    #[error("malformed status line")]
    StatusLine,
    /// The request target has none of the four forms (RFC 9112 section 3.2).
    #[error("malformed request target")]
    Target,
    /// The head is larger than the limit.
    #[error("head too large")]
    TooLarge,
    /// The head has more fields than the limit.
    #[error("too many fields")]
    TooManyFields,
    /// A TRACE with a body (RFC 9110 section 9.3.8).
    #[error("TRACE with a body")]
    TraceBody,
    /// A transfer coding other than `chunked` (RFC 9112 section 6.1).
    #[error("transfer coding not implemented")]
    TransferCoding,
    /// `Transfer-Encoding` that says `chunked` not exactly once and last, or in
    /// HTTP/1.0 (RFC 9112 sections 6.1 and 6.3).
    #[error("faulty transfer encoding")]
    TransferEncoding,
    /// The request line is longer than the whole head may be.
    #[error("request target too long")]
    UriTooLong,
    /// A version other than 1.0 and 1.1.
    #[error("HTTP version not supported")]
    Version,
}

impl HeadError {
    /// The status to answer a refused request with. A refused response is
    /// answered with 502 whatever the reason.
    pub fn status(self) -> u16 {
        match self {
            Self::Credentials => 407,
            Self::UriTooLong => 414,
            Self::TooLarge | Self::TooManyFields => 431,
            Self::Method | Self::Scheme | Self::TransferCoding => 501,
            Self::Version => 505,
            _ => 400,
        }
    }

    /// The word for logs: the name of the rule or limit.
    ///
    /// ```
    /// assert_eq!(proxy_http::HeadError::LengthAndCoding.word(), "length-and-coding");
    /// ```
    pub fn word(self) -> &'static str {
        match self {
            Self::BlankBeforeColon => "blank-before-colon",
            Self::ConnectBody => "connect-body",
            Self::ConnectionOptions => "connection-options",
            Self::ContentLength => "content-length",
            Self::Control => "control",
            Self::Credentials => "credentials",
            Self::Destination => "destination",
            Self::FieldName => "field-name",
            Self::Host => "host",
            Self::LengthAndCoding => "length-and-coding",
            Self::LineEnd => "line-end",
            Self::MaxForwards => "max-forwards",
            Self::Method => "method",
            Self::ObsoleteFold => "obsolete-fold",
            Self::RequestLine => "request-line",
            Self::Scheme => "scheme",
            Self::StatusLine => "status-line",
            Self::Target => "target",
            Self::TooLarge => "too-large",
            Self::TooManyFields => "too-many-fields",
            Self::TraceBody => "trace-body",
            Self::TransferCoding => "transfer-coding",
            Self::TransferEncoding => "transfer-encoding",
            Self::UriTooLong => "uri-too-long",
            Self::Version => "version",
        }
    }
}

/// Why a message body is refused. Nothing of the refused bytes may be
/// forwarded, and neither connection can be used again.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, thiserror::Error)]
#[non_exhaustive]
pub enum BodyError {
    /// A chunk's data is not followed by CRLF (RFC 9112 section 7.1).
    #[error("chunk data not followed by CRLF")]
    ChunkEnd,
    /// A chunk extension is too long or holds a control character (RFC 9112
    /// section 7.1.1).
    #[error("invalid chunk extension")]
    ChunkExtension,
    /// A chunk size is not 1 to 15 hexadecimal digits, or its line does not end
    /// in CRLF (RFC 9112 section 7.1).
    #[error("invalid chunk size")]
    ChunkSize,
    /// A trailer line is not a field line (RFC 9112 section 7.1.2).
    #[error("invalid trailer field")]
    Trailer,
    /// A trailer field that would change framing, routing or who asks (RFC 9110
    /// section 6.5.1).
    #[error("trailer field not allowed")]
    TrailerForbidden,
    /// The trailer section is too long.
    #[error("trailer section too large")]
    TrailerTooLarge,
}

impl BodyError {
    /// The word for logs: the name of the rule or limit.
    pub fn word(self) -> &'static str {
        match self {
            Self::ChunkEnd => "chunk-end",
            Self::ChunkExtension => "chunk-extension",
            Self::ChunkSize => "chunk-size",
            Self::Trailer => "trailer",
            Self::TrailerForbidden => "trailer-forbidden",
            Self::TrailerTooLarge => "trailer-too-large",
        }
    }
}

/// Why a parent proxy did not open a tunnel.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, thiserror::Error)]
#[non_exhaustive]
pub enum TunnelError {
    /// It answered with this status, and named the cause in `Proxy-Status` (RFC
    /// 9209 section 2.3).
    #[error("the parent failed with status {0}: {1}")]
    Failed(u16, ConnectErrorKind),
    /// Its answer broke the protocol.
    #[error("malformed answer of the parent: {0}")]
    Malformed(#[from] HeadError),
    /// It answered with another status than 2xx.
    #[error("the parent refused with status {0}")]
    Refused(u16),
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn errors_are_small() {
        assert!(size_of::<HeadError>() <= 8);
        assert!(size_of::<BodyError>() <= 8);
        assert!(size_of::<TunnelError>() <= 8);
    }
}
