//! Without a descriptor left, bulk is copied. Alone in its process, whose limit
//! it lowers.
#![cfg(target_os = "linux")]

mod support;

use proxy_core::End;
use proxy_relay::{RelayOptions, relay};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use support::{check_noise, expect_end, pair, send_noise};
use tokio::io::AsyncWriteExt;

#[tokio::test]
async fn p49_no_pipe_to_be_had_means_copying() {
    const BULK: usize = 6 << 20;
    let (mut client, mut near) = pair().await;
    let (mut far, mut origin) = pair().await;
    let options = RelayOptions::default();
    let relayed = tokio::spawn(async move { relay(&mut near, &mut far, &options).await });
    let limit = getrlimit(Resource::Nofile);
    let none_left = Rlimit {
        current: Some(3),
        ..limit
    };
    setrlimit(Resource::Nofile, none_left).expect("lowered");
    let sending = async {
        send_noise(&mut origin, 1, BULK).await.expect("send");
        origin.shutdown().await.expect("shutdown");
    };
    let (spliced, ()) = tokio::join!(check_noise(&mut client, 1, BULK), sending);
    setrlimit(Resource::Nofile, limit).expect("raised again");
    assert!(!spliced);
    expect_end(&mut client).await;
    client.shutdown().await.expect("shutdown");
    let report = relayed.await.expect("no panic");
    assert_eq!(
        (report.down, report.end),
        (BULK as u64, End::OriginFinished)
    );
}
