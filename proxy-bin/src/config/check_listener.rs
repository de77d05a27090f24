//! What only shows when all values of one listener are together.

use proxy_core::{Host, Network};

use super::check::{check_file, source};
use super::listener::{ListenerDraft, TlsFiles};
use super::problem::{Mismatch, Problem, Sourced};
use super::{Listener, Origin, Parent, Protocol, Source, parents};

/// Judges one listener; answers `None` with at least one problem.
pub(super) fn listener(
    draft: ListenerDraft,
    have_users: bool,
    parents: &[Parent],
    sources: &[Source],
    problems: &mut Vec<Problem>,
) -> Option<Listener> {
    let before = problems.len();
    check_target(&draft, problems);
    check_auth(&draft, have_users, problems);
    let protocol = draft.protocol.value;
    let auth = draft.auth.as_ref().map(|auth| auth.value);
    let auth = protocol != Protocol::Tcp && auth.unwrap_or(have_users);
    check_open(&draft, auth, problems);
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
        target: draft.target.map(|target| target.value),
        tls,
        auth,
        clients: draft
            .clients
            .map(|clients| clients.into_iter().map(|network| network.value).collect()),
        trust_loopback: draft.trust_loopback.is_none_or(|trust| trust.value),
        source,
        via,
    })
}

fn check_target(draft: &ListenerDraft, problems: &mut Vec<Problem>) {
    let protocol = draft.protocol.value;
    let address = draft.address.value;
    match (&draft.target, protocol) {
        (Some(target), Protocol::Tcp) => {
            let goes_to = target.value.as_target();
            if goes_to.port == address.port() && goes_to.host == Host::Ip(address.ip()) {
                let text = format!(
                    "expected another server, found this listener's own address {address}; write \
                     where connections shall go instead"
                );
                problems.push(Problem::new(&target.origin, "listener.target", text));
            }
        }
        (Some(target), _) => {
            let text = format!(
                "expected no target, found {} for protocol {protocol}, whose clients choose their \
                 own; write protocol tcp instead, or no target",
                target.value
            );
            problems.push(Problem::new(&target.origin, "listener.target", text));
        }
        (None, Protocol::Tcp) => {
            let text = match draft.origin {
                Origin::Argument(_) => format!(
                    "expected a host and a port behind the address, found nothing; write \
                     tcp://{address}/db.example:5432 instead"
                ),
                Origin::Default | Origin::File(..) => "expected a host and a port, found nothing; \
                     write target = \"db.example:5432\" instead"
                    .to_owned(),
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
    if draft.protocol.value == Protocol::Tcp {
        let text = "expected no auth for protocol tcp, which has no way to ask for it, found it \
                    switched on; write protocol socks instead, or no auth";
        problems.push(Problem::new(&auth.origin, "listener.auth", text));
    } else if !have_users {
        let text = "expected users to ask for, found none; write a [[user]] (on the command line \
                    --user NAME:PASSWORD) instead, or no auth";
        problems.push(Problem::new(&auth.origin, "listener.auth", text));
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
    let closed = auth || open || listed || address.ip().is_loopback();
    if closed || draft.protocol.value == Protocol::Tcp {
        return;
    }
    let (users, clients, open) = match draft.origin {
        Origin::Argument(_) => (
            "--user NAME:PASSWORD",
            "?clients=192.168.0.0/16",
            "?open=on",
        ),
        Origin::Default | Origin::File(..) => (
            "a [[user]] and auth = true",
            "clients = [\"192.168.0.0/16\"]",
            "open = true",
        ),
    };
    let text = format!(
        "expected users to ask for or a list of client networks at {address}, which others can \
         reach, found neither: an open proxy; write {users}, or {clients} instead, or {open} if \
         everybody may use it"
    );
    problems.push(Problem::new(&draft.origin, "listener.open", text));
}

fn tls(draft: &ListenerDraft, problems: &mut Vec<Problem>) -> Option<TlsFiles> {
    let protocol = draft.protocol.value;
    let takes_tls = matches!(protocol, Protocol::Auto | Protocol::Https);
    for (key, file) in [("listener.cert", &draft.cert), ("listener.key", &draft.key)] {
        match file {
            Some(file) if takes_tls => check_file(key, file, problems),
            Some(file) => {
                let text = format!(
                    "expected no TLS files for protocol {protocol}, found one; write protocol \
                     https or auto instead, or leave it out"
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
