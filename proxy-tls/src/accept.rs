//! The server's side.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use proxy_relay::Transport;
use rustls::crypto::{CryptoProvider, aws_lc_rs};
use rustls::server::{NoServerSessionStorage, ServerConfig, UnbufferedServerConnection};

use crate::certs::{Certificates, Resolver};
use crate::handshake::{Role, shake};
use crate::session::{Connection, Session};
use crate::stream::Inner;
use crate::{TlsError, TlsErrorKind, TlsOptions, TlsStream};

/// Accepts TLS connections: versions 1.3 and 1.2, without client certificates
/// and without early data.
///
/// Cheap to clone; share one among all workers, so that a session begun at one
/// can be resumed at another. Sessions live in the tickets that clients hold
/// (one per connection), so the server's memory does not grow with them; the
/// key of the tickets is changed every six hours.
///
/// ```no_run
/// use std::sync::Arc;
/// use proxy_tls::{Acceptor, PostQuantum, SingleCertificate, TlsOptions};
/// # async fn run(socket: tokio::net::TcpStream) -> Result<(), Box<dyn std::error::Error>> {
/// let provider = proxy_tls::provider(PostQuantum::Omit);
/// let pair = proxy_tls::load_certificate(&provider, "c.pem".as_ref(), "k.pem".as_ref())?;
/// let certificates = Arc::new(SingleCertificate::new(pair));
/// let acceptor = Acceptor::new(provider, certificates, &TlsOptions::default())?;
/// let stream = acceptor.accept(socket).await?;
/// # Ok(())
/// # }
/// ```
///
/// # Memory
///
/// An idle connection holds rustls' keys and state, and no buffer: 4.1 KB of
/// resident memory, 4.2 KB once 16 KiB went each way (task and kernel not
/// counted). Measured over 2,000 loopback connections of TLS 1.3 by the example
/// `idle_memory` of this crate. Besides, a thread that serves TLS keeps 288 KiB
/// for ciphertext, which all its connections share.
#[derive(Clone)]
pub struct Acceptor {
    config: Arc<ServerConfig>,
    timeout: Duration,
}

impl Acceptor {
    /// An acceptor that encrypts with `provider`, in that one's order of
    /// preference, and shows `certificates`.
    ///
    /// # Errors
    /// If the provider lacks the suites of TLS 1.2 or 1.3, or there is no
    /// randomness for the key of the tickets.
    pub fn new(
        provider: Arc<CryptoProvider>,
        certificates: Arc<dyn Certificates>,
        options: &TlsOptions,
    ) -> Result<Self, rustls::Error> {
        let mut config = ServerConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()?
            .with_no_client_auth()
            .with_cert_resolver(Arc::new(Resolver(certificates)));
        config.alpn_protocols.clone_from(&options.alpn);
        config.ignore_client_order = true;
        config.session_storage = Arc::new(NoServerSessionStorage {});
        config.ticketer = aws_lc_rs::Ticketer::new()?;
        config.send_tls13_tickets = 1;
        Ok(Self {
            config: Arc::new(config),
            timeout: options.timeout,
        })
    }

    /// Performs the handshake with a client, within the time set by
    /// [`TlsOptions::timeout`].
    ///
    /// Cancel safety: dropping the future drops the stream.
    ///
    /// # Errors
    /// With the stream given back. A client that speaks clear text is met before
    /// anything was sent, so that it can be answered in clear.
    ///
    /// # Panics
    /// Outside a tokio runtime with time enabled.
    pub async fn accept<S: Transport>(&self, stream: S) -> Result<TlsStream<S>, TlsError<S>> {
        shake(self.begin(stream)?, Role::Server, self.timeout).await
    }

    /// Not async, so that the future holds the connection only in its box.
    fn begin<S: Transport>(&self, stream: S) -> Result<Box<Inner<S>>, TlsError<S>> {
        match UnbufferedServerConnection::new(Arc::clone(&self.config)) {
            Ok(server) => {
                let session = Session::new(Connection::Server(server), None);
                Ok(Inner::new(stream, session))
            }
            Err(error) => Err(TlsError::new(TlsErrorKind::Protocol(error), stream)),
        }
    }
}

impl fmt::Debug for Acceptor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Acceptor")
            .field("timeout", &self.timeout)
            .finish_non_exhaustive()
    }
}
