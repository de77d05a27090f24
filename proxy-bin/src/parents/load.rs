//! From configured parents to chains that can be dialled: issuers are read once.

use std::collections::HashMap;
use std::hash::{BuildHasher, RandomState};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use proxy_core::{Host, Target};
use proxy_tls::rustls::RootCertStore;
use proxy_tls::rustls::crypto::CryptoProvider;
use proxy_tls::rustls::pki_types::ServerName;
use proxy_tls::{CertificateProblem, Connector, PostQuantum, TlsOptions};

use super::chain::{Chain, Hop, Speaks, Tls};
use super::{Group, Shared, Ways};
use crate::certificates::Unloaded;
use crate::config::{self, Config, HopProtocol, Mismatch, Origin, Problem, Sourced};

/// Makes all parents of `config` ready; reads files.
///
/// # Errors
/// All mistakes, or, if there are none, all files that cannot be read.
pub(crate) fn load(config: &Config) -> Result<Ways, Unloaded> {
    let mut loader = Loader {
        provider: proxy_tls::provider(PostQuantum::Omit),
        patience: config.timeouts.connect.unwrap_or(LONGEST),
        system: None,
        chains: Vec::new(),
        known: HashMap::new(),
        failures: Vec::new(),
        mistakes: Vec::new(),
    };
    let groups = config.parents.iter().map(|parent| loader.group(parent));
    let groups = groups.collect();
    loader.mistakes.sort_by_key(Problem::place);
    match (loader.mistakes.is_empty(), loader.failures.is_empty()) {
        (true, true) => Ok(Ways(Arc::new(Shared {
            name: format!("proxyd-{:016x}", RandomState::new().hash_one(())),
            is_shown: config.http.via || !loader.chains.is_empty(),
            chains: loader.chains,
            groups,
        }))),
        (true, false) => Err(Unloaded::Failures(loader.failures)),
        (false, _) => Err(Unloaded::Mistakes(loader.mistakes)),
    }
}

struct Loader {
    provider: Arc<CryptoProvider>,
    patience: Duration,
    /// The system's issuers, once they are needed.
    system: Option<RootCertStore>,
    chains: Vec<Chain>,
    /// Where the chain of a name is: groups have the same as their members.
    known: HashMap<String, u16>,
    failures: Vec<String>,
    mistakes: Vec<Problem>,
}

impl Loader {
    fn group(&mut self, parent: &config::Parent) -> Group {
        Group {
            name: parent.name.clone(),
            members: parent.chains.iter().map(|c| self.chain(c)).collect(),
            order: parent.order,
        }
    }

    fn chain(&mut self, chain: &config::Chain) -> u16 {
        if let Some(at) = self.known.get(&chain.name) {
            return *at;
        }
        let hops = chain.hops.iter().map(|hop| self.hop(chain, hop)).collect();
        // The configuration has fewer.
        let at = u16::try_from(self.chains.len()).unwrap_or(u16::MAX);
        self.chains.push(Chain::new(chain.name.clone(), hops));
        self.known.insert(chain.name.clone(), at);
        at
    }

    fn hop(&mut self, chain: &config::Chain, hop: &config::Hop) -> Hop {
        let (speaks, tls) = match hop.protocol {
            HopProtocol::Http => (Speaks::Http, None),
            HopProtocol::Https => (Speaks::Http, self.tls(chain, hop)),
            HopProtocol::Socks4a => (Speaks::Socks4a, None),
            HopProtocol::Socks5 => (Speaks::Socks5, None),
        };
        Hop {
            target: hop.target.clone(),
            login: hop.login.clone(),
            speaks,
            tls,
        }
    }

    /// `None` with a failure or mistake noted.
    fn tls(&mut self, chain: &config::Chain, hop: &config::Hop) -> Option<Tls> {
        let roots = match &hop.ca {
            Some(ca) => self.roots(ca)?,
            None => self.system_roots()?,
        };
        let Some(name) = server_name(hop.target.as_target()) else {
            let text = format!(
                "expected a host that a certificate can name, found {:?} for parent {}; write \
                 another name of it, or its address, instead",
                hop.target.to_string(),
                chain.name
            );
            self.mistakes
                .push(Problem::new(&Origin::Default, "parent.url", text));
            return None;
        };
        let mut options = TlsOptions::default();
        options.timeout(self.patience);
        match Connector::new(Arc::clone(&self.provider), roots, &options) {
            Ok(connector) => Some(Tls { connector, name }),
            Err(error) => {
                self.failures
                    .push(format!("parent {}: {error}", chain.name));
                None
            }
        }
    }

    fn roots(&mut self, ca: &Sourced<PathBuf>) -> Option<RootCertStore> {
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
                let problem = Problem::mismatch(&ca.origin, "parent.ca", &mismatch, &found);
                self.mistakes.push(problem);
            }
        }
        None
    }

    fn system_roots(&mut self) -> Option<RootCertStore> {
        if self.system.is_none() {
            self.system = match SYSTEM.iter().map(Path::new).find(|path| path.exists()) {
                Some(path) => self.roots(&Sourced::new(path.to_owned(), &Origin::Default)),
                None => {
                    let text = "this system has no file of trusted issuers where it is usually \
                                found: write ca for the https parents";
                    self.failures.push(text.to_owned());
                    None
                }
            };
        }
        self.system.clone()
    }
}

fn server_name(target: Target<'_>) -> Option<ServerName<'static>> {
    match target.host {
        Host::Ip(ip) => Some(ServerName::from(ip)),
        Host::Name(name) => ServerName::try_from(name.to_owned()).ok(),
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

/// In place of no limit.
const LONGEST: Duration = Duration::from_secs(24 * 3600);
