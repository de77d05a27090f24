//! A port relay for datagrams over loopback: whose datagrams pass, and what ends
//! a flow.
#![allow(clippy::unwrap_used, reason = "a panic is how a test fails")]

use std::cell::{Cell, RefCell};
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::num::NonZeroU64;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use bytes::{BufMut, BytesMut};
use proxy_core::{
    Ask, Bucket, ConnectError, ConnectErrorKind, Connected, Credentials, Denial, End, Gateway,
    Host, Operation, Peer, Rates, Report, Shaping, Stop, Target,
};
use proxy_relay::{
    AssociationReport, Associations, Carrier, DatagramMap, Datagrams, Drops, Passage,
};
use tokio::net::{TcpStream, UdpSocket};
use tokio::sync::Notify;
use tokio::task::{JoinHandle, LocalSet};

/// A gateway that writes down what it is told.
#[derive(Default)]
struct Policy {
    associations: Associations,
    denied: Cell<Option<Denial>>,
    carrier: RefCell<Option<Arc<Relay>>>,
    shaping: RefCell<Shaping>,
    released: Notify,
    admitted: Cell<u32>,
    drops: RefCell<Vec<Drops>>,
    /// Client, end, bytes up and down, kind of error.
    ended: RefCell<Vec<Ended>>,
}

type Ended = (SocketAddr, End, u64, u64, Option<ConnectErrorKind>);

impl Gateway for Policy {
    type Identity = ();
    type Session = ();
    type Upstream = TcpStream;

    async fn authenticate(&self, _: &Peer, who: Option<Credentials<'_>>) -> Result<(), Denial> {
        assert!(who.is_none());
        Ok(())
    }

    async fn authorize(&self, _: &(), ask: &Ask<'_>) -> Result<(), Denial> {
        assert_eq!(ask.operation, Operation::Associate);
        self.denied.get().map_or(Ok(()), Err)
    }

    async fn connect(
        &self,
        _: &mut (),
        _: Target<'_>,
    ) -> Result<Connected<TcpStream>, ConnectError> {
        unreachable!("nothing is connected to")
    }

    fn shaping(&self, (): &()) -> Shaping {
        self.shaping.borrow().clone()
    }

    fn finished(&self, _: Option<&()>, _: Option<()>, report: &Report<'_>) {
        let error = report.error.map(|error| error.kind);
        assert_eq!(report.operation, Some(Operation::Associate));
        self.ended.borrow_mut().push((
            report.peer.remote,
            report.end,
            report.up,
            report.down,
            error,
        ));
    }
}

impl Datagrams for Policy {
    fn associations(&self) -> &Associations {
        &self.associations
    }

    async fn admit(
        &self,
        (): &(),
        target: Target<'_>,
        last: Option<SocketAddr>,
    ) -> Result<Passage, ConnectError> {
        assert_eq!(last, None);
        self.admitted.set(self.admitted.get() + 1);
        let ip: IpAddr = match target.host {
            Host::Name("slow.test") => {
                self.released.notified().await;
                Ipv4Addr::LOCALHOST.into()
            }
            Host::Name(_) => return Err(ConnectError::origin(ConnectErrorKind::Forbidden)),
            Host::Ip(ip) => ip,
        };
        if let Some(relay) = &*self.carrier.borrow() {
            return Ok(Passage {
                carrier: Some(Arc::clone(relay) as Arc<dyn Carrier>),
                ..relay.address.into()
            });
        }
        Ok(SocketAddr::new(ip, target.port).into())
    }

    fn dissociated(&self, (): &(), report: &AssociationReport) {
        self.drops.borrow_mut().push(report.drops);
    }
}

/// A parent that wants the target in front.
#[derive(Debug)]
struct Relay {
    address: SocketAddr,
}

impl Carrier for Relay {
    fn seal(&self, target: Target<'_>, header: &mut BytesMut) {
        header.put_slice(format!("{target} ").as_bytes());
    }

    fn open<'d>(&self, datagram: &'d [u8]) -> Option<(SocketAddr, &'d [u8])> {
        let at = datagram.iter().position(|byte| *byte == b' ')?;
        let from = std::str::from_utf8(&datagram[..at]).ok()?.parse().ok()?;
        Some((from, &datagram[at + 1..]))
    }

    fn is_open(&self) -> bool {
        true
    }
}

/// A relay that runs.
struct World {
    policy: Rc<Policy>,
    front: SocketAddr,
    stop: Stop,
    running: JoinHandle<()>,
}

impl World {
    async fn new(target: impl ToString) -> Self {
        Self::with(target, "127.0.0.1:0", Policy::default()).await
    }

    async fn with(target: impl ToString, front: &str, policy: Policy) -> Self {
        let policy = Rc::new(policy);
        let socket = UdpSocket::bind(front).await.unwrap();
        let front = socket.local_addr().unwrap();
        let target = target.to_string();
        let target = Target::parse(&target, None).unwrap().into();
        let mut map = DatagramMap::new(Rc::clone(&policy), target);
        let stop = Stop::new();
        map.stop(stop.clone()).idle(IDLE);
        let running = tokio::task::spawn_local(async move { map.serve(socket).await.unwrap() });
        Self {
            policy,
            front,
            stop,
            running,
        }
    }

    /// Stops it; what it has told.
    async fn finish(self) -> Vec<Ended> {
        self.stop.stop(End::Drained);
        soon(self.running).await.unwrap();
        assert!(self.policy.associations.is_empty());
        assert!(
            self.policy
                .associations
                .on_port(self.front.port())
                .is_empty()
        );
        self.policy.ended.take()
    }
}

/// A client with a socket of its own.
struct Client {
    socket: UdpSocket,
    front: SocketAddr,
}

impl Client {
    async fn new(world: &World) -> Self {
        Self::on("127.0.0.1", world.front).await
    }

    async fn on(ip: &str, front: SocketAddr) -> Self {
        Self {
            socket: UdpSocket::bind((ip, 0)).await.unwrap(),
            front,
        }
    }

    fn address(&self) -> SocketAddr {
        self.socket.local_addr().unwrap()
    }

    async fn send(&self, payload: impl AsRef<[u8]>) {
        let sent = self.socket.send_to(payload.as_ref(), self.front).await;
        assert_eq!(sent.unwrap(), payload.as_ref().len());
    }

    /// The next answer, which comes from where was sent to.
    async fn next(&self) -> Vec<u8> {
        let (answer, from) = receive(&self.socket).await;
        assert_eq!(from, self.front);
        answer
    }

    async fn round(&self, payload: &[u8]) {
        self.send(payload).await;
        assert_eq!(self.next().await, payload);
    }
}

async fn receive(socket: &UdpSocket) -> (Vec<u8>, SocketAddr) {
    let mut buf = vec![0; 65_536];
    let (len, from) = soon(socket.recv_from(&mut buf)).await.unwrap();
    buf.truncate(len);
    (buf, from)
}

async fn soon<F: Future>(work: F) -> F::Output {
    let wait = Duration::from_secs(3600);
    tokio::time::timeout(wait, work).await.expect("in time")
}

/// Sends back what it gets.
async fn echo() -> SocketAddr {
    let socket = UdpSocket::bind("127.0.0.1:0").await.unwrap();
    let address = socket.local_addr().unwrap();
    tokio::task::spawn_local(async move {
        let mut buf = vec![0; 65_536];
        while let Ok((len, from)) = socket.recv_from(&mut buf).await {
            let _ = socket.send_to(&buf[..len], from).await;
        }
    });
    address
}

/// With the clock paused, which moves on only when all is quiet.
fn run(test: impl Future<Output = ()>) {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .start_paused(true)
        .build()
        .unwrap();
    LocalSet::new().block_on(&runtime, test);
}

const IDLE: Duration = Duration::from_secs(60);

#[test]
fn each_client_gets_its_own_answers_and_is_counted() {
    run(async {
        let world = World::new(echo().await).await;
        let clients = [Client::new(&world).await, Client::new(&world).await];
        for length in [0, 1, 1_200, 1_472, 9_000, 65_507] {
            clients[0].round(&vec![7; length]).await;
            clients[1].round(&vec![8; length]).await;
        }
        // A burst, which travels in batches.
        for number in 0..100_u8 {
            clients[usize::from(number % 2)].send([number; 300]).await;
        }
        for number in 0..100_u8 {
            let answer = clients[usize::from(number % 2)].next().await;
            assert_eq!(answer, [number; 300]);
        }
        assert_eq!(world.policy.admitted.get(), 2);
        let bytes = 1 + 1_200 + 1_472 + 9_000 + 65_507 + 50 * 300;
        let mut ended = world.finish().await;
        ended.sort_by_key(|ended| ended.0);
        let mut expected =
            clients.map(|client| (client.address(), End::Drained, bytes, bytes, None));
        expected.sort_by_key(|ended| ended.0);
        assert_eq!(ended, expected);
    });
}

#[test]
fn answers_come_from_the_address_that_was_sent_to() {
    run(async {
        let world = World::with(echo().await, "0.0.0.0:0", Policy::default()).await;
        let port = world.front.port();
        let one = Client::on("127.0.0.1", ([127, 0, 0, 1], port).into()).await;
        one.round(b"one").await;
        // The same socket by another way is another flow.
        let two = Client {
            front: ([127, 0, 0, 2], port).into(),
            ..one
        };
        two.round(b"two").await;
        assert_eq!(world.finish().await.len(), 2);
    });
}

#[test]
fn p67_only_the_target_may_answer() {
    run(async {
        let target = UdpSocket::bind("127.0.0.1:0").await.unwrap();
        let world = World::new(target.local_addr().unwrap()).await;
        let client = Client::new(&world).await;
        client.send("question").await;
        let (question, upstream) = receive(&target).await;
        assert_eq!(question, b"question");
        let stranger = UdpSocket::bind("127.0.0.1:0").await.unwrap();
        stranger.send_to(b"forged", upstream).await.unwrap();
        target.send_to(b"answer", upstream).await.unwrap();
        assert_eq!(client.next().await, b"answer");
        let policy = Rc::clone(&world.policy);
        assert_eq!(world.finish().await[0].3, 6);
        assert_eq!(policy.drops.borrow()[0].strangers, 1);
    });
}

#[test]
fn p68_a_flow_ends_when_neither_side_speaks() {
    run(async {
        let target = UdpSocket::bind("127.0.0.1:0").await.unwrap();
        let world = World::new(target.local_addr().unwrap()).await;
        let client = Client::new(&world).await;
        client.send("first").await;
        let (_, upstream) = receive(&target).await;
        // Either direction keeps it alive.
        for _ in 0..5 {
            tokio::time::sleep(IDLE * 3 / 4).await;
            client.send("up").await;
            assert_eq!(receive(&target).await.1, upstream, "the same flow");
            tokio::time::sleep(IDLE * 3 / 4).await;
            target.send_to(b"down", upstream).await.unwrap();
            assert_eq!(client.next().await, b"down");
        }
        let silent = tokio::time::Instant::now();
        while world.policy.ended.borrow().is_empty() {
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
        let silent = silent.elapsed();
        assert!(silent >= IDLE, "{silent:?}");
        assert!(silent <= IDLE + Duration::from_secs(1), "{silent:?}");
        assert!(world.policy.associations.is_empty());
        client.send("again").await;
        assert_ne!(receive(&target).await.1, upstream, "a new one");
        let ended = world.finish().await;
        let ends: Vec<_> = ended.iter().map(|ended| ended.1).collect();
        assert_eq!(ends, [End::Idle, End::Drained]);
        assert_eq!((ended[0].2, ended[0].3), (5 + 5 * 2, 5 * 4));
    });
}

#[test]
fn p68_the_flow_idle_for_longest_makes_room() {
    run(async {
        let mut policy = Policy::default();
        policy.associations.per_client(2);
        let world = World::with(echo().await, "127.0.0.1:0", policy).await;
        let clients = [
            Client::new(&world).await,
            Client::new(&world).await,
            Client::new(&world).await,
        ];
        clients[0].round(b"0").await;
        clients[1].round(b"1").await;
        clients[2].send(b"all are busy").await;
        clients[0].round(b"0").await;
        assert_eq!(world.policy.associations.len(), 2);
        tokio::time::sleep(Duration::from_secs(2)).await;
        clients[0].round(b"0").await;
        clients[2].round(b"2").await;
        clients[0].round(b"0").await;
        let ended = world.finish().await;
        assert_eq!(ended.len(), 3);
        let limit: Vec<_> = ended.iter().filter(|ended| ended.1 == End::Limit).collect();
        assert_eq!(limit.len(), 1);
        assert_eq!(limit[0].0, clients[1].address());
    });
}

#[test]
fn p69_a_target_that_is_not_there_yet_ends_no_flow() {
    run(async {
        let target = UdpSocket::bind("127.0.0.1:0").await.unwrap();
        let address = target.local_addr().unwrap();
        drop(target);
        let world = World::new(address).await;
        let client = Client::new(&world).await;
        for _ in 0..3 {
            client.send("nobody there").await;
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        let target = UdpSocket::bind(address).await.unwrap();
        client.send("somebody").await;
        assert_eq!(receive(&target).await.0, b"somebody");
        assert_eq!(world.finish().await.len(), 1);
    });
}

#[test]
fn p70_a_refusal_is_told_once_and_holds_for_a_while() {
    run(async {
        let world = World::new("forbidden.test:1").await;
        let client = Client::new(&world).await;
        for _ in 0..2 {
            for _ in 0..10 {
                client.send("x").await;
                tokio::time::sleep(Duration::from_secs(1)).await;
            }
            tokio::time::sleep(Duration::from_secs(31)).await;
        }
        assert_eq!(world.policy.admitted.get(), 2);
        world.policy.denied.set(Some(Denial::Forbid));
        client.send("x").await;
        tokio::time::sleep(Duration::from_secs(1)).await;
        assert_eq!(world.policy.admitted.get(), 2);
        let forbidden = Some(ConnectErrorKind::Forbidden);
        let refused = |error| (client.address(), End::Forbidden, 0, 0, error);
        assert_eq!(
            world.finish().await,
            [refused(forbidden), refused(forbidden), refused(None)]
        );
    });
}

#[test]
fn what_is_beyond_the_rates_is_dropped() {
    run(async {
        let world = World::new(echo().await).await;
        let rate = |burst| {
            let burst = NonZeroU64::new(burst).unwrap();
            let bucket = Bucket::new(NonZeroU64::MIN, burst, std::time::Instant::now());
            Rates::new([bucket])
        };
        let mut shaping = Shaping::default();
        (shaping.up, shaping.down) = (rate(1_000), rate(500));
        world.policy.shaping.replace(shaping);
        let client = Client::new(&world).await;
        // Nothing is known of rates while policy is asked.
        client.round(&[]).await;
        for _ in 0..9 {
            client.send([7; 300]).await;
        }
        assert_eq!(client.next().await, [7; 300]);
        client.round(&[8; 100]).await;
        let policy = Rc::clone(&world.policy);
        let ended = world.finish().await;
        assert_eq!((ended[0].2, ended[0].3), (1_000, 400));
        assert_eq!(policy.drops.borrow()[0].limited, 6 + 2);
    });
}

#[test]
fn no_flow_outlives_its_lifetime() {
    run(async {
        let world = World::new(echo().await).await;
        let mut shaping = Shaping::default();
        shaping.lifetime = Some(Duration::from_secs(100));
        world.policy.shaping.replace(shaping);
        let client = Client::new(&world).await;
        for _ in 0..9 {
            client.round(b"x").await;
            tokio::time::sleep(Duration::from_secs(11)).await;
        }
        assert!(world.policy.ended.borrow().is_empty());
        tokio::time::sleep(Duration::from_secs(2)).await;
        assert_eq!(world.finish().await[0].1, End::Lifetime);
    });
}

#[test]
fn what_is_sent_while_policy_thinks_waits_in_order() {
    run(async {
        let target = UdpSocket::bind("127.0.0.1:0").await.unwrap();
        let port = target.local_addr().unwrap().port();
        let world = World::new(format!("slow.test:{port}")).await;
        let client = Client::new(&world).await;
        for number in 0..6 {
            client.send(number.to_string()).await;
        }
        tokio::time::sleep(Duration::from_secs(1)).await;
        world.policy.released.notify_one();
        for number in 0..4 {
            assert_eq!(receive(&target).await.0, number.to_string().as_bytes());
        }
        client.send("now").await;
        assert_eq!(receive(&target).await.0, b"now");
        let policy = Rc::clone(&world.policy);
        assert_eq!(world.finish().await[0].2, 4 + 3);
        assert_eq!(policy.drops.borrow()[0].waiting, 2);
    });
}

#[test]
fn a_stop_ends_a_flow_whose_target_is_still_looked_up() {
    run(async {
        let world = World::new("slow.test:9").await;
        let client = Client::new(&world).await;
        client.send("x").await;
        tokio::time::sleep(Duration::from_secs(1)).await;
        assert_eq!(
            world.finish().await,
            [(client.address(), End::Drained, 0, 0, None)]
        );
    });
}

#[test]
fn a_drain_waits_for_flows_that_speak() {
    run(async {
        let world = World::new(echo().await).await;
        let client = Client::new(&world).await;
        client.round(b"before").await;
        world.stop.drain();
        for _ in 0..10 {
            tokio::time::sleep(Duration::from_millis(700)).await;
            client.round(b"still").await;
            assert!(!world.running.is_finished());
        }
        let late = Client::new(&world).await;
        late.send("no new ones").await;
        soon(world.running).await.unwrap();
        let ended = world.policy.ended.take();
        assert_eq!(ended.len(), 1);
        assert_eq!((ended[0].1, ended[0].3), (End::Stopped, 6 + 50));
    });
}

#[test]
fn p30_two_sockets_of_our_own_do_not_talk_to_each_other() {
    run(async {
        // What the relay sends to itself by another address is not taken up.
        let socket = UdpSocket::bind("0.0.0.0:0").await.unwrap();
        let port = socket.local_addr().unwrap().port();
        drop(socket);
        let front = format!("0.0.0.0:{port}");
        let world = World::with(format!("127.0.0.1:{port}"), &front, Policy::default()).await;
        let client = Client::on("127.0.0.1", ([127, 0, 0, 1], port).into()).await;
        client.send("round and round").await;
        tokio::time::sleep(Duration::from_secs(5)).await;
        assert_eq!(world.policy.admitted.get(), 1);
        let ended = world.finish().await;
        assert_eq!((ended.len(), ended[0].2), (1, 15));
    });
}

#[test]
fn a_carrier_gets_the_target_in_front() {
    run(async {
        let parent = UdpSocket::bind("127.0.0.1:0").await.unwrap();
        let address = parent.local_addr().unwrap();
        let world = World::new("192.0.2.9:53").await;
        world
            .policy
            .carrier
            .replace(Some(Arc::new(Relay { address })));
        let client = Client::new(&world).await;
        for question in ["one", "two"] {
            client.send(question).await;
            let (datagram, upstream) = receive(&parent).await;
            assert_eq!(datagram, format!("192.0.2.9:53 {question}").as_bytes());
            parent.send_to(b"unreadable", upstream).await.unwrap();
            parent.send_to(b"192.0.2.9:53 42", upstream).await.unwrap();
            assert_eq!(client.next().await, b"42");
        }
        let policy = Rc::clone(&world.policy);
        let ended = world.finish().await;
        assert_eq!((ended[0].2, ended[0].3), (6, 4));
        assert_eq!(policy.drops.borrow()[0].malformed, 2);
    });
}
