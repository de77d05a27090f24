//! What limits a relay.

use std::time::Duration;

use proxy_core::{Rates, Stop, Timeouts};

use crate::Ticks;

/// The timers of a [`relay`](crate::relay) or [`forward`](crate::forward), and
/// the token that can end it.
///
/// Each timer has one meaning; `None` switches it off. All run on coarse ticks
/// ([`TICK`](crate::TICK)), so they fire up to two ticks late, never early; `stalled`, which is
/// looked at once a second, up to two seconds.
///
/// ```
/// use std::time::Duration;
/// let mut options = proxy_relay::RelayOptions::default();
/// options.idle(Duration::from_secs(300)).first_byte(Duration::from_secs(30)).lifetime(None);
/// ```
#[derive(Clone, Debug)]
pub struct RelayOptions {
    pub(crate) idle: Ticks,
    pub(crate) half_closed: Ticks,
    pub(crate) lifetime: Ticks,
    pub(crate) first_byte: Ticks,
    pub(crate) stalled: Ticks,
    pub(crate) stop: Stop,
    pub(crate) up: Rates,
    pub(crate) down: Rates,
}

impl Default for RelayOptions {
    fn default() -> Self {
        Self::from(&Timeouts::default())
    }
}

impl From<&Timeouts> for RelayOptions {
    /// Takes over `tunnel`, `half_closed` and `stalled`.
    fn from(timeouts: &Timeouts) -> Self {
        Self {
            idle: timeouts.tunnel.into(),
            half_closed: timeouts.half_closed.into(),
            lifetime: Ticks::NEVER,
            first_byte: Ticks::NEVER,
            stalled: timeouts.stalled.into(),
            stop: Stop::never(),
            up: Rates::default(),
            down: Rates::default(),
        }
    }
}

impl RelayOptions {
    /// The longest time without a byte in either direction; an hour by default.
    pub fn idle(&mut self, after: impl Into<Option<Duration>>) -> &mut Self {
        self.idle = after.into().into();
        self
    }

    /// The longest time without a byte once one direction has ended; 60 s by
    /// default. Counts instead of `idle` from then on, if it is shorter.
    pub fn half_closed(&mut self, after: impl Into<Option<Duration>>) -> &mut Self {
        self.half_closed = after.into().into();
        self
    }

    /// The longest time from start to end; unlimited by default.
    pub fn lifetime(&mut self, after: impl Into<Option<Duration>>) -> &mut Self {
        self.lifetime = after.into().into();
        self
    }

    /// The longest time from the start to the first byte of the upstream;
    /// unlimited by default.
    pub fn first_byte(&mut self, after: impl Into<Option<Duration>>) -> &mut Self {
        self.first_byte = after.into().into();
        self
    }

    /// The longest time that one side may take nothing of the bytes that wait
    /// for it, whatever moves the other way; 10 minutes by default. A side takes
    /// bytes when its system makes room for more: on Linux with a third of the
    /// send buffer.
    pub fn stalled(&mut self, after: impl Into<Option<Duration>>) -> &mut Self {
        self.stalled = after.into().into();
        self
    }

    /// The token that ends the relay from outside; none by default.
    pub fn stop(&mut self, stop: Stop) -> &mut Self {
        self.stop = stop;
        self
    }

    /// How fast bytes go from the client to the upstream, and from the upstream
    /// to the client; not limited by default. A limited direction moves in steps,
    /// one a tick at least, and is not spliced. Without meaning for
    /// [`forward`](crate::forward), which knows neither.
    pub fn rates(&mut self, up: Rates, down: Rates) -> &mut Self {
        self.up = up;
        self.down = down;
        self
    }
}
