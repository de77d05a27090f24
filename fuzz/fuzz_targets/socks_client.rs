//! The SOCKS client machine: however the server's bytes are cut, it comes to the
//! same end; and what the wire parsers take, they write back.
#![no_main]

use bytes::BytesMut;
use libfuzzer_sys::fuzz_target;
use proxy_core::{Credentials, Handshake, Host, Status, Target};
use proxy_socks::wire::{LoginReply, Reply, Reply4, Selection};
use proxy_socks::{ClientError, ClientHandshake};

// The first byte picks the kind of client, the second the size of the pieces.
fuzz_target!(|data: &[u8]| {
    let [kind, piece, wire @ ..] = data else {
        return;
    };
    let whole = run(client(*kind), wire, wire.len().max(1));
    assert_eq!(run(client(*kind), wire, 1), whole);
    assert_eq!(run(client(*kind), wire, usize::from(*piece).max(1)), whole);
    round_trips(wire);
});

fn client(kind: u8) -> ClientHandshake<'static> {
    let target = Target {
        host: match kind & 1 {
            0 => Host::Name("example.com"),
            _ => Host::Ip([192, 0, 2, 1].into()),
        },
        port: 443,
    };
    let login = Credentials {
        user: b"alice",
        password: b"secret",
    };
    match kind % 6 / 2 {
        0 => ClientHandshake::v4(target, b"me").expect("short"),
        1 => ClientHandshake::v5(target),
        _ => ClientHandshake::v5_login(target, login).expect("short"),
    }
}

/// The outcome as text, the bytes used up by a success, the bytes sent.
fn run(mut client: ClientHandshake<'_>, wire: &[u8], piece: usize) -> (String, usize, Vec<u8>) {
    let mut output = BytesMut::new();
    let mut consumed = 0;
    let mut end = 0;
    loop {
        match client.advance(&wire[consumed..end], &mut output) {
            Ok(step) => {
                consumed += step.consumed;
                assert!(consumed <= end);
                if let Some(bound) = step.done {
                    return (bound.to_string(), consumed, output.to_vec());
                }
                assert!(end - consumed <= 262, "more to keep than a reply is long");
            }
            Err(error) => {
                if let ClientError::Refused(code) = error {
                    assert!(!code.to_string().is_empty());
                }
                return (format!("{error:?}"), 0, output.to_vec());
            }
        }
        if end == wire.len() {
            return ("unfinished".to_owned(), consumed, output.to_vec());
        }
        end = wire.len().min(end + piece);
    }
}

/// Whole messages come out as they went in, or at least read the same again.
fn round_trips(wire: &[u8]) {
    let mut output = BytesMut::new();
    if let Ok(Status::Complete(selection, used)) = Selection::parse(wire) {
        selection.encode(&mut output);
        assert_eq!(output, wire[..used]);
    }
    output.clear();
    if let Ok(Status::Complete(reply, used)) = LoginReply::parse(wire) {
        reply.encode(&mut output);
        assert_eq!(output, wire[..used]);
    }
    output.clear();
    if let Ok(Status::Complete(reply, used)) = Reply4::parse(wire) {
        reply.encode(&mut output);
        assert_eq!(output, wire[..used]);
    }
    output.clear();
    if let Ok(Status::Complete(mut reply, _)) = Reply::parse(wire) {
        reply.encode(&mut output);
        // Mapped addresses are written as what they are.
        reply.bound.set_ip(reply.bound.ip().to_canonical());
        let again = Reply::parse(&output)
            .map(|status| status.map(|again| (again.code, again.bound.ip(), again.bound.port())));
        let sent = (reply.code, reply.bound.ip(), reply.bound.port());
        assert_eq!(again, Ok(Status::Complete(sent, output.len())));
    }
}
