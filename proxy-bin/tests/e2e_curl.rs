//! `curl`, an independent client, through every kind of listener.

mod support;

use support::{Certs, Curl, Origin, Proxyd};

/// The `--proxy` option for each way in; `{http}` and the like are addresses.
const WAYS: [(&str, &str); 13] = [
    ("-x", "http://{http}"),
    ("--socks4", "{socks}"),
    ("--socks4a", "localhost:{socks-port}"),
    ("--socks5", "{socks}"),
    ("--socks5-hostname", "{socks}"),
    ("-x", "https://{https}"),
    ("-x", "https://localhost:{https-port}"),
    ("-x", "http://{auto}"),
    ("--socks4", "{auto}"),
    ("--socks4a", "{auto}"),
    ("--socks5", "{auto}"),
    ("--socks5-hostname", "{auto}"),
    ("-x", "https://{auto}"),
];

#[test]
fn plain_http_goes_through_every_way_in() {
    let origin = Origin::mirror();
    let proxy = Proxyd::with_all(origin.address, &[]);
    for way in WAYS {
        let seen = via(&proxy, way, &origin.url("/a/b?c=d")).ok();
        assert!(
            seen.starts_with("GET /a/b?c=d HTTP/1.1\r\n"),
            "{way:?}: {seen}"
        );
        let host = format!("\r\nHost: {}\r\n", origin.address);
        assert!(seen.contains(&host), "{way:?}: {seen}");
    }
    drop(origin);
    proxy.finish();
}

#[test]
fn a_tls_origin_is_reached_by_a_tunnel_through_every_way_in() {
    let origin = Origin::tls_mirror();
    let proxy = Proxyd::with_all(origin.address, &[]);
    for way in WAYS {
        let url = format!("https://localhost:{}/secret", origin.address.port());
        let curl = via(&proxy, way, &url)
            .args(["--cacert"])
            .args([Certs::shared().ca()]);
        let seen = curl.ok();
        assert!(
            seen.starts_with("GET /secret HTTP/1.1\r\n"),
            "{way:?}: {seen}"
        );
    }
    drop(origin);
    proxy.finish();
}

#[test]
fn a_client_of_http_1_0_is_served_inside_tls() {
    let origin = Origin::tls_mirror();
    let proxy = Proxyd::with_all(origin.address, &[]);
    for way in WAYS.into_iter().filter(|way| way.1.starts_with("https:")) {
        let url = format!("https://localhost:{}/old", origin.address.port());
        let curl = via(&proxy, way, &url)
            .args(["--http1.0", "--cacert"])
            .args([Certs::shared().ca()]);
        let seen = curl.ok();
        assert!(seen.starts_with("GET /old HTTP/1.0\r\n"), "{way:?}: {seen}");
    }
    drop(origin);
    proxy.finish();
}

#[test]
fn the_port_relay_leads_to_its_target() {
    let origin = Origin::mirror();
    let proxy = Proxyd::with_all(origin.address, &[]);
    let url = format!("http://{}/relayed", proxy.address("tcp"));
    let seen = Curl::new(&url).ok();
    assert!(seen.starts_with("GET /relayed HTTP/1.1\r\n"), "{seen}");
    drop(origin);
    proxy.finish();
}

#[test]
fn names_are_resolved_for_the_client() {
    let origin = Origin::mirror();
    let proxy = Proxyd::with_all(origin.address, &[]);
    let url = format!("http://localhost:{}/", origin.address.port());
    for way in WAYS {
        via(&proxy, way, &url).ok();
    }
    drop(origin);
    proxy.finish();
}

#[test]
fn an_upload_arrives_whole_however_it_is_framed() {
    let origin = Origin::http(|request| {
        let sum = request
            .body
            .iter()
            .map(|&byte| u64::from(byte))
            .sum::<u64>();
        let text = format!("{} {} {sum}", request.method(), request.body.len());
        support::ok(text.as_bytes())
    });
    let proxy = Proxyd::with_all(origin.address, &[]);
    let file = Certs::shared().folder().join("upload");
    let body = support::Random::new(7).bytes(300_000);
    std::fs::write(&file, &body).unwrap();
    let sum = body.iter().map(|&byte| u64::from(byte)).sum::<u64>();
    let data = format!("@{}", file.display());
    for way in WAYS {
        let seen = via(&proxy, way, &origin.url("/"))
            .args(["--data-binary", &data])
            .ok();
        assert_eq!(seen, format!("POST 300000 {sum}"), "{way:?}");
        let seen = via(&proxy, way, &origin.url("/"))
            .args(["-T"])
            .args([&file])
            .ok();
        assert_eq!(seen, format!("PUT 300000 {sum}"), "{way:?}");
        let chunked = ["-H", "Transfer-Encoding: chunked", "--data-binary", &data];
        let seen = via(&proxy, way, &origin.url("/")).args(chunked).ok();
        assert_eq!(seen, format!("POST 300000 {sum}"), "{way:?}");
    }
    drop(origin);
    proxy.finish();
}

#[test]
fn p12_a_head_answer_has_a_length_and_no_body() {
    let origin = Origin::mirror();
    let proxy = Proxyd::with_all(origin.address, &[]);
    for way in WAYS {
        // Two on one connection: a body that was waited for would hold up the second.
        let url = origin.url("/");
        let head = via(&proxy, way, &url).args(["-I", &url]).run();
        assert_eq!((head.code, head.status), (0, 200), "{way:?}: {head:?}");
        assert_eq!(head.connects, 0, "{way:?}: {head:?}");
        assert_eq!(
            head.body.matches("Content-Length: ").count(),
            2,
            "{way:?}: {head:?}"
        );
    }
    drop(origin);
    proxy.finish();
}

#[test]
fn a_chunked_answer_arrives_whole() {
    let origin = Origin::http(|_| {
        let text = "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n\
                    5\r\nhello\r\n7;ext=1\r\n, world\r\n0\r\nX-Trailer: t\r\n\r\n";
        text.as_bytes().to_vec()
    });
    let proxy = Proxyd::with_all(origin.address, &[]);
    for way in WAYS {
        assert_eq!(
            via(&proxy, way, &origin.url("/")).ok(),
            "hello, world",
            "{way:?}"
        );
    }
    drop(origin);
    proxy.finish();
}

#[test]
fn p15_an_answer_delimited_by_the_end_arrives_whole() {
    let origin = Origin::http(|_| {
        let mut bytes = b"HTTP/1.1 200 OK\r\nConnection: close\r\n\r\n".to_vec();
        bytes.resize(bytes.len() + 100_000, b'x');
        bytes
    });
    let proxy = Proxyd::with_all(origin.address, &[]);
    for way in WAYS {
        let body = via(&proxy, way, &origin.url("/")).ok();
        assert_eq!(body, "x".repeat(100_000), "{way:?}");
    }
    drop(origin);
    proxy.finish();
}

#[test]
fn p19_two_requests_share_one_connection() {
    let origin = Origin::mirror();
    let proxy = Proxyd::with_all(origin.address, &[]);
    for way in WAYS {
        let second = origin.url("/second");
        let fetched = via(&proxy, way, &origin.url("/first"))
            .args([&second])
            .run();
        assert_eq!(
            (fetched.code, fetched.connects),
            (0, 0),
            "{way:?}: {fetched:?}"
        );
        assert_eq!(
            fetched.body.matches("GET /").count(),
            2,
            "{way:?}: {fetched:?}"
        );
    }
    drop(origin);
    proxy.finish();
}

// curl decodes percent signs, so there are none.
const LOGINS: [&str; 4] = ["alice:secret", "bob:a:b:c", "jürgen:pässwörd→", "x: +&=@/"];

#[test]
fn the_right_login_is_let_in() {
    let origin = Origin::mirror();
    let proxy = with_logins(&origin);
    for way in WAYS.into_iter().filter(|way| !is_socks4(*way)) {
        for login in LOGINS {
            let seen = via(&proxy, way, &origin.url("/")).args(["-U", login]).ok();
            let lower = seen.to_lowercase();
            assert!(!lower.contains("proxy-auth"), "P24: {way:?}: {seen}");
        }
    }
    drop(origin);
    proxy.finish();
}

#[test]
fn a_login_opens_a_tunnel_to_a_tls_origin() {
    let origin = Origin::tls_mirror();
    let proxy = with_logins(&origin);
    let url = format!("https://localhost:{}/", origin.address.port());
    for way in WAYS.into_iter().filter(|way| !is_socks4(*way)) {
        for login in LOGINS {
            let curl = via(&proxy, way, &url).args(["-U", login, "--cacert"]);
            curl.args([Certs::shared().ca()]).ok();
        }
    }
    drop(origin);
    proxy.finish();
}

#[test]
fn p26_curl_answers_the_challenge_of_a_kept_connection() {
    let origin = Origin::mirror();
    let proxy = with_logins(&origin);
    for way in WAYS.into_iter().filter(|way| !is_socks(*way)) {
        let anyauth = ["--proxy-anyauth", "-U", "bob:a:b:c"];
        let fetched = via(&proxy, way, &origin.url("/")).args(anyauth).run();
        assert_eq!(
            (fetched.code, fetched.status),
            (0, 200),
            "{way:?}: {fetched:?}"
        );
        assert_eq!(fetched.connects, 1, "{way:?}: {fetched:?}");
    }
    drop(origin);
    proxy.finish();
}

#[test]
fn a_wrong_or_missing_login_is_refused() {
    let origin = Origin::mirror();
    let proxy = with_logins(&origin);
    let wrong = [
        Some("alice:Secret"),
        Some("alice:secretx"),
        Some("alice:"),
        Some("bob:a:b"),
        Some("nobody:secret"),
        Some("Alice:secret"),
        None,
    ];
    for way in WAYS {
        for login in wrong {
            let mut curl = via(&proxy, way, &origin.url("/"));
            if let Some(login) = login {
                curl = curl.args(["-U", login]);
            }
            let fetched = curl.run();
            match is_socks(way) {
                // CURLE_PROXY: the handshake failed.
                true => assert_eq!(fetched.code, 97, "{way:?} {login:?}: {fetched:?}"),
                false => assert_eq!(fetched.status, 407, "{way:?} {login:?}: {fetched:?}"),
            }
            assert!(
                !fetched.body.contains("GET / "),
                "{way:?} {login:?}: reached the origin"
            );
        }
    }
    drop(origin);
    proxy.finish();
}

#[test]
fn a_tunnel_needs_the_login_as_well() {
    let origin = Origin::tls_mirror();
    let proxy = with_logins(&origin);
    let url = format!("https://localhost:{}/", origin.address.port());
    for way in WAYS.into_iter().filter(|way| !is_socks(*way)) {
        for login in [&["-U", "alice:wrong"][..], &[]] {
            let curl = via(&proxy, way, &url).args(login).args(["--cacert"]);
            let fetched = curl.args([Certs::shared().ca()]).run();
            assert_eq!(
                fetched.connect_status, 407,
                "{way:?} {login:?}: {fetched:?}"
            );
            assert_ne!(fetched.code, 0, "{way:?} {login:?}: {fetched:?}");
        }
    }
    drop(origin);
    proxy.finish();
}

#[test]
fn a_port_that_refuses_is_told_apart() {
    let origin = Origin::mirror();
    let proxy = Proxyd::with_all(origin.address, &[]);
    let url = format!("http://{}/", support::closed_port());
    for way in WAYS {
        let fetched = via(&proxy, way, &url).run();
        match is_socks(way) {
            true => assert_eq!(fetched.code, 97, "{way:?}: {fetched:?}"),
            false => assert_eq!(
                (fetched.code, fetched.status),
                (0, 502),
                "{way:?}: {fetched:?}"
            ),
        }
    }
    drop(origin);
    proxy.finish();
}

/// All come from one address here: nobody must be banned for failing.
fn with_logins(origin: &Origin) -> Proxyd {
    let user = |login: &str| {
        let (name, password) = login.split_once(':').expect("a login");
        format!("[[user]]\nname = {name:?}\npassword = {password:?}\n")
    };
    let users: String = LOGINS.into_iter().map(user).collect();
    Proxyd::with_config(
        origin.address,
        &format!("[auth]\nban_failures = 0\n{users}"),
    )
}

fn is_socks(way: (&str, &str)) -> bool {
    way.0.starts_with("--socks")
}

fn is_socks4(way: (&str, &str)) -> bool {
    way.0.starts_with("--socks4")
}

/// curl on its way to `url`.
fn via(proxy: &Proxyd, (option, value): (&str, &str), url: &str) -> Curl {
    let mut value = value.to_owned();
    for kind in ["auto", "http", "https", "socks"] {
        let address = proxy.address(kind);
        value = value.replace(&format!("{{{kind}}}"), &address.to_string());
        value = value.replace(&format!("{{{kind}-port}}"), &address.port().to_string());
    }
    let ca = Certs::shared().ca();
    Curl::new(url)
        .args([option, &value, "--proxy-cacert"])
        .args([ca])
}
