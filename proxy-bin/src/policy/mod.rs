//! Who may go where and by which way: the rules, compiled once, and the guard of
//! addresses that are not public.

mod any;
mod clock;
mod explain;
mod guard;
mod index;
mod rule;
#[cfg(test)]
mod truth;
mod usual;

use std::collections::HashMap;
use std::net::IpAddr;

use proxy_core::{Host, Operation, Target};

use crate::config::{Action, Config, Kind, Origin};
use clock::Clock;
use guard::Trust;
use index::{Builder, Index};
use rule::{Keyed, Rest, Rule};
use usual::Settings;

pub(crate) use clock::Moment;
pub(crate) use explain::{Asked, Explanation, Question};
use rule::Condition;
pub(crate) use usual::Usual;

/// The rules of a configuration, for all workers.
///
/// A decision allocates nothing and costs the same for any number of entries and
/// of rules that differ in them: each rule is found by its names, its networks,
/// those of its clients, or its users. The first rule of the configuration that
/// holds decides.
#[derive(Debug)]
pub(crate) struct Policy {
    rules: Box<[Rule]>,
    index: Index,
    users: HashMap<Box<str>, u32>,
    /// In order; their places are their numbers.
    methods: Box<[Box<str>]>,
    settings: Settings,
    /// For each listener.
    trust: Box<[Trust]>,
    /// Where the rules were written.
    origins: Box<[Origin]>,
    clock: Clock,
}

/// Who asks; the same for all that a client does after its login. Of one policy
/// only, like [`Act`] and [`Verdict`].
#[derive(Clone, Copy, Debug)]
pub(crate) struct Person {
    client: IpAddr,
    /// `None` also for users that no rule names.
    user: Option<u32>,
    listener: usize,
    trust: Trust,
}

/// What is asked for.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Act {
    kind: Kind,
    /// `None` if no rule names it.
    method: Option<u32>,
}

/// What the rules say.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Judgement {
    Decided(Verdict),
    /// The first rule that may hold asks for the address of the target.
    NeedsAddress,
}

/// What the first rule that holds says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Verdict {
    /// An entry of [`Config::rules`]; `None` if no rule holds, which allows.
    pub(crate) rule: Option<u32>,
    pub(crate) action: Action,
}

impl Person {
    pub(crate) fn client(&self) -> IpAddr {
        self.client
    }
}

impl Verdict {
    const OPEN: Self = Self {
        rule: None,
        action: Action::Allow {
            via: None,
            source: None,
        },
    };
}

/// What is known of the address of a target.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Address {
    Known(IpAddr),
    /// Not looked up yet.
    Later,
    /// There is none.
    Never,
}

/// All that rules ask about.
#[derive(Clone, Copy, Debug)]
struct Request<'r> {
    person: &'r Person,
    act: Act,
    name: Option<&'r str>,
    port: u16,
    address: Address,
}

/// What becomes of a rule.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Outcome {
    Fails(Condition),
    Holds,
    /// Holds if the address is in its networks.
    NeedsAddress,
}

impl Policy {
    pub(crate) fn new(config: &Config) -> Self {
        let users = numbered(config.rules.iter().filter_map(|rule| rule.users.as_ref()));
        let methods = numbered(config.rules.iter().filter_map(|rule| rule.methods.as_ref()));
        let number = |known: &[Box<str>], names: &Vec<String>| {
            let mut numbers: Vec<u32> = names.iter().filter_map(|name| find(known, name)).collect();
            numbers.sort_unstable();
            numbers
        };
        let mut builder = Builder::new(&config.rules);
        let rules = (0..).zip(&config.rules).map(|(at, rule)| {
            let numbers = rule.users.as_ref().map(|names| number(&users, names));
            let mut compiled = builder.add(at, rule, numbers);
            let methods = rule.methods.as_ref().map(|names| number(&methods, names));
            compiled.rest = Rest::of(rule, methods);
            compiled
        });
        let rules = rules.collect();
        Self {
            rules,
            index: builder.build(users.len()),
            users: users.into_iter().zip(0..).collect(),
            methods: methods.into(),
            origins: config
                .rules
                .iter()
                .map(|rule| rule.origin.clone())
                .collect(),
            settings: Settings::new(config),
            trust: config.listeners.iter().map(Trust::of).collect(),
            clock: Clock::Machine,
        }
    }

    /// The same rules at one moment for ever.
    pub(crate) fn at(mut self, moment: Moment) -> Self {
        self.clock = Clock::Fixed(moment);
        self
    }

    /// Where a rule was written.
    pub(crate) fn origin(&self, rule: u32) -> &Origin {
        let at = usize::try_from(rule).unwrap_or(usize::MAX);
        self.origins.get(at).unwrap_or(&Origin::Default)
    }

    /// Once for each login. `listener` is an entry of [`Config::listeners`].
    pub(crate) fn person(&self, client: IpAddr, user: Option<&str>, listener: usize) -> Person {
        Person {
            client: client.to_canonical(),
            user: user.and_then(|user| self.users.get(user).copied()),
            listener,
            trust: self.trust.get(listener).copied().unwrap_or(Trust::Nobody),
        }
    }

    /// Once for each request.
    pub(crate) fn act(&self, operation: &Operation<'_>) -> Act {
        let (kind, method) = match operation {
            Operation::Associate => (Kind::Associate, None),
            Operation::Bind => (Kind::Bind, None),
            Operation::Request { method, .. } => (Kind::Request, find(&self.methods, method)),
            _ => (Kind::Tunnel, None),
        };
        Act { kind, method }
    }

    /// What the rules say. `address` is one of those of a target that is a name;
    /// with it, and for a target that is an address, all is decided.
    pub(crate) fn judge(
        &self,
        person: &Person,
        act: Act,
        target: Target<'_>,
        address: Option<IpAddr>,
    ) -> Judgement {
        let address = address.map_or(Address::Later, Address::Known);
        match self.first(&Request::new(person, act, target, address)) {
            None => Judgement::Decided(Verdict::OPEN),
            Some((_, Outcome::NeedsAddress)) => Judgement::NeedsAddress,
            Some((rule, _)) => Judgement::Decided(self.verdict(rule)),
        }
    }

    /// What the rules say of a name that has no address: those with networks do
    /// not hold.
    pub(crate) fn judge_unresolved(
        &self,
        person: &Person,
        act: Act,
        target: Target<'_>,
    ) -> Verdict {
        let first = self.first(&Request::new(person, act, target, Address::Never));
        first.map_or(Verdict::OPEN, |(rule, _)| self.verdict(rule))
    }

    /// The lowest of the rules that may hold.
    ///
    /// The lists need no merging: each is ascending, and is left where it comes
    /// behind the best so far.
    fn first(&self, request: &Request<'_>) -> Option<(u32, Outcome)> {
        if self.rules.is_empty() {
            return None;
        }
        let mut best = None;
        let mut visit = |rules: &[u32], found: Option<Condition>| {
            for rule in rules {
                if best.is_some_and(|(best, _)| best <= *rule) {
                    return;
                }
                match self.outcome(*rule, request, found) {
                    Outcome::Fails(_) => {}
                    outcome => best = Some((*rule, outcome)),
                }
            }
        };
        let Person { client, user, .. } = *request.person;
        let index = &self.index;
        for (found, rules) in index.settled.find(client, user) {
            visit(rules, found);
        }
        if let Some(name) = request.name {
            for rules in index.names.find(name) {
                visit(rules, Some(Condition::Names));
            }
        }
        match request.address {
            Address::Known(ip) => {
                for (_, rules) in index.networks.find(ip) {
                    visit(rules, Some(Condition::Networks));
                }
            }
            Address::Later => {
                for (found, rules) in index.pending.find(client, user) {
                    visit(rules, found);
                }
            }
            Address::Never => {}
        }
        best
    }

    fn verdict(&self, rule: u32) -> Verdict {
        let found = self.rule(rule);
        Verdict {
            rule: Some(rule),
            action: found.map_or(Action::Deny, |found| found.action),
        }
    }

    /// Those of all rules.
    fn numbers(&self) -> impl Iterator<Item = u32> + use<> {
        (0..).take(self.rules.len())
    }

    fn rule(&self, rule: u32) -> Option<&Rule> {
        self.rules.get(usize::try_from(rule).ok()?)
    }

    /// What becomes of one rule, found by a condition that holds.
    ///
    /// The networks come last: only a rule that holds but for them needs an
    /// address. The time comes late, since it must be read.
    fn outcome(&self, rule: u32, request: &Request<'_>, found: Option<Condition>) -> Outcome {
        let Some(own) = self.rule(rule) else {
            return Outcome::Fails(Condition::Names);
        };
        let rest = own.rest.as_deref();
        if let Some(failed) = rest.and_then(|rest| rest.fails(request)) {
            return Outcome::Fails(failed);
        }
        for (condition, holds) in Self::CLIENT_AND_NAME {
            if found != Some(condition) && !holds(self, rule, own, request) {
                return Outcome::Fails(condition);
            }
        }
        if let Some(failed) = rest.and_then(|rest| rest.fails_now(self.clock)) {
            return Outcome::Fails(failed);
        }
        match request.address {
            _ if matches!(own.networks, Keyed::Any) => Outcome::Holds,
            _ if found == Some(Condition::Networks) => Outcome::Holds,
            Address::Later => Outcome::NeedsAddress,
            Address::Known(ip) if self.prefix(rule, own, ip).is_some() => Outcome::Holds,
            Address::Known(_) | Address::Never => Outcome::Fails(Condition::Networks),
        }
    }

    const CLIENT_AND_NAME: [(Condition, Holds); 3] = [
        (Condition::Users, Self::user_holds),
        (Condition::From, Self::client_holds),
        (Condition::Names, Self::name_holds),
    ];

    fn user_holds(&self, rule: u32, own: &Rule, request: &Request<'_>) -> bool {
        match (&own.users, request.person.user) {
            (Keyed::Any, _) => true,
            (_, None) => false,
            (Keyed::Indexed, Some(user)) => {
                let rules = self.index.settled.of_user(user);
                rules.binary_search(&rule).is_ok()
            }
            (Keyed::Own(users), Some(user)) => users.binary_search(&user).is_ok(),
        }
    }

    fn client_holds(&self, rule: u32, own: &Rule, request: &Request<'_>) -> bool {
        let client = request.person.client;
        match &own.from {
            Keyed::Any => true,
            Keyed::Indexed => {
                let mut hits = self.index.settled.from.find(client);
                hits.any(|(_, rules)| rules.binary_search(&rule).is_ok())
            }
            Keyed::Own(networks) => networks.prefix(client).is_some(),
        }
    }

    fn name_holds(&self, rule: u32, own: &Rule, request: &Request<'_>) -> bool {
        match (&own.names, request.name) {
            (Keyed::Any, _) => true,
            (_, None) => false,
            (Keyed::Indexed, Some(name)) => {
                let mut hits = self.index.names.find(name);
                hits.any(|rules| rules.binary_search(&rule).is_ok())
            }
            (Keyed::Own(names), Some(name)) => names.holds(name),
        }
    }

    /// The length of the longest prefix of the rule's networks that `address`
    /// has.
    fn prefix(&self, rule: u32, own: &Rule, address: IpAddr) -> Option<u8> {
        match &own.networks {
            Keyed::Any => None,
            Keyed::Indexed => {
                let mut hits = self.index.networks.find(address);
                let hit = hits.find(|(_, rules)| rules.binary_search(&rule).is_ok());
                hit.map(|(prefix, _)| prefix)
            }
            Keyed::Own(networks) => networks.prefix(address),
        }
    }
}

type Holds = fn(&Policy, u32, &Rule, &Request<'_>) -> bool;

impl<'r> Request<'r> {
    fn new(person: &'r Person, act: Act, target: Target<'r>, address: Address) -> Self {
        let (name, address) = match (target.host, address) {
            (Host::Ip(ip), _) => (None, Address::Known(ip.to_canonical())),
            (Host::Name(name), Address::Known(ip)) => {
                (Some(name), Address::Known(ip.to_canonical()))
            }
            (Host::Name(name), address) => (Some(name), address),
        };
        Self {
            person,
            act,
            name,
            port: target.port,
            address,
        }
    }
}

/// All words of some lists, in order; their places are their numbers.
fn numbered<'c>(lists: impl Iterator<Item = &'c Vec<String>>) -> Vec<Box<str>> {
    let mut words: Vec<Box<str>> = lists.flatten().map(|word| word.as_str().into()).collect();
    words.sort_unstable();
    words.dedup();
    words
}

fn find(words: &[Box<str>], word: &str) -> Option<u32> {
    let at = words.binary_search_by(|other| (**other).cmp(word)).ok()?;
    u32::try_from(at).ok()
}

#[cfg(test)]
mod naive;
#[cfg(test)]
mod tests;
