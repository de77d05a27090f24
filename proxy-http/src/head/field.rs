//! One header field as offsets, and the names that mean something to a proxy.

/// A header field of a parsed head.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Header<'b> {
    /// The name as received.
    pub name: &'b str,
    /// The value without surrounding blanks.
    pub value: &'b [u8],
}

impl std::fmt::Debug for Header<'_> {
    /// Shows no value: any field may carry a secret.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}: ({} bytes)", self.name, self.value.len())
    }
}

/// Where a field stands in the bytes of its head.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Field {
    /// Offset of the name, which begins the line.
    pub(crate) name: u32,
    /// Offset of the value.
    pub(crate) value: u32,
    pub(crate) value_len: u32,
    pub(crate) name_len: u16,
    pub(crate) kind: Kind,
}

impl Field {
    /// A field that httparse found in `input`, with a name of at most
    /// [`MAX_NAME`] bytes.
    #[inline]
    pub(crate) fn of(header: &httparse::Header<'_>, input: &[u8]) -> Self {
        let name = header.name.as_bytes();
        Self {
            name: place(name, input),
            value: place(header.value, input),
            value_len: offset(header.value.len()),
            name_len: u16::try_from(name.len()).unwrap_or(u16::MAX),
            kind: Kind::of(name),
        }
    }

    pub(crate) fn name<'b>(&self, bytes: &'b [u8]) -> &'b [u8] {
        span(bytes, self.name, u32::from(self.name_len))
    }

    pub(crate) fn value<'b>(&self, bytes: &'b [u8]) -> &'b [u8] {
        span(bytes, self.value, self.value_len)
    }

    /// Whether the field is called `name`, in any case.
    pub(crate) fn is(&self, name: &[u8], bytes: &[u8]) -> bool {
        usize::from(self.name_len) == name.len() && self.name(bytes).eq_ignore_ascii_case(name)
    }

    pub(crate) fn header<'b>(&self, bytes: &'b [u8]) -> Header<'b> {
        Header {
            name: text(self.name(bytes)),
            value: self.value(bytes),
        }
    }
}

/// The longest name of a field, in bytes.
pub(crate) const MAX_NAME: usize = u16::MAX as usize;

/// The fields that rules of framing, routing, hops and identity are about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum Kind {
    Authorization,
    Connection,
    ContentLength,
    Expect,
    Host,
    KeepAlive,
    Other,
    ProxyAuthenticate,
    ProxyAuthorization,
    ProxyConnection,
    Te,
    TransferEncoding,
    Upgrade,
}

impl Kind {
    /// The kind of a name that is a token. Names are told apart by length first:
    /// most are dismissed after one comparison.
    #[inline]
    pub(crate) fn of(name: &[u8]) -> Self {
        let (is_it, kind) = match name.len() {
            2 => (is_word(name, b"te"), Self::Te),
            4 => (is_word(name, b"host"), Self::Host),
            6 => (is_word(name, b"expect"), Self::Expect),
            7 => (is_word(name, b"upgrade"), Self::Upgrade),
            10 if is_word(name, b"keep-alive") => (true, Self::KeepAlive),
            10 => (is_word(name, b"connection"), Self::Connection),
            13 => (is_word(name, b"authorization"), Self::Authorization),
            14 => (is_word(name, b"content-length"), Self::ContentLength),
            16 => (is_word(name, b"proxy-connection"), Self::ProxyConnection),
            17 => (is_word(name, b"transfer-encoding"), Self::TransferEncoding),
            18 => (
                is_word(name, b"proxy-authenticate"),
                Self::ProxyAuthenticate,
            ),
            19 => (
                is_word(name, b"proxy-authorization"),
                Self::ProxyAuthorization,
            ),
            25 => (
                is_word(name, b"proxy-authentication-info"),
                Self::ProxyAuthenticate,
            ),
            _ => return Self::Other,
        };
        if is_it { kind } else { Self::Other }
    }

    /// How many there are.
    pub(crate) const COUNT: usize = Self::Upgrade as usize + 1;

    /// Its bit in a set of kinds.
    pub(crate) const fn bit(self) -> u16 {
        1 << self as u16
    }
}

/// Whether a token is `word` in any case. No other token character becomes a
/// small letter or `-` by that bit; a fixed length makes it vector code.
fn is_word<const N: usize>(token: &[u8], word: &[u8; N]) -> bool {
    let Ok(token) = <&[u8; N]>::try_from(token) else {
        return false;
    };
    let differences = token.iter().zip(word).map(|(a, b)| (a | 0x20) ^ b);
    differences.fold(0, |all, one| all | one) == 0
}

/// A set of kinds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Kinds(pub(crate) u16);

impl Kinds {
    pub(crate) fn add(&mut self, kind: Kind) {
        self.0 |= kind.bit();
    }

    pub(crate) fn has(self, kind: Kind) -> bool {
        self.0 & kind.bit() != 0
    }

    pub(crate) fn meets(self, other: Self) -> bool {
        self.0 & other.0 != 0
    }
}

/// Whether a byte may stand in a token (RFC 9110 section 5.6.2).
pub(crate) fn is_token(byte: u8) -> bool {
    TOKEN[usize::from(byte)]
}

const TOKEN: [bool; 256] = {
    let mut table = [false; 256];
    let mut byte = 0u8;
    while byte < 128 {
        table[byte as usize] = byte.is_ascii_alphanumeric()
            || matches!(
                byte,
                b'!' | b'#'
                    | b'$'
                    | b'%'
                    | b'&'
                    | b'\''
                    | b'*'
                    | b'+'
                    | b'-'
                    | b'.'
                    | b'^'
                    | b'_'
                    | b'`'
                    | b'|'
                    | b'~'
            );
        byte += 1;
    }
    table
};

/// Whether a field of that name may not stand in a trailer section: it would
/// change framing, routing or who asks (RFC 9110 section 6.5.1).
pub(crate) fn is_trailer_forbidden(name: &[u8]) -> bool {
    Kind::of(name) != Kind::Other
}

/// How many blanks are in front.
pub(crate) fn blanks(text: &[u8]) -> usize {
    text.iter().take_while(|b| is_blank(**b)).count()
}

/// The text without surrounding blanks (RFC 9110 section 5.6.3), and how many
/// stood before it.
pub(crate) fn trim(text: &[u8]) -> (usize, &[u8]) {
    let (mut start, mut end) = (0, text.len());
    while start < end && is_blank(text[start]) {
        start += 1;
    }
    while start < end && is_blank(text[end - 1]) {
        end -= 1;
    }
    (start, &text[start..end])
}

fn is_blank(byte: u8) -> bool {
    matches!(byte, b' ' | b'\t')
}

/// The elements of a comma-separated list (RFC 9110 section 5.6.1), empty ones
/// included.
pub(crate) fn list(value: &[u8]) -> impl Iterator<Item = &[u8]> {
    value.split(|b| *b == b',').map(|element| trim(element).1)
}

/// An offset inside a head; heads are limited to 1 MiB, so it always fits.
pub(crate) fn offset(n: usize) -> u32 {
    u32::try_from(n).unwrap_or(u32::MAX)
}

/// Where `part`, a piece of `whole`, begins in it.
pub(crate) fn place(part: &[u8], whole: &[u8]) -> u32 {
    offset(part.as_ptr().addr() - whole.as_ptr().addr())
}

/// `bytes[start..start + len]`, or nothing when it is out of bounds: a view
/// over the wrong bytes shows nonsense, it does not panic.
pub(crate) fn span(bytes: &[u8], start: u32, len: u32) -> &[u8] {
    let start = start as usize;
    bytes.get(start..start + len as usize).unwrap_or_default()
}

/// Text that was checked to be ASCII when it was parsed.
pub(crate) fn text(bytes: &[u8]) -> &str {
    std::str::from_utf8(bytes).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_field_is_small() {
        assert_eq!(size_of::<Field>(), 16);
    }

    #[test]
    fn p25_names_mean_the_same_in_any_case() {
        for (name, kind) in [
            (&b"Connection"[..], Kind::Connection),
            (b"authorizatioN", Kind::Authorization),
            (b"KEEP-alive", Kind::KeepAlive),
            (b"keep-alivX", Kind::Other),
            (b"TE", Kind::Te),
            (b"hOST", Kind::Host),
            (b"content-LENGTH", Kind::ContentLength),
            (b"content_length", Kind::Other),
            (b"Transfer-Encoding", Kind::TransferEncoding),
            (b"Proxy-Authorization", Kind::ProxyAuthorization),
            (b"Proxy-Authentication-Info", Kind::ProxyAuthenticate),
            (b"X", Kind::Other),
        ] {
            assert_eq!(Kind::of(name), kind, "{}", text(name));
        }
    }

    #[test]
    fn a_field_is_where_it_was_found() {
        let mut slots = [httparse::EMPTY_HEADER; 2];
        let input = b"12345Name: \t a b \t\r\nEmpty: \r\n\r\n";
        assert!(httparse::parse_headers(&input[5..], &mut slots).is_ok());
        let field = Field::of(&slots[0], input);
        assert_eq!((field.name, field.name_len), (5, 4));
        assert_eq!((field.value, field.value_len), (13, 3));
        let empty = Field::of(&slots[1], input);
        assert_eq!((empty.name, empty.value_len), (20, 0));
    }
}
