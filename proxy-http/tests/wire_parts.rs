//! Bodies moved unseen, credentials, the proxy's own answers, and the CONNECT
//! client.

use bytes::BytesMut;
use proxy_core::{
    ConnectError, ConnectErrorKind, Credentials, Denial, Handshake, Status, Step, Target,
};
use proxy_http::{
    BodyFramer, ConnectHandshake, Framing, HeadError, HeadLimits, Persist, Reply, RequestKind,
    ResponseParser, TunnelError, auth,
};

#[test]
fn opaque_bytes_may_be_moved_unseen() {
    let mut body = BodyFramer::new(Framing::Length(10));
    let seen = body.advance(b"abc").expect("data");
    assert_eq!((seen.len, seen.end, seen.opaque), (3, false, 7));
    body.skip(5);
    assert_eq!(
        (body.opaque(), body.is_over(), body.may_end_here()),
        (2, false, false)
    );
    let seen = body.advance(b"jkNEXT").expect("data");
    assert_eq!((seen.len, seen.end, seen.opaque), (2, true, 0));

    let mut body = BodyFramer::new(Framing::Chunked);
    let seen = body.advance(b"10\r\nab").expect("a chunk");
    assert_eq!((seen.len, seen.opaque), (6, 14));
    body.skip(14);
    assert_eq!(body.opaque(), 0);
    body.skip(3);
    let seen = body.advance(b"\r\n0\r\n\r\nNEXT").expect("the end");
    assert_eq!((seen.len, seen.end), (7, true));
}

#[test]
fn p15_p16_who_may_end_with_the_connection() {
    let mut body = BodyFramer::new(Framing::UntilClose);
    let seen = body.advance(b"abc").expect("data");
    assert_eq!((seen.len, seen.end, seen.opaque), (3, false, u64::MAX));
    assert!(body.may_end_here());
    for (framing, input) in [
        (Framing::Length(4), &b"abc"[..]),
        (Framing::Chunked, b""),
        (Framing::Chunked, b"3\r\nabc\r\n"),
        (Framing::Chunked, b"3\r\nabc\r\n0\r\n"),
        (Framing::Chunked, b"0\r\nX: y\r\n"),
    ] {
        let mut body = BodyFramer::new(framing);
        body.advance(input).expect("a beginning");
        assert!(!body.may_end_here(), "{framing:?} {input:?}");
    }
    assert!(BodyFramer::new(Framing::None).is_over());
    assert!(BodyFramer::new(Framing::Length(0)).is_over());
}

#[test]
fn p17_content_comes_out_of_its_chunks() {
    let input = b"3;x\r\nabc\r\n2\r\nde\r\n0\r\nT: u\r\n\r\nNEXT";
    let mut body = BodyFramer::new(Framing::Chunked);
    let (mut rest, mut content) = (&input[..], Vec::new());
    while !body.is_over() {
        let found = body.payload(rest).expect("well-formed");
        content.extend_from_slice(&rest[found.range]);
        rest = &rest[found.used..];
    }
    assert_eq!((&content[..], rest), (&b"abcde"[..], &b"NEXT"[..]));
}

#[test]
fn basic_credentials() {
    let mut scratch = [0; 16];
    for (value, user, password) in [
        ("Basic dTpw", "u", "p"),
        ("bAsIc dTpw", "u", "p"),
        ("Basic    dTpw", "u", "p"),
        ("Basic dTpwOnE=", "u", "p:q"),
        ("Basic dTpwOnE", "u", "p:q"),
        ("Basic OnA=", "", "p"),
        ("Basic dTo=", "u", ""),
        ("Basic Og==", "", ""),
        ("Basic w7w6w6k=", "\u{fc}", "\u{e9}"),
    ] {
        let found = auth::basic(value.as_bytes(), &mut scratch)
            .expect(value)
            .expect("basic");
        assert_eq!(
            (found.user, found.password),
            (user.as_bytes(), password.as_bytes()),
            "{value}"
        );
    }
    for value in [
        "Bearer dTpw",
        "Basicx dTpw",
        "",
        "Digest username=\"u\"",
        "Bas ic",
    ] {
        assert_eq!(
            auth::basic(value.as_bytes(), &mut scratch),
            Ok(None),
            "{value}"
        );
    }
    for value in [
        "Basic",
        "Basic ",
        "Basic !",
        "Basic dTpw dTpw",
        "Basic dTpw=x",
        "Basic dXA=",
        "Basic dTpwAA==",
        "Basic ADp1",
        "Basic dTpwCg==",
        "Basic dTpwfw==",
        "Basic dTpw,",
        "Basic dTpwcHBwcHBwcHBwcHBwcHBwcHA=",
    ] {
        let found = auth::basic(value.as_bytes(), &mut scratch);
        assert_eq!(found, Err(HeadError::Credentials), "{value}");
    }
}

fn shown(reply: Reply<'_>) -> String {
    let mut out = BytesMut::new();
    reply.encode(&mut out);
    String::from_utf8(out.to_vec()).expect("text")
}

#[test]
fn p26_a_challenge_has_a_length_and_a_way_to_go_on() {
    let reply = Reply::denied(Denial::Challenge).challenge("a \"b\\c\r\n");
    assert_eq!(
        shown(reply),
        "HTTP/1.1 407 Proxy Authentication Required\r\nContent-Type: text/plain\r\n\
         Content-Length: 34\r\n\
         Proxy-Authenticate: Basic realm=\"a \\\"b\\\\c\", charset=\"UTF-8\"\r\n\r\n\
         407 Proxy Authentication Required\n"
    );
    let closing = shown(reply.persist(Persist::Close));
    assert!(closing.contains("\r\nConnection: close\r\n"), "{closing}");
    let head_only = shown(reply.head_only(true));
    assert!(head_only.contains("Content-Length: 34\r\n") && head_only.ends_with("\r\n\r\n"));
}

#[test]
fn every_reply_is_a_response_of_its_stated_length() {
    for status in [
        200, 400, 403, 407, 408, 414, 418, 431, 501, 502, 503, 504, 505, 508, 599,
    ] {
        let text = shown(
            Reply::new(status)
                .persist(Persist::KeepAlive)
                .error("x")
                .proxy("p"),
        );
        let mut parser = ResponseParser::new(HeadLimits::default());
        let Ok(Status::Complete(head, used)) = parser.parse(text.as_bytes()) else {
            panic!("{text}");
        };
        assert_eq!(head.status(), status);
        let framing = head.framing(RequestKind::Other);
        assert_eq!(framing, Framing::Length((text.len() - used) as u64));
        assert_eq!(head.get("proxy-status"), Some(&b"p; error=x"[..]));
    }
}

#[test]
fn failures_have_one_status_each() {
    use ConnectErrorKind as Kind;
    // Status and name of a failure of the target, then of a parent.
    for (kind, of_origin, of_parent) in [
        (
            Kind::Exhausted,
            (503, "connection_limit_reached"),
            (503, "destination_unavailable"),
        ),
        (
            Kind::Forbidden,
            (403, "destination_ip_prohibited"),
            (403, "http_request_denied"),
        ),
        same(Kind::HostUnreachable, 502, "destination_ip_unroutable"),
        same(Kind::Login, 502, "proxy_configuration_error"),
        same(Kind::Loop, 508, "proxy_loop_detected"),
        same(Kind::NameNotFound, 502, "dns_error"),
        same(Kind::NameUnavailable, 502, "dns_error"),
        same(Kind::NetworkUnreachable, 502, "destination_ip_unroutable"),
        same(Kind::Other, 502, "destination_unavailable"),
        (
            Kind::Protocol,
            (502, "http_protocol_error"),
            (502, "destination_unavailable"),
        ),
        same(Kind::Refused, 502, "connection_refused"),
        same(Kind::Reset, 502, "connection_terminated"),
        same(Kind::Source, 502, "proxy_configuration_error"),
        same(Kind::TimedOut, 504, "connection_timeout"),
        same(Kind::Tls, 502, "tls_protocol_error"),
    ] {
        for (error, (status, token), whose) in [
            (ConnectError::origin(kind), of_origin, ""),
            (ConnectError::parent(kind), of_parent, "parent"),
        ] {
            let reply = Reply::connect_failed(error);
            let told = (reply.status(), reply.proxy_error());
            assert_eq!(told, (status, Some(token)), "{error}");
            assert!(RFC_9209.contains(&token), "{token}");
            let text = shown(reply.proxy("p"));
            let (head, body) = text.split_once("\r\n\r\n").expect("a head");
            assert!(head.ends_with(&format!("Proxy-Status: p; error={token}")));
            let (_, cause) = body.split_once(": ").expect("a cause");
            assert!(cause.ends_with('\n') && cause.contains(whose), "{body}");
        }
    }
    for (denial, status) in [
        (Denial::Busy, 503),
        (Denial::Challenge, 407),
        (Denial::Forbid, 403),
        (Denial::Unroutable, 502),
    ] {
        let reply = Reply::denied(denial);
        assert_eq!(reply.status(), status, "{denial:?}");
        let token = reply.proxy_error();
        assert!(token.is_none_or(|token| RFC_9209.contains(&token)));
    }
    assert_eq!(Reply::bad_response().status(), 502);
    let refused = shown(Reply::bad_request(HeadError::Version));
    assert!(refused.starts_with("HTTP/1.1 505 HTTP Version Not Supported\r\n"));
    assert!(refused.contains("Connection: close\r\n"));
    assert!(refused.ends_with("505 HTTP Version Not Supported: HTTP version not supported\n"));
    let reply = Reply::connect_failed(ConnectError::origin(Kind::Loop));
    assert!(!shown(reply.proxy("not a token")).contains("Proxy-Status"));
}

fn same(
    kind: ConnectErrorKind,
    status: u16,
    token: &'static str,
) -> (ConnectErrorKind, (u16, &'static str), (u16, &'static str)) {
    (kind, (status, token), (status, token))
}

/// All names of RFC 9209 section 2.3.
const RFC_9209: [&str; 32] = [
    "dns_timeout",
    "dns_error",
    "destination_not_found",
    "destination_unavailable",
    "destination_ip_prohibited",
    "destination_ip_unroutable",
    "connection_refused",
    "connection_terminated",
    "connection_timeout",
    "connection_read_timeout",
    "connection_write_timeout",
    "connection_limit_reached",
    "tls_protocol_error",
    "tls_certificate_error",
    "tls_alert_received",
    "http_request_error",
    "http_request_denied",
    "http_response_incomplete",
    "http_response_header_section_size",
    "http_response_header_size",
    "http_response_body_size",
    "http_response_trailer_section_size",
    "http_response_trailer_size",
    "http_response_transfer_coding",
    "http_response_content_coding",
    "http_response_timeout",
    "http_upgrade_failed",
    "http_protocol_error",
    "proxy_internal_response",
    "proxy_internal_error",
    "proxy_configuration_error",
    "proxy_loop_detected",
];

#[test]
fn what_a_parent_answers_becomes_a_failure_of_the_parent() {
    use ConnectErrorKind as Kind;
    for (status, kind) in [
        (101, Kind::Protocol),
        (302, Kind::Other),
        (400, Kind::Other),
        (401, Kind::Login),
        (403, Kind::Forbidden),
        (404, Kind::NameNotFound),
        (405, Kind::Other),
        (407, Kind::Login),
        (408, Kind::TimedOut),
        (410, Kind::NameNotFound),
        (429, Kind::Exhausted),
        (451, Kind::Forbidden),
        (500, Kind::Other),
        (501, Kind::Other),
        (502, Kind::Other),
        (503, Kind::Exhausted),
        (504, Kind::TimedOut),
        (508, Kind::Loop),
        (599, Kind::Other),
    ] {
        let error = ConnectError::from(TunnelError::Refused(status));
        assert_eq!(error, ConnectError::parent(kind), "{status}");
    }
    for (status, named, kind) in [
        (
            "502 Bad Gateway",
            "p; error=connection_refused",
            Kind::Refused,
        ),
        (
            "502 x",
            "a; x=\"y\"; error=dns_error, b; error=connection_refused",
            Kind::NameUnavailable,
        ),
        (
            "502 x",
            "a, b;error=connection_terminated;details=\"z\"",
            Kind::Reset,
        ),
        ("504 x", "p; error=connection_timeout", Kind::TimedOut),
        (
            "503 x",
            "p; error=connection_limit_reached",
            Kind::Exhausted,
        ),
        (
            "500 x",
            "p; error=destination_ip_unroutable",
            Kind::HostUnreachable,
        ),
        ("403 x", "p; error=http_request_denied", Kind::Forbidden),
        ("508 x", "p; error=proxy_loop_detected", Kind::Loop),
        ("502 x", "p; error=tls_certificate_error", Kind::Tls),
        // A name that says nothing more than the status.
        ("503 x", "p; error=destination_unavailable", Kind::Exhausted),
        ("502 x", "error", Kind::Other),
        ("502 x", "\u{fe}; error=connection_refused", Kind::Refused),
        ("407 x", "p; error=connection_refused", Kind::Login),
    ] {
        let answer = format!("HTTP/1.1 {status}\r\nProxy-Status: {named}\r\n\r\n");
        let target = Target::parse("h.example:443", None).expect("a target");
        let error = ConnectHandshake::new(target)
            .advance(answer.as_bytes(), &mut BytesMut::new())
            .expect_err("refused");
        assert_eq!(
            ConnectError::from(error),
            ConnectError::parent(kind),
            "{named}"
        );
    }
    let malformed = ConnectError::from(TunnelError::Malformed(HeadError::StatusLine));
    assert_eq!(malformed, ConnectError::parent(Kind::Protocol));
}

#[test]
fn p30_a_parent_is_told_who_asks() {
    let target = Target::parse("h.example:443", None).expect("a target");
    for (before, via) in [
        (None, "1.1 gate-1"),
        (
            Some(&b"1.0 fred, 1.1 other"[..]),
            "1.0 fred, 1.1 other, 1.1 gate-1",
        ),
    ] {
        let mut out = BytesMut::new();
        let mut handshake = ConnectHandshake::new(target).via("gate-1", before);
        assert!(handshake.advance(b"", &mut out).is_ok());
        let sent =
            format!("CONNECT h.example:443 HTTP/1.1\r\nHost: h.example:443\r\nVia: {via}\r\n\r\n");
        assert_eq!(out, sent.as_bytes());
    }
}

fn handshake() -> (ConnectHandshake<'static>, BytesMut) {
    let target = Target::parse("[2001:db8::1]:443", None).expect("a target");
    let mut handshake = ConnectHandshake::new(target);
    let mut out = BytesMut::new();
    let first = handshake.advance(b"", &mut out);
    assert_eq!(
        first,
        Ok(Step {
            consumed: 0,
            done: None
        })
    );
    (handshake, out)
}

fn answered(answer: &[u8]) -> Result<Step<()>, TunnelError> {
    let (mut handshake, mut out) = handshake();
    handshake.advance(answer, &mut out)
}

#[test]
fn p38_a_parent_is_asked_with_brackets() {
    let (_, out) = handshake();
    assert_eq!(
        &out[..],
        b"CONNECT [2001:db8::1]:443 HTTP/1.1\r\nHost: [2001:db8::1]:443\r\n\r\n"
    );
}

#[test]
fn p24_a_parent_gets_its_own_login() {
    let login = Credentials {
        user: b"u",
        password: b"p:q",
    };
    let target = Target::parse("h:1", None).expect("a target");
    let mut handshake = ConnectHandshake::new(target).login(login);
    let mut out = BytesMut::new();
    handshake.advance(b"", &mut out).expect("asks");
    assert_eq!(
        &out[..],
        b"CONNECT h:1 HTTP/1.1\r\nHost: h:1\r\nProxy-Authorization: Basic dTpwOnE=\r\n\r\n"
    );
    assert!(!format!("{handshake:?}").contains("p:q"));
}

#[test]
fn p41_p42_framing_on_a_2xx_means_nothing() {
    for answer in [
        "HTTP/1.1 200 OK\r\n\r\n",
        "HTTP/1.0 200 Connection established\r\n\r\n",
        "HTTP/1.1 200\r\n\r\n",
        "HTTP/1.1 204 X\r\nContent-Length: 5\r\n\r\n",
        "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n",
        "HTTP/1.1 200 OK\r\nContent-Length: 5\r\nTransfer-Encoding: gzip\r\nContent-Length: x\r\n\r\n",
        "HTTP/1.1 103 Early\r\n\r\nHTTP/1.1 100 Go\r\n\r\nHTTP/1.1 200 OK\r\n\r\n",
    ] {
        let early = format!("{answer}HTTP/1.1 500 early bytes\r\n\r\n");
        let step = Step {
            consumed: answer.len(),
            done: Some(()),
        };
        assert_eq!(answered(early.as_bytes()), Ok(step), "{answer:?}");
    }
}

#[test]
fn refusals_of_a_parent_carry_its_status() {
    for (answer, error) in [
        (
            "HTTP/1.1 407 No\r\nContent-Length: 0\r\n\r\n",
            TunnelError::Refused(407),
        ),
        ("HTTP/1.0 503 No\r\n\r\n", TunnelError::Refused(503)),
        ("HTTP/1.1 302 No\r\n\r\n", TunnelError::Refused(302)),
        ("HTTP/1.1 101 X\r\n\r\n", TunnelError::Refused(101)),
        ("SSH-2.0\r\n", TunnelError::Malformed(HeadError::StatusLine)),
        (
            "HTTP/1.1 200 OK\n\n",
            TunnelError::Malformed(HeadError::LineEnd),
        ),
    ] {
        assert_eq!(answered(answer.as_bytes()), Err(error), "{answer:?}");
    }
    let endless = "HTTP/1.1 100 Continue\r\n\r\n".repeat(17);
    assert_eq!(answered(endless.as_bytes()), Err(TunnelError::Refused(100)));
    let large = format!(
        "HTTP/1.1 200 OK\r\nX: {}",
        "x".repeat(ConnectHandshake::MAX_HEAD)
    );
    assert_eq!(
        answered(large.as_bytes()),
        Err(TunnelError::Malformed(HeadError::TooLarge))
    );
}
