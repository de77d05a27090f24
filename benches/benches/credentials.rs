//! Reading and writing Basic credentials.

use std::hint::black_box;

use bytes::BytesMut;
use criterion::{Criterion, criterion_group, criterion_main};
use proxy_core::Credentials;
use proxy_http::auth;

fn credentials(c: &mut Criterion) {
    let mut scratch = [0; auth::SCRATCH];
    let value = b"Basic dXNlcm5hbWU6Y29ycmVjdCBob3JzZSBiYXR0ZXJ5IHN0YXBsZQ==";
    c.bench_function("credentials/basic", |b| {
        b.iter(|| auth::basic(black_box(value), &mut scratch).is_ok());
    });
    let login = Credentials {
        user: b"username",
        password: b"correct horse battery staple",
    };
    let mut out = BytesMut::with_capacity(256);
    c.bench_function("credentials/encode", |b| {
        b.iter(|| {
            out.clear();
            auth::encode(black_box(login), &mut out);
        });
    });
}

criterion_group!(benches, credentials);
criterion_main!(benches);
