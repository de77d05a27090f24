//! Stands in for `splice` where the kernel has no such call.

use std::io;
use std::task::{Context, Poll};

use crate::Socket;
use crate::spill::Spill;

/// A pipe that cannot be had.
#[derive(Debug)]
pub(crate) enum Pipe {}

impl Pipe {
    pub(crate) fn lease() -> Option<Self> {
        None
    }

    pub(crate) fn poll_fill(
        &mut self,
        _: &mut Context<'_>,
        _: Socket<'_>,
        _: usize,
    ) -> Poll<io::Result<usize>> {
        match *self {}
    }

    pub(crate) fn poll_drain(
        &mut self,
        _: &mut Context<'_>,
        _: Socket<'_>,
    ) -> Poll<io::Result<usize>> {
        match *self {}
    }

    pub(crate) fn take_out(&mut self) -> io::Result<Spill> {
        match *self {}
    }

    pub(crate) fn held(&self) -> u32 {
        match *self {}
    }
}

/// Closes the pooled pipes of this thread, of which there are none on this
/// system.
pub fn release_pipes() {}

/// Closes the pooled pipes that nobody needed since the last call.
pub(crate) fn trim() {}

/// Held by a pump that splices, of which there is none.
#[derive(Debug)]
pub(crate) struct Splicing(());

impl Splicing {
    pub(crate) fn begin() -> Self {
        Self(())
    }
}
