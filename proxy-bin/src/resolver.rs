//! Looks names up: in the hosts file, then with the name servers.

use std::fmt;
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use hickory_resolver::config::{
    ConnectionConfig, NameServerConfig, ResolveHosts, ResolverConfig, ResolverOpts,
};
use hickory_resolver::lookup::Lookup;
use hickory_resolver::net::runtime::TokioRuntimeProvider;
use hickory_resolver::net::{DnsError, NetError};
use hickory_resolver::proto::op::{Query, ResponseCode};
use hickory_resolver::proto::rr::{Name, Record, RecordType};
use hickory_resolver::{Hosts, TokioResolver, system_conf};
use proxy_core::{ConnectError, ConnectErrorKind};
use proxy_relay::{Family, Resolve, Resolved};

use crate::config;

/// What is to be known for looking names up: read once, shared by the workers.
#[derive(Clone)]
pub(crate) struct NameService {
    hosts: Arc<Hosts>,
    servers: Vec<NameServerConfig>,
    /// Domains in which a name may be meant (resolv.conf's `search`).
    search: Vec<Name>,
    options: ResolverOpts,
}

impl NameService {
    /// Reads the system's files. That there are none is told and no failure:
    /// then no name is found but `localhost`.
    pub(crate) fn read(config: &config::Resolver) -> Self {
        let hosts = Hosts::from_system().unwrap_or_else(|error| {
            tracing::debug!(%error, "no hosts file");
            Hosts::default()
        });
        let (system, options) = system_conf::read_system_conf().unwrap_or_else(|error| {
            if config.servers.is_empty() {
                tracing::warn!(%error, "no name servers: names outside of the hosts file will not be found");
            }
            (ResolverConfig::default(), ResolverOpts::default())
        });
        Self::new(config, hosts, system, options)
    }

    fn new(
        config: &config::Resolver,
        hosts: Hosts,
        system: ResolverConfig,
        mut options: ResolverOpts,
    ) -> Self {
        let (domain, search, mut servers) = system.into_parts();
        if !config.servers.is_empty() {
            servers = config.servers.iter().map(server).collect();
        }
        servers.truncate(MAX_SERVERS);
        let search = match search.is_empty() {
            true => domain.into_iter().collect(),
            false => search,
        };
        // Each server has its part of the time.
        let share = config.timeout / u32::try_from(servers.len()).unwrap_or(1).max(1);
        options.timeout = options.timeout.min(share);
        options.attempts = 0;
        options.num_concurrent_reqs = 1;
        options.max_active_requests = MAX_ACTIVE;
        // All of this is done here, or by who asks.
        options.cache_size = 0;
        options.use_hosts_file = ResolveHosts::Never;
        Self {
            hosts: Arc::new(hosts),
            servers,
            search,
            options,
        }
    }

    /// Somebody to ask within one worker's runtime.
    ///
    /// # Errors
    /// If the resolver cannot be set up.
    pub(crate) fn resolver(&self) -> io::Result<Arc<dyn Resolve>> {
        let servers: io::Result<Vec<_>> = self.servers.iter().map(|at| self.asking(at)).collect();
        Ok(Arc::new(Resolver {
            service: self.clone(),
            servers: servers?,
            current: AtomicUsize::new(0),
        }))
    }

    fn asking(&self, server: &NameServerConfig) -> io::Result<TokioResolver> {
        let config = ResolverConfig::from_parts(None, Vec::new(), vec![server.clone()]);
        TokioResolver::builder_with_config(config, TokioRuntimeProvider::default())
            .with_options(self.options.clone())
            .build()
            .map_err(io::Error::other)
    }

    /// What the hosts file has. A name that it knows is asked of nobody else,
    /// for neither family.
    fn in_hosts(&self, name: &Name, family: Family) -> Option<Vec<IpAddr>> {
        let known = |family| {
            let query = Query::query(name.clone(), record_type(family));
            let lookup = self.hosts.lookup_static_host(&query)?;
            let records = lookup.answers().iter();
            Some(records.filter_map(|record| record.data.ip_addr()).collect())
        };
        let other = match family {
            Family::V4 => Family::V6,
            Family::V6 => Family::V4,
        };
        known(family).or_else(|| known(other).map(|_: Vec<IpAddr>| Vec::new()))
    }

    /// The complete names that `name` may mean, the likeliest first: itself, if
    /// it has dots enough, and itself in the domains of the search list.
    fn candidates(&self, name: &Name) -> Vec<Name> {
        if name.is_fqdn() {
            return vec![name.clone()];
        }
        let domains = self.search.iter();
        let mut candidates: Vec<Name> = domains
            .filter_map(|domain| name.clone().append_domain(domain).ok())
            .collect();
        let first = usize::from(name.num_labels()) > self.options.ndots;
        let at = if first { 0 } else { candidates.len() };
        candidates.insert(at, complete(name));
        candidates
    }
}

impl fmt::Debug for NameService {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let servers: Vec<IpAddr> = self.servers.iter().map(|server| server.ip).collect();
        f.debug_struct("NameService")
            .field("servers", &servers)
            .field("search", &self.search)
            .finish_non_exhaustive()
    }
}

/// A name service at work.
#[derive(Debug)]
struct Resolver {
    service: NameService,
    /// One for each server.
    servers: Vec<TokioResolver>,
    /// The server that answered last and is asked first.
    current: AtomicUsize,
}

impl Resolve for Resolver {
    fn resolve<'a>(
        &'a self,
        name: &'a str,
        family: Family,
    ) -> Pin<Box<dyn Future<Output = Result<Resolved, ConnectErrorKind>> + Send + 'a>> {
        Box::pin(self.find(name, family))
    }
}

impl Resolver {
    async fn find(&self, name: &str, family: Family) -> Result<Resolved, ConnectErrorKind> {
        let name = Name::from_ascii(name).map_err(|_| ConnectErrorKind::NameNotFound)?;
        if let Some(addresses) = self.service.in_hosts(&name, family) {
            return Ok(local(addresses));
        }
        if complete(&name).is_localhost() {
            return Ok(local(vec![loopback(family)]));
        }
        for candidate in self.service.candidates(&name) {
            if let Some(resolved) = self.ask(&candidate, record_type(family)).await? {
                return Ok(resolved);
            }
        }
        Err(ConnectErrorKind::NameNotFound)
    }

    /// What the first server says that says anything; `None` if there is no such
    /// name.
    async fn ask(
        &self,
        name: &Name,
        record: RecordType,
    ) -> Result<Option<Resolved>, ConnectErrorKind> {
        let first = self.current.load(Ordering::Relaxed);
        let mut failed = ConnectErrorKind::NameUnavailable;
        for step in 0..self.servers.len() {
            let at = (first + step) % self.servers.len();
            match heard(self.servers[at].lookup(name.clone(), record).await) {
                Ok(heard) => {
                    if step > 0 {
                        self.current.store(at, Ordering::Relaxed);
                    }
                    return Ok(heard);
                }
                Err(kind) => failed = kind,
            }
        }
        Err(failed)
    }
}

/// What an answer comes to.
fn heard(answer: Result<Lookup, NetError>) -> Result<Option<Resolved>, ConnectErrorKind> {
    let none = match answer {
        Ok(lookup) => return Ok(Some(found(lookup.answers()))),
        Err(NetError::Dns(DnsError::NoRecordsFound(none))) => none,
        Err(NetError::Io(error)) => return Err(ours(&error)),
        Err(_) => return Err(ConnectErrorKind::NameUnavailable),
    };
    match none.response_code {
        ResponseCode::NXDomain => Ok(None),
        ResponseCode::NoError => Ok(Some(Resolved {
            addresses: Vec::new(),
            ttl: none.negative_ttl.map_or(Duration::ZERO, seconds),
        })),
        _ => Err(ConnectErrorKind::NameUnavailable),
    }
}

/// The addresses, and the shortest time of all that led to them.
fn found(records: &[Record]) -> Resolved {
    let ttl = records.iter().map(|record| record.ttl).min();
    let addresses = records.iter().filter_map(|record| record.data.ip_addr());
    Resolved {
        addresses: addresses.collect(),
        ttl: ttl.map_or(Duration::ZERO, seconds),
    }
}

/// Tells that we are out of something from a server that cannot be reached.
fn ours(error: &io::Error) -> ConnectErrorKind {
    let error = error.raw_os_error().map(io::Error::from_raw_os_error);
    match error.map(|error| ConnectError::from(error).kind) {
        Some(kind @ ConnectErrorKind::Exhausted) => kind,
        _ => ConnectErrorKind::NameUnavailable,
    }
}

fn server(address: &SocketAddr) -> NameServerConfig {
    let at = |mut connection: ConnectionConfig| {
        connection.port = address.port();
        connection
    };
    let connections = vec![at(ConnectionConfig::udp()), at(ConnectionConfig::tcp())];
    NameServerConfig::new(address.ip(), true, connections)
}

fn record_type(family: Family) -> RecordType {
    match family {
        Family::V4 => RecordType::A,
        Family::V6 => RecordType::AAAA,
    }
}

fn loopback(family: Family) -> IpAddr {
    match family {
        Family::V4 => Ipv4Addr::LOCALHOST.into(),
        Family::V6 => Ipv6Addr::LOCALHOST.into(),
    }
}

/// What this machine knows by itself.
fn local(addresses: Vec<IpAddr>) -> Resolved {
    Resolved {
        addresses,
        ttl: Duration::MAX,
    }
}

fn complete(name: &Name) -> Name {
    let mut name = name.clone();
    name.set_fqdn(true);
    name
}

fn seconds(ttl: u32) -> Duration {
    Duration::from_secs(ttl.into())
}

/// As many as the C library uses.
const MAX_SERVERS: usize = 3;
/// Questions under way on one TCP connection to a server.
const MAX_ACTIVE: usize = 4096;
