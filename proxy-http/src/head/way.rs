//! What a message says about its way: `Via` (RFC 9110 section 7.6.3),
//! `Forwarded` (RFC 7239) and its forerunners.

use std::io::Write;
use std::net::IpAddr;

use super::Version;
use super::edit::HeadEdit;
use super::field::{Field, Kind};
use crate::Forwarded;

impl HeadEdit<'_> {
    /// Adds this proxy to the path of the message, by the version it was
    /// received with.
    pub(crate) fn show_via(&mut self, name: &str) {
        let version = match self.table.version {
            Version::Http10 => "1.0 ",
            Version::Http11 => "1.1 ",
        };
        self.insert_with(self.table.fields.len(), b"Via", |text| {
            text.extend_from_slice(version.as_bytes());
            text.extend_from_slice(name.as_bytes());
        });
    }

    /// Tells the origin of the client at `address` what it is to know.
    pub(crate) fn show_client(&mut self, address: IpAddr, forwarded: Forwarded) {
        match forwarded {
            Forwarded::Keep => {}
            Forwarded::Append => self.append_forwarded(address.to_canonical()),
            Forwarded::AppendFor => self.append_forwarded_for(address.to_canonical()),
            Forwarded::Remove => {
                self.cut_where(|field, bytes| {
                    TELLING.iter().any(|name| is_named(field, name, bytes))
                });
            }
        }
    }

    /// RFC 7239 section 4: a line more is an element more of the list; section
    /// 6: an IPv6 address has brackets and, for their sake, quotes.
    ///
    /// What was there and ends inside quotes goes: it would swallow ours.
    fn append_forwarded(&mut self, address: IpAddr) {
        self.cut_where(|field, bytes| {
            is_named(field, b"Forwarded", bytes) && !is_closed(field.value(bytes))
        });
        self.insert_with(
            self.table.fields.len(),
            b"Forwarded",
            |text| match address {
                IpAddr::V4(_) => write_text(text, format_args!("for={address}")),
                IpAddr::V6(_) => write_text(text, format_args!("for=\"[{address}]\"")),
            },
        );
    }

    /// Behind the last address of the last line, since many an origin reads one
    /// line only.
    fn append_forwarded_for(&mut self, address: IpAddr) {
        let (table, bytes) = (self.table, self.bytes);
        let is_it = |field: &Field| is_named(field, FORWARDED_FOR, bytes);
        let last = table.fields.iter().enumerate().rev();
        let last = last
            .filter(|(index, field)| is_it(field) && !self.script.is_cut(*index))
            .map(|(index, field)| (index, *field))
            .next();
        let Some((index, field)) = last else {
            self.insert_with(table.fields.len(), FORWARDED_FOR, |text| {
                write_text(text, format_args!("{address}"));
            });
            return;
        };
        self.script.cut(index);
        let before = field.value(bytes);
        let comma = if before.is_empty() { "" } else { ", " };
        self.insert_with(index, field.name(bytes), |text| {
            text.extend_from_slice(before);
            write_text(text, format_args!("{comma}{address}"));
        });
    }
}

fn is_named(field: &Field, name: &[u8], bytes: &[u8]) -> bool {
    field.kind == Kind::Other && field.is(name, bytes)
}

/// Whether every quoted string ends (RFC 9110 section 5.6.4).
fn is_closed(value: &[u8]) -> bool {
    let (mut quoted, mut bytes) = (false, value.iter());
    while let Some(byte) = bytes.next() {
        match byte {
            b'"' => quoted = !quoted,
            b'\\' if quoted => drop(bytes.next()),
            _ => {}
        }
    }
    !quoted
}

fn write_text(text: &mut Vec<u8>, what: std::fmt::Arguments<'_>) {
    // Writing to memory that grows cannot fail.
    let _ = text.write_fmt(what);
}

const FORWARDED_FOR: &[u8] = b"X-Forwarded-For";

/// Fields that tell of the client or of how it reached its proxy.
const TELLING: [&[u8]; 6] = [
    b"Forwarded",
    FORWARDED_FOR,
    b"X-Forwarded-Host",
    b"X-Forwarded-Port",
    b"X-Forwarded-Proto",
    b"X-Real-IP",
];

#[cfg(test)]
mod tests {
    use bytes::BytesMut;
    use proxy_core::{HeadLimits, Status};

    use super::*;
    use crate::{EditScript, RequestParser};

    fn told(address: &str, forwarded: Forwarded) -> String {
        let head = b"GET / HTTP/1.0\r\n\r\n";
        let mut parser = RequestParser::new(HeadLimits::default());
        let Ok(Status::Complete(head, _)) = parser.parse(head) else {
            panic!("a request");
        };
        let mut script = EditScript::new();
        let mut edit = HeadEdit::request(&mut script, &head);
        edit.show_client(address.parse().expect("an address"), forwarded);
        let mut out = BytesMut::new();
        edit.encode(&mut out);
        let text = std::str::from_utf8(&out).expect("ASCII");
        let field = text.strip_prefix("GET / HTTP/1.0\r\n");
        field.unwrap_or_default().trim_end().to_owned()
    }

    #[test]
    fn p38_addresses_are_written_as_each_field_wants_them() {
        use Forwarded::{Append, AppendFor};
        for (address, forwarded, field) in [
            ("192.0.2.1", Append, "Forwarded: for=192.0.2.1"),
            ("2001:db8::1", Append, "Forwarded: for=\"[2001:db8::1]\""),
            ("::ffff:192.0.2.1", Append, "Forwarded: for=192.0.2.1"),
            ("2001:db8::1", AppendFor, "X-Forwarded-For: 2001:db8::1"),
            ("::ffff:192.0.2.1", AppendFor, "X-Forwarded-For: 192.0.2.1"),
        ] {
            assert_eq!(told(address, forwarded), field);
        }
    }
}
