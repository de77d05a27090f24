//! The guard: addresses that are not public are reached by those only who are
//! let there by a rule, or sit at this machine.

use std::net::IpAddr;

use proxy_core::Special;

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
            (Protocol::Tcp, _) => Self::Everybody,
            (_, true) => Self::Loopback,
            (_, false) => Self::Nobody,
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
        let trusted = match person.trust {
            Trust::Everybody => true,
            // To dial what is unspecified is a mistake, whoever asks for it.
            Trust::Loopback => person.client.is_loopback() && special != Special::Unspecified,
            Trust::Nobody => false,
        };
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
        let own = name.trim_end_matches('.');
        let last = own.rsplit('.').next().unwrap_or(own);
        let is_meant = || {
            let rule = verdict.rule.and_then(|rule| self.rule(rule));
            rule.is_some_and(|rule| !matches!(rule.names, Keyed::Any))
        };
        let trusted = match person.trust {
            Trust::Everybody => true,
            Trust::Loopback => person.client.is_loopback(),
            Trust::Nobody => false,
        };
        match last.eq_ignore_ascii_case("localhost") && !trusted && !is_meant() {
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
