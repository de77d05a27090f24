//! TLS with origins, for requests for `https` URLs and for port relays.

use std::cell::RefCell;
use std::collections::HashMap;
use std::path::PathBuf;
use std::sync::Arc;
use std::thread::{self, JoinHandle};
use std::time::Instant;

use proxy_core::{ConnectError, ConnectErrorKind, Host, Target};
use proxy_tls::rustls::pki_types::ServerName;
use proxy_tls::rustls::{self, RootCertStore};
use proxy_tls::{Connector, PostQuantum, TlsErrorKind, TlsOptions};

use crate::certificates::Unloaded;
use crate::config::{Config, Sourced};
use crate::issuers::Issuers;
use crate::throttle::Throttle;
use crate::unix;
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
        let ca = config.http.ca.as_ref();
        let roots = roots(&mut issuers, "http.ca", ca, "ca in [http]");
        let trust = Self::new(roots, TlsOptions::default(), config)?;
        issuers.finish()?;
        Ok(Some(trust))
    }

    /// The same for the targets of port relays, in the order of the listeners.
    ///
    /// # Errors
    /// What is wrong with a file of issuers.
    pub(crate) fn of_targets(config: &Config) -> Result<Vec<Option<Self>>, Unloaded> {
        let mut issuers = Issuers::default();
        let mut trusts = Vec::new();
        for listener in &config.listeners {
            let trust = listener.relay.tls.as_ref().map(|tls| {
                let advice = format!("target_ca for the listener {listener}");
                let ca = tls.ca.as_ref();
                let roots = roots(&mut issuers, "listener.target_ca", ca, &advice);
                // Nobody knows what is spoken inside.
                let mut options = TlsOptions::default();
                options.alpn::<Vec<u8>>([]);
                Self::new(roots, options, config)
            });
            trusts.push(trust.transpose()?);
        }
        issuers.finish()?;
        Ok(trusts)
    }

    fn new(
        roots: Result<RootCertStore, String>,
        mut options: TlsOptions,
        config: &Config,
    ) -> Result<Self, Unloaded> {
        let (roots, missing) = match roots {
            Ok(roots) => (roots, None),
            Err(missing) => (RootCertStore::empty(), Some(missing.into())),
        };
        if let Some(patience) = config.timeouts.connect {
            options.timeout(patience);
        }
        let provider = proxy_tls::provider(PostQuantum::Omit);
        match Connector::new(provider, roots, &options) {
            Ok(connector) => Ok(Self { connector, missing }),
            Err(error) => Err(Unloaded::Failures(vec![format!("TLS: {error}")])),
        }
    }
}

/// Those of the file `ca` that `key` names, or the system's.
///
/// # Errors
/// That the system has none, and what to write then.
fn roots(
    issuers: &mut Issuers,
    key: &str,
    ca: Option<&Sourced<PathBuf>>,
    advice: &str,
) -> Result<RootCertStore, String> {
    match ca {
        // Without them nothing will start.
        Some(ca) => Ok(issuers
            .of_file(key, ca)
            .unwrap_or_else(RootCertStore::empty)),
        None => issuers
            .of_system()
            .map_err(|missing| format!("{missing}: write {advice}")),
    }
}

/// The cryptography seeding itself on a thread of its own: that takes 50 ms or
/// more, which the first handshake would take from all clients of its worker.
///
/// Dropped, it waits for the end of that: what a process frees when it exits must
/// not be in use.
#[derive(Debug)]
pub(crate) struct Seeding(Option<JoinHandle<()>>);

impl Seeding {
    pub(crate) fn begin() -> Self {
        let seed = || {
            proxy_tls::provider(PostQuantum::Omit)
                .secure_random
                .fill(&mut [0])
        };
        // Without a thread, or without entropy, the first handshake sees to it.
        let thread = thread::Builder::new()
            .name("entropy".into())
            .spawn(move || drop(seed()));
        Self(thread.ok())
    }
}

impl Drop for Seeding {
    fn drop(&mut self) {
        if let Some(thread) = self.0.take() {
            let _ = thread.join();
        }
    }
}

/// How a worker speaks TLS with origins.
#[derive(Debug)]
pub(crate) struct OriginTls {
    trust: Trust,
    /// Whose certificate is asked for; `None` is the target's.
    name: Option<ServerName<'static>>,
    /// Connections that differ are not to be told to belong together by a
    /// session that one of them resumes.
    apart: RefCell<HashMap<Lane, Connector>>,
    told: Throttle,
}

impl OriginTls {
    pub(crate) fn new(trust: Trust) -> Self {
        Self::named(trust, None)
    }

    /// Targets must all be who `name` says, if it is given.
    pub(crate) fn named(trust: Trust, name: Option<ServerName<'static>>) -> Self {
        Self {
            trust,
            name,
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
        let name = self.name.clone().or_else(|| server_name(target));
        let Some(name) = name else {
            let kind = ConnectErrorKind::Certificate;
            return Err(self.failed(kind, target, "no certificate can be for such a name"));
        };
        if let Some(missing) = &self.trust.missing {
            return Err(self.failed(ConnectErrorKind::Certificate, target, missing));
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
            let target = unix::shown(target);
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
