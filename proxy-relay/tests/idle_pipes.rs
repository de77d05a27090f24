//! Tunnels that were bulk and rest now leave no pipe open. Alone in its process,
//! whose pipes it counts.
#![cfg(target_os = "linux")]

mod support;

use proxy_relay::{RelayOptions, relay};
use support::{check_noise, pair, send_noise, until};
use tokio::net::TcpStream;
use tokio::task::JoinSet;

fn pipes() -> usize {
    std::fs::read_dir("/proc/self/fd")
        .expect("proc")
        .filter_map(|entry| std::fs::read_link(entry.ok()?.path()).ok())
        .filter(|to| to.to_string_lossy().starts_with("pipe:"))
        .count()
}

/// A burst that stalls before the client takes it.
async fn burst(client: &mut TcpStream, origin: &mut TcpStream, held: usize) {
    const BULK: usize = 4 << 20;
    let sending = async { send_noise(origin, 1, BULK).await.expect("send") };
    let reading = async {
        until("a pipe each", || pipes() >= held).await;
        check_noise(client, 1, BULK).await;
    };
    tokio::join!(sending, reading);
}

#[tokio::test]
async fn p43_tunnels_at_rest_keep_no_pipe_open() {
    const TUNNELS: usize = 16;
    let base = pipes();
    let mut tunnels = JoinSet::new();
    let mut ends = Vec::new();
    for _ in 0..TUNNELS {
        let (client, mut near) = pair().await;
        let (mut far, origin) = pair().await;
        tunnels.spawn(async move { relay(&mut near, &mut far, &RelayOptions::default()).await });
        ends.push((client, origin));
    }
    for _ in 0..2 {
        let mut bursts = JoinSet::new();
        for (mut client, mut origin) in ends.drain(..) {
            bursts.spawn(async move {
                burst(&mut client, &mut origin, base + 2 * TUNNELS).await;
                (client, origin)
            });
        }
        ends = bursts.join_all().await;
        until("all pipes closed", || pipes() == base).await;
        assert!(tunnels.try_join_next().is_none(), "no tunnel has ended");
    }
}
