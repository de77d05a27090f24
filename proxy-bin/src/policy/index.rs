//! Where the rules are found that may hold for a request.

use std::collections::{HashMap, HashSet};
use std::hash::Hash;
use std::net::IpAddr;
use std::ops::RangeInclusive;

use proxy_core::{NamePattern, Names, Network, Networks};

use super::rule::{Condition, Keyed, NameSet, NetworkSet, Rule};
use crate::config::{self, Hours, Kind};

/// Each rule is in one place: with the condition whose entries the fewest rules
/// share, be it of its names, its networks, its clients or its users.
///
/// Those with their networks are in [`pending`](Self::pending) too, for names
/// whose address is not known yet.
#[derive(Debug)]
pub(super) struct Index {
    pub(super) names: Names,
    pub(super) networks: Networks,
    pub(super) settled: Group,
    pub(super) pending: Group,
}

/// Rules that are found by who asks: by the networks of clients or by users, else
/// one behind the other.
#[derive(Debug)]
pub(super) struct Group {
    pub(super) from: Networks,
    /// By the numbers of users.
    pub(super) users: Box<[Vec<u32>]>,
    pub(super) others: Vec<u32>,
}

impl Group {
    /// The lists of rules that may hold for this client, and by which condition
    /// each was found.
    pub(super) fn find(
        &self,
        client: IpAddr,
        user: Option<u32>,
    ) -> impl Iterator<Item = (Option<Condition>, &[u32])> {
        let by_client = self.from.find(client);
        let by_client = by_client.map(|(_, rules)| (Some(Condition::From), rules));
        let by_user = user.map(|user| (Some(Condition::Users), self.of_user(user)));
        by_client
            .chain(by_user)
            .chain([(None, self.others.as_slice())])
    }

    pub(super) fn of_user(&self, user: u32) -> &[u32] {
        let at = usize::try_from(user).ok();
        at.and_then(|at| self.users.get(at))
            .map_or(&[], Vec::as_slice)
    }
}

/// What goes into an index.
#[derive(Default)]
pub(super) struct Builder<'c> {
    census: Census<'c>,
    names: Vec<(&'c NamePattern, u32)>,
    networks: Vec<(Network, u32)>,
    settled: GroupBuilder,
    pending: GroupBuilder,
    /// The conditions of pending rules so far. Of rules that differ only in their
    /// networks it is the first that asks for an address.
    waiting: HashSet<Conditions<'c>>,
}

/// All that a rule asks for but its networks.
#[derive(PartialEq, Eq, Hash)]
struct Conditions<'c> {
    names: Option<&'c [NamePattern]>,
    from: Option<&'c [Network]>,
    users: Option<&'c [String]>,
    listeners: Option<&'c [usize]>,
    ports: Option<&'c [RangeInclusive<u16>]>,
    operations: Option<&'c [Kind]>,
    methods: Option<&'c [String]>,
    hours: Option<&'c [Hours]>,
    days: Option<u8>,
}

impl<'c> Conditions<'c> {
    fn of(rule: &'c config::Rule) -> Self {
        Self {
            names: rule.names.as_deref(),
            from: rule.from.as_deref(),
            users: rule.users.as_deref(),
            listeners: rule.listeners.as_deref(),
            ports: rule.ports.as_deref(),
            operations: rule.operations.as_deref(),
            methods: rule.methods.as_deref(),
            hours: rule.hours.as_deref(),
            days: rule.days,
        }
    }
}

#[derive(Default)]
struct GroupBuilder {
    from: Vec<(Network, u32)>,
    users: Vec<(u32, u32)>,
    others: Vec<u32>,
}

impl GroupBuilder {
    fn add(&mut self, at: u32, key: Option<Condition>, rule: &config::Rule, users: &[u32]) {
        let from = rule.from.iter().flatten();
        match key {
            Some(Condition::From) => self.from.extend(from.map(|network| (*network, at))),
            Some(Condition::Users) => self.users.extend(users.iter().map(|user| (*user, at))),
            _ => self.others.push(at),
        }
    }

    fn build(self, users: usize) -> Group {
        let mut by_user = vec![Vec::new(); users];
        for (user, rule) in self.users {
            if let Some(rules) = usize::try_from(user)
                .ok()
                .and_then(|user| by_user.get_mut(user))
            {
                rules.push(rule);
            }
        }
        Group {
            from: Networks::new(self.from),
            users: by_user.into(),
            others: self.others,
        }
    }
}

impl<'c> Builder<'c> {
    pub(super) fn new(rules: &'c [config::Rule]) -> Self {
        Self {
            census: Census::new(rules),
            ..Self::default()
        }
    }

    /// Takes a rule with its users' numbers, ascending; rules come in their order.
    pub(super) fn add(&mut self, at: u32, rule: &'c config::Rule, users: Option<Vec<u32>>) -> Rule {
        let mut compiled = Rule {
            action: rule.action,
            names: own(rule.names.as_deref(), NameSet::new),
            networks: own(rule.networks.as_deref(), NetworkSet::new),
            from: own(rule.from.as_deref(), NetworkSet::new),
            users: own(users.as_deref(), Box::from),
            rest: None,
        };
        let users = users.unwrap_or_default();
        let key = self.census.key(rule, &KEYS);
        match key {
            Some(Condition::Names) => {
                let names = rule.names.iter().flatten();
                self.names.extend(names.map(|name| (name, at)));
                compiled.names = Keyed::Indexed;
            }
            Some(Condition::Networks) => {
                let networks = rule.networks.iter().flatten();
                self.networks.extend(networks.map(|network| (*network, at)));
                compiled.networks = Keyed::Indexed;
                if self.waiting.insert(Conditions::of(rule)) {
                    let key = self.census.key(rule, &CLIENT_KEYS);
                    self.pending.add(at, key, rule, &users);
                }
            }
            _ => self.settled.add(at, key, rule, &users),
        }
        match key {
            Some(Condition::From) => compiled.from = Keyed::Indexed,
            Some(Condition::Users) => compiled.users = Keyed::Indexed,
            _ => {}
        }
        compiled
    }

    /// `users` is one more than the highest number.
    pub(super) fn build(self, users: usize) -> Index {
        Index {
            names: Names::new(self.names),
            networks: Networks::new(self.networks),
            settled: self.settled.build(users),
            pending: self.pending.build(users),
        }
    }
}

/// How many rules share each entry.
#[derive(Default)]
struct Census<'c> {
    names: HashMap<&'c NamePattern, usize>,
    networks: HashMap<&'c Network, usize>,
    from: HashMap<&'c Network, usize>,
    users: HashMap<&'c String, usize>,
}

impl<'c> Census<'c> {
    fn new(rules: &'c [config::Rule]) -> Self {
        Self {
            names: shares(rules.iter().filter_map(|rule| rule.names.as_ref())),
            networks: shares(rules.iter().filter_map(|rule| rule.networks.as_ref())),
            from: shares(rules.iter().filter_map(|rule| rule.from.as_ref())),
            users: shares(rules.iter().filter_map(|rule| rule.users.as_ref())),
        }
    }

    /// Of these conditions of a rule the one that the fewest others come with.
    fn key(&self, rule: &config::Rule, keys: &[Condition]) -> Option<Condition> {
        let sharers = |key: &Condition| match key {
            Condition::From => most(&self.from, rule.from.as_deref()),
            Condition::Names => most(&self.names, rule.names.as_deref()),
            Condition::Networks => most(&self.networks, rule.networks.as_deref()),
            Condition::Users => most(&self.users, rule.users.as_deref()),
            _ => None,
        };
        let shared = keys.iter().filter_map(|key| Some((sharers(key)?, *key)));
        shared
            .min_by_key(|(sharers, _)| *sharers)
            .map(|(_, key)| key)
    }
}

fn shares<'c, E: Eq + Hash>(lists: impl Iterator<Item = &'c Vec<E>>) -> HashMap<&'c E, usize> {
    let mut shares = HashMap::new();
    for entry in lists.flatten() {
        *shares.entry(entry).or_default() += 1;
    }
    shares
}

/// How many rules have the entry that the most have; `None` without a list.
fn most<E: Eq + Hash>(shares: &HashMap<&E, usize>, entries: Option<&[E]>) -> Option<usize> {
    let shares = entries?.iter().filter_map(|entry| shares.get(entry));
    Some(shares.copied().max().unwrap_or(0))
}

fn own<'c, E: ?Sized, T>(entries: Option<&'c E>, compile: impl FnOnce(&'c E) -> T) -> Keyed<T> {
    entries.map_or(Keyed::Any, |entries| Keyed::Own(compile(entries)))
}

/// What rules are found by, the first where two are as good.
const KEYS: [Condition; 4] = [
    Condition::Names,
    Condition::Networks,
    Condition::From,
    Condition::Users,
];
const CLIENT_KEYS: [Condition; 2] = [Condition::From, Condition::Users];
