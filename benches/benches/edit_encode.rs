//! The two changes every forwarded head gets, and the copying of the result.

use std::hint::black_box;

use bytes::BytesMut;
use criterion::{Criterion, Throughput, criterion_group, criterion_main};
use proxy_http::{
    EditScript, HeadEdit, HeadLimits, RequestParser, ResponseParser, ToClient, ToOrigin,
};

const SMALL: &[u8] = b"GET http://127.0.0.1:8080/1k HTTP/1.1\r\nHost: 127.0.0.1:8080\r\n\r\n";

const BROWSER: &[u8] =
    b"GET http://www.example.com/articles/2026/11/proxies.html?ref=home&lang=en HTTP/1.1\r\n\
Host: www.example.com\r\n\
User-Agent: Mozilla/5.0 (X11; Linux x86_64; rv:143.0) Gecko/20100101 Firefox/143.0\r\n\
Accept: text/html,application/xhtml+xml,application/xml;q=0.9,image/avif,image/webp,*/*;q=0.8\r\n\
Accept-Language: en-US,en;q=0.5\r\n\
Accept-Encoding: gzip, deflate, br, zstd\r\n\
Cookie: session=0123456789abcdef0123456789abcdef; theme=dark; consent=yes\r\n\
Proxy-Connection: keep-alive\r\n\
Proxy-Authorization: Basic dXNlcjpwYXNzd29yZA==\r\n\
Connection: keep-alive, X-Trace\r\n\
X-Trace: 0123456789abcdef\r\n\
Priority: u=0, i\r\n\r\n";

const ANSWER: &[u8] = b"HTTP/1.1 200 OK\r\n\
Server: nginx\r\n\
Date: Mon, 30 Nov 2026 12:00:00 GMT\r\n\
Content-Type: text/html; charset=utf-8\r\n\
Content-Length: 1024\r\n\
Connection: keep-alive\r\n\
ETag: \"5f3e-400\"\r\n\
Accept-Ranges: bytes\r\n\r\n";

fn to_origin(c: &mut Criterion) {
    let mut group = c.benchmark_group("to-origin");
    for (name, input) in [("small", SMALL), ("browser", BROWSER)] {
        group.throughput(Throughput::Bytes(input.len() as u64));
        let mut parser = RequestParser::new(HeadLimits::default());
        assert!(parser.parse(input).is_ok());
        let mut script = EditScript::new();
        let mut out = BytesMut::with_capacity(4096);
        group.bench_function(name, |b| {
            b.iter(|| {
                out.clear();
                let mut edit = HeadEdit::request(&mut script, &parser.head(black_box(input)));
                edit.to_origin(ToOrigin::default());
                edit.encode(&mut out);
                black_box(out.len())
            });
        });
    }
    group.finish();
}

fn to_client(c: &mut Criterion) {
    let mut parser = ResponseParser::new(HeadLimits::default());
    assert!(parser.parse(ANSWER).is_ok());
    let mut script = EditScript::new();
    let mut out = BytesMut::with_capacity(4096);
    c.bench_function("to-client/usual", |b| {
        b.iter(|| {
            out.clear();
            let mut edit = HeadEdit::response(&mut script, &parser.head(black_box(ANSWER)));
            edit.to_client(ToClient::default());
            edit.encode(&mut out);
            black_box(out.len())
        });
    });
}

criterion_group!(benches, to_origin, to_client);
criterion_main!(benches);
