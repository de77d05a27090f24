//! How fast clients are served: the rates of listeners, users and connections.

use std::collections::HashMap;
use std::num::NonZeroU64;
use std::sync::{Mutex, PoisonError};
use std::time::Instant;

use proxy_core::{Bucket, Rates as Limits};

use crate::config::{Config, Rates};

/// The rates of all listeners and users, shared by the workers.
#[derive(Debug)]
pub(crate) struct Speeds {
    /// In the order of the configuration.
    listeners: Box<[Listener]>,
    users: Option<Users>,
}

#[derive(Debug)]
struct Listener {
    shared: Pair,
    session: Rates,
}

/// Buckets of both directions.
#[derive(Clone, Debug, Default)]
struct Pair {
    up: Option<Bucket>,
    down: Option<Bucket>,
}

#[derive(Debug)]
struct Users {
    /// Of those who have none of their own.
    usual: Rates,
    own: HashMap<Box<str>, Rates>,
    /// Of the users seen so far, who all are known ones.
    seen: Mutex<HashMap<Box<str>, Pair>>,
}

/// What the two directions of a client's sessions obey.
#[derive(Debug)]
pub(crate) struct Speed {
    pub(crate) up: Limits,
    pub(crate) down: Limits,
}

impl Speeds {
    /// `None` if nobody is limited.
    pub(crate) fn new(config: &Config) -> Option<Self> {
        let now = Instant::now();
        let (limits, mut limited) = (&config.limits, false);
        let listeners = config.listeners.iter().map(|listener| {
            let session = listener.session_rates.or(limits.session_rates);
            limited |= !(session.is_unlimited() && listener.rates.is_unlimited());
            Listener {
                shared: Pair::new(listener.rates, now),
                session,
            }
        });
        let listeners = listeners.collect();
        let users = Users::new(config);
        (limited || users.is_some()).then_some(Self { listeners, users })
    }

    /// That of a connection at a listener; `None` if it has no limit.
    pub(crate) fn of(&self, listener: usize, user: Option<&str>) -> Option<Speed> {
        let listener = self.listeners.get(listener)?;
        let user = match (&self.users, user) {
            (Some(users), Some(name)) => users.pair(name),
            _ => Pair::default(),
        };
        let session = Pair::new(listener.session, Instant::now());
        let pairs = [session, user, listener.shared.clone()];
        let limits = |side: fn(&Pair) -> &Option<Bucket>| {
            Limits::new(pairs.iter().filter_map(|pair| side(pair).clone()))
        };
        let speed = Speed {
            up: limits(|pair| &pair.up),
            down: limits(|pair| &pair.down),
        };
        (!(speed.up.is_unlimited() && speed.down.is_unlimited())).then_some(speed)
    }
}

impl Users {
    fn new(config: &Config) -> Option<Self> {
        let usual = config.limits.user_rates;
        let limited = config
            .users
            .iter()
            .filter(|user| !user.rates.is_unlimited());
        let own: HashMap<_, _> = limited
            .map(|user| (user.name.as_str().into(), user.rates.or(usual)))
            .collect();
        (!(usual.is_unlimited() && own.is_empty())).then(|| Self {
            usual,
            own,
            seen: Mutex::default(),
        })
    }

    fn pair(&self, name: &str) -> Pair {
        let rates = self.own.get(name).copied().unwrap_or(self.usual);
        if rates.is_unlimited() {
            return Pair::default();
        }
        // Nothing that runs under this lock can panic half-way.
        let mut seen = self.seen.lock().unwrap_or_else(PoisonError::into_inner);
        match seen.get(name) {
            Some(pair) => pair.clone(),
            None => {
                let pair = Pair::new(rates, Instant::now());
                seen.insert(name.into(), pair.clone());
                pair
            }
        }
    }
}

impl Pair {
    fn new(rates: Rates, now: Instant) -> Self {
        let bucket = |rate: NonZeroU64| {
            // Two ticks of the clock that waiting connections are woken by.
            let burst = rate.get() / 2;
            let burst = NonZeroU64::new(burst.max(LEAST_BURST)).unwrap_or(NonZeroU64::MIN);
            Bucket::new(rate, burst, now)
        };
        Self {
            up: rates.up.map(bucket),
            down: rates.down.map(bucket),
        }
    }
}

/// Below this a page takes several ticks.
const LEAST_BURST: u64 = 16 * 1024;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::{Draft, User};

    fn config(change: impl FnOnce(&mut Config)) -> Config {
        let mut config = Draft::default().finish().expect("the default");
        change(&mut config);
        config
    }

    fn rates(up: u64, down: u64) -> Rates {
        Rates {
            up: NonZeroU64::new(up),
            down: NonZeroU64::new(down),
        }
    }

    #[test]
    fn nobody_is_limited_by_default() {
        assert!(Speeds::new(&config(|_| {})).is_none());
    }

    #[test]
    fn users_share_their_own_rate_and_nobody_elses() {
        let speeds = Speeds::new(&config(|config| {
            config.limits.user_rates = rates(0, 100_000);
            config.users.push(User {
                name: "alice".to_owned(),
                password: String::new(),
                source: None,
                rates: rates(0, 200_000),
            });
        }));
        let speeds = speeds.expect("a limit");
        let now = Instant::now();
        let take = |user| {
            let speed = speeds.of(0, user).expect("a limit");
            assert!(speed.up.is_unlimited());
            speed.down.take(1_000_000, now)
        };
        assert_eq!((take(Some("alice")), take(Some("alice"))), (100_000, 0));
        assert_eq!((take(Some("bob")), take(Some("carol"))), (50_000, 50_000));
        assert!(speeds.of(0, None).is_none(), "nobody in particular");
    }

    #[test]
    fn each_connection_has_its_own_and_all_share_the_listeners() {
        let speeds = Speeds::new(&config(|config| {
            config.limits.session_rates = rates(0, 100_000);
            config.listeners[0].rates = rates(0, 160_000);
            config.listeners[1].session_rates = rates(64_000, 40_000);
        }));
        let speeds = speeds.expect("a limit");
        let now = Instant::now();
        let down = |listener| {
            let speed = speeds.of(listener, None).expect("a limit");
            speed.down.take(1_000_000, now)
        };
        assert_eq!((down(0), down(0), down(0)), (50_000, 30_000, 0));
        assert_eq!((down(1), down(1)), (20_000, 20_000));
        let up = speeds.of(1, None).expect("a limit").up;
        assert_eq!(up.take(1_000_000, now), 32_000);
    }
}
