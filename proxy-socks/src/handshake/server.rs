//! The server's side: from the first byte to a request that wants a reply.

use std::net::SocketAddr;

use bytes::BytesMut;
use proxy_core::{Credentials, Denial, Operation, Status, Target};

use super::{ServerError, ServerErrorKind};
use crate::wire::{
    Command, Greeting, Login, LoginReply, Method, Reply, Reply4, Request, Request4, Selection,
    UNSPECIFIED, WireError,
};
use crate::{ReplyCode, Version};

/// The server's side of a handshake, SOCKS4, 4a or 5 by what the client's first
/// byte says.
///
/// Never a value: a handshake is whichever of the types in [`Next`] it has come
/// to, and each has only the moves that are legal there. Limits are those of the
/// wire, so a caller needs to buffer no more than 520 unconsumed bytes.
///
/// ```
/// use bytes::{Buf, BytesMut};
/// use proxy_socks::{Methods, Next, ServerHandshake};
///
/// let mut input = BytesMut::from(&b"\x05\x01\x02\x01\x05alice\x06secret"[..]);
/// let mut output = BytesMut::new();
/// let state = ServerHandshake::start(Methods::PASSWORD);
/// let (Next::Authenticate(login), used) = state.process(&input, &mut output)? else { panic!() };
/// assert_eq!(login.credentials().user, b"alice");
/// let state = login.answer(true, &mut output)?;
/// input.advance(used);
/// assert_eq!(&output[..], b"\x05\x02\x01\x00");
/// assert!(matches!(state.process(&input, &mut output)?, (Next::NeedsInput(_), 0)));
/// # Ok::<(), proxy_socks::ServerError>(())
/// ```
#[derive(Clone, Copy, Debug)]
pub enum ServerHandshake {}

impl ServerHandshake {
    /// Waits for a client that may use these methods.
    pub fn start(methods: Methods) -> NeedsInput {
        NeedsInput(State::Opening(methods))
    }
}

/// The login methods that a server allows.
///
/// SOCKS4 has no password, so it is served only where none is required. A client
/// that offers both methods where both are allowed is not asked for its password,
/// which would cross the network in clear for nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Methods {
    none: bool,
    password: bool,
}

impl Methods {
    /// No password is asked for, but clients that insist on showing one may.
    pub const ANY: Self = Self {
        none: true,
        password: true,
    };
    /// No password is asked for.
    pub const NONE: Self = Self {
        none: true,
        password: false,
    };
    /// Only with a password (RFC 1929).
    pub const PASSWORD: Self = Self {
        none: false,
        password: true,
    };

    fn choose(self, greeting: &Greeting<'_>) -> Method {
        if self.none && greeting.offers(Method::NONE) {
            Method::NONE
        } else if self.password && greeting.offers(Method::PASSWORD) {
            Method::PASSWORD
        } else {
            Method::UNACCEPTABLE
        }
    }
}

/// The handshake needs (more) bytes of the client.
#[derive(Debug)]
#[must_use = "the handshake goes on here"]
pub struct NeedsInput(State);

#[derive(Debug)]
enum State {
    Opening(Methods),
    Login,
    Request,
}

impl NeedsInput {
    /// Takes what it can from the front of `input` and appends answers to
    /// `output`; returns what comes next and how many bytes were used up.
    ///
    /// [`Next::NeedsInput`] means that `input` holds nothing more to work on:
    /// remove the used bytes, send the output, and call again with what is left
    /// and at least one byte more.
    ///
    /// # Errors
    /// If the client breaks the protocol or asks for what is not offered. The
    /// answer to that, if the protocol has one, was appended to `output`.
    pub fn process<'i>(
        self,
        input: &'i [u8],
        output: &mut BytesMut,
    ) -> Result<(Next<'i>, usize), ServerError> {
        match self.0 {
            State::Opening(methods) => match input.first() {
                None => Ok((Next::NeedsInput(self), 0)),
                Some(4) => process_request4(methods, input, output),
                Some(_) => process_greeting(methods, input, output),
            },
            State::Login => process_login(input, output),
            State::Request => process_request(input, output),
        }
    }
}

/// What a handshake has come to.
///
/// Exhaustive on purpose: a server must know what to do in each case.
#[derive(Debug)]
#[must_use = "the handshake goes on here"]
pub enum Next<'i> {
    /// The client has shown credentials, to be judged.
    Authenticate(Authenticate<'i>),
    /// More bytes are needed.
    NeedsInput(NeedsInput),
    /// The client has asked; a reply is the last move.
    Request(PendingRequest<'i>),
}

/// A login that waits for a verdict (RFC 1929). `Debug` hides the credentials.
#[derive(Debug)]
#[must_use = "the client waits for a verdict"]
pub struct Authenticate<'i> {
    login: Login<'i>,
}

impl<'i> Authenticate<'i> {
    /// What the client claims.
    pub fn credentials(&self) -> Credentials<'i> {
        self.login.credentials()
    }

    /// Appends the verdict to `output` and goes on if it is favourable.
    ///
    /// # Errors
    /// [`ServerErrorKind::LoginRefused`] if it is not: send the output and close
    /// (RFC 1929 section 2).
    pub fn answer(self, accept: bool, output: &mut BytesMut) -> Result<NeedsInput, ServerError> {
        if !accept {
            return Err(refuse_login(ServerErrorKind::LoginRefused, output));
        }
        LoginReply::ACCEPTED.encode(output);
        Ok(NeedsInput(State::Request))
    }
}

/// A request that waits for its reply.
#[derive(Debug)]
#[must_use = "the client waits for a reply"]
pub struct PendingRequest<'i> {
    operation: Operation<'static>,
    target: Target<'i>,
    user_id: Option<&'i [u8]>,
    reply: PendingReply,
}

impl<'i> PendingRequest<'i> {
    /// Appends a success reply to `output`; see [`PendingReply::accept`].
    pub fn accept(self, bound: SocketAddr, output: &mut BytesMut) -> ReplyCode {
        self.reply.accept(bound, output)
    }

    /// Appends a refusal to `output`; see [`PendingReply::refuse`].
    pub fn refuse(self, reason: ReplyCode, output: &mut BytesMut) -> ReplyCode {
        self.reply.refuse(reason, output)
    }

    /// Only the duty to reply, which does not borrow the input, for a caller that
    /// replies later.
    pub fn detach(self) -> PendingReply {
        self.reply
    }

    /// What the client wants done.
    pub fn operation(&self) -> Operation<'static> {
        self.operation
    }

    /// Where. The port is never 0 for [`Operation::Tunnel`].
    pub fn target(&self) -> Target<'i> {
        self.target
    }

    /// Who a SOCKS4 client says it is, at most 255 bytes; `None` for SOCKS5. A
    /// hint for logs: nothing vouches for it, so it is no credential.
    pub fn user_id(&self) -> Option<&'i [u8]> {
        self.user_id
    }

    /// The version that the client speaks.
    pub fn version(&self) -> Version {
        self.reply.version
    }
}

/// The duty to reply to a request.
#[derive(Debug)]
#[must_use = "the client waits for a reply"]
pub struct PendingReply {
    version: Version,
}

impl PendingReply {
    /// Appends a success reply to `output`; from here on the connection belongs
    /// to the tunnel. `bound` is the local address towards the target, or
    /// unspecified if there is none to tell. Returns the code as sent.
    pub fn accept(self, bound: SocketAddr, output: &mut BytesMut) -> ReplyCode {
        self.reply(ReplyCode::SUCCEEDED, bound, output)
    }

    /// Appends the first of the two replies to a BIND to `output`: that a
    /// connection is awaited at `address`, where its peer can reach it. The second
    /// is one of the other methods, [`accept`](Self::accept) with the address of
    /// who has connected (RFC 1928 section 6). Returns the code as sent.
    pub fn listen(&self, address: SocketAddr, output: &mut BytesMut) -> ReplyCode {
        let version = self.version;
        Self { version }.reply(ReplyCode::SUCCEEDED, address, output)
    }

    /// Appends a refusal to `output`; the connection is to be closed after it. A
    /// `reason` of the other version is translated, a success becomes a general
    /// failure. Returns the code as sent.
    pub fn refuse(self, reason: ReplyCode, output: &mut BytesMut) -> ReplyCode {
        let reason = match reason.is_success() {
            true => ReplyCode::GENERAL_FAILURE,
            false => reason,
        };
        self.reply(reason, UNSPECIFIED, output)
    }

    /// The version that the client speaks.
    pub fn version(&self) -> Version {
        self.version
    }

    fn reply(self, code: ReplyCode, bound: SocketAddr, output: &mut BytesMut) -> ReplyCode {
        let code = code.in_version(self.version);
        match self.version {
            Version::V4 => Reply4::new(code, bound).encode(output),
            Version::V5 => Reply { code, bound }.encode(output),
        }
        code
    }
}

fn process_greeting<'i>(
    methods: Methods,
    input: &'i [u8],
    output: &mut BytesMut,
) -> Result<(Next<'i>, usize), ServerError> {
    let parsed = Greeting::parse(input).map_err(|error| unanswered(error.into()))?;
    let Status::Complete(greeting, used) = parsed else {
        return Ok((Next::NeedsInput(NeedsInput(State::Opening(methods))), 0));
    };
    let method = methods.choose(&greeting);
    Selection { method }.encode(output);
    let state = match method {
        Method::NONE => State::Request,
        Method::PASSWORD => State::Login,
        refusal => {
            return Err(ServerError {
                kind: ServerErrorKind::NoAcceptableMethod,
                answer: Some(refusal.0),
            });
        }
    };
    // A client that did not wait for the answer has sent the next message too.
    let (next, more) = NeedsInput(state).process(&input[used..], output)?;
    Ok((next, used + more))
}

fn process_login<'i>(
    input: &'i [u8],
    output: &mut BytesMut,
) -> Result<(Next<'i>, usize), ServerError> {
    match Login::parse(input) {
        Ok(Status::Complete(login, used)) => Ok((Next::Authenticate(Authenticate { login }), used)),
        Ok(Status::Partial) => Ok((Next::NeedsInput(NeedsInput(State::Login)), 0)),
        Err(error) => Err(refuse_login(error.into(), output)),
    }
}

fn process_request<'i>(
    input: &'i [u8],
    output: &mut BytesMut,
) -> Result<(Next<'i>, usize), ServerError> {
    let version = Version::V5;
    match Request::parse(input) {
        Ok(Status::Complete(Request { command, target }, used)) => {
            let request = pending(version, command, target, None, output)?;
            Ok((Next::Request(request), used))
        }
        Ok(Status::Partial) => Ok((Next::NeedsInput(NeedsInput(State::Request)), 0)),
        Err(error) => Err(refuse(version, error.into(), output)),
    }
}

fn process_request4<'i>(
    methods: Methods,
    input: &'i [u8],
    output: &mut BytesMut,
) -> Result<(Next<'i>, usize), ServerError> {
    let version = Version::V4;
    match Request4::parse(input) {
        Ok(Status::Complete(..)) if !methods.none => {
            Err(refuse(version, ServerErrorKind::LoginRequired, output))
        }
        Ok(Status::Complete(request, used)) => {
            let Request4 {
                command,
                target,
                user_id,
            } = request;
            let request = pending(version, command, target, Some(user_id), output)?;
            Ok((Next::Request(request), used))
        }
        Ok(Status::Partial) => Ok((Next::NeedsInput(NeedsInput(State::Opening(methods))), 0)),
        Err(error) => Err(refuse(version, error.into(), output)),
    }
}

fn pending<'i>(
    version: Version,
    command: Command,
    target: Target<'i>,
    user_id: Option<&'i [u8]>,
    output: &mut BytesMut,
) -> Result<PendingRequest<'i>, ServerError> {
    let operation = match (command, version) {
        (Command::CONNECT, _) if target.port == 0 => {
            return Err(refuse(version, ServerErrorKind::PortZero, output));
        }
        (Command::CONNECT, _) => Operation::Tunnel,
        (Command::BIND, _) => Operation::Bind,
        (Command::ASSOCIATE, Version::V5) => Operation::Associate,
        (Command(other), _) => {
            return Err(refuse(version, ServerErrorKind::Command(other), output));
        }
    };
    Ok(PendingRequest {
        operation,
        target,
        user_id,
        reply: PendingReply { version },
    })
}

/// Answers a request that cannot be carried out whatever policy says.
fn refuse(version: Version, kind: ServerErrorKind, output: &mut BytesMut) -> ServerError {
    let code = match kind {
        ServerErrorKind::Command(_) => ReplyCode::COMMAND_UNSUPPORTED,
        ServerErrorKind::LoginRequired => ReplyCode::denied(version, Denial::Challenge),
        ServerErrorKind::Wire(WireError::AddressType(_)) => ReplyCode::ADDRESS_TYPE_UNSUPPORTED,
        // No such host can exist.
        ServerErrorKind::Wire(WireError::Name) => ReplyCode::HOST_UNREACHABLE,
        _ => ReplyCode::GENERAL_FAILURE,
    };
    let sent = PendingReply { version }.refuse(code, output);
    ServerError {
        kind,
        answer: Some(sent.0),
    }
}

fn refuse_login(kind: ServerErrorKind, output: &mut BytesMut) -> ServerError {
    LoginReply::REFUSED.encode(output);
    ServerError {
        kind,
        answer: Some(LoginReply::REFUSED.status),
    }
}

/// What speaks no SOCKS gets no SOCKS answer.
fn unanswered(kind: ServerErrorKind) -> ServerError {
    ServerError { kind, answer: None }
}

#[cfg(test)]
mod tests {
    use super::*;
    use bytes::Buf;
    use proptest::prelude::*;

    /// Everything that a handshake shows to the outside.
    #[derive(Debug, Default, PartialEq)]
    struct Trace {
        events: Vec<String>,
        output: Vec<u8>,
        /// Bytes used up, if the handshake came to a request.
        used: Option<usize>,
    }

    /// Feeds `wire` in the pieces that end at `cuts`; "secret" is the password.
    fn run(methods: Methods, wire: &[u8], cuts: &[usize]) -> Trace {
        let mut trace = Trace::default();
        let mut output = BytesMut::new();
        let mut input = BytesMut::new();
        let mut used_up = 0;
        let mut fed = 0;
        let mut ends: Vec<usize> = cuts.iter().map(|cut| cut % (wire.len() + 1)).collect();
        ends.sort_unstable();
        ends.push(wire.len());
        let mut ends = ends.into_iter();
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
                    assert!(input.len() <= 520, "more than a caller has to buffer");
                    let Some(end) = ends.next() else { break };
                    input.extend_from_slice(&wire[fed..end]);
                    fed = end;
                    state
                }
                Next::Authenticate(login) => {
                    let Credentials { user, password } = login.credentials();
                    trace.events.push(format!("login {user:?} {password:?}"));
                    let answer = login.answer(password == b"secret", &mut output);
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
                    trace.events.push(format!(
                        "{:?} {} {:?} {:?}",
                        request.version(),
                        request.target(),
                        request.operation(),
                        request.user_id(),
                    ));
                    let bound = "192.0.2.1:9".parse().expect("an address");
                    let _ = request.accept(bound, &mut output);
                    trace.used = Some(used_up);
                    break;
                }
            };
        }
        trace.output = output.to_vec();
        trace
    }

    fn events(methods: Methods, wire: &[u8]) -> (String, Vec<u8>) {
        let trace = run(methods, wire, &[]);
        (trace.events.join("; "), trace.output)
    }

    const CONNECT: &[u8] = b"\x05\x01\x00\x03\x01a\x00\x50";
    const ACCEPTED: &[u8] = b"\x05\x00\x00\x01\xc0\x00\x02\x01\x00\x09";

    #[test]
    fn the_method_is_chosen() {
        for (methods, offer, chosen) in [
            (Methods::NONE, &b"\x00"[..], 0),
            (Methods::NONE, b"\x00\x01\x02", 0),
            (Methods::NONE, b"\x02", 0xff),
            (Methods::NONE, b"", 0xff),
            (Methods::NONE, b"\x01", 0xff),
            (Methods::PASSWORD, b"\x02", 2),
            // RFC 1928 section 3: the client's order has no say.
            (Methods::PASSWORD, b"\x00\x02", 2),
            (Methods::PASSWORD, b"\x00", 0xff),
            (Methods::ANY, b"\x00", 0),
            // No secret in clear that nobody demands.
            (Methods::ANY, b"\x00\x02", 0),
            (Methods::ANY, b"\x02\x00", 0),
            (Methods::ANY, b"\x02", 2),
            (Methods::ANY, b"\x01\xff", 0xff),
        ] {
            let count = u8::try_from(offer.len()).expect("few");
            let (events, output) = events(methods, &[&[5, count], offer].concat());
            assert_eq!(output, [5, chosen], "{methods:?} {offer:?}");
            assert_eq!(events.contains("NoAcceptableMethod"), chosen == 0xff);
        }
    }

    #[test]
    fn p41_bytes_behind_the_request_are_left_alone() {
        for (wire, output) in [
            (
                [b"\x05\x01\x00", CONNECT].concat(),
                [b"\x05\x00", ACCEPTED].concat(),
            ),
            (
                [b"\x05\x01\x02\x01\x01u\x06secret", CONNECT].concat(),
                [b"\x05\x02\x01\x00", ACCEPTED].concat(),
            ),
            (
                b"\x04\x01\x00\x50\x7f\x00\x00\x01me\0".to_vec(),
                b"\x00\x5a\x00\x09\xc0\x00\x02\x01".to_vec(),
            ),
            (
                b"\x04\x01\x00\x50\x00\x00\x00\x01me\0name\0".to_vec(),
                b"\x00\x5a\x00\x09\xc0\x00\x02\x01".to_vec(),
            ),
        ] {
            let early = [&wire[..], b"\x05\x01\0early"].concat();
            let trace = run(Methods::ANY, &early, &[]);
            assert_eq!(trace.used, Some(wire.len()));
            assert_eq!(trace.output, output);
        }
    }

    #[test]
    fn requests_and_their_operations() {
        for (wire, event) in [
            (&b"\x05\x01\x00\x03\x01a\x00\x50"[..], "V5 a:80 Tunnel None"),
            (b"\x05\x02\x00\x03\x01a\x00\x00", "V5 a:0 Bind None"),
            (
                b"\x05\x03\x00\x01\0\0\0\0\0\0",
                "V5 0.0.0.0:0 Associate None",
            ),
        ] {
            let wire = [b"\x05\x01\x00", wire].concat();
            assert_eq!(events(Methods::NONE, &wire).0, event);
        }
        let wire = b"\x04\x02\x00\x50\x7f\x00\x00\x01me\0";
        assert_eq!(
            events(Methods::NONE, wire).0,
            "V4 127.0.0.1:80 Bind Some([109, 101])"
        );
    }

    #[test]
    fn each_refusal_has_its_answer() {
        for (request, code) in [
            (&b"\x05\x09\x00\x03\x01a\x00\x50"[..], 7),
            (b"\x05\x00\x00\x03\x01a\x00\x50", 7),
            (b"\x05\x01\x00\x03\x01a\x00\x00", 1),
            (b"\x05\x01\x00\x03\x00\x00\x50", 4),
            (b"\x05\x01\x00\x03\x03a b\x00\x50", 4),
            (b"\x05\x01\x00\x02\x01a\x00\x50", 8),
            (b"\x04\x01\x00\x01\x7f\x00\x00\x01\x00\x50", 1),
            (b"\x06\x01\x00\x01\x7f\x00\x00\x01\x00\x50", 1),
        ] {
            let wire = [b"\x05\x01\x00", request].concat();
            let (_, output) = events(Methods::NONE, &wire);
            let reply = [5, code, 0, 1, 0, 0, 0, 0, 0, 0];
            assert_eq!(output, [&[5, 0], &reply[..]].concat(), "{request:?}");
        }
    }

    #[test]
    fn p60_bind_has_two_replies() {
        let at = SocketAddr::from(([192, 0, 2, 1], 258));
        let who = SocketAddr::from(([198, 51, 100, 7], 20));
        for (version, first, second) in [
            (
                Version::V4,
                &b"\0\x5a\x01\x02\xc0\0\x02\x01"[..],
                &b"\0\x5a\0\x14\xc6\x33\x64\x07"[..],
            ),
            (
                Version::V5,
                b"\x05\0\0\x01\xc0\0\x02\x01\x01\x02",
                b"\x05\0\0\x01\xc6\x33\x64\x07\0\x14",
            ),
        ] {
            let mut output = BytesMut::new();
            let reply = PendingReply { version };
            assert!(reply.listen(at, &mut output).is_success());
            assert_eq!(output.split(), first);
            assert!(reply.accept(who, &mut output).is_success());
            assert_eq!(output, second);
        }
    }

    #[test]
    fn refusals_of_socks4() {
        let endless = [&b"\x04\x01\x00\x50\x7f\x00\x00\x01"[..], &[b'u'; 300]].concat();
        for (methods, wire, code) in [
            (
                Methods::NONE,
                &b"\x04\x07\x00\x50\x7f\x00\x00\x01\0"[..],
                0x5b,
            ),
            // SOCKS4 knows no UDP.
            (Methods::NONE, b"\x04\x03\x00\x50\x7f\x00\x00\x01\0", 0x5b),
            (Methods::NONE, b"\x04\x01\x00\x00\x7f\x00\x00\x01\0", 0x5b),
            (Methods::NONE, b"\x04\x01\x00\x50\0\0\0\x01\0a b\0", 0x5b),
            (Methods::NONE, &endless, 0x5b),
            (
                Methods::PASSWORD,
                b"\x04\x01\x00\x50\x7f\x00\x00\x01u\0",
                0x5d,
            ),
        ] {
            let (_, output) = events(methods, wire);
            assert_eq!(output, [0, code, 0, 0, 0, 0, 0, 0], "{wire:?}");
        }
    }

    #[test]
    fn logins_that_fail() {
        for login in [
            &b"\x01\x01u\x05wrong"[..],
            b"\x01\x01u\x07secret\0",
            b"\x01\x00\x06secret",
            b"\x01\x02u\0\x06secret",
            b"\x05\x01u\x06secret",
        ] {
            let wire = [b"\x05\x01\x02", login].concat();
            let (_, output) = events(Methods::PASSWORD, &wire);
            assert_eq!(output, b"\x05\x02\x01\x01", "{login:?}");
        }
    }

    #[test]
    fn what_speaks_no_socks_gets_no_answer() {
        for first in (0..=255).filter(|first| *first != 4 && *first != 5) {
            let (event, output) = events(Methods::ANY, &[first]);
            assert_eq!(output, b"");
            assert!(event.contains(&format!("Version({first})")), "{event}");
        }
    }

    #[test]
    fn a_success_is_no_reason_to_refuse() {
        let mut output = BytesMut::new();
        let reply = PendingReply {
            version: Version::V5,
        };
        assert_eq!(
            reply.refuse(ReplyCode::SUCCEEDED, &mut output),
            ReplyCode::GENERAL_FAILURE
        );
        let reply = PendingReply {
            version: Version::V4,
        };
        assert_eq!(
            reply.refuse(ReplyCode::REFUSED, &mut output),
            ReplyCode::REJECTED
        );
    }

    #[test]
    fn p29_debug_hides_the_login() {
        let mut output = BytesMut::new();
        let state = ServerHandshake::start(Methods::PASSWORD);
        let wire = b"\x05\x01\x02\x01\x05alice\x06secret";
        let (next, _) = state.process(wire, &mut output).expect("well formed");
        let shown = format!("{next:?}");
        assert!(
            !shown.contains("alice") && !shown.contains("secret"),
            "{shown}"
        );
        assert!(!shown.contains(&format!("{:?}", b"secret")), "{shown}");
    }

    #[test]
    fn states_are_small() {
        assert!(size_of::<NeedsInput>() <= 4);
        assert!(size_of::<PendingReply>() <= 1);
    }

    fn methods() -> impl Strategy<Value = Methods> {
        prop_oneof![
            Just(Methods::ANY),
            Just(Methods::NONE),
            Just(Methods::PASSWORD)
        ]
    }

    /// Mostly handshakes that get somewhere, some that do not.
    fn conversation() -> impl Strategy<Value = Vec<u8>> {
        let greeting = prop_oneof![
            Just(b"\x05\x01\x00".to_vec()),
            Just(b"\x05\x01\x02".to_vec()),
            Just(b"\x05\x02\x00\x02".to_vec()),
            Just(Vec::new()),
        ];
        let login = prop_oneof![
            Just(b"\x01\x01u\x06secret".to_vec()),
            Just(b"\x01\x01u\x05wrong".to_vec()),
            Just(Vec::new()),
        ];
        let request = prop_oneof![
            Just(CONNECT.to_vec()),
            Just(b"\x05\x01\x00\x01\x7f\x00\x00\x01\x00\x50".to_vec()),
            Just(b"\x05\x03\x00\x04\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0".to_vec()),
            Just(b"\x04\x01\x00\x50\x7f\x00\x00\x01me\0".to_vec()),
            Just(b"\x04\x01\x00\x50\x00\x00\x00\x01me\0name\0".to_vec()),
            Just([&b"\x04\x01\x00\x50\x00\x00\x00\x01"[..], &[b'u'; 300]].concat()),
        ];
        let tail = proptest::collection::vec(any::<u8>(), 0..20);
        (greeting, login, request, tail).prop_map(|(a, b, c, d)| [a, b, c, d].concat())
    }

    proptest! {
        #[test]
        fn any_cut_gives_the_same(
            methods in methods(),
            wire in conversation(),
            cuts in proptest::collection::vec(any::<usize>(), 1..5),
        ) {
            let whole = run(methods, &wire, &[]);
            prop_assert_eq!(&run(methods, &wire, &cuts), &whole);
            let every: Vec<usize> = (0..wire.len()).collect();
            prop_assert_eq!(&run(methods, &wire, &every), &whole);
        }

        #[test]
        fn any_bytes_any_cut(
            methods in methods(),
            mut wire in proptest::collection::vec(any::<u8>(), 1..600),
            version in 3u8..=6,
        ) {
            wire[0] = version;
            let whole = run(methods, &wire, &[]);
            let every: Vec<usize> = (0..wire.len()).collect();
            prop_assert_eq!(run(methods, &wire, &every), whole);
        }
    }
}
