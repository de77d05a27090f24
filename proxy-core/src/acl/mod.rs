//! Compiled lists of names and networks: looking one up costs the same in ten
//! entries and in a hundred thousand.

mod names;
mod networks;
mod table;

pub use names::{NameHits, NamePattern, NamePatternError, Names};
pub use networks::{NetworkHits, Networks};
