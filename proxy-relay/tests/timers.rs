//! The timers of relays, with a paused clock and streams in memory.

mod support;

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;

use proxy_core::End;
use proxy_relay::{ForwardError, RelayOptions, RelayReport, TICK, Transport, forward, relay};
use support::Opaque;
use tokio::io::{
    AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt, DuplexStream, ReadBuf, ReadHalf, duplex,
    split,
};
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

/// One side sends more than the line holds, of which `reader` takes what it
/// will; the other way a byte passes every five seconds until the tunnel ends.
async fn press(
    line: Line,
    by_client: bool,
    reader: impl AsyncFnOnce(&mut ReadHalf<DuplexStream>),
) -> (RelayReport, Duration, u64) {
    let (source, sink) = match by_client {
        true => (line.client, line.origin),
        false => (line.origin, line.client),
    };
    let (mut heard, mut pressed) = split(source);
    let (mut taken, mut chatty) = split(sink);
    let press = tokio::spawn(async move {
        let _ = pressed.write_all(&[7; 1 << 20]).await;
    });
    let chat = tokio::spawn(async move {
        let mut said = 0;
        while chatty.write_all(b"!").await.is_ok() && heard.read_u8().await.is_ok() {
            said += 1;
            sleep(secs(5)).await;
        }
        said
    });
    reader(&mut taken).await;
    let report = line.relay.await.expect("no panic");
    let took = line.start.elapsed();
    press.await.expect("no panic");
    (report, took, chat.await.expect("no panic"))
}

#[tokio::test(start_paused = true)]
async fn p45_a_side_that_takes_nothing_ends_a_tunnel_that_is_lively_the_other_way() {
    let mut options = RelayOptions::default();
    options.stalled(secs(30));
    for by_client in [true, false] {
        let line = Line::new(&options);
        let (report, took, said) = press(line, by_client, async |_| {}).await;
        assert_eq!(report.end, End::WriteStalled);
        assert!((secs(30)..secs(33)).contains(&took), "{took:?}");
        assert!(said >= 6, "{said}");
        let moved = match by_client {
            true => (report.up, report.down),
            false => (report.down, report.up),
        };
        assert_eq!(moved, (1024, said));
    }
}

#[tokio::test(start_paused = true)]
async fn who_takes_a_little_now_and_then_is_not_stalled() {
    let mut options = RelayOptions::default();
    options.stalled(secs(30));
    let line = Line::new(&options);
    let (report, took, _) = press(line, true, async |taken| {
        for _ in 0..20 {
            sleep(secs(25)).await;
            taken.read_u8().await.expect("a byte");
        }
    })
    .await;
    // Counted from the last byte taken.
    assert_eq!((report.end, report.up), (End::WriteStalled, 1024 + 20));
    assert!((secs(530)..secs(533)).contains(&took), "{took:?}");
}

#[tokio::test(start_paused = true)]
async fn without_a_limit_a_side_may_stall_for_ever() {
    let mut options = RelayOptions::default();
    options.stalled(None).lifetime(secs(24 * 3600));
    let (report, _, _) = press(Line::new(&options), true, async |_| {}).await;
    assert_eq!((report.end, report.up), (End::Lifetime, 1024));
}

#[tokio::test(start_paused = true)]
async fn of_two_limits_that_hold_for_pressed_bytes_the_shorter_is_the_reason() {
    for (idle, stalled, end) in [
        (40, 20, End::WriteStalled),
        (20, 40, End::Idle),
        (3600, 3600, End::HalfClosed),
    ] {
        let mut options = RelayOptions::default();
        options.idle(secs(idle)).stalled(secs(stalled));
        options.half_closed(secs(30));
        let mut line = Line::new(&options);
        if end == End::HalfClosed {
            line.origin.shutdown().await.expect("shutdown");
        }
        let press = tokio::spawn(async move {
            let _ = line.client.write_all(&[7; 1 << 20]).await;
        });
        let report = line.relay.await.expect("no panic");
        assert_eq!((report.end, report.up), (end, 1024));
        let took = line.start.elapsed();
        assert!((secs(20)..secs(33)).contains(&took), "{end}: {took:?}");
        press.await.expect("no panic");
    }
}

/// Takes all it is given, as TLS does, and passes it on when it may.
struct Held {
    stream: DuplexStream,
    open: Arc<AtomicBool>,
}

impl AsyncRead for Held {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_read(cx, buf)
    }
}

impl AsyncWrite for Held {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write(cx, bytes)
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self.open.load(Ordering::Relaxed) {
            true => Poll::Ready(Ok(())),
            // The relay looks around on its own.
            false => Poll::Pending,
        }
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}

impl Transport for Held {}

#[tokio::test(start_paused = true)]
async fn bytes_within_an_encrypted_stream_can_stall_too() {
    let (mut client, near) = duplex(1024);
    let (far, _origin) = duplex(1024);
    let open = Arc::new(AtomicBool::new(false));
    let held = Arc::clone(&open);
    let mut options = RelayOptions::default();
    options.stalled(secs(30)).idle(None);
    let relay = tokio::spawn(async move {
        let mut far = Held {
            stream: far,
            open: held,
        };
        relay(&mut Opaque(near), &mut far, &options).await
    });
    client.write_all(b"first").await.expect("write");
    sleep(secs(20)).await;
    open.store(true, Ordering::Relaxed);
    // Nothing is under way: no time counts.
    sleep(secs(3600)).await;
    open.store(false, Ordering::Relaxed);
    client.shutdown().await.expect("shutdown");
    let start = Instant::now();
    let report = relay.await.expect("no panic");
    let took = start.elapsed();
    assert_eq!((report.end, report.up), (End::WriteStalled, 5));
    assert!((secs(30)..secs(33)).contains(&took), "{took:?}");
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
