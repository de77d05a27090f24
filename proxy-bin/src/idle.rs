//! The unused connections of a worker.

use std::time::Duration;

use proxy_core::{Operation, Target};
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

/// How long a connection for this may have lain idle. What may not be sent twice
/// fails if the origin closes its end just then, and servers are known that do so
/// after five seconds (RFC 9112 section 9.3.1).
pub(crate) fn within(operation: &Operation<'_>) -> Option<Duration> {
    match operation {
        Operation::Request { method, .. } if !REPEATABLE.contains(method) => Some(YOUNG),
        _ => None,
    }
}

/// Those without a body that RFC 9110 section 9.2.2 calls idempotent.
const REPEATABLE: [&str; 5] = ["GET", "HEAD", "OPTIONS", "TRACE", "DELETE"];

const YOUNG: Duration = Duration::from_secs(4);

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::net::{TcpListener, TcpStream};

    fn request(method: &'static str) -> Operation<'static> {
        Operation::Request { method, path: "/" }
    }

    #[tokio::test(start_paused = true)]
    async fn p31_what_may_not_be_sent_twice_takes_no_connection_that_lay_for_long() {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("bound");
        let address = listener.local_addr().expect("bound");
        let target = Target::from(address);
        let mut idle = Idle::new(8, &Limits::default());
        let mut take = async |seconds, method| {
            let stream = TcpStream::connect(address).await.expect("connected");
            idle.give(target, Upstream::new(stream));
            tokio::time::advance(Duration::from_secs(seconds)).await;
            let lane = Lane::default();
            let taken = idle.take(lane, Some(target), within(&request(method)));
            idle.clear();
            taken.is_some()
        };
        for (seconds, method, taken) in [
            (3, "POST", true),
            (6, "POST", false),
            (6, "PUT", false),
            (6, "get", false),
            (6, "GET", true),
            (29, "DELETE", true),
            (40, "GET", false),
        ] {
            assert_eq!(take(seconds, method).await, taken, "{seconds} {method}");
        }
    }
}
