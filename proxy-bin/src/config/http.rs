//! What origins are told, and how `https` URLs are fetched.

use std::path::PathBuf;

use proxy_http::Forwarded;

use super::problem::{Problem, Sourced};
use super::reader::Table;
use super::{check, file, value};

/// The `[http]` table without contradictions.
#[derive(Clone, Debug)]
pub(crate) struct Http {
    /// Whether origins and clients are shown `Via`.
    pub(crate) via: bool,
    /// What origins are told of the client's address.
    pub(crate) forwarded: Forwarded,
    /// Whether requests for `https` URLs are served.
    pub(crate) fetch_https: bool,
    /// Issuers of origins' certificates in place of the system's.
    pub(crate) ca: Option<Sourced<PathBuf>>,
}

/// `[http]` as written.
#[derive(Clone, Debug, Default)]
pub(crate) struct HttpDraft {
    via: Option<bool>,
    forwarded: Option<Forwarded>,
    fetch_https: Option<bool>,
    ca: Option<Sourced<PathBuf>>,
}

impl HttpDraft {
    pub(super) fn read(&mut self, table: &Table<'_>) {
        self.via = table.boolean("via").map(|via| via.value);
        let forwarded = table.text("forwarded", |text| value::choice(&FORWARDED, text));
        self.forwarded = forwarded.map(|word| word.value);
        let https = table.text("https", |text| value::choice(&HTTPS, text));
        self.fetch_https = https.map(|word| word.value);
        self.ca = file::path(table, "ca");
    }

    pub(super) fn finish(self, problems: &mut Vec<Problem>) -> Http {
        let fetch_https = self.fetch_https.unwrap_or(true);
        if let Some(ca) = &self.ca {
            check::check_file("http.ca", ca, problems);
            if !fetch_https {
                let text = "expected no issuers where https URLs are refused, found a file of \
                            them; write https = \"fetch\" instead, or no ca";
                problems.push(Problem::new(&ca.origin, "http.ca", text));
            }
        }
        Http {
            via: self.via.unwrap_or(false),
            forwarded: self.forwarded.unwrap_or_default(),
            fetch_https,
            ca: self.ca,
        }
    }
}

const FORWARDED: [(&str, Forwarded); 4] = [
    ("keep", Forwarded::Keep),
    ("remove", Forwarded::Remove),
    ("append", Forwarded::Append),
    ("append-for", Forwarded::AppendFor),
];
const HTTPS: [(&str, bool); 2] = [("fetch", true), ("refuse", false)];

pub(super) const KEYS: [&str; 4] = ["via", "forwarded", "https", "ca"];
