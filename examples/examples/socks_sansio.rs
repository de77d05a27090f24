//! A SOCKS server without I/O: bytes in, bytes out, and who they come from and
//! go to is up to you. Here a client machine on the same page is the peer.
//!
//! `cargo run -p examples --example socks_sansio`

use std::error::Error;
use std::net::SocketAddr;

use bytes::{Buf, BytesMut};
use proxy_core::{Credentials, Handshake, Target, TargetBuf};
use proxy_socks::{ClientHandshake, Methods, Next, ServerHandshake};

fn main() -> Result<(), Box<dyn Error>> {
    let login = Credentials {
        user: b"alice",
        password: b"secret",
    };
    let target = Target::parse("example.com:443", None)?;
    let mut client = Client(ClientHandshake::v5_login(target, login)?);
    let bound = SocketAddr::from(([192, 0, 2, 1], 4711));

    let (mut input, mut output) = (BytesMut::new(), BytesMut::new());
    let mut state = ServerHandshake::start(Methods::PASSWORD);
    let asked = loop {
        let (next, used) = state.process(&input, &mut output)?;
        state = match next {
            Next::NeedsInput(state) => {
                input.advance(used);
                client.exchange(&mut input, &mut output)?;
                state
            }
            Next::Authenticate(login) => {
                let known = check(login.credentials());
                let state = login.answer(known, &mut output)?;
                input.advance(used);
                state
            }
            Next::Request(request) => {
                let asked = TargetBuf::from(request.target());
                // Here a server connects to the target, or refuses.
                let code = request.accept(bound, &mut output);
                input.advance(used);
                println!("asked for {asked}, replied {code}");
                break asked;
            }
        };
    };
    assert_eq!(asked.as_target(), target);
    client.exchange(&mut input, &mut output)?;
    Ok(())
}

fn check(claim: Credentials<'_>) -> bool {
    claim.user == b"alice" && claim.password == b"secret"
}

/// Stands in for a socket.
struct Client<'t>(ClientHandshake<'t>);

impl Client<'_> {
    /// Sends the server's `output` and receives more `input` for it.
    fn exchange(
        &mut self,
        input: &mut BytesMut,
        output: &mut BytesMut,
    ) -> Result<(), Box<dyn Error>> {
        let step = self.0.advance(output, input)?;
        output.advance(step.consumed);
        if let Some(bound) = step.done {
            println!("the tunnel is open; the server's side is {bound}");
        }
        Ok(())
    }
}
