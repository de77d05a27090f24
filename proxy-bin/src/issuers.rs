//! Issuers of certificates that are trusted: those of a file, or the system's.

use std::path::{Path, PathBuf};

use proxy_tls::CertificateProblem;
use proxy_tls::rustls::RootCertStore;

use crate::certificates::Unloaded;
use crate::config::{Mismatch, Problem, Sourced};

/// Reads files of issuers, and keeps what is wrong with them.
#[derive(Debug, Default)]
pub(crate) struct Issuers {
    /// Once they are needed.
    system: Option<RootCertStore>,
    pub(crate) failures: Vec<String>,
    pub(crate) mistakes: Vec<Problem>,
}

impl Issuers {
    /// Those of the file that `key` names; `None` with a failure or mistake
    /// noted.
    pub(crate) fn of_file(&mut self, key: &str, ca: &Sourced<PathBuf>) -> Option<RootCertStore> {
        let error = match proxy_tls::load_roots(&ca.value) {
            Ok(roots) => return Some(roots),
            Err(error) => error,
        };
        match error.problem {
            CertificateProblem::Read(_) => self.failures.push(error.to_string()),
            problem => {
                let file = ca.value.display();
                let mismatch = Mismatch::new(
                    "certificates of issuers in PEM form",
                    "the path of a file with them",
                );
                let found = format!("{file} ({problem})");
                let problem = Problem::mismatch(&ca.origin, key, &mismatch, &found);
                self.mistakes.push(problem);
            }
        }
        None
    }

    /// The system's.
    ///
    /// # Errors
    /// That there are none, or none that can be read.
    pub(crate) fn of_system(&mut self) -> Result<RootCertStore, String> {
        if let Some(system) = &self.system {
            return Ok(system.clone());
        }
        let Some(path) = SYSTEM.iter().map(Path::new).find(|path| path.exists()) else {
            return Err(
                "this system has no file of trusted issuers where it is usually found".into(),
            );
        };
        let system = proxy_tls::load_roots(path).map_err(|error| error.to_string())?;
        Ok(self.system.insert(system).clone())
    }

    /// Whether all went well.
    ///
    /// # Errors
    /// All mistakes, or, if there are none, all files that cannot be read.
    pub(crate) fn finish(mut self) -> Result<(), Unloaded> {
        self.mistakes.sort_by_key(Problem::place);
        match (self.mistakes.is_empty(), self.failures.is_empty()) {
            (true, true) => Ok(()),
            (true, false) => Err(Unloaded::Failures(self.failures)),
            (false, _) => Err(Unloaded::Mistakes(self.mistakes)),
        }
    }
}

/// Where systems keep the issuers they trust.
const SYSTEM: [&str; 5] = [
    "/etc/ssl/certs/ca-certificates.crt",
    "/etc/pki/tls/certs/ca-bundle.crt",
    "/etc/ssl/ca-bundle.pem",
    "/etc/ssl/cert.pem",
    "/etc/pki/ca-trust/extracted/pem/tls-ca-bundle.pem",
];
