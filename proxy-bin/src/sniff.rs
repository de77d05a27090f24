//! Tells the protocols of an `auto` listener apart by their first byte.

use std::future::poll_fn;
use std::io;
use std::pin::{Pin, pin};
use std::task::{Poll, ready};

use proxy_core::StopState;
use proxy_relay::{Deadline, Transport, lend};
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
/// or was too slow, or the proxy closes.
pub(crate) async fn peek(stream: &TcpStream, deadline: &mut Deadline) -> Option<Spoken> {
    let mut first = [0];
    let peek = poll_fn(|cx| stream.poll_peek(cx, &mut ReadBuf::new(&mut first)));
    match unless_closing(deadline, peek).await? {
        Ok(1) => Some(first[0].into()),
        Ok(_) | Err(_) => None,
    }
}

/// Reads the first bytes of a stream that cannot be peeked at.
pub(crate) async fn read<S: Transport>(
    stream: &mut S,
    deadline: &mut Deadline,
) -> Option<(Spoken, Vec<u8>)> {
    let read = poll_fn(|cx| {
        lend(|buffers| {
            let mut buffer = ReadBuf::new(&mut buffers.read[..FIRST_READ]);
            ready!(Pin::new(&mut *stream).poll_read(cx, &mut buffer))?;
            Poll::Ready(io::Result::Ok(buffer.filled().to_vec()))
        })
    });
    let bytes = unless_closing(deadline, read).await?.ok()?;
    Some((Spoken::from(*bytes.first()?), bytes))
}

/// Awaits `work` until the deadline passes or the proxy closes: `work` is of the
/// kind that comes before anything worth finishing.
pub(crate) async fn unless_closing<T>(
    deadline: &mut Deadline,
    work: impl Future<Output = T>,
) -> Option<T> {
    let mut work = pin!(work);
    poll_fn(|cx| {
        if deadline.poll(cx).is_ready() || deadline.stop_state() != StopState::Running {
            return Poll::Ready(None);
        }
        work.as_mut().poll(cx).map(Some)
    })
    .await
}

/// As much as a client usually says before it waits.
const FIRST_READ: usize = 4096;
