//! Dialling by name: whom the resolver names, whom the judge allows.

mod support;

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use proxy_core::{ConnectError, ConnectErrorKind, Host, Target};
use proxy_relay::Dialer;
use proxy_relay::Family::{V4, V6};
use support::scripted::{Scripted, ip};
use support::silent::Silent;
use support::within;
use tokio::net::{TcpListener, TcpStream};

const NAME: &str = "name.example";

fn dialer(resolver: &Arc<Scripted>) -> Dialer {
    let mut dialer = Dialer::default();
    dialer.resolver(Arc::clone(resolver) as _);
    dialer
}

fn target(port: u16) -> Target<'static> {
    Target {
        host: Host::Name(NAME),
        port,
    }
}

/// Listeners on one port of all these addresses.
async fn listeners<const N: usize>(ips: [&str; N]) -> ([TcpListener; N], u16) {
    for _ in 0..100 {
        let (mut bound, mut port) = (Vec::new(), 0);
        for ip in ips {
            // Somebody else may have it on that address.
            let Ok(listener) = TcpListener::bind((ip, port)).await else {
                break;
            };
            port = listener.local_addr().expect("address").port();
            bound.push(listener);
        }
        if let Ok(bound) = bound.try_into() {
            return (bound, port);
        }
    }
    panic!("no port is free on all of {ips:?}");
}

async fn connected(listener: &TcpListener) -> bool {
    within(0, listener.accept()).await.is_some()
}

fn refusal(kind: ConnectErrorKind) -> ConnectError {
    ConnectError::origin(kind)
}

/// Dials where `judge` allows, and tells whom it was asked about.
async fn judged(
    dialer: &Dialer,
    target: Target<'_>,
    judge: impl Fn(IpAddr) -> Option<ConnectErrorKind>,
) -> (Result<TcpStream, ConnectErrorKind>, Vec<IpAddr>) {
    let asked = Mutex::new(Vec::new());
    let dialled = dialer
        .dial_judged(target, |address: SocketAddr| {
            assert_eq!(address.port(), target.port);
            asked.lock().expect("no panic").push(address.ip());
            judge(address.ip()).map_or(Ok(None), |kind| Err(refusal(kind)))
        })
        .await;
    let dialled = dialled.map_err(|error| error.kind);
    (dialled, asked.into_inner().expect("no panic"))
}

#[tokio::test]
async fn p36_a_dead_family_costs_the_stagger_on_real_sockets() {
    let ([six, _live], port) = listeners(["::1", "127.0.0.1"]).await;
    drop(six);
    let silent = Silent::new(ip("::1"), port).await;
    let resolver = Scripted::new();
    resolver.says(NAME, V6, 0, &["::1"]);
    resolver.says(NAME, V4, 0, &["127.0.0.1"]);
    let start = Instant::now();
    let stream = dialer(&resolver).dial(target(silent.address.port())).await;
    let peer = stream.expect("connects").peer_addr().expect("peer");
    assert_eq!(peer.ip(), ip("127.0.0.1"));
    let elapsed = start.elapsed();
    assert!(elapsed >= Duration::from_millis(250), "{elapsed:?}");
    assert!(elapsed < Duration::from_secs(3), "{elapsed:?}");
}

#[tokio::test]
async fn p39_an_address_that_is_refused_is_passed_over() {
    let ([forbidden, _allowed], port) = listeners(["::1", "127.0.0.1"]).await;
    let resolver = Scripted::new();
    resolver.says(NAME, V6, 0, &["::1"]);
    resolver.says(NAME, V4, 0, &["127.0.0.1"]);
    let dialer = dialer(&resolver);
    let no_v6 = |ip: IpAddr| ip.is_ipv6().then_some(ConnectErrorKind::Forbidden);
    let (dialled, asked) = judged(&dialer, target(port), no_v6).await;
    assert_eq!(asked, [ip("::1"), ip("127.0.0.1")]);
    let peer = dialled.expect("connects").peer_addr().expect("peer");
    assert_eq!(peer.ip(), ip("127.0.0.1"));
    assert!(!connected(&forbidden).await);
}

#[tokio::test]
async fn p39_nothing_is_dialled_if_all_is_refused() {
    use ConnectErrorKind::{Forbidden, Loop};
    let ([listener], port) = listeners(["127.0.0.1"]).await;
    let resolver = Scripted::new();
    resolver.says(NAME, V6, 0, &["::1"]);
    resolver.says(NAME, V4, 0, &["127.0.0.1", "127.0.0.2"]);
    let dialer = dialer(&resolver);
    let (dialled, asked) = judged(&dialer, target(port), |_| Some(Forbidden)).await;
    assert_eq!(dialled.err(), Some(Forbidden));
    assert_eq!(asked, [ip("::1"), ip("127.0.0.1"), ip("127.0.0.2")]);
    let own = |address| match address == ip("127.0.0.1") {
        true => Some(Loop),
        false => Some(Forbidden),
    };
    let (dialled, _) = judged(&dialer, target(port), own).await;
    assert_eq!(dialled.err(), Some(Loop));
    // An address is no name, and judged all the same.
    let address = Target::from(listener.local_addr().expect("address"));
    let (dialled, asked) = judged(&dialer, address, |_| Some(Forbidden)).await;
    assert_eq!(dialled.err(), Some(Forbidden));
    assert_eq!(asked, [ip("127.0.0.1")]);
    assert!(!connected(&listener).await);
}

#[tokio::test(start_paused = true)]
async fn p39_a_name_that_changes_is_judged_as_it_is_dialled() {
    let ([good, bad], port) = listeners(["127.0.0.1", "127.0.0.2"]).await;
    let resolver = Scripted::new();
    resolver.says(NAME, V6, 0, &[]);
    resolver.says_for(NAME, V4, 0, &["127.0.0.1"], 0);
    resolver.says_for(NAME, V4, 0, &["127.0.0.2"], 0);
    let dialer = dialer(&resolver);
    let not_bad = |address| (address == ip("127.0.0.2")).then_some(ConnectErrorKind::Forbidden);
    // What somebody looked up before does not count.
    assert_eq!(dialer.lookup(NAME).await, Ok(vec![ip("127.0.0.1")]));
    tokio::time::advance(Duration::from_secs(2)).await;
    let (dialled, asked) = judged(&dialer, target(port), not_bad).await;
    assert_eq!(dialled.err(), Some(ConnectErrorKind::Forbidden));
    assert_eq!(asked, [ip("127.0.0.2")]);
    assert_eq!(resolver.count(NAME, V4), 2);
    assert!(!connected(&bad).await && !connected(&good).await);
}

#[tokio::test]
async fn p39_who_is_judged_is_who_is_dialled() {
    let (_both, port) = listeners(["127.0.0.1", "127.0.0.2"]).await;
    let resolver = Scripted::new();
    // Each look-up would say otherwise, if there were a second one.
    for _ in 0..10 {
        for address in ["127.0.0.1", "127.0.0.2"] {
            resolver.says_for(NAME, V4, 0, &[address], 0);
        }
    }
    for _ in 0..10 {
        // Without a memory of what was said.
        let dialer = dialer(&resolver);
        let (dialled, asked) = judged(&dialer, target(port), |_| None).await;
        let peer = dialled.expect("connects").peer_addr().expect("peer");
        assert_eq!(asked, [peer.ip()]);
    }
    assert_eq!(resolver.count(NAME, V4), 10);
}

#[tokio::test]
async fn p35_the_judge_chooses_the_source() {
    let ([four, six], _) = listeners(["127.0.0.1", "::1"]).await;
    let mut dialer = Dialer::default();
    dialer.bind(ip("127.0.0.7"));
    for (listener, source, expected) in [
        (&four, Some(ip("127.0.0.8")), "127.0.0.8"),
        (&four, None, "127.0.0.7"),
        (&six, Some(ip("::1")), "::1"),
        (&six, None, "::1"),
    ] {
        let target = Target::from(listener.local_addr().expect("address"));
        let stream = dialer.dial_judged(target, |_| Ok(source)).await;
        let _stream = stream.expect("connects");
        let (_, remote) = listener.accept().await.expect("accept");
        assert_eq!(remote.ip(), ip(expected));
    }
    // Nobody is dialled from an address of another kind, or of another machine.
    for source in ["::1", "192.0.2.1"] {
        let target = Target::from(four.local_addr().expect("address"));
        let dialled = dialer.dial_judged(target, |_| Ok(Some(ip(source)))).await;
        assert!(dialled.is_err(), "{source}");
        assert!(!connected(&four).await);
    }
}

#[cfg(target_os = "linux")]
#[tokio::test]
async fn p35_a_source_may_be_of_a_prefix_that_is_only_routed_here() {
    let ([listener], _) = listeners(["::1"]).await;
    let target = Target::from(listener.local_addr().expect("address"));
    let mut dialer = Dialer::default();
    dialer.connect_timeout(Duration::from_millis(50));
    let source = ip("2001:db8:1::5");
    let error = dialer.dial_judged(target, |_| Ok(Some(source))).await;
    // There is no such route on this machine; but the address was taken.
    assert_ne!(error.err(), Some(refusal(ConnectErrorKind::Exhausted)));
}

#[tokio::test]
async fn a_name_is_looked_up_for_both_families() {
    let resolver = Scripted::new();
    resolver.says(NAME, V6, 5, &["2001:db8::1", "2001:db8::2"]);
    resolver.says(NAME, V4, 0, &["192.0.2.1"]);
    resolver.fails("half.example", V6, 0, ConnectErrorKind::NameUnavailable);
    resolver.says("half.example", V4, 0, &["192.0.2.1"]);
    resolver.fails("bad.example", V6, 0, ConnectErrorKind::NameUnavailable);
    let dialer = dialer(&resolver);
    let all = ["2001:db8::1", "192.0.2.1", "2001:db8::2"].map(ip).to_vec();
    let unavailable = Err(refusal(ConnectErrorKind::NameUnavailable));
    let unknown = Err(refusal(ConnectErrorKind::NameNotFound));
    for (name, expected) in [
        (NAME, Ok(all.clone())),
        ("NAME.example", Ok(all)),
        ("half.example", Ok(vec![ip("192.0.2.1")])),
        ("bad.example", unavailable),
        ("none.example", unknown.clone()),
        ("not a name", unknown),
        ("192.0.2.7", Ok(vec![ip("192.0.2.7")])),
        ("2001:db8::7", Ok(vec![ip("2001:db8::7")])),
    ] {
        assert_eq!(dialer.lookup(name).await, expected, "{name}");
    }
    // What one clone learns the others know; a new resolver starts afresh.
    let asked = resolver.total();
    assert!(dialer.clone().lookup(NAME).await.is_ok());
    assert_eq!(resolver.total(), asked);
    let mut other = dialer.clone();
    other.resolver(Scripted::new());
    assert!(other.lookup(NAME).await.is_err());
}

#[tokio::test(start_paused = true)]
async fn p37_one_family_does_not_keep_the_other_from_being_looked_up() {
    for (silent, other, known) in [(V6, V4, "192.0.2.1"), (V4, V6, "2001:db8::1")] {
        let resolver = Scripted::new();
        resolver.is_silent(NAME, silent);
        resolver.says(NAME, other, 10, &[known]);
        let dialer = dialer(&resolver);
        for expected in [510, 0] {
            let start = tokio::time::Instant::now();
            assert_eq!(dialer.lookup(NAME).await, Ok(vec![ip(known)]));
            assert_eq!(start.elapsed(), Duration::from_millis(expected));
        }
    }
}

#[tokio::test(start_paused = true)]
async fn p37_a_look_up_has_a_deadline_of_its_own() {
    let resolver = Scripted::new();
    resolver.is_silent(NAME, V4);
    resolver.is_silent(NAME, V6);
    let mut dialer = dialer(&resolver);
    dialer.lookup_timeout(Duration::from_secs(2));
    let start = tokio::time::Instant::now();
    let error = dialer.dial(target(80)).await.expect_err("silence");
    assert_eq!(error.kind, ConnectErrorKind::NameUnavailable);
    assert_eq!(start.elapsed(), Duration::from_secs(2));
    // The whole dial has one, too.
    dialer.resolver(Arc::clone(&resolver) as _);
    dialer
        .lookup_timeout(None)
        .connect_timeout(Duration::from_secs(3));
    let start = tokio::time::Instant::now();
    let error = dialer.dial(target(80)).await.expect_err("silence");
    assert_eq!(error.kind, ConnectErrorKind::TimedOut);
    assert_eq!(start.elapsed(), Duration::from_secs(3));
}

#[tokio::test]
async fn a_dial_can_be_spawned_and_is_small() {
    fn is_send<T: Send>(value: T) -> T {
        value
    }
    let dialer = Dialer::default();
    let target = Target::from(SocketAddr::from((Ipv4Addr::LOCALHOST, 1)));
    let dial = is_send(dialer.dial_judged(target, |_| Ok(None)));
    assert!(size_of_val(&dial) <= 640, "{}", size_of_val(&dial));
    let lookup = is_send(dialer.lookup("name.example"));
    assert!(size_of_val(&lookup) <= 400, "{}", size_of_val(&lookup));
}
