//! Messages that two recipients could read in two ways, each refused (pitfalls
//! P01 to P06, RFC 9112 section 11.2).

use proxy_core::Status;
use proxy_http::HeadError::{self, *};
use proxy_http::{
    BodyError, BodyFramer, Framing, HeadLimits, RequestParser, ResponseParser, TunnelError,
};

/// The verdict on a request with these fields; `Ok` is its framing.
fn request(version: &str, fields: &str) -> Result<Framing, HeadError> {
    raw(&format!(
        "POST http://h/ HTTP/{version}\r\nHost: h\r\n{fields}\r\n"
    ))
}

fn raw(head: &str) -> Result<Framing, HeadError> {
    match RequestParser::new(HeadLimits::default()).parse(head.as_bytes())? {
        Status::Complete(head, _) => Ok(head.framing()),
        Status::Partial => panic!("not a whole head: {head:?}"),
    }
}

fn response(version: &str, fields: &str) -> Result<Framing, HeadError> {
    let head = format!("HTTP/{version} 200 OK\r\n{fields}\r\n");
    match ResponseParser::new(HeadLimits::default()).parse(head.as_bytes())? {
        Status::Complete(head, _) => Ok(head.framing(proxy_http::RequestKind::Other)),
        Status::Partial => panic!("not a whole head: {head:?}"),
    }
}

/// Fields that are refused in requests and responses alike.
fn refused_in_both(fields: &str, error: HeadError) {
    assert_eq!(request("1.1", fields), Err(error), "request {fields:?}");
    assert_eq!(response("1.1", fields), Err(error), "response {fields:?}");
}

#[test]
fn p01_length_and_coding_together() {
    for fields in [
        "Content-Length: 5\r\nTransfer-Encoding: chunked\r\n",
        "Transfer-Encoding: chunked\r\nContent-Length: 5\r\n",
        "transfer-encoding:chunked\r\nX: y\r\ncontent-length:0\r\n",
        "Content-Length: 5\r\nTransfer-Encoding: identity\r\n",
        "Content-Length: 5\r\nTransfer-Encoding:\r\n",
        "Content-Length:\r\nTransfer-Encoding: chunked\r\n",
    ] {
        refused_in_both(fields, LengthAndCoding);
    }
}

#[test]
fn p02_length_repeated_or_in_doubt() {
    for value in [
        "",
        "+5",
        "-5",
        "5 5",
        "5,5",
        "5, 5",
        "5;5",
        "0x5",
        "5.0",
        "5e1",
        "five",
        "\u{ff15}",
        "1_000",
        "9999999999999999999",
        "18446744073709551616",
        "1000000000000000000",
        "00000000000000000005",
        "\"5\"",
        "5\u{a0}",
        ",5",
        "5,",
    ] {
        refused_in_both(&format!("Content-Length: {value}\r\n"), ContentLength);
    }
    for fields in [
        "Content-Length: 5\r\nContent-Length: 6\r\n",
        "Content-Length: 5\r\nContent-Length: 5\r\n",
        "Content-Length: 5\r\nX: y\r\ncontent-length: 5\r\n",
        "Content-Length: 0\r\nContent-Length:\r\n",
    ] {
        refused_in_both(fields, ContentLength);
    }
    for (value, n) in [
        ("0", 0),
        ("5", 5),
        ("005", 5),
        (" \t5\t ", 5),
        ("999999999999999999", 999_999_999_999_999_999),
    ] {
        let fields = format!("Content-Length:{value}\r\n");
        assert_eq!(request("1.1", &fields), Ok(Framing::Length(n)));
        assert_eq!(response("1.0", &fields), Ok(Framing::Length(n)));
    }
}

#[test]
fn p03_blank_before_the_colon() {
    for (line, error) in [
        ("Transfer-Encoding\u{b}: chunked", FieldName),
        ("Transfer-Encoding\0: chunked", FieldName),
        ("Transfer\u{2010}Encoding: chunked", FieldName),
        (": chunked", FieldName),
        ("nocolon", FieldName),
        ("(x): y", FieldName),
        ("\"x\": y", FieldName),
    ] {
        refused_in_both(&format!("{line}\r\n"), error);
    }
    // With a blank the name is at fault for a request, what follows it for a response.
    for line in ["X y: z", "no colon", "GET / HTTP/1.1", "X ", "X \0: y"] {
        let fields = format!("{line}\r\n");
        assert_eq!(request("1.1", &fields), Err(BlankBeforeColon), "{line:?}");
        assert_eq!(response("1.1", &fields), Err(FieldName), "{line:?}");
    }
}

#[test]
fn p03_a_blank_before_the_colon_hides_no_field_of_a_response() {
    for (fields, framing) in [
        ("Transfer-Encoding : chunked\r\n", Ok(Framing::Chunked)),
        ("Transfer-Encoding\t \t: chunked\r\n", Ok(Framing::Chunked)),
        ("Content-Length : 5\r\n", Ok(Framing::Length(5))),
        ("X : y\r\nContent-Length: 5\r\n", Ok(Framing::Length(5))),
        (
            "Content-Length: 5\r\nContent-Length : 5\r\n",
            Err(ContentLength),
        ),
        ("Content-Length\t: +5\r\n", Err(ContentLength)),
        (
            "Transfer-Encoding : chunked\r\nContent-Length: 5\r\n",
            Err(LengthAndCoding),
        ),
        (
            "Content-Length: 5\r\nTransfer-Encoding : chunked\r\n",
            Err(LengthAndCoding),
        ),
        (
            "Transfer-Encoding : chunked\r\nTransfer-Encoding: chunked\r\n",
            Err(TransferEncoding),
        ),
        ("Transfer-Encoding : gzip\r\n", Err(TransferCoding)),
        ("X : a\0b\r\n", Err(Control)),
        ("X : y\r\n folded: z\r\n", Err(ObsoleteFold)),
        ("X : y\r\n : z\r\n", Err(ObsoleteFold)),
        ("X : y\nA: b\r\n", Err(LineEnd)),
        ("X \r\n: y\r\n", Err(FieldName)),
    ] {
        assert_eq!(response("1.1", fields), framing, "{fields:?}");
        let refused = request("1.1", fields);
        match framing.is_ok() {
            true => assert_eq!(refused, Err(BlankBeforeColon), "{fields:?}"),
            false => assert!(refused.is_err(), "{fields:?}"),
        }
    }
}

#[test]
fn p04_transfer_encoding_is_a_list() {
    for (value, error) in [
        ("chunked, chunked", TransferEncoding),
        ("chunked,", TransferEncoding),
        (",chunked", TransferEncoding),
        ("chunked, gzip", TransferEncoding),
        ("chunked, identity", TransferEncoding),
        ("gzip, chunked, chunked", TransferEncoding),
        ("", TransferEncoding),
        (",", TransferEncoding),
        ("gzip, chunked", TransferCoding),
        ("gzip", TransferCoding),
        ("identity", TransferCoding),
        ("xchunked", TransferCoding),
        ("chunkedx", TransferCoding),
        ("chunked;q=1", TransferCoding),
        ("\"chunked\"", TransferCoding),
        ("'chunked'", TransferCoding),
        ("chunked chunked", TransferCoding),
        ("ch\u{fc}nked", TransferCoding),
        ("\u{a0}chunked", TransferCoding),
        ("chunked\u{85}", TransferCoding),
    ] {
        refused_in_both(&format!("Transfer-Encoding: {value}\r\n"), error);
    }
    for (first, second, error) in [
        ("chunked", "chunked", TransferEncoding),
        ("chunked", "identity", TransferEncoding),
        ("chunked", "", TransferEncoding),
        ("", "chunked", TransferEncoding),
        ("identity", "chunked", TransferCoding),
    ] {
        let fields = format!("Transfer-Encoding: {first}\r\nTransfer-Encoding: {second}\r\n");
        refused_in_both(&fields, error);
    }
    for value in ["chunked", "CHUNKED", "cHuNkEd", " \tchunked\t "] {
        let fields = format!("Transfer-Encoding:{value}\r\n");
        assert_eq!(request("1.1", &fields), Ok(Framing::Chunked), "{value:?}");
        assert_eq!(response("1.1", &fields), Ok(Framing::Chunked), "{value:?}");
    }
    assert_eq!(TransferCoding.status(), 501);
}

#[test]
fn p06_coding_in_http_10() {
    for fields in [
        "Transfer-Encoding: chunked\r\n",
        "Transfer-Encoding: gzip\r\n",
    ] {
        assert_eq!(request("1.0", fields), Err(TransferEncoding));
        assert_eq!(response("1.0", fields), Err(TransferEncoding));
    }
}

#[test]
fn controls_and_line_ends() {
    for (fields, error) in [
        ("X: a\0b\r\n", Control),
        ("X: a\rb\r\n", Control),
        ("X: a\r\r\n", Control),
        ("X: \u{b}chunked\r\n", Control),
        ("Transfer-Encoding: \u{b}chunked\r\n", Control),
        ("Transfer-Encoding: chunked\u{c}\r\n", Control),
        ("Content-Length: 5\0\r\n", Control),
        ("X: a\u{7f}\r\n", Control),
        ("X: a\u{1b}[0m\r\n", Control),
        ("X: a\rTransfer-Encoding: chunked\r\n", Control),
        ("X: a\n", LineEnd),
        ("X: a\nTransfer-Encoding: chunked\r\n", LineEnd),
        ("\n", LineEnd),
        ("X: a\r\n\n", LineEnd),
        (" X: a\r\n", ObsoleteFold),
        ("X: a\r\n b\r\n", ObsoleteFold),
        ("X: a\r\n\tb\r\n", ObsoleteFold),
        ("Transfer-Encoding:\r\n chunked\r\n", ObsoleteFold),
        ("X: a\r\n \r\n", ObsoleteFold),
        ("\rX: a\r\n", FieldName),
    ] {
        refused_in_both(fields, error);
    }
}

#[test]
fn controls_are_found_at_any_place() {
    let text = "x".repeat(70);
    for at in 0..text.len() {
        for byte in (0..0x20).chain([0x7f]).map(char::from) {
            let fields = format!("X: {}{byte}{}\r\n", &text[..at], &text[at..]);
            let verdict = match byte {
                '\t' => Ok(Framing::None),
                '\n' => Err(LineEnd),
                _ => Err(Control),
            };
            assert_eq!(request("1.1", &fields), verdict, "{byte:?} at {at}");
        }
    }
}

#[test]
fn request_lines() {
    for (line, error) in [
        ("GET  / HTTP/1.1", RequestLine),
        ("GET /  HTTP/1.1", RequestLine),
        (" GET / HTTP/1.1", RequestLine),
        ("GET / HTTP/1.1 ", RequestLine),
        ("GET\t/ HTTP/1.1", RequestLine),
        ("GET /\tHTTP/1.1", RequestLine),
        ("GET / a HTTP/1.1", RequestLine),
        ("GET /", RequestLine),
        ("GET", RequestLine),
        ("GET / ", RequestLine),
        ("GET  HTTP/1.1", RequestLine),
        ("G(T / HTTP/1.1", RequestLine),
        ("GET: / HTTP/1.1", RequestLine),
        ("GET /\0 HTTP/1.1", RequestLine),
        ("GET /\r HTTP/1.1", RequestLine),
        ("GET / HTTP/1.1\r", RequestLine),
        ("GET /\u{e9} HTTP/1.1", RequestLine),
        ("GET /\u{7f} HTTP/1.1", RequestLine),
        ("GET / http/1.1", RequestLine),
        ("GET / HTTP/1.10", RequestLine),
        ("GET / HTTP/11", RequestLine),
        ("GET / HTTP/1", RequestLine),
        ("GET / HTTPS/1.1", RequestLine),
        ("GET / HTTP/ 1.1", RequestLine),
        ("GET / HTTP/+1.1", RequestLine),
        ("GET / HTTP/1.2", Version),
        ("GET / HTTP/0.9", Version),
        ("GET / HTTP/2.0", Version),
        ("PRI * HTTP/2.0", Version),
        ("GET /#x HTTP/1.1", Target),
        ("GET http://h/#x HTTP/1.1", Target),
        ("GET http://h#x HTTP/1.1", Target),
        ("GET * HTTP/1.1", Target),
        ("GET h HTTP/1.1", Target),
        ("GET h:80 HTTP/1.1", Target),
        ("GET http:/h/ HTTP/1.1", Target),
        ("GET http:h HTTP/1.1", Target),
        ("GET ://h/ HTTP/1.1", Target),
        ("GET 1http://h/ HTTP/1.1", Target),
        ("GET ?q HTTP/1.1", Target),
        ("AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA / HTTP/1.1", Method),
    ] {
        assert_eq!(
            raw(&format!("{line}\r\nHost: h\r\n\r\n")),
            Err(error),
            "{line:?}"
        );
    }
    assert_eq!(raw("GET / HTTP/1.1\nHost: h\r\n\r\n"), Err(LineEnd));
    assert_eq!(
        (Version.status(), Method.status(), RequestLine.status()),
        (505, 501, 400)
    );
}

#[test]
fn a_host_is_due_once() {
    for head in [
        "GET / HTTP/1.1\r\n",
        "GET http://h/ HTTP/1.1\r\n",
        "CONNECT h:1 HTTP/1.1\r\n",
        "GET / HTTP/1.1\r\nHost:\r\n",
        "GET http://h/ HTTP/1.1\r\nHost: h\r\nHost: h\r\n",
        "GET http://h/ HTTP/1.0\r\nHost: h\r\nHost: i\r\n",
        "GET http://h/ HTTP/1.1\r\nHost: h\r\nhOST:\r\n",
        "GET / HTTP/1.1\r\nHost: a b\r\n",
        "GET / HTTP/1.1\r\nHost: h, i\r\n",
        "GET / HTTP/1.1\r\nHost: h/x\r\n",
        "GET / HTTP/1.1\r\nHost: u@h\r\n",
        "GET / HTTP/1.1\r\nHost: h:0\r\n",
        "GET / HTTP/1.1\r\nHost: h:99999\r\n",
        "GET / HTTP/1.1\r\nHost: h:x\r\n",
        "GET / HTTP/1.1\r\nHost: [::1\r\n",
        "GET / HTTP/1.1\r\nHost: \u{e9}\r\n",
        "GET http://h/ HTTP/1.1\r\nHost: http://h/\r\n",
        "CONNECT h:1 HTTP/1.1\r\nHost: h h\r\n",
    ] {
        assert_eq!(raw(&format!("{head}\r\n")), Err(Host), "{head:?}");
    }
    for head in [
        "GET http://h/ HTTP/1.0\r\n",
        "GET http://h/ HTTP/1.1\r\nHost:\r\n",
        "GET http://h/ HTTP/1.1\r\nHost: other:99\r\n",
        "GET / HTTP/1.1\r\nHost: [::1]:80\r\n",
        "OPTIONS * HTTP/1.1\r\nHost:\r\n",
        "CONNECT h:1 HTTP/1.1\r\nHost: h\r\n",
    ] {
        assert_eq!(raw(&format!("{head}\r\n")), Ok(Framing::None), "{head:?}");
    }
}

#[test]
fn connect_has_no_body() {
    for (fields, verdict) in [
        ("", Ok(Framing::None)),
        ("Content-Length: 0\r\n", Ok(Framing::Length(0))),
        ("Content-Length: 1\r\n", Err(ConnectBody)),
        ("Transfer-Encoding: chunked\r\n", Err(ConnectBody)),
    ] {
        let head = format!("CONNECT h:1 HTTP/1.1\r\nHost: h:1\r\n{fields}\r\n");
        assert_eq!(raw(&head), verdict, "{fields:?}");
    }
}

#[test]
fn connection_options_are_bounded() {
    let few = "Connection: a,,b\r\n".repeat(32);
    assert_eq!(request("1.1", &few), Ok(Framing::None));
    refused_in_both(&"Connection: a,,b\r\n".repeat(33), ConnectionOptions);
    let empty = format!("Connection: {}\r\n", ",".repeat(5000));
    assert_eq!(request("1.1", &empty), Ok(Framing::None));
}

#[test]
fn status_lines() {
    for line in [
        "HTTP/1.1 20 OK",
        "HTTP/1.1 2000 OK",
        "HTTP/1.1 099 OK",
        "HTTP/1.1 600 OK",
        "HTTP/1.1 +20 OK",
        "HTTP/1.1 2x0 OK",
        "HTTP/1.1  200 OK",
        "HTTP/1.1\t200 OK",
        "HTTP/1.1 200\tOK",
        "HTTP/1.1",
        "HTTP/1.1 ",
        " HTTP/1.1 200 OK",
        "http/1.1 200 OK",
        "ICY 200 OK",
        "HTTP/1.1 200 O\0K",
        "HTTP/1.1 200 O\rK",
        "HTTP/1.1 200 OK\r",
        "HTTP/1.1 200 \u{7f}",
        "HTTP/11 200 OK",
        "220 ready",
        "\r\nHTTP/1.1 200 OK",
    ] {
        let head = format!("{line}\r\n\r\n");
        let parsed = ResponseParser::new(HeadLimits::default())
            .parse(head.as_bytes())
            .map(drop);
        assert_eq!(parsed, Err(StatusLine), "{line:?}");
    }
    for line in ["HTTP/2.0 200 OK", "HTTP/1.2 200 OK", "HTTP/0.9 200 OK"] {
        let head = format!("{line}\r\n\r\n");
        let parsed = ResponseParser::new(HeadLimits::default())
            .parse(head.as_bytes())
            .map(drop);
        assert_eq!(parsed, Err(Version), "{line:?}");
    }
}

/// The verdict on a chunked body.
fn chunked(body: &str) -> Result<bool, BodyError> {
    BodyFramer::new(Framing::Chunked)
        .advance(body.as_bytes())
        .map(|extent| extent.end)
}

#[test]
fn p05_loose_chunks() {
    use BodyError::*;
    let long = ";".to_owned() + &"x".repeat(257);
    for (body, error) in [
        ("\r\n", ChunkSize),
        (" 3\r\nabc\r\n", ChunkSize),
        ("3 \r\nabc\r\n", ChunkSize),
        ("3\t\r\nabc\r\n", ChunkSize),
        ("3 ;a\r\nabc\r\n", ChunkSize),
        ("+3\r\nabc\r\n", ChunkSize),
        ("-3\r\nabc\r\n", ChunkSize),
        ("0x3\r\nabc\r\n", ChunkSize),
        ("3h\r\nabc\r\n", ChunkSize),
        ("zz\r\nhello\r\n", ChunkSize),
        ("3_0\r\nabc\r\n", ChunkSize),
        ("3\nabc\r\n", ChunkSize),
        ("3\r\rabc\r\n", ChunkSize),
        ("3\0\r\nabc\r\n", ChunkSize),
        (";a\r\nabc\r\n", ChunkSize),
        ("10000000000000003\r\nabc\r\n", ChunkSize),
        ("0000000000000003\r\nabc\r\n", ChunkSize),
        ("ffffffffffffffff\r\nabc\r\n", ChunkSize),
        ("\u{ff13}\r\nabc\r\n", ChunkSize),
        ("3;a\nb\r\nabc\r\n", ChunkExtension),
        ("3;a\0b\r\nabc\r\n", ChunkExtension),
        ("3;a\rb\r\nabc\r\n", ChunkSize),
        ("3;\u{7f}\r\nabc\r\n", ChunkExtension),
        ("3\r\nabcd\r\n", ChunkEnd),
        ("3\r\nabc\n0\r\n\r\n", ChunkEnd),
        ("3\r\nabc\rx", ChunkEnd),
        ("3\r\nabc0\r\n\r\n", ChunkEnd),
        ("3\r\nab\r\n0\r\n\r\n", ChunkEnd),
        ("0\r\nX\r\n\r\n", Trailer),
        ("0\r\nX : y\r\n\r\n", Trailer),
        ("0\r\n: y\r\n\r\n", Trailer),
        ("0\r\n folded: y\r\n\r\n", Trailer),
        ("0\r\nX: y\r\n z\r\n\r\n", Trailer),
        ("0\r\nX: y\n\r\n", Trailer),
        ("0\r\nX: \0\r\n\r\n", Trailer),
        ("0\r\n\n", Trailer),
        ("0\r\n\rX", Trailer),
        ("0\n\n", ChunkSize),
        ("0\r\nGET /smuggled HTTP/1.1\r\n\r\n", Trailer),
        ("0\r\nContent-Length: 5\r\n\r\n", TrailerForbidden),
        ("0\r\ntransfer-encoding: chunked\r\n\r\n", TrailerForbidden),
        ("0\r\nX: y\r\nHOST: h\r\n\r\n", TrailerForbidden),
        ("0\r\nConnection: close\r\n\r\n", TrailerForbidden),
        ("0\r\nProxy-Authorization: x\r\n\r\n", TrailerForbidden),
    ] {
        assert_eq!(chunked(body), Err(error), "{body:?}");
    }
    assert_eq!(
        chunked(&format!("3{long}\r\nabc\r\n0\r\n\r\n")),
        Err(ChunkExtension)
    );
    let endless = format!("0\r\n{}", "X-T: y\r\n".repeat(3000));
    assert_eq!(chunked(&endless), Err(TrailerTooLarge));
}

#[test]
fn chunks_that_are_fine() {
    for body in [
        "0\r\n\r\n",
        "000\r\n\r\n",
        "3\r\nabc\r\n0\r\n\r\n",
        "00000000000003\r\nabc\r\n0\r\n\r\n",
        "A\r\n0123456789\r\na\r\n\r\n\r\n\r\n\r\n\r\n\r\n0\r\n\r\n",
        "3;a=b;c=\"d e\"\r\nabc\r\n0;x\r\n\r\n",
        "3;\r\nabc\r\n0\r\n\r\n",
        "0\r\nX-T: y\r\nGrpc-Status:0\r\nEmpty:\r\n\r\n",
        "0\r\nA-Name-That-Is-Longer-Than-Any-Forbidden-One: y\r\n\r\n",
    ] {
        assert_eq!(chunked(body), Ok(true), "{body:?}");
    }
}

#[test]
fn errors_say_what_is_wrong() {
    let refused = TunnelError::from(LengthAndCoding).to_string();
    assert!(
        refused.ends_with("both content length and transfer encoding"),
        "{refused}"
    );
}
