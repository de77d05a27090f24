//! Ports of a source address are shared between targets. A process of its own:
//! it needs many descriptors.
#![cfg(target_os = "linux")]

use std::collections::HashSet;

use proxy_core::Target;
use proxy_relay::Dialer;
use rustix::process::{Resource, getrlimit, setrlimit};
use tokio::net::TcpListener;

/// If ports were chosen before the target is known, no two connections of a
/// source could have the same one. So many targets have some by chance: of
/// 28,000 ports (or half, as the system prefers even ones) at least a pair, but
/// for one run in millions.
#[tokio::test]
async fn p35_targets_share_the_ports_of_a_source() {
    let mut limit = getrlimit(Resource::Nofile);
    limit.current = limit.maximum;
    setrlimit(Resource::Nofile, limit).expect("as many as allowed");
    let mut listeners = Vec::new();
    let mut streams = Vec::new();
    let mut dialer = Dialer::default();
    dialer.bind([127, 0, 0, 7].into());
    for _ in 0..700 {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("bind");
        let target = Target::from(listener.local_addr().expect("address"));
        streams.push(dialer.dial(target).await.expect("connects"));
        listeners.push(listener);
    }
    let ports = streams
        .iter()
        .map(|stream| stream.local_addr().expect("address").port());
    let different: HashSet<u16> = ports.collect();
    assert!(
        different.len() < streams.len(),
        "no port serves two targets"
    );
}
