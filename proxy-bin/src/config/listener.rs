//! One listening address: what it speaks and what it needs.

use std::fmt;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use proxy_core::{NamePattern, Network, ProxyVersion, TargetBuf};

use super::entries::List;
use super::problem::{Mismatch, Origin, Sourced};
use super::relay::{Relay, RelayDraft};
use super::unix_listener::{self, UnixPlace};
use super::{Rates, Via, value};

/// A listener without contradictions.
#[derive(Clone, Debug)]
pub(crate) struct Listener {
    /// As messages name it: where it was written.
    pub(crate) origin: Origin,
    /// The service in the access log; `None` is made of protocol and port.
    pub(crate) name: Option<String>,
    pub(crate) protocol: Protocol,
    /// Of a Unix socket, a stand-in on loopback with port 0.
    pub(crate) address: SocketAddr,
    pub(crate) unix: Option<UnixPlace>,
    /// Where a port relay leads to; `Some` exactly for [`Protocol::Tcp`] and
    /// [`Protocol::Udp`].
    pub(crate) target: Option<TargetBuf>,
    /// What else a port relay needs.
    pub(crate) relay: Relay,
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
    /// The names that [`Protocol::Sni`] leads to; `None` means all.
    pub(crate) names: Option<Vec<NamePattern>>,
    /// The port that [`Protocol::Sni`] leads to.
    pub(crate) target_port: u16,
    /// Where the front ends are that begin each connection with a PROXY header;
    /// `None` takes none.
    pub(crate) proxy_protocol: Option<Vec<Network>>,
    /// The header that targets are sent.
    pub(crate) send_proxy: Option<ProxyVersion>,
    /// How long a flow of [`Protocol::Udp`] may rest, where it is not as
    /// [`Udp`](super::Udp) says.
    pub(crate) idle: Option<Option<Duration>>,
    /// What all of its clients share.
    pub(crate) rates: Rates,
    /// Those of each connection, where it does not have what `[limits]` says.
    pub(crate) session_rates: Rates,
}

impl Listener {
    /// The service in the access log, once the port is known.
    pub(crate) fn service(&self, port: u16) -> String {
        match &self.name {
            Some(name) => name.clone(),
            None => match &self.unix {
                Some(unix) => unix_listener::service(self.protocol, &unix.path),
                None => format!("{}-{port}", self.protocol),
            },
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
            && self.protocol.leads_anywhere(self.names.is_some())
            && !self.address.ip().is_loopback()
    }
}

impl fmt::Display for Listener {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.unix {
            Some(unix) => write!(f, "{}://unix:{}", self.protocol, unix.path.display()),
            None => write!(f, "{}://{}", self.protocol, self.address),
        }
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
    /// A relay to where connections were bound that the firewall redirected.
    Redirect,
    /// A relay to the host that a TLS client names.
    Sni,
    /// SOCKS4, 4a and 5.
    Socks,
    /// A relay to one target.
    Tcp,
    /// A relay to where connections are bound that the firewall hands over.
    Tproxy,
    /// A relay of datagrams to one target.
    Udp,
}

impl Protocol {
    pub(crate) const WORDS: [(&'static str, Self); 9] = [
        ("auto", Self::Auto),
        ("http", Self::Http),
        ("https", Self::Https),
        ("redirect", Self::Redirect),
        ("sni", Self::Sni),
        ("socks", Self::Socks),
        ("tcp", Self::Tcp),
        ("tproxy", Self::Tproxy),
        ("udp", Self::Udp),
    ];

    /// Whether it has a way to ask clients who they are.
    pub(crate) fn asks_login(self) -> bool {
        match self {
            Self::Auto | Self::Http | Self::Https | Self::Socks => true,
            Self::Redirect | Self::Sni | Self::Tcp | Self::Tproxy | Self::Udp => false,
        }
    }

    /// Whether those who connect to it choose where to go; `named` is whether it
    /// has a list of names that they may choose from. Where the firewall chooses
    /// who comes, they do not: who connects of himself leads back to the proxy.
    pub(crate) fn leads_anywhere(self, named: bool) -> bool {
        match self {
            Self::Auto | Self::Http | Self::Https | Self::Socks => true,
            Self::Sni => !named,
            Self::Redirect | Self::Tcp | Self::Tproxy | Self::Udp => false,
        }
    }

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
            Self::Redirect => "redirect",
            Self::Sni => "sni",
            Self::Socks => "socks",
            Self::Tcp => "tcp",
            Self::Tproxy => "tproxy",
            Self::Udp => "udp",
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
    pub(crate) unix: Option<Sourced<PathBuf>>,
    pub(crate) mode: Option<Sourced<u32>>,
    pub(crate) target: Option<Sourced<TargetBuf>>,
    pub(crate) relay: RelayDraft,
    pub(crate) cert: Option<Sourced<PathBuf>>,
    pub(crate) key: Option<Sourced<PathBuf>>,
    pub(crate) auth: Option<Sourced<bool>>,
    pub(crate) clients: Option<Vec<Sourced<Network>>>,
    pub(crate) open: Option<Sourced<bool>>,
    pub(crate) trust_loopback: Option<Sourced<bool>>,
    pub(crate) source: Option<Sourced<String>>,
    pub(crate) via: Option<Sourced<String>>,
    pub(super) names: Option<List<NamePattern>>,
    pub(crate) target_port: Option<Sourced<usize>>,
    pub(crate) proxy_protocol: Option<Vec<Sourced<Network>>>,
    pub(crate) send_proxy: Option<Sourced<ProxyVersion>>,
    pub(crate) idle: Option<Sourced<Option<Duration>>>,
    pub(crate) rates: Rates,
    pub(crate) session_rates: Rates,
}

impl ListenerDraft {
    pub(crate) fn new(origin: &Origin, protocol: Protocol, address: SocketAddr) -> Self {
        Self {
            origin: origin.clone(),
            name: None,
            protocol: Sourced::new(protocol, origin),
            address: Sourced::new(address, origin),
            unix: None,
            mode: None,
            target: None,
            relay: RelayDraft::default(),
            cert: None,
            key: None,
            auth: None,
            clients: None,
            open: None,
            trust_loopback: None,
            source: None,
            via: None,
            names: None,
            target_port: None,
            proxy_protocol: None,
            send_proxy: None,
            idle: None,
            rates: Rates::default(),
            session_rates: Rates::default(),
        }
    }

    /// The name that rules know it by: that of [`Listener::service`], with the
    /// port as written.
    pub(super) fn service(&self) -> String {
        match &self.name {
            Some(name) => name.value.clone(),
            None => match &self.unix {
                Some(unix) => unix_listener::service(self.protocol.value, &unix.value),
                None => format!("{}-{}", self.protocol.value, self.address.value.port()),
            },
        }
    }
}
