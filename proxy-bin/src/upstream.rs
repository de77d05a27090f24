//! A connection towards a target: plain, through parents and their TLS, inside
//! TLS with the target.

use std::fmt;
use std::io::{self, IoSlice};
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use bytes::{Buf, BytesMut};
use proxy_core::{HttpParent, Target, TargetBuf};
use proxy_relay::{Socket, Transport};
use proxy_tls::TlsStream;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{TcpStream, UnixStream};

use crate::egress::Permit;

/// A connection and what a pool must know of it.
///
/// Reads yield first what came behind a parent's answer; from then on a plain
/// connection is as fast as its socket.
pub(crate) struct Upstream {
    stream: Stream,
    /// Boxed, since most have none.
    more: Option<Box<More>>,
}

/// What is unusual about a connection.
#[derive(Default)]
struct More {
    /// Bytes that were read already.
    ahead: BytesMut,
    parent: Option<Arc<HttpParent>>,
    lane: Lane,
    /// Its place within the limits, which goes with it.
    _permit: Option<Permit>,
}

enum Stream {
    Tcp(TcpStream),
    Rare(Rare),
}

/// Within a variant of its own it adds nothing to the size of all others.
enum Rare {
    /// TLS with a parent or a target, over whatever leads to it.
    Tls(TlsStream<Upstream>),
    Unix(Box<UnixStream>),
}

/// In what connections to the same target may differ.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub(crate) struct Lane {
    /// The chain of parents it takes; 0 is none.
    pub(crate) chain: u16,
    /// The source address it comes from, as policy counts them.
    pub(crate) source: u64,
    /// It is TLS with the target itself.
    pub(crate) secure: bool,
}

impl Lane {
    /// Nearly all connections go the same way.
    pub(crate) fn is_usual(self) -> bool {
        self.chain == 0 && self.source == 0
    }
}

impl Upstream {
    pub(crate) fn new(stream: TcpStream) -> Self {
        Self::over(Stream::Tcp(stream))
    }

    pub(crate) fn unix(stream: UnixStream) -> Self {
        Self::over(Stream::Rare(Rare::Unix(Box::new(stream))))
    }

    pub(crate) fn tls(stream: TlsStream<Self>) -> Self {
        Self::over(Stream::Rare(Rare::Tls(stream)))
    }

    fn over(stream: Stream) -> Self {
        Self { stream, more: None }
    }

    pub(crate) fn set_lane(&mut self, lane: Lane) {
        if lane != self.lane() {
            self.more.get_or_insert_default().lane = lane;
        }
    }

    /// Notes that it leads to an HTTP proxy, which takes requests for any
    /// target.
    pub(crate) fn set_parent(&mut self, parent: Arc<HttpParent>) {
        self.more.get_or_insert_default().parent = Some(parent);
    }

    /// Holds its place for as long as it lives.
    pub(crate) fn set_permit(&mut self, permit: Option<Permit>) {
        if permit.is_some() {
            self.more.get_or_insert_default()._permit = permit;
        }
    }

    /// Takes what was read already.
    pub(crate) fn take_ahead(&mut self) -> BytesMut {
        let more = self.more.as_mut();
        more.map(|more| std::mem::take(&mut more.ahead))
            .unwrap_or_default()
    }

    /// Puts bytes that were read in front of those to be read.
    pub(crate) fn put_ahead(&mut self, bytes: BytesMut) {
        if !bytes.is_empty() {
            self.more.get_or_insert_default().ahead = bytes;
        }
    }

    /// Bytes that were read are still to be yielded.
    fn has_ahead(&self) -> bool {
        let more = self.more.as_ref();
        more.is_some_and(|more| !more.ahead.is_empty())
    }

    pub(crate) fn lane(&self) -> Lane {
        let more = self.more.as_ref();
        more.map(|more| more.lane).unwrap_or_default()
    }

    /// The HTTP proxy it leads to, if it is not a target's own connection.
    pub(crate) fn parent(&self) -> Option<&Arc<HttpParent>> {
        self.more.as_ref()?.parent.as_ref()
    }

    /// The address that was dialled: the first parent's, if there is one. A Unix
    /// socket has none.
    pub(crate) fn peer_addr(&self) -> io::Result<SocketAddr> {
        match &self.stream {
            Stream::Tcp(stream) => stream.peer_addr(),
            Stream::Rare(Rare::Tls(stream)) => stream.get_ref().peer_addr(),
            Stream::Rare(Rare::Unix(_)) => Err(io::ErrorKind::Unsupported.into()),
        }
    }
}

impl fmt::Debug for Upstream {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Upstream")
            .field("lane", &self.lane())
            .finish_non_exhaustive()
    }
}

impl AsyncRead for Upstream {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        if let Some(more) = &mut self.more
            && !more.ahead.is_empty()
        {
            let ahead = &mut more.ahead;
            let n = ahead.len().min(buf.remaining());
            buf.put_slice(&ahead[..n]);
            ahead.advance(n);
            if ahead.is_empty() {
                *ahead = BytesMut::new();
            }
            return Poll::Ready(Ok(()));
        }
        match &mut self.stream {
            Stream::Tcp(stream) => Pin::new(stream).poll_read(cx, buf),
            Stream::Rare(Rare::Tls(stream)) => Pin::new(stream).poll_read(cx, buf),
            Stream::Rare(Rare::Unix(stream)) => Pin::new(stream).poll_read(cx, buf),
        }
    }
}

impl AsyncWrite for Upstream {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &[u8],
    ) -> Poll<io::Result<usize>> {
        match &mut self.stream {
            Stream::Tcp(stream) => Pin::new(stream).poll_write(cx, buf),
            Stream::Rare(Rare::Tls(stream)) => Pin::new(stream).poll_write(cx, buf),
            Stream::Rare(Rare::Unix(stream)) => Pin::new(stream).poll_write(cx, buf),
        }
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        match &mut self.stream {
            Stream::Tcp(stream) => Pin::new(stream).poll_write_vectored(cx, bufs),
            Stream::Rare(Rare::Tls(stream)) => Pin::new(stream).poll_write_vectored(cx, bufs),
            Stream::Rare(Rare::Unix(stream)) => Pin::new(stream).poll_write_vectored(cx, bufs),
        }
    }

    fn is_write_vectored(&self) -> bool {
        // All kinds are.
        true
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match &mut self.stream {
            Stream::Tcp(stream) => Pin::new(stream).poll_flush(cx),
            Stream::Rare(Rare::Tls(stream)) => Pin::new(stream).poll_flush(cx),
            Stream::Rare(Rare::Unix(stream)) => Pin::new(stream).poll_flush(cx),
        }
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match &mut self.stream {
            Stream::Tcp(stream) => Pin::new(stream).poll_shutdown(cx),
            Stream::Rare(Rare::Tls(stream)) => Pin::new(stream).poll_shutdown(cx),
            Stream::Rare(Rare::Unix(stream)) => Pin::new(stream).poll_shutdown(cx),
        }
    }
}

impl Transport for Upstream {
    fn socket(&self) -> Option<Socket<'_>> {
        match &self.stream {
            Stream::Tcp(stream) if !self.has_ahead() => stream.socket(),
            Stream::Rare(Rare::Unix(stream)) if !self.has_ahead() => stream.socket(),
            _ => None,
        }
    }

    fn abort(&mut self) {
        match &mut self.stream {
            Stream::Tcp(stream) => stream.abort(),
            Stream::Rare(Rare::Tls(stream)) => stream.abort(),
            Stream::Rare(Rare::Unix(stream)) => stream.abort(),
        }
    }

    fn is_quiet(&self) -> bool {
        !self.has_ahead()
            && match &self.stream {
                Stream::Tcp(stream) => stream.is_quiet(),
                Stream::Rare(Rare::Tls(stream)) => stream.is_quiet(),
                Stream::Rare(Rare::Unix(stream)) => stream.is_quiet(),
            }
    }

    fn carrier(&self) -> Option<Socket<'_>> {
        match &self.stream {
            Stream::Tcp(stream) => stream.carrier(),
            Stream::Rare(Rare::Tls(stream)) => stream.carrier(),
            Stream::Rare(Rare::Unix(stream)) => stream.carrier(),
        }
    }
}

/// What an idle connection is found under.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct PoolKey {
    lane: Lane,
    /// Of no host and port 0 if the connection serves any target.
    target: TargetBuf,
}

impl PoolKey {
    /// Room for keys to look for.
    pub(crate) fn new() -> Self {
        Self {
            lane: Lane::default(),
            target: ANY.into(),
        }
    }

    /// The key that `upstream`, which was used for `target`, is kept under.
    pub(crate) fn of(upstream: &Upstream, target: Target<'_>) -> Self {
        let target = match upstream.parent() {
            Some(_) => ANY,
            None => target,
        };
        Self {
            lane: upstream.lane(),
            target: target.into(),
        }
    }

    /// Whether these connections lead to `origin` and nowhere else.
    pub(crate) fn leads_to(&self, origin: Target<'_>) -> bool {
        self.target.as_target() == origin
    }

    /// Becomes the key of connections of this lane that lead to `target`, or,
    /// without one, to an HTTP proxy.
    pub(crate) fn set(&mut self, lane: Lane, target: Option<Target<'_>>) {
        self.lane = lane;
        self.target.set(target.unwrap_or(ANY));
    }
}

const ANY: Target<'static> = Target {
    host: proxy_core::Host::Name(""),
    port: 0,
};

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::io::AsyncReadExt;
    use tokio::net::TcpListener;

    #[test]
    fn it_is_small() {
        assert!(size_of::<Upstream>() <= 48, "{}", size_of::<Upstream>());
    }

    #[tokio::test]
    async fn p41_early_bytes_come_first_and_then_the_socket_is_bare() {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("bound");
        let address = listener.local_addr().expect("bound");
        let stream = TcpStream::connect(address).await.expect("connected");
        let mut upstream = Upstream::new(stream);
        assert!(upstream.is_quiet() && upstream.socket().is_some());
        upstream.put_ahead(BytesMut::from("early"));
        assert!(!upstream.is_quiet() && upstream.socket().is_none());
        let mut bytes = [0; 5];
        upstream.read_exact(&mut bytes[..2]).await.expect("two");
        upstream.read_exact(&mut bytes[2..]).await.expect("three");
        assert_eq!(&bytes, b"early");
        assert!(upstream.is_quiet() && upstream.socket().is_some());
        assert_eq!(upstream.peer_addr().ok(), Some(address));
    }

    #[tokio::test]
    async fn p32_only_a_proxy_serves_any_target() {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("bound");
        let address = listener.local_addr().expect("bound");
        let stream = TcpStream::connect(address).await.expect("connected");
        let mut upstream = Upstream::new(stream);
        let lane = Lane {
            chain: 1,
            source: 2,
            secure: false,
        };
        upstream.set_lane(lane);
        let target = Target::parse("a.example:80", None).expect("a target");
        let other = Target::parse("b.example:80", None).expect("a target");
        let mut key = PoolKey::new();
        key.set(lane, Some(target));
        assert_eq!(PoolKey::of(&upstream, target), key);
        assert_ne!(PoolKey::of(&upstream, other), key);
        upstream.set_parent(Arc::default());
        key.set(lane, None);
        assert_eq!(PoolKey::of(&upstream, target), key);
        assert_eq!(PoolKey::of(&upstream, other), key);
        for lane in [
            Lane { chain: 2, ..lane },
            Lane { source: 1, ..lane },
            Lane {
                secure: true,
                ..lane
            },
        ] {
            key.set(lane, None);
            assert_ne!(PoolKey::of(&upstream, other), key);
        }
    }
}
