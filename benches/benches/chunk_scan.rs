//! Following a chunked body, raw and taken out of its chunks.

use std::hint::black_box;

use criterion::{Criterion, Throughput, criterion_group, criterion_main};
use proxy_http::{BodyFramer, Framing};

/// About 64 KiB of content in chunks of that size.
fn body(size: usize) -> Vec<u8> {
    let mut body = Vec::new();
    for _ in 0..(64 * 1024 / size) {
        body.extend_from_slice(format!("{size:x}\r\n").as_bytes());
        body.resize(body.len() + size, b'x');
        body.extend_from_slice(b"\r\n");
    }
    body.extend_from_slice(b"0\r\n\r\n");
    body
}

fn scan(c: &mut Criterion) {
    let mut group = c.benchmark_group("chunks");
    for size in [16, 1024, 16 * 1024] {
        let body = body(size);
        group.throughput(Throughput::Bytes(body.len() as u64));
        group.bench_function(format!("raw-{size}"), |b| {
            b.iter(|| {
                BodyFramer::new(Framing::Chunked)
                    .advance(black_box(&body))
                    .is_ok()
            });
        });
        group.bench_function(format!("content-{size}"), |b| {
            b.iter(|| {
                let mut framer = BodyFramer::new(Framing::Chunked);
                let (mut rest, mut len) = (black_box(&body[..]), 0);
                while let Ok(found) = framer.payload(rest)
                    && !found.end
                {
                    len += found.range.len();
                    rest = &rest[found.used..];
                }
                len
            });
        });
    }
    group.finish();
}

criterion_group!(benches, scan);
criterion_main!(benches);
