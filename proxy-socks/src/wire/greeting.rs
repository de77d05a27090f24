//! The opening of SOCKS5: the methods a client offers, the one that is chosen.

use bytes::{BufMut, BytesMut};
use proxy_core::Status;

use super::{VERSION_5, WireError, length, read};

/// The client's first message: the login methods it offers (RFC 1928 section 3).
///
/// ```
/// use proxy_core::Status;
/// use proxy_socks::wire::{Greeting, Method};
///
/// assert_eq!(Greeting::parse(b"\x05\x02\x00")?, Status::Partial);
/// let Status::Complete(greeting, 4) = Greeting::parse(b"\x05\x02\x00\x02")? else { panic!() };
/// assert!(greeting.offers(Method::PASSWORD));
/// # Ok::<(), proxy_socks::wire::WireError>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Greeting<'a> {
    /// One byte per method, at most 255. A peer may have sent none.
    pub methods: &'a [u8],
}

impl<'a> Greeting<'a> {
    /// Reads a greeting from the front of `input`.
    ///
    /// # Errors
    /// [`WireError::Version`] if the first byte is not 5.
    pub fn parse(input: &'a [u8]) -> Result<Status<Self>, WireError> {
        read(input, |reader| {
            reader.version(VERSION_5)?;
            let methods = reader.counted()?;
            Ok(Self { methods })
        })
    }

    /// Appends the greeting to `output`.
    ///
    /// # Errors
    /// [`WireError::Methods`] if there are more than 255; nothing is appended.
    pub fn encode(&self, output: &mut BytesMut) -> Result<(), WireError> {
        let count = length(self.methods, WireError::Methods)?;
        output.put_slice(&[VERSION_5, count]);
        output.put_slice(self.methods);
        Ok(())
    }

    /// Whether `method` is among those offered.
    pub fn offers(&self, method: Method) -> bool {
        self.methods.contains(&method.0)
    }
}

/// The server's answer to a [`Greeting`] (RFC 1928 section 3).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Selection {
    /// The method chosen, or [`Method::UNACCEPTABLE`].
    pub method: Method,
}

impl Selection {
    /// Reads a selection from the front of `input`.
    ///
    /// # Errors
    /// [`WireError::Version`] if the first byte is not 5.
    pub fn parse(input: &[u8]) -> Result<Status<Self>, WireError> {
        read(input, |reader| {
            reader.version(VERSION_5)?;
            let method = Method(reader.byte()?);
            Ok(Self { method })
        })
    }

    /// Appends the selection to `output`.
    pub fn encode(&self, output: &mut BytesMut) {
        output.put_slice(&[VERSION_5, self.method.0]);
    }
}

/// The number of a login method; unknown numbers are kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Method(pub u8);

impl Method {
    /// No login.
    pub const NONE: Self = Self(0);
    /// User name and password (RFC 1929).
    pub const PASSWORD: Self = Self(2);
    /// In a [`Selection`]: none of the methods offered will do.
    pub const UNACCEPTABLE: Self = Self(0xff);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::law;

    #[test]
    fn greetings() {
        for methods in [&b""[..], b"\x00", b"\x00\x02", &[7; 255]] {
            let mut wire = BytesMut::new();
            let greeting = Greeting { methods };
            greeting.encode(&mut wire).expect("at most 255");
            assert_eq!(
                Greeting::parse(&wire),
                Ok(Status::Complete(greeting, wire.len()))
            );
            law::prefixes_are_partial(&wire, |input| {
                Greeting::parse(input).map(|status| status.map(|greeting| greeting.methods.len()))
            });
        }
    }

    #[test]
    fn p61_method_counts_are_not_cut_to_a_byte() {
        let mut wire = BytesMut::new();
        let greeting = Greeting { methods: &[0; 256] };
        assert_eq!(greeting.encode(&mut wire), Err(WireError::Methods));
        assert!(wire.is_empty());
    }

    #[test]
    fn other_versions() {
        assert_eq!(Greeting::parse(b"\x04"), Err(WireError::Version(4)));
        assert_eq!(Selection::parse(b"H"), Err(WireError::Version(b'H')));
    }

    #[test]
    fn selections() {
        for method in [Method::NONE, Method::UNACCEPTABLE, Method(77)] {
            let mut wire = BytesMut::new();
            Selection { method }.encode(&mut wire);
            assert_eq!(
                Selection::parse(&wire),
                Ok(Status::Complete(Selection { method }, 2))
            );
            law::prefixes_are_partial(&wire, Selection::parse);
        }
    }
}
