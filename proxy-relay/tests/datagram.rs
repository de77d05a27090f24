//! Associations over loopback: whose datagrams pass, and what ends them.
#![allow(clippy::unwrap_used, reason = "a panic is how a test fails")]

use std::cell::RefCell;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::num::NonZeroU64;
use std::rc::Rc;
use std::time::Duration;

use bytes::{BufMut, BytesMut};
use proxy_core::{
    Bucket, ConnectError, ConnectErrorKind, End, Host, Peer, Rates, Stop, Target, TargetBuf,
};
use proxy_relay::{
    Association, AssociationError, AssociationReport, Associations, Framing, Passage, RelayOptions,
    TICK,
};
use tokio::io::AsyncWriteExt;
use tokio::net::{TcpListener, TcpStream, UdpSocket, UnixStream};
use tokio::sync::Notify;
use tokio::task::{JoinHandle, LocalSet};

/// `TARGET payload`, where an answer has its sender for a target.
struct Words;

impl Framing for Words {
    fn open<'d>(&'d self, datagram: &'d [u8]) -> Option<(Target<'d>, &'d [u8])> {
        let at = datagram.iter().position(|byte| *byte == b' ')?;
        let target = std::str::from_utf8(&datagram[..at]).ok()?;
        Some((Target::parse(target, None).ok()?, &datagram[at + 1..]))
    }

    fn seal(&self, from: SocketAddr, header: &mut BytesMut) {
        header.put_slice(format!("{from} ").as_bytes());
    }
}

/// What policy was asked, and what it says.
#[derive(Default)]
struct Policy {
    asked: RefCell<Vec<String>>,
    released: Notify,
}

impl Policy {
    async fn admit(
        self: Rc<Self>,
        target: TargetBuf,
        last: Option<SocketAddr>,
    ) -> Result<Passage, ConnectError> {
        let target = target.as_target();
        let last = last.map(|last| format!(" {last}")).unwrap_or_default();
        self.asked.borrow_mut().push(format!("{target}{last}"));
        let error = |kind| Err(ConnectError::origin(kind));
        let ip: IpAddr = match target.host {
            Host::Name("slow.test") => {
                self.released.notified().await;
                [127, 0, 0, 1].into()
            }
            Host::Name("mapped.test") => "::ffff:127.0.0.1".parse().unwrap(),
            Host::Name("local.test") => [127, 0, 0, 1].into(),
            Host::Name("forbidden.test") => return error(ConnectErrorKind::Forbidden),
            Host::Name(_) => return error(ConnectErrorKind::NameNotFound),
            Host::Ip(ip) => ip,
        };
        Ok(SocketAddr::new(ip, target.port).into())
    }

    fn asked(&self) -> Vec<String> {
        self.asked.borrow().clone()
    }
}

/// A client with its association.
struct World {
    socket: UdpSocket,
    relay: SocketAddr,
    control: Option<UnixStream>,
    policy: Rc<Policy>,
    all: Associations,
    running: JoinHandle<AssociationReport>,
}

impl World {
    async fn new() -> Self {
        Self::with(&RelayOptions::default(), &Associations::new(), None).await
    }

    async fn with(options: &RelayOptions, all: &Associations, announced: Option<u16>) -> Self {
        let mut association = Association::open(&peer(), Words, all, options).unwrap();
        association.announced(announced);
        let relay = association.local_addr();
        let policy = Rc::new(Policy::default());
        let (control, mut ours) = UnixStream::pair().unwrap();
        let admits = Rc::clone(&policy);
        let running = tokio::task::spawn_local(async move {
            let admit = |target, last| Rc::clone(&admits).admit(target, last);
            association.run(&mut ours, admit).await
        });
        Self {
            socket: socket("127.0.0.1").await,
            relay,
            control: Some(control),
            policy,
            all: all.clone(),
            running,
        }
    }

    async fn send(&self, target: impl ToString, payload: &str) {
        send_from(&self.socket, self.relay, target, payload).await;
    }

    async fn next(&self) -> String {
        receive(&self.socket).await.0
    }

    /// A datagram through `echo` and back, which all that was sent before has
    /// passed then.
    async fn round(&self, echo: SocketAddr) {
        self.send(echo, "ping").await;
        assert_eq!(self.next().await, format!("{echo} ping"));
    }

    async fn finish(mut self) -> AssociationReport {
        drop(self.control.take());
        self.end().await
    }

    async fn end(self) -> AssociationReport {
        let report = soon(self.running).await.unwrap();
        assert!(self.all.on_port(self.relay.port()).is_empty());
        let ports = UdpSocket::bind(self.relay).await;
        assert!(ports.is_ok(), "the socket is still open");
        report
    }
}

fn peer() -> Peer {
    Peer {
        remote: "127.0.0.1:1".parse().unwrap(),
        local: "127.0.0.1:1080".parse().unwrap(),
    }
}

async fn socket(ip: &str) -> UdpSocket {
    UdpSocket::bind((ip, 0)).await.unwrap()
}

async fn send_from(socket: &UdpSocket, to: SocketAddr, target: impl ToString, payload: &str) {
    let datagram = format!("{} {payload}", target.to_string());
    socket.send_to(datagram.as_bytes(), to).await.unwrap();
}

async fn receive(socket: &UdpSocket) -> (String, SocketAddr) {
    let mut buf = [0; 2048];
    let (len, from) = soon(socket.recv_from(&mut buf)).await.unwrap();
    (String::from_utf8(buf[..len].to_vec()).unwrap(), from)
}

async fn soon<F: Future>(work: F) -> F::Output {
    let wait = Duration::from_secs(3600);
    tokio::time::timeout(wait, work).await.expect("in time")
}

/// Sends back what it gets; on this address.
async fn echo(ip: &str) -> SocketAddr {
    let socket = socket(ip).await;
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

#[test]
fn datagrams_pass_both_ways_and_are_counted() {
    run(async {
        let (v4, v6) = (echo("127.0.0.1").await, echo("::1").await);
        let world = World::new().await;
        assert_eq!(world.relay.ip(), peer().local.ip());
        for (target, shown, payload) in [
            (v4.to_string(), v4, "four"),
            (v6.to_string(), v6, "sixth"),
            (format!("local.test:{}", v4.port()), v4, "name"),
            // It shows as what it is.
            (format!("mapped.test:{}", v4.port()), v4, ""),
        ] {
            world.send(target, payload).await;
            assert_eq!(world.next().await, format!("{shown} {payload}"));
        }
        let report = world.finish().await;
        assert_eq!((report.up, report.down), (13, 13));
        assert_eq!((report.sent, report.received), (4, 4));
        assert_eq!(report.drops.total(), 0);
        assert_eq!(report.end, End::ClientFinished);
    });
}

#[test]
fn p63_it_ends_exactly_when_the_control_connection_does() {
    run(async {
        let echo = echo("127.0.0.1").await;
        let mut options = RelayOptions::default();
        options.idle(None);
        let all = Associations::new();
        let mut world = World::with(&options, &all, None).await;
        for _ in 0..10 {
            // What comes on the control connection means nothing.
            let control = world.control.as_mut().unwrap();
            control.write_all(&[7; 10_000]).await.unwrap();
            tokio::time::sleep(Duration::from_secs(3600)).await;
            world.round(echo).await;
        }
        let report = world.finish().await;
        assert_eq!((report.sent, report.end), (10, End::ClientFinished));
    });
}

#[test]
fn p63_a_reset_of_the_control_connection_ends_it() {
    run(async {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let client = TcpStream::connect(listener.local_addr().unwrap());
        let (client, accepted) = tokio::join!(client, listener.accept());
        let (client, (mut ours, remote)) = (client.unwrap(), accepted.unwrap());
        let local = ours.local_addr().unwrap();
        let (all, options) = (Associations::new(), RelayOptions::default());
        let peer = Peer { remote, local };
        let association = Association::open(&peer, Words, &all, &options).unwrap();
        let refuse = |_, _| async { Err(ConnectError::origin(ConnectErrorKind::Forbidden)) };
        client.set_zero_linger().unwrap();
        drop(client);
        let report = soon(association.run(&mut ours, refuse)).await;
        assert_eq!(report.end, End::ClientReset);
        assert!(all.is_empty());
    });
}

#[test]
fn p63_idle_counts_datagrams_of_either_direction() {
    run(async {
        let target = socket("127.0.0.1").await;
        let to = target.local_addr().unwrap();
        let mut options = RelayOptions::default();
        options.idle(Duration::from_secs(60));
        let world = World::with(&options, &Associations::new(), None).await;
        world.send(to, "subscribe").await;
        let (_, upstream) = receive(&target).await;
        for _ in 0..10 {
            tokio::time::sleep(Duration::from_secs(50)).await;
            target.send_to(b"news", upstream).await.unwrap();
            assert_eq!(world.next().await, format!("{to} news"));
        }
        // What is dropped keeps nothing alive.
        let start = tokio::time::Instant::now();
        let stranger = socket("127.0.0.1").await;
        while !world.running.is_finished() {
            send_from(&stranger, world.relay, to, "x").await;
            world.send("forbidden.test:1", "x").await;
            tokio::time::sleep(TICK).await;
            assert!(start.elapsed() < Duration::from_secs(65));
        }
        assert!(start.elapsed() >= Duration::from_secs(60));
        let report = world.end().await;
        assert_eq!((report.received, report.end), (10, End::Idle));
        assert!(report.drops.strangers > 200 && report.drops.refused > 200);
    });
}

#[test]
fn limits_from_outside() {
    run(async {
        let echo = echo("127.0.0.1").await;
        let stop = Stop::new();
        let mut options = RelayOptions::default();
        options.stop(stop.clone());
        let world = World::with(&options, &Associations::new(), None).await;
        stop.drain();
        tokio::time::sleep(Duration::from_secs(60)).await;
        world.round(echo).await;
        stop.stop(End::Drained);
        assert_eq!(world.end().await.end, End::Drained);

        let mut options = RelayOptions::default();
        options.lifetime(Duration::from_secs(100));
        let world = World::with(&options, &Associations::new(), None).await;
        for _ in 0..9 {
            tokio::time::sleep(Duration::from_secs(10)).await;
            world.round(echo).await;
        }
        assert_eq!(world.end().await.end, End::Lifetime);
    });
}

#[test]
fn p65_the_first_valid_datagram_tells_the_port() {
    run(async {
        let echo = echo("127.0.0.1").await;
        let world = World::new().await;
        let other = socket("127.0.0.1").await;
        // Not valid, so it does not count.
        other.send_to(b"what?", world.relay).await.unwrap();
        other.send_to(b"", world.relay).await.unwrap();
        send_from(&other, world.relay, "127.0.0.1:0", "no such port").await;
        world.round(echo).await;
        send_from(&other, world.relay, echo, "too late").await;
        world.round(echo).await;
        let report = world.finish().await;
        assert_eq!((report.sent, report.received), (2, 2));
        assert_eq!((report.drops.malformed, report.drops.strangers), (3, 1));

        // Unless it was announced.
        let client = socket("127.0.0.1").await;
        let port = client.local_addr().unwrap().port();
        let (all, options) = (Associations::new(), RelayOptions::default());
        let world = World::with(&options, &all, Some(port)).await;
        send_from(&other, world.relay, echo, "first").await;
        send_from(&client, world.relay, echo, "mine").await;
        assert_eq!(receive(&client).await.0, format!("{echo} mine"));
        let report = world.finish().await;
        assert_eq!((report.sent, report.drops.strangers), (1, 1));
    });
}

#[test]
fn p67_strangers_get_nothing_through() {
    run(async {
        let echo = echo("127.0.0.1").await;
        let world = World::new().await;
        let stranger = socket("127.0.0.2").await;
        send_from(&stranger, world.relay, echo, "evil").await;
        let target = socket("127.0.0.1").await;
        world.send(target.local_addr().unwrap(), "hello").await;
        let (text, upstream) = receive(&target).await;
        assert_eq!(text, "hello");
        let upstream = SocketAddr::from(([127, 0, 0, 1], upstream.port()));
        // From a port, and from an address, that was not sent to.
        socket("127.0.0.1")
            .await
            .send_to(b"evil", upstream)
            .await
            .unwrap();
        stranger.send_to(b"evil", upstream).await.unwrap();
        target.send_to(b"welcome", upstream).await.unwrap();
        let expected = format!("{} welcome", target.local_addr().unwrap());
        assert_eq!(world.next().await, expected);
        let report = world.finish().await;
        assert_eq!(report.drops.strangers, 3);
        assert_eq!((report.sent, report.received), (1, 1));
        let silent = stranger.try_recv(&mut [0; 9]).unwrap_err();
        assert_eq!(silent.kind(), io::ErrorKind::WouldBlock);
    });
}

#[test]
fn associations_are_not_tied_to_one_another() {
    run(async {
        let echo = echo("127.0.0.1").await;
        let (all, options) = (Associations::new(), RelayOptions::default());
        let one = World::with(&options, &all, None).await;
        let two = World::with(&options, &all, None).await;
        // This policy does not mind; the other association does.
        let inner = format!("{echo} through both");
        one.send(two.relay, &inner).await;
        one.round(echo).await;
        two.round(echo).await;
        let (one, two) = (one.finish().await, two.finish().await);
        assert_eq!((one.sent, one.received), (2, 1));
        assert_eq!((two.sent, two.drops.strangers), (1, 1));
    });
}

#[test]
fn p68_too_many_are_refused_or_the_oldest_makes_room() {
    run(async {
        let echo = echo("127.0.0.1").await;
        let mut all = Associations::new();
        all.per_client(2);
        let options = RelayOptions::default();
        let one = World::with(&options, &all, None).await;
        let two = World::with(&options, &all, None).await;
        let more = Association::open(&peer(), Words, &all, &options);
        assert!(matches!(more, Err(AssociationError::Full)));
        tokio::time::sleep(Duration::from_secs(20)).await;
        one.round(echo).await;
        let three = World::with(&options, &all, None).await;
        assert_eq!(two.end().await.end, End::Limit);
        for world in [one, three] {
            world.round(echo).await;
            assert_eq!(world.finish().await.end, End::ClientFinished);
        }
        assert!(all.is_empty());
    });
}

#[test]
fn p69_no_datagram_ends_an_association() {
    run(async {
        let echo = echo("127.0.0.1").await;
        let world = World::new().await;
        // Nobody listens there, which ICMP tells.
        let closed = socket("127.0.0.1").await.local_addr().unwrap();
        for _ in 0..3 {
            world.send(closed, "anybody?").await;
            world.round(echo).await;
        }
        world.send("unknown.test:7", "x").await;
        // No system takes this as a target.
        world.send("255.255.255.255:7", "x").await;
        world.round(echo).await;
        let report = world.finish().await;
        assert_eq!(report.received, 4);
        assert_eq!(report.drops.refused, 1);
        assert_eq!(report.drops.unsent, 1);
        assert_eq!(report.end, End::ClientFinished);
    });
}

#[test]
fn p69_an_answer_too_long_for_its_header_is_dropped() {
    run(async {
        let large = socket("127.0.0.1").await;
        let world = World::new().await;
        world.send(large.local_addr().unwrap(), "how much?").await;
        let (_, upstream) = receive(&large).await;
        let most = vec![b'x'; 65_507];
        large.send_to(&most, upstream).await.unwrap();
        large.send_to(&most[..65_000], upstream).await.unwrap();
        let mut buf = vec![0; 65_536];
        let len = soon(world.socket.recv(&mut buf)).await.unwrap();
        assert!(len > 65_000);
        assert!(buf[..len].ends_with(&most[..65_000]));
        let report = world.finish().await;
        assert_eq!((report.received, report.down), (1, 65_000));
        assert_eq!(report.drops.unsent, 1);
    });
}

#[test]
fn p70_each_target_is_judged_once_in_a_while() {
    run(async {
        let echo = echo("127.0.0.1").await;
        let world = World::new().await;
        let name = format!("local.test:{}", echo.port());
        for _ in 0..5 {
            world.send("forbidden.test:1", "x").await;
            world.send(&name, "x").await;
            world.next().await;
        }
        assert_eq!(world.policy.asked(), ["forbidden.test:1", &name]);
        // Half a minute later, with the address that answers.
        tokio::time::sleep(Duration::from_secs(29)).await;
        world.send(&name, "x").await;
        world.next().await;
        tokio::time::sleep(Duration::from_secs(2)).await;
        world.send(&name, "x").await;
        world.next().await;
        assert_eq!(world.policy.asked()[2..], [format!("{name} {echo}")]);
        let report = world.finish().await;
        assert_eq!((report.drops.refused, report.received), (5, 7));
    });
}

#[test]
fn what_is_beyond_the_rates_is_dropped() {
    run(async {
        let rate = |burst| {
            let burst = NonZeroU64::new(burst).unwrap();
            let bucket = Bucket::new(NonZeroU64::MIN, burst, std::time::Instant::now());
            Rates::new([bucket])
        };
        let mut options = RelayOptions::default();
        options.rates(rate(100), rate(50));
        let world = World::with(&options, &Associations::new(), None).await;
        let echo = echo("127.0.0.1").await;
        let payload = "x".repeat(30);
        for _ in 0..5 {
            world.send(echo, &payload).await;
        }
        assert_eq!(world.next().await, format!("{echo} {payload}"));
        world.send(echo, "small").await;
        assert_eq!(world.next().await, format!("{echo} small"));
        let report = world.finish().await;
        assert_eq!((report.up, report.down), (95, 35));
        assert_eq!(report.drops.limited, 2 + 2);
        assert_eq!(report.drops.total(), 4);
    });
}

#[test]
fn p64_a_slow_name_delays_no_other_target() {
    run(async {
        let echo = echo("127.0.0.1").await;
        let target = socket("127.0.0.1").await;
        let world = World::new().await;
        let slow = format!("slow.test:{}", target.local_addr().unwrap().port());
        for number in 0..6 {
            world.send(&slow, &number.to_string()).await;
        }
        world.round(echo).await;
        let asked = world.policy.asked();
        assert_eq!(asked, [slow.clone(), echo.to_string()]);
        assert!(target.try_recv(&mut [0; 9]).is_err(), "not yet");
        world.policy.released.notify_one();
        for number in 0..4 {
            assert_eq!(receive(&target).await.0, number.to_string());
        }
        world.send(&slow, "at once").await;
        assert_eq!(receive(&target).await.0, "at once");
        let report = world.finish().await;
        assert_eq!((report.sent, report.drops.waiting), (6, 2));
    });
}

#[test]
fn p66_an_address_that_nobody_reaches_is_not_told() {
    run(async {
        let mut peer = peer();
        let (all, options) = (Associations::new(), RelayOptions::default());
        peer.local = "0.0.0.0:1080".parse().unwrap();
        let opened = Association::open(&peer, Words, &all, &options);
        assert!(matches!(opened, Err(AssociationError::Socket(_))));
        assert!(all.is_empty());
        peer.local = "[::ffff:127.0.0.1]:1080".parse().unwrap();
        let opened = Association::open(&peer, Words, &all, &options).unwrap();
        assert_eq!(opened.local_addr().ip().to_string(), "127.0.0.1");
    });
}
