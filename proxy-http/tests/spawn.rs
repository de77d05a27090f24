//! The server runs on one thread or on many, as the gateway allows: a gateway
//! that holds an `Rc` under `spawn_local`, one that holds an `Arc` under
//! `tokio::spawn`. That both compile is the point; that both answer is a bonus.

#![cfg(feature = "serve")]

use std::cell::Cell;
use std::net::SocketAddr;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use proxy_core::{
    Ask, ConnectError, ConnectErrorKind, Connected, Credentials, Denial, Gateway, Peer, Target,
};
use proxy_http::Server;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::LocalSet;

/// Refuses everybody and notes that through `asked`, which decides whether the
/// gateway is `Send`.
struct Closed<F>(F);

impl<F: Fn()> Gateway for Closed<F> {
    type Identity = ();
    type Session = ();
    type Upstream = TcpStream;

    async fn authenticate(&self, _: &Peer, _: Option<Credentials<'_>>) -> Result<(), Denial> {
        Ok(())
    }

    async fn authorize(&self, (): &(), _: &Ask<'_>) -> Result<(), Denial> {
        // An await point, so that the future has to keep what is borrowed here.
        tokio::task::yield_now().await;
        (self.0)();
        Err(Denial::Forbid)
    }

    async fn connect(
        &self,
        (): &mut (),
        _: Target<'_>,
    ) -> Result<Connected<TcpStream>, ConnectError> {
        Err(ConnectError::origin(ConnectErrorKind::Forbidden))
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_arc_gateway_under_spawn() {
    let asked = Arc::new(AtomicUsize::new(0));
    let counter = Arc::clone(&asked);
    let server = Arc::new(Server::new(Closed(move || {
        counter.fetch_add(1, Ordering::Relaxed);
    })));
    let (listener, address) = listen().await;
    let served = tokio::spawn(async move {
        let (stream, peer) = accept(&listener).await;
        server.serve(stream, peer).await
    });
    assert_forbidden(address).await;
    let _ = served.await.expect("no panic");
    assert_eq!(asked.load(Ordering::Relaxed), 1);
}

#[tokio::test(flavor = "current_thread")]
async fn an_rc_gateway_under_spawn_local() {
    let asked = Rc::new(Cell::new(0));
    let counter = Rc::clone(&asked);
    let server = Rc::new(Server::new(Closed(move || counter.set(counter.get() + 1))));
    let (listener, address) = listen().await;
    LocalSet::new()
        .run_until(async {
            let served = tokio::task::spawn_local(async move {
                let (stream, peer) = accept(&listener).await;
                server.serve(stream, peer).await
            });
            assert_forbidden(address).await;
            let _ = served.await.expect("no panic");
        })
        .await;
    assert_eq!(asked.get(), 1);
}

async fn listen() -> (TcpListener, SocketAddr) {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
    let address = listener.local_addr().expect("a bound socket");
    (listener, address)
}

async fn accept(listener: &TcpListener) -> (TcpStream, Peer) {
    let (stream, remote) = listener.accept().await.expect("a client");
    let local = stream.local_addr().expect("a connected socket");
    (stream, Peer { remote, local })
}

async fn assert_forbidden(address: SocketAddr) {
    let talk = async {
        let mut client = TcpStream::connect(address).await.expect("a listener");
        client
            .write_all(b"CONNECT example.com:443 HTTP/1.1\r\nHost: example.com:443\r\n\r\n")
            .await
            .expect("an open connection");
        client.shutdown().await.expect("an open connection");
        let mut answer = Vec::new();
        client
            .read_to_end(&mut answer)
            .await
            .expect("an orderly end");
        answer
    };
    let answer = tokio::time::timeout(Duration::from_secs(10), talk)
        .await
        .expect("an answer in time");
    assert!(
        answer.starts_with(b"HTTP/1.1 403 "),
        "{}",
        answer.escape_ascii()
    );
}
