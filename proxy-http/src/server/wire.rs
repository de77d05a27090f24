//! Small poll helpers that every part of the server writes and reads through.

use std::future::{Future, poll_fn};
use std::io::{self, IoSlice};
use std::pin::{Pin, pin};
use std::task::{Context, Poll};

use bytes::{Buf, BytesMut};
use proxy_relay::{Aside, Deadline, Expired, Meter, Transport};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

/// Reads once into `space`; `Ready(Ok(0))` is the end of the stream.
pub(super) fn poll_read<S: AsyncRead + Unpin>(
    stream: &mut S,
    cx: &mut Context<'_>,
    space: &mut [u8],
) -> Poll<io::Result<usize>> {
    let mut buf = ReadBuf::new(space);
    Pin::new(stream)
        .poll_read(cx, &mut buf)
        .map_ok(|()| buf.filled().len())
}

/// The same, as far as `meter` grants, and no more than may be put aside.
pub(super) fn poll_metered<S: AsyncRead + Unpin>(
    stream: &mut S,
    cx: &mut Context<'_>,
    space: &mut [u8],
    meter: &mut Meter,
) -> Poll<io::Result<usize>> {
    let room = meter.grant(Aside::room(space.len()));
    if room == 0 {
        return Poll::Pending;
    }
    let read = poll_read(stream, cx, &mut space[..room]);
    let count = match &read {
        Poll::Ready(Ok(count)) => *count,
        _ => 0,
    };
    meter.settle(room, count);
    read
}

/// What is still to be written to one peer.
///
/// Empty and without memory unless the peer is slower than what feeds it.
#[derive(Debug, Default)]
pub(super) struct Outbox {
    unsent: BytesMut,
    aside: Aside,
    unflushed: bool,
    sent: u64,
}

impl Outbox {
    /// Writes `head` and `body` as far as the stream takes them at once and
    /// keeps the rest.
    ///
    /// Small bodies go with the head in one buffer, by the caller; a vectored
    /// write costs more than copying them.
    pub(super) fn send<S: AsyncWrite + Unpin>(
        &mut self,
        stream: &mut S,
        cx: &mut Context<'_>,
        head: &[u8],
        body: &[u8],
    ) -> io::Result<()> {
        let total = head.len() + body.len();
        let mut sent = 0;
        self.unflushed = true;
        while sent < total && self.unsent.is_empty() {
            let stream = Pin::new(&mut *stream);
            let written = if sent >= head.len() {
                stream.poll_write(cx, &body[sent - head.len()..])
            } else if body.is_empty() {
                stream.poll_write(cx, &head[sent..])
            } else {
                stream.poll_write_vectored(cx, &[IoSlice::new(&head[sent..]), IoSlice::new(body)])
            };
            match written {
                Poll::Pending => break,
                Poll::Ready(Ok(0)) => return Err(io::ErrorKind::WriteZero.into()),
                Poll::Ready(result) => sent += result?,
            }
        }
        self.sent += sent as u64;
        if sent < head.len() {
            self.unsent.extend_from_slice(&head[sent..]);
            sent = head.len();
        }
        self.unsent.extend_from_slice(&body[sent - head.len()..]);
        if !self.unsent.is_empty() {
            self.aside.set(self.unsent.len());
        }
        Ok(())
    }

    /// How many bytes the peer has taken.
    pub(super) fn sent(&self) -> u64 {
        self.sent
    }

    /// Whether everything given to it has been written.
    pub(super) fn is_empty(&self) -> bool {
        self.unsent.is_empty()
    }

    /// Ready once everything has left.
    pub(super) fn poll_flush<S: AsyncWrite + Unpin>(
        &mut self,
        stream: &mut S,
        cx: &mut Context<'_>,
    ) -> Poll<io::Result<()>> {
        if !self.unflushed {
            return Poll::Ready(Ok(()));
        }
        let mut stream = Pin::new(stream);
        while !self.unsent.is_empty() {
            match stream.as_mut().poll_write(cx, &self.unsent) {
                Poll::Pending => return Poll::Pending,
                Poll::Ready(Ok(0)) => return Poll::Ready(Err(io::ErrorKind::WriteZero.into())),
                Poll::Ready(result) => {
                    let n = result?;
                    self.unsent.advance(n);
                    self.sent += n as u64;
                }
            }
        }
        // What a slow reader made it grow to is not kept for the next exchange.
        self.unsent = BytesMut::new();
        self.aside = Aside::default();
        let flushed = stream.poll_flush(cx)?;
        if flushed.is_ready() {
            self.unflushed = false;
        }
        flushed.map(Ok)
    }

    /// Forgets what is unsent; its peer is gone.
    pub(super) fn give_up(&mut self) {
        self.unsent = BytesMut::new();
        self.aside = Aside::default();
        self.unflushed = false;
    }
}

/// Polls `future` with an eye on the deadline, which is always polled first.
pub(super) async fn watch<T>(
    deadline: &mut Deadline,
    future: impl Future<Output = T>,
) -> Result<T, Expired> {
    let mut future = pin!(future);
    poll_fn(|cx| match deadline.poll(cx) {
        Poll::Ready(expired) => Poll::Ready(Err(expired)),
        Poll::Pending => future.as_mut().poll(cx).map(Ok),
    })
    .await
}

/// Whether an upstream that should be silent has closed or spoken.
pub(super) fn has_spoken<U: Transport>(upstream: &mut U, cx: &mut Context<'_>) -> bool {
    poll_read(upstream, cx, &mut [0]).is_ready()
}
