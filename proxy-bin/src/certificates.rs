//! Loading the certificates of TLS listeners, and saying what is wrong with them.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use proxy_tls::rustls::crypto::CryptoProvider;
use proxy_tls::{
    Acceptor, CertificateError, CertificateProblem, PostQuantum, SingleCertificate, TlsOptions,
};

use crate::config::{Config, Mismatch, Origin, Problem, Protocol, Sourced, TlsFiles};
use crate::plan::failure;

/// Why there are no certificates to serve with.
#[derive(Debug)]
pub(crate) enum Unloaded {
    /// A line for each listener whose files cannot be read.
    Failures(Vec<String>),
    /// Files without what is needed of them.
    Mistakes(Vec<Problem>),
}

/// Loads what TLS listeners need, in the order of the listeners.
///
/// # Errors
/// All mistakes, or, if there are none, all files that cannot be read.
pub(crate) fn load(config: &Config) -> Result<Vec<Option<Acceptor>>, Unloaded> {
    let provider = proxy_tls::provider(PostQuantum::Omit);
    let mut acceptors = Vec::new();
    let mut failures = Vec::new();
    let mut mistakes = Vec::new();
    for listener in &config.listeners {
        match &listener.tls {
            None => acceptors.push(None),
            Some(files) => match acceptor(config, &provider, listener.protocol, files) {
                Ok(acceptor) => acceptors.push(Some(acceptor)),
                Err(Fault::Failure(text)) => failures.push(failure(listener, &text)),
                Err(Fault::Mistake(problem)) => mistakes.push(problem),
            },
        }
    }
    mistakes.sort_by_key(Problem::place);
    match (mistakes.is_empty(), failures.is_empty()) {
        (true, true) => Ok(acceptors),
        (true, false) => Err(Unloaded::Failures(failures)),
        (false, _) => Err(Unloaded::Mistakes(mistakes)),
    }
}

/// What is wrong with the files of one listener.
enum Fault {
    Failure(String),
    Mistake(Problem),
}

fn acceptor(
    config: &Config,
    provider: &Arc<CryptoProvider>,
    protocol: Protocol,
    files: &TlsFiles,
) -> Result<Acceptor, Fault> {
    let pair = proxy_tls::load_certificate(provider, &files.cert.value, &files.key.value)
        .map_err(|error| fault(provider, files, &error))?;
    let mut options = TlsOptions::default();
    match protocol {
        // `curl --http1.0` offers nothing but the second, and would be refused.
        Protocol::Auto | Protocol::Http | Protocol::Https => options.alpn(["http/1.1", "http/1.0"]),
        // What is spoken inside is for the clients to know.
        _ => options.alpn::<Vec<u8>>([]),
    };
    if let Some(head) = config.timeouts.head {
        options.timeout(head);
    }
    let certificates = Arc::new(SingleCertificate::new(pair));
    Acceptor::new(Arc::clone(provider), certificates, &options)
        .map_err(|error| Fault::Failure(error.to_string()))
}

fn fault(provider: &CryptoProvider, files: &TlsFiles, error: &CertificateError) -> Fault {
    use CertificateProblem as Kind;
    if matches!(error.problem, Kind::Read(_)) {
        return Fault::Failure(error.to_string());
    }
    if look_swapped(provider, files) {
        return Fault::Mistake(swapped(files));
    }
    let of_key = match error.problem {
        Kind::BadKey(_) | Kind::Encrypted | Kind::Mismatch(_) | Kind::NoKey => true,
        Kind::BadCertificate(_) | Kind::NoCertificate => false,
        _ => error.file != files.cert.value,
    };
    let problem = match of_key {
        true => key_problem(files, &error.problem),
        false => certificate_problem(files, &error.problem),
    };
    match error.problem {
        Kind::Mismatch(_) => Fault::Mistake(problem),
        // Named rightly or not, the file cannot be read for what it should be.
        _ => Fault::Failure(problem.to_string()),
    }
}

fn key_problem(files: &TlsFiles, problem: &CertificateProblem) -> Problem {
    let file = &files.key;
    let shown = file.value.display();
    let encrypted =
        matches!(problem, CertificateProblem::Encrypted) || content(&file.value).encrypted;
    let (mismatch, found) = if encrypted {
        let instead = format!("the path of the output of: openssl pkey -in {shown} -out FILE");
        (
            Mismatch::new("a private key without a password", instead),
            format!("an encrypted one in {shown}"),
        )
    } else if let CertificateProblem::Mismatch(_) = problem {
        let expected = format!("the private key of {}", files.cert.value.display());
        (
            Mismatch::new(expected, "the path of the certificate's own key"),
            format!("the key of another certificate in {shown}"),
        )
    } else {
        (
            Mismatch::new(
                "a file with a private key in PEM form",
                "the path of such a file",
            ),
            found(&file.value, problem),
        )
    };
    Problem::mismatch(&file.origin, "listener.key", &mismatch, &found)
}

fn certificate_problem(files: &TlsFiles, problem: &CertificateProblem) -> Problem {
    let file = &files.cert;
    let mismatch = Mismatch::new(
        "a file with a certificate in PEM form",
        "the path of such a file",
    );
    let found = found(&file.value, problem);
    Problem::mismatch(&file.origin, "listener.cert", &mismatch, &found)
}

/// Whether the two would do the other way round, or nearly.
fn look_swapped(provider: &CryptoProvider, files: &TlsFiles) -> bool {
    let (cert, key) = (&files.cert.value, &files.key.value);
    let turned = || match proxy_tls::load_certificate(provider, key, cert) {
        Ok(_) => true,
        Err(error) => matches!(error.problem, CertificateProblem::Mismatch(_)),
    };
    cert != key && !content(cert).certificate && turned()
}

fn swapped(files: &TlsFiles) -> Problem {
    let TlsFiles { cert, key } = files;
    let instead = match cert.origin {
        Origin::Argument(_) => {
            format!("cert={}&key={}", key.value.display(), cert.value.display())
        }
        Origin::Default | Origin::File(..) => {
            format!("cert = {:?} and key = {:?}", written(key), written(cert))
        }
    };
    let text = format!(
        "expected a certificate, found a private key in {}: cert and key look swapped; write \
         {instead} instead",
        cert.value.display()
    );
    Problem::new(&cert.origin, "listener.cert", text)
}

/// The path as it stands in the configuration.
fn written(file: &Sourced<PathBuf>) -> &Path {
    let folder = file.origin.folder();
    file.value.strip_prefix(folder).unwrap_or(&file.value)
}

/// What is in `file` instead of what should be.
fn found(file: &Path, problem: &CertificateProblem) -> String {
    let content = content(file);
    let what = match problem {
        CertificateProblem::NoCertificate | CertificateProblem::NoKey => match content {
            Content { empty: true, .. } => "nothing".to_owned(),
            Content {
                certificate: true, ..
            } => "only a certificate".to_owned(),
            Content { key: true, .. } => "only a private key".to_owned(),
            Content { pem: true, .. } => "something else".to_owned(),
            _ => "no PEM section (-----BEGIN ..)".to_owned(),
        },
        problem => format!("a problem ({problem})"),
    };
    format!("{what} in {}", file.display())
}

/// What a file seems to hold.
#[derive(Clone, Copy, Debug, Default)]
struct Content {
    certificate: bool,
    empty: bool,
    encrypted: bool,
    key: bool,
    pem: bool,
}

fn content(file: &Path) -> Content {
    let Ok(bytes) = fs::read(file) else {
        return Content::default();
    };
    let has = |mark: &str| {
        let mut windows = bytes.windows(mark.len());
        windows.any(|window| window == mark.as_bytes())
    };
    Content {
        certificate: has("-----BEGIN CERTIFICATE-----"),
        empty: bytes.iter().all(u8::is_ascii_whitespace),
        // RFC 7468 section 11, and the older form with a header.
        encrypted: has("ENCRYPTED"),
        key: has("PRIVATE KEY-----"),
        pem: has("-----BEGIN "),
    }
}
