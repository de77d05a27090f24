//! Parent proxies: chains of hops, and groups of chains.

use std::path::PathBuf;

use proxy_core::TargetBuf;

use super::problem::{Problem, Sourced};
use super::reader::Table;

/// A parent or a group of them, as rules name it.
#[derive(Clone, Debug)]
pub(crate) struct Parent {
    pub(crate) name: String,
    /// At least one; a group has several.
    pub(crate) chains: Vec<Chain>,
    pub(crate) order: Order,
}

/// Which member of a group is tried first.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Order {
    /// The first that works.
    #[default]
    Failover,
    /// Each in its turn.
    RoundRobin,
}

/// Proxies one behind the other, the first one dialled by us.
#[derive(Clone, Debug)]
pub(crate) struct Chain {
    /// The parent's name.
    pub(crate) name: String,
    /// At least one.
    pub(crate) hops: Vec<Hop>,
}

/// One proxy of a chain.
#[derive(Clone, Debug)]
pub(crate) struct Hop {
    pub(crate) protocol: HopProtocol,
    pub(crate) target: TargetBuf,
    pub(crate) login: Option<Login>,
    /// PEM file of the issuers of an HTTPS parent's certificate; the system's
    /// without it.
    pub(crate) ca: Option<Sourced<PathBuf>>,
}

/// What a parent speaks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum HopProtocol {
    Http,
    Https,
    Socks4a,
    Socks5,
}

/// A user and password for a parent. `Debug` hides both.
#[derive(Clone, PartialEq, Eq)]
pub(crate) struct Login {
    pub(crate) user: String,
    pub(crate) password: String,
}

impl std::fmt::Debug for Login {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Login(..)")
    }
}

/// How targets are reached: directly or through an entry of
/// [`Config::parents`](super::Config).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub(crate) enum Via {
    #[default]
    Direct,
    Parent(u16),
}

/// Parents and groups as written.
#[derive(Clone, Debug, Default)]
pub(crate) struct ParentsDraft {}

impl ParentsDraft {
    /// Reads a `[[parent]]`.
    pub(super) fn read(&mut self, _table: &Table<'_>) {}

    /// Reads a `[[group]]`.
    pub(super) fn read_group(&mut self, _table: &Table<'_>) {}

    /// Takes a `--via`: one more hop of the chain that all take.
    pub(crate) fn via(&mut self, _url: &str, _problems: &mut Vec<Problem>) {}

    /// Judges the whole; the parents, and the way of whatever no rule decides
    /// about (`via` at the top of the file, or of the command line).
    pub(super) fn finish(
        self,
        _via: Option<Sourced<String>>,
        _problems: &mut Vec<Problem>,
    ) -> (Vec<Parent>, Via) {
        (Vec::new(), Via::Direct)
    }
}

/// Finds the way called `name`: `direct`, a parent or a group.
pub(super) fn named(parents: &[Parent], name: &str) -> Option<Via> {
    if name == "direct" {
        return Some(Via::Direct);
    }
    let at = parents.iter().position(|parent| parent.name == name)?;
    u16::try_from(at).ok().map(Via::Parent)
}

pub(super) const KEYS: [&str; 1] = ["name"];
pub(super) const GROUP_KEYS: [&str; 1] = ["name"];
