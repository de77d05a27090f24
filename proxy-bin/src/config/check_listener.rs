//! What only shows when all values of one listener are together.

use proxy_core::Network;

use super::check::{check_file, source};
use super::entries::List;
use super::listener::{ListenerDraft, TlsFiles};
use super::problem::{Mismatch, Problem, Sourced};
use super::{
    Listener, Origin, Parent, Protocol, Source, parents, relay, udp_listener, unix_listener,
};
use crate::unix;

/// Judges one listener; answers `None` with at least one problem.
pub(super) fn listener(
    mut draft: ListenerDraft,
    have_users: bool,
    parents: &[Parent],
    sources: &[Source],
    problems: &mut Vec<Problem>,
) -> Option<Listener> {
    let before = problems.len();
    let relay = relay::finish(&mut draft, problems);
    check_target(&draft, problems);
    check_auth(&draft, have_users, problems);
    let protocol = draft.protocol.value;
    let auth = draft.auth.as_ref().map(|auth| auth.value);
    let auth = protocol.asks_login() && auth.unwrap_or(have_users);
    check_sni(&draft, problems);
    check_open(&draft, auth, problems);
    let names = draft.names.take().map(|names| names.load(problems));
    check_front_ends(&draft, problems);
    let unix = unix_listener::finish(&draft, problems);
    let idle = udp_listener::finish(&draft, problems);
    let tls = tls(&draft, problems);
    let via = draft.via.as_ref();
    let via = via.and_then(|name| parents::resolve(parents, name, "listener.via", problems));
    let source = source("listener.source", draft.source.as_ref(), sources, problems);
    if problems.len() > before {
        return None;
    }
    Some(Listener {
        origin: draft.origin,
        name: draft.name.map(|name| name.value),
        protocol,
        address: draft.address.value,
        unix,
        target: draft.target.map(|target| target.value),
        relay,
        tls,
        auth,
        clients: draft.clients.map(values),
        trust_loopback: draft.trust_loopback.is_none_or(|trust| trust.value),
        source,
        via,
        names: names.map(|names| names.into_iter().map(|name| name.value).collect()),
        target_port: draft
            .target_port
            .and_then(|port| u16::try_from(port.value).ok())
            .unwrap_or(HTTPS),
        proxy_protocol: draft.proxy_protocol.map(values),
        send_proxy: draft.send_proxy.map(|version| version.value),
        idle,
        rates: draft.rates,
        session_rates: draft.session_rates,
    })
}

fn values<T>(sourced: Vec<Sourced<T>>) -> Vec<T> {
    sourced.into_iter().map(|one| one.value).collect()
}

/// Who is in no network but that of everybody could name any client.
fn check_front_ends(draft: &ListenerDraft, problems: &mut Vec<Problem>) {
    for network in draft.proxy_protocol.iter().flatten() {
        if network.value.prefix() > 0 {
            continue;
        }
        let text = format!(
            "expected the networks of front ends, found {}, by which everybody may claim to be \
             any client; write the addresses of those that send the header instead",
            network.value
        );
        let key = "listener.proxy_protocol";
        problems.push(Problem::new(&network.origin, key, text));
    }
}

fn check_target(draft: &ListenerDraft, problems: &mut Vec<Problem>) {
    let protocol = draft.protocol.value;
    let address = draft.address.value;
    match (&draft.target, protocol) {
        (Some(_), Protocol::Tcp | Protocol::Udp) => {}
        (Some(target), _) => {
            let text = format!(
                "expected no target, found {} for protocol {protocol}, whose clients choose their \
                 own; write protocol tcp instead, or no target",
                unix::shown(target.value.as_target())
            );
            problems.push(Problem::new(&target.origin, "listener.target", text));
        }
        (None, Protocol::Tcp | Protocol::Udp) => {
            let such = relay::such(protocol);
            let text = match draft.origin {
                Origin::Argument(_) => format!(
                    "expected a host and a port behind the address, found nothing; write \
                     {protocol}://{address}/{such} instead"
                ),
                Origin::Default | Origin::File(..) => format!(
                    "expected a host and a port, found nothing; write target = \"{such}\" instead"
                ),
            };
            problems.push(Problem::new(&draft.origin, "listener.target", text));
        }
        (None, _) => {}
    }
}

fn check_auth(draft: &ListenerDraft, have_users: bool, problems: &mut Vec<Problem>) {
    let Some(auth) = draft.auth.as_ref().filter(|auth| auth.value) else {
        return;
    };
    let protocol = draft.protocol.value;
    if !protocol.asks_login() {
        let text = format!(
            "expected no auth for protocol {protocol}, which has no way to ask for it, found it \
             switched on; write protocol socks instead, or no auth"
        );
        problems.push(Problem::new(&auth.origin, "listener.auth", text));
    } else if !have_users {
        let text = "expected users to ask for, found none; write a [[user]] (on the command line \
                    --user NAME:PASSWORD) instead, or no auth";
        problems.push(Problem::new(&auth.origin, "listener.auth", text));
    }
}

/// What only listeners have that are led by a ClientHello.
fn check_sni(draft: &ListenerDraft, problems: &mut Vec<Problem>) {
    let protocol = draft.protocol.value;
    if protocol == Protocol::Sni {
        return;
    }
    let names = draft.names.as_ref().and_then(List::origin);
    let port = draft.target_port.as_ref().map(|port| &port.origin);
    for (key, origin) in [("names", names), ("target_port", port)] {
        if let Some(origin) = origin {
            let text = format!(
                "expected no {key} for protocol {protocol}, found some; write protocol sni \
                 instead, or leave it out"
            );
            problems.push(Problem::new(origin, format!("listener.{key}"), text));
        }
    }
}

/// An address that others can reach is not to be open to everybody by an
/// oversight.
fn check_open(draft: &ListenerDraft, auth: bool, problems: &mut Vec<Problem>) {
    let address = draft.address.value;
    let open = draft.open.as_ref().is_some_and(|open| open.value);
    // 0.0.0.0/0 lists everybody.
    let some = |clients: &Vec<Sourced<Network>>| clients.iter().all(|one| one.value.prefix() > 0);
    let listed = draft.clients.as_ref().is_some_and(some);
    // Front ends bring clients from elsewhere.
    let is_own = address.ip().is_loopback() && draft.proxy_protocol.is_none();
    let closed = auth || open || listed || is_own;
    let protocol = draft.protocol.value;
    if closed || !protocol.leads_anywhere(draft.names.is_some()) {
        return;
    }
    let is_argument = matches!(draft.origin, Origin::Argument(_));
    let (clients, open) = match is_argument {
        true => ("?clients=192.168.0.0/16", "?open=on"),
        false => ("clients = [\"192.168.0.0/16\"]", "open = true"),
    };
    // Where nobody can log in, a list of targets does as well.
    let (expected, instead) = match (protocol.asks_login(), is_argument) {
        (true, true) => (USERS, "--user NAME:PASSWORD,"),
        (true, false) => (USERS, "a [[user]] and auth = true,"),
        (false, true) => ("a list of names", "?names=.example.com"),
        (false, false) => ("a list of names", "names = [\".example.com\"]"),
    };
    let reached = match draft.proxy_protocol {
        Some(_) if address.ip().is_loopback() => "to which front ends bring others",
        _ => "which others can reach",
    };
    let text = format!(
        "expected {expected} or a list of client networks at {address}, {reached}, found neither: \
         an open proxy; write {instead} or {clients} instead, or {open} if everybody may use it"
    );
    problems.push(Problem::new(&draft.origin, "listener.open", text));
}

fn tls(draft: &ListenerDraft, problems: &mut Vec<Problem>) -> Option<TlsFiles> {
    let protocol = draft.protocol.value;
    let takes_tls = matches!(
        protocol,
        Protocol::Auto | Protocol::Https | Protocol::Socks | Protocol::Tcp
    );
    for (key, file) in [("listener.cert", &draft.cert), ("listener.key", &draft.key)] {
        match file {
            Some(file) if takes_tls => check_file(key, file, problems),
            Some(file) => {
                let instead = match protocol {
                    Protocol::Udp => "tcp",
                    _ => "https or auto",
                };
                let text = format!(
                    "expected no TLS files for protocol {protocol}, found one; write protocol \
                     {instead} instead, or leave it out"
                );
                problems.push(Problem::new(&file.origin, key, text));
            }
            None => {}
        }
    }
    let needed = draft.protocol.value == Protocol::Https;
    let missing = |name: &str, problems: &mut Vec<Problem>| {
        let instead = match draft.origin {
            Origin::Argument(_) => format!("?{name}=proxy.pem"),
            Origin::Default | Origin::File(..) => format!("{name} = \"proxy.pem\""),
        };
        let mismatch = Mismatch::new("the path of a PEM file", instead);
        let key = format!("listener.{name}");
        problems.push(Problem::mismatch(&draft.origin, key, &mismatch, "nothing"));
    };
    match (&draft.cert, &draft.key) {
        (Some(cert), Some(key)) => {
            return Some(TlsFiles {
                cert: cert.clone(),
                key: key.clone(),
            });
        }
        (None, Some(_)) if takes_tls => missing("cert", problems),
        (Some(_), None) if takes_tls => missing("key", problems),
        (None, None) if needed => {
            missing("cert", problems);
            missing("key", problems);
        }
        _ => {}
    }
    None
}

const USERS: &str = "users to ask for";

/// Where a TLS client goes that names a host.
const HTTPS: u16 = 443;
