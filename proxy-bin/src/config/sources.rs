//! Source addresses: pools and prefixes that connections go out from.

use std::collections::{HashMap, HashSet};
use std::net::{IpAddr, Ipv6Addr, SocketAddr};

use super::problem::{Mismatch, Origin, Problem, Sourced, shown};
use super::reader::Table;
use super::value;

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
    /// Network address and length, at most 127, of an IPv6 prefix.
    Prefix(Ipv6Addr, u8),
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

impl Choice {
    const WORDS: [(&'static str, Self); 2] = [("fresh", Self::Fresh), ("sticky", Self::Sticky)];
}

/// Sources as written. Names are not yet known to be different.
#[derive(Clone, Debug, Default)]
pub(crate) struct SourcesDraft {
    sources: Vec<(Origin, Source)>,
}

impl SourcesDraft {
    /// Reads a `[[source]]`.
    pub(super) fn read(&mut self, table: &Table<'_>) {
        table.require(
            "name",
            &Mismatch::new("a name for rules, users and listeners", "name = \"office\""),
        );
        let name = table.text("name", value::name);
        let choice = table.text("choice", |text| value::choice(&Choice::WORDS, text));
        if let (Some(name), Some(addresses)) = (name, addresses(table)) {
            let source = Source {
                name: name.value,
                addresses,
                choice: choice.map(|choice| choice.value).unwrap_or_default(),
            };
            self.sources.push((name.origin, source));
        }
    }

    pub(super) fn finish(self, problems: &mut Vec<Problem>) -> Vec<Source> {
        let mut seen: HashMap<&str, &Origin> = HashMap::new();
        for (at, (origin, source)) in self.sources.iter().enumerate() {
            let name = source.name.as_str();
            if let Some(first) = seen.insert(name, origin) {
                let text = format!(
                    "expected a name of its own, found {name:?} as at {first}; write another name \
                     instead"
                );
                problems.push(Problem::new(origin, "source.name", text));
            }
            if at == MOST_SOURCES {
                let text = format!(
                    "expected at most {MOST_SOURCES} sources, found more; write fewer instead"
                );
                problems.push(Problem::new(origin, "source", text));
            }
        }
        self.sources.into_iter().map(|(_, source)| source).collect()
    }
}

/// The addresses of a `[[source]]`: listed or, of IPv6, as a prefix.
fn addresses(table: &Table<'_>) -> Option<Addresses> {
    if !table.has("addresses") && !table.has("prefix") {
        table.require(
            "addresses",
            &Mismatch::new(
                "addresses of this machine, or a prefix",
                "addresses = [\"192.0.2.1\"] or prefix = \"2001:db8:1::/64\"",
            ),
        );
    }
    let pool = table.texts("addresses", own_address);
    let prefix = table.text("prefix", prefix);
    match (pool, prefix) {
        (Some(_), Some(Sourced { origin, .. })) => {
            let text = "expected addresses or a prefix, found both; write a [[source]] for each \
                        instead";
            table.report(Problem::new(&origin, "source.prefix", text));
            None
        }
        (Some(pool), None) => {
            report_doubles(table, &pool);
            Some(Addresses::Pool(
                pool.into_iter().map(|ip| ip.value).collect(),
            ))
        }
        (None, Some(prefix)) => Some(prefix.value),
        (None, None) => None,
    }
}

fn report_doubles(table: &Table<'_>, pool: &[Sourced<IpAddr>]) {
    let mut seen = HashSet::new();
    for Sourced { value, origin } in pool {
        if !seen.insert(value) {
            let text =
                format!("expected each address once, found {value} twice; write it once instead");
            table.report(Problem::new(origin, "source.addresses", text));
        }
    }
}

/// Reads an address that this machine may have.
fn own_address(text: &str) -> Result<IpAddr, Mismatch> {
    let wrong = |instead: String| {
        let expected = "an IP address of this machine, without a port";
        Err(Mismatch::new(expected, instead))
    };
    let Ok(ip) = text.parse::<IpAddr>() else {
        return wrong(meant(text));
    };
    match ip.to_canonical() {
        other if other != ip => wrong(format!("{:?}", other.to_string())),
        _ if ip.is_unspecified() || ip.is_multicast() => {
            let any = "an address of an interface, or leave the source out where any will do";
            wrong(any.to_owned())
        }
        _ => Ok(ip),
    }
}

/// The address that was meant, if it is in there.
fn meant(text: &str) -> String {
    let bare = text.trim_matches(['[', ']']).parse::<IpAddr>();
    let with_port = text.parse::<SocketAddr>().map(|at| at.ip());
    match bare.or(with_port) {
        Ok(ip) => format!("{:?}", ip.to_string()),
        Err(_) if prefix(text).is_ok() => format!("prefix = {text:?}"),
        Err(_) => "\"192.0.2.1\"".to_owned(),
    }
}

/// Reads an IPv6 prefix.
fn prefix(text: &str) -> Result<Addresses, Mismatch> {
    let wrong = |instead: String| {
        let expected = "an IPv6 prefix with a length of at most 127";
        Err(Mismatch::new(expected, instead))
    };
    let example = || "\"2001:db8:1::/64\"".to_owned();
    let (network, length) = text.split_once('/').unwrap_or((text, ""));
    let network: Ipv6Addr = match network.parse() {
        Ok(network) => network,
        Err(_) if network.parse::<IpAddr>().is_ok() => {
            return wrong("the single addresses as addresses = [..]".to_owned());
        }
        Err(_) => return wrong(example()),
    };
    match length.parse::<u8>() {
        Ok(length @ 0..=127) => {
            let mask = !u128::MAX.checked_shr(length.into()).unwrap_or(0);
            let first = Ipv6Addr::from_bits(network.to_bits() & mask);
            match first == network {
                true => Ok(Addresses::Prefix(network, length)),
                false => wrong(shown(&format!("{first}/{length}"))),
            }
        }
        Ok(128) => wrong(format!("addresses = [\"{network}\"]")),
        Ok(_) => wrong(example()),
        Err(_) => wrong(shown(&format!("{network}/64"))),
    }
}

const MOST_SOURCES: usize = 1024;

pub(super) const KEYS: [&str; 4] = ["addresses", "choice", "name", "prefix"];
