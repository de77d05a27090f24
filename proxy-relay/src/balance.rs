//! Which of several targets is tried first, and which one after it.

use std::sync::atomic::{AtomicU32, AtomicUsize, Ordering};

use proxy_core::TargetBuf;
use tokio::time::Instant;

/// How the connections of a [`PortMap`](crate::PortMap) are spread over its
/// targets.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Balance {
    /// Each tries the targets in the order given: all go to the first one for as
    /// long as it can be reached.
    #[default]
    Failover,
    /// Each begins at the target behind the one that the connection before it
    /// began at.
    RoundRobin,
}

/// The targets of a port map, and what is known of them from their use.
///
/// A target that failed is tried behind all others for [`PAUSE`]. Then a single
/// connection finds out whether it is back; the others go on passing it over, so
/// that they do not wait for it together.
#[derive(Debug)]
pub(crate) struct Targets {
    pub(crate) balance: Balance,
    list: Vec<Entry>,
    turn: AtomicUsize,
    begun: Instant,
}

impl Targets {
    pub(crate) fn new(target: TargetBuf) -> Self {
        Self {
            balance: Balance::default(),
            list: vec![Entry::new(target)],
            turn: AtomicUsize::new(0),
            begun: Instant::now(),
        }
    }

    pub(crate) fn push(&mut self, target: TargetBuf) {
        self.list.push(Entry::new(target));
    }

    /// A target's place in the list; never without one.
    pub(crate) fn at(&self, place: usize) -> &TargetBuf {
        &self.list[place % self.list.len()].target
    }

    /// The places to try for a connection that came at `now`, in this order.
    pub(crate) fn order(&self, now: Instant) -> impl Iterator<Item = usize> + use<> {
        let count = self.list.len();
        let order = self.detour(self.seconds(now));
        // Only what differs from the order written needs memory.
        (0..count).map(move |at| order.get(at).copied().unwrap_or(at))
    }

    /// Notes that a target was reached.
    pub(crate) fn works(&self, place: usize) {
        if let Some(entry) = self.list.get(place) {
            entry.works();
        }
    }

    /// Notes that a target failed for a connection that came at `now`.
    pub(crate) fn fails(&self, place: usize, now: Instant) {
        if let Some(entry) = self.list.get(place) {
            let until = self.seconds(now).saturating_add(PAUSE);
            entry.unfit_until.store(until, Ordering::Relaxed);
        }
    }

    /// Notes that a connection, which `led` with a target if it began there, has
    /// learnt nothing of it: the next one is to find out then.
    pub(crate) fn tells_nothing(&self, place: usize, led: bool) {
        if let Some(entry) = self.list.get(place).filter(|entry| led && !entry.is_fit()) {
            entry.unfit_until.store(1, Ordering::Relaxed);
        }
    }

    /// Empty if it is the order of the list.
    fn detour(&self, now: u32) -> Vec<usize> {
        let count = self.list.len();
        let first = match self.balance {
            Balance::RoundRobin if count > 1 => self.turn.fetch_add(1, Ordering::Relaxed) % count,
            _ => 0,
        };
        if count == 1 || (first == 0 && self.list.iter().all(Entry::is_fit)) {
            return Vec::new();
        }
        let mut order: Vec<usize> = (first..count).chain(0..first).collect();
        let lead = order.iter().copied().find(|at| self.list[*at].leads(now));
        order.sort_by_cached_key(|at| (Some(*at) != lead, !self.list[*at].is_fit()));
        order
    }

    /// Whole seconds since the beginning.
    fn seconds(&self, now: Instant) -> u32 {
        let since = now.saturating_duration_since(self.begun).as_secs();
        u32::try_from(since).unwrap_or(u32::MAX)
    }
}

#[derive(Debug)]
struct Entry {
    target: TargetBuf,
    /// 0 since it was last reached.
    unfit_until: AtomicU32,
}

impl Entry {
    fn new(target: TargetBuf) -> Self {
        Self {
            target,
            unfit_until: AtomicU32::new(0),
        }
    }

    fn works(&self) {
        // Nearly always so already: other cores keep their copy.
        if !self.is_fit() {
            self.unfit_until.store(0, Ordering::Relaxed);
        }
    }

    fn is_fit(&self) -> bool {
        self.unfit_until.load(Ordering::Relaxed) == 0
    }

    /// Whether it may be tried before others. One that has failed may by the
    /// first that asks behind its pause, and by nobody else for another one.
    fn leads(&self, now: u32) -> bool {
        let until = self.unfit_until.load(Ordering::Relaxed);
        if until == 0 {
            return true;
        }
        let (next, relaxed) = (now.saturating_add(PAUSE), Ordering::Relaxed);
        let own = &self.unfit_until;
        until <= now && own.compare_exchange(until, next, relaxed, relaxed).is_ok()
    }
}

/// For how many seconds a target that failed is passed over.
const PAUSE: u32 = 10;

#[cfg(test)]
mod tests {
    use super::*;
    use proxy_core::Target;
    use std::time::Duration;

    fn targets(balance: Balance, count: u16) -> Targets {
        let target = |port: u16| Target::from(std::net::SocketAddr::from(([192, 0, 2, 1], port)));
        let mut targets = Targets::new(target(1).into());
        (2..=count).for_each(|port| targets.push(target(port).into()));
        targets.balance = balance;
        targets
    }

    /// So many seconds after the beginning.
    fn orders(targets: &Targets, after: u64) -> Vec<usize> {
        let now = targets.begun + Duration::from_secs(after);
        targets.order(now).collect()
    }

    fn fails(targets: &Targets, place: usize, after: u64) {
        targets.fails(place, targets.begun + Duration::from_secs(after));
    }

    #[test]
    fn failover_keeps_the_order_written() {
        let targets = targets(Balance::Failover, 3);
        for _ in 0..3 {
            assert_eq!(orders(&targets, 0), [0, 1, 2]);
        }
    }

    #[test]
    fn round_robin_begins_one_further_each_time() {
        let targets = targets(Balance::RoundRobin, 3);
        let all = [(); 4].map(|()| orders(&targets, 0));
        assert_eq!(all, [[0, 1, 2], [1, 2, 0], [2, 0, 1], [0, 1, 2]]);
    }

    #[test]
    fn who_fails_is_tried_last_until_it_works_again() {
        let targets = targets(Balance::Failover, 3);
        fails(&targets, 0, 5);
        assert_eq!(orders(&targets, 6), [1, 2, 0]);
        fails(&targets, 1, 6);
        assert_eq!(orders(&targets, 7), [2, 0, 1]);
        targets.works(1);
        assert_eq!(orders(&targets, 8), [1, 2, 0]);
        targets.works(0);
        assert_eq!(orders(&targets, 9), [0, 1, 2]);
    }

    #[test]
    fn one_connection_looks_whether_a_target_is_back() {
        let targets = targets(Balance::Failover, 2);
        fails(&targets, 0, 5);
        assert_eq!(orders(&targets, 14), [1, 0]);
        assert_eq!(orders(&targets, 15), [0, 1], "its pause is over");
        assert_eq!(orders(&targets, 15), [1, 0], "one is looking already");
        assert_eq!(orders(&targets, 25), [0, 1], "that one never told");
        targets.works(0);
        assert_eq!(orders(&targets, 25), [0, 1]);
    }

    #[test]
    fn a_look_that_tells_nothing_is_left_to_the_next() {
        let targets = targets(Balance::Failover, 2);
        fails(&targets, 0, 5);
        for _ in 0..3 {
            assert_eq!(orders(&targets, 15), [0, 1]);
            targets.tells_nothing(0, true);
        }
        assert_eq!(orders(&targets, 15), [0, 1]);
        // Nor does one that only came to it behind the others.
        targets.tells_nothing(0, false);
        assert_eq!(orders(&targets, 15), [1, 0]);
        targets.works(0);
        targets.tells_nothing(0, true);
        assert_eq!(orders(&targets, 15), [0, 1]);
    }

    #[test]
    fn a_look_is_not_wasted_on_one_that_another_goes_before() {
        let targets = targets(Balance::RoundRobin, 2);
        fails(&targets, 1, 0);
        assert_eq!(orders(&targets, 20), [0, 1]);
        assert_eq!(orders(&targets, 20), [1, 0]);
    }

    #[test]
    fn a_single_target_is_always_tried() {
        for balance in [Balance::Failover, Balance::RoundRobin] {
            let targets = targets(balance, 1);
            fails(&targets, 0, 0);
            assert_eq!(orders(&targets, 1), [0]);
        }
    }
}
