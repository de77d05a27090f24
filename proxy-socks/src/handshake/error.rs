//! Why a handshake failed, as the server and as the client see it.

use proxy_core::{ConnectError, ConnectErrorKind};

use crate::ReplyCode;
use crate::wire::WireError;

/// Why the server's side of a handshake is over without a request to answer.
///
/// The answer that the protocol has for it was appended to the output: send
/// that, then close.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{kind}")]
pub struct ServerError {
    /// What was wrong.
    pub kind: ServerErrorKind,
    /// The deciding byte of the answer: a reply code, the status of a login or a
    /// method. `None` if the client speaks no version that has an answer.
    pub answer: Option<u8>,
}

/// What was wrong with a client's handshake.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ServerErrorKind {
    /// A command of an unknown number.
    #[error("unknown command {0}")]
    Command(u8),
    /// User name and password were refused.
    #[error("login refused")]
    LoginRefused,
    /// A password is required, and SOCKS4 has none.
    #[error("SOCKS4 where a password is required")]
    LoginRequired,
    /// None of the methods offered is allowed.
    #[error("no acceptable method")]
    NoAcceptableMethod,
    /// CONNECT to port 0.
    #[error("port 0")]
    PortZero,
    /// A message is malformed.
    #[error(transparent)]
    Wire(#[from] WireError),
}

/// Why the client's side of a handshake failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ClientError {
    /// The server did not accept user name and password; its status byte.
    #[error("the server refused the login (status {0})")]
    LoginRefused(u8),
    /// The server chose a method that was not offered.
    #[error("the server chose method {0}, which was not offered")]
    Method(u8),
    /// The server accepts none of the methods offered; a login is needed, or
    /// one of a kind that this client does not have.
    #[error("the server accepts none of the login methods offered")]
    NoAcceptableMethod,
    /// The server was asked, and refused.
    #[error("the server refused: {0}")]
    Refused(ReplyCode),
    /// The server broke the protocol, or the target has no encoding in it.
    #[error(transparent)]
    Wire(#[from] WireError),
}

/// What a parent's refusal means to the client it was for.
impl From<ClientError> for ConnectError {
    fn from(error: ClientError) -> Self {
        use ConnectErrorKind as Kind;
        Self::parent(match error {
            ClientError::LoginRefused(_) | ClientError::NoAcceptableMethod => Kind::Login,
            ClientError::Refused(code) => code.failure(),
            // The parent has no way to go there.
            ClientError::Wire(WireError::Family) => Kind::HostUnreachable,
            ClientError::Method(_) | ClientError::Wire(_) => Kind::Protocol,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_refusal_to_the_client_is_a_failure_of_the_parent() {
        use ConnectErrorKind as Kind;
        for (error, kind) in [
            (ClientError::LoginRefused(1), Kind::Login),
            (ClientError::NoAcceptableMethod, Kind::Login),
            (ClientError::Method(7), Kind::Protocol),
            (ClientError::Refused(ReplyCode::REFUSED), Kind::Refused),
            (ClientError::Refused(ReplyCode::REJECTED), Kind::Other),
            (ClientError::Wire(WireError::Version(4)), Kind::Protocol),
            (ClientError::Wire(WireError::Family), Kind::HostUnreachable),
        ] {
            assert_eq!(ConnectError::from(error), ConnectError::parent(kind));
        }
    }

    #[test]
    fn errors_are_small() {
        assert!(size_of::<ServerError>() <= 8);
        assert!(size_of::<ClientError>() <= 8);
    }
}
