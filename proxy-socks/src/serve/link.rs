//! The client's stream during the handshake, and waiting with a limit.

use std::future::poll_fn;
use std::io;
use std::pin::{Pin, pin};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use bytes::BytesMut;
use proxy_core::{End, StopState};
use proxy_relay::{Deadline, Expired, Transport, lend, vanished};
use tokio::io::{AsyncWriteExt, ReadBuf};

/// The client's stream with what was read and not used, and what is to be sent.
#[derive(Debug)]
pub(super) struct Link<'s, S> {
    stream: &'s mut S,
    pub(super) input: BytesMut,
    pub(super) output: BytesMut,
}

impl<'s, S: Transport> Link<'s, S> {
    /// Allocates nothing until bytes have come.
    pub(super) fn new(stream: &'s mut S) -> Self {
        Self {
            stream,
            input: BytesMut::new(),
            output: BytesMut::new(),
        }
    }

    /// Appends what comes next to the input; the end of the stream is an
    /// `UnexpectedEof`.
    pub(super) async fn read(&mut self) -> io::Result<()> {
        let Self { stream, input, .. } = self;
        match poll_fn(|cx| poll_through(cx, *stream, |bytes| input.extend_from_slice(bytes)))
            .await?
        {
            0 => Err(io::ErrorKind::UnexpectedEof.into()),
            _ => Ok(()),
        }
    }

    /// Sends the output, if there is any.
    pub(super) async fn flush(&mut self) -> io::Result<()> {
        if !self.output.is_empty() {
            self.stream.write_all_buf(&mut self.output).await?;
            self.stream.flush().await?;
        }
        Ok(())
    }

    /// Ends our direction and takes in what the client still sends: closing with
    /// bytes unread would be a reset, which can destroy the reply on its way.
    pub(super) async fn linger(&mut self) -> io::Result<()> {
        self.stream.shutdown().await?;
        let mut left = LINGER_BYTES;
        while left > 0 {
            match poll_fn(|cx| poll_through(cx, self.stream, |_| ())).await? {
                0 => break,
                n => left = left.saturating_sub(n),
            }
        }
        Ok(())
    }

    /// Waits until the client has closed or reset the connection. What it sends
    /// meanwhile is kept; of one that sends much only a reset is noticed, since
    /// the rest is left unread.
    pub(super) async fn left(&mut self) {
        while self.input.len() < KEPT {
            if self.read().await.is_err() {
                return;
            }
        }
        self.vanished().await;
    }

    /// Waits until the client has reset the connection.
    pub(super) fn vanished(&self) -> impl Future<Output = ()> {
        vanished(self.stream)
    }
}

/// Awaits `work` until the deadline passes.
pub(super) async fn within<T>(
    deadline: &mut Deadline,
    work: impl Future<Output = T>,
) -> Result<T, Expired> {
    let mut work = pin!(work);
    poll_fn(|cx| match deadline.poll(cx) {
        Poll::Ready(expired) => Poll::Ready(Err(expired)),
        Poll::Pending => work.as_mut().poll(cx).map(Ok),
    })
    .await
}

/// Awaits the client's first bytes until the deadline passes. A drain ends the
/// wait as well: nothing has begun that could be finished.
pub(super) async fn unless_drained<T>(
    deadline: &mut Deadline,
    work: impl Future<Output = T>,
) -> Result<T, Expired> {
    let mut work = pin!(work);
    poll_fn(|cx| match deadline.poll(cx) {
        Poll::Ready(expired) => Poll::Ready(Err(expired)),
        Poll::Pending if deadline.stop_state() == StopState::Draining => {
            Poll::Ready(Err(Expired::Stopped(End::Drained)))
        }
        Poll::Pending => work.as_mut().poll(cx).map(Ok),
    })
    .await
}

/// Reads through the thread's buffer, so that a client that sends nothing costs
/// no memory.
fn poll_through<S: Transport>(
    cx: &mut Context<'_>,
    stream: &mut S,
    take: impl FnOnce(&[u8]),
) -> Poll<io::Result<usize>> {
    lend(|buffers| {
        let mut buf = ReadBuf::new(&mut buffers.read[..READ]);
        ready!(Pin::new(stream).poll_read(cx, &mut buf))?;
        take(buf.filled());
        Poll::Ready(Ok(buf.filled().len()))
    })
}

/// The most that is read at once: a whole handshake and some data behind it,
/// which has to be kept until the target has been reached.
const READ: usize = 4096;

/// How much is taken in of a client that sends before it is told to.
const KEPT: usize = 2 * READ;

/// How long a refused client may take to read the reply and close.
pub(super) const LINGER: Duration = Duration::from_secs(2);

/// How much of what a refused client still sends is taken in.
const LINGER_BYTES: usize = 512 * 1024;
