//! Whether a file has changed, as seen from outside.

use std::fs::Metadata;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

/// What a file looks like from outside: changes when its content does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Mark {
    place: (u64, u64),
    size: u64,
    changed: [i64; 4],
}

impl Mark {
    /// `None` if it cannot be seen.
    pub(crate) fn of(path: &Path) -> Option<Self> {
        path.metadata().ok().map(|metadata| Self::new(&metadata))
    }

    pub(crate) fn new(metadata: &Metadata) -> Self {
        Self {
            place: (metadata.dev(), metadata.ino()),
            size: metadata.size(),
            changed: [
                metadata.mtime(),
                metadata.mtime_nsec(),
                metadata.ctime(),
                metadata.ctime_nsec(),
            ],
        }
    }
}
