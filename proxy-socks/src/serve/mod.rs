//! Serves SOCKS clients on any stream, with the policy of a gateway.

mod associate;
mod config;
mod error;
mod exchange;
mod link;

use std::net::SocketAddr;

use bytes::{Buf, Bytes};
use proxy_core::{Ask, Gateway, Operation, Peer, TargetBuf};
use proxy_relay::{
    Association, Deadline, Expired, Relay, RelayOptions, Socket, Transport, relay, unless,
};

use crate::wire::UNSPECIFIED;
use crate::{Next, PendingReply, ReplyCode, ServerHandshake};

pub use associate::Datagrams;
pub use config::Config;
pub use error::ServeError;

use associate::{Offer, WithDatagrams, WithoutDatagrams, Wrapped};
use error::{Failure, Refusal};
use exchange::Exchange;
use link::{LINGER, Link, unless_drained, within};

/// A SOCKS4, 4a and 5 server around a [`Gateway`].
///
/// It opens no port and spawns nothing: accept connections, and await
/// [`serve`](Self::serve) for each, in a task of its own. The future is `Send`
/// exactly when the gateway's are and the
/// streams are.
///
/// CONNECT is carried out, and UDP ASSOCIATE by
/// [`serve_with_datagrams`](Self::serve_with_datagrams) with a gateway that is
/// made for it ([`Datagrams`]); BIND, and by [`serve`](Self::serve) UDP ASSOCIATE
/// too, is answered "command not supported".
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
        self.serve_as::<WithoutDatagrams, S>(stream, peer)
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
        self.serve_as::<WithDatagrams, S>(stream, peer)
    }

    fn serve_as<O: Offer<G>, S: Transport>(
        &self,
        mut stream: S,
        peer: Peer,
    ) -> impl Future<Output = Result<(), ServeError>> {
        let mut exchange = Exchange::new(&self.gateway, peer);
        // A block, since an `async fn` would hold its arguments twice.
        async move {
            // Boxed, so that the memory of a handshake is gone once the tunnel runs.
            let opening = Box::pin(self.open::<O, S>(&mut stream, &mut exchange));
            let Some(mut opened) = opening.await? else {
                return Ok(());
            };
            // Where it lies: to be moved it would need room twice.
            let (end, moved) = match &mut opened.work {
                Work::Tunnel(tunnel) => {
                    let report = tunnel.start(&mut stream).await;
                    (report.end, (report.up, report.down))
                }
                Work::Association(association) => {
                    // Both are there once it was opened.
                    let (Some(association), Some(session)) =
                        (association.take(), &exchange.session)
                    else {
                        return Ok(());
                    };
                    let carry = O::carry(&self.gateway, session, *association, &mut stream);
                    // Boxed, so that tunnels need no room for it.
                    let report = Box::pin(carry).await;
                    (report.end, (report.up, report.down))
                }
            };
            exchange.finish(end, Some(opened.code.0), moved);
            Ok(())
        }
    }

    /// Comes back with what is to be relayed, or with `None` after a refusal.
    async fn open<O: Offer<G>, S: Transport>(
        &self,
        stream: &mut S,
        exchange: &mut Exchange<'_, G>,
    ) -> Result<Option<Opened<G::Upstream>>, ServeError> {
        let mut link = Link::new(stream);
        let mut deadline = Deadline::new(self.config.stop.clone());
        let established = self.establish::<O, S>(&mut link, &mut deadline, exchange);
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
        exchange.finish(failure.end, failure.answer, (0, 0));
        if failure.answer.is_some() {
            let _ = within(&mut deadline, link.linger()).await;
        }
        failure.error.map_or(Ok(None), Err)
    }

    async fn establish<O: Offer<G>, S: Transport>(
        &self,
        link: &mut Link<'_, S>,
        deadline: &mut Deadline,
        exchange: &mut Exchange<'_, G>,
    ) -> Result<Opened<G::Upstream>, Failure> {
        deadline.set(self.config.timeouts.head.into());
        unless_drained(deadline, link.read()).await??;
        exchange.begin();
        let (reply, asked) = within(deadline, self.negotiate(link, exchange)).await??;
        deadline.set(self.config.timeouts.connect.into());
        let reach = self.reach::<O, S>(link, exchange, asked);
        let work = match within(deadline, reach).await {
            Ok(Ok(reached)) => reached,
            Ok(Err(refusal)) => return Err(Failure::refused(refusal, reply, &mut link.output)),
            Err(Expired::Elapsed) => {
                return Err(Failure::refused(
                    Refusal::TIMED_OUT,
                    reply,
                    &mut link.output,
                ));
            }
            Err(stopped) => return Err(stopped.into()),
        };
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
        exchange: &mut Exchange<'_, G>,
    ) -> Result<(PendingReply, Asked), Failure> {
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
                    let asked = (request.operation(), TargetBuf::from(request.target()));
                    let reply = request.detach();
                    link.input.advance(used);
                    // The target may take its time; what is due is sent before.
                    link.flush().await?;
                    return Ok((reply, asked));
                }
            };
        }
    }

    /// Policy, then the connection.
    async fn reach<O: Offer<G>, S: Transport>(
        &self,
        link: &mut Link<'_, S>,
        exchange: &mut Exchange<'_, G>,
        asked: Asked,
    ) -> Result<Work<G::Upstream>, Refusal> {
        let (operation, target) = exchange.request.insert(asked);
        let who = match &mut exchange.who {
            Some(who) => who,
            none => none.insert(self.gateway.authenticate(&exchange.peer, None).await?),
        };
        let associations = O::associations(&self.gateway);
        let all = match (*operation, associations) {
            (Operation::Tunnel, _) => None,
            (Operation::Associate, Some(all)) => Some(all),
            _ => return Err(Refusal::Unsupported),
        };
        let target = target.as_target();
        let ask = Ask {
            peer: &exchange.peer,
            operation: *operation,
            target,
            via: None,
            secure: false,
        };
        let session = self.gateway.authorize(who, &ask).await?;
        let session = exchange.session.insert(session);
        let options = self.config.relay_options(self.gateway.shaping(session));
        if let Some(all) = all {
            let association = associate::open(&exchange.peer, target, all, &options)?;
            return Ok(Work::Association(Some(Box::new(association))));
        }
        let dial = self.gateway.connect(session, target);
        let connected = unless(link.vanished(), dial)
            .await
            .ok_or(Refusal::Vanished)??;
        Ok(Work::Tunnel(Tunnel {
            upstream: connected.upstream,
            early: Bytes::new(),
            options,
        }))
    }
}

/// What a request asks for.
type Asked = (Operation<'static>, TargetBuf);

/// What was accepted, and how the client was told so.
struct Opened<U> {
    work: Work<U>,
    code: ReplyCode,
}

/// What is to be relayed.
enum Work<U> {
    /// `None` once it runs.
    Association(Option<Box<Association<Wrapped>>>),
    Tunnel(Tunnel<U>),
}

impl<U: Transport> Work<U> {
    /// The address that the client is told.
    fn bound(&self) -> SocketAddr {
        match self {
            Self::Association(Some(association)) => association.local_addr(),
            Self::Association(None) => UNSPECIFIED,
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

impl<U: Transport> Tunnel<U> {
    /// The relay, which sends first what came behind the request.
    fn start<'a, S: Transport>(&'a mut self, client: &'a mut S) -> Relay<'a, S, U> {
        let early = std::mem::take(&mut self.early);
        relay(client, &mut self.upstream, &self.options).early(&early, b"")
    }
}

/// The address to be told as bound; unspecified for what has no socket.
fn local_address<U: Transport>(upstream: &U) -> SocketAddr {
    let known = match upstream.socket() {
        Some(Socket::Tcp(socket)) => socket.local_addr().ok(),
        _ => None,
    };
    known.unwrap_or(UNSPECIFIED)
}
