//! Settings shared by both sides of a handshake.

use std::time::Duration;

/// What an [`Acceptor`](crate::Acceptor) or [`Connector`](crate::Connector)
/// negotiates, and how long that may take.
///
/// ```
/// use std::time::Duration;
/// let mut options = proxy_tls::TlsOptions::default();
/// options.alpn(["h2", "http/1.1"]).timeout(Duration::from_secs(5));
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TlsOptions {
    pub(crate) alpn: Vec<Vec<u8>>,
    pub(crate) timeout: Duration,
}

impl Default for TlsOptions {
    fn default() -> Self {
        Self {
            alpn: vec![b"http/1.1".to_vec()],
            timeout: Duration::from_secs(10),
        }
    }
}

impl TlsOptions {
    /// The application protocols, best first; `http/1.1` alone by default.
    ///
    /// A server with a list refuses clients that offer only other protocols
    /// with the alert `no_application_protocol`, as RFC 7301 section 3.2
    /// demands; clients that offer none are always served. With an empty list
    /// everybody is, and nothing is negotiated.
    pub fn alpn<P: Into<Vec<u8>>>(&mut self, protocols: impl IntoIterator<Item = P>) -> &mut Self {
        self.alpn = protocols.into_iter().map(Into::into).collect();
        self
    }

    /// The longest time a whole handshake may take, 10 seconds by default.
    pub fn timeout(&mut self, timeout: Duration) -> &mut Self {
        self.timeout = timeout;
        self
    }
}
