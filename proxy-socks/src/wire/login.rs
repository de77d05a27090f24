//! User name and password inside SOCKS5 (RFC 1929).

use std::fmt;

use bytes::{BufMut, BytesMut};
use proxy_core::{Credentials, Status};

use super::{Halt, Reader, WireError, length, read};

/// The client's user name and password (RFC 1929 section 2). `Debug` hides both.
///
/// A value of this type has an encoding: the user name is 1 to 255 bytes without
/// NUL, the password at most 255 bytes. An empty password breaks the letter of
/// the RFC but is what common clients send, so it is left to policy.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Login<'a> {
    user: (u8, &'a [u8]),
    password: (u8, &'a [u8]),
}

impl<'a> Login<'a> {
    /// A login with these credentials.
    ///
    /// # Errors
    /// [`WireError::Login`] if they do not fit into the message.
    ///
    /// ```
    /// use proxy_core::Credentials;
    /// use proxy_socks::wire::{Login, WireError};
    ///
    /// let long = [b'x'; 256];
    /// let login = Login::new(Credentials { user: b"alice", password: &long });
    /// assert_eq!(login, Err(WireError::Login));
    /// ```
    pub fn new(credentials: Credentials<'a>) -> Result<Self, WireError> {
        let Credentials { user, password } = credentials;
        if user.is_empty() || memchr::memchr(0, user).is_some() {
            return Err(WireError::Login);
        }
        Ok(Self {
            user: (length(user, WireError::Login)?, user),
            password: (length(password, WireError::Login)?, password),
        })
    }

    /// Reads a login from the front of `input`.
    ///
    /// # Errors
    /// [`WireError::Version`] if the first byte is not 1, [`WireError::Login`] if
    /// the user name is empty or holds a NUL.
    pub fn parse(input: &'a [u8]) -> Result<Status<Self>, WireError> {
        read(input, |reader: &mut Reader<'a>| {
            reader.version(VERSION)?;
            let user = reader.counted()?;
            let password = reader.counted()?;
            Self::new(Credentials { user, password }).map_err(Halt::Bad)
        })
    }

    /// Appends the login to `output`.
    pub fn encode(&self, output: &mut BytesMut) {
        output.put_slice(&[VERSION, self.user.0]);
        output.put_slice(self.user.1);
        output.put_u8(self.password.0);
        output.put_slice(self.password.1);
    }

    /// What the client claims.
    pub fn credentials(&self) -> Credentials<'a> {
        Credentials {
            user: self.user.1,
            password: self.password.1,
        }
    }
}

impl fmt::Debug for Login<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Login(..)")
    }
}

/// The server's answer to a [`Login`] (RFC 1929 section 2).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LoginReply {
    /// 0 for success; with anything else the server closes.
    pub status: u8,
}

impl LoginReply {
    /// The login was accepted.
    pub const ACCEPTED: Self = Self { status: 0 };
    /// The login was refused.
    pub const REFUSED: Self = Self { status: 1 };

    /// Reads the answer from the front of `input`.
    ///
    /// # Errors
    /// [`WireError::Version`] if the first byte is not 1.
    pub fn parse(input: &[u8]) -> Result<Status<Self>, WireError> {
        read(input, |reader| {
            reader.version(VERSION)?;
            let status = reader.byte()?;
            Ok(Self { status })
        })
    }

    /// Appends the answer to `output`.
    pub fn encode(&self, output: &mut BytesMut) {
        output.put_slice(&[VERSION, self.status]);
    }
}

/// The version of the login exchange, not of SOCKS.
const VERSION: u8 = 1;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::law;

    fn login<'a>(user: &'a [u8], password: &'a [u8]) -> Result<Login<'a>, WireError> {
        Login::new(Credentials { user, password })
    }

    #[test]
    fn logins() {
        for (user, password) in [
            (&b"alice"[..], &b"secret"[..]),
            (b"a", b""),
            (b"a", b"nul\0inside"),
            (&[b'u'; 255], &[0xff; 255]),
        ] {
            let login = login(user, password).expect("within limits");
            let mut wire = BytesMut::new();
            login.encode(&mut wire);
            assert_eq!(Login::parse(&wire), Ok(Status::Complete(login, wire.len())));
            assert_eq!(login.credentials(), Credentials { user, password });
            law::prefixes_are_partial(&wire, |input| {
                Login::parse(input).map(|status| status.map(|_| ()))
            });
        }
    }

    #[test]
    fn p61_lengths_and_nul_of_logins() {
        let long = [b'x'; 256];
        for (user, password) in [
            (&b""[..], &b"p"[..]),
            (b"al\0ice", b"p"),
            (&long, b"p"),
            (b"u", &long),
        ] {
            assert_eq!(login(user, password), Err(WireError::Login));
        }
        assert_eq!(Login::parse(b"\x01\x00\x01p"), Err(WireError::Login));
        assert_eq!(Login::parse(b"\x01\x02a\0\x01p"), Err(WireError::Login));
        assert_eq!(Login::parse(b"\x05"), Err(WireError::Version(5)));
    }

    #[test]
    fn p29_debug_hides_the_login() {
        let login = login(b"alice", b"secret").expect("within limits");
        assert_eq!(format!("{login:?}"), "Login(..)");
    }

    #[test]
    fn answers() {
        for reply in [LoginReply::ACCEPTED, LoginReply { status: 9 }] {
            let mut wire = BytesMut::new();
            reply.encode(&mut wire);
            assert_eq!(LoginReply::parse(&wire), Ok(Status::Complete(reply, 2)));
            law::prefixes_are_partial(&wire, LoginReply::parse);
        }
        assert_eq!(LoginReply::parse(b"\x05"), Err(WireError::Version(5)));
    }
}
