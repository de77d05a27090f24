//! CONNECT as a client: a tunnel through a parent proxy.

use std::fmt::Write;

use bytes::{BufMut, BytesMut};
use proxy_core::{
    ConnectError, ConnectErrorKind, Credentials, Handshake, HeadLimits, Status, Step, Target,
};

use crate::{ResponseParser, TunnelError, auth};

/// Asks a parent proxy for a tunnel (RFC 9110 section 9.3.6).
///
/// Framing fields of a 2xx mean nothing and are ignored; what follows its head
/// belongs to the tunnel and stays unconsumed. Interim answers are skipped.
///
/// ```
/// use proxy_core::{Handshake, Target};
/// use proxy_http::ConnectHandshake;
///
/// let mut handshake = ConnectHandshake::new(Target::parse("example.com:443", None).unwrap());
/// let mut out = bytes::BytesMut::new();
/// assert!(handshake.advance(b"", &mut out)?.done.is_none());
/// assert_eq!(&out[..], b"CONNECT example.com:443 HTTP/1.1\r\nHost: example.com:443\r\n\r\n");
///
/// let step = handshake.advance(b"HTTP/1.1 200 OK\r\n\r\nearly", &mut out)?;
/// assert_eq!((step.consumed, step.done), (19, Some(())));
/// # Ok::<(), proxy_http::TunnelError>(())
/// ```
#[derive(Clone, Debug)]
pub struct ConnectHandshake<'t> {
    target: Target<'t>,
    login: Option<Credentials<'t>>,
    via: Option<(&'t str, Option<&'t [u8]>)>,
    parser: ResponseParser,
    sent: bool,
    interim: u8,
}

impl<'t> ConnectHandshake<'t> {
    /// The longest answer head taken, in bytes.
    pub const MAX_HEAD: usize = 16 * 1024;

    /// A request for a tunnel to `target`.
    pub fn new(target: Target<'t>) -> Self {
        let mut limits = HeadLimits::default();
        limits.head_bytes(Self::MAX_HEAD);
        Self {
            target,
            login: None,
            via: None,
            parser: ResponseParser::of_tunnel(limits),
            sent: false,
            interim: 0,
        }
    }

    /// Shows Basic credentials to the parent; the user must not contain a colon.
    #[must_use]
    pub fn login(mut self, credentials: Credentials<'t>) -> Self {
        self.login = Some(credentials);
        self
    }

    /// Names this proxy in `Via` (RFC 9110 section 7.6.3), so that it knows a
    /// request that comes back, behind the proxies `before` it, a field value as
    /// it was received. `name` must be a token.
    #[must_use]
    pub fn via(mut self, name: &'t str, before: Option<&'t [u8]>) -> Self {
        self.via = Some((name, before));
        self
    }

    fn encode(&self, out: &mut BytesMut) {
        let target = self.target;
        // Writing to memory that grows cannot fail.
        let _ = write!(out, "CONNECT {target} HTTP/1.1\r\nHost: {target}\r\n");
        if let Some(login) = self.login {
            out.put_slice(b"Proxy-Authorization: ");
            auth::encode(login, out);
            out.put_slice(b"\r\n");
        }
        if let Some((name, before)) = self.via {
            out.put_slice(b"Via: ");
            if let Some(before) = before {
                out.put_slice(before);
                out.put_slice(b", ");
            }
            let _ = write!(out, "1.1 {name}\r\n");
        }
        out.put_slice(b"\r\n");
    }

    fn judge(
        &mut self,
        status: u16,
        cause: Option<ConnectErrorKind>,
    ) -> Result<Option<()>, TunnelError> {
        match status {
            200..300 => Ok(Some(())),
            100..200 if status != 101 && self.interim < MAX_INTERIM => {
                self.interim += 1;
                Ok(None)
            }
            _ => Err(match cause {
                Some(kind) => TunnelError::Failed(status, kind),
                None => TunnelError::Refused(status),
            }),
        }
    }
}

impl Handshake for ConnectHandshake<'_> {
    type Output = ();
    type Error = TunnelError;

    fn advance(&mut self, input: &[u8], output: &mut BytesMut) -> Result<Step<()>, TunnelError> {
        if !self.sent {
            self.sent = true;
            self.encode(output);
        }
        let mut consumed = 0;
        let mut done = None;
        while done.is_none() {
            let Status::Complete(head, used) = self.parser.parse(&input[consumed..])? else {
                break;
            };
            let status = head.status();
            let cause = head.get("proxy-status").and_then(cause);
            consumed += used;
            done = self.judge(status, cause)?;
        }
        Ok(Step { consumed, done })
    }
}

/// What a parent's refusal means: the inverse of the statuses in
/// [`Reply`](crate::Reply).
impl From<TunnelError> for ConnectError {
    fn from(error: TunnelError) -> Self {
        use ConnectErrorKind as Kind;
        Self::parent(match error {
            // A login is asked of us, whoever failed.
            TunnelError::Failed(401 | 407, _) => Kind::Login,
            TunnelError::Failed(_, kind) => kind,
            TunnelError::Malformed(_) => Kind::Protocol,
            TunnelError::Refused(status) => match status {
                401 | 407 => Kind::Login,
                403 | 451 => Kind::Forbidden,
                404 | 410 => Kind::NameNotFound,
                408 | 504 => Kind::TimedOut,
                429 | 503 => Kind::Exhausted,
                508 => Kind::Loop,
                // No status of a tunnel, RFC 9110 section 15.2.2.
                101 => Kind::Protocol,
                _ => Kind::Other,
            },
        })
    }
}

/// What a `Proxy-Status` says, if it is one of the failures that clients are told
/// apart. What the proxy nearest to the target says comes first.
fn cause(value: &[u8]) -> Option<ConnectErrorKind> {
    use ConnectErrorKind as Kind;
    let value = str::from_utf8(value).ok()?;
    let mut parameters = value.split([';', ',']).map(str::trim);
    let name = parameters.find_map(|parameter| parameter.strip_prefix("error="))?;
    match name {
        "connection_limit_reached" => Some(Kind::Exhausted),
        "connection_read_timeout" | "connection_timeout" | "connection_write_timeout" => {
            Some(Kind::TimedOut)
        }
        "connection_refused" => Some(Kind::Refused),
        "connection_terminated" => Some(Kind::Reset),
        "destination_ip_prohibited" | "http_request_denied" => Some(Kind::Forbidden),
        "destination_ip_unroutable" => Some(Kind::HostUnreachable),
        "dns_error" | "dns_timeout" => Some(Kind::NameUnavailable),
        "proxy_loop_detected" => Some(Kind::Loop),
        "tls_alert_received" | "tls_certificate_error" | "tls_protocol_error" => Some(Kind::Tls),
        _ => None,
    }
}

/// Interim answers taken before the parent is given up.
const MAX_INTERIM: u8 = 16;
