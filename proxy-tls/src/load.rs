//! Certificates and keys from PEM files.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustls::crypto::CryptoProvider;
use rustls::pki_types::pem::{self, PemObject};
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::sign::CertifiedKey;
use rustls::{InconsistentKeys, RootCertStore};

/// Loads a certificate chain, the server's own certificate first, and the
/// private key for it (PKCS#8, PKCS#1 or SEC1) from PEM files, which may be the
/// same file; checks that they belong together.
///
/// Reads files, and blocks while it does.
///
/// # Errors
/// Which file is at fault, and why.
pub fn load_certificate(
    provider: &CryptoProvider,
    chain: &Path,
    key: &Path,
) -> Result<Arc<CertifiedKey>, CertificateError> {
    let certificates = read_certificates(chain)?;
    let private = read_key(key)?;
    let signing = provider
        .key_provider
        .load_private_key(private)
        .map_err(|error| CertificateError::new(key, CertificateProblem::BadKey(error)))?;
    let pair = CertifiedKey::new(certificates, signing);
    match pair.keys_match() {
        // Unknown: a key that cannot tell its public half.
        Ok(()) | Err(rustls::Error::InconsistentKeys(InconsistentKeys::Unknown)) => {
            Ok(Arc::new(pair))
        }
        Err(rustls::Error::InconsistentKeys(_)) => {
            let other = chain.to_owned();
            Err(CertificateError::new(
                key,
                CertificateProblem::Mismatch(other),
            ))
        }
        Err(error) => Err(CertificateError::new(
            chain,
            CertificateProblem::BadCertificate(error),
        )),
    }
}

/// Loads trusted root certificates from a PEM file.
///
/// Reads the file, and blocks while it does.
///
/// # Errors
/// If it cannot be read, or holds no certificate, or one that cannot be used.
pub fn load_roots(file: &Path) -> Result<RootCertStore, CertificateError> {
    let mut roots = RootCertStore::empty();
    for certificate in read_certificates(file)? {
        roots.add(certificate).map_err(|error| {
            CertificateError::new(file, CertificateProblem::BadCertificate(error))
        })?;
    }
    Ok(roots)
}

/// Why a certificate, key or root could not be loaded.
#[derive(Debug, thiserror::Error)]
#[error("{}: {problem}", file.display())]
pub struct CertificateError {
    /// The file at fault.
    pub file: PathBuf,
    /// What is wrong with it.
    #[source]
    pub problem: CertificateProblem,
}

impl CertificateError {
    fn new(file: &Path, problem: CertificateProblem) -> Self {
        Self {
            file: file.to_owned(),
            problem,
        }
    }
}

/// What may be wrong with a file of certificates or keys.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum CertificateProblem {
    /// A certificate is malformed or cannot be used.
    #[error("the certificate cannot be used: {0}")]
    BadCertificate(#[source] rustls::Error),
    /// The key is malformed, or of a kind that is not supported.
    #[error("the private key cannot be used: {0}")]
    BadKey(#[source] rustls::Error),
    /// The key is protected by a password.
    #[error("the private key is encrypted; it must be stored without a password")]
    Encrypted,
    /// The key belongs to another certificate than the first one in this file.
    #[error("the private key does not match the certificate in {}", .0.display())]
    Mismatch(PathBuf),
    /// There is no certificate in PEM form.
    #[error("no certificate found")]
    NoCertificate,
    /// There is no private key in PEM form.
    #[error("no private key found")]
    NoKey,
    /// The PEM sections are malformed.
    #[error("malformed PEM: {0}")]
    Pem(#[source] pem::Error),
    /// The file cannot be read.
    #[error("cannot be read: {0}")]
    Read(#[source] io::Error),
}

fn read_certificates(file: &Path) -> Result<Vec<CertificateDer<'static>>, CertificateError> {
    let text = read(file)?;
    let certificates = CertificateDer::pem_slice_iter(&text).collect::<Result<Vec<_>, _>>();
    match certificates {
        Ok(none) if none.is_empty() => Err(CertificateError::new(
            file,
            CertificateProblem::NoCertificate,
        )),
        Ok(certificates) => Ok(certificates),
        Err(error) => Err(CertificateError::new(file, CertificateProblem::Pem(error))),
    }
}

fn read_key(file: &Path) -> Result<PrivateKeyDer<'static>, CertificateError> {
    let text = read(file)?;
    PrivateKeyDer::from_pem_slice(&text).map_err(|error| {
        let problem = match error {
            pem::Error::NoItemsFound if is_encrypted(&text) => CertificateProblem::Encrypted,
            pem::Error::NoItemsFound => CertificateProblem::NoKey,
            error => CertificateProblem::Pem(error),
        };
        CertificateError::new(file, problem)
    })
}

fn read(file: &Path) -> Result<Vec<u8>, CertificateError> {
    fs::read(file).map_err(|error| CertificateError::new(file, CertificateProblem::Read(error)))
}

/// RFC 7468 section 11, and the older form with a header.
fn is_encrypted(text: &[u8]) -> bool {
    const MARK: &[u8] = b"ENCRYPTED";
    text.windows(MARK.len()).any(|window| window == MARK)
}
