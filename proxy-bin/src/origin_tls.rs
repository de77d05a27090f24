//! TLS with origins, for requests for `https` URLs.

use std::cell::RefCell;
use std::collections::HashMap;
use std::sync::Arc;
use std::time::Instant;

use proxy_core::{ConnectError, ConnectErrorKind, Host, Target};
use proxy_tls::rustls::pki_types::ServerName;
use proxy_tls::rustls::{self, RootCertStore};
use proxy_tls::{Connector, PostQuantum, TlsErrorKind, TlsOptions};

use crate::certificates::Unloaded;
use crate::config::Config;
use crate::issuers::Issuers;
use crate::throttle::Throttle;
use crate::upstream::{Lane, Upstream};

/// Whose certificates origins may show; what the workers share.
#[derive(Clone, Debug)]
pub(crate) struct Trust {
    connector: Connector,
    /// Why nobody is trusted.
    missing: Option<Arc<str>>,
}

impl Trust {
    /// Reads the issuers, if `https` URLs are fetched at all. That a system has
    /// none is told to those who need them.
    ///
    /// # Errors
    /// What is wrong with a file of issuers.
    pub(crate) fn load(config: &Config) -> Result<Option<Self>, Unloaded> {
        if !config.http.fetch_https {
            return Ok(None);
        }
        let mut issuers = Issuers::default();
        let roots = match &config.http.ca {
            Some(ca) => Ok(issuers.of_file("http.ca", ca)),
            None => issuers.of_system().map(Some),
        };
        let (roots, missing) = match roots {
            Ok(roots) => (roots, None),
            Err(missing) => (None, Some(missing.into())),
        };
        let roots = roots.unwrap_or_else(RootCertStore::empty);
        let mut options = TlsOptions::default();
        if let Some(patience) = config.timeouts.connect {
            options.timeout(patience);
        }
        let provider = proxy_tls::provider(PostQuantum::Omit);
        match Connector::new(provider, roots, &options) {
            Ok(connector) => {
                issuers.finish()?;
                Ok(Some(Self { connector, missing }))
            }
            Err(error) => Err(Unloaded::Failures(vec![format!("TLS: {error}")])),
        }
    }
}

/// Has the cryptography seed itself on a thread of its own: that takes 50 ms or
/// more, which the first handshake would take from all clients of its worker.
pub(crate) fn gather_entropy() {
    let seed = || {
        proxy_tls::provider(PostQuantum::Omit)
            .secure_random
            .fill(&mut [0])
    };
    // Without a thread, or without entropy, the first handshake sees to it.
    let _ = std::thread::Builder::new()
        .name("entropy".into())
        .spawn(move || drop(seed()));
}

/// How a worker speaks TLS with origins.
#[derive(Debug)]
pub(crate) struct OriginTls {
    trust: Trust,
    /// Connections that differ are not to be told to belong together by a
    /// session that one of them resumes.
    apart: RefCell<HashMap<Lane, Connector>>,
    told: Throttle,
}

impl OriginTls {
    pub(crate) fn new(trust: Trust) -> Self {
        Self {
            trust,
            apart: RefCell::default(),
            told: Throttle::default(),
        }
    }

    /// TLS with `target` over what leads to it on this lane. Cancel safe: the
    /// connection is closed.
    ///
    /// # Errors
    /// That the handshake failed, or the certificate is not one of the target's.
    /// Standard error has more.
    pub(crate) async fn connect(
        &self,
        lane: Lane,
        target: Target<'_>,
        upstream: Upstream,
    ) -> Result<Upstream, ConnectError> {
        let Some(name) = server_name(target) else {
            let kind = ConnectErrorKind::Certificate;
            return Err(self.failed(kind, target, "no certificate can be for such a name"));
        };
        if let Some(missing) = &self.trust.missing {
            let text = format!("{missing}: write ca in [http]");
            return Err(self.failed(ConnectErrorKind::Certificate, target, &text));
        }
        match self.connector(lane).connect(name, upstream).await {
            Ok(stream) => Ok(Upstream::tls(stream)),
            Err(error) => Err(self.failed(kind(&error.kind), target, &error.kind.to_string())),
        }
    }

    fn connector(&self, lane: Lane) -> Connector {
        if lane.is_usual() {
            return self.trust.connector.clone();
        }
        let mut apart = self.apart.borrow_mut();
        if apart.len() >= MOST_APART && !apart.contains_key(&lane) {
            apart.clear();
        }
        let connector = || self.trust.connector.apart(SESSIONS_APART);
        apart.entry(lane).or_insert_with(connector).clone()
    }

    fn failed(&self, kind: ConnectErrorKind, target: Target<'_>, text: &str) -> ConnectError {
        let error = ConnectError::origin(kind);
        if let Some(failures) = self.told.admit(Instant::now()) {
            tracing::info!(%target, failures, "{error}: {text}");
        }
        error
    }
}

fn server_name(target: Target<'_>) -> Option<ServerName<'static>> {
    match target.host {
        Host::Ip(ip) => Some(ServerName::from(ip)),
        Host::Name(name) => {
            let name = name.strip_suffix('.').unwrap_or(name);
            ServerName::try_from(name.to_owned()).ok()
        }
    }
}

fn kind(error: &TlsErrorKind) -> ConnectErrorKind {
    match error {
        TlsErrorKind::Closed => ConnectErrorKind::Tls,
        TlsErrorKind::Io(error) => ConnectError::from(std::io::Error::from(error.kind())).kind,
        TlsErrorKind::Protocol(rustls::Error::InvalidCertificate(_)) => {
            ConnectErrorKind::Certificate
        }
        TlsErrorKind::TimedOut => ConnectErrorKind::TimedOut,
        _ => ConnectErrorKind::Tls,
    }
}

/// Lanes whose sessions are kept apart at a time.
const MOST_APART: usize = 64;
/// Sessions that each of them remembers.
const SESSIONS_APART: usize = 16;
