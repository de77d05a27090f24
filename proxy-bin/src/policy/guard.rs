//! The guard: addresses that are not public are reached by those only who are
//! let there by a rule, or sit at this machine.

use std::net::IpAddr;

use proxy_core::{Host, Special};

use super::rule::Keyed;
use super::{Person, Policy, Verdict};
use crate::config::{Action, Listener, Protocol};

/// Whom the guard lets to special addresses without a rule.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Trust {
    /// The target is not of the client's choosing.
    Everybody,
    /// Clients at this machine.
    Loopback,
    Nobody,
}

impl Trust {
    pub(super) fn of(listener: &Listener) -> Self {
        match (listener.protocol, listener.trust_loopback) {
            (Protocol::Tcp | Protocol::Udp, _) => Self::Everybody,
            (_, true) => Self::Loopback,
            (_, false) => Self::Nobody,
        }
    }
}

impl Person {
    fn is_trusted(&self) -> bool {
        match self.trust {
            Trust::Everybody => true,
            Trust::Loopback => self.client.is_loopback(),
            Trust::Nobody => false,
        }
    }
}

impl Policy {
    /// Whether `address` may be dialled: the very one, just before it is.
    ///
    /// A rule lifts the guard for the addresses in its networks, those of a
    /// prefix without bits (`0.0.0.0/0`) left out: who means everything does not
    /// mean the inside.
    ///
    /// # Errors
    /// What is special about the address.
    pub(crate) fn guard(
        &self,
        person: &Person,
        verdict: &Verdict,
        address: IpAddr,
    ) -> Result<(), Special> {
        let Some(special) = Special::of(address) else {
            return Ok(());
        };
        // To dial what is unspecified is a mistake, whoever asks for it.
        let may_be_meant = special != Special::Unspecified || person.trust == Trust::Everybody;
        let trusted = person.is_trusted() && may_be_meant;
        match trusted || self.lifts(verdict, address) {
            true => Ok(()),
            false => Err(special),
        }
    }

    /// Whether `name` may be handed to a parent, which would look it up for
    /// itself: `localhost` and all below it (RFC 6761 section 6.3) only for
    /// clients at this machine, or by a rule with names.
    ///
    /// # Errors
    /// What the name would lead to.
    pub(crate) fn guard_name(
        &self,
        person: &Person,
        verdict: &Verdict,
        name: &str,
    ) -> Result<(), Special> {
        let is_meant = || {
            let rule = verdict.rule.and_then(|rule| self.rule(rule));
            rule.is_some_and(|rule| !matches!(rule.names, Keyed::Any))
        };
        match Host::Name(name).is_localhost() && !person.is_trusted() && !is_meant() {
            true => Err(Special::Loopback),
            false => Ok(()),
        }
    }

    fn lifts(&self, verdict: &Verdict, address: IpAddr) -> bool {
        if verdict.action == Action::Deny {
            return false;
        }
        let prefix = verdict.rule.and_then(|rule| {
            let own = self.rule(rule)?;
            self.prefix(rule, own, address)
        });
        prefix.is_some_and(|prefix| prefix > 0)
    }
}
