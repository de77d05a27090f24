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
