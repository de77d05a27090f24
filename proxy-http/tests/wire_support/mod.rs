//! Laws that hold for any bytes: used by the property tests, the replay of the
//! fuzzing corpora and the fuzz targets themselves.
#![allow(dead_code, reason = "each user needs some of them")]

use bytes::BytesMut;
use proxy_core::{Credentials, Handshake, Status, Target};
use proxy_http::{
    BodyError, BodyFramer, ConnectHandshake, EditScript, Framing, HeadEdit, HeadError, HeadLimits,
    Persist, RequestHead, RequestParser, RequestTarget, ResponseHead, ResponseParser, ToClient,
    ToOrigin, TunnelError, Version, auth,
};

/// A head as far as two readings can agree on it.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Seen {
    used: usize,
    start: Words,
    fields: Fields,
    framing: Framing,
}

type Words = Vec<Vec<u8>>;
type Fields = Vec<(String, Vec<u8>)>;
type Outcome = Result<Option<Seen>, HeadError>;

/// Small limits, so that they are met.
pub(crate) fn limits() -> HeadLimits {
    let mut limits = HeadLimits::default();
    limits.head_bytes(2048).header_count(24);
    limits
}

fn seen_request(head: &RequestHead<'_, '_>, used: usize) -> Seen {
    let version = if head.version() == Version::Http11 {
        b"1"
    } else {
        b"0"
    };
    Seen {
        used,
        start: vec![
            head.method().into(),
            head.target_text().into(),
            version.to_vec(),
        ],
        fields: head
            .headers()
            .map(|h| (h.name.to_owned(), h.value.to_vec()))
            .collect(),
        framing: head.framing(),
    }
}

fn seen_response(head: &ResponseHead<'_, '_>, used: usize) -> Seen {
    let version = if head.version() == Version::Http11 {
        b"1"
    } else {
        b"0"
    };
    Seen {
        used,
        start: vec![
            head.status().to_string().into(),
            head.reason().into(),
            version.to_vec(),
        ],
        fields: head
            .headers()
            .map(|h| (h.name.to_owned(), h.value.to_vec()))
            .collect(),
        framing: head.framing(proxy_http::RequestKind::Other),
    }
}

/// What the request parser says to `input`.
pub(crate) fn parse_request(parser: &mut RequestParser, input: &[u8]) -> Outcome {
    Ok(match parser.parse(input)? {
        Status::Complete(head, used) => Some(seen_request(&head, used)),
        Status::Partial => None,
    })
}

/// What the response parser says to `input`.
pub(crate) fn parse_response(parser: &mut ResponseParser, input: &[u8]) -> Outcome {
    Ok(match parser.parse(input)? {
        Status::Complete(head, used) => Some(seen_response(&head, used)),
        Status::Partial => None,
    })
}

/// Shows `input` in ever longer pieces, the cuts being given; ends at the first
/// outcome other than "not enough".
fn grow(
    cuts: impl Iterator<Item = usize>,
    input: &[u8],
    mut parse: impl FnMut(&[u8]) -> Outcome,
) -> Outcome {
    for cut in cuts.chain([input.len()]) {
        let outcome = parse(&input[..cut]);
        if outcome != Ok(None) {
            return outcome;
        }
    }
    Ok(None)
}

/// The laws of a request head: cuts do not matter, a plain reading agrees with
/// what is accepted, and what goes on to the origin has one reading.
pub(crate) fn request(input: &[u8]) {
    let whole = parse_request(&mut RequestParser::new(limits()), input);
    let mut parser = RequestParser::new(limits());
    let grown = grow(0..input.len(), input, |part| {
        parse_request(&mut parser, part)
    });
    assert_eq!(whole, grown, "byte by byte");
    let Ok(Some(seen)) = whole else {
        return;
    };
    let (start, fields) = read_plainly(&input[..seen.used], "");
    let [method, target, version] = &start[..] else {
        panic!("not three words: {start:?}");
    };
    assert_eq!(seen.start[..2], [method.clone(), target.clone()]);
    assert_eq!(*version, [b"HTTP/1.", &seen.start[2][..]].concat());
    assert_eq!(seen.fields, fields);
    let mut parser = RequestParser::new(limits());
    let Ok(Status::Complete(head, _)) = parser.parse(input) else {
        panic!("accepted once");
    };
    request_forwarded(&head);
}

/// Reads an accepted head as plainly as can be: words are what blanks part, a
/// name is what stands before the first colon of a line, and before the `gap`.
fn read_plainly(head: &[u8], gap: &str) -> (Words, Fields) {
    // Any text is a string of such characters, and back.
    let text: String = head.iter().map(|byte| char::from(*byte)).collect();
    let bytes = |text: &str| -> Vec<u8> {
        let byte = |c| u8::try_from(c).expect("made of bytes");
        text.chars().map(byte).collect()
    };
    let head = text.trim_start_matches("\r\n").strip_suffix("\r\n\r\n");
    let mut lines = head.expect("an empty line").split("\r\n");
    let start = lines.next().unwrap_or_default();
    let field = |line: &str| {
        let (name, value) = line.split_once(':').expect("a colon");
        let name = name.trim_end_matches(|c| gap.contains(c));
        assert!(
            !name.is_empty() && name.bytes().all(|b| b.is_ascii_graphic()),
            "{line:?}"
        );
        assert!(!value.contains(|c| c < ' ' && c != '\t' || c == '\x7f'));
        (name.to_owned(), bytes(value.trim_matches([' ', '\t'])))
    };
    let words = start.splitn(3, ' ').map(bytes);
    (words.collect(), lines.map(field).collect())
}

/// What goes on to the origin: the same message, in origin form, with one
/// `Host`, nothing of the previous hop; a second pass changes nothing but a count.
fn request_forwarded(head: &RequestHead<'_, '_>) {
    if head.destination().is_err() {
        return;
    }
    let hop = ToOrigin {
        upgrade: true,
        ..ToOrigin::default()
    };
    let once = to_origin(head, hop);
    let mut parser = RequestParser::new(HeadLimits::default());
    let Ok(Status::Complete(sent, used)) = parser.parse(&once) else {
        panic!("refused by ourselves: {}", once.escape_ascii());
    };
    assert_eq!(used, once.len());
    assert_eq!(sent.framing(), head.framing());
    assert_eq!(
        (sent.method(), sent.version()),
        (head.method(), Version::Http11)
    );
    assert_eq!(
        sent.destination()
            .ok()
            .filter(|_| head.method() != "OPTIONS")
            .is_some(),
        head.method() != "OPTIONS"
    );
    if let RequestTarget::Absolute {
        authority,
        path_and_query,
        ..
    } = head.target()
    {
        assert_eq!(sent.get("host"), Some(authority.as_bytes()));
        assert!(sent.target_text().ends_with(path_and_query));
        assert!(!matches!(sent.target(), RequestTarget::Absolute { .. }));
    }
    for gone in [
        "keep-alive",
        "proxy-connection",
        "proxy-authorization",
        "proxy-authenticate",
    ] {
        assert_eq!(sent.get(gone), None);
    }
    match head.max_forwards() {
        // RFC 9110 section 7.6.2: each pass counts.
        Ok(Some(n)) => assert_eq!(sent.max_forwards(), Ok(Some(n.saturating_sub(1)))),
        _ => assert_eq!(to_origin(&sent, hop), once, "a second pass changes nothing"),
    }
}

fn to_origin(head: &RequestHead<'_, '_>, hop: ToOrigin) -> BytesMut {
    let mut script = EditScript::new();
    let mut edit = HeadEdit::request(&mut script, head);
    edit.to_origin(hop);
    let mut out = BytesMut::new();
    edit.encode(&mut out);
    out
}

/// The laws of a response head, as those of a request head.
pub(crate) fn response(input: &[u8]) {
    let whole = parse_response(&mut ResponseParser::new(limits()), input);
    let mut parser = ResponseParser::new(limits());
    let grown = grow(0..input.len(), input, |part| {
        parse_response(&mut parser, part)
    });
    assert_eq!(whole, grown, "byte by byte");
    let Ok(Some(seen)) = whole else {
        return;
    };
    let (start, fields) = read_plainly(&input[..seen.used], " \t");
    assert_eq!(start[0], [b"HTTP/1.", &seen.start[2][..]].concat());
    assert_eq!(seen.start[0], start[1]);
    assert_eq!(seen.start[1], start.get(2).cloned().unwrap_or_default());
    assert_eq!(seen.fields, fields);
    let mut parser = ResponseParser::new(limits());
    let Ok(Status::Complete(head, _)) = parser.parse(input) else {
        panic!("accepted once");
    };
    response_forwarded(&head);
}

fn response_forwarded(head: &ResponseHead<'_, '_>) {
    for persist in [Persist::Default, Persist::Close, Persist::KeepAlive] {
        let once = to_client(head, persist);
        let mut parser = ResponseParser::new(HeadLimits::default());
        let Ok(Status::Complete(sent, used)) = parser.parse(&once) else {
            panic!("refused by ourselves: {}", once.escape_ascii());
        };
        assert_eq!(used, once.len());
        let (_, fields) = read_plainly(&once, "");
        let fields = fields.iter().map(|(name, value)| (&name[..], &value[..]));
        assert!(fields.eq(sent.headers().map(|h| (h.name, h.value))));
        assert_eq!(
            (sent.status(), sent.version()),
            (head.status(), Version::Http11)
        );
        let asked = proxy_http::RequestKind::Other;
        assert_eq!(sent.framing(asked), head.framing(asked));
        assert_eq!(sent.keep_alive(), persist != Persist::Close);
        assert_eq!(
            to_client(&sent, persist),
            once,
            "a second pass changes nothing"
        );
    }
}

fn to_client(head: &ResponseHead<'_, '_>, persist: Persist) -> BytesMut {
    let mut script = EditScript::new();
    let mut edit = HeadEdit::response(&mut script, head);
    edit.to_client(ToClient {
        persist,
        upgrade: false,
    });
    let mut out = BytesMut::new();
    match edit.is_unchanged() {
        true => out.extend_from_slice(head.raw()),
        false => edit.encode(&mut out),
    }
    out
}

/// What a body turned out to be: its length on the wire, its content, whether
/// it ended.
pub(crate) type Followed = Result<(usize, Vec<u8>, bool), BodyError>;

/// Follows a chunked body shown in pieces of at most `step` bytes.
pub(crate) fn follow(framing: Framing, input: &[u8], step: usize) -> Followed {
    let mut raw = BodyFramer::new(framing);
    let mut content = BodyFramer::new(framing);
    let (mut len, mut text, mut end) = (0, Vec::new(), raw.is_over());
    for piece in input.chunks(step.max(1)) {
        if end {
            break;
        }
        let extent = raw.advance(piece);
        let mut rest = piece;
        while !rest.is_empty() && !content.is_over() {
            let found = content
                .payload(rest)
                .inspect_err(|e| assert_eq!(extent, Err(*e)))?;
            text.extend_from_slice(&rest[found.range]);
            rest = &rest[found.used..];
        }
        let extent = extent?;
        assert_eq!(
            (extent.end, extent.opaque),
            (content.is_over(), content.opaque())
        );
        assert_eq!(extent.len, piece.len() - rest.len());
        assert!(extent.end || extent.len == piece.len());
        len += extent.len;
        end = extent.end;
    }
    Ok((len, text, end))
}

/// Follows a body by skipping whatever need not be looked at.
fn follow_skipping(framing: Framing, input: &[u8]) -> Result<(usize, bool), BodyError> {
    let mut body = BodyFramer::new(framing);
    let mut at = 0;
    while at < input.len() && !body.is_over() {
        let unseen = usize::try_from(body.opaque())
            .unwrap_or(usize::MAX)
            .min(input.len() - at);
        body.skip(unseen as u64);
        at += unseen;
        // One byte of framing at a time: it never covers data.
        let look = usize::from(unseen == 0);
        at += body.advance(&input[at..at + look])?.len;
    }
    Ok((at, body.is_over()))
}

/// The laws of a body: cuts do not matter, neither does skipping data, and the
/// content put in new chunks comes out the same.
pub(crate) fn body(input: &[u8]) {
    for framing in [
        Framing::Chunked,
        Framing::Length(7),
        Framing::UntilClose,
        Framing::None,
    ] {
        let whole = follow(framing, input, usize::MAX);
        for step in [1, 2, 3, 7] {
            assert_eq!(follow(framing, input, step), whole, "in steps of {step}");
        }
        let skipped = follow_skipping(framing, input);
        assert_eq!(skipped, whole.clone().map(|(len, _, end)| (len, end)));
        if let (Framing::Chunked, Ok((_, content, true))) = (framing, whole) {
            let again = follow(framing, &chunked(&content, 3), usize::MAX);
            assert_eq!(again.map(|(_, text, end)| (text, end)), Ok((content, true)));
        }
    }
}

/// `content` in chunks of at most `size` bytes.
pub(crate) fn chunked(content: &[u8], size: usize) -> Vec<u8> {
    let mut out = Vec::new();
    for chunk in content.chunks(size) {
        out.extend_from_slice(format!("{:x}\r\n", chunk.len()).as_bytes());
        out.extend_from_slice(chunk);
        out.extend_from_slice(b"\r\n");
    }
    out.extend_from_slice(b"0\r\n\r\n");
    out
}

/// The laws of a changed head: one reading, the framing of the original unless
/// re-framed, and `get` agrees with what is sent.
pub(crate) fn edit(input: &[u8]) {
    let (ops, rest) = input.split_at(input.len().min(8));
    let head = [
        &b"POST http://h:1/p HTTP/1.1\r\nHost: h:1\r\nContent-Length: 3\r\n"[..],
        rest,
        b"\r\n\r\n",
    ]
    .concat();
    let mut parser = RequestParser::new(HeadLimits::default());
    let Ok(Status::Complete(head, _)) = parser.parse(&head) else {
        return;
    };
    let mut script = EditScript::new();
    let mut edit = HeadEdit::request(&mut script, &head);
    ops.iter().for_each(|op| change(&mut edit, *op));
    let mut out = BytesMut::new();
    edit.encode(&mut out);
    // The additions may go over the default.
    let mut limits = HeadLimits::default();
    limits.header_count(256);
    let mut parser = RequestParser::new(limits);
    let Ok(Status::Complete(sent, used)) = parser.parse(&out) else {
        panic!("refused by ourselves: {}", out.escape_ascii());
    };
    assert_eq!((used, sent.framing()), (out.len(), Framing::Length(3)));
    for name in NAMES {
        assert_eq!(edit.get(name), sent.get(name), "{name}");
    }
    assert!(!edit.is_unchanged() || head.raw() == &out[..]);
}

const NAMES: [&str; 8] = [
    "a",
    "B",
    "cookie",
    "host",
    "content-length",
    "connection",
    "te",
    "via",
];

fn change(edit: &mut HeadEdit<'_>, op: u8) {
    let name = NAMES[usize::from(op & 7)];
    // Fixed fields are refused: that is part of what is tried.
    match op >> 3 {
        0..=7 => drop(edit.remove(name)),
        8..=15 => drop(edit.set(name, b"new")),
        16..=23 => drop(edit.append(name, b"more")),
        24 => drop(edit.set_target("/elsewhere")),
        _ => edit.to_origin(ToOrigin::default()),
    }
}

/// The laws of credentials: nothing panics, and what is read is what would be
/// written.
pub(crate) fn credentials(input: &[u8]) {
    let mut scratch = [0; auth::SCRATCH];
    if let Ok(Some(found)) = auth::basic(input, &mut scratch) {
        let mut again = BytesMut::new();
        auth::encode(found, &mut again);
        let mut scratch = [0; auth::SCRATCH];
        assert_eq!(auth::basic(&again, &mut scratch), Ok(Some(found)));
    }
    let (user, password) = input.split_at(input.len() / 2);
    let fits = input.len() < auth::SCRATCH - 1;
    let clean = !input.iter().any(u8::is_ascii_control) && !user.contains(&b':');
    if fits && clean {
        let own = Credentials { user, password };
        let mut value = BytesMut::new();
        auth::encode(own, &mut value);
        assert_eq!(auth::basic(&value, &mut scratch), Ok(Some(own)));
    }
}

/// What a parent's answer led to: bytes used and whether the tunnel is open.
fn tunnel(input: &[u8], step: usize) -> Result<(usize, bool), TunnelError> {
    let target = Target::parse("example.com:443", None).expect("a target");
    let mut handshake = ConnectHandshake::new(target);
    let mut out = BytesMut::new();
    handshake.advance(b"", &mut out)?;
    let asked = out.len();
    let (mut from, mut upto) = (0, 0);
    while upto < input.len() {
        upto = input.len().min(upto.saturating_add(step));
        let result = handshake.advance(&input[from..upto], &mut out)?;
        assert!(result.consumed <= upto - from);
        from += result.consumed;
        if result.done.is_some() {
            return Ok((from, true));
        }
    }
    assert_eq!(out.len(), asked, "asked once");
    Ok((from, false))
}

/// The laws of the CONNECT client: cuts do not matter.
pub(crate) fn connect_client(input: &[u8]) {
    let whole = tunnel(input, usize::MAX);
    assert_eq!(tunnel(input, 1), whole);
    assert_eq!(tunnel(input, 5), whole);
}
