//! The laws of PROXY protocol headers; the fuzz target checks them too.

use std::net::{IpAddr, SocketAddr};

use bytes::BytesMut;
use proxy_core::{ProxyAddresses, ProxyHeader, ProxyHeaderError, ProxyVersion, Status};

type Outcome = Result<Status<ProxyHeader>, ProxyHeaderError>;

/// Everything that holds of any input.
pub(crate) fn header(input: &[u8]) {
    let whole = ProxyHeader::parse(input);
    any_cut_agrees(input, &whole);
    plain_line_agrees(input, &whole);
    match whole {
        Ok(Status::Complete(header, used)) => {
            assert!(used <= ProxyHeader::MAX);
            written_back(header);
        }
        Ok(Status::Partial) => {
            assert!(input.len() < ProxyHeader::MAX);
            can_be_completed(input);
        }
        Err(error) => assert!(!error.to_string().is_empty()),
    }
}

/// The same answer comes with the byte that decides it, and stays.
fn any_cut_agrees(input: &[u8], whole: &Outcome) {
    let decided = (0..=input.len())
        .map(|end| (end, ProxyHeader::parse(&input[..end])))
        .find(|(_, outcome)| *outcome != Ok(Status::Partial));
    let Some((end, first)) = decided else {
        return assert_eq!(whole, &Ok(Status::Partial));
    };
    assert_eq!(&first, whole);
    if let Ok(Status::Complete(_, used)) = whole {
        assert_eq!(*used, end, "whole, but not with its last byte");
    }
}

/// What is read can be written in both versions, and reads the same.
fn written_back(header: ProxyHeader) {
    for (version, most) in [(ProxyVersion::V1, 104), (ProxyVersion::V2, 52)] {
        let header = ProxyHeader { version, ..header };
        let mut wire = BytesMut::from("before");
        header.encode(&mut wire);
        let wire = wire.strip_prefix(b"before").expect("appended");
        assert!(wire.len() <= most);
        let again = ProxyHeader::parse(wire);
        assert_eq!(again, Ok(Status::Complete(header, wire.len())));
    }
}

/// A reading of whole lines that does not care for speed or partial input.
fn plain_line_agrees(input: &[u8], whole: &Outcome) {
    if !input.starts_with(b"PROXY ") {
        return;
    }
    let end = input.windows(2).position(|pair| pair == b"\r\n");
    let line = end.filter(|end| *end <= 105).map(|end| &input[..end]);
    let expected = line.and_then(plain_line);
    match whole {
        Ok(Status::Complete(header, used)) => {
            assert_eq!(Some(header.addresses), expected);
            assert_eq!(Some(*used), end.map(|end| end + 2));
        }
        _ => assert_eq!(expected, None, "{whole:?}"),
    }
}

fn plain_line(line: &[u8]) -> Option<Option<ProxyAddresses>> {
    let rest = line.strip_prefix(b"PROXY ")?;
    if rest == b"UNKNOWN" || rest.starts_with(b"UNKNOWN ") {
        let ends = |byte: &u8| matches!(byte, b'\r' | b'\n');
        return (!rest.iter().any(ends)).then_some(None);
    }
    let fields: Vec<&str> = std::str::from_utf8(rest).ok()?.split(' ').collect();
    let [family, source, destination, source_port, destination_port] = fields[..] else {
        return None;
    };
    let end = |ip: &str, port: &str| {
        let number: u16 = port.parse().ok()?;
        let ip: IpAddr = ip.parse().ok().filter(|_| ip.len() <= 39)?;
        let family_fits = family == if ip.is_ipv4() { "TCP4" } else { "TCP6" };
        let canonical = number.to_string() == port;
        (family_fits && canonical).then(|| SocketAddr::new(ip.to_canonical(), number))
    };
    Some(Some(ProxyAddresses {
        source: end(source, source_port)?,
        destination: end(destination, destination_port)?,
    }))
}

/// No input is called the beginning of a header that is not one.
fn can_be_completed(input: &[u8]) {
    let possible = match input.first() {
        Some(b'\r') => can_be_completed_v2(input),
        _ => [
            &b"PROXY UNKNOWN\r\n"[..],
            b"PROXY TCP4 0.0.0.0 0.0.0.0 0 0\r\n",
            b"PROXY TCP6 :: :: 0 0\r\n",
            b"PROXY TCP6 ::0.0.0.0 ::0.0.0.0 0 0\r\n",
        ]
        .iter()
        .any(|line| (0..line.len()).any(|start| completes(input, &line[start..]))),
    };
    assert!(possible, "{input:?} cannot become a header");
}

fn can_be_completed_v2(input: &[u8]) -> bool {
    const START: &[u8] = b"\r\n\r\n\0\r\nQUIT\n\x21\0\0\0";
    let zeros = vec![0; ProxyHeader::MAX];
    let Some((start, block)) = input.split_first_chunk::<16>() else {
        let low = |low: u8| [&[0, low][input.len().max(14) - 14..], &zeros].concat();
        return match input.len() {
            14.. => (0..=u8::MAX).any(|byte| completes(input, &low(byte))),
            len => completes(input, &START[len..]),
        };
    };
    let missing = usize::from(u16::from_be_bytes([start[14], start[15]])) - block.len();
    if missing > 100 {
        return true; // To try all ways would take long.
    }
    let number = |len: usize| [0, u8::try_from(len).expect("at most 100")];
    // To the end as it is; a field begun with, or in its length; a field after some bytes.
    completes(input, &zeros[..missing])
        || completes(input, &[&number(missing - 1)[1..], &zeros].concat())
        || missing >= 2 && completes(input, &[&number(missing - 2)[..], &zeros].concat())
        || (3..=missing).any(|field| {
            let before = &zeros[..missing - field];
            completes(input, &[before, &[0], &number(field - 3), &zeros].concat())
        })
}

fn completes(input: &[u8], rest: &[u8]) -> bool {
    let outcome = ProxyHeader::parse(&[input, rest].concat());
    matches!(outcome, Ok(Status::Complete(..)))
}
