//! Which certificate a client is shown.

use std::collections::HashMap;
use std::fmt;
use std::sync::{Arc, PoisonError, RwLock};

use rustls::server::{ClientHello, ResolvesServerCert};
use rustls::sign::CertifiedKey;

/// Chooses the certificate for a connection; asked once per handshake.
pub trait Certificates: fmt::Debug + Send + Sync {
    /// The chain and key for a client that wants `name`, in lower case, or names
    /// nothing. With `None` the handshake ends with an alert.
    fn select(&self, name: Option<&str>) -> Option<Arc<CertifiedKey>>;
}

/// The same certificate for everybody.
#[derive(Clone, Debug)]
pub struct SingleCertificate(Arc<CertifiedKey>);

impl SingleCertificate {
    /// Shows `pair` to every client.
    pub fn new(pair: Arc<CertifiedKey>) -> Self {
        Self(pair)
    }
}

impl Certificates for SingleCertificate {
    fn select(&self, _: Option<&str>) -> Option<Arc<CertifiedKey>> {
        Some(Arc::clone(&self.0))
    }
}

/// Certificates by server name.
///
/// An exact name wins over `*.example.com`, which stands for one label (RFC
/// 9525 section 6.3), and that over the default. Without a default, clients
/// that name nothing known are refused.
#[derive(Clone, Debug, Default)]
pub struct SniMap {
    by_name: HashMap<String, Arc<CertifiedKey>>,
    default: Option<Arc<CertifiedKey>>,
}

impl SniMap {
    /// Shows `pair` to clients that want `name`, in any case; replaces what was
    /// shown to them before.
    pub fn insert(&mut self, name: &str, pair: Arc<CertifiedKey>) -> &mut Self {
        let name = name.strip_suffix('.').unwrap_or(name);
        self.by_name.insert(name.to_ascii_lowercase(), pair);
        self
    }

    /// Shows `pair` to everybody else.
    pub fn default_pair(&mut self, pair: Arc<CertifiedKey>) -> &mut Self {
        self.default = Some(pair);
        self
    }

    fn wildcard(&self, name: &str) -> Option<&Arc<CertifiedKey>> {
        let (_, parent) = name.split_once('.')?;
        self.by_name.get(&format!("*.{parent}"))
    }
}

impl Certificates for SniMap {
    fn select(&self, name: Option<&str>) -> Option<Arc<CertifiedKey>> {
        let named = name.and_then(|name| {
            let name = name.strip_suffix('.').unwrap_or(name);
            self.by_name.get(name).or_else(|| self.wildcard(name))
        });
        named.or(self.default.as_ref()).cloned()
    }
}

/// Certificates that can be exchanged while connections are accepted.
///
/// Load the new ones whole and swap them in; handshakes that begin afterwards
/// show them, connections that exist are not touched.
#[derive(Debug)]
pub struct Reloadable {
    current: RwLock<Arc<dyn Certificates>>,
}

impl Reloadable {
    /// Begins with `certificates`.
    pub fn new(certificates: Arc<dyn Certificates>) -> Self {
        Self {
            current: RwLock::new(certificates),
        }
    }

    /// Replaces the certificates and returns those before.
    pub fn swap(&self, certificates: Arc<dyn Certificates>) -> Arc<dyn Certificates> {
        let mut current = self.current.write().unwrap_or_else(PoisonError::into_inner);
        std::mem::replace(&mut current, certificates)
    }
}

impl Certificates for Reloadable {
    fn select(&self, name: Option<&str>) -> Option<Arc<CertifiedKey>> {
        // The lock is not held while an embedder's code runs.
        let current = Arc::clone(&self.current.read().unwrap_or_else(PoisonError::into_inner));
        current.select(name)
    }
}

/// [`Certificates`] as rustls asks for them.
#[derive(Debug)]
pub(crate) struct Resolver(pub(crate) Arc<dyn Certificates>);

impl ResolvesServerCert for Resolver {
    fn resolve(&self, hello: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        // rustls hands out names in lower case.
        self.0.select(hello.server_name())
    }
}
