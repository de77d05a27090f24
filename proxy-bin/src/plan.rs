//! From configuration to open sockets: all addresses are bound before the first
//! worker starts.

use std::net::{SocketAddr, TcpListener};

use proxy_tls::Acceptor;

use crate::config::{Config, Listener, Origin};
use crate::listen::{Bound, advice};

/// A listener with its real address and loaded certificate.
#[derive(Clone, Debug)]
pub(crate) struct Place {
    pub(crate) listener: Listener,
    pub(crate) address: SocketAddr,
    pub(crate) tls: Option<Acceptor>,
}

/// Everything that is listened on.
#[derive(Debug)]
pub(crate) struct Plan {
    pub(crate) places: Vec<Place>,
    /// For each worker a socket for each place.
    pub(crate) sockets: Vec<Vec<TcpListener>>,
}

impl Plan {
    /// Binds the addresses; `acceptors` are in the order of the listeners.
    ///
    /// # Errors
    /// A line for each listener that cannot be served.
    pub(crate) fn new(
        config: &Config,
        acceptors: Vec<Option<Acceptor>>,
    ) -> Result<Self, Vec<String>> {
        let mut places = Vec::new();
        let mut sockets: Vec<Vec<TcpListener>> = Vec::new();
        sockets.resize_with(config.workers, Vec::new);
        let mut failures = Vec::new();
        for (listener, tls) in config.listeners.iter().zip(acceptors) {
            let keepalive = config.timeouts.tcp_keepalive;
            match Bound::new(listener.address, config.workers, keepalive) {
                Ok(bound) => {
                    places.push(Place {
                        listener: listener.clone(),
                        address: bound.address,
                        tls,
                    });
                    for (worker, socket) in sockets.iter_mut().zip(bound.sockets) {
                        worker.push(socket);
                    }
                }
                Err(error) => {
                    let advice = advice(&error, listener.address);
                    let text = format!("cannot listen: {error}; {advice}");
                    failures.push(failure(listener, &text));
                }
            }
        }
        match failures.is_empty() {
            true => Ok(Self { places, sockets }),
            false => Err(failures),
        }
    }
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
