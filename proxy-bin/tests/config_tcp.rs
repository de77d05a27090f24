//! Port relays in the configuration: what is right, and what each mistake is told
//! as.

mod support;

use support::{Certs, check, run_beside};

const LISTENER: &str = "[[listener]]\nprotocol = \"tcp\"\naddress = \"127.0.0.1:5432\"\n";

#[track_caller]
fn is_fine(settings: &str) {
    let (status, said) = check(&[("p.toml", &format!("{LISTENER}{settings}\n"))], &[]);
    assert_eq!(status, Some(0), "{said:?} of\n{settings}");
}

/// Each of `lines` is a mistake in these settings, which begin at line 4.
#[track_caller]
fn mistakes(settings: &str, lines: &[&str]) {
    mistakes_in(&format!("{LISTENER}{settings}\n"), lines);
}

#[track_caller]
fn mistakes_in(toml: &str, lines: &[&str]) {
    let (status, said) = check(&[("p.toml", toml)], &[]);
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
fn what_is_right() {
    is_fine("target = \"db.example:5432\"");
    is_fine("targets = \"db.example:5432\"");
    is_fine("targets = [\"a.example:1\", \"b.example:2\"]\nbalance = \"round-robin\"");
    is_fine("targets = [\"a.example:1\", \"b.example:2\"]\nbalance = \"failover\"");
    is_fine("target = \"db.example:5432\"\ntarget_tls = true");
    is_fine("target = \"db.example:5432\"\ntarget_tls = false");
    is_fine("target = \"db.example:5432\"\ntarget_tls = \"other.example\"");
    is_fine("target = \"db.example:5432\"\ntarget_tls = \"192.0.2.7\"");
    let ca = Certs::shared().ca();
    is_fine(&format!(
        "target = \"db.example:5432\"\ntarget_tls = true\ntarget_ca = {ca:?}"
    ));
    let (cert, key) = (Certs::shared().cert(), Certs::shared().key());
    is_fine(&format!(
        "target = \"db.example:5432\"\ncert = {cert:?}\nkey = {key:?}"
    ));
    let url = format!(
        "tcp://127.0.0.1:5432/a.example:1,b.example:2?balance=round-robin&target_tls=db.example&\
         target_ca={}",
        ca.display()
    );
    let (status, said) = run_beside(&[], &["check", "--listen", &url]);
    assert_eq!(status, Some(0), "{said:?}");
}

#[test]
fn targets_that_are_none() {
    mistakes(
        "targets = [\"db.example\", 7]\nbalance = \"roundrobin\"",
        &[
            "4: listener.targets: expected a host and a port, found \"db.example\"; write \
             \"db.example:5432\" instead",
            "4: listener.targets: expected a string, found the integer 7; write \"7\" instead",
            "5: listener.balance: expected \"failover\" or \"round-robin\", found \"roundrobin\"; \
             write \"round-robin\" instead",
        ],
    );
    mistakes(
        "targets = []",
        &[
            "4: listener.targets: expected at least one entry, found an empty array; write one, or \
             leave the key out instead",
        ],
    );
    mistakes(
        "",
        &[
            "1: listener.target: expected a host and a port, found nothing; write target = \
           \"db.example:5432\" instead",
        ],
    );
}

#[test]
fn targets_that_contradict_each_other() {
    mistakes(
        "target = \"a.example:1\"\ntargets = [\"b.example:2\"]",
        &[
            "5: listener.targets: expected either target or targets, found both; write \
             \"a.example:1\" among the targets instead, and no target",
        ],
    );
    mistakes(
        "targets = [\"a.example:1\", \"b.example:2\", \"a.example:1\"]",
        &[
            "4: listener.targets: expected each target once, found \"a.example:1\" again; write it \
             only once instead",
        ],
    );
    mistakes(
        "targets = [\"a.example:1\", \"127.0.0.1:5432\"]",
        &[
            "4: listener.targets: expected another server, found this listener's own address \
             127.0.0.1:5432; write where connections shall go instead",
        ],
    );
    mistakes(
        "target = \"127.0.0.1:5432\"",
        &[
            "4: listener.target: expected another server, found this listener's own address \
             127.0.0.1:5432; write where connections shall go instead",
        ],
    );
    mistakes(
        "target = \"a.example:1\"\nbalance = \"failover\"",
        &[
            "5: listener.balance: expected several targets to choose from, found fewer; write \
             targets = [\"a.example:5432\", \"b.example:5432\"] instead, or no balance",
        ],
    );
}

#[test]
fn tls_with_targets_that_is_none() {
    for (found, shown, instead) in [
        ("\"yes\"", "\"yes\"", "true"),
        ("\"off\"", "\"off\"", "false"),
        (
            "\"a b\"",
            "\"a b\"",
            "the name in the certificate, such as \"db.example\"",
        ),
    ] {
        mistakes(
            &format!("target = \"a.example:1\"\ntarget_tls = {found}"),
            &[&format!(
                "5: listener.target_tls: expected true, false or the name in the target's \
                 certificate, found {shown}; write {instead} instead"
            )],
        );
    }
    mistakes(
        "target = \"a.example:1\"\ntarget_tls = 1",
        &[
            "5: listener.target_tls: expected true or false, found the integer 1; write true instead",
        ],
    );
    let ca = Certs::shared().ca();
    mistakes(
        &format!("target = \"a.example:1\"\ntarget_ca = {ca:?}"),
        &[
            "5: listener.target_ca: expected no issuers for targets that are reached in clear, \
             found a file of them; write target_tls = true beside it instead, or no target_ca",
        ],
    );
    mistakes(
        "target = \"a.example:1\"\ntarget_tls = true\ntarget_ca = \"/no/such/file\"",
        &[
            "6: listener.target_ca: expected a PEM file, found nothing at /no/such/file; write \
             the path of an existing file instead",
        ],
    );
    let key = Certs::shared().key();
    mistakes(
        &format!("target = \"a.example:1\"\ntarget_tls = true\ntarget_ca = {key:?}"),
        &[&format!(
            "6: listener.target_ca: expected certificates of issuers in PEM form, found {} (no \
             certificate found); write the path of a file with them instead",
            key.display()
        )],
    );
}

#[test]
fn keys_of_port_relays_elsewhere() {
    mistakes_in(
        "[[listener]]\nprotocol = \"socks\"\naddress = \"127.0.0.1:1080\"\n\
         targets = [\"a.example:1\"]\nbalance = \"failover\"\ntarget_tls = true\n",
        &["targets", "balance", "target_tls"]
            .iter()
            .zip(4..)
            .map(|(key, line)| {
                format!(
                    "{line}: listener.{key}: expected no {key} for protocol socks, whose clients \
                     choose their own targets; write protocol tcp instead, or no {key}"
                )
            })
            .collect::<Vec<_>>()
            .iter()
            .map(String::as_str)
            .collect::<Vec<_>>(),
    );
}

#[test]
fn a_certificate_needs_its_key() {
    let cert = Certs::shared().cert();
    for protocol in ["tcp", "socks"] {
        let target = match protocol {
            "tcp" => "target = \"a.example:1\"\n",
            _ => "",
        };
        mistakes_in(
            &format!(
                "[[listener]]\nprotocol = {protocol:?}\naddress = \"127.0.0.1:0\"\n\
                 {target}cert = {cert:?}\n"
            ),
            &[
                "1: listener.key: expected the path of a PEM file, found nothing; write key = \
               \"proxy.pem\" instead",
            ],
        );
    }
}

#[test]
fn mistakes_in_urls() {
    mistaken_url(
        "tcp://127.0.0.1:1/a.example:1,b.example",
        "target: expected a host and a port, found \"b.example\"; write \"b.example:5432\" instead",
    );
    mistaken_url(
        "tcp://127.0.0.1:1/a.example:1,a.example:1",
        "target: expected each target once, found \"a.example:1\" again; write it only once \
         instead",
    );
    mistaken_url(
        "tcp://127.0.0.1:1/a.example:1?balance=random",
        "balance: expected \"failover\" or \"round-robin\", found \"random\"; write one of these \
         instead",
    );
    mistaken_url(
        "tcp://127.0.0.1:1/a.example:1?target_tls=true",
        "target_tls: expected on, off or the name in the target's certificate, found \"true\"; \
         write on instead",
    );
    mistaken_url(
        "tcp://127.0.0.1:1/a.example:1?target_ca=",
        "target_ca: expected the path of a PEM file, found \"\"; write target_ca=ca.pem instead",
    );
    mistaken_url(
        "http://127.0.0.1:1?target_tls=on",
        "target_tls: expected no target_tls for protocol http, whose clients choose their own \
         targets; write protocol tcp instead, or no target_tls",
    );
}

#[test]
fn unix_sockets_as_targets() {
    is_fine("target = \"unix:/run/db.sock\"");
    is_fine("targets = [\"unix:db.sock\", \"a.example:1\"]");
    // A host of that name.
    is_fine("target = \"unix:80\"");
    is_fine("target = \"unix:/run/db.sock\"\ntarget_tls = \"db.example\"");
    let long = format!("/{}", "x".repeat(107));
    for (found, shown) in [("unix:", "unix:"), (&*format!("unix:{long}"), "unix:***")] {
        mistakes(
            &format!("target = {found:?}"),
            &[&format!(
                "4: listener.target: expected the path of a Unix socket, of at most 107 bytes, \
                 behind unix:, found {shown:?}; write \"unix:/run/db.sock\" instead"
            )],
        );
    }
    mistakes(
        "targets = [\"unix:/run/db.sock\", \"unix:/run/db.sock\"]",
        &[
            "4: listener.targets: expected each target once, found \"unix:/run/db.sock\" again; \
             write it only once instead",
        ],
    );
    mistakes(
        "target = \"unix:/run/db.sock\"\ntarget_tls = true",
        &[
            "4: listener.target_tls: expected the name in the certificate of a target at a Unix \
             socket, found none; write target_tls = \"db.example\" instead",
        ],
    );
    mistakes_in(
        "[[listener]]\nprotocol = \"http\"\naddress = \"127.0.0.1:1080\"\n\
         target = \"unix:/run/db.sock\"\n",
        &[
            "4: listener.target: expected no target, found unix:/run/db.sock for protocol http, \
             whose clients choose their own; write protocol tcp instead, or no target",
        ],
    );
}

#[test]
fn listeners_at_unix_sockets() {
    for protocol in ["http", "socks", "tcp"] {
        let target = match protocol {
            "tcp" => "target = \"a.example:1\"\n",
            _ => "",
        };
        let toml = format!(
            "[[listener]]\nprotocol = {protocol:?}\naddress = \"unix:run/x.sock\"\n\
             mode = \"660\"\n{target}"
        );
        let (status, said) = check(&[("p.toml", &toml)], &[]);
        assert_eq!(status, Some(0), "{said:?}");
    }
    let url = "tcp://unix:%2Frun%2Fx.sock/unix:/run/y.sock?mode=600";
    let (status, said) = run_beside(&[], &["check", "--listen", url]);
    assert_eq!(status, Some(0), "{said:?}");
    assert!(said[0].contains("tcp://unix:/run/x.sock"), "{said:?}");
}

#[test]
fn mistakes_about_unix_sockets() {
    mistakes_in(
        "[[listener]]\nprotocol = \"auto\"\naddress = \"unix:/run/x.sock\"\n",
        &[
            "2: listener.protocol: expected protocol http, socks or tcp at a Unix socket, found \
             auto; write one of these instead, or an IP address and a port",
        ],
    );
    let (cert, key) = (Certs::shared().cert(), Certs::shared().key());
    mistakes_in(
        &format!(
            "[[listener]]\nprotocol = \"socks\"\naddress = \"unix:/run/x.sock\"\n\
             cert = {cert:?}\nkey = {key:?}\n"
        ),
        &[
            "4: listener.cert: expected no TLS files at a Unix socket, found one; write an IP \
             address and a port instead, or no cert and key",
        ],
    );
    mistakes_in(
        "[[listener]]\nprotocol = \"http\"\naddress = \"unix:\"\nmode = \"9\"\n",
        &[
            "3: listener.address: expected the path of a Unix socket, of at most 107 bytes, behind \
             unix:, found \"unix:\"; write \"unix:/run/proxyd.sock\" instead",
            "4: listener.mode: expected permissions in octal digits, such as \"660\", found \"9\"; \
             write \"660\" instead",
        ],
    );
    mistakes_in(
        "[[listener]]\nprotocol = \"tcp\"\naddress = \"unix:/run/x.sock\"\n\
         target = \"a.example:1\"\nproxy_protocol = [\"10.0.0.1\"]\n",
        &[
            "5: listener.proxy_protocol: expected 127.0.0.1 among the front ends, which is what \
             programs at a Unix socket count as, found others only; write \"127.0.0.1\" instead, or \
             no proxy_protocol",
        ],
    );
    mistakes(
        "target = \"a.example:1\"\nmode = \"660\"",
        &[
            "5: listener.mode: expected no mode for a listener at an IP address, found one; write \
             address = \"unix:/run/proxyd.sock\" instead, or no mode",
        ],
    );
    let listener = "[[listener]]\nprotocol = \"tcp\"\naddress = \"unix:/run/x.sock\"\n";
    mistakes_in(
        &format!("{listener}target = \"unix:/run/x.sock\"\n"),
        &[
            "4: listener.target: expected another server, found this listener's own path \
             /run/x.sock; write where connections shall go instead",
        ],
    );
    let other = listener.replace("x.sock", "y.sock");
    mistakes_in(
        &format!(
            "{listener}target = \"unix:/run/y.sock\"\n\
             {other}targets = [\"a.example:1\", \"unix:/run/../run/x.sock\"]\n"
        ),
        &[
            "4: listener.target: expected another server, found /run/y.sock, where proxyd itself \
             listens (p.toml:7); write where connections shall go instead",
            "8: listener.targets: expected another server, found /run/../run/x.sock, where proxyd \
             itself listens (p.toml:3); write where connections shall go instead",
        ],
    );
    mistakes_in(
        &format!("{listener}target = \"a.example:1\"\n{listener}target = \"b.example:1\"\n"),
        &[
            "7: listener.address: expected a path of its own, found /run/x.sock, taken at \
             p.toml:3; write another path instead",
        ],
    );
    mistaken_url(
        "tcp://unix:/run/x.sock",
        "expected the path of a Unix socket with %2F for each slash, found \"unix:\"; write \
         unix:%2Frun%2Fx.sock instead",
    );
}
