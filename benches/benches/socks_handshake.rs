//! A SOCKS handshake without I/O: the messages in one segment, in a segment
//! each, byte by byte; and against an independent implementation in memory.

use std::hint::black_box;

use bytes::{Buf, BytesMut};
use criterion::{Criterion, criterion_group, criterion_main};
use fast_socks5::server::Socks5ServerProtocol;
use proxy_core::{Handshake, Target};
use proxy_socks::{ClientHandshake, Methods, Next, ServerHandshake};

const NONE: &[&[u8]] = &[b"\x05\x01\x00", b"\x05\x01\x00\x03\x0bexample.com\x01\xbb"];
const PASSWORD: &[&[u8]] = &[
    b"\x05\x01\x02",
    b"\x01\x05alice\x06secret",
    b"\x05\x01\x00\x03\x0bexample.com\x01\xbb",
];
const V4A: &[&[u8]] = &[b"\x04\x01\x01\xbb\x00\x00\x00\x01me\0example.com\0"];

/// Runs the server machine; returns the number of bytes that it answered.
fn serve<'w>(
    segments: impl IntoIterator<Item = &'w [u8]>,
    input: &mut BytesMut,
    output: &mut BytesMut,
) -> usize {
    input.clear();
    output.clear();
    let mut segments = segments.into_iter();
    let mut state = ServerHandshake::start(Methods::ANY);
    loop {
        let (next, used) = state.process(input, output).expect("well formed");
        state = match next {
            Next::NeedsInput(state) => {
                input.advance(used);
                input.extend_from_slice(segments.next().expect("a request"));
                state
            }
            Next::Authenticate(login) => {
                let known = login.credentials().password == b"secret";
                let state = login.answer(known, output).expect("known");
                input.advance(used);
                state
            }
            Next::Request(request) => {
                black_box(request.target());
                let _ = request.accept(([192, 0, 2, 1], 9).into(), output);
                return output.len();
            }
        };
    }
}

fn server(c: &mut Criterion) {
    let mut group = c.benchmark_group("socks_server");
    let (mut input, mut output) = (BytesMut::new(), BytesMut::new());
    for (name, segments) in [("none", NONE), ("password", PASSWORD), ("v4a", V4A)] {
        let whole = segments.concat();
        group.bench_function(format!("{name}/one_segment"), |b| {
            b.iter(|| serve([black_box(&whole[..])], &mut input, &mut output));
        });
        group.bench_function(format!("{name}/a_segment_each"), |b| {
            b.iter(|| serve(black_box(segments).iter().copied(), &mut input, &mut output));
        });
        group.bench_function(format!("{name}/byte_by_byte"), |b| {
            b.iter(|| serve(black_box(&whole).chunks(1), &mut input, &mut output));
        });
    }
}

fn client(c: &mut Criterion) {
    let target = Target::parse("example.com:443", None).expect("a target");
    let mut output = BytesMut::new();
    let answers = b"\x05\x00\x05\x00\x00\x01\x7f\0\0\x01\x10\x00";
    c.bench_function("socks_client/none", |b| {
        b.iter(|| {
            output.clear();
            let mut client = ClientHandshake::v5(black_box(target));
            let mut done = None;
            let mut used = 0;
            for end in [0, 2, answers.len()] {
                let step = client
                    .advance(&answers[used..end], &mut output)
                    .expect("well formed");
                used += step.consumed;
                done = step.done;
            }
            done.expect("complete")
        });
    });
}

/// The same request through the baseline, which reads a stream.
fn baseline(c: &mut Criterion) {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .build()
        .expect("a runtime");
    let whole = NONE.concat();
    c.bench_function("fast_socks5_server/none/one_segment", |b| {
        b.iter(|| {
            runtime.block_on(async {
                let stream = tokio::io::join(black_box(&whole[..]), tokio::io::sink());
                let protocol = Socks5ServerProtocol::accept_no_auth(stream)
                    .await
                    .expect("well formed");
                let (protocol, _, target) = protocol.read_command().await.expect("well formed");
                black_box(target);
                protocol
                    .reply_success(([192, 0, 2, 1], 9).into())
                    .await
                    .map(drop)
                    .expect("a sink takes it");
            });
        });
    });
}

criterion_group!(benches, server, client, baseline);
criterion_main!(benches);
