//! The names a dialer knows: answers kept for their time, questions merged.

use std::collections::HashMap;
use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use proxy_core::ConnectErrorKind;
use tokio::sync::OnceCell;
use tokio::time::Instant;

use crate::resolve::{Family, Resolve, Resolved, system};

/// A resolver and what it said lately.
pub(crate) struct Names {
    /// Without one the system is asked.
    resolver: Option<Arc<dyn Resolve>>,
    known: Mutex<Known>,
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

/// An answer, or where it will be.
pub(crate) enum Found {
    Known(Answer),
    Open(Arc<OnceCell<Kept>>),
}

impl Names {
    pub(crate) fn new(resolver: Option<Arc<dyn Resolve>>) -> Self {
        Self {
            resolver,
            known: Mutex::default(),
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
    /// dropped, one of those that wait asks again.
    pub(crate) async fn answer(
        &self,
        name: &str,
        question: Question,
        found: Found,
        limit: Option<Duration>,
    ) -> Answer {
        let cell = match found {
            Found::Known(answer) => return answer,
            Found::Open(cell) => cell,
        };
        let kept = cell.get_or_init(|| async {
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
            _ if is_localhost(&name) => Ok(loopback()),
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
pub(crate) struct Kept {
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
}

type Cells = [Option<Arc<OnceCell<Kept>>>; 2];

#[derive(Default)]
struct Known(HashMap<Box<str>, Cells>);

impl Known {
    fn find(&mut self, name: &str, question: Question, now: Instant) -> Found {
        let slot = slot(question);
        let cells = match self.0.get_mut(name) {
            Some(cells) => cells,
            None => self.add(name, now),
        };
        if let Some(cell) = &cells[slot] {
            match cell.get() {
                Some(kept) if kept.until > now => return Found::Known(kept.answer.clone()),
                Some(_) => {}
                None => return Found::Open(Arc::clone(cell)),
            }
        }
        let cell = cells[slot].insert(Arc::default());
        Found::Open(Arc::clone(cell))
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
    cells.iter().flatten().any(|cell| match cell.get() {
        Some(kept) => kept.until > now,
        None => Arc::strong_count(cell) > 1,
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

/// RFC 6761 section 6.3: loopback, and nobody else's business.
fn is_localhost(name: &str) -> bool {
    last_label(name) == "localhost"
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
const MAX_ADDRESSES: usize = 64;
/// Even of an answer that is not to be kept at all a moment's burst has use.
const SHORTEST: Duration = Duration::from_secs(1);
const LONGEST: Duration = Duration::from_secs(3600);
const LONGEST_NONE: Duration = Duration::from_secs(30);
const KEEP_NOT_FOUND: Duration = Duration::from_secs(5);
const KEEP_FAILED: Duration = Duration::from_secs(1);
