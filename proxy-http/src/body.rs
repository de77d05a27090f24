//! Where a message body ends, without holding a byte of it.

use std::ops::Range;

use crate::chunk::{Chunks, clamp};
use crate::{BodyError, Framing};

/// Follows one message body (RFC 9112 section 6).
///
/// [`advance`](Self::advance) is for forwarding bytes as they are,
/// [`payload`](Self::payload) for taking the content out of its chunks; one may
/// be followed by the other.
///
/// Chunk lines are read strictly: 1 to 15 hexadecimal digits, an extension of at
/// most 256 bytes without controls, CRLF; trailers of at most 16 KiB without
/// fields that frame or route.
///
/// ```
/// use proxy_http::{BodyFramer, Framing};
/// let mut body = BodyFramer::new(Framing::Chunked);
/// let first = body.advance(b"5\r\nhel")?;
/// assert_eq!((first.len, first.end, first.opaque), (6, false, 2));
/// let rest = body.advance(b"lo\r\n0\r\n\r\nGET ")?;
/// assert_eq!((rest.len, rest.end), (9, true));
/// # Ok::<(), proxy_http::BodyError>(())
/// ```
#[derive(Clone, Debug)]
pub struct BodyFramer {
    body: Body,
    content: u64,
}

#[derive(Clone, Debug)]
enum Body {
    Chunked(Chunks),
    /// So many bytes are left.
    Length(u64),
    UntilClose,
}

/// What [`BodyFramer::advance`] found.
///
/// Exhaustive on purpose: all three are needed to go on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Extent {
    /// How many leading bytes of the input belong to the message.
    pub len: usize,
    /// Whether the message ends there.
    pub end: bool,
    /// How many of the bytes that follow need no look: they may be moved
    /// unseen, and are then reported to [`BodyFramer::skip`]. 0 at the end.
    pub opaque: u64,
}

/// What [`BodyFramer::payload`] found.
///
/// Exhaustive on purpose: all three are needed to go on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Payload {
    /// The part of the input that is content; may be empty.
    pub range: Range<usize>,
    /// How many leading bytes of the input are done with.
    pub used: usize,
    /// Whether the message ends there.
    pub end: bool,
}

impl BodyFramer {
    /// A body with that framing, none of it seen yet.
    pub fn new(framing: Framing) -> Self {
        let body = match framing {
            Framing::None => Body::Length(0),
            Framing::Length(n) => Body::Length(n),
            Framing::Chunked => Body::Chunked(Chunks::new()),
            Framing::UntilClose => Body::UntilClose,
        };
        Self { body, content: 0 }
    }

    /// Takes the bytes that come next and says how many of them belong to this
    /// message. Without an end that is all of them.
    ///
    /// # Errors
    /// If they break the chunked coding. None of `input` may be forwarded then;
    /// the exchange is over.
    pub fn advance(&mut self, input: &[u8]) -> Result<Extent, BodyError> {
        let mut len = 0;
        loop {
            let found = self.payload(&input[len..])?;
            len += found.used;
            if found.end || len == input.len() {
                return Ok(Extent {
                    len,
                    end: found.end,
                    opaque: self.opaque(),
                });
            }
        }
    }

    /// Takes the bytes that come next up to the end of one run of content, or
    /// up to the trailers; to be called again with the rest until the input is
    /// used up or the message ends.
    ///
    /// # Errors
    /// If they break the chunked coding; the exchange is over.
    pub fn payload(&mut self, input: &[u8]) -> Result<Payload, BodyError> {
        let (framing, data) = match &mut self.body {
            Body::Chunked(chunks) => {
                let piece = chunks.advance(input)?;
                (piece.framing, piece.data)
            }
            Body::Length(left) => (0, clamp(*left, input.len())),
            Body::UntilClose => (0, input.len()),
        };
        if let Body::Length(left) = &mut self.body {
            *left -= data as u64;
        }
        self.content += data as u64;
        Ok(Payload {
            range: framing..framing + data,
            used: framing + data,
            end: self.is_over(),
        })
    }

    /// Passes over `n` bytes that were moved unseen, at most as many as the last
    /// [`Extent::opaque`]; more than that are ignored.
    pub fn skip(&mut self, n: u64) {
        let n = n.min(self.opaque());
        self.content += n;
        match &mut self.body {
            Body::Chunked(chunks) => chunks.skip(n),
            Body::Length(left) => *left -= n,
            Body::UntilClose => {}
        }
    }

    /// How many bytes of content have been taken or passed over, without the
    /// framing of chunks.
    pub fn content(&self) -> u64 {
        self.content
    }

    /// Whether the message has ended.
    pub fn is_over(&self) -> bool {
        match &self.body {
            Body::Chunked(chunks) => chunks.is_over(),
            Body::Length(left) => *left == 0,
            Body::UntilClose => false,
        }
    }

    /// Whether what comes next is trailer lines or the empty line behind them:
    /// one call of [`payload`](Self::payload) takes nothing else along with
    /// them.
    #[cfg(feature = "serve")]
    pub(crate) fn is_in_trailers(&self) -> bool {
        matches!(&self.body, Body::Chunked(chunks) if chunks.is_in_trailers())
    }

    /// Whether the message is whole if the connection ends here (RFC 9112
    /// section 8); if not, it was truncated.
    pub fn may_end_here(&self) -> bool {
        self.is_over() || matches!(self.body, Body::UntilClose)
    }

    /// How many of the bytes that follow need no look.
    pub fn opaque(&self) -> u64 {
        match &self.body {
            Body::Chunked(chunks) => chunks.opaque(),
            Body::Length(left) => *left,
            Body::UntilClose => u64::MAX,
        }
    }
}
