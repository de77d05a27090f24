//! Tells the protocols of an `auto` listener apart by their first byte.

use std::future::poll_fn;
use std::io;
use std::pin::Pin;
use std::task::{Poll, ready};

use proxy_relay::{Deadline, Expired, Ticks, Transport, lend};
use tokio::io::ReadBuf;
use tokio::net::TcpStream;

/// What a client speaks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Spoken {
    /// Or anything unknown: HTTP has an answer for that.
    Http,
    Socks,
    Tls,
}

impl From<u8> for Spoken {
    fn from(first: u8) -> Self {
        match first {
            // The version of a SOCKS4 request or a SOCKS5 greeting.
            4 | 5 => Self::Socks,
            // A TLS record with a handshake message.
            22 => Self::Tls,
            _ => Self::Http,
        }
    }
}

/// Looks at the first byte and leaves it where it is. `None` if the client left
/// or was too slow, or the proxy stops.
pub(crate) async fn peek(stream: &TcpStream, deadline: &mut Deadline) -> Option<Spoken> {
    let mut first = [0];
    let peeked = within(deadline, |cx| {
        stream.poll_peek(cx, &mut ReadBuf::new(&mut first))
    })
    .await;
    match peeked {
        Some(Ok(1)) => Some(first[0].into()),
        _ => None,
    }
}

/// Reads the first bytes of a stream that cannot be peeked at.
pub(crate) async fn read<S: Transport>(
    stream: &mut S,
    deadline: &mut Deadline,
) -> Option<(Spoken, Vec<u8>)> {
    let read = within(deadline, |cx| {
        lend(|buffers| {
            let mut buffer = ReadBuf::new(&mut buffers.read[..FIRST_READ]);
            ready!(Pin::new(&mut *stream).poll_read(cx, &mut buffer))?;
            Poll::Ready(Ok(buffer.filled().to_vec()))
        })
    })
    .await;
    let bytes = read?.ok()?;
    Some((Spoken::from(*bytes.first()?), bytes))
}

/// A deadline for the first byte.
pub(crate) fn deadline(patience: Ticks, stop: proxy_core::Stop) -> Deadline {
    let deadline = Deadline::new(stop);
    deadline.set(patience);
    deadline
}

async fn within<T>(
    deadline: &mut Deadline,
    mut poll: impl FnMut(&mut std::task::Context<'_>) -> Poll<io::Result<T>>,
) -> Option<io::Result<T>> {
    poll_fn(|cx| {
        if let Poll::Ready(Expired::Elapsed | Expired::Stopped(_)) = deadline.poll(cx) {
            return Poll::Ready(None);
        }
        if !matches!(deadline.stop_state(), proxy_core::StopState::Running) {
            // Nothing has begun that could be finished.
            return Poll::Ready(None);
        }
        poll(cx).map(Some)
    })
    .await
}

/// As much as a client usually says before it waits.
const FIRST_READ: usize = 4096;
