//! What is said about `sni`, `redirect` and `tproxy` listeners.

mod support;

/// What `proxyd check` says of this file: status and lines.
fn check(toml: &str) -> (Option<i32>, Vec<String>) {
    support::check(
        &[
            ("proxyd.toml", toml),
            ("names.txt", "a.example\n# b\n.c.example\n"),
        ],
        &[],
    )
}

#[track_caller]
fn is_fine(listener: &str) {
    let (status, said) = check(&format!("[[listener]]\n{listener}\n"));
    assert_eq!(status, Some(0), "{said:?} of\n{listener}");
}

#[track_caller]
fn mistake(listener: &str, expected: &[&str]) {
    let (status, said) = check(&format!("[[listener]]\n{listener}\n"));
    assert_eq!(said, expected, "{listener}");
    assert_eq!(status, Some(2));
}

/// The same of the value of `--listen`.
#[track_caller]
fn argument(url: &str, expected: &[&str]) {
    let (status, said) = support::run_beside(&[], &["check", "--listen", url]);
    match expected {
        [] => assert_eq!(status, Some(0), "{said:?}"),
        _ => {
            let expected: Vec<String> = expected
                .iter()
                .map(|text| format!("--listen {url}: {text}"))
                .collect();
            assert_eq!((said, status), (expected, Some(2)));
        }
    }
}

#[test]
fn listeners_that_are_right() {
    for listener in [
        "protocol = \"sni\"\naddress = \"127.0.0.1:8443\"",
        "protocol = \"sni\"\naddress = \"0.0.0.0:8443\"\nnames = \".example.com\"",
        "protocol = \"sni\"\naddress = \"0.0.0.0:8443\"\nnames = [\"a.example\", \"@names.txt\"]",
        "protocol = \"sni\"\naddress = \"0.0.0.0:8443\"\nclients = \"10.0.0.0/8\"\ntarget_port = 8443",
        "protocol = \"sni\"\naddress = \"0.0.0.0:8443\"\nopen = true",
        "protocol = \"redirect\"\naddress = \"[::]:3129\"",
        "protocol = \"redirect\"\naddress = \"[::]:3129\"\nclients = \"10.0.0.0/8\"",
        "protocol = \"tproxy\"\naddress = \"[::]:3129\"\ntrust_loopback = false",
        // Users are for other listeners.
        "protocol = \"redirect\"\naddress = \"[::]:3129\"\n[[user]]\nname = \"a\"\npassword = \"b\"",
    ] {
        is_fine(listener);
    }
    for url in [
        "sni://127.0.0.1:8443",
        "sni://0.0.0.0:8443?names=a.example,*.b.example&target_port=8443",
        "redirect://[::]:3129",
        "tproxy://[::]:3129",
    ] {
        argument(url, &[]);
    }
}

#[test]
fn keys_of_other_listeners() {
    for (protocol, key, line) in [
        ("http", "names", "names = \".example.com\""),
        ("redirect", "names", "names = \".example.com\""),
        ("tcp\"\ntarget = \"db.example:1", "names", "names = \"a.b\""),
        ("socks", "target_port", "target_port = 443"),
        ("tproxy", "target_port", "target_port = 443"),
    ] {
        let at = 4 + protocol.matches('\n').count();
        let name = protocol.split('"').next().expect("a word");
        mistake(
            &format!("protocol = \"{protocol}\"\naddress = \"127.0.0.1:1\"\n{line}"),
            &[&format!(
                "proxyd.toml:{at}: listener.{key}: expected no {key} for protocol {name}, found \
                 some; write protocol sni instead, or leave it out"
            )],
        );
    }
}

#[test]
fn keys_that_these_have_no_use_for() {
    for protocol in ["sni", "redirect", "tproxy"] {
        mistake(
            &format!("protocol = \"{protocol}\"\naddress = \"127.0.0.1:1\"\nauth = true"),
            &[&format!(
                "proxyd.toml:4: listener.auth: expected no auth for protocol {protocol}, which \
                 has no way to ask for it, found it switched on; write protocol socks instead, or \
                 no auth"
            )],
        );
        mistake(
            &format!("protocol = \"{protocol}\"\naddress = \"127.0.0.1:1\"\ntarget = \"a.b:1\""),
            &[&format!(
                "proxyd.toml:4: listener.target: expected no target, found a.b:1 for protocol \
                 {protocol}, whose clients choose their own; write protocol tcp instead, or no \
                 target"
            )],
        );
    }
}

#[test]
fn values_that_are_wrong() {
    let sni = "protocol = \"sni\"\naddress = \"127.0.0.1:1\"";
    for (line, expected) in [
        (
            "names = []",
            "names: expected at least one entry, found an empty array; write one, or leave the \
             key out instead",
        ),
        (
            "names = [\"192.0.2.1\"]",
            "names: expected a name (addresses are for networks), found \"192.0.2.1\"; write \
             networks = [\"192.0.2.1\"] instead",
        ),
        (
            "names = [\"*\"]",
            "names: expected a name in ASCII, alone or behind \"*.\" or \".\", found \"*\"; write \
             \".example.com\", or no names for all of them instead",
        ),
        (
            "target_port = 0",
            "target_port: expected a whole number from 1 to 65535, found the integer 0; write 1 \
             instead",
        ),
        (
            "target_port = \"443\"",
            "target_port: expected a whole number from 1 to 65535, found \"443\"; write 443 instead",
        ),
    ] {
        let expected = format!("proxyd.toml:4: listener.{expected}");
        mistake(&format!("{sni}\n{line}"), &[&expected]);
    }
    argument(
        "sni://127.0.0.1:1?target_port=0&names=a..b",
        &[
            "target_port: expected a number from 1 to 65535, found \"0\"; write 443 instead",
            "names: expected a name in ASCII, alone or behind \"*.\" or \".\", found \"a..b\"; \
             write \".example.com\" instead",
        ],
    );
}

#[test]
fn an_open_one_is_no_oversight() {
    mistake(
        "protocol = \"sni\"\naddress = \"0.0.0.0:8443\"",
        &[
            "proxyd.toml:1: listener.open: expected a list of names or a list of client networks at \
             0.0.0.0:8443, which others can reach, found neither: an open proxy; write names = \
             [\".example.com\"] or clients = [\"192.168.0.0/16\"] instead, or open = true if \
             everybody may use it",
        ],
    );
    argument(
        "sni://0.0.0.0:8443",
        &[
            "open: expected a list of names or a list of client networks at 0.0.0.0:8443, which others \
             can reach, found neither: an open proxy; write ?names=.example.com or \
             ?clients=192.168.0.0/16 instead, or ?open=on if everybody may use it",
        ],
    );
}
