//! A response cache in 60 lines: what origins declare fresh is answered from memory.
//!
//! Small and strict rather than complete (RFC 9111): only GET, only 200 whose `Cache-Control` ends
//! in `max-age`, nothing that depends on more than its URL, and no revalidation.
//!
//! ```text
//! cargo run -p examples --example http_cache -- 127.0.0.1:3128
//! curl -v -x http://127.0.0.1:3128 http://example.com/ # twice: the second has an Age
//! ```

use std::cell::RefCell;
use std::collections::HashMap;
use std::time::{Duration, Instant};

use proxy_http::{Answer, Chunk, Direction, Filter, Flow, HeadEdit};

/// Whole answers by their URLs, with their birth and how long they are fresh.
struct Cache(RefCell<HashMap<String, (Answer, Instant, Duration)>>);

/// One exchange: where its answer is kept, the answer without its body, the body so far.
type Fetch = (Option<String>, Option<(Answer, Duration)>, Vec<u8>);

impl Filter<Fetch> for Cache {
    fn request(&self, (place, ..): &mut Fetch, head: &mut HeadEdit<'_>) -> Flow {
        let host = head.get("host").unwrap_or_default().escape_ascii();
        let url = format!("{host}{}", head.target().unwrap_or_default());
        let mut pages = self.0.borrow_mut();
        match head.method() {
            Some("GET") if SPECIAL.split(' ').all(|name| head.get(name).is_none()) => {}
            Some("GET" | "HEAD" | "OPTIONS" | "TRACE") => return Flow::Pass,
            // Whatever it changes, what was kept need not be true any more.
            _ => return pages.remove(&url).map_or(Flow::Pass, |_| Flow::Pass),
        }
        pages.retain(|_, (_, born, fresh)| born.elapsed() < *fresh);
        if let Some((answer, born, _)) = pages.get(&url) {
            let (mut answer, age) = (answer.clone(), born.elapsed().as_secs().to_string());
            let told = answer.append("Age", age.as_bytes()).is_ok();
            return told.then_some(answer).map_or(Flow::Pass, Flow::from);
        }
        *place = Some(url);
        Flow::Pass
    }

    fn response(&self, (place, page, _): &mut Fetch, head: &mut HeadEdit<'_>) -> Flow {
        *page = place.as_ref().and_then(|_| keep(head));
        page.as_ref().map_or(Flow::Pass, |_| Flow::Inspect)
    }

    fn body(&self, (place, page, body): &mut Fetch, way: Direction, chunk: &mut Chunk<'_>) -> Flow {
        if way == Direction::Request || body.len() + chunk.bytes().len() > MAX_BODY {
            return Flow::Pass;
        }
        body.extend_from_slice(chunk.bytes());
        let mut pages = self.0.borrow_mut();
        if chunk.is_last()
            && pages.len() < MAX_PAGES
            && let (Some(url), Some((mut answer, fresh))) = (place.take(), page.take())
        {
            answer.body(std::mem::take(body));
            pages.insert(url, (answer, Instant::now(), fresh));
        }
        Flow::Inspect
    }
}

/// An answer that may be kept, still without its body, and for how long.
fn keep(head: &HeadEdit<'_>) -> Option<(Answer, Duration)> {
    let (mut answer, mut fresh) = (Answer::new(200).ok()?, None);
    for field in head.headers() {
        let value = str::from_utf8(field.value).ok()?.to_ascii_lowercase();
        match &*field.name.to_ascii_lowercase() {
            "age" | "set-cookie" | "vary" => return None,
            "cache-control" if UNKEPT.split(' ').any(|word| value.contains(word)) => return None,
            "cache-control" => fresh = value.split_once("max-age=")?.1.parse().ok(),
            "connection" | "content-length" | "transfer-encoding" => continue,
            _ => {}
        }
        answer.append(field.name, field.value).ok()?;
    }
    (head.status() == Some(200)).then_some((answer, Duration::from_secs(fresh?)))
}

/// Requests with these are not for everybody, or not for the whole page.
const SPECIAL: &str = "authorization cache-control cookie pragma range";
/// What forbids to keep an answer, or says more about it than this cache understands.
const UNKEPT: &str = "no- private s-maxage must-understand";
/// At most 16 MiB in all.
const MAX_PAGES: usize = 256;
const MAX_BODY: usize = 64 * 1024;

fn main() -> std::io::Result<()> {
    examples::serve("a caching proxy", Cache(RefCell::default()))
}
