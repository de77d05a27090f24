//! A resolver that says what it is told, when it is told.
#![allow(dead_code, reason = "each test binary uses a part")]

use std::collections::{HashMap, VecDeque};
use std::net::IpAddr;
use std::pin::Pin;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use proxy_core::ConnectErrorKind;
use proxy_relay::{Family, Resolve, Resolved};

/// Knows no name at first.
#[derive(Debug, Default)]
pub(crate) struct Scripted {
    lines: Mutex<HashMap<(String, Family), VecDeque<Line>>>,
    asked: Mutex<Vec<(String, Family)>>,
}

/// What is said, and after how many milliseconds; `None` is never.
type Line = (Option<u64>, Result<Resolved, ConnectErrorKind>);

impl Scripted {
    pub(crate) fn new() -> Arc<Self> {
        Arc::default()
    }

    /// One more answer for a question; the last one is repeated.
    pub(crate) fn says(&self, name: &str, family: Family, after: u64, texts: &[&str]) -> &Self {
        self.says_for(name, family, after, texts, 60)
    }

    /// As above, and for how many seconds it holds.
    pub(crate) fn says_for(
        &self,
        name: &str,
        family: Family,
        after: u64,
        texts: &[&str],
        ttl: u64,
    ) -> &Self {
        let resolved = Resolved {
            addresses: texts.iter().map(|text| ip(text)).collect(),
            ttl: Duration::from_secs(ttl),
        };
        self.add(name, family, (Some(after), Ok(resolved)))
    }

    pub(crate) fn fails(
        &self,
        name: &str,
        family: Family,
        after: u64,
        kind: ConnectErrorKind,
    ) -> &Self {
        self.add(name, family, (Some(after), Err(kind)))
    }

    pub(crate) fn is_silent(&self, name: &str, family: Family) -> &Self {
        self.add(name, family, (None, Err(ConnectErrorKind::Other)))
    }

    /// How often the question was asked.
    pub(crate) fn count(&self, name: &str, family: Family) -> usize {
        let asked = self.asked.lock().expect("no panic");
        asked
            .iter()
            .filter(|known| *known == &(name.to_owned(), family))
            .count()
    }

    /// How many questions there were.
    pub(crate) fn total(&self) -> usize {
        self.asked.lock().expect("no panic").len()
    }

    fn add(&self, name: &str, family: Family, line: Line) -> &Self {
        let mut lines = self.lines.lock().expect("no panic");
        let script = lines.entry((name.to_owned(), family)).or_default();
        script.push_back(line);
        self
    }

    fn line(&self, question: &(String, Family)) -> Line {
        let mut lines = self.lines.lock().expect("no panic");
        let unknown = (Some(0), Err(ConnectErrorKind::NameNotFound));
        let Some(script) = lines.get_mut(question) else {
            return unknown;
        };
        match script.len() {
            0 | 1 => script.front().cloned().unwrap_or(unknown),
            _ => script.pop_front().unwrap_or(unknown),
        }
    }
}

impl Resolve for Scripted {
    fn resolve<'a>(
        &'a self,
        name: &'a str,
        family: Family,
    ) -> Pin<Box<dyn Future<Output = Result<Resolved, ConnectErrorKind>> + Send + 'a>> {
        let question = (name.to_owned(), family);
        let (after, answer) = self.line(&question);
        self.asked.lock().expect("no panic").push(question);
        Box::pin(async move {
            match after {
                Some(0) => {}
                Some(millis) => tokio::time::sleep(Duration::from_millis(millis)).await,
                None => std::future::pending().await,
            }
            answer
        })
    }
}

pub(crate) fn ip(text: &str) -> IpAddr {
    text.parse().expect("an address")
}
