//! The URL form of a listener: the value of `--listen`.

use std::collections::HashSet;
use std::num::NonZeroU64;
use std::path::Path;

use proxy_core::TargetBuf;

use super::entries::List;
use super::listener::{ListenerDraft, Protocol};
use super::problem::{Mismatch, Origin, Problem, Sourced, masked, shown};
use super::unix_listener::{self, Address};
use super::{condition, hint, rate, relay, value};
use crate::unix;

impl ListenerDraft {
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
        let has_target = matches!(protocol, Protocol::Tcp | Protocol::Udp);
        if let Some((near, far)) = hint::relay(authority).filter(|_| has_target) {
            let expected = "a slash between address and target";
            let instead = format!("{protocol}://{near}/{far}");
            return Err(fail(Mismatch::new(expected, instead), authority));
        }
        let (address, unix) = listening(authority, path)
            .map_err(|mismatch| fail(mismatch, authority))?
            .split();
        let mut draft = Self::new(&origin, protocol, address);
        draft.unix = unix.map(|path| Sourced::new(path, &origin));
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
        let mut targets = Vec::new();
        for text in path.split(',') {
            match target(text) {
                Ok(target) => targets.push(Sourced::new(target, &self.origin)),
                Err(mismatch) => problems.push(Problem::mismatch(
                    &self.origin,
                    "listener.target",
                    &mismatch,
                    &shown(text),
                )),
            }
        }
        match targets.len() {
            1 => self.target = targets.pop(),
            _ => self.relay.targets = Some(targets),
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
            "clients" | "proxy_protocol" => {
                let field = match key {
                    "clients" => &mut self.clients,
                    _ => &mut self.proxy_protocol,
                };
                for text in text.split(',') {
                    match value::network(text) {
                        Ok(network) => {
                            let networks = field.get_or_insert_default();
                            networks.push(Sourced::new(network, &origin));
                        }
                        Err(mismatch) => wrong(&mismatch, &shown(text)),
                    }
                }
            }
            "idle" => match value::timeout(&text) {
                Ok(time) => self.idle = Some(Sourced::new(time, &origin)),
                Err(mismatch) => wrong(&mismatch, &shown(&text)),
            },
            "names" => {
                let mut names = List::new("listener.names", condition::name);
                for text in text.split(',') {
                    if let Err(mismatch) = names.add(text, &origin) {
                        wrong(&mismatch, &shown(text));
                    }
                }
                self.names = Some(names);
            }
            "target_port" => match text.parse().ok().filter(|port| *port > 0) {
                Some(port) => {
                    self.target_port = Some(Sourced::new(u16::into(port), &origin));
                }
                None => wrong(
                    &Mismatch::new("a number from 1 to 65535", "443"),
                    &shown(&text),
                ),
            },
            "send_proxy" => match value::proxy_version(&text) {
                Ok(version) => self.send_proxy = Some(Sourced::new(version, &origin)),
                Err(mismatch) => wrong(&mismatch, &shown(&text)),
            },
            "cert" | "key" if text.is_empty() => {
                let instead = format!("{key}=proxy.pem");
                wrong(&Mismatch::new("the path of a PEM file", instead), "nothing");
            }
            "mode" => match unix_listener::mode(&text) {
                Ok(mode) => self.mode = Some(Sourced::new(mode, &origin)),
                Err(mismatch) => wrong(&mismatch, &shown(&text)),
            },
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
            key if rate::LISTENER_KEYS.contains(&key) => match rate::rate(&text) {
                Ok(rate) => self.set_rate(key, rate),
                Err(mismatch) => wrong(&mismatch, &shown(&text)),
            },
            key if relay::is_parameter(key) => {
                if let Err(mismatch) = self.relay.set(key, &text, &origin) {
                    wrong(&mismatch, &shown(&text));
                }
            }
            _ => {
                let known = [
                    "auth",
                    "balance",
                    "cert",
                    "clients",
                    "idle",
                    "key",
                    "mode",
                    "name",
                    "names",
                    "open",
                    "proxy_protocol",
                    "rate_down",
                    "rate_up",
                    "send_proxy",
                    "session_rate_down",
                    "session_rate_up",
                    "source",
                    "target_ca",
                    "target_port",
                    "target_tls",
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

    /// Sets one of the parameters that are rates.
    fn set_rate(&mut self, key: &str, rate: NonZeroU64) {
        let field = match key {
            "rate_up" => &mut self.rates.up,
            "rate_down" => &mut self.rates.down,
            "session_rate_up" => &mut self.session_rates.up,
            _ => &mut self.session_rates.down,
        };
        *field = Some(rate);
    }

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

/// The slashes of a Unix socket's path are escaped, to be none of the URL's.
fn listening(authority: &str, rest: &str) -> Result<Address, Mismatch> {
    let Some(path) = authority.strip_prefix(unix::PREFIX) else {
        return Address::parse(Path::new(""), authority);
    };
    match percent_decoded(path) {
        Some(path) if !path.is_empty() => {
            Address::parse(Path::new(""), &format!("{}{path}", unix::PREFIX))
        }
        _ => {
            let escaped = format!("/{rest}").replace('/', "%2F");
            let expected = "the path of a Unix socket with %2F for each slash";
            Err(Mismatch::new(expected, format!("unix:{escaped}")))
        }
    }
}

/// Only the path of a Unix socket can hold what must be escaped.
fn target(text: &str) -> Result<TargetBuf, Mismatch> {
    let decoded = percent_decoded(text).filter(|_| relay::is_unix(text));
    relay::target(Path::new(""), decoded.as_deref().unwrap_or(text))
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
                "--listen htp://127.0.0.1:1: expected \"auto\", \"http\", \"https\", \"redirect\", \
                 \"sni\", \"socks\", \"tcp\", \"tproxy\" or \"udp\", found \"htp\"; write \"http\" instead",
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
                "--listen https://127.0.0.1:1?crt=a: crt: expected \"auth\", \"balance\", \"cert\", \
                 \"clients\", \"idle\", \"key\", \"mode\", \"name\", \"names\", \"open\", \"proxy_protocol\", \
                 \"rate_down\", \"rate_up\", \"send_proxy\", \"session_rate_down\", \
                 \"session_rate_up\", \"source\", \"target_ca\", \"target_port\", \"target_tls\", \
                 \"trust_loopback\" or \"via\", found an unknown key; write cert instead",
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
