//! `[udp]` in configuration files: what each mistake is told as.

mod support;

use support::check;

#[test]
fn what_may_be_written() {
    let toml = "[udp]\nadvertise = [\"203.0.113.7\", \"2001:db8::7\"]\nports = \"40000-40999\"\n\
                per_client = 16\nassociations = 100000\nidle = \"2m\"\n";
    assert_eq!(check(&[("p.toml", toml)], &[]).0, Some(0));
    let toml = "udp.advertise = \"192.0.2.1\"\nudp.ports = \"5000\"\nudp.idle = \"never\"\n";
    assert_eq!(check(&[("p.toml", toml)], &[]).0, Some(0));
}

#[test]
fn mistakes() {
    let toml = "[udp]\nadvertise = \"proxy.example\"\nports = \"5000-4000\"\nper_client = 0\n\
                associations = \"many\"\nidle = 300\nport = 1\n";
    let (status, said) = check(&[("p.toml", toml)], &[]);
    let expected = [
        "p.toml:2: udp.advertise: expected an IP address that others reach this machine by, \
         without a port, found \"proxy.example\"; write \"203.0.113.7\" instead",
        "p.toml:3: udp.ports: expected a port from 1 to 65535, or the first and the last of \
         several, found \"5000-4000\"; write \"4000-5000\" instead",
        "p.toml:4: udp.per_client: expected a whole number from 1 to 1000000, found the integer 0; \
         write 1 instead",
        "p.toml:5: udp.associations: expected a whole number from 1 to 1000000, found \"many\"; \
         write 1 instead",
        "p.toml:6: udp.idle: expected a time above zero with a unit (ms, s, m or h) of at most a \
         year, or \"never\", found the integer 300; write \"300s\" instead",
        "p.toml:7: udp.port: expected advertise, associations, idle, per_client, ports, found an \
         unknown key; write ports instead",
    ];
    assert_eq!(said, expected);
    assert_eq!(status, Some(2));
}
