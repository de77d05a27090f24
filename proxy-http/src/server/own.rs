//! Answers to requests that end at this proxy: OPTIONS and TRACE (RFC 9110
//! sections 7.6.2, 9.3.7 and 9.3.8).

use bytes::BytesMut;

use crate::{EditScript, HeadEdit, Persist, RequestHead};

/// What this proxy says about itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Own {
    /// What it can do.
    Options,
    /// What it received.
    Trace,
}

impl Own {
    /// What answers a request that may not be forwarded any more.
    pub(super) fn to(head: &RequestHead<'_, '_>) -> Self {
        match head.method() {
            "TRACE" => Self::Trace,
            _ => Self::Options,
        }
    }

    /// Appends the answer to `head`.
    pub(super) fn encode(self, head: &RequestHead<'_, '_>, persist: Persist, out: &mut BytesMut) {
        let mut body = BytesMut::new();
        out.extend_from_slice(b"HTTP/1.1 200 OK\r\n");
        match self {
            Self::Options => out.extend_from_slice(ALLOW),
            Self::Trace => {
                out.extend_from_slice(b"Content-Type: message/http\r\n");
                echo(head, &mut body);
            }
        }
        let length = format!("Content-Length: {}\r\n", body.len());
        out.extend_from_slice(length.as_bytes());
        persist.encode(out);
        out.extend_from_slice(b"\r\n");
        out.extend_from_slice(&body);
    }
}

/// The head as it was received but for secrets: whoever reads the answer need
/// not be who wrote the request.
fn echo(head: &RequestHead<'_, '_>, out: &mut BytesMut) {
    let mut script = EditScript::new();
    let mut edit = HeadEdit::request(&mut script, head);
    for name in SECRET {
        edit.remove(name);
    }
    edit.encode(out);
}

/// Every method that is registered for general use; others pass as well.
const ALLOW: &[u8] = b"Allow: CONNECT, DELETE, GET, HEAD, OPTIONS, PATCH, POST, PUT, TRACE\r\n";

const SECRET: [&str; 10] = [
    "authorization",
    "cookie",
    "cookie2",
    "proxy-authorization",
    "set-cookie",
    "x-amz-security-token",
    "x-api-key",
    "x-auth-token",
    "x-csrf-token",
    "x-xsrf-token",
];
