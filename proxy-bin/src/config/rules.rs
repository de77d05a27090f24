//! Rules: who may go where, and by which way.

use std::ops::RangeInclusive;

use proxy_core::{NamePattern, Network};

use super::entries::List;
use super::problem::{Mismatch, Origin, Problem, Sourced, nearest, shown};
use super::reader::Table;
use super::{Parent, Source, Via, condition, parents, value};

/// One rule; all its conditions must hold. `None` is a condition that was not
/// written; of a list one entry must hold, so an empty one never does.
#[derive(Clone, Debug)]
pub(crate) struct Rule {
    pub(crate) origin: Origin,
    pub(crate) action: Action,
    pub(crate) from: Option<Vec<Network>>,
    pub(crate) users: Option<Vec<String>>,
    /// Entries of [`Config::listeners`](super::Config).
    pub(crate) listeners: Option<Vec<usize>>,
    pub(crate) names: Option<Vec<NamePattern>>,
    pub(crate) networks: Option<Vec<Network>>,
    pub(crate) ports: Option<Vec<RangeInclusive<u16>>>,
    pub(crate) operations: Option<Vec<Kind>>,
    pub(crate) methods: Option<Vec<String>>,
    pub(crate) hours: Option<Vec<Hours>>,
    /// Bits from Monday, the lowest, to Sunday.
    pub(crate) days: Option<u8>,
}

/// What a rule decides.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Action {
    /// `None` leaves the way or the source to listener, user and default.
    Allow {
        via: Option<Via>,
        /// An entry of [`Config::sources`](super::Config).
        source: Option<u16>,
    },
    Deny,
}

/// The kinds of [`Operation`](proxy_core::Operation).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Kind {
    Associate,
    Bind,
    Request,
    Tunnel,
}

impl Kind {
    pub(crate) const WORDS: [(&'static str, Self); 4] = [
        ("associate", Self::Associate),
        ("bind", Self::Bind),
        ("request", Self::Request),
        ("tunnel", Self::Tunnel),
    ];
}

/// A part of each day, in minutes since midnight; over midnight if it ends before
/// it starts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Hours {
    pub(crate) start: u16,
    /// The first minute that is not in it any more.
    pub(crate) end: u16,
}

impl Hours {
    pub(crate) fn contains(self, minute: u16) -> bool {
        match self.start < self.end {
            true => (self.start..self.end).contains(&minute),
            false => minute >= self.start || minute < self.end,
        }
    }
}

/// Rules as written.
#[derive(Clone, Debug, Default)]
pub(crate) struct RulesDraft {
    rules: Vec<RuleDraft>,
}

#[derive(Clone, Debug)]
struct RuleDraft {
    origin: Origin,
    action: Option<Sourced<Word>>,
    via: Option<Sourced<String>>,
    source: Option<Sourced<String>>,
    from: Option<List<Network>>,
    users: Option<List<String>>,
    listeners: Option<List<String>>,
    names: Option<List<NamePattern>>,
    networks: Option<List<Network>>,
    ports: Option<List<RangeInclusive<u16>>>,
    operations: Option<List<Kind>>,
    methods: Option<List<String>>,
    hours: Option<List<Hours>>,
    days: Option<List<u8>>,
}

/// What the key `action` may say.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Word {
    Allow,
    Deny,
}

impl RulesDraft {
    /// Reads a `[[rule]]`.
    pub(super) fn read(&mut self, table: &Table<'_>) {
        self.rules.push(RuleDraft {
            origin: table.origin().clone(),
            action: table.text("action", |text| value::choice(&WORDS, text)),
            via: table.text("via", value::name),
            source: table.text("source", value::name),
            from: List::read(table, "from", condition::network),
            users: List::read(table, "users", value::user_name),
            listeners: List::read(table, "listeners", value::name),
            names: List::read(table, "names", condition::name),
            networks: List::read(table, "networks", condition::network),
            ports: List::read(table, "ports", condition::ports),
            operations: List::read(table, "operations", condition::operation),
            methods: List::read(table, "methods", condition::method),
            hours: List::read(table, "hours", condition::hours),
            days: List::read(table, "days", condition::days),
        });
    }

    /// Judges the whole. `listeners` are the names of all of them, in the order
    /// of their indexes.
    pub(super) fn finish(
        self,
        listeners: &[String],
        parents: &[Parent],
        sources: &[Source],
        problems: &mut Vec<Problem>,
    ) -> Vec<Rule> {
        let mut known = Known {
            listeners,
            parents,
            sources,
            problems,
        };
        let rules = self.rules.into_iter();
        rules.filter_map(|draft| known.rule(draft)).collect()
    }
}

/// What rules may name.
struct Known<'k> {
    listeners: &'k [String],
    parents: &'k [Parent],
    sources: &'k [Source],
    problems: &'k mut Vec<Problem>,
}

impl Known<'_> {
    fn rule(&mut self, draft: RuleDraft) -> Option<Rule> {
        let action = self.action(&draft);
        Some(Rule {
            origin: draft.origin,
            from: self.load(draft.from),
            users: self.load(draft.users),
            listeners: draft.listeners.map(|list| self.services(list)),
            names: self.load(draft.names),
            networks: self.load(draft.networks),
            ports: self.load(draft.ports),
            operations: draft
                .operations
                .map(|list| self.operations(list, draft.methods.is_some())),
            methods: self.load(draft.methods),
            hours: self.load(draft.hours),
            days: self
                .load(draft.days)
                .map(|days| days.into_iter().fold(0, |all, days| all | days)),
            action: action?,
        })
    }

    fn load<T>(&mut self, list: Option<List<T>>) -> Option<Vec<T>> {
        let entries = list?.load(self.problems).into_iter();
        Some(entries.map(|entry| entry.value).collect())
    }

    fn action(&mut self, draft: &RuleDraft) -> Option<Action> {
        let via = self.via(draft);
        let source = self.source(draft);
        let way = draft.via.as_ref().or(draft.source.as_ref());
        match (draft.action.as_ref().map(|word| word.value), way) {
            (Some(Word::Deny), None) => Some(Action::Deny),
            (Some(Word::Deny), Some(way)) => {
                let text = "expected no way for what is denied, found one; write action = \
                            \"allow\" instead, or neither via nor source";
                self.problems
                    .push(Problem::new(&way.origin, "rule.action", text));
                None
            }
            (None, None) => {
                let mismatch = Mismatch::new("what to do", "action = \"deny\"");
                let problem = Problem::mismatch(&draft.origin, "rule.action", &mismatch, "nothing");
                self.problems.push(problem);
                None
            }
            _ => Some(Action::Allow { via, source }),
        }
    }

    fn via(&mut self, draft: &RuleDraft) -> Option<Via> {
        let written = draft.via.as_ref()?;
        let found = parents::named(self.parents, &written.value);
        if found.is_none() {
            let names = self.parents.iter().map(|parent| parent.name.as_str());
            let names = names.chain(["direct"]).collect();
            self.unknown(
                "via",
                written,
                "\"direct\" or the name of a parent or group",
                names,
            );
        }
        found
    }

    fn source(&mut self, draft: &RuleDraft) -> Option<u16> {
        let written = draft.source.as_ref()?;
        let mut names = self.sources.iter().map(|source| source.name.as_str());
        let at = names.position(|name| name == written.value);
        if at.is_none() {
            let names = self.sources.iter().map(|source| source.name.as_str());
            self.unknown("source", written, "the name of a source", names.collect());
        }
        at.and_then(|at| u16::try_from(at).ok())
    }

    /// The listeners with these names; several may have one in common, if their
    /// names were made of protocol and port.
    fn services(&mut self, list: List<String>) -> Vec<usize> {
        let mut found = Vec::new();
        for written in list.load(self.problems) {
            let before = found.len();
            let named = self.listeners.iter().enumerate();
            let named = named.filter(|(_, name)| **name == written.value);
            found.extend(named.map(|(at, _)| at));
            if found.len() == before {
                let names = self.listeners.iter().map(String::as_str).collect();
                self.unknown("listeners", &written, "the name of a listener", names);
            }
        }
        found
    }

    /// `key` is that of the rule.
    fn unknown(&mut self, key: &str, written: &Sourced<String>, expected: &str, names: Vec<&str>) {
        let instead = match (nearest(&written.value, &names), names.as_slice()) {
            (Some(name), _) => format!("{name:?}"),
            (None, []) => format!("no {key}, or a [[{key}]] of that name,"),
            (None, names) => value::one_of(&names[..names.len().min(MOST_NAMES)]),
        };
        let found = shown(&written.value);
        let mismatch = Mismatch::new(expected, instead);
        self.problems.push(Problem::mismatch(
            &written.origin,
            format!("rule.{key}"),
            &mismatch,
            &found,
        ));
    }

    /// Only requests have methods; a rule for others would never hold.
    fn operations(&mut self, list: List<Kind>, has_methods: bool) -> Vec<Kind> {
        let written = list.load(self.problems);
        let mut others = written.iter().filter(|kind| kind.value != Kind::Request);
        if let Some(other) = others.next().filter(|_| has_methods) {
            let text = "expected only \"request\" beside methods, found another; write a rule of \
                        its own for it instead";
            self.problems
                .push(Problem::new(&other.origin, "rule.operations", text));
        }
        written.into_iter().map(|kind| kind.value).collect()
    }
}

pub(super) const KEYS: [&str; 13] = [
    "action",
    "from",
    "users",
    "listeners",
    "names",
    "networks",
    "ports",
    "operations",
    "methods",
    "hours",
    "days",
    "via",
    "source",
];

const WORDS: [(&str, Word); 2] = [("allow", Word::Allow), ("deny", Word::Deny)];

/// As many names as a message lists.
const MOST_NAMES: usize = 8;
