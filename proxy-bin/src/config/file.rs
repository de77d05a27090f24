//! The TOML form of a configuration.

use std::io::{self, ErrorKind};
use std::path::{Path, PathBuf};

use toml::de::DeTable;

use super::draft::{Draft, UserDraft};
use super::entries::List;
use super::limits::{LIMITS, TIMEOUTS, read_timeouts};
use super::listener::{ListenerDraft, Protocol};
use super::problem::{Mismatch, Origin, Problem, Sourced};
use super::rate::Rates;
use super::reader::{Document, Table};
use super::relay::{self, RelayDraft};
use super::unix_listener::{self, Address};
use super::{
    Access, Format, LEVELS, auth, bind, condition, http, metrics, parents, resolver, rules,
    sources, syntax, udp, value,
};

impl Draft {
    /// Reads the file at `path`.
    ///
    /// # Errors
    /// Every mistake in it, in the order of its lines. Contradictions between
    /// values are left to [`finish`](Self::finish).
    pub(crate) fn read(path: &Path) -> Result<Self, Vec<Problem>> {
        let text = std::fs::read_to_string(path).map_err(|error| {
            let origin = Origin::argument(format!("--config {}", path.display()));
            vec![Problem::new(&origin, "", unreadable(&error))]
        })?;
        Self::parse(path, &text)
    }

    fn parse(path: &Path, text: &str) -> Result<Self, Vec<Problem>> {
        let document = Document::new(path, text, &TOP);
        let (table, errors) = DeTable::parse_recoverable(text);
        let mut draft = Self::default();
        let well_formed = errors.is_empty();
        if well_formed {
            draft.fill(&document.root(table.get_ref()));
        }
        for error in errors {
            // Not the error's own text: it repeats the line, passwords and all.
            let span = error.span().unwrap_or(text.len()..text.len());
            let harmless = [
                &TOP[..],
                &LISTENER,
                &USER,
                &auth::KEYS,
                &rules::KEYS,
                &parents::KEYS,
                &parents::GROUP_KEYS,
                &sources::KEYS,
                &resolver::KEYS,
                &TIMEOUTS,
                &LIMITS,
                &http::KEYS,
                &LOG,
                &bind::KEYS,
                &udp::KEYS,
                &metrics::KEYS,
            ]
            .concat();
            let message = syntax::message(text, &span, error.message(), &harmless);
            let origin = document.origin(span.start);
            document.report(Problem::new(&origin, "", message));
        }
        let mut problems = document.into_problems();
        problems.sort_by_key(Problem::place);
        if !well_formed {
            // What follows a slip on its line is mostly its consequence.
            problems.dedup_by_key(|problem| problem.place());
        }
        match problems.is_empty() {
            true => Ok(draft),
            false => Err(problems),
        }
    }

    fn fill(&mut self, top: &Table<'_>) {
        self.workers = top.integer("workers", 1..=value::MOST_WORKERS).map(plain);
        self.drain = top.text("drain", value::duration).map(plain);
        for table in top.tables("listener", &LISTENER) {
            self.listeners.extend(listener(&table));
        }
        for table in top.tables("user", &USER) {
            self.users.extend(user(&table));
        }
        if let Some(table) = top.table("auth", &auth::KEYS) {
            self.auth.read(&table);
        }
        for table in top.tables("rule", &rules::KEYS) {
            self.rules.read(&table);
        }
        for table in top.tables("parent", &parents::KEYS) {
            self.parents.read(&table);
        }
        for table in top.tables("group", &parents::GROUP_KEYS) {
            self.parents.read_group(&table);
        }
        for table in top.tables("source", &sources::KEYS) {
            self.sources.read(&table);
        }
        if let Some(table) = top.table("resolver", &resolver::KEYS) {
            self.resolver.read(&table);
        }
        self.via = top.text("via", value::name);
        if let Some(table) = top.table("timeouts", &TIMEOUTS) {
            read_timeouts(&table, &mut self.timeouts);
        }
        if let Some(table) = top.table("limits", &LIMITS) {
            self.limits.read(&table);
        }
        if let Some(table) = top.table("http", &http::KEYS) {
            self.http.read(&table);
        }
        if let Some(table) = top.table("bind", &bind::KEYS) {
            self.bind.read(&table);
        }
        if let Some(table) = top.table("udp", &udp::KEYS) {
            self.udp.read(&table);
        }
        if let Some(table) = top.table("metrics", &metrics::KEYS) {
            self.metrics.read(&table);
        }
        if let Some(table) = top.table("log", &LOG) {
            self.level = table
                .text("level", |text| value::choice(&LEVELS, text))
                .map(plain);
            self.access_format = table
                .text("format", |text| value::choice(&Format::WORDS, text))
                .map(plain);
            let folder = table.origin().folder().to_owned();
            self.access = table.text("access", |text| access(&folder, text));
        }
    }
}

fn unreadable(error: &io::Error) -> String {
    let (found, instead) = match error.kind() {
        ErrorKind::NotADirectory | ErrorKind::NotFound => {
            ("nothing", "the path of an existing file")
        }
        ErrorKind::IsADirectory => ("a folder", "the path of a file in it"),
        ErrorKind::InvalidData => ("bytes that are not UTF-8", "the text in UTF-8"),
        _ => {
            return format!(
                "expected a TOML file that can be read, found one that cannot ({error}); write \
                 the path of another instead, or permit it"
            );
        }
    };
    format!("expected a TOML file, found {found}; write {instead} instead")
}

/// Reads where the access log goes; a relative path starts from `folder`.
///
/// # Errors
/// If it is empty, or nearly a word.
pub(crate) fn access(folder: &Path, text: &str) -> Result<Access, Mismatch> {
    let wrong = |instead: &str| {
        let expected = "\"off\", \"stdout\" or the path of a file";
        Err(Mismatch::new(expected, instead))
    };
    match text {
        "off" => Ok(Access::Off),
        // What other programs call it.
        "stdout" | "-" => Ok(Access::Stdout),
        _ => match text.to_ascii_lowercase().as_str() {
            "" | "none" | "off" => wrong("\"off\""),
            "stderr" => wrong("\"stdout\" (stderr has the messages; a file would be \"./stderr\")"),
            "on" | "stdout" => wrong("\"stdout\""),
            _ => Ok(Access::File(folder.join(text))),
        },
    }
}

fn listener(table: &Table<'_>) -> Option<ListenerDraft> {
    table.require(
        "protocol",
        &Mismatch::new("what it speaks", "protocol = \"http\""),
    );
    table.require(
        "address",
        &Mismatch::new("an IP address and a port", "address = \"127.0.0.1:3128\""),
    );
    // All are read before any is missed, so that all mistakes are found.
    let protocol = table.text("protocol", Protocol::parse);
    let folder = table.origin().folder();
    let address = table.text("address", |text| Address::parse(folder, text));
    let mode = table.text("mode", unix_listener::mode);
    let name = table.text("name", value::name);
    let target = table.text("target", |text| relay::target(folder, text));
    let relay = RelayDraft::read(table);
    let cert = path(table, "cert");
    let key = path(table, "key");
    let auth = table.boolean("auth");
    let clients = table.texts("clients", value::network);
    let open = table.boolean("open");
    let trust_loopback = table.boolean("trust_loopback");
    let source = table.text("source", value::name);
    let via = table.text("via", value::name);
    let names = List::read(table, "names", condition::name);
    let target_port = table.integer("target_port", 1..=usize::from(u16::MAX));
    let proxy_protocol = table.texts("proxy_protocol", value::network);
    let send_proxy = table.text("send_proxy", value::proxy_version);
    let idle = table.text("idle", value::timeout);
    let rates = Rates::read(table, "rate_up", "rate_down");
    let session_rates = Rates::read(table, "session_rate_up", "session_rate_down");
    let Sourced { value, origin } = address?;
    let (address, unix) = value.split();
    Some(ListenerDraft {
        origin: table.origin().clone(),
        name,
        protocol: protocol?,
        address: Sourced::new(address, &origin),
        unix: unix.map(|path| Sourced::new(path, &origin)),
        mode,
        target,
        relay,
        cert,
        key,
        auth,
        clients,
        open,
        trust_loopback,
        source,
        via,
        names,
        target_port,
        proxy_protocol,
        send_proxy,
        idle,
        rates,
        session_rates,
    })
}

pub(super) fn path(table: &Table<'_>, key: &str) -> Option<Sourced<PathBuf>> {
    let folder = table.origin().folder();
    table.text(key, |text| match text {
        "" => Err(Mismatch::new("the path of a PEM file", "\"proxy.pem\"")),
        text => Ok(folder.join(text)),
    })
}

fn user(table: &Table<'_>) -> Option<UserDraft> {
    table.require("name", &Mismatch::new("a user name", "name = \"alice\""));
    table.require(
        "password",
        &Mismatch::new("a password", "password = \"..\""),
    );
    let name = table.text("name", value::user_name);
    let password = table.secret("password", value::password);
    let source = table.text("source", value::name);
    Some(UserDraft {
        name: name?,
        password: password?.value,
        source,
        rates: Rates::read(table, "rate_up", "rate_down"),
    })
}

fn plain<T>(sourced: Sourced<T>) -> T {
    sourced.value
}

const TOP: [&str; 18] = [
    "workers", "drain", "via", "listener", "user", "auth", "rule", "parent", "group", "source",
    "resolver", "timeouts", "limits", "http", "log", "bind", "udp", "metrics",
];
const LISTENER: [&str; 26] = [
    "protocol",
    "address",
    "target",
    "cert",
    "key",
    "auth",
    "clients",
    "open",
    "trust_loopback",
    "source",
    "name",
    "via",
    "names",
    "target_port",
    "proxy_protocol",
    "send_proxy",
    "rate_up",
    "rate_down",
    "session_rate_up",
    "session_rate_down",
    "targets",
    "balance",
    "target_tls",
    "target_ca",
    "mode",
    "idle",
];
const USER: [&str; 5] = ["name", "password", "source", "rate_up", "rate_down"];
const LOG: [&str; 3] = ["level", "access", "format"];
