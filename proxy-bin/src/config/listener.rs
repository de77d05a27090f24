//! One listening address: what it speaks and what it needs.

use std::fmt;
use std::net::SocketAddr;
use std::path::PathBuf;

use proxy_core::{Network, TargetBuf};

use super::problem::{Mismatch, Origin, Sourced};
use super::{Via, value};

/// A listener without contradictions.
#[derive(Clone, Debug)]
pub(crate) struct Listener {
    /// As messages name it: where it was written.
    pub(crate) origin: Origin,
    /// The service in the access log; `None` is made of protocol and port.
    pub(crate) name: Option<String>,
    pub(crate) protocol: Protocol,
    pub(crate) address: SocketAddr,
    /// Where a port relay leads to; `Some` exactly for [`Protocol::Tcp`].
    pub(crate) target: Option<TargetBuf>,
    /// Certificate and key; always there for [`Protocol::Https`].
    pub(crate) tls: Option<TlsFiles>,
    /// Whether clients must name a user.
    pub(crate) auth: bool,
    /// The only networks that clients may come from; `None` means all.
    pub(crate) clients: Option<Vec<Network>>,
    /// Clients on loopback may reach what the egress guard keeps from others.
    pub(crate) trust_loopback: bool,
    /// An entry of [`Config::sources`](super::Config) to connect from.
    pub(crate) source: Option<u16>,
    /// The way of what no rule decides about; `None` leaves it to the whole.
    pub(crate) via: Option<Via>,
}

impl Listener {
    /// The service in the access log, once the port is known.
    pub(crate) fn service(&self, port: u16) -> String {
        match &self.name {
            Some(name) => name.clone(),
            None => format!("{}-{port}", self.protocol),
        }
    }

    /// Whether it would carry anybody's traffic anywhere.
    pub(crate) fn is_open(&self) -> bool {
        !self.auth
            && self
                .clients
                .iter()
                .flatten()
                .all(|network| network.prefix() == 0)
            && self.protocol != Protocol::Tcp
            && !self.address.ip().is_loopback()
    }
}

impl fmt::Display for Listener {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}://{}", self.protocol, self.address)
    }
}

/// The two files of a TLS listener.
#[derive(Clone, Debug)]
pub(crate) struct TlsFiles {
    pub(crate) cert: Sourced<PathBuf>,
    pub(crate) key: Sourced<PathBuf>,
}

/// What a listener speaks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Protocol {
    /// Whatever the first byte says: HTTP, SOCKS4, SOCKS5, TLS.
    Auto,
    /// HTTP requests and CONNECT.
    Http,
    /// The same inside TLS.
    Https,
    /// SOCKS4, 4a and 5.
    Socks,
    /// A relay to one target.
    Tcp,
}

impl Protocol {
    pub(crate) const WORDS: [(&'static str, Self); 5] = [
        ("auto", Self::Auto),
        ("http", Self::Http),
        ("https", Self::Https),
        ("socks", Self::Socks),
        ("tcp", Self::Tcp),
    ];

    /// # Errors
    /// With the nearest word.
    pub(crate) fn parse(text: &str) -> Result<Self, Mismatch> {
        value::choice(&Self::WORDS, text).map_err(|mismatch| match text {
            "socks4" | "socks4a" | "socks5" | "socks5h" => Mismatch {
                instead: "\"socks\" (it serves SOCKS4, 4a and 5)".to_owned(),
                ..mismatch
            },
            "tls" => Mismatch {
                instead: "\"https\"".to_owned(),
                ..mismatch
            },
            _ => mismatch,
        })
    }
}

impl fmt::Display for Protocol {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Auto => "auto",
            Self::Http => "http",
            Self::Https => "https",
            Self::Socks => "socks",
            Self::Tcp => "tcp",
        })
    }
}

/// A listener as written, each part with its place; parts may be missing or
/// contradict each other.
#[derive(Clone, Debug)]
pub(crate) struct ListenerDraft {
    pub(crate) origin: Origin,
    pub(crate) name: Option<Sourced<String>>,
    pub(crate) protocol: Sourced<Protocol>,
    pub(crate) address: Sourced<SocketAddr>,
    pub(crate) target: Option<Sourced<TargetBuf>>,
    pub(crate) cert: Option<Sourced<PathBuf>>,
    pub(crate) key: Option<Sourced<PathBuf>>,
    pub(crate) auth: Option<Sourced<bool>>,
    pub(crate) clients: Option<Vec<Sourced<Network>>>,
    pub(crate) open: Option<Sourced<bool>>,
    pub(crate) trust_loopback: Option<Sourced<bool>>,
    pub(crate) source: Option<Sourced<String>>,
    pub(crate) via: Option<Sourced<String>>,
}

impl ListenerDraft {
    pub(crate) fn new(origin: &Origin, protocol: Protocol, address: SocketAddr) -> Self {
        Self {
            origin: origin.clone(),
            name: None,
            protocol: Sourced::new(protocol, origin),
            address: Sourced::new(address, origin),
            target: None,
            cert: None,
            key: None,
            auth: None,
            clients: None,
            open: None,
            trust_loopback: None,
            source: None,
            via: None,
        }
    }

    /// The name that rules know it by: that of [`Listener::service`], with the
    /// port as written.
    pub(super) fn service(&self) -> String {
        match &self.name {
            Some(name) => name.value.clone(),
            None => format!("{}-{}", self.protocol.value, self.address.value.port()),
        }
    }
}
