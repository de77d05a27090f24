//! The compiled rules against the same rules read one by one.

use std::net::IpAddr;
use std::path::Path;

use proptest::prelude::*;
use proptest::sample::select;
use proxy_core::{Host, NamePattern, Network, NetworkError, Special, Target};

use super::explain::{Asked, Explanation, Question};
use super::*;
use crate::config::{Addresses, Choice, Draft, Hours, Order, Origin, Parent, Rule, Source, Via};

/// A request, and the addresses of its target if that is a name.
#[derive(Clone, Debug)]
struct Case {
    client: IpAddr,
    user: Option<&'static str>,
    listener: usize,
    asked: Asked,
    host: &'static str,
    port: u16,
    addresses: Vec<IpAddr>,
    moment: Moment,
}

impl Case {
    fn target(&self) -> Target<'_> {
        let host = Host::name(self.host.as_bytes()).expect("a host");
        let port = self.port;
        Target { host, port }
    }
}

/// What the first rule that holds says, as the reference has it.
fn judge(config: &Config, case: &Case, address: Address) -> Judgement {
    for (at, rule) in (0..).zip(&config.rules) {
        if !holds_but_for_networks(rule, case) {
            continue;
        }
        let decided = Judgement::Decided(Verdict {
            rule: Some(at),
            action: rule.action,
        });
        let Some(networks) = &rule.networks else {
            return decided;
        };
        let address = match case.target().host {
            Host::Ip(ip) => Address::Known(ip),
            Host::Name(_) => address,
        };
        match address {
            Address::Known(ip) if networks.iter().any(|network| network.contains(ip)) => {
                return decided;
            }
            Address::Later => return Judgement::NeedsAddress,
            Address::Known(_) | Address::Never => {}
        }
    }
    Judgement::Decided(Verdict::OPEN)
}

fn holds_but_for_networks(rule: &Rule, case: &Case) -> bool {
    let target = case.target();
    let (kind, method) = match &case.asked {
        Asked::Associate => (Kind::Associate, None),
        Asked::Bind => (Kind::Bind, None),
        Asked::Request(method) => (Kind::Request, Some(method)),
        Asked::Tunnel => (Kind::Tunnel, None),
    };
    let name = match target.host {
        Host::Ip(_) => None,
        Host::Name(name) => Some(name),
    };
    let is_named = |patterns: &Vec<NamePattern>| {
        name.is_some_and(|name| patterns.iter().any(|pattern| pattern.matches(name)))
    };
    let is_from = |networks: &Vec<Network>| networks.iter().any(|own| own.contains(case.client));
    let is_user = |users: &Vec<String>| users.iter().any(|user| Some(user.as_str()) == case.user);
    let is_day = |days: u8| days & 1 << case.moment.weekday != 0;
    let is_hour = |hours: &Vec<Hours>| hours.iter().any(|part| part.contains(case.moment.minute));
    let is_method = |methods: &Vec<String>| method.is_some_and(|method| methods.contains(method));
    rule.names.as_ref().is_none_or(is_named)
        && rule.from.as_ref().is_none_or(is_from)
        && rule.users.as_ref().is_none_or(is_user)
        && rule
            .listeners
            .as_ref()
            .is_none_or(|list| list.contains(&case.listener))
        && rule
            .ports
            .as_ref()
            .is_none_or(|list| list.iter().any(|range| range.contains(&case.port)))
        && rule
            .operations
            .as_ref()
            .is_none_or(|list| list.contains(&kind))
        && rule.methods.as_ref().is_none_or(is_method)
        && rule.hours.as_ref().is_none_or(is_hour)
        && rule.days.is_none_or(is_day)
}

/// Whether an address may be dialled, as the reference has it.
fn guard(config: &Config, case: &Case, verdict: &Verdict, address: IpAddr) -> Result<(), Special> {
    let is_lifted = |rule: &Rule| {
        let mut networks = rule.networks.iter().flatten();
        rule.action != Action::Deny
            && networks.any(|network| network.prefix() > 0 && network.contains(address))
    };
    let rule = verdict
        .rule
        .and_then(|at| config.rules.get(usize::try_from(at).ok()?));
    match Special::of(address) {
        None => Ok(()),
        Some(_) if rule.is_some_and(is_lifted) => Ok(()),
        Some(Special::Unspecified) => Err(Special::Unspecified),
        Some(_) if case.client.is_loopback() => Ok(()),
        Some(special) => Err(special),
    }
}

/// What becomes of a request at its best address, as the reference has it: the
/// rule, and whether it is let through.
fn outcome(config: &Config, case: &Case) -> (Option<u32>, bool) {
    let decided = |address| match judge(config, case, address) {
        Judgement::Decided(verdict) => Some(verdict),
        Judgement::NeedsAddress => None,
    };
    let at = |ip: &IpAddr| {
        let verdict = decided(Address::Known(*ip)).expect("decided");
        let guarded = guard(config, case, &verdict, *ip);
        (
            verdict.rule,
            verdict.action != Action::Deny && guarded.is_ok(),
        )
    };
    if let Host::Ip(ip) = case.target().host {
        return at(&ip);
    }
    match decided(Address::Later) {
        Some(verdict) if verdict.action == Action::Deny => (verdict.rule, false),
        Some(Verdict {
            rule,
            action:
                Action::Allow {
                    via: Some(Via::Parent(_)),
                    ..
                },
        }) => {
            // No name here is localhost.
            (rule, true)
        }
        _ => {
            let all: Vec<_> = case.addresses.iter().map(at).collect();
            let allowed = all.iter().find(|(_, is_allowed)| *is_allowed);
            allowed.or_else(|| all.first()).copied().unwrap_or_else(|| {
                let verdict = decided(Address::Never).expect("decided");
                (verdict.rule, verdict.action != Action::Deny)
            })
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(1_000))]

    #[test]
    fn the_compiled_rules_say_what_the_rules_say(
        rules in prop::collection::vec(rule(), 0..24),
        cases in prop::collection::vec(case(), 1..12),
    ) {
        let config = config(rules);
        for case in cases {
            let policy = Policy::new(&config).at(case.moment);
            let person = policy.person(case.client, case.user, case.listener);
            let act = policy.act(&case.asked.operation());
            let target = case.target();
            prop_assert_eq!(
                policy.judge(&person, act, target, None),
                judge(&config, &case, Address::Later)
            );
            prop_assert_eq!(
                Judgement::Decided(policy.judge_unresolved(&person, act, target)),
                judge(&config, &case, Address::Never)
            );
            for address in &case.addresses {
                let judged = policy.judge(&person, act, target, Some(*address));
                prop_assert_eq!(judged, judge(&config, &case, Address::Known(*address)));
                let Judgement::Decided(verdict) = judged else {
                    return Err(TestCaseError::fail("undecided with an address"));
                };
                prop_assert_eq!(
                    policy.guard(&person, &verdict, *address),
                    guard(&config, &case, &verdict, *address)
                );
            }
        }
    }

    #[test]
    fn p70_what_is_said_of_all_targets_holds_for_each(
        rules in prop::collection::vec(rule(), 0..6),
        cases in prop::collection::vec(case(), 1..12),
    ) {
        let config = config(rules);
        for case in cases {
            let policy = Policy::new(&config).at(case.moment);
            let person = policy.person(case.client, case.user, case.listener);
            let act = policy.act(&case.asked.operation());
            let Some(most) = policy.judge_any(&person, act) else {
                continue;
            };
            let addresses = case.addresses.iter().map(|ip| Address::Known(*ip));
            for address in addresses.chain([Address::Never]) {
                let Judgement::Decided(verdict) = judge(&config, &case, address) else {
                    continue;
                };
                let is_as_said = [Action::Deny, most.action].contains(&verdict.action);
                prop_assert!(is_as_said, "{:?}, not {:?}", verdict, most);
            }
        }
    }

    #[test]
    fn explain_says_what_happens(
        rules in prop::collection::vec(rule(), 0..24),
        cases in prop::collection::vec(case(), 1..4),
    ) {
        let mut config = config(rules);
        for case in cases {
            // Else there would be nobody for rules to see, or for them to miss.
            config.listeners[case.listener].auth = case.user.is_some();
            let policy = Policy::new(&config).at(case.moment);
            let question = Question {
                client: case.client,
                user: case.user.map(str::to_owned),
                listener: case.listener,
                asked: case.asked.clone(),
                target: case.target().into(),
            };
            let explanation =
                Explanation::new(&config, &policy, &question, |_| case.addresses.clone());
            let (rule, is_allowed) = outcome(&config, &case);
            let text = explanation.to_string();
            prop_assert_eq!(explanation.is_allowed(), is_allowed, "{}", text);
            let first = if is_allowed { "decision: allow\n" } else { "decision: deny\n" };
            prop_assert!(text.starts_with(first), "{}", text);
            let because = match rule {
                Some(rule) => format!("\nrule: rules.toml:{}\n", rule + 1),
                None => "\nrule: none\n".to_owned(),
            };
            prop_assert!(text.contains(&because), "{}", text);
            prop_assert!(is_allowed || !text.contains("via:"), "{}", text);
            // Each rule before it has its reason.
            let before = rule.map_or(config.rules.len(), |rule| usize::try_from(rule).expect("small"));
            prop_assert_eq!(
                text.matches("skipped: ").count(),
                if before > 20 { 1 } else { before },
                "{}", text
            );
        }
    }
}

fn config(rules: Vec<Rule>) -> Config {
    let mut config = Draft::default().finish().expect("the defaults");
    config.parents = vec![Parent {
        name: "parent".to_owned(),
        chains: Vec::new(),
        order: Order::Failover,
    }];
    config.sources = vec![Source {
        name: "source".to_owned(),
        addresses: Addresses::Pool(Vec::new()),
        choice: Choice::Fresh,
    }];
    let rules = rules.into_iter().zip(1..);
    let numbered = |(rule, line)| Rule {
        origin: Origin::File(Path::new("rules.toml").into(), line),
        ..rule
    };
    config.rules = rules.map(numbered).collect();
    config
}

fn rule() -> impl Strategy<Value = Rule> {
    let target = (
        list(
            select(&NAMES).prop_map(|text| text.parse().expect(text)),
            filler_name,
        ),
        list(network(), filler_network),
        list(
            (0u16..4, 0u16..3).prop_map(|(low, more)| low + 79..=low + more + 79),
            |at| at..=at,
        ),
    );
    let client = (
        list(network(), filler_network),
        list(select(&USERS).prop_map(str::to_owned), |at| {
            format!("user-{at}")
        }),
        list(0usize..2, usize::from),
    );
    let act = (
        list(select(&KINDS), |_| Kind::Tunnel),
        list(select(&METHODS).prop_map(str::to_owned), |at| {
            format!("M{at}")
        }),
    );
    let time = (
        list(
            (0u16..1440, 0u16..1440).prop_map(|(start, end)| Hours { start, end }),
            |at| Hours {
                start: at,
                end: at + 1,
            },
        ),
        prop::option::weighted(0.1, 0u8..128),
    );
    let action = select(vec![
        Action::Deny,
        allow(None, None),
        allow(Some(Via::Direct), None),
        allow(Some(Via::Parent(0)), Some(0)),
    ]);
    let parts = (target, client, act, time, action);
    parts.prop_map(|(target, client, act, time, action)| Rule {
        origin: Origin::Default,
        action,
        names: target.0,
        networks: target.1,
        ports: target.2,
        from: client.0,
        users: client.1,
        listeners: client.2,
        operations: act.0,
        methods: act.1,
        hours: time.0,
        days: time.1,
    })
}

fn allow(via: Option<Via>, source: Option<u16>) -> Action {
    Action::Allow { via, source }
}

/// Mostly none; else some entries, now and then with many others around them.
fn list<T: Clone + std::fmt::Debug>(
    entry: impl Strategy<Value = T>,
    filler: fn(u16) -> T,
) -> impl Strategy<Value = Option<Vec<T>>> {
    let some = (
        prop::collection::vec(entry, 0..4),
        prop::bool::weighted(0.2),
    );
    let all = some.prop_map(move |(mut entries, is_long)| {
        entries.extend((0..if is_long { 12 } else { 0 }).map(|at| filler(at + 1_500)));
        entries
    });
    prop::option::weighted(0.3, all)
}

fn filler_name(at: u16) -> NamePattern {
    format!("n{at}.test").parse().expect("a pattern")
}

fn filler_network(at: u16) -> Network {
    IpAddr::from([9, 9, 9, u8::try_from(at % 256).unwrap_or(0)]).into()
}

fn network() -> impl Strategy<Value = Network> {
    (
        select(&ADDRESSES),
        select(&[0u8, 1, 8, 12, 16, 31, 32, 64, 128]),
    )
        .prop_map(|(ip, prefix)| {
            let ip: IpAddr = ip.parse().expect("an address");
            let ip = ip.to_canonical();
            let prefix = if ip.is_ipv4() { prefix.min(32) } else { prefix };
            match Network::new(ip, prefix) {
                Ok(network) | Err(NetworkError::HostBits(network)) => network,
                Err(error) => panic!("{error}"),
            }
        })
}

fn case() -> impl Strategy<Value = Case> {
    let ip = || select(&ADDRESSES).prop_map(|text| text.parse::<IpAddr>().expect("an address"));
    let asked = prop_oneof![
        Just(Asked::Associate),
        Just(Asked::Bind),
        Just(Asked::Tunnel),
        select(&METHODS).prop_map(|method| Asked::Request(method.to_owned())),
    ];
    let client = (ip(), prop::option::of(select(&USERS)), 0usize..2);
    let host = prop_oneof![3 => select(&HOSTS), 1 => select(&ADDRESSES)];
    let target = (host, 79u16..86, prop::collection::vec(ip(), 0..3));
    let moment = (0u8..7, 0u16..1440).prop_map(|(weekday, minute)| Moment { weekday, minute });
    (client, asked, target, moment).prop_map(|(client, asked, target, moment)| Case {
        client: client.0,
        user: client.1,
        listener: client.2,
        asked,
        host: target.0,
        port: target.1,
        addresses: target.2,
        moment,
    })
}

const ADDRESSES: [&str; 14] = [
    "0.0.0.0",
    "1.2.3.4",
    "9.9.9.9",
    "10.0.0.1",
    "10.1.2.3",
    "127.0.0.1",
    "169.254.169.254",
    "192.0.2.7",
    "::",
    "::1",
    "::ffff:10.1.2.3",
    "64:ff9b::a00:1",
    "2001:db8::1",
    "2a00:1450::1",
];

const HOSTS: [&str; 6] = [
    "example.com",
    "Example.COM.",
    "www.example.com",
    "a.b.example.com",
    "example.org",
    "com",
];

const KINDS: [Kind; 4] = [Kind::Associate, Kind::Bind, Kind::Request, Kind::Tunnel];

const NAMES: [&str; 7] = [
    "example.com",
    "*.example.com",
    ".example.com",
    "www.example.com",
    "*.com",
    ".org",
    "b.example.com",
];

const METHODS: [&str; 3] = ["GET", "POST", "X-own"];

const USERS: [&str; 3] = ["alice", "bob", "carol"];
