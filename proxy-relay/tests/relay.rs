//! Tunnels over loopback sockets: half-close, resets, early bytes, backpressure.

mod support;

use std::future::poll_fn;
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use proxy_core::{End, Stop};
use proxy_relay::{Lent, RelayOptions, RelayReport, Transport, lent, relay};
use support::{How, Maybe, check_noise, expect_end, expect_reset, pair, send_noise, until, within};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::task::JoinHandle;

/// A client and an origin with a relay between them.
struct Line {
    client: TcpStream,
    origin: TcpStream,
    relay: JoinHandle<RelayReport>,
    polls: Arc<AtomicU32>,
}

impl Line {
    async fn new(how: How) -> Self {
        Self::with(how, &RelayOptions::default()).await
    }

    async fn with(how: How, options: &RelayOptions) -> Self {
        let (client, near) = pair().await;
        let (far, origin) = pair().await;
        let options = options.clone();
        let (mut near, mut far) = (Maybe::new(near, how), Maybe::new(far, how));
        let polls = Arc::new(AtomicU32::new(0));
        let counter = Arc::clone(&polls);
        let relay = tokio::spawn(async move {
            let mut relay = relay(&mut near, &mut far, &options);
            poll_fn(|cx| {
                counter.fetch_add(1, Ordering::Relaxed);
                Pin::new(&mut relay).poll(cx)
            })
            .await
        });
        Self {
            client,
            origin,
            relay,
            polls,
        }
    }

    /// Seen from who closes first.
    fn ends(&mut self, first: End) -> (&mut TcpStream, &mut TcpStream) {
        match first {
            End::ClientFinished => (&mut self.client, &mut self.origin),
            _ => (&mut self.origin, &mut self.client),
        }
    }

    async fn report(self) -> RelayReport {
        within(10, self.relay)
            .await
            .expect("relay ends")
            .expect("no panic")
    }
}

/// Waits until the destination is full.
async fn until_held() {
    until("held bytes", || lent() != Lent::default()).await;
}

const BULK: usize = 6 << 20;

async fn half_close(first: End, pending: usize, how: How) {
    let mut line = Line::new(how).await;
    let (closer, other) = line.ends(first);
    let sending = async {
        send_noise(closer, 1, pending).await.expect("send");
        closer.shutdown().await.expect("shutdown");
    };
    let reading = async {
        if pending > 0 {
            until_held().await;
        }
        let spliced = check_noise(other, 1, pending).await;
        assert_eq!(spliced, how == How::Splice && pending > 0, "{how:?}");
        expect_end(other).await;
    };
    tokio::join!(sending, reading);
    // The reverse direction runs on.
    for round in 0..3 {
        send_noise(other, 2 + round, 100_001).await.expect("send");
        check_noise(closer, 2 + round, 100_001).await;
    }
    other.shutdown().await.expect("shutdown");
    expect_end(closer).await;
    let report = line.report().await;
    let back = 3 * 100_001;
    let (up, down) = match first {
        End::ClientFinished => (pending as u64, back),
        _ => (back, pending as u64),
    };
    assert_eq!((report.up, report.down, report.end), (up, down, first));
    assert_eq!(lent(), Lent::default());
}

#[tokio::test]
async fn p44_half_close_keeps_the_other_direction() {
    for first in [End::ClientFinished, End::OriginFinished] {
        for how in [How::Copy, How::Splice] {
            for pending in [0, BULK] {
                half_close(first, pending, how).await;
            }
        }
    }
}

#[tokio::test]
async fn a_reset_of_the_client_reaches_the_origin() {
    for how in [How::Copy, How::Splice] {
        let mut line = Line::new(how).await;
        line.client.write_all(b"half a word").await.expect("write");
        let mut got = [0; 11];
        line.origin.read_exact(&mut got).await.expect("read");
        line.client.abort();
        drop(std::mem::replace(&mut line.client, pair().await.0));
        expect_reset(&mut line.origin).await;
        let report = line.report().await;
        assert_eq!((report.up, report.end), (11, End::ClientReset));
    }
}

#[tokio::test]
async fn a_reset_of_the_origin_reaches_the_client_behind_its_data() {
    for how in [How::Copy, How::Splice] {
        let mut line = Line::new(how).await;
        line.origin.write_all(b"half a word").await.expect("write");
        let mut got = [0; 11];
        line.client.read_exact(&mut got).await.expect("read");
        line.origin.abort();
        drop(std::mem::replace(&mut line.origin, pair().await.0));
        expect_reset(&mut line.client).await;
        let report = line.report().await;
        assert_eq!((report.down, report.end), (11, End::OriginReset));
    }
}

#[tokio::test]
async fn a_reset_in_mid_stream_keeps_the_counts() {
    for how in [How::Copy, How::Splice] {
        let mut line = Line::new(how).await;
        let sending = async {
            let sent = send_noise(&mut line.origin, 5, BULK).await;
            let error = sent.expect_err("the reset comes through");
            assert_eq!(error.kind(), io::ErrorKind::ConnectionReset);
        };
        let reading = async {
            until_held().await;
            check_noise(&mut line.client, 5, 1_000_003).await;
            line.client.abort();
            drop(std::mem::replace(&mut line.client, pair().await.0));
        };
        within(10, async { tokio::join!(sending, reading) })
            .await
            .expect("both end");
        let report = line.report().await;
        assert_eq!((report.up, report.end), (0, End::ClientReset));
        assert!(report.down >= 1_000_003 && report.down < BULK as u64);
        assert_eq!(lent(), Lent::default());
    }
}

#[tokio::test]
async fn p41_early_bytes_go_first_both_ways() {
    let (mut client, mut near) = pair().await;
    let (mut far, mut origin) = pair().await;
    let task = tokio::spawn(async move {
        let options = RelayOptions::default();
        relay(&mut near, &mut far, &options)
            .early(b"early up, ", b"early down, ")
            .await
    });
    client.write_all(b"late up").await.expect("write");
    origin.write_all(b"late down").await.expect("write");
    client.shutdown().await.expect("shutdown");
    origin.shutdown().await.expect("shutdown");
    let (mut up, mut down) = (String::new(), String::new());
    origin.read_to_string(&mut up).await.expect("read");
    client.read_to_string(&mut down).await.expect("read");
    assert_eq!(
        (&*up, &*down),
        ("early up, late up", "early down, late down")
    );
    let report = task.await.expect("no panic");
    assert_eq!(
        (report.up, report.down),
        (up.len() as u64, down.len() as u64)
    );
}

#[tokio::test]
async fn p34_a_slow_reader_stops_the_sender() {
    for how in [How::Copy, How::Splice] {
        let mut line = Line::new(how).await;
        let mut sent = 0;
        let block = vec![7; 64 * 1024];
        // The sender blocks for good: everything is full.
        while let Some(written) = within(1, line.origin.write(&block)).await {
            sent += written.expect("write");
            assert!(sent < BULK, "takes without bound");
        }
        let held = lent();
        assert_eq!(held.spills + held.pipes, 1, "{how:?}");
        line.origin.shutdown().await.expect("shutdown");
        let mut all = Vec::new();
        line.client.read_to_end(&mut all).await.expect("read");
        assert_eq!(all.len(), sent);
        line.client.shutdown().await.expect("shutdown");
        assert_eq!(line.report().await.down, sent as u64);
    }
}

#[tokio::test]
async fn both_directions_at_once() {
    for how in [How::Copy, How::Splice] {
        let Line {
            client,
            origin,
            relay,
            ..
        } = Line::new(how).await;
        let exchange = |mut stream: TcpStream, own: u64, other: u64| async move {
            let (mut read, mut write) = stream.split();
            let sending = async {
                send_noise(&mut write, own, BULK).await.expect("send");
                write.shutdown().await.expect("shutdown");
            };
            let reading = async {
                check_noise(&mut read, other, BULK).await;
                expect_end(&mut read).await;
            };
            tokio::join!(sending, reading);
        };
        tokio::join!(exchange(client, 1, 2), exchange(origin, 2, 1));
        let report = within(10, relay).await.expect("ends").expect("no panic");
        assert_eq!((report.up, report.down), (BULK as u64, BULK as u64));
    }
}

#[tokio::test]
async fn idle_tunnels_hold_nothing() {
    let mut lines = Vec::new();
    for _ in 0..1000 {
        let mut line = Line::new(How::Splice).await;
        line.client.write_all(&[1; 500]).await.expect("write");
        line.origin.read_exact(&mut [0; 500]).await.expect("read");
        line.origin.write_all(&[2; 500]).await.expect("write");
        line.client.read_exact(&mut [0; 500]).await.expect("read");
        lines.push(line);
    }
    assert_eq!(lent(), Lent::default());
    // Also after a burst that was spliced.
    for line in lines.iter_mut().step_by(100) {
        let sending = async { send_noise(&mut line.origin, 3, BULK).await.expect("send") };
        let reading = async {
            until_held().await;
            assert!(
                check_noise(&mut line.client, 3, BULK).await,
                "never spliced"
            );
        };
        tokio::join!(sending, reading);
    }
    until("all given back", || lent() == Lent::default()).await;
    for line in &lines {
        assert!(!line.relay.is_finished());
    }
}

#[tokio::test]
async fn spliced_and_then_chatty() {
    let mut line = Line::new(How::Splice).await;
    for _ in 0..3 {
        let sending = async { send_noise(&mut line.origin, 4, BULK).await.expect("send") };
        let reading = async {
            until_held().await;
            assert!(
                check_noise(&mut line.client, 4, BULK).await,
                "never spliced"
            );
        };
        tokio::join!(sending, reading);
        for n in 0..20 {
            line.origin.write_all(&[n; 100]).await.expect("write");
            let mut got = [0; 100];
            line.client.read_exact(&mut got).await.expect("read");
            assert_eq!(got, [n; 100]);
        }
    }
    line.client.shutdown().await.expect("shutdown");
    line.origin.shutdown().await.expect("shutdown");
    assert_eq!(line.report().await.down, 3 * (BULK as u64 + 2000));
}

#[tokio::test]
async fn a_cut_in_mid_stream_is_no_orderly_end() {
    for how in [How::Copy, How::Splice] {
        let stop = Stop::new();
        let mut options = RelayOptions::default();
        options.stop(stop.clone());
        let mut line = Line::with(how, &options).await;
        let sending = async {
            let _ = send_noise(&mut line.origin, 6, BULK).await;
        };
        let reading = async {
            until_held().await;
            stop.stop(End::Drained);
            expect_reset(&mut line.client).await;
        };
        within(10, async { tokio::join!(sending, reading) })
            .await
            .expect("both end");
        assert_eq!(line.report().await.end, End::Drained);
    }
}

/// Sends something both ways, all of which arrives.
async fn chat(line: &mut Line) {
    for first in [End::ClientFinished, End::OriginFinished] {
        let (from, to) = line.ends(first);
        let sending = async { send_noise(from, 9, 300_007).await.expect("send") };
        tokio::join!(sending, check_noise(to, 9, 300_007));
    }
}

#[tokio::test]
async fn a_cut_with_nothing_under_way_is_no_orderly_end() {
    for (how, end) in [
        (How::Copy, End::Drained),
        (How::Splice, End::Stopped),
        (How::Copy, End::Limit),
        (How::Splice, End::Lifetime),
    ] {
        let stop = Stop::new();
        let mut options = RelayOptions::default();
        options.stop(stop.clone()).idle(None);
        if end == End::Lifetime {
            options.lifetime(Duration::from_millis(500));
        }
        let mut line = Line::with(how, &options).await;
        chat(&mut line).await;
        until("all given back", || lent() == Lent::default()).await;
        if end != End::Lifetime {
            stop.stop(end);
        }
        within(2, async {
            expect_reset(&mut line.client).await;
            expect_reset(&mut line.origin).await;
        })
        .await
        .expect("closed");
        let report = line.report().await;
        assert_eq!(
            (report.up, report.down, report.end),
            (300_007, 300_007, end)
        );
    }
}

#[tokio::test]
async fn a_cut_spares_the_direction_that_had_ended() {
    let stop = Stop::new();
    let mut options = RelayOptions::default();
    options.stop(stop.clone());
    let mut line = Line::with(How::Copy, &options).await;
    chat(&mut line).await;
    line.client.shutdown().await.expect("shutdown");
    until("the end", || !line.origin.is_quiet()).await;
    stop.stop(End::Drained);
    expect_reset(&mut line.client).await;
    expect_end(&mut line.origin).await;
    assert_eq!(line.report().await.end, End::Drained);
}

#[tokio::test]
async fn what_rests_too_long_ends_in_order() {
    for half_closed in [false, true] {
        let mut options = RelayOptions::default();
        let short = Duration::from_millis(500);
        match half_closed {
            true => options.half_closed(short),
            false => options.idle(short),
        };
        let mut line = Line::with(How::Copy, &options).await;
        chat(&mut line).await;
        if half_closed {
            line.client.shutdown().await.expect("shutdown");
        }
        within(5, async {
            expect_end(&mut line.client).await;
            expect_end(&mut line.origin).await;
        })
        .await
        .expect("closed");
        let end = line.report().await.end;
        assert_eq!(end == End::HalfClosed, half_closed, "{end}");
    }
}

#[tokio::test]
async fn p45_a_side_that_takes_nothing_is_cut_and_so_is_the_lively_one() {
    for how in [How::Copy, How::Splice] {
        let mut options = RelayOptions::default();
        options.stalled(Duration::from_millis(500));
        let mut line = Line::with(how, &options).await;
        let (mut source, mut sink) = line.origin.split();
        let pressing = async {
            let _ = send_noise(&mut sink, 6, usize::MAX).await;
        };
        let chatting = async {
            let mut heard = 0;
            loop {
                // A reset is told once, to whom asks first.
                if let Err(error) = line.client.write_all(b"!").await {
                    assert_eq!(error.kind(), io::ErrorKind::ConnectionReset);
                    return heard;
                }
                if source.read_u8().await.is_err() {
                    expect_reset(&mut line.client).await;
                    return heard;
                }
                heard += 1;
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
        };
        let ((), heard) = within(20, async { tokio::join!(pressing, chatting) })
            .await
            .expect("both end");
        let report = line.report().await;
        assert_eq!(report.end, End::WriteStalled);
        // The reset may destroy the last one.
        assert!((heard..=heard + 1).contains(&report.up), "{heard}");
        assert!(report.down > 0);
        assert_eq!(lent(), Lent::default());
    }
}

/// Resets the sender of a direction whose destination reads nothing.
async fn reset_while_blocked(how: How, end: End) {
    let mut line = Line::new(how).await;
    let sender = match end {
        End::ClientReset => &mut line.client,
        _ => &mut line.origin,
    };
    let block = vec![7; 64 * 1024];
    while let Some(written) = within(1, sender.write(&block)).await {
        written.expect("write");
    }
    assert_ne!(lent(), Lent::default(), "not blocked");
    assert!(!sender.is_reset());
    sender.abort();
    drop(std::mem::replace(sender, pair().await.0));
    let destination = match end {
        End::ClientReset => &mut line.origin,
        _ => &mut line.client,
    };
    // Without reading: that would set the relay going.
    until("the reset", || destination.is_reset()).await;
    let report = line.report().await;
    assert_eq!(report.end, end);
    let (moved, other) = match end {
        End::ClientReset => (report.up, report.down),
        _ => (report.down, report.up),
    };
    assert!(moved > 0 && other == 0, "{report:?}");
    assert_eq!(lent(), Lent::default());
}

#[tokio::test]
async fn a_reset_is_noticed_while_the_other_side_takes_nothing() {
    for how in [How::Copy, How::Splice] {
        for end in [End::ClientReset, End::OriginReset] {
            reset_while_blocked(how, end).await;
        }
    }
}

#[tokio::test]
async fn p49_no_busy_loop_at_the_end() {
    // One direction has ended in splice mode, the other stays open and quiet:
    // the task must sleep.
    let mut line = Line::new(How::Splice).await;
    let sending = async {
        send_noise(&mut line.origin, 8, BULK).await.expect("send");
        line.origin.shutdown().await.expect("shutdown");
    };
    let reading = async {
        until_held().await;
        check_noise(&mut line.client, 8, BULK).await;
        expect_end(&mut line.client).await;
    };
    tokio::join!(sending, reading);
    let before = line.polls.load(Ordering::Relaxed);
    tokio::time::sleep(Duration::from_millis(600)).await;
    let after = line.polls.load(Ordering::Relaxed);
    assert!(after - before < 10, "{} polls while quiet", after - before);
    line.client.shutdown().await.expect("shutdown");
    assert_eq!(line.report().await.end, End::OriginFinished);
}
