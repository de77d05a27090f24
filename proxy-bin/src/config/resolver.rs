//! How names are looked up.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::time::Duration;

use super::problem::{Mismatch, Problem, Sourced};
use super::reader::Table;
use super::{hint, value};

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
pub(crate) struct ResolverDraft {
    servers: Vec<Sourced<SocketAddr>>,
    timeout: Option<Duration>,
}

impl ResolverDraft {
    pub(super) fn read(&mut self, table: &Table<'_>) {
        self.servers = table.texts("servers", server).unwrap_or_default();
        self.timeout = table.text("timeout", timeout).map(|time| time.value);
    }

    pub(super) fn finish(self, problems: &mut Vec<Problem>) -> Resolver {
        for (at, server) in self.servers.iter().enumerate() {
            let Sourced { value, origin } = server;
            let text = match at {
                MOST_SERVERS.. => {
                    format!("expected at most {MOST_SERVERS} servers, found more; write fewer")
                }
                _ if self.servers[..at].iter().any(|other| other.value == *value) => {
                    format!("expected each server once, found {value} twice; write it once")
                }
                _ => continue,
            };
            let text = format!("{text} instead");
            problems.push(Problem::new(origin, "resolver.servers", text));
        }
        let default = Resolver::default();
        Resolver {
            servers: self.servers.into_iter().map(|at| at.value).collect(),
            timeout: self.timeout.unwrap_or(default.timeout),
        }
    }
}

/// Reads the address of a name server; its port may be left out.
fn server(text: &str) -> Result<SocketAddr, Mismatch> {
    let alone = text.parse::<IpAddr>().map(|ip| (ip, DNS_PORT).into());
    let address = alone.or_else(|_| text.parse::<SocketAddr>());
    match address {
        Ok(at) if at.port() != 0 && is_host(at.ip()) => Ok(at),
        _ => Err(Mismatch::new(
            "the IP address of a name server, with a port if it is not 53",
            format!("{:?}", meant(text)),
        )),
    }
}

fn meant(text: &str) -> String {
    match hint::address(text).ip() {
        ip if !is_host(ip) => Ipv4Addr::LOCALHOST.to_string(),
        ip => ip.to_string(),
    }
}

fn is_host(ip: IpAddr) -> bool {
    !ip.is_unspecified() && !ip.is_multicast()
}

fn timeout(text: &str) -> Result<Duration, Mismatch> {
    let wrong = |instead: String| {
        let expected = "a time above zero with a unit (ms, s, m or h) of at most a year";
        Err(Mismatch::new(expected, instead))
    };
    match value::timeout(text) {
        Ok(Some(time)) => Ok(time),
        // A name that hangs must end somewhere.
        Ok(None) => wrong("\"5s\"".to_owned()),
        Err(mismatch) if mismatch.instead == "\"never\"" => wrong("\"5s\"".to_owned()),
        Err(mismatch) => wrong(mismatch.instead),
    }
}

const DNS_PORT: u16 = 53;
/// As many as the C library uses.
const MOST_SERVERS: usize = 3;

pub(super) const KEYS: [&str; 2] = ["servers", "timeout"];
