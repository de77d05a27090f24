//! Which protocols may be switched to (RFC 9110 section 7.8): all but other
//! versions of HTTP, whose requests would pass unseen by any rule.

use super::HeaderTable;
use super::edit::HeadEdit;
use super::field::{Kind, list};

impl HeaderTable {
    /// All protocols of all `Upgrade` lines.
    fn protocols<'b>(&self, bytes: &'b [u8]) -> impl Iterator<Item = &'b [u8]> {
        self.of_kind(Kind::Upgrade)
            .flat_map(move |field| list(field.value(bytes)))
            .filter(|protocol| !protocol.is_empty())
    }

    /// Whether an upgrade is offered or chosen, and not only to HTTP.
    pub(super) fn passes_upgrade(&self, bytes: &[u8]) -> bool {
        self.upgrade(bytes).is_some() && !self.protocols(bytes).all(is_http)
    }

    /// Whether HTTP is among the protocols.
    pub(super) fn names_http(&self, bytes: &[u8]) -> bool {
        self.seen.has(Kind::Upgrade) && self.protocols(bytes).any(is_http)
    }

    /// Whether a switch was made to protocols that were all offered by the `other`
    /// head and passed on.
    #[cfg(feature = "serve")]
    pub(super) fn takes_up(&self, bytes: &[u8], other: (&Self, &[u8])) -> bool {
        let (asked, asked_bytes) = other;
        let offered = |protocol: &[u8]| {
            let mut offers = asked.protocols(asked_bytes);
            !is_http(protocol) && offers.any(|offer| offer.eq_ignore_ascii_case(protocol))
        };
        self.upgrade(bytes).is_some_and(|first| !first.is_empty())
            && self.protocols(bytes).all(offered)
    }
}

impl HeadEdit<'_> {
    /// Takes HTTP out of the protocols offered, with the settings that belong to
    /// such an offer (RFC 7540 section 3.2); without `others` it takes out all.
    pub(super) fn strip_http_upgrade(&mut self, others: bool) {
        let (table, bytes) = (self.table, self.bytes);
        self.cut_where(|field, bytes| {
            field.kind == Kind::Upgrade || field.is(b"http2-settings", bytes)
        });
        if !others {
            return;
        }
        let place = table.place_of(Kind::Upgrade).unwrap_or(0);
        self.insert_with(place, b"Upgrade", |text| {
            let start = text.len();
            for protocol in table.protocols(bytes).filter(|name| !is_http(name)) {
                if text.len() > start {
                    text.extend_from_slice(b", ");
                }
                text.extend_from_slice(protocol);
            }
        });
    }
}

/// `HTTP/2.0`, `h2c`, and what they were called in drafts.
fn is_http(protocol: &[u8]) -> bool {
    let end = protocol.iter().position(|b| matches!(b, b'/' | b'-'));
    let name = &protocol[..end.unwrap_or(protocol.len())];
    [&b"h2"[..], b"h2c", b"http"]
        .iter()
        .any(|own| own.eq_ignore_ascii_case(name))
}
