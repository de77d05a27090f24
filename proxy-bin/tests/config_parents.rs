//! Parents, groups and ways in configurations: what is accepted, and what each
//! mistake is told as.

mod support;

/// What `proxyd check` says of this file and these options: status and lines.
fn check(toml: &str, more: &[&str]) -> (Option<i32>, Vec<String>) {
    let pair = rcgen::generate_simple_self_signed(["ca.example".to_owned()]).expect("a pair");
    let pem = pair.cert.pem();
    let files = [("p.toml", toml), ("ca.pem", &pem), ("bad.pem", "nothing")];
    support::check(&files, more)
}

#[track_caller]
fn mistakes(toml: &str, lines: &[&str]) {
    let (status, said) = check(toml, &[]);
    assert_eq!(said, lines, "in\n{toml}");
    assert_eq!(status, Some(2));
}

const PARENTS: &str = r#"
[[parent]]
name = "paris"
url = "http://user:p%40ss@paris.example:8080"

[[parent]]
name = "rome"
chain = ["https://a.example", "socks5://u:p@b.example", "socks4a://me@192.0.2.1:1"]
ca = "ca.pem"

[[parent]]
name = "oslo"
chain = "https://[2001:db8::1]:8443?ca=ca.pem"
"#;

#[test]
fn all_of_it_is_accepted() {
    let rest = r#"
[[group]]
name = "all"
parents = ["paris", "rome", "oslo"]

[[group]]
name = "turns"
parents = "paris"
order = "round_robin"

[[listener]]
protocol = "http"
address = "127.0.0.1:0"
via = "turns"

[[listener]]
protocol = "socks"
address = "127.0.0.1:0"
via = "direct"
"#;
    let toml = ["via = \"all\"", PARENTS, rest].concat();
    let more = [
        "--listen",
        "auto://127.0.0.1:0?via=oslo",
        "--via",
        "http://a.example",
        "--via",
        "https://b.example?ca=ca.pem",
    ];
    let (status, said) = check(&toml, &more);
    assert_eq!(status, Some(0), "{said:#?}");
}

#[test]
fn names_that_are_wrong_or_unknown() {
    let rest = r#"
[[parent]]
name = "direct"
url = "http://x.example"

[[parent]]
name = "rome"
url = "http://x.example"

[[group]]
name = "paris"
parents = ["rome", "pariss", "rome"]

[[group]]
name = "g"
parents = ["paris"]
order = "random"

[[listener]]
protocol = "http"
address = "127.0.0.1:0"
via = "romee"
"#;
    let toml = ["via = \"osl\"", PARENTS, rest].concat();
    mistakes(
        &toml,
        &[
            "p.toml:30: group.order: expected \"failover\" or \"round_robin\", found \"random\"; \
             write one of these instead",
        ],
    );
    let toml = toml.replace("random", "failover");
    mistakes(
        &toml,
        &[
            "p.toml:1: via: expected \"direct\" or the name of a parent or group, found \"osl\"; \
             write \"oslo\" instead",
            "p.toml:16: parent.name: expected a name, found \"direct\", which means no parent; \
             write another name instead",
            "p.toml:20: parent.name: expected a name of its own, found \"rome\" as at p.toml:7; \
             write another name instead",
            "p.toml:24: group.name: expected a name of its own, found \"paris\" as at p.toml:3; \
             write another name instead",
            "p.toml:25: group.parents: expected the name of a parent, found \"pariss\"; write \
             \"paris\" instead",
            "p.toml:25: group.parents: expected it once, found \"rome\" again; write it once \
             instead",
            "p.toml:35: listener.via: expected \"direct\" or the name of a parent or group, found \
             \"romee\"; write \"rome\" instead",
        ],
    );
}

#[test]
fn urls_that_are_wrong() {
    mistakes(
        r#"[[parent]]
name = "a"
url = "htp://user:hunter2@paris.example"
[[parent]]
name = "b"
chain = ["http://ok.example", "paris.example:3128", 5]
[[parent]]
name = "c"
[[parent]]
url = "socks4://user:hunter2@paris.example"
chain = []
[[parent]]
name = "d"
url = "http://paris.example/path"
ca = "ca.pem"
[[parent]]
name = "e"
url = "http://paris.example"
ca = "ca.pem"
[[parent]]
name = "f"
url = "http://paris.example?ca=ca.pem"
"#,
        &[
            "p.toml:3: parent.url: expected a URL of scheme \"http\", \"https\", \"socks4\", \
             \"socks4a\", \"socks5\" or \"socks5h\", found \"htp://***@paris.example\"; write \
             \"http\" instead",
            "p.toml:6: parent.chain: expected a URL such as \"http://paris.example:3128\", found \
             \"paris.example:3128\"; write \"http://paris.example:3128\" instead",
            "p.toml:6: parent.chain: expected a string, found the integer 5; write \"5\" instead",
            "p.toml:7: parent.url: expected url or chain, found nothing; write url = \
             \"http://paris.example:3128\" instead",
            "p.toml:9: parent.name: expected a name, found nothing; write name = \"paris\" instead",
            "p.toml:9: parent.url: expected url or chain, found both; write url = \
             \"http://paris.example:3128\" instead",
            "p.toml:10: parent.url: expected a user id of at most 255 bytes and no password, which \
             SOCKS4 has not, found \"socks4://***@paris.example\"; write USER@ before the host, or \
             socks5 instead",
            "p.toml:11: parent.chain: expected at least one entry, found an empty array; write one, or \
             leave the key out instead",
            "p.toml:14: parent.url: expected nothing behind host and port but ?ca=FILE, found \
             \"http://paris.example/path\"; write the URL up to the port instead",
            "p.toml:19: parent.ca: expected a parent that speaks https, found none; write https:// \
             in its URL instead, or leave ca out",
            "p.toml:22: parent.url: expected a file of issuers (ca) for scheme https only, found \
             \"http://paris.example?ca=ca.pem\"; write https://, or the URL without it instead",
        ],
    );
}

#[test]
fn issuers_that_are_not_there() {
    mistakes(
        "[[parent]]\nname = \"a\"\nurl = \"https://a.example\"\nca = \"no.pem\"\n",
        &[
            "p.toml:4: parent.ca: expected a PEM file, found nothing at no.pem; write the path of \
           an existing file instead",
        ],
    );
    mistakes(
        "[[parent]]\nname = \"a\"\nurl = \"https://a.example\"\nca = \"bad.pem\"\n",
        &[
            "p.toml:4: parent.ca: expected certificates of issuers in PEM form, found bad.pem (no \
             certificate found); write the path of a file with them instead",
        ],
    );
}

#[test]
fn p29_half_a_login_on_the_command_line_is_not_repeated() {
    for (option, url) in [
        ("--via", "http://u:SEKRET"),
        ("--via", "htp://u:SEKRET@h"),
        ("--listen", "http://u:SEKRET"),
        ("--listen", "http://u:SEKRET?auth=on"),
        ("--listen", "http://127.0.0.1:1?via=http://u:SEKRET@h"),
    ] {
        let (status, said) = check("", &[option, url]);
        assert_eq!(status, Some(2), "{said:?}");
        assert!(!said.concat().contains("SEKRET"), "{said:?}");
    }
}

#[test]
fn p29_the_command_line_is_not_repeated_with_its_password() {
    let (status, said) = check("", &["--via", "http://user:hunter2@paris.example:x"]);
    assert_eq!(status, Some(2));
    assert_eq!(
        said,
        [
            "--via http://***@paris.example:x: expected a host and a port, found \
             \"http://***@paris.example:x\"; write \"http://paris.example:3128\" instead"
        ]
    );
}
