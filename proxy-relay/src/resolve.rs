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
