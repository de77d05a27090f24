//! HTTP/1.1 as a forward proxy speaks it: strict heads, exact framing, cheap
//! editing.
//!
//! This part does no I/O: bytes in as `&[u8]`, bytes out into the caller's
//! `BytesMut`, and the number of bytes used as a result. "Not enough yet" is a
//! value, an ambiguous message is an error.
//!
//! ```
//! use proxy_core::Status;
//! use proxy_http::{BodyFramer, EditScript, HeadEdit, HeadLimits, RequestParser, ToOrigin};
//!
//! let mut parser = RequestParser::new(HeadLimits::default());
//! let input = b"PUT http://example.com:81/x HTTP/1.1\r\nHost: example.com:81\r\n\
//!               Content-Length: 2\r\nConnection: close\r\n\r\nhi";
//! let Status::Complete(head, used) = parser.parse(input)? else { unreachable!() };
//! assert_eq!(head.destination()?.port, 81);
//!
//! let mut script = EditScript::new();
//! let mut edit = HeadEdit::request(&mut script, &head);
//! edit.to_origin(ToOrigin::default());
//! let mut out = bytes::BytesMut::new();
//! edit.encode(&mut out);
//!
//! let mut body = BodyFramer::new(head.framing());
//! let extent = body.advance(&input[used..])?;
//! assert!(extent.end);
//! out.extend_from_slice(&input[used..][..extent.len]);
//! assert_eq!(
//!     &out[..],
//!     b"PUT /x HTTP/1.1\r\nHost: example.com:81\r\nContent-Length: 2\r\n\r\nhi",
//! );
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! Main types: [`RequestParser`], [`ResponseParser`], [`HeadEdit`],
//! [`BodyFramer`], [`Reply`] for the proxy's own answers (with `Proxy-Status`, RFC
//! 9209), [`ConnectHandshake`] for tunnels through a parent, and [`auth`] for
//! Basic credentials. With the feature `serve`: `Server`, which speaks to clients
//! on behalf of a [`Gateway`](proxy_core::Gateway), and to an HTTP parent if the
//! gateway's connection leads to one ([`HttpParent`](proxy_core::HttpParent)). Its
//! `Config` has limits, waits, and what origins are told of clients (`Forwarded`);
//! what passes can be watched, changed or answered by a `Filter`, which says in a
//! `Flow` how to go on.
//!
//! Limits: heads and field counts by [`HeadLimits`], chunk lines and trailers by
//! constants of [`BodyFramer`]. Not here: HTTP/2, caching, content codings.

#![forbid(unsafe_code)]

pub mod auth;

#[cfg(feature = "serve")]
mod accept;
mod body;
mod chunk;
mod connect;
mod error;
#[cfg(feature = "serve")]
mod filter;
mod head;
mod reply;
#[cfg(feature = "serve")]
mod server;

pub use body::{BodyFramer, Extent, Payload};
pub use connect::ConnectHandshake;
pub use error::{BodyError, HeadError, TunnelError};
#[cfg(feature = "serve")]
pub use filter::{Answer, Chunk, Direction, Filter, Flow};
pub use head::{
    EditError, EditScript, Framing, HeadEdit, Header, Persist, RequestHead, RequestKind,
    RequestParser, RequestTarget, ResponseHead, ResponseParser, ToClient, ToOrigin, Version,
};
pub use proxy_core::HeadLimits;
pub use reply::Reply;
#[cfg(feature = "serve")]
pub use server::{Config, Forwarded, ServeError, Server};
