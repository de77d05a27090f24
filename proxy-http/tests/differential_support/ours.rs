//! Messages as this crate reads them and sends them on.

use bytes::BytesMut;
use proxy_core::Status;
use proxy_http::{
    BodyFramer, EditScript, Framing, HeadEdit, HeadLimits, Persist, RequestHead, RequestKind,
    RequestParser, RequestTarget, ResponseHead, ResponseParser, ToClient, ToOrigin,
};

use super::{Message, Reading};

/// A message that was read, and what would be sent in its place.
pub(crate) struct Passed {
    pub(crate) reading: Reading,
    /// One entry for each way of passing it on. If the message is not whole, these are the bytes
    /// that would have left by then.
    pub(crate) sent: Vec<Vec<u8>>,
    /// It says something in a way that some misunderstand, and that is not sent on: a framing
    /// field with a right value that is not written as it usually is, a blank behind a name, or an upgrade in an answer
    /// that is no 101.
    pub(crate) translated: bool,
}

impl Passed {
    fn not(reading: Reading) -> Self {
        Self {
            reading,
            sent: Vec::new(),
            translated: false,
        }
    }
}

/// What becomes of a request: to an origin, and to a parent.
pub(crate) fn request(input: &[u8]) -> Passed {
    let mut parser = RequestParser::new(HeadLimits::default());
    let (head, used) = match parser.parse(input) {
        Ok(Status::Complete(head, used)) => (head, used),
        Ok(Status::Partial) => return Passed::not(Reading::Partial),
        Err(error) => return Passed::not(Reading::Refused(error.to_string())),
    };
    let body = follow(head.framing(), &input[used..]);
    let forwarded = is_forwarded(&head);
    let sent = |absolute| [&to_origin(&head, absolute)[..], &input[used..][..body.len]].concat();
    Passed {
        sent: [false, true]
            .into_iter()
            .filter(|_| forwarded)
            .map(sent)
            .collect(),
        translated: is_unusual(head.raw()),
        reading: body.reading(head.method().to_owned(), used),
    }
}

fn is_unusual(head: &[u8]) -> bool {
    let head = String::from_utf8_lossy(head).to_ascii_lowercase();
    let mut lines = head.split("\r\n");
    lines.any(|line| match line.split_once(':') {
        Some((name, _)) if name.ends_with(['\t', ' ']) => true,
        Some(("transfer-encoding", value)) => value.strip_prefix(' ').unwrap_or(value) != "chunked",
        Some(("content-length", value)) => {
            let value = value.strip_prefix(' ').unwrap_or(value);
            value != "0" && !value.starts_with(|c| ('1'..='9').contains(&c))
                || value.ends_with(['\t', ' '])
        }
        _ => false,
    })
}

/// The server forwards requests with an absolute target in clear.
fn is_forwarded(head: &RequestHead<'_, '_>) -> bool {
    let is_plain = match head.target() {
        RequestTarget::Absolute { scheme, .. } => scheme.eq_ignore_ascii_case("http"),
        _ => false,
    };
    is_plain && head.destination().is_ok()
}

/// What becomes of the answer to a request with that method, interim ones passed over; the stream
/// ends behind `input`.
pub(crate) fn response(input: &[u8], method: &str) -> Passed {
    let kind = match method {
        "HEAD" => RequestKind::Head,
        "CONNECT" => RequestKind::Connect,
        _ => RequestKind::Other,
    };
    let mut parser = ResponseParser::new(HeadLimits::default());
    let mut interims = Vec::new();
    let mut start = 0;
    loop {
        let (head, used) = match parser.parse(&input[start..]) {
            Ok(Status::Complete(head, used)) => (head, used),
            Ok(Status::Partial) => return Passed::not(Reading::Partial),
            Err(error) => return Passed::not(Reading::Refused(error.to_string())),
        };
        start += used;
        if head.is_interim() {
            interims.extend_from_slice(&to_client(&head, Persist::Default, None));
            continue;
        }
        let framing = head.framing(kind);
        let body = follow(framing, &input[start..]);
        let raw = &input[start..][..body.len];
        let persist = match framing {
            Framing::UntilClose => Persist::Close,
            _ => Persist::Default,
        };
        let mut sent = vec![[&interims, &to_client(&head, persist, None)[..], raw].concat()];
        if framing == Framing::Chunked && body.whole {
            // For a client of HTTP/1.0.
            let plain = to_client(&head, Persist::Close, Some(Framing::UntilClose));
            sent.push([&plain, &body.content[..]].concat());
        }
        return Passed {
            reading: body.reading(head.status().to_string(), start),
            sent,
            translated: is_unusual(head.raw())
                || head.get("upgrade").is_some() && head.status() != 101,
        };
    }
}

fn to_origin(head: &RequestHead<'_, '_>, absolute: bool) -> Vec<u8> {
    let mut script = EditScript::new();
    let mut edit = HeadEdit::request(&mut script, head);
    edit.to_origin(ToOrigin {
        absolute,
        upgrade: true,
        ..ToOrigin::default()
    });
    encoded(&edit)
}

/// With a framing if the body is sent in another way than it came.
fn to_client(head: &ResponseHead<'_, '_>, persist: Persist, framing: Option<Framing>) -> Vec<u8> {
    let mut script = EditScript::new();
    let mut edit = HeadEdit::response(&mut script, head);
    edit.to_client(ToClient {
        persist,
        upgrade: head.status() == 101,
    });
    if let Some(framing) = framing {
        edit.reframe(framing);
    }
    encoded(&edit)
}

fn encoded(edit: &HeadEdit<'_>) -> Vec<u8> {
    let mut out = BytesMut::new();
    edit.encode(&mut out);
    out.to_vec()
}

/// A body as far as it may be passed on.
struct Followed {
    len: usize,
    content: Vec<u8>,
    whole: bool,
    fault: Option<String>,
}

impl Followed {
    fn reading(self, what: String, start: usize) -> Reading {
        match self.fault {
            Some(fault) => Reading::Refused(fault),
            None if self.whole => Reading::Message(Message {
                what,
                content: self.content,
                end: start + self.len,
            }),
            None => Reading::Partial,
        }
    }
}

/// Follows a body byte by byte, so that it is known how far it gets before a fault.
fn follow(framing: Framing, input: &[u8]) -> Followed {
    let mut framer = BodyFramer::new(framing);
    let mut content = Vec::new();
    let mut len = 0;
    while len < input.len() && !framer.is_over() {
        match framer.payload(&input[len..][..1]) {
            Ok(piece) => {
                content.extend_from_slice(&input[len..][piece.range]);
                len += piece.used;
            }
            Err(error) => {
                return Followed {
                    len,
                    content,
                    whole: false,
                    fault: Some(error.to_string()),
                };
            }
        }
    }
    Followed {
        len,
        content,
        whole: framer.may_end_here(),
        fault: None,
    }
}
