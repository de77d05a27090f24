//! Port maps over loopback, and what policy is told.

mod support;

use std::sync::Mutex;
use std::time::Duration;

use proxy_core::{
    Ask, ConnectError, ConnectErrorKind, Connected, Credentials, Denial, End, Gateway, Operation,
    Peer, Report, Target, Timeouts,
};
use proxy_relay::{Dialer, PortMap, PortMapError, Transport};
use support::{expect_end, pair, until, within};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

/// End, bytes up and down, whether identified, whether authorized.
type Told = (End, u64, u64, bool, bool);

#[derive(Default)]
struct Policy {
    denial: Option<Denial>,
    never_connects: bool,
    told: Mutex<Vec<Told>>,
}

impl Gateway for Policy {
    type Identity = ();
    type Session = ();
    type Upstream = TcpStream;

    async fn authenticate(&self, _: &Peer, who: Option<Credentials<'_>>) -> Result<(), Denial> {
        assert!(who.is_none());
        match self.denial {
            Some(Denial::Challenge) => Err(Denial::Challenge),
            _ => Ok(()),
        }
    }

    async fn authorize(&self, _: &(), ask: &Ask<'_>) -> Result<(), Denial> {
        assert_eq!(ask.operation, Operation::Tunnel);
        self.denial.map_or(Ok(()), Err)
    }

    async fn connect(
        &self,
        _: &mut (),
        target: Target<'_>,
    ) -> Result<Connected<TcpStream>, ConnectError> {
        if self.never_connects {
            std::future::pending::<()>().await;
        }
        Ok(Connected::fresh(Dialer::default().dial(target).await?))
    }

    fn finished(&self, who: Option<&()>, session: Option<()>, report: &Report<'_>) {
        assert!(report.operation.is_some() && report.target.is_some());
        let told = (
            report.end,
            report.up,
            report.down,
            who.is_some(),
            session.is_some(),
        );
        self.told.lock().expect("no panic").push(told);
    }
}

async fn origin() -> (TcpListener, Target<'static>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("bind");
    let address = listener.local_addr().expect("address");
    (listener, Target::from(address))
}

fn peer(stream: &TcpStream) -> Peer {
    Peer {
        remote: stream.peer_addr().expect("peer"),
        local: stream.local_addr().expect("local"),
    }
}

#[tokio::test]
async fn p41_a_server_that_speaks_first() {
    let (listener, target) = origin().await;
    let map = PortMap::new(Policy::default(), target.into());
    let (mut client, near) = pair().await;
    let peer = peer(&near);
    let talk = async {
        let (mut server, _) = listener.accept().await.expect("accept");
        server.write_all(b"220 ready\r\n").await.expect("write");
        let mut banner = [0; 11];
        client.read_exact(&mut banner).await.expect("read");
        client.write_all(b"QUIT\r\n").await.expect("write");
        client.shutdown().await.expect("shutdown");
        let mut asked = String::new();
        server.read_to_string(&mut asked).await.expect("read");
        assert_eq!(asked, "QUIT\r\n");
    };
    let (served, ()) = tokio::join!(map.serve(near, peer), talk);
    served.expect("served");
    let told = map.gateway().told.lock().expect("no panic").clone();
    assert_eq!(told, [(End::ClientFinished, 6, 11, true, true)]);
}

#[tokio::test]
async fn a_target_that_is_down_closes_the_client() {
    let (listener, target) = origin().await;
    drop(listener);
    let map = PortMap::new(Policy::default(), target.into());
    let (mut client, near) = pair().await;
    let peer = peer(&near);
    let served = map.serve(near, peer).await;
    let refused = ConnectError::origin(ConnectErrorKind::Refused);
    assert_eq!(served, Err(PortMapError::Connect(refused)));
    expect_end(&mut client).await;
    let told = map.gateway().told.lock().expect("no panic").clone();
    assert_eq!(told, [(End::ConnectFailed, 0, 0, true, true)]);
}

#[tokio::test]
async fn what_policy_refuses_is_not_connected() {
    for (denial, end) in [
        (Denial::Busy, End::Busy),
        (Denial::Challenge, End::Challenged),
        (Denial::Forbid, End::Forbidden),
        (Denial::Unroutable, End::ConnectFailed),
    ] {
        let (_listener, target) = origin().await;
        let policy = Policy {
            denial: Some(denial),
            never_connects: true,
            ..Policy::default()
        };
        let map = PortMap::new(policy, target.into());
        let (mut client, near) = pair().await;
        let peer = peer(&near);
        assert_eq!(
            map.serve(near, peer).await,
            Err(PortMapError::Denied(denial))
        );
        expect_end(&mut client).await;
        let told = map.gateway().told.lock().expect("no panic").clone();
        let identified = denial != Denial::Challenge;
        assert_eq!(told, [(end, 0, 0, identified, false)]);
    }
}

#[tokio::test]
async fn p33_a_client_that_resets_cancels_the_dial() {
    let (_listener, target) = origin().await;
    let policy = Policy {
        never_connects: true,
        ..Policy::default()
    };
    let map = PortMap::new(policy, target.into());
    let (mut client, near) = pair().await;
    let peer = peer(&near);
    let leave = async {
        client.write_all(b"unread").await.expect("write");
        client.abort();
        drop(client);
    };
    let (served, ()) = within(5, async { tokio::join!(map.serve(near, peer), leave) })
        .await
        .expect("noticed at once");
    assert_eq!(served, Err(PortMapError::Vanished));
}

#[tokio::test]
async fn p33_a_half_close_is_no_reset() {
    let (listener, target) = origin().await;
    let map = PortMap::new(Policy::default(), target.into());
    let (mut client, near) = pair().await;
    let peer = peer(&near);
    client.write_all(b"question").await.expect("write");
    client.shutdown().await.expect("shutdown");
    let talk = async {
        let (mut server, _) = listener.accept().await.expect("accept");
        let mut asked = String::new();
        server.read_to_string(&mut asked).await.expect("read");
        server.write_all(b"answer").await.expect("write");
        drop(server);
        let mut answer = String::new();
        client.read_to_string(&mut answer).await.expect("read");
        assert_eq!((&*asked, &*answer), ("question", "answer"));
    };
    let (served, ()) = tokio::join!(map.serve(near, peer), talk);
    served.expect("served");
}

#[tokio::test]
async fn settings_reach_the_tunnel() {
    let (listener, target) = origin().await;
    let mut timeouts = Timeouts::default();
    timeouts.tunnel = Some(Duration::from_millis(250));
    let mut map = PortMap::new(Policy::default(), target.into());
    map.timeouts(timeouts);
    let (client, near) = pair().await;
    let peer = peer(&near);
    let (served, accepted) = tokio::join!(map.serve(near, peer), listener.accept());
    served.expect("served");
    drop((client, accepted));
    let told = map.gateway().told.lock().expect("no panic").clone();
    assert_eq!(told, [(End::Idle, 0, 0, true, true)]);
}

#[tokio::test]
async fn a_stop_reaches_the_tunnel() {
    let stop = proxy_core::Stop::new();
    let (listener, target) = origin().await;
    let mut map = PortMap::new(Policy::default(), target.into());
    map.stop(stop.clone());
    let (client, near) = pair().await;
    let peer = peer(&near);
    let ordering = async {
        let accepted = listener.accept().await.expect("accept");
        stop.stop(End::Drained);
        accepted
    };
    let (served, accepted) = tokio::join!(map.serve(near, peer), ordering);
    served.expect("served");
    drop((client, accepted));
    let told = || map.gateway().told.lock().expect("no panic").len();
    until("the report", || told() == 1).await;
    assert_eq!(
        map.gateway().told.lock().expect("no panic")[0].0,
        End::Drained
    );
}
