//! Messages as the http-parser of Node.js reads them.

use http_muncher::{Parser, ParserHandler};

use super::{Message, Reading};

/// Takes down one message and stops behind it.
#[derive(Default)]
struct Notes {
    content: Vec<u8>,
    bodiless: bool,
    done: bool,
}

impl ParserHandler for Notes {
    fn on_headers_complete(&mut self, _: &mut Parser) -> bool {
        // Not to go on is how the parser is told that no body follows.
        !self.bodiless
    }

    fn on_body(&mut self, _: &mut Parser, piece: &[u8]) -> bool {
        self.content.extend_from_slice(piece);
        true
    }

    fn on_message_complete(&mut self, _: &mut Parser) -> bool {
        self.done = true;
        false
    }
}

pub(crate) fn request(input: &[u8]) -> Reading {
    let mut parser = Parser::request();
    let mut notes = Notes::default();
    let end = parser.parse(&mut notes, input);
    let method = parser.http_method().to_owned();
    conclude(&parser, notes, method, end)
}

pub(crate) fn response(input: &[u8], method: &str) -> Reading {
    let mut start = 0;
    loop {
        let (status, reading) = one_response(&input[start..], method);
        match reading {
            Reading::Message(_) if (100..200).contains(&status) && status != 101 => {}
            _ => return moved(reading, start),
        }
        let end = reading.message().map_or(0, |message| message.end);
        start += end;
        if start == input.len() {
            return Reading::Partial;
        }
    }
}

fn one_response(input: &[u8], method: &str) -> (u16, Reading) {
    let read = |bodiless| {
        let mut parser = Parser::response();
        let mut notes = Notes {
            bodiless,
            ..Notes::default()
        };
        let end = parser.parse(&mut notes, input);
        let status = parser.status_code();
        if !notes.done && !parser.has_error() {
            // The end of the stream.
            parser.parse(&mut notes, b"");
        }
        let status_text = status.to_string();
        (status, conclude(&parser, notes, status_text, end))
    };
    // The parser leaves it to its user to know which answers have no body.
    let (status, reading) = read(true);
    match (method, status) {
        ("HEAD", _) | ("CONNECT", 200..300) | (_, 100..200 | 204 | 304) => (status, reading),
        _ => read(false),
    }
}

fn conclude(parser: &Parser, notes: Notes, what: String, end: usize) -> Reading {
    match parser.has_error() {
        _ if notes.done => Reading::Message(Message {
            what,
            content: notes.content,
            end,
        }),
        true if parser.error() == "HPE_INVALID_EOF_STATE" => Reading::Partial,
        true => Reading::Refused(parser.error().to_owned()),
        false => Reading::Partial,
    }
}

fn moved(reading: Reading, by: usize) -> Reading {
    match reading {
        Reading::Message(message) => Reading::Message(Message {
            end: message.end + by,
            ..message
        }),
        other => other,
    }
}
