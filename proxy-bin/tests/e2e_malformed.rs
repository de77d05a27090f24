//! Malformed and broken-off input of every kind: the connection ends, nothing
//! leaks, and the port keeps serving.

mod support;

use support::{Conn, Mode, Origin, Proxyd, Random, basic};

const LISTENERS: [&str; 5] = ["auto", "http", "https", "socks", "tcp"];

#[test]
fn random_bytes_are_survived() {
    let origin = Origin::echo();
    let proxy = Proxyd::with_all(origin.address, &[]);
    let mut random = Random::new(20_240_607);
    for kind in LISTENERS {
        for _ in 0..300 {
            let conn = Conn::dial(proxy.address(kind));
            conn.send_anyway(harmless(&mut random));
            end(conn, &mut random);
        }
    }
    proxy.serves(origin.address);
    drop(origin);
    proxy.finish();
}

#[test]
fn random_bytes_inside_tls_are_survived() {
    let origin = Origin::echo();
    let proxy = Proxyd::with_all(origin.address, &[]);
    let mut random = Random::new(20_240_608);
    for kind in ["auto", "https"] {
        for _ in 0..50 {
            let conn = Conn::dial_tls(proxy.address(kind));
            conn.send_anyway(harmless(&mut random));
            end(conn, &mut random);
        }
    }
    proxy.serves(origin.address);
    drop(origin);
    proxy.finish();
}

#[test]
fn random_bytes_with_a_promising_start_are_survived() {
    let origin = Origin::echo();
    let proxy = Proxyd::with_all(origin.address, &[]);
    let mut random = Random::new(20_240_609);
    let starts: [&[u8]; 9] = [
        b"\x05",
        b"\x05\x01\x00\x05\x01\x00\x03",
        b"\x05\x01\x02\x01",
        b"\x04\x01\x00\x09\x00\x00\x00\x01",
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xFC\x03\x03",
        b"\x16\x03\x01",
        b"GET ",
        b"GET http://127.0.0.1:9/ HTTP/1.1\r\n",
        b"CONNECT ",
    ];
    for kind in LISTENERS {
        for start in starts {
            for _ in 0..20 {
                let conn = Conn::dial(proxy.address(kind));
                // A name made of these bytes cannot be one.
                let bytes = [start, &[0xFF], &harmless(&mut random)].concat();
                conn.send_anyway(bytes);
                end(conn, &mut random);
            }
        }
    }
    proxy.serves(origin.address);
    drop(origin);
    proxy.finish();
}

#[test]
fn input_broken_off_at_any_byte_is_survived() {
    let origin = Origin::page("ok");
    let proxy = Proxyd::with_all(origin.address, &[]);
    let mut random = Random::new(20_240_610);
    for kind in LISTENERS {
        for input in valid_inputs(&origin) {
            for length in 0..input.len() {
                let conn = Conn::dial(proxy.address(kind));
                conn.send_anyway(&input[..length]);
                end(conn, &mut random);
            }
        }
    }
    drop(origin);
    proxy.finish();
}

#[test]
fn input_broken_off_at_any_byte_is_survived_where_a_login_is_asked_for() {
    let origin = Origin::page("ok");
    let proxy = Proxyd::with_all(origin.address, &["--user", "alice:secret"]);
    let mut random = Random::new(20_240_611);
    for kind in ["auto", "http", "socks"] {
        for input in valid_inputs(&origin) {
            for length in 0..input.len() {
                let conn = Conn::dial(proxy.address(kind));
                conn.send_anyway(&input[..length]);
                end(conn, &mut random);
            }
        }
    }
    drop(origin);
    proxy.finish();
}

#[test]
fn requests_broken_off_inside_tls_are_survived() {
    let origin = Origin::page("ok");
    let proxy = Proxyd::with_all(origin.address, &[]);
    for kind in ["auto", "https"] {
        let input = Mode::Connect.hello(origin.address);
        for length in 0..input.len() {
            let conn = Conn::dial_tls(proxy.address(kind));
            conn.send_anyway(&input[..length]);
            match length % 3 {
                0 => conn.reset(),
                1 => {
                    conn.fin();
                    conn.rest();
                }
                _ => {
                    conn.cut();
                    conn.rest();
                }
            }
        }
    }
    drop(origin);
    proxy.finish();
}

#[test]
fn p08_a_flood_of_broken_requests_costs_no_memory() {
    let origin = Origin::page("ok");
    let proxy = Proxyd::with_all(origin.address, &["--workers", "1"]);
    let flood = |count| {
        for _ in 0..count {
            let conn = Conn::dial(proxy.address("http"));
            conn.send("GET\r\n\r\n");
            conn.rest();
        }
    };
    flood(200);
    let before = proxy.process().resident();
    flood(3000);
    let grown = proxy.process().resident().saturating_sub(before);
    assert!(grown < 1 << 20, "{grown} bytes");
    drop(origin);
    proxy.finish();
}

#[test]
fn a_name_without_end_is_cut_off() {
    let origin = Origin::echo();
    let proxy = Proxyd::with_all(origin.address, &[]);
    for kind in ["socks", "auto"] {
        for start in [
            &b"\x04\x01\x00\x09\x7f\x00\x00\x01"[..],
            b"\x04\x01\x00\x09\x00\x00\x00\x01me\0",
        ] {
            let conn = Conn::dial(proxy.address(kind));
            conn.send(start);
            conn.send_anyway(vec![b'u'; 300_000]);
            let (bytes, _) = conn.rest();
            assert!(bytes.is_empty() || bytes[..2] == [0, 0x5B], "{bytes:?}");
        }
    }
    for kind in ["http", "auto"] {
        let conn = Conn::dial(proxy.address(kind));
        conn.send("GET http://127.0.0.1/");
        conn.send_anyway(vec![b'u'; 300_000]);
        conn.rest();
    }
    drop(origin);
    proxy.finish();
}

#[test]
fn half_sent_heads_do_not_hold_up_others() {
    let origin = Origin::page("ok");
    let toml = "timeouts.head = \"2s\"\ntimeouts.keep_alive = \"2s\"";
    let proxy = Proxyd::with_config(origin.address, toml);
    let starts: [(&str, &[u8]); 6] = [
        ("http", b"GET http://127.0.0.1/ HTTP/1.1\r\nA: "),
        ("socks", b"\x05\x01"),
        ("socks", b"\x04\x01\x00"),
        ("https", b"\x16\x03\x01"),
        ("auto", b"\x16\x03\x01"),
        ("auto", b"CONNEC"),
    ];
    let mut slow = Vec::new();
    for (kind, start) in starts {
        for _ in 0..50 {
            let conn = Conn::dial(proxy.address(kind));
            conn.send(start);
            slow.push(conn);
        }
    }
    // Connected and silent.
    for kind in LISTENERS {
        slow.extend((0..20).map(|_| Conn::dial(proxy.address(kind))));
    }
    let start = std::time::Instant::now();
    serves_page(&proxy, &origin);
    assert!(
        start.elapsed() < std::time::Duration::from_secs(2),
        "{:?}",
        start.elapsed()
    );
    // P62: one deadline ends them all; the port relay has none, its
    // connections are tunnels already.
    let relay = proxy.address("tcp");
    for conn in slow {
        if conn.socket().peer_addr().unwrap() != relay {
            conn.rest();
        }
    }
    drop(origin);
    proxy.finish();
}

#[test]
fn p62_single_bytes_do_not_renew_the_deadline_of_a_head() {
    let origin = Origin::page("ok");
    let proxy = Proxyd::with_config(origin.address, "timeouts.head = \"1s\"");
    for (kind, start) in [
        ("http", &b"GET http://127.0.0.1/ HTTP/1.1\r\nA: "[..]),
        ("socks", b"\x04\x01\x00\x09\x7f\x00\x00\x01"),
        ("auto", b"GET http://127.0.0.1/"),
    ] {
        let conn = Conn::dial(proxy.address(kind));
        conn.send(start);
        let begin = std::time::Instant::now();
        // A byte each 50 ms, until the end is noticed.
        while conn.is_silent_for(std::time::Duration::from_millis(50)) {
            conn.send_anyway("a");
            assert!(begin.elapsed().as_secs() < 10, "{kind}: still open");
        }
        conn.rest();
    }
    drop(origin);
    proxy.finish();
}

/// Up to 600 random bytes that no listener takes for a request to dial out.
fn harmless(random: &mut Random) -> Vec<u8> {
    let length = 1 + random.below(600);
    let mut bytes = random.bytes(length);
    if bytes[0] == 4 {
        bytes[0] = 3;
    }
    bytes
}

/// Ends the connection in one of three ways and waits for the proxy's end.
fn end(conn: Conn, random: &mut Random) {
    match random.below(3) {
        0 => drop(conn),
        1 => conn.reset(),
        _ => {
            conn.fin();
            conn.rest();
        }
    }
}

fn valid_inputs(origin: &Origin) -> Vec<Vec<u8>> {
    let (url, host, login) = (origin.url("/"), origin.authority(), basic("alice:secret"));
    let request = format!(
        "POST {url} HTTP/1.1\r\nHost: {host}\r\nProxy-Authorization: {login}\r\n\
         Content-Length: 10\r\n\r\n0123456789"
    );
    let chunked = format!(
        "POST {url} HTTP/1.1\r\nHost: {host}\r\nTransfer-Encoding: chunked\r\n\r\n\
         a;x=y\r\n0123456789\r\n0\r\nT: t\r\n\r\n"
    );
    let login = b"\x05\x01\x02\x01\x05alice\x06secret";
    let socks5 = Mode::Socks5.hello(origin.address);
    let port = origin.address.port().to_be_bytes();
    let socks4a = [&b"\x04\x01"[..], &port, b"\0\0\0\x01me\0localhost\0"].concat();
    vec![
        request.into_bytes(),
        chunked.into_bytes(),
        Mode::Connect.hello(origin.address),
        [&login[..], &socks5[3..]].concat(),
        socks5,
        socks4a,
        Mode::Socks4.hello(origin.address),
        support::client_hello(),
    ]
}

fn serves_page(proxy: &Proxyd, origin: &Origin) {
    for mode in Mode::ALL {
        let conn = mode.open(proxy, origin.address);
        conn.send("GET / HTTP/1.1\r\nHost: x\r\n\r\n");
        assert_eq!(support::Answer::read(&conn).status, 200);
    }
}
