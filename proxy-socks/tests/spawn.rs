//! A gateway decides where its server can run: `Rc` on a `LocalSet`, `Arc`
//! anywhere.
#![cfg(feature = "serve")]
#![allow(clippy::unwrap_used, reason = "a panic is how a test fails")]

mod support;

use std::rc::Rc;
use std::sync::Arc;

use proxy_core::{Ask, ConnectError, Connected, Credentials, Denial, Gateway, Peer, Target};
use proxy_socks::Server;
use support::{echo, exactly, greeting, listen, origin, request, send};
use tokio::net::TcpStream;
use tokio::task::{JoinHandle, LocalSet};

/// Shows that the policy's own state decides.
struct Holder<P>(P);

impl<P: AsRef<str>> Gateway for Holder<P> {
    type Identity = ();
    type Session = ();
    type Upstream = TcpStream;

    async fn authenticate(&self, _: &Peer, _: Option<Credentials<'_>>) -> Result<(), Denial> {
        Ok(())
    }
    async fn authorize(&self, (): &(), _: &Ask<'_>) -> Result<(), Denial> {
        match self.0.as_ref() {
            "open" => Ok(()),
            _ => Err(Denial::Forbid),
        }
    }
    async fn connect(
        &self,
        (): &mut (),
        to: Target<'_>,
    ) -> Result<Connected<TcpStream>, ConnectError> {
        let stream = TcpStream::connect(to.to_string()).await?;
        Ok(Connected::fresh(stream))
    }
}

/// Runs a client against what `spawn` does with the accepted connection.
async fn round_trip(spawn: impl FnOnce(TcpStream, Peer) -> JoinHandle<()>) {
    let (to, _origin) = origin(echo).await;
    let listener = listen().await;
    let mut client = TcpStream::connect(listener.local_addr().unwrap())
        .await
        .unwrap();
    let (stream, remote) = listener.accept().await.unwrap();
    let local = stream.local_addr().unwrap();
    let served = spawn(stream, Peer { remote, local });
    let wire = [&greeting(0)[..], &request(to), b"x"].concat();
    send(&mut client, &wire).await;
    let got: [u8; 13] = exactly(&mut client).await;
    assert_eq!((got[3], got[12]), (0, b'x'));
    drop(client);
    support::soon(served).await.unwrap();
}

#[tokio::test]
async fn an_rc_works_under_spawn_local() {
    let server = Rc::new(Server::new(Holder(Rc::<str>::from("open"))));
    LocalSet::new()
        .run_until(round_trip(|stream, peer| {
            tokio::task::spawn_local(async move { server.serve(stream, peer).await.unwrap() })
        }))
        .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_arc_works_under_spawn() {
    let server = Arc::new(Server::new(Holder(Arc::<str>::from("open"))));
    round_trip(|stream, peer| {
        tokio::spawn(async move { server.serve(stream, peer).await.unwrap() })
    })
    .await;
}
