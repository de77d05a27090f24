//! Messages as the far ends read them.

use proxy_core::Status;
use proxy_http::{
    BodyFramer, Framing, HeadLimits, RequestKind, RequestParser, RequestTarget, ResponseParser,
    Version,
};

/// A request as the client sent it.
pub(super) struct Request {
    pub(super) method: String,
    pub(super) path: String,
    pub(super) destination: Option<String>,
    /// It is about the proxy itself.
    pub(super) asterisk: bool,
    /// It goes no further than to the proxy.
    pub(super) ends_here: bool,
    pub(super) version: Version,
    pub(super) kind: RequestKind,
    pub(super) framing: Framing,
    pub(super) content: Vec<u8>,
    pub(super) whole: bool,
    /// Where the next one begins.
    pub(super) end: usize,
    /// Its number among those that were judged.
    pub(super) asked: Option<usize>,
}

impl Request {
    pub(super) fn read(said: &[u8], from: usize) -> Option<Self> {
        let mut parser = RequestParser::new(HeadLimits::default());
        let Ok(Status::Complete(head, used)) = parser.parse(&said[from..]) else {
            return None;
        };
        let (body, _) = Body::read(head.framing(), &said[from + used..]);
        Some(Self {
            method: head.method().to_owned(),
            path: head.path().to_owned(),
            destination: head.destination().ok().map(|target| target.to_string()),
            asterisk: head.target() == RequestTarget::Asterisk,
            ends_here: head.get("max-forwards").is_some(),
            version: head.version(),
            kind: head.kind(),
            framing: head.framing(),
            content: body.content,
            whole: body.whole,
            end: from + used + body.len,
            asked: None,
        })
    }

    /// One retry, if it does no harm (RFC 9110 section 9.2.2).
    pub(super) fn most_times(&self) -> usize {
        match self.method.as_str() {
            "DELETE" | "GET" | "HEAD" | "OPTIONS" | "PUT" | "TRACE" => 2,
            _ => 1,
        }
    }
}

/// A final answer, and the interim ones before it.
pub(super) struct Answer {
    pub(super) status: u16,
    pub(super) version: Version,
    pub(super) framing: Framing,
    pub(super) keep_alive: bool,
    pub(super) interim: bool,
    /// The proxy says that it is its own.
    pub(super) own: bool,
    pub(super) body: Body,
    /// All of it, interim answers included.
    pub(super) len: usize,
}

impl Answer {
    /// Nothing if the head is not whole.
    pub(super) fn read(bytes: &[u8], kind: RequestKind) -> Option<Self> {
        let mut start = 0;
        let mut interim = false;
        loop {
            let mut parser = ResponseParser::new(HeadLimits::default());
            let head = match parser.parse(&bytes[start..]) {
                Ok(Status::Complete(head, used)) => {
                    start += used;
                    head
                }
                Ok(Status::Partial) => return None,
                Err(error) => panic!("a client refuses this: {error}: {}", bytes.escape_ascii()),
            };
            if head.is_interim() {
                interim = true;
                continue;
            }
            let framing = head.framing(kind);
            let (body, _) = Body::read(framing, &bytes[start..]);
            return Some(Self {
                status: head.status(),
                version: head.version(),
                framing,
                keep_alive: head.keep_alive(),
                interim,
                own: head
                    .get("proxy-status")
                    .is_some_and(|value| value.starts_with(b"proxy;")),
                len: start + body.len,
                body,
            });
        }
    }

    pub(super) fn opens_tunnel(&self, kind: RequestKind) -> bool {
        self.status == 101 || kind == RequestKind::Connect && self.status < 300
    }
}

pub(super) struct Body {
    pub(super) content: Vec<u8>,
    pub(super) len: usize,
    pub(super) whole: bool,
}

impl Body {
    /// The body in front, and what is behind it.
    pub(super) fn read(framing: Framing, bytes: &[u8]) -> (Self, &[u8]) {
        let mut framer = BodyFramer::new(framing);
        let mut content = Vec::new();
        let mut len = 0;
        while len < bytes.len() && !framer.is_over() {
            // Faulty bytes are not forwarded; whoever sent them is not judged here.
            let Ok(piece) = framer.payload(&bytes[len..]) else {
                break;
            };
            content.extend_from_slice(&bytes[len..][piece.range]);
            len += piece.used;
        }
        let body = Self {
            content,
            len,
            whole: framer.is_over(),
        };
        (body, &bytes[len..])
    }
}
