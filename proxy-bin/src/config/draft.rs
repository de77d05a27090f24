//! A configuration as written: file and command line together, every value with
//! its place.

use std::time::Duration;

use proxy_core::Timeouts;
use tracing::level_filters::LevelFilter;

use super::auth::AuthDraft;
use super::bind::Bind;
use super::http::HttpDraft;
use super::limits::Limits;
use super::listener::ListenerDraft;
use super::metrics::Metrics;
use super::parents::ParentsDraft;
use super::problem::{Origin, Problem, Sourced, shown_user};
use super::rate::Rates;
use super::resolver::ResolverDraft;
use super::rules::RulesDraft;
use super::sources::SourcesDraft;
use super::udp::Udp;
use super::{Access, Format, value};

/// What was written so far. Single values replace earlier ones, listeners and
/// users add up; [`finish`](Self::finish) judges the whole.
#[derive(Clone, Debug, Default)]
pub(crate) struct Draft {
    pub(crate) listeners: Vec<ListenerDraft>,
    pub(crate) users: Vec<UserDraft>,
    pub(crate) auth: AuthDraft,
    pub(crate) rules: RulesDraft,
    pub(crate) parents: ParentsDraft,
    pub(crate) via: Option<Sourced<String>>,
    pub(crate) sources: SourcesDraft,
    pub(crate) resolver: ResolverDraft,
    pub(crate) workers: Option<usize>,
    pub(crate) drain: Option<Duration>,
    pub(crate) timeouts: Timeouts,
    pub(crate) limits: Limits,
    pub(crate) http: HttpDraft,
    pub(crate) access: Option<Sourced<Access>>,
    pub(crate) access_format: Option<Format>,
    pub(crate) level: Option<LevelFilter>,
    pub(crate) bind: Bind,
    pub(crate) udp: Udp,
    pub(crate) metrics: Metrics,
}

impl Draft {
    /// Takes the value of a `--listen`.
    pub(crate) fn listen(&mut self, url: &str, problems: &mut Vec<Problem>) {
        match ListenerDraft::parse(url) {
            Ok(listener) => self.listeners.push(listener),
            Err(more) => problems.extend(more),
        }
    }

    /// Takes the value of a `--user`, which no message repeats.
    pub(crate) fn user(&mut self, pair: &str, problems: &mut Vec<Problem>) {
        let origin = Origin::argument("--user");
        let Some((name, password)) = pair.split_once(':') else {
            let text = "expected NAME:PASSWORD, found no colon; write alice:secret instead";
            problems.push(Problem::new(&origin, "", text));
            return;
        };
        let read_name = value::user_name(name).map_err(|mismatch| (mismatch, shown_user(name)));
        let read_password = value::password(password)
            .map_err(|mismatch| (mismatch, value::wrong_password(password).to_owned()));
        match (read_name, read_password) {
            (Ok(name), Ok(password)) => self.users.push(UserDraft {
                name: Sourced::new(name, &origin),
                password,
                source: None,
                rates: Rates::default(),
            }),
            (name, password) => {
                for (mismatch, found) in name.err().into_iter().chain(password.err()) {
                    problems.push(Problem::mismatch(&origin, "", &mismatch, &found));
                }
            }
        }
    }
}

/// A user as written. `Debug` hides the password.
#[derive(Clone)]
pub(crate) struct UserDraft {
    pub(crate) name: Sourced<String>,
    pub(crate) password: String,
    pub(crate) source: Option<Sourced<String>>,
    pub(crate) rates: Rates,
}

impl std::fmt::Debug for UserDraft {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "UserDraft({:?}, ..)", self.name.value)
    }
}
