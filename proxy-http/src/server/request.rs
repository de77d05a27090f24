//! A request as it was read: what it asks for.

use proxy_core::{Ask, HeadLimits, Operation, Peer, Report, Status, Target};
use tokio::time::Instant;

use super::refuse::Refusal;
use crate::{HeadError, RequestHead, RequestParser, RequestTarget};

/// A request as it was read.
#[derive(Clone, Copy)]
pub(super) struct Request<'b> {
    pub(super) head: &'b RequestHead<'b, 'b>,
    /// Bytes that came in one piece with the head.
    pub(super) early: &'b [u8],
    pub(super) started: Instant,
}

impl<'b> Request<'b> {
    /// What it asks for, and where.
    pub(super) fn ask(&self, peer: &'b Peer, fetch_https: bool) -> Result<Ask<'b>, Refusal> {
        let target = self.head.target();
        let operation = operation(self.head, target);
        let secure = match target {
            RequestTarget::Authority(_) => false,
            RequestTarget::Absolute { scheme, .. } => is_secure(scheme, fetch_https)?,
            // RFC 9112 section 3.2.4: this proxy is the server addressed.
            RequestTarget::Asterisk => return Err(Refusal::own(self.head)),
            // RFC 9112 section 3.2.2: a proxy is sent absolute targets.
            RequestTarget::Origin(_) => return Err(HeadError::Target.into()),
        };
        self.head.max_forwards()?;
        Ok(Ask {
            peer,
            operation,
            target: self.head.destination_of(target)?,
            via: match operation {
                Operation::Tunnel => self.head.get("via"),
                _ => None,
            },
            secure,
        })
    }

    /// Whether it is not to be forwarded any further (RFC 9110 section 7.6.2).
    pub(super) fn ends_here(&self) -> bool {
        self.head.max_forwards() == Ok(Some(0))
    }
}

/// As much of what was asked for as could be read, for the report.
#[derive(Clone, Copy, Default)]
pub(super) struct Asked<'b> {
    operation: Option<Operation<'b>>,
    target: Option<Target<'b>>,
    secure: bool,
}

impl<'b> From<&Ask<'b>> for Asked<'b> {
    fn from(ask: &Ask<'b>) -> Self {
        Self {
            operation: Some(ask.operation),
            target: Some(ask.target),
            secure: ask.secure,
        }
    }
}

impl<'b> From<&RequestHead<'b, 'b>> for Asked<'b> {
    fn from(head: &RequestHead<'b, 'b>) -> Self {
        let target = head.target();
        Self {
            operation: Some(operation(head, target)),
            target: head.destination_of(target).ok(),
            secure: match target {
                RequestTarget::Absolute { scheme, .. } => scheme.eq_ignore_ascii_case("https"),
                _ => false,
            },
        }
    }
}

impl<'b> Asked<'b> {
    /// Puts it into a report.
    pub(super) fn tell(self, report: &mut Report<'b>) {
        report.operation = self.operation;
        report.target = self.target;
        report.secure = self.secure;
    }
}

/// Whether the scheme means TLS. What was meant to be encrypted is never sent in
/// clear.
fn is_secure(scheme: &str, fetch_https: bool) -> Result<bool, HeadError> {
    match scheme {
        _ if scheme.eq_ignore_ascii_case("http") => Ok(false),
        _ if scheme.eq_ignore_ascii_case("https") && fetch_https => Ok(true),
        _ => Err(HeadError::Scheme),
    }
}

fn operation<'b>(head: &RequestHead<'b, 'b>, target: RequestTarget<'b>) -> Operation<'b> {
    match target {
        RequestTarget::Authority(_) => Operation::Tunnel,
        _ => Operation::Request {
            method: head.method(),
            path: head.path_of(target),
        },
    }
}

/// What the request line asks for in an `input` that is no request as a whole;
/// nothing if that line is not whole or faulty itself.
pub(super) fn glimpse(input: &[u8], show: impl FnOnce(Asked<'_>)) {
    let blanks = input.iter().take_while(|b| matches!(b, b'\r' | b'\n'));
    let input = &input[blanks.count()..];
    let line = input.split_inclusive(|b| *b == b'\n').next();
    let head = [line.unwrap_or_default(), b"Host:\r\n\r\n"].concat();
    let mut parser = RequestParser::new(HeadLimits::default());
    match parser.parse(&head) {
        Ok(Status::Complete(head, _)) => show((&head).into()),
        _ => show(Asked::default()),
    }
}
