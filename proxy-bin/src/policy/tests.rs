//! Rules and guard, told by examples.

use std::net::IpAddr;

use proxy_core::{Operation, Special, Target};

use super::*;
use crate::config::{Draft, Via};

/// A configuration with these rules, read as from a file.
pub(super) fn config(rules: &str) -> Config {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("proxyd.toml");
    std::fs::write(&path, rules).expect("written");
    let draft = Draft::read(&path).expect("well-formed");
    draft.finish().expect("without contradictions")
}

fn policy(rules: &str) -> Policy {
    // A Monday at noon.
    Policy::new(&config(rules)).at(Moment {
        weekday: 0,
        minute: 720,
    })
}

fn ip(text: &str) -> IpAddr {
    text.parse().expect("an address")
}

fn somebody(policy: &Policy) -> Person {
    policy.person(ip("192.0.2.7"), None, 0)
}

fn target(text: &str) -> Target<'_> {
    Target::parse(text, Some(443)).expect("a target")
}

/// The rule that decides about a tunnel.
fn rule(policy: &Policy, person: &Person, to: &str) -> Option<u32> {
    let act = policy.act(&Operation::Tunnel);
    match policy.judge(person, act, target(to), None) {
        Judgement::Decided(verdict) => verdict.rule,
        Judgement::NeedsAddress => panic!("{to} needs an address"),
    }
}

fn verdict(policy: &Policy, to: &str, address: &str) -> Verdict {
    let act = policy.act(&Operation::Tunnel);
    match policy.judge(&somebody(policy), act, target(to), Some(ip(address))) {
        Judgement::Decided(verdict) => verdict,
        Judgement::NeedsAddress => panic!("{to} has its address"),
    }
}

#[test]
fn workers_may_share_it() {
    fn shared<T: Send + Sync + 'static>() {}
    shared::<Policy>();
    fn copied<T: Copy>() {}
    copied::<(Person, Act, Judgement)>();
}

#[test]
fn the_first_rule_that_holds_decides() {
    let policy = policy(
        r#"
        [[rule]]
        action = "deny"
        names = ["ads.example.com", "*.tracker.example"]
        [[rule]]
        action = "allow"
        names = [".example.com"]
        [[rule]]
        action = "deny"
        ports = ["25", "8000-8999"]
        [[rule]]
        action = "deny"
        names = ["www.example.com"]
        "#,
    );
    let person = somebody(&policy);
    for (to, first) in [
        ("ads.example.com", Some(0)),
        ("a.b.tracker.example", Some(0)),
        ("tracker.example", None),
        ("www.example.com", Some(1)),
        ("example.com.:25", Some(1)),
        ("mail.example:25", Some(2)),
        ("mail.example:8999", Some(2)),
        ("mail.example:9000", None),
        ("9.9.9.9:25", Some(2)),
    ] {
        assert_eq!(rule(&policy, &person, to), first, "{to}");
    }
    let open = verdict(&policy, "other.example", "9.9.9.9");
    assert_eq!(open, Verdict::OPEN);
    assert_eq!(
        verdict(&policy, "ads.example.com", "9.9.9.9").action,
        Action::Deny
    );
}

#[test]
fn all_conditions_of_a_rule_must_hold() {
    let policy = policy(
        r#"
        [[listener]]
        protocol = "http"
        address = "127.0.0.1:3128"
        [[listener]]
        protocol = "socks"
        address = "127.0.0.1:1080"
        name = "inside"
        [[rule]]
        via = "direct"
        users = ["alice", "bob"]
        from = ["192.0.2.0/24", "2001:db8::/32"]
        listeners = ["inside"]
        methods = ["GET", "HEAD"]
        names = [".example.com"]
        "#,
    );
    let get = Operation::Request {
        method: "GET",
        path: "/",
    };
    let post = Operation::Request {
        method: "POST",
        path: "/",
    };
    let holds = |client, user, listener, operation, to| {
        let person = policy.person(ip(client), user, listener);
        let judgement = policy.judge(&person, policy.act(&operation), target(to), None);
        judgement != Judgement::Decided(Verdict::OPEN)
    };
    let (alice, to) = (Some("alice"), "example.com");
    assert!(holds("192.0.2.7", alice, 1, get, to));
    assert!(holds("2001:db8::7", Some("bob"), 1, get, to));
    assert!(holds("::ffff:192.0.2.7", alice, 1, get, to));
    assert!(!holds("192.0.3.7", alice, 1, get, to));
    assert!(!holds("192.0.2.7", None, 1, get, to));
    assert!(!holds("192.0.2.7", Some("carol"), 1, get, to));
    assert!(!holds("192.0.2.7", alice, 0, get, to));
    assert!(!holds("192.0.2.7", alice, 1, post, to));
    assert!(!holds("192.0.2.7", alice, 1, Operation::Tunnel, to));
    assert!(!holds("192.0.2.7", alice, 1, get, "example.org"));
}

#[test]
fn a_rule_with_networks_waits_for_the_address() {
    let policy = policy(
        r#"
        [[rule]]
        action = "allow"
        names = ["known.example"]
        [[rule]]
        action = "deny"
        networks = ["198.18.0.0/15", "2001:db8::/32"]
        ports = ["443"]
        [[rule]]
        via = "direct"
        names = [".example"]
        "#,
    );
    let (person, act) = (somebody(&policy), policy.act(&Operation::Tunnel));
    let judge = |to, address| policy.judge(&person, act, target(to), address);
    assert_eq!(judge("www.example", None), Judgement::NeedsAddress);
    // Nothing before it waits, nor what fails for another reason.
    assert_eq!(rule(&policy, &person, "known.example"), Some(0));
    assert_eq!(rule(&policy, &person, "www.example:80"), Some(2));
    assert_eq!(verdict(&policy, "www.example", "198.19.0.1").rule, Some(1));
    assert_eq!(
        verdict(&policy, "www.example", "::ffff:198.19.0.1").rule,
        Some(1)
    );
    assert_eq!(verdict(&policy, "www.example", "9.9.9.9").rule, Some(2));
    // An address is its own.
    assert_eq!(rule(&policy, &person, "198.18.0.1"), Some(1));
    assert_eq!(rule(&policy, &person, "[::ffff:198.18.0.1]"), Some(1));
    assert_eq!(rule(&policy, &person, "[2001:db8::1]"), Some(1));
    assert_eq!(rule(&policy, &person, "198.20.0.1"), None);
    let unresolved = policy.judge_unresolved(&person, act, target("www.example"));
    assert_eq!(unresolved.rule, Some(2));
    let direct = Action::Allow {
        via: Some(Via::Direct),
        source: None,
    };
    assert_eq!(unresolved.action, direct);
}

#[test]
fn an_empty_list_never_holds() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("proxyd.toml");
    std::fs::write(folder.path().join("nobody"), "# nobody yet\n").expect("written");
    let lists = [
        "names", "networks", "from", "users", "ports", "methods", "days",
    ];
    for list in lists {
        std::fs::write(
            &path,
            format!("[[rule]]\naction = \"deny\"\n{list} = \"@nobody\"\n"),
        )
        .expect("written");
        let config = Draft::read(&path).expect("read").finish().expect("judged");
        let policy = Policy::new(&config);
        assert_eq!(
            verdict(&policy, "h.example", "9.9.9.9").rule,
            None,
            "{list}"
        );
    }
}

#[test]
fn days_and_hours() {
    let config = config(
        r#"
        [[rule]]
        action = "deny"
        hours = ["08:00-12:00", "22:00-02:00"]
        days = ["mon-wed", "sun"]
        "#,
    );
    for (weekday, hour, holds) in [
        (0, 8, true),
        (0, 11, true),
        (0, 12, false),
        (0, 1, true),
        (0, 2, false),
        (2, 23, true),
        (3, 23, false),
        // The small hours are of their own day.
        (3, 1, false),
        (6, 9, true),
    ] {
        let minute = hour * 60;
        let policy = Policy::new(&config).at(Moment { weekday, minute });
        let rule = verdict(&policy, "h.example", "9.9.9.9").rule;
        assert_eq!(rule.is_some(), holds, "{weekday} {hour}");
    }
}

#[test]
fn p39_the_guard_keeps_strangers_out() {
    let policy = policy("");
    let guard = |client, address| {
        let person = policy.person(ip(client), None, 0);
        policy.guard(&person, &Verdict::OPEN, ip(address))
    };
    for (address, special) in [
        ("127.0.0.1", Special::Loopback),
        ("::ffff:10.0.0.1", Special::Private),
        ("64:ff9b::a9fe:a9fe", Special::Metadata),
        ("0.0.0.0", Special::Unspecified),
        ("::", Special::Unspecified),
    ] {
        assert_eq!(guard("192.0.2.7", address), Err(special), "{address}");
        assert_eq!(guard("10.0.0.1", address), Err(special), "{address}");
        // Who sits here already is inside, but nothing is at such an address.
        let at_home = match special {
            Special::Unspecified => Err(special),
            _ => Ok(()),
        };
        for client in ["127.0.0.1", "127.8.8.8", "::1", "::ffff:127.0.0.1"] {
            assert_eq!(guard(client, address), at_home, "{client} {address}");
        }
    }
    assert_eq!(guard("192.0.2.7", "9.9.9.9"), Ok(()));
}

#[test]
fn p39_a_rule_lifts_the_guard_for_its_networks_only() {
    let policy = policy(
        r#"
        [[rule]]
        action = "allow"
        names = ["inside.example"]
        networks = ["10.1.0.0/16", "0.0.0.0/0"]
        [[rule]]
        action = "allow"
        networks = ["10.2.0.0/16", "::/0", "0.0.0.0/32"]
        ports = ["443"]
        [[rule]]
        action = "allow"
        "#,
    );
    let person = somebody(&policy);
    let guard = |to, address| {
        let verdict = verdict(&policy, to, address);
        policy.guard(&person, &verdict, ip(address))
    };
    assert_eq!(guard("inside.example", "10.1.2.3"), Ok(()));
    assert_eq!(guard("inside.example", "10.3.0.1"), Err(Special::Private));
    assert_eq!(guard("other.example", "10.1.2.3"), Err(Special::Private));
    assert_eq!(guard("other.example", "10.2.0.1"), Ok(()));
    assert_eq!(guard("other.example", "::ffff:10.2.0.1"), Ok(()));
    // The same host by another address is another address.
    assert_eq!(
        guard("other.example", "64:ff9b::a02:1"),
        Err(Special::Private)
    );
    assert_eq!(guard("other.example", "fd00::1"), Err(Special::Private));
    assert_eq!(guard("other.example:80", "10.2.0.1"), Err(Special::Private));
    assert_eq!(guard("other.example", "0.0.0.0"), Ok(()));
    assert_eq!(guard("other.example", "0.0.0.1"), Err(Special::Unspecified));
    // Whichever address was judged, the one that is dialled counts.
    let for_another = verdict(&policy, "other.example", "10.2.0.1");
    let dialled = policy.guard(&person, &for_another, ip("10.1.0.1"));
    assert_eq!(dialled, Err(Special::Private));
}

#[test]
fn p39_localhost_is_not_handed_to_a_parent() {
    let policy = policy(
        r#"
        [[rule]]
        action = "allow"
        names = ["dev.localhost"]
        "#,
    );
    let person = somebody(&policy);
    let guard = |person: &Person, name| {
        let verdict = verdict(&policy, name, "9.9.9.9");
        policy.guard_name(person, &verdict, name)
    };
    for name in ["localhost", "LocalHost.", "a.b.localhost", "localhost.."] {
        assert_eq!(guard(&person, name), Err(Special::Loopback), "{name}");
        let at_home = policy.person(ip("::1"), None, 0);
        assert_eq!(guard(&at_home, name), Ok(()), "{name}");
    }
    assert_eq!(guard(&person, "dev.localhost"), Ok(()));
    assert_eq!(guard(&person, "localhost.example"), Ok(()));
    assert_eq!(guard(&person, "mylocalhost"), Ok(()));
}

/// How many rules a decision looks at, at most: with the address, and before it
/// is known.
fn candidates(policy: &Policy, person: &Person, name: &str, address: &str) -> [usize; 2] {
    let index = &policy.index;
    let of_group = |group: &index::Group| {
        let lists = group.find(person.client, person.user);
        lists.map(|(_, rules)| rules.len()).sum::<usize>()
    };
    let by_name: usize = index.names.find(name).map(<[u32]>::len).sum();
    let by_network = index.networks.find(ip(address));
    let by_network: usize = by_network.map(|(_, rules)| rules.len()).sum();
    let always = by_name + of_group(&index.settled);
    [always + by_network, always + of_group(&index.pending)]
}

/// One rule for each number, with an entry made of it.
fn many(count: u32, entry: impl Fn(u32) -> String) -> Policy {
    let rules = (0..count).map(|at| format!("[[rule]]\naction = \"deny\"\n{}\n", entry(at)));
    policy(&rules.collect::<String>())
}

fn v4(at: u32) -> String {
    IpAddr::from((0x0b00_0000 + at).to_be_bytes()).to_string()
}

#[test]
fn many_rules_are_found_by_their_entry() {
    let wanted = 1_999;
    type Entry = fn(u32) -> String;
    let entries: [Entry; 4] = [
        |at| format!("names = [\".h{at}.example\"]"),
        |at| format!("networks = [\"{}\"]", v4(at)),
        |at| format!("from = [\"{}\"]", v4(at)),
        |at| format!("users = [\"u{at}\"]"),
    ];
    let two = |at| format!("{}\n{}", entries[1](at), entries[3](at));
    let (name, user) = (format!("h{wanted}.example"), format!("u{wanted}"));
    let judged = |policy: &Policy| {
        let person = policy.person(ip(&v4(wanted)), Some(&user), 0);
        let looked_at = candidates(policy, &person, &name, &v4(wanted));
        assert!(looked_at.iter().all(|count| *count <= 1), "{looked_at:?}");
        let act = policy.act(&Operation::Tunnel);
        policy.judge(&person, act, target(&name), Some(ip(&v4(wanted))))
    };
    let deny = Judgement::Decided(Verdict {
        rule: Some(wanted),
        action: Action::Deny,
    });
    for entry in entries {
        assert_eq!(judged(&many(2_000, entry)), deny);
    }
    assert_eq!(judged(&many(2_000, two)), deny);
    // The same target for all, or the same clients.
    let shared = ["names = [\".example\"]", "networks = [\"11.0.0.0/8\"]"];
    for shared in shared {
        assert_eq!(
            judged(&many(2_000, |at| format!("{shared}\n{}", entries[3](at)))),
            deny
        );
        assert_eq!(
            judged(&many(2_000, |at| format!("{shared}\n{}", entries[2](at)))),
            deny
        );
    }
    let clients = "from = [\"11.0.0.0/8\"]";
    assert_eq!(
        judged(&many(2_000, |at| format!("{clients}\n{}", entries[0](at)))),
        deny
    );
    // Also as long as the address is not known.
    let policy = many(2_000, two);
    let person = policy.person(ip("192.0.2.7"), Some("u7"), 0);
    let act = policy.act(&Operation::Tunnel);
    let judgement = policy.judge(&person, act, target(&name), None);
    assert_eq!(judgement, Judgement::NeedsAddress);
    assert_eq!(rule(&policy, &somebody(&policy), &name), None);
}

#[test]
fn explain_names_the_condition_that_fails() {
    let config = config(
        r#"
        [[rule]]
        action = "deny"
        listeners = ["socks-1080"]
        [[rule]]
        action = "deny"
        operations = ["bind"]
        [[rule]]
        action = "deny"
        methods = ["GET"]
        [[rule]]
        action = "deny"
        ports = ["80"]
        [[rule]]
        action = "deny"
        users = ["bob"]
        [[rule]]
        action = "deny"
        from = ["10.0.0.0/8"]
        [[rule]]
        action = "deny"
        names = ["h.example"]
        [[rule]]
        action = "deny"
        days = ["sun"]
        [[rule]]
        action = "deny"
        hours = ["00:00-12:00"]
        [[rule]]
        action = "deny"
        networks = ["10.0.0.0/8"]
        [[rule]]
        via = "direct"
        "#,
    );
    let noon = Moment {
        weekday: 0,
        minute: 720,
    };
    let policy = Policy::new(&config).at(noon);
    let question = Question {
        client: ip("192.0.2.7"),
        user: Some("alice".to_owned()),
        listener: 0,
        asked: Asked::Tunnel,
        target: target("www.example").into(),
    };
    let look_up = |_: &str| vec![ip("10.1.2.3"), ip("9.9.9.9")];
    let explanation = Explanation::new(&config, &policy, &question, look_up);
    let text = explanation.to_string();
    let skipped = text.lines().filter(|line| line.starts_with("skipped: "));
    let conditions: Vec<&str> = skipped.filter_map(|line| line.split(", ").nth(1)).collect();
    let all = [
        "listeners",
        "operations",
        "methods",
        "ports",
        "users",
        "from",
        "names",
        "days",
        "hours",
        "networks",
    ];
    assert_eq!(conditions, all, "{text}");
    assert!(explanation.is_allowed());
}
