//! What is said about the sources and the resolver of a configuration.

mod support;

/// What `proxyd check` says of this file: status and lines.
fn check(toml: &str) -> (Option<i32>, Vec<String>) {
    support::check(&[("proxyd.toml", toml)], &[])
}

#[track_caller]
fn is_fine(toml: &str) {
    let (status, said) = check(toml);
    assert_eq!(status, Some(0), "{said:?} of\n{toml}");
}

/// The value of `key` in `[table]` is wrong, and told so.
#[track_caller]
fn mistake(table: &str, line: &str, expected: &str) {
    let (status, said) = check(&format!("{table}\n{line}\n"));
    let name = table.trim_matches(['[', ']']);
    assert_eq!(
        said,
        [format!("proxyd.toml:2: {name}.{expected}")],
        "{line}"
    );
    assert_eq!(status, Some(2));
}

#[test]
fn sources_that_are_right() {
    is_fine(
        r#"
        [[source]]
        name = "both"
        addresses = ["192.0.2.1", "192.0.2.2", "2001:db8::1"]

        [[source]]
        name = "one"
        addresses = "192.0.2.3"
        choice = "sticky"

        [[source]]
        name = "many"
        prefix = "2001:db8:1::/64"
        choice = "fresh"
        "#,
    );
}

#[test]
fn p38_the_resolver_takes_every_form_of_address() {
    is_fine(
        "[resolver]\nservers = [\"192.0.2.53\", \"[2001:db8::53]:5353\", \"2001:db8::53\"]\n\
         timeout = \"1500ms\"\n",
    );
    is_fine("[resolver]\nservers = \"127.0.0.1:5353\"\n");
    is_fine("[resolver]\n");
}

#[test]
fn sources_that_are_wrong() {
    let own = "expected an IP address of this machine, without a port";
    let prefix = "expected an IPv6 prefix with a length of at most 127";
    for (line, expected) in [
        (
            "name = \"a\"\naddresses = [\"192.0.2.1:80\"]",
            format!("addresses: {own}, found \"192.0.2.1:80\"; write \"192.0.2.1\" instead"),
        ),
        (
            "name = \"a\"\naddresses = [\"[2001:db8::1]\"]",
            format!("addresses: {own}, found \"[2001:db8::1]\"; write \"2001:db8::1\" instead"),
        ),
        (
            "name = \"a\"\naddresses = \"2001:db8::/64\"",
            format!(
                "addresses: {own}, found \"2001:db8::/64\"; write prefix = \"2001:db8::/64\" \
                 instead"
            ),
        ),
        (
            "name = \"a\"\naddresses = \"::ffff:192.0.2.1\"",
            format!("addresses: {own}, found \"::ffff:192.0.2.1\"; write \"192.0.2.1\" instead"),
        ),
        (
            "name = \"a\"\naddresses = \"0.0.0.0\"",
            format!(
                "addresses: {own}, found \"0.0.0.0\"; write an address of an interface, or leave \
                 the source out where any will do instead"
            ),
        ),
        (
            "name = \"a\"\naddresses = [\"192.0.2.1\", \"192.0.2.1\"]",
            "addresses: expected each address once, found 192.0.2.1 twice; write it once instead"
                .to_owned(),
        ),
        (
            "name = \"a\"\naddresses = []",
            "addresses: expected at least one entry, found an empty array; write one, or leave the key \
             out instead"
                .to_owned(),
        ),
        (
            "name = \"a\"\nprefix = \"2001:db8:1::5/64\"",
            format!(
                "prefix: {prefix}, found \"2001:db8:1::5/64\"; write \"2001:db8:1::/64\" instead"
            ),
        ),
        (
            "name = \"a\"\nprefix = \"2001:db8:1::\"",
            format!("prefix: {prefix}, found \"2001:db8:1::\"; write \"2001:db8:1::/64\" instead"),
        ),
        (
            "name = \"a\"\nprefix = \"2001:db8::1/128\"",
            format!(
                "prefix: {prefix}, found \"2001:db8::1/128\"; write addresses = [\"2001:db8::1\"] \
                 instead"
            ),
        ),
        (
            "name = \"a\"\nprefix = \"192.0.2.0/24\"",
            format!(
                "prefix: {prefix}, found \"192.0.2.0/24\"; write the single addresses as \
                 addresses = [..] instead"
            ),
        ),
        (
            "name = \"a\"\naddresses = \"192.0.2.1\"\nprefix = \"2001:db8::/64\"",
            "prefix: expected addresses or a prefix, found both; write a [[source]] for each \
             instead"
                .to_owned(),
        ),
        (
            "name = \"a\"\naddresses = \"192.0.2.1\"\nchoice = \"frehs\"",
            "choice: expected \"fresh\" or \"sticky\", found \"frehs\"; write \"fresh\" instead"
                .to_owned(),
        ),
    ] {
        let (status, said) = check(&format!("[[source]]\n{line}\n"));
        let last = line.lines().count() + 1;
        assert_eq!(
            said,
            [format!("proxyd.toml:{last}: source.{expected}")],
            "{line}"
        );
        assert_eq!(status, Some(2));
    }
}

#[test]
fn a_source_that_says_too_little() {
    let (_, said) = check(
        "[[source]]\n\n[[source]]\nname = \"a\"\naddresses = \"192.0.2.1\"\n[[source]]\nname = \"a\"\nprefix = \"2001:db8::/64\"\n",
    );
    assert_eq!(
        said,
        [
            "proxyd.toml:1: source.name: expected a name for rules, users and listeners, found \
             nothing; write name = \"office\" instead",
            "proxyd.toml:1: source.addresses: expected addresses of this machine, or a prefix, \
             found nothing; write addresses = [\"192.0.2.1\"] or prefix = \"2001:db8:1::/64\" \
             instead",
        ]
    );
    let (_, said) = check(
        "[[source]]\nname = \"a\"\naddresses = \"192.0.2.1\"\n[[source]]\nname = \"a\"\nprefix = \"2001:db8::/64\"\n",
    );
    assert_eq!(
        said,
        [
            "proxyd.toml:5: source.name: expected a name of its own, found \"a\" as at \
          proxyd.toml:2; write another name instead"
        ]
    );
}

#[test]
fn a_resolver_that_is_wrong() {
    let server = "servers: expected the IP address of a name server, with a port if it is not 53";
    let time = "timeout: expected a time above zero with a unit (ms, s, m or h) of at most a year";
    for (line, expected) in [
        (
            "servers = [\"dns.example\"]",
            format!("{server}, found \"dns.example\"; write \"127.0.0.1\" instead"),
        ),
        (
            "servers = [\"192.0.2.53:0\"]",
            format!("{server}, found \"192.0.2.53:0\"; write \"192.0.2.53\" instead"),
        ),
        (
            "servers = [\"0.0.0.0\"]",
            format!("{server}, found \"0.0.0.0\"; write \"127.0.0.1\" instead"),
        ),
        (
            "servers = [\"192.0.2.53\", \"192.0.2.53:53\"]",
            "servers: expected each server once, found 192.0.2.53:53 twice; write it once instead"
                .to_owned(),
        ),
        (
            "servers = [\"192.0.2.1\", \"192.0.2.2\", \"192.0.2.3\", \"192.0.2.4\"]",
            "servers: expected at most 3 servers, found more; write fewer instead".to_owned(),
        ),
        (
            "timeout = \"never\"",
            format!("{time}, found \"never\"; write \"5s\" instead"),
        ),
        (
            "timeout = \"off\"",
            format!("{time}, found \"off\"; write \"5s\" instead"),
        ),
        (
            "timeout = \"5\"",
            format!("{time}, found \"5\"; write \"5s\" instead"),
        ),
    ] {
        mistake("[resolver]", line, &expected);
    }
    mistake(
        "[resolver]",
        "server = \"192.0.2.53\"",
        "server: expected servers, timeout, found an unknown key; write servers instead",
    );
}
