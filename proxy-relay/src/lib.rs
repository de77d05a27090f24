//! Moves bytes between sockets: tunnels, bodies, port relays.
//!
//! [`relay`] runs both directions of a tunnel and [`Pump`] one of them, by
//! copying through a buffer that belongs to the thread or, once a direction has
//! proved to be bulk, by splicing in the kernel (Linux). An idle tunnel owns two
//! sockets and a future of some two hundred bytes; its timers cost nothing but
//! a store. Everything works on any [`Transport`]; nothing here spawns, logs or
//! reads configuration.
//!
//! ```
//! use proxy_core::{End, Target};
//! use proxy_relay::{Dialer, RelayOptions, relay};
//! use tokio::io::{AsyncReadExt, AsyncWriteExt};
//! use tokio::net::{TcpListener, TcpStream};
//!
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let origin = TcpListener::bind("127.0.0.1:0").await?;
//! let front = TcpListener::bind("127.0.0.1:0").await?;
//! let target = Target::from(origin.local_addr()?);
//!
//! let proxy = async {
//!     let (mut client, _) = front.accept().await?;
//!     let mut upstream = Dialer::default().dial(target).await?;
//!     let report = relay(&mut client, &mut upstream, &RelayOptions::default()).await;
//!     Ok::<_, Box<dyn std::error::Error>>(report)
//! };
//! let server = async {
//!     let (mut stream, _) = origin.accept().await?;
//!     let mut question = String::new();
//!     stream.read_to_string(&mut question).await?;
//!     stream.write_all(b"42").await
//! };
//! let client = async {
//!     let mut stream = TcpStream::connect(front.local_addr()?).await?;
//!     stream.write_all(b"the answer?").await?;
//!     stream.shutdown().await?;
//!     let mut answer = String::new();
//!     stream.read_to_string(&mut answer).await?;
//!     Ok::<_, std::io::Error>(answer)
//! };
//! let (report, served, answer) = tokio::join!(proxy, server, client);
//! served?;
//! assert_eq!(answer?, "42");
//! let report = report?;
//! assert_eq!((report.up, report.down, report.end), (11, 2, End::ClientFinished));
//! # Ok(())
//! # }
//! ```
//!
//! [`Dialer`] reaches targets by name or address: it asks for both families at
//! once, races what it learns (RFC 8305), remembers it for its time to live, and
//! can have each address judged just before it is connected to.
//!
//! Main types: [`relay`], [`forward`], [`Pump`], [`RelayOptions`], [`Meter`], [`Aside`],
//! [`Transport`], [`Prefixed`], [`drive`], [`Dialer`], [`Resolve`], [`PortMap`],
//! [`Balance`], [`Passthrough`], [`Pool`], [`Deadline`], [`lend`], [`release_pipes`],
//! [`keep_alive`].
//!
//! Not here: wire formats (`proxy-http`, `proxy-socks`), TLS (`proxy-tls`), and
//! accepting connections, which is the embedder's.

#![forbid(unsafe_code)]

mod answers;
mod aside;
mod balance;
mod buffer;
mod datagram;
mod deadline;
mod dial;
mod drive;
mod keepalive;
mod lent;
mod meter;
mod names;
mod options;
mod passthrough;
mod pool;
mod portmap;
mod prefixed;
mod pump;
mod pump_error;
mod race;
mod relay;
mod resolve;
mod spill;
#[cfg(target_os = "linux")]
mod splice;
#[cfg(not(target_os = "linux"))]
#[path = "no_splice.rs"]
mod splice;
mod transport;
mod tunnel;

pub use aside::Aside;
pub use balance::Balance;
pub use buffer::{Buffers, lend};
pub use datagram::{
    Association, AssociationError, AssociationReport, Associations, Carrier, DatagramMap,
    Datagrams, Drops, Framing, Passage,
};
pub use deadline::{Deadline, Expired, TICK, Ticks};
pub use dial::Dialer;
pub use drive::{DriveError, MAX_INPUT, drive};
pub use keepalive::keep_alive;
pub use lent::{Lent, lent};
pub use meter::Meter;
pub use options::RelayOptions;
pub use passthrough::Passthrough;
pub use pool::Pool;
pub use portmap::{PortMap, PortMapError};
pub use prefixed::Prefixed;
pub use pump::Pump;
pub use pump_error::PumpError;
pub use relay::{Forward, ForwardError, ForwardReport, Relay, RelayReport, forward, relay};
pub use resolve::{Family, Resolve, Resolved};
pub use splice::release_pipes;
pub use transport::{Socket, Transport, unless, vanished};

#[cfg(test)]
extern crate self as proxy_relay;
#[cfg(test)]
#[path = "../tests/support/scripted.rs"]
mod scripted;
