//! Datagrams: `[udp]`.

use std::net::IpAddr;
use std::ops::RangeInclusive;
use std::time::Duration;

use super::reader::Table;
use super::{bind, condition, value};

/// The `[udp]` table.
#[derive(Clone, Debug)]
pub(crate) struct Udp {
    /// What clients are told, at most one address of each family; empty for the
    /// address that they have reached the proxy at.
    pub(crate) advertise: Vec<IpAddr>,
    /// `None` leaves the port to the system.
    pub(crate) ports: Option<RangeInclusive<u16>>,
    /// The most associations of a client address.
    pub(crate) per_client: usize,
    /// The most associations in all.
    pub(crate) associations: usize,
    /// How long one may rest.
    pub(crate) idle: Option<Duration>,
}

impl Default for Udp {
    fn default() -> Self {
        Self {
            advertise: Vec::new(),
            ports: None,
            per_client: 256,
            associations: 1024,
            idle: Some(Duration::from_secs(300)),
        }
    }
}

impl Udp {
    pub(super) fn read(&mut self, table: &Table<'_>) {
        let count = |key| Some(table.integer(key, 1..=MOST)?.value);
        self.advertise = bind::advertise(table, "udp.advertise");
        self.ports = table
            .text("ports", condition::ports)
            .map(|ports| ports.value);
        if let Some(most) = count("per_client") {
            self.per_client = most;
        }
        if let Some(most) = count("associations") {
            self.associations = most;
        }
        if let Some(idle) = table.text("idle", value::timeout) {
            self.idle = idle.value;
        }
    }
}

/// Each has two sockets at least.
const MOST: usize = 1_000_000;

pub(super) const KEYS: [&str; 5] = ["advertise", "ports", "per_client", "associations", "idle"];
