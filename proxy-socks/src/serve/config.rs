//! Settings of the server.

use std::time::Duration;

use proxy_core::{Shaping, Stop, Timeouts};
use proxy_relay::RelayOptions;

use crate::Methods;

/// How a [`Server`](crate::Server) serves: login methods, timeouts, stop token.
///
/// ```
/// use proxy_socks::{Config, Methods};
/// let mut config = Config::default();
/// config.methods(Methods::ANY);
/// ```
#[derive(Clone, Debug)]
pub struct Config {
    pub(super) methods: Methods,
    pub(super) stop: Stop,
    pub(super) timeouts: Timeouts,
    pub(super) bind_wait: Option<Duration>,
    datagram_idle: Option<Duration>,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            methods: Methods::NONE,
            stop: Stop::never(),
            timeouts: Timeouts::default(),
            bind_wait: Some(BIND_WAIT),
            datagram_idle: Some(DATAGRAM_IDLE),
        }
    }
}

impl Config {
    /// The login methods allowed; [`Methods::NONE`] by default, since only the
    /// gateway knows whether there are passwords at all.
    pub fn methods(&mut self, methods: Methods) -> &mut Self {
        self.methods = methods;
        self
    }

    /// Ends handshakes, and tunnels whose session brings no token of its own;
    /// none by default. While it only drains, connections go on once their first
    /// byte has come.
    pub fn stop(&mut self, stop: Stop) -> &mut Self {
        self.stop = stop;
        self
    }

    /// How long each kind of waiting may last: `head` for the whole handshake
    /// from the call of [`serve`](crate::Server::serve) to the request, `connect`
    /// for policy and reaching the target, `tunnel`, `half_closed` and
    /// `stalled` for the tunnel. The others mean nothing here.
    pub fn timeouts(&mut self, timeouts: Timeouts) -> &mut Self {
        self.timeouts = timeouts;
        self
    }

    /// How long a client waits for the connection that it asked for with BIND,
    /// from the reply that tells it where; 2 minutes by default, `None` for ever.
    pub fn bind_wait(&mut self, wait: impl Into<Option<Duration>>) -> &mut Self {
        self.bind_wait = wait.into();
        self
    }

    /// The longest time without a datagram in an association; 5 minutes by default
    /// (RFC 4787 section 4.3 asks for 2 at least), `None` for ever.
    pub fn datagram_idle(&mut self, after: impl Into<Option<Duration>>) -> &mut Self {
        self.datagram_idle = after.into();
        self
    }

    /// The limits of an association.
    pub(super) fn datagram_options(&self, shaping: Shaping) -> RelayOptions {
        let mut options = self.relay_options(shaping);
        options.idle(self.datagram_idle);
        options
    }

    /// The limits of a tunnel.
    pub(super) fn relay_options(&self, shaping: Shaping) -> RelayOptions {
        let mut options = RelayOptions::from(&self.timeouts);
        options.lifetime(shaping.lifetime);
        options.rates(shaping.up, shaping.down);
        options.stop(match shaping.stop.is_never() {
            true => self.stop.clone(),
            false => shaping.stop,
        });
        options
    }
}

/// Two parties that speak to each other by other means need no longer.
const BIND_WAIT: Duration = Duration::from_secs(120);
const DATAGRAM_IDLE: Duration = Duration::from_secs(300);
