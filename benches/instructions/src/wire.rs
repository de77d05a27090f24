//! Heads and bodies: parsing, following, changing.

use std::hint::black_box;

use bytes::BytesMut;
use proxy_http::{
    BodyFramer, EditScript, Framing, HeadEdit, HeadLimits, RequestParser, ResponseParser, ToClient,
    ToOrigin,
};

pub(crate) fn request_small(times: usize) {
    parse_requests(SMALL, times);
}

pub(crate) fn request_browser(times: usize) {
    parse_requests(BROWSER, times);
}

fn parse_requests(head: &[u8], times: usize) {
    let mut parser = RequestParser::new(HeadLimits::default());
    for _ in 0..times {
        assert!(parser.parse(black_box(head)).is_ok());
    }
}

pub(crate) fn response(times: usize) {
    let mut parser = ResponseParser::new(HeadLimits::default());
    for _ in 0..times {
        assert!(parser.parse(black_box(ANSWER)).is_ok());
    }
}

/// 64 KiB of content in chunks of 16 bytes.
pub(crate) fn chunks(times: usize) {
    let mut body = b"10\r\n0123456789abcdef\r\n".repeat(4096);
    body.extend_from_slice(b"0\r\n\r\n");
    for _ in 0..times {
        let mut framer = BodyFramer::new(Framing::Chunked);
        assert!(
            framer
                .advance(black_box(&body))
                .is_ok_and(|extent| extent.end)
        );
    }
}

pub(crate) fn to_origin(times: usize) {
    let mut parser = RequestParser::new(HeadLimits::default());
    assert!(parser.parse(BROWSER).is_ok());
    let mut script = EditScript::new();
    let mut out = BytesMut::with_capacity(4096);
    for _ in 0..times {
        out.clear();
        let mut edit = HeadEdit::request(&mut script, &parser.head(black_box(BROWSER)));
        edit.to_origin(ToOrigin::default());
        edit.encode(&mut out);
        black_box(&out);
    }
}

pub(crate) fn to_client(times: usize) {
    let mut parser = ResponseParser::new(HeadLimits::default());
    assert!(parser.parse(ANSWER).is_ok());
    let mut script = EditScript::new();
    let mut out = BytesMut::with_capacity(4096);
    for _ in 0..times {
        out.clear();
        let mut edit = HeadEdit::response(&mut script, &parser.head(black_box(ANSWER)));
        edit.to_client(ToClient::default());
        edit.encode(&mut out);
        black_box(&out);
    }
}

pub(crate) const SMALL: &[u8] =
    b"GET http://127.0.0.1:8080/1k HTTP/1.1\r\nHost: 127.0.0.1:8080\r\n\r\n";

const BROWSER: &[u8] =
    b"GET http://www.example.com/articles/2026/11/proxies.html?ref=home&lang=en HTTP/1.1\r\n\
Host: www.example.com\r\n\
User-Agent: Mozilla/5.0 (X11; Linux x86_64; rv:143.0) Gecko/20100101 Firefox/143.0\r\n\
Accept: text/html,application/xhtml+xml,application/xml;q=0.9,image/avif,image/webp,*/*;q=0.8\r\n\
Accept-Language: en-US,en;q=0.5\r\n\
Accept-Encoding: gzip, deflate, br, zstd\r\n\
Referer: http://www.example.com/\r\n\
Cookie: session=0123456789abcdef0123456789abcdef; theme=dark; consent=yes\r\n\
Proxy-Connection: keep-alive\r\n\
Proxy-Authorization: Basic dXNlcjpwYXNzd29yZA==\r\n\
Upgrade-Insecure-Requests: 1\r\n\
Priority: u=0, i\r\n\r\n";

pub(crate) const ANSWER: &[u8] = b"HTTP/1.1 200 OK\r\n\
Server: nginx\r\n\
Date: Mon, 30 Nov 2026 12:00:00 GMT\r\n\
Content-Type: text/html; charset=utf-8\r\n\
Content-Length: 1024\r\n\
Connection: keep-alive\r\n\
ETag: \"5f3e-400\"\r\n\
Accept-Ranges: bytes\r\n\r\n";
