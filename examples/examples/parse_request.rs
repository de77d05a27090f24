//! Reads a proxy request without doing I/O: bytes arrive in pieces, the parser
//! says when the head is whole, where it goes and how its body ends.
//!
//! ```text
//! cargo run -p examples --example parse_request
//! ```

use bytes::{Buf, BytesMut};
use proxy_core::Status;
use proxy_http::{HeadError, HeadLimits, RequestParser};

fn main() -> Result<(), HeadError> {
    // What a socket might deliver, cut in awkward places.
    let mut pieces = [
        &b"POST http://example.com:8080/form HTT"[..],
        b"P/1.1\r\nHost: example.com:8080\r\nContent-Len",
        b"gth: 5\r\n\r\nhello",
    ]
    .into_iter();

    let mut buffer = BytesMut::new();
    let mut parser = RequestParser::new(HeadLimits::default());
    let used = loop {
        match parser.parse(&buffer)? {
            Status::Complete(head, used) => {
                let to = head.destination()?;
                println!("{} -> {to}, body {:?}", head.method(), head.framing());
                break used;
            }
            Status::Partial => match pieces.next() {
                Some(piece) => buffer.extend_from_slice(piece),
                None => {
                    println!("the connection ended inside the head");
                    return Ok(());
                }
            },
        }
    };
    buffer.advance(used);
    println!("{} bytes of body came along", buffer.len());
    Ok(())
}
