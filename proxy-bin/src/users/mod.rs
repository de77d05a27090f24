//! Users: who they are, how they prove it, and who is kept out.

mod desk;
mod digest;
mod door;
mod hash;
mod memory;
mod passwd;
mod scratch;
mod secret;
mod table;
mod verify;
mod watch;

pub(crate) use door::{Door, Login};
pub(crate) use passwd::Passwd;
pub(crate) use table::{Table, Unread};
pub(crate) use watch::Watch;
