//! One listening address: what it speaks, what it needs, and its URL form.

use std::collections::HashSet;
use std::fmt;
use std::net::SocketAddr;
use std::path::PathBuf;

use proxy_core::{Network, TargetBuf};

use super::problem::{Mismatch, Origin, Problem, Sourced, masked, shown};
use super::{Via, hint, value};

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

    /// Reads `SCHEME://HOST:PORT[/TARGET][?cert=..&key=..&auth=..&name=..&via=..]`,
    /// the value of `--listen`.
    ///
    /// # Errors
    /// Every mistake in it.
    pub(crate) fn parse(url: &str) -> Result<Self, Vec<Problem>> {
        let origin = Origin::argument(format!("--listen {}", without_login(url)));
        let fail = |mismatch: Mismatch, found: &str| {
            vec![Problem::mismatch(&origin, "", &mismatch, &shown(found))]
        };
        let Some((scheme, rest)) = url.split_once("://") else {
            let expected = "a URL such as \"http://127.0.0.1:3128\"";
            let instead = url_hint(url);
            return Err(fail(Mismatch::new(expected, instead), &without_login(url)));
        };
        if login_end(url).is_some() {
            let expected = "an address without user and password";
            let instead = "--user NAME:PASSWORD";
            return Err(vec![Problem::mismatch(
                &origin,
                "",
                &Mismatch::new(expected, instead),
                "both",
            )]);
        }
        let (rest, query) = rest.split_once('?').unwrap_or((rest, ""));
        let (authority, path) = rest.split_once('/').unwrap_or((rest, ""));
        let protocol = Protocol::parse(scheme).map_err(|mismatch| fail(mismatch, scheme))?;
        if let Some((near, far)) = hint::relay(authority).filter(|_| protocol == Protocol::Tcp) {
            let expected = "a slash between address and target";
            let instead = format!("tcp://{near}/{far}");
            return Err(fail(Mismatch::new(expected, instead), authority));
        }
        let address = value::address(authority).map_err(|mismatch| fail(mismatch, authority))?;
        let mut draft = Self::new(&origin, protocol, address);
        let mut problems = Vec::new();
        draft.read_path(path, &mut problems);
        let mut seen = HashSet::new();
        for pair in query.split('&').filter(|pair| !pair.is_empty()) {
            let key = pair.split_once('=').map_or(pair, |(key, _)| key);
            if seen.insert(key) {
                draft.read_pair(pair, &mut problems);
            } else {
                let key = format!("listener.{}", key.escape_debug());
                let text = "expected it once, found it again; write only one of them instead";
                problems.push(Problem::new(&origin, key, text));
            }
        }
        match problems.is_empty() {
            true => Ok(draft),
            false => Err(problems),
        }
    }

    fn read_path(&mut self, path: &str, problems: &mut Vec<Problem>) {
        if path.is_empty() {
            return;
        }
        match value::target(path) {
            Ok(target) => self.target = Some(Sourced::new(target, &self.origin)),
            Err(mismatch) => problems.push(Problem::mismatch(
                &self.origin,
                "listener.target",
                &mismatch,
                &shown(path),
            )),
        }
    }

    fn read_pair(&mut self, pair: &str, problems: &mut Vec<Problem>) {
        let origin = self.origin.clone();
        let (key, text) = pair.split_once('=').unwrap_or((pair, ""));
        let mut wrong = |mismatch: &Mismatch, found: &str| {
            let key = format!("listener.{}", key.escape_debug());
            problems.push(Problem::mismatch(&origin, key, mismatch, found));
        };
        let Some(text) = percent_decoded(text) else {
            let mismatch = Mismatch::new("UTF-8 with %XX escapes", "%25 for a percent sign");
            return wrong(&mismatch, &shown(text));
        };
        match key {
            "auth" | "open" | "trust_loopback" => {
                match value::choice(&[("off", false), ("on", true)], &text) {
                    Ok(on) => *self.switch(key) = Some(Sourced::new(on, &origin)),
                    Err(mismatch) => wrong(&mismatch, &shown(&text)),
                }
            }
            "clients" => {
                for text in text.split(',') {
                    match value::network(text) {
                        Ok(network) => {
                            let clients = self.clients.get_or_insert_default();
                            clients.push(Sourced::new(network, &origin));
                        }
                        Err(mismatch) => wrong(&mismatch, &shown(text)),
                    }
                }
            }
            "cert" | "key" if text.is_empty() => {
                let instead = format!("{key}=proxy.pem");
                wrong(&Mismatch::new("the path of a PEM file", instead), "nothing");
            }
            "cert" => self.cert = Some(Sourced::new(text.into(), &origin)),
            "key" => self.key = Some(Sourced::new(text.into(), &origin)),
            "name" | "source" | "via" => match value::name(&text) {
                Ok(name) => {
                    let field = match key {
                        "name" => &mut self.name,
                        "source" => &mut self.source,
                        _ => &mut self.via,
                    };
                    *field = Some(Sourced::new(name, &origin));
                }
                Err(mismatch) => wrong(&mismatch, &shown(&text)),
            },
            _ => {
                let known = [
                    "auth",
                    "cert",
                    "clients",
                    "key",
                    "name",
                    "open",
                    "source",
                    "trust_loopback",
                    "via",
                ];
                let hint = super::problem::nearest(key, &known);
                let instead = hint.unwrap_or("one of these");
                wrong(
                    &Mismatch::new(value::one_of(&known), instead),
                    "an unknown key",
                );
            }
        }
    }
}

impl ListenerDraft {
    /// The setting of one of the parameters that are on or off.
    fn switch(&mut self, key: &str) -> &mut Option<Sourced<bool>> {
        match key {
            "open" => &mut self.open,
            "trust_loopback" => &mut self.trust_loopback,
            _ => &mut self.auth,
        }
    }
}

/// The URL with user and password, if somebody wrote them, made unreadable.
fn without_login(url: &str) -> String {
    let url = match login_end(url) {
        Some(end) => {
            let start = url.find("://").map_or(0, |at| at + 3);
            format!("{}***{}", &url[..start], &url[end..])
        }
        None => url.to_owned(),
    };
    let Some((address, query)) = url.split_once('?') else {
        return masked(&url).into_owned();
    };
    // Nor are those in parameters, where none belongs.
    let pairs = query.split('&').map(|pair| match pair.split_once('=') {
        Some((key, value)) => format!("{key}={}", masked(value)),
        None => masked(pair).into_owned(),
    });
    let pairs: Vec<String> = pairs.collect();
    format!("{}?{}", masked(address), pairs.join("&"))
}

/// Where a login in `url` ends. An `@` behind a `=` is part of a file's name.
fn login_end(url: &str) -> Option<usize> {
    url.rfind('@').filter(|at| !url[..*at].contains('='))
}

fn url_hint(text: &str) -> String {
    match value::address(text) {
        Ok(address) => format!("\"http://{address}\""),
        Err(_) => format!("\"http://{}\"", hint::address(text)),
    }
}

pub(super) fn percent_decoded(text: &str) -> Option<String> {
    let mut bytes = text.bytes();
    let mut decoded = Vec::with_capacity(text.len());
    while let Some(byte) = bytes.next() {
        decoded.push(match byte {
            b'%' => hex(bytes.next()?)? * 16 + hex(bytes.next()?)?,
            _ => byte,
        });
    }
    String::from_utf8(decoded).ok()
}

fn hex(digit: u8) -> Option<u8> {
    char::from(digit)
        .to_digit(16)
        .and_then(|value| u8::try_from(value).ok())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn problem(url: &str) -> String {
        let problems = ListenerDraft::parse(url).expect_err(url);
        let lines: Vec<String> = problems.iter().map(Problem::to_string).collect();
        lines.join("\n")
    }

    #[test]
    fn the_forms_of_a_listener() {
        let draft = ListenerDraft::parse("https://0.0.0.0:8443?cert=a%20b.pem&key=k.pem&auth=off")
            .expect("valid");
        assert_eq!(draft.protocol.value, Protocol::Https);
        assert_eq!(draft.cert.map(|c| c.value), Some("a b.pem".into()));
        assert_eq!(draft.key.map(|c| c.value), Some("k.pem".into()));
        assert_eq!(draft.auth.map(|c| c.value), Some(false));
        let draft = ListenerDraft::parse("tcp://127.0.0.1:5432/[2001:db8::1]:5432").expect("valid");
        let target = draft.target.map(|t| t.value.to_string());
        assert_eq!(target.as_deref(), Some("[2001:db8::1]:5432"));
        assert!(ListenerDraft::parse("socks://[::]:1080/").is_ok());
    }

    #[test]
    fn what_is_no_listener() {
        for (url, text) in [
            (
                "127.0.0.1:3128",
                "--listen 127.0.0.1:3128: expected a URL such as \"http://127.0.0.1:3128\", found \
                 \"127.0.0.1:3128\"; write \"http://127.0.0.1:3128\" instead",
            ),
            (
                "htp://127.0.0.1:1",
                "--listen htp://127.0.0.1:1: expected \"auto\", \"http\", \"https\", \"socks\" or \
                 \"tcp\", found \"htp\"; write \"http\" instead",
            ),
            (
                "http://localhost:1",
                "--listen http://localhost:1: expected an IP address and a port, found \
                 \"localhost:1\"; write \"127.0.0.1:1\" instead",
            ),
            (
                "tcp://127.0.0.1:1/db.example",
                "--listen tcp://127.0.0.1:1/db.example: target: expected a host and a port, found \
                 \"db.example\"; write \"db.example:5432\" instead",
            ),
            (
                "https://127.0.0.1:1?crt=a",
                "--listen https://127.0.0.1:1?crt=a: crt: expected \"auth\", \"cert\", \"clients\", \
                 \"key\", \"name\", \"open\", \"source\", \"trust_loopback\" or \"via\", found an \
                 unknown key; write cert instead",
            ),
            (
                "http://127.0.0.1:1?auth=maybe&name=a%20b",
                "--listen http://127.0.0.1:1?auth=maybe&name=a%20b: auth: expected \"off\" or \
                 \"on\", found \"maybe\"; write one of these instead\n\
                 --listen http://127.0.0.1:1?auth=maybe&name=a%20b: name: expected a name of 1 to \
                 64 letters, digits, '-', '_' and '.', found \"a b\"; write \"a-b\" instead",
            ),
        ] {
            assert_eq!(problem(url), text);
        }
    }

    #[test]
    fn p29_a_password_in_a_url_is_not_repeated() {
        for url in [
            "http://alice:hunter2@127.0.0.1:1",
            "htp://alice:hunter2@127.0.0.1:1",
            "alice:hunter2@127.0.0.1:1",
            "http://alice:a/hunter2@127.0.0.1:1",
            "http://alice:a?hunter2@127.0.0.1:1",
        ] {
            let text = problem(url);
            assert!(!text.contains("hunter2"), "{text}");
        }
    }
}
