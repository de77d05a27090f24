//! Whole exchanges in memory: generated ones, and the corpus of the fuzz target.
#![cfg(feature = "serve")]

mod exchange_support;

use std::path::Path;

use exchange_support::play;
use proptest::prelude::*;

#[test]
fn corpus_holds() {
    let corpus = Path::new(env!("CARGO_MANIFEST_DIR")).join("../fuzz/corpus/http_exchange");
    let entries = std::fs::read_dir(&corpus).expect("a corpus");
    let inputs: Vec<_> = entries
        .map(|entry| entry.expect("an entry").path())
        .collect();
    assert!(!inputs.is_empty(), "{} is empty", corpus.display());
    for input in inputs {
        println!("{}", input.display());
        play(&std::fs::read(&input).expect("an input"));
    }
}

/// The origin takes five bytes of a request, answers it, and takes the rest when the next one
/// comes: which must not be read as the rest.
#[test]
fn p07_the_next_request_does_not_end_the_one_before() {
    let ok = b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n\xff";
    let get = b"GET http://h/a HTTP/1.1\r\nHost: h\r\n\r\n\xff";
    let post = b"POST http://h/p HTTP/1.1\r\nHost: h\r\nContent-Length: 5\r\n\r\nhello\xff";
    let stalled = [&ok[..ok.len() - 1], b"\xfb\xfa\xff"].concat();
    play(&[&get[..], &stalled, post, ok, get, b"\xfb", ok].concat());
}

/// The client takes half of an interim answer before the final one turns out to be none.
#[test]
fn p22_nothing_follows_half_an_interim_answer() {
    let get = b"\xfb\xfaGET http://h/a HTTP/1.1\r\nHost: h\r\n\r\n\xff";
    play(
        &[
            &get[..],
            b"HTTP/1.1 103 Early Hints\r\n\r\nnonsense\xff\xfb",
        ]
        .concat(),
    );
}

/// What one side sends while the other takes nothing is left to the kernel of who sends it.
#[test]
fn p34_a_slow_reader_does_not_fill_memory() {
    let put = b"PUT http://h/ HTTP/1.1\r\nHost: h\r\nContent-Length: 900000\r\n\r\nx\xfe\xff\xfb\xff\xf9\xf9\xf9\xf9";
    play(put);
    for framing in [
        "Content-Length: 900000\r\n",
        "",
        "Transfer-Encoding: chunked\r\n",
    ] {
        let get = b"\xfb\xfaGET http://h/ HTTP/1.1\r\nHost: h\r\n\r\n\xff";
        let head = format!("HTTP/1.1 200 OK\r\n{framing}\r\n90000\r\nx");
        play(&[get, head.as_bytes(), b"\xf9\xf9\xf9\xf9"].concat());
    }
}

/// A piece of a transcript: see there for the bytes that are stage directions.
fn piece() -> impl Strategy<Value = &'static [u8]> {
    prop::sample::select(PIECES)
}

const PIECES: &[&[u8]] = &[
    b"\xff",
    b"\xff",
    b"\xff",
    b"\xfe",
    b"\xfd",
    b"\xfc",
    b"\xfb",
    b"\xfa",
    b"\xf9",
    b"GET http://h/a HTTP/1.1\r\nHost: h\r\n\r\n",
    b"HEAD http://h/a?b HTTP/1.1\r\nHost: h\r\n\r\n",
    b"GET http://h HTTP/1.0\r\nConnection: keep-alive\r\n\r\n",
    b"POST http://h/p HTTP/1.1\r\nHost: h\r\nContent-Length: 5\r\n\r\nhello",
    b"PUT http://h/p HTTP/1.1\r\nHost: h\r\nContent-Length: 100005\r\n\r\nhello",
    b"POST http://h/p HTTP/1.1\r\nHost: h\r\nExpect: 100-continue\r\nContent-Length: 5\r\n\r\n",
    b"POST http://h/p HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhel",
    b"lo\r\n0\r\n\r\n",
    b"0\r\nX-T: y\r\n\r\n",
    b"POST http://deny/p HTTP/1.1\r\nHost: deny\r\nContent-Length: 5\r\n\r\nhello",
    b"GET http://down/ HTTP/1.1\r\nHost: down\r\n\r\n",
    b"GET http://other/ HTTP/1.1\r\nHost: other\r\n\r\n",
    b"POST http://edit/p HTTP/1.1\r\nHost: edit\r\nContent-Length: 5\r\n\r\nhello",
    b"POST http://look/p HTTP/1.1\r\nHost: look\r\nContent-Length: 5\r\n\r\nhello",
    b"GET http://edit/ HTTP/1.0\r\nHost: edit\r\n\r\n",
    b"OPTIONS * HTTP/1.1\r\nHost: h\r\n\r\n",
    b"TRACE http://h/ HTTP/1.1\r\nHost: h\r\nMax-Forwards: 0\r\n\r\n",
    b"CONNECT h:443 HTTP/1.1\r\nHost: h:443\r\n\r\n",
    b"GET http://h/ws HTTP/1.1\r\nHost: h\r\nConnection: Upgrade\r\nUpgrade: w\r\n\r\n",
    b"hello",
    b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello",
    b"HTTP/1.1 200 OK\r\nContent-Length: 200010\r\n\r\nhello",
    b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhel",
    b"HTTP/1.1 200 OK\r\n\r\nhello",
    b"HTTP/1.0 200 OK\r\nContent-Length: 0\r\n\r\n",
    b"HTTP/1.1 204 No Content\r\n\r\n",
    b"HTTP/1.1 304 Not Modified\r\nContent-Length: 5\r\n\r\n",
    b"HTTP/1.1 100 Continue\r\n\r\n",
    b"HTTP/1.1 103 Early Hints\r\nLink: <a>\r\n\r\n",
    b"HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: w\r\n\r\nhi",
    b"HTTP/1.1 413 Too Large\r\nConnection: close\r\nContent-Length: 0\r\n\r\n",
    b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n",
    b"\r\n",
    b"x",
];

proptest! {
    #![proptest_config(ProptestConfig::with_cases(3000))]

    #[test]
    fn transcripts(pieces in prop::collection::vec(piece(), 0..24)) {
        play(&pieces.concat());
    }

    /// Both sides take turns, with something in between now and then.
    #[test]
    fn conversations(turns in prop::collection::vec((piece(), prop::option::weighted(0.3, piece())), 2..16)) {
        let turns = turns.iter().flat_map(|(piece, other)| {
            [other.unwrap_or_default(), piece, &b"\xff"[..]]
        });
        play(&turns.collect::<Vec<_>>().concat());
    }
}
