//! Every refusal over SOCKS has its right reply code, and the port keeps serving.

mod support;

use std::net::SocketAddr;

use support::{Accepted, Conn, Mode, Origin, Proxyd, socks5_reply};

#[test]
fn socks5_refusals_have_their_reply_codes() {
    let origin = Origin::echo();
    let proxy = Proxyd::with_all(origin.address, &[]);
    let table: [(&[u8], u8); 6] = [
        // An unknown command, an unknown address type.
        (b"\x05\x09\x00\x01\x7f\x00\x00\x01\x00\x09", 7),
        (b"\x05\x01\x00\x02\x7f\x00\x00\x01\x00\x09", 8),
        // P61: names that are none.
        (b"\x05\x01\x00\x03\x00\x00\x09", 4),
        (b"\x05\x01\x00\x03\x03a\0b\x00\x09", 4),
        (b"\x05\x01\x00\x03\x03a b\x00\x09", 4),
        (b"\x05\x01\x00\x03\x04a\r\nb\x00\x09", 4),
    ];
    for kind in ["socks", "auto"] {
        for (request, code) in table {
            let conn = Conn::dial(proxy.address(kind));
            conn.send([b"\x05\x01\x00", request].concat());
            conn.expect([5, 0]);
            assert_eq!(socks5_reply(&conn), code, "{}", request.escape_ascii());
            assert_eq!(conn.to_end(), b"", "{}", request.escape_ascii());
            proxy.serves(origin.address);
        }
    }
    drop(origin);
    proxy.finish();
}

#[test]
fn socks5_without_a_method_in_common_answers_ff_and_closes() {
    let origin = Origin::echo();
    let open = Proxyd::with_all(origin.address, &[]);
    let closed = Proxyd::with_all(origin.address, &["--user", "alice:secret"]);
    for kind in ["socks", "auto"] {
        for (proxy, greeting) in [
            (&open, &b"\x05\x01\x01"[..]),
            (&open, b"\x05\x03\x03\x80\xFE"),
            (&open, b"\x05\x00"),
            (&closed, b"\x05\x01\x00"),
            (&closed, b"\x05\x02\x00\x01"),
        ] {
            let conn = Conn::dial(proxy.address(kind));
            conn.send(greeting);
            conn.expect([5, 0xFF]);
            assert_eq!(conn.to_end(), b"", "{}", greeting.escape_ascii());
        }
    }
    open.serves(origin.address);
    drop(origin);
    open.finish();
    closed.finish();
}

#[test]
fn socks5_refuses_a_wrong_login_and_closes() {
    let origin = Origin::echo();
    let proxy = Proxyd::with_all(origin.address, &["--user", "alice:secret"]);
    let logins: [&[u8]; 6] = [
        b"\x01\x05alice\x05wrong",
        b"\x01\x05alice\x07secret\0",
        b"\x01\x05alice\x07secretx",
        b"\x01\x05alice\x05secre",
        b"\x01\x05alicf\x06secret",
        b"\x01\x06alice\0\x06secret",
    ];
    for kind in ["socks", "auto"] {
        for login in logins {
            let conn = Conn::dial(proxy.address(kind));
            // No-authentication is offered as well and must not be chosen.
            conn.send([b"\x05\x02\x00\x02", login].concat());
            conn.expect([5, 2]);
            let answer = conn.exact(2);
            assert_eq!(answer[0], 1, "{}", login.escape_ascii());
            assert_ne!(answer[1], 0, "{}", login.escape_ascii());
            assert_eq!(conn.rest().0, b"", "{}", login.escape_ascii());
        }
        let conn = Conn::dial(proxy.address(kind));
        conn.send(b"\x05\x01\x02\x02\x05alice\x06secret");
        conn.expect([5, 2]);
        let (rest, _) = conn.rest();
        assert!(!rest.starts_with(&[1, 0]), "login version 2 was taken");
    }
    drop(origin);
    proxy.finish();
}

#[test]
fn socks4_refusals_have_their_reply_codes() {
    let origin = Origin::echo();
    let open = Proxyd::with_all(origin.address, &[]);
    let closed = Proxyd::with_all(origin.address, &["--user", "alice:secret"]);
    let SocketAddr::V4(v4) = origin.address else {
        unreachable!()
    };
    let port = v4.port().to_be_bytes();
    let connect = [&[4, 1][..], &port, &[127, 0, 0, 1], b"alice\0"].concat();
    let unknown = [&[4, 7][..], &port, &[127, 0, 0, 1], b"alice\0"].concat();
    let nameless = [&[4, 1][..], &port, &[0, 0, 0, 1], b"alice\0\0"].concat();
    for kind in ["socks", "auto"] {
        // SOCKS4 has no password, so it cannot prove who is there.
        for (proxy, request) in [(&open, &unknown), (&open, &nameless), (&closed, &connect)] {
            let conn = Conn::dial(proxy.address(kind));
            conn.send(request);
            let reply = conn.exact(8);
            assert_eq!(reply[0], 0, "{}", request.escape_ascii());
            assert!(
                (0x5B..=0x5D).contains(&reply[1]),
                "{}",
                request.escape_ascii()
            );
            assert_eq!(conn.to_end(), b"", "{}", request.escape_ascii());
        }
    }
    open.serves(origin.address);
    drop(origin);
    open.finish();
    closed.finish();
}

#[test]
fn socks_versions_other_than_4_and_5_are_cut_off() {
    let origin = Origin::echo();
    let proxy = Proxyd::with_all(origin.address, &[]);
    for version in [0, 1, 3, 6, 0x16, 0x47, 0xFF] {
        let conn = Conn::dial(proxy.address("socks"));
        conn.send([version, 1, 0]);
        let (bytes, _) = conn.rest();
        assert!(bytes.is_empty(), "version {version}: {bytes:?}");
        proxy.serves(origin.address);
    }
    drop(origin);
    proxy.finish();
}

#[test]
fn p60_a_reply_carries_the_address_of_the_proxy_towards_the_origin() {
    let (origin, accepted) = Origin::manual();
    let proxy = Proxyd::with_all(origin.address, &[]);
    for kind in ["socks", "auto"] {
        let conn = Conn::dial(proxy.address(kind));
        conn.send(Mode::Socks5.hello(origin.address));
        conn.expect([5, 0, 5, 0, 0, 1, 127, 0, 0, 1]);
        let port = conn.exact(2);
        let far = Accepted::next(&accepted);
        let seen = far.socket().peer_addr().unwrap().port();
        assert_eq!(port, seen.to_be_bytes());
    }
    drop(origin);
    proxy.finish();
}
