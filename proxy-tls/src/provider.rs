//! The cryptography, chosen explicitly.

use std::sync::Arc;

use rustls::SupportedCipherSuite;
use rustls::crypto::aws_lc_rs::{self, cipher_suite, kx_group};
use rustls::crypto::{CryptoProvider, SupportedKxGroup};

/// aws-lc-rs with the order that is cheapest for a proxy: AES-128-GCM and
/// X25519 first. TLS 1.3 and 1.2, forward secrecy and authenticated encryption
/// only.
///
/// An [`Acceptor`](crate::Acceptor) goes by this order, not by the client's.
///
/// ```
/// use proxy_tls::{PostQuantum, provider};
/// let provider = provider(PostQuantum::Omit);
/// assert_eq!(provider.kx_groups[0].name(), proxy_tls::rustls::NamedGroup::X25519);
/// ```
pub fn provider(post_quantum: PostQuantum) -> Arc<CryptoProvider> {
    let hybrid: &[&'static dyn SupportedKxGroup] = match post_quantum {
        PostQuantum::Omit => &[],
        PostQuantum::Prefer => &[kx_group::X25519MLKEM768],
    };
    Arc::new(CryptoProvider {
        cipher_suites: SUITES.to_vec(),
        kx_groups: [hybrid, CLASSIC].concat(),
        ..aws_lc_rs::default_provider()
    })
}

/// Whether the key exchange is hybrid, with ML-KEM-768 beside X25519.
///
/// Exhaustive on purpose: a choice without a default, since it trades CPU time
/// and about 1.1 KB per handshake each way for safety from the decryption of
/// recorded traffic by a future quantum computer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PostQuantum {
    /// Only classic groups.
    Omit,
    /// The hybrid group `X25519MLKEM768` first, then the classic ones.
    Prefer,
}

const SUITES: &[SupportedCipherSuite] = &[
    cipher_suite::TLS13_AES_128_GCM_SHA256,
    cipher_suite::TLS13_AES_256_GCM_SHA384,
    cipher_suite::TLS13_CHACHA20_POLY1305_SHA256,
    cipher_suite::TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256,
    cipher_suite::TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256,
    cipher_suite::TLS_ECDHE_ECDSA_WITH_AES_256_GCM_SHA384,
    cipher_suite::TLS_ECDHE_RSA_WITH_AES_256_GCM_SHA384,
    cipher_suite::TLS_ECDHE_ECDSA_WITH_CHACHA20_POLY1305_SHA256,
    cipher_suite::TLS_ECDHE_RSA_WITH_CHACHA20_POLY1305_SHA256,
];

const CLASSIC: &[&'static dyn SupportedKxGroup] =
    &[kx_group::X25519, kx_group::SECP256R1, kx_group::SECP384R1];
