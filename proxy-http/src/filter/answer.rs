//! An answer that a filter gives in the place of the origin's.

use std::fmt;

use bytes::{BufMut, Bytes, BytesMut};

use crate::head::check_own;
use crate::reply::reason;
use crate::{EditError, Persist};

/// An answer made by a [`Filter`](super::Filter): status, fields, body.
///
/// The server does what belongs to the connection: `Content-Length`, `Connection`,
/// and no body in answer to HEAD (the length stays) nor with a status that has
/// none (204, 205, 304; RFC 9110 section 6.4.1). `Date` and the like are the
/// filter's: what it gives is what is sent.
///
/// ```
/// use proxy_http::{Answer, Filter, Flow, HeadEdit};
///
/// /// Answers one question itself.
/// struct Health;
///
/// impl<S> Filter<S> for Health {
///     fn request(&self, _: &mut S, head: &mut HeadEdit<'_>) -> Flow {
///         if head.target() != Some("/health") {
///             return Flow::Pass;
///         }
///         match healthy() {
///             Ok(answer) => answer.into(),
///             Err(_) => Flow::Reject(500),
///         }
///     }
/// }
///
/// fn healthy() -> Result<Answer, proxy_http::EditError> {
///     let mut answer = Answer::new(200)?;
///     answer.append("Content-Type", b"text/plain")?;
///     answer.body("all is well\n");
///     Ok(answer)
/// }
/// # assert_eq!(healthy().unwrap().status(), 200);
/// ```
#[derive(Clone, PartialEq, Eq)]
pub struct Answer {
    status: u16,
    /// Whole lines.
    fields: Vec<u8>,
    body: Bytes,
}

impl Answer {
    /// An answer without fields and body.
    ///
    /// # Errors
    /// [`EditError::Status`] if the status is not one of 200 to 599.
    pub fn new(status: u16) -> Result<Self, EditError> {
        match status {
            200..=599 => Ok(Self {
                status,
                fields: Vec::new(),
                body: Bytes::new(),
            }),
            _ => Err(EditError::Status),
        }
    }

    /// Adds a field behind the others.
    ///
    /// # Errors
    /// If name or value is malformed, or the field frames the message or is about
    /// the connection (RFC 9110 section 7.6.1).
    pub fn append(&mut self, name: &str, value: &[u8]) -> Result<&mut Self, EditError> {
        check_own(name.as_bytes(), value)?;
        for part in [name.as_bytes(), b": ", value, b"\r\n"] {
            self.fields.extend_from_slice(part);
        }
        Ok(self)
    }

    /// The body, in place of the one it had; `Bytes` are not copied to be kept.
    pub fn body(&mut self, body: impl Into<Bytes>) -> &mut Self {
        self.body = body.into();
        self
    }

    /// The status.
    pub fn status(&self) -> u16 {
        self.status
    }

    /// Appends it for a client; `head_only` in answer to HEAD.
    pub(crate) fn encode(&self, persist: Persist, head_only: bool, out: &mut BytesMut) {
        let body = match self.status {
            204 | 205 | 304 => &[],
            _ => &self.body[..],
        };
        out.reserve(self.fields.len() + body.len() + SLACK);
        let line = format!("HTTP/1.1 {} {}\r\n", self.status, reason(self.status));
        out.put_slice(line.as_bytes());
        out.put_slice(&self.fields);
        if !matches!(self.status, 204 | 304) {
            out.put_slice(format!("Content-Length: {}\r\n", body.len()).as_bytes());
        }
        persist.encode(out);
        out.put_slice(b"\r\n");
        if !head_only {
            out.put_slice(body);
        }
    }
}

impl fmt::Debug for Answer {
    /// Shows neither fields nor body: both may hold secrets.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Answer")
            .field("status", &self.status)
            .field("body", &self.body.len())
            .finish_non_exhaustive()
    }
}

/// Room for the lines that the server adds.
const SLACK: usize = 128;

#[cfg(test)]
mod tests {
    use super::*;

    fn encoded(answer: &Answer, persist: Persist, head_only: bool) -> String {
        let mut out = BytesMut::new();
        answer.encode(persist, head_only, &mut out);
        String::from_utf8_lossy(&out).into_owned()
    }

    #[test]
    fn the_server_frames_what_the_filter_says() -> Result<(), EditError> {
        let mut answer = Answer::new(200)?;
        answer.append("X-A", b"1")?.append("X-A", b"2")?;
        answer.body("hello");
        let head = "HTTP/1.1 200 OK\r\nX-A: 1\r\nX-A: 2\r\nContent-Length: 5\r\n";
        let whole = encoded(&answer, Persist::Default, false);
        assert_eq!(whole, format!("{head}\r\nhello"));
        let bare = encoded(&answer, Persist::Close, true);
        assert_eq!(bare, format!("{head}Connection: close\r\n\r\n"));
        Ok(())
    }

    #[test]
    fn p13_a_status_without_body_is_sent_without() -> Result<(), EditError> {
        for (status, end) in [
            (204, "204 No Content\r\n\r\n"),
            (205, "205 Reset Content\r\nContent-Length: 0\r\n\r\n"),
            (304, "304 Not Modified\r\n\r\n"),
        ] {
            let mut answer = Answer::new(status)?;
            answer.body("nobody reads this");
            let sent = encoded(&answer, Persist::Default, false);
            assert_eq!(sent, format!("HTTP/1.1 {end}"));
        }
        Ok(())
    }

    #[test]
    fn what_would_break_the_connection_is_refused() -> Result<(), EditError> {
        for status in [0, 100, 101, 199, 600, u16::MAX] {
            assert_eq!(Answer::new(status), Err(EditError::Status));
        }
        let mut answer = Answer::new(200)?;
        for (name, error) in [
            ("Content-Length", EditError::Fixed),
            ("transfer-encoding", EditError::Fixed),
            ("Connection", EditError::Fixed),
            ("Keep-Alive", EditError::Fixed),
            ("Upgrade", EditError::Fixed),
            ("Proxy-Authenticate", EditError::Fixed),
            ("X Y", EditError::Name),
            ("", EditError::Name),
        ] {
            assert_eq!(answer.append(name, b"1").err(), Some(error), "{name}");
        }
        let split = answer.append("X", b"1\r\nContent-Length: 9").err();
        assert_eq!(split, Some(EditError::Value));
        assert_eq!(answer, Answer::new(200)?);
        Ok(())
    }

    #[test]
    fn debug_repeats_no_secret() -> Result<(), EditError> {
        let mut answer = Answer::new(200)?;
        answer.append("Set-Cookie", b"hunter2")?.body("hunter2");
        assert!(!format!("{answer:?}").contains("hunter2"));
        Ok(())
    }
}
