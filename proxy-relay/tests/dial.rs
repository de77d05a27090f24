//! Dialling on loopback.

mod support;

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::time::Duration;

use proxy_core::{ConnectErrorKind, Target};
use proxy_relay::Dialer;
use socket2::SockRef;
use support::silent::Silent;
use tokio::net::{TcpListener, TcpStream};

async fn listener(address: &str) -> (TcpListener, SocketAddr) {
    let listener = TcpListener::bind(address).await.expect("bind");
    let address = listener.local_addr().expect("address");
    (listener, address)
}

async fn dial(target: &str) -> Result<TcpStream, ConnectErrorKind> {
    let target = Target::parse(target, None).expect("a target");
    let dialled = Dialer::default().dial(target).await;
    dialled.map_err(|error| error.kind)
}

#[tokio::test]
async fn an_address_is_dialled_directly() {
    let (_listener, address) = listener("127.0.0.1:0").await;
    let stream = dial(&address.to_string()).await.expect("connects");
    assert_eq!(stream.peer_addr().expect("peer"), address);
    assert!(stream.nodelay().expect("option"), "Nagle is off");
}

#[tokio::test]
async fn p45_a_silent_peer_is_probed_unless_told_otherwise() {
    let (_listener, address) = listener("127.0.0.1:0").await;
    let mut dialer = Dialer::default();
    let stream = dialer.dial(Target::from(address)).await.expect("connects");
    let socket = SockRef::from(&stream);
    assert!(socket.keepalive().expect("option"));
    let probing = (
        socket.tcp_keepalive_time().expect("option"),
        socket.tcp_keepalive_interval().expect("option"),
        socket.tcp_keepalive_retries().expect("option"),
    );
    let seconds = Duration::from_secs;
    assert_eq!(probing, (seconds(60), seconds(15), 4));
    dialer.keepalive(None);
    let stream = dialer.dial(Target::from(address)).await.expect("connects");
    assert!(!SockRef::from(&stream).keepalive().expect("option"));
}

#[tokio::test]
async fn p38_an_ipv6_address_is_dialled() {
    let (_listener, address) = listener("[::1]:0").await;
    dial(&address.to_string()).await.expect("connects");
}

#[tokio::test]
async fn a_closed_port_refuses() {
    let (listener, address) = listener("127.0.0.1:0").await;
    drop(listener);
    assert_eq!(
        dial(&address.to_string()).await.err(),
        Some(ConnectErrorKind::Refused)
    );
    let name = format!("localhost:{}", address.port());
    assert_eq!(dial(&name).await.err(), Some(ConnectErrorKind::Refused));
}

#[tokio::test]
async fn p36_the_family_that_is_dead_does_not_matter() {
    // Whichever comes first, one of the two needs the other address.
    for only in ["127.0.0.1", "::1"] {
        let only: IpAddr = only.parse().expect("an address");
        let listener = TcpListener::bind((only, 0)).await.expect("bind");
        let port = listener.local_addr().expect("address").port();
        for name in ["localhost", "a.b.localhost."] {
            let stream = dial(&format!("{name}:{port}")).await.expect("connects");
            assert_eq!(stream.peer_addr().expect("peer").ip(), only);
        }
    }
}

#[tokio::test]
async fn a_name_that_cannot_exist() {
    for name in ["nowhere.invalid:80", "INVALID.:80"] {
        assert_eq!(dial(name).await.err(), Some(ConnectErrorKind::NameNotFound));
    }
}

#[tokio::test]
async fn silence_times_out() {
    let silent = Silent::new(Ipv4Addr::LOCALHOST.into(), 0).await;
    let mut dialer = Dialer::default();
    dialer.connect_timeout(Duration::from_millis(100));
    let dialled = dialer.dial(Target::from(silent.address)).await;
    assert_eq!(
        dialled.expect_err("silence").kind,
        ConnectErrorKind::TimedOut
    );
}

#[tokio::test]
async fn p35_a_source_address_leaves_the_port_to_connect() {
    let (accepting, address) = listener("127.0.0.1:0").await;
    let source = Ipv4Addr::new(127, 0, 0, 7);
    let mut dialer = Dialer::default();
    dialer
        .bind(source.into())
        .bind("::1".parse().expect("an address"));
    dialer.keepalive(Duration::from_secs(60));
    let stream = dialer.dial(Target::from(address)).await.expect("connects");
    let (_, remote) = accepting.accept().await.expect("accept");
    assert_eq!(remote.ip(), IpAddr::V4(source));
    #[cfg(target_os = "linux")]
    {
        use nix::sys::socket::{getsockopt, sockopt::IpBindAddressNoPort};
        assert!(getsockopt(&stream, IpBindAddressNoPort).expect("option"));
    }
    drop(stream);
    // The other family's source does not disturb this one.
    let (_listener, address) = listener("[::1]:0").await;
    dialer.dial(Target::from(address)).await.expect("connects");
}

#[tokio::test]
async fn equal_names_at_once() {
    let (_listener, address) = listener("127.0.0.1:0").await;
    let name = format!("localhost:{}", address.port());
    let dials = (0..20).map(|_| {
        let name = name.clone();
        tokio::spawn(async move { dial(&name).await.map(drop) })
    });
    for dialled in dials.collect::<Vec<_>>() {
        dialled.await.expect("no panic").expect("connects");
    }
}
