//! What clients and origins of the mix say to each other inside a tunnel.

use std::time::Duration;

use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};

use crate::support::Pattern;

/// What the origin is to do next.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Command {
    pub(crate) act: Act,
    /// Bytes that follow the command.
    pub(crate) up: u32,
    /// How long the origin waits before it answers, in milliseconds.
    pub(crate) pause: u16,
    /// Bytes of the answer.
    pub(crate) down: u32,
    /// Which bytes they are.
    pub(crate) seed: u32,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Act {
    /// Take, answer, and wait for the next command or the end.
    Answer = 1,
    /// Take all up to the end, answer, end.
    Finish = 2,
    /// Answer and end, then take all up to the end.
    Leave = 3,
    /// Take, answer, reset.
    Reset = 4,
    /// Take and answer; the client is going to reset.
    Lose = 5,
}

impl Command {
    pub(crate) const LENGTH: u64 = 16;

    /// Never `G` or `P`, with which HTTP begins here.
    pub(crate) fn encode(self) -> [u8; 16] {
        let mut bytes = [0; 16];
        bytes[0] = self.act as u8;
        bytes[2..4].copy_from_slice(&self.pause.to_le_bytes());
        bytes[4..8].copy_from_slice(&self.up.to_le_bytes());
        bytes[8..12].copy_from_slice(&self.down.to_le_bytes());
        bytes[12..].copy_from_slice(&self.seed.to_le_bytes());
        bytes
    }

    pub(crate) fn parse(bytes: [u8; 16]) -> Option<Self> {
        let number = |at: usize| {
            let bytes = [bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]];
            u32::from_le_bytes(bytes)
        };
        let acts = [Act::Answer, Act::Finish, Act::Leave, Act::Reset, Act::Lose];
        let act = acts.into_iter().find(|act| *act as u8 == bytes[0])?;
        Some(Self {
            act,
            pause: u16::from_le_bytes([bytes[2], bytes[3]]),
            up: number(4),
            down: number(8),
            seed: number(12),
        })
    }

    /// What the client sends behind the command.
    pub(crate) fn upwards(self) -> Pattern {
        Pattern::seeded(self.seed)
    }

    /// What the origin answers.
    pub(crate) fn downwards(self) -> Pattern {
        Pattern::seeded(self.seed ^ 0x5_5555)
    }

    pub(crate) fn pause(self) -> Duration {
        Duration::from_millis(self.pause.into())
    }
}

/// Sends the first `count` bytes.
pub(crate) async fn send<S: AsyncWrite + Unpin>(
    stream: &mut S,
    pattern: Pattern,
    count: u32,
) -> Result<(), String> {
    let mut position = 0;
    while position < u64::from(count) {
        let bytes = pattern.at(position, u64::from(count) - position);
        let sent = stream.write_all(bytes).await;
        sent.map_err(|error| format!("cannot send behind {position} of {count}: {error}"))?;
        position += bytes.len() as u64;
    }
    Ok(())
}

/// Takes the first `count` bytes, with a pause behind each piece of 64 KiB, and
/// compares them.
pub(crate) async fn take<S: AsyncRead + Unpin>(
    stream: &mut S,
    pattern: Pattern,
    count: u32,
    pace: Duration,
) -> Result<(), String> {
    let mut buffer = vec![0; PIECE.min(count as usize)];
    let (mut position, mut due) = (0, PIECE as u64);
    while position < u64::from(count) {
        let left = usize::try_from(u64::from(count) - position).expect("below 4 GB");
        let room = left.min(buffer.len());
        let read = stream.read(&mut buffer[..room]).await;
        let read = read.map_err(|error| format!("ended at {position} of {count}: {error}"))?;
        if read == 0 {
            return Err(format!("ended in order at {position} of {count}"));
        }
        let mut checked = 0;
        while checked < read {
            let wanted = pattern.at(position, (read - checked) as u64);
            if buffer[checked..checked + wanted.len()] != *wanted {
                return Err(format!("differs behind byte {position} of {count}"));
            }
            checked += wanted.len();
            position += wanted.len() as u64;
        }
        if position >= due && !pace.is_zero() {
            due = position + PIECE as u64;
            tokio::time::sleep(pace).await;
        }
    }
    Ok(())
}

/// Nothing but the end may come.
pub(crate) async fn take_end<S: AsyncRead + Unpin>(stream: &mut S) -> Result<(), String> {
    match stream.read(&mut [0]).await {
        Ok(0) => Ok(()),
        Ok(_) => Err("more than was sent".to_owned()),
        Err(error) => Err(format!("no orderly end: {error}")),
    }
}

const PIECE: usize = 64 * 1024;
