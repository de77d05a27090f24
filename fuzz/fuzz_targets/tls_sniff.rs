//! The ClientHello sniffer: any cutting of the input, into segments or into
//! records, gives the same answer.
#![no_main]

use libfuzzer_sys::fuzz_target;
use proxy_core::{Host, Status};
use proxy_tls::{ClientHello, SniffError, Sniffer, sniff};

fuzz_target!(|input: &[u8]| {
    let whole = sniff(input);
    segments(input, &whole);
    if let Ok(Status::Complete(hello, used)) = &whole {
        assert!(*used <= input.len().min(Sniffer::MAX));
        assert_eq!(sniff(&input[..*used]), whole);
        assert_eq!(sniff(&input[..*used - 1]), Ok(Status::Partial));
        fields(hello);
        records(hello, &input[..*used]);
    }
});

/// A sniffer that sees the input grow answers like one that sees it whole.
fn segments(input: &[u8], whole: &Result<Status<ClientHello<'_>>, SniffError>) {
    let mut sniffer = Sniffer::default();
    // Each byte at first, then larger steps, so that long inputs stay fast.
    let ends = (0..input.len()).filter(|end| *end < 512 || end % 61 == 0);
    for end in ends.chain([input.len()]) {
        let step = sniffer.sniff(&input[..end]);
        if step != Ok(Status::Partial) {
            return assert_eq!(&step, whole);
        }
    }
    assert_eq!(whole, &Ok(Status::Partial));
}

/// What is handed out keeps its promises.
fn fields(hello: &ClientHello<'_>) {
    if let Some(name) = hello.server_name() {
        assert_eq!(Host::name(name.as_bytes()), Ok(Host::Name(name)));
    }
    assert!(hello.alpn().all(|name| (1..=255).contains(&name.len())));
    assert!(hello.versions().count() > 0);
    let _ = format!("{hello:?}");
}

/// The same message in records of another size is the same hello.
fn records(hello: &ClientHello<'_>, mut input: &[u8]) {
    let mut message = Vec::new();
    while let [22, 3, _, high, low, rest @ ..] = input {
        let len = usize::from(u16::from_be_bytes([*high, *low])).min(rest.len());
        message.extend_from_slice(&rest[..len]);
        input = &rest[len..];
    }
    let size = 1 + usize::from(message[message.len() - 1]) * 8;
    let mut cut = Vec::new();
    for part in message.chunks(size) {
        let len = u16::try_from(part.len()).expect("at most 2,041").to_be_bytes();
        cut.extend_from_slice(&[22, 3, 1]);
        cut.extend_from_slice(&len);
        cut.extend_from_slice(part);
    }
    match sniff(&cut) {
        Ok(Status::Complete(same, used)) => {
            assert_eq!(used, cut.len());
            assert_eq!(same.server_name(), hello.server_name());
            assert!(same.alpn().eq(hello.alpn()));
            assert!(same.versions().eq(hello.versions()));
        }
        // The record headers can take it over the limit.
        other => assert_eq!(other, Err(SniffError::TooLong)),
    }
}
