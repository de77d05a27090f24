//! SOCKS4, 4a and 5, on the server's side and the client's.
//!
//! Three levels, each of use alone. [`wire`] parses and encodes single messages.
//! [`ServerHandshake`] and [`ClientHandshake`] are machines that take bytes and
//! give bytes and do no I/O. With the feature `serve` (on by default), `Server`
//! runs a [`Gateway`](proxy_core::Gateway) for clients on any stream.
//!
//! Both ends of a handshake, in memory:
//!
//! ```
//! use bytes::{Buf, BytesMut};
//! use proxy_core::{Handshake, Target};
//! use proxy_socks::{ClientHandshake, Methods, Next, ServerHandshake};
//!
//! let (mut up, mut down) = (BytesMut::new(), BytesMut::new());
//! let mut client = ClientHandshake::v5(Target::parse("example.com:443", None)?);
//! let mut server = ServerHandshake::start(Methods::NONE);
//! let bound = loop {
//!     let step = client.advance(&down, &mut up)?;
//!     down.advance(step.consumed);
//!     if let Some(bound) = step.done {
//!         break bound;
//!     }
//!     let (next, used) = server.process(&up, &mut down)?;
//!     server = match next {
//!         Next::NeedsInput(more) => more,
//!         Next::Request(request) => {
//!             assert_eq!(request.target().to_string(), "example.com:443");
//!             request.accept("192.0.2.1:9".parse()?, &mut down);
//!             ServerHandshake::start(Methods::NONE)
//!         }
//!         Next::Authenticate(_) => unreachable!("not among the methods"),
//!     };
//!     up.advance(used);
//! };
//! assert_eq!(bound.to_string(), "192.0.2.1:9");
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! Main types: [`ServerHandshake`], [`Next`], [`Methods`], [`ClientHandshake`],
//! [`ReplyCode`], [`wire`], and with `serve`: `Server`, `Config`, `Datagrams`,
//! `Incoming`, `ParentRelay`, `ServeError`.
//!
//! Not here: GSSAPI (RFC 1961), identd, and BIND on the client's side.

#![forbid(unsafe_code)]

mod code;
mod handshake;
#[cfg(feature = "serve")]
mod parent_relay;
#[cfg(feature = "serve")]
mod serve;
pub mod wire;

pub use code::{ReplyCode, Version};
pub use handshake::{
    Authenticate, ClientError, ClientHandshake, Methods, NeedsInput, Next, PendingReply,
    PendingRequest, ServerError, ServerErrorKind, ServerHandshake,
};
#[cfg(feature = "serve")]
pub use parent_relay::ParentRelay;
#[cfg(feature = "serve")]
pub use serve::{Config, Datagrams, Incoming, Listening, ServeError, Served, Server};
