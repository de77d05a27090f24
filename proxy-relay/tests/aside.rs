//! What the whole process may put aside for peers that take nothing. A test binary
//! of its own, since the count is the process's.

use proxy_relay::{Aside, Buffers, RelayOptions, relay};
use socket2::SockRef;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

const LIMIT: u64 = 1 << 20;
const FLOWS: usize = 64;
const SIZE: usize = 2 << 20;

/// The other end is the second.
async fn pair(narrow: bool) -> (TcpStream, TcpStream) {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("bound");
    let address = listener.local_addr().expect("bound");
    let stream = TcpStream::connect(address).await.expect("connected");
    let (other, _) = listener.accept().await.expect("accepted");
    if narrow {
        let small = SockRef::from(&stream).set_recv_buffer_size(32 * 1024);
        small.expect("set");
        let small = SockRef::from(&other).set_send_buffer_size(32 * 1024);
        small.expect("set");
    }
    (stream, other)
}

fn byte(at: usize) -> u8 {
    (at * 7 % 251).try_into().expect("a byte")
}

#[tokio::test]
async fn flows_that_stand_still_hold_no_more_than_the_limit_and_lose_nothing() {
    Aside::limit(LIMIT);
    let pattern: std::sync::Arc<[u8]> = (0..SIZE).map(byte).collect();
    let mut readers = Vec::new();
    let mut relays = Vec::new();
    for _ in 0..FLOWS {
        let (reader, mut client) = pair(true).await;
        let (mut origin, mut upstream) = pair(false).await;
        relays.push(tokio::spawn(async move {
            relay(&mut client, &mut upstream, &RelayOptions::default()).await
        }));
        let pattern = pattern.clone();
        tokio::spawn(async move {
            origin.write_all(&pattern).await.expect("sent");
            origin.shutdown().await.expect("ended");
        });
        readers.push(reader);
    }
    // All have put something aside; without a limit it would be 64 KiB and more.
    let most = LIMIT + (FLOWS as u64) * 2048 + 2 * Buffers::SIZE as u64;
    let mut seen = 0;
    for _ in 0..200 {
        seen = seen.max(Aside::total());
        assert!(seen <= most, "{seen}");
        tokio::time::sleep(std::time::Duration::from_millis(5)).await;
    }
    assert!(seen > LIMIT / 4, "{seen}");
    // One that takes what it gets is served meanwhile.
    let (mut reader, mut client) = pair(false).await;
    let (mut origin, mut upstream) = pair(false).await;
    let served =
        tokio::spawn(
            async move { relay(&mut client, &mut upstream, &RelayOptions::default()).await },
        );
    for _ in 0..20 {
        origin.write_all(&pattern[..100_000]).await.expect("sent");
        let mut taken = vec![0; 100_000];
        reader.read_exact(&mut taken).await.expect("taken");
        assert!(taken == pattern[..100_000]);
    }
    drop((reader, origin));
    served.await.expect("no panic");
    for mut reader in readers {
        let pattern = pattern.clone();
        tokio::spawn(async move {
            let mut taken = Vec::new();
            reader.read_to_end(&mut taken).await.expect("taken");
            assert!(taken == *pattern);
        });
    }
    for relay in relays {
        let report = relay.await.expect("no panic");
        assert_eq!(report.down, SIZE as u64);
    }
    assert_eq!(Aside::total(), 0);
}
