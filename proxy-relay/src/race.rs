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
        ConnectErrorKind::NetworkUnreachable => 0,
        _ => 1,
    }
}

/// The head start of each attempt.
pub(crate) const STAGGER: Duration = Duration::from_millis(250);

#[cfg(test)]
mod tests {
    use super::*;
    use ConnectErrorKind::{HostUnreachable, NetworkUnreachable, Refused, TimedOut};
    use std::cell::RefCell;

    /// What an address does when dialled, after how many milliseconds.
    type Plan = (u64, Result<(), ConnectErrorKind>);

    fn address(index: usize) -> SocketAddr {
        let port = u16::try_from(index).expect("few addresses");
        SocketAddr::from(([127, 0, 0, 1], port))
    }

    /// Races the plans; the result, and when each attempt began.
    async fn run(plans: &[Plan]) -> (Result<u16, ConnectErrorKind>, Vec<u64>) {
        let start = Instant::now();
        let begun = RefCell::new(Vec::new());
        let won = race((0..plans.len()).map(address), |address| {
            let begun = &begun;
            async move {
                let elapsed = start.elapsed().as_millis();
                begun
                    .borrow_mut()
                    .push(u64::try_from(elapsed).expect("short"));
                let (after, result) = plans[usize::from(address.port())];
                tokio::time::sleep(Duration::from_millis(after)).await;
                result
                    .map(|()| address.port())
                    .map_err(ConnectError::origin)
            }
        })
        .await;
        (won.map_err(|error| error.kind), begun.into_inner())
    }

    #[tokio::test(start_paused = true)]
    async fn p36_the_next_address_has_a_chance_after_the_stagger() {
        let silent = (100_000, Err(TimedOut));
        let (won, begun) = run(&[silent, silent, (10, Ok(()))]).await;
        assert_eq!(won, Ok(2));
        assert_eq!(begun, [0, 250, 500]);
    }

    #[tokio::test(start_paused = true)]
    async fn p36_a_failure_starts_the_next_at_once() {
        let refuses = (5, Err(Refused));
        let (won, begun) = run(&[refuses, refuses, (10, Ok(()))]).await;
        assert_eq!((won, begun), (Ok(2), vec![0, 5, 10]));
        // Also while an earlier one is still silent.
        let silent = (100_000, Err(TimedOut));
        let (won, begun) = run(&[silent, refuses, (10, Ok(()))]).await;
        assert_eq!((won, begun), (Ok(2), vec![0, 250, 255]));
    }

    #[tokio::test(start_paused = true)]
    async fn a_slow_first_address_may_still_win() {
        let (won, _) = run(&[(300, Ok(())), (500, Ok(()))]).await;
        assert_eq!(won, Ok(0));
    }

    #[tokio::test(start_paused = true)]
    async fn the_most_telling_error_is_returned() {
        let ascending = [NetworkUnreachable, HostUnreachable, TimedOut, Refused];
        for pair in ascending.windows(2) {
            for kinds in [[pair[0], pair[1]], [pair[1], pair[0]]] {
                let plans = kinds.map(|kind| (1, Err(kind)));
                assert_eq!(run(&plans).await.0, Err(pair[1]));
            }
        }
        assert_eq!(run(&[]).await.0, Err(ConnectErrorKind::NameNotFound));
    }

    #[test]
    fn families_take_turns() {
        let parse = |texts: &[&str]| -> Vec<IpAddr> {
            texts
                .iter()
                .map(|text| text.parse().expect("an address"))
                .collect()
        };
        let mixed = interleave(&parse(&["::1", "::2", "::3", "1.1.1.1", "1.1.1.2"]));
        assert_eq!(mixed, parse(&["::1", "1.1.1.1", "::2", "1.1.1.2", "::3"]));
        let mixed = interleave(&parse(&["1.1.1.1", "1.1.1.2", "::1"]));
        assert_eq!(mixed, parse(&["1.1.1.1", "::1", "1.1.1.2"]));
    }
}
