//! Relays with TLS on one side or both: cuts and resets of the client.

mod common;

use std::io;

use common::{Identity, TLS12, TLS13, bounded, pattern};
use proxy_core::End;
use proxy_relay::{Lent, RelayOptions, RelayReport, Transport, lent, relay};
use proxy_tls::rustls::SupportedProtocolVersion;
use proxy_tls::{TlsOptions, TlsStream};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::{JoinHandle, yield_now};

type Client = tokio_rustls::client::TlsStream<TcpStream>;

async fn tcp_pair() -> (TcpStream, TcpStream) {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("bind");
    let address = listener.local_addr().expect("address");
    let (ours, theirs) = tokio::join!(TcpStream::connect(address), listener.accept());
    (ours.expect("connect"), theirs.expect("accept").0)
}

/// An independent client and our server.
async fn mixed(
    id: &Identity,
    versions: &[&'static SupportedProtocolVersion],
) -> (Client, TlsStream<TcpStream>) {
    let (acceptor, connector) = (
        id.acceptor(&TlsOptions::default()),
        id.client(versions, &[]),
    );
    let (client, server) = tcp_pair().await;
    let (client, server) = bounded(async {
        tokio::join!(
            connector.connect(common::localhost(), client),
            acceptor.accept(server)
        )
    })
    .await;
    (client.expect("connected"), server.expect("accepted"))
}

fn start<A, B>(mut near: A, mut far: B) -> JoinHandle<RelayReport>
where
    A: Transport + Send + 'static,
    B: Transport + Send + 'static,
{
    tokio::spawn(async move { relay(&mut near, &mut far, &RelayOptions::default()).await })
}

/// Sends `data` and then a FIN without close_notify. Runs on while the relay
/// is blocked.
fn send_and_cut(mut client: Client, data: Vec<u8>) -> JoinHandle<Client> {
    tokio::spawn(async move {
        client.write_all(&data).await.expect("sent");
        client.flush().await.expect("sent");
        client.get_mut().0.shutdown().await.expect("closed");
        client
    })
}

async fn report(task: JoinHandle<RelayReport>) -> RelayReport {
    bounded(task).await.expect("no panic")
}

#[tokio::test]
async fn p75_what_a_cut_client_sent_is_delivered() {
    let id = Identity::localhost();
    for versions in [TLS13, TLS12] {
        for len in [5, 1 << 20, 12 << 20] {
            let (client, near) = mixed(&id, versions).await;
            let (far, mut origin) = tcp_pair().await;
            let task = start(near, far);
            let data = pattern(len, 1);
            let sending = send_and_cut(client, data.clone());
            if len == 12 << 20 {
                bounded(async {
                    while lent() == Lent::default() {
                        yield_now().await;
                    }
                })
                .await;
            } else {
                origin.write_all(b"unread by anybody").await.expect("sent");
            }
            let mut got = Vec::new();
            let end = bounded(origin.read_to_end(&mut got)).await;
            end.expect("no reset overtakes it");
            assert!(got == data, "{} of {len}", got.len());
            drop(origin);
            let report = report(task).await;
            assert_eq!((report.up, report.end), (len as u64, End::ClientReset));
            bounded(sending).await.expect("no panic");
        }
    }
}

#[tokio::test]
async fn p75_a_cut_is_passed_on_as_a_cut_over_tls() {
    let id = Identity::localhost();
    let (client, near) = mixed(&id, TLS13).await;
    let (mut origin, far) = {
        let (far, origin) = tcp_pair().await;
        let options = TlsOptions::default();
        let (connector, acceptor) = (id.connector(&options), id.acceptor(&options));
        let (far, origin) = bounded(async {
            tokio::join!(
                connector.connect(common::localhost(), far),
                acceptor.accept(origin)
            )
        })
        .await;
        (origin.expect("accepted"), far.expect("connected"))
    };
    let task = start(near, far);
    let data = pattern(3 << 20, 2);
    let sending = send_and_cut(client, data.clone());
    let mut got = Vec::new();
    let end = bounded(origin.read_to_end(&mut got)).await;
    assert_eq!(end.expect_err("a cut").kind(), io::ErrorKind::UnexpectedEof);
    assert!(got == data, "{} of {}", got.len(), data.len());
    let report = report(task).await;
    assert_eq!(
        (report.up, report.end),
        (data.len() as u64, End::ClientReset)
    );
    bounded(sending).await.expect("no panic");
}

#[tokio::test]
async fn a_reset_beneath_tls_is_noticed_while_the_origin_takes_nothing() {
    let id = Identity::localhost();
    let (mut client, near) = mixed(&id, TLS13).await;
    let (far, origin) = tcp_pair().await;
    let task = start(near, far);
    let block = vec![7; 64 * 1024];
    let flood = async {
        loop {
            client.write_all(&block).await.expect("sent");
        }
    };
    let blocked = async {
        while lent() == Lent::default() {
            yield_now().await;
        }
    };
    tokio::select! {
        () = flood => {}
        () = bounded(blocked) => {}
    }
    client.get_mut().0.abort();
    drop(client);
    let report = report(task).await;
    assert_eq!((report.down, report.end), (0, End::ClientReset));
    assert!(report.up > 0);
    drop(origin);
}
