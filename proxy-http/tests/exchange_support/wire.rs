//! A stream in memory whose far end is played by a transcript.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::io;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll, Waker};

use proxy_relay::Transport;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

/// The near end, for the server.
pub(crate) struct Wire(pub(crate) Rc<Far>);

/// The far end.
#[derive(Default)]
pub(crate) struct Far {
    /// Bytes for the server to read.
    coming: RefCell<VecDeque<u8>>,
    ended: Cell<bool>,
    reset: Cell<bool>,
    /// How many bytes the far end takes, if it does not take any number.
    credit: Cell<Option<usize>>,
    /// All that was sent to the server.
    pub(crate) said: RefCell<Vec<u8>>,
    /// How much of it the server has read.
    pub(crate) read: Cell<usize>,
    /// The server has done with it.
    pub(crate) closed: Cell<bool>,
    /// The server wants its end to be seen as a cut.
    pub(crate) cut: Cell<bool>,
    /// All that the server wrote.
    pub(crate) taken: RefCell<Vec<u8>>,
    /// Where in that the request with this number begins.
    pub(crate) marks: RefCell<Vec<(usize, usize)>>,
    /// The number of the request being served.
    current: Rc<Cell<usize>>,
    reader: Cell<Option<Waker>>,
    writer: Cell<Option<Waker>>,
}

impl Far {
    /// `current` says which request the server is busy with.
    pub(crate) fn new(current: Rc<Cell<usize>>) -> Rc<Self> {
        Rc::new(Self {
            current,
            ..Self::default()
        })
    }

    pub(crate) fn send(&self, bytes: &[u8]) {
        self.coming.borrow_mut().extend(bytes);
        self.said.borrow_mut().extend_from_slice(bytes);
        self.wake_reader();
    }

    /// Sends no more.
    pub(crate) fn finish(&self) {
        self.ended.set(true);
        self.wake_reader();
    }

    pub(crate) fn reset(&self) {
        self.reset.set(true);
        self.wake_reader();
        self.wake_writer();
    }

    pub(crate) fn has_reset(&self) -> bool {
        self.reset.get()
    }

    pub(crate) fn is_over(&self) -> bool {
        self.ended.get() || self.reset.get()
    }

    /// Takes no bytes any more.
    pub(crate) fn stall(&self) {
        self.credit.set(Some(0));
    }

    /// A stalled end takes `n` bytes.
    pub(crate) fn sip(&self, n: usize) {
        if let Some(credit) = self.credit.get() {
            self.credit.set(Some(credit + n));
            self.wake_writer();
        }
    }

    pub(crate) fn take_all(&self) {
        self.credit.set(None);
        self.wake_writer();
    }

    pub(crate) fn takes_all(&self) -> bool {
        self.credit.get().is_none()
    }

    fn wake_reader(&self) {
        self.reader.take().into_iter().for_each(Waker::wake);
    }

    fn wake_writer(&self) {
        self.writer.take().into_iter().for_each(Waker::wake);
    }
}

impl Drop for Wire {
    fn drop(&mut self) {
        self.0.closed.set(true);
    }
}

impl Transport for Wire {
    fn abort(&mut self) {
        self.0.cut.set(true);
    }

    fn is_quiet(&self) -> bool {
        !self.0.is_over() && self.0.coming.borrow().is_empty()
    }

    fn is_reset(&self) -> bool {
        self.0.reset.get()
    }
}

impl AsyncRead for Wire {
    fn poll_read(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let far = &self.0;
        if far.reset.get() {
            return Poll::Ready(Err(io::ErrorKind::ConnectionReset.into()));
        }
        let mut coming = far.coming.borrow_mut();
        if coming.is_empty() && !far.ended.get() {
            far.reader.set(Some(cx.waker().clone()));
            return Poll::Pending;
        }
        let n = coming.len().min(buffer.remaining());
        let (front, _) = coming.make_contiguous().split_at(n);
        buffer.put_slice(front);
        coming.drain(..n);
        far.read.set(far.read.get() + n);
        Poll::Ready(Ok(()))
    }
}

impl AsyncWrite for Wire {
    fn poll_write(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let far = &self.0;
        if far.reset.get() {
            return Poll::Ready(Err(io::ErrorKind::BrokenPipe.into()));
        }
        let n = match far.credit.get() {
            None => bytes.len(),
            Some(0) => {
                far.writer.set(Some(cx.waker().clone()));
                return Poll::Pending;
            }
            Some(credit) => {
                let n = credit.min(bytes.len());
                far.credit.set(Some(credit - n));
                n
            }
        };
        let mut taken = far.taken.borrow_mut();
        let mut marks = far.marks.borrow_mut();
        let current = far.current.get();
        if n > 0 && marks.last().is_none_or(|(number, _)| *number != current) {
            marks.push((current, taken.len()));
        }
        taken.extend_from_slice(&bytes[..n]);
        Poll::Ready(Ok(n))
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }
}
