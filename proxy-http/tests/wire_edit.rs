//! What a forwarded head looks like.

use bytes::BytesMut;
use proxy_core::Status;
use proxy_http::{
    EditError, EditScript, Framing, HeadEdit, HeadLimits, Persist, RequestParser, ResponseParser,
    ToClient, ToOrigin,
};

/// A request head after `change`.
fn request(head: &str, change: impl FnOnce(&mut HeadEdit<'_>)) -> String {
    let mut parser = RequestParser::new(HeadLimits::default());
    let Ok(Status::Complete(head, _)) = parser.parse(head.as_bytes()) else {
        panic!("not a head: {head:?}");
    };
    let mut script = EditScript::new();
    let mut edit = HeadEdit::request(&mut script, &head);
    change(&mut edit);
    encoded(&edit)
}

/// A response head after `change`.
fn response(head: &str, change: impl FnOnce(&mut HeadEdit<'_>)) -> String {
    let mut parser = ResponseParser::new(HeadLimits::default());
    let Ok(Status::Complete(head, _)) = parser.parse(head.as_bytes()) else {
        panic!("not a head: {head:?}");
    };
    let mut script = EditScript::new();
    let mut edit = HeadEdit::response(&mut script, &head);
    change(&mut edit);
    encoded(&edit)
}

fn encoded(edit: &HeadEdit<'_>) -> String {
    let mut out = BytesMut::from(&b"before"[..]);
    edit.encode(&mut out);
    let text = String::from_utf8(out.to_vec()).expect("text");
    text.strip_prefix("before").expect("appended").to_owned()
}

fn origin(head: &str) -> String {
    request(head, |edit| edit.to_origin(ToOrigin::default()))
}

fn client(head: &str) -> String {
    response(head, |edit| edit.to_client(ToClient::default()))
}

#[test]
fn framing_is_spelt_as_everybody_reads_it() {
    for (received, sent) in [
        ("transfer-encoding: Chunked", "transfer-encoding: chunked"),
        ("Transfer-Encoding:chunked", "Transfer-Encoding:chunked"),
        ("Transfer-Encoding: chunked\t", "Transfer-Encoding: chunked"),
        ("Transfer-Encoding:\tchunked", "Transfer-Encoding: chunked"),
        ("Transfer-Encoding:  chunked", "Transfer-Encoding: chunked"),
        ("Content-Length: 5 ", "Content-Length: 5"),
        ("Content-Length:5", "Content-Length:5"),
        ("content-LENGTH: 0050", "content-LENGTH: 50"),
        ("Content-Length: 000", "Content-Length: 0"),
        ("Content-Length: \t0\t ", "Content-Length: 0"),
    ] {
        let head = |line| format!("A: 1\r\n{line}\r\nB: 2\r\n\r\n");
        let request = origin(&format!(
            "POST http://h/ HTTP/1.1\r\nHost: h\r\n{}",
            head(received)
        ));
        assert_eq!(
            request,
            format!("POST / HTTP/1.1\r\nHost: h\r\n{}", head(sent))
        );
        let response = client(&format!("HTTP/1.1 200 OK\r\n{}", head(received)));
        assert_eq!(response, format!("HTTP/1.1 200 OK\r\n{}", head(sent)));
    }
}

#[test]
fn connect_gets_the_host_of_its_target() {
    for fields in ["", "Host: h\r\n", "Host:\r\n"] {
        let sent = origin(&format!("CONNECT h:443 HTTP/1.0\r\n{fields}A: b\r\n\r\n"));
        assert_eq!(
            sent, "CONNECT h:443 HTTP/1.1\r\nHost: h:443\r\nA: b\r\n\r\n",
            "{fields:?}"
        );
    }
}

#[test]
fn p11_the_origin_gets_the_origin_form() {
    for (line, host, sent) in [
        (
            "GET http://h/a/../b//c?x=%41 HTTP/1.1",
            "h",
            "GET /a/../b//c?x=%41 HTTP/1.1",
        ),
        ("GET http://h/ HTTP/1.0", "h", "GET / HTTP/1.1"),
        ("GET http://h HTTP/1.1", "h", "GET / HTTP/1.1"),
        ("GET http://h HTTP/1.0", "h", "GET / HTTP/1.1"),
        ("GET http://h?q HTTP/1.1", "h", "GET /?q HTTP/1.1"),
        ("GET HTTP://h//evil/ HTTP/1.1", "h", "GET //evil/ HTTP/1.1"),
        ("OPTIONS http://h HTTP/1.1", "h", "OPTIONS * HTTP/1.1"),
        ("OPTIONS http://h HTTP/1.0", "h", "OPTIONS * HTTP/1.1"),
        ("OPTIONS http://h/ HTTP/1.1", "h", "OPTIONS / HTTP/1.1"),
        ("OPTIONS http://h?q HTTP/1.1", "h", "OPTIONS /?q HTTP/1.1"),
        ("OPTIONSX http://h HTTP/1.1", "h", "OPTIONSX / HTTP/1.1"),
        ("GET /a?b HTTP/1.1", "h", "GET /a?b HTTP/1.1"),
        ("GET /a?b HTTP/1.0", "h", "GET /a?b HTTP/1.1"),
        ("OPTIONS * HTTP/1.1", "h", "OPTIONS * HTTP/1.1"),
    ] {
        let head = format!("\r\n{line}\r\nA: 1\r\nHost: {host}\r\n\r\n");
        assert_eq!(
            origin(&head),
            format!("{sent}\r\nA: 1\r\nHost: h\r\n\r\n"),
            "{line}"
        );
    }
}

#[test]
fn p11_a_parent_gets_the_absolute_form() {
    let hop = ToOrigin {
        absolute: true,
        ..ToOrigin::default()
    };
    let sent = request("GET http://h/a HTTP/1.0\r\n\r\n", |edit| {
        edit.to_origin(hop)
    });
    assert_eq!(sent, "GET http://h/a HTTP/1.1\r\nHost: h\r\n\r\n");
}

#[test]
fn p10_the_host_is_the_targets() {
    for (fields, sent) in [
        (
            "A: 1\r\nHost: other:99\r\nB: 2\r\n",
            "A: 1\r\nHost: h:81\r\nB: 2\r\n",
        ),
        ("hOsT:h:81\r\nB: 2\r\n", "hOsT:h:81\r\nB: 2\r\n"),
        ("Host: H:81\r\n", "Host: h:81\r\n"),
        ("Host:\r\n", "Host: h:81\r\n"),
    ] {
        let head = format!("GET http://h:81/ HTTP/1.1\r\n{fields}\r\n");
        assert_eq!(
            origin(&head),
            format!("GET / HTTP/1.1\r\n{sent}\r\n"),
            "{fields:?}"
        );
    }
    let old = "GET http://h:81/ HTTP/1.0\r\nA: 1\r\n\r\n";
    assert_eq!(origin(old), "GET / HTTP/1.1\r\nHost: h:81\r\nA: 1\r\n\r\n");
}

#[test]
fn p23_fields_of_the_hop_go() {
    for (fields, sent) in [
        ("Connection: close\r\nA: 1\r\n", "A: 1\r\n"),
        (
            "Proxy-Connection: keep-alive\r\nKeep-Alive: timeout=5\r\nA: 1\r\n",
            "A: 1\r\n",
        ),
        (
            "Connection: x-one,, \t,X-Two\r\nX-One: 1\r\nA: 1\r\nx-two: 2\r\nX-TWO: 3\r\n",
            "A: 1\r\n",
        ),
        (
            "X-One: 1\r\nConnection: a\r\nConnection:X-ONE\r\nx-one-more: 2\r\n",
            "x-one-more: 2\r\n",
        ),
        (
            "Connection: connection, keep-alive, close\r\nA: 1\r\n",
            "A: 1\r\n",
        ),
        (
            "Connection: content-length, HOST, transfer-encoding, cookie\r\nCookie: c\r\nContent-Length: 0\r\n",
            "Content-Length: 0\r\n",
        ),
        (
            "Upgrade: websocket\r\nConnection: upgrade\r\nA: 1\r\n",
            "A: 1\r\n",
        ),
        ("TE: trailers\r\nA: 1\r\n", "A: 1\r\n"),
        ("Connection: TE\r\nA: 1\r\n", "A: 1\r\n"),
        (
            "TE: trailers\r\nConnection: TE\r\n",
            "TE: trailers\r\nConnection: TE\r\n",
        ),
        (
            "TE: trailers, deflate\r\nConnection: TE\r\nA: 1\r\n",
            "A: 1\r\n",
        ),
        (
            "TE: trailers\r\nTE: gzip;q=0\r\nConnection: TE\r\nA: 1\r\n",
            "A: 1\r\n",
        ),
        ("Connection: a b, \"q\", x\r\nX: 1\r\nA: 1\r\n", "A: 1\r\n"),
        ("Connection:\r\nA: 1\r\n", "A: 1\r\n"),
        ("A: 1\r\nConnection: close\r\n", "A: 1\r\n"),
        (
            "Expect: 100-continue\r\nContent-Length: 3\r\n",
            "Expect: 100-continue\r\nContent-Length: 3\r\n",
        ),
    ] {
        let head = format!("POST http://h/ HTTP/1.1\r\nHost: h\r\n{fields}\r\n");
        assert_eq!(
            origin(&head),
            format!("POST / HTTP/1.1\r\nHost: h\r\n{sent}\r\n"),
            "{fields:?}"
        );
    }
}

#[test]
fn p24_the_login_stays_here() {
    let head = "GET http://h/ HTTP/1.1\r\nHost: h\r\nproxy-authorization: Basic x\r\nAuthorization: y\r\n\r\n";
    assert_eq!(
        origin(head),
        "GET / HTTP/1.1\r\nHost: h\r\nAuthorization: y\r\n\r\n"
    );
    let parent = request(head, |edit| {
        edit.to_origin(ToOrigin::default());
        assert_eq!(edit.append("Proxy-Authorization", b"Basic z"), Ok(()));
    });
    assert!(
        parent.ends_with("y\r\nProxy-Authorization: Basic z\r\n\r\n"),
        "{parent}"
    );
}

#[test]
fn upgrades_and_closing_are_said_in_our_own_words() {
    let head = "GET http://h/ HTTP/1.1\r\nHost: h\r\nConnection: keep-alive, X, Upgrade\r\nUpgrade: websocket\r\nX: 1\r\n\r\n";
    let upgrade = ToOrigin {
        upgrade: true,
        ..ToOrigin::default()
    };
    let sent = request(head, |edit| edit.to_origin(upgrade));
    assert_eq!(
        sent,
        "GET / HTTP/1.1\r\nHost: h\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n"
    );
    let close = ToOrigin {
        close: true,
        ..ToOrigin::default()
    };
    let sent = request(head, |edit| edit.to_origin(close));
    assert_eq!(
        sent,
        "GET / HTTP/1.1\r\nHost: h\r\nConnection: close\r\n\r\n"
    );
    let plain = "GET http://h/ HTTP/1.1\r\nHost: h\r\n\r\n";
    let sent = request(plain, |edit| {
        edit.to_origin(ToOrigin {
            upgrade: true,
            ..close
        })
    });
    assert_eq!(
        sent,
        "GET / HTTP/1.1\r\nHost: h\r\nConnection: close\r\n\r\n"
    );
}

#[test]
fn p25_order_case_and_repeats_stay() {
    let fields = "sEt-CoOkIe: a=1; b\r\nX:  spaced \t\r\nSet-Cookie: c\r\nEmpty:\r\nX: 2\r\nContent-Length: 0\r\n";
    let head = format!("HTTP/1.1 200 Fine\r\n{fields}\r\n");
    assert_eq!(client(&head), head);
}

#[test]
fn responses_lose_what_belongs_to_the_hop() {
    for (head, sent) in [
        (
            "HTTP/1.1 200 OK\r\nConnection: keep-alive\r\nKeep-Alive: x\r\nA: 1\r\n\r\n",
            "HTTP/1.1 200 OK\r\nA: 1\r\n\r\n",
        ),
        (
            "HTTP/1.0 200 OK\r\nA: 1\r\n\r\n",
            "HTTP/1.1 200 OK\r\nA: 1\r\n\r\n",
        ),
        (
            "HTTP/1.0 200\r\nA: 1\r\n\r\n",
            "HTTP/1.1 200 \r\nA: 1\r\n\r\n",
        ),
        ("HTTP/1.1 200\r\n\r\n", "HTTP/1.1 200 \r\n\r\n"),
        (
            "HTTP/1.1 200 OK\r\nProxy-Authenticate: Basic realm=x\r\nWWW-Authenticate: y\r\n\r\n",
            "HTTP/1.1 200 OK\r\nWWW-Authenticate: y\r\n\r\n",
        ),
        (
            "HTTP/1.1 200 OK\r\nProxy-Authentication-Info: x\r\nAuthentication-Info: y\r\n\r\n",
            "HTTP/1.1 200 OK\r\nAuthentication-Info: y\r\n\r\n",
        ),
        (
            "HTTP/1.1 200 OK\r\nConnection: x\r\nX: 1\r\nTransfer-Encoding: chunked\r\n\r\n",
            "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n",
        ),
        (
            "HTTP/1.1 200 OK\r\nUpgrade: h2c\r\nConnection: TE\r\nTrailer: t\r\n\r\n",
            "HTTP/1.1 200 OK\r\nTrailer: t\r\n\r\n",
        ),
        (
            "HTTP/1.1 103 Early Hints\r\nLink: x\r\n\r\n",
            "HTTP/1.1 103 Early Hints\r\nLink: x\r\n\r\n",
        ),
        (
            "HTTP/1.1 204 No Content\r\nContent-Length: 6\r\nA: 1\r\n\r\n",
            "HTTP/1.1 204 No Content\r\nA: 1\r\n\r\n",
        ),
        (
            "HTTP/1.1 204 No Content\r\nTransfer-Encoding: chunked\r\n\r\n",
            "HTTP/1.1 204 No Content\r\n\r\n",
        ),
        (
            "HTTP/1.1 100 Continue\r\nContent-Length: 6\r\n\r\n",
            "HTTP/1.1 100 Continue\r\n\r\n",
        ),
        (
            "HTTP/1.1 304 X\r\nContent-Length: 6\r\n\r\n",
            "HTTP/1.1 304 X\r\nContent-Length: 6\r\n\r\n",
        ),
    ] {
        assert_eq!(client(head), sent, "{head:?}");
    }
}

#[test]
fn the_client_is_told_what_becomes_of_its_connection() {
    let head = "HTTP/1.1 200 OK\r\nConnection: x\r\nA: 1\r\n\r\n";
    for (persist, sent) in [
        (
            Persist::Close,
            "HTTP/1.1 200 OK\r\nConnection: close\r\nA: 1\r\n\r\n",
        ),
        (
            Persist::KeepAlive,
            "HTTP/1.1 200 OK\r\nConnection: keep-alive\r\nA: 1\r\n\r\n",
        ),
        (Persist::Default, "HTTP/1.1 200 OK\r\nA: 1\r\n\r\n"),
    ] {
        let hop = ToClient {
            persist,
            upgrade: false,
        };
        assert_eq!(response(head, |edit| edit.to_client(hop)), sent);
    }
    let switch = "HTTP/1.1 101 X\r\nUpgrade: websocket\r\nConnection: upgrade\r\n\r\n";
    let hop = ToClient {
        upgrade: true,
        ..ToClient::default()
    };
    let sent = response(switch, |edit| edit.to_client(hop));
    assert_eq!(
        sent,
        "HTTP/1.1 101 X\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\r\n"
    );
}

#[test]
fn p17_a_body_can_be_reframed() {
    let head = "HTTP/1.1 200 OK\r\nA: 1\r\nTransfer-Encoding: chunked\r\nB: 2\r\n\r\n";
    for (framing, sent) in [
        (
            Framing::UntilClose,
            "HTTP/1.1 200 OK\r\nA: 1\r\nB: 2\r\n\r\n",
        ),
        (
            Framing::Length(7),
            "HTTP/1.1 200 OK\r\nA: 1\r\nB: 2\r\nContent-Length: 7\r\n\r\n",
        ),
        (
            Framing::Chunked,
            "HTTP/1.1 200 OK\r\nA: 1\r\nB: 2\r\nTransfer-Encoding: chunked\r\n\r\n",
        ),
    ] {
        assert_eq!(response(head, |edit| edit.reframe(framing)), sent);
    }
    let twice = response(head, |edit| {
        edit.reframe(Framing::Length(7));
        edit.reframe(Framing::Chunked);
    });
    assert_eq!(
        twice.matches("ransfer-").count() + twice.matches("Length").count(),
        1,
        "{twice}"
    );
}

#[test]
fn the_same_change_twice_is_one_change() {
    let head = "GET http://h/ HTTP/1.1\r\nA: 1\r\nHost: x\r\nConnection: x\r\nB: 2\r\n\r\n";
    let close = ToOrigin {
        close: true,
        ..ToOrigin::default()
    };
    for (hop, sent) in [
        (
            close,
            "GET / HTTP/1.1\r\nA: 1\r\nHost: h\r\nConnection: close\r\nB: 2\r\n\r\n",
        ),
        (
            ToOrigin::default(),
            "GET / HTTP/1.1\r\nA: 1\r\nHost: h\r\nB: 2\r\n\r\n",
        ),
    ] {
        let twice = request(head, |edit| {
            edit.to_origin(close);
            edit.to_origin(hop);
        });
        assert_eq!(twice, sent);
    }
}

#[test]
fn untouched_means_unchanged() {
    let mut parser = ResponseParser::new(HeadLimits::default());
    let mut script = EditScript::new();
    for (head, unchanged) in [
        ("HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n", true),
        ("HTTP/1.1 200 OK\r\nConnection: x\r\n\r\n", false),
        ("HTTP/1.0 200 OK\r\n\r\n", false),
        ("HTTP/1.1 200\r\n\r\n", false),
    ] {
        let Ok(Status::Complete(parsed, _)) = parser.parse(head.as_bytes()) else {
            panic!("not a head: {head:?}");
        };
        let mut edit = HeadEdit::response(&mut script, &parsed);
        edit.to_client(ToClient::default());
        assert_eq!(edit.is_unchanged(), unchanged, "{head:?}");
    }
}

#[test]
fn p03_blanks_before_the_colon_of_a_response_go() {
    let head = "HTTP/1.1 200 OK\r\nA : 1\r\nB: 2 : 3\r\nc\t \t:4\r\nContent-Length : 5\r\n\
                Keep-Alive : x\r\nConnection\t: y, close\r\nY : z\r\nSet-Cookie : a\r\nD :\r\n\r\n";
    assert_eq!(
        client(head),
        "HTTP/1.1 200 OK\r\nA: 1\r\nB: 2 : 3\r\nc:4\r\nContent-Length: 5\r\nSet-Cookie: a\r\nD:\r\n\r\n"
    );
    // Whatever else is done to it.
    assert_eq!(
        response("HTTP/1.0 200\r\nA : 1\r\nB : 2\r\nC : 3\r\n\r\n", |edit| {
            assert!(!edit.is_unchanged());
            assert!(edit.get("a") == Some(b"1") && edit.headers().all(|h| h.name.len() == 1));
            assert!(edit.remove("A"));
            assert_eq!(edit.set("c", b"4"), Ok(()));
            assert_eq!(edit.append("D", b"5"), Ok(()));
        }),
        "HTTP/1.0 200 \r\nB: 2\r\nc: 4\r\nD: 5\r\n\r\n"
    );
    // The next head has none.
    let mut parser = ResponseParser::new(HeadLimits::default());
    for (head, unchanged) in [
        (&b"HTTP/1.1 200 OK\r\nA : 1\r\n\r\n"[..], false),
        (b"HTTP/1.1 200 OK\r\nA: 1\r\n\r\n", true),
    ] {
        let Ok(Status::Complete(head, _)) = parser.parse(head) else {
            panic!("a head");
        };
        let mut script = EditScript::new();
        let mut edit = HeadEdit::response(&mut script, &head);
        edit.to_client(ToClient::default());
        assert_eq!(edit.is_unchanged(), unchanged);
    }
}

#[test]
fn fields_are_set_in_place() {
    let head = "GET /a HTTP/1.1\r\nHost: h\r\nX: 1\r\nY: 2\r\nx: 3\r\n\r\n";
    let sent = request(head, |edit| {
        assert_eq!(edit.get("X"), Some(&b"1"[..]));
        assert_eq!(edit.set("X", b"new"), Ok(()));
        assert_eq!(edit.get("x"), Some(&b"new"[..]));
        assert_eq!(edit.append("Z", b"4"), Ok(()));
        assert_eq!(edit.append("Y", b"5"), Ok(()));
        assert_eq!(edit.get("y"), Some(&b"2"[..]));
    });
    assert_eq!(
        sent,
        "GET /a HTTP/1.1\r\nHost: h\r\nX: new\r\nY: 2\r\nZ: 4\r\nY: 5\r\n\r\n"
    );
    let sent = request(head, |edit| {
        assert_eq!(edit.set("N", b"1"), Ok(()));
        assert_eq!(edit.set("n", b"2"), Ok(()));
        assert_eq!((edit.remove("y"), edit.remove("y")), (true, false));
        assert_eq!(edit.get("Y"), None);
        assert_eq!(edit.set_target("/b?c"), Ok(()));
    });
    assert_eq!(
        sent,
        "GET /b?c HTTP/1.1\r\nHost: h\r\nX: 1\r\nx: 3\r\nn: 2\r\n\r\n"
    );
    let sent = request(head, |edit| {
        assert!(edit.set("A", b"").is_ok() && edit.remove("A"));
        assert_eq!(edit.get("A"), None);
    });
    assert_eq!(sent, head);
}

#[test]
fn edits_cannot_open_a_gap() {
    request(
        "POST http://h/ HTTP/1.1\r\nHost: h\r\nContent-Length: 0\r\n\r\n",
        |edit| {
            for name in ["Content-Length", "transfer-encoding", "HOST", "Connection"] {
                assert!(!edit.remove(name));
                assert_eq!(edit.set(name, b"1"), Err(EditError::Fixed));
                assert_eq!(edit.append(name, b"1"), Err(EditError::Fixed));
            }
            for name in ["", "a b", "a:", "a\r\nb", "\u{e9}"] {
                assert_eq!(edit.set(name, b"1"), Err(EditError::Name));
            }
            for value in [&b"a\r\nB: c"[..], b"a\nb", b"\0", b"\x7f"] {
                assert_eq!(edit.append("X", value), Err(EditError::Value));
            }
            for target in ["", "/a b", "/a\r\n", "/\u{e9}"] {
                assert_eq!(edit.set_target(target), Err(EditError::Target));
            }
            assert_eq!(edit.append("X", "\t\u{e9} ok".as_bytes()), Ok(()));
        },
    );
    response("HTTP/1.1 200 OK\r\n\r\n", |edit| {
        assert_eq!(edit.set_target("/"), Err(EditError::Target));
    });
}

#[test]
fn a_script_serves_heads_of_any_size() {
    let mut parser = RequestParser::new(HeadLimits::default());
    let mut script = EditScript::new();
    for count in [0, 1, 63, 64, 65, 127, 3] {
        let fields: String = (0..count).map(|n| format!("X-{n}: {n}\r\n")).collect();
        let text = format!("GET / HTTP/1.0\r\n{fields}\r\n");
        let Ok(Status::Complete(head, _)) = parser.parse(text.as_bytes()) else {
            panic!("{count} fields");
        };
        let mut edit = HeadEdit::request(&mut script, &head);
        assert!(edit.is_unchanged());
        for n in (0..count).step_by(2) {
            assert!(edit.remove(&format!("x-{n}")));
        }
        let kept: String = (1..count)
            .step_by(2)
            .map(|n| format!("X-{n}: {n}\r\n"))
            .collect();
        assert_eq!(encoded(&edit), format!("GET / HTTP/1.0\r\n{kept}\r\n"));
    }
}
