//! What exactly stood in the way of a request, for the access log.

use proxy_core::{ConnectError, Special};

use crate::policy::{Policy, Verdict};

/// More than [`End`](proxy_core::End) says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Cause {
    /// Too many failed logins came from the client's address.
    Banned,
    /// The target could not be reached.
    Connect(ConnectError),
    /// The egress guard keeps clients from such addresses.
    Guard(Special),
    /// There are as many connections as there may be.
    Limit(Scarce),
    /// A rule forbids it.
    Rule(u32),
    /// The listener is for other networks.
    Stranger,
}

impl Cause {
    /// The rule that a verdict comes from.
    pub(crate) fn rule(verdict: &Verdict) -> Option<Self> {
        verdict.rule.map(Self::Rule)
    }

    /// As it stands in the log.
    pub(crate) fn text(self, policy: &Policy) -> String {
        match self {
            Self::Banned => "banned".to_owned(),
            Self::Connect(error) => error.to_string(),
            Self::Guard(special) => format!("guard:{}", special.as_str()),
            Self::Limit(scarce) => format!("limit:{}", scarce.key()),
            Self::Rule(rule) => format!("rule:{}", policy.origin(rule)),
            Self::Stranger => "client-network".to_owned(),
        }
    }
}

/// A setting of `[limits]` that allows no more.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Scarce {
    ClientConnections,
    Connections,
    OriginConnections,
    UpstreamConnections,
}

impl Scarce {
    /// As it is written in the configuration.
    pub(crate) fn key(self) -> &'static str {
        match self {
            Self::ClientConnections => "client_connections",
            Self::Connections => "connections",
            Self::OriginConnections => "origin_connections",
            Self::UpstreamConnections => "upstream_connections",
        }
    }
}
