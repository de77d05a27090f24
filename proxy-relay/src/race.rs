//! Tries several addresses with a head start each (RFC 8305 section 5).

use std::future::poll_fn;
use std::net::{IpAddr, SocketAddr};
use std::pin::{Pin, pin};
use std::task::{Context, Poll};
use std::time::Duration;

use proxy_core::{ConnectError, ConnectErrorKind};
use tokio::time::{Instant, Sleep};

/// The result of the first attempt that succeeds; the others are dropped.
///
/// The next attempt starts when the one before has failed or has not succeeded
/// within [`STAGGER`]. When all have failed, the most telling error is
/// returned.
pub(crate) async fn race<T, F>(
    addresses: impl Iterator<Item = SocketAddr>,
    attempt: impl Fn(SocketAddr) -> F,
) -> Result<T, ConnectError>
where
    F: Future<Output = Result<T, ConnectError>>,
{
    let mut waiting = addresses.map(attempt);
    let mut running = Vec::new();
    let mut error = None;
    let mut next = pin!(tokio::time::sleep(Duration::ZERO));
    poll_fn(|cx| {
        loop {
            let before = running.len();
            if let Poll::Ready(done) = poll_all(&mut running, &mut error, cx) {
                return Poll::Ready(Ok(done));
            }
            let waits = !running.is_empty() && running.len() == before;
            if waits && next.as_mut().poll(cx).is_pending() {
                return Poll::Pending;
            }
            match waiting.next() {
                Some(attempt) => running.push(Box::pin(attempt)),
                None if running.is_empty() => return Poll::Ready(Err(most_telling(error))),
                None => return Poll::Pending,
            }
            rearm(next.as_mut());
        }
    })
    .await
}

/// The addresses with their families interleaved, the first one's first
/// (RFC 8305 section 4).
pub(crate) fn interleave(addresses: &[IpAddr]) -> Vec<IpAddr> {
    let first_is_v4 = addresses.first().is_some_and(IpAddr::is_ipv4);
    let mut first = addresses.iter().filter(|ip| ip.is_ipv4() == first_is_v4);
    let mut second = addresses.iter().filter(|ip| ip.is_ipv4() != first_is_v4);
    let mut mixed = Vec::with_capacity(addresses.len());
    while mixed.len() < addresses.len() {
        mixed.extend(first.next());
        mixed.extend(second.next());
    }
    mixed
}

fn rearm(sleep: Pin<&mut Sleep>) {
    sleep.reset(Instant::now() + STAGGER);
}

/// Polls all attempts and removes those that failed.
fn poll_all<T, F: Future<Output = Result<T, ConnectError>>>(
    running: &mut Vec<Pin<Box<F>>>,
    error: &mut Option<ConnectError>,
    cx: &mut Context<'_>,
) -> Poll<T> {
    let mut won = None;
    running.retain_mut(|attempt| match won {
        Some(_) => true,
        None => match attempt.as_mut().poll(cx) {
            Poll::Pending => true,
            Poll::Ready(Ok(value)) => {
                won = Some(value);
                false
            }
            Poll::Ready(Err(failed)) => {
                *error = Some(error.map_or(failed, |known| more_telling(known, failed)));
                false
            }
        },
    });
    won.map_or(Poll::Pending, Poll::Ready)
}

fn most_telling(error: Option<ConnectError>) -> ConnectError {
    error.unwrap_or_else(|| ConnectError::origin(ConnectErrorKind::NameNotFound))
}

fn more_telling(known: ConnectError, other: ConnectError) -> ConnectError {
    match rank(other.kind) > rank(known.kind) {
        true => other,
        false => known,
    }
}

/// An answer from the host says more than silence, and silence more than a
/// network that is not there.
fn rank(kind: ConnectErrorKind) -> u8 {
    match kind {
        ConnectErrorKind::Refused => 4,
        ConnectErrorKind::Reset => 3,
        ConnectErrorKind::TimedOut => 2,
        ConnectErrorKind::Unreachable => 0,
        _ => 1,
    }
}

/// The head start of each attempt.
pub(crate) const STAGGER: Duration = Duration::from_millis(250);
