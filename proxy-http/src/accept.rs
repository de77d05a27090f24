//! Which kind of text a client would rather read (RFC 9110 section 12.5.1).

use crate::RequestHead;
use crate::head::{list, trim};

/// Whether an answer of the proxy itself is better HTML than plain text: the
/// client names `text/html`, and likes it no less than plain text.
pub(crate) fn prefers_html(head: &RequestHead<'_, '_>) -> bool {
    let mut html = None;
    let mut plain = (0, 0);
    for range in head.get_all("accept").flat_map(list) {
        let (name, weight) = split(range);
        if name.eq_ignore_ascii_case(b"text/html") {
            html = html.max(Some(weight));
        } else if let Some(precision) = matches_plain(name) {
            // The most specific range decides.
            plain = plain.max((precision, weight));
        }
    }
    html.is_some_and(|weight| weight > 0 && weight >= plain.1)
}

/// How specific a range is that plain text belongs to.
fn matches_plain(range: &[u8]) -> Option<u8> {
    let ranges = [&b"*/*"[..], b"text/*", b"text/plain"];
    let place = ranges
        .iter()
        .position(|own| own.eq_ignore_ascii_case(range));
    place.and_then(|place| u8::try_from(place + 1).ok())
}

/// The range, and its weight in thousandths (RFC 9110 section 12.4.2); one that
/// cannot be read counts as none.
fn split(range: &[u8]) -> (&[u8], u16) {
    let mut parts = range.split(|b| *b == b';').map(|part| trim(part).1);
    let name = parts.next().unwrap_or_default();
    let weight = parts.find_map(|part| match part {
        [b'q' | b'Q', b'=', weight @ ..] => Some(thousandths(weight)),
        _ => None,
    });
    (name, weight.unwrap_or(1000))
}

fn thousandths(weight: &[u8]) -> u16 {
    let (whole, decimals) = match weight {
        [whole] => (whole, &[][..]),
        [whole, b'.', decimals @ ..] if decimals.len() <= 3 => (whole, decimals),
        _ => return 0,
    };
    let digits = [whole].into_iter().chain(decimals);
    let number = digits.chain(b"000").take(4).try_fold(0, |sum, digit| {
        digit
            .is_ascii_digit()
            .then(|| sum * 10 + u16::from(digit - b'0'))
    });
    number.unwrap_or(0).min(1000)
}

#[cfg(test)]
mod tests {
    use proxy_core::{HeadLimits, Status};

    use super::*;
    use crate::RequestParser;

    fn asks(fields: &str) -> bool {
        let head = format!("GET http://h/ HTTP/1.1\r\nHost: h\r\n{fields}\r\n");
        let mut parser = RequestParser::new(HeadLimits::default());
        match parser.parse(head.as_bytes()) {
            Ok(Status::Complete(head, _)) => prefers_html(&head),
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn only_who_names_html_gets_it() {
        for (fields, html) in [
            ("", false),
            ("Accept: */*\r\n", false),
            ("Accept: text/*\r\n", false),
            ("Accept: \r\n", false),
            ("Accept: text/html\r\n", true),
            ("Accept: TEXT/HTML;Q=0.1\r\n", true),
            ("Accept: text/html;q=0\r\n", false),
            ("Accept: text/html;q=0.000\r\n", false),
            ("Accept: text/html, */*\r\n", true),
            ("Accept: text/html;q=0.7, */*;q=0.8\r\n", false),
            (
                "Accept: text/html;q=0.7, */*;q=0.8, text/plain; q=0.7\r\n",
                true,
            ),
            ("Accept: text/html;q=0.7, text/*;q=0.1, */*;q=0.8\r\n", true),
            ("Accept: text/plain, text/html;q=0.999\r\n", false),
            (
                "Accept: application/json\r\nAccept: text/html;level=1;q=.5\r\n",
                false,
            ),
            (
                "Accept: application/json\r\nAccept: text/html;level=1;q=0.5\r\n",
                true,
            ),
            ("Accept: text/html;q=9.9\r\n", true),
            ("Accept: text/html;q=1.0000\r\n", false),
            (
                "Accept: text/html,application/xhtml+xml,application/xml;q=0.9,*/*;q=0.8\r\n",
                true,
            ),
        ] {
            assert_eq!(asks(fields), html, "{fields}");
        }
    }
}
