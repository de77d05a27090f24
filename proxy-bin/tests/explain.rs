//! `proxyd explain`: what it prints, and its exit status.

mod support;

const RULES: &str = r#"
[[listener]]
protocol = "http"
address = "127.0.0.1:3128"
name = "office"
auth = false

[[listener]]
protocol = "socks"
address = "127.0.0.1:1080"
auth = false

[[rule]]
action = "deny"
names = ["@blocked"]

[[rule]]
action = "allow"
users = ["alice"]
networks = ["10.1.0.0/16"]
hours = "08:00-18:00"
days = "mon-fri"

[[rule]]
action = "deny"
methods = ["DELETE"]
listeners = ["office"]

[[rule]]
action = "allow"

[[listener]]
protocol = "http"
address = "127.0.0.1:3129"
name = "members"

[[user]]
name = "alice"
password = "secret"
"#;

/// What it prints, both outputs together, and its status.
fn explain(arguments: &str) -> (Option<i32>, String) {
    let blocked = "# all of it\n.ads.example # ads\n";
    let files = [("proxyd.toml", RULES), ("blocked", blocked)];
    let mut args = vec!["explain", "--config", "proxyd.toml"];
    args.extend(arguments.split_whitespace());
    let (status, lines) = support::run_beside(&files, &args);
    (status, lines.join("\n") + "\n")
}

const MONDAY: &str = "--at 2026-11-30T12:00";

#[test]
fn a_name_that_is_blocked() {
    let (status, text) = explain(&format!(
        "--from 192.0.2.7 --to www.ads.example:443 {MONDAY}"
    ));
    let expected = "\
decision: deny
rule: proxyd.toml:13
listener: office
time: mon 12:00
lookup: not needed
";
    assert_eq!(text, expected);
    assert_eq!(status, Some(1));
}

#[test]
fn a_user_who_may_go_inside() {
    let question = "--user alice --listener members --from 192.0.2.7 --to www.example:443 \
                    --address 10.2.0.1 --address 10.1.2.3";
    let (status, text) = explain(&format!("{question} {MONDAY}"));
    let expected = "\
decision: allow
rule: proxyd.toml:17
via: direct
source: any
listener: members
time: mon 12:00
lookup: for rule proxyd.toml:17
address: 10.2.0.1, deny, guard: private
address: 10.1.2.3, allow, rule: proxyd.toml:17
skipped: proxyd.toml:13, names
";
    assert_eq!(text, expected);
    assert_eq!(status, Some(0));
    // On Sundays the same rule does not hold, and the guard is not lifted.
    let (status, text) = explain(&format!("{question} --at 2026-11-29T12:00"));
    assert!(
        text.contains("\nrule: proxyd.toml:29\nguard: private\n"),
        "{text}"
    );
    assert!(text.contains("\nskipped: proxyd.toml:17, days\n"), "{text}");
    assert_eq!(status, Some(1));
}

#[test]
fn what_listeners_make_of_a_login() {
    let question = "--from 192.0.2.7 --to 9.9.9.9:80 --operation request";
    for (options, status, line) in [
        (
            "--listener members",
            Some(1),
            "login: the listener asks for one",
        ),
        ("--listener office", Some(0), "rule: proxyd.toml:29"),
        (
            "--listener office --user alice",
            Some(0),
            "login: not asked for, so no rule sees the user",
        ),
    ] {
        let (code, text) = explain(&format!("{question} {options}"));
        assert!(text.lines().any(|told| told == line), "{text}");
        assert_eq!(code, status, "{text}");
    }
}

#[test]
fn p30_the_proxy_itself_is_no_target() {
    let (code, text) = explain("--from 127.0.0.1 --to 127.0.0.1:1080");
    assert!(
        text.contains("\nloop: a listener of the proxy itself\n"),
        "{text}"
    );
    assert_eq!(code, Some(1));
    // Nobody knows what answers at the other address.
    let (code, text) = explain("--from 127.0.0.1 --to localhost:1080");
    let own = "\naddress: 127.0.0.1, deny, loop: a listener of the proxy itself\n";
    assert!(text.contains(own), "{text}");
    assert!(text.contains("\naddress: ::1, allow, "), "{text}");
    assert_eq!(code, Some(0));
}

#[test]
fn p39_every_name_below_localhost_is_loopback() {
    for host in ["foo.localhost", "LOCALHOST."] {
        let (code, text) = explain(&format!("--from 192.0.2.7 --to {host}:80"));
        assert!(text.contains("\nguard: loopback\n"), "{text}");
        assert_eq!(code, Some(1));
    }
}

#[test]
fn p39_the_guard_has_a_word_on_names_that_are_looked_up() {
    // Everybody's resolver knows this one without a network.
    for (client, status, decision) in [
        (
            "192.0.2.7",
            Some(1),
            "decision: deny\nrule: proxyd.toml:29\nguard: loopback\n",
        ),
        (
            "127.0.0.1",
            Some(0),
            "decision: allow\nrule: proxyd.toml:29\nvia: direct\n",
        ),
    ] {
        let (code, text) = explain(&format!("--from {client} --to localhost:80"));
        assert!(text.starts_with(decision), "{text}");
        assert!(text.contains("\nlookup: for the guard\n"), "{text}");
        assert_eq!(code, status);
    }
}

#[test]
fn methods_operations_and_listeners() {
    for (options, status) in [
        ("--method DELETE", Some(1)),
        ("--method DELETE --listener socks-1080", Some(0)),
        ("--method GET", Some(0)),
        ("--operation request", Some(0)),
        ("--operation associate", Some(0)),
    ] {
        let (code, text) = explain(&format!("--from 192.0.2.7 --to 9.9.9.9:80 {options}"));
        assert_eq!(code, status, "{options}\n{text}");
    }
}

#[test]
fn mistakes_in_its_options() {
    let (status, text) = explain(
        "--from [::1] --to ftp://example.com/ --listener ofice --operation CONNECT \
         --at noon --address localhost",
    );
    let expected = "\
--from: expected an IP address, found \"[::1]\"; write ::1 instead
--to: expected a host and a port, or an http or https URL, found \"ftp://example.com/\"; write example.com:443 instead
--listener: expected the name of a listener, found \"ofice\"; write office instead
--operation: expected \"associate\", \"bind\", \"request\" or \"tunnel\", found \"CONNECT\"; write \"tunnel\" instead
--address: expected an IP address, found \"localhost\"; write 192.0.2.7 instead
--at: expected a date and a time, found \"noon\"; write 2026-11-30T12:00 instead
";
    assert_eq!(text, expected);
    assert_eq!(status, Some(2));
    let (status, text) = explain("--from ::1");
    assert!(text.contains("--to <HOST:PORT|URL>"), "{text}");
    assert_eq!(status, Some(2));
}

#[test]
fn p29_its_user_is_not_a_user_of_the_configuration() {
    // Somebody may write it as for the other commands.
    let (status, text) = explain("--user alice:secret --from ::1 --to 9.9.9.9:80");
    assert!(!text.contains("secret"), "{text}");
    assert_eq!(status, Some(0));
}

#[test]
fn a_url_is_a_request_for_its_host_and_port() {
    for (to, rule, status) in [
        ("https://www.example/a:b?c", "proxyd.toml:29", 0),
        ("HTTP://www.example", "proxyd.toml:29", 0),
        ("https://www.example:8443/", "proxyd.toml:29", 0),
        ("http://www.ads.example/#x", "proxyd.toml:13", 1),
        ("https://www.example/ --method DELETE", "proxyd.toml:24", 1),
    ] {
        let question = format!("--from 192.0.2.7 --to {to} --address 198.41.0.4 {MONDAY}");
        let (code, text) = explain(&question);
        assert_eq!(code, Some(status), "{to}: {text}");
        assert!(text.contains(&format!("rule: {rule}\n")), "{to}: {text}");
    }
}
