//! Tries several addresses with a head start each (RFC 8305 section 5).

use std::future::poll_fn;
use std::net::IpAddr;
use std::pin::{Pin, pin};
use std::task::{Context, Poll};
use std::time::Duration;

use proxy_core::{ConnectError, ConnectErrorKind};
use tokio::time::{Instant, Sleep};

use crate::answers::Answers;

/// The result of the first attempt that succeeds; the others are dropped.
///
/// The next attempt starts when the one before has failed or has not succeeded
/// within [`STAGGER`], with the best of the addresses that are known by then.
/// When all have failed, the most telling error is returned.
pub(crate) async fn race<T, F>(
    mut answers: Answers<'_>,
    attempt: impl Fn(IpAddr) -> F,
) -> Result<T, ConnectError>
where
    F: Future<Output = Result<T, ConnectError>>,
{
    let mut running = Vec::new();
    let mut error = None;
    let mut due = true;
    let mut stagger = pin!(tokio::time::sleep(Duration::ZERO));
    poll_fn(|cx| {
        loop {
            let before = running.len();
            if let Poll::Ready(done) = poll_all(&mut running, &mut error, cx) {
                return Poll::Ready(Ok(done));
            }
            due |= running.len() < before || stagger.as_mut().poll(cx).is_ready();
            if !due {
                // Answers that are asked for here must not wait for the race.
                answers.drive(cx);
                return Poll::Pending;
            }
            match answers.poll_next(cx) {
                Poll::Ready(Some(ip)) => running.push(Box::pin(attempt(ip))),
                Poll::Ready(None) if running.is_empty() => {
                    return Poll::Ready(Err(error.unwrap_or_else(|| answers.failure())));
                }
                Poll::Pending | Poll::Ready(None) => return Poll::Pending,
            }
            due = false;
            rearm(stagger.as_mut());
        }
    })
    .await
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

fn more_telling(known: ConnectError, other: ConnectError) -> ConnectError {
    match rank(other.kind) > rank(known.kind) {
        true => other,
        false => known,
    }
}

/// That it leads back here says most. An answer from the host says more than
/// silence, silence more than a rule that kept an address from being asked, and
/// that more than a network that is not there.
fn rank(kind: ConnectErrorKind) -> u8 {
    match kind {
        ConnectErrorKind::Loop => 6,
        ConnectErrorKind::Refused => 5,
        ConnectErrorKind::Reset => 4,
        ConnectErrorKind::TimedOut => 3,
        ConnectErrorKind::Forbidden => 2,
        ConnectErrorKind::NetworkUnreachable => 0,
        _ => 1,
    }
}

/// The head start of each attempt.
const STAGGER: Duration = Duration::from_millis(250);

#[cfg(test)]
mod tests {
    use super::*;
    use crate::names::Names;
    use crate::resolve::Family::{V4, V6};
    use crate::scripted::{Scripted, ip};
    use ConnectErrorKind::{
        Forbidden, HostUnreachable, Loop, NameNotFound, NameUnavailable, NetworkUnreachable,
        Refused, TimedOut,
    };
    use std::cell::RefCell;
    use std::sync::Arc;

    /// What an address does when dialled, after how many milliseconds.
    type Plan<'a> = (&'a str, u64, Result<(), ConnectErrorKind>);

    const SILENT: u64 = 100_000;
    const NAME: &str = "two.example";

    /// Races the addresses that `resolver` has for [`NAME`]; which one won, and
    /// which attempts began when.
    async fn run(
        resolver: &Arc<Scripted>,
        plans: &[Plan<'_>],
    ) -> (Result<IpAddr, ConnectErrorKind>, Vec<(String, u64)>) {
        let start = Instant::now();
        let begun = RefCell::new(Vec::new());
        let names = Names::new(Some(Arc::clone(resolver) as _));
        let answers = Answers::new(&names, NAME, Some(Duration::from_secs(5)));
        let won = race(answers, |address| {
            let begun = &begun;
            async move {
                let elapsed = u64::try_from(start.elapsed().as_millis()).expect("short");
                begun.borrow_mut().push((address.to_string(), elapsed));
                let plan = plans.iter().find(|plan| ip(plan.0) == address);
                let (_, after, result) = plan.expect("a plan");
                tokio::time::sleep(Duration::from_millis(*after)).await;
                result.map(|()| address).map_err(ConnectError::origin)
            }
        })
        .await;
        (won.map_err(|error| error.kind), begun.into_inner())
    }

    /// Answers of both families, each after so many milliseconds.
    fn knows(v6: (u64, &[&str]), v4: (u64, &[&str])) -> Arc<Scripted> {
        let resolver = Scripted::new();
        resolver.says(NAME, V6, v6.0, v6.1);
        resolver.says(NAME, V4, v4.0, v4.1);
        resolver
    }

    fn begun(expected: &[(&str, u64)]) -> Vec<(String, u64)> {
        let own = |(address, at): &(&str, u64)| ((*address).to_owned(), *at);
        expected.iter().map(own).collect()
    }

    #[tokio::test(start_paused = true)]
    async fn p36_the_next_address_has_a_chance_after_the_stagger() {
        let resolver = knows((0, &[]), (0, &["10.0.0.1", "10.0.0.2", "10.0.0.3"]));
        let plans = [
            ("10.0.0.1", SILENT, Ok(())),
            ("10.0.0.2", SILENT, Ok(())),
            ("10.0.0.3", 10, Ok(())),
        ];
        let (won, attempts) = run(&resolver, &plans).await;
        assert_eq!(won, Ok(ip("10.0.0.3")));
        let expected = [("10.0.0.1", 0), ("10.0.0.2", 250), ("10.0.0.3", 500)];
        assert_eq!(attempts, begun(&expected));
    }

    #[tokio::test(start_paused = true)]
    async fn p36_a_dead_family_costs_the_stagger() {
        for (dead, live) in [("fd00::1", "10.0.0.1"), ("10.0.0.1", "fd00::1")] {
            let resolver = knows((0, &["fd00::1"]), (0, &["10.0.0.1"]));
            let plans = [(dead, SILENT, Ok(())), (live, 10, Ok(()))];
            let start = Instant::now();
            let (won, _) = run(&resolver, &plans).await;
            assert_eq!(won, Ok(ip(live)));
            let expected = match live {
                "fd00::1" => 10,
                _ => 260,
            };
            assert_eq!(start.elapsed(), Duration::from_millis(expected), "{live}");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn p36_a_failure_starts_the_next_at_once() {
        let resolver = knows((0, &[]), (0, &["10.0.0.1", "10.0.0.2", "10.0.0.3"]));
        let mut plans = [
            ("10.0.0.1", 5, Err(Refused)),
            ("10.0.0.2", 5, Err(Refused)),
            ("10.0.0.3", 10, Ok(())),
        ];
        let (won, attempts) = run(&resolver, &plans).await;
        assert_eq!(won, Ok(ip("10.0.0.3")));
        let expected = [("10.0.0.1", 0), ("10.0.0.2", 5), ("10.0.0.3", 10)];
        assert_eq!(attempts, begun(&expected));
        // Also while an earlier one is still silent.
        plans[0].1 = SILENT;
        let (won, attempts) = run(&resolver, &plans).await;
        assert_eq!(won, Ok(ip("10.0.0.3")));
        let expected = [("10.0.0.1", 0), ("10.0.0.2", 250), ("10.0.0.3", 255)];
        assert_eq!(attempts, begun(&expected));
    }

    #[tokio::test(start_paused = true)]
    async fn p36_families_take_turns_and_ipv6_begins() {
        let four = ["10.0.0.1", "10.0.0.2", "10.0.0.3"];
        let resolver = knows((0, &["fd00::1", "fd00::2"]), (0, &four));
        let order = ["fd00::1", "10.0.0.1", "fd00::2", "10.0.0.2", "10.0.0.3"];
        let plans = order.map(|text| (text, 1, Err(Refused)));
        let (won, attempts) = run(&resolver, &plans).await;
        assert_eq!(won, Err(Refused));
        let attempts: Vec<String> = attempts.into_iter().map(|(text, _)| text).collect();
        assert_eq!(attempts, order);
    }

    #[tokio::test(start_paused = true)]
    async fn p36_ipv6_is_waited_for_no_longer_than_the_resolution_delay() {
        // In time, too late for the first place, later than the stagger, never.
        for (after, expected) in [
            (50, &[("fd00::1", 50), ("10.0.0.1", 300)][..]),
            (80, &[("10.0.0.1", 60), ("fd00::1", 310)]),
            (410, &[("10.0.0.1", 60), ("fd00::1", 410)]),
            (4000, &[("10.0.0.1", 60)]),
        ] {
            let resolver = knows((after, &["fd00::1"]), (10, &["10.0.0.1"]));
            let plans = [("fd00::1", SILENT, Ok(())), ("10.0.0.1", 1000, Ok(()))];
            let (won, attempts) = run(&resolver, &plans).await;
            assert_eq!(won, Ok(ip("10.0.0.1")), "{after}");
            assert_eq!(attempts, begun(expected), "{after}");
        }
        // And not at all once it is known to have failed.
        let resolver = Scripted::new();
        resolver.fails(NAME, V6, 20, NameUnavailable);
        resolver.says(NAME, V4, 10, &["10.0.0.1"]);
        let (_, attempts) = run(&resolver, &[("10.0.0.1", 1, Ok(()))]).await;
        assert_eq!(attempts, begun(&[("10.0.0.1", 20)]));
    }

    #[tokio::test(start_paused = true)]
    async fn p36_ipv6_that_is_never_known_is_waited_for_once() {
        let resolver = Scripted::new();
        resolver.is_silent(NAME, V6);
        resolver.says(NAME, V4, 0, &["10.0.0.1"]);
        let names = Names::new(Some(Arc::clone(&resolver) as _));
        for expected in [50, 0, 0] {
            let start = Instant::now();
            let answers = Answers::new(&names, NAME, Some(Duration::from_secs(5)));
            let won = race(answers, |address| async move { Ok(address) }).await;
            assert_eq!(won, Ok(ip("10.0.0.1")));
            assert_eq!(start.elapsed(), Duration::from_millis(expected));
        }
    }

    #[tokio::test(start_paused = true)]
    async fn p36_a_later_answer_joins_the_race() {
        // All of IPv6 has failed by then.
        let resolver = knows((0, &["fd00::1"]), (2000, &["10.0.0.1"]));
        let plans = [("fd00::1", 5, Err(Refused)), ("10.0.0.1", 1, Ok(()))];
        let (won, attempts) = run(&resolver, &plans).await;
        assert_eq!(won, Ok(ip("10.0.0.1")));
        assert_eq!(attempts, begun(&[("fd00::1", 0), ("10.0.0.1", 2000)]));
    }

    #[tokio::test(start_paused = true)]
    async fn p36_one_family_failing_or_silent_does_not_matter() {
        for family in [V4, V6] {
            let live = match family {
                V4 => "fd00::1",
                V6 => "10.0.0.1",
            };
            let [silent, failing, unknown, empty] = std::array::from_fn(|_| Scripted::new());
            silent.is_silent(NAME, family);
            failing.fails(NAME, family, 5, NameUnavailable);
            unknown.fails(NAME, family, 5, NameNotFound);
            empty.says(NAME, family, 5, &[]);
            for resolver in [silent, failing, unknown, empty] {
                resolver.says(NAME, family.other(), 0, &[live]);
                let start = Instant::now();
                let (won, _) = run(&resolver, &[(live, 1, Ok(()))]).await;
                assert_eq!(won, Ok(ip(live)));
                // The resolution delay at most.
                assert!(start.elapsed() <= Duration::from_millis(52));
            }
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_slow_first_address_may_still_win() {
        let resolver = knows((0, &["fd00::1"]), (0, &["10.0.0.1"]));
        let plans = [("fd00::1", 300, Ok(())), ("10.0.0.1", 500, Ok(()))];
        assert_eq!(run(&resolver, &plans).await.0, Ok(ip("fd00::1")));
    }

    #[tokio::test(start_paused = true)]
    async fn the_most_telling_error_is_returned() {
        let ascending = [
            NetworkUnreachable,
            HostUnreachable,
            Forbidden,
            TimedOut,
            Refused,
            Loop,
        ];
        let resolver = knows((0, &["fd00::1"]), (0, &["10.0.0.1"]));
        for pair in ascending.windows(2) {
            for kinds in [[pair[0], pair[1]], [pair[1], pair[0]]] {
                let plans = [
                    ("fd00::1", 1, Err(kinds[0])),
                    ("10.0.0.1", 1, Err(kinds[1])),
                ];
                assert_eq!(run(&resolver, &plans).await.0, Err(pair[1]));
            }
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_name_without_addresses() {
        assert_eq!(run(&Scripted::new(), &[]).await.0, Err(NameNotFound));
        assert_eq!(
            run(&knows((0, &[]), (9, &[])), &[]).await.0,
            Err(NameNotFound)
        );
        for family in [V4, V6] {
            // That one family was not found is no news if the other is unknown.
            let resolver = Scripted::new();
            resolver.is_silent(NAME, family);
            let start = Instant::now();
            assert_eq!(run(&resolver, &[]).await.0, Err(NameUnavailable));
            assert_eq!(start.elapsed(), Duration::from_secs(5), "the deadline");
        }
    }
}
