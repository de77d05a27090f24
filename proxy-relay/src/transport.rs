//! What a stream must offer to be relayed, and what makes it fast.

use std::io;
use std::time::Duration;

use socket2::SockRef;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpStream, UnixStream};

/// A byte stream that a proxy can serve or relay.
///
/// Any stream is one with `impl Transport for Mine {}`; overriding the methods
/// only makes it faster ([`socket`](Self::socket)) or more exact
/// ([`abort`](Self::abort)).
pub trait Transport: AsyncRead + AsyncWrite + Unpin {
    /// The kernel socket whose bytes are exactly the bytes of this stream, so
    /// that they may be spliced past user space. `None` (the default) for
    /// everything encrypted, buffered or made up.
    fn socket(&self) -> Option<Socket<'_>> {
        None
    }

    /// Makes the close that follows a reset instead of an orderly end, so that
    /// the peer can tell a cut from a finish. The default does nothing.
    fn abort(&mut self) {}
}

/// A kernel socket behind a [`Transport`].
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub enum Socket<'a> {
    /// TCP.
    Tcp(&'a TcpStream),
    /// A Unix stream socket.
    Unix(&'a UnixStream),
}

impl Transport for TcpStream {
    fn socket(&self) -> Option<Socket<'_>> {
        Some(Socket::Tcp(self))
    }

    fn abort(&mut self) {
        // Best effort: without it the peer sees an orderly end.
        let _ = reset_on_close(self);
    }
}

impl Transport for UnixStream {
    fn socket(&self) -> Option<Socket<'_>> {
        Some(Socket::Unix(self))
    }
}

impl<T: Transport + ?Sized> Transport for &mut T {
    fn socket(&self) -> Option<Socket<'_>> {
        (**self).socket()
    }
    fn abort(&mut self) {
        (**self).abort();
    }
}

impl<T: Transport + ?Sized> Transport for Box<T> {
    fn socket(&self) -> Option<Socket<'_>> {
        (**self).socket()
    }
    fn abort(&mut self) {
        (**self).abort();
    }
}

fn reset_on_close(stream: &TcpStream) -> io::Result<()> {
    SockRef::from(stream).set_linger(Some(Duration::ZERO))
}
