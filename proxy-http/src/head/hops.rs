//! The two changes that every forwarded head gets: hop-by-hop fields go, start
//! line and `Host` become those of the next hop (RFC 9110 section 7.6).

use super::edit::{HeadEdit, Line};
use super::field::{Kind, Kinds, list};
use super::options::{is_protected, names};
use super::{RequestHead, Version};
use crate::head::field::span;

/// How a request goes on to its origin.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ToOrigin {
    /// The target stays in absolute form: the next hop is an HTTP proxy.
    pub absolute: bool,
    /// The connection ends with this exchange.
    pub close: bool,
    /// `Upgrade` is passed on.
    pub upgrade: bool,
}

/// How a response goes back to its client.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ToClient {
    /// What the client is told about the connection.
    pub persist: Persist,
    /// `Upgrade` is passed on (a 101 that was asked for).
    pub upgrade: bool,
}

/// What a message says about its connection's future.
///
/// Exhaustive on purpose: there is nothing else to say.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Persist {
    /// `Connection: close`.
    Close,
    /// Nothing: an HTTP/1.1 connection persists.
    #[default]
    Default,
    /// `Connection: keep-alive`, for HTTP/1.0 clients that asked for it.
    KeepAlive,
}

#[cfg(feature = "serve")]
impl Persist {
    /// What a client of this version has to be told, if its connection closes or
    /// stays (RFC 9112 section 9.3).
    pub(crate) fn towards(version: Version, closing: bool) -> Self {
        match (closing, version) {
            (true, _) => Self::Close,
            (false, Version::Http10) => Self::KeepAlive,
            (false, Version::Http11) => Self::Default,
        }
    }
}

impl HeadEdit<'_> {
    /// Makes a request fit for its origin: origin form with path and query byte
    /// for byte, `Host` from an absolute target or that of CONNECT (in its place,
    /// or first when there was none), no hop-by-hop field, framing fields in the
    /// spelling that every recipient reads alike, HTTP/1.1.
    ///
    /// `TE` goes on only as `trailers`, `Proxy-Authorization` never (RFC 9110
    /// sections 10.1.4 and 11.7.2), an `Upgrade` to another version of HTTP
    /// neither: what follows it would be requests that nobody sees. `Max-Forwards`
    /// of OPTIONS and TRACE is one less (section 7.6.2); a request with 0 is not
    /// to be forwarded ([`RequestHead::max_forwards`]).
    pub fn to_origin(&mut self, hop: ToOrigin) {
        self.send_version_11();
        self.spell_framing();
        self.rewrite_host();
        if !hop.absolute {
            self.send_origin_form();
        }
        self.count_forwards();
        let persist = match hop.close {
            true => Persist::Close,
            false => Persist::Default,
        };
        self.strip_hop_fields(hop.upgrade, persist);
    }

    /// Makes a response fit for its client: no hop-by-hop field, HTTP/1.1, no
    /// framing in 1xx and 204 (RFC 9112 section 6.1, RFC 9110 section 8.6), and
    /// plain spelling of it elsewhere.
    pub fn to_client(&mut self, hop: ToClient) {
        self.send_version_11();
        self.spell_framing();
        if let Line::Response(line) = self.line
            && matches!(line.status, 100..200 | 204)
        {
            self.cut_kind(Kind::ContentLength);
            self.cut_kind(Kind::TransferEncoding);
        }
        self.strip_hop_fields(hop.upgrade, hop.persist);
    }

    /// Blanks around the value, capitals in `chunked` and leading zeros are lost
    /// on some recipients: a tab behind `chunked` is enough to make one see no
    /// body, and a second request in it.
    fn spell_framing(&mut self) {
        if !self.table.seen.meets(FRAMING) {
            return;
        }
        for kind in [Kind::ContentLength, Kind::TransferEncoding] {
            let Some(place) = self.table.place_of(kind) else {
                continue;
            };
            let field = self.table.fields[place];
            let name = field.name(self.bytes);
            let value = plain_framing(kind, field.value(self.bytes));
            let line = self.slice(field.name, self.table.line_start(place + 1));
            if !is_plain(&line[name.len()..], value) {
                self.cut_kind(kind);
                self.insert(place, name, value);
            }
        }
    }

    /// RFC 9112 section 3.2.2: the host of an absolute target replaces `Host`;
    /// RFC 9110 section 7.2: so does any authority.
    fn rewrite_host(&mut self) {
        let Line::Request(line) = self.line else {
            return;
        };
        let target = span(self.bytes, line.target, line.target_len);
        let Some(authority) = line.form.authority_of(target) else {
            return;
        };
        if self.table.first(Kind::Host, self.bytes) == Some(authority) {
            return;
        }
        // RFC 9110 section 7.2: first, when there was none.
        let place = self.table.place_of(Kind::Host);
        self.cut_kind(Kind::Host);
        self.insert(place.unwrap_or(0), b"Host", authority);
    }

    fn count_forwards(&mut self) {
        let Line::Request(line) = self.line else {
            return;
        };
        let (table, bytes) = (self.table, self.bytes);
        let Ok(Some(left @ 1..)) = (RequestHead { table, line, bytes }).max_forwards() else {
            return;
        };
        let cut = self.cut_where(|field, bytes| field.is(MAX_FORWARDS, bytes));
        let left = (left - 1).to_string();
        self.insert(cut.unwrap_or(0), MAX_FORWARDS, left.as_bytes());
    }

    /// One pass over the kinds found while parsing; none at all for a head
    /// without such fields.
    fn strip_hop_fields(&mut self, upgrade: bool, persist: Persist) {
        let upgrade = upgrade && self.table.passes_upgrade(self.bytes);
        let mut te = false;
        if self.table.seen.meets(HOP_BY_HOP) {
            te = self.sends_trailers_te();
            self.cut_where(|field, _| match field.kind {
                Kind::Te => !te,
                Kind::Upgrade => !upgrade,
                kind => HOP_BY_HOP.has(kind),
            });
            if self.table.names_http(self.bytes) {
                self.strip_http_upgrade(upgrade);
            }
        }
        if self.table.options.named {
            self.cut_named_by_connection();
        }
        self.say_connection(upgrade, te, persist);
    }

    /// RFC 9110 section 7.6.1: whatever field `Connection` names.
    fn cut_named_by_connection(&mut self) {
        let (table, bytes) = (self.table, self.bytes);
        for name in names(table, bytes).filter(|name| !is_protected(name)) {
            self.cut_where(|field, bytes| {
                matches!(field.kind, Kind::Authorization | Kind::Other) && field.is(name, bytes)
            });
        }
    }

    /// Whether `TE` says `trailers` and nothing else, in HTTP/1.1.
    fn sends_trailers_te(&self) -> bool {
        let mut values = self.table.of_kind(Kind::Te);
        let is_trailers = |name: &[u8]| name.eq_ignore_ascii_case(b"trailers");
        self.table.seen.has(Kind::Te)
            && self.table.options.te
            && self.table.version == Version::Http11
            && values.all(|field| list(field.value(self.bytes)).all(is_trailers))
    }

    /// Our own `Connection` field, where the first one stood.
    fn say_connection(&mut self, upgrade: bool, te: bool, persist: Persist) {
        // The old lines are cut already; one of ours is not to stand twice.
        self.drop_new(Kind::Connection);
        let value: &[u8] = match (upgrade, te, persist) {
            (true, false, _) => b"Upgrade",
            (true, true, _) => b"Upgrade, TE",
            (false, true, Persist::Close) => b"TE, close",
            (false, true, _) => b"TE",
            (false, false, Persist::Close) => b"close",
            (false, false, Persist::KeepAlive) => b"keep-alive",
            (false, false, Persist::Default) => return,
        };
        let place = self.table.place_of(Kind::Connection);
        self.insert(
            place.unwrap_or(self.table.fields.len()),
            b"Connection",
            value,
        );
    }
}

/// The plain spelling of a framing field's value that was found to be right.
fn plain_framing(kind: Kind, value: &[u8]) -> &[u8] {
    let digits = value.len().saturating_sub(1);
    let zeros = value[..digits].iter().take_while(|b| **b == b'0').count();
    match kind {
        Kind::TransferEncoding => b"chunked",
        _ => &value[zeros..],
    }
}

/// Whether what follows a name is a colon, at most one blank, and the value.
fn is_plain(rest: &[u8], value: &[u8]) -> bool {
    let text = rest.strip_prefix(b":").unwrap_or_default();
    let text = text.strip_prefix(b" ").unwrap_or(text);
    text.strip_suffix(b"\r\n") == Some(value)
}

const FRAMING: Kinds = Kinds(Kind::ContentLength.bit() | Kind::TransferEncoding.bit());

const MAX_FORWARDS: &[u8] = b"Max-Forwards";

/// Fields about one connection (RFC 9110 section 7.6.1).
pub(super) const HOP_BY_HOP: Kinds = Kinds(
    Kind::Connection.bit()
        | Kind::KeepAlive.bit()
        | Kind::ProxyAuthenticate.bit()
        | Kind::ProxyAuthorization.bit()
        | Kind::ProxyConnection.bit()
        | Kind::Te.bit()
        | Kind::Upgrade.bit(),
);
