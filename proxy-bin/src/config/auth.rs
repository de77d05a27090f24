//! Who may log in: the file of users, how long a login is remembered, and bans.

use std::path::PathBuf;
use std::time::Duration;

use super::problem::{Problem, Sourced};
use super::reader::Table;

/// The `[auth]` table without contradictions.
#[derive(Clone, Debug)]
pub(crate) struct Auth {
    /// Users in htpasswd format.
    pub(crate) file: Option<Sourced<PathBuf>>,
    /// How long a verified login is remembered.
    pub(crate) remember: Duration,
    /// `None` bans nobody.
    pub(crate) ban: Option<Ban>,
}

/// An address that fails so often within the window is refused for some time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Ban {
    pub(crate) failures: u32,
    pub(crate) window: Duration,
    pub(crate) length: Duration,
}

impl Default for Auth {
    fn default() -> Self {
        Self {
            file: None,
            remember: Duration::from_secs(60),
            ban: Some(Ban {
                failures: 10,
                window: Duration::from_secs(60),
                length: Duration::from_secs(600),
            }),
        }
    }
}

/// `[auth]` as written.
#[derive(Clone, Debug, Default)]
pub(crate) struct AuthDraft {}

impl AuthDraft {
    pub(super) fn read(&mut self, _table: &Table<'_>) {}

    /// Fills in the defaults and judges the whole.
    pub(super) fn finish(self, _problems: &mut Vec<Problem>) -> Auth {
        Auth::default()
    }
}

pub(super) const KEYS: [&str; 1] = ["file"];
