//! The one seam between protocols and policy: who, what, and how to connect.

use std::fmt;
use std::net::SocketAddr;
use std::rc::Rc;
use std::sync::Arc;

use crate::{ConnectError, Report, Shaping, Target};

/// Policy and connecting, as an embedder supplies them.
///
/// Written once, it serves every protocol. Methods take `&self`; the futures
/// need not be `Send`: a server holding your gateway can be spawned on a
/// multi-thread runtime exactly when your own futures are `Send`.
///
/// Order of calls: [`authenticate`](Self::authenticate) when a connection shows
/// credentials (HTTP: again only when they change, or when `authorize` answered
/// [`Denial::Challenge`], for a user who was dismissed), then for each request
/// [`authorize`](Self::authorize), [`connect`](Self::connect) unless the
/// upstream of the same identity's previous request can be used again, and
/// [`finished`](Self::finished) exactly once. Any future may be dropped at its
/// await points when the client leaves.
#[expect(
    async_fn_in_trait,
    reason = "Send is decided where the future is spawned"
)]
pub trait Gateway {
    /// Who the client is; lives as long as the client connection.
    type Identity;
    /// The embedder's own state of one request or tunnel.
    type Session;
    /// A connection towards the origin.
    type Upstream;

    /// Says who is there, given the credentials shown (`None`: none were).
    ///
    /// # Errors
    /// [`Denial::Challenge`] asks for (other) credentials.
    async fn authenticate(
        &self,
        peer: &Peer,
        who: Option<Credentials<'_>>,
    ) -> Result<Self::Identity, Denial>;

    /// Says whether this client may do that, and starts its session.
    ///
    /// # Errors
    /// The denial to be told to the client.
    async fn authorize(&self, who: &Self::Identity, ask: &Ask<'_>)
    -> Result<Self::Session, Denial>;

    /// Reaches the target: directly, from a chosen address, through parents, or
    /// out of a pool.
    ///
    /// # Errors
    /// Why it could not be reached; each protocol has its own answer for it.
    async fn connect(
        &self,
        session: &mut Self::Session,
        target: Target<'_>,
    ) -> Result<Connected<Self::Upstream>, ConnectError>;

    /// Offers a clean upstream that can carry another request, for a pool. The
    /// default closes it.
    ///
    /// An HTTP client keeps its upstream while it sends one request after the
    /// other; it is offered here behind the client's first request, and when the
    /// client has been silent for a second.
    ///
    /// If more than the target decides who may use it again (a source address,
    /// a parent, a login), let `Upstream` carry that.
    fn recycle(&self, target: Target<'_>, upstream: Self::Upstream) {
        let _ = (target, upstream);
    }

    /// Limits of a session; asked once, after it was authorized.
    fn shaping(&self, session: &Self::Session) -> Shaping {
        let _ = session;
        Shaping::default()
    }

    /// Called exactly once for every exchange and tunnel that a server's future
    /// sees to its end, however that came about. What becomes of one whose
    /// future is dropped half-way is said at each server's `serve`.
    ///
    /// `who` is `None` if the client was not identified, `session` if the
    /// request was not authorized.
    fn finished(
        &self,
        who: Option<&Self::Identity>,
        session: Option<Self::Session>,
        report: &Report<'_>,
    ) {
        let _ = (who, session, report);
    }
}

macro_rules! through_pointer {
    ($($pointer:ty),*) => {$(
        impl<G: Gateway + ?Sized> Gateway for $pointer {
            type Identity = G::Identity;
            type Session = G::Session;
            type Upstream = G::Upstream;

            async fn authenticate(
                &self,
                peer: &Peer,
                who: Option<Credentials<'_>>,
            ) -> Result<Self::Identity, Denial> {
                (**self).authenticate(peer, who).await
            }
            async fn authorize(
                &self,
                who: &Self::Identity,
                ask: &Ask<'_>,
            ) -> Result<Self::Session, Denial> {
                (**self).authorize(who, ask).await
            }
            async fn connect(
                &self,
                session: &mut Self::Session,
                target: Target<'_>,
            ) -> Result<Connected<Self::Upstream>, ConnectError> {
                (**self).connect(session, target).await
            }
            fn recycle(&self, target: Target<'_>, upstream: Self::Upstream) {
                (**self).recycle(target, upstream);
            }
            fn shaping(&self, session: &Self::Session) -> Shaping {
                (**self).shaping(session)
            }
            fn finished(
                &self,
                who: Option<&Self::Identity>,
                session: Option<Self::Session>,
                report: &Report<'_>,
            ) {
                (**self).finished(who, session, report);
            }
        }
    )*};
}
through_pointer!(&G, Arc<G>, Rc<G>);

/// An upstream, whether it has carried requests before, and what is at its end.
///
/// A reused connection may have been closed by its origin in the meantime; that
/// decides whether a request may be tried again (RFC 9112 section 9.3.1).
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Connected<U> {
    /// The connection.
    pub upstream: U,
    /// Whether it has carried requests before.
    pub reused: bool,
    /// The HTTP proxy it leads to; `None` if it leads to the origin itself.
    /// Only for an [`Operation::Request`]: a tunnel through a parent leads to
    /// its origin.
    pub parent: Option<Arc<HttpParent>>,
    /// Whether it is TLS with the target itself, its certificate checked.
    pub secure: bool,
}

impl<U> Connected<U> {
    /// A new connection.
    pub fn fresh(upstream: U) -> Self {
        Self {
            upstream,
            reused: false,
            parent: None,
            secure: false,
        }
    }

    /// A connection out of a pool.
    pub fn reused(upstream: U) -> Self {
        Self {
            reused: true,
            ..Self::fresh(upstream)
        }
    }

    /// The same connection, leading to an HTTP proxy: requests stay in absolute
    /// form and show that proxy's own login (RFC 9112 section 3.2.2, RFC 9110
    /// section 11.7.2).
    #[must_use]
    pub fn to_parent(mut self, parent: Arc<HttpParent>) -> Self {
        self.parent = Some(parent);
        self
    }

    /// The same connection, inside TLS with the target itself: what
    /// [`Ask::secure`] asks for.
    #[must_use]
    pub fn secured(mut self) -> Self {
        self.secure = true;
        self
    }
}

/// An HTTP proxy that requests are handed to. `Debug` hides the login.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct HttpParent {
    /// The `Proxy-Authorization` value it is shown, such as `Basic ..`.
    pub authorization: Option<Box<[u8]>>,
}

impl fmt::Debug for HttpParent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("HttpParent").finish_non_exhaustive()
    }
}

/// The two ends of an accepted client connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Peer {
    /// The client's address.
    pub remote: SocketAddr,
    /// The address it reached us at.
    pub local: SocketAddr,
}

/// A user name and password as received. `Debug` hides both.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Credentials<'a> {
    /// The user name, any bytes.
    pub user: &'a [u8],
    /// The password, any bytes.
    pub password: &'a [u8],
}

impl fmt::Debug for Credentials<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Credentials(..)")
    }
}

/// What a client asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Operation<'a> {
    /// SOCKS5 UDP ASSOCIATE.
    Associate,
    /// SOCKS BIND.
    Bind,
    /// An HTTP request that the proxy forwards.
    Request {
        /// The method as received.
        method: &'a str,
        /// Path and query as received.
        path: &'a str,
    },
    /// A byte tunnel: CONNECT, SOCKS CONNECT, a port relay.
    Tunnel,
}

impl<'a> Operation<'a> {
    /// The word for logs: the method of a request, else `ASSOCIATE`, `BIND` or
    /// `CONNECT`.
    pub fn word(&self) -> &'a str {
        match self {
            Self::Associate => "ASSOCIATE",
            Self::Bind => "BIND",
            Self::Request { method, .. } => method,
            Self::Tunnel => "CONNECT",
        }
    }
}

/// One question to policy: may this client do that, there?
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ask<'a> {
    /// The client connection.
    pub peer: &'a Peer,
    /// What it wants to do.
    pub operation: Operation<'a>,
    /// Where.
    pub target: Target<'a>,
    /// The proxies that an HTTP CONNECT says it came through, its first `Via`
    /// (RFC 9110 section 7.6.3), for a parent that is asked for the tunnel.
    pub via: Option<&'a [u8]>,
    /// Whether the target is to be reached inside TLS: a request for an `https`
    /// URL. A connection that is not [`Connected::secured`] is then not used.
    pub secure: bool,
}

/// Why policy says no. Each protocol maps it to its own answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Denial {
    /// At a limit; HTTP 503, SOCKS general failure.
    Busy,
    /// Show (other) credentials; HTTP 407, SOCKS authentication failure.
    Challenge,
    /// Not allowed; HTTP 403, SOCKS "not allowed by ruleset".
    Forbid,
    /// The proxy cannot go there; HTTP 502, SOCKS "host unreachable".
    Unroutable,
}
