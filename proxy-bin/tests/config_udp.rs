//! `[udp]` and `udp` listeners in configuration files: what each mistake is told
//! as.

mod support;

use support::{Certs, check, run_beside};

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

const LISTENER: &str = "[[listener]]\nprotocol = \"udp\"\naddress = \"127.0.0.1:5353\"\n";

#[track_caller]
fn is_fine(settings: &str) {
    let (status, said) = check(&[("p.toml", &format!("{LISTENER}{settings}\n"))], &[]);
    assert_eq!(status, Some(0), "{said:?} of\n{settings}");
}

/// Each of `lines` is a mistake in these settings, which begin at line 4.
#[track_caller]
fn mistakes_of_listener(settings: &str, lines: &[&str]) {
    let toml = format!("{LISTENER}{settings}\n");
    let (status, said) = check(&[("p.toml", &toml)], &[]);
    let lines: Vec<String> = lines.iter().map(|line| format!("p.toml:{line}")).collect();
    assert_eq!(said, lines, "in\n{toml}");
    assert_eq!(status, Some(2));
}

/// What is wrong with a `--listen`.
#[track_caller]
fn mistaken_url(url: &str, text: &str) {
    let (status, said) = run_beside(&[], &["check", "--listen", url]);
    assert_eq!(said, [format!("--listen {url}: {text}")]);
    assert_eq!(status, Some(2));
}

#[test]
fn listeners_that_are_right() {
    is_fine("target = \"dns.example:53\"");
    is_fine("target = \"[2001:db8::53]:53\"\nidle = \"10s\"\nname = \"dns\"");
    is_fine("target = \"192.0.2.53:53\"\nidle = \"never\"\nauth = false");
    is_fine(
        "target = \"dns.example:53\"\nclients = [\"192.0.2.0/24\"]\ntrust_loopback = false\n\
         source = \"own\"\nvia = \"direct\"\n\
         [[source]]\nname = \"own\"\naddresses = \"127.0.0.1\"",
    );
    // TCP has other ports, as DNS has both.
    is_fine(
        "target = \"dns.example:53\"\n\
         [[listener]]\nprotocol = \"tcp\"\naddress = \"127.0.0.1:5353\"\n\
         target = \"dns.example:53\"",
    );
    for url in [
        "udp://127.0.0.1:5353/dns.example:53",
        "udp://[::1]:5353/[2001:db8::53]:53?idle=10s&name=dns",
        "udp://[::]:5353/192.0.2.53:53?clients=192.0.2.0/24",
    ] {
        let (status, said) = run_beside(&[], &["check", "--listen", url]);
        assert_eq!(status, Some(0), "{said:?}");
    }
}

#[test]
fn targets_of_listeners() {
    mistakes_of_listener(
        "",
        &[
            "1: listener.target: expected a host and a port, found nothing; write target = \
           \"dns.example:53\" instead",
        ],
    );
    mistakes_of_listener(
        "target = \"unix:/run/dns.sock\"",
        &[
            "4: listener.target: expected a host and a port for protocol udp, found \
           unix:/run/dns.sock; write target = \"dns.example:53\" instead",
        ],
    );
    mistakes_of_listener(
        "target = \"127.0.0.1:5353\"",
        &[
            "4: listener.target: expected another server, found this listener's own address \
           127.0.0.1:5353; write where datagrams shall go instead",
        ],
    );
    mistakes_of_listener(
        "target = \"dns.example:53\"\n\
         [[listener]]\nprotocol = \"udp\"\naddress = \"0.0.0.0:5353\"\n\
         target = \"dns.example:53\"",
        &[
            "7: listener.address: expected an address of its own, found 0.0.0.0:5353, taken by \
           127.0.0.1:5353 at p.toml:3; write another port instead",
        ],
    );
    mistaken_url(
        "udp://127.0.0.1:5353",
        "target: expected a host and a port behind the address, found nothing; write \
         udp://127.0.0.1:5353/dns.example:53 instead",
    );
    mistaken_url(
        "udp://127.0.0.1:5353/a.example:53,b.example:53",
        "target: expected a single target for protocol udp, found a list; write dns.example:53 \
         instead",
    );
    let (_, said) = run_beside(&[], &["check", "--listen", "udp://5353:dns.example:53"]);
    let text = "expected a slash between address and target, found \"5353:dns.example:53\"; write \
                udp://127.0.0.1:5353/dns.example:53 instead";
    assert!(said[0].ends_with(text), "{said:?}");
}

#[test]
fn what_is_for_connections_only() {
    let (cert, key) = (Certs::shared().cert(), Certs::shared().key());
    mistakes_of_listener(
        &format!(
            "target = \"dns.example:53\"\nauth = true\ncert = {cert:?}\nkey = {key:?}\n\
             targets = [\"a.example:53\", \"b.example:53\"]\nbalance = \"failover\"\n\
             target_tls = true\nproxy_protocol = \"192.0.2.1\"\nsend_proxy = \"v2\"\n\
             names = \"a.example\"\ntarget_port = 53\nmode = \"660\""
        ),
        &[
            "5: listener.auth: expected no auth for protocol udp, which has no way to ask for it, \
             found it switched on; write protocol socks instead, or no auth",
            "6: listener.cert: expected no TLS files for protocol udp, found one; write protocol \
             tcp instead, or leave it out",
            "7: listener.key: expected no TLS files for protocol udp, found one; write protocol \
             tcp instead, or leave it out",
            "8: listener.targets: expected a single target for protocol udp, found a list; write \
             target = \"dns.example:53\" instead",
            "9: listener.balance: expected no balance for protocol udp, which has one target, in \
             clear, found one; write protocol tcp instead, or leave it out",
            "10: listener.target_tls: expected no target_tls for protocol udp, which has one \
             target, in clear, found one; write protocol tcp instead, or leave it out",
            "11: listener.proxy_protocol: expected no proxy_protocol for protocol udp, whose \
             datagrams have no header, found one; write protocol tcp instead, or leave it out",
            "12: listener.send_proxy: expected no send_proxy for protocol udp, whose datagrams \
             have no header, found one; write protocol tcp instead, or leave it out",
            "13: listener.names: expected no names for protocol udp, found some; write protocol \
             sni instead, or leave it out",
            "14: listener.target_port: expected no target_port for protocol udp, found some; \
             write protocol sni instead, or leave it out",
            "15: listener.mode: expected no mode for a listener at an IP address, found one; \
             write address = \"unix:/run/proxyd.sock\" instead, or no mode",
        ],
    );
    mistakes_of_listener(
        "target = \"dns.example:53\"\nidle = 30\n\
         [[listener]]\nprotocol = \"socks\"\naddress = \"127.0.0.1:1080\"\nidle = \"1m\"",
        &[
            "5: listener.idle: expected a time above zero with a unit (ms, s, m or h) of at most \
             a year, or \"never\", found the integer 30; write \"30s\" instead",
        ],
    );
    mistakes_of_listener(
        "target = \"dns.example:53\"\n\
         [[listener]]\nprotocol = \"socks\"\naddress = \"127.0.0.1:1080\"\nidle = \"1m\"",
        &[
            "8: listener.idle: expected no idle for protocol socks, found one; write protocol udp \
             instead, or leave it out ([timeouts] has those of connections)",
        ],
    );
    mistakes_of_listener(
        "target = \"dns.example:53\"\n[[user]]\nname = \"a\"\npassword = \"b\"",
        &[
            "6: user: expected a listener that asks for users, found none; write auth = true for a \
             listener (on the command line auth=on) instead, or no user",
        ],
    );
    let toml = "[[listener]]\nprotocol = \"udp\"\naddress = \"unix:/run/dns.sock\"\n\
                target = \"dns.example:53\"\n";
    let (status, said) = check(&[("p.toml", toml)], &[]);
    let expected = "p.toml:2: listener.protocol: expected protocol http, socks or tcp at a Unix \
                    socket, found udp; write one of these instead, or an IP address and a port";
    assert_eq!((status, said), (Some(2), vec![expected.to_owned()]));
}
