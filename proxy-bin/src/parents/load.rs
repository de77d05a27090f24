//! From configured parents to chains that can be dialled: issuers are read once.

use std::collections::HashMap;
use std::hash::{BuildHasher, RandomState};
use std::sync::Arc;
use std::time::Duration;

use proxy_core::{Host, Target};
use proxy_tls::rustls::RootCertStore;
use proxy_tls::rustls::crypto::CryptoProvider;
use proxy_tls::rustls::pki_types::ServerName;
use proxy_tls::{Connector, PostQuantum, TlsOptions};

use super::chain::{Chain, Hop, Speaks, Tls};
use super::{Group, Shared, Ways};
use crate::certificates::Unloaded;
use crate::config::{self, Config, HopProtocol, Origin, Problem};
use crate::issuers::Issuers;

/// Makes all parents of `config` ready; reads files.
///
/// # Errors
/// All mistakes, or, if there are none, all files that cannot be read.
pub(crate) fn load(config: &Config) -> Result<Ways, Unloaded> {
    let mut loader = Loader {
        provider: proxy_tls::provider(PostQuantum::Omit),
        patience: config.timeouts.connect.unwrap_or(LONGEST),
        issuers: Issuers::default(),
        chains: Vec::new(),
        known: HashMap::new(),
    };
    let groups = config.parents.iter().map(|parent| loader.group(parent));
    let groups = groups.collect();
    loader.issuers.finish()?;
    Ok(Ways(Arc::new(Shared {
        name: format!("proxyd-{:016x}", RandomState::new().hash_one(())),
        is_shown: config.http.via || !loader.chains.is_empty(),
        chains: loader.chains,
        groups,
    })))
}

struct Loader {
    provider: Arc<CryptoProvider>,
    patience: Duration,
    issuers: Issuers,
    chains: Vec<Chain>,
    /// Where the chain of a name is: groups have the same as their members.
    known: HashMap<String, u16>,
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
            Some(ca) => self.issuers.of_file("parent.ca", ca)?,
            None => self.system_roots()?,
        };
        let Some(name) = server_name(hop.target.as_target()) else {
            let text = format!(
                "expected a host that a certificate can name, found {:?} for parent {}; write \
                 another name of it, or its address, instead",
                hop.target.to_string(),
                chain.name
            );
            self.issuers
                .mistakes
                .push(Problem::new(&Origin::Default, "parent.url", text));
            return None;
        };
        let mut options = TlsOptions::default();
        options.timeout(self.patience);
        match Connector::new(Arc::clone(&self.provider), roots, &options) {
            Ok(connector) => Some(Tls { connector, name }),
            Err(error) => {
                self.issuers
                    .failures
                    .push(format!("parent {}: {error}", chain.name));
                None
            }
        }
    }

    fn system_roots(&mut self) -> Option<RootCertStore> {
        let text = match self.issuers.of_system() {
            Ok(roots) => return Some(roots),
            Err(text) => format!("{text}: write ca for the https parents"),
        };
        // Once for all of them.
        if !self.issuers.failures.contains(&text) {
            self.issuers.failures.push(text);
        }
        None
    }
}

fn server_name(target: Target<'_>) -> Option<ServerName<'static>> {
    match target.host {
        Host::Ip(ip) => Some(ServerName::from(ip)),
        Host::Name(name) => ServerName::try_from(name.to_owned()).ok(),
    }
}

/// In place of no limit.
const LONGEST: Duration = Duration::from_secs(24 * 3600);
