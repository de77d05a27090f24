//! Moves bytes between sockets: tunnels, bodies, port relays.

mod buffer;
mod deadline;
mod dial;
mod drive;
mod lent;
mod options;
mod pool;
mod portmap;
mod prefixed;
mod pump;
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

pub use buffer::{Buffers, lend};
pub use deadline::{Deadline, Expired, TICK, Ticks};
pub use dial::Dialer;
pub use drive::{DriveError, MAX_INPUT, drive};
pub use lent::{Lent, lent};
pub use options::RelayOptions;
pub use pool::Pool;
pub use portmap::{PortMap, PortMapError};
pub use prefixed::Prefixed;
pub use pump::{Pump, PumpError};
pub use relay::{Forward, ForwardError, ForwardReport, Relay, RelayReport, forward, relay};
pub use transport::{Socket, Transport, vanished};
