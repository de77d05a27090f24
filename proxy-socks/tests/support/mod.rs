//! A gateway that keeps a log, streams in memory, and origins on loopback.
#![allow(dead_code, reason = "each test file uses a part")]
#![allow(clippy::unwrap_used, reason = "a panic is how a test fails")]

use std::future::pending;
use std::io;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll};
use std::time::Duration;

use proxy_core::{
    Ask, ConnectError, ConnectErrorKind, Connected, Credentials, Denial, Gateway, Host, Peer,
    Report, Shaping, Target,
};
use proxy_relay::{AssociationReport, Associations, Passage, Transport};
use proxy_socks::{Config, Datagrams, ServeError, Server};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt, DuplexStream, ReadBuf};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinHandle;

/// Knows alice; connects to loopback; some names have a fate of their own.
#[derive(Clone, Default)]
pub(crate) struct Direct(Arc<Inner>);

#[derive(Default)]
struct Inner {
    log: Mutex<Vec<String>>,
    dialling: AtomicUsize,
    shaping: Mutex<Shaping>,
    associations: Associations,
}

impl Direct {
    /// What `finished` was told: user, operation, target, status, bytes, end.
    pub(crate) fn log(&self) -> Vec<String> {
        self.0.log.lock().unwrap().clone()
    }

    /// Connections being set up.
    pub(crate) fn dialling(&self) -> usize {
        self.0.dialling.load(Ordering::Relaxed)
    }

    /// What sessions are limited by.
    pub(crate) fn shape(&self, shaping: Shaping) {
        *self.0.shaping.lock().unwrap() = shaping;
    }
}

impl Gateway for Direct {
    type Identity = String;
    type Session = ();
    type Upstream = TcpStream;

    async fn authenticate(&self, _: &Peer, who: Option<Credentials<'_>>) -> Result<String, Denial> {
        match who {
            None => Ok("anyone".to_owned()),
            Some(claim) if (claim.user, claim.password) == (b"alice", b"secret") => {
                Ok("alice".to_owned())
            }
            Some(claim) if claim.user == b"busy" => Err(Denial::Busy),
            Some(_) => Err(Denial::Challenge),
        }
    }

    async fn authorize(&self, _: &String, ask: &Ask<'_>) -> Result<(), Denial> {
        match ask.target.host {
            Host::Name("busy.test") => Err(Denial::Busy),
            Host::Name("challenge.test") => Err(Denial::Challenge),
            Host::Name("forbidden.test") => Err(Denial::Forbid),
            Host::Name("unroutable.test") => Err(Denial::Unroutable),
            _ => Ok(()),
        }
    }

    async fn connect(
        &self,
        (): &mut (),
        to: Target<'_>,
    ) -> Result<Connected<TcpStream>, ConnectError> {
        self.0.dialling.fetch_add(1, Ordering::Relaxed);
        let _guard = Dialling(&self.0.dialling);
        let ip = match to.host {
            Host::Ip(ip) => ip,
            Host::Name("localhost") => [127, 0, 0, 1].into(),
            Host::Name("never.test") => pending().await,
            Host::Name(_) => return Err(ConnectError::origin(ConnectErrorKind::NameNotFound)),
        };
        let stream = TcpStream::connect((ip, to.port)).await?;
        Ok(Connected::fresh(stream))
    }

    fn shaping(&self, (): &()) -> Shaping {
        self.0.shaping.lock().unwrap().clone()
    }

    fn finished(&self, who: Option<&String>, session: Option<()>, report: &Report<'_>) {
        let line = format!(
            "{} {} {} {} {}/{} {}{}",
            who.map_or("-", |who| who),
            report.operation.map_or("-", |operation| operation.word()),
            report
                .target
                .map_or_else(|| "-".to_owned(), |target| target.to_string()),
            report
                .status
                .map_or_else(|| "-".to_owned(), |status| status.to_string()),
            report.up,
            report.down,
            report.end,
            if session.is_some() {
                ""
            } else {
                " (no session)"
            },
        );
        self.0.log.lock().unwrap().push(line);
    }
}

impl Datagrams for Direct {
    fn associations(&self) -> &Associations {
        &self.0.associations
    }

    async fn admit(
        &self,
        (): &(),
        target: Target<'_>,
        _: Option<SocketAddr>,
    ) -> Result<Passage, ConnectError> {
        let ip = match target.host {
            Host::Ip(ip) => ip,
            Host::Name("localhost") => [127, 0, 0, 1].into(),
            Host::Name("never.test") => pending().await,
            Host::Name(_) => return Err(ConnectError::origin(ConnectErrorKind::Forbidden)),
        };
        Ok(SocketAddr::new(ip, target.port).into())
    }

    fn dissociated(&self, (): &(), report: &AssociationReport) {
        let line = format!("{} sent, {} dropped", report.sent, report.drops.total());
        self.0.log.lock().unwrap().push(line);
    }
}

struct Dialling<'a>(&'a AtomicUsize);

impl Drop for Dialling<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

/// One connection to a server under test.
pub(crate) struct Session<S> {
    pub(crate) client: S,
    pub(crate) served: JoinHandle<Result<(), ServeError>>,
    pub(crate) gateway: Direct,
}

impl<S> Session<S> {
    /// What `serve` returned, once it has.
    pub(crate) async fn result(&mut self) -> Result<(), ServeError> {
        soon(&mut self.served).await.expect("no panic")
    }

    /// The only line of the log, once the connection is over.
    pub(crate) async fn line(&mut self) -> String {
        let _ = self.result().await;
        let log = self.gateway.log();
        assert_eq!(log.len(), 1, "finished was not called once: {log:?}");
        log[0].clone()
    }
}

/// A client on loopback.
pub(crate) async fn tcp(configure: impl FnOnce(&mut Config)) -> Session<TcpStream> {
    let listener = listen().await;
    let (client, accepted) = tokio::join!(
        TcpStream::connect(listener.local_addr().unwrap()),
        listener.accept()
    );
    let (stream, remote) = accepted.unwrap();
    let local = stream.local_addr().unwrap();
    let client = client.unwrap();
    client.set_nodelay(true).unwrap();
    stream.set_nodelay(true).unwrap();
    start(client, stream, Peer { remote, local }, configure)
}

/// A client in memory, for tests with a paused clock.
pub(crate) fn mem(configure: impl FnOnce(&mut Config)) -> Session<DuplexStream> {
    let (client, stream) = tokio::io::duplex(64 * 1024);
    let nobody = SocketAddr::from(([127, 0, 0, 1], 1));
    let peer = Peer {
        remote: nobody,
        local: nobody,
    };
    start(client, Mem(stream), peer, configure)
}

fn start<C, S>(client: C, stream: S, peer: Peer, configure: impl FnOnce(&mut Config)) -> Session<C>
where
    S: Transport + Send + 'static,
{
    let gateway = Direct::default();
    let mut server = Server::new(gateway.clone());
    configure(server.config());
    let served = tokio::spawn(async move { server.serve(stream, peer).await });
    Session {
        client,
        served,
        gateway,
    }
}

/// A stream without a socket.
pub(crate) struct Mem(DuplexStream);

impl Transport for Mem {}

impl AsyncRead for Mem {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_read(cx, buf)
    }
}

impl AsyncWrite for Mem {
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

/// An origin on 127.0.0.1 that serves one connection.
pub(crate) async fn origin<F, R>(serve: F) -> (SocketAddr, JoinHandle<R::Output>)
where
    F: FnOnce(TcpStream) -> R + Send + 'static,
    R: Future<Output: Send + 'static> + Send,
{
    origin_on(listen().await, serve)
}

pub(crate) fn origin_on<F, R>(
    listener: TcpListener,
    serve: F,
) -> (SocketAddr, JoinHandle<R::Output>)
where
    F: FnOnce(TcpStream) -> R + Send + 'static,
    R: Future<Output: Send + 'static> + Send,
{
    let address = listener.local_addr().unwrap();
    let serving = tokio::spawn(async move {
        let (stream, _) = listener.accept().await.unwrap();
        serve(stream).await
    });
    (address, serving)
}

/// Sends back what comes, and the end behind it.
pub(crate) async fn echo(mut stream: TcpStream) {
    let (mut reader, mut writer) = stream.split();
    let _ = tokio::io::copy(&mut reader, &mut writer).await;
    let _ = writer.shutdown().await;
}

pub(crate) async fn listen() -> TcpListener {
    TcpListener::bind("127.0.0.1:0").await.unwrap()
}

/// A port of 127.0.0.1 where nobody listens: a bound socket that does not.
pub(crate) async fn refusing() -> (tokio::net::TcpSocket, u16) {
    let socket = tokio::net::TcpSocket::new_v4().unwrap();
    socket.bind("127.0.0.1:0".parse().unwrap()).unwrap();
    let port = socket.local_addr().unwrap().port();
    (socket, port)
}

pub(crate) async fn exactly<S: AsyncRead + Unpin, const N: usize>(stream: &mut S) -> [u8; N] {
    let mut bytes = [0; N];
    soon(stream.read_exact(&mut bytes)).await.unwrap();
    bytes
}

/// Everything up to the end of the stream.
pub(crate) async fn rest<S: AsyncRead + Unpin>(stream: &mut S) -> Vec<u8> {
    let mut bytes = Vec::new();
    soon(stream.read_to_end(&mut bytes)).await.unwrap();
    bytes
}

pub(crate) async fn send<S: AsyncWrite + Unpin>(stream: &mut S, bytes: &[u8]) {
    soon(stream.write_all(bytes)).await.unwrap();
}

/// What must happen, happens within seconds (of real time or paused).
pub(crate) async fn soon<F: Future>(work: F) -> F::Output {
    tokio::time::timeout(Duration::from_secs(60), work)
        .await
        .expect("it takes too long")
}

/// A SOCKS5 CONNECT request.
pub(crate) fn request(to: SocketAddr) -> Vec<u8> {
    let mut wire = vec![5, 1, 0];
    match to {
        SocketAddr::V4(to) => {
            wire.push(1);
            wire.extend(to.ip().octets());
        }
        SocketAddr::V6(to) => {
            wire.push(4);
            wire.extend(to.ip().octets());
        }
    }
    wire.extend(to.port().to_be_bytes());
    wire
}

/// A SOCKS5 CONNECT request for a name.
pub(crate) fn request_name(name: &str, port: u16) -> Vec<u8> {
    let length = u8::try_from(name.len()).unwrap();
    let mut wire = vec![5, 1, 0, 3, length];
    wire.extend(name.bytes());
    wire.extend(port.to_be_bytes());
    wire
}

/// A SOCKS4 CONNECT request, 4a with a name.
pub(crate) fn request4(port: u16, name: Option<&str>) -> Vec<u8> {
    let mut wire = vec![4, 1];
    wire.extend(port.to_be_bytes());
    wire.extend(match name {
        Some(_) => [0, 0, 0, 1],
        None => [127, 0, 0, 1],
    });
    wire.extend(b"me\0");
    if let Some(name) = name {
        wire.extend(name.bytes());
        wire.push(0);
    }
    wire
}

/// A SOCKS5 greeting that offers this one method.
pub(crate) fn greeting(method: u8) -> [u8; 3] {
    [5, 1, method]
}

/// A SOCKS5 refusal.
pub(crate) fn refusal(code: u8) -> [u8; 10] {
    [5, code, 0, 1, 0, 0, 0, 0, 0, 0]
}
