//! What happens to bytes, ends and failures after the handshake.

mod common;

use std::future::poll_fn;
use std::io::{self, IoSlice};
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::task::Poll;

use common::{ALL, Change, Identity, Seen, Spy, TLS12, TLS13, bounded, localhost, pattern, pipe};
use proptest::prelude::*;
use proxy_relay::Transport;
use proxy_tls::{TlsOptions, TlsStream, rustls};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt, DuplexStream, ReadBuf, split};
use tokio::net::{TcpListener, TcpStream};

type Ours = TlsStream<Spy<DuplexStream>>;
type Theirs = tokio_rustls::client::TlsStream<Spy<DuplexStream>>;

/// Both ends ours.
async fn pair(room: usize) -> (Ours, Ours) {
    let id = Identity::localhost();
    let options = TlsOptions::default();
    let (acceptor, connector) = (id.acceptor(&options), id.connector(&options));
    let (client, server) = pipe(room);
    let (client, server) = bounded(async {
        tokio::join!(
            connector.connect(localhost(), client),
            acceptor.accept(server)
        )
    })
    .await;
    (client.expect("connected"), server.expect("accepted"))
}

/// An independent client and our server.
async fn mixed(
    room: usize,
    versions: &[&'static rustls::SupportedProtocolVersion],
) -> (Theirs, Ours) {
    let id = Identity::localhost();
    let (acceptor, connector) = (
        id.acceptor(&TlsOptions::default()),
        id.client(versions, &[]),
    );
    let (client, server) = pipe(room);
    let (client, server) = bounded(async {
        tokio::join!(
            connector.connect(localhost(), client),
            acceptor.accept(server)
        )
    })
    .await;
    (client.expect("connected"), server.expect("accepted"))
}

async fn tcp_pair() -> (TlsStream<TcpStream>, TlsStream<TcpStream>) {
    let id = Identity::localhost();
    let options = TlsOptions::default();
    let (acceptor, connector) = (id.acceptor(&options), id.connector(&options));
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("bound");
    let address = listener.local_addr().expect("an address");
    let (client, server) = tokio::join!(TcpStream::connect(address), listener.accept());
    let (client, server) = (client.expect("connected"), server.expect("accepted").0);
    let (client, server) = bounded(async {
        tokio::join!(
            connector.connect(localhost(), client),
            acceptor.accept(server)
        )
    })
    .await;
    (client.expect("connected"), server.expect("accepted"))
}

fn seen(stream: &Ours) -> Arc<Seen> {
    Arc::clone(&stream.get_ref().seen)
}

/// Sends and receives at once, from two tasks, and closes in order.
async fn exchange<S>(stream: S, data: Arc<Vec<u8>>, expected: Arc<Vec<u8>>, step: usize)
where
    S: AsyncRead + AsyncWrite + Send + 'static,
{
    let (mut read, mut write) = split(stream);
    let sender = tokio::spawn(async move {
        for part in data.chunks(step) {
            write.write_all(part).await.expect("sent");
        }
        write.shutdown().await.expect("closed");
        write
    });
    let mut got = Vec::new();
    read.read_to_end(&mut got).await.expect("a clean end");
    assert!(got == *expected, "{} of {}", got.len(), expected.len());
    sender.await.expect("no panic");
}

async fn both_ways<A, B>(a: A, b: B, len: usize)
where
    A: AsyncRead + AsyncWrite + Send + 'static,
    B: AsyncRead + AsyncWrite + Send + 'static,
{
    let (up, down) = (Arc::new(pattern(len, 1)), Arc::new(pattern(len, 2)));
    let client = tokio::spawn(exchange(a, Arc::clone(&up), Arc::clone(&down), 300_000));
    let server = tokio::spawn(exchange(b, down, up, 100_000));
    bounded(async {
        client.await.expect("no panic");
        server.await.expect("no panic");
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn sixteen_megabytes_both_ways_over_tcp() {
    let (client, server) = tcp_pair().await;
    both_ways(client, server, 16 << 20).await;
}

#[tokio::test]
async fn megabytes_both_ways_on_one_thread() {
    let (client, server) = pair(64 * 1024).await;
    both_ways(client, server, 16 << 20).await;
    // Far less room than a record.
    let (client, server) = pair(700).await;
    both_ways(client, server, 1 << 20).await;
}

#[tokio::test]
async fn megabytes_with_an_independent_peer() {
    for versions in [TLS13, TLS12] {
        let (client, server) = mixed(100_000, versions).await;
        both_ways(client, server, 4 << 20).await;
    }
}

#[tokio::test]
async fn p75_half_close_in_either_direction() {
    let (client, server) = pair(64 * 1024).await;
    for (mut asks, mut answers) in [(client, server), {
        let (client, server) = pair(64 * 1024).await;
        (server, client)
    }] {
        let long = pattern(300_000, 3);
        let ask = async {
            asks.write_all(b"question").await.expect("sent");
            asks.shutdown().await.expect("closed");
            let error = asks.write_all(b"more").await.expect_err("closed");
            assert_eq!(error.kind(), io::ErrorKind::BrokenPipe);
            let mut got = Vec::new();
            asks.read_to_end(&mut got).await.expect("a clean end");
            got
        };
        let answer = async {
            let mut got = Vec::new();
            answers.read_to_end(&mut got).await.expect("a clean end");
            assert_eq!(got, b"question");
            assert_eq!(answers.read(&mut [0; 9]).await.expect("still"), 0);
            answers.write_all(&long).await.expect("sent");
            answers.shutdown().await.expect("closed");
            answers.shutdown().await.expect("again");
        };
        let (got, ()) = bounded(async { tokio::join!(ask, answer) }).await;
        assert!(got == long);
    }
}

#[tokio::test]
async fn p75_close_notify_is_sent_and_asked_for() {
    for versions in [TLS13, TLS12] {
        // Sent: the independent client accepts the end.
        let (mut client, mut server) = mixed(64 * 1024, versions).await;
        server.write_all(b"all").await.expect("sent");
        server.shutdown().await.expect("closed");
        let mut got = Vec::new();
        bounded(client.read_to_end(&mut got)).await.expect("clean");
        assert_eq!(got, b"all");

        // Asked for: a cut is told from an end, after the data before it.
        let (mut client, mut server) = mixed(64 * 1024, versions).await;
        client.write_all(b"half").await.expect("sent");
        client.flush().await.expect("sent");
        drop(client);
        let mut got = Vec::new();
        let end = bounded(server.read_to_end(&mut got)).await;
        assert_eq!(end.expect_err("a cut").kind(), io::ErrorKind::UnexpectedEof);
        assert_eq!(got, b"half");
        let again = server.read(&mut [0; 9]).await.expect_err("still cut");
        assert_eq!(again.kind(), io::ErrorKind::UnexpectedEof);
    }
}

#[tokio::test]
async fn p75_a_drop_is_a_cut() {
    let (mut client, mut server) = mixed(64 * 1024, ALL).await;
    server.write_all(b"half").await.expect("sent");
    drop(server);
    let end = bounded(client.read_to_end(&mut Vec::new())).await;
    assert_eq!(end.expect_err("a cut").kind(), io::ErrorKind::UnexpectedEof);
}

#[tokio::test]
async fn data_before_a_failure_arrives() {
    let (mut client, mut server) = mixed(64 * 1024, ALL).await;
    client.write_all(b"good").await.expect("sent");
    client.flush().await.expect("sent");
    // A record that no key has made.
    let forged = [&[23, 3, 3, 0, 40][..], &[9; 40]].concat();
    client.get_mut().0.write_all(&forged).await.expect("sent");
    let mut got = Vec::new();
    let error = bounded(server.read_to_end(&mut got)).await;
    let error = error.expect_err("forged");
    assert_eq!(error.kind(), io::ErrorKind::InvalidData);
    assert!(error.to_string().contains("decrypt"), "{error}");
    assert_eq!(got, b"good");
    // It stays so, in both directions, and the client is told.
    let again = server.read(&mut [0; 9]).await.expect_err("failed");
    assert_eq!(again.kind(), io::ErrorKind::InvalidData);
    let write = server.write(b"x").await.expect_err("failed");
    assert_eq!(write.kind(), io::ErrorKind::BrokenPipe);
    server.shutdown().await.expect("of the stream below");
    let told = bounded(client.read(&mut [0; 9]))
        .await
        .expect_err("an alert");
    let alert = rustls::AlertDescription::BadRecordMac;
    let told = told.downcast::<rustls::Error>().expect("of TLS");
    assert_eq!(told, rustls::Error::AlertReceived(alert));
}

#[tokio::test]
async fn keys_are_updated_on_request() {
    let (mut client, mut server) = mixed(64 * 1024, TLS13).await;
    for round in 0..5 {
        client.get_mut().1.refresh_traffic_keys().expect("allowed");
        client.write_all(&[round; 100]).await.expect("sent");
        client.flush().await.expect("sent");
        let mut got = [0; 100];
        bounded(server.read_exact(&mut got)).await.expect("read");
        assert_eq!(got, [round; 100]);
        server.write_all(&[round; 200]).await.expect("sent");
        server.flush().await.expect("sent");
        let mut got = [0; 200];
        bounded(client.read_exact(&mut got)).await.expect("read");
        assert_eq!(got, [round; 200]);
    }
}

/// Bytes that TLS 1.3 adds to a record.
const OVERHEAD: usize = 22;

#[tokio::test]
async fn a_small_message_is_one_record_and_one_call() {
    let (mut client, mut server) = pair(1 << 20).await;
    client.write_all(b"ask").await.expect("sent");
    server.read_exact(&mut [0; 3]).await.expect("read");
    let (sender, reader) = (seen(&server), seen(&client));
    sender.take_writes();
    server.write_all(&[7; 1024]).await.expect("sent");
    assert_eq!(sender.take_writes(), (1, 1024 + OVERHEAD));

    // A head and its body too.
    let slices = [
        IoSlice::new(b""),
        IoSlice::new(&[1; 200]),
        IoSlice::new(&[2; 1024]),
    ];
    assert!(server.is_write_vectored());
    let sent = server.write_vectored(&slices).await.expect("sent");
    assert_eq!(sent, 1224);
    assert_eq!(sender.take_writes(), (1, 1224 + OVERHEAD));

    // And both are read at once.
    reader.take_reads();
    let mut got = vec![0; 100_000];
    let mut filled = client.read(&mut got).await.expect("read");
    // The first bytes wait behind a session ticket.
    while filled < 2248 {
        filled += client.read(&mut got[filled..]).await.expect("read");
    }
    assert_eq!(filled, 2248);
    assert_eq!(got[..1024], [7; 1024]);
    assert_eq!(got[1024..1224], [1; 200]);
    assert!(reader.take_reads() <= 1);
    assert_eq!(server.write(b"").await.expect("nothing"), 0);
    assert_eq!(server.write_vectored(&[]).await.expect("nothing"), 0);
    assert_eq!(sender.take_writes(), (0, 0));
}

#[tokio::test]
async fn bulk_takes_few_calls() {
    let (mut client, mut server) = pair(1 << 20).await;
    let (sender, reader) = (seen(&server), seen(&client));
    let data = pattern(256 * 1024, 4);
    let mut got = vec![0; 256 * 1024];
    for round in 0..4 {
        sender.take_writes();
        reader.take_reads();
        server.write_all(&data).await.expect("sent");
        let (writes, bytes) = sender.take_writes();
        assert_eq!(bytes, data.len() + 16 * OVERHEAD);
        let most = if round == 0 { 3 } else { 1 };
        assert!(writes <= most, "{writes} writes");
        got.fill(0);
        client.read_exact(&mut got).await.expect("read");
        assert!(got == data);
        assert!(reader.take_reads() <= 3);
    }
    // As a vectored write: large pieces go their own way.
    let slices = [IoSlice::new(&data), IoSlice::new(b"tail")];
    let sent = server.write_vectored(&slices).await.expect("sent");
    assert_eq!(sent, data.len());
}

#[tokio::test]
async fn what_a_full_stream_left_over_is_sent_by_reading() {
    let (mut client, mut server) = pair(4096).await;
    let data = pattern(20_000, 5);
    let taken = server.write(&data).await.expect("taken");
    assert_eq!(taken, data.len());
    // The server only waits for the next request from now on.
    let server = tokio::spawn(async move {
        let mut request = [0; 4];
        server.read_exact(&mut request).await.expect("read");
        request
    });
    let mut got = vec![0; data.len()];
    bounded(client.read_exact(&mut got)).await.expect("read");
    assert!(got == data);
    client.write_all(b"next").await.expect("sent");
    assert_eq!(bounded(server).await.expect("no panic"), *b"next");
}

#[tokio::test]
async fn a_slow_reader_costs_little() {
    let (mut client, mut server) = pair(1024).await;
    let data = pattern(1 << 20, 6);
    let mut sent = 0;
    let mut got = Vec::new();
    let mut most_ahead = 0;
    while got.len() < data.len() {
        // Write until it waits, then read a little.
        poll_fn(|cx| {
            while sent < data.len() {
                match Pin::new(&mut server).poll_write(cx, &data[sent..]) {
                    Poll::Ready(taken) => sent += taken.expect("taken"),
                    Poll::Pending => break,
                }
            }
            let _ = Pin::new(&mut server).poll_flush(cx);
            Poll::Ready(())
        })
        .await;
        most_ahead = most_ahead.max(sent - got.len());
        let mut part = [0; 5000];
        let read = poll_fn(|cx| {
            let mut buf = ReadBuf::new(&mut part);
            let _ = Pin::new(&mut client).poll_read(cx, &mut buf)?;
            Poll::Ready(Ok::<_, io::Error>(buf.filled().len()))
        })
        .await
        .expect("read");
        got.extend_from_slice(&part[..read]);
        // A new budget.
        tokio::task::yield_now().await;
    }
    assert!(got == data);
    // The first quantum and what the pipe and the reader hold.
    assert!(most_ahead <= 64 * 1024 + 20_000, "{most_ahead}");
}

#[tokio::test]
async fn a_writer_in_another_task_is_not_forgotten() {
    // The reader of the same stream pushes the writer's bytes, so the pipe
    // wakes the reader's task; the writer must still go on, even when the
    // reader is gone.
    for abandon in [false, true] {
        let (mut client, server) = pair(1000).await;
        let (mut read, mut write) = split(server);
        let data = Arc::new(pattern(200_000, 7));
        let sent = Arc::clone(&data);
        let writer = tokio::spawn(async move {
            write.write_all(&sent).await.expect("sent");
            write.flush().await.expect("sent");
            write
        });
        tokio::task::yield_now().await;
        let reader = tokio::spawn(async move {
            let mut byte = [0];
            read.read_exact(&mut byte).await.expect("read");
            read
        });
        tokio::task::yield_now().await;
        if abandon {
            reader.abort();
        }
        let mut got = vec![0; data.len()];
        bounded(client.read_exact(&mut got)).await.expect("read");
        assert!(got == *data);
        let write = bounded(writer).await.expect("no panic");
        if !abandon {
            client.write_all(b"x").await.expect("sent");
            bounded(reader).await.expect("no panic");
        }
        drop(write);
    }
}

#[tokio::test]
async fn a_transport_like_any_other() {
    let (mut client, _server) = pair(64 * 1024).await;
    assert!(client.socket().is_none());
    client.abort();
    assert_eq!(seen(&client).aborts.load(Ordering::Relaxed), 1);
}

#[tokio::test]
async fn tls_inside_tls() {
    let id = Identity::localhost();
    let options = TlsOptions::default();
    let (acceptor, connector) = (id.acceptor(&options), id.connector(&options));
    let (client, server) = pair(64 * 1024).await;
    let (client, server) = bounded(async {
        tokio::join!(
            connector.connect(localhost(), client),
            acceptor.accept(server)
        )
    })
    .await;
    both_ways(
        client.expect("connected"),
        server.expect("accepted"),
        1 << 20,
    )
    .await;
}

#[derive(Clone, Copy, Debug)]
enum Step {
    Flush,
    Read(usize),
    Write(usize),
    WriteParts(usize, usize),
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let size = || prop_oneof![0usize..50, 0usize..40_000, Just(16_384), Just(300_000)];
    let step = prop_oneof![
        Just(Step::Flush),
        size().prop_map(Step::Read),
        size().prop_map(Step::Write),
        (size(), size()).prop_map(|(a, b)| Step::WriteParts(a, b)),
    ];
    proptest::collection::vec(step, 1..30)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(40))]

    /// Single polls in any order, on a pipe of any size: the bytes read are the
    /// bytes written.
    #[test]
    fn any_order_of_polls(steps in steps(), room in prop_oneof![1usize..100, 1000usize..200_000]) {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build()?;
        let (sent, got) = runtime.block_on(async {
            let (mut client, mut server) = pair(room).await;
            let data = pattern(700_000, 8);
            let (mut sent, mut got) = (Vec::new(), Vec::new());
            for step in steps {
                // Bytes are counted as the stream counts them.
                tokio::task::coop::unconstrained(poll_fn(|cx| {
                    let client = Pin::new(&mut client);
                    let from = sent.len() % 1000;
                    match step {
                        Step::Flush => drop(client.poll_flush(cx)),
                        Step::Write(len) => {
                            if let Poll::Ready(n) = client.poll_write(cx, &data[from..from + len]) {
                                sent.extend_from_slice(&data[from..from + n.expect("taken")]);
                            }
                        }
                        Step::WriteParts(a, b) => {
                            let (a, b) = data[from..from + a + b].split_at(a);
                            let parts = [IoSlice::new(a), IoSlice::new(b)];
                            if let Poll::Ready(n) = client.poll_write_vectored(cx, &parts) {
                                let all = [a, b].concat();
                                sent.extend_from_slice(&all[..n.expect("taken")]);
                            }
                        }
                        Step::Read(len) => {
                            let mut part = vec![0; len];
                            let mut buf = ReadBuf::new(&mut part);
                            let _ = Pin::new(&mut server).poll_read(cx, &mut buf);
                            got.extend_from_slice(buf.filled());
                        }
                    }
                    Poll::Ready(())
                }))
                .await;
            }
            let mut rest = Vec::new();
            let (closed, read) = bounded(async {
                tokio::join!(client.shutdown(), server.read_to_end(&mut rest))
            })
            .await;
            closed.expect("closed");
            read.expect("a clean end");
            got.extend(rest);
            (sent, got)
        });
        prop_assert!(sent == got, "{} of {}", got.len(), sent.len());
    }
}

#[tokio::test]
async fn a_spoilt_record_is_never_data() {
    // Spoils one byte somewhere after the handshake.
    for at in (3000..60_000).step_by(2711) {
        let id = Identity::localhost();
        let options = TlsOptions::default();
        let (acceptor, connector) = (id.acceptor(&options), id.connector(&options));
        let (client, server) = common::changed_pipe(200_000, Change::Flip(at, 1), Change::None);
        let (client, server) = bounded(async {
            tokio::join!(
                connector.connect(localhost(), client),
                acceptor.accept(server)
            )
        })
        .await;
        let (mut client, mut server) = (client.expect("connected"), server.expect("accepted"));
        let data = pattern(100_000, 9);
        client.write_all(&data).await.expect("sent");
        client.shutdown().await.expect("closed");
        let mut got = Vec::new();
        let end = bounded(server.read_to_end(&mut got)).await;
        end.expect_err("spoilt");
        assert!(data.starts_with(&got) && got.len() < at, "{at}");
    }
}

#[tokio::test]
async fn an_idle_stream_knows_whether_anything_came() {
    let (mut client, mut server) = tcp_pair().await;
    // What belongs to the handshake is read with the first bytes.
    server.write_all(b"hello").await.expect("sent");
    client.read_exact(&mut [0; 5]).await.expect("received");
    assert!(client.is_quiet());
    server.write_all(b"more").await.expect("sent");
    client.get_ref().peek(&mut [0]).await.expect("readable");
    assert!(!client.is_quiet(), "bytes nobody asked for");

    let (mut client, mut server) = tcp_pair().await;
    server.write_all(b"hello").await.expect("sent");
    client.read_exact(&mut [0; 2]).await.expect("received");
    assert!(!client.is_quiet(), "bytes not yet read");
    client.read_exact(&mut [0; 3]).await.expect("received");
    assert!(client.is_quiet());
    server.shutdown().await.expect("closed");
    client.get_ref().peek(&mut [0]).await.expect("readable");
    assert!(!client.is_quiet(), "closed");
}
