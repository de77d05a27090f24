//! What a rate holds back is late, not lost, and nobody's silence.
#![allow(clippy::unwrap_used, reason = "a panic is how a test fails")]

use std::num::NonZeroU64;
use std::time::{Duration, Instant};

use proxy_core::{Bucket, End, Rates};
use proxy_relay::{RelayOptions, relay};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::UnixStream;

/// With the clock paused, which moves on only when all is quiet. That of the
/// bucket does not, and it is empty.
fn empty() -> Bucket {
    let burst = NonZeroU64::new(100).unwrap();
    let bucket = Bucket::new(NonZeroU64::MIN, burst, Instant::now());
    assert_eq!(bucket.take(100, Instant::now()), 100);
    bucket
}

#[tokio::test(start_paused = true)]
async fn no_timer_of_a_tunnel_counts_the_time_that_a_rate_takes() {
    let bucket = empty();
    let (mut client, mut near) = UnixStream::pair().unwrap();
    let (mut far, mut origin) = UnixStream::pair().unwrap();
    let mut options = RelayOptions::default();
    options
        .rates(Rates::default(), Rates::new([bucket.clone()]))
        .half_closed(Duration::from_secs(2))
        .idle(Duration::from_secs(5))
        .first_byte(Duration::from_secs(3));
    let running = tokio::spawn(async move { relay(&mut near, &mut far, &options).await });
    client.write_all(b"ask").await.unwrap();
    client.shutdown().await.unwrap();
    origin.read_exact(&mut [0; 3]).await.unwrap();
    origin.write_all(b"the answer").await.unwrap();

    tokio::time::sleep(Duration::from_secs(100)).await;
    assert!(!running.is_finished());
    bucket.refund(4);
    let mut answer = [0; 4];
    client.read_exact(&mut answer).await.unwrap();
    assert_eq!(&answer, b"the ");
    tokio::time::sleep(Duration::from_secs(100)).await;
    assert!(!running.is_finished());
    bucket.refund(90);
    origin.shutdown().await.unwrap();
    let mut rest = Vec::new();
    client.read_to_end(&mut rest).await.unwrap();
    assert_eq!(rest, b"answer");
    let report = running.await.unwrap();
    assert_eq!((report.up, report.down), (3, 10));
    assert_eq!(report.end, End::ClientFinished);
}

#[tokio::test(start_paused = true)]
async fn a_tunnel_that_rests_is_ended_whatever_its_rate() {
    let bucket = empty();
    bucket.refund(50);
    let (client, mut near) = UnixStream::pair().unwrap();
    let (mut far, origin) = UnixStream::pair().unwrap();
    let mut options = RelayOptions::default();
    let rates = Rates::new([bucket]);
    options
        .rates(rates.clone(), rates)
        .idle(Duration::from_secs(5));
    let start = tokio::time::Instant::now();
    let report = relay(&mut near, &mut far, &options).await;
    assert_eq!(report.end, End::Idle);
    assert!(start.elapsed() < Duration::from_secs(7));
    drop((client, origin));
}
