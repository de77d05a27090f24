//! What the rules say of all targets alike, for who has not named one yet.

use super::rule::Keyed;
use super::{Act, Address, Condition, Person, Policy, Request, Verdict};
use crate::config::Action;

impl Policy {
    /// The most that the rules grant any target, whichever it is: some may be
    /// forbidden beside, but none goes another way. `None` if that is not clear.
    pub(crate) fn judge_any(&self, person: &Person, act: Act) -> Option<Verdict> {
        let request = Request {
            person,
            act,
            name: None,
            port: 0,
            address: Address::Never,
        };
        for (at, rule) in (0..).zip(self.rules.iter().take(FIRST_RULES)) {
            let rest = rule.rest.as_deref();
            // The ports are looked at last, so all else holds if they fail.
            let failed = rest.and_then(|rest| rest.fails(&request));
            let holds = matches!(failed, None | Some(Condition::Ports))
                && self.user_holds(at, rule, &request)
                && self.client_holds(at, rule, &request)
                && rest.is_none_or(|rest| rest.fails_now(self.clock).is_none());
            let is_for_all = rest.is_none_or(|rest| rest.ports.is_none())
                && matches!(rule.names, Keyed::Any)
                && matches!(rule.networks, Keyed::Any);
            match (holds, is_for_all, rule.action) {
                (false, ..) | (true, false, Action::Deny) => {}
                (true, false, Action::Allow { .. }) => return None,
                (true, true, _) => return Some(self.verdict(at)),
            }
        }
        (self.rules.len() <= FIRST_RULES).then_some(Verdict::OPEN)
    }
}

/// So many rules are looked at one by one without anybody noticing.
const FIRST_RULES: usize = 256;
