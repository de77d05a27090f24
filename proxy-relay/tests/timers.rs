//! The timers of relays, with a paused clock and streams in memory.

mod support;

use std::time::Duration;

use proxy_core::End;
use proxy_relay::{ForwardError, RelayOptions, RelayReport, TICK, forward, relay};
use support::Opaque;
use tokio::io::{AsyncReadExt, AsyncWriteExt, DuplexStream, duplex};
use tokio::task::JoinHandle;
use tokio::time::{Instant, sleep};

fn secs(n: u64) -> Duration {
    Duration::from_secs(n)
}

struct Line {
    client: DuplexStream,
    origin: DuplexStream,
    relay: JoinHandle<RelayReport>,
    start: Instant,
}

impl Line {
    fn new(options: &RelayOptions) -> Self {
        let (client, near) = duplex(1024);
        let (far, origin) = duplex(1024);
        let options = options.clone();
        let relay =
            tokio::spawn(async move { relay(&mut Opaque(near), &mut Opaque(far), &options).await });
        let start = Instant::now();
        Self {
            client,
            origin,
            relay,
            start,
        }
    }

    async fn expect(self, end: End, after: Duration) -> RelayReport {
        let report = self.relay.await.expect("no panic");
        let took = self.start.elapsed();
        assert_eq!(report.end, end);
        assert!(took >= after, "{took:?} instead of {after:?}");
        assert!(took <= after + 2 * TICK, "{took:?} instead of {after:?}");
        report
    }
}

#[tokio::test(start_paused = true)]
async fn idle_from_the_start() {
    let mut options = RelayOptions::default();
    options.idle(secs(10));
    Line::new(&options).expect(End::Idle, secs(10)).await;
}

#[tokio::test(start_paused = true)]
async fn p46_traffic_of_either_direction_renews_the_idle_timer() {
    let mut options = RelayOptions::default();
    options.idle(secs(10));
    let mut line = Line::new(&options);
    for n in 0..20 {
        sleep(secs(6)).await;
        match n % 4 {
            // Mostly one way.
            0 => line.client.write_all(b"u").await.expect("write"),
            _ => line.origin.write_all(b"d").await.expect("write"),
        }
    }
    let report = line.expect(End::Idle, secs(130)).await;
    assert_eq!((report.up, report.down), (5, 15));
}

#[tokio::test(start_paused = true)]
async fn p45_half_closed_has_a_timer_of_its_own() {
    let mut options = RelayOptions::default();
    options.idle(secs(3600)).half_closed(secs(20));
    for by_client in [true, false] {
        let mut line = Line::new(&options);
        sleep(secs(100)).await;
        let first = match by_client {
            true => &mut line.client,
            false => &mut line.origin,
        };
        first.shutdown().await.expect("shutdown");
        line.expect(End::HalfClosed, secs(120)).await;
    }
}

#[tokio::test(start_paused = true)]
async fn p45_half_closed_also_without_an_idle_timer() {
    let mut options = RelayOptions::default();
    options.idle(None).half_closed(secs(20));
    let mut line = Line::new(&options);
    line.client.shutdown().await.expect("shutdown");
    line.expect(End::HalfClosed, secs(20)).await;
}

#[tokio::test(start_paused = true)]
async fn p44_a_long_answer_after_a_half_close_is_not_cut() {
    let mut options = RelayOptions::default();
    options.idle(secs(3600)).half_closed(secs(20));
    let mut line = Line::new(&options);
    line.client.shutdown().await.expect("shutdown");
    for _ in 0..30 {
        sleep(secs(15)).await;
        line.origin.write_all(b"more").await.expect("write");
    }
    line.origin.shutdown().await.expect("shutdown");
    let mut answer = Vec::new();
    line.client.read_to_end(&mut answer).await.expect("read");
    let report = line.expect(End::ClientFinished, secs(450)).await;
    assert_eq!((report.down, answer.len()), (120, 120));
}

#[tokio::test(start_paused = true)]
async fn half_closed_does_not_lengthen_idle() {
    let mut options = RelayOptions::default();
    options.idle(secs(5)).half_closed(secs(20));
    let mut line = Line::new(&options);
    line.client.shutdown().await.expect("shutdown");
    line.expect(End::Idle, secs(5)).await;
}

#[tokio::test(start_paused = true)]
async fn a_lifetime_ends_a_busy_tunnel() {
    let mut options = RelayOptions::default();
    options.lifetime(secs(60)).idle(secs(10));
    let mut line = Line::new(&options);
    while !line.relay.is_finished() {
        assert!(line.start.elapsed() < secs(70), "outlives its lifetime");
        let _ = line.client.write_all(b"x").await;
        sleep(Duration::from_millis(50)).await;
    }
    line.expect(End::Lifetime, secs(60)).await;
}

#[tokio::test(start_paused = true)]
async fn an_origin_that_never_speaks() {
    let mut options = RelayOptions::default();
    options.first_byte(secs(30)).lifetime(secs(100));
    let mut line = Line::new(&options);
    for _ in 0..5 {
        sleep(secs(5)).await;
        line.client.write_all(b"hello?").await.expect("write");
    }
    let report = line.expect(End::OriginTimeout, secs(30)).await;
    assert_eq!((report.up, report.down), (30, 0));
}

#[tokio::test(start_paused = true)]
async fn the_first_byte_is_enough() {
    let mut options = RelayOptions::default();
    options.first_byte(secs(30)).lifetime(secs(100));
    let mut line = Line::new(&options);
    sleep(secs(29)).await;
    line.origin.write_all(b"!").await.expect("write");
    line.expect(End::Lifetime, secs(100)).await;
}

#[tokio::test(start_paused = true)]
async fn an_early_byte_is_a_first_byte() {
    let (_client, near) = duplex(64);
    let (far, _origin) = duplex(64);
    let mut options = RelayOptions::default();
    options.first_byte(secs(5)).idle(secs(20));
    let (mut near, mut far) = (Opaque(near), Opaque(far));
    let report = relay(&mut near, &mut far, &options).early(b"", b"!").await;
    assert_eq!((report.end, report.down), (End::Idle, 1));
}

#[tokio::test(start_paused = true)]
async fn bytes_that_nobody_takes_do_not_renew() {
    let mut options = RelayOptions::default();
    options.idle(secs(10));
    let mut line = Line::new(&options);
    // More than all buffers hold; nobody reads.
    let write = tokio::spawn(async move {
        let _ = line.client.write_all(&[0; 1 << 20]).await;
    });
    let report = line.relay.await.expect("no panic");
    assert_eq!((report.end, report.up), (End::Idle, 1024));
    write.abort();
    drop(line.origin);
}

#[tokio::test(start_paused = true)]
async fn a_forward_that_stands_still() {
    let (mut source, from) = duplex(64);
    let (to, _sink) = duplex(64);
    let mut options = RelayOptions::default();
    options.idle(secs(10));
    source.write_all(b"some").await.expect("write");
    let report = forward(&mut Opaque(from), &mut Opaque(to), 10, &options).await;
    assert_eq!(report.moved, 4);
    assert_eq!(report.outcome, Err(ForwardError::Ended(End::Idle)));
}
