//! A GET and its 1 KB answer through the HTTP server on loopback, kept
//! connections all along.

use std::io;

use criterion::{Criterion, criterion_group, criterion_main};
use proxy_core::{Ask, ConnectError, Connected, Credentials, Denial, Gateway, Peer, Target};
use proxy_http::Server;
use proxy_relay::Dialer;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::runtime::{Builder, Runtime};

struct Open(Dialer);

impl Gateway for Open {
    type Identity = ();
    type Session = ();
    type Upstream = TcpStream;

    async fn authenticate(&self, _: &Peer, _: Option<Credentials<'_>>) -> Result<(), Denial> {
        Ok(())
    }

    async fn authorize(&self, _: &(), _: &Ask<'_>) -> Result<(), Denial> {
        Ok(())
    }

    async fn connect(
        &self,
        _: &mut (),
        to: Target<'_>,
    ) -> Result<Connected<TcpStream>, ConnectError> {
        self.0.dial(to).await.map(Connected::fresh)
    }
}

/// A client, a proxy and an origin on one thread.
struct Line {
    client: TcpStream,
    request: Vec<u8>,
    runtime: Runtime,
}

impl Line {
    fn new() -> io::Result<Self> {
        let runtime = Builder::new_current_thread().enable_all().build()?;
        let (client, request) = runtime.block_on(async {
            let origin = TcpListener::bind("127.0.0.1:0").await?;
            let name = origin.local_addr()?;
            tokio::spawn(answer(origin));
            let proxy = TcpListener::bind("127.0.0.1:0").await?;
            let local = proxy.local_addr()?;
            let client = TcpStream::connect(local).await?;
            client.set_nodelay(true)?;
            let (stream, remote) = proxy.accept().await?;
            stream.set_nodelay(true)?;
            tokio::spawn(async move {
                let server = Server::new(Open(Dialer::default()));
                server.serve(stream, Peer { remote, local }).await
            });
            let request = format!("GET http://{name}/ HTTP/1.1\r\nHost: {name}\r\n\r\n");
            io::Result::Ok((client, request.into_bytes()))
        })?;
        Ok(Self {
            client,
            request,
            runtime,
        })
    }

    fn exchange(&mut self) -> io::Result<()> {
        let Self {
            client,
            request,
            runtime,
        } = self;
        runtime.block_on(async {
            client.write_all(request).await?;
            let mut answer = [0; ANSWER_HEAD.len() + BODY];
            client.read_exact(&mut answer).await?;
            Ok(())
        })
    }
}

/// Answers whatever is read in one piece.
async fn answer(listener: TcpListener) -> io::Result<()> {
    let (mut stream, _) = listener.accept().await?;
    stream.set_nodelay(true)?;
    let answer = [ANSWER_HEAD, &[b'x'; BODY]].concat();
    let mut request = [0; 4096];
    while stream.read(&mut request).await? > 0 {
        stream.write_all(&answer).await?;
    }
    Ok(())
}

const ANSWER_HEAD: &[u8] = b"HTTP/1.1 200 OK\r\nContent-Length: 1024\r\n\r\n";
const BODY: usize = 1024;

fn roundtrip(c: &mut Criterion) {
    let mut line = Line::new().expect("loopback works");
    c.bench_function("request_roundtrip/1k", |b| {
        b.iter(|| line.exchange().expect("the proxy answers"));
    });
}

criterion_group!(benches, roundtrip);
criterion_main!(benches);
