//! Clients that fail too often, shut out for some time.

use std::collections::{HashMap, VecDeque};
use std::fmt;
use std::net::{IpAddr, Ipv6Addr};
use std::time::{Duration, Instant};

/// Counts failures by client and says who is shut out. Without a clock: time is
/// an argument.
///
/// The count starts with the first failure and is forgotten when the window is
/// over. Success forgives nothing: who has one right password must not guess
/// others with it.
///
/// Every operation takes constant time and memory is bounded: at most `capacity`
/// counts and as many bans. The oldest makes room for a new one, and counts
/// never push out bans. So to be rid of a ban, an attacker has to get `capacity`
/// other clients banned, with all the failures that each of them takes; to be
/// rid of a count, he has to fail from `capacity` others. Either brings less than
/// guessing from there.
///
/// ```
/// use std::time::{Duration, Instant};
/// use proxy_core::{Bans, ClientNet};
///
/// let (minute, now) = (Duration::from_secs(60), Instant::now());
/// let mut bans = Bans::new(3, minute, 10 * minute, 1000);
/// let client = ClientNet::from("192.0.2.7".parse::<std::net::IpAddr>()?);
/// assert!(!bans.fail(client, now) && !bans.fail(client, now));
/// assert!(bans.fail(client, now), "the third begins a ban");
/// assert!(bans.is_banned(client, now));
/// assert!(!bans.is_banned(client, now + 10 * minute));
/// # Ok::<(), std::net::AddrParseError>(())
/// ```
#[derive(Debug)]
pub struct Bans {
    failures: u32,
    window: Duration,
    length: Duration,
    counts: Aging<u32>,
    bans: Aging<()>,
}

impl Bans {
    /// A client with so many `failures` within `window` is banned for `length`.
    /// At least one failure and one place are taken for granted.
    pub fn new(failures: u32, window: Duration, length: Duration, capacity: usize) -> Self {
        Self {
            failures: failures.max(1),
            window,
            length,
            counts: Aging::new(capacity),
            bans: Aging::new(capacity),
        }
    }

    /// Counts a failure; says whether a ban begins with it. What a banned client
    /// does changes nothing.
    pub fn fail(&mut self, client: ClientNet, now: Instant) -> bool {
        if self.is_banned(client, now) {
            return false;
        }
        self.counts.forget_old(now, self.window);
        let so_far = self.failures_of(client, now);
        if so_far + 1 < self.failures {
            match self.counts.fresh(client, now, self.window) {
                Some(count) => *count += 1,
                None => self.counts.insert(client, now, 1),
            }
            return false;
        }
        self.counts.remove(client);
        self.bans.forget_old(now, self.length);
        self.bans.insert(client, now, ());
        true
    }

    /// Whether the client is shut out.
    pub fn is_banned(&self, client: ClientNet, now: Instant) -> bool {
        self.bans.get(client, now, self.length).is_some()
    }

    /// The failures that count against a client that is not banned.
    pub fn failures_of(&self, client: ClientNet, now: Instant) -> u32 {
        let count = self.counts.get(client, now, self.window);
        count.copied().unwrap_or(0)
    }
}

/// What stands for a client: an IPv4 address, or an IPv6 network of 64 bits,
/// since within one of those a machine takes any address it likes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct ClientNet(Net);

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Net {
    V4([u8; 4]),
    V6([u16; 4]),
}

impl From<IpAddr> for ClientNet {
    fn from(ip: IpAddr) -> Self {
        Self(match ip.to_canonical() {
            IpAddr::V4(ip) => Net::V4(ip.octets()),
            IpAddr::V6(ip) => {
                let [a, b, c, d, ..] = ip.segments();
                Net::V6([a, b, c, d])
            }
        })
    }
}

impl fmt::Display for ClientNet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            Net::V4(octets) => IpAddr::from(octets).fmt(f),
            Net::V6([a, b, c, d]) => write!(f, "{}/64", Ipv6Addr::new(a, b, c, d, 0, 0, 0, 0)),
        }
    }
}

/// Values by client, each with its birth, which age alike.
#[derive(Debug)]
struct Aging<T> {
    capacity: usize,
    values: HashMap<ClientNet, (Instant, T)>,
    /// Who came when, oldest first. A client that was removed or came again
    /// leaves a mark without a value of that birth.
    order: VecDeque<(ClientNet, Instant)>,
}

impl<T> Aging<T> {
    fn new(capacity: usize) -> Self {
        Self {
            capacity: capacity.max(1),
            values: HashMap::new(),
            order: VecDeque::new(),
        }
    }

    /// Adds a value, in the place of the oldest if there is no other.
    fn insert(&mut self, client: ClientNet, now: Instant, value: T) {
        if self.order.len() >= self.capacity {
            self.forget_oldest();
        }
        self.values.insert(client, (now, value));
        self.order.push_back((client, now));
    }

    fn fresh(&mut self, client: ClientNet, now: Instant, age: Duration) -> Option<&mut T> {
        let (birth, value) = self.values.get_mut(&client)?;
        is_within(*birth, now, age).then_some(value)
    }

    fn remove(&mut self, client: ClientNet) {
        self.values.remove(&client);
    }

    /// Takes out a few that are past their age: more than come in, so that in
    /// the end all go, and never so many that somebody would have to wait.
    fn forget_old(&mut self, now: Instant, age: Duration) {
        for _ in 0..2 {
            match self.order.front() {
                Some((_, birth)) if !is_within(*birth, now, age) => self.forget_oldest(),
                _ => return,
            }
        }
    }

    fn forget_oldest(&mut self) {
        if let Some((client, birth)) = self.order.pop_front()
            && self.values.get(&client).is_some_and(|(b, _)| *b == birth)
        {
            self.values.remove(&client);
        }
    }

    fn get(&self, client: ClientNet, now: Instant, age: Duration) -> Option<&T> {
        let (birth, value) = self.values.get(&client)?;
        is_within(*birth, now, age).then_some(value)
    }
}

fn is_within(birth: Instant, now: Instant, age: Duration) -> bool {
    now.saturating_duration_since(birth) < age
}

#[cfg(test)]
mod tests {
    use super::*;

    const MINUTE: Duration = Duration::from_secs(60);

    fn client(text: &str) -> ClientNet {
        text.parse::<IpAddr>().expect("an address").into()
    }

    fn numbered(number: u32) -> ClientNet {
        IpAddr::from(number.to_be_bytes()).into()
    }

    /// Three failures in a minute, ten minutes out.
    fn bans(capacity: usize) -> (Bans, Instant) {
        let bans = Bans::new(3, MINUTE, 10 * MINUTE, capacity);
        (bans, Instant::now())
    }

    #[test]
    fn a_ban_begins_once_and_ends_in_time() {
        let (mut bans, start) = bans(10);
        let one = client("192.0.2.1");
        let told: Vec<bool> = (0..5).map(|_| bans.fail(one, start)).collect();
        assert_eq!(told, [false, false, true, false, false]);
        let late = start + 10 * MINUTE - Duration::from_nanos(1);
        assert!(bans.is_banned(one, late));
        assert!(!bans.is_banned(client("192.0.2.2"), start), "others go on");
        let after = start + 10 * MINUTE;
        assert!(!bans.is_banned(one, after));
        let told: Vec<bool> = (0..3).map(|_| bans.fail(one, after)).collect();
        assert_eq!(told, [false, false, true], "and everything begins anew");
    }

    #[test]
    fn failures_far_apart_are_no_ban() {
        let (mut bans, start) = bans(10);
        let one = client("192.0.2.1");
        for round in 0..100 {
            let now = start + round * MINUTE;
            assert!(!bans.fail(one, now) && !bans.fail(one, now));
            assert_eq!(bans.failures_of(one, now), 2);
        }
        assert_eq!(bans.failures_of(one, start + 100 * MINUTE), 0);
        assert!(bans.counts.order.len() <= 2, "no trace of the old ones");
    }

    #[test]
    fn a_single_failure_may_be_enough() {
        let mut bans = Bans::new(0, MINUTE, MINUTE, 0);
        assert!(bans.fail(client("192.0.2.1"), Instant::now()));
    }

    #[test]
    fn an_ipv6_client_is_its_network() {
        let net = client("2001:db8:1:2::1");
        assert_eq!(net, client("2001:db8:1:2:ffff::9"));
        assert_ne!(net, client("2001:db8:1:3::1"));
        assert_eq!(client("::ffff:192.0.2.1"), client("192.0.2.1"));
        assert_ne!(client("::ffff:192.0.2.1"), client("192.0.2.2"));
        assert_eq!(net.to_string(), "2001:db8:1:2::/64");
        assert_eq!(client("192.0.2.1").to_string(), "192.0.2.1");
    }

    #[test]
    fn failures_of_others_lift_no_ban() {
        let (mut bans, now) = bans(100);
        let banned = client("192.0.2.1");
        while !bans.fail(banned, now) {}
        for number in 0..10_000 {
            bans.fail(numbered(number), now);
        }
        assert!(bans.is_banned(banned, now));
        assert!(bans.counts.values.len() <= 100 && bans.counts.order.len() <= 100);
    }

    #[test]
    fn memory_is_bounded_whatever_comes() {
        let (mut bans, start) = bans(50);
        for number in 0..20_000_u32 {
            let now = start + Duration::from_millis(u64::from(number) * 7);
            bans.fail(numbered(number % 997), now);
            bans.fail(numbered(number % 31), now);
            for aging in [bans.counts.values.len(), bans.bans.values.len()] {
                assert!(aging <= 50);
            }
            for order in [bans.counts.order.len(), bans.bans.order.len()] {
                assert!(order <= 50);
            }
        }
    }

    #[test]
    fn time_that_runs_backwards_does_no_harm() {
        let (mut bans, start) = bans(10);
        let one = client("192.0.2.1");
        assert!(!bans.fail(one, start + MINUTE));
        assert!(!bans.fail(one, start));
        assert!(bans.fail(one, start + MINUTE));
        assert!(bans.is_banned(one, start));
    }
}
