//! What must hold of the bytes at both ends of an exchange.

use proxy_core::Status;
use proxy_http::{
    BodyFramer, Framing, HeadLimits, RequestHead, RequestKind, RequestParser, ResponseParser,
    Version,
};

use super::gateway::{Asked, Notes};
use super::wire::Far;

/// Holds what the origins and the client received against what the client sent and what was
/// decided.
pub(crate) fn judge(said: &[u8], client: &Far, notes: &Notes) {
    let asked = notes.asked.borrow();
    let (requests, rest) = requests(said, &asked);
    let answers = answers(&client.taken.borrow(), &requests, rest);
    let mut sent = vec![0; requests.len()];
    for origin in notes.origins.borrow().iter() {
        let taken = origin.taken.borrow();
        let marks = origin.marks.borrow();
        for (place, &(number, from)) in marks.iter().enumerate() {
            let next = marks.get(place + 1);
            let part = Part {
                bytes: &taken[from..next.map_or(taken.len(), |(_, from)| *from)],
                last: next.is_none(),
                following: &said[requests[number].end..],
                switched: answers.get(number) == Some(&101),
            };
            assert!(asked[number].allowed, "sent what was refused");
            part.check(&requests[number], &asked[number]);
            sent[number] += 1;
        }
    }
    for (request, times) in requests.iter().zip(sent) {
        assert!(
            times <= request.most_times(),
            "{} sent {times} times",
            request.method
        );
    }
    let allowed = asked.iter().filter(|asked| asked.allowed).count();
    assert_eq!(notes.told.get(), allowed, "each exchange is told once");
}

/// A request as the client sent it.
struct Request {
    method: String,
    version: Version,
    kind: RequestKind,
    framing: Framing,
    content: Vec<u8>,
    whole: bool,
    /// Where the next one begins.
    end: usize,
}

impl Request {
    fn read(said: &[u8], from: usize) -> Option<(Self, String, Option<String>)> {
        let mut parser = RequestParser::new(HeadLimits::default());
        let Ok(Status::Complete(head, used)) = parser.parse(&said[from..]) else {
            return None;
        };
        let body = Body::read(head.framing(), &said[from + used..]).0;
        let request = Self {
            method: head.method().to_owned(),
            version: head.version(),
            kind: head.kind(),
            framing: head.framing(),
            content: body.content,
            whole: body.whole,
            end: from + used + body.len,
        };
        let destination = head.destination().ok().map(|target| target.to_string());
        Some((request, head.path().to_owned(), destination))
    }

    /// One retry, if it does no harm (RFC 9110 section 9.2.2).
    fn most_times(&self) -> usize {
        match self.method.as_str() {
            "DELETE" | "GET" | "HEAD" | "OPTIONS" | "PUT" | "TRACE" => 2,
            _ => 1,
        }
    }
}

/// The requests that were judged: exactly those that the client sent, in order and without a gap.
/// And what the next one would be, if there is one.
fn requests(said: &[u8], asked: &[Asked]) -> (Vec<Request>, Option<Request>) {
    let mut requests = Vec::<Request>::new();
    let mut from = 0;
    for asked in asked {
        assert!(
            requests.last().is_none_or(|before| before.whole),
            "begins in a body"
        );
        let (request, path, destination) = Request::read(said, from).expect("nobody sent it");
        assert_eq!(destination.as_ref(), Some(&asked.target));
        match &asked.request {
            Some(asked) => assert_eq!((&asked.0, &asked.1), (&request.method, &path)),
            None => assert_eq!(request.kind, RequestKind::Connect),
        }
        from = request.end;
        requests.push(request);
    }
    let rest = Request::read(said, from).map(|(request, ..)| request);
    (requests, rest)
}

/// The final statuses that the client received: one for each request at most, and one more for
/// what could not be judged.
fn answers(mut taken: &[u8], requests: &[Request], rest: Option<Request>) -> Vec<u16> {
    let mut statuses = Vec::new();
    let mut waiting = requests.iter().map(Some).chain([rest.as_ref()]);
    while !taken.is_empty() {
        let request = waiting.next().expect("an answer to nothing");
        let Some(answer) = Answer::read(taken, request) else {
            // Cut off in the head.
            break;
        };
        statuses.push(answer.status);
        taken = &taken[answer.len..];
        if answer.last {
            let tunnel = answer.status == 101
                || request.is_some_and(|request| request.kind == RequestKind::Connect);
            assert!(tunnel || taken.is_empty(), "more behind the last answer");
            break;
        }
    }
    statuses
}

/// An answer as the client reads it, interim ones included.
struct Answer {
    status: u16,
    len: usize,
    /// Nothing but a tunnel may follow.
    last: bool,
}

impl Answer {
    fn read(taken: &[u8], request: Option<&Request>) -> Option<Self> {
        let version = request.map_or(Version::Http11, |request| request.version);
        let kind = request.map_or(RequestKind::Other, |request| request.kind);
        let mut start = 0;
        loop {
            let mut parser = ResponseParser::new(HeadLimits::default());
            let head = match parser.parse(&taken[start..]) {
                Ok(Status::Complete(head, used)) => {
                    start += used;
                    head
                }
                Ok(Status::Partial) => return None,
                Err(error) => panic!("a client refuses this: {error}"),
            };
            assert_eq!(head.version(), Version::Http11);
            if head.is_interim() {
                assert_eq!(version, Version::Http11, "interim for HTTP/1.0");
                continue;
            }
            let framing = head.framing(kind);
            assert!(
                framing != Framing::Chunked || version == Version::Http11,
                "chunked for HTTP/1.0"
            );
            let body = Body::read(framing, &taken[start..]).0;
            let tunnel = kind == RequestKind::Connect && head.status() < 300;
            return Some(Self {
                status: head.status(),
                len: start + body.len,
                last: tunnel || head.status() == 101 || !head.keep_alive() || !body.whole,
            });
        }
    }
}

/// What an origin received of one request.
struct Part<'b> {
    bytes: &'b [u8],
    /// Nothing else follows on that connection.
    last: bool,
    /// What the client sent behind the request.
    following: &'b [u8],
    switched: bool,
}

impl Part<'_> {
    fn check(&self, request: &Request, asked: &Asked) {
        let Some((method, path)) = &asked.request else {
            assert!(
                self.last && self.following.starts_with(self.bytes),
                "not the tunnel's"
            );
            return;
        };
        let mut parser = RequestParser::new(HeadLimits::default());
        let (head, used) = match parser.parse(self.bytes) {
            Ok(Status::Complete(head, used)) => (head, used),
            Ok(Status::Partial) => return assert!(self.last, "more behind half a head"),
            Err(error) => panic!("an origin refuses this: {error}"),
        };
        assert_eq!(
            (head.method(), head.version()),
            (method.as_str(), Version::Http11)
        );
        check_target(&head, path, &asked.target);
        assert_eq!(head.framing(), request.framing);
        let (body, rest) = Body::read(head.framing(), &self.bytes[used..]);
        assert!(request.content.starts_with(&body.content), "another body");
        if !body.whole {
            return assert!(self.last, "more behind half a body");
        }
        assert!(
            request.whole && request.content == body.content,
            "a body cut short"
        );
        let upgraded = self.last && self.switched && self.following.starts_with(rest);
        assert!(rest.is_empty() || upgraded, "more than one request");
    }
}

fn check_target(head: &RequestHead<'_, '_>, path: &str, target: &str) {
    let root = if path.starts_with('?') { "/" } else { "" };
    assert_eq!(head.target_text(), format!("{root}{path}"));
    if let Ok(destination) = head.destination() {
        assert_eq!(destination.to_string(), target);
    }
    for gone in ["keep-alive", "proxy-authorization", "proxy-connection"] {
        assert_eq!(head.get(gone), None);
    }
}

struct Body {
    content: Vec<u8>,
    len: usize,
    whole: bool,
}

impl Body {
    /// The body in front, and what is behind it.
    fn read(framing: Framing, bytes: &[u8]) -> (Self, &[u8]) {
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
