//! What only shows when all values are together: contradictions, doubles,
//! missing files.

use std::collections::HashMap;
use std::io::{ErrorKind, IsTerminal};
use std::net::{IpAddr, SocketAddr};
use std::path::{Path, PathBuf};
use std::time::Duration;

use tracing::level_filters::LevelFilter;

use super::check_listener::listener;
use super::draft::{Draft, UserDraft};
use super::listener::ListenerDraft;
use super::problem::{Mismatch, Problem, Sourced, nearest, shown};
use super::{
    Access, Config, Format, Listener, Origin, Protocol, Source, User, relay, unix_listener,
};

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
        relay::check_rounds(&self.listeners, &mut problems);
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
            bind: self.bind,
            udp: self.udp,
            metrics: self.metrics,
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
        rates: draft.rates,
    }
}

/// Finds the `[[source]]` that is named.
pub(super) fn source(
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
        !matches!(listener.protocol.value, Protocol::Tcp | Protocol::Udp)
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
        let is_udp = |draft: &ListenerDraft| draft.protocol.value == Protocol::Udp;
        // The ports of TCP are not those of UDP.
        let mut alike = earlier.iter().filter(|l| is_udp(l) == is_udp(listener));
        if let Some(first) = alike.find(|l| overlap(l.address.value, *value)) {
            let text = format!(
                "expected an address of its own, found {value}, taken by {} at {}; write another \
                 port instead",
                first.address.value, first.address.origin
            );
            problems.push(Problem::new(origin, "listener.address", text));
        }
        if let Some(own) = &listener.unix {
            let mut paths = earlier.iter().filter_map(|l| l.unix.as_ref());
            let first = paths.find(|path| unix_listener::is_same(&path.value, &own.value));
            if let Some(first) = first {
                let text = format!(
                    "expected a path of its own, found {}, taken at {}; write another path instead",
                    own.value.display(),
                    first.origin
                );
                problems.push(Problem::new(&own.origin, "listener.address", text));
            }
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
