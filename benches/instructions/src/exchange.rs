//! GETs and their answers through the whole server, on connections in memory that are kept.

use std::cell::Cell;
use std::future::Future;
use std::io;
use std::pin::{Pin, pin};
use std::rc::Rc;
use std::task::{Context, Poll, Waker};

use proxy_core::{Ask, ConnectError, Connected, Credentials, Denial, Gateway, Peer, Target};
use proxy_http::Server;
use proxy_relay::Transport;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use crate::wire::{ANSWER, SMALL};

/// As many requests as `times` says, with answers of 1 KiB.
pub(crate) fn exchange(times: usize) {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_time()
        .build()
        .expect("a runtime");
    // Its clock stands still: nobody waits for it.
    let _guard = runtime.enter();
    let address = ([127, 0, 0, 1], 1).into();
    let peer = Peer {
        remote: address,
        local: address,
    };
    let server = Server::new(Memory);
    // The answer comes in one write, and may be shorter than it was.
    let client = Wire::new(SMALL, BODY, times);
    client.0.due.set(1);
    let mut serving = pin!(server.serve(client.clone(), peer));
    let mut context = Context::from_waker(Waker::noop());
    while serving.as_mut().poll(&mut context).is_pending() {}
    assert_eq!(client.0.sent.get(), times);
}

/// Leads to an origin in memory.
struct Memory;

impl Gateway for Memory {
    type Identity = ();
    type Session = ();
    type Upstream = Wire;

    async fn authenticate(&self, _: &Peer, _: Option<Credentials<'_>>) -> Result<(), Denial> {
        Ok(())
    }

    async fn authorize(&self, (): &(), _: &Ask<'_>) -> Result<(), Denial> {
        Ok(())
    }

    async fn connect(&self, (): &mut (), _: Target<'_>) -> Result<Connected<Wire>, ConnectError> {
        let answer = [ANSWER, &[b'x'; BODY]].concat();
        // A request comes in one write.
        Ok(Connected::fresh(Wire::new(answer.leak(), 1, usize::MAX)))
    }
}

/// A connection whose far end says the same each time it has taken enough bytes.
#[derive(Clone)]
struct Wire(Rc<State>);

struct State {
    text: &'static [u8],
    enough: usize,
    times: usize,
    taken: Cell<usize>,
    /// How often it is to say its text; it is not here before somebody has waited for it.
    due: Cell<usize>,
    here: Cell<bool>,
    sent: Cell<usize>,
}

impl Wire {
    fn new(text: &'static [u8], enough: usize, times: usize) -> Self {
        Self(Rc::new(State {
            text,
            enough,
            times,
            taken: Cell::new(0),
            due: Cell::new(0),
            here: Cell::new(false),
            sent: Cell::new(0),
        }))
    }
}

impl Transport for Wire {}

impl AsyncRead for Wire {
    fn poll_read(
        self: Pin<&mut Self>,
        _: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let state = &self.0;
        if state.sent.get() == state.times {
            return Poll::Ready(Ok(()));
        }
        if state.due.get() == 0 || !state.here.replace(true) {
            return Poll::Pending;
        }
        state.here.set(false);
        state.due.set(state.due.get() - 1);
        state.sent.set(state.sent.get() + 1);
        buffer.put_slice(state.text);
        Poll::Ready(Ok(()))
    }
}

impl AsyncWrite for Wire {
    fn poll_write(
        self: Pin<&mut Self>,
        _: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let state = &self.0;
        state.taken.set(state.taken.get() + bytes.len());
        if state.taken.get() >= state.enough {
            state.taken.set(0);
            state.due.set(state.due.get() + 1);
        }
        Poll::Ready(Ok(bytes.len()))
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }
}

const BODY: usize = 1024;
