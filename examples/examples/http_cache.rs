//! A response cache: what origins declare fresh is answered from memory.
//!
//! Small and strict rather than complete (RFC 9111): only GET, only 200 with an explicit
//! lifetime, and nothing that depends on more than its URL. It never revalidates.
//!
//! ```text
//! cargo run -p examples --example http_cache -- 127.0.0.1:3128
//! curl -v -x http://127.0.0.1:3128 http://example.com/ # twice: the second has an Age
//! ```

use std::cell::RefCell;
use std::collections::HashMap;
use std::io;
use std::time::{Duration, Instant};

use proxy_http::{Answer, Chunk, Direction, EditError, Filter, Flow, HeadEdit};

/// Whole answers by their URLs.
#[derive(Default)]
struct Cache(RefCell<HashMap<String, Page>>);

struct Page {
    answer: Answer,
    /// When it would have been of age 0.
    born: Instant,
    fresh: Duration,
}

/// The state of one exchange.
#[derive(Default)]
struct Fetch {
    /// The URL, if the answer may be kept.
    key: Option<String>,
    page: Option<Page>,
    body: Vec<u8>,
}

impl Filter<Fetch> for Cache {
    fn request(&self, fetch: &mut Fetch, head: &mut HeadEdit<'_>) -> Flow {
        let (host, target) = (head.get("host").unwrap_or_default(), head.target());
        let key = format!("{}{}", host.escape_ascii(), target.unwrap_or_default());
        let special = |name: &str| SPECIAL.iter().any(|other| name.eq_ignore_ascii_case(other));
        match head.method() {
            Some("GET") if !head.headers().any(|field| special(field.name)) => {}
            Some("GET" | "HEAD" | "OPTIONS" | "TRACE") => return Flow::Pass,
            _ => {
                // Whatever it changes, what was kept need not be true any more.
                self.0.borrow_mut().remove(&key);
                return Flow::Pass;
            }
        }
        let hit = self.0.borrow().get(&key).and_then(|page| page.answer());
        fetch.key = Some(key);
        hit.map_or(Flow::Pass, Flow::from)
    }

    fn response(&self, fetch: &mut Fetch, head: &mut HeadEdit<'_>) -> Flow {
        match fetch.key {
            Some(_) => fetch.page = Page::new(head),
            None => return Flow::Pass,
        }
        fetch.page.as_ref().map_or(Flow::Pass, |_| Flow::Inspect)
    }

    fn body(&self, fetch: &mut Fetch, way: Direction, chunk: &mut Chunk<'_>) -> Flow {
        if way == Direction::Request || fetch.body.len() + chunk.bytes().len() > MAX_BODY {
            return Flow::Pass;
        }
        fetch.body.extend_from_slice(chunk.bytes());
        if chunk.is_last()
            && let (Some(key), Some(mut page)) = (fetch.key.take(), fetch.page.take())
        {
            page.answer.body(std::mem::take(&mut fetch.body));
            let mut pages = self.0.borrow_mut();
            if pages.len() >= MAX_PAGES {
                pages.retain(|_, page| page.is_fresh());
            }
            if pages.len() < MAX_PAGES {
                pages.insert(key, page);
            }
        }
        Flow::Inspect
    }
}

impl Page {
    /// A page to be kept, still without its body.
    fn new(head: &HeadEdit<'_>) -> Option<Self> {
        let mut answer = Answer::new(200)
            .ok()
            .filter(|_| head.status() == Some(200))?;
        let (mut fresh, mut age) = (Freshness::default(), 0);
        for field in head.headers() {
            let value = String::from_utf8_lossy(field.value).to_ascii_lowercase();
            match &*field.name.to_ascii_lowercase() {
                "age" => {
                    age = value.parse().ok()?;
                    continue;
                }
                "cache-control" => fresh.read(&value)?,
                "set-cookie" | "vary" => return None,
                _ => {}
            }
            match answer.append(field.name, field.value) {
                // Framing and connection are the server's.
                Ok(_) | Err(EditError::Fixed) => {}
                Err(_) => return None,
            }
        }
        let page = Self {
            answer,
            born: Instant::now().checked_sub(Duration::from_secs(age))?,
            fresh: Duration::from_secs(fresh.shared.or(fresh.any)?),
        };
        page.is_fresh().then_some(page)
    }

    fn is_fresh(&self) -> bool {
        self.born.elapsed() < self.fresh
    }

    /// What a client gets, unless it is too old.
    fn answer(&self) -> Option<Answer> {
        let mut answer = self.answer.clone();
        let age = self.born.elapsed().as_secs().to_string();
        answer.append("Age", age.as_bytes()).ok()?;
        self.is_fresh().then_some(answer)
    }
}

/// What `Cache-Control` says, in seconds: to caches like this one, or to any.
#[derive(Default)]
struct Freshness {
    shared: Option<u64>,
    any: Option<u64>,
}

impl Freshness {
    /// `None` if the answer is not to be kept.
    fn read(&mut self, value: &str) -> Option<()> {
        for directive in value.split(',').map(str::trim) {
            match directive.split_once('=') {
                Some(("max-age", seconds)) => self.any = Some(seconds.parse().ok()?),
                Some(("s-maxage", seconds)) => self.shared = Some(seconds.parse().ok()?),
                _ if UNKEPT.iter().any(|word| directive.starts_with(word)) => return None,
                _ => {}
            }
        }
        Some(())
    }
}

/// Fields of requests whose answers are not for everybody, or not the whole page.
const SPECIAL: [&str; 10] = [
    "authorization",
    "cache-control",
    "cookie",
    "if-match",
    "if-modified-since",
    "if-none-match",
    "if-range",
    "if-unmodified-since",
    "pragma",
    "range",
];

/// What forbids to keep an answer, or to use it without asking again.
const UNKEPT: [&str; 3] = ["no-cache", "no-store", "private"];

/// At most 16 MiB in all.
const MAX_PAGES: usize = 256;
const MAX_BODY: usize = 64 * 1024;

fn main() -> io::Result<()> {
    examples::serve("a caching proxy", Cache::default())
}
