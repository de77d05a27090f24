//! A stream in memory that does what the test says, and wakes whoever waits for
//! it only when it can go on.

use std::cell::{RefCell, RefMut};
use std::collections::VecDeque;
use std::io;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll, Waker};

use proxy_relay::Transport;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

/// One end, which a relay reads and writes; its clones are the same stream.
#[derive(Clone)]
pub(crate) struct Puppet(Rc<RefCell<Strings>>);

/// What the test pulls and what it sees.
pub(crate) struct Strings {
    /// Comes out when read.
    pub(crate) source: Source,
    /// Takes what is written.
    pub(crate) sink: Sink,
    /// Whether the close is to be a reset.
    pub(crate) aborted: bool,
    /// How often it has woken somebody.
    pub(crate) wakes: usize,
}

pub(crate) struct Source {
    data: Rc<[u8]>,
    /// How many bytes of the data were read.
    pub(crate) read: usize,
    /// How many there are up to now.
    offered: usize,
    end: Option<SourceEnd>,
    /// Whether the end was told.
    ended: bool,
    turns: Turns,
    waker: Option<Waker>,
}

/// The most that each of the next calls moves. With none at all it has to be
/// called again, as when tokio's cooperative budget is used up.
type Turns = VecDeque<usize>;

/// What comes behind the bytes of a source.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum SourceEnd {
    Fin,
    Reset,
    /// As of TLS without close_notify.
    Truncated,
}

pub(crate) struct Sink {
    /// What must come.
    data: Rc<[u8]>,
    /// Bytes that it took.
    pub(crate) taken: usize,
    /// Of those, the ones that a flush has moved on.
    pub(crate) flushed: usize,
    /// How many it takes up to now.
    room: usize,
    pub(crate) turns: Turns,
    flushes: bool,
    shuts: bool,
    fault: Option<SinkFault>,
    /// Whether it was shut down.
    pub(crate) fin: bool,
    waker: Option<Waker>,
}

/// How writing fails.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum SinkFault {
    /// Every call fails.
    Broken,
    /// Writes take nothing, which is an error too.
    Zero,
}

impl Puppet {
    /// `incoming` is what can be read, `outgoing` what must be written; `early`
    /// bytes of it were read before.
    pub(crate) fn new(incoming: &Rc<[u8]>, outgoing: &Rc<[u8]>, early: usize) -> Self {
        Self(Rc::new(RefCell::new(Strings {
            source: Source {
                data: incoming.clone(),
                read: early,
                offered: early,
                end: None,
                ended: false,
                turns: Turns::new(),
                waker: None,
            },
            sink: Sink {
                data: outgoing.clone(),
                taken: 0,
                flushed: 0,
                room: 0,
                turns: Turns::new(),
                flushes: true,
                shuts: true,
                fault: None,
                fin: false,
                waker: None,
            },
            aborted: false,
            wakes: 0,
        })))
    }

    pub(crate) fn strings(&self) -> RefMut<'_, Strings> {
        self.0.borrow_mut()
    }

    /// How many bytes it took, and whether it was shut down.
    pub(crate) fn sunk(&self) -> (usize, bool) {
        let sink = &self.strings().sink;
        (sink.taken, sink.fin)
    }

    /// More can be read, `offered` bytes in all.
    pub(crate) fn offer(&self, offered: usize) {
        let more = offered > std::mem::replace(&mut self.strings().source.offered, offered);
        self.wake_reader(more);
    }

    pub(crate) fn end(&self, end: SourceEnd) {
        let news = self.strings().source.end.replace(end).is_none();
        self.wake_reader(news);
    }

    /// More can be written, `room` bytes in all.
    pub(crate) fn widen(&self, room: usize) {
        let more = room > std::mem::replace(&mut self.strings().sink.room, room);
        self.wake_writer(more);
    }

    /// Whether flushes and shutdowns get through.
    pub(crate) fn pass(&self, flushes: bool, shuts: bool) {
        let before = {
            let sink = &mut self.strings().sink;
            let before = (sink.flushes, sink.shuts);
            (sink.flushes, sink.shuts) = (flushes, shuts);
            before
        };
        self.wake_writer(flushes && !before.0 || shuts && !before.1);
    }

    pub(crate) fn fail(&self, fault: SinkFault) {
        let news = self.strings().sink.fault.replace(fault) != Some(fault);
        self.wake_writer(news);
    }

    /// How the next reads go.
    pub(crate) fn read_by(&self, turns: &[usize]) {
        self.strings().source.turns.extend(turns);
    }

    /// How the next writes go.
    pub(crate) fn write_by(&self, turns: &[usize]) {
        self.strings().sink.turns.extend(turns);
    }

    fn wake_reader(&self, news: bool) {
        if news {
            let waker = self.strings().source.waker.take();
            self.wake(waker);
        }
    }

    fn wake_writer(&self, news: bool) {
        if news {
            let waker = self.strings().sink.waker.take();
            self.wake(waker);
        }
    }

    fn wake(&self, waker: Option<Waker>) {
        if let Some(waker) = waker {
            self.strings().wakes += 1;
            waker.wake();
        }
    }
}

impl Strings {
    fn again<T>(&mut self, cx: &Context<'_>) -> Poll<T> {
        self.wakes += 1;
        cx.waker().wake_by_ref();
        Poll::Pending
    }
}

impl Sink {
    fn wait<T>(&mut self, cx: &Context<'_>) -> Poll<T> {
        self.waker = Some(cx.waker().clone());
        Poll::Pending
    }

    fn check(&self) -> io::Result<()> {
        match self.fault {
            Some(SinkFault::Broken) => Err(io::ErrorKind::BrokenPipe.into()),
            _ => Ok(()),
        }
    }
}

impl AsyncRead for Puppet {
    fn poll_read(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let mut strings = self.strings();
        let most = strings.source.turns.pop_front().unwrap_or(usize::MAX);
        if most == 0 {
            return strings.again(cx);
        }
        let source = &mut strings.source;
        assert!(!source.ended, "read beyond the end");
        assert!(buf.remaining() > 0, "a read without room");
        let n = (source.offered - source.read)
            .min(most)
            .min(buf.remaining());
        if n > 0 {
            buf.put_slice(&source.data[source.read..source.read + n]);
            source.read += n;
            return Poll::Ready(Ok(()));
        }
        source.ended = source.end.is_some();
        Poll::Ready(match source.end {
            None => {
                source.waker = Some(cx.waker().clone());
                return Poll::Pending;
            }
            Some(SourceEnd::Fin) => Ok(()),
            Some(SourceEnd::Reset) => Err(io::ErrorKind::ConnectionReset.into()),
            Some(SourceEnd::Truncated) => Err(io::ErrorKind::UnexpectedEof.into()),
        })
    }
}

impl AsyncWrite for Puppet {
    fn poll_write(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &[u8],
    ) -> Poll<io::Result<usize>> {
        let mut strings = self.strings();
        let most = strings.sink.turns.pop_front().unwrap_or(usize::MAX);
        if most == 0 {
            return strings.again(cx);
        }
        let sink = &mut strings.sink;
        assert!(!sink.fin, "written behind the end");
        assert!(!buf.is_empty(), "an empty write");
        sink.check()?;
        if sink.fault == Some(SinkFault::Zero) {
            return Poll::Ready(Ok(0));
        }
        let n = (sink.room - sink.taken).min(most).min(buf.len());
        if n == 0 {
            return sink.wait(cx);
        }
        let expected = &sink.data[sink.taken..sink.taken + n];
        assert!(buf[..n] == *expected, "differs behind byte {}", sink.taken);
        sink.taken += n;
        Poll::Ready(Ok(n))
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let sink = &mut self.strings().sink;
        sink.check()?;
        if !sink.flushes {
            return sink.wait(cx);
        }
        sink.flushed = sink.taken;
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let sink = &mut self.strings().sink;
        assert_eq!(sink.flushed, sink.taken, "the end before the data");
        sink.check()?;
        if !sink.shuts {
            return sink.wait(cx);
        }
        sink.fin = true;
        Poll::Ready(Ok(()))
    }
}

impl Transport for Puppet {
    fn abort(&mut self) {
        self.strings().aborted = true;
    }

    fn is_reset(&self) -> bool {
        self.strings().source.end == Some(SourceEnd::Reset)
    }
}
