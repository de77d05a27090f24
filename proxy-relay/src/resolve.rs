//! Looks names up through the system's resolver.

use std::cell::RefCell;
use std::collections::HashMap;
use std::io;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use proxy_core::{ConnectError, ConnectErrorKind};
use tokio::sync::OnceCell;
use tokio::time::Instant;

/// The addresses of `name`, in the order the system prefers; at least one.
///
/// Equal look-ups on a thread are merged and their answers kept for a moment.
/// Has no deadline of its own; cancel safe.
pub(crate) async fn lookup(name: &str) -> Result<Arc<[IpAddr]>, ConnectError> {
    if never_exists(name) {
        return Err(ConnectError::origin(ConnectErrorKind::NameNotFound));
    }
    let cell = CACHE.with_borrow_mut(|cache| cache.cell(name));
    // If the task that asks is dropped, one that waits takes over.
    cell.get_or_init(|| ask(name)).await.clone()
}

type Answer = Result<Arc<[IpAddr]>, ConnectError>;

async fn ask(name: &str) -> Answer {
    let found = tokio::net::lookup_host((name, 0)).await;
    let found = found.map_err(failure)?;
    let mut addresses: Vec<IpAddr> = Vec::new();
    for address in found {
        if !addresses.contains(&address.ip()) {
            addresses.push(address.ip());
        }
    }
    match addresses.is_empty() {
        true => Err(ConnectError::origin(ConnectErrorKind::NameNotFound)),
        false => Ok(addresses.into()),
    }
}

/// RFC 6761 section 6.4: not to be asked for at all.
fn never_exists(name: &str) -> bool {
    let name = name.strip_suffix('.').unwrap_or(name);
    let tld = name.rsplit('.').next().unwrap_or(name);
    tld.eq_ignore_ascii_case("invalid")
}

fn failure(error: io::Error) -> ConnectError {
    if error.raw_os_error().is_some() {
        // Not an answer: the process is out of descriptors, say.
        return error.into();
    }
    // The standard library keeps the resolver's code only in the text.
    let text = error.to_string();
    let passing = ["Temporary", "Try again", "ecoverable"];
    ConnectError::origin(match passing.iter().any(|word| text.contains(word)) {
        true => ConnectErrorKind::NameUnavailable,
        false => ConnectErrorKind::NameNotFound,
    })
}

#[derive(Default)]
struct Cache(HashMap<Box<str>, Entry>);

struct Entry {
    cell: Arc<OnceCell<Answer>>,
    since: Instant,
}

impl Entry {
    /// Whether it is still being asked for, or was answered a moment ago.
    fn is_fresh(&self, now: Instant) -> bool {
        let keep = match self.cell.get() {
            None => return true,
            Some(Ok(_)) => KEEP_FOUND,
            Some(Err(_)) => KEEP_FAILED,
        };
        now.duration_since(self.since) <= keep
    }
}

impl Cache {
    fn cell(&mut self, name: &str) -> Arc<OnceCell<Answer>> {
        let now = Instant::now();
        if let Some(entry) = self.0.get(name)
            && entry.is_fresh(now)
        {
            return Arc::clone(&entry.cell);
        }
        if self.0.len() >= ENTRIES {
            self.0.retain(|_, entry| entry.is_fresh(now));
        }
        let cell = Arc::new(OnceCell::new());
        if self.0.len() < ENTRIES {
            let entry = Entry {
                cell: Arc::clone(&cell),
                since: now,
            };
            self.0.insert(name.into(), entry);
        }
        cell
    }
}

const ENTRIES: usize = 1024;
const KEEP_FOUND: Duration = Duration::from_secs(5);
const KEEP_FAILED: Duration = Duration::from_secs(1);

thread_local! {
    static CACHE: RefCell<Cache> = RefCell::default();
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn equal_questions_share_an_answer_for_a_moment() {
        let mut cache = Cache::default();
        let first = cache.cell("a.example");
        assert!(!Arc::ptr_eq(&first, &cache.cell("b.example")));
        // Not answered yet: merged however long it takes.
        tokio::time::advance(Duration::from_secs(60)).await;
        assert!(Arc::ptr_eq(&first, &cache.cell("a.example")));
        let unknown = ConnectError::origin(ConnectErrorKind::NameNotFound);
        first.set(Err(unknown)).expect("not set");
        assert!(!Arc::ptr_eq(&first, &cache.cell("a.example")), "outlived");
        let second = cache.cell("a.example");
        second
            .set(Ok([IpAddr::from([127, 0, 0, 1])].into()))
            .expect("not set");
        tokio::time::advance(KEEP_FAILED * 2).await;
        assert!(Arc::ptr_eq(&second, &cache.cell("a.example")));
        tokio::time::advance(KEEP_FOUND).await;
        assert!(!Arc::ptr_eq(&second, &cache.cell("a.example")));
    }

    #[tokio::test(start_paused = true)]
    async fn the_cache_is_bounded() {
        let mut cache = Cache::default();
        for n in 0..2 * ENTRIES {
            cache.cell(&format!("{n}.example"));
        }
        assert_eq!(cache.0.len(), ENTRIES);
    }

    #[test]
    fn a_failure_of_ours_is_no_answer() {
        let exhausted = failure(io::Error::from_raw_os_error(24));
        assert_eq!(exhausted.kind, ConnectErrorKind::Exhausted);
        let text = |text: &str| failure(io::Error::other(text)).kind;
        let passing =
            text("failed to lookup address information: Temporary failure in name resolution");
        assert_eq!(passing, ConnectErrorKind::NameUnavailable);
        let unknown = text("failed to lookup address information: Name or service not known");
        assert_eq!(unknown, ConnectErrorKind::NameNotFound);
    }
}
