//! What policy must know of a request while its target is being reached.

use std::cell::{Cell, RefCell};
use std::net::IpAddr;
use std::rc::Rc;
use std::time::Duration;

use proxy_core::{ConnectError, ConnectErrorKind, FreeList, Host, ProxyHeader, Target};

use crate::carried::Carriers;
use crate::cause::{Cause, Scarce};
use crate::datagrams::Picked;
use crate::policy::{Act, Judgement, Person, Policy, Usual, Verdict};
use crate::targets::Tries;
use crate::way::Way;

/// Who wants to do what, and what was decided about it.
#[derive(Debug)]
pub(crate) struct Errand {
    pub(crate) person: Person,
    pub(crate) act: Act,
    /// `None` until the target's address is known.
    pub(crate) verdict: Option<Verdict>,
    /// The way, where rules leave it open.
    pub(crate) usual: Usual,
    /// Whose address a sticky source chooses.
    pub(crate) stick: u64,
    /// Not a tunnel.
    pub(crate) is_request: bool,
    /// It is for an `https` URL.
    pub(crate) secure: bool,
    /// The proxies that a tunnel came through.
    pub(crate) via: Option<Box<[u8]>>,
    /// An idle connection will do.
    pub(crate) reuse: bool,
    /// If it has not lain idle for longer than this.
    pub(crate) within: Option<Duration>,
    /// What the target is sent first. Boxed, since most are sent nothing.
    pub(crate) header: Option<Box<ProxyHeader>>,
    /// Where its datagrams go out from.
    pub(crate) picked: Picked,
    /// The parents that carry its datagrams.
    pub(crate) carriers: Carriers,
    /// What stood in the way last.
    pub(crate) cause: Cell<Option<Cause>>,
    /// What stood in the way of each target of a port relay, for the log.
    pub(crate) tries: Option<Rc<Tries>>,
}

/// An [`Errand`] in memory that is used again: each request has one, and a
/// tunnel shall not keep it for as long as it lives.
#[derive(Debug)]
pub(crate) struct Boxed(Option<Box<Errand>>);

impl Boxed {
    pub(crate) fn new(errand: Errand) -> Self {
        Self(Some(match SPARE.with_borrow_mut(FreeList::take) {
            None => Box::new(errand),
            Some(mut room) => {
                *room = errand;
                room
            }
        }))
    }

    /// `None` once it was given back.
    pub(crate) fn get(&self) -> Option<&Errand> {
        self.0.as_deref()
    }

    /// `None` once it was given back.
    pub(crate) fn get_mut(&mut self) -> Option<&mut Errand> {
        self.0.as_deref_mut()
    }

    /// Gives the memory back.
    pub(crate) fn give_back(&mut self) {
        if let Some(mut errand) = self.0.take() {
            // They would live on until it is used again.
            errand.carriers = Carriers::default();
            SPARE.with_borrow_mut(|spare| spare.give(errand));
        }
    }
}

impl Drop for Boxed {
    fn drop(&mut self) {
        self.give_back();
    }
}

thread_local! {
    static SPARE: RefCell<FreeList<Box<Errand>>> = const { RefCell::new(FreeList::new(256)) };
}

impl Errand {
    /// The way that was decided on; `None` if there is none, or not yet.
    pub(crate) fn way(&self) -> Option<Way> {
        self.verdict.and_then(|verdict| self.way_of(&verdict))
    }

    /// The number of that way for a driver; 0 if there is none.
    pub(crate) fn way_number(&self) -> u64 {
        self.way().map_or(0, |way| way.number(self.secure))
    }

    /// Whether an HTTP parent may be handed it as it is: in clear it would read
    /// what is meant for the target alone, and a header would not get there.
    pub(crate) fn suits_parents(&self) -> bool {
        self.is_request && !self.secure && self.header.is_none()
    }

    /// The way that a verdict orders; `None` if it forbids all.
    pub(crate) fn way_of(&self, verdict: &Verdict) -> Option<Way> {
        let usual = self.usual.after(verdict)?;
        Some(Way::new(usual, self.stick))
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

    /// The way to an address, if rules and guard let the client go there.
    ///
    /// # Errors
    /// That it is forbidden.
    pub(crate) fn permit(
        &self,
        policy: &Policy,
        verdict: &Verdict,
        address: IpAddr,
    ) -> Result<Way, ConnectError> {
        let Some(way) = self.way_of(verdict) else {
            return Err(self.refused(Cause::rule(verdict)));
        };
        match policy.guard(&self.person, verdict, address) {
            Ok(()) => Ok(way),
            Err(special) => Err(self.refused(Cause::Guard(special))),
        }
    }

    /// What the guard says of a target that a parent will look up: of a name only little
    /// is known.
    ///
    /// # Errors
    /// That it is forbidden.
    pub(crate) fn guard_unseen(
        &self,
        policy: &Policy,
        target: Target<'_>,
    ) -> Result<(), ConnectError> {
        self.verdict.map_or(Ok(()), |verdict| {
            self.guard_unseen_by(policy, &verdict, target)
        })
    }

    /// The same of a target that was judged by itself.
    ///
    /// # Errors
    /// That it is forbidden.
    pub(crate) fn guard_unseen_by(
        &self,
        policy: &Policy,
        verdict: &Verdict,
        target: Target<'_>,
    ) -> Result<(), ConnectError> {
        let guarded = match target.host {
            Host::Ip(ip) => policy.guard(&self.person, verdict, ip),
            Host::Name(name) => policy.guard_name(&self.person, verdict, name),
        };
        guarded.map_err(|special| self.refused(Cause::Guard(special)))
    }

    /// Why it came to nothing.
    pub(crate) fn failed(&self, error: ConnectError) -> Cause {
        let known = self.cause.get().filter(|cause| match error.kind {
            ConnectErrorKind::Forbidden => true,
            ConnectErrorKind::Exhausted => matches!(cause, Cause::Limit(_)),
            _ => false,
        });
        known.unwrap_or(Cause::Connect(error))
    }

    /// Remembers which limit was reached, for the log.
    pub(crate) fn crowded_out(&self, scarce: Scarce) -> ConnectError {
        self.cause.set(Some(Cause::Limit(scarce)));
        ConnectError::origin(ConnectErrorKind::Exhausted)
    }

    /// Remembers why, for the log.
    pub(crate) fn refused(&self, cause: impl Into<Option<Cause>>) -> ConnectError {
        self.cause.set(cause.into());
        ConnectError::origin(ConnectErrorKind::Forbidden)
    }
}
