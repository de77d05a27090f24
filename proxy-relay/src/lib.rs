//! Moves bytes between sockets: tunnels, bodies, port relays.

mod buffer;
mod deadline;
mod transport;

pub use buffer::{Buffers, lend};
pub use deadline::{Deadline, Expired, TICK, Ticks};
pub use transport::{Socket, Transport};
