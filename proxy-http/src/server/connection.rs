//! One client connection: requests one after another, until it ends or becomes
//! a tunnel.

use std::future::poll_fn;
use std::io;
use std::task::{Context, Poll};

use bytes::Buf;
use proxy_core::{End, Gateway, Peer, Status, StopState};
use proxy_relay::{Deadline, Expired, Ticks, Transport, lend};

use super::Server;
use super::block::Block;
use super::refuse::Refusal;
use super::request::Request;
use super::tunnel::{Early, Ledger, Tunnel};
use super::upstream::Sticky;
use super::wire::{has_spoken, poll_read};
use crate::filter::Filter;

/// What became of a connection.
pub(super) enum Outcome<G: Gateway, S> {
    Ended(End),
    Tunnel(Tunnel<G, S>),
}

/// Serves requests until the connection ends or turns into a tunnel.
///
/// Not an `async fn`, which would keep room for its arguments beside what they
/// become.
pub(super) fn converse<'s, G, F, S>(
    server: &'s Server<G, F>,
    client: S,
    peer: Peer,
) -> impl Future<Output = Outcome<G, S>> + use<'s, G, F, S>
where
    G: Gateway,
    G::Upstream: Transport,
    F: Filter<G::Session>,
    S: Transport,
{
    let mut connection = Connection::new(server, client, peer);
    async move {
        loop {
            let head = connection.next_head().await;
            let next = Box::pin(connection.respond(head)).await;
            match next {
                Next::Again => {}
                Next::End(end) => {
                    connection.unlink();
                    return Outcome::Ended(end);
                }
                Next::Tunnel(upstream, ledger, early) => {
                    return Outcome::Tunnel(Tunnel {
                        client: connection.client,
                        upstream,
                        ledger,
                        early,
                    });
                }
            }
        }
    }
}

/// Answers a client that cannot be served at all.
pub(super) async fn turn_away<G, F, S>(
    server: &Server<G, F>,
    client: S,
    peer: Peer,
    refusal: Refusal,
) -> End
where
    G: Gateway,
    G::Upstream: Transport,
    F: Filter<G::Session>,
    S: Transport,
{
    let mut connection = Connection::new(server, client, peer);
    connection.refuse_unread(refusal).await;
    refusal.end()
}

/// What the connection does after an exchange.
pub(super) enum Next<G: Gateway> {
    Again,
    End(End),
    Tunnel(G::Upstream, Box<Ledger<G>>, Option<Box<Early>>),
}

/// The state of a client connection between polls; nothing here is large.
pub(super) struct Connection<'s, G: Gateway, F, S> {
    pub(super) server: &'s Server<G, F>,
    pub(super) peer: Peer,
    pub(super) client: S,
    pub(super) deadline: Deadline,
    pub(super) known: Option<Known<G::Identity>>,
    /// Boxed, since idle clients have none.
    pub(super) upstream: Option<Box<Sticky<G::Upstream>>>,
    /// The client is idle and the deadline is that of its origin connection.
    sharing: bool,
    /// How many requests have begun.
    pub(super) requests: u32,
    /// Holds bytes of the next request, if some are here already.
    pub(super) block: Option<Box<Block>>,
}

/// Who the client is, and the credentials that said so.
pub(super) struct Known<I> {
    pub(super) identity: I,
    /// The `Proxy-Authorization` value as received.
    pub(super) shown: Option<Box<[u8]>>,
}

impl<'s, G: Gateway, F, S> Connection<'s, G, F, S> {
    fn new(server: &'s Server<G, F>, client: S, peer: Peer) -> Self {
        Self {
            server,
            peer,
            client,
            deadline: Deadline::new(server.config.stop.clone()),
            known: None,
            upstream: None,
            sharing: false,
            requests: 0,
            block: None,
        }
    }

    /// Whether no request is wanted behind the one at hand.
    pub(super) fn is_last(&self) -> bool {
        let most = self.server.config.requests;
        most.is_some_and(|most| self.requests >= most)
            || self.deadline.stop_state() != StopState::Running
    }
}

/// Why no request head could be had.
enum Unread {
    Ended(End),
    /// Boxed, to keep what every request passes through small.
    Refused(Box<Refusal>),
}

impl Unread {
    fn refused(refusal: Refusal) -> Self {
        Self::Refused(Box::new(refusal))
    }
}

impl<G, F, S> Connection<'_, G, F, S>
where
    G: Gateway,
    G::Upstream: Transport,
    F: Filter<G::Session>,
    S: Transport,
{
    /// Waits for the next complete request head; says how long it is.
    async fn next_head(&mut self) -> Result<(Box<Block>, usize), Unread> {
        if self.requests == 1 && self.block.is_none() && self.is_sharing() {
            // Many clients never send a second request.
            self.unlink();
        }
        let pace = &self.server.config.pace;
        let shareable = self.is_sharing();
        self.sharing = pace.sharing.is_some() && shareable;
        self.deadline.set(match (&self.block, pace.sharing) {
            (Some(_), _) => pace.head,
            (None, Some((first, _))) if shareable => first,
            (None, _) => pace.keep_alive,
        });
        poll_fn(|cx| self.poll_head(cx)).await
    }

    fn poll_head(&mut self, cx: &mut Context<'_>) -> Poll<Result<(Box<Block>, usize), Unread>> {
        if let Poll::Ready(expired) = self.deadline.poll(cx)
            && !self.shares(expired)
        {
            return Poll::Ready(Err(self.unread(expired)));
        }
        if self.block.is_none() && self.deadline.stop_state() == StopState::Draining {
            return Poll::Ready(Err(Unread::Ended(End::Completed)));
        }
        loop {
            if let Some(mut block) = self.block.take() {
                match block.parser.parse(&block.input) {
                    Ok(Status::Partial) => self.block = Some(block),
                    Ok(Status::Complete(_, used)) => {
                        self.look_at_upstream(cx);
                        return Poll::Ready(Ok((block, used)));
                    }
                    Err(error) => {
                        self.block = Some(block);
                        return Poll::Ready(Err(Unread::refused(error.into())));
                    }
                }
            }
            match self.poll_input(cx) {
                Poll::Pending => return Poll::Pending,
                Poll::Ready(Ok(0)) if self.block.is_some() => {
                    return Poll::Ready(Err(Unread::refused(Refusal::cut_off())));
                }
                Poll::Ready(Ok(0)) => return Poll::Ready(Err(Unread::Ended(End::ClientFinished))),
                Poll::Ready(Ok(_)) => {}
                Poll::Ready(Err(_)) => return Poll::Ready(Err(Unread::Ended(End::ClientReset))),
            }
        }
    }

    /// Reads once through the thread's buffer and keeps a copy that is just
    /// large enough.
    fn poll_input(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<usize>> {
        lend(|buffers| {
            let space = &mut buffers.read[..EARLY];
            let read = poll_read(&mut self.client, cx, space);
            if let Poll::Ready(Ok(n @ 1..)) = read {
                if self.block.is_none() {
                    self.deadline.set(self.server.config.pace.head);
                }
                let limits = self.server.config.limits;
                let block = self.block.get_or_insert_with(|| Block::take(limits));
                block.input.extend_from_slice(&space[..n]);
            }
            read
        })
    }

    /// Drops an origin connection that was closed by its origin or is out of step,
    /// just before it would be used.
    fn look_at_upstream(&mut self, cx: &mut Context<'_>) {
        let upstream = self.upstream.as_mut();
        if upstream.is_some_and(|own| has_spoken(&mut own.stream, cx)) {
            self.upstream = None;
        }
    }

    /// Whether others could use the origin connection.
    fn is_sharing(&self) -> bool {
        self.upstream.as_ref().is_some_and(|own| !own.pinned)
    }

    /// Gives the origin connection of a client that has been idle for a while to
    /// others, and waits on; says whether that was due.
    fn shares(&mut self, expired: Expired) -> bool {
        let due = self.sharing && self.block.is_none() && expired == Expired::Elapsed;
        if due {
            self.sharing = false;
            self.unlink();
            let (_, rest) = self.server.config.pace.sharing.unzip();
            self.deadline.set(rest.unwrap_or(Ticks::NEVER));
        }
        due
    }

    fn unread(&self, expired: Expired) -> Unread {
        match expired {
            Expired::Stopped(end) => Unread::Ended(end),
            Expired::Elapsed if self.block.is_some() => Unread::refused(Refusal::too_slow()),
            Expired::Elapsed => Unread::Ended(End::Idle),
        }
    }

    /// Deals with what the client sent, or did not. To be boxed, as idle
    /// connections need nothing of it.
    async fn respond(&mut self, head: Result<(Box<Block>, usize), Unread>) -> Next<G> {
        match head {
            Ok((block, used)) => self.answer(block, used).await,
            Err(Unread::Ended(end)) => {
                self.report_unread(end);
                if self.client.socket().is_none() {
                    Box::pin(self.hang_up(false)).await;
                }
                Next::End(end)
            }
            Err(Unread::Refused(refusal)) => Box::pin(self.refuse_unread(*refusal)).await,
        }
    }

    /// Answers one request, and puts back what the client sent behind it.
    async fn answer(&mut self, mut block: Box<Block>, used: usize) -> Next<G> {
        let Block {
            input,
            parser,
            exchange,
            started,
            ..
        } = &mut *block;
        let (bytes, early) = input.split_at(used);
        let request = Request {
            head: &parser.head(bytes),
            early,
            started: *started,
        };
        let next = self.handle(&request, exchange).await;
        if matches!(next, Next::Again) {
            input.advance(used + exchange.up.used);
            input.extend_from_slice(&exchange.ahead);
        } else {
            input.clear();
        }
        self.block = block.renew();
        next
    }
}

/// Input taken in with a head in one read.
const EARLY: usize = 16 * 1024;
