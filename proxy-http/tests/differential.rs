//! Differential tests: the same bytes through this crate, hyper and the http-parser of Node.js. No
//! two of them may disagree on where a message ends, unless we refuse it; and what we send on has
//! one reading only. `DIFFERENTIAL_CASES` raises the number of messages.
#![allow(missing_docs)]

mod differential_support;

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use differential_support::generate::{Dice, Kit, REQUESTS, RESPONSES, message};
use differential_support::ours::{self, Passed};
use differential_support::{Reader, Reading};

#[test]
fn requests_end_where_others_see_their_end() {
    let seeds = corpora(&["http_request"], b"");
    let seeds = [seeds, corpora(&["http_body"], CHUNKED_REQUEST)].concat();
    let kit = Kit {
        seeds: &seeds,
        ..REQUESTS
    };
    let mut dice = Dice::new(4);
    let mut tally = Tally::default();
    for _ in 0..cases() {
        let input = message(&mut dice, &kit);
        let passed = ours::request(&input);
        for reader in Reader::ALL {
            let received = || reader.request(&input);
            let resent = |sent: &[u8]| reader.request(sent);
            check(reader, &input, &passed, received, resent, &mut tally);
        }
    }
    tally.conclude();
}

#[test]
fn responses_end_where_others_see_their_end() {
    let seeds = corpora(&["http_response"], b"");
    let seeds = [seeds, corpora(&["http_body"], CHUNKED_RESPONSE)].concat();
    let kit = Kit {
        seeds: &seeds,
        ..RESPONSES
    };
    let mut dice = Dice::new(5);
    let mut tally = Tally::default();
    for _ in 0..cases() {
        let input = message(&mut dice, &kit);
        let method = dice.pick(METHODS);
        let passed = ours::response(&input, method);
        for reader in Reader::ALL {
            let received = || reader.response(&input, method);
            let resent = |sent: &[u8]| reader.response(sent, method);
            check(reader, &input, &passed, received, resent, &mut tally);
        }
    }
    tally.conclude();
}

/// What another reader says to the bytes received, if we do not refuse them, and to those sent on.
fn check(
    reader: Reader,
    input: &[u8],
    ours: &Passed,
    received: impl Fn() -> Reading,
    resent: impl Fn(&[u8]) -> Reading,
    tally: &mut Tally,
) {
    tally.count(reader, &ours.reading);
    if !matches!(ours.reading, Reading::Refused(_)) {
        let theirs = received();
        let agree = match (&ours.reading, &theirs) {
            // To be stricter than we are harms nobody.
            (_, Reading::Refused(_)) => true,
            // It is old and reads some things otherwise, which is why we do not send them on.
            _ if reader == Reader::Node && ours.translated => true,
            (ours, theirs) => ours == theirs,
        };
        assert!(
            agree,
            "{reader:?} reads otherwise what was received:\n{}\n{:?}\n{theirs:?}",
            input.escape_ascii(),
            ours.reading,
        );
    }
    for sent in &ours.sent {
        let theirs = resent(sent);
        let agree = match (&ours.reading, &theirs) {
            (Reading::Message(ours), Reading::Message(theirs)) => {
                (&ours.what, &ours.content) == (&theirs.what, &theirs.content)
                    && theirs.end == sent.len()
            }
            (Reading::Message(_), Reading::Refused(reason)) => tally.refused(reader, reason),
            // Cut off, it must not look whole.
            (_, theirs) => theirs.message().is_none(),
        };
        assert!(
            agree,
            "{reader:?} reads otherwise what was sent on:\n{}\n{}\n{:?}\n{theirs:?}",
            input.escape_ascii(),
            sent.escape_ascii(),
            ours.reading,
        );
    }
}

/// How often what happened: a test that compares nothing proves nothing.
#[derive(Default)]
struct Tally {
    outcomes: BTreeMap<(&'static str, &'static str), usize>,
    refusals: BTreeMap<String, usize>,
}

impl Tally {
    fn count(&mut self, reader: Reader, ours: &Reading) {
        let ours = match ours {
            Reading::Message(_) => "whole",
            Reading::Partial => "partial",
            Reading::Refused(_) => "refused",
        };
        let reader = match reader {
            Reader::Hyper => "hyper",
            Reader::Node => "node",
        };
        *self.outcomes.entry((reader, ours)).or_default() += 1;
    }

    /// Another reader refuses what we send: for a reason that has nothing to do with framing?
    fn refused(&mut self, reader: Reader, reason: &str) -> bool {
        *self
            .refusals
            .entry(format!("{reader:?}: {reason}"))
            .or_default() += 1;
        let strict = match reader {
            // It knows only the characters of RFC 3986.
            Reader::Hyper => "Parse(Uri)",
            // It knows only methods that are registered.
            Reader::Node => "HPE_INVALID_METHOD",
        };
        reason.contains(strict)
    }

    fn conclude(&self) {
        println!("{:?}\n{:#?}", self.outcomes, self.refusals);
        let whole = self
            .outcomes
            .get(&("node", "whole"))
            .copied()
            .unwrap_or_default();
        let all: usize = self.outcomes.values().sum::<usize>() / Reader::ALL.len();
        assert!(
            whole * 8 > all,
            "only {whole} of {all} messages were accepted"
        );
    }
}

fn cases() -> usize {
    std::env::var("DIFFERENTIAL_CASES")
        .ok()
        .and_then(|n| n.parse().ok())
        .unwrap_or(CASES)
}

/// The inputs of fuzz targets, behind a head for those that have none.
fn corpora(names: &[&str], head: &[u8]) -> Vec<Vec<u8>> {
    let mut seeds = Vec::new();
    for name in names {
        let corpus = Path::new(env!("CARGO_MANIFEST_DIR"))
            .join("../fuzz/corpus")
            .join(name);
        for entry in fs::read_dir(corpus).expect("a corpus") {
            let input = fs::read(entry.expect("an entry").path()).expect("an input");
            seeds.push([head, &input].concat());
        }
    }
    // A folder has no order.
    seeds.sort();
    seeds
}

const CHUNKED_REQUEST: &[u8] =
    b"POST http://h/ HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n";
const CHUNKED_RESPONSE: &[u8] = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n";

const METHODS: &[&str] = &["GET", "GET", "POST", "HEAD", "CONNECT"];

const CASES: usize = 150_000;
