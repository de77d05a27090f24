//! Settings of the server.

use std::time::Duration;

use proxy_core::{HeadLimits, Stop, Timeouts};
use proxy_relay::{RelayOptions, Ticks};

use super::exchange::Waiting;
use crate::head::is_token;

/// Settings of a [`Server`](super::Server); the default is safe on the open
/// Internet.
///
/// ```
/// use std::time::Duration;
/// use proxy_core::Timeouts;
///
/// let mut timeouts = Timeouts::default();
/// timeouts.head = Some(Duration::from_secs(10));
/// let mut config = proxy_http::Config::default();
/// config.timeouts(timeouts).realm("the office");
/// ```
#[derive(Clone, Debug)]
pub struct Config {
    pub(super) body_bytes: Option<u64>,
    pub(super) fetch_https: bool,
    pub(super) forwarded: Forwarded,
    pub(super) limits: HeadLimits,
    pub(super) name: Option<Box<str>>,
    pub(super) realm: Box<str>,
    pub(super) requests: Option<u32>,
    pub(super) show_via: bool,
    pub(super) stop: Stop,
    pub(super) via: Option<Box<str>>,
    pub(super) pace: Pace,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            body_bytes: None,
            fetch_https: false,
            forwarded: Forwarded::default(),
            limits: HeadLimits::default(),
            name: Some("proxy".into()),
            realm: "proxy".into(),
            requests: None,
            show_via: false,
            stop: Stop::never(),
            via: None,
            pace: Pace::from(&Timeouts::default()),
        }
    }
}

impl Config {
    /// The longest request body in bytes, content only; no limit by default. A
    /// longer one is refused with 413 as soon as that is known.
    pub fn body_bytes(&mut self, most: impl Into<Option<u64>>) -> &mut Self {
        self.body_bytes = most.into();
        self
    }

    /// Whether requests for `https` URLs are fetched, over TLS that the gateway
    /// makes ([`Ask::secure`](proxy_core::Ask::secure)); if not, the default, they
    /// are refused with 501. They are never sent in clear.
    pub fn fetch_https(&mut self, fetch: bool) -> &mut Self {
        self.fetch_https = fetch;
        self
    }

    /// What origins are told of the client's address; nothing by default.
    pub fn forwarded(&mut self, forwarded: Forwarded) -> &mut Self {
        self.forwarded = forwarded;
        self
    }

    /// How large heads of requests and responses may be.
    pub fn limits(&mut self, limits: HeadLimits) -> &mut Self {
        self.limits = limits;
        self
    }

    /// The name of this proxy in the `Proxy-Status` of its own refusals (RFC 9209
    /// section 2), `proxy` by default; `None` sends none. A name that is no token
    /// (RFC 8941 section 3.3.4) is as good as none.
    pub fn name<'n>(&mut self, name: impl Into<Option<&'n str>>) -> &mut Self {
        self.name = name.into().map(Box::from);
        self
    }

    /// The realm that a 407 names (RFC 9110 section 11.5); `proxy` by default.
    /// Characters that would need quoting are left out.
    pub fn realm(&mut self, realm: &str) -> &mut Self {
        let plain = |c: &char| (' '..='~').contains(c) && !matches!(c, '"' | '\\');
        self.realm = realm.chars().filter(plain).collect();
        self
    }

    /// The most requests on one client connection, which closes behind the last
    /// of them; no limit by default. 0 is as good as 1.
    pub fn requests(&mut self, most: impl Into<Option<u32>>) -> &mut Self {
        self.requests = most.into();
        self
    }

    /// Whether origins and clients see this proxy in `Via` too (RFC 9110 section
    /// 7.6.3), and not only parents; `false` by default. It needs a
    /// [`via`](Self::via) name.
    pub fn show_via(&mut self, show: bool) -> &mut Self {
        self.show_via = show;
        self
    }

    /// The token that drains or ends all connections of the server.
    pub fn stop(&mut self, stop: Stop) -> &mut Self {
        self.stop = stop;
        self
    }

    /// The name of this very proxy in the `Via` of requests handed to a parent
    /// (RFC 9110 section 7.6.3), and of other messages if they are to
    /// [show](Self::show_via) it; none by default, and none if it is no token. A
    /// request that comes back with it goes round in circles and is answered
    /// with 508, so no other proxy may have it: make it random.
    pub fn via<'n>(&mut self, name: impl Into<Option<&'n str>>) -> &mut Self {
        let token = |name: &&str| !name.is_empty() && name.bytes().all(is_token);
        let name = name.into().filter(token);
        self.via = name.map(Box::from);
        self
    }

    /// How long each kind of waiting may last.
    pub fn timeouts(&mut self, timeouts: Timeouts) -> &mut Self {
        self.pace = Pace::from(&timeouts);
        self
    }
}

impl Config {
    /// This proxy's name for the next hop, if that is to see it.
    pub(super) fn via_towards(&self, parent: bool) -> Option<&str> {
        self.via.as_deref().filter(|_| parent || self.show_via)
    }
}

/// What a request on its way to the origin says about its client.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Forwarded {
    /// `Forwarded` (RFC 7239), with what was there before unless that ends inside
    /// quotes.
    Append,
    /// `X-Forwarded-For`, with what was there before.
    AppendFor,
    /// What the client wrote is passed on, nothing is added.
    #[default]
    Keep,
    /// Neither: what the client wrote is taken out, `X-Real-IP`,
    /// `X-Forwarded-Host`, `-Proto` and `-Port` as well.
    Remove,
}

/// The timeouts in the units of the hot path.
#[derive(Clone, Debug)]
pub(super) struct Pace {
    pub(super) body: Ticks,
    pub(super) connect: Ticks,
    pub(super) first_byte: Ticks,
    pub(super) head: Ticks,
    pub(super) keep_alive: Ticks,
    /// The parts of that time: with an origin connection and, after it was given
    /// back, without one. `None` if it is over before.
    pub(super) sharing: Option<(Ticks, Ticks)>,
    pub(super) progress: Ticks,
    pub(super) tunnel: RelayOptions,
}

fn sharing(keep_alive: Option<Duration>) -> Option<(Ticks, Ticks)> {
    let rest = match keep_alive {
        Some(whole) => Some(whole.checked_sub(KEPT).filter(|rest| !rest.is_zero())?),
        None => None,
    };
    Some((KEPT.into(), rest.into()))
}

/// How long an origin connection stays with a client that asks for nothing.
const KEPT: Duration = Duration::from_secs(1);

impl Pace {
    /// How long an exchange may wait for this.
    pub(super) fn of(&self, waiting: Waiting) -> Ticks {
        match waiting {
            Waiting::Client => self.body,
            Waiting::Origin => self.first_byte,
            Waiting::Answer | Waiting::Writing => self.progress,
        }
    }
}

impl From<&Timeouts> for Pace {
    fn from(timeouts: &Timeouts) -> Self {
        Self {
            body: timeouts.body.into(),
            connect: timeouts.connect.into(),
            first_byte: timeouts.first_byte.into(),
            head: timeouts.head.into(),
            keep_alive: timeouts.keep_alive.into(),
            sharing: sharing(timeouts.keep_alive),
            progress: timeouts.progress.into(),
            tunnel: RelayOptions::from(timeouts),
        }
    }
}
