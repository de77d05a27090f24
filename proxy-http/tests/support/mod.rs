//! A gateway, a scripted origin and a raw client for the server's tests.
#![allow(
    dead_code,
    unreachable_pub,
    reason = "each test file uses its own part"
)]

use std::cell::{Cell, RefCell};
use std::future::Future;
use std::net::SocketAddr;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use proxy_core::{
    Ask, ConnectError, Connected, Credentials, Denial, End, Gateway, HttpParent, Peer, Report,
    Shaping, Stop, Target,
};
use proxy_http::{Config, Filter, Server};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

/// Longer than anything here takes, unless it hangs.
pub const PATIENCE: Duration = Duration::from_secs(10);

/// What a gateway was told about an exchange.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Told {
    pub word: String,
    pub target: String,
    pub secure: bool,
    pub status: Option<u16>,
    pub up: u64,
    pub down: u64,
    pub end: End,
    pub error: Option<ConnectError>,
    pub fault: Option<&'static str>,
}

/// Connects directly, keeps one idle upstream, notes what it is told.
#[derive(Default)]
pub struct Direct {
    /// `alice:secret` is asked for.
    pub locked: bool,
    pub forbid: bool,
    /// What is connected counts as TLS with the target.
    pub secured: Cell<bool>,
    pub stop: Stop,
    pub told: RefCell<Vec<Told>>,
    pub authentications: RefCell<usize>,
    pub connects: RefCell<usize>,
    pub dials: RefCell<usize>,
    /// Dials do not come to an end.
    pub hold: Cell<bool>,
    /// How many dials are held.
    pub held: Cell<usize>,
    pub spare: RefCell<Option<(String, TcpStream)>>,
    /// An HTTP proxy that all requests are handed to.
    pub parent: Option<(String, Arc<HttpParent>)>,
}

impl Gateway for Direct {
    type Identity = ();
    type Session = ();
    type Upstream = TcpStream;

    async fn authenticate(&self, _: &Peer, who: Option<Credentials<'_>>) -> Result<(), Denial> {
        *self.authentications.borrow_mut() += 1;
        match who {
            _ if !self.locked => Ok(()),
            Some(Credentials {
                user: b"alice",
                password: b"secret",
            }) => Ok(()),
            _ => Err(Denial::Challenge),
        }
    }

    async fn authorize(&self, _: &(), _: &Ask<'_>) -> Result<(), Denial> {
        match self.forbid {
            true => Err(Denial::Forbid),
            false => Ok(()),
        }
    }

    async fn connect(
        &self,
        _: &mut (),
        target: Target<'_>,
    ) -> Result<Connected<TcpStream>, ConnectError> {
        *self.connects.borrow_mut() += 1;
        let (place, parent) = match &self.parent {
            Some((place, parent)) => (place.clone(), Some(parent)),
            None => (target.to_string(), None),
        };
        let spare = self.spare.borrow_mut().take();
        let connected = match spare {
            Some((name, stream)) if name == place => Connected::reused(stream),
            _ => {
                *self.dials.borrow_mut() += 1;
                self.wait().await;
                Connected::fresh(TcpStream::connect(place).await?)
            }
        };
        let connected = match parent {
            Some(parent) => connected.to_parent(Arc::clone(parent)),
            None => connected,
        };
        Ok(match self.secured.get() {
            true => connected.secured(),
            false => connected,
        })
    }

    fn recycle(&self, target: Target<'_>, upstream: TcpStream) {
        let place = match &self.parent {
            Some((place, _)) => place.clone(),
            None => target.to_string(),
        };
        *self.spare.borrow_mut() = Some((place, upstream));
    }

    fn shaping(&self, _: &()) -> Shaping {
        let mut shaping = Shaping::default();
        shaping.stop = self.stop.clone();
        shaping
    }

    fn finished(&self, _: Option<&()>, _: Option<()>, report: &Report<'_>) {
        self.told.borrow_mut().push(Told {
            word: report
                .operation
                .map_or(String::new(), |operation| operation.word().to_string()),
            target: report
                .target
                .map_or(String::new(), |target| target.to_string()),
            secure: report.secure,
            status: report.status,
            up: report.up,
            down: report.down,
            end: report.end,
            error: report.error,
            fault: report.fault,
        });
    }
}

impl Direct {
    /// Waits while dials are held.
    async fn wait(&self) {
        self.held.set(self.held.get() + 1);
        let _held = Held(&self.held);
        while self.hold.get() {
            tokio::task::yield_now().await;
        }
    }
}

struct Held<'h>(&'h Cell<usize>);

impl Drop for Held<'_> {
    fn drop(&mut self) {
        self.0.set(self.0.get() - 1);
    }
}

/// A running proxy.
pub struct Proxy {
    pub gateway: Rc<Direct>,
    pub address: SocketAddr,
}

impl Proxy {
    /// Starts a proxy on the current `LocalSet`.
    pub async fn start(gateway: Direct) -> Self {
        Self::with(gateway, Config::default(), ()).await
    }

    pub async fn with<F: Filter<()> + 'static>(gateway: Direct, config: Config, filter: F) -> Self {
        let gateway = Rc::new(gateway);
        let mut server = Server::new(Rc::clone(&gateway)).filter(filter);
        *server.config() = config;
        let server = Rc::new(server);
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
        let address = listener.local_addr().expect("bound");
        tokio::task::spawn_local(async move {
            loop {
                let Ok((stream, remote)) = listener.accept().await else {
                    break;
                };
                stream.set_nodelay(true).expect("a live socket");
                let server = Rc::clone(&server);
                let peer = Peer {
                    remote,
                    local: address,
                };
                tokio::task::spawn_local(async move {
                    let _ = server.serve(stream, peer).await;
                });
            }
        });
        Self { gateway, address }
    }

    pub async fn client(&self) -> Client {
        let stream = TcpStream::connect(self.address).await.expect("it listens");
        stream.set_nodelay(true).expect("a live socket");
        Client {
            stream,
            read: Vec::new(),
        }
    }

    /// A client whose request waits for the dial.
    pub async fn dialling(&self, request: String) -> Client {
        self.gateway.hold.set(true);
        let mut client = self.client().await;
        client.send(request).await;
        within(async {
            while self.gateway.held.get() == 0 {
                tokio::task::yield_now().await;
            }
        })
        .await;
        client
    }

    /// Waits until the gateway was told of `n` exchanges.
    pub async fn told(&self, n: usize) -> Vec<Told> {
        within(async {
            while self.gateway.told.borrow().len() < n {
                tokio::task::yield_now().await;
            }
        })
        .await;
        self.gateway.told.borrow().clone()
    }
}

/// One end of a connection, byte by byte.
pub struct Client {
    pub stream: TcpStream,
    pub read: Vec<u8>,
}

impl Client {
    pub async fn send(&mut self, bytes: impl AsRef<[u8]>) {
        within(self.stream.write_all(bytes.as_ref()))
            .await
            .expect("the peer takes it");
    }

    /// Reads until what was read ends with, or contains, `mark`; returns all up
    /// to the end of it.
    pub async fn until(&mut self, mark: &str) -> String {
        let mark = mark.as_bytes();
        loop {
            if let Some(at) = self.read.windows(mark.len()).position(|w| w == mark) {
                let rest = self.read.split_off(at + mark.len());
                let found = std::mem::replace(&mut self.read, rest);
                return String::from_utf8_lossy(&found).into_owned();
            }
            let n = within(self.stream.read_buf(&mut self.read))
                .await
                .expect("no reset");
            assert!(
                n > 0,
                "ended before {:?}: {:?}",
                String::from_utf8_lossy(mark),
                String::from_utf8_lossy(&self.read)
            );
        }
    }

    /// Reads exactly `n` bytes.
    pub async fn exactly(&mut self, n: usize) -> Vec<u8> {
        while self.read.len() < n {
            let got = within(self.stream.read_buf(&mut self.read))
                .await
                .expect("no reset");
            assert!(got > 0, "ended after {} of {n}", self.read.len());
        }
        let rest = self.read.split_off(n);
        std::mem::replace(&mut self.read, rest)
    }

    /// Reads to the orderly end.
    pub async fn rest(&mut self) -> String {
        within(self.stream.read_to_end(&mut self.read))
            .await
            .expect("an orderly end");
        String::from_utf8_lossy(&std::mem::take(&mut self.read)).into_owned()
    }

    /// Reads to a reset; says what came before.
    pub async fn reset(&mut self) -> String {
        within(self.stream.read_to_end(&mut self.read))
            .await
            .expect_err("a reset");
        String::from_utf8_lossy(&std::mem::take(&mut self.read)).into_owned()
    }

    /// Waits until the peer's program has had time for what was sent: everything
    /// here runs on one thread, so a turn after the bytes arrived is enough.
    pub async fn taken(&self) {
        self.stream.writable().await.expect("a live socket");
        for _ in 0..100 {
            tokio::task::yield_now().await;
        }
    }

    pub async fn finish(&mut self) {
        self.stream.shutdown().await.expect("a live socket");
    }
}

/// An origin whose connections the test plays itself.
pub struct Origin {
    listener: TcpListener,
    pub name: String,
}

impl Origin {
    pub async fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
        let name = listener.local_addr().expect("bound").to_string();
        Self { listener, name }
    }

    pub async fn accept(&self) -> Client {
        let (stream, _) = within(self.listener.accept()).await.expect("a connection");
        stream.set_nodelay(true).expect("a live socket");
        Client {
            stream,
            read: Vec::new(),
        }
    }

    pub fn get(&self, path: &str) -> String {
        let name = &self.name;
        format!("GET http://{name}{path} HTTP/1.1\r\nHost: {name}\r\n\r\n")
    }
}

pub async fn within<T>(future: impl Future<Output = T>) -> T {
    tokio::time::timeout(PATIENCE, future)
        .await
        .expect("not in time")
}

/// Runs a test on one thread where tasks need not be `Send`.
pub fn run(test: impl Future<Output = ()>) {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .expect("a runtime");
    tokio::task::LocalSet::new().block_on(&runtime, test);
}
