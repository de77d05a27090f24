//! Where metrics are read: `[metrics]`.

use std::net::SocketAddr;

use proxy_core::Network;

use super::problem::{Problem, Sourced};
use super::reader::Table;
use super::value;

/// The `[metrics]` table.
#[derive(Clone, Debug, Default)]
pub(crate) struct Metrics {
    /// Where the page is; `None` if there is none.
    pub(crate) address: Option<SocketAddr>,
    /// Who may read it; `None` is whoever reaches it.
    pub(crate) clients: Option<Vec<Network>>,
}

impl Metrics {
    pub(super) fn read(&mut self, table: &Table<'_>) {
        let clients = table.texts("clients", value::network);
        self.clients = clients.map(|all| all.into_iter().map(|one| one.value).collect());
        let Some(Sourced { value, origin }) = table.text("address", value::address) else {
            let text = "expected an address for the page, found none; write address = \
                        \"127.0.0.1:9101\" instead, or no [metrics]";
            if !table.has("address") {
                table.report(Problem::new(table.origin(), "metrics.address", text));
            }
            return;
        };
        if self.clients.is_none() && !value.ip().is_loopback() {
            let text = format!(
                "expected a list of client networks at {value}, which others can reach, found \
                 none; write clients = [\"192.168.0.0/16\"] besides, or a loopback address instead"
            );
            table.report(Problem::new(&origin, "metrics.address", text));
        }
        self.address = Some(value);
    }
}

pub(super) const KEYS: [&str; 2] = ["address", "clients"];
