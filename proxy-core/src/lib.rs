//! The vocabulary that every protocol of the proxy shares.
//!
//! A forward proxy answers three questions for each client: *who* is asking,
//! *what* may they reach, and *how* is the connection made. [`Gateway`] is the
//! one trait that answers them; implement it once and serve HTTP, CONNECT,
//! SOCKS and port relays with it. The crate does no I/O and reads no clock.
//!
//! ```
//! use proxy_core::{
//!     Ask, ConnectError, Connected, Credentials, Denial, Gateway, Peer, Target,
//! };
//!
//! /// Lets everybody reach one host; the "connection" is only a note of where.
//! struct OneHost;
//!
//! impl Gateway for OneHost {
//!     type Identity = ();
//!     type Session = ();
//!     type Upstream = String;
//!
//!     async fn authenticate(&self, _: &Peer, _: Option<Credentials<'_>>) -> Result<(), Denial> {
//!         Ok(())
//!     }
//!     async fn authorize(&self, _: &(), ask: &Ask<'_>) -> Result<(), Denial> {
//!         match ask.target.host.is_name("example.com") {
//!             true => Ok(()),
//!             false => Err(Denial::Forbid),
//!         }
//!     }
//!     async fn connect(&self, _: &mut (), to: Target<'_>) -> Result<Connected<String>, ConnectError> {
//!         Ok(Connected::fresh(to.to_string()))
//!     }
//! }
//! ```
//!
//! Main types: [`Gateway`], [`Ask`], [`Target`], [`Denial`], [`Connected`] and
//! [`HttpParent`], [`ConnectError`], [`Report`] and [`End`], [`Status`],
//! [`Handshake`], [`HeadLimits`], [`Timeouts`], [`Shaping`], [`Stop`],
//! [`FreeList`], [`Bucket`]; for logins [`Authenticator`] and [`Bans`]; for
//! access lists [`Names`], [`Networks`] and [`Special`]; for proxies in front
//! and behind [`ProxyHeader`], since every protocol may come after one.
//!
//! Not here: sockets (`proxy-relay`), other wire formats (`proxy-http`,
//! `proxy-socks`, `proxy-tls`).

#![forbid(unsafe_code)]

mod acl;
mod authenticator;
mod bans;
mod connect;
mod gateway;
mod handshake;
mod limits;
mod network;
mod pool;
mod proxy_protocol;
mod rate;
mod rates;
mod report;
mod special;
mod status;
mod stop;
mod target;

pub use acl::{NameHits, NamePattern, NamePatternError, Names, NetworkHits, Networks};
pub use authenticator::Authenticator;
pub use bans::{Bans, ClientNet};
pub use connect::{ConnectError, ConnectErrorKind, Side};
pub use gateway::{Ask, Connected, Credentials, Denial, Gateway, HttpParent, Operation, Peer};
pub use handshake::{Handshake, Step};
pub use limits::{HeadLimits, Shaping, Timeouts};
pub use network::{Network, NetworkError};
pub use pool::FreeList;
pub use proxy_protocol::{ProxyAddresses, ProxyHeader, ProxyHeaderError, ProxyVersion};
pub use rate::Bucket;
pub use rates::Rates;
pub use report::{End, Report};
pub use special::Special;
pub use status::Status;
pub use stop::{Stop, StopState};
pub use target::{Host, Target, TargetBuf, TargetError};
