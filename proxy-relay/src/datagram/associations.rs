//! All associations of a proxy: how many there may be, and their own addresses.

use std::collections::HashMap;
use std::io;
use std::net::{IpAddr, Ipv6Addr, SocketAddr, UdpSocket};
use std::ops::RangeInclusive;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use proxy_core::{End, Stop};
use tokio::time::Instant;

use super::socket::{Socket, bind_blocking};
use super::upstreams::any;

/// Caps associations, per client and in all, and knows the addresses of their
/// sockets.
///
/// Clones share what they know, so that one set can serve all threads; it is
/// locked only when an association begins, ends, or opens a socket. When there
/// are too many, the one that has been idle for longest makes room and ends with
/// [`End::Limit`]; if none has been idle for ten seconds, or one second where it is
/// the flow of a port relay, the new one is refused.
///
/// ```
/// let mut associations = proxy_relay::Associations::new();
/// associations.per_client(16).total(256);
/// assert!(associations.is_empty());
/// ```
#[derive(Clone, Debug)]
pub struct Associations {
    per_client: usize,
    total: usize,
    /// Of the sockets for clients; 0 is whichever the system gives.
    ports: (u16, u16),
    advertise: Vec<IpAddr>,
    members: Arc<Mutex<Members>>,
    epoch: Instant,
}

impl Default for Associations {
    fn default() -> Self {
        Self {
            per_client: 256,
            total: 1024,
            ports: (0, 0),
            advertise: Vec::new(),
            members: Arc::default(),
            epoch: Instant::now(),
        }
    }
}

impl Associations {
    /// None yet, with the default caps.
    pub fn new() -> Self {
        Self::default()
    }

    /// The most associations of one client address, or of one IPv6 network of 64
    /// bits; 256 by default.
    pub fn per_client(&mut self, cap: usize) -> &mut Self {
        self.per_client = cap;
        self
    }

    /// The most associations in all; 1,024 by default. Each takes two sockets or
    /// more besides its control connection.
    pub fn total(&mut self, cap: usize) -> &mut Self {
        self.total = cap;
        self
    }

    /// The ports of the sockets that clients send to; by default the system gives
    /// one. They are taken in turn, so that none is used again soon.
    pub fn ports(&mut self, ports: RangeInclusive<u16>) -> &mut Self {
        self.ports = ports.into_inner();
        self
    }

    /// An address that clients are told to send to in place of the one they have
    /// reached us at: that of a translator, for one. At most one of each family
    /// counts, the first. By default there is none.
    pub fn advertise(&mut self, address: IpAddr) -> &mut Self {
        self.advertise.push(address);
        self
    }

    /// How many there are.
    pub fn len(&self) -> usize {
        self.lock().all.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The addresses that sockets of associations are bound to, of those with
    /// this port: for a policy that refuses to send datagrams back to the proxy.
    /// Allocates nothing if there are none.
    pub fn on_port(&self, port: u16) -> Vec<SocketAddr> {
        self.lock().sockets.get(&port).cloned().unwrap_or_default()
    }

    /// A socket for a client that has reached us at this address.
    ///
    /// # Errors
    /// `AddrInUse` if a thousand ports of the range, or all of them, are taken.
    pub(super) fn bind(&self, ip: IpAddr) -> io::Result<Arc<Socket>> {
        let (first, last) = self.ports;
        let count = u32::from(last.saturating_sub(first)) + 1;
        for _ in 0..count.min(MOST_TRIED) {
            let turn = self.lock().next_port() % count;
            let port = first.saturating_add(u16::try_from(turn).unwrap_or(0));
            match Socket::bind(SocketAddr::new(ip, port)) {
                Err(error) if error.kind() == io::ErrorKind::AddrInUse => {}
                bound => return bound,
            }
        }
        Err(io::ErrorKind::AddrInUse.into())
    }

    /// What a client is told of a socket at `local`.
    pub(super) fn told(&self, local: SocketAddr) -> SocketAddr {
        let is_like = |ip: &&IpAddr| ip.is_ipv4() == local.is_ipv4();
        let ip = self.advertise.iter().find(is_like);
        SocketAddr::new(ip.copied().unwrap_or_else(|| local.ip()), local.port())
    }

    /// Lets an association in, unless there are too many. Once it has been idle
    /// for `quiet` it may have to make room.
    pub(super) fn join(&self, client: IpAddr, stop: Stop, quiet: Duration) -> Option<Place> {
        let client = group(client);
        let mut members = self.lock();
        let activity = Activity {
            last: Arc::default(),
            epoch: self.epoch,
        };
        activity.touch();
        let now = activity.now();
        if !members.has_room(Some(client), self.per_client, now)
            || !members.has_room(None, self.total, now)
        {
            return None;
        }
        members.last += 1;
        let number = members.last;
        let member = Member {
            client,
            stop,
            quiet: u64::try_from(quiet.as_millis()).unwrap_or(u64::MAX),
            activity: activity.clone(),
        };
        members.insert(number, member);
        drop(members);
        Some(Place {
            associations: self.clone(),
            number,
            activity,
            sockets: Vec::new(),
        })
    }

    /// Notes the address of a listener for datagrams, for as long as the answer
    /// lives.
    pub(super) fn listens(&self, address: SocketAddr) -> Listens {
        self.lock().own(address);
        Listens {
            associations: self.clone(),
            address,
        }
    }

    /// Whether `address` is one that a socket of an association, or a listener for
    /// datagrams, sends from.
    pub(super) fn has(&self, address: SocketAddr) -> bool {
        let own = self.on_port(address.port());
        own.iter().any(|own| own.ip() == address.ip())
            || (own.iter().any(|own| own.ip().is_unspecified()) && is_here(address.ip()))
    }

    /// Nothing that runs under this lock can panic half-way.
    fn lock(&self) -> MutexGuard<'_, Members> {
        self.members.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// When an association was last used.
#[derive(Clone, Debug)]
pub(super) struct Activity {
    /// Milliseconds since the epoch.
    last: Arc<AtomicU64>,
    epoch: Instant,
}

impl Activity {
    /// Notes that datagrams were relayed.
    pub(super) fn touch(&self) {
        self.last.store(self.now(), Ordering::Relaxed);
    }

    fn last(&self) -> u64 {
        self.last.load(Ordering::Relaxed)
    }

    fn now(&self) -> u64 {
        u64::try_from(self.epoch.elapsed().as_millis()).unwrap_or(u64::MAX)
    }
}

/// The place of one association, free again when this is dropped.
#[derive(Debug)]
pub(super) struct Place {
    associations: Associations,
    number: u64,
    activity: Activity,
    sockets: Vec<SocketAddr>,
}

impl Place {
    /// Notes an address of the association's own.
    pub(super) fn owns(&mut self, address: SocketAddr) {
        self.sockets.push(address);
        self.associations.lock().own(address);
    }

    pub(super) fn activity(&self) -> &Activity {
        &self.activity
    }

    /// Whether a datagram from `address` was sent by an association.
    pub(super) fn is_from_one(&self, address: SocketAddr) -> bool {
        self.associations.has(address)
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let mut members = self.associations.lock();
        members.remove(self.number);
        for address in &self.sockets {
            members.disown(*address);
        }
    }
}

/// The address of a listener, noted until this is dropped.
#[derive(Debug)]
pub(super) struct Listens {
    associations: Associations,
    address: SocketAddr,
}

impl Drop for Listens {
    fn drop(&mut self) {
        self.associations.lock().disown(self.address);
    }
}

#[derive(Debug, Default)]
struct Members {
    all: HashMap<u64, Member>,
    clients: HashMap<IpAddr, Crowd>,
    queue: Queue,
    last: u64,
    port: u32,
    sockets: HashMap<u16, Vec<SocketAddr>>,
}

/// The associations of one client.
#[derive(Debug, Default)]
struct Crowd {
    count: usize,
    queue: Queue,
}

/// Who makes room next, of all or of one client. A flood of newcomers is answered
/// without a look at each member.
#[derive(Debug, Default)]
struct Queue {
    /// The numbers of those that the last look found idle for longest, and when
    /// each was used last; the next one at the end.
    idle: Vec<(u64, u64)>,
    /// If there are none left, nobody has to make room before this time.
    busy_until: u64,
}

impl Queue {
    fn next(&mut self, all: &HashMap<u64, Member>) -> Option<u64> {
        loop {
            let (number, last) = self.idle.pop()?;
            // It may have ended, or been used, since.
            if all
                .get(&number)
                .is_some_and(|own| own.activity.last() == last)
            {
                return Some(number);
            }
        }
    }

    /// Looks for the idle ones among the `count` members that matter.
    fn look(&mut self, all: &HashMap<u64, Member>, client: Option<IpAddr>, count: usize, now: u64) {
        let of = |member: &Member| client.is_none_or(|client| client == member.client);
        self.busy_until = u64::MAX;
        for (number, member) in all.iter().filter(|(_, member)| of(member)) {
            let last = member.activity.last();
            let busy_until = last.saturating_add(member.quiet);
            match busy_until <= now {
                true => self.idle.push((*number, last)),
                false => self.busy_until = self.busy_until.min(busy_until),
            }
        }
        let share = (count / SHARE).max(1);
        self.idle.sort_unstable_by_key(|(_, last)| *last);
        self.idle.truncate(share);
        self.idle.reverse();
        if !self.idle.is_empty() {
            self.busy_until = 0;
        }
    }
}

#[derive(Debug)]
struct Member {
    client: IpAddr,
    stop: Stop,
    quiet: u64,
    activity: Activity,
}

impl Members {
    fn next_port(&mut self) -> u32 {
        let port = self.port;
        self.port = port.wrapping_add(1);
        port
    }

    /// Whether one more may come, of this client or at all; if there are `cap`,
    /// the one that has been idle for longest makes room.
    fn has_room(&mut self, client: Option<IpAddr>, cap: usize, now: u64) -> bool {
        let crowd = client.map(|client| self.clients.get(&client));
        let count = match crowd {
            None => self.all.len(),
            Some(crowd) => crowd.map_or(0, |crowd| crowd.count),
        };
        if count < cap {
            return true;
        }
        let Some(queue) = self.queue(client) else {
            return false;
        };
        let mut queue = std::mem::take(queue);
        let mut oldest = queue.next(&self.all);
        if oldest.is_none() && now >= queue.busy_until {
            queue.look(&self.all, client, count, now);
            oldest = queue.next(&self.all);
        }
        if let Some(own) = self.queue(client) {
            *own = queue;
        }
        let member = oldest.and_then(|number| self.remove(number));
        if let Some(member) = &member {
            member.stop.stop(End::Limit);
        }
        member.is_some()
    }

    fn queue(&mut self, client: Option<IpAddr>) -> Option<&mut Queue> {
        match client {
            None => Some(&mut self.queue),
            Some(client) => Some(&mut self.clients.get_mut(&client)?.queue),
        }
    }

    fn insert(&mut self, number: u64, member: Member) {
        self.clients.entry(member.client).or_default().count += 1;
        self.all.insert(number, member);
    }

    /// `None` if it has made room already.
    fn remove(&mut self, number: u64) -> Option<Member> {
        let member = self.all.remove(&number)?;
        if let Some(crowd) = self.clients.get_mut(&member.client) {
            crowd.count -= 1;
            if crowd.count == 0 {
                self.clients.remove(&member.client);
            }
        }
        Some(member)
    }

    fn own(&mut self, address: SocketAddr) {
        self.sockets
            .entry(address.port())
            .or_default()
            .push(address);
    }

    fn disown(&mut self, address: SocketAddr) {
        if let Some(sockets) = self.sockets.get_mut(&address.port()) {
            if let Some(at) = sockets.iter().position(|own| *own == address) {
                sockets.swap_remove(at);
            }
            if sockets.is_empty() {
                self.sockets.remove(&address.port());
            }
        }
    }
}

/// Whether an address is one of this machine's: the one it would itself use to
/// get there. Nothing is sent for this.
fn is_here(ip: IpAddr) -> bool {
    let source = || {
        let socket = bind_blocking(SocketAddr::new(any(ip.is_ipv6()), 0))?;
        socket.connect(&SocketAddr::new(ip, ANY_PORT).into())?;
        UdpSocket::from(socket).local_addr()
    };
    ip.is_loopback() || source().is_ok_and(|source| source.ip() == ip)
}

/// Whose associations are counted together: a host may have any address of its
/// IPv6 network.
fn group(client: IpAddr) -> IpAddr {
    match client.to_canonical() {
        IpAddr::V6(ip) => Ipv6Addr::from_bits(ip.to_bits() & (u128::MAX << 64)).into(),
        v4 => v4,
    }
}

/// One look at all members finds those who make room for one newcomer in so many
/// of them.
const SHARE: usize = 64;

/// Any will do, but 0.
const ANY_PORT: u16 = 9;

/// Ports of a range that are tried, so that nobody waits for long.
const MOST_TRIED: u32 = 1024;

#[cfg(test)]
mod tests {
    use super::*;
    use proxy_core::StopState;

    fn ip(text: &str) -> IpAddr {
        text.parse().expect("an address")
    }

    const QUIET: Duration = Duration::from_secs(10);
    const ONE: &str = "192.0.2.1";
    const TWO: &str = "192.0.2.2";

    #[tokio::test(start_paused = true)]
    async fn p68_the_one_idle_for_longest_makes_room() {
        let mut all = Associations::new();
        all.per_client(2).total(3);
        let stops: Vec<Stop> = (0..6).map(|_| Stop::new()).collect();
        let join = |client, at: usize| all.join(ip(client), stops[at].clone(), QUIET);
        let ended = || -> Vec<bool> { stops.iter().map(|stop| !stop.is_running()).collect() };

        let first = join(ONE, 0).expect("room");
        let _second = join(ONE, 1).expect("room");
        assert!(join(ONE, 2).is_none(), "all of the client's are busy");
        let other = join(TWO, 3).expect("room");
        tokio::time::advance(QUIET).await;
        first.activity().touch();
        let _third = join(ONE, 2).expect("the second was idle");
        assert_eq!(ended(), [false, true, false, false, false, false]);
        assert_eq!(stops[1].state(), StopState::Stopped(End::Limit));
        // Also beyond one client, where the other's has been idle for longest.
        let _fourth = join("192.0.2.3", 4).expect("room");
        assert_eq!(ended(), [false, true, false, true, false, false]);
        assert!(join("192.0.2.4", 5).is_none(), "all are busy");
        // What has made room already gives none when it ends.
        drop(other);
        assert_eq!(all.len(), 3);
        drop(first);
        assert_eq!(all.len(), 2);
        assert!(join("192.0.2.4", 5).is_some());
    }

    #[tokio::test(start_paused = true)]
    async fn p68_a_flood_has_them_make_room_in_their_order() {
        const CAP: usize = 1_000;
        let mut all = Associations::new();
        all.per_client(CAP).total(2 * CAP);
        let mut places = Vec::new();
        let mut stops = Vec::new();
        for _ in 0..CAP {
            let stop = Stop::new();
            places.push(all.join(ip(ONE), stop.clone(), QUIET).expect("room"));
            stops.push(stop);
            tokio::time::advance(Duration::from_millis(1)).await;
        }
        tokio::time::advance(QUIET).await;
        let mut newcomers = Vec::new();
        for at in 0..CAP {
            // Who is used meanwhile is passed over.
            if at == 5 {
                places[7].activity().touch();
            }
            let newcomer = all.join(ip(ONE), Stop::new(), QUIET);
            let ended = stops.iter().filter(|stop| !stop.is_running()).count();
            assert_eq!(newcomer.is_some(), at < CAP - 1, "{at}");
            assert_eq!(ended, (at + 1).min(CAP - 1), "{at}");
            newcomers.extend(newcomer);
            let next = at + 1 + usize::from(at >= 6);
            assert!(stops.get(next).is_none_or(Stop::is_running), "{at}");
        }
        assert!(stops[7].is_running());
        assert_eq!(all.len(), CAP);
    }

    #[tokio::test]
    async fn a_host_has_its_whole_network() {
        let mut all = Associations::new();
        all.per_client(1);
        let join = |client| all.join(ip(client), Stop::new(), QUIET);
        let _first = join("2001:db8::1").expect("room");
        assert!(join("2001:db8::2").is_none());
        assert!(join("2001:db8:0:1::1").is_some());
        let _second = join("::ffff:192.0.2.1").expect("room");
        assert!(join("192.0.2.1").is_none(), "the same host");
        assert!(join("192.0.2.2").is_some());
    }

    #[tokio::test]
    async fn no_room_at_all() {
        let mut all = Associations::new();
        all.total(0);
        assert!(all.join(ip(ONE), Stop::new(), QUIET).is_none());
    }

    #[tokio::test]
    async fn own_sockets_are_known_while_they_live() {
        let all = Associations::new();
        let address = |text: &str| text.parse::<SocketAddr>().expect("an address");
        let mut place = all.join(ip(ONE), Stop::new(), QUIET).expect("room");
        let mut other = all.clone().join(ip(TWO), Stop::new(), QUIET).expect("room");
        place.owns(address("127.0.0.1:7"));
        place.owns(address("0.0.0.0:8"));
        other.owns(address("127.0.0.2:7"));
        assert_eq!(all.on_port(7).len(), 2);
        for (from, own) in [
            ("127.0.0.1:7", true),
            ("127.0.0.2:7", true),
            ("127.0.0.3:7", false),
            ("127.0.0.3:8", true),
            ("192.0.2.77:8", false),
            ("127.0.0.1:9", false),
        ] {
            assert_eq!(other.is_from_one(address(from)), own, "{from}");
        }
        drop(place);
        assert_eq!(all.on_port(7), [address("127.0.0.2:7")]);
        assert!(all.on_port(8).is_empty());
        drop(other);
        assert!(all.is_empty() && all.lock().sockets.is_empty());
    }
}
