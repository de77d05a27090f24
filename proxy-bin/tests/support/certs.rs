//! A certificate authority and a certificate for `localhost`, made once.

use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};

use proxy_tls::rustls::crypto::aws_lc_rs;
use proxy_tls::rustls::pki_types::{CertificateDer, PrivateKeyDer};
use proxy_tls::rustls::{ClientConfig, RootCertStore, ServerConfig};
use rcgen::{BasicConstraints, CertificateParams, DnType, IsCa, Issuer, KeyPair, KeyUsagePurpose};

/// The files for the command line and the configurations for in-process peers.
pub(crate) struct Certs {
    folder: tempfile::TempDir,
    pub(crate) client: Arc<ClientConfig>,
    pub(crate) server: Arc<ServerConfig>,
}

impl Certs {
    /// The certificates of this test process.
    pub(crate) fn shared() -> &'static Self {
        static SHARED: OnceLock<Certs> = OnceLock::new();
        SHARED.get_or_init(Self::make)
    }

    fn make() -> Self {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let (ca, issuer) = authority();
        let key = KeyPair::generate().expect("a key");
        let names = ["localhost".to_owned(), "127.0.0.1".to_owned()];
        let mut params = CertificateParams::new(names).expect("valid names");
        // Named like its issuer, it would pass for its own.
        params
            .distinguished_name
            .push(DnType::CommonName, "localhost");
        let leaf = params.signed_by(&key, &issuer).expect("a certificate");
        std::fs::write(folder.path().join("ca.pem"), ca.pem()).expect("written");
        std::fs::write(folder.path().join("cert.pem"), leaf.pem()).expect("written");
        std::fs::write(folder.path().join("key.pem"), key.serialize_pem()).expect("written");
        let key = PrivateKeyDer::try_from(key.serialize_der()).expect("a private key");
        Self {
            client: client_config(ca.der().clone()),
            server: server_config(leaf.der().clone(), key),
            folder,
        }
    }

    /// The authority that signed the certificate, as a PEM file.
    pub(crate) fn ca(&self) -> PathBuf {
        self.folder.path().join("ca.pem")
    }

    /// The certificate of `localhost` and 127.0.0.1, as a PEM file.
    pub(crate) fn cert(&self) -> PathBuf {
        self.folder.path().join("cert.pem")
    }

    /// Its private key, as a PEM file.
    pub(crate) fn key(&self) -> PathBuf {
        self.folder.path().join("key.pem")
    }

    /// The query part of a `--listen` address with TLS.
    pub(crate) fn query(&self) -> String {
        let path = |path: PathBuf| path.to_str().expect("a plain path").to_owned();
        format!("cert={}&key={}", path(self.cert()), path(self.key()))
    }

    /// A folder that lives as long as the test process.
    pub(crate) fn folder(&self) -> &Path {
        self.folder.path()
    }
}

fn authority() -> (rcgen::Certificate, Issuer<'static, KeyPair>) {
    let mut params = CertificateParams::new(Vec::new()).expect("no names");
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
    let key = KeyPair::generate().expect("a key");
    let ca = params.self_signed(&key).expect("a certificate");
    (ca, Issuer::new(params, key))
}

fn client_config(ca: CertificateDer<'static>) -> Arc<ClientConfig> {
    let mut roots = RootCertStore::empty();
    roots.add(ca).expect("a valid authority");
    let mut config = ClientConfig::builder_with_provider(Arc::new(aws_lc_rs::default_provider()))
        .with_safe_default_protocol_versions()
        .expect("versions of the provider")
        .with_root_certificates(roots)
        .with_no_client_auth();
    config.alpn_protocols = vec![b"http/1.1".to_vec()];
    Arc::new(config)
}

fn server_config(cert: CertificateDer<'static>, key: PrivateKeyDer<'static>) -> Arc<ServerConfig> {
    let provider = Arc::new(aws_lc_rs::default_provider());
    let config = ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .expect("versions of the provider")
        .with_no_client_auth()
        .with_single_cert(vec![cert], key)
        .expect("a matching pair");
    Arc::new(config)
}
