//! A stream with bytes in front that were already read from it.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};

use bytes::{Buf, Bytes};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use crate::{Socket, Transport};

/// A stream that yields some bytes, already read by somebody else, before its
/// own.
///
/// Once they are taken it is as fast as the stream itself: from then on
/// [`Transport::socket`] passes through.
///
/// ```
/// # tokio_test(async {
/// use tokio::io::AsyncReadExt;
/// let stream = &b"world"[..];
/// # let stream = tokio::io::join(stream, tokio::io::sink());
/// let mut stream = proxy_relay::Prefixed::new(stream, "hello ");
/// let mut text = String::new();
/// stream.read_to_string(&mut text).await?;
/// assert_eq!(text, "hello world");
/// # Ok::<(), std::io::Error>(())
/// # });
/// # fn tokio_test<F: Future>(f: F) -> F::Output {
/// #     tokio::runtime::Builder::new_current_thread().build().unwrap().block_on(f)
/// # }
/// ```
#[derive(Debug)]
pub struct Prefixed<S> {
    prefix: Bytes,
    inner: S,
}

impl<S> Prefixed<S> {
    /// Puts `prefix` in front of `inner`.
    pub fn new(inner: S, prefix: impl Into<Bytes>) -> Self {
        Self {
            prefix: prefix.into(),
            inner,
        }
    }

    /// The stream, and what of the prefix was not yet taken.
    pub fn into_parts(self) -> (S, Bytes) {
        (self.inner, self.prefix)
    }

    /// What of the prefix was not yet taken.
    pub fn prefix(&self) -> &[u8] {
        &self.prefix
    }

    /// The stream behind the prefix.
    pub fn inner(&self) -> &S {
        &self.inner
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for Prefixed<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        if self.prefix.is_empty() {
            return Pin::new(&mut self.inner).poll_read(cx, buf);
        }
        let n = self.prefix.len().min(buf.remaining());
        buf.put_slice(&self.prefix[..n]);
        self.prefix.advance(n);
        if self.prefix.is_empty() {
            // Drops what it may share with a larger buffer.
            self.prefix = Bytes::new();
        }
        Poll::Ready(Ok(()))
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Prefixed<S> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.inner).poll_write(cx, buf)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.inner).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.inner).poll_shutdown(cx)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.inner).poll_write_vectored(cx, bufs)
    }

    fn is_write_vectored(&self) -> bool {
        self.inner.is_write_vectored()
    }
}

impl<S: Transport> Transport for Prefixed<S> {
    fn socket(&self) -> Option<Socket<'_>> {
        match self.prefix.is_empty() {
            true => self.inner.socket(),
            false => None,
        }
    }

    fn abort(&mut self) {
        self.inner.abort();
    }

    fn is_quiet(&self) -> bool {
        self.prefix.is_empty() && self.inner.is_quiet()
    }

    fn carrier(&self) -> Option<Socket<'_>> {
        self.inner.carrier()
    }
}
