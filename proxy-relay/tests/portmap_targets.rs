//! Port maps with several targets: which one a connection reaches, and what
//! policy is asked and told.

mod support;

use std::net::SocketAddr;
use std::sync::Mutex;

use proxy_core::{
    Ask, ConnectError, ConnectErrorKind, Connected, Credentials, Denial, End, Gateway, Peer,
    Report, Target,
};
use proxy_relay::{Balance, Dialer, PortMap, PortMapError, Transport};
use support::{expect_end, pair, within};
use tokio::io::AsyncReadExt;
use tokio::net::{TcpListener, TcpStream};

/// Notes in order what it is asked and told.
#[derive(Default)]
struct Policy {
    denied: Vec<(u16, Denial)>,
    /// A connect to this port never ends.
    silent: Option<u16>,
    seen: Mutex<Vec<Seen>>,
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Seen {
    Authorized(u16),
    Connecting(u16),
    /// The port of the target in the report, that of the session and the end.
    Finished(u16, Option<u16>, End),
}

impl Policy {
    fn see(&self, seen: Seen) {
        self.seen.lock().expect("no panic").push(seen);
    }
}

impl Gateway for Policy {
    type Identity = ();
    /// The port it is for.
    type Session = u16;
    type Upstream = TcpStream;

    async fn authenticate(&self, _: &Peer, _: Option<Credentials<'_>>) -> Result<(), Denial> {
        Ok(())
    }

    async fn authorize(&self, _: &(), ask: &Ask<'_>) -> Result<u16, Denial> {
        let port = ask.target.port;
        self.see(Seen::Authorized(port));
        match self.denied.iter().find(|(denied, _)| *denied == port) {
            Some((_, denial)) => Err(*denial),
            None => Ok(port),
        }
    }

    async fn connect(
        &self,
        _: &mut u16,
        target: Target<'_>,
    ) -> Result<Connected<TcpStream>, ConnectError> {
        self.see(Seen::Connecting(target.port));
        if self.silent == Some(target.port) {
            std::future::pending::<()>().await;
        }
        Ok(Connected::fresh(Dialer::default().dial(target).await?))
    }

    fn finished(&self, _: Option<&()>, session: Option<u16>, report: &Report<'_>) {
        let port = report.target.map_or(0, |target| target.port);
        assert_eq!(report.error.is_some(), report.end == End::ConnectFailed);
        self.see(Seen::Finished(port, session, report.end));
    }
}

/// Names itself to everybody and closes.
async fn naming(name: &'static str) -> SocketAddr {
    use tokio::io::AsyncWriteExt;
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("bound");
    let address = listener.local_addr().expect("bound");
    tokio::spawn(async move {
        while let Ok((mut stream, _)) = listener.accept().await {
            stream.write_all(name.as_bytes()).await.expect("written");
        }
    });
    address
}

async fn closed() -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("bound");
    listener.local_addr().expect("bound")
}

fn map(policy: Policy, balance: Balance, targets: &[SocketAddr]) -> PortMap<Policy> {
    let mut map = PortMap::new(policy, Target::from(targets[0]).into());
    for target in &targets[1..] {
        map.also(Target::from(*target).into());
    }
    map.balance(balance);
    map
}

/// What a new client is sent, and how its connection fared.
async fn visit(map: &PortMap<Policy>) -> (String, Result<(), PortMapError>) {
    let (mut client, near) = pair().await;
    let peer = Peer {
        remote: near.peer_addr().expect("peer"),
        local: near.local_addr().expect("local"),
    };
    let read = async {
        let mut name = String::new();
        client.read_to_string(&mut name).await.expect("in order");
        drop(client);
        name
    };
    let both = async { tokio::join!(map.serve(near, peer), read) };
    let (served, name) = within(20, both).await.expect("an end");
    (name, served)
}

fn seen(map: &PortMap<Policy>) -> Vec<Seen> {
    std::mem::take(&mut map.gateway().seen.lock().expect("no panic"))
}

#[tokio::test]
async fn the_next_target_stands_in_for_one_that_is_down() {
    let (down, up) = (closed().await, naming("b").await);
    let map = map(Policy::default(), Balance::Failover, &[down, up]);
    assert_eq!(visit(&map).await, ("b".into(), Ok(())));
    let (down, up) = (down.port(), up.port());
    use Seen::{Authorized, Connecting, Finished};
    let finished = Finished(up, Some(up), End::OriginFinished);
    assert_eq!(
        seen(&map),
        [
            Authorized(down),
            Connecting(down),
            Authorized(up),
            Connecting(up),
            finished
        ]
    );
    // It is passed over for a while.
    assert_eq!(visit(&map).await, ("b".into(), Ok(())));
    assert_eq!(seen(&map), [Authorized(up), Connecting(up), finished]);
}

#[tokio::test]
async fn round_robin_spreads_connections_evenly() {
    let targets = [naming("a").await, naming("b").await, naming("c").await];
    let map = map(Policy::default(), Balance::RoundRobin, &targets);
    let mut names = String::new();
    for _ in 0..9 {
        names += &visit(&map).await.0;
    }
    assert_eq!(names, "abcabcabc");
}

#[tokio::test]
async fn failover_keeps_to_the_first() {
    let targets = [naming("a").await, naming("b").await];
    let map = map(Policy::default(), Balance::Failover, &targets);
    for _ in 0..5 {
        assert_eq!(visit(&map).await, ("a".into(), Ok(())));
    }
}

#[tokio::test]
async fn each_target_is_tried_once_if_all_are_down() {
    let targets = [closed().await, closed().await, closed().await];
    for balance in [Balance::Failover, Balance::RoundRobin] {
        let map = map(Policy::default(), balance, &targets);
        let refused = ConnectError::origin(ConnectErrorKind::Refused);
        for _ in 0..4 {
            let (name, served) = visit(&map).await;
            assert_eq!((&*name, served), ("", Err(PortMapError::Connect(refused))));
            let seen = seen(&map);
            let mut tried: Vec<u16> = seen
                .iter()
                .filter_map(|seen| match seen {
                    Seen::Connecting(port) => Some(*port),
                    _ => None,
                })
                .collect();
            let last = tried[2];
            let finished = Seen::Finished(last, Some(last), End::ConnectFailed);
            assert_eq!(seen.last(), Some(&finished));
            let count = seen
                .iter()
                .filter(|seen| matches!(seen, Seen::Finished(..)));
            assert_eq!(count.count(), 1, "one report for each connection");
            tried.sort_unstable();
            let mut ports = targets.map(|target| target.port());
            ports.sort_unstable();
            assert_eq!(tried, ports);
        }
    }
}

#[tokio::test]
async fn policy_judges_each_target() {
    let targets = [naming("a").await, naming("b").await];
    let ports = targets.map(|target| target.port());
    for denial in [Denial::Forbid, Denial::Unroutable] {
        let policy = Policy {
            denied: vec![(ports[0], denial)],
            ..Policy::default()
        };
        let map = map(policy, Balance::Failover, &targets);
        // Not passed over later: it is not down.
        for _ in 0..2 {
            assert_eq!(visit(&map).await, ("b".into(), Ok(())));
            assert_eq!(
                seen(&map)[..2],
                [Seen::Authorized(ports[0]), Seen::Authorized(ports[1])]
            );
        }
    }
    // What is said of the client holds for all targets.
    for denial in [Denial::Busy, Denial::Challenge] {
        let policy = Policy {
            denied: vec![(ports[0], denial)],
            ..Policy::default()
        };
        let map = map(policy, Balance::Failover, &targets);
        let served = visit(&map).await.1;
        assert_eq!(served, Err(PortMapError::Denied(denial)));
        assert_eq!(seen(&map).len(), 2);
    }
}

#[tokio::test]
async fn a_refusal_behind_a_failure_has_no_session_of_that_failure() {
    let targets = [closed().await, naming("b").await];
    let ports = targets.map(|target| target.port());
    let policy = Policy {
        denied: vec![(ports[1], Denial::Forbid)],
        ..Policy::default()
    };
    let map = map(policy, Balance::Failover, &targets);
    let served = visit(&map).await.1;
    assert_eq!(served, Err(PortMapError::Denied(Denial::Forbid)));
    let last = seen(&map).pop();
    assert_eq!(last, Some(Seen::Finished(ports[1], None, End::Forbidden)));
}

#[tokio::test]
async fn p33_a_client_that_resets_cancels_every_attempt() {
    let targets = [closed().await, naming("b").await, naming("c").await];
    let ports = targets.map(|target| target.port());
    let policy = Policy {
        silent: Some(ports[1]),
        ..Policy::default()
    };
    let map = map(policy, Balance::Failover, &targets);
    let (mut client, near) = pair().await;
    let peer = Peer {
        remote: near.peer_addr().expect("peer"),
        local: near.local_addr().expect("local"),
    };
    let leave = async {
        client.abort();
        drop(client);
    };
    let both = async { tokio::join!(map.serve(near, peer), leave) };
    let (served, ()) = within(20, both).await.expect("noticed at once");
    assert_eq!(served, Err(PortMapError::Vanished));
    let seen = seen(&map);
    assert!(!seen.contains(&Seen::Connecting(ports[2])), "{seen:?}");
    assert!(matches!(
        seen.last(),
        Some(Seen::Finished(_, _, End::ClientReset))
    ));
}

#[tokio::test]
async fn a_client_is_closed_in_order_when_all_are_down() {
    let map = map(
        Policy::default(),
        Balance::Failover,
        &[closed().await, closed().await],
    );
    let (mut client, near) = pair().await;
    let peer = Peer {
        remote: near.peer_addr().expect("peer"),
        local: near.local_addr().expect("local"),
    };
    map.serve(near, peer).await.expect_err("all are down");
    expect_end(&mut client).await;
}
