//! Rules: who may go where, and by which way.

use super::problem::{Origin, Problem};
use super::reader::Table;
use super::{Parent, Source, Via};

/// One rule; all its conditions must hold.
#[derive(Clone, Debug)]
pub(crate) struct Rule {
    pub(crate) origin: Origin,
    pub(crate) action: Action,
}

/// What a rule decides.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Action {
    /// `None` leaves the way or the source to listener, user and default.
    Allow {
        via: Option<Via>,
        /// An entry of [`Config::sources`](super::Config).
        source: Option<u16>,
    },
    Deny,
}

/// Rules as written.
#[derive(Clone, Debug, Default)]
pub(crate) struct RulesDraft {}

impl RulesDraft {
    /// Reads a `[[rule]]`.
    pub(super) fn read(&mut self, _table: &Table<'_>) {}

    pub(super) fn finish(
        self,
        _parents: &[Parent],
        _sources: &[Source],
        _problems: &mut Vec<Problem>,
    ) -> Vec<Rule> {
        Vec::new()
    }
}

pub(super) const KEYS: [&str; 1] = ["action"];
