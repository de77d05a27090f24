//! The unused connections of a worker.

use std::time::Duration;

use proxy_core::Target;
use proxy_relay::Pool;

use crate::config::Limits;
use crate::upstream::{Lane, PoolKey, Upstream};

/// Unused connections, and room for the key that is looked for.
#[derive(Debug)]
pub(crate) struct Idle {
    pool: Pool<PoolKey, Upstream>,
    sought: PoolKey,
}

impl Idle {
    /// Keeps at most `most` connections.
    pub(crate) fn new(most: usize, limits: &Limits) -> Self {
        let mut pool = Pool::new();
        pool.total(most)
            .per_key(limits.idle_per_origin)
            .keep(limits.idle_time);
        Self {
            pool,
            sought: PoolKey::new(),
        }
    }

    /// A connection of this lane to `target` or, without one, to an HTTP proxy,
    /// that has not lain idle for longer than this.
    pub(crate) fn take(
        &mut self,
        lane: Lane,
        target: Option<Target<'_>>,
        within: Option<Duration>,
    ) -> Option<Upstream> {
        self.sought.set(lane, target);
        self.pool.take_within(&self.sought, within)
    }

    /// Keeps a connection that was used for `target`.
    pub(crate) fn give(&mut self, target: Target<'_>, upstream: Upstream) {
        let key = PoolKey::of(&upstream, target);
        self.pool.give(key, upstream);
    }

    /// Closes the one that has lain idle for longest, of those to `origin` or of
    /// all. Says whether there was one.
    pub(crate) fn close_oldest(&mut self, origin: Option<Target<'_>>) -> bool {
        self.pool
            .close_oldest(|key| origin.is_none_or(|origin| key.leads_to(origin)))
    }

    /// Closes those that are old or were ended by their origins.
    pub(crate) fn sweep(&mut self) {
        self.pool.sweep();
    }

    /// Closes all. Says whether there was one.
    pub(crate) fn clear(&mut self) -> bool {
        let had_any = !self.pool.is_empty();
        self.pool.clear();
        had_any
    }
}
