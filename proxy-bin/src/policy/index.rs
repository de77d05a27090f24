//! Where the rules are found that may hold for a request.

use std::collections::HashSet;
use std::net::IpAddr;
use std::ops::RangeInclusive;

use proxy_core::{NamePattern, Names, Network, Networks};

use super::rule::{Condition, Keyed, NameSet, NetworkSet, Rule};
use crate::config::{self, Hours, Kind};

/// Each rule is in one place: with its names if it has any, else with its
/// networks, else with the rest of [`settled`](Self::settled).
///
/// Rules with networks but without names are in [`pending`](Self::pending) too,
/// for names whose address is not known yet.
#[derive(Debug)]
pub(super) struct Index {
    pub(super) names: Names,
    pub(super) networks: Networks,
    pub(super) settled: Group,
    pub(super) pending: Group,
}

/// Rules that no target tells apart: with the networks of their clients, else
/// with their users, else one behind the other.
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
    names: Vec<(&'c NamePattern, u32)>,
    networks: Vec<(Network, u32)>,
    settled: GroupBuilder,
    pending: GroupBuilder,
    /// The conditions of pending rules so far. Of those that differ in their
    /// networks only the first is the one that asks for an address.
    waiting: HashSet<Conditions<'c>>,
}

/// All that a rule without names asks for but its networks.
#[derive(PartialEq, Eq, Hash)]
struct Conditions<'c> {
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
    fn add(&mut self, rule: u32, from: Option<&Vec<Network>>, users: Option<&[u32]>) {
        match (from, users) {
            (Some(from), _) => self
                .from
                .extend(from.iter().map(|network| (*network, rule))),
            (None, Some(users)) => self.users.extend(users.iter().map(|user| (*user, rule))),
            (None, None) => self.others.push(rule),
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
    /// Takes a rule with its users' numbers, ascending; rules come in their order.
    pub(super) fn add(&mut self, at: u32, rule: &'c config::Rule, users: Option<Vec<u32>>) -> Rule {
        let from = rule.from.as_ref();
        let mut compiled = Rule {
            action: rule.action,
            names: own(rule.names.as_deref(), NameSet::new),
            networks: own(rule.networks.as_deref(), NetworkSet::new),
            from: own(rule.from.as_deref(), NetworkSet::new),
            users: own(users.as_deref(), Box::from),
            rest: None,
        };
        match (&rule.names, &rule.networks) {
            (Some(names), _) => {
                self.names.extend(names.iter().map(|name| (name, at)));
                compiled.names = Keyed::Indexed;
            }
            (None, Some(networks)) => {
                self.networks
                    .extend(networks.iter().map(|network| (*network, at)));
                if self.waiting.insert(Conditions::of(rule)) {
                    self.pending.add(at, from, users.as_deref());
                }
                compiled.networks = Keyed::Indexed;
            }
            (None, None) => {
                self.settled.add(at, from, users.as_deref());
                match (from, &users) {
                    (Some(_), _) => compiled.from = Keyed::Indexed,
                    (None, Some(_)) => compiled.users = Keyed::Indexed,
                    (None, None) => {}
                }
            }
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

fn own<'c, E: ?Sized, T>(entries: Option<&'c E>, compile: impl FnOnce(&'c E) -> T) -> Keyed<T> {
    entries.map_or(Keyed::Any, |entries| Keyed::Own(compile(entries)))
}
