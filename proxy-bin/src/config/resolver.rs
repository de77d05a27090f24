//! How names are looked up.

use std::net::SocketAddr;
use std::time::Duration;

use super::problem::Problem;
use super::reader::Table;

/// The `[resolver]` table without contradictions.
#[derive(Clone, Debug)]
pub(crate) struct Resolver {
    /// Name servers in place of those of the system; empty means the system's.
    pub(crate) servers: Vec<SocketAddr>,
    /// How long a look-up may take.
    pub(crate) timeout: Duration,
}

impl Default for Resolver {
    fn default() -> Self {
        Self {
            servers: Vec::new(),
            timeout: Duration::from_secs(5),
        }
    }
}

/// `[resolver]` as written.
#[derive(Clone, Debug, Default)]
pub(crate) struct ResolverDraft {}

impl ResolverDraft {
    pub(super) fn read(&mut self, _table: &Table<'_>) {}

    pub(super) fn finish(self, _problems: &mut Vec<Problem>) -> Resolver {
        Resolver::default()
    }
}

pub(super) const KEYS: [&str; 1] = ["servers"];
