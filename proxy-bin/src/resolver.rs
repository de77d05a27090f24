//! Looks names up: in the hosts file, then with the name servers.

use std::fmt;
use std::fs::File;
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::path::Path;
use std::pin::Pin;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use hickory_resolver::config::{
    ConnectionConfig, NameServerConfig, ProtocolConfig, ResolveHosts, ResolverConfig, ResolverOpts,
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
    pub(crate) fn read(config: &config::Resolver, hosts: &Path, resolv_conf: &Path) -> Self {
        let hosts = read_hosts(hosts).unwrap_or_else(|error| {
            tracing::debug!(%error, "no hosts file");
            Hosts::default()
        });
        let system = std::fs::read(resolv_conf).map_err(|error| error.to_string());
        let system = system.and_then(|text| {
            system_conf::parse_resolv_conf(text).map_err(|error| error.to_string())
        });
        let (system, options) = system.unwrap_or_else(|error| {
            if config.servers.is_empty() {
                tracing::warn!(
                    error,
                    "no name servers: names outside of the hosts file will not be found"
                );
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
        let servers = self.servers.iter();
        let servers: io::Result<Vec<_>> = servers
            .map(|server| self.asking(server, ProtocolConfig::Udp))
            .collect();
        Ok(Arc::new(Resolver {
            service: self.clone(),
            servers: servers?,
            current: AtomicUsize::new(0),
        }))
    }

    /// One that knows a single way to a server: given two, it would stay with TCP
    /// once it has a connection.
    fn asking(
        &self,
        server: &NameServerConfig,
        protocol: ProtocolConfig,
    ) -> io::Result<TokioResolver> {
        let mut server = server.clone();
        server.connections.retain(|way| way.protocol == protocol);
        let config = ResolverConfig::from_parts(None, Vec::new(), vec![server]);
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
    /// One for each server, by UDP.
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
            match self.ask_one(at, name, record).await {
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

    /// What one server says within its part of the time; by TCP if UDP is too
    /// small for it.
    async fn ask_one(
        &self,
        at: usize,
        name: &Name,
        record: RecordType,
    ) -> Result<Option<Resolved>, ConnectErrorKind> {
        let asked = async {
            match self.servers[at].lookup(name.clone(), record).await {
                Err(NetError::Truncated) => heard(self.ask_by_tcp(at, name, record).await),
                answer => heard(answer),
            }
        };
        tokio::time::timeout(self.service.options.timeout, asked)
            .await
            .unwrap_or(Err(ConnectErrorKind::NameUnavailable))
    }

    /// On a connection of its own: it is rare, and one that hangs must not be
    /// there for the next question.
    async fn ask_by_tcp(
        &self,
        at: usize,
        name: &Name,
        record: RecordType,
    ) -> Result<Lookup, NetError> {
        let server = &self.service.servers[at];
        let asking = self.service.asking(server, ProtocolConfig::Tcp)?;
        asking.lookup(name.clone(), record).await
    }
}

/// A name service that can be replaced while it is asked.
#[derive(Debug)]
pub(crate) struct Switch(Mutex<Arc<dyn Resolve>>);

impl Switch {
    pub(crate) fn new(service: Arc<dyn Resolve>) -> Self {
        Self(Mutex::new(service))
    }

    /// Questions from now on are answered by `service`.
    pub(crate) fn set(&self, service: Arc<dyn Resolve>) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = service;
    }
}

impl Resolve for Switch {
    fn resolve<'a>(
        &'a self,
        name: &'a str,
        family: Family,
    ) -> Pin<Box<dyn Future<Output = Result<Resolved, ConnectErrorKind>> + Send + 'a>> {
        let service = Arc::clone(&self.0.lock().unwrap_or_else(PoisonError::into_inner));
        Box::pin(async move { service.resolve(name, family).await })
    }
}

fn read_hosts(path: &Path) -> io::Result<Hosts> {
    let mut hosts = Hosts::default();
    hosts.read_hosts_conf(File::open(path)?)?;
    Ok(hosts)
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
        // Cheap to find again, and the file may change.
        ttl: Duration::from_secs(1),
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

#[cfg(test)]
#[path = "../tests/support/dns.rs"]
mod dns;

#[cfg(test)]
mod tests {
    use super::dns::{A, AAAA, NEGATIVE_TTL, NameServer, Reply};
    use super::*;
    use proxy_relay::Dialer;
    use std::time::Instant;

    const HOSTS: &str = "127.0.0.9 Known.example short # comment\n::9 six.localhost\n";

    fn service(servers: &[SocketAddr], timeout: u64, resolv_conf: &str) -> NameService {
        let mut hosts = Hosts::default();
        hosts.read_hosts_conf(HOSTS.as_bytes()).expect("hosts");
        let config = config::Resolver {
            servers: servers.to_vec(),
            timeout: Duration::from_millis(timeout),
        };
        let (system, options) =
            system_conf::parse_resolv_conf(format!("{resolv_conf}\nnameserver 127.0.0.1"))
                .expect("resolv.conf");
        NameService::new(&config, hosts, system, options)
    }

    async fn ask(
        service: &NameService,
        name: &str,
        family: Family,
    ) -> Result<(Vec<String>, u64), ConnectErrorKind> {
        let resolver = service.resolver().expect("a resolver");
        let resolved = resolver.resolve(name, family).await?;
        let shown = resolved.addresses.iter().map(IpAddr::to_string).collect();
        Ok((shown, resolved.ttl.as_secs()))
    }

    fn has(texts: &[&str], ttl: u32) -> Reply {
        let ips = texts.iter().map(|text| text.parse().expect("an address"));
        Reply::Has(ips.collect(), ttl)
    }

    fn answer(texts: &[&str], ttl: u32) -> Result<(Vec<String>, u64), ConnectErrorKind> {
        let shown = texts.iter().map(|text| (*text).to_owned()).collect();
        Ok((shown, ttl.into()))
    }

    #[tokio::test]
    async fn addresses_and_their_time() {
        let server = NameServer::start();
        server
            .says("a.example", A, has(&["192.0.2.1", "192.0.2.2"], 300))
            .says("a.example", AAAA, has(&["2001:db8::1"], 0))
            .says("four.example", A, has(&["192.0.2.4"], 30))
            .says("alias.example", A, Reply::Alias("a.example", 20))
            .says("far.example", A, Reply::Alias("four.example", 600));
        let service = service(&[server.address], 5000, "");
        for (name, family, expected) in [
            (
                "a.example",
                Family::V4,
                answer(&["192.0.2.1", "192.0.2.2"], 300),
            ),
            ("a.example", Family::V6, answer(&["2001:db8::1"], 0)),
            (
                "a.example.",
                Family::V4,
                answer(&["192.0.2.1", "192.0.2.2"], 300),
            ),
            ("four.example", Family::V6, answer(&[], NEGATIVE_TTL)),
            // The shortest of the chain counts.
            (
                "alias.example",
                Family::V4,
                answer(&["192.0.2.1", "192.0.2.2"], 20),
            ),
            ("far.example", Family::V4, answer(&["192.0.2.4"], 30)),
            (
                "none.example",
                Family::V4,
                Err(ConnectErrorKind::NameNotFound),
            ),
        ] {
            assert_eq!(ask(&service, name, family).await, expected, "{name}");
        }
    }

    #[tokio::test]
    async fn an_alias_that_comes_alone_is_followed() {
        let server = NameServer::start();
        server
            .says("one.example", A, Reply::Alias("two.example", 60))
            .says("two.example", A, Reply::Alias("three.example", 9))
            .says("three.example", A, has(&["192.0.2.3"], 60));
        let service = service(&[server.address], 5000, "");
        let expected = answer(&["192.0.2.3"], 9);
        assert_eq!(ask(&service, "one.example", Family::V4).await, expected);
    }

    #[tokio::test]
    async fn a_long_answer_is_fetched_by_tcp() {
        let server = NameServer::start();
        let ips: Vec<IpAddr> = (1..=100).map(|n| [192, 0, 2, n].into()).collect();
        server.says("long.example", A, Reply::TooLong(ips, 60));
        let service = service(&[server.address], 5000, "");
        let (addresses, _) = ask(&service, "long.example", Family::V4)
            .await
            .expect("an answer");
        assert_eq!(addresses.len(), 100);
        assert_eq!(server.total(), (2, 1));
    }

    #[tokio::test]
    async fn p37_one_long_answer_does_not_bring_the_next_questions_to_tcp() {
        let server = NameServer::start();
        let ips = vec!["192.0.2.1".parse().expect("an address")];
        server
            .says("long.example", A, Reply::TooLong(ips, 60))
            .says("mute.example", A, Reply::Silent);
        let service = service(&[server.address], 300, "");
        let resolver = service.resolver().expect("a resolver");
        let ask = async |name: &str| resolver.resolve(name, Family::V4).await;
        assert!(ask("long.example").await.is_ok());
        // That one question has no answer does not, either.
        let unavailable = Some(ConnectErrorKind::NameUnavailable);
        assert_eq!(ask("mute.example").await.err(), unavailable);
        for n in 0..5 {
            let name = format!("{n}.example");
            server.says(&name, A, has(&["192.0.2.2"], 60));
            assert!(ask(&name).await.is_ok(), "{name}");
        }
        assert!(ask("long.example").await.is_ok());
        let by_tcp = server.total().1;
        assert_eq!(by_tcp, 2);
    }

    #[tokio::test]
    async fn p37_silence_by_tcp_delays_only_the_name_that_needs_it() {
        let server = NameServer::start();
        server
            .says("cut.example", A, Reply::Cut)
            .says("mute.example", A, Reply::Silent);
        let service = service(&[server.address], 600, "");
        let resolver = service.resolver().expect("a resolver");
        let ask = async |name: &str| {
            let start = Instant::now();
            let answer = resolver.resolve(name, Family::V4).await;
            (answer.map(drop), start.elapsed())
        };
        let others = async || {
            while server.total().1 == 0 {
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
            for n in 0..5 {
                let name = format!("{n}.example");
                server.says(&name, A, has(&["192.0.2.2"], 60));
                let (answer, elapsed) = ask(&name).await;
                assert_eq!(answer, Ok(()), "{name}");
                assert!(elapsed < Duration::from_millis(400), "{elapsed:?}");
            }
        };
        for round in 1..3 {
            let ((cut, elapsed), ()) = tokio::join!(ask("cut.example"), others());
            assert_eq!(cut, Err(ConnectErrorKind::NameUnavailable));
            assert!(elapsed >= Duration::from_millis(500), "{elapsed:?}");
            assert!(elapsed < Duration::from_secs(2), "{elapsed:?}");
            assert_eq!(ask("mute.example").await.0, cut);
            others().await;
            assert_eq!(server.total().1, round, "questions by TCP");
        }
    }

    #[tokio::test]
    async fn p37_a_server_whose_tcp_is_silent_hands_over_to_the_next() {
        let (first, second) = (NameServer::start(), NameServer::start());
        first.says("cut.example", A, Reply::Cut);
        let ips = vec!["192.0.2.1".parse().expect("an address")];
        second.says("cut.example", A, Reply::TooLong(ips, 60));
        let service = service(&[first.address, second.address], 400, "");
        let expected = answer(&["192.0.2.1"], 60);
        assert_eq!(ask(&service, "cut.example", Family::V4).await, expected);
        assert_eq!((first.total(), second.total()), ((2, 1), (2, 1)));
    }

    #[tokio::test]
    async fn p37_a_server_that_fails_or_is_silent_hands_over_to_the_next() {
        for bad in [Reply::Fails, Reply::Silent] {
            let (first, second) = (NameServer::start(), NameServer::start());
            first.says("a.example", A, bad.clone());
            second.says("a.example", A, has(&["192.0.2.1"], 60));
            let service = service(&[first.address, second.address], 400, "");
            let resolver = service.resolver().expect("a resolver");
            for _ in 0..3 {
                let found = resolver.resolve("a.example", Family::V4).await;
                assert_eq!(found.expect("an answer").addresses.len(), 1, "{bad:?}");
            }
            // From then on the second is asked first.
            assert_eq!(second.count("a.example", A), 3);
            assert_eq!(first.count("a.example", A), 1, "{bad:?}");
        }
    }

    #[tokio::test]
    async fn what_the_first_server_does_not_know_is_not_asked_of_the_next() {
        let (first, second) = (NameServer::start(), NameServer::start());
        second.says("a.example", A, has(&["192.0.2.1"], 60));
        let service = service(&[first.address, second.address], 5000, "");
        let unknown = Err(ConnectErrorKind::NameNotFound);
        assert_eq!(ask(&service, "a.example", Family::V4).await, unknown);
        assert_eq!((first.total().0, second.total().0), (1, 0));
    }

    #[tokio::test]
    async fn p37_failure_and_silence_are_told_in_time() {
        let server = NameServer::start();
        server
            .says("bad.example", A, Reply::Fails)
            .says("mute.example", A, Reply::Silent);
        let service = service(&[server.address], 300, "");
        let unavailable = Err(ConnectErrorKind::NameUnavailable);
        for name in ["bad.example", "mute.example"] {
            let start = Instant::now();
            assert_eq!(ask(&service, name, Family::V4).await, unavailable, "{name}");
            assert!(start.elapsed() < Duration::from_secs(2), "{name}");
        }
        // Nobody there at all, and nobody known.
        let closed = std::net::UdpSocket::bind("127.0.0.1:0").expect("bind");
        let address = closed.local_addr().expect("address");
        drop(closed);
        let gone = self::service(&[address], 300, "");
        assert_eq!(ask(&gone, "a.example", Family::V4).await, unavailable);
        let mut none = service;
        none.servers.clear();
        assert_eq!(ask(&none, "a.example", Family::V4).await, unavailable);
    }

    #[tokio::test]
    async fn the_hosts_file_comes_first_and_is_the_last_word() {
        let server = NameServer::start();
        server
            .says("known.example", A, has(&["192.0.2.1"], 60))
            .says("known.example", AAAA, has(&["2001:db8::1"], 60));
        let service = service(&[server.address], 5000, "search corp.example");
        for (name, family, expected) in [
            ("known.example", Family::V4, &["127.0.0.9"][..]),
            ("known.example", Family::V6, &[]),
            ("known.example.", Family::V4, &["127.0.0.9"]),
            ("short", Family::V4, &["127.0.0.9"]),
            // RFC 6761 section 6.3, unless the file says otherwise.
            ("localhost", Family::V4, &["127.0.0.1"]),
            ("localhost.", Family::V6, &["::1"]),
            ("app.localhost", Family::V6, &["::1"]),
            ("six.localhost", Family::V6, &["::9"]),
            ("six.localhost", Family::V4, &[]),
        ] {
            let (addresses, _) = ask(&service, name, family).await.expect(name);
            assert_eq!(addresses, expected, "{name}");
        }
        assert_eq!(server.total().0, 0, "questions");
    }

    #[tokio::test]
    async fn the_search_list_is_that_of_resolv_conf() {
        let server = NameServer::start();
        server
            .says("db.two.example", A, has(&["192.0.2.2"], 60))
            .says("x.db.one.example", A, has(&["192.0.2.1"], 60))
            .says("db.one.example", AAAA, has(&["2001:db8::1"], 60))
            .says("mail", A, has(&["192.0.2.3"], 60));
        let service = service(&[server.address], 5000, "search one.example two.example");
        for (name, expected) in [
            // A name that is there ends the search, whatever it has.
            ("db", answer(&[], NEGATIVE_TTL)),
            ("mail", answer(&["192.0.2.3"], 60)),
            ("x.db", answer(&["192.0.2.1"], 60)),
            ("db.", Err(ConnectErrorKind::NameNotFound)),
        ] {
            assert_eq!(ask(&service, name, Family::V4).await, expected, "{name}");
        }
        // Dots make a name likely to be complete; without any it is the last resort.
        let order = |name: &str| -> Vec<String> {
            let name = Name::from_ascii(name).expect("a name");
            let candidates = service.candidates(&name);
            candidates.iter().map(Name::to_ascii).collect()
        };
        assert_eq!(
            order("x.y"),
            ["x.y.", "x.y.one.example.", "x.y.two.example."]
        );
        assert_eq!(order("x"), ["x.one.example.", "x.two.example.", "x."]);
        assert_eq!(order("x."), ["x."]);
    }

    #[tokio::test]
    async fn p37_equal_questions_are_one_packet_each() {
        let server = NameServer::start();
        server.says("localtest.example", A, has(&["127.0.0.1"], 60));
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0")
            .await
            .expect("bind");
        let port = listener.local_addr().expect("address").port();
        let mut dialer = Dialer::default();
        let service = service(&[server.address], 5000, "");
        dialer.resolver(service.resolver().expect("a resolver"));
        let dials = (0..20).map(|_| {
            let dialer = dialer.clone();
            tokio::spawn(async move {
                let name = format!("localtest.example:{port}");
                let target = proxy_core::Target::parse(&name, None).expect("a target");
                dialer.dial(target).await.map(drop)
            })
        });
        for dialled in dials.collect::<Vec<_>>() {
            dialled.await.expect("no panic").expect("connects");
        }
        assert_eq!(server.count("localtest.example", A), 1);
        assert_eq!(server.count("localtest.example", AAAA), 1);
    }
}
