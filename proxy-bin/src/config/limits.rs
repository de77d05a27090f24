//! How long, how many, how much: `[timeouts]` and `[limits]`.

use std::time::Duration;

use proxy_core::{HeadLimits, Timeouts};

use super::problem::Mismatch;
use super::rate::Rates;
use super::reader::Table;
use super::value;

/// The `[limits]` table. `None` is no limit.
#[derive(Clone, Debug)]
pub(crate) struct Limits {
    /// Of heads of requests and answers.
    pub(crate) head: HeadLimits,
    /// The longest body of a request.
    pub(crate) body_bytes: Option<u64>,
    /// The most requests on one client connection.
    pub(crate) requests: Option<u32>,
    /// The most client connections at a time, all listeners together.
    pub(crate) connections: Option<usize>,
    /// The same for each client address.
    pub(crate) client_connections: Option<usize>,
    /// The most connections towards outside at a time.
    pub(crate) upstream_connections: Option<usize>,
    /// The same for each origin.
    pub(crate) origin_connections: Option<usize>,
    /// The most unused connections that a worker keeps; `None` is a share of
    /// the descriptors.
    pub(crate) idle_connections: Option<usize>,
    /// The same for each origin.
    pub(crate) idle_per_origin: usize,
    /// How long one is kept.
    pub(crate) idle_time: Option<Duration>,
    /// The most bytes that wait in proxyd for peers that do not take them.
    pub(crate) held_bytes: Option<u64>,
    /// Of each connection, unless its listener has others.
    pub(crate) session_rates: Rates,
    /// Of each user who has none of their own.
    pub(crate) user_rates: Rates,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            head: HeadLimits::default(),
            body_bytes: None,
            requests: None,
            connections: None,
            client_connections: None,
            upstream_connections: None,
            origin_connections: None,
            idle_connections: None,
            idle_per_origin: 64,
            // Most servers keep theirs for 60 s and more.
            idle_time: Some(Duration::from_secs(30)),
            held_bytes: None,
            session_rates: Rates::default(),
            user_rates: Rates::default(),
        }
    }
}

impl Limits {
    pub(super) fn read(&mut self, table: &Table<'_>) {
        let count = |key, least| Some(table.integer(key, least..=usize::MAX)?.value);
        if let Some(bytes) = table.integer("head_bytes", 256..=1024 * 1024) {
            self.head.head_bytes(bytes.value);
        }
        if let Some(count) = table.integer("header_count", 1..=1024) {
            self.head.header_count(count.value);
        }
        let body = count("body_bytes", 0);
        self.body_bytes = body.map(|bytes| u64::try_from(bytes).unwrap_or(u64::MAX));
        let requests = table.integer("requests", 1..=MOST_REQUESTS);
        self.requests = requests.and_then(|most| u32::try_from(most.value).ok());
        self.connections = count("connections", 1);
        self.client_connections = count("client_connections", 1);
        self.upstream_connections = count("upstream_connections", 1);
        self.origin_connections = count("origin_connections", 1);
        self.idle_connections = count("idle_connections", 0);
        if let Some(most) = count("idle_per_origin", 1) {
            self.idle_per_origin = most;
        }
        if let Some(time) = table.text("idle_time", value::timeout) {
            self.idle_time = time.value;
        }
        let held = count("held_bytes", 1 << 20);
        self.held_bytes = held.map(|bytes| u64::try_from(bytes).unwrap_or(u64::MAX));
        self.session_rates = Rates::read(table, "session_rate_up", "session_rate_down");
        self.user_rates = Rates::read(table, "user_rate_up", "user_rate_down");
    }
}

/// Reads `[timeouts]`.
pub(super) fn read_timeouts(table: &Table<'_>, timeouts: &mut Timeouts) {
    let read = |key: &str, field: &mut Option<Duration>| {
        if let Some(time) = table.text(key, value::timeout) {
            *field = time.value;
        }
    };
    read("head", &mut timeouts.head);
    read("keep_alive", &mut timeouts.keep_alive);
    read("body", &mut timeouts.body);
    read("first_byte", &mut timeouts.first_byte);
    read("progress", &mut timeouts.progress);
    read("connect", &mut timeouts.connect);
    read("tunnel", &mut timeouts.tunnel);
    read("half_closed", &mut timeouts.half_closed);
    read("stalled", &mut timeouts.stalled);
    if let Some(time) = table.text("tcp_keepalive", keepalive) {
        timeouts.tcp_keepalive = time.value;
    }
}

/// Linux has no room for much more.
fn keepalive(text: &str) -> Result<Option<Duration>, Mismatch> {
    match value::timeout(text)? {
        Some(time) if time > LONGEST_KEEPALIVE => Err(Mismatch::new(
            "a time of at most 9h, or \"never\"",
            "\"9h\"",
        )),
        time => Ok(time),
    }
}

const LONGEST_KEEPALIVE: Duration = Duration::from_secs(9 * 3600);

/// More than any connection lives to see.
const MOST_REQUESTS: usize = 4_000_000_000;

pub(super) const TIMEOUTS: [&str; 10] = [
    "head",
    "keep_alive",
    "body",
    "first_byte",
    "progress",
    "connect",
    "tunnel",
    "half_closed",
    "stalled",
    "tcp_keepalive",
];
pub(super) const LIMITS: [&str; 16] = [
    "head_bytes",
    "header_count",
    "body_bytes",
    "requests",
    "connections",
    "client_connections",
    "upstream_connections",
    "origin_connections",
    "idle_connections",
    "idle_per_origin",
    "idle_time",
    "held_bytes",
    "session_rate_up",
    "session_rate_down",
    "user_rate_up",
    "user_rate_down",
];
