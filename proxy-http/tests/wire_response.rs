//! What a response head says, and how its body ends.

use proxy_core::Status;
use proxy_http::{
    Framing, HeadError, HeadLimits, RequestKind, ResponseHead, ResponseParser, Version,
};

fn with<T>(head: &str, look: impl FnOnce(ResponseHead<'_, '_>) -> T) -> T {
    let mut parser = ResponseParser::new(HeadLimits::default());
    match parser.parse(head.as_bytes()) {
        Ok(Status::Complete(head, _)) => look(head),
        other => panic!("{other:?} for {head:?}"),
    }
}

#[test]
fn the_parts_of_a_response() {
    with("HTTP/1.0 404 Not\tF\u{f6}und\r\nServer:x\r\n\r\n", |head| {
        assert_eq!((head.version(), head.status()), (Version::Http10, 404));
        assert_eq!(head.reason(), "Not\tF\u{f6}und".as_bytes());
        assert_eq!(head.get("SERVER"), Some(&b"x"[..]));
        assert_eq!(
            (head.headers().len(), head.get_all("server").count()),
            (1, 1)
        );
        assert!(!head.keep_alive() && !head.is_interim());
    });
    with("HTTP/1.1 200\r\n\r\n", |head| {
        assert_eq!(head.reason(), b"")
    });
    with("HTTP/1.1 200 \r\n\r\n", |head| {
        assert_eq!(head.reason(), b"")
    });
}

#[test]
fn p12_p13_responses_without_a_body() {
    use Framing::{Chunked, Length, None, UntilClose};
    use RequestKind::{Connect, Head, Other};
    for (status, fields, asked, framing) in [
        (200, "", Other, UntilClose),
        (200, "Content-Length: 5\r\n", Other, Length(5)),
        (200, "Transfer-Encoding: chunked\r\n", Other, Chunked),
        (200, "Content-Length: 5\r\n", Head, None),
        (404, "Transfer-Encoding: chunked\r\n", Head, None),
        (100, "Content-Length: 5\r\n", Other, None),
        (103, "Transfer-Encoding: chunked\r\n", Other, None),
        (101, "", Other, None),
        (204, "Content-Length: 5\r\n", Other, None),
        (304, "Content-Length: 5\r\n", Other, None),
        (304, "", Other, None),
        (200, "Content-Length: 5\r\n", Connect, None),
        (299, "", Connect, None),
        (407, "Content-Length: 5\r\n", Connect, Length(5)),
        (502, "", Connect, UntilClose),
    ] {
        let found = with(&format!("HTTP/1.1 {status} X\r\n{fields}\r\n"), |head| {
            head.framing(asked)
        });
        assert_eq!(found, framing, "{status} {fields:?} to {asked:?}");
    }
}

#[test]
fn p22_interim_responses_are_told_from_final_ones() {
    for (status, interim) in [
        (100, true),
        (102, true),
        (103, true),
        (199, true),
        (101, false),
        (200, false),
    ] {
        let found = with(&format!("HTTP/1.1 {status} X\r\n\r\n"), |head| {
            head.is_interim()
        });
        assert_eq!(found, interim, "{status}");
    }
}

#[test]
fn p09_a_bad_line_names_its_fault() {
    let parse = |head: &str| {
        ResponseParser::new(HeadLimits::default())
            .parse(head.as_bytes())
            .map(drop)
    };
    let error = parse("HTTP/1.1 200 OK\r\nbad line\r\n\r\n").expect_err("refused");
    assert_eq!(
        (error, error.to_string().as_str()),
        (HeadError::FieldName, "invalid field name")
    );
    assert_eq!(parse("HTTP/1.1 200 OK\nA: b\n\n"), Err(HeadError::LineEnd));
    assert_eq!(parse("SSH-2.0"), Err(HeadError::StatusLine));
    assert_eq!(parse("HTTP/1.1 200 O\0"), Err(HeadError::StatusLine));
}

#[test]
fn an_upgrade_is_named_twice() {
    let switch = "HTTP/1.1 101 X\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n";
    with(switch, |head| {
        assert_eq!(head.upgrade(), Some(&b"websocket"[..]))
    });
    with("HTTP/1.1 101 X\r\nUpgrade: websocket\r\n\r\n", |head| {
        assert_eq!(head.upgrade(), None)
    });
}

#[test]
fn a_head_outlives_its_buffer() {
    let mut parser = ResponseParser::new(HeadLimits::default());
    let input = b"HTTP/1.1 200 OK\r\nA: b\r\n\r\nbody".to_vec();
    let Ok(Status::Complete(_, used)) = parser.parse(&input) else {
        panic!("a whole head");
    };
    let copy = input[..used].to_vec();
    drop(input);
    assert_eq!(parser.head(&copy).get("a"), Some(&b"b"[..]));
    assert_eq!(parser.head(&copy).raw(), copy);
    parser.reset();
    assert_eq!(parser.head(&copy).get("a"), None);
}
