//! What the rules say of one request, and why, in words.

use std::fmt;
use std::net::{IpAddr, SocketAddr};

use proxy_core::{Host, Operation, Special, TargetBuf};

use super::{
    Act, Address, Condition, Judgement, Moment, Outcome, Person, Policy, Request, Usual, Verdict,
};
use crate::config::{Action, Config, Via};
use crate::own::OwnAddresses;

/// A request that nobody made.
#[derive(Clone, Debug)]
pub(crate) struct Question {
    pub(crate) client: IpAddr,
    pub(crate) user: Option<String>,
    /// An entry of [`Config::listeners`].
    pub(crate) listener: usize,
    pub(crate) asked: Asked,
    pub(crate) target: TargetBuf,
}

/// An [`Operation`] with its method.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Asked {
    Associate,
    Bind,
    Request(String),
    Tunnel,
}

impl Asked {
    pub(super) fn operation(&self) -> Operation<'_> {
        match self {
            Self::Associate => Operation::Associate,
            Self::Bind => Operation::Bind,
            Self::Request(method) => Operation::Request { method, path: "/" },
            Self::Tunnel => Operation::Tunnel,
        }
    }
}

/// What would become of a request. Shown as lines of `key: value`.
#[derive(Debug)]
pub(crate) struct Explanation<'c> {
    config: &'c Config,
    moment: Moment,
    listener: usize,
    /// The listener takes such clients.
    taken: bool,
    login: Login,
    usual: Usual,
    lookup: Lookup,
    /// For each address what becomes of it.
    answers: Vec<Answer>,
    /// What decides: the first answer that allows, else the first.
    decisive: Answer,
    /// The rules before that one, and what each asks for in vain.
    skipped: Vec<(u32, Condition)>,
}

/// What the listener makes of the user.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Login {
    /// Nobody is asked, nobody is named.
    Free,
    /// The listener asks nobody, so that rules see no user.
    Ignored,
    Missing,
    Shown,
}

impl Login {
    fn of(config: &Config, question: &Question) -> Self {
        let listener = config.listeners.get(question.listener);
        let asks = listener.is_some_and(|listener| listener.auth);
        match (asks, &question.user) {
            (false, None) => Self::Free,
            (false, Some(_)) => Self::Ignored,
            (true, None) => Self::Missing,
            (true, Some(_)) => Self::Shown,
        }
    }
}

/// Why the addresses of a name are needed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Lookup {
    ForGuard,
    /// For this rule.
    ForRule(Option<u32>),
    NotNeeded,
}

/// What becomes of a target at one address.
#[derive(Clone, Copy, Debug)]
struct Answer {
    /// `None` of a name whose address nobody asks for, or that has none.
    address: Option<IpAddr>,
    verdict: Verdict,
    guard: Result<(), Special>,
    /// It is a listener of the proxy itself.
    own: bool,
}

impl<'c> Explanation<'c> {
    /// Asks the rules. `look_up` answers the addresses of a name; it is called
    /// only if a rule or the guard needs them.
    pub(crate) fn new(
        config: &'c Config,
        policy: &Policy,
        question: &Question,
        look_up: impl FnOnce(&str) -> Vec<IpAddr>,
    ) -> Self {
        let login = Login::of(config, question);
        let user = question.user.as_deref();
        let user = user.filter(|_| login == Login::Shown);
        let asker = Asker::new(config, policy, question, user);
        let (lookup, answers) = asker.answers(look_up);
        let allowed = answers.iter().find(|answer| answer.is_allowed());
        let decisive = match allowed.or_else(|| answers.first()) {
            Some(answer) => *answer,
            None => asker.without_address(),
        };
        Self {
            config,
            moment: policy.clock.now(),
            listener: question.listener,
            taken: policy.takes(question.listener, question.client),
            login,
            usual: asker.usual,
            lookup,
            decisive,
            skipped: asker.skipped(&decisive),
            answers,
        }
    }

    pub(crate) fn is_allowed(&self) -> bool {
        self.taken && self.login != Login::Missing && self.decisive.is_allowed()
    }

    /// The way and source of what is allowed.
    pub(crate) fn goes(&self) -> Option<Usual> {
        let allowed = self.is_allowed();
        allowed
            .then(|| self.usual.after(&self.decisive.verdict))
            .flatten()
    }

    /// Where a rule was written.
    fn place(&self, rule: u32) -> String {
        let at = usize::try_from(rule).ok();
        let rule = at.and_then(|at| self.config.rules.get(at));
        rule.map_or_else(String::new, |rule| rule.origin.to_string())
    }

    fn reason(&self, answer: &Answer) -> String {
        if answer.own {
            return "loop: a listener of the proxy itself".to_owned();
        }
        match (answer.guarded(), answer.verdict.rule) {
            (Some(special), _) => format!("guard: {}", special.as_str()),
            (None, Some(rule)) => format!("rule: {}", self.place(rule)),
            (None, None) => "rule: none".to_owned(),
        }
    }

    fn via(&self, via: Via) -> &str {
        match via {
            Via::Direct => "direct",
            Via::Parent(at) => {
                let parent = self.config.parents.get(usize::from(at));
                parent.map_or("direct", |parent| &parent.name)
            }
        }
    }

    fn source(&self, source: Option<u16>) -> &str {
        let source = source.and_then(|at| self.config.sources.get(usize::from(at)));
        source.map_or("any", |source| &source.name)
    }
}

impl fmt::Display for Explanation<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "decision: {}", word(self.is_allowed()))?;
        if !self.taken {
            writeln!(f, "clients: the listener is for other networks")?;
        }
        match self.login {
            Login::Free | Login::Shown => {}
            Login::Ignored => writeln!(f, "login: not asked for, so no rule sees the user")?,
            Login::Missing => writeln!(f, "login: the listener asks for one")?,
        }
        match self.decisive.verdict.rule {
            Some(rule) => writeln!(f, "rule: {}", self.place(rule))?,
            None => writeln!(f, "rule: none")?,
        }
        if self.decisive.own {
            writeln!(f, "loop: a listener of the proxy itself")?;
        }
        if let Some(special) = self.decisive.guarded() {
            writeln!(f, "guard: {}", special.as_str())?;
        }
        if let Some(Usual { via, source }) = self.goes() {
            writeln!(f, "via: {}", self.via(via))?;
            writeln!(f, "source: {}", self.source(source))?;
        }
        if let Some(listener) = self.config.listeners.get(self.listener) {
            let name = listener.service(listener.address.port());
            writeln!(f, "listener: {name}")?;
        }
        writeln!(f, "time: {}", self.moment)?;
        match self.lookup {
            Lookup::ForGuard => writeln!(f, "lookup: for the guard")?,
            Lookup::ForRule(Some(rule)) => writeln!(f, "lookup: for rule {}", self.place(rule))?,
            Lookup::ForRule(None) => writeln!(f, "lookup: for a rule")?,
            Lookup::NotNeeded => writeln!(f, "lookup: not needed")?,
        }
        if self.lookup != Lookup::NotNeeded && self.answers.is_empty() {
            writeln!(f, "address: none")?;
        }
        for answer in &self.answers {
            if let Some(address) = answer.address {
                let reason = self.reason(answer);
                writeln!(
                    f,
                    "address: {address}, {}, {reason}",
                    word(answer.is_allowed())
                )?;
            }
        }
        if self.skipped.len() > MOST_SKIPPED {
            return writeln!(f, "skipped: {} rules", self.skipped.len());
        }
        for (rule, condition) in &self.skipped {
            writeln!(f, "skipped: {}, {condition}", self.place(*rule))?;
        }
        Ok(())
    }
}

impl Answer {
    fn is_allowed(&self) -> bool {
        self.verdict.action != Action::Deny && self.guard.is_ok() && !self.own
    }

    /// Why the guard refuses what the rules allow.
    fn guarded(&self) -> Option<Special> {
        let is_denied = self.verdict.action == Action::Deny;
        self.guard.err().filter(|_| !is_denied)
    }
}

/// A question in the words of the policy.
struct Asker<'q> {
    own: OwnAddresses,
    policy: &'q Policy,
    person: Person,
    usual: Usual,
    act: Act,
    target: &'q TargetBuf,
}

impl<'q> Asker<'q> {
    fn new(
        config: &Config,
        policy: &'q Policy,
        question: &'q Question,
        user: Option<&str>,
    ) -> Self {
        let listeners = config.listeners.iter();
        Self {
            own: OwnAddresses::new(listeners.map(|listener| listener.address)),
            policy,
            person: policy.person(question.client, user, question.listener),
            usual: policy.usual(question.listener, user),
            act: policy.act(&question.asked.operation()),
            target: &question.target,
        }
    }

    /// One for each address, none if there is no address.
    fn answers(&self, look_up: impl FnOnce(&str) -> Vec<IpAddr>) -> (Lookup, Vec<Answer>) {
        let target = self.target.as_target();
        let judgement = self.policy.judge(&self.person, self.act, target, None);
        let name = match (target.host, judgement) {
            (Host::Ip(ip), Judgement::Decided(verdict)) => {
                return (Lookup::NotNeeded, vec![self.answer(verdict, Some(ip))]);
            }
            (Host::Ip(ip), Judgement::NeedsAddress) => {
                return (Lookup::NotNeeded, vec![self.at(ip)]);
            }
            (Host::Name(name), _) => name,
        };
        let lookup = match judgement {
            Judgement::NeedsAddress => Lookup::ForRule(self.asking_rule()),
            Judgement::Decided(verdict) if self.is_dialled(&verdict) => Lookup::ForGuard,
            Judgement::Decided(verdict) => {
                return (Lookup::NotNeeded, vec![self.answer(verdict, None)]);
            }
        };
        let addresses = look_up(name).into_iter();
        (lookup, addresses.map(|ip| self.at(ip)).collect())
    }

    fn at(&self, ip: IpAddr) -> Answer {
        let target = self.target.as_target();
        let judgement = self.policy.judge(&self.person, self.act, target, Some(ip));
        match judgement {
            Judgement::Decided(verdict) => self.answer(verdict, Some(ip)),
            // Not with an address.
            Judgement::NeedsAddress => self.without_address(),
        }
    }

    fn without_address(&self) -> Answer {
        let target = self.target.as_target();
        let verdict = self.policy.judge_unresolved(&self.person, self.act, target);
        self.answer(verdict, None)
    }

    fn answer(&self, verdict: Verdict, address: Option<IpAddr>) -> Answer {
        let Self { policy, person, .. } = self;
        let by_address = address.map_or(Ok(()), |ip| policy.guard(person, &verdict, ip));
        let by_name = match self.target.as_target().host {
            Host::Name(name) if !self.is_dialled(&verdict) => {
                policy.guard_name(person, &verdict, name)
            }
            _ => Ok(()),
        };
        let port = self.target.as_target().port;
        let leads_back = |ip| self.own.lead_from(SocketAddr::new(ip, port));
        Answer {
            address,
            verdict,
            guard: by_address.and(by_name),
            own: self.is_dialled(&verdict) && address.is_some_and(leads_back),
        }
    }

    /// Whether the target is dialled by us, not by a parent.
    fn is_dialled(&self, verdict: &Verdict) -> bool {
        let way = self.usual.after(verdict);
        way.is_some_and(|way| way.via == Via::Direct)
    }

    /// The rule that cannot be judged without an address.
    fn asking_rule(&self) -> Option<u32> {
        let request = self.request(Address::Later);
        let mut rules = self.policy.numbers();
        rules.find(|rule| self.policy.outcome(*rule, &request, None) == Outcome::NeedsAddress)
    }

    /// What the rules before the one that decides ask for in vain.
    fn skipped(&self, decisive: &Answer) -> Vec<(u32, Condition)> {
        let request = self.request(decisive.address.map_or(Address::Never, Address::Known));
        let before = self.policy.numbers();
        let before = before.take_while(|rule| Some(*rule) != decisive.verdict.rule);
        let outcome = |rule| match self.policy.outcome(rule, &request, None) {
            Outcome::Fails(condition) => Some((rule, condition)),
            Outcome::Holds | Outcome::NeedsAddress => None,
        };
        before.filter_map(outcome).collect()
    }

    fn request(&self, address: Address) -> Request<'_> {
        Request::new(&self.person, self.act, self.target.as_target(), address)
    }
}

fn word(allowed: bool) -> &'static str {
    match allowed {
        true => "allow",
        false => "deny",
    }
}

/// More would hide the rest.
const MOST_SKIPPED: usize = 20;
