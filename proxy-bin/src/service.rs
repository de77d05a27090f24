//! One listener as a worker serves it.

use std::fmt;
use std::net::SocketAddr;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll, ready};
use std::time::Instant;

use pin_project_lite::pin_project;
use proxy_core::{Peer, Stop};
use proxy_relay::{Deadline, Passthrough, PortMap, Prefixed, Ticks};
use proxy_tls::{Acceptor, TlsErrorKind, TlsStream};
use tokio::net::{TcpStream, UnixStream};

use crate::config::{Config, Listener, Protocol};
use crate::gate::Slot;
use crate::gateway::Proxyd;
use crate::original::{Original, Sent};
use crate::sni::{Routed, Sni};
use crate::sniff::{self, Spoken};
use crate::throttle::Throttle;
use crate::unix::UNIX_CLIENT;

type Http = proxy_http::Server<Rc<Proxyd>>;
type Socks = Rc<proxy_socks::Server<Rc<Proxyd>>>;

/// A listener with its servers.
pub(crate) struct Service {
    name: Box<str>,
    /// The address listened on, if it is the one that all clients reach.
    local: Option<SocketAddr>,
    kind: Kind,
    stop: Stop,
    first_byte: Ticks,
    refused_tls: Throttle,
}

enum Kind {
    Auto {
        http: Http,
        socks: Socks,
        tls: Option<Acceptor>,
    },
    Http(Http),
    Https {
        http: Http,
        tls: Acceptor,
    },
    Original(Original),
    Sni(Sni),
    Socks(Socks),
    SocksTls {
        socks: Socks,
        tls: Acceptor,
    },
    Tcp(PortMap<Rc<Proxyd>>),
    TcpTls {
        map: PortMap<Rc<Proxyd>>,
        tls: Acceptor,
    },
}

impl Service {
    pub(crate) fn new(
        listener: &Listener,
        address: SocketAddr,
        tls: Option<Acceptor>,
        gateway: &Rc<Proxyd>,
        config: &Config,
        stop: &Stop,
    ) -> Self {
        let http = || http(gateway, config, stop);
        let socks = || socks(gateway, listener.auth, config, stop);
        let kind = match (listener.protocol, tls, &listener.target) {
            (Protocol::Https, Some(tls), _) => Kind::Https { http: http(), tls },
            (Protocol::Redirect, ..) => {
                let tunnels = tunnels(gateway, config, stop);
                Kind::Original(Original::new(tunnels, Sent::Redirected))
            }
            (Protocol::Sni, ..) => {
                let tunnels = tunnels(gateway, config, stop);
                Kind::Sni(Sni::new(tunnels, listener, config.timeouts.head, stop))
            }
            (Protocol::Tproxy, ..) => {
                let tunnels = tunnels(gateway, config, stop);
                Kind::Original(Original::new(tunnels, Sent::Untouched))
            }
            (Protocol::Socks, None, _) => Kind::Socks(socks()),
            (Protocol::Socks, Some(tls), _) => Kind::SocksTls {
                socks: socks(),
                tls,
            },
            (Protocol::Tcp, tls, Some(target)) => {
                let mut map = PortMap::new(Rc::clone(gateway), target.clone());
                map.timeouts(config.timeouts).stop(stop.clone());
                map.balance(listener.relay.balance);
                for other in &listener.relay.others {
                    map.also(other.clone());
                }
                match tls {
                    None => Kind::Tcp(map),
                    Some(tls) => Kind::TcpTls { map, tls },
                }
            }
            (Protocol::Auto, tls, _) => Kind::Auto {
                http: http(),
                socks: socks(),
                tls,
            },
            // The configuration has a certificate for HTTPS and a target for TCP, and
            // datagrams are no connections.
            (Protocol::Http | Protocol::Https | Protocol::Tcp | Protocol::Udp, ..) => {
                Kind::Http(http())
            }
        };
        Self {
            name: listener.service(address.port()).into(),
            local: Some(address).filter(|address| {
                !address.ip().is_unspecified() && listener.protocol != Protocol::Tproxy
            }),
            kind,
            stop: stop.clone(),
            first_byte: config.timeouts.head.into(),
            refused_tls: Throttle::default(),
        }
    }

    /// As messages name it.
    pub(crate) fn name(&self) -> &str {
        &self.name
    }

    /// Serves a connection in a task of its own, which holds `slot` to its end.
    ///
    /// Each kind has its own task, so that none is larger than it must be: the
    /// tasks keep what is needed at the end and nothing else.
    ///
    /// # Panics
    /// Outside a `LocalSet`.
    pub(crate) fn spawn(self: &Rc<Self>, stream: TcpStream, remote: SocketAddr, slot: Slot) {
        let this = Rc::clone(self);
        match self.kind {
            Kind::Http(_) => this.spawn_http(stream, remote, slot),
            Kind::Original(_) => this.spawn_original(stream, remote, slot),
            Kind::Sni(_) => this.spawn_sni(stream, remote, slot),
            Kind::Socks(_) => this.spawn_socks(stream, remote, slot),
            Kind::Tcp(_) => this.spawn_tcp(stream, remote, slot),
            Kind::SocksTls { .. } => spawn(slot, async move {
                this.serve_socks_tls(stream, remote).await;
            }),
            Kind::TcpTls { .. } => spawn(slot, async move {
                this.serve_tcp_tls(stream, remote).await;
            }),
            Kind::Https { .. } => {
                spawn(slot, async move { this.serve_https(stream, remote).await })
            }
            Kind::Auto { .. } => {
                tokio::task::spawn_local(this.serve_auto(stream, remote, slot));
            }
        }
    }

    /// The same for a client at a Unix socket, where nothing but these is spoken.
    ///
    /// # Panics
    /// Outside a `LocalSet`.
    pub(crate) fn spawn_unix(self: &Rc<Self>, stream: UnixStream, remote: SocketAddr, slot: Slot) {
        let this = Rc::clone(self);
        let peer = Peer {
            remote,
            local: UNIX_CLIENT,
        };
        match self.kind {
            Kind::Http(_) => spawn(slot, async move {
                if let Kind::Http(http) = &this.kind {
                    let served = http.serve(stream, peer).await;
                    this.tell(remote, served);
                }
            }),
            Kind::Socks(_) => spawn(slot, async move {
                if let Kind::Socks(socks) = &this.kind {
                    let served = socks.serve_with_all(stream, peer).await;
                    this.tell(remote, served);
                }
            }),
            Kind::Tcp(_) => spawn(slot, async move {
                if let Kind::Tcp(map) = &this.kind {
                    let served = map.serve(stream, peer).await;
                    this.tell(remote, served);
                }
            }),
            // The configuration has no others there.
            _ => {}
        }
    }

    /// The two ends of a connection; a socket that is gone has none.
    fn peer(&self, stream: &TcpStream, remote: SocketAddr) -> Option<Peer> {
        let local = self.local.or_else(|| stream.local_addr().ok())?;
        Some(Peer { remote, local })
    }

    fn spawn_http(self: Rc<Self>, stream: TcpStream, remote: SocketAddr, slot: Slot) {
        spawn(slot, async move {
            if let Kind::Http(http) | Kind::Auto { http, .. } = &self.kind
                && let Some(peer) = self.peer(&stream, remote)
            {
                let served = http.serve(stream, peer).await;
                self.tell(remote, served);
            }
        });
    }

    fn spawn_socks(&self, stream: TcpStream, remote: SocketAddr, slot: Slot) {
        if let Kind::Socks(socks) | Kind::Auto { socks, .. } = &self.kind
            && let Some(peer) = self.peer(&stream, remote)
        {
            let serving = proxy_socks::Server::serve_owned(Rc::clone(socks), stream, peer);
            spawn(slot, Told { serving });
        }
    }

    fn spawn_original(self: Rc<Self>, stream: TcpStream, remote: SocketAddr, slot: Slot) {
        spawn(slot, async move {
            if let Kind::Original(original) = &self.kind
                && let Some(peer) = self.peer(&stream, remote)
                && let Some(target) = original.target(&stream, &peer)
            {
                let tunnels = original.tunnels();
                let served = tunnels.serve(stream, peer, target, Vec::new()).await;
                self.tell(remote, served);
            }
        });
    }

    fn spawn_sni(self: Rc<Self>, mut stream: TcpStream, remote: SocketAddr, slot: Slot) {
        spawn(slot, async move {
            if let Kind::Sni(sni) = &self.kind
                && let Some(peer) = self.peer(&stream, remote)
                // Boxed, so that the tunnel needs no room for it.
                && let Some(routed) = Box::pin(sni.route(&mut stream, &peer)).await
            {
                let Routed { target, said } = routed;
                let tunnels = sni.tunnels();
                let served = tunnels.serve(&mut stream, peer, target, said).await;
                if let Err(error) = served {
                    Box::pin(sni.apologise(&mut stream, error)).await;
                }
                self.tell(remote, served);
            }
        });
    }

    fn spawn_tcp(self: Rc<Self>, stream: TcpStream, remote: SocketAddr, slot: Slot) {
        spawn(slot, async move {
            if let Kind::Tcp(map) = &self.kind
                && let Some(peer) = self.peer(&stream, remote)
            {
                let served = map.serve(stream, peer).await;
                self.tell(remote, served);
            }
        });
    }

    async fn serve_socks_tls(&self, stream: TcpStream, remote: SocketAddr) {
        if let Kind::SocksTls { socks, tls } = &self.kind
            && let Some(peer) = self.peer(&stream, remote)
            && let Some(stream) = Box::pin(self.accept_tls(None, tls, stream, peer)).await
        {
            let served = socks.serve_with_all(stream, peer).await;
            self.tell(remote, served);
        }
    }

    async fn serve_tcp_tls(&self, stream: TcpStream, remote: SocketAddr) {
        if let Kind::TcpTls { map, tls } = &self.kind
            && let Some(peer) = self.peer(&stream, remote)
            && let Some(stream) = Box::pin(self.accept_tls(None, tls, stream, peer)).await
        {
            let served = map.serve(stream, peer).await;
            self.tell(remote, served);
        }
    }

    async fn serve_https(&self, stream: TcpStream, remote: SocketAddr) {
        if let Kind::Https { http, tls } = &self.kind
            && let Some(peer) = self.peer(&stream, remote)
            && let Some(stream) = Box::pin(self.accept_tls(Some(http), tls, stream, peer)).await
        {
            let served = http.serve(stream, peer).await;
            self.tell(remote, served);
        }
    }

    /// Once it is clear what is spoken, a task of just the size for that takes
    /// over.
    async fn serve_auto(self: Rc<Self>, stream: TcpStream, remote: SocketAddr, slot: Slot) {
        let Kind::Auto { tls, .. } = &self.kind else {
            return;
        };
        let spoken = {
            let mut deadline = self.first_byte();
            sniff::peek(&stream, &mut deadline).await
        };
        match (spoken, tls) {
            (Some(Spoken::Http), _) => self.spawn_http(stream, remote, slot),
            (Some(Spoken::Socks), _) => self.spawn_socks(stream, remote, slot),
            (Some(Spoken::Tls), Some(_)) => {
                spawn(
                    slot,
                    async move { self.serve_auto_tls(stream, remote).await },
                );
            }
            (Some(Spoken::Tls), None) => self.refuse_tls(remote),
            (None, _) => {}
        }
    }

    /// Inside TLS the first byte tells HTTP and SOCKS apart once more.
    async fn serve_auto_tls(&self, stream: TcpStream, remote: SocketAddr) {
        let Kind::Auto {
            http,
            socks,
            tls: Some(tls),
        } = &self.kind
        else {
            return;
        };
        let Some(peer) = self.peer(&stream, remote) else {
            return;
        };
        let Some(mut stream) = Box::pin(self.accept_tls(Some(http), tls, stream, peer)).await
        else {
            return;
        };
        let read = {
            let mut deadline = self.first_byte();
            sniff::read(&mut stream, &mut deadline).await
        };
        let Some((spoken, bytes)) = read else {
            return;
        };
        let stream = Prefixed::new(stream, bytes);
        match spoken {
            Spoken::Socks => {
                let served = socks.serve_with_all(stream, peer).await;
                self.tell(remote, served);
            }
            Spoken::Http | Spoken::Tls => {
                let served = http.serve(stream, peer).await;
                self.tell(remote, served);
            }
        }
    }

    /// A client that speaks in clear is answered by `http`, if that is given.
    async fn accept_tls(
        &self,
        http: Option<&Http>,
        tls: &Acceptor,
        stream: TcpStream,
        peer: Peer,
    ) -> Option<TlsStream<TcpStream>> {
        let accepted = {
            // The time is the acceptor's matter; a drain ends handshakes.
            let mut deadline = Deadline::new(self.stop.clone());
            sniff::unless_closing(&mut deadline, tls.accept(stream)).await?
        };
        let error = match accepted {
            Ok(stream) => return Some(stream),
            Err(error) => error,
        };
        let is_clear = matches!(error.kind, TlsErrorKind::ClearText);
        self.tell(peer.remote, Err::<(), _>(error.kind));
        if is_clear && let Some(http) = http {
            // A browser pointed here without https shows this to its user.
            http.refuse(error.stream, peer).await;
        }
        None
    }

    fn first_byte(&self) -> Deadline {
        let deadline = Deadline::new(self.stop.clone());
        deadline.set(self.first_byte);
        deadline
    }

    fn refuse_tls(&self, remote: SocketAddr) {
        if let Some(clients) = self.refused_tls.admit(Instant::now()) {
            tracing::warn!(
                listener = &*self.name,
                client = %remote,
                clients,
                "TLS was refused: this listener has no certificate; write cert and key for it"
            );
        }
    }

    /// Ends that are a client's own doing are for those who look for them.
    fn tell<T, E: fmt::Display>(&self, remote: SocketAddr, result: Result<T, E>) {
        tell(&self.name, remote, result);
    }
}

/// Runs a connection in a task of its own.
fn spawn(slot: Slot, connection: impl Future<Output = ()> + 'static) {
    tokio::task::spawn_local(Served { connection, slot });
}

pin_project! {
    /// A connection with its slot, which goes last, when all of it is gone. An
    /// async block would keep the connection twice.
    struct Served<C> {
        #[pin]
        connection: C,
        slot: Slot,
    }
}

impl<C: Future<Output = ()>> Future for Served<C> {
    type Output = ();

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        self.project().connection.poll(cx)
    }
}

pin_project! {
    /// A SOCKS connection whose end is told. Not an async block, which would keep
    /// what it was begun with.
    struct Told<S> {
        #[pin]
        serving: S,
    }
}

impl<S: Future<Output = proxy_socks::Served<Socks>>> Future for Told<S> {
    type Output = ();

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        let served = ready!(self.project().serving.poll(cx));
        let listener = served.server.gateway().service();
        tell(listener, served.peer.remote, served.ended);
        Poll::Ready(())
    }
}

fn tell<T, E: fmt::Display>(listener: &str, client: SocketAddr, result: Result<T, E>) {
    if let Err(error) = result {
        tracing::debug!(listener, %client, %error, "ended");
    }
}

fn http(gateway: &Rc<Proxyd>, config: &Config, stop: &Stop) -> Http {
    let mut server = proxy_http::Server::new(Rc::clone(gateway));
    server
        .config()
        .limits(config.limits.head)
        .body_bytes(config.limits.body_bytes)
        .requests(config.limits.requests)
        .name("proxyd")
        .via(gateway.name())
        .show_via(config.http.via)
        .forwarded(config.http.forwarded)
        .fetch_https(config.http.fetch_https)
        .timeouts(config.timeouts)
        .stop(stop.clone());
    server
}

fn tunnels(gateway: &Rc<Proxyd>, config: &Config, stop: &Stop) -> Passthrough<Rc<Proxyd>> {
    let mut tunnels = Passthrough::new(Rc::clone(gateway));
    tunnels.timeouts(config.timeouts).stop(stop.clone());
    tunnels
}

fn socks(gateway: &Rc<Proxyd>, auth: bool, config: &Config, stop: &Stop) -> Socks {
    let mut server = proxy_socks::Server::new(Rc::clone(gateway));
    server
        .config()
        .methods(match auth {
            true => proxy_socks::Methods::PASSWORD,
            false => proxy_socks::Methods::ANY,
        })
        .timeouts(config.timeouts)
        .datagram_idle(config.udp.idle)
        .bind_wait(config.bind.wait)
        .stop(stop.clone());
    Rc::new(server)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// With the runtime's own 104 bytes a task takes up multiples of 128: six
    /// of them, as long as this holds.
    #[test]
    fn the_task_of_a_socks_connection_is_small() {
        fn size<S>(_: impl FnOnce(Socks, TcpStream, Peer) -> S) -> usize {
            size_of::<Served<Told<S>>>()
        }
        let size = size(proxy_socks::Server::serve_owned);
        assert!(size <= 560, "{size} bytes");
    }
}
