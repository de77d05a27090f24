//! Where connections are awaited for clients of SOCKS: `[bind]`.

use std::net::{IpAddr, SocketAddr};
use std::ops::RangeInclusive;
use std::time::Duration;

use super::condition;
use super::problem::{Mismatch, Problem};
use super::reader::Table;
use super::value;

/// The `[bind]` table.
#[derive(Clone, Debug)]
pub(crate) struct Bind {
    /// What clients are told, at most one address of each family; empty for the
    /// address that they have reached the proxy at.
    pub(crate) advertise: Vec<IpAddr>,
    /// `None` leaves the port to the system.
    pub(crate) ports: Option<RangeInclusive<u16>>,
    /// How long a connection is awaited.
    pub(crate) wait: Option<Duration>,
}

impl Default for Bind {
    fn default() -> Self {
        Self {
            advertise: Vec::new(),
            ports: None,
            wait: Some(Duration::from_secs(120)),
        }
    }
}

impl Bind {
    pub(super) fn read(&mut self, table: &Table<'_>) {
        self.advertise = advertise(table, "bind.advertise");
        self.ports = table
            .text("ports", condition::ports)
            .map(|ports| ports.value);
        if let Some(wait) = table.text("wait", value::timeout) {
            self.wait = wait.value;
        }
    }
}

/// Reads `advertise`: an address of each family at most.
pub(super) fn advertise(table: &Table<'_>, key: &str) -> Vec<IpAddr> {
    let mut all: Vec<IpAddr> = Vec::new();
    for ip in table.texts("advertise", advertised).unwrap_or_default() {
        let is_like = |other: &&IpAddr| other.is_ipv4() == ip.value.is_ipv4();
        match all.iter().find(is_like) {
            None => all.push(ip.value),
            Some(first) => {
                let text = format!(
                    "expected one address of each family, found {} beside {first}; write one of \
                     them instead",
                    ip.value
                );
                table.report(Problem::new(&ip.origin, key, text));
            }
        }
    }
    all
}

/// Reads an address that others can connect to.
fn advertised(text: &str) -> Result<IpAddr, Mismatch> {
    let wrong = |ip: IpAddr| {
        let expected = "an IP address that others reach this machine by, without a port";
        Err(Mismatch::new(expected, format!("\"{ip}\"")))
    };
    let example = IpAddr::from([203, 0, 113, 7]);
    let Ok(ip) = text.parse::<IpAddr>() else {
        let bare = text.trim_matches(['[', ']']).parse::<IpAddr>();
        let with_port = text.parse::<SocketAddr>().map(|at| at.ip());
        return wrong(bare.or(with_port).unwrap_or(example));
    };
    match ip.to_canonical() {
        other if other != ip => wrong(other),
        _ if ip.is_unspecified() || ip.is_multicast() => wrong(example),
        _ => Ok(ip),
    }
}

pub(super) const KEYS: [&str; 3] = ["advertise", "ports", "wait"];
