//! What proxyd was told to do: read once from a file and the command line,
//! typed ever after.

mod auth;
mod bind;
mod check;
mod check_listener;
mod condition;
mod draft;
mod entries;
mod file;
mod hint;
mod http;
mod limits;
mod listen_url;
mod listener;
mod metrics;
mod parents;
mod problem;
mod rate;
mod reader;
mod relay;
mod resolver;
mod rules;
mod sources;
mod syntax;
mod udp;
mod udp_listener;
mod unix_listener;
mod value;

use std::fmt;
use std::path::PathBuf;
use std::time::Duration;

use proxy_core::Timeouts;
use tracing::level_filters::LevelFilter;

pub(crate) use auth::{Auth, Ban};
pub(crate) use bind::Bind;
pub(crate) use condition::{DAYS, method, operation};
pub(crate) use draft::Draft;
pub(crate) use file::access;
pub(crate) use http::Http;
pub(crate) use limits::Limits;
pub(crate) use listener::{Listener, Protocol, TlsFiles};
pub(crate) use metrics::Metrics;
pub(crate) use parents::{Chain, Hop, HopProtocol, Login, Order, Parent, Via};
pub(crate) use problem::{Mismatch, Origin, Problem, Sourced, nearest, shown, shown_user};
pub(crate) use rate::Rates;
pub(crate) use resolver::Resolver;
pub(crate) use rules::{Action, Hours, Kind, Rule};
pub(crate) use sources::{Addresses, Choice, Source};
pub(crate) use udp::Udp;
pub(crate) use unix_listener::UnixPlace;
pub(crate) use value::{choice, duration, password, user_name, workers, wrong_password};

/// A configuration without contradictions.
#[derive(Clone, Debug)]
pub(crate) struct Config {
    pub(crate) listeners: Vec<Listener>,
    pub(crate) users: Vec<User>,
    pub(crate) auth: Auth,
    /// In the order of their judging.
    pub(crate) rules: Vec<Rule>,
    pub(crate) parents: Vec<Parent>,
    /// The way of what no rule and no listener decides about.
    pub(crate) via: Via,
    pub(crate) sources: Vec<Source>,
    pub(crate) resolver: Resolver,
    /// Worker threads, at least one.
    pub(crate) workers: usize,
    /// How long running work may go on after the signal to end.
    pub(crate) drain: Duration,
    pub(crate) timeouts: Timeouts,
    pub(crate) limits: Limits,
    pub(crate) http: Http,
    pub(crate) access: Access,
    pub(crate) access_format: Format,
    pub(crate) level: LevelFilter,
    pub(crate) bind: Bind,
    pub(crate) udp: Udp,
    pub(crate) metrics: Metrics,
}

impl Config {
    /// In a few words, with the number of users.
    pub(crate) fn summary(&self, users: usize) -> String {
        let count = |count: usize, what: &str| match count {
            1 => format!("1 {what}"),
            count => format!("{count} {what}s"),
        };
        let listeners: Vec<String> = self.listeners.iter().map(Listener::to_string).collect();
        format!(
            "{} ({}), {}, {}",
            count(self.listeners.len(), "listener"),
            listeners.join(", "),
            count(users, "user"),
            count(self.workers, "worker"),
        )
    }
}

/// A user that listeners may ask for. `Debug` hides the password.
#[derive(Clone, PartialEq, Eq)]
pub(crate) struct User {
    pub(crate) name: String,
    pub(crate) password: String,
    /// An entry of [`Config::sources`] to connect from.
    pub(crate) source: Option<u16>,
    /// What all of the user's connections share.
    pub(crate) rates: Rates,
}

impl fmt::Debug for User {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "User({:?}, ..)", self.name)
    }
}

/// Where access-log lines go.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Access {
    File(PathBuf),
    Off,
    Stdout,
}

/// How an access-log line looks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Format {
    Json,
    Text,
}

impl Format {
    pub(crate) const WORDS: [(&'static str, Self); 2] =
        [("json", Self::Json), ("text", Self::Text)];
}

/// The words for how much is said on stderr.
pub(crate) const LEVELS: [(&str, LevelFilter); 6] = [
    ("off", LevelFilter::OFF),
    ("error", LevelFilter::ERROR),
    ("warn", LevelFilter::WARN),
    ("info", LevelFilter::INFO),
    ("debug", LevelFilter::DEBUG),
    ("trace", LevelFilter::TRACE),
];
