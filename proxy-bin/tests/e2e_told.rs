//! What origins are told of proxyd and of its clients, and what a request shows
//! that has come back.

mod support;

use support::{Answer, Conn, LogLine, Origin, Proxyd};

const FIELDS: &str = "Forwarded: for=192.0.2.60\r\nX-Forwarded-For: 192.0.2.60\r\n\
                      X-Real-IP: 192.0.2.60\r\n";

/// The head that a mirror saw of a request with these fields, and the answer's.
fn seen(proxy: &Proxyd, origin: &Origin, fields: &str) -> (String, String) {
    let conn = Conn::dial_from("127.0.0.5", proxy.address("http"));
    let url = origin.url("/");
    conn.send(format!("GET {url} HTTP/1.1\r\nHost: x\r\n{fields}\r\n"));
    let answer = Answer::read(&conn);
    assert_eq!(answer.status, 200, "{}", answer.head);
    (String::from_utf8(answer.body).expect("text"), answer.head)
}

#[test]
fn p38_the_client_is_told_of_as_the_setting_says() {
    let lines = |head: &str| -> Vec<String> {
        let fields = head.lines().skip(2).filter(|line| !line.is_empty());
        fields.map(str::to_owned).collect()
    };
    let sent = lines(&format!("\n\n{FIELDS}"));
    let longer = [&sent[..], &["Forwarded: for=127.0.0.5".to_owned()]].concat();
    let mut listed = sent.clone();
    listed[1] += ", 127.0.0.5";
    for (setting, passed, added) in [
        ("", &sent[..], None),
        ("http.forwarded = \"keep\"", &sent, None),
        ("http.forwarded = \"remove\"", &[], None),
        (
            "http.forwarded = \"append\"",
            &longer,
            Some("Forwarded: for=127.0.0.5"),
        ),
        (
            "http.forwarded = \"append-for\"",
            &listed,
            Some("X-Forwarded-For: 127.0.0.5"),
        ),
    ] {
        let origin = Origin::mirror();
        let rule = "[[rule]]\naction = \"allow\"\nnetworks = \"127.0.0.1\"\n";
        let proxy = Proxyd::with_config(origin.address, &format!("{setting}\n{rule}"));
        let (head, _) = seen(&proxy, &origin, FIELDS);
        assert_eq!(lines(&head), passed, "{setting}: {head}");
        // Nothing of it where there was nothing, but for what is added.
        let (head, _) = seen(&proxy, &origin, "");
        assert_eq!(lines(&head), Vec::from_iter(added), "{setting}: {head}");
        drop(origin);
        proxy.finish();
    }
}

#[test]
fn via_is_shown_to_both_sides_where_it_is_asked_for() {
    for (setting, is_shown) in [("", false), ("http.via = true\n", true)] {
        let origin = Origin::mirror();
        let proxy = Proxyd::with_config(origin.address, setting);
        let (request, answer) = seen(&proxy, &origin, "Via: 1.0 before\r\n");
        let via = |head: &str| {
            let lines = head.lines().filter(|line| line.starts_with("Via: "));
            lines.map(str::to_owned).collect::<Vec<_>>().join("|")
        };
        assert!(via(&request).contains("1.0 before"), "{request}");
        for head in [request, answer] {
            let shown = via(&head).contains("1.1 proxyd-");
            assert_eq!(shown, is_shown, "{head}");
        }
        drop(origin);
        proxy.finish();
    }
}

#[test]
fn p30_a_request_that_comes_back_is_known_by_its_via() {
    let origin = Origin::mirror();
    let toml = "http.via = true\nlog.access = \"stdout\"\nlog.format = \"json\"\n";
    let proxy = Proxyd::with_config(origin.address, toml);
    let (request, _) = seen(&proxy, &origin, "");
    let mut lines = request.lines();
    let via = lines.find(|line| line.starts_with("Via: "));
    let via = via.expect("the name of this process");
    let conn = Conn::dial(proxy.address("http"));
    let url = origin.url("/");
    for fields in [
        format!("{via}\r\n"),
        format!("{via}, 1.1 other\r\n"),
        format!("Via: 1.0 other\r\n{via}\r\n"),
    ] {
        conn.send(format!("GET {url} HTTP/1.1\r\nHost: x\r\n{fields}\r\n"));
        let answer = Answer::read(&conn);
        let status = answer.field("proxy-status");
        assert_eq!(answer.status, 508, "{fields}");
        assert_eq!(status, Some("proxyd; error=proxy_loop_detected"));
    }
    drop((conn, origin));
    let lines = LogLine::all(&proxy.finish().stdout);
    let loops = lines.iter().filter(|line| line.text("error") == "loop");
    assert_eq!(loops.count(), 3);
}
