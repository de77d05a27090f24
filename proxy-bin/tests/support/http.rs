//! Just enough HTTP/1.1 for scripted origins and clients.

use std::io::{self, Read, Write};

use super::{Conn, Pattern};

/// A request as an origin received it.
#[derive(Clone, Debug)]
pub(crate) struct Request {
    /// Start line and fields, with the empty line.
    pub(crate) head: String,
    /// The body, chunk framing removed.
    pub(crate) body: Vec<u8>,
}

impl Request {
    /// Reads one request; `None` at the end of the stream. Wants a buffered
    /// stream: it takes no byte too many and so reads heads one by one.
    pub(crate) fn read(stream: &mut impl Read) -> Option<Self> {
        let head = take_head(stream).ok()?;
        let body = read_body(&head, stream, 0).ok()?;
        Some(Self { head, body })
    }

    /// The first word of the start line.
    pub(crate) fn method(&self) -> &str {
        self.word(0)
    }

    /// The second word of the start line.
    pub(crate) fn target(&self) -> &str {
        self.word(1)
    }

    /// The value of the first field of that name.
    pub(crate) fn field(&self, name: &str) -> Option<&str> {
        field(&self.head, name)
    }

    fn word(&self, index: usize) -> &str {
        let line = self.head.lines().next().unwrap_or_default();
        line.split(' ').nth(index).unwrap_or_default()
    }
}

/// A response as a client received it.
#[derive(Clone, Debug)]
pub(crate) struct Answer {
    /// Status line and fields, with the empty line.
    pub(crate) head: String,
    /// The body, chunk framing removed.
    pub(crate) body: Vec<u8>,
    /// The status code.
    pub(crate) status: u16,
}

impl Answer {
    /// Reads a response with its body.
    pub(crate) fn read(conn: &Conn) -> Self {
        let head = Self::read_head(conn);
        let mut stream = conn;
        let body = read_body(&head.head, &mut stream, u64::MAX).expect("a whole body");
        Self { body, ..head }
    }

    /// Reads the head only.
    pub(crate) fn read_head(conn: &Conn) -> Self {
        let head = String::from_utf8_lossy(&conn.until(b"\r\n\r\n")).into_owned();
        let status = head.split(' ').nth(1).and_then(|word| word.parse().ok());
        Self {
            status: status.unwrap_or_else(|| panic!("a status in {head:?}")),
            body: Vec::new(),
            head,
        }
    }

    /// The value of the first field of that name.
    pub(crate) fn field(&self, name: &str) -> Option<&str> {
        field(&self.head, name)
    }
}

/// The value of `Proxy-Authorization` for that login.
pub(crate) fn basic(login: &str) -> String {
    const DIGITS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let mut text = String::from("Basic ");
    for group in login.as_bytes().chunks(3) {
        let byte = |index: usize| u32::from(group.get(index).copied().unwrap_or(0));
        let bits = byte(0) << 16 | byte(1) << 8 | byte(2);
        for index in 0..4 {
            let digit = (bits >> (18 - 6 * index)) & 63;
            let digit = DIGITS[usize::try_from(digit).expect("six bits")];
            text.push(if index > group.len() {
                '='
            } else {
                digit.into()
            });
        }
    }
    text
}

fn field<'h>(head: &'h str, name: &str) -> Option<&'h str> {
    head.lines().skip(1).find_map(|line| {
        let (left, right) = line.split_once(':')?;
        left.eq_ignore_ascii_case(name).then_some(right.trim())
    })
}

/// `without` is the length of a body that no field announces: none for a
/// request, up to the end for a response.
fn read_body(head: &str, stream: &mut impl Read, without: u64) -> io::Result<Vec<u8>> {
    if field(head, "transfer-encoding").is_some() {
        return read_chunks(stream);
    }
    let length = field(head, "content-length").map(|text| text.parse().expect("a length"));
    match length.unwrap_or(without) {
        u64::MAX => {
            let mut body = Vec::new();
            stream.read_to_end(&mut body)?;
            Ok(body)
        }
        length => take(stream, length),
    }
}

/// Reads a head and nothing more, byte by byte.
pub(crate) fn take_head(stream: &mut impl Read) -> io::Result<String> {
    let head = take_until(stream, b"\r\n\r\n")?;
    Ok(String::from_utf8_lossy(&head).into_owned())
}

/// Reads a chunked body of `size` bytes and compares it.
pub(crate) fn check_chunks(pattern: Pattern, stream: &mut impl Read, size: u64) -> io::Result<()> {
    let mut position = 0;
    loop {
        let chunk = take_chunk_size(stream)?;
        if chunk == 0 {
            break;
        }
        pattern.check(&mut *stream, position, position + chunk)?;
        position += chunk;
        take(stream, 2)?;
    }
    take(stream, 2)?;
    match position == size {
        true => Ok(()),
        false => Err(io::Error::other(format!("{position} bytes"))),
    }
}

fn read_chunks(stream: &mut impl Read) -> io::Result<Vec<u8>> {
    let mut body = Vec::new();
    loop {
        let size = take_chunk_size(stream)?;
        if size == 0 {
            while take_until(stream, b"\r\n")? != b"\r\n" {}
            return Ok(body);
        }
        body.extend(take(stream, size)?);
        take(stream, 2)?;
    }
}

fn take_chunk_size(stream: &mut impl Read) -> io::Result<u64> {
    let line = take_until(stream, b"\r\n")?;
    let size = String::from_utf8_lossy(&line);
    let size = size.trim_end().split(';').next().unwrap_or_default();
    u64::from_str_radix(size, 16).map_err(io::Error::other)
}

fn take_until(stream: &mut impl Read, mark: &[u8]) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    while !bytes.ends_with(mark) {
        bytes.extend(take(stream, 1)?);
    }
    Ok(bytes)
}

fn take(stream: &mut impl Read, count: u64) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    stream.take(count).read_to_end(&mut bytes)?;
    match bytes.len() as u64 == count {
        true => Ok(bytes),
        false => Err(io::ErrorKind::UnexpectedEof.into()),
    }
}

/// A plain 200 answer.
pub(crate) fn ok(body: &[u8]) -> Vec<u8> {
    let mut bytes = Vec::new();
    let length = body.len();
    write!(bytes, "HTTP/1.1 200 OK\r\nContent-Length: {length}\r\n\r\n").expect("into memory");
    bytes.extend_from_slice(body);
    bytes
}
