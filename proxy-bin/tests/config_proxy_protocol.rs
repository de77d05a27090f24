//! `proxy_protocol` and `send_proxy` in configurations: what each mistake is told as.

mod support;

use support::check;

/// Each of `lines` is one of the mistakes in `toml`, in that order.
#[track_caller]
fn mistakes(toml: &str, args: &[&str], lines: &[&str]) {
    let (status, said) = check(&[("p.toml", toml)], args);
    assert_eq!(said, lines, "in\n{toml}");
    assert_eq!(status, Some(2));
}

#[test]
fn wrong_networks_and_versions() {
    mistakes(
        "[[listener]]\nprotocol = \"http\"\naddress = \"127.0.0.1:1\"\nproxy_protocol = true\n\
         send_proxy = 2\n\
         [[listener]]\nprotocol = \"http\"\naddress = \"127.0.0.1:2\"\nproxy_protocol = []\n\
         send_proxy = \"V2\"\n\
         [[listener]]\nprotocol = \"http\"\naddress = \"127.0.0.1:3\"\n\
         proxy_protocol = [\"10.0.0.1/8\",\n\"haproxy.example\"]\nsend_proxy = \"yes\"\n",
        &[],
        &[
            "p.toml:4: listener.proxy_protocol: expected a string, found true; write \"true\" \
             instead",
            "p.toml:5: listener.send_proxy: expected \"v1\" or \"v2\", found the integer 2; write \
             \"v2\" instead",
            "p.toml:9: listener.proxy_protocol: expected at least one entry, found an empty \
             array; write one, or leave the key out instead",
            "p.toml:10: listener.send_proxy: expected \"v1\" or \"v2\", found \"V2\"; write \
             \"v2\" instead",
            "p.toml:14: listener.proxy_protocol: expected a network such as 192.168.0.0/16 or \
             2001:db8::/32, or an address, found \"10.0.0.1/8\"; write \"10.0.0.0/8\" instead",
            "p.toml:15: listener.proxy_protocol: expected a network such as 192.168.0.0/16 or \
             2001:db8::/32, or an address, found \"haproxy.example\"; write \"192.168.0.0/16\" \
             instead",
            "p.toml:16: listener.send_proxy: expected \"v1\" or \"v2\", found \"yes\"; write one \
             of these instead",
        ],
    );
}

#[test]
fn p73_not_everybody_may_be_a_front_end() {
    let text = "by which everybody may claim to be any client; write the addresses of those that \
                send the header instead";
    mistakes(
        "[[listener]]\nprotocol = \"tcp\"\naddress = \"127.0.0.1:1\"\ntarget = \"a.example:1\"\n\
         proxy_protocol = [\"10.0.0.0/8\", \"0.0.0.0/0\",\n\"::/0\"]\n",
        &[],
        &[
            &format!(
                "p.toml:5: listener.proxy_protocol: expected the networks of front ends, found \
                 0.0.0.0/0, {text}"
            ),
            &format!(
                "p.toml:6: listener.proxy_protocol: expected the networks of front ends, found \
                 ::/0, {text}"
            ),
        ],
    );
    mistakes(
        "",
        &["--listen", "http://127.0.0.1:1?open=on&proxy_protocol=::/0"],
        &[&format!(
            "--listen http://127.0.0.1:1?open=on&proxy_protocol=::/0: proxy_protocol: expected the \
             networks of front ends, found ::/0, {text}"
        )],
    );
}

#[test]
fn the_url_has_both() {
    mistakes(
        "",
        &[
            "--listen",
            "http://127.0.0.1:1?proxy_protocol=10.0.0.1,x&send_proxy=3",
        ],
        &[
            "--listen http://127.0.0.1:1?proxy_protocol=10.0.0.1,x&send_proxy=3: proxy_protocol: \
             expected a network such as 192.168.0.0/16 or 2001:db8::/32, or an address, found \
             \"x\"; write \"192.168.0.0/16\" instead",
            "--listen http://127.0.0.1:1?proxy_protocol=10.0.0.1,x&send_proxy=3: send_proxy: \
             expected \"v1\" or \"v2\", found \"3\"; write one of these instead",
        ],
    );
    let (status, said) = check(
        &[("p.toml", "")],
        &[
            "--listen",
            "socks://127.0.0.1:1?proxy_protocol=10.0.0.1,fd00::/8&send_proxy=v2&open=on",
        ],
    );
    assert_eq!(status, Some(0), "{said:?}");
}

/// The front ends say nothing about who stands behind them.
#[test]
fn front_ends_do_not_make_a_proxy_less_open() {
    let (status, said) = check(
        &[("p.toml", "")],
        &["--listen", "http://0.0.0.0:1?proxy_protocol=10.0.0.1"],
    );
    assert_eq!(status, Some(2));
    assert!(
        said.iter().any(|line| line.contains("an open proxy")),
        "{said:?}"
    );
    // Nor is one open to nobody whose front ends are on this machine.
    mistakes(
        "",
        &["--listen", "http://127.0.0.1:1?proxy_protocol=127.0.0.1"],
        &[
            "--listen http://127.0.0.1:1?proxy_protocol=127.0.0.1: open: expected users to ask for \
             or a list of client networks at 127.0.0.1:1, to which front ends bring others, found \
             neither: an open proxy; write --user NAME:PASSWORD, or ?clients=192.168.0.0/16 \
             instead, or ?open=on if everybody may use it",
        ],
    );
}
