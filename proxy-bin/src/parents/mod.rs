//! Reaching targets through parent proxies: which parent, and what if it fails.

mod chain;
mod health;
mod load;
mod pending;
mod trouble;

use std::cell::Cell;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use proxy_core::{ConnectError, Target, Timeouts};
use proxy_socks::ParentRelay;
use tokio::net::TcpStream;
use tokio::time::Instant;

use crate::config::Order;
use crate::throttle::Throttle;
use crate::upstream::{Lane, Upstream};
use chain::Chain;
use health::Health;
use pending::Pending;
use trouble::{Blame, Failure, Stage, Trouble};

pub(crate) use load::load;

/// All chains and groups, ready to be dialled; what the workers share.
#[derive(Clone, Debug, Default)]
pub(crate) struct Ways(Arc<Shared>);

#[derive(Debug, Default)]
struct Shared {
    /// What this process calls itself in `Via`.
    name: String,
    /// Somebody is shown it.
    is_shown: bool,
    chains: Vec<Chain>,
    /// In the order of `Config::parents`.
    groups: Vec<Group>,
}

impl Ways {
    /// What this process calls itself in `Via`, so that it knows a request that
    /// comes back; `None` if nobody is shown it.
    pub(crate) fn name(&self) -> Option<&str> {
        self.0.is_shown.then_some(&*self.0.name)
    }
}

/// A parent or a group of them.
#[derive(Debug)]
struct Group {
    name: String,
    /// Indices of chains: 1 to 64 of them.
    members: Vec<u16>,
    order: Order,
}

/// The parents as one worker sees them.
#[derive(Debug)]
pub(crate) struct Parents {
    ways: Ways,
    /// For each chain.
    states: Vec<State>,
    /// For each group, whose turn it is.
    turns: Vec<Cell<u16>>,
    pending: Pending,
    patience: Option<Duration>,
}

#[derive(Debug, Default)]
struct State {
    health: Health,
    warned: Throttle,
}

/// What a connection is for.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Wanted<'w> {
    /// Whom it is for.
    pub(crate) client: IpAddr,
    pub(crate) target: Target<'w>,
    /// The last parent itself will do, if it speaks HTTP.
    pub(crate) request: bool,
    /// The proxies that a tunnel came through, as in `Via`.
    pub(crate) via: Option<&'w [u8]>,
}

/// A parent or group, and which member is tried first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Turn {
    group: u16,
    first: u16,
}

impl Parents {
    pub(crate) fn new(ways: Ways, timeouts: &Timeouts) -> Self {
        let Shared { chains, groups, .. } = &*ways.0;
        Self {
            states: chains.iter().map(|_| State::default()).collect(),
            turns: groups.iter().map(|_| Cell::default()).collect(),
            pending: Pending::default(),
            // A little less than the servers' own patience, so that it is known
            // which parent was too slow.
            patience: timeouts.connect.map(|time| time * 19 / 20),
            ways,
        }
    }

    /// [`Ways::name`].
    pub(crate) fn name(&self) -> Option<&str> {
        self.ways.name()
    }

    /// Chooses the member of the parent or group `via`, an index into
    /// `Config::parents`, that shall be tried first.
    ///
    /// # Panics
    /// If there is no such parent.
    pub(crate) fn turn(&self, via: u16) -> Turn {
        let group = self.group(via);
        let count = group.members.len();
        let start = match group.order {
            Order::Failover => 0,
            Order::RoundRobin => {
                let turn = &self.turns[usize::from(via)];
                let at = usize::from(turn.get());
                turn.set(u16::try_from((at + 1) % count).unwrap_or(0));
                at
            }
        };
        let fit = (0..count)
            .map(|step| (start + step) % count)
            .find(|at| self.is_fit(group.members[*at]));
        Turn {
            group: via,
            first: u16::try_from(fit.unwrap_or(start)).unwrap_or(0),
        }
    }

    /// The chain that is tried first, as [`Lane::chain`].
    pub(crate) fn lane(&self, turn: Turn) -> u16 {
        let members = &self.group(turn.group).members;
        lane(members[usize::from(turn.first)])
    }

    /// Whether the chain tried first ends in an HTTP proxy, which takes requests
    /// for any target on one connection.
    pub(crate) fn takes_requests(&self, turn: Turn) -> bool {
        let members = &self.group(turn.group).members;
        let chain = usize::from(members[usize::from(turn.first)]);
        self.ways.0.chains[chain].parent().is_some()
    }

    /// Reaches the target through the member whose turn it is, or, while that is
    /// the parents' own trouble, through the next ones. For a request, the last
    /// parent itself is reached if it speaks HTTP, and [`Upstream::parent`] says
    /// so.
    ///
    /// `dial` connects to the first hop. Cancel safe: what was dialled is closed.
    ///
    /// # Errors
    /// The trouble of the member tried last.
    pub(crate) async fn connect<D>(
        &self,
        turn: Turn,
        wanted: Wanted<'_>,
        dial: D,
    ) -> Result<Upstream, ConnectError>
    where
        D: AsyncFn(Target<'_>) -> Result<TcpStream, ConnectError>,
    {
        let all = Untried::all(self.group(turn.group).members.len());
        let attempt = async |member, budget| self.attempt(member, wanted, budget, &dial).await;
        let (member, mut upstream) = self.try_each(turn, all, attempt).await?;
        upstream.set_lane(Lane {
            chain: lane(member),
            ..upstream.lane()
        });
        Ok(upstream)
    }

    /// Whether one of them can relay datagrams.
    pub(crate) fn carries_datagrams(&self, via: u16) -> bool {
        !self.carriers(self.group(via)).is_empty()
    }

    /// Asks for an association: the member whose turn it is, or the next one, of
    /// those that relay datagrams.
    ///
    /// # Errors
    /// The trouble of the member tried last.
    pub(crate) async fn associate<D>(
        &self,
        turn: Turn,
        dial: D,
    ) -> Result<ParentRelay, ConnectError>
    where
        D: AsyncFn(Target<'_>) -> Result<TcpStream, ConnectError>,
    {
        let carriers = self.carriers(self.group(turn.group));
        let attempt = async |member: u16, budget| {
            let chain = &self.ways.0.chains[usize::from(member)];
            let stage = Cell::default();
            within(budget, &stage, chain.associate(&stage, &dial)).await
        };
        let (_, relay) = self.try_each(turn, carriers, attempt).await?;
        Ok(relay)
    }

    fn carriers(&self, group: &Group) -> Untried {
        let mut carriers = Untried::all(group.members.len());
        for (at, member) in group.members.iter().enumerate() {
            if !self.ways.0.chains[usize::from(*member)].carries_datagrams() {
                carriers.remove(at);
            }
        }
        carriers
    }

    /// Tries the members that are `untried`, and says which one it was.
    async fn try_each<T>(
        &self,
        turn: Turn,
        mut untried: Untried,
        attempt: impl AsyncFn(u16, Option<Duration>) -> Result<T, Failure>,
    ) -> Result<(u16, T), ConnectError> {
        let group = self.group(turn.group);
        let end = self.patience.map(|patience| Instant::now() + patience);
        loop {
            let at = self.next(group, turn, untried);
            let member = group.members[at];
            let budget = end.map(|end| untried.share(end));
            untried.remove(at);
            let failure = match attempt(member, budget).await {
                Ok(reached) => {
                    self.states[usize::from(member)].health.works();
                    return Ok((member, reached));
                }
                Err(failure) => failure,
            };
            self.note(group, member, &failure);
            let elsewhere = matches!(failure.blame(), Blame::Parent | Blame::Unclear);
            if !elsewhere || untried.is_empty() {
                return Err(failure.error());
            }
        }
    }

    async fn attempt<D>(
        &self,
        member: u16,
        wanted: Wanted<'_>,
        budget: Option<Duration>,
        dial: &D,
    ) -> Result<Upstream, Failure>
    where
        D: AsyncFn(Target<'_>) -> Result<TcpStream, ConnectError>,
    {
        let chain = &self.ways.0.chains[usize::from(member)];
        let _pending = match chain.hides_circles() {
            true => match self.pending.enter(wanted.client, wanted.target) {
                None => return Err(Failure::new(Stage::default(), Trouble::Circle)),
                entered => entered,
            },
            false => None,
        };
        let stage = Cell::default();
        let reaching = chain.reach(wanted, &self.ways.0.name, &stage, dial);
        within(budget, &stage, reaching).await
    }

    /// The next member: the first untried one from the turn on that is fit, or,
    /// if none is, the first untried one.
    fn next(&self, group: &Group, turn: Turn, untried: Untried) -> usize {
        let count = group.members.len();
        let first = usize::from(turn.first);
        let all = || (0..count).map(|step| (first + step) % count);
        let mut left = all().filter(|at| untried.has(*at));
        let fit = |at: &usize| self.is_fit(group.members[*at]);
        let any = left.clone().next();
        left.find(fit).or(any).unwrap_or(first)
    }

    fn note(&self, group: &Group, member: u16, failure: &Failure) {
        let state = &self.states[usize::from(member)];
        let chain = &self.ways.0.chains[usize::from(member)];
        let now = std::time::Instant::now();
        match failure.blame() {
            Blame::Target => return state.health.works(),
            Blame::Ours | Blame::Unclear => {}
            Blame::Parent => state.health.fails(now),
        }
        if let Some(failures) = state.warned.admit(now) {
            tracing::warn!(
                via = group.name,
                parent = chain.name(),
                hop = %chain.hop_name(failure.hop()),
                failures,
                "{}: {failure}",
                failure.error()
            );
        }
    }

    fn is_fit(&self, member: u16) -> bool {
        self.states[usize::from(member)].health.is_fit()
    }

    fn group(&self, via: u16) -> &Group {
        &self.ways.0.groups[usize::from(via)]
    }
}

/// Gives an attempt so much time.
async fn within<T>(
    budget: Option<Duration>,
    stage: &Cell<Stage>,
    attempt: impl Future<Output = Result<T, Failure>>,
) -> Result<T, Failure> {
    match budget {
        None => attempt.await,
        Some(budget) => tokio::time::timeout(budget, attempt)
            .await
            .unwrap_or_else(|_| Err(Failure::late(stage.get()))),
    }
}

/// How a chain is told from others and from none.
fn lane(chain: u16) -> u16 {
    chain + 1
}

/// The members that were not tried, a bit for each.
#[derive(Clone, Copy, Debug)]
struct Untried(u64);

impl Untried {
    fn all(count: usize) -> Self {
        Self(u64::MAX >> (64 - count.clamp(1, 64)))
    }

    fn remove(&mut self, at: usize) {
        self.0 &= !(1 << at);
    }

    fn has(self, at: usize) -> bool {
        self.0 >> at & 1 == 1
    }

    fn is_empty(self) -> bool {
        self.0 == 0
    }

    /// An equal part of the time that is left, so that each has its chance.
    fn share(self, end: Instant) -> Duration {
        end.saturating_duration_since(Instant::now()) / self.0.count_ones().max(1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Draft;
    use proxy_core::ConnectErrorKind;

    /// A group of four parents, each at a port of its number.
    fn parents(order: &str) -> Parents {
        let mut toml = String::new();
        for number in 1..=4 {
            toml += &format!("[[parent]]\nname = \"p{number}\"\nurl = \"http://h:{number}\"\n");
        }
        toml += "[[group]]\nname = \"all\"\nparents = [\"p1\", \"p2\", \"p3\", \"p4\"]\n";
        toml += &format!("order = \"{order}\"\n");
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("p.toml");
        std::fs::write(&path, toml).expect("written");
        let draft = Draft::read(&path).expect("no mistake");
        let config = draft.finish().expect("no mistake");
        let ways = load(&config).expect("nothing to read");
        Parents::new(ways, &config.timeouts)
    }

    const GROUP: u16 = 4;

    /// The ports that are dialled for one request, none of which works.
    async fn dialled(parents: &Parents) -> Vec<u16> {
        let tried = std::cell::RefCell::new(Vec::new());
        let wanted = Wanted {
            client: [127, 0, 0, 1].into(),
            target: Target::parse("far:80", None).expect("a target"),
            request: true,
            via: None,
        };
        let turn = parents.turn(GROUP);
        let reached = parents.connect(turn, wanted, async |hop: Target<'_>| {
            tried.borrow_mut().push(hop.port);
            Err(ConnectError::origin(ConnectErrorKind::Refused))
        });
        let error = reached.await.map(drop);
        let refused = ConnectError::parent(ConnectErrorKind::Refused);
        assert_eq!(error, Err(refused));
        tried.into_inner()
    }

    #[tokio::test]
    async fn each_member_is_tried_once_from_the_first_on() {
        let parents = parents("failover");
        // Also when all are unfit, which they are after three failures each.
        for _ in 0..5 {
            assert_eq!(dialled(&parents).await, [1, 2, 3, 4]);
        }
        // The only parent of its name is tried whatever happened.
        assert_eq!(parents.turn(0).first, 0);
    }

    #[tokio::test]
    async fn turns_are_taken_among_those_that_are_fit() {
        let parents = parents("round_robin");
        assert_eq!(dialled(&parents).await, [1, 2, 3, 4]);
        assert_eq!(dialled(&parents).await, [2, 3, 4, 1]);
        let now = std::time::Instant::now();
        parents.states[0].health.works();
        parents.states[2].health.works();
        parents.states[1].health.fails(now);
        parents.states[3].health.fails(now);
        assert_eq!(dialled(&parents).await, [3, 1, 4, 2]);
    }

    #[tokio::test(start_paused = true)]
    async fn each_member_has_its_share_of_the_time() {
        let parents = parents("failover");
        let wanted = Wanted {
            client: [127, 0, 0, 1].into(),
            target: Target::parse("far:80", None).expect("a target"),
            request: true,
            via: None,
        };
        let start = Instant::now();
        let tried = std::cell::RefCell::new(Vec::new());
        let reached = parents.connect(parents.turn(GROUP), wanted, async |hop: Target<'_>| {
            tried
                .borrow_mut()
                .push((hop.port, start.elapsed().as_millis()));
            std::future::pending().await
        });
        let error = reached.await.map(drop);
        assert_eq!(error, Err(ConnectError::parent(ConnectErrorKind::TimedOut)));
        assert!(start.elapsed() < Duration::from_secs(10));
        let tried = tried.into_inner();
        assert_eq!(tried.len(), 4, "{tried:?}");
        for (at, (_, millis)) in (0..).zip(&tried) {
            assert!(millis.abs_diff(at * 2375) < 50, "{tried:?}");
        }
    }
}
