//! The two sides of a SOCKS handshake as machines without I/O.

mod client;
mod error;
mod server;

pub use client::ClientHandshake;
pub use error::{ClientError, ServerError, ServerErrorKind};
pub use server::{
    Authenticate, Methods, NeedsInput, Next, PendingReply, PendingRequest, ServerHandshake,
};
