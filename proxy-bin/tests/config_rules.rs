//! Rules in configuration files: what is accepted, and what each mistake is told
//! as.

mod support;

/// What `proxyd check` says of this file, beside these others: status and lines.
fn check(toml: &str, files: &[(&str, &str)]) -> (Option<i32>, Vec<String>) {
    support::check(&[&[("proxyd.toml", toml)], files].concat(), &[])
}

#[track_caller]
fn mistakes(toml: &str, files: &[(&str, &str)], lines: &[&str]) {
    let (status, said) = check(toml, files);
    assert_eq!(said, lines, "in\n{toml}");
    assert_eq!(status, Some(2));
}

#[test]
fn everything_at_once_is_accepted() {
    let toml = r#"
        [[listener]]
        protocol = "http"
        address = "127.0.0.1:3128"
        name = "office"

        [[listener]]
        protocol = "socks"
        address = "127.0.0.1:1080"

        [[rule]]
        action = "allow"
        from = ["192.0.2.0/24", "2001:db8::/32", "@clients"]
        users = "alice"
        listeners = ["office", "socks-1080"]
        names = ["example.com", "*.example.com", ".example.org", "@names"]
        networks = ["10.0.0.0/8", "10.1.2.3"]
        ports = ["443", "8000-8999"]
        operations = ["request"]
        methods = ["GET", "HEAD"]
        hours = ["08:00-12:00", "22:00-06:00"]
        days = ["mon-fri", "sun"]
        via = "direct"

        [[rule]]
        action = "deny"
        "#;
    let files = [
        ("clients", "\u{feff}192.0.2.7\r\n\r\n# all\r\n::1 # one\r\n"),
        ("names", "a.example\n.b.example\n"),
    ];
    let (status, said) = check(toml, &files);
    assert_eq!(status, Some(0), "{said:?}");
}

#[test]
fn what_a_rule_does() {
    mistakes(
        "[[rule]]\nnames = [\"a.example\"]\n\n[[rule]]\naction = \"deny\"\nvia = \"direct\"\n\n\
         [[rule]]\nvia = \"dirct\"\n\n[[rule]]\nsource = \"pool\"\n\n[[rule]]\naction = \"allow\"\n\
         listeners = [\"http-3129\"]\n\n[[rule]]\naction = \"deny\"\nmethods = [\"GET\"]\n\
         operations = [\"request\", \"tunnel\"]\n",
        &[],
        &[
            "proxyd.toml:1: rule.action: expected what to do, found nothing; write action = \
             \"deny\" instead",
            "proxyd.toml:6: rule.action: expected no way for what is denied, found one; write \
             action = \"allow\" instead, or neither via nor source",
            "proxyd.toml:9: rule.via: expected \"direct\" or the name of a parent or group, found \
             \"dirct\"; write \"direct\" instead",
            "proxyd.toml:12: rule.source: expected the name of a source, found \"pool\"; write no \
             source, or a [[source]] of that name, instead",
            "proxyd.toml:16: rule.listeners: expected the name of a listener, found \"http-3129\"; \
             write \"http-3128\" instead",
            "proxyd.toml:21: rule.operations: expected only \"request\" beside methods, found \
             another; write a rule of its own for it instead",
        ],
    );
}

#[test]
fn entries() {
    mistakes(
        "[[rule]]\naction = \"alow\"\nnames = [\"https://a.example/\", \"b.example\"]\n\
         networks = [\n  \"10.1.2.3/8\",\n  \"10.0.0.0/8\",\n]\nports = [443]\nusers = []\n\
         operations = \"udp\"\nmethods = [\"get\"]\nhours = \"8-18\"\ndays = [\"Monday\"]\n\
         from = \"@\"\nport = \"80\"\n",
        &[],
        &[
            "proxyd.toml:2: rule.action: expected \"allow\" or \"deny\", found \"alow\"; write \
             \"allow\" instead",
            "proxyd.toml:3: rule.names: expected a name in ASCII, alone or behind \"*.\" or \".\", \
             found \"https://a.example/\"; write \"a.example\" instead",
            "proxyd.toml:5: rule.networks: expected a network whose address has no bits behind the \
             prefix, found \"10.1.2.3/8\"; write \"10.0.0.0/8\" instead",
            "proxyd.toml:8: rule.ports: expected a string, found the integer 443; write \"443\" \
             instead",
            "proxyd.toml:9: rule.users: expected at least one entry, found an empty array; write one, or \
             leave the key out instead",
            "proxyd.toml:10: rule.operations: expected \"associate\", \"bind\", \"request\" or \
             \"tunnel\", found \"udp\"; write \"associate\" instead",
            "proxyd.toml:11: rule.methods: expected a method in capitals, found \"get\"; write \
             \"GET\" instead",
            "proxyd.toml:12: rule.hours: expected a part of the day from one time up to another, \
             as in \"08:00-18:00\", found \"8-18\"; write \"08:00-18:00\" instead",
            "proxyd.toml:13: rule.days: expected a weekday (mon, tue, wed, thu, fri, sat, sun) or \
             the first and the last of several, found \"Monday\"; write \"mon\" instead",
            "proxyd.toml:14: rule.from: expected the path of a file behind the @, found \"@\"; \
             write \"@list\" instead",
            "proxyd.toml:15: rule.port: expected action, days, from, hours, listeners, methods, \
             names, networks, operations, ports, source, users, via, found an unknown key; write \
             ports instead",
        ],
    );
}

#[test]
fn entries_in_files_are_told_with_their_line() {
    let toml = "[[rule]]\naction = \"deny\"\nnames = [\"@lists/names\", \"@nothing\"]\n\
                networks = \"@lists\"\n";
    let names = "# one\na.example\n\nhttp://b.example\n";
    let (status, said) = check(toml, &[("lists/names", names)]);
    let expected = "\
proxyd.toml:3: rule.names: expected a file of entries, found nothing at nothing; write the path of an existing file instead
lists/names:4: rule.names: expected a name in ASCII, alone or behind \"*.\" or \".\", found \"http://b.example\"; write \"b.example\" instead
proxyd.toml:4: rule.networks: expected a file of entries, found a folder at lists; write the path of an existing file instead
";
    assert_eq!(said.join("\n") + "\n", expected);
    assert_eq!(status, Some(2));
}

#[test]
fn a_file_of_another_kind_is_told_in_a_few_lines() {
    let toml = "[[rule]]\naction = \"deny\"\nnames = \"@hosts\"\n";
    let hosts: String = (0..1000)
        .map(|at| format!("0.0.0.0 h{at}.example\n"))
        .collect();
    let (status, said) = check(toml, &[("hosts", &hosts)]);
    assert_eq!(said.len(), 11, "{said:?}");
    assert!(said[0].starts_with("hosts:1: rule.names: "), "{said:?}");
    assert!(said[10].contains("found 990 more"), "{said:?}");
    assert_eq!(status, Some(2));
}
