//! Runnable examples; see the `examples` folder of this crate.
//!
//! Here is what those about filters have in common: a gateway without a policy. One
//! with a policy of its own is the example `http_gateway`. The code in the project's
//! README is compiled here too, as a documentation test.

#![forbid(unsafe_code)]

use std::io;
use std::marker::PhantomData;
use std::rc::Rc;

use proxy_core::{Ask, ConnectError, Connected, Credentials, Denial, Gateway, Peer, Target};
use proxy_http::{Filter, Server};
use proxy_relay::Dialer;
use tokio::net::{TcpListener, TcpStream};
use tokio::task::LocalSet;

/// Serves everybody through `filter`, on the address that the first argument of the
/// program names. One thread and no `Send`: the filter may hold an `Rc` or a `RefCell`.
pub fn serve<S, F>(what: &str, filter: F) -> io::Result<()>
where
    S: Default + 'static,
    F: Filter<S> + 'static,
{
    let address = std::env::args().nth(1);
    let address = address.as_deref().unwrap_or("127.0.0.1:3128");
    let server = Rc::new(Server::new(Open::default()).filter(filter));
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()?;
    LocalSet::new().block_on(&runtime, async {
        let listener = TcpListener::bind(address).await?;
        let local = listener.local_addr()?;
        println!("{what} on {local}");
        loop {
            let (stream, remote) = listener.accept().await?;
            stream.set_nodelay(true)?;
            let (server, peer) = (Rc::clone(&server), Peer { remote, local });
            tokio::task::spawn_local(async move { server.serve(stream, peer).await });
        }
    })
}

/// Lets everybody go everywhere; each exchange has a session of its own.
struct Open<S> {
    dialer: Dialer,
    sessions: PhantomData<fn() -> S>,
}

impl<S> Default for Open<S> {
    fn default() -> Self {
        Self {
            dialer: Dialer::default(),
            sessions: PhantomData,
        }
    }
}

impl<S: Default> Gateway for Open<S> {
    type Identity = ();
    type Session = S;
    type Upstream = TcpStream;

    async fn authenticate(&self, _: &Peer, _: Option<Credentials<'_>>) -> Result<(), Denial> {
        Ok(())
    }

    async fn authorize(&self, _: &(), _: &Ask<'_>) -> Result<S, Denial> {
        Ok(S::default())
    }

    async fn connect(
        &self,
        _: &mut S,
        target: Target<'_>,
    ) -> Result<Connected<TcpStream>, ConnectError> {
        self.dialer.dial(target).await.map(Connected::fresh)
    }
}

#[cfg(doctest)]
#[doc = include_str!("../../README.md")]
struct Readme;
