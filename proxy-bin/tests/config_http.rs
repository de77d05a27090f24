//! Timeouts, limits and `[http]` in configuration files: what each mistake is told as.

mod support;

use support::check;

/// Each of `lines` is one of the mistakes in `toml`, in that order.
#[track_caller]
fn mistakes(toml: &str, lines: &[&str]) {
    let (status, said) = check(&[("p.toml", toml)], &[]);
    assert_eq!(said, lines, "in\n{toml}");
    assert_eq!(status, Some(2));
}

#[test]
fn wrong_times_of_tunnels() {
    mistakes(
        "[timeouts]\nstalled = 0\ntcp_keepalive = \"10h\"\n",
        &[
            "p.toml:2: timeouts.stalled: expected a time above zero with a unit (ms, s, m or h) of \
             at most a year, or \"never\", found the integer 0; write \"1ms\" (the least: 0 is not \
             possible) instead",
            "p.toml:3: timeouts.tcp_keepalive: expected a time of at most 9h, or \"never\", found \
             \"10h\"; write \"9h\" instead",
        ],
    );
}

#[test]
fn wrong_rates() {
    let rate = "a rate with a unit (B/s, KB/s, MB/s, GB/s, KiB/s, MiB/s, GiB/s, kbit/s, Mbit/s or \
                Gbit/s) from 1 KB/s to 1000 GB/s";
    mistakes(
        "[limits]\nsession_rate_up = 500\nuser_rate_down = \"10Mb/s\"\nheld_bytes = 1000\n\
         [[user]]\nname = \"a\"\npassword = \"b\"\nrate_up = \"fast\"\n",
        &[
            &format!(
                "p.toml:2: limits.session_rate_up: expected {rate}, found the integer 500; write \
                 \"500 KB/s\" instead"
            ),
            &format!(
                "p.toml:3: limits.user_rate_down: expected {rate}, found \"10Mb/s\"; write \
                 \"10 Mbit/s\" instead"
            ),
            "p.toml:4: limits.held_bytes: expected a whole number of at least 1048576, found the \
             integer 1000; write 1048576 instead",
            &format!(
                "p.toml:8: user.rate_up: expected {rate}, found \"fast\"; write \"500 KB/s\" instead"
            ),
        ],
    );
    let url = "http://127.0.0.1:0?rate_down=1000";
    let (status, said) = check(&[("p.toml", "")], &["--listen", url]);
    assert_eq!(status, Some(2));
    let line = format!(
        "--listen {url}: rate_down: expected {rate}, found \"1000\"; write \"1000 KB/s\" \
         instead"
    );
    assert_eq!(said, [line]);
}

#[test]
fn wrong_limits() {
    mistakes(
        "[timeouts]\nbody = 5\nfirst_byte = \"0s\"\n[limits]\nbody_bytes = \"1M\"\nrequests = 0\n\
         client_connections = 0\nupstream_connections = \"many\"\norigin_connections = -3\n\
         idle_connections = -1\nidle_per_origin = 0\nidle_time = 30\n",
        &[
            "p.toml:2: timeouts.body: expected a time above zero with a unit (ms, s, m or h) of at \
             most a year, or \"never\", found the integer 5; write \"5s\" instead",
            "p.toml:3: timeouts.first_byte: expected a time above zero with a unit (ms, s, m or h) \
             of at most a year, or \"never\", found \"0s\"; write \"1ms\" (the least: 0 is not \
             possible) instead",
            "p.toml:5: limits.body_bytes: expected a whole number of at least 0, found \"1M\"; \
             write 1048576 instead",
            "p.toml:6: limits.requests: expected a whole number from 1 to 4000000000, found the \
             integer 0; write 1 instead",
            "p.toml:7: limits.client_connections: expected a whole number of at least 1, found the \
             integer 0; write 1 instead",
            "p.toml:8: limits.upstream_connections: expected a whole number of at least 1, found \
             \"many\"; write 1 instead",
            "p.toml:9: limits.origin_connections: expected a whole number of at least 1, found the \
             integer -3; write 1 instead",
            "p.toml:10: limits.idle_connections: expected a whole number of at least 0, found the \
             integer -1; write 0 instead",
            "p.toml:11: limits.idle_per_origin: expected a whole number of at least 1, found the \
             integer 0; write 1 instead",
            "p.toml:12: limits.idle_time: expected a time above zero with a unit (ms, s, m or h) \
             of at most a year, or \"never\", found the integer 30; write \"30s\" instead",
        ],
    );
}

#[test]
fn wrong_words_about_http() {
    mistakes(
        "[http]\nvia = \"on\"\nforwarded = \"x\"\nhttps = \"fetsch\"\nca = \"\"\nproxy = 1\n",
        &[
            "p.toml:2: http.via: expected true or false, found \"on\"; write true instead",
            "p.toml:3: http.forwarded: expected \"keep\", \"remove\", \"append\" or \
             \"append-for\", found \"x\"; write one of these instead",
            "p.toml:4: http.https: expected \"fetch\" or \"refuse\", found \"fetsch\"; write \
             \"fetch\" instead",
            "p.toml:5: http.ca: expected the path of a PEM file, found \"\"; write \"proxy.pem\" \
             instead",
            "p.toml:6: http.proxy: expected ca, forwarded, https, via, found an unknown key; write \
             one of these instead",
        ],
    );
}

#[test]
fn issuers_that_are_none() {
    mistakes(
        "http.ca = \"none.pem\"\n",
        &[
            "p.toml:1: http.ca: expected a PEM file, found nothing at none.pem; write the path of \
             an existing file instead",
        ],
    );
    mistakes(
        "http.ca = \"p.toml\"\n",
        &[
            "p.toml:1: http.ca: expected certificates of issuers in PEM form, found p.toml (no \
             certificate found); write the path of a file with them instead",
        ],
    );
    mistakes(
        "http.ca = \"p.toml\"\nhttp.https = \"refuse\"\n",
        &[
            "p.toml:1: http.ca: expected no issuers where https URLs are refused, found a file of \
             them; write https = \"fetch\" instead, or no ca",
        ],
    );
}
