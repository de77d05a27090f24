//! The whole exchange of a CONNECT client with a parent proxy.

use std::hint::black_box;

use bytes::BytesMut;
use criterion::{Criterion, criterion_group, criterion_main};
use proxy_core::{Credentials, Handshake, Target};
use proxy_http::ConnectHandshake;

fn connect(c: &mut Criterion) {
    let answer = b"HTTP/1.1 200 Connection established\r\nProxy-Agent: x\r\n\r\n";
    let target = Target::parse("www.example.com:443", None).expect("a target");
    let login = Credentials {
        user: b"user",
        password: b"password",
    };
    let mut out = BytesMut::with_capacity(1024);
    c.bench_function("connect-client", |b| {
        b.iter(|| {
            out.clear();
            let mut handshake = ConnectHandshake::new(black_box(target)).login(login);
            let asked = handshake.advance(b"", &mut out).is_ok();
            asked && handshake.advance(black_box(answer), &mut out).is_ok()
        });
    });
}

criterion_group!(benches, connect);
criterion_main!(benches);
