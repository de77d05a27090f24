//! Messages that are nearly right, the same ones for the same seed.

/// SplitMix64: small, and good enough to choose with.
pub(crate) struct Dice(u64);

impl Dice {
    pub(crate) fn new(seed: u64) -> Self {
        Self(seed)
    }

    /// Below `n`, which is not 0.
    fn below(&mut self, n: usize) -> usize {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        let n = u64::try_from(n).expect("small");
        usize::try_from((z ^ (z >> 31)) % n).expect("below a usize")
    }

    /// True in `n` of 100 cases.
    fn chance(&mut self, n: usize) -> bool {
        self.below(100) < n
    }

    pub(crate) fn pick<'t, T: ?Sized>(&mut self, from: &[&'t T]) -> &'t T {
        from[self.below(from.len())]
    }
}

/// What messages are made of.
pub(crate) struct Kit<'k> {
    /// Start lines without their ends, good ones first.
    pub(crate) starts: &'k [&'k str],
    pub(crate) good_starts: usize,
    /// The field that most messages need.
    pub(crate) usual: &'k str,
    /// Inputs that other tests found interesting.
    pub(crate) seeds: &'k [Vec<u8>],
}

pub(crate) const REQUESTS: Kit<'static> = Kit {
    starts: &[
        "GET http://h/ HTTP/1.1",
        "POST http://h/a?b HTTP/1.1",
        "PUT http://h:81/x HTTP/1.1",
        "GET http://h HTTP/1.0",
        "HEAD http://h/ HTTP/1.1",
        "OPTIONS http://h HTTP/1.1",
        "DELETE http://[::1]:81/a HTTP/1.1",
        "POST /a HTTP/1.1",
        "CONNECT h:443 HTTP/1.1",
        "OPTIONS * HTTP/1.1",
        "POST https://h/ HTTP/1.1",
        "PATCH HTTP://h/%00 HTTP/1.1",
        "TRACE http://h/ HTTP/1.1",
        "POST  http://h/ HTTP/1.1",
        "POST http://h/ HTTP/1.1 ",
        "POST http://h/ HTTP/1.2",
        "POST http://h/ HTTP/0.9",
        "POST http://h/ HTTP/2.0",
        "POST http://h/",
        "POST http://h/ HTTP/1.10",
        "POST http://h/ http/1.1",
        "\r\n\r\nPOST http://h/ HTTP/1.1",
        "\nPOST http://h/ HTTP/1.1",
        "POST http://h/\\ HTTP/1.1",
        "POST http://h/a b HTTP/1.1",
        "POST http://h/{|}^`<>\" HTTP/1.1",
        "POST http://u@h/ HTTP/1.1",
        "G\tT http://h/ HTTP/1.1",
        "post http://h/ HTTP/1.1",
        "X-OWN http://h/ HTTP/1.1",
    ],
    good_starts: 8,
    usual: "Host: h",
    seeds: &[],
};

pub(crate) const RESPONSES: Kit<'static> = Kit {
    starts: &[
        "HTTP/1.1 200 OK",
        "HTTP/1.1 404 Not Found",
        "HTTP/1.1 200",
        "HTTP/1.0 200 OK",
        "HTTP/1.1 204 No Content",
        "HTTP/1.1 304 Not Modified",
        "HTTP/1.1 500 ",
        "HTTP/1.1 101 Switching Protocols",
        "HTTP/1.1 100 Continue",
        "HTTP/1.1 103 Early Hints\r\nLink: </a>\r\n\r\nHTTP/1.1 200 OK",
        "HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 201 Created",
        "HTTP/1.1 205 Reset Content",
        "HTTP/1.1 299 \u{e9}",
        "HTTP/1.1 199 X",
        "HTTP/1.1 600 X",
        "HTTP/1.1 099 X",
        "HTTP/1.1 20 X",
        "HTTP/1.1 2000 X",
        "HTTP/1.1  200 OK",
        "HTTP/1.1 200\tOK",
        "HTTP/1.2 200 OK",
        "HTTP/2.0 200 OK",
        "HTTP/0.9 200 OK",
        "HTTP/1.10 200 OK",
        "http/1.1 200 OK",
        "ICY 200 OK",
        "\r\nHTTP/1.1 200 OK",
    ],
    good_starts: 6,
    usual: "Server: s",
    seeds: &[],
};

/// A message, often with something wrong with it, and something behind it.
pub(crate) fn message(dice: &mut Dice, kit: &Kit<'_>) -> Vec<u8> {
    let mut message = match kit.seeds.is_empty() || dice.chance(85) {
        true => assembled(dice, kit),
        false => kit.seeds[dice.below(kit.seeds.len())].clone(),
    };
    for _ in 0..[0, 0, 0, 1, 1, 1, 2, 2, 3, 5][dice.below(10)] {
        damage(dice, &mut message);
    }
    message
}

fn assembled(dice: &mut Dice, kit: &Kit<'_>) -> Vec<u8> {
    let start = match dice.chance(80) {
        true => dice.pick(&kit.starts[..kit.good_starts]),
        false => dice.pick(kit.starts),
    };
    let mut lines = vec![start.to_owned()];
    if dice.chance(95) {
        lines.push(kit.usual.to_owned());
    }
    for _ in 0..[0, 0, 0, 1, 1, 2][dice.below(6)] {
        let line = format!("{}:{}", dice.pick(NAMES), dice.pick(VALUES));
        let place = 1 + dice.below(lines.len());
        lines.insert(place, line);
    }
    let body = match dice.below(5) {
        0 | 1 => {
            let content = dice.pick(CONTENTS);
            // At times of another length than stated.
            let len = content.len() + [0, 0, 0, 0, 0, 1, 4][dice.below(7)];
            lines.push(usual(dice, LENGTHS).replace('N', &len.to_string()));
            content.to_owned()
        }
        2 | 3 => {
            lines.push(usual(dice, CODINGS).to_owned());
            chunks(dice)
        }
        _ => String::new(),
    };
    let mut message = String::new();
    for line in &lines {
        message.push_str(line);
        message.push_str(line_end(dice));
    }
    message.push_str(line_end(dice));
    message.push_str(&body);
    message.push_str(dice.pick(TAILS));
    message.into_bytes()
}

fn chunks(dice: &mut Dice) -> String {
    let mut body = String::new();
    for _ in 0..dice.below(4) {
        let content = dice.pick(CONTENTS);
        let size = match dice.chance(85) {
            true => format!("{:x}", content.len()),
            false => dice
                .pick(SIZES)
                .replace('N', &format!("{:x}", content.len())),
        };
        body.push_str(&size);
        if dice.chance(20) {
            body.push_str(dice.pick(EXTENSIONS));
        }
        body.push_str(line_end(dice));
        body.push_str(content);
        body.push_str(line_end(dice));
    }
    body.push_str(match dice.chance(90) {
        true => "0",
        false => dice.pick(ZEROS),
    });
    body.push_str(line_end(dice));
    for _ in 0..[0, 0, 0, 0, 1, 2][dice.below(6)] {
        body.push_str(dice.pick(TRAILERS));
        body.push_str(line_end(dice));
    }
    body.push_str(line_end(dice));
    body
}

/// The first, or at times any.
fn usual<'t>(dice: &mut Dice, from: &[&'t str]) -> &'t str {
    match dice.chance(60) {
        true => from[0],
        false => dice.pick(from),
    }
}

fn line_end(dice: &mut Dice) -> &'static str {
    match dice.chance(99) {
        true => "\r\n",
        false => dice.pick(LINE_ENDS),
    }
}

/// One change somewhere, where it matters more often than not.
fn damage(dice: &mut Dice, message: &mut Vec<u8>) {
    let at = dice.below(message.len() + 1);
    let until = (at + 1 + dice.below(12)).min(message.len());
    match dice.below(7) {
        0 => message.truncate(at),
        1 if at < message.len() => message[at] = BYTES[dice.below(BYTES.len())],
        2 => message.insert(at, BYTES[dice.below(BYTES.len())]),
        3 if at < message.len() => drop(message.remove(at)),
        4 => {
            let token = dice.pick(TOKENS).bytes();
            drop(message.splice(at..at, token));
        }
        5 => {
            let again = message[at..until].to_vec();
            drop(message.splice(at..at, again));
        }
        _ => drop(message.drain(at..until)),
    }
}

const NAMES: &[&str] = &[
    "Connection",
    "Content-Length",
    "Transfer-Encoding",
    "transfer-encoding",
    "Transfer-Encoding ",
    "Transfer-Encoding\u{b}",
    " Transfer-Encoding",
    "Content-Length ",
    "Content_Length",
    "Upgrade",
    "TE",
    "Expect",
    "Keep-Alive",
    "Proxy-Connection",
    "Trailer",
    "X-A",
    "Host",
    "",
];

const VALUES: &[&str] = &[
    " chunked",
    "chunked",
    " gzip, chunked",
    " chunked, identity",
    " identity",
    " close",
    " keep-alive",
    " upgrade",
    " Upgrade, X-A, Transfer-Encoding, Content-Length",
    " websocket",
    " 100-continue",
    " trailers",
    " 0",
    " 5",
    " 5, 5",
    " +5",
    " x\r\n folded",
    " \r\n\tchunked",
    " a\0b",
    " a\rb",
    " \u{e9}",
    "",
    " h",
];

/// `N` stands for a fitting number.
const LENGTHS: &[&str] = &[
    "Content-Length: N",
    "content-length:N",
    "Content-Length: \tN\t ",
    "Content-Length: 000N",
    "Content-Length: N\r\nContent-Length: N",
    "Content-Length: N\r\nContent-Length: 0",
    "Content-Length: N\r\nTransfer-Encoding: chunked",
    "Content-Length: N, N",
    "Content-Length: +N",
    "Content-Length: N ;",
    "Content-Length: 0xN",
    "Content-Length: N N",
    "Content-Length:\r\n N",
    "Content-Length : N",
];

const CODINGS: &[&str] = &[
    "Transfer-Encoding: chunked",
    "Transfer-Encoding: CHUNKED",
    "transfer-encoding:chunked",
    "Transfer-Encoding: chunked\t",
    "Transfer-Encoding: gzip, chunked",
    "Transfer-Encoding: chunked, chunked",
    "Transfer-Encoding: chunked,",
    "Transfer-Encoding: identity",
    "Transfer-Encoding: xchunked",
    "Transfer-Encoding: \u{b}chunked",
    "Transfer-Encoding:\r\n chunked",
    "Transfer-Encoding : chunked",
    "Transfer-Encoding: identity\r\nTransfer-Encoding: chunked",
    "Transfer-Encoding: chunked\r\nTransfer-Encoding: identity",
    "Connection: Transfer-Encoding\r\nTransfer-Encoding: chunked",
];

const CONTENTS: &[&str] = &[
    "",
    "a",
    "hello",
    "0\r\n\r\n",
    "\r\n",
    "GET /smuggled HTTP/1.1\r\nHost: h\r\n\r\n",
    "HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n",
    "0123456789abcdef0123456789abcdef",
];

/// `N` stands for a fitting number.
const SIZES: &[&str] = &[
    "00N",
    "+N",
    "-N",
    "0xN",
    " N",
    "N ",
    "N\t",
    "N_0",
    "Nh",
    "",
    "fffffffffffffffff",
    "10000000000000000N",
    "N\0",
    "N\r",
    "ffffffffffffffN",
];

const EXTENSIONS: &[&str] = &[
    ";a=b",
    ";a=\"\r\n\"",
    ";a=\"b;c\"",
    " ;a",
    ";",
    ";a\nb",
    ";a\rb",
    ";\0",
    ";\u{e9}",
];

const ZEROS: &[&str] = &[
    "00000",
    "0;x",
    "0 ",
    "-0",
    "+0",
    "",
    "0x0",
    "0\t",
    "00000000000000000",
];

const TRAILERS: &[&str] = &[
    "X-T: a",
    "Empty:",
    "Content-Length: 5",
    "Transfer-Encoding: chunked",
    "Host: h",
    "X-T : a",
    " folded: a",
    "GET /smuggled HTTP/1.1",
    "no colon",
    "X: a\0",
];

const TAILS: &[&str] = &[
    "",
    "",
    "GET http://h/next HTTP/1.1\r\nHost: h\r\n\r\n",
    "HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n",
    "\r\n",
    "rest",
];

const LINE_ENDS: &[&str] = &[
    "\n", "\r", "\r\r\n", "\n\r", "\r\n\r\n", " \r\n", "", "\0\r\n", "\u{b}",
];

const BYTES: &[u8] = b"\0\t\n\x0b\x0c\r !\"#%,/05:;ACc\\_fhx\x7f\x80\xa0\xff";

const TOKENS: &[&str] = &[
    "\r\n",
    "\n",
    "\r",
    "\r\n\r\n",
    "\r\n ",
    "Transfer-Encoding: chunked\r\n",
    "Content-Length: 3\r\n",
    "\r\nContent-Length: 0\r\n",
    "\r\nTransfer-Encoding: chunked\r\n",
    "Connection: close\r\n",
    "chunked",
    ",",
    "0\r\n\r\n",
    "5\r\n",
    " HTTP/1.1\r\n",
    "GET / HTTP/1.1\r\n",
    ";",
    ":",
];
