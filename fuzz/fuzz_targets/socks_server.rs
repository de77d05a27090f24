//! The SOCKS server machine: however the client's bytes are cut, it says and
//! sees the same; and what the wire parsers take, they write back.
#![no_main]

use bytes::{Buf, BytesMut};
use libfuzzer_sys::fuzz_target;
use proxy_core::Status;
use proxy_socks::wire::{Greeting, Login, Request, Request4};
use proxy_socks::{Methods, Next, ReplyCode, ServerHandshake};

// The first byte picks methods and verdicts, the second the size of the pieces.
fuzz_target!(|data: &[u8]| {
    let [choice, piece, wire @ ..] = data else {
        return;
    };
    let whole = run(*choice, wire, wire.len().max(1));
    assert_eq!(run(*choice, wire, 1), whole);
    assert_eq!(run(*choice, wire, usize::from(*piece).max(1)), whole);
    round_trips(wire);
});

/// Everything that a handshake shows to the outside.
#[derive(Debug, Default, PartialEq)]
struct Trace {
    events: Vec<String>,
    output: Vec<u8>,
}

fn run(choice: u8, wire: &[u8], piece: usize) -> Trace {
    let methods = [Methods::ANY, Methods::NONE, Methods::PASSWORD][usize::from(choice % 3)];
    let verdict = choice & 0x80 == 0;
    let mut trace = Trace::default();
    let mut output = BytesMut::new();
    let mut input = BytesMut::new();
    let mut used_up = 0;
    let mut pieces = wire.chunks(piece);
    let mut state = ServerHandshake::start(methods);
    loop {
        let (next, used) = match state.process(&input, &mut output) {
            Ok(next) => next,
            Err(error) => {
                trace.events.push(format!("{error:?}"));
                break;
            }
        };
        used_up += used;
        state = match next {
            Next::NeedsInput(state) => {
                input.advance(used);
                assert!(input.len() <= 520, "more to keep than any message is long");
                let Some(piece) = pieces.next() else { break };
                input.extend_from_slice(piece);
                state
            }
            Next::Authenticate(login) => {
                let claim = login.credentials();
                trace
                    .events
                    .push(format!("{:?} {:?}", claim.user, claim.password));
                assert!(!claim.user.is_empty() && !claim.user.contains(&0));
                let answer = login.answer(verdict, &mut output);
                input.advance(used);
                match answer {
                    Ok(state) => state,
                    Err(error) => {
                        trace.events.push(format!("{error:?}"));
                        break;
                    }
                }
            }
            Next::Request(request) => {
                trace.events.push(format!("{request:?} after {used_up}"));
                let code = match verdict {
                    true => request.accept(([192, 0, 2, 1], 9).into(), &mut output),
                    false => request.refuse(ReplyCode(choice), &mut output),
                };
                assert_eq!(code.is_success(), verdict);
                break;
            }
        };
    }
    trace.output = output.to_vec();
    trace
}

/// Whole messages come out as they went in, or at least read the same again.
fn round_trips(wire: &[u8]) {
    let mut output = BytesMut::new();
    if let Ok(Status::Complete(greeting, used)) = Greeting::parse(wire) {
        greeting.encode(&mut output).expect("it was on the wire");
        assert_eq!(output, wire[..used]);
    }
    output.clear();
    if let Ok(Status::Complete(login, used)) = Login::parse(wire) {
        login.encode(&mut output);
        assert_eq!(output, wire[..used]);
    }
    output.clear();
    if let Ok(Status::Complete(request, _)) = Request::parse(wire) {
        request.encode(&mut output).expect("it was on the wire");
        let again = Request::parse(&output);
        assert_eq!(again, Ok(Status::Complete(request, output.len())));
    }
    output.clear();
    if let Ok(Status::Complete(request, _)) = Request4::parse(wire)
        && request.encode(&mut output).is_ok()
    {
        let again = Request4::parse(&output);
        let again = again.map(|status| status.map(|again| (again.command, again.user_id)));
        let sent = (request.command, request.user_id);
        assert_eq!(again, Ok(Status::Complete(sent, output.len())));
    }
}
