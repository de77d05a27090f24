//! Where a `tcp` listener leads to: its targets, how they take turns, TLS with
//! them.

use std::collections::HashSet;
use std::path::{Path, PathBuf};

use proxy_core::{Host, TargetBuf};
use proxy_relay::Balance;
use proxy_tls::rustls::pki_types::ServerName;

use super::check::check_file;
use super::listener::ListenerDraft;
use super::problem::{Mismatch, Origin, Problem, Sourced};
use super::reader::Table;
use super::{Protocol, file, udp_listener, unix_listener, value};
use crate::unix;

/// What a port relay needs beyond its first target.
#[derive(Clone, Debug, Default)]
pub(crate) struct Relay {
    /// The targets behind the first one.
    pub(crate) others: Vec<TargetBuf>,
    pub(crate) balance: Balance,
    /// `None` reaches targets in clear.
    pub(crate) tls: Option<TargetTls>,
}

/// How a port relay speaks TLS with its targets.
#[derive(Clone, Debug)]
pub(crate) struct TargetTls {
    /// Whose certificate they must show; `None` is each target's own name.
    pub(crate) name: Option<ServerName<'static>>,
    /// Issuers of their certificates in place of the system's.
    pub(crate) ca: Option<Sourced<PathBuf>>,
}

/// The same as written.
#[derive(Clone, Debug, Default)]
pub(crate) struct RelayDraft {
    pub(super) targets: Option<Vec<Sourced<TargetBuf>>>,
    pub(super) balance: Option<Sourced<Balance>>,
    pub(super) tls: Option<Sourced<Secrecy>>,
    pub(super) ca: Option<Sourced<PathBuf>>,
}

/// The value of `target_tls`.
#[derive(Clone, Debug)]
pub(super) enum Secrecy {
    Named(ServerName<'static>),
    Off,
    On,
}

impl Secrecy {
    fn of(on: bool) -> Self {
        match on {
            true => Self::On,
            false => Self::Off,
        }
    }
}

impl RelayDraft {
    pub(super) fn read(table: &Table<'_>) -> Self {
        let tls = match table.is_text("target_tls") {
            true => table.text("target_tls", |text| named(text, "true")),
            false => table
                .boolean("target_tls")
                .map(|on| Sourced::new(Secrecy::of(on.value), &on.origin)),
        };
        let folder = table.origin().folder();
        Self {
            targets: table.texts("targets", |text| target(folder, text)),
            balance: table.text("balance", balance),
            tls,
            ca: file::path(table, "target_ca"),
        }
    }

    /// Reads one of the parameters of a URL that [`is_parameter`] knows.
    ///
    /// # Errors
    /// If its value is none.
    pub(super) fn set(&mut self, key: &str, text: &str, origin: &Origin) -> Result<(), Mismatch> {
        match key {
            "balance" => self.balance = Some(Sourced::new(balance(text)?, origin)),
            "target_ca" if text.is_empty() => {
                return Err(Mismatch::new("the path of a PEM file", "target_ca=ca.pem"));
            }
            "target_ca" => self.ca = Some(Sourced::new(text.into(), origin)),
            _ => {
                let tls = match text {
                    "on" => Secrecy::On,
                    "off" => Secrecy::Off,
                    text => named(text, "on")?,
                };
                self.tls = Some(Sourced::new(tls, origin));
            }
        }
        Ok(())
    }

    /// Each key that was written.
    pub(super) fn written(&self) -> impl Iterator<Item = (&'static str, &Origin)> {
        let targets = self.targets.as_ref().and_then(|targets| targets.first());
        let all = [
            ("targets", targets.map(|target| &target.origin)),
            ("balance", self.balance.as_ref().map(|value| &value.origin)),
            ("target_tls", self.tls.as_ref().map(|value| &value.origin)),
            ("target_ca", self.ca.as_ref().map(|value| &value.origin)),
        ];
        all.into_iter()
            .filter_map(|(key, origin)| Some((key, origin?)))
    }
}

/// Reads a host and a port, or `unix:` and a path, which starts from `folder` if
/// it is relative.
pub(super) fn target(folder: &Path, text: &str) -> Result<TargetBuf, Mismatch> {
    let Some(path) = text.strip_prefix(unix::PREFIX).filter(|_| is_unix(text)) else {
        return value::target(text);
    };
    let whole = folder.join(path);
    let fits = |path: &&str| path.len() <= unix::LONGEST && !path.contains('\0');
    match whole.to_str().filter(fits) {
        Some(whole) if !path.is_empty() => Ok(unix::target(whole)),
        _ => {
            let expected = format!(
                "the path of a Unix socket, of at most {} bytes, behind unix:",
                unix::LONGEST
            );
            Err(Mismatch::new(expected, "\"unix:/run/db.sock\""))
        }
    }
}

/// A target such as such a relay may have, for messages.
pub(super) fn such(protocol: Protocol) -> &'static str {
    match protocol {
        Protocol::Udp => "dns.example:53",
        _ => "db.example:5432",
    }
}

/// Whether that is no host of this name with a port.
pub(super) fn is_unix(text: &str) -> bool {
    let rest = text.strip_prefix(unix::PREFIX);
    rest.is_some_and(|rest| rest.parse::<u16>().is_err())
}

/// Whether a URL's parameter is a matter of [`RelayDraft::set`].
pub(super) fn is_parameter(key: &str) -> bool {
    PARAMETERS.contains(&key)
}

/// Judges all of it; the first target becomes that of the listener.
pub(super) fn finish(draft: &mut ListenerDraft, problems: &mut Vec<Problem>) -> Relay {
    let protocol = draft.protocol.value;
    if protocol == Protocol::Udp {
        if let Some(target) = &draft.target {
            check_own(draft, "listener.target", target, problems);
        }
        udp_listener::check_relay(&draft.relay, problems);
        if draft.target.is_none() {
            // It is told of already, and not missing besides.
            draft.target = draft.relay.targets.take().and_then(|mut all| all.pop());
        }
        return Relay::default();
    }
    if protocol != Protocol::Tcp {
        for (key, origin) in draft.relay.written() {
            let text = format!(
                "expected no {key} for protocol {protocol}, whose clients choose their own \
                 targets; write protocol tcp instead, or no {key}"
            );
            problems.push(Problem::new(origin, format!("listener.{key}"), text));
        }
        return Relay::default();
    }
    let mut targets = draft.relay.targets.take().unwrap_or_default();
    if let (Some(target), Some(first)) = (&draft.target, targets.first()) {
        let text = format!(
            "expected either target or targets, found both; write {:?} among the targets instead, \
             and no target",
            unix::shown(target.value.as_target())
        );
        problems.push(Problem::new(&first.origin, "listener.targets", text));
    }
    check_doubles(&targets, problems);
    if let Some(target) = &draft.target {
        check_own(draft, "listener.target", target, problems);
    }
    for target in &targets {
        check_own(draft, key(target), target, problems);
    }
    let too_few = targets.len() < 2;
    if draft.target.is_none() && !targets.is_empty() {
        draft.target = Some(targets.remove(0));
    }
    let tls = tls(&draft.relay, problems);
    if tls.as_ref().is_some_and(|tls| tls.name.is_none()) {
        check_names(draft.target.iter().chain(&targets), problems);
    }
    if let Some(balance) = draft.relay.balance.as_ref().filter(|_| too_few) {
        let text = "expected several targets to choose from, found fewer; write targets = \
                    [\"a.example:5432\", \"b.example:5432\"] instead, or no balance";
        problems.push(Problem::new(&balance.origin, "listener.balance", text));
    }
    Relay {
        others: targets.into_iter().map(|target| target.value).collect(),
        balance: draft
            .relay
            .balance
            .take()
            .map_or_else(Balance::default, |own| own.value),
        tls,
    }
}

/// Relays that lead to each other's Unix sockets would do so for ever. Only a
/// configuration can tell: nobody is asked on the way.
pub(super) fn check_rounds(listeners: &[ListenerDraft], problems: &mut Vec<Problem>) {
    for draft in listeners {
        let one = draft
            .target
            .iter()
            .map(|target| ("listener.target", target));
        let several = draft.relay.targets.iter().flatten();
        for (key, target) in one.chain(several.map(|target| (key(target), target))) {
            let Some(path) = unix::path(target.value.as_target()) else {
                continue;
            };
            let leads_to = |other: &&ListenerDraft| {
                let own = other.unix.as_ref();
                !std::ptr::eq(*other, draft)
                    && own.is_some_and(|own| unix_listener::is_same(&own.value, Path::new(path)))
            };
            if let Some(other) = listeners.iter().find(leads_to) {
                let text = format!(
                    "expected another server, found {path}, where proxyd itself listens ({}); write \
                     where connections shall go instead",
                    other.address.origin
                );
                problems.push(Problem::new(&target.origin, key, text));
            }
        }
    }
}

/// A relay that leads to itself would do so for ever.
fn check_own(
    draft: &ListenerDraft,
    key: &str,
    target: &Sourced<TargetBuf>,
    problems: &mut Vec<Problem>,
) {
    let goes_to = target.value.as_target();
    if let (Some(own), Some(path)) = (&draft.unix, unix::path(goes_to))
        && unix_listener::is_same(&own.value, Path::new(path))
    {
        let text = format!(
            "expected another server, found this listener's own path {path}; write where \
             connections shall go instead"
        );
        problems.push(Problem::new(&target.origin, key, text));
    }
    let address = draft.address.value;
    if goes_to.port == address.port() && goes_to.host == Host::Ip(address.ip()) {
        let what = match draft.protocol.value {
            Protocol::Udp => "datagrams",
            _ => "connections",
        };
        let text = format!(
            "expected another server, found this listener's own address {address}; write where \
             {what} shall go instead"
        );
        problems.push(Problem::new(&target.origin, key, text));
    }
}

fn shown_target(target: &Sourced<TargetBuf>) -> String {
    format!("{:?}", unix::shown(target.value.as_target()))
}

/// Those of a URL all stand in the place of its target.
fn key(target: &Sourced<TargetBuf>) -> &'static str {
    match target.origin {
        Origin::Argument(_) => "listener.target",
        Origin::Default | Origin::File(..) => "listener.targets",
    }
}

fn check_doubles(targets: &[Sourced<TargetBuf>], problems: &mut Vec<Problem>) {
    let mut seen = HashSet::new();
    for target in targets {
        if !seen.insert(&target.value) {
            let text = format!(
                "expected each target once, found {} again; write it only once instead",
                shown_target(target)
            );
            problems.push(Problem::new(&target.origin, key(target), text));
        }
    }
}

/// A path is no name that a certificate could be for.
fn check_names<'t>(
    targets: impl Iterator<Item = &'t Sourced<TargetBuf>>,
    problems: &mut Vec<Problem>,
) {
    for target in targets {
        if unix::path(target.value.as_target()).is_some() {
            let instead = match target.origin {
                Origin::Argument(_) => "target_tls=db.example",
                Origin::Default | Origin::File(..) => "target_tls = \"db.example\"",
            };
            let text = format!(
                "expected the name in the certificate of a target at a Unix socket, found none; \
                 write {instead} instead"
            );
            problems.push(Problem::new(&target.origin, "listener.target_tls", text));
        }
    }
}

fn tls(draft: &RelayDraft, problems: &mut Vec<Problem>) -> Option<TargetTls> {
    let name = match draft.tls.as_ref().map(|tls| &tls.value) {
        Some(Secrecy::Named(name)) => Some(Some(name.clone())),
        Some(Secrecy::On) => Some(None),
        Some(Secrecy::Off) | None => None,
    };
    if let Some(ca) = &draft.ca {
        check_file("listener.target_ca", ca, problems);
        if name.is_none() {
            let instead = match ca.origin {
                Origin::Argument(_) => "target_tls=on",
                Origin::Default | Origin::File(..) => "target_tls = true",
            };
            let text = format!(
                "expected no issuers for targets that are reached in clear, found a file of them; \
                 write {instead} beside it instead, or no target_ca"
            );
            problems.push(Problem::new(&ca.origin, "listener.target_ca", text));
        }
    }
    let ca = draft.ca.clone();
    name.map(|name| TargetTls { name, ca })
}

fn balance(text: &str) -> Result<Balance, Mismatch> {
    value::choice(&BALANCES, text)
}

/// `on` is how TLS without a name is written.
fn named(text: &str, on: &str) -> Result<Secrecy, Mismatch> {
    let off = if on == "on" { "off" } else { "false" };
    let name = ServerName::try_from(text.to_owned());
    let meant = match text.to_ascii_lowercase().as_str() {
        "on" | "true" | "yes" | "1" => on.to_owned(),
        "off" | "false" | "no" | "0" => off.to_owned(),
        _ => match name {
            Ok(name) => return Ok(Secrecy::Named(name)),
            Err(_) => "the name in the certificate, such as \"db.example\"".to_owned(),
        },
    };
    let expected = format!("{on}, {off} or the name in the target's certificate");
    Err(Mismatch::new(expected, meant))
}

const BALANCES: [(&str, Balance); 2] = [
    ("failover", Balance::Failover),
    ("round-robin", Balance::RoundRobin),
];

const PARAMETERS: [&str; 3] = ["balance", "target_ca", "target_tls"];
