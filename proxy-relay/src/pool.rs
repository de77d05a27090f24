//! Idle upstream connections of one worker.

use std::borrow::Borrow;
use std::collections::HashMap;
use std::hash::Hash;
use std::time::Duration;

use crate::Transport;
use crate::deadline::{Tick, Ticks};

/// Keeps idle upstreams under keys of the embedder's choice, capped per key and
/// in all.
///
/// The key has to hold everything in which connections differ: address, source
/// address, parents, TLS identity. A pool belongs to one worker (wrap it in a
/// `RefCell`); streams that ended meanwhile are never lent. A stream can still
/// end right after it was taken, so a request on a reused connection must be
/// safe to try again (RFC 9112 section 9.3.1).
///
/// ```
/// # tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(async {
/// use proxy_relay::Pool;
/// # let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await?;
/// # let address = listener.local_addr()?;
/// let mut pool = Pool::new();
/// pool.per_key(8).total(64);
/// pool.give(address, tokio::net::TcpStream::connect(address).await?);
/// assert!(pool.take(&address).is_some());
/// assert!(pool.take(&address).is_none());
/// # Ok::<(), std::io::Error>(())
/// # }).unwrap();
/// ```
#[derive(Debug)]
pub struct Pool<K, S> {
    idle: HashMap<K, Vec<Idle<S>>>,
    len: usize,
    /// How many were given so far.
    given: u64,
    per_key: usize,
    total: usize,
    keep: Ticks,
}

#[derive(Debug)]
struct Idle<S> {
    stream: S,
    since: Tick,
    /// Ticks are coarse.
    number: u64,
}

impl<K, S> Default for Pool<K, S> {
    fn default() -> Self {
        Self {
            idle: HashMap::new(),
            len: 0,
            given: 0,
            per_key: 64,
            total: 1024,
            keep: Duration::from_secs(30).into(),
        }
    }
}

impl<K: Eq + Hash, S: Transport> Pool<K, S> {
    /// An empty pool with the default caps.
    pub fn new() -> Self {
        Self::default()
    }

    /// The most idle streams under one key; 64 by default.
    pub fn per_key(&mut self, cap: usize) -> &mut Self {
        self.per_key = cap;
        self
    }

    /// The most idle streams in all; 1,024 by default.
    pub fn total(&mut self, cap: usize) -> &mut Self {
        self.total = cap;
        self
    }

    /// How long a stream may lie idle; 30 s by default, `None` for ever.
    pub fn keep(&mut self, time: impl Into<Option<Duration>>) -> &mut Self {
        self.keep = time.into().into();
        self
    }

    /// The stream given last under `key` that is still open and quiet.
    pub fn take<Q: Eq + Hash + ?Sized>(&mut self, key: &Q) -> Option<S>
    where
        K: Borrow<Q>,
    {
        self.take_within(key, None)
    }

    /// The same, if it has lain idle for no longer than `time`, kept to a quarter
    /// of a second; `None` is any. For what cannot be tried again: the shorter a
    /// stream was idle, the less likely it is that its peer is just closing it.
    pub fn take_within<Q: Eq + Hash + ?Sized>(
        &mut self,
        key: &Q,
        time: impl Into<Option<Duration>>,
    ) -> Option<S>
    where
        K: Borrow<Q>,
    {
        let (now, within) = (Tick::now(), Ticks::from(time.into()));
        let idle = self.idle.get_mut(key)?;
        while let Some(last) = idle.pop_if(|last| last.since.age(now) <= within) {
            self.len -= 1;
            if last.since.age(now) > self.keep {
                // The others are older still.
                self.len -= idle.len();
                idle.clear();
            } else if last.stream.is_quiet() {
                return Some(last.stream);
            }
        }
        None
    }

    /// Keeps `stream` for a later taker. Where a cap is reached it takes the place
    /// of the stream that has lain idle for longest.
    ///
    /// What makes room is reset: nothing is under way on an idle stream, and
    /// closed in order each would block a local port for a minute.
    pub fn give(&mut self, key: K, mut stream: S) {
        if self.per_key == 0 || self.total == 0 {
            return stream.abort();
        }
        // Keys whose streams are all lent stay, but not without bound.
        if self.idle.len() > self.total.saturating_mul(2) {
            self.idle.retain(|_, idle| !idle.is_empty());
        }
        let since = Tick::now();
        let idle = self.idle.entry(key).or_default();
        let is_full = idle.len() >= self.per_key;
        if is_full {
            idle.remove(0).stream.abort();
        }
        self.given += 1;
        let number = self.given;
        idle.push(Idle {
            stream,
            since,
            number,
        });
        self.len += usize::from(!is_full);
        while self.len > self.total && self.close_oldest(|_| true) {}
    }

    /// Closes the stream that has lain idle for longest, of those whose key is one
    /// of `which`. Says whether there was one. Looks at every key.
    pub fn close_oldest(&mut self, which: impl Fn(&K) -> bool) -> bool {
        let keys = self.idle.iter_mut().filter(|(key, _)| which(key));
        let streams = keys.map(|(_, idle)| idle).filter(|idle| !idle.is_empty());
        let Some(idle) = streams.min_by_key(|idle| idle[0].number) else {
            return false;
        };
        idle.remove(0).stream.abort();
        self.len -= 1;
        true
    }

    /// Closes all streams.
    pub fn clear(&mut self) {
        self.idle = HashMap::new();
        self.len = 0;
    }

    /// Closes the streams that lay idle for too long or ended meanwhile.
    ///
    /// The owner calls it now and then, every few seconds, since a pool has no
    /// clock that wakes it.
    pub fn sweep(&mut self) {
        let (now, keep) = (Tick::now(), self.keep);
        self.idle.retain(|_, idle| {
            idle.retain(|one| one.since.age(now) <= keep && one.stream.is_quiet());
            !idle.is_empty()
        });
        self.len = self.idle.values().map(Vec::len).sum();
    }

    /// How many streams lie idle.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether no stream lies idle.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }
}
