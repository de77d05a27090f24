//! Tunnels of every mode: early bytes, half-close, resets, order and delay.

mod support;

use std::io::Write;
use std::time::Duration;

use support::{
    Accepted, Conn, DOWN, Ended, Mode, Origin, Proxyd, UP, basic, socks5_reply, wait_for,
};

#[test]
fn bytes_of_any_value_pass_both_ways() {
    let origin = Origin::echo();
    let proxy = Proxyd::with_all(origin.address, &[]);
    let all: Vec<u8> = (0..=255).cycle().take(5000).collect();
    for mode in Mode::ALL {
        eprintln!("{mode:?}");
        let conn = mode.open(&proxy, origin.address);
        conn.send(&all);
        conn.expect(&all);
    }
    drop(origin);
    proxy.finish();
}

#[test]
fn p41_a_server_that_speaks_first_is_heard() {
    let origin = Origin::greeting(b"220 ready\r\n");
    let proxy = Proxyd::with_all(origin.address, &[]);
    for mode in Mode::ALL {
        eprintln!("{mode:?}");
        let conn = mode.open(&proxy, origin.address);
        conn.expect("220 ready\r\n");
        conn.send("QUIT");
        conn.expect("QUIT");
    }
    drop(origin);
    proxy.finish();
}

#[test]
fn p41_bytes_in_the_segment_of_the_request_arrive() {
    let origin = Origin::echo();
    let proxy = Proxyd::with_all(origin.address, &[]);
    for mode in Mode::ALL {
        for size in [1, 5000, 200_000] {
            eprintln!("{mode:?} {size}");
            let conn = mode.dial(&proxy);
            let early = UP.first(size);
            std::thread::scope(|scope| {
                let hello = [&mode.hello(origin.address), early].concat();
                scope.spawn(|| conn.send(hello));
                assert_eq!(mode.answer(&conn), 200);
                conn.expect(early);
            });
        }
    }
    drop(origin);
    proxy.finish();
}

#[test]
fn p41_bytes_in_the_segment_that_ends_the_tls_handshake_arrive() {
    let origin = Origin::echo();
    let proxy = Proxyd::with_all(origin.address, &[]);
    for mode in Mode::ALL.into_iter().filter(|mode| mode.is_tls()) {
        eprintln!("{mode:?}");
        let early = [&mode.hello(origin.address), &b"early"[..]].concat();
        let conn = Conn::dial_tls_with(proxy.address(mode.listener()), &early);
        assert_eq!(mode.answer(&conn), 200);
        conn.expect("early");
    }
    drop(origin);
    proxy.finish();
}

#[test]
fn socks_is_served_inside_tls_on_the_auto_port() {
    let origin = Origin::echo();
    let proxy = Proxyd::with_all(origin.address, &[]);
    for mode in [Mode::AutoSocks4, Mode::AutoSocks5] {
        let early = [&mode.hello(origin.address), &b"early"[..]].concat();
        let conn = Conn::dial_tls_with(proxy.address("auto"), &early);
        assert_eq!(mode.answer(&conn), 200, "{mode:?}");
        conn.expect("early");
        conn.fin();
        assert_eq!(conn.to_end(), b"");
    }
    drop(origin);
    proxy.finish();
}

#[test]
fn greeting_login_request_and_data_may_come_at_once() {
    let origin = Origin::echo();
    let proxy = Proxyd::with_all(origin.address, &["--user", "alice:a:b"]);
    for kind in ["socks", "auto"] {
        let conn = Conn::dial(proxy.address(kind));
        let request = &Mode::Socks5.hello(origin.address)[3..];
        let login = b"\x05\x01\x02\x01\x05alice\x03a:b";
        conn.send([login, request, b"early"].concat());
        conn.expect([5, 2, 1, 0]);
        assert_eq!(socks5_reply(&conn), 0);
        conn.expect("early");
    }
    for kind in ["http", "auto"] {
        let conn = Conn::dial(proxy.address(kind));
        let (target, login) = (origin.address, basic("alice:a:b"));
        conn.send(format!(
            "CONNECT {target} HTTP/1.1\r\nHost: {target}\r\nProxy-Authorization: {login}\r\n\r\nearly"
        ));
        assert_eq!(Mode::Connect.answer(&conn), 200);
        conn.expect("early");
    }
    drop(origin);
    proxy.finish();
}

#[test]
fn the_request_may_come_byte_by_byte() {
    let origin = Origin::echo();
    let proxy = Proxyd::with_all(origin.address, &[]);
    for mode in Mode::ALL {
        eprintln!("{mode:?}");
        let conn = mode.dial(&proxy);
        let bytes = [&mode.hello(origin.address), &b"data"[..]].concat();
        for byte in &bytes {
            // Without Nagle each is a segment of its own.
            conn.send([*byte]);
        }
        assert_eq!(mode.answer(&conn), 200);
        conn.expect("data");
    }
    drop(origin);
    proxy.finish();
}

#[test]
fn p42_the_answer_to_connect_has_no_length_and_no_coding() {
    let origin = Origin::echo();
    let proxy = Proxyd::with_all(origin.address, &[]);
    let conn = Mode::Connect.dial(&proxy);
    conn.send(Mode::Connect.hello(origin.address));
    let answer = support::Answer::read_head(&conn);
    assert_eq!(answer.status, 200);
    for name in ["content-length", "transfer-encoding"] {
        assert_eq!(answer.field(name), None, "{}", answer.head);
    }
    drop(conn);
    drop(origin);
    proxy.finish();
}

#[test]
fn p44_a_client_that_ends_its_direction_still_gets_the_answer() {
    let (origin, accepted) = Origin::manual();
    let proxy = Proxyd::with_all(origin.address, &[]);
    for mode in Mode::ALL {
        eprintln!("{mode:?}");
        let conn = mode.open(&proxy, origin.address);
        let far = Accepted::next(&accepted);
        conn.send("question");
        conn.fin();
        assert_eq!(far.to_end(), b"question");
        DOWN.send(&far, 0, 3_000_000).unwrap();
        drop(far);
        DOWN.check_all(&conn, 3_000_000).unwrap();
    }
    drop(origin);
    proxy.finish();
}

#[test]
fn p44_an_origin_that_ends_its_direction_still_gets_the_rest() {
    let (origin, accepted) = Origin::manual();
    let proxy = Proxyd::with_all(origin.address, &[]);
    for mode in Mode::ALL {
        eprintln!("{mode:?}");
        let conn = mode.open(&proxy, origin.address);
        let far = Accepted::next(&accepted);
        far.send("all");
        far.fin();
        assert_eq!(conn.to_end(), b"all");
        std::thread::scope(|scope| {
            let arrived = scope.spawn(|| UP.check_all(&far, 3_000_000));
            UP.send(&conn, 0, 3_000_000).unwrap();
            conn.fin();
            arrived.join().unwrap().unwrap();
        });
    }
    drop(origin);
    proxy.finish();
}

#[test]
fn p44_request_data_and_end_may_come_at_once() {
    let (origin, accepted) = Origin::manual();
    let proxy = Proxyd::with_all(origin.address, &[]);
    for mode in Mode::ALL {
        eprintln!("{mode:?}");
        let conn = mode.dial(&proxy);
        conn.send([&mode.hello(origin.address), &b"data"[..]].concat());
        conn.fin();
        let far = Accepted::next(&accepted);
        assert_eq!(mode.answer(&conn), 200);
        assert_eq!(far.to_end(), b"data");
        far.send("answer");
        drop(far);
        assert_eq!(conn.to_end(), b"answer");
    }
    drop(origin);
    proxy.finish();
}

#[test]
fn p44_both_sides_may_end_without_a_byte() {
    let (origin, accepted) = Origin::manual();
    let proxy = Proxyd::with_all(origin.address, &[]);
    for mode in Mode::ALL {
        eprintln!("{mode:?}");
        let conn = mode.open(&proxy, origin.address);
        let far = Accepted::next(&accepted);
        conn.fin();
        assert_eq!(far.to_end(), b"");
        far.fin();
        assert_eq!(conn.to_end(), b"");
        // Closed by the proxy before either end lets go of its socket.
        proxy.settle();
    }
    drop(origin);
    proxy.finish();
}

#[test]
fn p45_a_tunnel_that_stays_half_closed_is_ended() {
    let (origin, accepted) = Origin::manual();
    let proxy = Proxyd::with_config(origin.address, "timeouts.half_closed = \"1s\"");
    let mut tunnels = Vec::new();
    for mode in Mode::ALL {
        let near = mode.open(&proxy, origin.address);
        let far = Accepted::next(&accepted);
        near.fin();
        assert_eq!(far.to_end(), b"", "{mode:?}");
        tunnels.push((near, far));
    }
    proxy.settle();
    drop(tunnels);
    drop(origin);
    proxy.finish();
}

#[test]
fn the_reset_of_a_client_reaches_the_origin() {
    let (origin, accepted) = Origin::manual();
    let proxy = Proxyd::with_all(origin.address, &[]);
    for mode in Mode::ALL {
        eprintln!("{mode:?}");
        let conn = mode.open(&proxy, origin.address);
        let far = Accepted::next(&accepted);
        conn.send("sent");
        far.expect("sent");
        conn.reset();
        assert_eq!(far.rest(), (Vec::new(), Ended::Reset));
    }
    drop(origin);
    proxy.finish();
}

#[test]
fn the_reset_of_an_origin_reaches_the_client() {
    let (origin, accepted) = Origin::manual();
    let proxy = Proxyd::with_all(origin.address, &[]);
    for mode in Mode::ALL {
        eprintln!("{mode:?}");
        let conn = mode.open(&proxy, origin.address);
        let far = Accepted::next(&accepted);
        far.send("sent");
        conn.expect("sent");
        far.reset();
        // Over TLS the end without close_notify is enough to tell it apart.
        let (bytes, how) = conn.rest();
        assert_eq!(bytes, b"");
        match mode.is_tls() {
            true => assert_ne!(how, Ended::Finished),
            false => assert_eq!(how, Ended::Reset),
        }
    }
    drop(origin);
    proxy.finish();
}

#[test]
fn a_reset_in_the_middle_of_a_bulk_transfer_reaches_the_other_side() {
    let (origin, accepted) = Origin::manual();
    let proxy = Proxyd::with_all(origin.address, &[]);
    for mode in Mode::ALL {
        eprintln!("{mode:?}");
        let conn = mode.open(&proxy, origin.address);
        let far = Accepted::next(&accepted);
        std::thread::scope(|scope| {
            let sender = scope.spawn(|| DOWN.send(&far, 0, 1 << 40));
            DOWN.check(&conn, 0, 50_000_000).unwrap();
            conn.reset();
            let error = sender.join().unwrap().unwrap_err();
            let kind = error.kind();
            let kinds = [
                std::io::ErrorKind::ConnectionReset,
                std::io::ErrorKind::BrokenPipe,
            ];
            assert!(kinds.contains(&kind), "{error}");
        });
    }
    drop(origin);
    proxy.finish();
}

/// The bytes before such an end arrived in order and are delivered; a reset in
/// its place would destroy what the origin has not read yet. The log calls it a
/// reset (see `proxy_relay::relay`).
#[test]
fn p75_an_end_without_close_notify_loses_nothing_before_it() {
    let (origin, accepted) = Origin::manual();
    let proxy = Proxyd::with_all(origin.address, &[]);
    for mode in Mode::ALL.into_iter().filter(|mode| mode.is_tls()) {
        eprintln!("{mode:?}");
        let conn = mode.open(&proxy, origin.address);
        let far = Accepted::next(&accepted);
        conn.send("half");
        far.expect("half");
        conn.cut();
        assert_eq!(far.rest(), (Vec::new(), Ended::Finished));
    }
    drop(origin);
    proxy.finish();
}

#[test]
fn p34_a_client_that_does_not_read_stops_the_origin() {
    let (origin, accepted) = Origin::manual();
    let proxy = Proxyd::with_all(origin.address, &["--workers", "1"]);
    let tunnels: Vec<(Conn, Conn)> = Mode::ALL
        .into_iter()
        .map(|mode| {
            let near = mode.open(&proxy, origin.address);
            (near, Accepted::next(&accepted))
        })
        .collect();
    let before = proxy.process().resident();
    std::thread::scope(|scope| {
        for (_, far) in &tunnels {
            scope.spawn(move || {
                let second = Some(Duration::from_secs(1));
                far.socket().set_write_timeout(second).unwrap();
                let mut taken = 0_u64;
                let chunk = DOWN.first(64 * 1024);
                let mut to = far;
                while let Ok(count) = to.write(chunk) {
                    taken += count as u64;
                    assert!(taken < 128 << 20, "{taken} bytes that nobody reads");
                }
            });
        }
    });
    let grown = proxy.process().resident().saturating_sub(before);
    assert!(grown < 8 << 20, "{grown} bytes of memory");
    drop(tunnels);
    drop(origin);
    proxy.finish();
}

#[test]
fn small_writes_are_not_held_back() {
    let (origin, accepted) = Origin::manual();
    let proxy = Proxyd::with_all(origin.address, &[]);
    for mode in Mode::ALL {
        let conn = mode.open(&proxy, origin.address);
        let far = Accepted::next(&accepted);
        let start = std::time::Instant::now();
        for _ in 0..50 {
            conn.send("1");
            conn.send("2");
            far.expect("12");
            far.send("a");
            far.send("b");
            conn.expect("ab");
        }
        // Nagle against delayed acknowledgements would cost 40 ms a turn.
        let took = start.elapsed();
        assert!(took < Duration::from_millis(1500), "{mode:?}: {took:?}");
    }
    drop(origin);
    proxy.finish();
}

#[test]
fn p33_a_client_that_leaves_while_its_request_is_served_frees_the_origin() {
    let (origin, accepted) = Origin::manual();
    let proxy = Proxyd::with_all(origin.address, &[]);
    for kind in ["http", "auto"] {
        let conn = Conn::dial(proxy.address(kind));
        let (url, host) = (origin.url("/"), origin.authority());
        conn.send(format!("GET {url} HTTP/1.1\r\nHost: {host}\r\n\r\n"));
        let far = Accepted::next(&accepted);
        far.until(b"\r\n\r\n");
        conn.reset();
        far.rest();
        wait_for("the end of the exchange", || {
            proxy.process().descriptors().sockets == proxy.base().sockets
        });
    }
    drop(origin);
    proxy.finish();
}

#[test]
fn p50_a_client_that_ends_behind_its_request_gets_the_answer() {
    let (origin, accepted) = Origin::manual();
    let proxy = Proxyd::with_all(origin.address, &[]);
    for kind in ["http", "auto"] {
        let conn = Conn::dial(proxy.address(kind));
        let (url, host) = (origin.url("/"), origin.authority());
        conn.send(format!("GET {url} HTTP/1.1\r\nHost: {host}\r\n\r\n"));
        conn.fin();
        let far = Accepted::next(&accepted);
        far.until(b"\r\n\r\n");
        assert!(
            far.is_silent_for(Duration::from_millis(100)),
            "taken for gone"
        );
        far.send("HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok");
        let answer = conn.to_end();
        assert!(answer.ends_with(b"\r\n\r\nok"), "{}", answer.escape_ascii());
    }
    drop(origin);
    proxy.finish();
}

#[test]
fn tunnels_in_parallel_do_not_mix() {
    let origin = Origin::echo();
    let proxy = Proxyd::with_all(origin.address, &[]);
    std::thread::scope(|scope| {
        for index in 0..27_u64 {
            let (proxy, target) = (&proxy, origin.address);
            scope.spawn(move || {
                let mode = Mode::ALL[usize::try_from(index).unwrap() % Mode::ALL.len()];
                let conn = mode.open(proxy, target);
                let (from, to) = (index * 777_777, index * 777_777 + 4_000_000);
                std::thread::scope(|scope| {
                    scope.spawn(|| UP.send(&conn, from, to).unwrap());
                    UP.check(&conn, from, to).unwrap();
                });
            });
        }
    });
    drop(origin);
    proxy.finish();
}
