//! Client-side exchanges that end in a value: CONNECT, SOCKS and the like.

use bytes::BytesMut;

/// A peer-to-peer exchange driven by bytes: a CONNECT or SOCKS client, say.
///
/// The driver calls [`advance`](Self::advance) first with an empty input (the
/// machine may speak first), sends what was appended to `output`, reads, and
/// calls again with everything that was not consumed so far.
pub trait Handshake {
    /// What the exchange ends in.
    type Output;
    /// Why it can fail.
    type Error;

    /// Takes what it can from the front of `input` and appends what is to be
    /// sent to `output`.
    ///
    /// Bytes behind `consumed` belong to whatever follows the handshake and are
    /// never touched once `done` is set.
    ///
    /// # Errors
    /// When the peer refuses or breaks the protocol; the exchange is over.
    fn advance(
        &mut self,
        input: &[u8],
        output: &mut BytesMut,
    ) -> Result<Step<Self::Output>, Self::Error>;
}

/// The result of one [`Handshake::advance`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Step<T> {
    /// Bytes of the input that were used up.
    pub consumed: usize,
    /// The result, once the exchange is complete.
    pub done: Option<T>,
}
