//! The record layer before encryption: finding the ClientHello.

use std::borrow::Cow;

use proxy_core::Status;

use crate::ClientHello;

/// Reads the ClientHello at the beginning of `input`, however it is cut into
/// records (RFC 8446 section 5.1).
///
/// Nothing is consumed on the caller's behalf: the count in
/// [`Status::Complete`] is where the ClientHello ends, and whoever goes on with
/// the connection needs the very same bytes. Only a ClientHello that spans
/// several records is copied, once, when it is complete.
///
/// A caller that looks again after each read should keep a [`Sniffer`].
///
/// # Errors
/// As soon as a byte proves that this is no TLS, no ClientHello, or longer than
/// [`Sniffer::MAX`] bytes; never because bytes are missing.
pub fn sniff(input: &[u8]) -> Result<Status<ClientHello<'_>>, SniffError> {
    Sniffer::default().sniff(input)
}

/// [`sniff`] that remembers how far it has looked, so that a ClientHello which
/// arrives in many pieces is looked at only once.
#[derive(Clone, Debug, Default)]
pub struct Sniffer {
    /// Where the first record begins that has not been seen whole.
    next: usize,
    /// How many bytes of the handshake message lie before that.
    gathered: usize,
    /// Type and length of the handshake message, as far as known.
    head: [u8; HANDSHAKE_HEAD],
}

impl Sniffer {
    /// The most bytes that a ClientHello may take, record headers included:
    /// 32 KiB. Those of browsers with post-quantum keys have about 2 KiB.
    pub const MAX: usize = 32 * 1024;

    /// As [`sniff`]; `input` begins with the same bytes at each call.
    ///
    /// # Errors
    /// As for [`sniff`].
    pub fn sniff<'i>(&mut self, input: &'i [u8]) -> Result<Status<ClientHello<'i>>, SniffError> {
        loop {
            let Some(record) = Record::parse(input.get(self.next..).unwrap_or_default())? else {
                return Ok(Status::Partial);
            };
            if self.next + RECORD_HEAD + record.len > Self::MAX {
                return Err(SniffError::TooLong);
            }
            if let Some(len) = self.message_len(record.payload)?
                && len <= self.gathered + record.payload.len()
            {
                let end = self.next + RECORD_HEAD + len - self.gathered;
                let body = match self.next {
                    0 => Cow::Borrowed(&record.payload[HANDSHAKE_HEAD..len]),
                    _ => Cow::Owned(gather(input, len)),
                };
                return Ok(Status::Complete(ClientHello::parse(body)?, end));
            }
            if record.payload.len() < record.len {
                return Ok(Status::Partial);
            }
            self.gathered += record.len;
            self.next += RECORD_HEAD + record.len;
        }
    }

    /// The length of the whole handshake message once its head is complete,
    /// given the payload that follows what was gathered.
    fn message_len(&mut self, payload: &[u8]) -> Result<Option<usize>, SniffError> {
        let missing = self.head.iter_mut().skip(self.gathered);
        missing.zip(payload).for_each(|(head, byte)| *head = *byte);
        let [kind, high, length @ ..] = self.head;
        let seen = self.gathered + payload.len();
        if seen >= 1 && kind != CLIENT_HELLO {
            return Err(SniffError::NotClientHello);
        }
        if seen >= 2 && high != 0 {
            return Err(SniffError::TooLong);
        }
        let len = HANDSHAKE_HEAD + usize::from(u16::from_be_bytes(length));
        match seen >= HANDSHAKE_HEAD {
            true if len > Self::MAX => Err(SniffError::TooLong),
            true => Ok(Some(len)),
            false => Ok(None),
        }
    }
}

/// Why bytes are not a ClientHello.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum SniffError {
    /// The list of application protocols is malformed (RFC 7301 section 3.1).
    #[error("malformed list of application protocols")]
    Alpn,
    /// An extension that may stand once stands twice (RFC 8446 section 4.2).
    #[error("repeated extension in the ClientHello")]
    Duplicate,
    /// The ClientHello is malformed (RFC 8446 section 4.1.2).
    #[error("malformed ClientHello")]
    Hello,
    /// A TLS handshake, but it does not begin with a ClientHello.
    #[error("the TLS handshake does not begin with a ClientHello")]
    NotClientHello,
    /// Not TLS at all.
    #[error("not a TLS handshake")]
    NotTls,
    /// A record of length 0 or over 16 KiB, or of another type in the middle of
    /// the ClientHello (RFC 8446 section 5.1).
    #[error("malformed TLS record")]
    Record,
    /// The server name is malformed or holds bytes that no name has (RFC 6066
    /// section 3).
    #[error("malformed server name")]
    ServerName,
    /// The ClientHello takes more than [`Sniffer::MAX`] bytes.
    #[error("ClientHello of over {} bytes", Sniffer::MAX)]
    TooLong,
    /// The list of supported versions is malformed (RFC 8446 section 4.2.1).
    #[error("malformed list of supported versions")]
    Versions,
}

/// The first record of a slice; its payload may be cut off.
struct Record<'i> {
    len: usize,
    payload: &'i [u8],
}

impl<'i> Record<'i> {
    fn parse(input: &'i [u8]) -> Result<Option<Self>, SniffError> {
        // Each byte is judged as soon as it is there.
        if !matches!(input, [] | [HANDSHAKE] | [HANDSHAKE, 3, ..]) {
            return Err(SniffError::NotTls);
        }
        let Some((head, rest)) = input.split_first_chunk::<RECORD_HEAD>() else {
            return Ok(None);
        };
        let [_, _, _, length @ ..] = *head;
        match usize::from(u16::from_be_bytes(length)) {
            len @ 1..=MAX_RECORD => Ok(Some(Self {
                len,
                payload: &rest[..len.min(rest.len())],
            })),
            _ => Err(SniffError::Record),
        }
    }
}

/// The body of a message of `len` bytes, out of records that were seen to hold
/// it.
fn gather(mut input: &[u8], len: usize) -> Vec<u8> {
    let mut message = Vec::with_capacity(len);
    while message.len() < len
        && let Ok(Some(record)) = Record::parse(input)
    {
        let wanted = record.payload.len().min(len - message.len());
        message.extend_from_slice(&record.payload[..wanted]);
        input = &input[RECORD_HEAD + record.payload.len()..];
    }
    message.drain(..HANDSHAKE_HEAD);
    message
}

/// Record type `handshake` (RFC 8446 section 5.1).
const HANDSHAKE: u8 = 22;
/// Handshake type `client_hello` (RFC 8446 section 4).
const CLIENT_HELLO: u8 = 1;
/// Type, version and length.
const RECORD_HEAD: usize = 5;
/// Type and length.
const HANDSHAKE_HEAD: usize = 4;
/// The longest plaintext record (RFC 8446 section 5.1).
const MAX_RECORD: usize = 1 << 14;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sample::{Sample, message, records};
    use proptest::prelude::*;

    fn example() -> Vec<u8> {
        Sample::default()
            .named(b"Example.com")
            .alpn(&[b"h2", b"http/1.1"])
            .with(43, [4, 3, 4, 3, 3])
            .message()
    }

    fn complete(input: &[u8]) -> (ClientHello<'_>, usize) {
        match sniff(input) {
            Ok(Status::Complete(hello, used)) => (hello, used),
            other => panic!("{other:?}"),
        }
    }

    /// What is common to equal hellos at different places.
    fn seen(hello: &ClientHello<'_>) -> (Option<String>, Vec<Vec<u8>>, Vec<u16>) {
        (
            hello.server_name().map(str::to_owned),
            hello.alpn().map(<[u8]>::to_vec).collect(),
            hello.versions().collect(),
        )
    }

    #[test]
    fn hellos_of_real_clients() {
        let h2: &[&[u8]] = &[b"h2", b"http/1.1"];
        for (bytes, name, alpn, versions) in [
            (
                &include_bytes!("../tests/data/openssl.bin")[..],
                Some("example.com"),
                h2,
                &[0x304, 0x303][..],
            ),
            (
                include_bytes!("../tests/data/openssl-tls12.bin"),
                Some("example.com"),
                &[],
                &[0x303],
            ),
            (
                include_bytes!("../tests/data/openssl-bare.bin"),
                None,
                &[],
                &[0x304, 0x303],
            ),
            (
                include_bytes!("../tests/data/curl.bin"),
                Some("example.com"),
                h2,
                &[0x304, 0x303],
            ),
        ] {
            let (hello, used) = complete(bytes);
            assert_eq!(used, bytes.len());
            assert_eq!(hello.server_name(), name);
            assert_eq!(hello.alpn().collect::<Vec<_>>(), alpn);
            let offered: Vec<_> = hello.versions().collect();
            assert!(offered.starts_with(versions), "{offered:x?}");
        }
    }

    #[test]
    fn p76_a_hello_over_several_records_is_the_same_hello() {
        let message = example();
        let whole = records(&message, message.len());
        let expected = seen(&complete(&whole).0);
        assert_eq!(expected.0.as_deref(), Some("Example.com"));
        for size in 1..message.len() {
            let cut = records(&message, size);
            let (hello, used) = complete(&cut);
            assert_eq!(
                (seen(&hello), used),
                (expected.clone(), cut.len()),
                "{size}"
            );
        }
    }

    #[test]
    fn truncation_is_never_an_error() {
        let message = example();
        for size in [1, 2, 3, 4, 7, 60, message.len()] {
            let input = records(&message, size);
            for end in 0..input.len() {
                assert_eq!(sniff(&input[..end]), Ok(Status::Partial), "{end} of {size}");
            }
        }
    }

    #[test]
    fn what_follows_is_not_looked_at() {
        let hello = records(&example(), 50);
        let input = [&hello[..], b"\0\xff early data"].concat();
        assert_eq!(complete(&input).1, hello.len());
        // Even in the same record.
        let message = example();
        let input = records(&[&message[..], &[9; 30]].concat(), 10_000);
        assert_eq!(complete(&input).1, RECORD_HEAD + message.len());
    }

    #[test]
    fn the_first_byte_that_proves_it() {
        use SniffError::{NotClientHello, NotTls, Record as R, TooLong};
        for (input, proof, error) in [
            (&b"GET / HTTP/1.1\r\n\r\n"[..], 1, NotTls),
            (b"\x05\x01\0", 1, NotTls),
            (b"\x80\x2e\x01\0\x02", 1, NotTls),
            (b"\x15\x03\x01\0\x02\x01\0", 1, NotTls),
            (b"\x16\x02\x01\0\x02", 2, NotTls),
            (b"\x16\x03\x01\0\0", 5, R),
            (b"\x16\x03\x01\x40\x01", 5, R),
            (b"\x16\x03\x01\xff\xff", 5, R),
            (b"\x16\x03\x01\0\x04\x02\0\0\0", 6, NotClientHello),
            (b"\x16\x03\x01\0\x04\x01\x01\0\0", 7, TooLong),
            (b"\x16\x03\x01\0\x04\x01\0\x80\0", 9, TooLong),
            (b"\x16\x03\x01\0\x01\x01\x15\x03\x01\0\x02", 7, NotTls),
            (b"\x16\x03\x01\0\x01\x01\x16\x03\x01\0\0", 11, R),
        ] {
            for end in 0..=input.len() {
                let expected = match end >= proof {
                    true => Err(error),
                    false => Ok(Status::Partial),
                };
                assert_eq!(sniff(&input[..end]), expected, "{end} of {input:?}");
            }
        }
    }

    #[test]
    fn the_bound_is_kept() {
        // The largest hello that fits, in full records.
        let space = Sniffer::MAX - 2 * RECORD_HEAD - HANDSHAKE_HEAD;
        let base = Sample::default().with(9, []).body().len();
        let padded = |len| Sample::default().with(9, vec![0; len - base]).message();
        let input = records(&padded(space), MAX_RECORD);
        assert_eq!(complete(&input).1, Sniffer::MAX);
        let input = records(&padded(space + 1), MAX_RECORD);
        assert_eq!(sniff(&input), Err(SniffError::TooLong));
        // Records of one byte take six times the space.
        let input = records(&padded(Sniffer::MAX / 5), 1);
        let mut sniffer = Sniffer::default();
        let answers = (0..input.len()).map(|end| sniffer.sniff(&input[..end]));
        let refused = answers.take_while(|answer| answer.is_ok()).count();
        assert!(refused <= Sniffer::MAX + RECORD_HEAD, "{refused}");
    }

    #[test]
    fn errors_are_small() {
        assert!(size_of::<SniffError>() <= 8);
    }

    /// Hellos, some of them spoilt, in records, some of them spoilt.
    fn inputs() -> impl Strategy<Value = Vec<u8>> {
        let noise = proptest::collection::vec(any::<u8>(), 0..200);
        let spoilt = (any::<proptest::sample::Index>(), any::<u8>(), 1usize..300);
        let hello = spoilt.prop_map(|(at, byte, size)| {
            let mut input = records(&example(), size);
            let at = at.index(2 * input.len());
            if let Some(spot) = input.get_mut(at) {
                *spot = byte;
            }
            input
        });
        let body = noise
            .clone()
            .prop_map(|noise| records(&message(&noise), 50));
        prop_oneof![hello, body, noise]
    }

    proptest! {
        #[test]
        fn any_cut_gives_the_same(input in inputs()) {
            let whole = sniff(&input);
            let mut kept = Sniffer::default();
            let mut ended = false;
            for end in 0..=input.len() {
                let step = kept.sniff(&input[..end]);
                prop_assert_eq!(&sniff(&input[..end]), &step);
                if step != Ok(Status::Partial) {
                    prop_assert_eq!(&step, &whole);
                    ended = true;
                    break;
                }
            }
            prop_assert_eq!(ended, whole != Ok(Status::Partial));
        }

        #[test]
        fn names_and_protocols_come_back(
            name in "[a-zA-Z][a-zA-Z0-9_-]{0,20}(\\.[a-z][a-z0-9]{0,9}){0,4}",
            alpn in proptest::collection::vec(proptest::collection::vec(any::<u8>(), 1..=255), 1..5),
            size in 1usize..2000,
        ) {
            let protocols: Vec<&[u8]> = alpn.iter().map(Vec::as_slice).collect();
            let message = Sample::default().named(name.as_bytes()).alpn(&protocols).message();
            let input = records(&message, size);
            let (hello, used) = complete(&input);
            prop_assert_eq!(used, input.len());
            prop_assert_eq!(hello.server_name(), Some(&name[..]));
            prop_assert_eq!(hello.alpn().collect::<Vec<_>>(), protocols);
        }
    }
}
