//! One BIND: a socket, the first reply, who connects, the second.

use std::net::SocketAddr;

use proxy_core::{ConnectError, ConnectErrorKind, Gateway, StopState};
use proxy_relay::{Deadline, Expired, Transport, unless};
use tokio::net::TcpStream;

use super::error::{Failure, Refusal};
use super::exchange::Exchange;
use super::incoming::{Invite, Listening};
use super::link::{Link, unless_drained, within};
use super::{Granted, Opened, Server, Tunnel, Work, refused_or};
use crate::{PendingReply, Version};

impl<G> Server<G>
where
    G: Gateway,
    G::Upstream: Transport,
{
    /// Carries out BIND up to the tunnel (RFC 1928 sections 4 and 6).
    pub(super) async fn bind<I: Invite<G>, S: Transport>(
        &self,
        link: &mut Link<'_, S>,
        deadline: &mut Deadline,
        exchange: &mut Exchange<G>,
        reply: PendingReply,
    ) -> Result<Opened<G::Upstream>, Failure> {
        let listen = self.listen::<I, S>(link, exchange, reply.version());
        let listen = within(deadline, listen).await;
        let ((granted, mut listening), reply) = refused_or(listen, reply, &mut link.output)?;
        reply.listen(listening.address(), &mut link.output);
        deadline.set(self.config.timeouts.head.into());
        within(deadline, link.flush()).await??;

        deadline.set(self.config.bind_wait.into());
        let first = self.first::<I, S>(link, &granted, &mut listening);
        // A session may bring a token of its own.
        let mut own = Deadline::follower(granted.shaping.stop.clone());
        let first = unless_drained(deadline, unless_drained(&mut own, first)).await;
        let is_stopped = matches!(deadline.stop_state(), StopState::Stopped(_));
        let first = match first.and_then(|first| first) {
            // There is time to say so.
            Err(Expired::Stopped(end)) if !is_stopped => Ok(Err(Refusal::Ended(end))),
            first => first,
        };
        let ((stream, from), reply) = refused_or(first, reply, &mut link.output)?;
        let place = listening.close();
        let code = reply.accept(from, &mut link.output);
        let upstream = I::adopt(&self.gateway, granted.session, place, stream);
        deadline.set(self.config.timeouts.head.into());
        within(deadline, link.flush()).await??;
        Ok(Opened {
            work: Work::Tunnel(Tunnel {
                upstream,
                early: link.input.split().freeze(),
                options: self.config.relay_options(granted.shaping),
            }),
            code,
        })
    }

    async fn listen<'e, I: Invite<G>, S: Transport>(
        &self,
        link: &mut Link<'_, S>,
        exchange: &'e mut Exchange<G>,
        version: Version,
    ) -> Result<(Granted<'e, G>, Listening<I::Place>), Refusal> {
        let granted = self.permit(exchange, true).await?;
        let listen = I::listen(&self.gateway, granted.session, granted.peer, granted.target);
        let listening = unless(link.vanished(), listen)
            .await
            .ok_or(Refusal::Vanished)??;
        let ip = listening.address().ip().to_canonical();
        match ip.is_unspecified() || (version == Version::V4 && ip.is_ipv6()) {
            // Nobody could be told where to connect to.
            true => Err(ConnectError::origin(ConnectErrorKind::NetworkUnreachable).into()),
            false => Ok((granted, listening)),
        }
    }

    /// The first connection that may be handed to the client; others are closed.
    async fn first<I: Invite<G>, S: Transport>(
        &self,
        link: &mut Link<'_, S>,
        granted: &Granted<'_, G>,
        listening: &mut Listening<I::Place>,
    ) -> Result<(TcpStream, SocketAddr), Refusal> {
        let admitted = async {
            loop {
                let (stream, from) = listening.next().await.map_err(ConnectError::from)?;
                if I::admit(&self.gateway, granted.session, granted.target, from).await {
                    return Ok((stream, from));
                }
            }
        };
        unless(link.left(), admitted)
            .await
            .unwrap_or(Err(Refusal::Vanished))
    }
}
