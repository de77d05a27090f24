//! How a pump fails.

use std::fmt;
use std::io;

/// Which side of a [`Pump`](crate::Pump) failed, and how.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum PumpError {
    /// Reading from the source failed.
    Read(io::ErrorKind),
    /// The source ended before the exact length was reached.
    Truncated,
    /// Writing to, flushing or shutting down the destination failed.
    Write(io::ErrorKind),
}

impl PumpError {
    pub(crate) fn read(error: io::Error) -> Self {
        Self::Read(error.kind())
    }

    pub(crate) fn write(error: io::Error) -> Self {
        Self::Write(error.kind())
    }
}

impl fmt::Display for PumpError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Read(kind) => write!(f, "the source failed: {kind}"),
            Self::Truncated => f.write_str("the source ended too early"),
            Self::Write(kind) => write!(f, "the destination failed: {kind}"),
        }
    }
}

impl std::error::Error for PumpError {}
