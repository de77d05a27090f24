//! The HTTP/1.1 proxy server: one client connection, driven to its end.

mod answer;
mod block;
mod config;
mod connection;
mod download;
mod exchange;
mod own;
mod refuse;
mod request;
mod tunnel;
mod upload;
mod upstream;
mod view;
mod wire;

use proxy_core::{End, Gateway, Peer};
use proxy_relay::Transport;

pub use config::{Config, Forwarded};

use crate::filter::Filter;
use connection::{Outcome, converse, turn_away};
use refuse::Refusal;

/// Serves HTTP/1.1 clients: forwards requests, opens CONNECT tunnels.
///
/// Policy and connecting are the [`Gateway`]'s; `F` is a [`Filter`] that may
/// look at or change what passes. One server serves any number of connections,
/// on one thread or many.
///
/// ```no_run
/// # use proxy_core::Gateway;
/// # use proxy_relay::Transport;
/// # async fn run<G>(gateway: G) -> std::io::Result<()>
/// # where G: Gateway + 'static, G::Upstream: Transport {
/// use std::rc::Rc;
/// use proxy_core::Peer;
/// use proxy_http::Server;
///
/// let server = Rc::new(Server::new(gateway));
/// let listener = tokio::net::TcpListener::bind("127.0.0.1:3128").await?;
/// loop {
///     let (stream, remote) = listener.accept().await?;
///     let peer = Peer { remote, local: stream.local_addr()? };
///     let server = Rc::clone(&server);
///     tokio::task::spawn_local(async move { server.serve(stream, peer).await });
/// }
/// # }
/// ```
#[derive(Debug)]
pub struct Server<G, F = ()> {
    gateway: G,
    filter: F,
    config: Config,
}

impl<G: Gateway> Server<G> {
    /// A server with safe defaults and no filter.
    pub fn new(gateway: G) -> Self {
        Self {
            gateway,
            filter: (),
            config: Config::default(),
        }
    }
}

impl<G, F> Server<G, F> {
    /// The same server with `filter` in place of the one it had.
    pub fn filter<N>(self, filter: N) -> Server<G, N> {
        Server {
            gateway: self.gateway,
            filter,
            config: self.config,
        }
    }

    /// The settings, to be changed before serving.
    pub fn config(&mut self) -> &mut Config {
        &mut self.config
    }

    /// The gateway.
    pub fn gateway(&self) -> &G {
        &self.gateway
    }

    /// Serves one client connection until it ends: any number of requests, then
    /// possibly a tunnel.
    ///
    /// Every exchange and tunnel is told to [`Gateway::finished`]. Nothing is
    /// spawned. The connection's memory follows what it does: while it waits for
    /// a request it holds no buffer.
    ///
    /// # Cancel safety
    /// Dropping the future closes the connection and its upstream at once; an
    /// exchange under way is then not reported. To end connections in good
    /// order use the [`Stop`](proxy_core::Stop) token of [`Config::stop`].
    ///
    /// # Errors
    /// If the connection ended otherwise than in good order.
    pub fn serve<S>(&self, stream: S, peer: Peer) -> impl Future<Output = Result<(), ServeError>>
    where
        S: Transport,
        G: Gateway,
        G::Upstream: Transport,
        F: Filter<G::Session>,
    {
        // Both stages are boxed so that neither keeps room for the other: a
        // tunnel may live for days, and so may a connection without one. Not an
        // `async fn`, since that would keep its arguments twice.
        let requests = Box::pin(converse(self, stream, peer));
        async move {
            let tunnel = match requests.await {
                Outcome::Ended(end) => return served(end),
                // Bound outside, so that the outcome has no place here meanwhile.
                Outcome::Tunnel(tunnel) => Box::pin(tunnel.run(self)),
            };
            served(tunnel.await)
        }
    }

    /// Answers a client with 400 whatever it asks for, and ends the connection:
    /// for one that speaks HTTP in clear on a port for TLS, say. It is told to
    /// [`Gateway::finished`].
    ///
    /// # Cancel safety
    /// As [`serve`](Self::serve).
    pub async fn refuse<S>(&self, stream: S, peer: Peer) -> ServeError
    where
        S: Transport,
        G: Gateway,
        G::Upstream: Transport,
        F: Filter<G::Session>,
    {
        let end = turn_away(self, stream, peer, Refusal::bad_request()).await;
        ServeError { end }
    }
}

fn served(end: End) -> Result<(), ServeError> {
    match end {
        End::Completed | End::ClientFinished | End::OriginFinished => Ok(()),
        end => Err(ServeError { end }),
    }
}

/// A client connection that did not end in good order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("connection ended: {end}")]
#[non_exhaustive]
pub struct ServeError {
    /// Why it ended.
    pub end: End,
}

#[cfg(test)]
mod tests {
    use proxy_core::{Ask, ConnectError, Connected, Credentials, Denial, Target};
    use tokio::net::TcpStream;

    use super::*;

    struct Nowhere;

    impl Gateway for Nowhere {
        type Identity = ();
        type Session = ();
        type Upstream = TcpStream;

        async fn authenticate(&self, _: &Peer, _: Option<Credentials<'_>>) -> Result<(), Denial> {
            Ok(())
        }
        async fn authorize(&self, _: &(), _: &Ask<'_>) -> Result<(), Denial> {
            Err(Denial::Forbid)
        }
        async fn connect(
            &self,
            _: &mut (),
            _: Target<'_>,
        ) -> Result<Connected<TcpStream>, ConnectError> {
            Err(std::io::Error::from(std::io::ErrorKind::ConnectionRefused).into())
        }
    }

    /// Memory per idle connection follows from these.
    #[tokio::test]
    async fn the_futures_are_small() {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0")
            .await
            .expect("a free port");
        let address = listener.local_addr().expect("bound");
        let stream = || async { TcpStream::connect(address).await.expect("it listens") };
        let server = Server::new(Nowhere);
        let peer = Peer {
            remote: address,
            local: address,
        };
        let requests = converse(&server, stream().await, peer);
        let whole = server.serve(stream().await, peer);
        let sizes = (size_of_val(&requests), size_of_val(&whole));
        assert!(sizes.0 <= 352 && sizes.1 <= 64, "{sizes:?}");
    }
}
