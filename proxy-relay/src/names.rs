//! The names a dialer knows: answers kept for their time, questions merged.

use std::collections::HashMap;
use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use proxy_core::{ConnectErrorKind, Host};
use tokio::sync::{OnceCell, Semaphore};
use tokio::time::Instant;

use crate::resolve::{Family, Resolve, Resolved, system};

/// A resolver and what it said lately.
pub(crate) struct Names {
    /// Without one the system is asked.
    resolver: Option<Arc<dyn Resolve>>,
    known: Mutex<Known>,
    /// One for each question that may still be asked.
    free: Semaphore,
}

/// What a name comes to: at least one address, or why there is none.
pub(crate) type Answer = Result<Arc<[IpAddr]>, ConnectErrorKind>;

/// What can be asked about a name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Question {
    /// For the addresses of both families in one.
    Any,
    One(Family),
}

/// An answer, or the question that is to have one.
pub(crate) enum Found {
    Known(Answer),
    Open(Arc<Open>),
}

/// A question, and in the end its answer.
#[derive(Debug, Default)]
pub(crate) struct Open {
    kept: OnceCell<Kept>,
    /// The longest time, in milliseconds, that somebody waited in vain.
    waited: AtomicU64,
}

impl Open {
    /// Whether somebody waited for so many milliseconds in vain.
    pub(crate) fn is_later_than(&self, millis: u64) -> bool {
        self.waited.load(Ordering::Relaxed) >= millis
    }

    /// Keeps the next ones from waiting that long, too.
    pub(crate) fn set_later_than(&self, millis: u64) {
        self.waited.fetch_max(millis, Ordering::Relaxed);
    }
}

impl Names {
    pub(crate) fn new(resolver: Option<Arc<dyn Resolve>>) -> Self {
        Self {
            resolver,
            known: Mutex::default(),
            free: Semaphore::new(MAX_ASKED),
        }
    }

    /// All that is to be asked about a name.
    pub(crate) fn questions(&self) -> &'static [Question] {
        match self.resolver {
            Some(_) => &[Question::One(Family::V6), Question::One(Family::V4)],
            None => &[Question::Any],
        }
    }

    /// What is known of `name`; if it is nothing, [`answer`](Self::answer) finds out.
    pub(crate) fn find(&self, name: &str, question: Question) -> Found {
        let mut buffer = [0; MAX_NAME];
        match lower(name, &mut buffer) {
            Some(key) if !never_exists(key) => self.known().find(key, question, Instant::now()),
            _ => Found::Known(Err(ConnectErrorKind::NameNotFound)),
        }
    }

    /// Asks, unless somebody else is about to and answers first. Should he be
    /// dropped, one of those that wait asks again. Nobody is asked while too many
    /// questions are under way.
    pub(crate) async fn answer(
        &self,
        name: &str,
        question: Question,
        open: Arc<Open>,
        limit: Option<Duration>,
    ) -> Answer {
        let kept = open.kept.get_or_init(|| async {
            let Ok(_one) = self.free.try_acquire() else {
                return Kept::nothing(Instant::now());
            };
            let asked = self.ask(name, question);
            let resolved = match limit {
                Some(limit) => tokio::time::timeout(limit, asked)
                    .await
                    .unwrap_or(Err(ConnectErrorKind::NameUnavailable)),
                None => asked.await,
            };
            Kept::new(resolved, Instant::now())
        });
        kept.await.answer.clone()
    }

    async fn ask(&self, name: &str, question: Question) -> Result<Resolved, ConnectErrorKind> {
        let name = name.to_ascii_lowercase();
        match (&self.resolver, question) {
            (Some(resolver), Question::One(family)) => resolver.resolve(&name, family).await,
            _ if Host::Name(&name).is_localhost() => Ok(loopback()),
            _ => system(&name).await,
        }
    }

    /// For a moment only, never across an await.
    fn known(&self) -> MutexGuard<'_, Known> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl fmt::Debug for Names {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.resolver {
            Some(resolver) => resolver.fmt(f),
            None => f.write_str("System"),
        }
    }
}

/// An answer and its time.
#[derive(Debug)]
struct Kept {
    answer: Answer,
    until: Instant,
}

impl Kept {
    fn new(resolved: Result<Resolved, ConnectErrorKind>, now: Instant) -> Self {
        let (answer, keep) = match resolved {
            Ok(Resolved { mut addresses, ttl }) if !addresses.is_empty() => {
                addresses.truncate(MAX_ADDRESSES);
                (Ok(addresses.into()), ttl.clamp(SHORTEST, LONGEST))
            }
            Ok(Resolved { ttl, .. }) => {
                let none = Err(ConnectErrorKind::NameNotFound);
                (none, ttl.clamp(SHORTEST, LONGEST_NONE))
            }
            Err(kind @ ConnectErrorKind::NameNotFound) => (Err(kind), KEEP_NOT_FOUND),
            Err(kind) => (Err(kind), KEEP_FAILED),
        };
        let until = now + keep;
        Self { answer, until }
    }

    /// Only for those who wait: the next one may have more luck.
    fn nothing(now: Instant) -> Self {
        Self {
            answer: Err(ConnectErrorKind::NameUnavailable),
            until: now,
        }
    }
}

/// What is known of a name, question by question.
type Cells = [Option<Arc<Open>>; 2];

#[derive(Default)]
struct Known(HashMap<Box<str>, Cells>);

impl Known {
    fn find(&mut self, name: &str, question: Question, now: Instant) -> Found {
        let slot = slot(question);
        let cells = match self.0.get_mut(name) {
            Some(cells) => cells,
            None => self.add(name, now),
        };
        if let Some(open) = &cells[slot] {
            match open.kept.get() {
                Some(kept) if kept.until > now => return Found::Known(kept.answer.clone()),
                Some(_) => {}
                None => return Found::Open(Arc::clone(open)),
            }
        }
        Found::Open(Arc::clone(cells[slot].insert(Arc::default())))
    }

    fn add(&mut self, name: &str, now: Instant) -> &mut Cells {
        if self.0.len() >= MAX_NAMES {
            self.0.retain(|_, cells| is_of_use(cells, now));
            // If that was not enough, chance decides; more than one goes, so
            // that the next look is not soon.
            let mut spare = self.0.len().saturating_sub(MAX_NAMES / 8 * 7);
            self.0.retain(|_, _| {
                let stays = spare == 0;
                spare = spare.saturating_sub(1);
                stays
            });
        }
        self.0.entry(name.into()).or_default()
    }
}

/// Whether an answer still holds or somebody waits for one.
fn is_of_use(cells: &Cells, now: Instant) -> bool {
    cells.iter().flatten().any(|open| match open.kept.get() {
        Some(kept) => kept.until > now,
        None => Arc::strong_count(open) > 1,
    })
}

fn slot(question: Question) -> usize {
    match question {
        Question::Any | Question::One(Family::V6) => 0,
        Question::One(Family::V4) => 1,
    }
}

/// `name` in lower case, without an allocation; `None` if it is too long.
fn lower<'b>(name: &str, buffer: &'b mut [u8; MAX_NAME]) -> Option<&'b str> {
    let key = buffer.get_mut(..name.len())?;
    key.copy_from_slice(name.as_bytes());
    key.make_ascii_lowercase();
    std::str::from_utf8(key).ok()
}

/// RFC 6761 section 6.4: not to be asked for at all.
fn never_exists(name: &str) -> bool {
    last_label(name) == "invalid"
}

fn last_label(name: &str) -> &str {
    let name = name.strip_suffix('.').unwrap_or(name);
    name.rsplit('.').next().unwrap_or(name)
}

fn loopback() -> Resolved {
    Resolved {
        addresses: vec![Ipv6Addr::LOCALHOST.into(), Ipv4Addr::LOCALHOST.into()],
        ttl: LONGEST,
    }
}

/// As [`proxy_core::Host::Name`] has it.
const MAX_NAME: usize = 255;
const MAX_NAMES: usize = 4096;
/// Questions under way at a time. Each may cost the resolver a few descriptors
/// and tens of kilobytes until it is answered or given up.
const MAX_ASKED: usize = 1024;
const MAX_ADDRESSES: usize = 64;
/// Even of an answer that is not to be kept at all a moment's burst has use.
const SHORTEST: Duration = Duration::from_secs(1);
const LONGEST: Duration = Duration::from_secs(3600);
const LONGEST_NONE: Duration = Duration::from_secs(30);
const KEEP_NOT_FOUND: Duration = Duration::from_secs(5);
const KEEP_FAILED: Duration = Duration::from_secs(1);

#[cfg(test)]
mod tests {
    use super::*;
    use crate::resolve::Family::{V4, V6};
    use crate::scripted::{Scripted, ip};
    use ConnectErrorKind::{NameNotFound, NameUnavailable};
    use std::future::poll_fn;
    use std::pin::pin;
    use std::task::Poll;

    const LIMIT: Option<Duration> = Some(Duration::from_secs(5));

    async fn ask(names: &Names, name: &str) -> Answer {
        match names.find(name, Question::One(V4)) {
            Found::Known(answer) => answer,
            Found::Open(open) => names.answer(name, Question::One(V4), open, LIMIT).await,
        }
    }

    fn names(resolver: &Arc<Scripted>) -> Names {
        Names::new(Some(Arc::clone(resolver) as _))
    }

    fn found(texts: &[&str]) -> Answer {
        Ok(texts.iter().map(|text| ip(text)).collect())
    }

    #[tokio::test(start_paused = true)]
    async fn p37_answers_are_kept_for_their_time() {
        // As long as it says, but neither too short nor too long.
        for (ttl, kept) in [(0, 1), (1, 1), (60, 60), (100_000, 3600)] {
            let resolver = Scripted::new();
            resolver.says_for("a.example", V4, 0, &["10.0.0.1"], ttl);
            resolver.says_for("a.example", V4, 0, &["10.0.0.2"], ttl);
            let names = names(&resolver);
            assert_eq!(ask(&names, "a.example").await, found(&["10.0.0.1"]));
            tokio::time::advance(Duration::from_millis(kept * 1000 - 1)).await;
            assert_eq!(ask(&names, "A.Example").await, found(&["10.0.0.1"]));
            tokio::time::advance(Duration::from_millis(1)).await;
            assert_eq!(
                ask(&names, "a.example").await,
                found(&["10.0.0.2"]),
                "{ttl}"
            );
            assert_eq!(resolver.count("a.example", V4), 2);
        }
    }

    #[tokio::test(start_paused = true)]
    async fn p37_failures_are_kept_briefly() {
        let resolver = Scripted::new();
        resolver.fails("a.example", V4, 0, NameUnavailable);
        resolver.fails("a.example", V4, 0, NameNotFound);
        resolver.says_for("a.example", V4, 0, &[], 86_400);
        resolver.says("a.example", V4, 0, &["10.0.0.1"]);
        let names = names(&resolver);
        let expected = [
            (Err(NameUnavailable), KEEP_FAILED),
            (Err(NameNotFound), KEEP_NOT_FOUND),
            (Err(NameNotFound), LONGEST_NONE),
            (found(&["10.0.0.1"]), Duration::from_secs(60)),
        ];
        for (answer, keep) in expected {
            assert_eq!(ask(&names, "a.example").await, answer);
            tokio::time::advance(keep - Duration::from_millis(1)).await;
            assert_eq!(ask(&names, "a.example").await, answer);
            tokio::time::advance(Duration::from_millis(1)).await;
        }
        assert_eq!(resolver.count("a.example", V4), 4);
    }

    #[tokio::test(start_paused = true)]
    async fn p37_a_question_has_its_deadline() {
        let resolver = Scripted::new();
        resolver.is_silent("mute.example", V4);
        let names = names(&resolver);
        let start = Instant::now();
        assert_eq!(ask(&names, "mute.example").await, Err(NameUnavailable));
        assert_eq!(start.elapsed(), Duration::from_secs(5));
        // And does not cost it again right after.
        assert_eq!(ask(&names, "mute.example").await, Err(NameUnavailable));
        assert_eq!(start.elapsed(), Duration::from_secs(5));
    }

    #[tokio::test(start_paused = true)]
    async fn p37_one_slow_name_delays_no_other() {
        let resolver = Scripted::new();
        resolver.is_silent("mute.example", V4);
        resolver.says("slow.example", V4, 3000, &["10.0.0.1"]);
        resolver.says("quick.example", V4, 10, &["10.0.0.2"]);
        let names = names(&resolver);
        let timed = async |name| {
            let start = Instant::now();
            let answer = ask(&names, name).await;
            (answer.is_ok(), start.elapsed().as_millis())
        };
        let (mute, slow, quick) = tokio::join!(
            timed("mute.example"),
            timed("slow.example"),
            timed("quick.example")
        );
        assert_eq!(
            (mute, slow, quick),
            ((false, 5000), (true, 3000), (true, 10))
        );
    }

    #[tokio::test(start_paused = true)]
    async fn p37_equal_questions_are_merged() {
        let resolver = Scripted::new();
        resolver.says("a.example", V4, 100, &["10.0.0.1"]);
        let names = Arc::new(names(&resolver));
        let asking = (0..10).map(|_| {
            let names = Arc::clone(&names);
            tokio::spawn(async move { ask(&names, "a.example").await })
        });
        for asked in asking.collect::<Vec<_>>() {
            assert_eq!(asked.await.expect("no panic"), found(&["10.0.0.1"]));
        }
        assert_eq!(resolver.count("a.example", V4), 1);
        // The other family is another question, another spelling is not.
        let Found::Open(_) = names.find("a.example", Question::One(V6)) else {
            panic!("not asked yet");
        };
        assert_eq!(ask(&names, "A.EXAMPLE").await, found(&["10.0.0.1"]));
        assert_eq!(resolver.count("a.example", V4), 1);
    }

    #[tokio::test(start_paused = true)]
    async fn p37_who_waits_goes_on_when_who_asks_is_gone() {
        let resolver = Scripted::new();
        resolver.is_silent("a.example", V4);
        resolver.says("a.example", V4, 10, &["10.0.0.1"]);
        let names = names(&resolver);
        let start = Instant::now();
        let mut first = Box::pin(ask(&names, "a.example"));
        let mut second = pin!(ask(&names, "a.example"));
        poll_fn(|cx| {
            assert!(first.as_mut().poll(cx).is_pending());
            assert!(second.as_mut().poll(cx).is_pending());
            Poll::Ready(())
        })
        .await;
        assert_eq!(resolver.count("a.example", V4), 1);
        drop(first);
        assert_eq!(second.await, found(&["10.0.0.1"]));
        assert_eq!(start.elapsed(), Duration::from_millis(10));
        assert_eq!(resolver.count("a.example", V4), 2);
    }

    #[tokio::test(start_paused = true)]
    async fn p37_questions_under_way_are_bounded() {
        let resolver = Scripted::new();
        resolver.says("known.example", V4, 0, &["10.0.0.1"]);
        resolver.says("next.example", V4, 0, &["10.0.0.2"]);
        let names = Arc::new(names(&resolver));
        assert_eq!(ask(&names, "known.example").await, found(&["10.0.0.1"]));
        let asking = |name: String| {
            resolver.is_silent(&name, V4);
            let names = Arc::clone(&names);
            tokio::spawn(async move { ask(&names, &name).await })
        };
        let start = Instant::now();
        let all = (0..MAX_ASKED).map(|n| asking(format!("{n}.example")));
        let mut all: Vec<_> = all.collect();
        // Those who wait for the same answer do not count.
        all.extend((0..100).map(|_| asking("0.example".to_owned())));
        // This is over when there is nothing else to do.
        tokio::time::sleep(Duration::from_millis(1)).await;
        assert_eq!(resolver.total(), 1 + MAX_ASKED);
        let now = start.elapsed();
        for _ in 0..3 {
            assert_eq!(ask(&names, "next.example").await, Err(NameUnavailable));
        }
        assert_eq!(resolver.count("next.example", V4), 0);
        assert_eq!(ask(&names, "known.example").await, found(&["10.0.0.1"]));
        assert_eq!(start.elapsed(), now);
        // One that nobody wants to know any more makes room at once.
        let gone = all.swap_remove(1);
        gone.abort();
        assert!(gone.await.is_err_and(|error| error.is_cancelled()));
        assert_eq!(ask(&names, "next.example").await, found(&["10.0.0.2"]));
        assert_eq!(start.elapsed(), now);
        for asked in all {
            assert_eq!(asked.await.expect("no panic"), Err(NameUnavailable));
        }
        assert_eq!(start.elapsed(), Duration::from_secs(5));
        assert_eq!(names.free.available_permits(), MAX_ASKED);
    }

    #[tokio::test(start_paused = true)]
    async fn what_is_known_is_bounded() {
        let resolver = Scripted::new();
        let names = names(&resolver);
        for n in 0..3 * MAX_NAMES {
            let name = format!("{n}.example");
            assert_eq!(ask(&names, &name).await, Err(NameNotFound));
            assert!(names.known().0.len() <= MAX_NAMES);
        }
        // What is out of date goes first, and what is asked for stays.
        let Found::Open(open) = names.find("open.example", Question::One(V4)) else {
            panic!("not asked yet");
        };
        tokio::time::advance(KEEP_NOT_FOUND).await;
        for n in 0..MAX_NAMES / 2 {
            let _ = ask(&names, &format!("{n}.example.org")).await;
        }
        let Found::Open(again) = names.find("open.example", Question::One(V4)) else {
            panic!("nobody answered");
        };
        assert!(Arc::ptr_eq(&open, &again));
    }

    #[tokio::test]
    async fn names_that_nobody_is_asked_about() {
        let resolver = Scripted::new();
        let names = names(&resolver);
        for name in ["invalid", "a.INVALID.", &"a".repeat(256)] {
            assert_eq!(ask(&names, name).await, Err(NameNotFound), "{name}");
        }
        assert_eq!(resolver.total(), 0);
        // RFC 6761 section 6.3, where the system would have to be asked.
        let system = Names::new(None);
        let loopback = found(&["::1", "127.0.0.1"]);
        for name in ["localhost", "LocalHost.", "a.b.localhost"] {
            let Found::Open(open) = system.find(name, Question::Any) else {
                panic!("not asked yet");
            };
            let answer = system.answer(name, Question::Any, open, LIMIT).await;
            assert_eq!(answer, loopback, "{name}");
        }
    }
}
