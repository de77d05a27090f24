//! One request: who asks, may they, how is it reached, what comes back.

use std::future::poll_fn;
use std::task::Poll;

use bytes::BytesMut;
use proxy_core::{
    Ask, ConnectError, ConnectErrorKind, Denial, End, Gateway, Operation, Report, Shaping,
};
use proxy_relay::{Deadline, Expired, Transport, vanished};

use super::connection::{Connection, Known, Next};
use super::exchange::{Exchange, Fault, Parts, Verdict};
use super::refuse::Refusal;
use super::request::{Asked, Request};
use super::tunnel::{Early, Ledger, SWITCHED, Upgrade};
use super::upstream::{Unconnected, connect};
use super::wire::watch;
use crate::filter::Filter;
use crate::{Framing, RequestHead, auth};

impl<G, F, S> Connection<'_, G, F, S>
where
    G: Gateway,
    G::Upstream: Transport,
    F: Filter<G::Session>,
    S: Transport,
{
    /// Answers one request.
    ///
    /// What is rare is boxed: the state of this future is part of every idle
    /// connection.
    pub(super) async fn handle(
        &mut self,
        request: &Request<'_>,
        exchange: &mut Exchange,
    ) -> Next<G> {
        let peer = self.peer;
        self.requests = self.requests.saturating_add(1);
        let ask = match request.ask(&peer, self.server.config.fetch_https) {
            Ok(ask) => ask,
            Err(refusal) => {
                return Box::pin(self.answer_unasked(request, exchange, refusal)).await;
            }
        };
        let asked = Asked::from(&ask);
        let via = self.server.config.via.as_deref();
        if via.is_some_and(|via| request.head.came_through(via)) {
            let refusal = ConnectError::origin(ConnectErrorKind::Loop).into();
            return Box::pin(self.refuse(request, exchange, asked, None, refusal)).await;
        }
        let mut session = match self.admit(request.head, &ask).await {
            Ok(session) => session,
            Err(refusal) => {
                return Box::pin(self.refuse(request, exchange, asked, None, refusal)).await;
            }
        };
        let served = match ask.operation {
            Operation::Tunnel => Box::pin(self.open_tunnel(&ask, &mut session)).await,
            _ if request.ends_here() => Err(Unserved::Refused(Refusal::own(request.head))),
            _ => self.forward(request, &ask, &mut session, exchange).await,
        };
        match served {
            Ok(()) => {}
            Err(Unserved::Cut(cut)) => {
                self.finish(request, asked, session, exchange, cut);
                return Next::End(cut.end);
            }
            Err(Unserved::Refused(refusal)) => {
                let session = Some(session);
                return Box::pin(self.refuse(request, exchange, asked, session, refusal)).await;
            }
        }
        if ask.operation == Operation::Tunnel || exchange.down.status == SWITCHED {
            return self.tunnel(request, &ask, session, exchange);
        }
        self.finish(request, asked, session, exchange, End::Completed.into());
        if exchange.down.closing {
            let unread = !exchange.up.is_done() || !exchange.ahead.is_empty() || self.is_last();
            Box::pin(self.hang_up(unread)).await;
            return Next::End(End::Completed);
        }
        Next::Again
    }

    /// Answers a request that there is nothing to ask policy about.
    async fn answer_unasked(
        &mut self,
        request: &Request<'_>,
        exchange: &mut Exchange,
        mut refusal: Refusal,
    ) -> Next<G> {
        if refusal.is_own()
            && let Err(other) = self.identify(request.head).await
        {
            refusal = other;
        }
        let asked = request.head.into();
        self.refuse(request, exchange, asked, None, refusal).await
    }

    /// Asks policy: who is this, and may they?
    async fn admit(
        &mut self,
        head: &RequestHead<'_, '_>,
        ask: &Ask<'_>,
    ) -> Result<G::Session, Refusal> {
        self.identify(head).await?;
        let Some(known) = &self.known else {
            return Err(Denial::Challenge.into());
        };
        let asking = self.server.gateway.authorize(&known.identity, ask);
        let allowed = watch(&mut self.deadline, asking).await?;
        if let Err(Denial::Challenge) = allowed {
            // The same credentials, shown again, are to be judged anew.
            self.known = None;
        }
        Ok(allowed?)
    }

    /// Asks policy who this is, unless the last request has shown the same.
    async fn identify(&mut self, head: &RequestHead<'_, '_>) -> Result<(), Refusal> {
        let shown = head.proxy_authorization();
        if self
            .known
            .as_ref()
            .is_none_or(|known| known.shown.as_deref() != shown)
        {
            // What was reached for one identity is not another's: it may have
            // its own way out.
            self.known = None;
            self.unlink();
            self.known = Some(Box::pin(self.authenticate(head)).await?);
        }
        Ok(())
    }

    /// Happens once for each credentials shown.
    async fn authenticate(
        &mut self,
        head: &RequestHead<'_, '_>,
    ) -> Result<Known<G::Identity>, Refusal> {
        let mut scratch = [0; auth::SCRATCH];
        // What cannot be read shows nobody; whether that matters is policy.
        let credentials = head.credentials(&mut scratch).unwrap_or(None);
        let asking = self.server.gateway.authenticate(&self.peer, credentials);
        Ok(Known {
            identity: watch(&mut self.deadline, asking).await??,
            shown: head.proxy_authorization().map(Box::from),
        })
    }

    /// Forwards a request and its answer.
    async fn forward(
        &mut self,
        request: &Request<'_>,
        ask: &Ask<'_>,
        session: &mut G::Session,
        exchange: &mut Exchange,
    ) -> Result<(), Unserved> {
        let most = self.server.config.body_bytes;
        if let (Framing::Length(n), Some(most)) = (request.head.framing(), most)
            && n > most
        {
            return Err(Unserved::Refused(Refusal::too_large()));
        }
        let Shaping {
            stop,
            way,
            up,
            down,
            ..
        } = self.server.gateway.shaping(session);
        exchange.up.limit(&up);
        exchange.down.limit(&down);
        let client = self.peer.remote.ip();
        let prepared = exchange.up.prepare(request, client, self.server, session);
        if let Err(fault) = prepared {
            return Err(self.failed(exchange, fault));
        }
        // The session's own ear for its stop token, if it has one.
        let mut stopper = (!stop.is_never()).then(|| Box::new(Deadline::follower(stop)));
        let mut again = false;
        loop {
            if !self.is_linked_to(ask, way) {
                Box::pin(self.link(ask, session)).await?;
            }
            if again && self.upstream.as_ref().is_some_and(|sticky| sticky.reused) {
                // After the client's own connection the pool's first one; only a
                // new one is surely alive.
                Box::pin(self.link(ask, session)).await?;
            }
            let verdict = self
                .exchange(request, session, exchange, &mut stopper)
                .await;
            let reused = self.settle(request.head, exchange, verdict);
            match verdict {
                Verdict::Complete | Verdict::Upgraded => return Ok(()),
                Verdict::Failed(Fault::OriginGone)
                    if reused && !again && exchange.may_repeat(request.head.method()) =>
                {
                    again = true;
                }
                Verdict::Failed(fault) => return Err(self.failed(exchange, fault)),
            }
        }
    }

    async fn exchange(
        &mut self,
        request: &Request<'_>,
        session: &mut G::Session,
        exchange: &mut Exchange,
        stopper: &mut Option<Box<Deadline>>,
    ) -> Verdict {
        let last = self.is_last();
        let Some(upstream) = &mut self.upstream else {
            return Verdict::Failed(Fault::OriginGone);
        };
        let mut parts = Parts {
            client: &mut self.client,
            origin: &mut upstream.stream,
            parent: upstream.parent.as_deref(),
            config: &self.server.config,
            filter: &self.server.filter,
            session,
            head: request.head,
            early: request.early,
            last,
            reused: upstream.reused,
        };
        let deadline = &mut self.deadline;
        deadline.set(parts.config.pace.first_byte);
        let mut begun = false;
        poll_fn(|cx| {
            if let Some(stopper) = stopper
                && let Poll::Ready(Expired::Stopped(end)) = stopper.poll(cx)
            {
                return Poll::Ready(Verdict::Failed(Fault::Stopped(end)));
            }
            if !begun {
                begun = true;
                exchange.begin(cx, &mut parts);
            }
            exchange.poll(cx, deadline, &mut parts)
        })
        .await
    }

    /// Opens a CONNECT tunnel. No length and no coding in the answer: what
    /// follows is the tunnel (RFC 9110 section 9.3.6).
    async fn open_tunnel(
        &mut self,
        ask: &Ask<'_>,
        session: &mut G::Session,
    ) -> Result<(), Unserved> {
        self.link(ask, session).await?;
        let said = self
            .say(b"HTTP/1.1 200 Connection established\r\n\r\n")
            .await;
        if said.is_err() {
            // Meant for a tunnel, it must not carry anybody's requests.
            self.upstream = None;
        }
        said.map_err(|end| Unserved::Cut(end.into()))
    }

    /// Connects to the target, in place of what was connected before. To be boxed,
    /// as dialling is rare and large.
    async fn link(&mut self, ask: &Ask<'_>, session: &mut G::Session) -> Result<(), Unserved> {
        self.unlink();
        let server = self.server;
        let connecting = connect(
            &server.gateway,
            &mut self.deadline,
            server.config.pace.connect,
            session,
            ask,
            vanished(&self.client),
        );
        self.upstream = Some(Box::new(connecting.await?));
        Ok(())
    }
}

/// Why a request was not served.
enum Unserved {
    /// It ends here; the client sees the cut.
    Cut(Cut),
    /// The client gets an answer.
    Refused(Refusal),
}

/// The reason for logs, and the word for what was wrong with a message.
#[derive(Clone, Copy)]
struct Cut {
    end: End,
    fault: Option<&'static str>,
}

impl From<End> for Cut {
    fn from(end: End) -> Self {
        Self { end, fault: None }
    }
}

impl From<Unconnected> for Unserved {
    fn from(unconnected: Unconnected) -> Self {
        match unconnected {
            Unconnected::Failed(error) => Self::Refused(error.into()),
            Unconnected::Stopped(expired) => Self::Refused(expired.into()),
            Unconnected::Unfit => Self::Refused(Refusal::unfit()),
            Unconnected::Vanished => Self::Cut(End::ClientReset.into()),
        }
    }
}

impl<G, F, S> Connection<'_, G, F, S>
where
    G: Gateway,
    S: Transport,
    G::Upstream: Transport,
{
    /// Whether the connection of the last request serves this one too.
    fn is_linked_to(&self, ask: &Ask<'_>, way: u64) -> bool {
        let upstream = self.upstream.as_ref();
        upstream.is_some_and(|sticky| sticky.leads_to(ask, way))
    }

    /// Gives the connection of the last request back to the gateway.
    pub(super) fn unlink(&mut self) {
        if let Some(sticky) = self.upstream.take() {
            sticky.recycle(&self.server.gateway);
        }
    }

    /// Keeps the origin connection for another request or ends it; says whether
    /// it had been used before.
    fn settle(
        &mut self,
        head: &RequestHead<'_, '_>,
        exchange: &Exchange,
        verdict: Verdict,
    ) -> bool {
        let Some(sticky) = &mut self.upstream else {
            return false;
        };
        let reused = std::mem::replace(&mut sticky.reused, true);
        sticky.pinned |= exchange.down.binding || head.binds_connection();
        match verdict {
            Verdict::Upgraded => return reused,
            Verdict::Complete if exchange.up.is_done() && exchange.down.reusable => return reused,
            // The client gets another answer; the origin's one is over all the same.
            Verdict::Failed(_) if exchange.up.is_done() && exchange.down.is_dropped() => {
                return reused;
            }
            // Both sides have all they wanted; a reset leaves no TIME_WAIT here,
            // which would use up the ports towards a busy origin.
            Verdict::Complete if exchange.up.is_done() && !exchange.down.ends_with_connection() => {
                sticky.stream.abort();
            }
            Verdict::Complete | Verdict::Failed(_) => {}
        }
        self.upstream = None;
        reused
    }

    fn failed(&mut self, exchange: &Exchange, fault: Fault) -> Unserved {
        if let Some(status) = fault.status()
            && !exchange.down.has_begun()
        {
            return Unserved::Refused(Refusal::failed(fault, status));
        }
        if exchange.down.ends_with_connection() {
            // An orderly end would make the answer look complete.
            self.client.abort();
        }
        Unserved::Cut(Cut {
            end: fault.end(),
            fault: fault.word(),
        })
    }

    /// Everything a tunnel needs to outlive this conversation.
    fn tunnel(
        &mut self,
        request: &Request<'_>,
        ask: &Ask<'_>,
        session: G::Session,
        exchange: &mut Exchange,
    ) -> Next<G> {
        let Some(sticky) = self.upstream.take() else {
            return Next::End(End::OriginReset);
        };
        let mut from_client = BytesMut::from(&request.early[exchange.up.used..]);
        from_client.extend_from_slice(&exchange.ahead);
        let early = Early {
            from_client,
            from_upstream: std::mem::take(&mut exchange.down.surplus),
        };
        let upgrade = match ask.operation {
            Operation::Request { method, path } => Some(Box::new(Upgrade {
                method: method.into(),
                path: path.into(),
                secure: ask.secure,
                moved: (exchange.up.bytes(), exchange.down.bytes()),
            })),
            _ => None,
        };
        let ledger = Ledger {
            peer: self.peer,
            identity: self.known.take().map(|known| known.identity),
            session,
            target: ask.target.into(),
            started: request.started,
            upgrade,
        };
        Next::Tunnel(sticky.stream, Box::new(ledger), early.boxed())
    }

    /// Reports an exchange that was admitted.
    fn finish(
        &self,
        request: &Request<'_>,
        asked: Asked<'_>,
        session: G::Session,
        exchange: &Exchange,
        cut: Cut,
    ) {
        let mut report = Report::new(&self.peer, cut.end);
        report.fault = cut.fault;
        asked.tell(&mut report);
        report.status = (exchange.down.status != 0).then_some(exchange.down.status);
        report.up = exchange.up.bytes();
        report.down = exchange.down.bytes();
        report.duration = request.started.elapsed();
        let who = self.known.as_ref().map(|known| &known.identity);
        self.server.gateway.finished(who, Some(session), &report);
    }
}
