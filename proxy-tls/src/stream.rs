//! The stream after the handshake.

use std::fmt;
use std::io::{self, IoSlice};
use std::pin::Pin;
use std::task::{Context, Poll, Waker, ready};

use proxy_relay::{Socket, Transport};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use crate::scratch::{self, BULK, RECORD, SIZE};
use crate::session::Session;

/// A TLS connection over `S`, made by [`Acceptor`](crate::Acceptor) or
/// [`Connector`](crate::Connector).
///
/// One pointer in size; what an idle connection owns behind it is stated in
/// [`Acceptor`](crate::Acceptor#memory).
///
/// * **Reading**: the peer's close_notify is the end of the stream. An end
///   without it is [`io::ErrorKind::UnexpectedEof`], since an attacker may have
///   cut the stream (RFC 8446 section 6.1). After either, writing is still
///   possible.
/// * **Writing**: a write encrypts up to 256 KiB and hands it to `S` at once, in
///   a single call as long as `S` takes it. When `S` is full the write still
///   succeeds and the ciphertext that is left waits here: it is sent by the next
///   call of *any* poll method. A task that polls neither side of this stream
///   before it waits for something else must await a flush first.
/// * **Shutdown** sends close_notify and shuts down the writing side of `S`;
///   reading goes on. Dropping sends nothing: the peer sees a cut.
pub struct TlsStream<S> {
    inner: Box<Inner<S>>,
}

pub(crate) struct Inner<S> {
    pub(crate) io: S,
    pub(crate) session: Session,
    end: End,
    write_closed: bool,
    /// Who waits for `outgoing` to be sent.
    writer: Option<Waker>,
}

/// How the reading side stands.
enum End {
    Open,
    /// The stream below ended.
    Cut,
    /// The error, until it was told.
    Failed(Option<io::Error>),
}

impl<S: Transport> TlsStream<S> {
    pub(crate) fn new(inner: Box<Inner<S>>) -> Self {
        Self { inner }
    }
}

impl<S> TlsStream<S> {
    /// The application protocol that was agreed on, such as `http/1.1`.
    pub fn alpn(&self) -> Option<&[u8]> {
        self.inner.session.state().alpn_protocol()
    }

    /// The server's name: at the server what the client asked for, if it did;
    /// at the client what the certificate was verified for.
    pub fn server_name(&self) -> Option<&str> {
        self.inner.session.server_name.as_deref()
    }

    /// The stream below.
    pub fn get_ref(&self) -> &S {
        &self.inner.io
    }
}

impl<S: Transport> Transport for TlsStream<S> {
    fn abort(&mut self) {
        self.inner.io.abort();
    }

    fn is_quiet(&self) -> bool {
        let Inner {
            io, session, end, ..
        } = &*self.inner;
        let nothing_kept = session.plain.is_empty() && session.incoming().is_empty();
        matches!(end, End::Open) && nothing_kept && !session.peer_closed() && io.is_quiet()
    }

    fn carrier(&self) -> Option<Socket<'_>> {
        self.inner.io.carrier()
    }
}

impl<S: Transport> AsyncRead for TlsStream<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        out: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let inner = &mut *self.inner;
        inner.send_on_the_side(cx);
        if out.remaining() == 0 || inner.take_plain(out) {
            return Poll::Ready(Ok(()));
        }
        let before = out.filled().len();
        while out.filled().len() == before && !inner.session.peer_closed() {
            inner.check_end()?;
            ready!(inner.poll_receive(cx, out));
        }
        Poll::Ready(Ok(()))
    }
}

impl<S: Transport> AsyncWrite for TlsStream<S> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        data: &[u8],
    ) -> Poll<io::Result<usize>> {
        let inner = &mut *self.inner;
        ready!(inner.poll_ready_to_write(cx))?;
        scratch::lend(|tls| inner.write_all(cx, data, tls))
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        slices: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let inner = &mut *self.inner;
        ready!(inner.poll_ready_to_write(cx))?;
        scratch::lend(|scratch| {
            // One record for a head and its short body.
            let (plain, tls) = scratch.split_at_mut(RECORD);
            match slices.iter().find(|slice| !slice.is_empty()) {
                Some(first) if first.len() >= RECORD => inner.write_all(cx, first, tls),
                _ => {
                    let len = gather(slices, plain);
                    inner.write_all(cx, &plain[..len], tls)
                }
            }
        })
    }

    fn is_write_vectored(&self) -> bool {
        true
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.inner.poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let inner = &mut *self.inner;
        if !inner.write_closed {
            inner.write_closed = true;
            // After a failure there was an alert instead.
            if !matches!(inner.end, End::Failed(_)) {
                inner.session.close().map_err(invalid)?;
            }
        }
        ready!(inner.poll_send(cx))?;
        Pin::new(&mut inner.io).poll_shutdown(cx)
    }
}

impl<S> fmt::Debug for TlsStream<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TlsStream")
            .field("server_name", &self.server_name())
            .finish_non_exhaustive()
    }
}

impl<S: Transport> Inner<S> {
    pub(crate) fn new(io: S, session: Session) -> Box<Self> {
        Box::new(Self {
            io,
            session,
            end: End::Open,
            write_closed: false,
            writer: None,
        })
    }

    /// Reads once from the stream below and decrypts; an end or failure is
    /// noted, since it comes after the plaintext before it. Ready does not mean
    /// that there is plaintext.
    pub(crate) fn poll_receive(&mut self, cx: &mut Context<'_>, out: &mut ReadBuf<'_>) -> Poll<()> {
        let result = ready!(self.poll_decrypt(cx, out));
        if let Err(error) = result {
            self.end = End::Failed(Some(error));
        }
        // The protocol's own answers: alerts, key updates.
        self.send_on_the_side(cx);
        Poll::Ready(())
    }

    fn poll_decrypt(
        &mut self,
        cx: &mut Context<'_>,
        out: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        scratch::lend(|tls| {
            let kept = self.session.incoming().len();
            // At most one record more than there is room for.
            let wanted = out.remaining().clamp(RECORD, BULK);
            let filled = ready!(self.poll_fill(cx, &mut tls[..SIZE.min(kept + wanted)]))?;
            match filled {
                0 => self.end = End::Cut,
                filled => {
                    tls[..kept].copy_from_slice(self.session.incoming());
                    self.session
                        .receive(&mut tls[..kept + filled], out)
                        .map_err(invalid)?;
                }
            }
            Poll::Ready(Ok(()))
        })
    }

    /// Reads behind the bytes kept by the session.
    pub(crate) fn poll_fill(
        &mut self,
        cx: &mut Context<'_>,
        tls: &mut [u8],
    ) -> Poll<io::Result<usize>> {
        let kept = self.session.incoming().len();
        let mut buf = ReadBuf::new(&mut tls[kept..]);
        ready!(Pin::new(&mut self.io).poll_read(cx, &mut buf))?;
        Poll::Ready(Ok(buf.filled().len()))
    }

    /// Sends what is outgoing.
    pub(crate) fn poll_send(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        while !self.session.outgoing.is_empty() {
            match Pin::new(&mut self.io).poll_write(cx, self.session.outgoing.bytes()) {
                Poll::Ready(Ok(0)) => return Poll::Ready(Err(io::ErrorKind::WriteZero.into())),
                Poll::Ready(Ok(sent)) => self.session.outgoing.consume(sent),
                Poll::Ready(Err(error)) => return Poll::Ready(Err(error)),
                Poll::Pending => {
                    self.writer = Some(cx.waker().clone());
                    return Poll::Pending;
                }
            }
        }
        self.writer = None;
        Poll::Ready(Ok(()))
    }

    /// Sends what is outgoing, through buffers below.
    pub(crate) fn poll_flush(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        ready!(self.poll_send(cx))?;
        Pin::new(&mut self.io).poll_flush(cx)
    }

    /// Whether more can be read from the stream below.
    pub(crate) fn check_end(&mut self) -> io::Result<()> {
        match &mut self.end {
            End::Open => Ok(()),
            End::Cut => Err(io::ErrorKind::UnexpectedEof.into()),
            End::Failed(error) => Err(error
                .take()
                .unwrap_or_else(|| io::ErrorKind::InvalidData.into())),
        }
    }

    fn poll_ready_to_write(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        if self.write_closed || matches!(self.end, End::Failed(_)) {
            return Poll::Ready(Err(io::ErrorKind::BrokenPipe.into()));
        }
        self.poll_send(cx)
    }

    /// Encrypts and writes until `data` ends or the stream below is full.
    fn write_all(
        &mut self,
        cx: &mut Context<'_>,
        data: &[u8],
        tls: &mut [u8],
    ) -> Poll<io::Result<usize>> {
        let mut taken = 0;
        while taken < data.len() && self.session.outgoing.is_empty() {
            let (plain, len) = self.session.encrypt(&data[taken..], tls).map_err(invalid)?;
            taken += plain;
            self.write_tls(cx, &tls[..len])?;
        }
        Poll::Ready(Ok(taken))
    }

    /// Writes `tls`, and keeps what the stream below does not take.
    fn write_tls(&mut self, cx: &mut Context<'_>, mut tls: &[u8]) -> io::Result<()> {
        while !tls.is_empty() {
            match Pin::new(&mut self.io).poll_write(cx, tls) {
                Poll::Ready(Ok(0)) => return Err(io::ErrorKind::WriteZero.into()),
                Poll::Ready(Ok(sent)) => tls = &tls[sent..],
                Poll::Ready(Err(error)) => return Err(error),
                Poll::Pending => {
                    self.session.outgoing.push(tls);
                    self.session.sent(false);
                    return Ok(());
                }
            }
        }
        self.session.sent(true);
        Ok(())
    }

    /// Sends what is outgoing in passing.
    fn send_on_the_side(&mut self, cx: &mut Context<'_>) {
        if self.session.outgoing.is_empty() {
            return;
        }
        let writer = self.writer.take();
        // An error shows again in the next write, where it belongs.
        let _ = self.poll_send(cx);
        if let Some(writer) = writer
            && !writer.will_wake(cx.waker())
        {
            // Of another task. The stream below would no longer wake it.
            writer.wake();
        }
    }

    /// Hands out what was decrypted before; whether there was something.
    fn take_plain(&mut self, out: &mut ReadBuf<'_>) -> bool {
        let plain = self.session.plain.bytes();
        let len = plain.len().min(out.remaining());
        out.put_slice(&plain[..len]);
        self.session.plain.consume(len);
        len > 0
    }
}

fn gather(slices: &[IoSlice<'_>], plain: &mut [u8]) -> usize {
    let mut len = 0;
    for slice in slices {
        let room = &mut plain[len..];
        let part = slice.len().min(room.len());
        room[..part].copy_from_slice(&slice[..part]);
        len += part;
    }
    len
}

fn invalid(error: rustls::Error) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, error)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Acceptor, Connector, PostQuantum, SingleCertificate, TlsOptions};
    use std::path::Path;
    use std::sync::Arc;
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tokio::net::UnixStream;

    async fn pair() -> (TlsStream<UnixStream>, TlsStream<UnixStream>) {
        let file = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/data/sec1.pem");
        let provider = crate::provider(PostQuantum::Omit);
        let file = Path::new(file);
        let pair = crate::load_certificate(&provider, file, file).expect("a pair");
        let shown = Arc::new(SingleCertificate::new(pair));
        let options = TlsOptions::default();
        let acceptor = Acceptor::new(Arc::clone(&provider), shown, &options).expect("acceptor");
        let roots = crate::load_roots(file).expect("a root");
        let connector = Connector::new(provider, roots, &options).expect("connector");
        let (client, server) = UnixStream::pair().expect("sockets");
        let name = "localhost".try_into().expect("a name");
        let (client, server) =
            tokio::join!(connector.connect(name, client), acceptor.accept(server));
        (client.expect("connected"), server.expect("accepted"))
    }

    fn owned<S>(stream: &TlsStream<S>) -> usize {
        stream.inner.session.buffered()
    }

    #[tokio::test]
    async fn an_idle_connection_owns_no_buffer() {
        let (mut client, mut server) = pair().await;
        for size in [10, 20_000, 400_000] {
            let mut got = vec![0; size];
            let send = async {
                client.write_all(&vec![1; size]).await?;
                client.flush().await
            };
            // Small pieces leave plaintext behind in between.
            let read = async {
                for part in got.chunks_mut(7000) {
                    server.read_exact(part).await?;
                }
                Ok::<_, io::Error>(())
            };
            let (sent, read) = tokio::join!(send, read);
            sent.expect("sent");
            read.expect("read");
            assert_eq!((owned(&client), owned(&server)), (0, 0), "{size}");
        }
    }

    #[tokio::test]
    async fn plaintext_that_nobody_reads_is_bounded() {
        let (mut client, mut server) = pair().await;
        // The server takes a byte at a time while the client writes all it can.
        let flood = async {
            loop {
                client.write_all(&[1; 16 * 1024]).await.expect("sent");
            }
        };
        let sip = async {
            for _ in 0..100_000 {
                server.read_u8().await.expect("read");
                assert!(owned(&server) <= 4 * RECORD, "{}", owned(&server));
            }
        };
        tokio::select! {
            () = flood => {}
            () = sip => {}
        }
    }
}
