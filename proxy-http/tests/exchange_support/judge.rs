//! What must hold of the bytes at both ends of an exchange.

use proxy_core::Status;
use proxy_http::{Framing, HeadLimits, RequestHead, RequestKind, RequestParser, Version};

use super::gateway::{Asked, Care, Notes};
use super::reading::{Answer, Body, Request};
use super::wire::Far;

/// Holds what the origins and the client received against what the client and the origins sent,
/// and what was decided.
pub(crate) fn judge(client: &Far, notes: &Notes) {
    let said = client.said.borrow();
    let asked = notes.asked.borrow();
    let (requests, rest) = requests(&said, &asked);
    let answers = answers(client, &requests, rest);
    let mut sent = vec![0; asked.len()];
    let origins = notes.origins.borrow();
    for (own, origin) in origins.iter().enumerate() {
        let taken = origin.taken.borrow();
        let marks = origin.marks.borrow();
        let mut replies = Replies::of(origin);
        for (place, &(number, from)) in marks.iter().enumerate() {
            let next = marks.get(place + 1);
            let (index, request) = requests
                .iter()
                .enumerate()
                .find(|(_, request)| request.asked == Some(number))
                .expect("judged");
            let answer = answers.get(index);
            let part = Part {
                bytes: &taken[from..next.map_or(taken.len(), |(_, from)| *from)],
                last: next.is_none(),
                following: &said[request.end..],
                switched: answer.is_some_and(|answer| answer.status == 101),
            };
            assert!(asked[number].allowed, "sent what was refused");
            part.check(request, &asked[number]);
            sent[number] += 1;
            // What was sent again was answered there.
            let again = origins[own + 1..].iter().any(|origin| {
                origin
                    .marks
                    .borrow()
                    .iter()
                    .any(|(other, _)| *other == number)
            });
            let theirs = |answer: &&Answer| !answer.own && !request.ends_here && !again;
            if let Some(answer) = answer.filter(theirs) {
                let cut = client.cut.get() || client.has_reset();
                replies.check(request, answer, cut);
            }
        }
    }
    for request in &requests {
        let times = request.asked.map_or(0, |number| sent[number]);
        assert!(
            times <= request.most_times(),
            "{} sent {times} times",
            request.method
        );
    }
    let allowed = asked.iter().filter(|asked| asked.allowed).count();
    assert_eq!(notes.told.get(), allowed, "each exchange is told once");
}

/// The requests that were judged, and those that this proxy answered itself: exactly those that the
/// client sent, in order and without a gap. And what the next one would be, if there is one.
fn requests(said: &[u8], asked: &[Asked]) -> (Vec<Request>, Option<Request>) {
    let mut requests = Vec::<Request>::new();
    let mut from = 0;
    let mut number = 0;
    while let Some(mut request) = Request::read(said, from) {
        let whole = requests.last().is_none_or(|before| before.whole);
        if let Some(asked) = asked.get(number).filter(|_| !request.asterisk) {
            assert!(whole, "begins in a body");
            assert_eq!(request.destination.as_ref(), Some(&asked.target));
            match &asked.request {
                Some(asked) => assert_eq!((&asked.0, &asked.1), (&request.method, &request.path)),
                None => assert_eq!(request.kind, RequestKind::Connect),
            }
            request.asked = Some(number);
            number += 1;
        } else if !whole || !request.asterisk {
            return (requests, Some(request));
        }
        from = request.end;
        requests.push(request);
    }
    assert_eq!(number, asked.len(), "nobody sent it");
    (requests, None)
}

/// What the client received: one answer for each request at most, and one more for what could not
/// be judged.
fn answers(client: &Far, requests: &[Request], rest: Option<Request>) -> Vec<Answer> {
    let taken = client.taken.borrow();
    let mut taken = &taken[..];
    let mut answers = Vec::new();
    let mut waiting = requests.iter().map(Some).chain([rest.as_ref()]);
    while !taken.is_empty() {
        let request = waiting.next().expect("an answer to nothing");
        let version = request.map_or(Version::Http11, |request| request.version);
        let kind = request.map_or(RequestKind::Other, |request| request.kind);
        let Some(answer) = Answer::read(taken, kind) else {
            // Cut off in the head.
            break;
        };
        assert_eq!(answer.version, Version::Http11);
        if version == Version::Http10 {
            assert!(!answer.interim, "interim for HTTP/1.0");
            assert!(answer.framing != Framing::Chunked, "chunked for HTTP/1.0");
        }
        taken = &taken[answer.len..];
        let tunnel = answer.opens_tunnel(kind);
        let last = tunnel || !answer.keep_alive || !answer.body.whole;
        answers.push(answer);
        if last {
            assert!(tunnel || taken.is_empty(), "more behind the last answer");
            break;
        }
    }
    answers
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
            let own = self.following.starts_with(self.bytes);
            return assert!(self.last && own, "not the tunnel's");
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
        if Care::of(&asked.target) != Care::Rewrite {
            assert_eq!(head.framing(), request.framing);
        }
        let (body, rest) = Body::read(head.framing(), &self.bytes[used..]);
        assert!(
            request.content.starts_with(&body.content),
            "another body: {}",
            body.content.escape_ascii()
        );
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

/// What an origin answered, one request after another.
struct Replies<'o> {
    origin: &'o Far,
    at: usize,
}

impl<'o> Replies<'o> {
    fn of(origin: &'o Far) -> Self {
        Self { origin, at: 0 }
    }

    /// Holds what the client received against what the origin said.
    fn check(&mut self, request: &Request, answer: &Answer, cut: bool) {
        let said = self.origin.said.borrow();
        if request.kind == RequestKind::Connect {
            return;
        }
        let reply = Answer::read(&said[self.at..], request.kind).expect("an answer of the origin");
        self.at += reply.len;
        assert_eq!(answer.status, reply.status);
        assert!(
            reply.body.content.starts_with(&answer.body.content),
            "another answer: {}",
            answer.body.content.escape_ascii()
        );
        let looks_whole = answer.body.whole || (answer.framing == Framing::UntilClose && !cut);
        if looks_whole {
            let ended = reply.framing == Framing::UntilClose && !self.origin.has_reset();
            assert!(reply.body.whole || ended, "half an answer looks whole");
            assert_eq!(reply.body.content.len(), answer.body.content.len());
        }
    }
}
