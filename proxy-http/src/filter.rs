//! Interception: look at or change what passes through the server.

mod answer;
mod chunk;

pub use answer::Answer;
pub use chunk::Chunk;

use crate::HeadEdit;

/// Sees heads and, if it wants, bodies of every exchange of a
/// [`Server`](crate::Server); `S` is the session of its gateway.
///
/// Synchronous, so that filters chosen at run time can be boxed: `()` passes
/// everything, `(A, B)` asks A then B, `Vec<Box<dyn Filter<S>>>` asks all in
/// order. What one changes, the next one sees. The strictest [`Flow`] holds for
/// all; the first [`Answer`](Flow::Answer) or [`Reject`](Flow::Reject) ends the
/// round.
///
/// # What is shown
/// Each request that policy admitted, once, before anything is connected to, and
/// its final answer. Heads are whole; hop-by-hop fields are gone, the framing is
/// settled, and neither can be edited. Not shown are CONNECT and what goes through
/// a tunnel or an upgraded connection, interim answers (1xx), and the answers of
/// the proxy itself.
///
/// The session is the one that the gateway gave to this request and is told of in
/// [`finished`](proxy_core::Gateway::finished) last: it holds whatever a filter
/// has to remember between the calls of one exchange. Request and response may be
/// under way at the same time, so their pieces come in any order towards each
/// other. A filter that panics takes its connection along.
///
/// # What it costs
/// A filter that passes costs its own time: the body is forwarded as it comes and
/// may be spliced. [`Inspect`](Flow::Inspect) takes each byte through user space,
/// [`Rewrite`](Flow::Rewrite) copies it once more.
///
/// ```
/// use proxy_http::{Filter, Flow, HeadEdit};
///
/// /// No cookies, in neither direction.
/// struct NoCookies;
///
/// impl<S> Filter<S> for NoCookies {
///     fn request(&self, _: &mut S, head: &mut HeadEdit<'_>) -> Flow {
///         head.remove("cookie");
///         Flow::Pass
///     }
///     fn response(&self, _: &mut S, head: &mut HeadEdit<'_>) -> Flow {
///         head.remove("set-cookie");
///         Flow::Pass
///     }
/// }
/// ```
pub trait Filter<S> {
    /// A request head on its way to the origin. What is changed here is not lost
    /// if the request has to be sent again on another connection.
    fn request(&self, session: &mut S, head: &mut HeadEdit<'_>) -> Flow {
        let _ = (session, head);
        Flow::Pass
    }

    /// A final response head on its way to the client.
    fn response(&self, session: &mut S, head: &mut HeadEdit<'_>) -> Flow {
        let _ = (session, head);
        Flow::Pass
    }

    /// A piece of content of a body, if the head of its message was answered with
    /// [`Flow::Inspect`] or [`Flow::Rewrite`], by one filter of the chain at least:
    /// all of them are shown it then. The answer says how to go on:
    ///
    /// - `Inspect` or `Rewrite`: show what follows. What was not to be rewritten
    ///   when its head left cannot be rewritten any more.
    /// - `Pass`: do not, and forward it as it is.
    /// - `Answer` or `Reject`: as for a head, if nothing of an answer has left for
    ///   the client. Otherwise it sees that the exchange was cut off.
    ///
    /// A message without a body (most requests; answers to HEAD, 204, 304) has no
    /// pieces. Any other one has exactly one for which [`Chunk::is_last`] holds,
    /// unless it is cut off.
    fn body(&self, session: &mut S, direction: Direction, chunk: &mut Chunk<'_>) -> Flow {
        let _ = (session, direction, chunk);
        Flow::Pass
    }
}

/// What is to become of a message.
///
/// ```
/// use proxy_http::{Chunk, Direction, Filter, Flow, HeadEdit};
///
/// /// Counts the bytes of pages, and lets everything else pass unseen.
/// struct Meter;
///
/// impl Filter<u64> for Meter {
///     fn response(&self, _: &mut u64, head: &mut HeadEdit<'_>) -> Flow {
///         match head.get("content-type") {
///             Some(kind) if kind.starts_with(b"text/html") => Flow::Inspect,
///             _ => Flow::Pass,
///         }
///     }
///     fn body(&self, bytes: &mut u64, _: Direction, chunk: &mut Chunk<'_>) -> Flow {
///         *bytes += chunk.bytes().len() as u64;
///         Flow::Inspect
///     }
/// }
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Flow {
    /// The client gets this answer instead. For a request, nothing is sent to the
    /// origin nor connected to; an origin's answer is dropped, together with its
    /// connection unless it was here in full.
    ///
    /// The client's connection is kept as for a refusal: if what is left of the
    /// request is short, else it is closed.
    Answer(Box<Answer>),
    /// Forward it, and show the content of its body to [`Filter::body`]. It is
    /// forwarded byte for byte, chunk framing and trailers included.
    Inspect,
    /// Forward it.
    Pass,
    /// Refuse it: the client gets this status (400 to 599, others become 403 for
    /// requests and 502 for responses). A message whose head has left already is
    /// cut off.
    Reject(u16),
    /// Forward it, and let [`Filter::body`] replace the content of its body.
    ///
    /// The length is unknown then: the body is sent in chunks, to clients of
    /// HTTP/1.0 up to the end of the connection. Trailers are kept where there are
    /// chunks. What the fields say about the content (`Content-Encoding`, `ETag`,
    /// `Digest`, `Accept-Ranges` and so on) is the filter's to change. A message
    /// without a body stays without; `Content-Length` goes all the same where it
    /// would tell the length of what is rewritten elsewhere (HEAD, 304).
    Rewrite,
}

impl Flow {
    /// The stricter of two answers; of two that end the message the first.
    fn and(self, other: Self) -> Self {
        match (self, other) {
            (end @ (Self::Answer(_) | Self::Reject(_)), _) => end,
            (_, end @ (Self::Answer(_) | Self::Reject(_))) => end,
            (Self::Rewrite, _) | (_, Self::Rewrite) => Self::Rewrite,
            (Self::Inspect, _) | (_, Self::Inspect) => Self::Inspect,
            (Self::Pass, Self::Pass) => Self::Pass,
        }
    }

    /// The message does not go on.
    fn is_end(&self) -> bool {
        matches!(self, Self::Answer(_) | Self::Reject(_))
    }
}

impl From<Answer> for Flow {
    fn from(answer: Answer) -> Self {
        Self::Answer(Box::new(answer))
    }
}

/// Which way a body goes.
///
/// Exhaustive on purpose: there is no third way.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Direction {
    /// From the client to the origin.
    Request,
    /// From the origin to the client.
    Response,
}

impl<S> Filter<S> for () {}

impl<S, A: Filter<S>, B: Filter<S>> Filter<S> for (A, B) {
    fn request(&self, session: &mut S, head: &mut HeadEdit<'_>) -> Flow {
        match self.0.request(session, head) {
            end if end.is_end() => end,
            flow => flow.and(self.1.request(session, head)),
        }
    }

    fn response(&self, session: &mut S, head: &mut HeadEdit<'_>) -> Flow {
        match self.0.response(session, head) {
            end if end.is_end() => end,
            flow => flow.and(self.1.response(session, head)),
        }
    }

    fn body(&self, session: &mut S, direction: Direction, chunk: &mut Chunk<'_>) -> Flow {
        match self.0.body(session, direction, chunk) {
            end if end.is_end() => end,
            flow => flow.and(self.1.body(session, direction, chunk)),
        }
    }
}

impl<S> Filter<S> for Vec<Box<dyn Filter<S>>> {
    fn request(&self, session: &mut S, head: &mut HeadEdit<'_>) -> Flow {
        all(self, |filter| filter.request(session, head))
    }

    fn response(&self, session: &mut S, head: &mut HeadEdit<'_>) -> Flow {
        all(self, |filter| filter.response(session, head))
    }

    fn body(&self, session: &mut S, direction: Direction, chunk: &mut Chunk<'_>) -> Flow {
        all(self, |filter| filter.body(session, direction, chunk))
    }
}

/// Asks all filters in order, up to the first that ends the message.
fn all<S>(filters: &[Box<dyn Filter<S>>], mut ask: impl FnMut(&dyn Filter<S>) -> Flow) -> Flow {
    let mut flow = Flow::Pass;
    for filter in filters {
        flow = flow.and(ask(&**filter));
        if flow.is_end() {
            break;
        }
    }
    flow
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_strictest_answer_wins() -> Result<(), crate::EditError> {
        use Flow::{Inspect, Pass, Reject, Rewrite};
        let answer = || Answer::new(200).map(Flow::from);
        for (first, second, both) in [
            (Pass, Pass, Pass),
            (Pass, Inspect, Inspect),
            (Inspect, Pass, Inspect),
            (Rewrite, Inspect, Rewrite),
            (Pass, Rewrite, Rewrite),
            (Rewrite, Reject(403), Reject(403)),
            (Reject(400), Reject(403), Reject(400)),
            (Reject(400), Pass, Reject(400)),
            (Inspect, answer()?, answer()?),
            (answer()?, Reject(400), answer()?),
            (Reject(400), answer()?, Reject(400)),
        ] {
            assert_eq!(first.and(second), both);
        }
        Ok(())
    }

    #[test]
    fn a_flow_is_small() {
        assert_eq!(size_of::<Flow>(), 16);
    }
}
