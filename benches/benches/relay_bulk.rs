//! A bulk stream through a relay on loopback: copied only, and spliced when the
//! relay finds it pays.

use std::future::poll_fn;
use std::hint::black_box;
use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};

use criterion::{Criterion, Throughput, criterion_group, criterion_main};
use proxy_relay::{Pump, Transport};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt, ReadBuf};
use tokio::net::{TcpListener, TcpStream};
use tokio::runtime::{Builder, Runtime};

/// Hides its socket, so that it can only be copied.
struct Opaque(TcpStream);

impl AsyncRead for Opaque {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_read(cx, buf)
    }
}

impl AsyncWrite for Opaque {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.0).poll_write(cx, buf)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_shutdown(cx)
    }
}

impl Transport for Opaque {}

async fn pair() -> io::Result<(TcpStream, TcpStream)> {
    let listener = TcpListener::bind("127.0.0.1:0").await?;
    let ours = TcpStream::connect(listener.local_addr()?).await?;
    Ok((ours, listener.accept().await?.0))
}

async fn pump(mut from: impl Transport, mut to: impl Transport) {
    let mut pump = Pump::new();
    // Ends with the benchmark, by whichever socket is closed first.
    let _ = poll_fn(|cx| pump.poll(cx, &mut from, &mut to)).await;
}

/// A source, a sink and a pump from one to the other, all on one thread.
struct Stream {
    source: TcpStream,
    sink: TcpStream,
    runtime: Runtime,
}

impl Stream {
    fn new(opaque: bool) -> io::Result<Self> {
        let runtime = Builder::new_current_thread().enable_all().build()?;
        let (source, from) = runtime.block_on(pair())?;
        let (to, sink) = runtime.block_on(pair())?;
        match opaque {
            true => drop(runtime.spawn(pump(Opaque(from), Opaque(to)))),
            false => drop(runtime.spawn(pump(from, to))),
        }
        Ok(Self {
            source,
            sink,
            runtime,
        })
    }

    fn pass(&mut self, block: &[u8], sink: &mut [u8]) -> io::Result<()> {
        let (source, far) = (&mut self.source, &mut self.sink);
        self.runtime.block_on(async {
            let sending = async {
                for _ in 0..BLOCKS {
                    source.write_all(block).await?;
                }
                Ok(())
            };
            let reading = async {
                let mut left = BLOCKS * block.len();
                while left > 0 {
                    left -= far.read(sink).await?;
                }
                Ok(())
            };
            tokio::try_join!(sending, reading).map(drop)
        })
    }
}

const BLOCKS: usize = 64;
const BLOCK: usize = 256 * 1024;

fn bulk(c: &mut Criterion) {
    let mut group = c.benchmark_group("relay_bulk");
    group.throughput(Throughput::Bytes((BLOCKS * BLOCK) as u64));
    group.sample_size(20);
    for (name, opaque) in [("copy", true), ("auto", false)] {
        let mut stream = Stream::new(opaque).expect("sockets on loopback");
        let (block, mut sink) = (vec![7; BLOCK], vec![0; BLOCK]);
        group.bench_function(name, |b| {
            b.iter(|| stream.pass(black_box(&block), &mut sink).expect("a stream"));
        });
    }
    group.finish();
}

criterion_group!(benches, bulk);
criterion_main!(benches);
