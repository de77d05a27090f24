//! Handshakes over streams, and the pool of idle upstreams.

mod support;

use std::time::Duration;

use bytes::BytesMut;
use proxy_core::{Handshake, Step};
use proxy_relay::{DriveError, MAX_INPUT, Pool, Transport, drive};
use support::{Opaque, pair, until};
use tokio::io::{AsyncReadExt, AsyncWriteExt, duplex, split};

/// Says hello, expects a line, echoes it, expects "ok".
#[derive(Default)]
struct Lines {
    greeted: bool,
    line: Option<String>,
}

#[derive(Debug, PartialEq, thiserror::Error)]
#[error("refused")]
struct Refused;

impl Handshake for Lines {
    type Output = String;
    type Error = Refused;

    fn advance(&mut self, input: &[u8], output: &mut BytesMut) -> Result<Step<String>, Refused> {
        if !self.greeted {
            self.greeted = true;
            output.extend_from_slice(b"hello\n");
        }
        let Some(end) = input.iter().position(|byte| *byte == b'\n') else {
            return Ok(Step {
                consumed: 0,
                done: None,
            });
        };
        let text = String::from_utf8_lossy(&input[..end]).into_owned();
        let consumed = end + 1;
        match self.line.take() {
            None => {
                output.extend_from_slice(&input[..=end]);
                self.line = Some(text);
                Ok(Step {
                    consumed,
                    done: None,
                })
            }
            Some(line) if text == "ok" => Ok(Step {
                consumed,
                done: Some(line),
            }),
            Some(_) => {
                output.extend_from_slice(b"bye\n");
                Err(Refused)
            }
        }
    }
}

async fn run(
    answer: &[u8],
    room: usize,
) -> (Result<String, DriveError<Refused>>, BytesMut, String) {
    let (near, mut far) = duplex(room);
    let mut input = BytesMut::new();
    let mut near = Opaque(near);
    let mut lines = Lines::default();
    let driving = async {
        let result = drive(&mut near, &mut input, &mut lines).await;
        drop(near);
        result
    };
    let answering = async {
        let mut hello = [0; 6];
        far.read_exact(&mut hello)
            .await
            .expect("the machine speaks first");
        let (mut read, mut write) = split(far);
        let mut said = String::new();
        let answering = async {
            // Fails once the machine has had enough.
            let _ = write.write_all(answer).await;
            let _ = write.shutdown().await;
        };
        tokio::join!(answering, async {
            let _ = read.read_to_string(&mut said).await;
        });
        said
    };
    let (result, said) = tokio::join!(driving, answering);
    (result, input, said)
}

#[tokio::test]
async fn what_follows_a_handshake_stays_in_the_input() {
    // Down to one byte at a time.
    for room in [1, 2, 3, 7, 64] {
        let (result, rest, said) = run(b"name\nok\nrest", room).await;
        assert_eq!(result.expect("done"), "name");
        assert!(b"rest".starts_with(&rest), "{rest:?}");
        assert_eq!(said, "name\n");
    }
    let (_, rest, _) = run(b"name\nok\nrest", 64).await;
    assert_eq!(&rest[..], b"rest");
}

#[tokio::test]
async fn input_at_hand_is_used_first() {
    let (near, mut far) = duplex(64);
    let mut input = BytesMut::from(&b"name\nok\nrest"[..]);
    let done = drive(&mut Opaque(near), &mut input, &mut Lines::default()).await;
    assert_eq!(done.expect("done"), "name");
    assert_eq!(&input[..], b"rest");
    let mut said = String::new();
    far.read_to_string(&mut said).await.expect("read");
    assert_eq!(said, "hello\nname\n");
}

#[tokio::test]
async fn a_handshake_that_fails_has_its_say() {
    let (result, _, said) = run(b"name\nno\n", 64).await;
    assert!(matches!(result, Err(DriveError::Handshake(Refused))));
    assert_eq!(said, "name\nbye\n");
}

#[tokio::test]
async fn a_peer_that_leaves() {
    for cut in 0..8 {
        let (result, _, _) = run(&b"name\nok\n"[..cut], 64).await;
        assert!(matches!(result, Err(DriveError::Closed)), "cut at {cut}");
    }
}

#[tokio::test]
async fn a_peer_that_never_comes_to_the_point() {
    let (result, input, _) = run(&vec![b'x'; 2 * MAX_INPUT], 4096).await;
    assert!(matches!(result, Err(DriveError::TooLong)));
    assert_eq!(input.len(), MAX_INPUT);
}

#[tokio::test]
async fn a_pool_lends_the_latest_first_and_keeps_keys_apart() {
    let mut pool = Pool::new();
    let mut far = Vec::new();
    for n in 0..3u8 {
        let (near, other) = pair().await;
        pool.give(n / 2, near);
        far.push(other);
    }
    assert_eq!(pool.len(), 3);
    let first = pool.take(&0).expect("kept");
    assert_eq!(first.peer_addr().ok(), far[1].local_addr().ok());
    assert!(pool.take(&0).is_some());
    assert!(pool.take(&0).is_none());
    assert!(pool.take(&1).is_some());
    assert!(pool.is_empty());
}

#[tokio::test]
async fn a_pool_never_lends_what_has_ended() {
    let mut pool = Pool::new();
    let (near, far) = pair().await;
    pool.give("ended", near);
    drop(far);
    let (near, mut far) = pair().await;
    far.write_all(b"408 too late").await.expect("write");
    pool.give("speaks", near);
    let (near, mut far) = pair().await;
    far.abort();
    drop(far);
    pool.give("reset", near);
    let (near, _open) = pair().await;
    pool.give("open", near);
    // The runtime hears of it when it waits.
    until("swept", || {
        pool.sweep();
        pool.len() == 1
    })
    .await;
    for key in ["ended", "speaks", "reset"] {
        assert!(pool.take(key).is_none(), "{key}");
    }
    assert!(pool.take("open").is_some());
}

#[tokio::test]
async fn a_pool_has_caps() {
    let mut pool = Pool::new();
    pool.per_key(2).total(3);
    let mut far = Vec::new();
    for key in [0, 0, 0, 1, 2] {
        let (near, other) = pair().await;
        pool.give(key, near);
        far.push(other);
    }
    assert_eq!(pool.len(), 3);
    // The first two of key 0 made room.
    for index in [0, 1] {
        support::expect_reset(&mut far[index]).await;
    }
    for key in [0, 1, 2] {
        assert!(pool.take(&key).is_some(), "{key}");
        assert!(pool.take(&key).is_none(), "{key}");
    }
    pool.total(0);
    let (near, mut other) = pair().await;
    pool.give(0, near);
    support::expect_reset(&mut other).await;
    assert!(pool.is_empty());
}

#[tokio::test]
async fn a_pool_makes_room_by_age_where_it_is_asked_to() {
    let mut pool = Pool::new();
    let mut far = Vec::new();
    for key in [1, 2, 1, 3] {
        let (near, other) = pair().await;
        pool.give(key, near);
        far.push(other);
    }
    assert!(!pool.close_oldest(|key| *key == 4));
    assert!(pool.close_oldest(|key| *key != 1));
    assert!(pool.close_oldest(|_| true));
    for index in [1, 0] {
        support::expect_reset(&mut far[index]).await;
    }
    assert_eq!(pool.len(), 2);
    assert!(pool.take(&1).is_some() && pool.take(&3).is_some());
    assert!(!pool.close_oldest(|_| true));
}

#[tokio::test(start_paused = true)]
async fn a_pool_lends_what_is_young_enough() {
    let mut pool = Pool::new();
    let (old, _far) = duplex(1);
    pool.give((), Opaque(old));
    tokio::time::advance(Duration::from_secs(8)).await;
    let (young, _far) = duplex(1);
    pool.give((), Opaque(young));
    tokio::time::advance(Duration::from_secs(2)).await;
    let time = Duration::from_secs(4);
    assert!(pool.take_within(&(), time).is_some());
    assert!(pool.take_within(&(), time).is_none());
    assert_eq!(pool.len(), 1);
    assert!(pool.take(&()).is_some());
}

#[tokio::test(start_paused = true)]
async fn a_pool_forgets_what_lay_idle_for_too_long() {
    let mut pool = Pool::new();
    pool.keep(Duration::from_secs(10));
    let (old, _far) = duplex(1);
    pool.give((), Opaque(old));
    tokio::time::advance(Duration::from_secs(8)).await;
    let (young, _far) = duplex(1);
    pool.give((), Opaque(young));
    tokio::time::advance(Duration::from_secs(4)).await;
    pool.sweep();
    assert_eq!(pool.len(), 1);
    tokio::time::advance(Duration::from_secs(8)).await;
    assert!(pool.take(&()).is_none());
    assert!(pool.is_empty());
}
