//! What only shows when all values are together: contradictions, doubles,
//! missing files.

use std::collections::HashMap;
use std::io::{ErrorKind, IsTerminal};
use std::net::{IpAddr, SocketAddr};
use std::path::{Path, PathBuf};
use std::time::Duration;

use proxy_core::{Host, Network};
use tracing::level_filters::LevelFilter;

use super::draft::{Draft, UserDraft};
use super::listener::{ListenerDraft, TlsFiles};
use super::problem::{Mismatch, Problem, Sourced, nearest, shown};
use super::{Access, Config, Format, Listener, Origin, Parent, Protocol, Source, User, parents};

impl Draft {
    /// Fills in the defaults and judges the whole.
    ///
    /// # Errors
    /// Every contradiction.
    pub(crate) fn finish(mut self) -> Result<Config, Vec<Problem>> {
        if self.listeners.is_empty() {
            self.listeners = default_listeners();
        }
        let mut problems = Vec::new();
        check_users(&self, &mut problems);
        check_doubles(&self.listeners, &mut problems);
        check_access(self.access.as_ref(), &mut problems);
        let (parents, via) = self.parents.finish(self.via, &mut problems);
        let sources = self.sources.finish(&mut problems);
        let have_users = !self.users.is_empty() || self.auth.file.is_some();
        let services: Vec<String> = self.listeners.iter().map(ListenerDraft::service).collect();
        let listeners: Vec<Listener> = self
            .listeners
            .into_iter()
            .filter_map(|draft| listener(draft, have_users, &parents, &sources, &mut problems))
            .collect();
        let users = self
            .users
            .into_iter()
            .map(|draft| user(draft, &sources, &mut problems))
            .collect();
        let auth = self.auth.finish();
        let rules = self
            .rules
            .finish(&services, &parents, &sources, &mut problems);
        let resolver = self.resolver.finish(&mut problems);
        let http = self.http.finish(&mut problems);
        if !problems.is_empty() {
            problems.sort_by_key(Problem::place);
            return Err(problems);
        }
        Ok(Config {
            listeners,
            users,
            auth,
            rules,
            parents,
            via,
            sources,
            resolver,
            workers: self.workers.unwrap_or_else(cores),
            drain: self.drain.unwrap_or(DRAIN),
            timeouts: self.timeouts,
            limits: self.limits,
            http,
            access: self
                .access
                .map_or_else(default_access, |access| access.value),
            access_format: self.access_format.unwrap_or(Format::Text),
            level: self.level.unwrap_or(LevelFilter::INFO),
        })
    }
}

fn default_listeners() -> Vec<ListenerDraft> {
    [(Protocol::Http, 3128), (Protocol::Socks, 1080)]
        .map(|(protocol, port)| {
            let address = SocketAddr::from(([127, 0, 0, 1], port));
            ListenerDraft::new(&Origin::Default, protocol, address)
        })
        .into()
}

/// Somebody who watches sees what happens; nobody else pays for it.
fn default_access() -> Access {
    match std::io::stdout().is_terminal() {
        true => Access::Stdout,
        false => Access::Off,
    }
}

fn cores() -> usize {
    std::thread::available_parallelism().map_or(1, usize::from)
}

fn user(draft: UserDraft, sources: &[Source], problems: &mut Vec<Problem>) -> User {
    User {
        name: draft.name.value,
        password: draft.password,
        source: source("user.source", draft.source.as_ref(), sources, problems),
    }
}

/// Finds the `[[source]]` that is named.
fn source(
    key: &str,
    named: Option<&Sourced<String>>,
    sources: &[Source],
    problems: &mut Vec<Problem>,
) -> Option<u16> {
    let Sourced { value, origin } = named?;
    let at = sources.iter().position(|source| source.name == *value);
    if at.is_none() {
        let names: Vec<&str> = sources.iter().map(|source| source.name.as_str()).collect();
        let instead = match nearest(value, &names) {
            Some(name) => format!("{name:?}"),
            None => "a [[source]] of this name".to_owned(),
        };
        let mismatch = Mismatch::new("the name of a [[source]]", instead);
        problems.push(Problem::mismatch(origin, key, &mismatch, &shown(value)));
    }
    at.and_then(|at| u16::try_from(at).ok())
}

fn check_users(draft: &Draft, problems: &mut Vec<Problem>) {
    let mut seen: HashMap<&str, &Origin> = HashMap::new();
    for user in &draft.users {
        let name = user.name.value.as_str();
        if let Some(first) = seen.insert(name, &user.name.origin) {
            let place = match &user.name.origin == first {
                // Options have no line to name.
                true => "twice".to_owned(),
                false => format!("as at {first}"),
            };
            let text = format!(
                "expected a name of its own, found {name:?} {place}; write another name instead, \
                 or leave one out"
            );
            problems.push(Problem::new(&user.name.origin, "user.name", text));
        }
    }
    let asks = |listener: &ListenerDraft| {
        listener.protocol.value != Protocol::Tcp
            && listener.auth.as_ref().is_none_or(|auth| auth.value)
    };
    let user = draft.users.first().map(|user| (&user.name.origin, "user"));
    let file = draft.auth.file.as_ref();
    if let Some((origin, key)) = user.or_else(|| Some((&file?.origin, "auth.file")))
        && !draft.listeners.iter().any(asks)
    {
        let text = "expected a listener that asks for users, found none; write auth = true for a \
                    listener (on the command line auth=on) instead, or no user";
        problems.push(Problem::new(origin, key, text));
    }
}

fn check_doubles(listeners: &[ListenerDraft], problems: &mut Vec<Problem>) {
    for (at, listener) in listeners.iter().enumerate() {
        let earlier = &listeners[..at];
        let Sourced { value, origin } = &listener.address;
        if let Some(first) = earlier.iter().find(|l| overlap(l.address.value, *value)) {
            let text = format!(
                "expected an address of its own, found {value}, taken by {} at {}; write another \
                 port instead",
                first.address.value, first.address.origin
            );
            problems.push(Problem::new(origin, "listener.address", text));
        }
        let Some(Sourced { value, origin }) = &listener.name else {
            continue;
        };
        let mut names = earlier.iter().filter_map(|l| l.name.as_ref());
        if let Some(first) = names.find(|name| name.value == *value) {
            let text = format!(
                "expected a name of its own, found {value:?} as at {}; write another name instead",
                first.origin
            );
            problems.push(Problem::new(origin, "listener.name", text));
        }
    }
}

/// Whether the kernel could not tell the two apart. `[::]` takes IPv4 too.
fn overlap(a: SocketAddr, b: SocketAddr) -> bool {
    let covers = |wide: IpAddr, other: IpAddr| match wide {
        IpAddr::V4(ip) => ip.is_unspecified() && other.is_ipv4(),
        IpAddr::V6(ip) => ip.is_unspecified(),
    };
    let (x, y) = (a.ip(), b.ip());
    a.port() == b.port() && a.port() != 0 && (x == y || covers(x, y) || covers(y, x))
}

fn check_access(access: Option<&Sourced<Access>>, problems: &mut Vec<Problem>) {
    let Some(Sourced {
        value: Access::File(path),
        origin,
    }) = access
    else {
        return;
    };
    let folder = match path.parent() {
        Some(parent) if parent.as_os_str().is_empty() => Path::new("."),
        Some(parent) => parent,
        None => return,
    };
    if !folder.is_dir() || path.is_dir() {
        let mismatch = Mismatch::new(
            "\"off\", \"stdout\" or a file in an existing folder",
            "the path of such a file",
        );
        let found = path.display().to_string();
        problems.push(Problem::mismatch(origin, "log.access", &mismatch, &found));
    }
}

/// Judges one listener; answers `None` with at least one problem.
fn listener(
    draft: ListenerDraft,
    have_users: bool,
    parents: &[Parent],
    sources: &[Source],
    problems: &mut Vec<Problem>,
) -> Option<Listener> {
    let before = problems.len();
    check_target(&draft, problems);
    check_auth(&draft, have_users, problems);
    let protocol = draft.protocol.value;
    let auth = draft.auth.as_ref().map(|auth| auth.value);
    let auth = protocol != Protocol::Tcp && auth.unwrap_or(have_users);
    check_open(&draft, auth, problems);
    let tls = tls(&draft, problems);
    let via = draft.via.as_ref();
    let via = via.and_then(|name| parents::resolve(parents, name, "listener.via", problems));
    let source = source("listener.source", draft.source.as_ref(), sources, problems);
    if problems.len() > before {
        return None;
    }
    Some(Listener {
        origin: draft.origin,
        name: draft.name.map(|name| name.value),
        protocol,
        address: draft.address.value,
        target: draft.target.map(|target| target.value),
        tls,
        auth,
        clients: draft
            .clients
            .map(|clients| clients.into_iter().map(|network| network.value).collect()),
        trust_loopback: draft.trust_loopback.is_none_or(|trust| trust.value),
        source,
        via,
    })
}

fn check_target(draft: &ListenerDraft, problems: &mut Vec<Problem>) {
    let protocol = draft.protocol.value;
    let address = draft.address.value;
    match (&draft.target, protocol) {
        (Some(target), Protocol::Tcp) => {
            let goes_to = target.value.as_target();
            if goes_to.port == address.port() && goes_to.host == Host::Ip(address.ip()) {
                let text = format!(
                    "expected another server, found this listener's own address {address}; write \
                     where connections shall go instead"
                );
                problems.push(Problem::new(&target.origin, "listener.target", text));
            }
        }
        (Some(target), _) => {
            let text = format!(
                "expected no target, found {} for protocol {protocol}, whose clients choose their \
                 own; write protocol tcp instead, or no target",
                target.value
            );
            problems.push(Problem::new(&target.origin, "listener.target", text));
        }
        (None, Protocol::Tcp) => {
            let text = match draft.origin {
                Origin::Argument(_) => format!(
                    "expected a host and a port behind the address, found nothing; write \
                     tcp://{address}/db.example:5432 instead"
                ),
                Origin::Default | Origin::File(..) => "expected a host and a port, found nothing; \
                     write target = \"db.example:5432\" instead"
                    .to_owned(),
            };
            problems.push(Problem::new(&draft.origin, "listener.target", text));
        }
        (None, _) => {}
    }
}

fn check_auth(draft: &ListenerDraft, have_users: bool, problems: &mut Vec<Problem>) {
    let Some(auth) = draft.auth.as_ref().filter(|auth| auth.value) else {
        return;
    };
    if draft.protocol.value == Protocol::Tcp {
        let text = "expected no auth for protocol tcp, which has no way to ask for it, found it \
                    switched on; write protocol socks instead, or no auth";
        problems.push(Problem::new(&auth.origin, "listener.auth", text));
    } else if !have_users {
        let text = "expected users to ask for, found none; write a [[user]] (on the command line \
                    --user NAME:PASSWORD) instead, or no auth";
        problems.push(Problem::new(&auth.origin, "listener.auth", text));
    }
}

/// An address that others can reach is not to be open to everybody by an
/// oversight.
fn check_open(draft: &ListenerDraft, auth: bool, problems: &mut Vec<Problem>) {
    let address = draft.address.value;
    let open = draft.open.as_ref().is_some_and(|open| open.value);
    // 0.0.0.0/0 lists everybody.
    let some = |clients: &Vec<Sourced<Network>>| clients.iter().all(|one| one.value.prefix() > 0);
    let listed = draft.clients.as_ref().is_some_and(some);
    let closed = auth || open || listed || address.ip().is_loopback();
    if closed || draft.protocol.value == Protocol::Tcp {
        return;
    }
    let (users, clients, open) = match draft.origin {
        Origin::Argument(_) => (
            "--user NAME:PASSWORD",
            "?clients=192.168.0.0/16",
            "?open=on",
        ),
        Origin::Default | Origin::File(..) => (
            "a [[user]] and auth = true",
            "clients = [\"192.168.0.0/16\"]",
            "open = true",
        ),
    };
    let text = format!(
        "expected users to ask for or a list of client networks at {address}, which others can \
         reach, found neither: an open proxy; write {users}, or {clients} instead, or {open} if \
         everybody may use it"
    );
    problems.push(Problem::new(&draft.origin, "listener.open", text));
}

fn tls(draft: &ListenerDraft, problems: &mut Vec<Problem>) -> Option<TlsFiles> {
    let protocol = draft.protocol.value;
    let takes_tls = matches!(protocol, Protocol::Auto | Protocol::Https);
    for (key, file) in [("listener.cert", &draft.cert), ("listener.key", &draft.key)] {
        match file {
            Some(file) if takes_tls => check_file(key, file, problems),
            Some(file) => {
                let text = format!(
                    "expected no TLS files for protocol {protocol}, found one; write protocol \
                     https or auto instead, or leave it out"
                );
                problems.push(Problem::new(&file.origin, key, text));
            }
            None => {}
        }
    }
    let needed = draft.protocol.value == Protocol::Https;
    let missing = |name: &str, problems: &mut Vec<Problem>| {
        let instead = match draft.origin {
            Origin::Argument(_) => format!("?{name}=proxy.pem"),
            Origin::Default | Origin::File(..) => format!("{name} = \"proxy.pem\""),
        };
        let mismatch = Mismatch::new("the path of a PEM file", instead);
        let key = format!("listener.{name}");
        problems.push(Problem::mismatch(&draft.origin, key, &mismatch, "nothing"));
    };
    match (&draft.cert, &draft.key) {
        (Some(cert), Some(key)) => {
            return Some(TlsFiles {
                cert: cert.clone(),
                key: key.clone(),
            });
        }
        (None, Some(_)) if takes_tls => missing("cert", problems),
        (Some(_), None) if takes_tls => missing("key", problems),
        (None, None) if needed => {
            missing("cert", problems);
            missing("key", problems);
        }
        _ => {}
    }
    None
}

/// A file that is not there is a mistake in the configuration; one that cannot
/// be read is a trouble of the moment.
pub(super) fn check_file(key: &str, file: &Sourced<PathBuf>, problems: &mut Vec<Problem>) {
    let found = match file.value.metadata() {
        Err(error) if matches!(error.kind(), ErrorKind::NotADirectory | ErrorKind::NotFound) => {
            "nothing"
        }
        Ok(metadata) if metadata.is_dir() => "a folder",
        _ => return,
    };
    let text = format!(
        "expected a PEM file, found {found} at {}; write the path of an existing file instead",
        file.value.display()
    );
    problems.push(Problem::new(&file.origin, key, text));
}

const DRAIN: Duration = Duration::from_secs(30);
