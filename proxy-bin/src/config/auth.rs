//! Who may log in: the file of users, how long a login is remembered, and bans.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::path::PathBuf;
use std::time::Duration;

use proxy_core::Network;

use super::problem::{Mismatch, Sourced};
use super::reader::Table;
use super::value;

/// The `[auth]` table without contradictions.
#[derive(Clone, Debug)]
pub(crate) struct Auth {
    /// Users in htpasswd format.
    pub(crate) file: Option<Sourced<PathBuf>>,
    /// How long a verified login is remembered.
    pub(crate) remember: Duration,
    /// `None` bans nobody.
    pub(crate) ban: Option<Ban>,
    /// From where nobody is banned.
    pub(crate) spared: Vec<Network>,
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
            // A front end on this machine, perhaps, with many behind it.
            spared: [
                IpAddr::V4(Ipv4Addr::LOCALHOST),
                IpAddr::V6(Ipv6Addr::LOCALHOST),
            ]
            .map(Network::from)
            .into(),
        }
    }
}

/// `[auth]` as written.
#[derive(Clone, Debug, Default)]
pub(crate) struct AuthDraft {
    pub(super) file: Option<Sourced<PathBuf>>,
    remember: Option<Duration>,
    failures: Option<u32>,
    window: Option<Duration>,
    length: Option<Duration>,
    spared: Option<Vec<Network>>,
}

impl AuthDraft {
    pub(super) fn read(&mut self, table: &Table<'_>) {
        let folder = table.origin().folder();
        self.file = table.text("file", |text| match text {
            "" => {
                let expected = "the path of a file in htpasswd format";
                Err(Mismatch::new(expected, "\"users.htpasswd\""))
            }
            text => Ok(folder.join(text)),
        });
        let remember = table.text("remember", value::duration);
        self.remember = remember.map(|time| time.value);
        let failures = table.integer("ban_failures", 0..=MOST_FAILURES);
        self.failures = failures.and_then(|failures| failures.value.try_into().ok());
        self.window = time_above_zero(table, "ban_window");
        self.length = time_above_zero(table, "ban_length");
        self.spared = match table.is_empty_list("ban_except") {
            true => Some(Vec::new()),
            false => table
                .texts("ban_except", value::network)
                .map(|all| all.into_iter().map(|network| network.value).collect()),
        };
    }

    /// Fills in the defaults.
    pub(super) fn finish(self) -> Auth {
        let usual = Auth::default();
        let ban = usual.ban.and_then(|ban| match self.failures {
            Some(0) => None,
            failures => Some(Ban {
                failures: failures.unwrap_or(ban.failures),
                window: self.window.unwrap_or(ban.window),
                length: self.length.unwrap_or(ban.length),
            }),
        });
        Auth {
            file: self.file,
            remember: self.remember.unwrap_or(usual.remember),
            ban,
            spared: self.spared.unwrap_or(usual.spared),
        }
    }
}

fn time_above_zero(table: &Table<'_>, key: &str) -> Option<Duration> {
    let read = |text: &str| match value::duration(text) {
        Ok(time) if time.is_zero() => Err(Mismatch::new("a time above zero", "\"1m\"")),
        read => read,
    };
    table.text(key, read).map(|time| time.value)
}

pub(super) const KEYS: [&str; 6] = [
    "file",
    "remember",
    "ban_failures",
    "ban_window",
    "ban_length",
    "ban_except",
];

const MOST_FAILURES: usize = 1_000_000;
