//! Settings of the server.

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
}

impl Default for Config {
    fn default() -> Self {
        Self {
            methods: Methods::NONE,
            stop: Stop::never(),
            timeouts: Timeouts::default(),
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

    /// The limits of a tunnel.
    pub(super) fn relay_options(&self, shaping: Shaping) -> RelayOptions {
        let mut options = RelayOptions::from(&self.timeouts);
        options.lifetime(shaping.lifetime);
        options.stop(match shaping.stop.is_never() {
            true => self.stop.clone(),
            false => shaping.stop,
        });
        options
    }
}
