//! Why a handshake failed.

use std::{error, fmt, io};

use proxy_core::{ConnectError, ConnectErrorKind};

/// A failed handshake, with the stream it failed on.
///
/// An alert for the peer, where TLS has one, was already sent.
pub struct TlsError<S> {
    /// What went wrong.
    pub kind: TlsErrorKind,
    /// The stream, not shut down; for [`TlsErrorKind::ClearText`] an answer in
    /// clear can still be written to it.
    pub stream: S,
    /// Bytes read from the stream that belong to whoever goes on with it; empty
    /// unless the peer does not speak TLS.
    pub unread: Vec<u8>,
}

impl<S> TlsError<S> {
    pub(crate) fn new(kind: TlsErrorKind, stream: S) -> Self {
        Self {
            kind,
            stream,
            unread: Vec::new(),
        }
    }
}

impl<S> fmt::Debug for TlsError<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Unread bytes may be a request with credentials.
        f.debug_struct("TlsError")
            .field("kind", &self.kind)
            .field("unread", &self.unread.len())
            .finish_non_exhaustive()
    }
}

impl<S> fmt::Display for TlsError<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.kind.fmt(f)
    }
}

impl<S> error::Error for TlsError<S> {
    fn source(&self) -> Option<&(dyn error::Error + 'static)> {
        self.kind.source()
    }
}

/// For gateways: what a failed handshake with an origin or parent means.
impl<S> From<TlsError<S>> for ConnectError {
    fn from(error: TlsError<S>) -> Self {
        match error.kind {
            TlsErrorKind::Io(error) => error.into(),
            TlsErrorKind::TimedOut => Self::origin(ConnectErrorKind::TimedOut),
            _ => Self::origin(ConnectErrorKind::Tls),
        }
    }
}

/// The kinds of failure of a handshake.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TlsErrorKind {
    /// The peer speaks a text protocol in clear, most likely HTTP.
    #[error("clear text instead of TLS")]
    ClearText,
    /// The peer closed the connection before the handshake was over.
    #[error("closed during the TLS handshake")]
    Closed,
    /// The stream failed.
    #[error("I/O error during the TLS handshake: {0}")]
    Io(#[source] io::Error),
    /// The first byte is neither TLS nor text.
    #[error("not TLS")]
    NotTls,
    /// The peer broke the protocol, refused ours, or has a certificate that
    /// cannot be trusted.
    #[error("TLS handshake failed: {0}")]
    Protocol(#[source] rustls::Error),
    /// It took longer than [`TlsOptions::timeout`](crate::TlsOptions::timeout).
    #[error("TLS handshake timed out")]
    TimedOut,
}
