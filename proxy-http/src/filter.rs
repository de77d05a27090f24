//! Interception: look at or change what passes through the server.

use crate::HeadEdit;

/// Sees heads and, if it wants, bodies of every exchange of a
/// [`Server`](crate::Server); `S` is the session of its gateway.
///
/// Synchronous, so that filters chosen at run time can be boxed: `()` passes
/// everything, `(A, B)` asks A then B, `Vec<Box<dyn Filter<S>>>` asks all in
/// order. As long as the answer is [`Flow::Pass`] the body is forwarded raw and
/// may be spliced.
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
    /// A request head on its way to the origin, hop-by-hop fields already
    /// removed.
    fn request(&self, session: &mut S, head: &mut HeadEdit<'_>) -> Flow {
        let _ = (session, head);
        Flow::Pass
    }

    /// A final response head on its way to the client.
    fn response(&self, session: &mut S, head: &mut HeadEdit<'_>) -> Flow {
        let _ = (session, head);
        Flow::Pass
    }

    /// A piece of a body, if the head of its message was answered with
    /// [`Flow::Inspect`]: the raw bytes, chunk framing included.
    ///
    /// [`Flow::Pass`] ends the inspection of this body.
    fn body(&self, session: &mut S, direction: Direction, chunk: &mut Chunk<'_>) -> Flow {
        let _ = (session, direction, chunk);
        Flow::Pass
    }
}

/// What is to become of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Flow {
    /// Forward it, and show the pieces of its body to [`Filter::body`].
    Inspect,
    /// Forward it.
    Pass,
    /// Refuse it: the client gets this status (400 to 599, others become 403 for
    /// requests and 502 for responses). A message whose head has left already is
    /// cut off.
    Reject(u16),
}

impl Flow {
    /// The stricter of two answers; of two refusals the first.
    fn and(self, other: Self) -> Self {
        match (self, other) {
            (Self::Reject(_), _) => self,
            (_, Self::Reject(_)) | (Self::Pass, _) => other,
            (Self::Inspect, _) => self,
        }
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

/// A piece of a body under inspection.
#[derive(Debug)]
pub struct Chunk<'a> {
    bytes: &'a [u8],
    last: bool,
}

impl<'a> Chunk<'a> {
    #[cfg(feature = "serve")]
    pub(crate) fn new(bytes: &'a [u8], last: bool) -> Self {
        Self { bytes, last }
    }

    /// The bytes as they are forwarded.
    pub fn bytes(&self) -> &'a [u8] {
        self.bytes
    }

    /// Whether the message ends with this piece.
    pub fn is_last(&self) -> bool {
        self.last
    }
}

impl<S> Filter<S> for () {}

impl<S, A: Filter<S>, B: Filter<S>> Filter<S> for (A, B) {
    fn request(&self, session: &mut S, head: &mut HeadEdit<'_>) -> Flow {
        match self.0.request(session, head) {
            refused @ Flow::Reject(_) => refused,
            flow => flow.and(self.1.request(session, head)),
        }
    }

    fn response(&self, session: &mut S, head: &mut HeadEdit<'_>) -> Flow {
        match self.0.response(session, head) {
            refused @ Flow::Reject(_) => refused,
            flow => flow.and(self.1.response(session, head)),
        }
    }

    fn body(&self, session: &mut S, direction: Direction, chunk: &mut Chunk<'_>) -> Flow {
        match self.0.body(session, direction, chunk) {
            refused @ Flow::Reject(_) => refused,
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

/// Asks all filters in order, up to the first refusal.
fn all<S>(filters: &[Box<dyn Filter<S>>], mut ask: impl FnMut(&dyn Filter<S>) -> Flow) -> Flow {
    let mut flow = Flow::Pass;
    for filter in filters {
        flow = flow.and(ask(&**filter));
        if matches!(flow, Flow::Reject(_)) {
            break;
        }
    }
    flow
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_strictest_answer_wins() {
        use Flow::{Inspect, Pass, Reject};
        assert_eq!(Pass.and(Pass), Pass);
        assert_eq!(Pass.and(Inspect), Inspect);
        assert_eq!(Inspect.and(Pass), Inspect);
        assert_eq!(Inspect.and(Reject(403)), Reject(403));
        assert_eq!(Reject(400).and(Reject(403)), Reject(400));
        assert_eq!(Reject(400).and(Pass), Reject(400));
    }
}
