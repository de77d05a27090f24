//! What a `udp` listener may have, and what is for connections only.

use std::time::Duration;

use super::Protocol;
use super::listener::ListenerDraft;
use super::problem::{Origin, Problem};
use super::relay::{self, RelayDraft};
use crate::unix;

/// Judges what is left of it; answers how long its flows may rest.
pub(super) fn finish(
    draft: &ListenerDraft,
    problems: &mut Vec<Problem>,
) -> Option<Option<Duration>> {
    let protocol = draft.protocol.value;
    if protocol != Protocol::Udp {
        if let Some(idle) = &draft.idle {
            let text = format!(
                "expected no idle for protocol {protocol}, found one; write protocol udp instead, \
                 or leave it out ([timeouts] has those of connections)"
            );
            problems.push(Problem::new(&idle.origin, "listener.idle", text));
        }
        return None;
    }
    if let Some(target) = &draft.target
        && unix::path(target.value.as_target()).is_some()
    {
        let text = format!(
            "expected a host and a port for protocol udp, found {}; write {} instead",
            unix::shown(target.value.as_target()),
            instead(&target.origin)
        );
        problems.push(Problem::new(&target.origin, "listener.target", text));
    }
    let front_ends = draft.proxy_protocol.as_ref().and_then(|all| all.first());
    let front_ends = front_ends.map(|network| ("proxy_protocol", &network.origin));
    let header = draft.send_proxy.as_ref();
    let header = header.map(|version| ("send_proxy", &version.origin));
    for (key, origin) in front_ends.into_iter().chain(header) {
        unfit(key, "whose datagrams have no header", origin, problems);
    }
    draft.idle.as_ref().map(|idle| idle.value)
}

/// Judges what only relays of connections have.
pub(super) fn check_relay(draft: &RelayDraft, problems: &mut Vec<Problem>) {
    for (key, origin) in draft.written() {
        if key != "targets" {
            unfit(key, "which has one target, in clear", origin, problems);
            continue;
        }
        let text = format!(
            "expected a single target for protocol udp, found a list; write {} instead",
            instead(origin)
        );
        let key = match origin {
            Origin::Argument(_) => "listener.target",
            Origin::Default | Origin::File(..) => "listener.targets",
        };
        problems.push(Problem::new(origin, key, text));
    }
}

fn unfit(key: &str, why: &str, origin: &Origin, problems: &mut Vec<Problem>) {
    let text = format!(
        "expected no {key} for protocol udp, {why}, found one; write protocol tcp instead, or \
         leave it out"
    );
    problems.push(Problem::new(origin, format!("listener.{key}"), text));
}

/// A target as it is written there.
fn instead(origin: &Origin) -> String {
    let such = relay::such(Protocol::Udp);
    match origin {
        Origin::Argument(_) => such.to_owned(),
        Origin::Default | Origin::File(..) => format!("target = \"{such}\""),
    }
}
