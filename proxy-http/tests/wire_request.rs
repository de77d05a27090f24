//! What a request head says, and when it is refused early or for its size.

use std::fmt::Write;

use proxy_core::Status;
use proxy_http::{
    Framing, HeadError, HeadLimits, RequestHead, RequestKind, RequestParser, RequestTarget, Version,
};

/// Parses a whole head and shows it to `look`.
fn with<T>(head: &str, look: impl FnOnce(RequestHead<'_, '_>) -> T) -> T {
    let mut parser = RequestParser::new(HeadLimits::default());
    match parser.parse(head.as_bytes()) {
        Ok(Status::Complete(head, _)) => look(head),
        other => panic!("{other:?} for {head:?}"),
    }
}

fn small() -> RequestParser {
    let mut limits = HeadLimits::default();
    limits.head_bytes(256).header_count(3);
    RequestParser::new(limits)
}

#[test]
fn the_four_forms_of_a_target() {
    use RequestTarget::{Absolute, Asterisk, Authority, Origin};
    for (line, target, path, to) in [
        (
            "GET http://h:81/a/../b?c=d HTTP/1.1",
            Absolute {
                scheme: "http",
                authority: "h:81",
                path_and_query: "/a/../b?c=d",
            },
            "/a/../b?c=d",
            Ok("h:81"),
        ),
        (
            "GET HTTPS://H HTTP/1.1",
            Absolute {
                scheme: "HTTPS",
                authority: "H",
                path_and_query: "",
            },
            "/",
            Ok("H:443"),
        ),
        (
            "GET http://h?q=http://i/ HTTP/1.1",
            Absolute {
                scheme: "http",
                authority: "h",
                path_and_query: "?q=http://i/",
            },
            "?q=http://i/",
            Ok("h:80"),
        ),
        (
            "OPTIONS http://h: HTTP/1.1",
            Absolute {
                scheme: "http",
                authority: "h:",
                path_and_query: "",
            },
            "*",
            Ok("h:80"),
        ),
        (
            "OPTIONS * HTTP/1.1",
            Asterisk,
            "*",
            Err(HeadError::Destination),
        ),
        (
            "CONNECT [::1]:443 HTTP/1.1",
            Authority("[::1]:443"),
            "[::1]:443",
            Ok("[::1]:443"),
        ),
        (
            "CONNECT h HTTP/1.1",
            Authority("h"),
            "h",
            Err(HeadError::Destination),
        ),
        (
            "GET //x/y HTTP/1.1",
            Origin("//x/y"),
            "//x/y",
            Ok("from-host:8080"),
        ),
    ] {
        with(&format!("{line}\r\nHost: from-host:8080\r\n\r\n"), |head| {
            assert_eq!((head.target(), head.path()), (target, path), "{line}");
            let found = head.destination().map(|to| to.to_string());
            assert_eq!(found, to.map(str::to_owned), "{line}");
        });
    }
}

#[test]
fn p38_addresses_keep_their_brackets_and_zones_are_refused() {
    for (authority, to) in [
        ("[2001:db8::1]:81", Some("[2001:db8::1]:81")),
        ("[2001:db8::1]", Some("[2001:db8::1]:80")),
        ("[::ffff:192.0.2.1]", Some("[::ffff:192.0.2.1]:80")),
        ("[fe80::1%25eth0]", None),
        ("[fe80::1%eth0]:80", None),
        ("2001:db8::1", None),
        ("[2001:db8::1", None),
        ("[]", None),
    ] {
        let head = format!("GET http://{authority}/ HTTP/1.1\r\nHost:\r\n\r\n");
        let found = with(&head, |head| {
            head.destination().map(|to| to.to_string()).ok()
        });
        assert_eq!(found.as_deref(), to, "{authority}");
    }
}

#[test]
fn destinations_that_are_none() {
    use HeadError::{Destination, Scheme};
    for (target, error) in [
        ("http://user@h/", Destination),
        ("http://user:password@h/", Destination),
        ("http://h:0/", Destination),
        ("http://h:65536/", Destination),
        ("http://h:-1/", Destination),
        ("http://h:8 0x/", HeadError::RequestLine),
        ("http:///a", Destination),
        ("http://?a", Destination),
        ("http://h\\@i/", Destination),
        ("http://h%2ei/", Destination),
        ("http://h:80:80/", Destination),
        ("ftp://h/", Scheme),
        ("ws://h/", Scheme),
    ] {
        let head = format!("GET {target} HTTP/1.1\r\nHost: h\r\n\r\n");
        let mut parser = RequestParser::new(HeadLimits::default());
        let found = match parser.parse(head.as_bytes()) {
            Ok(Status::Complete(head, _)) => head.destination().map(drop),
            other => other.map(drop),
        };
        assert_eq!(found, Err(error), "{target}");
    }
    assert_eq!((Destination.status(), Scheme.status()), (400, 501));
}

#[test]
fn p10_the_target_decides_not_the_host() {
    let head = "GET http://target:81/ HTTP/1.1\r\nHost: other:82\r\n\r\n";
    with(head, |head| {
        assert_eq!(
            head.destination().map(|to| to.to_string()).as_deref(),
            Ok("target:81")
        );
    });
}

#[test]
fn p18_persistence_by_version_and_options() {
    for (version, connection, keep) in [
        ("1.1", "", true),
        ("1.1", "Connection: close\r\n", false),
        ("1.1", "Connection: x, CLOSE\r\n", false),
        (
            "1.1",
            "Connection: keep-alive\r\nConnection: close\r\n",
            false,
        ),
        ("1.1", "Connection: closed\r\n", true),
        ("1.0", "", false),
        ("1.0", "Connection: Keep-Alive\r\n", true),
        ("1.0", "Connection: keep-alive, close\r\n", false),
        ("1.0", "Proxy-Connection: keep-alive\r\n", false),
        ("1.0", "Keep-Alive: timeout=5\r\n", false),
    ] {
        let head = format!("GET http://h/ HTTP/{version}\r\nHost: h\r\n{connection}\r\n");
        assert_eq!(
            with(&head, |head| head.keep_alive()),
            keep,
            "{version} {connection:?}"
        );
    }
}

#[test]
fn p21_expectations() {
    for (version, expect, waits) in [
        ("1.1", "Expect: 100-continue\r\n", true),
        ("1.1", "expect: 100-Continue\r\n", true),
        ("1.1", "Expect: something\r\n", false),
        ("1.1", "", false),
        ("1.0", "Expect: 100-continue\r\n", false),
    ] {
        let head =
            format!("PUT http://h/ HTTP/{version}\r\nHost: h\r\nContent-Length: 9\r\n{expect}\r\n");
        assert_eq!(
            with(&head, |head| head.expects_continue()),
            waits,
            "{version} {expect:?}"
        );
    }
}

#[test]
fn an_upgrade_is_named_twice() {
    for (version, fields, protocol) in [
        (
            "1.1",
            "Connection: Upgrade\r\nUpgrade: websocket\r\n",
            Some(&b"websocket"[..]),
        ),
        (
            "1.1",
            "Upgrade: websocket\r\nConnection: keep-alive, upgrade\r\n",
            Some(b"websocket"),
        ),
        ("1.1", "Upgrade: websocket\r\n", None),
        ("1.1", "Connection: upgrade\r\n", None),
        ("1.0", "Connection: upgrade\r\nUpgrade: websocket\r\n", None),
    ] {
        let head = format!("GET http://h/ HTTP/{version}\r\nHost: h\r\n{fields}\r\n");
        with(&head, |head| {
            assert_eq!(head.upgrade(), protocol, "{version} {fields:?}")
        });
    }
}

#[test]
fn fields_are_found_in_any_case_and_order() {
    let head =
        "PATCH http://h/ HTTP/1.0\r\nX-a: 1\r\nHost:h\r\nx-A:\t2 \r\nContent-Length: 3\r\n\r\nabc";
    with(head, |head| {
        assert_eq!((head.method(), head.version()), ("PATCH", Version::Http10));
        assert_eq!(head.kind(), RequestKind::Other);
        assert_eq!(
            (head.framing(), head.has_body()),
            (Framing::Length(3), true)
        );
        assert_eq!(head.get("X-A"), Some(&b"1"[..]));
        let all: Vec<_> = head.get_all("X-A").collect();
        assert_eq!(all, [b"1", b"2"]);
        let names: Vec<_> = head.headers().map(|header| header.name).collect();
        assert_eq!(names, ["X-a", "Host", "x-A", "Content-Length"]);
        assert_eq!(head.get("absent"), None);
    });
}

#[test]
fn a_head_outlives_its_buffer() {
    let mut parser = RequestParser::new(HeadLimits::default());
    let mut buffer = b"\r\nGET http://h/a HTTP/1.1\r\nHost: h\r\n\r\nnext".to_vec();
    let Ok(Status::Complete(_, used)) = parser.parse(&buffer) else {
        panic!("a whole head");
    };
    let copy = buffer[..used].to_vec();
    buffer.fill(0);
    let head = parser.head(&copy);
    assert_eq!((head.method(), head.target_text()), ("GET", "http://h/a"));
    assert_eq!(head.raw(), b"GET http://h/a HTTP/1.1\r\nHost: h\r\n\r\n");
    // Over bytes that are not its own the view may show anything.
    let wrong = parser.head(b"\xff\xff");
    assert_eq!(
        (wrong.method(), wrong.get("host"), wrong.raw()),
        ("", None, &b""[..])
    );
}

#[test]
fn one_parser_reads_one_head_after_another() {
    let mut parser = RequestParser::new(HeadLimits::default());
    let stream =
        b"GET http://a/ HTTP/1.1\r\nHost: a\r\nX: 1\r\n\r\nHEAD http://b/ HTTP/1.0\r\n\r\n";
    let Ok(Status::Complete(head, used)) = parser.parse(stream) else {
        panic!("the first");
    };
    assert_eq!((head.method(), head.headers().len()), ("GET", 2));
    assert_eq!(
        parser
            .parse(&stream[used..used + 6])
            .map(|s| s.is_partial()),
        Ok(true)
    );
    let Ok(Status::Complete(head, _)) = parser.parse(&stream[used..]) else {
        panic!("the second");
    };
    assert_eq!((head.kind(), head.headers().len()), (RequestKind::Head, 0));
    assert!(parser.parse(b"\0").is_err());
    assert_eq!(parser.parse(b"GET").map(|s| s.is_partial()), Ok(true));
    parser.reset();
    assert!(
        parser
            .parse(b"GET http://a/ HTTP/1.0\r\n\r\n")
            .is_ok_and(|s| !s.is_partial())
    );
}

#[test]
fn garbage_is_refused_at_its_first_bytes() {
    for (start, error) in [
        (&b"\x16\x03\x01"[..], HeadError::RequestLine),
        (b"\x05\x01\x00", HeadError::RequestLine),
        (b"\0", HeadError::RequestLine),
        (b" ", HeadError::RequestLine),
        (b"GET\t", HeadError::RequestLine),
        (b"GET /\xe9", HeadError::RequestLine),
        (b"\rG", HeadError::RequestLine),
        (b"AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA", HeadError::Method),
        (b"SSH-2.0-OpenSSH_9.2\r\n", HeadError::RequestLine),
        (b"\n", HeadError::LineEnd),
        (b"GET http://h/ HTTP/1.1\n", HeadError::LineEnd),
    ] {
        let mut parser = RequestParser::new(HeadLimits::default());
        assert_eq!(parser.parse(start).map(drop), Err(error), "{start:?}");
    }
    // A field line is judged when it ends.
    let mut parser = RequestParser::new(HeadLimits::default());
    let begun = parser.parse(b"GET http://h/ HTTP/1.1\r\n x");
    assert!(begun.is_ok_and(|status| status.is_partial()));
}

#[test]
fn empty_lines_before_a_request_are_few() {
    let head = "GET http://h/ HTTP/1.0\r\n\r\n";
    with(&format!("\r\n\r\n\r\n\r\n{head}"), |head| {
        assert_eq!(head.method(), "GET")
    });
    let many = format!("\r\n\r\n\r\n\r\n\r\n{head}");
    let mut parser = RequestParser::new(HeadLimits::default());
    let outcome = parser.parse(many.as_bytes()).map(drop);
    assert_eq!(outcome, Err(HeadError::RequestLine));
}

#[test]
fn limits_hold_from_the_first_byte() {
    let long = "a".repeat(300);
    for (input, error) in [
        (format!("GET http://h/{long}"), HeadError::UriTooLong),
        (
            format!("GET http://h/{long} HTTP/1.1\r\n\r\n"),
            HeadError::UriTooLong,
        ),
        (
            format!("GET http://h/ HTTP/1.1\r\nX: {long}"),
            HeadError::TooLarge,
        ),
        (
            format!("GET http://h/ HTTP/1.1\r\n{long}"),
            HeadError::TooLarge,
        ),
        (
            format!("GET http://h/ HTTP/1.1\r\n{}\r\n", "a:b\r\n".repeat(4)),
            HeadError::TooManyFields,
        ),
        (
            format!("GET http://h/ HTTP/1.1\r\n{}", "a:b\r\n".repeat(60)),
            HeadError::TooManyFields,
        ),
    ] {
        assert_eq!(
            small().parse(input.as_bytes()).map(drop),
            Err(error),
            "{input}"
        );
    }
    assert_eq!(HeadError::UriTooLong.status(), 414);
    assert_eq!(
        (
            HeadError::TooLarge.status(),
            HeadError::TooManyFields.status()
        ),
        (431, 431)
    );
    let start = "GET http://h/ HTTP/1.0\r\nX: ";
    let fits = format!("{start}{}\r\n\r\n", "a".repeat(256 - start.len() - 4));
    assert!(
        small()
            .parse(fits.as_bytes())
            .is_ok_and(|s| !s.is_partial())
    );
    let over = fits.replacen("aa", "aaa", 1);
    assert_eq!(
        small().parse(over.as_bytes()).map(drop),
        Err(HeadError::TooLarge)
    );
}

#[test]
fn fields_are_counted_up_to_the_limit_set() {
    for (limit, count, fits) in [
        (1, 1, true),
        (1, 2, false),
        (127, 127, true),
        (127, 128, false),
        (128, 128, true),
        (128, 129, false),
        (129, 129, true),
        (129, 130, false),
        (1024, 129, true),
        (1024, 1024, true),
        (1024, 1025, false),
    ] {
        let mut limits = HeadLimits::default();
        limits.header_count(limit);
        let fields: String = (0..count).map(|n| format!("x-{n}: {n}\r\n")).collect();
        let head = format!("GET http://h/ HTTP/1.0\r\n{fields}\r\n");
        let mut parser = RequestParser::new(limits);
        match parser.parse(head.as_bytes()) {
            Ok(Status::Complete(head, _)) if fits => {
                assert_eq!(head.headers().len(), count, "of {limit}");
                let last = format!("x-{}", count - 1);
                assert_eq!(head.get(&last), Some(&last.as_bytes()[2..]));
            }
            outcome => {
                assert!(!fits, "{count} of {limit}");
                assert_eq!(outcome.map(drop), Err(HeadError::TooManyFields));
            }
        }
    }
}

#[test]
fn names_are_bounded_by_the_head_alone_up_to_64_kib() {
    let mut limits = HeadLimits::default();
    limits.head_bytes(1 << 20);
    let head = format!(
        "GET http://h/ HTTP/1.0\r\n{}: x\r\n\r\n",
        "n".repeat(70_000)
    );
    let outcome = RequestParser::new(limits).parse(head.as_bytes()).map(drop);
    assert_eq!(outcome, Err(HeadError::TooLarge));
}

#[test]
fn p29_secrets_are_not_shown() {
    let head = "GET http://h/?token=hunter2 HTTP/1.1\r\nHost: h\r\nProxy-Authorization: Basic hunter2\r\n\r\n";
    with(head, |head| {
        let mut shown = String::new();
        let fields: Vec<_> = head.headers().collect();
        write!(shown, "{head:?} {fields:?}").expect("a string takes it");
        assert!(!shown.contains("hunter2"), "{shown}");
    });
}

#[test]
fn credentials_are_read_once() {
    let request = |fields: &str| format!("GET http://h/ HTTP/1.1\r\nHost: h\r\n{fields}\r\n");
    let login = "Proxy-Authorization: Basic dTpw\r\n";
    let mut scratch = [0; 64];
    with(&request(login), |head| {
        let found = head
            .credentials(&mut scratch)
            .expect("readable")
            .expect("there");
        assert_eq!((found.user, found.password), (&b"u"[..], &b"p"[..]));
        assert_eq!(head.proxy_authorization(), Some(&b"Basic dTpw"[..]));
    });
    with(&request(""), |head| {
        assert_eq!(head.credentials(&mut scratch), Ok(None))
    });
    with(&request(&login.repeat(2)), |head| {
        assert_eq!(head.credentials(&mut scratch), Err(HeadError::Credentials));
    });
    assert_eq!(HeadError::Credentials.status(), 407);
}

#[test]
fn p30_a_request_that_comes_back_is_known() {
    for (fields, came) in [
        ("", false),
        ("Via: 1.1 gate-1\r\n", true),
        ("via: 1.0 fred, HTTP/1.1   gate-1 (a, comment)\r\n", true),
        ("Via: 1.0 fred\r\nX: y\r\nVia: 1.1 gate-1,\r\n", true),
        ("Via: 1.1 gate-12\r\n", false),
        ("Via: gate-1\r\n", false),
        ("Via: ,, 1.1\r\n", false),
        ("X-Via: 1.1 gate-1\r\n", false),
    ] {
        let text = format!("GET http://h/ HTTP/1.1\r\nHost: h\r\n{fields}\r\n");
        let mut parser = RequestParser::new(HeadLimits::default());
        let Ok(Status::Complete(head, _)) = parser.parse(text.as_bytes()) else {
            panic!("{text}");
        };
        assert_eq!(head.came_through("gate-1"), came, "{fields}");
    }
}
