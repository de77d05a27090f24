//! Unix sockets are relayed as TCP is: spliced when bulk, half-closed, asleep
//! at rest.

mod support;

use std::future::poll_fn;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use proxy_core::End;
use proxy_relay::{Lent, RelayOptions, Transport, lent, relay};
use socket2::SockRef;
use support::{check_noise, expect_end, pair, send_noise, until, within};
use tokio::io::{AsyncRead, AsyncWrite, AsyncWriteExt};
use tokio::net::UnixStream;

#[tokio::test]
async fn p44_p49_between_unix_sockets() {
    let (client, near) = wide();
    let (far, origin) = wide();
    passes(client, near, far, origin).await;
}

#[tokio::test]
async fn p44_p49_from_tcp_to_a_unix_socket() {
    let (client, near) = pair().await;
    let (far, origin) = wide();
    passes(client, near, far, origin).await;
}

#[tokio::test]
async fn p44_p49_from_a_unix_socket_to_tcp() {
    let (client, near) = wide();
    let (far, origin) = pair().await;
    passes(client, near, far, origin).await;
}

fn wide() -> (UnixStream, UnixStream) {
    let (ours, theirs) = UnixStream::pair().expect("sockets");
    for end in [&ours, &theirs] {
        let socket = SockRef::from(end);
        socket.set_send_buffer_size(WIDE).expect("buffer");
    }
    (ours, theirs)
}

/// Whether the system grants buffers from which so much is read at once that it
/// counts as bulk.
fn is_wide() -> bool {
    let (socket, _) = wide();
    SockRef::from(&socket).send_buffer_size().expect("a size") >= WIDE
}

/// Bulk and small messages both ways in turn, then the ends.
async fn passes<A, B>(mut client: A, mut near: A, mut far: B, mut origin: B)
where
    A: Transport + Send + 'static,
    B: Transport + Send + 'static,
{
    let polls = Arc::new(AtomicU32::new(0));
    let counter = Arc::clone(&polls);
    let task = tokio::spawn(async move {
        let mut relay = relay(&mut near, &mut far, &RelayOptions::default());
        poll_fn(|cx| {
            counter.fetch_add(1, Ordering::Relaxed);
            Pin::new(&mut relay).poll(cx)
        })
        .await
    });
    for round in 0..2 {
        bulk(&mut client, &mut origin, round).await;
        chat(&mut client, &mut origin).await;
        bulk(&mut origin, &mut client, round).await;
        chat(&mut origin, &mut client).await;
    }
    until("all given back", || lent() == Lent::default()).await;
    // With the pipe full.
    bulk_to_the_end(&mut client, &mut origin).await;
    let before = polls.load(Ordering::Relaxed);
    tokio::time::sleep(Duration::from_millis(600)).await;
    let after = polls.load(Ordering::Relaxed);
    assert!(after - before < 10, "{} polls at rest", after - before);
    chat(&mut origin, &mut client).await;
    bulk_to_the_end(&mut origin, &mut client).await;
    let report = within(10, task).await.expect("ends").expect("no panic");
    let (up, down) = (report.up, report.down);
    assert_eq!(up, 3 * BULK as u64 + 2 * CHAT);
    assert_eq!(down, 3 * BULK as u64 + 3 * CHAT);
    assert_eq!(report.end, End::ClientFinished);
    assert_eq!(lent(), Lent::default());
}

async fn bulk(from: &mut (impl AsyncWrite + Unpin), to: &mut (impl AsyncRead + Unpin), seed: u64) {
    let reading = async {
        until("held bytes", || lent() != Lent::default()).await;
        let spliced = check_noise(to, seed, BULK).await;
        assert!(spliced || !is_wide(), "never spliced");
    };
    let (sent, ()) = tokio::join!(send_noise(from, seed, BULK), reading);
    sent.expect("send");
}

async fn bulk_to_the_end(from: &mut (impl AsyncWrite + Unpin), to: &mut (impl AsyncRead + Unpin)) {
    let sending = async {
        send_noise(from, 9, BULK).await.expect("send");
        from.shutdown().await.expect("shutdown");
    };
    let reading = async {
        until("held bytes", || lent() != Lent::default()).await;
        check_noise(to, 9, BULK).await;
        expect_end(to).await;
    };
    tokio::join!(sending, reading);
}

async fn chat(from: &mut (impl AsyncWrite + Unpin), to: &mut (impl AsyncRead + Unpin)) {
    for seed in 0..20 {
        send_noise(from, seed, 50).await.expect("send");
        check_noise(to, seed, 50).await;
    }
}

/// What is spliced if the buffers allow it.
const BULK: usize = 6 << 20;
const WIDE: usize = 2 << 20;
const CHAT: u64 = 20 * 50;
