//! What policy must know of a request while its target is being reached.

use std::cell::Cell;
use std::net::IpAddr;

use proxy_core::{ConnectError, ConnectErrorKind, Host, Target};

use crate::cause::Cause;
use crate::config::{Action, Via};
use crate::policy::{Act, Judgement, Person, Policy, Verdict};
use crate::way::Way;

/// Who wants to do what, and what was decided about it.
#[derive(Debug)]
pub(crate) struct Errand {
    pub(crate) person: Person,
    pub(crate) act: Act,
    /// `None` until the target's address is known.
    pub(crate) verdict: Option<Verdict>,
    /// The way, where rules leave it open.
    pub(crate) usual: Way,
    /// Not a tunnel.
    pub(crate) is_request: bool,
    /// An idle connection will do.
    pub(crate) reuse: bool,
    /// What stood in the way last.
    pub(crate) cause: Cell<Option<Cause>>,
}

impl Errand {
    /// The way that was decided on; `None` if there is none, or not yet.
    pub(crate) fn way(&self) -> Option<Way> {
        self.verdict.and_then(|verdict| self.way_of(&verdict))
    }

    /// The way that a verdict orders; `None` if it forbids all.
    pub(crate) fn way_of(&self, verdict: &Verdict) -> Option<Way> {
        match verdict.action {
            Action::Deny => None,
            Action::Allow { via, source } => Some(Way {
                via: via.unwrap_or(self.usual.via),
                source: source.or(self.usual.source),
                stick: self.usual.stick,
            }),
        }
    }

    /// The way that a verdict orders for datagrams.
    ///
    /// # Errors
    /// That it forbids all, or sends them through a parent, which carries none.
    pub(crate) fn datagram_way(&self, verdict: &Verdict) -> Result<Way, ConnectError> {
        match self.way_of(verdict) {
            None => Err(self.refused(Cause::rule(verdict))),
            Some(way) if way.via == Via::Direct => Ok(way),
            Some(_) => Err(ConnectError::parent(ConnectErrorKind::NetworkUnreachable)),
        }
    }

    /// What the rules say if the target has this address.
    pub(crate) fn judge(&self, policy: &Policy, target: Target<'_>, address: IpAddr) -> Verdict {
        match policy.judge(&self.person, self.act, target, Some(address)) {
            Judgement::Decided(verdict) => verdict,
            // With an address nothing is left open.
            Judgement::NeedsAddress => self.judge_nowhere(policy, target),
        }
    }

    /// What the rules say if the target has no address.
    pub(crate) fn judge_nowhere(&self, policy: &Policy, target: Target<'_>) -> Verdict {
        policy.judge_unresolved(&self.person, self.act, target)
    }

    /// Keeps clients from special addresses.
    ///
    /// # Errors
    /// That it is forbidden.
    pub(crate) fn guard(
        &self,
        policy: &Policy,
        verdict: &Verdict,
        address: IpAddr,
    ) -> Result<(), ConnectError> {
        let guarded = policy.guard(&self.person, verdict, address);
        guarded.map_err(|special| self.refused(Cause::Guard(special)))
    }

    /// The same for a target that a parent will look up: of a name only little
    /// is known.
    ///
    /// # Errors
    /// That it is forbidden.
    pub(crate) fn guard_unseen(
        &self,
        policy: &Policy,
        target: Target<'_>,
    ) -> Result<(), ConnectError> {
        let Some(verdict) = &self.verdict else {
            return Ok(());
        };
        let guarded = match target.host {
            Host::Ip(ip) => policy.guard(&self.person, verdict, ip),
            Host::Name(name) => policy.guard_name(&self.person, verdict, name),
        };
        guarded.map_err(|special| self.refused(Cause::Guard(special)))
    }

    /// Remembers why it came to nothing, unless that is known already.
    pub(crate) fn failed(&self, error: ConnectError) {
        let known = match error.kind {
            ConnectErrorKind::Forbidden => self.cause.get(),
            _ => None,
        };
        self.cause.set(known.or(Some(Cause::Connect(error))));
    }

    /// Remembers why, for the log.
    pub(crate) fn refused(&self, cause: impl Into<Option<Cause>>) -> ConnectError {
        self.cause.set(cause.into());
        ConnectError::origin(ConnectErrorKind::Forbidden)
    }
}
