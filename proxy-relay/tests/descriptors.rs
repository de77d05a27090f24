//! Descriptors return to the base value. Alone in its process, which it counts.
#![cfg(target_os = "linux")]

mod support;

use proxy_core::End;
use proxy_relay::{RelayOptions, Transport, relay};
use support::{check_noise, pair, send_noise, until, within};
use tokio::io::AsyncWriteExt;

fn descriptors() -> usize {
    std::fs::read_dir("/proc/self/fd").expect("proc").count()
}

#[tokio::test]
async fn p43_every_way_to_end_returns_to_the_base() {
    const BULK: usize = 6 << 20;
    let warm = pair().await;
    drop(warm);
    let base = descriptors();
    for reset in [false, true] {
        let mut lines = Vec::new();
        for _ in 0..8 {
            let (client, mut near) = pair().await;
            let (mut far, origin) = pair().await;
            let task =
                tokio::spawn(
                    async move { relay(&mut near, &mut far, &RelayOptions::default()).await },
                );
            lines.push((client, origin, task));
        }
        let mut spliced = false;
        for (client, origin, _) in &mut lines {
            let sending = async { send_noise(origin, 1, BULK).await.expect("send") };
            let (seen, ()) = tokio::join!(check_noise(client, 1, BULK), sending);
            spliced |= seen;
        }
        assert!(spliced, "no pipe was ever used");
        for (mut client, mut origin, task) in lines {
            match reset {
                true => client.abort(),
                false => {
                    client.shutdown().await.expect("shutdown");
                    origin.shutdown().await.expect("shutdown");
                }
            }
            drop(client);
            let report = within(5, task).await.expect("ends").expect("no panic");
            assert_eq!(report.end == End::ClientReset, reset);
        }
        until("all descriptors back", || descriptors() == base).await;
    }
}
