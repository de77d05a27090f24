//! Pumps: copying and splicing give the same, to the byte.

mod support;

use std::future::poll_fn;
use std::io::ErrorKind;

use proptest::prelude::*;
use proxy_relay::{
    ForwardError, Lent, Prefixed, Pump, PumpError, RelayOptions, Transport, forward, lent,
};
use support::{How, Maybe, Noise, Opaque, check_noise, expect_end, pair, send_noise, wide_pair};
use tokio::io::{AsyncReadExt, AsyncWriteExt};

/// Moves `len` bytes through a pump and leaves `extra` behind.
async fn exact(how: How, len: usize, extra: usize, wide: bool) -> bool {
    let ((mut source, from), (to, mut sink)) = match wide {
        true => (wide_pair().await, wide_pair().await),
        false => (pair().await, pair().await),
    };
    let (mut from, mut to) = (Maybe::new(from, how), Maybe::new(to, how));
    let mut pump = Pump::exactly(len as u64);
    let sending = async {
        send_noise(&mut source, 9, len + extra).await.expect("send");
        source.shutdown().await.expect("shutdown");
    };
    let pumping = async {
        poll_fn(|cx| pump.poll(cx, &mut from, &mut to))
            .await
            .expect("pump");
        // What lies beyond is still there for somebody else.
        let mut rest = Vec::new();
        from.read_to_end(&mut rest).await.expect("read");
        rest
    };
    let checking = async { check_noise(&mut sink, 9, len).await };
    let ((), rest, spliced) = tokio::join!(sending, pumping, checking);
    assert_eq!(rest, Noise::bytes(9, len + extra)[len..]);
    assert_eq!(pump.moved(), len as u64);
    assert!(pump.is_done() && pump.is_idle());
    // An exact pump does not end the destination.
    to.write_all(b"more").await.expect("write");
    let mut more = [0; 4];
    sink.read_exact(&mut more).await.expect("read");
    spliced
}

#[tokio::test]
async fn exact_lengths_copied_and_spliced() {
    for how in [How::Copy, How::Splice] {
        for len in [0, 1, 65_535, 65_536, 65_537, 262_144, 1_048_577, 3_333_333] {
            exact(how, len, 77, false).await;
        }
    }
}

#[tokio::test]
async fn tens_of_megabytes_are_the_same_copied_and_spliced() {
    assert!(!exact(How::Copy, 48_000_001, 1_000, true).await);
    assert!(
        exact(How::Splice, 48_000_001, 1_000, true).await,
        "never spliced"
    );
    assert_eq!(lent(), Lent::default());
}

#[tokio::test]
async fn an_early_end_is_told_with_the_count() {
    for how in [How::Copy, How::Splice] {
        for len in [0, 10, 5_000_000] {
            let ((mut source, from), (to, mut sink)) = (pair().await, pair().await);
            let (mut from, mut to) = (Maybe::new(from, how), Maybe::new(to, how));
            let mut pump = Pump::exactly(len as u64 + 1);
            let sending = async {
                send_noise(&mut source, 1, len).await.expect("send");
                source.shutdown().await.expect("shutdown");
            };
            let pumping = poll_fn(|cx| pump.poll(cx, &mut from, &mut to));
            let ((), result, _) = tokio::join!(sending, pumping, check_noise(&mut sink, 1, len));
            assert_eq!(result, Err(PumpError::Truncated));
            assert_eq!(pump.moved(), len as u64);
            drop(pump);
            assert_eq!(lent(), Lent::default());
        }
    }
}

#[tokio::test]
async fn early_bytes_count_towards_an_exact_length() {
    let ((mut source, mut from), (mut to, mut sink)) = (pair().await, pair().await);
    let mut pump = Pump::exactly(8);
    assert_eq!(pump.early(b"abc"), 3);
    assert_eq!(pump.early(b""), 0);
    assert_eq!(pump.early(b"d"), 1);
    source.write_all(b"efghNEXT").await.expect("write");
    poll_fn(|cx| pump.poll(cx, &mut from, &mut to))
        .await
        .expect("pump");
    let mut got = [0; 8];
    sink.read_exact(&mut got).await.expect("read");
    assert_eq!(&got, b"abcdefgh");
    from.read_exact(&mut got[..4]).await.expect("read");
    assert_eq!(&got[..4], b"NEXT");

    let mut short = Pump::exactly(2);
    assert_eq!(short.early(b"xyz"), 2);
    poll_fn(|cx| short.poll(cx, &mut from, &mut to))
        .await
        .expect("pump");
    sink.read_exact(&mut got[..2]).await.expect("read");
    assert_eq!((&got[..2], short.moved()), (&b"xy"[..], 2));
}

#[tokio::test]
async fn an_end_is_passed_on_behind_the_data() {
    let ((mut source, mut from), (mut to, mut sink)) = (pair().await, pair().await);
    source.write_all(b"all").await.expect("write");
    source.shutdown().await.expect("shutdown");
    let mut pump = Pump::new();
    for _ in 0..2 {
        // Ready again when polled again.
        poll_fn(|cx| pump.poll(cx, &mut from, &mut to))
            .await
            .expect("pump");
    }
    let mut got = [0; 3];
    sink.read_exact(&mut got).await.expect("read");
    expect_end(&mut sink).await;
    assert_eq!((&got, pump.moved()), (b"all", 3));
}

#[tokio::test]
async fn who_failed_is_told() {
    let ((source, mut from), (mut to, sink)) = (pair().await, pair().await);
    let mut source = source;
    source.abort();
    drop(source);
    let mut pump = Pump::new();
    let read = poll_fn(|cx| pump.poll(cx, &mut from, &mut to)).await;
    assert_eq!(read, Err(PumpError::Read(ErrorKind::ConnectionReset)));

    let (mut source, mut from) = pair().await;
    let mut sink = sink;
    sink.abort();
    drop(sink);
    source.write_all(&[0; 10]).await.expect("write");
    let mut pump = Pump::new();
    let write = poll_fn(|cx| pump.poll(cx, &mut from, &mut to)).await;
    assert!(matches!(write, Err(PumpError::Write(_))), "{write:?}");
    assert_eq!(pump.moved(), 0);
}

#[tokio::test]
async fn forward_moves_and_reports() {
    let ((mut source, mut from), (mut to, mut sink)) = (pair().await, pair().await);
    let options = RelayOptions::default();
    source.write_all(b"0123456789").await.expect("write");
    let report = forward(&mut from, &mut to, 10, &options).await;
    assert_eq!((report.moved, report.outcome), (10, Ok(())));
    sink.read_exact(&mut [0; 10]).await.expect("read");
    source.write_all(b"01").await.expect("write");
    source.shutdown().await.expect("shutdown");
    let report = forward(&mut from, &mut to, 3, &options).await;
    let early = ForwardError::Failed(PumpError::Truncated);
    assert_eq!((report.moved, report.outcome), (2, Err(early)));
}

#[tokio::test]
async fn a_prefix_comes_first_and_then_the_socket() {
    let (mut source, from) = pair().await;
    let (mut to, mut sink) = pair().await;
    let mut from = Prefixed::new(from, &b"before "[..]);
    assert!(from.socket().is_none(), "bytes in front cannot be spliced");
    source.write_all(b"after").await.expect("write");
    source.shutdown().await.expect("shutdown");
    let mut pump = Pump::new();
    poll_fn(|cx| pump.poll(cx, &mut from, &mut to))
        .await
        .expect("pump");
    let mut text = String::new();
    sink.read_to_string(&mut text).await.expect("read");
    assert_eq!(text, "before after");
    assert!(from.socket().is_some());
    assert!(from.into_parts().1.is_empty());
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    /// However small the buffers on both sides are cut, nothing changes.
    #[test]
    fn any_cut_gives_the_same(
        data in proptest::collection::vec(any::<u8>(), 0..4096),
        early in 0usize..64,
        (narrow, wide) in (1usize..64, 1usize..4096),
    ) {
        let early = early.min(data.len());
        let runtime = tokio::runtime::Builder::new_current_thread().build().expect("runtime");
        let got = runtime.block_on(async {
            let (mut source, from) = tokio::io::duplex(wide);
            let (to, mut sink) = tokio::io::duplex(narrow);
            let (mut from, mut to) = (Opaque(from), Opaque(to));
            let mut pump = Pump::new();
            pump.early(&data[..early]);
            let sending = async {
                source.write_all(&data[early..]).await.expect("write");
                source.shutdown().await.expect("shutdown");
            };
            let mut got = Vec::new();
            let (_, pumped, read) = tokio::join!(
                sending,
                poll_fn(|cx| pump.poll(cx, &mut from, &mut to)),
                sink.read_to_end(&mut got),
            );
            pumped.expect("pump");
            read.expect("read");
            assert_eq!(pump.moved(), got.len() as u64);
            got
        });
        prop_assert_eq!(got, data);
    }
}
