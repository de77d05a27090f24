//! The number of descriptors this process may open.

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// Raises the limit as far as that needs no privilege. Answers the limit in
/// force, `None` for none.
///
/// Nothing anywhere is sized by it, since it may be in the billions.
pub(crate) fn raise() -> Option<u64> {
    let Rlimit { current, maximum } = getrlimit(Resource::Nofile);
    if current == maximum {
        return current;
    }
    let raised = Rlimit {
        current: maximum,
        maximum,
    };
    match setrlimit(Resource::Nofile, raised) {
        Ok(()) => maximum,
        Err(error) => {
            tracing::warn!(%error, "the descriptor limit cannot be raised");
            current
        }
    }
}
