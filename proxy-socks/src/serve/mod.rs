//! Serves SOCKS clients on any stream, with the policy of a gateway.

mod associate;
mod bind;
mod config;
mod error;
mod exchange;
mod incoming;
mod link;

use std::convert::identity;
use std::net::SocketAddr;
use std::ops::Deref;

use bytes::{Buf, Bytes, BytesMut};
use proxy_core::{Ask, End, Gateway, Peer, Shaping, Target};
use proxy_relay::{
    Association, Deadline, Expired, Relay, RelayOptions, Socket, Transport, relay, unless,
};

use crate::wire::UNSPECIFIED;
use crate::{Next, PendingReply, ReplyCode, ServerHandshake};

pub use config::Config;
pub use error::ServeError;
pub use incoming::{Incoming, Listening};
pub use proxy_relay::Datagrams;

use associate::{Offer, WithDatagrams, WithoutDatagrams, Wrapped};
use error::{Failure, Refusal};
use exchange::{Exchange, Reported, Wanted};
use incoming::{Invite, WithIncoming, WithoutIncoming};
use link::{LINGER, Link, unless_drained, within};

/// A SOCKS4, 4a and 5 server around a [`Gateway`].
///
/// It opens no port and spawns nothing: accept connections, and await
/// [`serve`](Self::serve) for each, in a task of its own. The future is `Send`
/// exactly when the gateway's are and the
/// streams are.
///
/// CONNECT is carried out by all of these, the other commands with a gateway that
/// is made for them; without one they are answered "command not supported".
///
/// | | UDP ASSOCIATE ([`Datagrams`]) | BIND ([`Incoming`]) |
/// |---|---|---|
/// | [`serve`](Self::serve) | | |
/// | [`serve_with_datagrams`](Self::serve_with_datagrams) | yes | |
/// | [`serve_with_incoming`](Self::serve_with_incoming) | | yes |
/// | [`serve_with_all`](Self::serve_with_all) | yes | yes |
///
/// ```no_run
/// # use proxy_core::{Gateway, Peer};
/// # async fn accept<G>(gateway: G) -> std::io::Result<()>
/// # where G: Gateway, G::Upstream: proxy_relay::Transport {
/// let mut server = proxy_socks::Server::new(gateway);
/// server.config().methods(proxy_socks::Methods::PASSWORD);
/// let listener = tokio::net::TcpListener::bind("127.0.0.1:1080").await?;
/// let (stream, remote) = listener.accept().await?;
/// let peer = Peer { remote, local: stream.local_addr()? };
/// let _ = server.serve(stream, peer).await;
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
pub struct Server<G> {
    gateway: G,
    config: Config,
}

impl<G> Server<G> {
    /// A server with the default [`Config`].
    pub fn new(gateway: G) -> Self {
        Self {
            gateway,
            config: Config::default(),
        }
    }

    /// The settings, to be changed before the first client is served.
    pub fn config(&mut self) -> &mut Config {
        &mut self.config
    }

    /// The policy.
    pub fn gateway(&self) -> &G {
        &self.gateway
    }
}

impl<G> Server<G>
where
    G: Gateway,
    G::Upstream: Transport,
{
    /// Serves one client: handshake, connection, and the tunnel to its end.
    ///
    /// [`Gateway::finished`] is called exactly once if at least one byte came. Its
    /// status is the code of the reply (of SOCKS4 or 5), or of a refused login or
    /// method the byte that said so; its byte counts are those of the tunnel,
    /// without the handshake. A tunnel, however it ended, is a success here, and
    /// so is a request that was refused.
    ///
    /// A client that resets the connection while the target is being reached
    /// ends the attempt, if the stream shows its socket.
    ///
    /// Dropping the future closes both connections; `finished` is told
    /// [`End::Stopped`](proxy_core::End::Stopped) then, without byte counts.
    ///
    /// # Errors
    /// If there was no request to answer: the client failed in the handshake, was
    /// too slow, or vanished.
    ///
    /// # Panics
    /// Outside a tokio runtime with time enabled.
    pub fn serve<S: Transport>(
        &self,
        stream: S,
        peer: Peer,
    ) -> impl Future<Output = Result<(), ServeError>> {
        Self::run::<_, WithoutDatagrams, WithoutIncoming, _, _>(self, stream, peer, |_, ended| {
            ended
        })
    }

    /// The same with UDP ASSOCIATE (RFC 1928 section 7).
    ///
    /// The client is told the address that its own connection came to, with a
    /// port for its datagrams. They are relayed until that connection ends, the
    /// session is stopped, or no datagram has come for as long as a tunnel may be
    /// idle. The byte counts of the report are those of the payloads.
    ///
    /// # Errors
    /// As [`serve`](Self::serve).
    ///
    /// # Panics
    /// Outside a tokio runtime with I/O and time enabled.
    pub fn serve_with_datagrams<S: Transport>(
        &self,
        stream: S,
        peer: Peer,
    ) -> impl Future<Output = Result<(), ServeError>>
    where
        G: Datagrams,
    {
        Self::run::<_, WithDatagrams, WithoutIncoming, _, _>(self, stream, peer, |_, ended| ended)
    }

    /// The same with BIND (RFC 1928 section 4).
    ///
    /// The client is told where a connection is awaited for it, and with a second
    /// reply who has connected, or that nobody came in time
    /// ([`Config::bind_wait`]). Only one connection is let in, and only from whom
    /// the client named; then the socket is closed, and a tunnel begins. A client
    /// that closes or resets its connection before the second reply ends the wait,
    /// and so does a drain.
    ///
    /// # Errors
    /// As [`serve`](Self::serve).
    ///
    /// # Panics
    /// Outside a tokio runtime with I/O and time enabled.
    pub fn serve_with_incoming<S: Transport>(
        &self,
        stream: S,
        peer: Peer,
    ) -> impl Future<Output = Result<(), ServeError>>
    where
        G: Incoming,
    {
        Self::run::<_, WithoutDatagrams, WithIncoming, _, _>(self, stream, peer, |_, ended| ended)
    }

    /// The same with both: [`serve_with_datagrams`](Self::serve_with_datagrams)
    /// and [`serve_with_incoming`](Self::serve_with_incoming).
    ///
    /// # Errors
    /// As [`serve`](Self::serve).
    ///
    /// # Panics
    /// Outside a tokio runtime with I/O and time enabled.
    pub fn serve_with_all<S: Transport>(
        &self,
        stream: S,
        peer: Peer,
    ) -> impl Future<Output = Result<(), ServeError>>
    where
        G: Datagrams + Incoming,
    {
        Self::run::<_, WithDatagrams, WithIncoming, _, _>(self, stream, peer, |_, ended| ended)
    }

    /// The same with the server behind a pointer that the future owns, such as an
    /// `Rc` or `Arc`: for a task of its own, which needs nothing else then. It
    /// gets all back that it might want to tell of the end.
    ///
    /// # Panics
    /// Outside a tokio runtime with I/O and time enabled.
    pub fn serve_owned<P, S>(
        server: P,
        stream: S,
        peer: Peer,
    ) -> impl Future<Output = Served<P>> + use<P, S, G>
    where
        G: Datagrams + Incoming,
        P: Deref<Target = Self> + Clone,
        S: Transport,
    {
        let served = |reported: &Reported<P, G>, ended| Served {
            server: reported.server.clone(),
            peer: reported.exchange.peer,
            ended,
        };
        Self::run::<_, WithDatagrams, WithIncoming, _, _>(server, stream, peer, served)
    }

    /// `tell` makes the output of the end.
    fn run<P, O, I, S, T>(
        server: P,
        mut stream: S,
        peer: Peer,
        tell: impl FnOnce(&Reported<P, G>, Result<(), ServeError>) -> T,
    ) -> impl Future<Output = T>
    where
        P: Deref<Target = Self>,
        O: Offer<G>,
        I: Invite<G>,
        S: Transport,
    {
        let mut reported = Reported::new(server, peer);
        // A block, since an `async fn` would hold its arguments twice. What it
        // holds while a tunnel runs is what there is for each connection.
        async move {
            let opening = {
                let Reported { server, exchange } = &mut reported;
                // Boxed, so that the memory of a handshake is gone then.
                Box::pin(server.open::<O, I, S>(&mut stream, exchange))
            };
            let ((tunnel, association), code) = match opening.await {
                Ok(Some(Opened { work, code })) => (work.split(), code),
                Ok(None) => return tell(&reported, Ok(())),
                Err(error) => return tell(&reported, Err(error)),
            };
            // By value: matched as they are, variables are kept beside their parts.
            let (end, moved) = if let Some(association) = identity(association) {
                let Reported { server, exchange } = &reported;
                let carry = server.carry::<O, S>(exchange, *association, &mut stream);
                Box::pin(carry).await
            } else {
                let Some(Tunnel {
                    mut upstream,
                    early,
                    options,
                }) = identity(tunnel)
                else {
                    // It is there if there is no association.
                    return tell(&reported, Ok(()));
                };
                let report = start(&mut stream, &mut upstream, early, options).await;
                (report.end, (report.up, report.down))
            };
            let Reported { server, exchange } = &mut reported;
            exchange.finish(&server.gateway, end, Some(code.0), moved);
            tell(&reported, Ok(()))
        }
    }

    async fn carry<O: Offer<G>, S: Transport>(
        &self,
        exchange: &Exchange<G>,
        association: Association<Wrapped>,
        stream: &mut S,
    ) -> (End, (u64, u64)) {
        let Some(session) = &exchange.session else {
            // It is there once the association was opened.
            return (End::Stopped, (0, 0));
        };
        let report = O::carry(&self.gateway, session, association, stream).await;
        (report.end, (report.up, report.down))
    }

    /// Comes back with what is to be relayed, or with `None` after a refusal.
    async fn open<O: Offer<G>, I: Invite<G>, S: Transport>(
        &self,
        stream: &mut S,
        exchange: &mut Exchange<G>,
    ) -> Result<Option<Opened<G::Upstream>>, ServeError> {
        let mut link = Link::new(stream);
        let mut deadline = Deadline::new(self.config.stop.clone());
        let established = self.establish::<O, I, S>(&mut link, &mut deadline, exchange);
        let failure = match established.await {
            Ok(opened) => return Ok(Some(opened)),
            Err(failure) => failure,
        };
        exchange.unreached = failure.unreached;
        deadline.set(LINGER.into());
        if failure.answer.is_some() {
            // If the client is gone or slow, the reply is lost, and rightly so.
            let _ = within(&mut deadline, link.flush()).await;
        }
        exchange.finish(&self.gateway, failure.end, failure.answer, (0, 0));
        if failure.answer.is_some() {
            let _ = within(&mut deadline, link.linger()).await;
        }
        failure.error.map_or(Ok(None), Err)
    }

    async fn establish<O: Offer<G>, I: Invite<G>, S: Transport>(
        &self,
        link: &mut Link<'_, S>,
        deadline: &mut Deadline,
        exchange: &mut Exchange<G>,
    ) -> Result<Opened<G::Upstream>, Failure> {
        deadline.set(self.config.timeouts.head.into());
        unless_drained(deadline, link.read()).await??;
        exchange.begin();
        let (reply, wanted) = within(deadline, self.negotiate(link, exchange)).await??;
        deadline.set(self.config.timeouts.connect.into());
        if I::OFFERED && wanted == Wanted::Bind {
            // Boxed, so that the others need no room for it.
            return Box::pin(self.bind::<I, S>(link, deadline, exchange, reply)).await;
        }
        let reached = within(deadline, self.reach::<O, S>(link, exchange, wanted)).await;
        let (work, reply) = refused_or(reached, reply, &mut link.output)?;
        // Only now, that the target has been reached (RFC 1928 section 6).
        let code = reply.accept(work.bound(), &mut link.output);
        deadline.set(self.config.timeouts.head.into());
        within(deadline, link.flush()).await??;
        let early = link.input.split().freeze();
        Ok(Opened {
            work: work.after(early),
            code,
        })
    }

    /// The handshake up to the request; several messages in one segment cost one
    /// read, and the answers to them one write.
    async fn negotiate<S: Transport>(
        &self,
        link: &mut Link<'_, S>,
        exchange: &mut Exchange<G>,
    ) -> Result<(PendingReply, Wanted), Failure> {
        let mut state = ServerHandshake::start(self.config.methods);
        loop {
            let (next, used) = state.process(&link.input, &mut link.output)?;
            state = match next {
                Next::NeedsInput(state) => {
                    link.input.advance(used);
                    link.flush().await?;
                    link.read().await?;
                    exchange.begin();
                    state
                }
                Next::Authenticate(login) => {
                    let claim = Some(login.credentials());
                    let verdict = self.gateway.authenticate(&exchange.peer, claim).await;
                    let state = login
                        .answer(verdict.is_ok(), &mut link.output)
                        .map_err(|error| Failure::login(error, verdict.as_ref().err()))?;
                    exchange.who = verdict.ok();
                    link.input.advance(used);
                    state
                }
                Next::Request(request) => {
                    let wanted = Wanted::from(request.operation());
                    exchange.wanted = Some(wanted);
                    exchange.target = Some(request.target().into());
                    let reply = request.detach();
                    link.input.advance(used);
                    // The target may take its time; what is due is sent before.
                    link.flush().await?;
                    return Ok((reply, wanted));
                }
            };
        }
    }

    /// Policy, then the connection.
    async fn reach<O: Offer<G>, S: Transport>(
        &self,
        link: &mut Link<'_, S>,
        exchange: &mut Exchange<G>,
        wanted: Wanted,
    ) -> Result<Work<G::Upstream>, Refusal> {
        let associations = O::associations(&self.gateway);
        let all = associations.filter(|_| wanted == Wanted::Associate);
        let offered = all.is_some() || wanted == Wanted::Tunnel;
        let granted = self.permit(exchange, offered).await?;
        let Granted { target, peer, .. } = granted;
        if let Some(all) = all {
            let options = self.config.datagram_options(granted.shaping);
            let association = associate::open(peer, target, all, &options)?;
            return Ok(Work::Association(Box::new(association)));
        }
        let options = self.config.relay_options(granted.shaping);
        let dial = self.gateway.connect(granted.session, target);
        let connected = unless(link.vanished(), dial)
            .await
            .ok_or(Refusal::Vanished)??;
        Ok(Work::Tunnel(Tunnel {
            upstream: connected.upstream,
            early: Bytes::new(),
            options,
        }))
    }

    /// Says who is there and whether they may have what they ask for, if it is
    /// `offered` at all.
    async fn permit<'e>(
        &self,
        exchange: &'e mut Exchange<G>,
        offered: bool,
    ) -> Result<Granted<'e, G>, Refusal> {
        let Exchange {
            peer,
            who,
            session,
            wanted: Some(wanted),
            target: Some(target),
            ..
        } = exchange
        else {
            // Nobody calls it without.
            return Err(Refusal::Unsupported);
        };
        let who = match who {
            Some(who) => who,
            none => none.insert(self.gateway.authenticate(peer, None).await?),
        };
        if !offered {
            return Err(Refusal::Unsupported);
        }
        let target = target.as_target();
        let ask = Ask {
            peer,
            operation: wanted.operation(),
            target,
            via: None,
            secure: false,
        };
        let session = session.insert(self.gateway.authorize(who, &ask).await?);
        Ok(Granted {
            shaping: self.gateway.shaping(session),
            session,
            peer,
            target,
        })
    }
}

/// A client whose connection has ended, as
/// [`serve_owned`](Server::serve_owned) tells it.
#[derive(Debug)]
#[non_exhaustive]
pub struct Served<P> {
    /// The server.
    pub server: P,
    /// The client's connection.
    pub peer: Peer,
    /// What [`serve`](Server::serve) would have returned.
    pub ended: Result<(), ServeError>,
}

/// A request that policy has allowed.
struct Granted<'e, G: Gateway> {
    session: &'e mut G::Session,
    shaping: Shaping,
    peer: &'e Peer,
    target: Target<'e>,
}

/// Appends to `output` why a request came to nothing, if it did.
fn refused_or<T>(
    outcome: Result<Result<T, Refusal>, Expired>,
    reply: PendingReply,
    output: &mut BytesMut,
) -> Result<(T, PendingReply), Failure> {
    let refusal = match outcome {
        Ok(Ok(done)) => return Ok((done, reply)),
        Ok(Err(refusal)) => refusal,
        Err(Expired::Elapsed) => Refusal::TIMED_OUT,
        Err(stopped) => return Err(stopped.into()),
    };
    Err(Failure::refused(refusal, reply, output))
}

/// What was accepted, and how the client was told so.
struct Opened<U> {
    work: Work<U>,
    code: ReplyCode,
}

/// What is to be relayed.
enum Work<U> {
    Association(Box<Association<Wrapped>>),
    Tunnel(Tunnel<U>),
}

impl<U> Work<U> {
    /// One of the two.
    fn split(self) -> (Option<Tunnel<U>>, Option<Box<Association<Wrapped>>>) {
        match self {
            Self::Association(association) => (None, Some(association)),
            Self::Tunnel(tunnel) => (Some(tunnel), None),
        }
    }
}

impl<U: Transport> Work<U> {
    /// The address that the client is told.
    fn bound(&self) -> SocketAddr {
        match self {
            Self::Association(association) => association.advertised(),
            Self::Tunnel(tunnel) => local_address(&tunnel.upstream),
        }
    }

    /// With what came behind the request, which only a tunnel has use for.
    fn after(mut self, early: Bytes) -> Self {
        if let Self::Tunnel(tunnel) = &mut self {
            tunnel.early = early;
        }
        self
    }
}

struct Tunnel<U> {
    upstream: U,
    early: Bytes,
    options: RelayOptions,
}

/// The relay of a tunnel, which sends first what came behind the request.
fn start<'a, S: Transport, U: Transport>(
    client: &'a mut S,
    upstream: &'a mut U,
    early: Bytes,
    options: RelayOptions,
) -> Relay<'a, S, U> {
    relay(client, upstream, &options).early(&early, b"")
}

/// The address to be told as bound; unspecified for what has no socket.
fn local_address<U: Transport>(upstream: &U) -> SocketAddr {
    let known = match upstream.socket() {
        Some(Socket::Tcp(socket)) => socket.local_addr().ok(),
        _ => None,
    };
    known.unwrap_or(UNSPECIFIED)
}
