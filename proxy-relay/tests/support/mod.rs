//! Sockets, data and waiting for the relay tests.
#![allow(dead_code, reason = "each test binary uses a part")]

pub(crate) mod model;
pub(crate) mod puppet;
pub(crate) mod schedule;
pub(crate) mod scripted;
pub(crate) mod silent;

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use proxy_relay::{Transport, lent};
use socket2::SockRef;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt, ReadBuf};
use tokio::net::{TcpListener, TcpStream};

/// The two ends of a loopback connection with small socket buffers, so that a
/// few megabytes fill them.
pub(crate) async fn pair() -> (TcpStream, TcpStream) {
    pair_of(256 * 1024).await
}

/// The same with buffers of so many bytes.
pub(crate) async fn pair_of(bytes: usize) -> (TcpStream, TcpStream) {
    let (ours, theirs) = wide_pair().await;
    for end in [&ours, &theirs] {
        let socket = SockRef::from(end);
        socket.set_recv_buffer_size(bytes).expect("buffer");
        socket.set_send_buffer_size(bytes).expect("buffer");
    }
    (ours, theirs)
}

/// The two ends of a loopback connection as the system makes it.
pub(crate) async fn wide_pair() -> (TcpStream, TcpStream) {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("bind");
    let address = listener.local_addr().expect("address");
    let (ours, theirs) = tokio::join!(TcpStream::connect(address), listener.accept());
    let (ours, (theirs, _)) = (ours.expect("connect"), theirs.expect("accept"));
    ours.set_nodelay(true).expect("nodelay");
    theirs.set_nodelay(true).expect("nodelay");
    (ours, theirs)
}

/// A stream that hides its socket, so that it can only be copied.
pub(crate) struct Opaque<S>(pub(crate) S);

impl<S: AsyncRead + AsyncWrite + Unpin> AsyncRead for Opaque<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_read(cx, buf)
    }
}

impl<S: AsyncRead + AsyncWrite + Unpin> AsyncWrite for Opaque<S> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.0).poll_write(cx, buf)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_shutdown(cx)
    }
}

impl<S: AsyncRead + AsyncWrite + Unpin> Transport for Opaque<S> {}

/// How a direction is to be moved.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum How {
    Copy,
    Splice,
}

/// A stream that may be spliced, or not.
pub(crate) enum Maybe {
    Copied(Opaque<TcpStream>),
    Plain(TcpStream),
}

impl Maybe {
    pub(crate) fn new(stream: TcpStream, how: How) -> Self {
        match how {
            How::Copy => Self::Copied(Opaque(stream)),
            How::Splice => Self::Plain(stream),
        }
    }

    pub(crate) fn tcp(&self) -> &TcpStream {
        match self {
            Self::Copied(stream) => &stream.0,
            Self::Plain(stream) => stream,
        }
    }

    fn tcp_mut(self: Pin<&mut Self>) -> Pin<&mut TcpStream> {
        Pin::new(match self.get_mut() {
            Self::Copied(stream) => &mut stream.0,
            Self::Plain(stream) => stream,
        })
    }
}

impl AsyncRead for Maybe {
    fn poll_read(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        self.tcp_mut().poll_read(cx, buf)
    }
}

impl AsyncWrite for Maybe {
    fn poll_write(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &[u8],
    ) -> Poll<io::Result<usize>> {
        self.tcp_mut().poll_write(cx, buf)
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.tcp_mut().poll_flush(cx)
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.tcp_mut().poll_shutdown(cx)
    }
}

impl Transport for Maybe {
    fn socket(&self) -> Option<proxy_relay::Socket<'_>> {
        match self {
            Self::Copied(_) => None,
            Self::Plain(stream) => stream.socket(),
        }
    }

    fn abort(&mut self) {
        match self {
            Self::Copied(stream) => stream.0.abort(),
            Self::Plain(stream) => stream.abort(),
        }
    }

    fn carrier(&self) -> Option<proxy_relay::Socket<'_>> {
        self.tcp().socket()
    }
}

/// A reproducible stream of bytes in which no block repeats.
pub(crate) struct Noise(u64, u64);

impl Noise {
    pub(crate) fn new(seed: u64) -> Self {
        Self(seed, 0)
    }

    pub(crate) fn fill(&mut self, bytes: &mut [u8]) {
        for byte in bytes {
            self.0 = self
                .0
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1);
            *byte = self.0.to_be_bytes()[0];
        }
    }

    pub(crate) fn bytes(seed: u64, len: usize) -> Vec<u8> {
        let mut bytes = vec![0; len];
        Self::new(seed).fill(&mut bytes);
        bytes
    }
}

/// Sends `len` bytes of noise, in pieces of odd sizes.
pub(crate) async fn send_noise(
    stream: &mut (impl AsyncWrite + Unpin),
    seed: u64,
    len: usize,
) -> io::Result<()> {
    let (mut noise, mut left, mut piece) = (Noise::new(seed), len, 1);
    let mut block = vec![0; 256 * 1024];
    while left > 0 {
        let n = left.min(piece);
        noise.fill(&mut block[..n]);
        stream.write_all(&block[..n]).await?;
        left -= n;
        piece = (piece * 3 + 7).min(block.len());
    }
    Ok(())
}

/// Reads exactly `len` bytes and compares them with the noise of `seed`. Says
/// whether a pipe of this thread was seen in use.
pub(crate) async fn check_noise(
    stream: &mut (impl AsyncRead + Unpin),
    seed: u64,
    len: usize,
) -> bool {
    let (mut noise, mut left) = (Noise::new(seed), len);
    let (mut got, mut want) = (vec![0; 256 * 1024], vec![0; 256 * 1024]);
    let mut spliced = false;
    while left > 0 {
        spliced |= lent().pipes > 0;
        let room = left.min(got.len());
        let n = stream.read(&mut got[..room]).await.expect("read");
        assert!(n > 0, "ended with {left} bytes to come");
        noise.fill(&mut want[..n]);
        assert!(
            got[..n] == want[..n],
            "differs within {n} bytes at {}",
            len - left
        );
        left -= n;
    }
    spliced
}

pub(crate) async fn expect_end(stream: &mut (impl AsyncRead + Unpin)) {
    let mut byte = [0];
    let n = stream.read(&mut byte).await.expect("an orderly end");
    assert_eq!(n, 0, "more bytes than sent");
}

pub(crate) async fn expect_reset(stream: &mut TcpStream) {
    let mut sink = vec![0; 64 * 1024];
    let error = loop {
        match stream.read(&mut sink).await {
            Ok(0) => panic!("an orderly end instead of a reset"),
            Ok(_) => {}
            Err(error) => break error,
        }
    };
    assert_eq!(error.kind(), io::ErrorKind::ConnectionReset);
}

/// Waits until `done` holds, for ten seconds at most.
pub(crate) async fn until(what: &str, mut done: impl FnMut() -> bool) {
    within(10, async {
        while !done() {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    })
    .await
    .unwrap_or_else(|| panic!("never came: {what}"));
}

pub(crate) async fn within<F: Future>(secs: u64, future: F) -> Option<F::Output> {
    tokio::time::timeout(Duration::from_secs(secs), future)
        .await
        .ok()
}
