//! Tunnels to targets that are arguments, over loopback.

mod support;

use std::sync::Mutex;

use proxy_core::{
    Ask, ConnectError, ConnectErrorKind, Connected, Credentials, Denial, End, Gateway, Operation,
    Peer, Report, Target, TargetBuf,
};
use proxy_relay::{Dialer, Passthrough, PortMapError, Relay, Transport};
use support::{expect_end, pair, within};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

/// What was asked for and how it ended: target, end, bytes up and down.
type Told = (String, End, u64, u64);

#[derive(Default)]
struct Policy {
    denial: Option<Denial>,
    never_connects: bool,
    told: Mutex<Vec<Told>>,
}

impl Policy {
    fn told(&self) -> Vec<Told> {
        self.told.lock().expect("no panic").clone()
    }
}

impl Gateway for Policy {
    type Identity = ();
    type Session = ();
    type Upstream = TcpStream;

    async fn authenticate(&self, _: &Peer, who: Option<Credentials<'_>>) -> Result<(), Denial> {
        assert!(who.is_none());
        Ok(())
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

    fn finished(&self, _: Option<&()>, _: Option<()>, report: &Report<'_>) {
        let target = report.target.expect("known from the start").to_string();
        let told = (target, report.end, report.up, report.down);
        self.told.lock().expect("no panic").push(told);
    }
}

async fn origin() -> (TcpListener, TargetBuf) {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("bind");
    let address = listener.local_addr().expect("address");
    (listener, Target::from(address).into())
}

fn peer(stream: &TcpStream) -> Peer {
    Peer {
        remote: stream.peer_addr().expect("peer"),
        local: stream.local_addr().expect("local"),
    }
}

#[tokio::test]
async fn each_connection_goes_to_its_own_target() {
    let tunnels = Passthrough::new(Policy::default());
    for question in ["first", "the second"] {
        let (listener, target) = origin().await;
        let (mut client, near) = pair().await;
        let peer = peer(&near);
        let talk = async {
            let (mut server, _) = listener.accept().await.expect("accept");
            client.write_all(question.as_bytes()).await.expect("write");
            client.shutdown().await.expect("shutdown");
            let mut asked = String::new();
            server.read_to_string(&mut asked).await.expect("read");
            assert_eq!(asked, question);
            server.write_all(b"answer").await.expect("write");
            drop(server);
            let mut answer = String::new();
            client.read_to_string(&mut answer).await.expect("read");
            assert_eq!(answer, "answer");
        };
        let serve = tunnels.serve(near, peer, target.clone(), Vec::new());
        let (served, ()) = tokio::join!(serve, talk);
        served.expect("served");
        let up = question.len() as u64;
        let told = (target.to_string(), End::ClientFinished, up, 6);
        assert_eq!(tunnels.gateway().told().last(), Some(&told));
    }
}

#[tokio::test]
async fn what_was_read_before_goes_first_and_counts() {
    let (listener, target) = origin().await;
    let tunnels = Passthrough::new(Policy::default());
    let (mut client, near) = pair().await;
    let peer = peer(&near);
    let early: Vec<u8> = (0..100_000_u32).map(|at| at.to_le_bytes()[1]).collect();
    let talk = async {
        let (mut server, _) = listener.accept().await.expect("accept");
        client.write_all(b"and the rest").await.expect("write");
        client.shutdown().await.expect("shutdown");
        let mut asked = Vec::new();
        server.read_to_end(&mut asked).await.expect("read");
        assert!(asked == [&early[..], b"and the rest"].concat());
    };
    let serve = tunnels.serve(near, peer, target.clone(), early.clone());
    let (served, ()) = tokio::join!(serve, talk);
    served.expect("served");
    let up = early.len() as u64 + 12;
    let told = (target.to_string(), End::ClientFinished, up, 0);
    assert_eq!(tunnels.gateway().told(), [told]);
}

#[tokio::test]
async fn a_stream_that_is_lent_can_still_be_told_why() {
    let (_listener, target) = origin().await;
    let denial = Some(Denial::Forbid);
    let tunnels = Passthrough::new(Policy {
        denial,
        ..Policy::default()
    });
    let (mut client, mut near) = pair().await;
    let peer = peer(&near);
    let early = b"hello".to_vec();
    let served = tunnels.serve(&mut near, peer, target.clone(), early).await;
    assert_eq!(served, Err(PortMapError::Denied(Denial::Forbid)));
    near.write_all(b"no").await.expect("write");
    drop(near);
    let mut answer = [0; 2];
    client.read_exact(&mut answer).await.expect("read");
    assert_eq!(&answer, b"no");
    expect_end(&mut client).await;
    let told = (target.to_string(), End::Forbidden, 0, 0);
    assert_eq!(tunnels.gateway().told(), [told]);
}

#[tokio::test]
async fn a_target_that_is_down_is_reported() {
    let (listener, target) = origin().await;
    drop(listener);
    let tunnels = Passthrough::new(Policy::default());
    let (mut client, near) = pair().await;
    let peer = peer(&near);
    let served = tunnels.serve(near, peer, target, Vec::new()).await;
    let refused = ConnectError::origin(ConnectErrorKind::Refused);
    assert_eq!(served, Err(PortMapError::Connect(refused)));
    expect_end(&mut client).await;
    assert_eq!(tunnels.gateway().told()[0].1, End::ConnectFailed);
}

#[tokio::test]
async fn p33_a_client_that_resets_cancels_the_dial() {
    let (_listener, target) = origin().await;
    let tunnels = Passthrough::new(Policy {
        never_connects: true,
        ..Policy::default()
    });
    let (mut client, near) = pair().await;
    let peer = peer(&near);
    let leave = async {
        client.abort();
        drop(client);
    };
    let serve = tunnels.serve(near, peer, target, Vec::new());
    let (served, ()) = within(5, async { tokio::join!(serve, leave) })
        .await
        .expect("noticed at once");
    assert_eq!(served, Err(PortMapError::Vanished));
}

#[tokio::test]
async fn the_future_is_little_more_than_a_relay() {
    let (_listener, target) = origin().await;
    let tunnels = Passthrough::new(Policy::default());
    let (_client, near) = pair().await;
    let peer = peer(&near);
    let serve = tunnels.serve(near, peer, target, Vec::new());
    let relay = size_of::<Relay<'_, TcpStream, TcpStream>>();
    let size = size_of_val(&serve);
    assert!(size <= relay + 32, "{size} bytes around {relay}");
}
