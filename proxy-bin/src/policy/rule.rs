//! One rule as it is judged.

use std::fmt;
use std::net::IpAddr;
use std::ops::RangeInclusive;

use proxy_core::{NamePattern, Names, Network, Networks};

use super::Request;
use super::clock::Clock;
use crate::config::{self, Action, Hours, Kind};

/// The conditions of a rule, each in the form in which it is judged fastest.
#[derive(Debug)]
pub(super) struct Rule {
    pub(super) action: Action,
    pub(super) names: Keyed<NameSet>,
    pub(super) networks: Keyed<NetworkSet>,
    pub(super) from: Keyed<NetworkSet>,
    /// Numbers of users, ascending.
    pub(super) users: Keyed<Box<[u32]>>,
    pub(super) rest: Option<Box<Rest>>,
}

/// A condition that may be in the index.
#[derive(Debug)]
pub(super) enum Keyed<T> {
    /// Not written.
    Any,
    /// In the index, by which the rule is found.
    Indexed,
    Own(T),
}

/// The conditions that few rules have.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Rest {
    pub(super) listeners: Option<Vec<usize>>,
    pub(super) ports: Option<Vec<RangeInclusive<u16>>>,
    pub(super) operations: Option<Vec<Kind>>,
    /// Numbers of methods, ascending.
    pub(super) methods: Option<Vec<u32>>,
    pub(super) hours: Option<Vec<Hours>>,
    pub(super) days: Option<u8>,
}

impl Rest {
    /// `None` if the rule has none of them.
    pub(super) fn of(rule: &config::Rule, methods: Option<Vec<u32>>) -> Option<Box<Self>> {
        let rest = Self {
            listeners: rule.listeners.clone(),
            ports: rule.ports.clone(),
            operations: rule.operations.clone(),
            methods,
            hours: rule.hours.clone(),
            days: rule.days,
        };
        (rest != Self::default()).then(|| Box::new(rest))
    }

    /// The first condition that does not hold, but for the time.
    pub(super) fn fails(&self, request: &Request<'_>) -> Option<Condition> {
        let act = request.act;
        let method = |methods: &Vec<u32>| {
            let method = act.method.filter(|_| act.kind == Kind::Request);
            method.is_some_and(|method| methods.binary_search(&method).is_ok())
        };
        let port = |ports: &Vec<RangeInclusive<u16>>| {
            ports.iter().any(|range| range.contains(&request.port))
        };
        let listener = |listeners: &Vec<usize>| listeners.contains(&request.person.listener);
        let operation = |operations: &Vec<Kind>| operations.contains(&act.kind);
        let checks = [
            (
                Condition::Listeners,
                self.listeners.as_ref().is_none_or(listener),
            ),
            (
                Condition::Operations,
                self.operations.as_ref().is_none_or(operation),
            ),
            (Condition::Methods, self.methods.as_ref().is_none_or(method)),
            (Condition::Ports, self.ports.as_ref().is_none_or(port)),
        ];
        let failed = checks.into_iter().find(|(_, holds)| !holds);
        failed.map(|(condition, _)| condition)
    }

    /// The first condition of time that does not hold. The clock is read only if
    /// there is one.
    pub(super) fn fails_now(&self, clock: Clock) -> Option<Condition> {
        if self.days.is_none() && self.hours.is_none() {
            return None;
        }
        let now = clock.now();
        if self.days.is_some_and(|days| days >> now.weekday & 1 == 0) {
            return Some(Condition::Days);
        }
        let within = |hours: &Vec<Hours>| hours.iter().any(|part| part.contains(now.minute));
        match self.hours.as_ref().is_none_or(within) {
            true => None,
            false => Some(Condition::Hours),
        }
    }
}

/// The conditions, as they are named in the configuration.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Condition {
    Days,
    From,
    Hours,
    Listeners,
    Methods,
    Names,
    Networks,
    Operations,
    Ports,
    Users,
}

impl fmt::Display for Condition {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Days => "days",
            Self::From => "from",
            Self::Hours => "hours",
            Self::Listeners => "listeners",
            Self::Methods => "methods",
            Self::Names => "names",
            Self::Networks => "networks",
            Self::Operations => "operations",
            Self::Ports => "ports",
            Self::Users => "users",
        })
    }
}

/// Patterns of one rule.
#[derive(Debug)]
pub(super) enum NameSet {
    Few(Box<[NamePattern]>),
    Many(Box<Names>),
}

impl NameSet {
    pub(super) fn new(patterns: &[NamePattern]) -> Self {
        match patterns.len() <= FEW {
            true => Self::Few(patterns.into()),
            false => Self::Many(Box::new(Names::new(patterns.iter().map(|p| (p, 0))))),
        }
    }

    pub(super) fn holds(&self, name: &str) -> bool {
        match self {
            Self::Few(patterns) => patterns.iter().any(|pattern| pattern.matches(name)),
            Self::Many(names) => names.find(name).next().is_some(),
        }
    }
}

/// Networks of one rule.
#[derive(Debug)]
pub(super) enum NetworkSet {
    Few(Box<[Network]>),
    Many(Box<Networks>),
}

impl NetworkSet {
    pub(super) fn new(networks: &[Network]) -> Self {
        match networks.len() <= FEW {
            true => Self::Few(networks.into()),
            false => Self::Many(Box::new(Networks::new(networks.iter().map(|n| (*n, 0))))),
        }
    }

    /// The length of the longest prefix that `address` has.
    pub(super) fn prefix(&self, address: IpAddr) -> Option<u8> {
        match self {
            Self::Few(networks) => {
                let hits = networks.iter().filter(|network| network.contains(address));
                hits.map(Network::prefix).max()
            }
            Self::Many(networks) => networks.find(address).next().map(|(prefix, _)| prefix),
        }
    }
}

/// So many entries are compared one by one as fast as they are looked up.
const FEW: usize = 8;
