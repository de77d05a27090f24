//! From configuration to open sockets: certificates are loaded and addresses
//! bound before the first worker starts.

use std::net::{SocketAddr, TcpListener};
use std::sync::Arc;

use proxy_tls::rustls::crypto::CryptoProvider;
use proxy_tls::{Acceptor, PostQuantum, SingleCertificate, TlsOptions};

use crate::config::{Config, Listener, Origin, TlsFiles};
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
    /// Loads the certificates and binds the addresses.
    ///
    /// # Errors
    /// A line for each listener that cannot be served.
    pub(crate) fn new(config: &Config) -> Result<Self, Vec<String>> {
        let acceptors = load_certificates(config)?;
        let mut places = Vec::new();
        let mut sockets: Vec<Vec<TcpListener>> = Vec::new();
        sockets.resize_with(config.workers, Vec::new);
        let mut failures = Vec::new();
        for (listener, tls) in config.listeners.iter().zip(acceptors) {
            match Bound::new(listener.address, config.workers) {
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

/// Loads what TLS listeners need, in the order of the listeners.
///
/// # Errors
/// A line for each listener whose files cannot be used.
pub(crate) fn load_certificates(config: &Config) -> Result<Vec<Option<Acceptor>>, Vec<String>> {
    let provider = proxy_tls::provider(PostQuantum::Omit);
    let mut acceptors = Vec::new();
    let mut failures = Vec::new();
    for listener in &config.listeners {
        match &listener.tls {
            None => acceptors.push(None),
            Some(files) => match acceptor(config, &provider, files) {
                Ok(acceptor) => acceptors.push(Some(acceptor)),
                Err(text) => failures.push(failure(listener, &text)),
            },
        }
    }
    match failures.is_empty() {
        true => Ok(acceptors),
        false => Err(failures),
    }
}

fn acceptor(
    config: &Config,
    provider: &Arc<CryptoProvider>,
    files: &TlsFiles,
) -> Result<Acceptor, String> {
    let pair = proxy_tls::load_certificate(provider, &files.cert, &files.key)
        .map_err(|error| error.to_string())?;
    let mut options = TlsOptions::default();
    if let Some(head) = config.timeouts.head {
        options.timeout(head);
    }
    let certificates = Arc::new(SingleCertificate::new(pair));
    Acceptor::new(Arc::clone(provider), certificates, &options).map_err(|error| error.to_string())
}

fn failure(listener: &Listener, text: &str) -> String {
    let name = match &listener.name {
        Some(name) => format!(" ({name})"),
        None => String::new(),
    };
    match &listener.origin {
        Origin::File(..) => format!("{}: listener {listener}{name}: {text}", listener.origin),
        Origin::Argument(_) | Origin::Default => format!("listener {listener}{name}: {text}"),
    }
}
