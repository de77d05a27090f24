//! A small question and answer through a relay on loopback, beside the same
//! without a relay.

use std::io;

use criterion::{Criterion, criterion_group, criterion_main};
use proxy_relay::{RelayOptions, relay};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::runtime::{Builder, Runtime};

async fn pair() -> io::Result<(TcpStream, TcpStream)> {
    let listener = TcpListener::bind("127.0.0.1:0").await?;
    let ours = TcpStream::connect(listener.local_addr()?).await?;
    let (theirs, _) = listener.accept().await?;
    ours.set_nodelay(true)?;
    theirs.set_nodelay(true)?;
    Ok((ours, theirs))
}

/// A client and an origin, with a relay between them or none, all on one
/// thread.
struct Line {
    client: TcpStream,
    origin: TcpStream,
    runtime: Runtime,
}

impl Line {
    fn direct() -> io::Result<Self> {
        let runtime = Builder::new_current_thread().enable_all().build()?;
        let (client, origin) = runtime.block_on(pair())?;
        Ok(Self {
            client,
            origin,
            runtime,
        })
    }

    fn relayed() -> io::Result<Self> {
        let runtime = Builder::new_current_thread().enable_all().build()?;
        let (client, mut near) = runtime.block_on(pair())?;
        let (mut far, origin) = runtime.block_on(pair())?;
        runtime.spawn(async move { relay(&mut near, &mut far, &RelayOptions::default()).await });
        Ok(Self {
            client,
            origin,
            runtime,
        })
    }

    fn exchange(&mut self) -> io::Result<()> {
        let (client, origin) = (&mut self.client, &mut self.origin);
        self.runtime.block_on(async {
            let mut buffer = [0; 1024];
            client.write_all(&[1; 100]).await?;
            origin.read_exact(&mut buffer[..100]).await?;
            origin.write_all(&[2; 1024]).await?;
            client.read_exact(&mut buffer).await?;
            Ok(())
        })
    }
}

fn small(c: &mut Criterion) {
    let mut group = c.benchmark_group("relay_small");
    let lines = [("direct", Line::direct()), ("relayed", Line::relayed())];
    for (name, line) in lines {
        let mut line = line.expect("sockets on loopback");
        group.bench_function(name, |b| b.iter(|| line.exchange().expect("an exchange")));
    }
    group.finish();
}

criterion_group!(benches, small);
criterion_main!(benches);
