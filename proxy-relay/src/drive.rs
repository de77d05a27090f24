//! Drives a handshake over a stream.

use std::future::poll_fn;
use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use bytes::{Buf, BytesMut};
use proxy_core::Handshake;
use tokio::io::{AsyncWriteExt, ReadBuf};

use crate::{Transport, lend};

/// Carries out `handshake` over `stream` and returns what it ends in.
///
/// `input` holds bytes read from the stream that nobody has used yet; what is
/// left in it afterwards belongs to whatever follows the handshake. It never
/// grows beyond [`MAX_INPUT`]. There is no timeout inside: wrap the call.
///
/// Not cancel safe: after a dropped call the handshake is in an unknown state
/// and the stream is to be closed.
///
/// # Errors
/// When the stream fails or ends, when the peer sends more than the bound
/// without completing the handshake, and when the handshake itself refuses.
pub async fn drive<S: Transport, H: Handshake>(
    stream: &mut S,
    input: &mut BytesMut,
    handshake: &mut H,
) -> Result<H::Output, DriveError<H::Error>> {
    let mut output = BytesMut::new();
    loop {
        let step = handshake.advance(input, &mut output);
        if !output.is_empty() {
            // Also when it failed: the peer may be owed an explanation.
            stream.write_all_buf(&mut output).await?;
            stream.flush().await?;
        }
        let step = step.map_err(DriveError::Handshake)?;
        input.advance(step.consumed);
        if let Some(done) = step.done {
            return Ok(done);
        }
        if step.consumed == 0 || input.is_empty() {
            read_more(stream, input).await?;
        }
    }
}

/// The most unread bytes, 64 KiB, that [`drive`] keeps for a handshake.
pub const MAX_INPUT: usize = 64 * 1024;

/// Why [`drive`] gave up.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum DriveError<E> {
    /// The peer closed the connection before the handshake was complete.
    #[error("the peer closed the connection in mid-handshake")]
    Closed,
    /// The handshake failed.
    #[error("{0}")]
    Handshake(E),
    /// The stream failed.
    #[error(transparent)]
    Io(#[from] io::Error),
    /// The peer sent too many bytes that complete nothing.
    #[error("the handshake does not end within {MAX_INPUT} bytes")]
    TooLong,
}

async fn read_more<S: Transport, E>(
    stream: &mut S,
    input: &mut BytesMut,
) -> Result<(), DriveError<E>> {
    if input.len() >= MAX_INPUT {
        return Err(DriveError::TooLong);
    }
    match poll_fn(|cx| poll_append(cx, stream, input)).await? {
        0 => Err(DriveError::Closed),
        _ => Ok(()),
    }
}

/// Reads through the thread's buffer, so that `input` grows only by what came.
fn poll_append<S: Transport>(
    cx: &mut Context<'_>,
    stream: &mut S,
    input: &mut BytesMut,
) -> Poll<io::Result<usize>> {
    lend(|buffers| {
        let room = MAX_INPUT - input.len();
        let mut buf = ReadBuf::new(&mut buffers.read[..room]);
        ready!(Pin::new(stream).poll_read(cx, &mut buf))?;
        input.extend_from_slice(buf.filled());
        Poll::Ready(Ok(buf.filled().len()))
    })
}
