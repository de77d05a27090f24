//! Pipes for splicing between sockets, past user space.

use std::cell::{Cell, RefCell};
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::task::{Context, Poll, ready};

use proxy_core::FreeList;
use rustix::pipe::{PipeFlags, SpliceFlags};
use tokio::io::Interest;

use crate::spill::Spill;
use crate::{Aside, Socket, lent};

/// A pipe leased from the thread's pool. It goes back when dropped empty.
#[derive(Debug)]
pub(crate) struct Pipe {
    ends: Option<Ends>,
    held: u32,
}

impl Pipe {
    /// A pipe, unless none can be had (out of descriptors or pipe memory, or too
    /// much is put aside in the process).
    pub(crate) fn lease() -> Option<Self> {
        if Aside::room(SIZE) < SIZE {
            return None;
        }
        let pooled = POOL.try_with(|pool| pool.borrow_mut().take()).ok()?;
        let ends = match pooled {
            Some(ends) => ends,
            None => Ends::open().ok()?,
        };
        lent::count(|lent| lent.pipes += 1);
        Aside::add(SIZE as u64);
        Some(Self {
            ends: Some(ends),
            held: 0,
        })
    }

    /// Fills the empty pipe with up to `len` bytes; `Ok(0)` is the end.
    ///
    /// Only an empty pipe may be filled: then "would block" can only mean that
    /// the socket is empty, and its readiness is rightly cleared.
    pub(crate) fn poll_fill(
        &mut self,
        cx: &mut Context<'_>,
        from: Socket<'_>,
        len: usize,
    ) -> Poll<io::Result<usize>> {
        debug_assert_eq!(self.held, 0);
        let ends = self.ends()?;
        let n = ready!(from.poll_io(cx, Interest::READABLE, || {
            move_bytes(from.as_fd(), ends.write.as_fd(), len.min(SIZE))
        }))?;
        self.held = u32::try_from(n).map_err(io::Error::other)?;
        Poll::Ready(Ok(n))
    }

    /// Takes bytes out of the pipe into a socket.
    pub(crate) fn poll_drain(
        &mut self,
        cx: &mut Context<'_>,
        to: Socket<'_>,
    ) -> Poll<io::Result<usize>> {
        let ends = self.ends()?;
        let n = ready!(to.poll_io(cx, Interest::WRITABLE, || {
            move_bytes(ends.read.as_fd(), to.as_fd(), self.held as usize)
        }))?;
        if n == 0 {
            return Poll::Ready(Err(io::ErrorKind::WriteZero.into()));
        }
        self.held -= u32::try_from(n).map_err(io::Error::other)?;
        Poll::Ready(Ok(n))
    }

    /// The bytes in the pipe, for a socket that cannot be spliced to.
    pub(crate) fn take_out(&mut self) -> io::Result<Spill> {
        let mut bytes = vec![0; self.held as usize];
        let (ends, mut at) = (self.ends()?, 0);
        while at < bytes.len() {
            match rustix::io::read(&ends.read, &mut bytes[at..])? {
                0 => return Err(io::ErrorKind::UnexpectedEof.into()),
                n => at += n,
            }
        }
        self.held = 0;
        Ok(Spill::new(&bytes))
    }

    fn ends(&self) -> io::Result<&Ends> {
        // Gone only while it is dropped.
        self.ends
            .as_ref()
            .ok_or_else(|| io::ErrorKind::NotConnected.into())
    }

    /// Bytes in the pipe.
    pub(crate) fn held(&self) -> u32 {
        self.held
    }
}

impl Drop for Pipe {
    fn drop(&mut self) {
        lent::count(|lent| lent.pipes -= 1);
        Aside::remove(SIZE as u64);
        if let Some(ends) = self.ends.take()
            && self.held == 0
        {
            // Closed instead if the thread is about to end.
            let _ = POOL.try_with(|pool| pool.borrow_mut().free.give(ends));
        }
    }
}

/// Closes the pooled pipes of this thread; they are opened anew when needed.
///
/// To be called when descriptors run out. Otherwise there is no need to: pipes
/// that no [`Pump`](crate::Pump) of the thread has used for a tick or two are
/// closed by its [`Deadline`](crate::Deadline)s.
///
/// ```
/// proxy_relay::release_pipes();
/// ```
pub fn release_pipes() {
    // Gone if the thread is about to end.
    let _ = POOL.try_with(|pool| *pool.borrow_mut() = Pool::new());
}

/// Closes the pooled pipes that nobody needed since the last call.
pub(crate) fn trim() {
    let _ = POOL.try_with(|pool| pool.borrow_mut().trim());
}

/// The thread's pipes that nobody has leased.
#[derive(Debug)]
struct Pool {
    free: FreeList<Ends>,
    /// The fewest that were free at any time since the last trim: more than
    /// were ever needed.
    spare: usize,
}

impl Pool {
    const fn new() -> Self {
        Self {
            free: FreeList::new(POOLED),
            spare: 0,
        }
    }

    fn take(&mut self) -> Option<Ends> {
        let ends = self.free.take();
        self.spare = self.spare.min(self.free.len());
        ends
    }

    fn trim(&mut self) {
        for _ in 0..self.spare {
            self.free.take();
        }
        self.spare = self.free.len();
    }
}

/// Held by each pump that splices. With the last of a thread its pooled pipes
/// are closed, also where no deadline trims them.
#[derive(Debug)]
pub(crate) struct Splicing(());

impl Splicing {
    pub(crate) fn begin() -> Self {
        SPLICING.set(SPLICING.get() + 1);
        Self(())
    }
}

impl Drop for Splicing {
    fn drop(&mut self) {
        // A pump may have moved here from another thread.
        let others = SPLICING.get().saturating_sub(1);
        SPLICING.set(others);
        if others == 0 {
            release_pipes();
        }
    }
}

#[derive(Debug)]
struct Ends {
    read: OwnedFd,
    write: OwnedFd,
}

impl Ends {
    fn open() -> io::Result<Self> {
        let (read, write) = rustix::pipe::pipe_with(PipeFlags::CLOEXEC | PipeFlags::NONBLOCK)?;
        // Users have a quota of pipe pages; the default size still works.
        let _ = rustix::pipe::fcntl_setpipe_size(&write, SIZE);
        Ok(Self { read, write })
    }
}

impl Socket<'_> {
    /// Runs `io` once the socket is ready, until it does not block.
    fn poll_io(
        self,
        cx: &mut Context<'_>,
        interest: Interest,
        mut io: impl FnMut() -> io::Result<usize>,
    ) -> Poll<io::Result<usize>> {
        loop {
            ready!(self.poll_ready(cx, interest))?;
            match self.try_io(interest, &mut io) {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                result => return Poll::Ready(result),
            }
        }
    }

    fn poll_ready(self, cx: &mut Context<'_>, interest: Interest) -> Poll<io::Result<()>> {
        match self {
            _ if interest.is_readable() => self.poll_readable(cx),
            Self::Tcp(socket) => socket.poll_write_ready(cx),
            Self::Unix(socket) => socket.poll_write_ready(cx),
        }
    }

    fn try_io(
        self,
        interest: Interest,
        io: impl FnOnce() -> io::Result<usize>,
    ) -> io::Result<usize> {
        match self {
            Self::Tcp(socket) => socket.try_io(interest, io),
            Self::Unix(socket) => socket.try_io(interest, io),
        }
    }
}

impl AsFd for Socket<'_> {
    fn as_fd(&self) -> BorrowedFd<'_> {
        match self {
            Self::Tcp(socket) => socket.as_fd(),
            Self::Unix(socket) => socket.as_fd(),
        }
    }
}

fn move_bytes(from: BorrowedFd<'_>, to: BorrowedFd<'_>, len: usize) -> io::Result<usize> {
    loop {
        match rustix::pipe::splice(from, None, to, None, len, SpliceFlags::NONBLOCK) {
            Err(rustix::io::Errno::INTR) => {}
            result => return Ok(result?),
        }
    }
}

/// Capacity asked for a pipe: as measured, more gains nothing.
const SIZE: usize = 256 * 1024;

/// Empty pipes kept by a thread while any of its pumps splices.
const POOLED: usize = 64;

thread_local! {
    static POOL: RefCell<Pool> = const { RefCell::new(Pool::new()) };
    static SPLICING: Cell<usize> = const { Cell::new(0) };
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::future::poll_fn;
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tokio::net::UnixStream;

    fn pooled() -> usize {
        POOL.with_borrow(|pool| pool.free.len())
    }

    #[tokio::test]
    async fn what_cannot_be_spliced_on_is_taken_out() {
        let (mut source, from) = UnixStream::pair().expect("sockets");
        let (to, mut sink) = UnixStream::pair().expect("sockets");
        source.write_all(b"abcdef").await.expect("write");
        let mut pipe = Pipe::lease().expect("a pipe");
        let fill = poll_fn(|cx| pipe.poll_fill(cx, Socket::Unix(&from), 4)).await;
        assert_eq!((fill.expect("filled"), pipe.held()), (4, 4));
        assert_eq!(pipe.take_out().expect("readable").bytes(), b"abcd");
        assert_eq!(pipe.held(), 0);
        let fill = poll_fn(|cx| pipe.poll_fill(cx, Socket::Unix(&from), 4)).await;
        assert_eq!(fill.expect("filled"), 2);
        let drain = poll_fn(|cx| pipe.poll_drain(cx, Socket::Unix(&to))).await;
        assert_eq!(drain.expect("drained"), 2);
        let mut got = [0; 2];
        sink.read_exact(&mut got).await.expect("read");
        assert_eq!(&got, b"ef");
    }

    #[tokio::test]
    async fn only_empty_pipes_are_kept_and_only_while_somebody_splices() {
        let (mut source, from) = UnixStream::pair().expect("sockets");
        source.write_all(b"abcdef").await.expect("write");
        let (first, second) = (Splicing::begin(), Splicing::begin());
        drop(Pipe::lease());
        assert_eq!((pooled(), lent().pipes), (1, 0));
        let mut pipe = Pipe::lease().expect("the one");
        assert_eq!((pooled(), lent().pipes), (0, 1));
        let fill = poll_fn(|cx| pipe.poll_fill(cx, Socket::Unix(&from), 4)).await;
        assert_eq!(fill.expect("filled"), 4);
        drop(pipe);
        assert_eq!((pooled(), lent().pipes), (0, 0), "bytes of another");
        drop(Pipe::lease());
        drop(first);
        assert_eq!(pooled(), 1);
        drop(second);
        assert_eq!(pooled(), 0);
    }

    #[test]
    fn only_what_was_needed_lately_is_kept() {
        let _splicing = Splicing::begin();
        let lease = |n| {
            let pipes: Vec<_> = (0..n).map(|_| Pipe::lease().expect("a pipe")).collect();
            drop(pipes);
        };
        lease(8);
        trim();
        assert_eq!(pooled(), 8, "all were in use");
        for _ in 0..3 {
            lease(2);
            lease(1);
            trim();
            assert_eq!(pooled(), 2);
        }
        trim();
        assert_eq!(pooled(), 0);
        lease(3);
        release_pipes();
        assert_eq!(pooled(), 0);
    }
}
