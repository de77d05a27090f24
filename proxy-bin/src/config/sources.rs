//! Source addresses: pools and prefixes that connections go out from.

use std::net::IpAddr;

use super::problem::Problem;
use super::reader::Table;

/// A set of own addresses to connect from.
#[derive(Clone, Debug)]
pub(crate) struct Source {
    pub(crate) name: String,
    /// Single addresses, or each one of an IPv6 prefix.
    pub(crate) addresses: Addresses,
    pub(crate) choice: Choice,
}

/// What a source chooses from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Addresses {
    /// At least one; of both families or of one.
    Pool(Vec<IpAddr>),
    /// Network address and length of an IPv6 prefix.
    Prefix(std::net::Ipv6Addr, u8),
}

/// How long a choice holds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Choice {
    /// Another for each connection.
    Fresh,
    /// The same for the same user, or client address if there is none.
    #[default]
    Sticky,
}

/// Sources as written.
#[derive(Clone, Debug, Default)]
pub(crate) struct SourcesDraft {}

impl SourcesDraft {
    /// Reads a `[[source]]`.
    pub(super) fn read(&mut self, _table: &Table<'_>) {}

    pub(super) fn finish(self, _problems: &mut Vec<Problem>) -> Vec<Source> {
        Vec::new()
    }
}

pub(super) const KEYS: [&str; 1] = ["name"];
