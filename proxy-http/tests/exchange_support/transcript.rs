//! A transcript as bytes. Those below [`FIRST`] are sent by the side whose turn it is; the others
//! are stage directions, and before each of them the server runs until it waits.

use std::future::Future;
use std::pin::pin;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, Wake, Waker};

use proxy_core::Peer;
use proxy_http::Server;

use super::gateway::{Careful, Notes};
use super::judge::judge;
use super::wire::{Far, Wire};

/// The other side's turn.
const TURN: u8 = 0xff;
/// The server runs, the same side goes on.
const CUT: u8 = 0xfe;
/// The side sends no more; what an origin says then is for the next connection.
const END: u8 = 0xfd;
/// The side resets its connection.
const RESET: u8 = 0xfc;
/// The side takes no bytes, or takes them again.
const STALL: u8 = 0xfb;
/// A stalled side takes a few bytes.
const SIP: u8 = 0xfa;
/// The last byte again, a hundred thousand times.
const MUCH: u8 = 0xf9;
const FIRST: u8 = MUCH;

/// One read that the other side did not take, and what had come before; less than much.
const HELD: usize = proxy_relay::Buffers::SIZE + 32 * 1024;

/// Plays a transcript to its end and judges what came of it.
pub(crate) fn play(transcript: &[u8]) {
    RUNTIME.with(|runtime| {
        // Its clock stands still: nobody waits for it.
        let _guard = runtime.enter();
        Stage::new().play(transcript);
    });
    assert_eq!(proxy_relay::lent(), proxy_relay::Lent::default(), "a leak");
}

struct Stage {
    notes: Rc<Notes>,
    client: Rc<Far>,
    clients_turn: bool,
    last: u8,
    /// How often more may be asked for.
    much: u8,
}

impl Stage {
    fn new() -> Self {
        let notes = Rc::new(Notes::default());
        Self {
            client: Far::new(Rc::clone(&notes.current)),
            notes,
            clients_turn: true,
            last: b'x',
            much: 4,
        }
    }

    fn play(mut self, transcript: &[u8]) {
        let server = Server::new(Rc::clone(&self.notes)).filter(Careful);
        let address = ([127, 0, 0, 1], 1).into();
        let peer = Peer {
            remote: address,
            local: address,
        };
        let mut serving = pin!(server.serve(Wire(Rc::clone(&self.client)), peer));
        let woken = Arc::new(Woken(AtomicBool::new(true)));
        let waker = Waker::from(Arc::clone(&woken));
        let mut over = false;
        let mut run = || {
            while !over && woken.0.swap(false, Ordering::Relaxed) {
                let polled = serving.as_mut().poll(&mut Context::from_waker(&waker));
                over = matches!(polled, Poll::Ready(_));
            }
            over
        };
        let mut text = transcript;
        while let Some(len) = text.iter().position(|byte| *byte >= FIRST) {
            self.send(&text[..len]);
            run();
            self.check_memory();
            self.direct(text[len]);
            text = &text[len + 1..];
        }
        self.send(text);
        run();
        self.close();
        assert!(run(), "the server goes on after both sides have ended");
        judge(&self.client, &self.notes);
    }

    fn send(&mut self, bytes: &[u8]) {
        self.last = bytes.last().copied().unwrap_or(self.last);
        if self.clients_turn && !self.client.is_over() {
            self.client.send(bytes);
        } else if !self.clients_turn {
            match self.notes.origin() {
                Some(origin) => origin.send(bytes),
                None => self.notes.ahead.borrow_mut().extend_from_slice(bytes),
            }
        }
    }

    fn direct(&mut self, direction: u8) {
        if direction == MUCH {
            if self.much > 0 {
                self.much -= 1;
                self.send(&[self.last; 100_000]);
            }
            return;
        }
        let far = match self.clients_turn {
            true => Some(Rc::clone(&self.client)),
            false => self.notes.origin(),
        };
        match (direction, far) {
            (TURN, _) => self.clients_turn = !self.clients_turn,
            (END, Some(far)) => far.finish(),
            (RESET, Some(far)) => far.reset(),
            (STALL, Some(far)) if far.takes_all() => far.stall(),
            (STALL, Some(far)) => far.take_all(),
            (SIP, Some(far)) => far.sip(5),
            _ => {}
        }
    }

    /// What was read is passed on, or held within a bound.
    fn check_memory(&self) {
        let origins = self.notes.origins.borrow();
        // What came on a connection that is closed is gone.
        let open = origins.iter().filter(|origin| !origin.closed.get());
        let from_origins: usize = open.map(|origin| origin.read.get()).sum();
        let to_origins: usize = origins
            .iter()
            .map(|origin| origin.taken.borrow().len())
            .sum();
        let to_client = self.client.taken.borrow().len();
        assert!(
            from_origins <= to_client + HELD,
            "too much of an answer: {from_origins} read, {to_client} passed on"
        );
        // Later on, some of what the client sends may be read to be dropped.
        let held = self.client.read.get() <= to_origins + HELD;
        assert!(to_client > 0 || held, "too much of a request");
    }

    /// Everybody takes what there is and says goodbye.
    fn close(&self) {
        self.client.take_all();
        self.client.finish();
        for origin in self.notes.origins.borrow().iter() {
            origin.take_all();
            origin.finish();
        }
        self.notes.closed.set(true);
    }
}

struct Woken(AtomicBool);

impl Wake for Woken {
    fn wake(self: Arc<Self>) {
        self.0.store(true, Ordering::Relaxed);
    }
}

thread_local! {
    static RUNTIME: tokio::runtime::Runtime = tokio::runtime::Builder::new_current_thread()
        .enable_time()
        .build()
        .expect("a runtime");
}
