//! What a stream must offer to be relayed, and what makes it fast.

use std::future::poll_fn;
use std::io;
use std::pin::pin;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use socket2::SockRef;
use tokio::io::{AsyncRead, AsyncWrite, Interest};
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

    /// Whether an idle stream is still open and has nothing to read, as far as
    /// can be told without waiting: what a pool asks before it lends it again.
    /// May consume a byte when the answer is no. The default says yes.
    fn is_quiet(&self) -> bool {
        true
    }

    /// The kernel socket that carries this stream, encrypted or buffered or
    /// not: it is only listened to, for the peer's reset ([`vanished`]). The
    /// default is the [`socket`](Self::socket); a stream that wraps another
    /// should pass the question on.
    fn carrier(&self) -> Option<Socket<'_>> {
        self.socket()
    }

    /// Whether the peer has reset the connection, as far as the runtime was
    /// told; what was received before may still be readable.
    ///
    /// Costs no system call and reads nothing, so it can be asked of a stream
    /// that is not being read; see [`Deadline::recheck`](crate::Deadline::recheck)
    /// for when to ask. The default asks the [`carrier`](Self::carrier), and says
    /// no without one.
    fn is_reset(&self) -> bool {
        let gone = pin!(vanished(self));
        gone.poll(&mut Context::from_waker(Waker::noop()))
            .is_ready()
    }
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

impl Socket<'_> {
    /// Ready once there is something to read, the end or an error.
    pub(crate) fn poll_readable(self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self {
            Self::Tcp(socket) => socket.poll_read_ready(cx),
            Self::Unix(socket) => socket.poll_read_ready(cx),
        }
    }
}

impl Transport for TcpStream {
    fn socket(&self) -> Option<Socket<'_>> {
        Some(Socket::Tcp(self))
    }

    fn abort(&mut self) {
        // Best effort: without it the peer sees an orderly end.
        let _ = reset_on_close(self);
    }

    fn is_quiet(&self) -> bool {
        blocks(self.try_read(&mut [0]))
    }
}

impl Transport for UnixStream {
    fn socket(&self) -> Option<Socket<'_>> {
        Some(Socket::Unix(self))
    }

    fn is_quiet(&self) -> bool {
        blocks(self.try_read(&mut [0]))
    }
}

impl<T: Transport + ?Sized> Transport for &mut T {
    fn socket(&self) -> Option<Socket<'_>> {
        (**self).socket()
    }
    fn abort(&mut self) {
        (**self).abort();
    }
    fn is_quiet(&self) -> bool {
        (**self).is_quiet()
    }
    fn carrier(&self) -> Option<Socket<'_>> {
        (**self).carrier()
    }
    fn is_reset(&self) -> bool {
        (**self).is_reset()
    }
}

impl<T: Transport + ?Sized> Transport for Box<T> {
    fn socket(&self) -> Option<Socket<'_>> {
        (**self).socket()
    }
    fn abort(&mut self) {
        (**self).abort();
    }
    fn is_quiet(&self) -> bool {
        (**self).is_quiet()
    }
    fn carrier(&self) -> Option<Socket<'_>> {
        (**self).carrier()
    }
    fn is_reset(&self) -> bool {
        (**self).is_reset()
    }
}

/// Waits until the peer has reset the connection; for ever if the stream has no
/// [`carrier`](Transport::carrier).
///
/// Race it against work that would be in vain then, such as dialling for a
/// client. An orderly end of the peer's direction is no reset and does not
/// count. Cancel safe; reads nothing.
pub fn vanished<S: Transport + ?Sized>(stream: &S) -> impl Future<Output = ()> {
    // Held instead of the stream, which need not be `Sync` for the future to be `Send`.
    let socket = stream.carrier();
    async move {
        let gone = match socket {
            Some(Socket::Tcp(socket)) => socket.ready(Interest::ERROR).await,
            Some(Socket::Unix(socket)) => socket.ready(Interest::ERROR).await,
            None => return std::future::pending().await,
        };
        // The only error, a runtime that shuts down, ends the wait as well.
        drop(gone);
    }
}

/// Awaits `work`, or `None` once `gone` is over: for what is in vain when a
/// client has [`vanished`]. Cancel safe if both are.
pub async fn unless<T>(gone: impl Future<Output = ()>, work: impl Future<Output = T>) -> Option<T> {
    let mut work = pin!(work);
    let mut gone = pin!(gone);
    poll_fn(|cx| match work.as_mut().poll(cx) {
        Poll::Ready(done) => Poll::Ready(Some(done)),
        Poll::Pending => gone.as_mut().poll(cx).map(|()| None),
    })
    .await
}

/// Costs no system call while the runtime knows that nothing came.
fn blocks(read: io::Result<usize>) -> bool {
    read.is_err_and(|error| error.kind() == io::ErrorKind::WouldBlock)
}

fn reset_on_close(stream: &TcpStream) -> io::Result<()> {
    SockRef::from(stream).set_linger(Some(Duration::ZERO))
}
