//! A piece of a body, as filters see it.

use std::fmt;

use bytes::Bytes;

/// A piece of the content of a body, which a [`Filter`](super::Filter) looks at
/// or replaces. Chunk framing is not part of it.
///
/// Pieces are cut as the bytes happen to arrive: what a filter looks for may
/// begin in one and end in the next. One replaced by nothing is left out; what
/// was held back can be put into a later one, at the latest into the last.
///
/// ```
/// use proxy_http::{Chunk, Direction, Filter, Flow, HeadEdit};
///
/// /// SPEAKS UP, and ends with a period.
/// struct Loud;
///
/// impl<S> Filter<S> for Loud {
///     fn response(&self, _: &mut S, _: &mut HeadEdit<'_>) -> Flow {
///         Flow::Rewrite
///     }
///     fn body(&self, _: &mut S, _: Direction, chunk: &mut Chunk<'_>) -> Flow {
///         let mut bytes = chunk.bytes().to_ascii_uppercase();
///         if chunk.is_last() {
///             bytes.push(b'.');
///         }
///         chunk.replace(bytes);
///         Flow::Rewrite
///     }
/// }
/// ```
pub struct Chunk<'a> {
    content: Content<'a>,
    last: bool,
    fixed: bool,
}

enum Content<'a> {
    Received(&'a [u8]),
    Replaced(Bytes),
}

impl<'a> Chunk<'a> {
    /// A piece that may be looked at.
    pub(crate) fn fixed(bytes: &'a [u8], last: bool) -> Self {
        Self {
            content: Content::Received(bytes),
            last,
            fixed: true,
        }
    }

    /// A piece that may be replaced.
    pub(crate) fn open(bytes: &'a [u8], last: bool) -> Self {
        Self {
            fixed: false,
            ..Self::fixed(bytes, last)
        }
    }

    /// Puts other bytes in the place of these, of any length. The filters behind
    /// this one in a chain see the new ones.
    ///
    /// Says whether that was possible: it is not unless the head of the message
    /// was answered with [`Flow::Rewrite`](super::Flow::Rewrite), by one filter of
    /// the chain at least, and its body is sent on.
    pub fn replace(&mut self, bytes: impl Into<Bytes>) -> bool {
        if !self.fixed {
            self.content = Content::Replaced(bytes.into());
        }
        !self.fixed
    }

    /// The bytes as they are going to be sent on.
    pub fn bytes(&self) -> &[u8] {
        match &self.content {
            Content::Received(bytes) => bytes,
            Content::Replaced(bytes) => bytes,
        }
    }

    /// Whether the message ends with this piece, which may be empty. A body that
    /// is cut off has no last piece.
    pub fn is_last(&self) -> bool {
        self.last
    }
}

impl fmt::Debug for Chunk<'_> {
    /// Shows no content: it may hold secrets.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Chunk")
            .field("len", &self.bytes().len())
            .field("last", &self.last)
            .finish_non_exhaustive()
    }
}
