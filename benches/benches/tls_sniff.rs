//! Reading ClientHellos, and what follows them: full handshakes and bulk data,
//! both sides on one thread.

use std::hint::black_box;
use std::path::Path;
use std::sync::Arc;

use criterion::{Criterion, Throughput, criterion_group, criterion_main};
use proxy_tls::{
    Acceptor, Connector, PostQuantum, SingleCertificate, Sniffer, TlsOptions, TlsStream,
    load_certificate, load_roots, provider, sniff,
};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::UnixStream;
use tokio::runtime::{Builder, Runtime};

const OPENSSL: &[u8] = include_bytes!("../../proxy-tls/tests/data/openssl.bin");
const CURL: &[u8] = include_bytes!("../../proxy-tls/tests/data/curl.bin");

fn hellos(c: &mut Criterion) {
    let mut group = c.benchmark_group("hello");
    for (name, input) in [("openssl", OPENSSL), ("curl", CURL)] {
        group.throughput(Throughput::Bytes(input.len() as u64));
        group.bench_function(name, |b| {
            b.iter(|| black_box(sniff(black_box(input)).is_ok()))
        });
    }
    let pieces = fragmented(CURL, 100);
    group.bench_function("fragmented", |b| {
        b.iter(|| black_box(sniff(black_box(&pieces)).is_ok()));
    });
    group.bench_function("byte-by-byte", |b| {
        b.iter(|| {
            let mut sniffer = Sniffer::default();
            (1..=CURL.len()).all(|end| black_box(sniffer.sniff(&CURL[..end]).is_ok()))
        });
    });
    group.finish();
}

/// One record cut into several.
fn fragmented(record: &[u8], size: usize) -> Vec<u8> {
    let (head, message) = record.split_at(5);
    let mut out = Vec::new();
    for part in message.chunks(size) {
        out.extend_from_slice(&head[..3]);
        out.extend_from_slice(&u16::try_from(part.len()).expect("small").to_be_bytes());
        out.extend_from_slice(part);
    }
    out
}

struct Ends {
    acceptor: Acceptor,
    connector: Connector,
}

impl Ends {
    fn new(post_quantum: PostQuantum) -> Self {
        let file = concat!(
            env!("CARGO_MANIFEST_DIR"),
            "/../proxy-tls/tests/data/sec1.pem"
        );
        let file = Path::new(file);
        let provider = provider(post_quantum);
        let options = TlsOptions::default();
        let pair = load_certificate(&provider, file, file).expect("a pair");
        let shown = Arc::new(SingleCertificate::new(pair));
        let acceptor = Acceptor::new(Arc::clone(&provider), shown, &options).expect("acceptor");
        let roots = load_roots(file).expect("a root");
        let connector = Connector::new(provider, roots, &options).expect("connector");
        Self {
            acceptor,
            connector,
        }
    }

    /// A full handshake: as the client never reads, it never has a ticket.
    async fn shake(&self) -> (TlsStream<UnixStream>, TlsStream<UnixStream>) {
        let (client, server) = UnixStream::pair().expect("a pair");
        let name = "localhost".try_into().expect("a name");
        let (client, server) = tokio::join!(
            self.connector.connect(name, client),
            self.acceptor.accept(server),
        );
        (client.expect("connected"), server.expect("accepted"))
    }
}

fn handshakes(c: &mut Criterion) {
    let runtime = runtime();
    let mut group = c.benchmark_group("handshake");
    for (name, post_quantum) in [
        ("x25519", PostQuantum::Omit),
        ("x25519-mlkem768", PostQuantum::Prefer),
    ] {
        let ends = Ends::new(post_quantum);
        group.bench_function(name, |b| {
            b.iter(|| drop(runtime.block_on(ends.shake())));
        });
    }
    group.finish();
}

fn data(c: &mut Criterion) {
    let runtime = runtime();
    let (mut client, mut server) = runtime.block_on(Ends::new(PostQuantum::Omit).shake());
    let mut group = c.benchmark_group("data");
    for (name, size) in [("1k", 1024), ("256k", 256 * 1024)] {
        let sent = vec![7; size];
        let mut got = vec![0; size];
        group.throughput(Throughput::Bytes(size as u64));
        group.bench_function(name, |b| {
            b.iter(|| {
                let send = async {
                    server.write_all(&sent).await?;
                    server.flush().await
                };
                let (sent, read) =
                    runtime.block_on(async { tokio::join!(send, client.read_exact(&mut got)) });
                sent.expect("sent");
                read.expect("read")
            });
        });
    }
    group.finish();
}

fn runtime() -> Runtime {
    let mut builder = Builder::new_current_thread();
    builder.enable_all().build().expect("a runtime")
}

criterion_group!(benches, hellos, handshakes, data);
criterion_main!(benches);
