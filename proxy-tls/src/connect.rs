//! The client's side.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use proxy_relay::Transport;
use rustls::RootCertStore;
use rustls::client::{ClientConfig, Resumption, UnbufferedClientConnection};
use rustls::crypto::CryptoProvider;
use rustls::pki_types::ServerName;

use crate::handshake::{Role, shake};
use crate::session::{Connection, Session};
use crate::stream::Inner;
use crate::{TlsError, TlsErrorKind, TlsOptions, TlsStream};

/// Makes TLS connections to servers whose certificate leads to a trusted root.
///
/// Cheap to clone. Remembers up to 256 sessions to resume, by server name, for
/// all its connections: what must not share sessions needs a connector of its
/// own.
///
/// ```no_run
/// use proxy_tls::{Connector, PostQuantum, TlsOptions};
/// # async fn run(socket: tokio::net::TcpStream) -> Result<(), Box<dyn std::error::Error>> {
/// let provider = proxy_tls::provider(PostQuantum::Prefer);
/// let roots = proxy_tls::load_roots("ca.pem".as_ref())?;
/// let connector = Connector::new(provider, roots, &TlsOptions::default())?;
/// let stream = connector.connect("proxy.example".try_into()?, socket).await?;
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
pub struct Connector {
    config: Arc<ClientConfig>,
    timeout: Duration,
}

impl Connector {
    /// A connector that encrypts with `provider` and trusts `roots`.
    ///
    /// # Errors
    /// If the provider lacks the suites of TLS 1.2 or 1.3.
    pub fn new(
        provider: Arc<CryptoProvider>,
        roots: RootCertStore,
        options: &TlsOptions,
    ) -> Result<Self, rustls::Error> {
        let mut config = ClientConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()?
            .with_root_certificates(roots)
            .with_no_client_auth();
        config.alpn_protocols.clone_from(&options.alpn);
        Ok(Self {
            config: Arc::new(config),
            timeout: options.timeout,
        })
    }

    /// The same connector with `sessions` remembered sessions of its own: whoever
    /// sees both cannot tell by a resumed session that they belong together.
    pub fn apart(&self, sessions: usize) -> Self {
        let mut config = ClientConfig::clone(&self.config);
        config.resumption = Resumption::in_memory_sessions(sessions);
        Self {
            config: Arc::new(config),
            timeout: self.timeout,
        }
    }

    /// Performs the handshake with a server and verifies that it is `name`,
    /// within the time set by [`TlsOptions::timeout`].
    ///
    /// Cancel safety: dropping the future drops the stream.
    ///
    /// # Errors
    /// With the stream given back.
    ///
    /// # Panics
    /// Outside a tokio runtime with time enabled.
    pub async fn connect<S: Transport>(
        &self,
        name: ServerName<'static>,
        stream: S,
    ) -> Result<TlsStream<S>, TlsError<S>> {
        shake(self.begin(name, stream)?, Role::Client, self.timeout).await
    }

    /// Not async, so that the future holds the connection only in its box.
    fn begin<S: Transport>(
        &self,
        name: ServerName<'static>,
        stream: S,
    ) -> Result<Box<Inner<S>>, TlsError<S>> {
        let text = name.to_str().into();
        match UnbufferedClientConnection::new(Arc::clone(&self.config), name) {
            Ok(client) => {
                let session = Session::new(Connection::Client(client), Some(text));
                Ok(Inner::new(stream, session))
            }
            Err(error) => Err(TlsError::new(TlsErrorKind::Protocol(error), stream)),
        }
    }
}

impl fmt::Debug for Connector {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Connector")
            .field("timeout", &self.timeout)
            .finish_non_exhaustive()
    }
}
