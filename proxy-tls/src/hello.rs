//! The fields of a ClientHello that a proxy decides by.

use std::borrow::Cow;
use std::fmt;
use std::ops::Range;

use proxy_core::Host;

use crate::SniffError;

/// What a TLS client asks for, read by [`sniff`](crate::sniff()).
///
/// Borrowed from the bytes sniffed, unless they lay in several records.
#[derive(Clone, PartialEq, Eq)]
pub struct ClientHello<'i> {
    body: Cow<'i, [u8]>,
    server_name: Range<usize>,
    alpn: Range<usize>,
    versions: Range<usize>,
}

impl<'i> ClientHello<'i> {
    /// Reads the body of a ClientHello message, without its type and length
    /// (RFC 8446 section 4.1.2).
    pub(crate) fn parse(body: Cow<'i, [u8]>) -> Result<Self, SniffError> {
        let mut hello = Self {
            server_name: 0..0,
            alpn: 0..0,
            versions: 0..0,
            body: Cow::default(),
        };
        let extensions = extensions(&body).ok_or(SniffError::Hello)?;
        let mut fields = Fields::within(&body, extensions);
        while !fields.is_empty() {
            let (kind, value) = fields.extension().ok_or(SniffError::Hello)?;
            hello.note(&body, kind, value)?;
        }
        hello.body = body;
        Ok(hello)
    }

    fn note(&mut self, body: &[u8], kind: u16, value: Range<usize>) -> Result<(), SniffError> {
        let (known, found) = match kind {
            SERVER_NAME => (&mut self.server_name, server_name(body, value)?),
            ALPN => (
                &mut self.alpn,
                protocols(body, value).ok_or(SniffError::Alpn)?,
            ),
            SUPPORTED_VERSIONS => (
                &mut self.versions,
                versions(body, value).ok_or(SniffError::Versions)?,
            ),
            _ => return Ok(()),
        };
        // A second one would let two readers see two names. An ignored first
        // one starts at its place too, so it counts.
        match known.start {
            0 => *known = found,
            _ => return Err(SniffError::Duplicate),
        }
        Ok(())
    }
}

impl ClientHello<'_> {
    /// The host the client wants (RFC 6066 section 3): 1 to 255 letters,
    /// digits, `-`, `_`, `.` and `~`, in the client's spelling.
    ///
    /// `None` if it named none, or wrote an IP address, which is not allowed
    /// there and tells nothing new.
    pub fn server_name(&self) -> Option<&str> {
        let name = self.body.get(self.server_name.clone())?;
        std::str::from_utf8(name)
            .ok()
            .filter(|name| !name.is_empty())
    }

    /// The application protocols the client offers, best first (RFC 7301
    /// section 3.1); each has 1 to 255 bytes, which need not be text.
    pub fn alpn(&self) -> impl Iterator<Item = &[u8]> {
        let mut fields = Fields::within(&self.body, self.alpn.clone());
        std::iter::from_fn(move || fields.short().map(|range| &self.body[range]))
    }

    /// The protocol versions the client offers, as numbers: `0x0304` is TLS
    /// 1.3, `0x0303` is TLS 1.2 (RFC 8446 section 4.2.1). Without that
    /// extension, the one of the fixed part.
    pub fn versions(&self) -> impl Iterator<Item = u16> {
        let range = match self.versions.is_empty() {
            true => 0..2,
            false => self.versions.clone(),
        };
        let (pairs, _) = self.body[range].as_chunks::<2>();
        pairs.iter().map(|pair| u16::from_be_bytes(*pair))
    }
}

impl fmt::Debug for ClientHello<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let alpn: Vec<_> = self.alpn().map(String::from_utf8_lossy).collect();
        f.debug_struct("ClientHello")
            .field("server_name", &self.server_name())
            .field("alpn", &alpn)
            .field("versions", &self.versions().collect::<Vec<_>>())
            .finish_non_exhaustive()
    }
}

/// Where the extensions lie; an empty range if there are none.
fn extensions(body: &[u8]) -> Option<Range<usize>> {
    let mut fields = Fields::within(body, 0..body.len());
    fields.take(VERSION + RANDOM)?;
    let session = fields.short()?;
    let suites = fields.long()?;
    let compressions = fields.short()?;
    if session.len() > MAX_SESSION || suites.len() < 2 || suites.len() % 2 != 0 {
        return None;
    }
    if compressions.is_empty() {
        return None;
    }
    if fields.is_empty() {
        return Some(0..0);
    }
    let extensions = fields.long()?;
    fields.is_empty().then_some(extensions)
}

/// The one host name of the list (RFC 6066 section 3); an empty range at its
/// place if it is an address.
fn server_name(body: &[u8], value: Range<usize>) -> Result<Range<usize>, SniffError> {
    let name = sole_name(body, value).ok_or(SniffError::ServerName)?;
    match Host::name(&body[name.clone()]) {
        Ok(Host::Name(_)) => Ok(name),
        Ok(Host::Ip(_)) => Ok(name.start..name.start),
        Err(_) => Err(SniffError::ServerName),
    }
}

fn sole_name(body: &[u8], value: Range<usize>) -> Option<Range<usize>> {
    let mut fields = Fields::within(body, value);
    let list = fields.long()?;
    let mut names = Fields::within(body, list);
    let kind = names.take(1)?;
    let name = names.long()?;
    // No other kind was ever defined, and there may be one name of each.
    (body[kind] == [HOST_NAME] && names.is_empty() && fields.is_empty()).then_some(name)
}

/// The list of protocols, checked to consist of names of 1 to 255 bytes.
fn protocols(body: &[u8], value: Range<usize>) -> Option<Range<usize>> {
    let mut fields = Fields::within(body, value);
    let list = fields.long()?;
    let mut names = Fields::within(body, list.clone());
    while !names.is_empty() {
        names.short().filter(|name| !name.is_empty())?;
    }
    (!list.is_empty() && fields.is_empty()).then_some(list)
}

fn versions(body: &[u8], value: Range<usize>) -> Option<Range<usize>> {
    let mut fields = Fields::within(body, value);
    let list = fields.short()?;
    (!list.is_empty() && list.len() % 2 == 0 && fields.is_empty()).then_some(list)
}

/// Cuts fields off a part of a slice, as ranges of the whole.
struct Fields<'b> {
    bytes: &'b [u8],
    rest: Range<usize>,
}

impl<'b> Fields<'b> {
    fn within(bytes: &'b [u8], rest: Range<usize>) -> Self {
        Self { bytes, rest }
    }

    fn take(&mut self, len: usize) -> Option<Range<usize>> {
        if len > self.rest.len() {
            return None;
        }
        let start = self.rest.start;
        self.rest.start += len;
        Some(start..self.rest.start)
    }

    /// A field with one byte of length.
    fn short(&mut self) -> Option<Range<usize>> {
        let len = self.take(1)?;
        self.take(self.bytes[len.start].into())
    }

    /// A field with two bytes of length.
    fn long(&mut self) -> Option<Range<usize>> {
        let len = self.number()?;
        self.take(len.into())
    }

    fn extension(&mut self) -> Option<(u16, Range<usize>)> {
        Some((self.number()?, self.long()?))
    }

    fn number(&mut self) -> Option<u16> {
        let range = self.take(2)?;
        self.bytes[range].try_into().map(u16::from_be_bytes).ok()
    }

    fn is_empty(&self) -> bool {
        self.rest.is_empty()
    }
}

const VERSION: usize = 2;
const RANDOM: usize = 32;
const MAX_SESSION: usize = 32;
/// Extension types (RFC 8446 section 4.2).
const SERVER_NAME: u16 = 0;
const ALPN: u16 = 16;
const SUPPORTED_VERSIONS: u16 = 43;
/// The only type of server name (RFC 6066 section 3).
const HOST_NAME: u8 = 0;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sample::{Sample, long, short};

    fn parse(sample: Sample) -> Result<ClientHello<'static>, SniffError> {
        ClientHello::parse(sample.body().into())
    }

    fn base() -> Sample {
        Sample::default()
    }

    #[test]
    fn without_extensions() {
        let mut body = base().body();
        body.truncate(body.len() - 2);
        let hello = ClientHello::parse(body.into()).expect("as old clients send it");
        assert_eq!(hello.server_name(), None);
        assert_eq!(hello.alpn().count(), 0);
        assert_eq!(hello.versions().collect::<Vec<_>>(), [0x303]);
    }

    #[test]
    fn unknown_extensions_are_skipped() {
        let hello = base()
            .with(0x0a0a, [])
            .with(0x0a0a, [1])
            .named(b"a.example")
            .with(65037, vec![1; 300]);
        assert_eq!(
            parse(hello).expect("GREASE").server_name(),
            Some("a.example")
        );
    }

    #[test]
    fn an_address_is_no_name() {
        for address in [&b"192.0.2.1"[..], b"2001:db8::1"] {
            let hello = parse(base().named(address)).expect("tolerated");
            assert_eq!(hello.server_name(), None);
        }
    }

    #[test]
    fn debug_shows_what_was_asked_for() {
        let hello = parse(base().named(b"a.example").alpn(&[b"h2"])).expect("a hello");
        let shown = format!("{hello:?}");
        assert!(
            shown.contains("a.example") && shown.contains("h2"),
            "{shown}"
        );
    }

    #[test]
    fn malformed_fixed_parts() {
        let spoil = |spoil: fn(&mut Sample)| {
            let mut sample = base();
            spoil(&mut sample);
            parse(sample)
        };
        for hello in [
            spoil(|hello| hello.session.push(7)),
            spoil(|hello| hello.suites.clear()),
            spoil(|hello| hello.suites.push(0)),
            spoil(|hello| hello.compressions.clear()),
        ] {
            assert_eq!(hello, Err(SniffError::Hello));
        }
        let body = base().named(b"a.example").body();
        let without = base().body().len() - 2;
        for end in (0..body.len()).filter(|end| *end != without) {
            let cut = ClientHello::parse(body[..end].into());
            assert_eq!(cut, Err(SniffError::Hello), "{end}");
        }
        let longer = [&body[..], &[0]].concat();
        assert_eq!(ClientHello::parse(longer.into()), Err(SniffError::Hello));
    }

    #[test]
    fn malformed_extensions() {
        use SniffError::{Alpn, Duplicate, Hello, ServerName, Versions};
        let entry = |name: &[u8]| [&[0][..], &long(name)].concat();
        for (hello, error) in [
            (base().named(b""), ServerName),
            (base().named(b"a b"), ServerName),
            (base().named(b"a\0.example"), ServerName),
            (base().named(b"a.example\r\n"), ServerName),
            (base().named("ä.example".as_bytes()), ServerName),
            (base().named(&[b'a'; 256]), ServerName),
            (base().with(0, []), ServerName),
            (base().with(0, [0, 0]), ServerName),
            (base().with(0, entry(b"a.example")), ServerName),
            (base().with(0, long(&[1, 0, 1, b'a'])), ServerName),
            (
                base().with(0, long(&[entry(b"a"), entry(b"b")].concat())),
                ServerName,
            ),
            (
                base().with(0, [long(&entry(b"a")), vec![0]].concat()),
                ServerName,
            ),
            (base().named(b"a").named(b"a"), Duplicate),
            (base().named(b"192.0.2.1").named(b"a"), Duplicate),
            (base().with(16, []), Alpn),
            (base().with(16, [0, 0]), Alpn),
            (base().alpn(&[b""]), Alpn),
            (base().alpn(&[b"h2", b""]), Alpn),
            (base().with(16, long(&[3, b'h', b'2'])), Alpn),
            (
                base().with(16, [long(&short(b"h2")), vec![0]].concat()),
                Alpn,
            ),
            (base().alpn(&[b"h2"]).alpn(&[b"h2"]), Duplicate),
            (base().with(43, []), Versions),
            (base().with(43, [0]), Versions),
            (base().with(43, [3, 3, 4, 3]), Versions),
            (base().with(43, [2, 3, 4, 3]), Versions),
        ] {
            let shown = format!("{:?}", hello.extensions);
            assert_eq!(parse(hello), Err(error), "{shown}");
        }
        let mut body = base().with(9, [1, 2]).body();
        let last = body.len() - 3;
        body[last] = 3;
        assert_eq!(ClientHello::parse(body.into()), Err(Hello));
    }
}
