//! `[bind]` in configuration files: what each mistake is told as.

mod support;

use support::check;

#[test]
fn what_may_be_written() {
    let toml = "[bind]\nadvertise = [\"203.0.113.7\", \"2001:db8::7\"]\nports = \"40000-40999\"\n\
                wait = \"90s\"\n";
    assert_eq!(check(&[("p.toml", toml)], &[]).0, Some(0));
    let toml = "bind.advertise = \"192.0.2.1\"\nbind.ports = \"20\"\nbind.wait = \"never\"\n";
    assert_eq!(check(&[("p.toml", toml)], &[]).0, Some(0));
}

#[test]
fn mistakes() {
    let toml = "[bind]\nadvertise = [\n\"0.0.0.0\",\n\"192.0.2.1:21\",\n\"::ffff:192.0.2.1\",\n\
                \"192.0.2.1\",\n\"2001:db8::7\",\n\"192.0.2.2\"]\nports = \"999-1\"\n\
                wait = \"0s\"\nport = 1\n";
    let (status, said) = check(&[("p.toml", toml)], &[]);
    let reach = "expected an IP address that others reach this machine by, without a port, found";
    let expected = [
        format!("p.toml:3: bind.advertise: {reach} \"0.0.0.0\"; write \"203.0.113.7\" instead"),
        format!("p.toml:4: bind.advertise: {reach} \"192.0.2.1:21\"; write \"192.0.2.1\" instead"),
        format!(
            "p.toml:5: bind.advertise: {reach} \"::ffff:192.0.2.1\"; write \"192.0.2.1\" instead"
        ),
        "p.toml:8: bind.advertise: expected one address of each family, found 192.0.2.2 beside \
         192.0.2.1; write one of them instead"
            .to_owned(),
        "p.toml:9: bind.ports: expected a port from 1 to 65535, or the first and the last of \
         several, found \"999-1\"; write \"1-999\" instead"
            .to_owned(),
        "p.toml:10: bind.wait: expected a time above zero with a unit (ms, s, m or h) of at most a \
         year, or \"never\", found \"0s\"; write \"1ms\" (the least: 0 is not possible) instead"
            .to_owned(),
        "p.toml:11: bind.port: expected advertise, ports, wait, found an unknown key; write \
         ports instead"
            .to_owned(),
    ];
    assert_eq!(said, expected);
    assert_eq!(status, Some(2));
}
