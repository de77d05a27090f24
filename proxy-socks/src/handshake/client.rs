//! The client's side: asks a SOCKS server for a tunnel to a target, or to relay
//! datagrams.

use std::net::{Ipv4Addr, SocketAddr};

use bytes::BytesMut;
use proxy_core::{Credentials, Handshake, Host, Status, Step, Target};

use super::ClientError;
use crate::ReplyCode;
use crate::wire::{
    Command, Greeting, Login, LoginReply, Method, Reply, Reply4, Request, Request4, Selection,
    WireError,
};

/// The client's side of a handshake, for a parent proxy or an own connection.
///
/// Its output is the address that the server says it uses towards the target,
/// unspecified if the server does not tell. Names are sent as they are, for the
/// server to resolve. `Debug` hides the credentials.
///
/// ```
/// use bytes::BytesMut;
/// use proxy_core::{Handshake, Target};
/// use proxy_socks::{ClientError, ClientHandshake, ReplyCode};
///
/// let mut client = ClientHandshake::v5(Target::parse("example.com:80", None)?);
/// let mut output = BytesMut::new();
/// client.advance(b"", &mut output)?;
/// assert_eq!(&output[..], b"\x05\x01\x00");
/// let error = client.advance(b"\x05\x00\x05\x02", &mut output);
/// assert_eq!(error, Err(ClientError::Refused(ReplyCode::NOT_ALLOWED)));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
pub struct ClientHandshake<'t> {
    command: Command,
    target: Target<'t>,
    state: State<'t>,
}

#[derive(Debug)]
enum State<'t> {
    Start4(UserId<'t>),
    Start5(Option<Login<'t>>),
    Selection(Option<Login<'t>>),
    LoginReply,
    Reply4,
    Reply5,
    Done,
}

/// Some use it like a password, so `Debug` hides it.
struct UserId<'t>(&'t [u8]);

impl std::fmt::Debug for UserId<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("UserId(..)")
    }
}

impl<'t> ClientHandshake<'t> {
    /// SOCKS4 with this user id (often empty); 4a if the target is a name.
    ///
    /// # Errors
    /// [`WireError::UserId`] if the user id is longer than 255 bytes or holds a
    /// NUL.
    pub fn v4(target: Target<'t>, user_id: &'t [u8]) -> Result<Self, WireError> {
        crate::wire::check_user_id(user_id)?;
        Ok(Self {
            command: Command::CONNECT,
            target,
            state: State::Start4(UserId(user_id)),
        })
    }

    /// SOCKS5 without a login.
    pub fn v5(target: Target<'t>) -> Self {
        Self {
            command: Command::CONNECT,
            target,
            state: State::Start5(None),
        }
    }

    /// SOCKS5 with a password (RFC 1929), if the server asks for it.
    ///
    /// # Errors
    /// [`WireError::Login`] if the user name is not 1 to 255 bytes or holds a
    /// NUL, or the password is longer than 255 bytes.
    pub fn v5_login(target: Target<'t>, login: Credentials<'t>) -> Result<Self, WireError> {
        let login = Login::new(login)?;
        Ok(Self {
            command: Command::CONNECT,
            target,
            state: State::Start5(Some(login)),
        })
    }

    /// UDP ASSOCIATE of SOCKS5, with this login if the server asks for one. Where
    /// we shall send from is left open, since the socket comes later; the output is
    /// the address that the server takes datagrams at.
    ///
    /// # Errors
    /// As [`v5_login`](Self::v5_login).
    pub fn associate(login: Option<Credentials<'t>>) -> Result<Self, WireError> {
        let login = login.map(Login::new).transpose()?;
        Ok(Self {
            command: Command::ASSOCIATE,
            target: Target {
                host: Host::Ip(Ipv4Addr::UNSPECIFIED.into()),
                port: 0,
            },
            state: State::Start5(login),
        })
    }

    /// One message of the server, or the first of ours.
    fn step(&mut self, input: &[u8], output: &mut BytesMut) -> Result<Progress, ClientError> {
        match self.state {
            State::Start4(UserId(user_id)) => {
                self.encode_request4(user_id, output)?;
                self.go_on(State::Reply4, 0)
            }
            State::Start5(login) => {
                let methods = offer(login.is_some());
                Greeting { methods }.encode(output)?;
                self.go_on(State::Selection(login), 0)
            }
            State::Selection(login) => match Selection::parse(input)? {
                Status::Complete(selection, used) => {
                    let next = self.select(selection.method, login, output)?;
                    self.go_on(next, used)
                }
                Status::Partial => Ok(Progress::Short),
            },
            State::LoginReply => match LoginReply::parse(input)? {
                Status::Complete(LoginReply::ACCEPTED, used) => {
                    self.encode_request(output)?;
                    self.go_on(State::Reply5, used)
                }
                Status::Complete(reply, _) => Err(ClientError::LoginRefused(reply.status)),
                Status::Partial => Ok(Progress::Short),
            },
            State::Reply4 => {
                refused_early(input, 0, ReplyCode::GRANTED)?;
                let parsed = Reply4::parse(input)?;
                Ok(self.finish(parsed.map(|reply| reply.bound.into())))
            }
            State::Reply5 => {
                refused_early(input, 5, ReplyCode::SUCCEEDED)?;
                let parsed = Reply::parse(input)?;
                Ok(self.finish(parsed.map(|reply| reply.bound)))
            }
            State::Done => Ok(Progress::Short),
        }
    }

    fn select(
        &self,
        method: Method,
        login: Option<Login<'t>>,
        output: &mut BytesMut,
    ) -> Result<State<'t>, ClientError> {
        match (method, login) {
            (Method::NONE, _) => {
                self.encode_request(output)?;
                Ok(State::Reply5)
            }
            (Method::PASSWORD, Some(login)) => {
                login.encode(output);
                Ok(State::LoginReply)
            }
            (Method::UNACCEPTABLE, _) => Err(ClientError::NoAcceptableMethod),
            (Method(other), _) => Err(ClientError::Method(other)),
        }
    }

    fn go_on(&mut self, state: State<'t>, used: usize) -> Result<Progress, ClientError> {
        self.state = state;
        Ok(Progress::Took(used))
    }

    fn finish(&mut self, reply: Status<SocketAddr>) -> Progress {
        match reply {
            Status::Complete(bound, used) => {
                self.state = State::Done;
                Progress::Done(bound, used)
            }
            Status::Partial => Progress::Short,
        }
    }

    fn encode_request(&self, output: &mut BytesMut) -> Result<(), WireError> {
        let request = Request {
            command: self.command,
            target: self.target,
        };
        request.encode(output)
    }

    fn encode_request4(&self, user_id: &[u8], output: &mut BytesMut) -> Result<(), WireError> {
        let request = Request4 {
            command: Command::CONNECT,
            target: self.target,
            user_id,
        };
        request.encode(output)
    }
}

impl Handshake for ClientHandshake<'_> {
    type Output = SocketAddr;
    type Error = ClientError;

    /// # Errors
    /// [`ClientError`]; a refusal is told as soon as its code is there, since some
    /// servers close without the rest.
    fn advance(
        &mut self,
        input: &[u8],
        output: &mut BytesMut,
    ) -> Result<Step<SocketAddr>, ClientError> {
        let mut consumed = 0;
        loop {
            let done = match self.step(&input[consumed..], output)? {
                Progress::Took(used) => {
                    consumed += used;
                    continue;
                }
                Progress::Short => None,
                Progress::Done(bound, used) => {
                    consumed += used;
                    Some(bound)
                }
            };
            return Ok(Step { consumed, done });
        }
    }
}

enum Progress {
    Done(SocketAddr, usize),
    Short,
    Took(usize),
}

fn offer(login: bool) -> &'static [u8] {
    const BOTH: &[u8] = &[Method::NONE.0, Method::PASSWORD.0];
    match login {
        true => BOTH,
        false => &BOTH[..1],
    }
}

fn refused_early(input: &[u8], version: u8, success: ReplyCode) -> Result<(), ClientError> {
    match input {
        [first, code, ..] if *first == version && *code != success.0 => {
            Err(ClientError::Refused(ReplyCode(*code)))
        }
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use bytes::Buf;
    use proptest::prelude::*;
    use proxy_core::{Host, Operation, TargetBuf};

    use crate::{Methods, Next, ServerError, ServerHandshake, Version};

    fn target(text: &str) -> Target<'_> {
        Target::parse(text, None).expect("a target")
    }

    fn credentials<'a>(user: &'a str, password: &'a str) -> Credentials<'a> {
        Credentials {
            user: user.as_bytes(),
            password: password.as_bytes(),
        }
    }

    /// Feeds the server's bytes in the pieces that end at `cuts`; returns the
    /// outcome, what was used and what was sent.
    fn run(
        mut client: ClientHandshake<'_>,
        wire: &[u8],
        cuts: &[usize],
    ) -> (Option<Result<SocketAddr, ClientError>>, usize, Vec<u8>) {
        let mut output = BytesMut::new();
        let mut ends: Vec<usize> = cuts.iter().map(|cut| cut % (wire.len() + 1)).collect();
        ends.sort_unstable();
        ends.insert(0, 0);
        ends.push(wire.len());
        let mut consumed = 0;
        for end in ends {
            match client.advance(&wire[consumed..end], &mut output) {
                Ok(step) => {
                    consumed += step.consumed;
                    if let Some(bound) = step.done {
                        return (Some(Ok(bound)), consumed, output.to_vec());
                    }
                }
                Err(error) => return (Some(Err(error)), 0, output.to_vec()),
            }
        }
        (None, consumed, output.to_vec())
    }

    #[test]
    fn what_is_sent() {
        let name = target("name:80");
        let ip = target("[::1]:80");
        let login = credentials("u", "pw");
        for (client, answers, sent) in [
            (
                ClientHandshake::v5(name),
                &b"\x05\x00"[..],
                &b"\x05\x01\x00\x05\x01\x00\x03\x04name\x00\x50"[..],
            ),
            (
                ClientHandshake::v5(ip),
                b"\x05\x00",
                b"\x05\x01\x00\x05\x01\x00\x04\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\x01\x00\x50",
            ),
            (
                ClientHandshake::v5_login(name, login).expect("short"),
                b"\x05\x02\x01\x00",
                b"\x05\x02\x00\x02\x01\x01u\x02pw\x05\x01\x00\x03\x04name\x00\x50",
            ),
            (
                ClientHandshake::v5_login(name, login).expect("short"),
                b"\x05\x00",
                b"\x05\x02\x00\x02\x05\x01\x00\x03\x04name\x00\x50",
            ),
            (
                ClientHandshake::v4(name, b"me").expect("short"),
                b"",
                b"\x04\x01\x00\x50\x00\x00\x00\x01me\0name\0",
            ),
            (
                ClientHandshake::v4(target("127.0.0.1:80"), b"").expect("short"),
                b"",
                b"\x04\x01\x00\x50\x7f\x00\x00\x01\0",
            ),
        ] {
            let (outcome, used, output) = run(client, answers, &[]);
            assert_eq!(outcome, None);
            assert_eq!(used, answers.len());
            assert_eq!(output, sent);
        }
    }

    #[test]
    fn how_it_fails() {
        let none = || ClientHandshake::v5(target("a:80"));
        let login =
            || ClientHandshake::v5_login(target("a:80"), credentials("u", "pw")).expect("short");
        let four = || ClientHandshake::v4(target("a:80"), b"").expect("short");
        for (client, answers, error) in [
            (none(), &b"\x05\xff"[..], ClientError::NoAcceptableMethod),
            (none(), b"\x05\x02", ClientError::Method(2)),
            (login(), b"\x05\x01", ClientError::Method(1)),
            (login(), b"\x05\x02\x01\x01", ClientError::LoginRefused(1)),
            (login(), b"\x05\x02\x01\xff", ClientError::LoginRefused(255)),
            (
                login(),
                b"\x05\x02\x05",
                ClientError::Wire(WireError::Version(5)),
            ),
            (none(), b"H", ClientError::Wire(WireError::Version(b'H'))),
            (
                none(),
                b"\x05\x00\x05\x05",
                ClientError::Refused(ReplyCode::REFUSED),
            ),
            // A number that no document knows must not be a surprise.
            (
                none(),
                b"\x05\x00\x05\xee",
                ClientError::Refused(ReplyCode(0xee)),
            ),
            (
                none(),
                b"\x05\x00\x05\x5a",
                ClientError::Refused(ReplyCode(0x5a)),
            ),
            (
                none(),
                b"\x05\x00\x05\x00\x00\x07",
                ClientError::Wire(WireError::AddressType(7)),
            ),
            (
                four(),
                b"\x00\x5b",
                ClientError::Refused(ReplyCode::REJECTED),
            ),
            (four(), b"\x00\x00", ClientError::Refused(ReplyCode(0))),
            (four(), b"\x05", ClientError::Wire(WireError::Version(5))),
        ] {
            assert_eq!(run(client, answers, &[]).0, Some(Err(error)));
        }
    }

    #[test]
    fn p61_credentials_are_not_cut_to_a_byte() {
        let long = "x".repeat(256);
        let to = target("a:80");
        for login in [
            credentials(&long, "p"),
            credentials("u", &long),
            credentials("", "p"),
        ] {
            let error = ClientHandshake::v5_login(to, login).expect_err("does not fit");
            assert_eq!(error, WireError::Login);
        }
        let error = ClientHandshake::v4(to, long.as_bytes()).expect_err("does not fit");
        assert_eq!(error, WireError::UserId);
        let error = ClientHandshake::v4(to, b"a\0b").expect_err("does not fit");
        assert_eq!(error, WireError::UserId);
    }

    #[test]
    fn targets_without_an_encoding() {
        let bad = Target {
            host: Host::Name("a b"),
            port: 80,
        };
        let (outcome, ..) = run(ClientHandshake::v5(bad), b"\x05\x00", &[]);
        assert_eq!(outcome, Some(Err(WireError::Name.into())));
        let six = ClientHandshake::v4(target("[::1]:80"), b"").expect("short");
        assert_eq!(run(six, b"", &[]).0, Some(Err(WireError::Family.into())));
    }

    #[test]
    fn p29_debug_hides_the_login() {
        let to = target("a:80");
        let login = ClientHandshake::v5_login(to, credentials("alice", "secret")).expect("short");
        let four = ClientHandshake::v4(to, b"secret").expect("short");
        for shown in [format!("{login:?}"), format!("{four:?}")] {
            assert!(
                !shown.contains("alice") && !shown.contains("secret"),
                "{shown}"
            );
            assert!(!shown.contains("115, 101"), "{shown}");
        }
    }

    /// Both machines against each other; what the server saw, and the outcome.
    fn duel(
        mut client: ClientHandshake<'_>,
        methods: Methods,
        verdict: Result<SocketAddr, ReplyCode>,
    ) -> Result<(Version, TargetBuf, SocketAddr), Result<ClientError, ServerError>> {
        let (mut up, mut down) = (BytesMut::new(), BytesMut::new());
        let mut server = Some(ServerHandshake::start(methods));
        let mut seen = None;
        let mut failure = None;
        for _ in 0..10 {
            let step = match client.advance(&down, &mut up) {
                Ok(step) => step,
                Err(error) => return Err(failure.map_or(Ok(error), Err)),
            };
            down.advance(step.consumed);
            if let Some(bound) = step.done {
                let (version, target) = seen.expect("a request");
                assert!(up.is_empty() && down.is_empty(), "bytes left over");
                return Ok((version, target, bound));
            }
            let state = server.take().expect("the server is not done");
            let (next, used) = match state.process(&up, &mut down) {
                Ok(next) => next,
                Err(error) => {
                    failure = Some(error);
                    continue;
                }
            };
            match next {
                Next::NeedsInput(state) => server = Some(state),
                Next::Authenticate(login) => {
                    let known = login.credentials() == credentials("alice", "secret");
                    match login.answer(known, &mut down) {
                        Ok(state) => server = Some(state),
                        Err(error) => failure = Some(error),
                    }
                }
                Next::Request(request) => {
                    assert_eq!(request.operation(), Operation::Tunnel);
                    seen = Some((request.version(), TargetBuf::from(request.target())));
                    let _ = match verdict {
                        Ok(bound) => request.accept(bound, &mut down),
                        Err(code) => request.refuse(code, &mut down),
                    };
                }
            }
            up.advance(used);
        }
        panic!("no end");
    }

    #[test]
    fn the_machines_understand_each_other() {
        let bound = "192.0.2.7:4711".parse().expect("an address");
        let targets = ["example.com:443", "127.0.0.1:80", "[2001:db8::1]:1"];
        for text in targets {
            let to = target(text);
            let login = credentials("alice", "secret");
            for (client, methods, version) in [
                (ClientHandshake::v5(to), Methods::NONE, Version::V5),
                (ClientHandshake::v5(to), Methods::ANY, Version::V5),
                (
                    ClientHandshake::v5_login(to, login).expect("short"),
                    Methods::PASSWORD,
                    Version::V5,
                ),
                (
                    ClientHandshake::v5_login(to, login).expect("short"),
                    Methods::NONE,
                    Version::V5,
                ),
                (
                    ClientHandshake::v4(to, b"me").expect("short"),
                    Methods::NONE,
                    Version::V4,
                ),
            ] {
                if version == Version::V4 && text.starts_with('[') {
                    continue;
                }
                assert_eq!(
                    duel(client, methods, Ok(bound)),
                    Ok((version, TargetBuf::from(to), bound))
                );
            }
        }
    }

    #[test]
    fn the_machines_refuse_each_other() {
        let to = target("a:80");
        let bad_login = ClientHandshake::v5_login(to, credentials("alice", "Secret"));
        for (client, methods, error) in [
            (
                ClientHandshake::v5(to),
                Methods::PASSWORD,
                "NoAcceptableMethod",
            ),
            (bad_login.expect("short"), Methods::PASSWORD, "LoginRefused"),
            (
                ClientHandshake::v4(to, b"").expect("short"),
                Methods::PASSWORD,
                "LoginRequired",
            ),
        ] {
            let Err(Err(seen)) = duel(client, methods, Err(ReplyCode::REFUSED)) else {
                panic!("{error} expected");
            };
            assert_eq!(format!("{:?}", seen.kind), error);
        }
        for (client, code) in [
            (ClientHandshake::v5(to), ReplyCode::REFUSED),
            (
                ClientHandshake::v4(to, b"").expect("short"),
                ReplyCode::REJECTED,
            ),
        ] {
            let outcome = duel(client, Methods::NONE, Err(ReplyCode::REFUSED));
            assert_eq!(outcome, Err(Ok(ClientError::Refused(code))));
        }
    }

    fn client(kind: u8) -> ClientHandshake<'static> {
        let to = Target {
            host: Host::Name("name"),
            port: 80,
        };
        let login = Credentials {
            user: b"u",
            password: b"p",
        };
        match kind {
            0 => ClientHandshake::v5(to),
            1 => ClientHandshake::v5_login(to, login).expect("short"),
            _ => ClientHandshake::v4(to, b"me").expect("short"),
        }
    }

    /// Mostly answers that get somewhere, some that do not.
    fn answers() -> impl Strategy<Value = Vec<u8>> {
        let start = prop_oneof![
            Just(b"\x05\x00".to_vec()),
            Just(b"\x05\x02\x01\x00".to_vec()),
            Just(b"\x05\x02\x01\x01".to_vec()),
            Just(Vec::new()),
        ];
        let reply = prop_oneof![
            Just(b"\x05\x00\x00\x01\x7f\x00\x00\x01\x00\x50".to_vec()),
            Just(b"\x05\x00\x00\x03\x03abc\x00\x50".to_vec()),
            Just(b"\x05\x05\x00\x01\0\0\0\0\0\0".to_vec()),
            Just(b"\x00\x5a\x00\x50\x7f\x00\x00\x01".to_vec()),
            Just(b"\x00\x5b\0\0\0\0\0\0".to_vec()),
        ];
        let tail = proptest::collection::vec(any::<u8>(), 0..20);
        (start, reply, tail).prop_map(|(a, b, c)| [a, b, c].concat())
    }

    proptest! {
        #[test]
        fn any_cut_gives_the_same(
            kind in 0u8..3,
            wire in prop_oneof![answers(), proptest::collection::vec(any::<u8>(), 0..40)],
            cuts in proptest::collection::vec(any::<usize>(), 1..5),
        ) {
            let whole = run(client(kind), &wire, &[]);
            prop_assert_eq!(&run(client(kind), &wire, &cuts), &whole);
            let every: Vec<usize> = (0..wire.len()).collect();
            prop_assert_eq!(&run(client(kind), &wire, &every), &whole);
        }
    }
}
