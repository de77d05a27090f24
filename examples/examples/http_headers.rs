//! A header rewriter: fields that are taken out of all that passes, or set in requests.
//!
//! ```text
//! cargo run -p examples --example http_headers -- 127.0.0.1:3128 cookie set-cookie user-agent=me
//! curl -x http://127.0.0.1:3128 http://example.com/
//! ```

use std::io;

use proxy_http::{Filter, Flow, HeadEdit};

/// Names of fields to remove, names and values of fields to set.
#[derive(Default)]
struct Rules {
    remove: Vec<String>,
    set: Vec<(String, String)>,
}

impl Rules {
    fn new(rules: impl Iterator<Item = String>) -> Self {
        let mut all = Self::default();
        for rule in rules {
            match rule.split_once('=') {
                Some((name, value)) => all.set.push((name.into(), value.into())),
                None => all.remove.push(rule),
            }
        }
        all
    }

    fn strip(&self, head: &mut HeadEdit<'_>) {
        for name in &self.remove {
            head.remove(name);
        }
    }
}

impl<S> Filter<S> for Rules {
    fn request(&self, _: &mut S, head: &mut HeadEdit<'_>) -> Flow {
        self.strip(head);
        for (name, value) in &self.set {
            // Framing and routing fields are out of reach, and so are line breaks.
            if head.set(name, value.as_bytes()).is_err() {
                return Flow::Reject(500);
            }
        }
        // The body is none of our business: it may be spliced past us.
        Flow::Pass
    }

    fn response(&self, _: &mut S, head: &mut HeadEdit<'_>) -> Flow {
        self.strip(head);
        Flow::Pass
    }
}

fn main() -> io::Result<()> {
    let rules = Rules::new(std::env::args().skip(2));
    examples::serve::<(), _>("a proxy that rewrites headers", rules)
}
