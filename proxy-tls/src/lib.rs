//! TLS for proxies: reading a ClientHello without decrypting anything, and
//! accepting and making TLS connections with rustls.
//!
//! [`sniff`] says what a client asks for before anybody has answered: the
//! server name and the application protocols of its ClientHello. It does no
//! I/O and needs no cryptography.
//!
//! ```
//! use proxy_core::Status;
//! use proxy_tls::{SniffError, sniff};
//!
//! // The first byte already tells clear text from TLS.
//! assert_eq!(sniff(b"GET / HTTP/1.1\r\n").unwrap_err(), SniffError::NotTls);
//! assert_eq!(sniff(&[22, 3, 1])?, Status::Partial);
//! # Ok::<(), SniffError>(())
//! ```
//!
//! With the feature `serve` (on by default) there are also [`Acceptor`] and
//! [`Connector`], which turn any `Transport` of `proxy-relay` into a
//! [`TlsStream`], itself a `Transport`. The crypto provider is always an
//! argument, never the process-wide default; [`provider`] makes a good one. An
//! idle connection costs about 4.2 KB, measured as told at
//! [`Acceptor`](Acceptor#memory).
//!
//! Main types: [`sniff`], [`Sniffer`], [`ClientHello`]; [`Acceptor`],
//! [`Connector`], [`TlsStream`], [`TlsError`], [`TlsOptions`]; [`Certificates`]
//! with [`SniMap`] and [`Reloadable`], [`load_certificate`], [`load_roots`].
//!
//! Not here: early data (0-RTT), client certificates, kernel TLS, QUIC, and
//! connections without certificate verification.

#![forbid(unsafe_code)]
#![cfg_attr(
    not(feature = "serve"),
    allow(
        rustdoc::broken_intra_doc_links,
        reason = "items of the feature `serve`"
    )
)]

mod hello;
#[cfg(test)]
mod sample;
mod sniff;

#[cfg(feature = "serve")]
mod accept;
#[cfg(feature = "serve")]
mod certs;
#[cfg(feature = "serve")]
mod connect;
#[cfg(feature = "serve")]
mod error;
#[cfg(feature = "serve")]
mod handshake;
#[cfg(feature = "serve")]
mod load;
#[cfg(feature = "serve")]
mod options;
#[cfg(feature = "serve")]
mod provider;
#[cfg(feature = "serve")]
mod scratch;
#[cfg(feature = "serve")]
mod session;
#[cfg(feature = "serve")]
mod spill;
#[cfg(feature = "serve")]
mod stream;

pub use hello::ClientHello;
pub use sniff::{SniffError, Sniffer, sniff};

#[cfg(feature = "serve")]
pub use {
    accept::Acceptor,
    certs::{Certificates, Reloadable, SingleCertificate, SniMap},
    connect::Connector,
    error::{TlsError, TlsErrorKind},
    load::{CertificateError, CertificateProblem, load_certificate, load_roots},
    options::TlsOptions,
    provider::{PostQuantum, provider},
    rustls,
    stream::TlsStream,
};
