//! Parsing heads: whole, byte by byte, and against httparse alone.

use std::hint::black_box;
use std::mem::MaybeUninit;

use criterion::{Criterion, Throughput, criterion_group, criterion_main};
use proxy_http::{HeadLimits, RequestParser, ResponseParser};

const SMALL: &[u8] = b"GET http://127.0.0.1:8080/1k HTTP/1.1\r\nHost: 127.0.0.1:8080\r\n\r\n";

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
Upgrade-Insecure-Requests: 1\r\n\
Priority: u=0, i\r\n\r\n";

const ANSWER: &[u8] = b"HTTP/1.1 200 OK\r\n\
Server: nginx\r\n\
Date: Mon, 30 Nov 2026 12:00:00 GMT\r\n\
Content-Type: text/html; charset=utf-8\r\n\
Content-Length: 1024\r\n\
Connection: keep-alive\r\n\
ETag: \"5f3e-400\"\r\n\
Accept-Ranges: bytes\r\n\r\n";

fn requests(c: &mut Criterion) {
    let mut group = c.benchmark_group("request");
    for (name, head) in [("small", SMALL), ("browser", BROWSER)] {
        group.throughput(Throughput::Bytes(head.len() as u64));
        let mut parser = RequestParser::new(HeadLimits::default());
        group.bench_function(name, |b| {
            b.iter(|| black_box(parser.parse(black_box(head)).is_ok()));
        });
        group.bench_function(format!("{name}-httparse"), |b| {
            b.iter(|| {
                let mut slots = [const { MaybeUninit::uninit() }; 128];
                let mut request = httparse::Request::new(&mut []);
                black_box(
                    request
                        .parse_with_uninit_headers(black_box(head), &mut slots)
                        .is_ok(),
                )
            });
        });
    }
    // The work must grow with the bytes, not with their square.
    let mut parser = RequestParser::new(HeadLimits::default());
    group.bench_function("browser-byte-by-byte", |b| {
        b.iter(|| (1..=BROWSER.len()).all(|n| parser.parse(black_box(&BROWSER[..n])).is_ok()));
    });
    group.finish();
}

fn destination(c: &mut Criterion) {
    let mut parser = RequestParser::new(HeadLimits::default());
    assert!(parser.parse(BROWSER).is_ok());
    c.bench_function("request/destination", |b| {
        b.iter(|| black_box(parser.head(black_box(BROWSER)).destination().is_ok()));
    });
}

fn responses(c: &mut Criterion) {
    let mut group = c.benchmark_group("response");
    group.throughput(Throughput::Bytes(ANSWER.len() as u64));
    let mut parser = ResponseParser::new(HeadLimits::default());
    group.bench_function("usual", |b| {
        b.iter(|| black_box(parser.parse(black_box(ANSWER)).is_ok()));
    });
    group.bench_function("usual-httparse", |b| {
        b.iter(|| {
            let mut slots = [const { MaybeUninit::uninit() }; 128];
            let mut response = httparse::Response::new(&mut []);
            let config = httparse::ParserConfig::default();
            let parsed = config.parse_response_with_uninit_headers(
                &mut response,
                black_box(ANSWER),
                &mut slots,
            );
            black_box(parsed.is_ok())
        });
    });
    group.finish();
}

criterion_group!(benches, requests, destination, responses);
criterion_main!(benches);
