//! BIND: what a gateway must add to have connections awaited for its clients.

use std::convert::Infallible;
use std::net::{IpAddr, SocketAddr};
use std::rc::Rc;
use std::sync::Arc;

use proxy_core::{ConnectError, ConnectErrorKind, Gateway, Peer, Target};
use tokio::net::{TcpListener, TcpStream};

/// What a [`Gateway`] adds to have connections awaited for its clients, which
/// ask for it with BIND (RFC 1928 section 4):
/// [`Server::serve_with_incoming`](crate::Server::serve_with_incoming).
///
/// [`Gateway::authorize`] is asked first, with
/// [`Operation::Bind`](proxy_core::Operation::Bind); the target it sees is whom
/// the client expects to connect, unspecified if that may be anybody. Who then
/// connects is judged by [`admit`](Self::admit).
///
/// ```
/// use proxy_core::*;
/// use proxy_socks::{Incoming, Listening};
/// use std::net::SocketAddr;
/// use tokio::net::{TcpListener, TcpStream};
///
/// struct Open;
/// # impl Gateway for Open {
/// #     type Identity = ();
/// #     type Session = ();
/// #     type Upstream = TcpStream;
/// #     async fn authenticate(&self, _: &Peer, _: Option<Credentials<'_>>) -> Result<(), Denial> {
/// #         Ok(())
/// #     }
/// #     async fn authorize(&self, _: &(), _: &Ask<'_>) -> Result<(), Denial> {
/// #         Ok(())
/// #     }
/// #     async fn connect(&self, _: &mut (), to: Target<'_>) -> Result<Connected<TcpStream>, ConnectError> {
/// #         Ok(Connected::fresh(TcpStream::connect(to.to_string()).await?))
/// #     }
/// # }
///
/// impl Incoming for Open {
///     type Place = ();
///
///     async fn listen(
///         &self,
///         _: &mut (),
///         peer: &Peer,
///         target: Target<'_>,
///     ) -> Result<Listening<()>, ConnectError> {
///         let listener = TcpListener::bind((peer.local.ip(), 0)).await?;
///         let listening = Listening::new(listener, ())?;
///         Ok(match target.host {
///             Host::Ip(ip) if ip.is_unspecified() => listening,
///             Host::Ip(ip) => listening.expect([ip]),
///             Host::Name(_) => return Err(ConnectError::origin(ConnectErrorKind::NameNotFound)),
///         })
///     }
///
///     async fn admit(&self, _: &(), _: Target<'_>, from: SocketAddr) -> bool {
///         !from.ip().is_loopback()
///     }
///
///     fn adopt(&self, _: &mut (), (): (), stream: TcpStream) -> TcpStream {
///         let _ = stream.set_nodelay(true);
///         stream
///     }
/// }
///
/// # async fn accept(gateway: Open) -> std::io::Result<()> {
/// let server = proxy_socks::Server::new(gateway);
/// let listener = TcpListener::bind("127.0.0.1:1080").await?;
/// let (stream, remote) = listener.accept().await?;
/// let peer = Peer { remote, local: stream.local_addr()? };
/// let _ = server.serve_with_incoming(stream, peer).await;
/// # Ok(())
/// # }
/// ```
#[expect(
    async_fn_in_trait,
    reason = "Send is decided where the future is spawned"
)]
pub trait Incoming: Gateway {
    /// What the gateway has set aside for the connection, such as a place within
    /// a limit; dropped when nobody comes.
    type Place;

    /// Opens the socket for the connection that the client of `peer` awaits of
    /// `target`. Any future may be dropped when the client leaves.
    ///
    /// # Errors
    /// Why there is none; the client is told.
    async fn listen(
        &self,
        session: &mut Self::Session,
        peer: &Peer,
        target: Target<'_>,
    ) -> Result<Listening<Self::Place>, ConnectError>;

    /// Says whether who has connected, one of those that are
    /// [expected](Listening::expect), may be handed to the client. If not it is
    /// disconnected, and the client waits on.
    async fn admit(&self, session: &Self::Session, target: Target<'_>, from: SocketAddr) -> bool;

    /// Takes over the one connection that was let in. The socket that it came to
    /// is closed by then.
    fn adopt(
        &self,
        session: &mut Self::Session,
        place: Self::Place,
        stream: TcpStream,
    ) -> Self::Upstream;
}

macro_rules! through_pointer {
    ($($pointer:ty),*) => {$(
        impl<G: Incoming + ?Sized> Incoming for $pointer {
            type Place = G::Place;

            async fn listen(
                &self,
                session: &mut Self::Session,
                peer: &Peer,
                target: Target<'_>,
            ) -> Result<Listening<Self::Place>, ConnectError> {
                (**self).listen(session, peer, target).await
            }
            async fn admit(
                &self,
                session: &Self::Session,
                target: Target<'_>,
                from: SocketAddr,
            ) -> bool {
                (**self).admit(session, target, from).await
            }
            fn adopt(
                &self,
                session: &mut Self::Session,
                place: Self::Place,
                stream: TcpStream,
            ) -> Self::Upstream {
                (**self).adopt(session, place, stream)
            }
        }
    )*};
}
through_pointer!(&G, Arc<G>, Rc<G>);

/// A socket that one connection is awaited at.
#[derive(Debug)]
pub struct Listening<P> {
    listener: TcpListener,
    address: SocketAddr,
    /// Empty for anybody.
    expected: Vec<IpAddr>,
    place: P,
}

impl<P> Listening<P> {
    /// Awaits anybody at `listener`, whose address is told to the client; an
    /// unspecified one needs [`advertise`](Self::advertise) before.
    ///
    /// # Errors
    /// If the system does not know the socket's address.
    pub fn new(listener: TcpListener, place: P) -> std::io::Result<Self> {
        Ok(Self {
            address: listener.local_addr()?,
            listener,
            expected: Vec::new(),
            place,
        })
    }

    /// Tells the client this address, by which the socket is reached, in place of
    /// its own; the port stays.
    #[must_use]
    pub fn advertise(mut self, ip: IpAddr) -> Self {
        self.address.set_ip(ip);
        self
    }

    /// Awaits only connections from these addresses; others are closed.
    #[must_use]
    pub fn expect(mut self, from: impl IntoIterator<Item = IpAddr>) -> Self {
        self.expected
            .extend(from.into_iter().map(|ip| ip.to_canonical()));
        self
    }

    /// What the client is told.
    pub(super) fn address(&self) -> SocketAddr {
        self.address
    }

    /// The next connection from an address that is expected.
    ///
    /// # Errors
    /// If the system has none to give any more, for want of descriptors.
    pub(super) async fn next(&mut self) -> std::io::Result<(TcpStream, SocketAddr)> {
        use std::io::ErrorKind as Kind;
        loop {
            let (stream, from) = match self.listener.accept().await {
                Ok(accepted) => accepted,
                // Of a connection that was gone before it was taken.
                Err(error) if matches!(error.kind(), Kind::ConnectionAborted) => continue,
                Err(error) => return Err(error),
            };
            let ip = from.ip().to_canonical();
            if self.expected.is_empty() || self.expected.contains(&ip) {
                return Ok((stream, SocketAddr::new(ip, from.port())));
            }
        }
    }

    /// Closes the socket.
    pub(super) fn close(self) -> P {
        self.place
    }
}

/// Whether a server awaits connections for its clients.
pub(super) trait Invite<G: Gateway> {
    const OFFERED: bool;

    type Place;

    fn listen(
        gateway: &G,
        session: &mut G::Session,
        peer: &Peer,
        target: Target<'_>,
    ) -> impl Future<Output = Result<Listening<Self::Place>, ConnectError>>;

    fn admit(
        gateway: &G,
        session: &G::Session,
        target: Target<'_>,
        from: SocketAddr,
    ) -> impl Future<Output = bool>;

    fn adopt(
        gateway: &G,
        session: &mut G::Session,
        place: Self::Place,
        stream: TcpStream,
    ) -> G::Upstream;
}

/// It does.
pub(super) struct WithIncoming;

impl<G: Incoming> Invite<G> for WithIncoming {
    const OFFERED: bool = true;

    type Place = G::Place;

    async fn listen(
        gateway: &G,
        session: &mut G::Session,
        peer: &Peer,
        target: Target<'_>,
    ) -> Result<Listening<G::Place>, ConnectError> {
        gateway.listen(session, peer, target).await
    }

    async fn admit(
        gateway: &G,
        session: &G::Session,
        target: Target<'_>,
        from: SocketAddr,
    ) -> bool {
        gateway.admit(session, target, from).await
    }

    fn adopt(
        gateway: &G,
        session: &mut G::Session,
        place: G::Place,
        stream: TcpStream,
    ) -> G::Upstream {
        gateway.adopt(session, place, stream)
    }
}

/// It does not.
pub(super) struct WithoutIncoming;

impl<G: Gateway> Invite<G> for WithoutIncoming {
    const OFFERED: bool = false;

    type Place = Infallible;

    async fn listen(
        _: &G,
        _: &mut G::Session,
        _: &Peer,
        _: Target<'_>,
    ) -> Result<Listening<Infallible>, ConnectError> {
        Err(ConnectError::origin(ConnectErrorKind::Forbidden))
    }

    async fn admit(_: &G, _: &G::Session, _: Target<'_>, _: SocketAddr) -> bool {
        false
    }

    fn adopt(_: &G, _: &mut G::Session, place: Infallible, _: TcpStream) -> G::Upstream {
        match place {}
    }
}
