//! One request: who asks, may they, how is it reached, what comes back.

use std::future::poll_fn;
use std::task::Poll;

use bytes::BytesMut;
use proxy_core::{Ask, Denial, End, Gateway, Operation, Report, Shaping, Target};
use proxy_relay::{Deadline, Expired, Transport};
use tokio::time::Instant;

use super::connection::{Connection, Known, Next};
use super::exchange::{Exchange, Fault, Parts, Verdict};
use super::refuse::Refusal;
use super::tunnel::Ledger;
use super::upstream::{Sticky, connect};
use super::wire::watch;
use crate::filter::Filter;
use crate::{HeadError, RequestHead, RequestTarget, auth};

/// A request as it was read.
#[derive(Clone, Copy)]
pub(super) struct Request<'b> {
    pub(super) head: &'b RequestHead<'b, 'b>,
    /// Bytes that came in one piece with the head.
    pub(super) early: &'b [u8],
    pub(super) started: Instant,
}

impl<'b> Request<'b> {
    /// What it asks for, and where.
    fn question(&self) -> Result<(Operation<'b>, Target<'b>), Refusal> {
        let operation = match self.head.target() {
            RequestTarget::Authority(_) => Operation::Tunnel,
            RequestTarget::Absolute { scheme, .. } if !scheme.eq_ignore_ascii_case("http") => {
                // Never in clear what was meant to be encrypted.
                return Err(HeadError::Scheme.into());
            }
            RequestTarget::Absolute { .. } => Operation::Request {
                method: self.head.method(),
                path: self.head.path(),
            },
            // RFC 9112 section 3.2.2: a proxy is sent absolute targets.
            RequestTarget::Asterisk | RequestTarget::Origin(_) => {
                return Err(HeadError::Target.into());
            }
        };
        Ok((operation, self.head.destination()?))
    }
}

/// A request that policy admitted.
pub(super) struct Admitted<'b, G: Gateway> {
    request: Request<'b>,
    ask: Ask<'b>,
    session: G::Session,
}

impl<G, F, S> Connection<'_, G, F, S>
where
    G: Gateway,
    G::Upstream: Transport,
    F: Filter<G::Session>,
    S: Transport,
{
    /// Answers one request.
    pub(super) async fn handle(
        &mut self,
        request: Request<'_>,
        exchange: &mut Exchange,
    ) -> Next<G> {
        let (operation, target) = match request.question() {
            Ok(question) => question,
            Err(refusal) => return self.refuse(request, exchange, None, None, refusal).await,
        };
        let peer = self.peer;
        let ask = Ask {
            peer,
            operation,
            target,
        };
        if let Err(refusal) = self.identify(request.head).await {
            return self
                .refuse(request, exchange, Some(ask), None, refusal)
                .await;
        }
        let session = match self.authorize(&ask).await {
            Ok(session) => session,
            Err(refusal) => {
                return self
                    .refuse(request, exchange, Some(ask), None, refusal)
                    .await;
            }
        };
        let admitted = Admitted {
            request,
            ask,
            session,
        };
        match operation {
            Operation::Tunnel => self.open_tunnel(admitted, exchange).await,
            _ => self.forward(admitted, exchange).await,
        }
    }

    /// Asks who the client is, unless it shows what it showed before.
    async fn identify(&mut self, head: &RequestHead<'_, '_>) -> Result<(), Refusal> {
        let shown = head.proxy_authorization();
        if let Some(known) = &self.known
            && known.shown.as_deref() == shown
        {
            return Ok(());
        }
        self.known = None;
        self.known = Some(self.authenticate(head).await?);
        Ok(())
    }

    /// Boxed, so that the scratch for the credentials is not part of every idle
    /// connection; it happens once for each credentials shown.
    async fn authenticate(
        &mut self,
        head: &RequestHead<'_, '_>,
    ) -> Result<Known<G::Identity>, Refusal> {
        let (gateway, peer) = (&self.server.gateway, self.peer);
        let asking = Box::pin(async move {
            let mut scratch = [0; auth::SCRATCH];
            let credentials = head
                .credentials(&mut scratch)
                .map_err(|_| Denial::Challenge)?;
            gateway.authenticate(peer, credentials).await
        });
        let identity = watch(&mut self.deadline, asking).await??;
        Ok(Known {
            identity,
            shown: head.proxy_authorization().map(Box::from),
        })
    }

    async fn authorize(&mut self, ask: &Ask<'_>) -> Result<G::Session, Refusal> {
        let Some(known) = &self.known else {
            return Err(Denial::Challenge.into());
        };
        let asking = self.server.gateway.authorize(&known.identity, ask);
        Ok(watch(&mut self.deadline, asking).await??)
    }

    /// Forwards a request and its answer.
    async fn forward(&mut self, mut admitted: Admitted<'_, G>, exchange: &mut Exchange) -> Next<G> {
        let mut stopper = self.stopper(&admitted.session);
        loop {
            let mut sticky = match self.reach(&mut admitted).await {
                Ok(sticky) => sticky,
                Err(refusal) => return self.refuse_admitted(admitted, exchange, refusal).await,
            };
            let verdict = self
                .exchange(&mut admitted, exchange, &mut sticky, &mut stopper)
                .await;
            let stale = verdict == Verdict::Failed(Fault::OriginGone) && sticky.reused;
            if stale && exchange.may_repeat(admitted.request.head.method()) {
                continue;
            }
            return match verdict {
                Verdict::Complete => self.completed(admitted, exchange, sticky).await,
                Verdict::Upgraded => self.upgraded(admitted, exchange, sticky),
                Verdict::Failed(fault) => {
                    drop(sticky);
                    self.failed(admitted, exchange, fault).await
                }
            };
        }
    }
}

impl<G, F, S> Connection<'_, G, F, S>
where
    G: Gateway,
    G::Upstream: Transport,
    F: Filter<G::Session>,
    S: Transport,
{
    /// The session's own ear for its stop token, if it has one.
    fn stopper(&self, session: &G::Session) -> Option<Box<Deadline>> {
        let Shaping { stop, .. } = self.server.gateway.shaping(session);
        match stop.is_never() {
            true => None,
            false => Some(Box::new(Deadline::new(stop))),
        }
    }

    /// The connection of the last request if it leads there, else a new one.
    async fn reach(
        &mut self,
        admitted: &mut Admitted<'_, G>,
    ) -> Result<Sticky<G::Upstream>, Refusal> {
        let target = admitted.ask.target;
        if let Some(sticky) = self.upstream.take() {
            if admitted.ask.operation != Operation::Tunnel && sticky.leads_to(target) {
                return Ok(sticky);
            }
            sticky.recycle(&self.server.gateway);
        }
        let patience = self.server.pace.connect;
        let gateway = &self.server.gateway;
        let session = &mut admitted.session;
        Ok(connect(gateway, &mut self.deadline, patience, session, target).await?)
    }

    async fn exchange(
        &mut self,
        admitted: &mut Admitted<'_, G>,
        exchange: &mut Exchange,
        sticky: &mut Sticky<G::Upstream>,
        stopper: &mut Option<Box<Deadline>>,
    ) -> Verdict {
        let mut parts = Parts {
            client: &mut self.client,
            origin: &mut sticky.stream,
            filter: &self.server.filter,
            session: &mut admitted.session,
            head: admitted.request.head,
            early: admitted.request.early,
            progress: self.server.pace.progress,
        };
        let deadline = &mut self.deadline;
        deadline.set(parts.progress);
        let mut begun = false;
        poll_fn(|cx| {
            if let Some(stopper) = stopper
                && let Poll::Ready(Expired::Stopped(end)) = stopper.poll(cx)
            {
                return Poll::Ready(Verdict::Failed(Fault::Stopped(end)));
            }
            if !begun {
                begun = true;
                if let Err(fault) = exchange.begin(cx, &mut parts) {
                    return Poll::Ready(Verdict::Failed(fault));
                }
            }
            exchange.poll(cx, deadline, &mut parts)
        })
        .await
    }

    async fn completed(
        &mut self,
        admitted: Admitted<'_, G>,
        exchange: &mut Exchange,
        mut sticky: Sticky<G::Upstream>,
    ) -> Next<G> {
        if exchange.down.reusable && exchange.up.is_done() {
            sticky.reused = true;
            self.upstream = Some(sticky);
        } else if exchange.up.is_done() {
            // Both sides have all they wanted; a reset leaves no TIME_WAIT here,
            // which would use up the ports towards a busy origin.
            sticky.stream.abort();
        }
        let sent_all = exchange.up.is_done();
        self.finish(admitted, exchange, End::Completed);
        match exchange.down.closing {
            false => Next::Again,
            true => {
                self.hang_up(!sent_all || !exchange.ahead.is_empty()).await;
                Next::End(End::Completed)
            }
        }
    }

    fn upgraded(
        &mut self,
        admitted: Admitted<'_, G>,
        exchange: &mut Exchange,
        sticky: Sticky<G::Upstream>,
    ) -> Next<G> {
        let Admitted {
            request,
            ask,
            session,
        } = admitted;
        let mut from_client = std::mem::take(&mut exchange.ahead);
        let rest = &request.early[exchange.up.used..];
        if !rest.is_empty() {
            let later = std::mem::replace(&mut from_client, rest.into());
            from_client.extend_from_slice(&later);
        }
        let Operation::Request { method, path } = ask.operation else {
            // Only requests are upgraded.
            return Next::End(End::BadResponse);
        };
        Next::Tunnel(
            sticky.stream,
            Box::new(Ledger {
                identity: self.known.take().map(|known| known.identity),
                session,
                target: ask.target.into(),
                upgraded: Some((method.into(), path.into())),
                status: exchange.down.status,
                started: request.started,
                moved: (exchange.up.bytes, exchange.down.bytes),
                early: (from_client, std::mem::take(&mut exchange.down.surplus)),
            }),
        )
    }

    async fn failed(
        &mut self,
        admitted: Admitted<'_, G>,
        exchange: &mut Exchange,
        fault: Fault,
    ) -> Next<G> {
        if let Some(status) = fault.status()
            && !exchange.down.has_begun()
        {
            let refusal = Refusal::failed(fault, status);
            return self.refuse_admitted(admitted, exchange, refusal).await;
        }
        if exchange.down.ends_with_connection() {
            // An orderly end would make the answer look complete.
            self.client.abort();
        }
        self.finish(admitted, exchange, fault.end());
        Next::End(fault.end())
    }

    async fn refuse_admitted(
        &mut self,
        admitted: Admitted<'_, G>,
        exchange: &mut Exchange,
        refusal: Refusal,
    ) -> Next<G> {
        let Admitted {
            request,
            ask,
            session,
        } = admitted;
        self.refuse(request, exchange, Some(ask), Some(session), refusal)
            .await
    }

    /// Opens a CONNECT tunnel.
    async fn open_tunnel(
        &mut self,
        mut admitted: Admitted<'_, G>,
        exchange: &mut Exchange,
    ) -> Next<G> {
        let sticky = match self.reach(&mut admitted).await {
            Ok(sticky) => sticky,
            Err(refusal) => return self.refuse_admitted(admitted, exchange, refusal).await,
        };
        // No length and no coding: what follows is the tunnel (RFC 9110 section
        // 9.3.6).
        if let Err(end) = self
            .say(b"HTTP/1.1 200 Connection established\r\n\r\n")
            .await
        {
            self.finish(admitted, exchange, end);
            return Next::End(end);
        }
        let Admitted {
            request,
            ask,
            session,
        } = admitted;
        Next::Tunnel(
            sticky.stream,
            Box::new(Ledger {
                identity: self.known.take().map(|known| known.identity),
                session,
                target: ask.target.into(),
                upgraded: None,
                status: 200,
                started: request.started,
                moved: (0, 0),
                early: (request.early.into(), BytesMut::new()),
            }),
        )
    }

    /// Reports an exchange that was admitted.
    fn finish(&self, admitted: Admitted<'_, G>, exchange: &Exchange, end: End) {
        let mut report = Report::new(self.peer, end);
        report.operation = Some(admitted.ask.operation);
        report.target = Some(admitted.ask.target);
        report.status = (exchange.down.status != 0).then_some(exchange.down.status);
        report.up = exchange.up.bytes;
        report.down = exchange.down.bytes;
        report.duration = admitted.request.started.elapsed();
        let who = self.known.as_ref().map(|known| &known.identity);
        self.server
            .gateway
            .finished(who, Some(admitted.session), &report);
    }
}
