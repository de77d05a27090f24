//! From configuration to open sockets: all addresses are bound before the first
//! worker starts.

use std::net::{SocketAddr, TcpListener, UdpSocket};
use std::os::unix::net::UnixListener;
use std::time::Duration;

use proxy_tls::Acceptor;

use crate::config::{Config, Listener, Origin, Protocol};
use crate::listen::{Bound, advice};
use crate::listen_udp::BoundUdp;
use crate::listen_unix::{self, BoundUnix, SocketFile};
use crate::origin_tls::Trust;

/// A listener with its real address and loaded certificate.
#[derive(Clone, Debug)]
pub(crate) struct Place {
    pub(crate) listener: Listener,
    pub(crate) address: SocketAddr,
    pub(crate) tls: Option<Acceptor>,
    /// Whom a port relay trusts, if it speaks TLS with its targets.
    pub(crate) trust: Option<Trust>,
}

impl Place {
    /// Where connections are accepted; datagrams have ports of their own.
    pub(crate) fn accepts_at(&self) -> Option<SocketAddr> {
        (self.listener.protocol != Protocol::Udp).then_some(self.address)
    }
}

/// Everything that is listened on.
#[derive(Debug)]
pub(crate) struct Plan {
    pub(crate) places: Vec<Place>,
    /// For each worker a socket for each place.
    pub(crate) sockets: Vec<Vec<Listening>>,
    /// Kept until the end.
    pub(crate) kept: Kept,
}

/// What stays until the last worker has ended.
#[derive(Debug, Default)]
pub(crate) struct Kept {
    files: Vec<SocketFile>,
    sockets: Vec<UdpSocket>,
}

/// A socket that clients come to.
#[derive(Debug)]
pub(crate) enum Listening {
    Tcp(TcpListener),
    Udp(UdpSocket),
    Unix(UnixListener),
}

impl Plan {
    /// Binds the addresses; `acceptors` and `trusts` are in the order of the
    /// listeners.
    ///
    /// # Errors
    /// A line for each listener that cannot be served.
    pub(crate) fn new(
        config: &Config,
        acceptors: Vec<Option<Acceptor>>,
        trusts: Vec<Option<Trust>>,
    ) -> Result<Self, Vec<String>> {
        let mut places = Vec::new();
        let mut sockets: Vec<Vec<Listening>> = Vec::new();
        sockets.resize_with(config.workers, Vec::new);
        let mut failures = Vec::new();
        let mut kept = Kept::default();
        let security = acceptors.into_iter().zip(trusts);
        for (listener, (tls, trust)) in config.listeners.iter().zip(security) {
            let keepalive = config.timeouts.tcp_keepalive;
            match bind(listener, config.workers, keepalive) {
                Ok(bound) => {
                    places.push(Place {
                        listener: listener.clone(),
                        address: bound.address,
                        tls,
                        trust,
                    });
                    for (worker, socket) in sockets.iter_mut().zip(bound.sockets) {
                        worker.push(socket);
                    }
                    kept.files.extend(bound.file);
                    kept.sockets.extend(bound.handles);
                }
                Err(text) => failures.push(failure(listener, &text)),
            }
        }
        match failures.is_empty() {
            true => Ok(Self {
                places,
                sockets,
                kept,
            }),
            false => Err(failures),
        }
    }
}

/// What a listener has got.
struct Open {
    address: SocketAddr,
    sockets: Vec<Listening>,
    file: Option<SocketFile>,
    handles: Vec<UdpSocket>,
}

fn bind(listener: &Listener, workers: usize, keepalive: Option<Duration>) -> Result<Open, String> {
    let address = listener.address;
    if let Some(place) = &listener.unix {
        let bound = BoundUnix::new(place, workers);
        let bound = bound
            .map_err(|error| format!("cannot listen: {error}; {}", listen_unix::advice(&error)))?;
        return Ok(Open {
            address,
            sockets: bound.sockets.into_iter().map(Listening::Unix).collect(),
            file: Some(bound.file),
            handles: Vec::new(),
        });
    }
    if listener.protocol == Protocol::Udp {
        let bound = BoundUdp::new(address, workers)
            .and_then(|bound| Ok((bound.handles()?, bound)))
            .map_err(|error| format!("cannot listen: {error}; {}", advice(&error, address, UDP)));
        let (handles, bound) = bound?;
        return Ok(Open {
            address: bound.address,
            sockets: bound.sockets.into_iter().map(Listening::Udp).collect(),
            file: None,
            handles,
        });
    }
    let transparent = listener.protocol == Protocol::Tproxy;
    let bound = Bound::new(address, workers, keepalive, transparent)
        .map_err(|error| format!("cannot listen: {error}; {}", advice(&error, address, TCP)))?;
    Ok(Open {
        address: bound.address,
        sockets: bound.sockets.into_iter().map(Listening::Tcp).collect(),
        file: None,
        handles: Vec::new(),
    })
}

/// The line about a listener that cannot be served.
pub(crate) fn failure(listener: &Listener, text: &str) -> String {
    let name = match &listener.name {
        Some(name) => format!(" ({name})"),
        None => String::new(),
    };
    match &listener.origin {
        Origin::File(..) => format!("{}: listener {listener}{name}: {text}", listener.origin),
        Origin::Argument(_) | Origin::Default => format!("listener {listener}{name}: {text}"),
    }
}

/// What `ss` shows them with.
const TCP: &str = "-ltnp";
const UDP: &str = "-lunp";
