//! Parent proxies: chains of hops, and groups of chains.

use std::collections::HashMap;
use std::path::{Path, PathBuf};

use proxy_core::{Target, TargetBuf};

use super::check::check_file;
use super::listen_url::percent_decoded;
use super::problem::{Mismatch, Origin, Problem, Sourced, masked, nearest, shown};
use super::reader::Table;
use super::value;

/// A parent or a group of them, as rules name it.
#[derive(Clone, Debug)]
pub(crate) struct Parent {
    pub(crate) name: String,
    /// At least one; a group has several.
    pub(crate) chains: Vec<Chain>,
    pub(crate) order: Order,
}

/// Which member of a group is tried first.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Order {
    /// The first that works.
    #[default]
    Failover,
    /// Each in its turn.
    RoundRobin,
}

impl Order {
    const WORDS: [(&'static str, Self); 2] = [
        ("failover", Self::Failover),
        ("round_robin", Self::RoundRobin),
    ];
}

/// Proxies one behind the other, the first one dialled by us.
#[derive(Clone, Debug)]
pub(crate) struct Chain {
    /// The parent's name; no other chain has it.
    pub(crate) name: String,
    /// At least one.
    pub(crate) hops: Vec<Hop>,
}

/// One proxy of a chain.
#[derive(Clone, Debug)]
pub(crate) struct Hop {
    pub(crate) protocol: HopProtocol,
    pub(crate) target: TargetBuf,
    pub(crate) login: Option<Login>,
    /// PEM file of the issuers of an HTTPS parent's certificate; the system's
    /// without it.
    pub(crate) ca: Option<Sourced<PathBuf>>,
}

/// What a parent speaks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum HopProtocol {
    Http,
    Https,
    Socks4a,
    Socks5,
}

impl HopProtocol {
    /// Names are left to the parent anyway, so that some words mean the same.
    const WORDS: [(&'static str, Self); 6] = [
        ("http", Self::Http),
        ("https", Self::Https),
        ("socks4", Self::Socks4a),
        ("socks4a", Self::Socks4a),
        ("socks5", Self::Socks5),
        ("socks5h", Self::Socks5),
    ];

    /// Where our own listeners and most parents are, if the URL does not say.
    fn default_port(self) -> u16 {
        match self {
            Self::Http => 3128,
            Self::Https => 443,
            Self::Socks4a | Self::Socks5 => 1080,
        }
    }
}

/// A user and password for a parent. `Debug` hides both.
#[derive(Clone, PartialEq, Eq)]
pub(crate) struct Login {
    pub(crate) user: String,
    pub(crate) password: String,
}

impl std::fmt::Debug for Login {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Login(..)")
    }
}

/// How targets are reached: directly or through an entry of
/// [`Config::parents`](super::Config).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub(crate) enum Via {
    #[default]
    Direct,
    Parent(u16),
}

/// Parents and groups as written. Names are not yet known to exist or to be
/// different.
#[derive(Clone, Debug, Default)]
pub(crate) struct ParentsDraft {
    parents: Vec<ParentDraft>,
    groups: Vec<GroupDraft>,
    /// Hops of the command line.
    hops: Vec<Hop>,
}

#[derive(Clone, Debug)]
struct ParentDraft {
    name: Sourced<String>,
    hops: Vec<Hop>,
}

#[derive(Clone, Debug)]
struct GroupDraft {
    name: Sourced<String>,
    members: Vec<Sourced<String>>,
    order: Order,
}

impl ParentsDraft {
    /// Reads a `[[parent]]`.
    pub(super) fn read(&mut self, table: &Table<'_>) {
        let name = read_name(table);
        let hops = read_hops(table);
        let ca = table.text("ca", |text| file(table.origin().folder(), text));
        let (Some(name), Some(mut hops)) = (name, hops) else {
            return;
        };
        if let Some(ca) = ca {
            let mut encrypted = hops
                .iter_mut()
                .filter(|hop| hop.protocol == HopProtocol::Https)
                .peekable();
            if encrypted.peek().is_none() {
                let text = "expected a parent that speaks https, found none; write https:// in \
                            its URL instead, or leave ca out";
                table.report(Problem::new(&ca.origin, "parent.ca", text));
            }
            encrypted.for_each(|hop| {
                hop.ca.get_or_insert_with(|| ca.clone());
            });
        }
        self.parents.push(ParentDraft { name, hops });
    }

    /// Reads a `[[group]]`.
    pub(super) fn read_group(&mut self, table: &Table<'_>) {
        let name = read_name(table);
        table.require(
            "parents",
            &Mismatch::new("names of parents", "parents = [\"paris\", \"rome\"]"),
        );
        let members = table.texts("parents", value::name);
        let order = table.text("order", |text| value::choice(&Order::WORDS, text));
        if let (Some(name), Some(members)) = (name, members) {
            let order = order.map_or_else(Order::default, |order| order.value);
            self.groups.push(GroupDraft {
                name,
                members,
                order,
            });
        }
    }

    /// Takes a `--via`: one more hop of the chain that all take.
    pub(crate) fn via(&mut self, url: &str, problems: &mut Vec<Problem>) {
        let origin = Origin::argument(format!("--via {}", hidden(url)));
        match hop(url, Path::new("")) {
            Ok(mut hop) => {
                hop.tell_origin(&origin);
                self.hops.push(hop);
            }
            Err(mismatch) => {
                let found = shown(&hidden(url));
                problems.push(Problem::mismatch(&origin, "", &mismatch, &found));
            }
        }
    }

    /// Judges the whole; the parents, and the way of whatever no rule decides
    /// about (`via` at the top of the file, or of the command line).
    pub(super) fn finish(
        self,
        via: Option<Sourced<String>>,
        problems: &mut Vec<Problem>,
    ) -> (Vec<Parent>, Via) {
        self.check_names(problems);
        self.check_files(problems);
        let mut parents: Vec<Parent> = self.parents.into_iter().map(single).collect();
        let singles = parents.len();
        for draft in self.groups {
            let chains = members(&parents[..singles], &draft, problems);
            parents.push(Parent {
                name: draft.name.value,
                chains,
                order: draft.order,
            });
        }
        let mut way = via.map_or(Via::Direct, |via| {
            resolve(&parents, &via, "via", problems).unwrap_or_default()
        });
        if !self.hops.is_empty() {
            let name = Sourced::new(COMMAND_LINE.to_owned(), &Origin::Default);
            let hops = self.hops;
            parents.push(single(ParentDraft { name, hops }));
            way = Via::Parent(u16::try_from(parents.len() - 1).unwrap_or(u16::MAX));
        }
        if parents.len() > MOST_PARENTS || parents.iter().any(|p| p.chains[..].len() > MOST_MEMBERS)
        {
            let text = format!(
                "expected at most {MOST_PARENTS} parents and groups, and {MOST_MEMBERS} in a \
                 group, found more; write fewer instead"
            );
            problems.push(Problem::new(&Origin::Default, "parent", text));
        }
        (parents, way)
    }

    fn check_names(&self, problems: &mut Vec<Problem>) {
        let mut seen: HashMap<&str, &Origin> = HashMap::new();
        let parents = self.parents.iter().map(|p| ("parent.name", &p.name));
        let groups = self.groups.iter().map(|g| ("group.name", &g.name));
        for (key, Sourced { value, origin }) in parents.chain(groups) {
            let text = if value == DIRECT {
                format!("expected a name, found {DIRECT:?}, which means no parent; write another")
            } else if let Some(first) = seen.insert(value, origin) {
                format!("expected a name of its own, found {value:?} as at {first}; write another")
            } else {
                continue;
            };
            problems.push(Problem::new(origin, key, format!("{text} name instead")));
        }
    }

    fn check_files(&self, problems: &mut Vec<Problem>) {
        let hops = self.parents.iter().flat_map(|parent| &parent.hops);
        for ca in hops.chain(&self.hops).filter_map(|hop| hop.ca.as_ref()) {
            check_file("parent.ca", ca, problems);
        }
    }
}

/// Finds the way called `name`: `direct`, a parent or a group.
pub(super) fn named(parents: &[Parent], name: &str) -> Option<Via> {
    if name == DIRECT {
        return Some(Via::Direct);
    }
    let at = parents.iter().position(|parent| parent.name == name)?;
    u16::try_from(at).ok().map(Via::Parent)
}

/// [`named`], and the problem if there is none.
pub(super) fn resolve(
    parents: &[Parent],
    name: &Sourced<String>,
    key: &str,
    problems: &mut Vec<Problem>,
) -> Option<Via> {
    let way = named(parents, &name.value);
    if way.is_none() {
        let known = names(parents);
        let instead = match nearest(&name.value, &known) {
            Some(near) => format!("{near:?}"),
            None => format!("{DIRECT:?}"),
        };
        let expected = "\"direct\" or the name of a parent or group";
        let mismatch = Mismatch::new(expected, instead);
        let found = shown(&name.value);
        problems.push(Problem::mismatch(&name.origin, key, &mismatch, &found));
    }
    way
}

fn names(parents: &[Parent]) -> Vec<&str> {
    let all = parents.iter().map(|parent| parent.name.as_str());
    all.filter(|name| *name != COMMAND_LINE).collect()
}

fn read_name(table: &Table<'_>) -> Option<Sourced<String>> {
    table.require("name", &Mismatch::new("a name", "name = \"paris\""));
    table.text("name", value::name)
}

/// Reads `url` or `chain`.
fn read_hops(table: &Table<'_>) -> Option<Vec<Hop>> {
    let folder = table.origin().folder();
    let read = |text: &str| hop(text, folder);
    let show = |text: &str| shown(&hidden(text));
    let url = table.texts_as("url", read, show);
    let chain = table.texts_as("chain", read, show);
    let hops = match (table.has("url"), table.has("chain")) {
        (true, false) => url?,
        (false, true) => chain?,
        (both, _) => {
            let found = if both { "both" } else { "nothing" };
            let mismatch = Mismatch::new("url or chain", "url = \"http://paris.example:3128\"");
            let problem = Problem::mismatch(table.origin(), "parent.url", &mismatch, found);
            table.report(problem);
            return None;
        }
    };
    let told = |Sourced { mut value, origin }: Sourced<Hop>| {
        value.tell_origin(&origin);
        value
    };
    Some(hops.into_iter().map(told).collect())
}

fn single(draft: ParentDraft) -> Parent {
    let name = draft.name.value;
    Parent {
        chains: vec![Chain {
            name: name.clone(),
            hops: draft.hops,
        }],
        name,
        order: Order::Failover,
    }
}

/// The chains of a group's members, each of which must be there, once.
fn members(parents: &[Parent], draft: &GroupDraft, problems: &mut Vec<Problem>) -> Vec<Chain> {
    let mut chains: Vec<Chain> = Vec::new();
    for Sourced { value, origin } in &draft.members {
        let found = parents.iter().find(|parent| parent.name == *value);
        let Some(parent) = found else {
            let instead = match nearest(value, &names(parents)) {
                Some(near) => format!("{near:?}"),
                None => "the name of a [[parent]]".to_owned(),
            };
            let mismatch = Mismatch::new("the name of a parent", instead);
            let problem = Problem::mismatch(origin, "group.parents", &mismatch, &shown(value));
            problems.push(problem);
            continue;
        };
        if chains.iter().any(|chain| chain.name == *value) {
            let text = format!("expected it once, found {value:?} again; write it once instead");
            problems.push(Problem::new(origin, "group.parents", text));
            continue;
        }
        chains.extend(parent.chains.iter().cloned());
    }
    chains
}

impl Hop {
    fn tell_origin(&mut self, origin: &Origin) {
        if let Some(ca) = &mut self.ca {
            ca.origin = origin.clone();
        }
    }
}

/// Reads `SCHEME://[USER[:PASSWORD]@]HOST[:PORT][?ca=FILE]`, user and password
/// with %XX escapes.
fn hop(text: &str, folder: &Path) -> Result<Hop, Mismatch> {
    let Some((scheme, rest)) = text.split_once("://") else {
        return Err(no_url(text));
    };
    let protocol = protocol(scheme)?;
    let end = rest.find(['/', '?', '#']).unwrap_or(rest.len());
    let (authority, tail) = rest.split_at(end);
    let (login, host) = match authority.rsplit_once('@') {
        Some((login, host)) => (Some(login), host),
        None => (None, authority),
    };
    let ca = tail_file(protocol, tail, folder)?;
    let target = Target::parse(host, Some(protocol.default_port())).map_err(|_| {
        let instead = format!("{scheme}://paris.example:{}", protocol.default_port());
        Mismatch::new("a host and a port", format!("{instead:?}"))
    })?;
    Ok(Hop {
        protocol,
        target: target.into(),
        login: login.map(|login| read_login(protocol, login)).transpose()?,
        ca,
    })
}

fn protocol(scheme: &str) -> Result<HopProtocol, Mismatch> {
    value::choice(&HopProtocol::WORDS, &scheme.to_ascii_lowercase()).map_err(|mismatch| {
        let expected = format!("a URL of scheme {}", mismatch.expected);
        Mismatch::new(expected, mismatch.instead)
    })
}

/// What stands behind the host: at most a slash and the file of issuers.
fn tail_file(
    protocol: HopProtocol,
    tail: &str,
    folder: &Path,
) -> Result<Option<Sourced<PathBuf>>, Mismatch> {
    let rest = tail.strip_prefix('/').unwrap_or(tail);
    let Some(text) = rest.strip_prefix("?ca=") else {
        return match rest {
            "" => Ok(None),
            _ if rest.contains('@') => Err(Mismatch::new(
                "a login with escapes for special characters",
                "%2F for a slash, %3F for a question mark, %23 for a hash in it",
            )),
            _ => Err(Mismatch::new(
                "nothing behind host and port but ?ca=FILE",
                "the URL up to the port",
            )),
        };
    };
    if protocol != HopProtocol::Https {
        return Err(Mismatch::new(
            "a file of issuers (ca) for scheme https only",
            "https://, or the URL without it",
        ));
    }
    let text = percent_decoded(text).ok_or_else(bad_escape)?;
    Ok(Some(Sourced::new(file(folder, &text)?, &Origin::Default)))
}

fn file(folder: &Path, text: &str) -> Result<PathBuf, Mismatch> {
    match text {
        "" => Err(Mismatch::new("the path of a PEM file", "\"ca.pem\"")),
        text => Ok(folder.join(text)),
    }
}

fn read_login(protocol: HopProtocol, text: &str) -> Result<Login, Mismatch> {
    let (user, password) = text.split_once(':').unwrap_or((text, ""));
    let decoded = |text: &str| percent_decoded(text).ok_or_else(bad_escape);
    let login = Login {
        user: decoded(user)?,
        password: decoded(password)?,
    };
    let fits = match protocol {
        HopProtocol::Http | HopProtocol::Https => {
            !login.user.contains(':')
                && login.user.len() <= LONGEST_BASIC
                && login.password.len() <= LONGEST_BASIC
        }
        HopProtocol::Socks4a => !text.contains(':') && login.user.len() <= 255,
        HopProtocol::Socks5 => (1..=255).contains(&login.user.len()) && login.password.len() <= 255,
    };
    let control = |text: &str| text.chars().any(char::is_control);
    match fits && !control(&login.user) && !control(&login.password) {
        true => Ok(login),
        false => Err(unfit(protocol)),
    }
}

/// What a login must be, without a word of the one that was written.
fn unfit(protocol: HopProtocol) -> Mismatch {
    match protocol {
        HopProtocol::Http | HopProtocol::Https => Mismatch::new(
            format!(
                "a user without colon and a password of at most {LONGEST_BASIC} bytes each, \
                 without control characters"
            ),
            "USER:PASSWORD@ before the host",
        ),
        HopProtocol::Socks4a => Mismatch::new(
            "a user id of at most 255 bytes and no password, which SOCKS4 has not",
            "USER@ before the host, or socks5",
        ),
        HopProtocol::Socks5 => Mismatch::new(
            "a user of 1 to 255 bytes and a password of at most 255, without control characters",
            "USER:PASSWORD@ before the host",
        ),
    }
}

fn bad_escape() -> Mismatch {
    Mismatch::new("UTF-8 with %XX escapes", "%25 for a percent sign")
}

fn no_url(text: &str) -> Mismatch {
    let instead = match Target::parse(text, Some(HopProtocol::Http.default_port())) {
        Ok(target) => format!("http://{target}"),
        Err(_) => "http://USER:PASSWORD@paris.example:3128".to_owned(),
    };
    let expected = "a URL such as \"http://paris.example:3128\"";
    Mismatch::new(expected, format!("{instead:?}"))
}

/// The URL with the login made unreadable, be it written as it may.
fn hidden(url: &str) -> String {
    let Some(end) = url.rfind('@') else {
        // Half a login, perhaps.
        return masked(url).into_owned();
    };
    let start = url.find("://").map_or(0, |at| at + 3).min(end);
    format!("{}***{}", &url[..start], &url[end..])
}

pub(super) const KEYS: [&str; 4] = ["name", "url", "chain", "ca"];
pub(super) const GROUP_KEYS: [&str; 3] = ["name", "parents", "order"];

const DIRECT: &str = "direct";

/// No name in a file can be this one.
const COMMAND_LINE: &str = "(--via)";

/// So that a member is a bit of a word.
const MOST_MEMBERS: usize = 64;
const MOST_PARENTS: usize = 10_000;

/// Longer than any token that serves as a password.
const LONGEST_BASIC: usize = 4096;

#[cfg(test)]
mod tests {
    use super::*;

    fn read(url: &str) -> Hop {
        hop(url, Path::new("/etc")).expect(url)
    }

    #[test]
    fn the_forms_of_a_hop() {
        for (url, protocol, target) in [
            (
                "http://paris.example:8080",
                HopProtocol::Http,
                "paris.example:8080",
            ),
            (
                "http://paris.example/",
                HopProtocol::Http,
                "paris.example:3128",
            ),
            (
                "HTTPS://paris.example",
                HopProtocol::Https,
                "paris.example:443",
            ),
            ("socks4://192.0.2.1", HopProtocol::Socks4a, "192.0.2.1:1080"),
            (
                "socks4a://paris.example:1",
                HopProtocol::Socks4a,
                "paris.example:1",
            ),
            (
                "socks5://[2001:db8::1]",
                HopProtocol::Socks5,
                "[2001:db8::1]:1080",
            ),
            ("socks5h://[::1]:9", HopProtocol::Socks5, "[::1]:9"),
        ] {
            let hop = read(url);
            assert_eq!(hop.protocol, protocol, "{url}");
            assert_eq!(hop.target.to_string(), target);
            assert_eq!(hop.login, None);
        }
        let ca = read("https://paris.example?ca=a%20b.pem").ca;
        assert_eq!(ca.map(|ca| ca.value), Some("/etc/a b.pem".into()));
    }

    #[test]
    fn logins_are_percent_decoded() {
        for (url, user, password) in [
            ("http://user:p%40ss@h", "user", "p@ss"),
            ("http://user:p@ss@h", "user", "p@ss"),
            ("http://user:a:b@h", "user", "a:b"),
            ("http://user@h", "user", ""),
            ("http://:token@h", "", "token"),
            ("socks5://j%C3%B6rg:%25@h", "jörg", "%"),
            ("socks4://me@h", "me", ""),
        ] {
            let login = read(url).login.expect(url);
            assert_eq!((&*login.user, &*login.password), (user, password), "{url}");
        }
    }

    #[test]
    fn p29_no_mistake_repeats_a_password() {
        for url in [
            "alice:hunter2@paris.example",
            "htp://alice:hunter2@paris.example",
            "http://al%3Aice:hunter2@paris.example",
            "http://alice:hunter2%0a@paris.example",
            "http://alice:hunter2%@paris.example",
            "http://alice:a/hunter2@paris.example",
            "http://alice:a?hunter2@paris.example",
            "http://alice:a#hunter2@paris.example",
            "http://alice:hunter2@paris.example:0",
            "http://alice:hunter2@paris.example/path",
            "http://alice:hunter2@paris.example?ca=x",
            "socks4://alice:hunter2@paris.example",
            "socks5://:hunter2@paris.example",
        ] {
            let mut problems = Vec::new();
            ParentsDraft::default().via(url, &mut problems);
            let [problem] = &problems[..] else {
                panic!("{url}: {problems:?}");
            };
            let text = problem.to_string();
            assert!(!text.contains("hunter2"), "{text}");
            assert!(text.contains("; write "), "{text}");
        }
        let long = format!("socks5://u:{}@h", "p".repeat(256));
        assert!(hop(&long, Path::new("")).is_err());
    }
}
