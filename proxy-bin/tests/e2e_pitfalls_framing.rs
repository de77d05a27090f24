//! Where messages begin and end, from both sides of the real binary (pitfalls
//! P01 to P20).

mod support;

use std::time::Duration;

use support::{Answer, Conn, Ended, Stage};

/// Each request is refused with this status and the connection closed, and its
/// origin sees nothing of it.
fn requests_refused(table: &[(u16, &str)]) {
    let stage = Stage::new();
    for (status, fields) in table {
        let near = stage.client();
        stage.send(
            &near,
            &format!("POST http://{{h}}/ HTTP/1.1\r\nHost: {{h}}\r\n{fields}"),
        );
        // What follows is never another request.
        near.send_anyway("GET http://127.0.0.1:1/smuggled HTTP/1.1\r\nHost: 127.0.0.1:1\r\n\r\n");
        stage.refused(&near, *status);
    }
    stage.finish_with("bad-request");
}

/// Each answer becomes a 502, and its connection is used no more.
fn answers_refused(table: &[&str]) {
    let stage = Stage::new();
    for answer in table {
        let (near, far, _) = stage.forward("GET http://{h}/ HTTP/1.1\r\nHost: {h}\r\n\r\n");
        far.send(answer);
        let told = Answer::read(&near);
        assert_eq!(told.status, 502, "{answer:?}: {}", told.head);
        let status = told.field("proxy-status").unwrap_or_default();
        assert!(
            status.contains("error=http_protocol_error"),
            "{answer:?}: {status}"
        );
        far.rest();
        // The client may go on, over another connection.
        stage.send(&near, "GET http://{h}/next HTTP/1.1\r\nHost: {h}\r\n\r\n");
        let far = stage.far();
        stage.head(&far);
        far.send("HTTP/1.1 204 \r\nConnection: close\r\n\r\n");
        assert_eq!(Answer::read_head(&near).status, 204, "{answer:?}");
    }
    let (bad, good): (Vec<_>, Vec<_>) = stage
        .finish()
        .into_iter()
        .partition(|line| line.text("status") == "502");
    assert_eq!((bad.len(), good.len()), (table.len(), table.len()));
    for line in bad {
        assert_eq!(line.text("end"), "bad-response", "{line:?}");
    }
}

#[test]
fn p01_length_and_coding_together_are_refused() {
    requests_refused(&[
        (
            400,
            "Content-Length: 3\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
        ),
        (
            400,
            "Transfer-Encoding: chunked\r\nContent-Length: 0\r\n\r\n0\r\n\r\n",
        ),
        (
            400,
            "content-length: 5\r\nX: y\r\ntransfer-encoding: chunked\r\n\r\n0\r\n\r\n",
        ),
        (
            400,
            "Content-Length: 5\r\nTransfer-Encoding: identity\r\n\r\n0\r\n\r\n",
        ),
    ]);
    answers_refused(&[
        "HTTP/1.1 200 OK\r\nContent-Length: 3\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
        "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\nContent-Length: 5\r\n\r\n0\r\n\r\n",
    ]);
}

#[test]
fn p02_lengths_that_differ_are_refused_and_equal_ones_never_forwarded_twice() {
    requests_refused(&[
        (400, "Content-Length: 3\r\nContent-Length: 4\r\n\r\nabcd"),
        (400, "Content-Length: 3, 4\r\n\r\nabcd"),
        (400, "Content-Length: 3\r\nContent-Length: 3\r\n\r\nabc"),
        (400, "Content-Length: 3, 3\r\n\r\nabc"),
        (400, "Content-Length: 3\r\nContent-Length:\r\n\r\nabc"),
    ]);
    answers_refused(&[
        "HTTP/1.1 200 OK\r\nContent-Length: 3\r\nContent-Length: 4\r\n\r\nabcd",
        "HTTP/1.1 200 OK\r\nContent-Length: 3,4\r\n\r\nabcd",
        "HTTP/1.1 200 OK\r\nContent-Length: 3\r\nContent-Length: 3\r\n\r\nabc",
    ]);
}

#[test]
fn p03_a_blank_before_the_colon_is_refused_or_removed() {
    requests_refused(&[
        (400, "Content-Length : 3\r\n\r\nabc"),
        (400, "Transfer-Encoding\t: chunked\r\n\r\n0\r\n\r\n"),
        (400, "X : y\r\n\r\n"),
    ]);
    answers_refused(&[
        "HTTP/1.1 200 OK\r\nContent Length: 3\r\n\r\nabc",
        "HTTP/1.1 200 OK\r\nContent-Length : 3\r\nContent-Length: 3\r\n\r\nabc",
        "HTTP/1.1 200 OK\r\nContent-Length: 3\r\nTransfer-Encoding : chunked\r\n\r\n0\r\n\r\n",
    ]);
    let stage = Stage::new();
    let near = stage.client();
    for (said, told) in [
        (
            "X : y\r\nContent-Length\t: 3\r\n\r\nabc",
            "X: y\r\nContent-Length: 3\r\n\r\nabc",
        ),
        (
            "Transfer-Encoding \t: chunked\r\nY\t:z\r\n\r\n1\r\na\r\n0\r\n\r\n",
            "Transfer-Encoding: chunked\r\nY:z\r\n\r\n1\r\na\r\n0\r\n\r\n",
        ),
        (
            "Keep-Alive : x\r\nConnection : close, z\r\nZ : z\r\nContent-Length: 0\r\n\r\n",
            "Content-Length: 0\r\n\r\n",
        ),
    ] {
        stage.send(&near, "GET http://{h}/ HTTP/1.1\r\nHost: {h}\r\n\r\n");
        let far = stage.far();
        stage.head(&far);
        far.send(format!("HTTP/1.1 200 OK\r\n{said}"));
        near.expect(format!("HTTP/1.1 200 OK\r\n{told}"));
    }
    drop(near);
    stage.finish();
}

#[test]
fn p04_codings_are_a_list() {
    requests_refused(&[
        (400, "Transfer-Encoding: chunked,\r\n\r\n0\r\n\r\n"),
        (400, "Transfer-Encoding: ,chunked\r\n\r\n0\r\n\r\n"),
        (400, "Transfer-Encoding: chunked, gzip\r\n\r\n0\r\n\r\n"),
        (
            400,
            "Transfer-Encoding: chunked\r\nTransfer-Encoding: gzip\r\n\r\n0\r\n\r\n",
        ),
        (400, "Transfer-Encoding: chunked, chunked\r\n\r\n0\r\n\r\n"),
        (400, "Transfer-Encoding:\r\n\r\n0\r\n\r\n"),
        (501, "Transfer-Encoding: gzip, chunked\r\n\r\n0\r\n\r\n"),
        (
            501,
            "Transfer-Encoding: gzip\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
        ),
        (501, "Transfer-Encoding: identity\r\n\r\n0\r\n\r\n"),
        (501, "Transfer-Encoding: xchunked\r\n\r\n0\r\n\r\n"),
    ]);
    answers_refused(&[
        "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked,\r\n\r\n0\r\n\r\n",
        "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked, gzip\r\n\r\n0\r\n\r\n",
        "HTTP/1.1 200 OK\r\nTransfer-Encoding: unheard-of\r\n\r\n0\r\n\r\n",
    ]);
    // Spelt otherwise it is the same coding.
    let stage = Stage::new();
    let request = "POST http://{h}/ HTTP/1.1\r\nHost: {h}\r\ntransfer-encoding: \t ChUnKeD\t\r\n\
         \r\n3\r\nabc\r\n0\r\n\r\n";
    let (near, far, head) = stage.forward(request);
    let framing = head.to_ascii_lowercase().replace(['\t', ' '], "");
    assert!(
        framing.ends_with("\r\ntransfer-encoding:chunked\r\n\r\n"),
        "{head}"
    );
    far.expect("3\r\nabc\r\n0\r\n\r\n");
    far.send("HTTP/1.1 200 OK\r\nTRANSFER-ENCODING:CHUNKED\r\n\r\n0\r\n\r\n");
    let framing = stage.head(&near).to_ascii_lowercase().replace(' ', "");
    assert!(
        framing.ends_with("\r\ntransfer-encoding:chunked\r\n\r\n"),
        "{framing}"
    );
    near.expect("0\r\n\r\n");
    stage.works(&near, &far);
    drop((near, far));
    stage.finish_with("completed");
}

const LOOSE: [&str; 14] = [
    "\r\n",
    " 3\r\nabc\r\n0\r\n\r\n",
    "3 \r\nabc\r\n0\r\n\r\n",
    "+3\r\nabc\r\n0\r\n\r\n",
    "-3\r\nabc\r\n0\r\n\r\n",
    "0x3\r\nabc\r\n0\r\n\r\n",
    "3_0\r\nabc\r\n0\r\n\r\n",
    "3\nabc\r\n0\r\n\r\n",
    "3\r\nabcd\r\n0\r\n\r\n",
    "3\r\nabc\n0\r\n\r\n",
    "3;a\nb\r\nabc\r\n0\r\n\r\n",
    "fffffffffffffffff\r\nabc\r\n0\r\n\r\n",
    "10000000000000003\r\nabc\r\n0\r\n\r\n",
    "0\r\nX : y\r\n\r\n",
];

#[test]
fn p05_loose_chunks_end_the_connection() {
    let stage = Stage::new();
    let head = "POST http://{h}/ HTTP/1.1\r\nHost: {h}\r\nTransfer-Encoding: chunked\r\n\r\n";
    for loose in LOOSE {
        // At once: nothing of it leaves.
        let near = stage.client();
        stage.send(&near, &format!("{head}{loose}"));
        stage.refused(&near, 400);
    }
    stage.finish_with("bad-request");
    let stage = Stage::new();
    for loose in LOOSE {
        // Behind a good chunk: that is all that leaves, and no end of a body.
        let (near, far, _) = stage.forward(&format!("{head}2\r\nok\r\n"));
        far.expect("2\r\nok\r\n");
        near.send(loose);
        assert_eq!(Answer::read(&near).status, 400, "{loose:?}");
        assert_eq!(near.rest().0, b"");
        assert_eq!(far.rest().0.escape_ascii().to_string(), "", "{loose:?}");
    }
    stage.finish_with("bad-request");
}

#[test]
fn p05_loose_chunks_of_an_answer_are_cut() {
    let stage = Stage::new();
    let head = "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n";
    for loose in LOOSE {
        let (near, far, _) = stage.forward("GET http://{h}/ HTTP/1.1\r\nHost: {h}\r\n\r\n");
        far.send(format!("{head}{loose}"));
        assert_eq!(Answer::read(&near).status, 502, "{loose:?}");
        far.rest();
        let (near, far, _) = stage.forward("GET http://{h}/ HTTP/1.1\r\nHost: {h}\r\n\r\n");
        far.send(format!("{head}2\r\nok\r\n"));
        near.expect(format!("{head}2\r\nok\r\n"));
        far.send(loose);
        let (more, _) = near.rest();
        assert_eq!(more.escape_ascii().to_string(), "", "{loose:?}");
        far.rest();
    }
    stage.finish_with("bad-response");
}

#[test]
fn p06_codings_in_http10_are_refused() {
    let stage = Stage::new();
    let near = stage.client();
    stage.send(
        &near,
        "POST http://{h}/ HTTP/1.0\r\nHost: {h}\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
    );
    stage.refused(&near, 400);
    stage.finish_with("bad-request");
    answers_refused(&["HTTP/1.0 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n"]);
}

#[test]
fn p09_a_bad_line_of_the_origin_is_a_clean_502() {
    answers_refused(&[
        "HTTP/1.1 200 OK\r\nno colon here\r\n\r\n",
        "HTTP/1.1 200 OK\r\nX: a\r\n folded\r\n\r\n",
        "HTTP/1.1 200 OK\r\nX: a\0b\r\n\r\n",
        "HTTP/1.1 200 OK\r\nX: a\rb\r\n\r\n",
        "HTTP/1.1 200 OK\nX: a\n\n",
        "HTTP/1.1 200 OK\r\n: nameless\r\n\r\n",
        "HTTP/1.1 2000 OK\r\n\r\n",
        "HTTP/9.9 200 OK\r\n\r\n",
        "ICY 200 OK\r\n\r\n",
        "220 mail.example ESMTP\r\n",
    ]);
}

#[test]
fn p10_the_target_decides_not_the_host() {
    let stage = Stage::new();
    for host in [
        "Host: 10.0.0.1:1",
        "Host: elsewhere.example",
        "Host:",
        "HOST: {h}",
    ] {
        let request = format!("GET http://{{h}}/x HTTP/1.1\r\nA: b\r\n{host}\r\n\r\n");
        let (near, far, head) = stage.forward(&request);
        let same = host == "HOST: {h}";
        let own = if same { host } else { "Host: {h}" };
        assert_eq!(head, format!("GET /x HTTP/1.1\r\nA: b\r\n{own}\r\n\r\n"));
        far.send("HTTP/1.1 204 \r\n\r\n");
        assert_eq!(Answer::read_head(&near).status, 204);
        drop((near, far));
    }
    // HTTP/1.0 needs none; the origin gets one.
    let (near, far, head) = stage.forward("GET http://{h}/x HTTP/1.0\r\nA: b\r\n\r\n");
    assert_eq!(head, "GET /x HTTP/1.1\r\nHost: {h}\r\nA: b\r\n\r\n");
    drop((near, far));
    let host = stage.host().to_string();
    for line in stage.finish() {
        assert_eq!(line.text("target"), format!("http://{host}/x"));
    }
}

#[test]
fn p11_the_origin_gets_the_origin_form() {
    let stage = Stage::new();
    let near = stage.client();
    let mut far: Option<Conn> = None;
    for (path, own) in [
        ("", "/"),
        ("/", "/"),
        ("?q=/a?b", "/?q=/a?b"),
        ("/a%2Fb/../c;d=e?f&g", "/a%2Fb/../c;d=e?f&g"),
        ("//double//", "//double//"),
        ("/http://other.example/", "/http://other.example/"),
        ("/%00%0d%0a", "/%00%0d%0a"),
    ] {
        stage.send(
            &near,
            &format!("GET http://{{h}}{path} HTTP/1.1\r\nHost: {{h}}\r\n\r\n"),
        );
        let far = far.get_or_insert_with(|| stage.far());
        assert_eq!(
            stage.head(far),
            format!("GET {own} HTTP/1.1\r\nHost: {{h}}\r\n\r\n")
        );
        far.send("HTTP/1.1 204 \r\n\r\n");
        near.expect("HTTP/1.1 204 \r\n\r\n");
    }
    // The scheme is no matter of case.
    stage.send(&near, "GET HTTP://{h}/ HTTP/1.1\r\nHost: {h}\r\n\r\n");
    let far = far.expect("a connection");
    assert_eq!(stage.head(&far), "GET / HTTP/1.1\r\nHost: {h}\r\n\r\n");
    far.send("HTTP/1.1 204 \r\n\r\n");
    near.expect("HTTP/1.1 204 \r\n\r\n");
    drop((near, far));
    stage.finish_with("completed");
}

#[test]
fn p12_p13_answers_without_a_body_are_not_waited_for() {
    let stage = Stage::new();
    let (near, far, _) = stage.forward("HEAD http://{h}/ HTTP/1.1\r\nHost: {h}\r\n\r\n");
    // (method, what the origin says, what the client gets)
    let same = |method, answer| (method, answer, answer);
    let table = [
        same(
            "HEAD",
            "HTTP/1.1 200 OK\r\nContent-Length: 5000\r\nX: y\r\n\r\n",
        ),
        same(
            "HEAD",
            "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n",
        ),
        same("HEAD", "HTTP/1.1 200 OK\r\n\r\n"),
        same(
            "HEAD",
            "HTTP/1.1 404 Not Found\r\nContent-Length: 7\r\n\r\n",
        ),
        same("GET", "HTTP/1.1 204 No Content\r\n\r\n"),
        (
            "GET",
            "HTTP/1.1 204 No Content\r\nContent-Length: 5\r\nX: y\r\n\r\n",
            "HTTP/1.1 204 No Content\r\nX: y\r\n\r\n",
        ),
        (
            "GET",
            "HTTP/1.1 204 No Content\r\nX: y\r\nTransfer-Encoding: chunked\r\n\r\n",
            "HTTP/1.1 204 No Content\r\nX: y\r\n\r\n",
        ),
        same(
            "GET",
            "HTTP/1.1 304 Not Modified\r\nContent-Length: 5000\r\nETag: \"a\"\r\n\r\n",
        ),
        same("GET", "HTTP/1.1 304 Not Modified\r\n\r\n"),
    ];
    for (index, (method, answer, due)) in table.into_iter().enumerate() {
        if index > 0 {
            stage.send(
                &near,
                &format!("{method} http://{{h}}/ HTTP/1.1\r\nHost: {{h}}\r\n\r\n"),
            );
            stage.head(&far);
        }
        far.send(answer);
        near.expect(due);
        // Neither side waits for a body: the next exchange uses both.
        stage.works(&near, &far);
    }
    drop((near, far));
    stage.finish_with("completed");
}

#[test]
fn p12_p13_a_body_that_must_not_be_is_nobodys() {
    let stage = Stage::new();
    for (method, answer) in [
        ("HEAD", "HTTP/1.1 200 OK\r\nContent-Length: 36\r\n\r\n"),
        (
            "HEAD",
            "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n24\r\n",
        ),
        ("GET", "HTTP/1.1 204 No Content\r\n\r\n"),
        (
            "GET",
            "HTTP/1.1 304 Not Modified\r\nContent-Length: 36\r\n\r\n",
        ),
    ] {
        let request = format!("{method} http://{{h}}/ HTTP/1.1\r\nHost: {{h}}\r\n\r\n");
        let (near, far, _) = stage.forward(&request);
        far.send(format!(
            "{answer}HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n"
        ));
        Answer::read_head(&near);
        // What came behind the answer is not the answer to the next request.
        far.rest();
        stage.send(&near, "GET http://{h}/next HTTP/1.1\r\nHost: {h}\r\n\r\n");
        let far = stage.far();
        stage.head(&far);
        far.send("HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\nmine");
        assert_eq!(Answer::read(&near).body, b"mine", "{method} {answer}");
        drop((near, far));
    }
    stage.finish_with("completed");
}

#[test]
fn p15_an_answer_up_to_the_end_arrives_whole_and_ends_so() {
    let stage = Stage::new();
    for head in [
        "HTTP/1.1 200 OK\r\nX: y\r\n\r\n",
        "HTTP/1.1 200 OK\r\nConnection: close\r\n\r\n",
        "HTTP/1.0 200 OK\r\nConnection: keep-alive\r\n\r\n",
        "HTTP/1.0 200 OK\r\n\r\n",
    ] {
        let (near, far, _) = stage.forward("GET http://{h}/ HTTP/1.1\r\nHost: {h}\r\n\r\n");
        far.send(head);
        let answer = Answer::read_head(&near);
        assert_eq!(answer.field("connection"), Some("close"), "{head}");
        assert!(near.is_silent_for(Duration::from_millis(50)), "{head}");
        let body = support::DOWN.first(200_000);
        for piece in body.chunks(30_000) {
            far.send(piece);
        }
        far.fin();
        let (got, how) = near.rest();
        assert!(got == body, "{} bytes", got.len());
        assert_eq!(how, Ended::Finished);
    }
    stage.finish_with("completed");
}

#[test]
fn p17_chunks_are_taken_out_for_http10() {
    let stage = Stage::new();
    for field in ["", "Connection: keep-alive\r\n"] {
        let request = format!("GET http://{{h}}/ HTTP/1.0\r\nHost: {{h}}\r\n{field}\r\n");
        let (near, far, head) = stage.forward(&request);
        assert!(head.starts_with("GET / HTTP/1.1\r\n"), "{head}");
        far.send("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\nTrailer: T\r\nX: y\r\n\r\n");
        far.send("3;a=b\r\nabc\r\n4\r\n");
        far.send("defg\r\n0\r\nT: t\r\n\r\n");
        let answer = Answer::read_head(&near);
        assert_eq!(answer.field("transfer-encoding"), None, "{}", answer.head);
        assert_eq!(answer.field("x"), Some("y"), "{}", answer.head);
        assert_ne!(
            answer.field("connection"),
            Some("keep-alive"),
            "{}",
            answer.head
        );
        assert_eq!(near.to_end(), b"abcdefg");
        drop(far);
    }
    // Not even in answer to HEAD.
    let (near, far, _) = stage.forward("HEAD http://{h}/ HTTP/1.0\r\nHost: {h}\r\n\r\n");
    far.send("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n");
    assert_eq!(Answer::read_head(&near).field("transfer-encoding"), None);
    assert_eq!(near.to_end(), b"");
    drop(far);
    stage.finish_with("completed");
}

#[test]
fn p18_http10_persists_only_when_asked() {
    let stage = Stage::new();
    let answer = "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok";
    for (field, kept) in [
        ("", false),
        ("Connection: close\r\n", false),
        ("Proxy-Connection: keep-alive\r\n", false),
        ("Connection: keep-alive, close\r\n", false),
        ("Connection: Keep-Alive\r\n", true),
    ] {
        let request = format!("GET http://{{h}}/ HTTP/1.0\r\nHost: {{h}}\r\n{field}\r\n");
        let (near, far, head) = stage.forward(&request);
        assert_eq!(head, "GET / HTTP/1.1\r\nHost: {h}\r\n\r\n", "{field}");
        far.send(answer);
        let told = Answer::read(&near);
        let said = told.field("connection").unwrap_or_default().to_owned();
        assert_eq!(said == "keep-alive", kept, "{field}: {}", told.head);
        match kept {
            true => stage.works(&near, &far),
            false => assert_eq!(near.to_end(), b"", "{field}"),
        }
        drop((near, far));
    }
    stage.finish_with("completed");
}

#[test]
fn p18_an_origin_of_http10_is_used_again_only_if_it_says_so() {
    let stage = Stage::new();
    for (field, kept) in [
        ("", false),
        ("Connection: close\r\n", false),
        ("Connection: keep-alive\r\n", true),
    ] {
        let (near, far, _) = stage.forward("GET http://{h}/ HTTP/1.1\r\nHost: {h}\r\n\r\n");
        far.send(format!(
            "HTTP/1.0 200 OK\r\nContent-Length: 2\r\n{field}\r\nok"
        ));
        // The client's connection is none of the origin's business.
        near.expect("HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok");
        match kept {
            true => stage.works(&near, &far),
            false => {
                far.rest();
                stage.send(&near, "GET http://{h}/ HTTP/1.1\r\nHost: {h}\r\n\r\n");
                let far = stage.far();
                far.until(b"\r\n\r\n");
                far.send("HTTP/1.1 204 \r\n\r\n");
                near.expect("HTTP/1.1 204 \r\n\r\n");
            }
        }
        drop((near, far));
    }
    stage.finish_with("completed");
}

#[test]
fn p19_a_client_connection_outlives_whatever_is_framed() {
    let stage = Stage::with("[[rule]]\naction = \"deny\"\nnames = [\"denied.example\"]\n");
    let closed = support::closed_port();
    let (near, far, _) = stage.forward("GET http://{h}/ HTTP/1.1\r\nHost: {h}\r\n\r\n");
    far.send("HTTP/1.1 500 Oh\r\nContent-Length: 2\r\n\r\noh");
    assert_eq!(Answer::read(&near).status, 500);
    for (request, status) in [
        (
            format!("GET http://{closed}/ HTTP/1.1\r\nHost: x\r\n\r\n"),
            502,
        ),
        (format!("CONNECT {closed} HTTP/1.1\r\nHost: x\r\n\r\n"), 502),
        (
            format!(
                "POST http://{closed}/ HTTP/1.1\r\nHost: x\r\nContent-Length: 4\r\n\r\n\
             body"
            ),
            502,
        ),
        (
            "GET http://denied.example/ HTTP/1.1\r\nHost: x\r\n\r\n".to_owned(),
            403,
        ),
        (
            "HEAD http://denied.example/ HTTP/1.1\r\nHost: x\r\n\r\n".to_owned(),
            403,
        ),
        (
            "POST http://denied.example/ HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n\
             1\r\na\r\n0\r\n\r\n"
                .to_owned(),
            403,
        ),
        (
            "CONNECT denied.example:1 HTTP/1.1\r\nHost: x\r\n\r\n".to_owned(),
            403,
        ),
    ] {
        near.send(&request);
        let head = Answer::read_head(&near);
        assert_eq!(head.status, status, "{request}");
        if !request.starts_with("HEAD") {
            near.exact(
                head.field("content-length")
                    .expect("a length")
                    .parse()
                    .expect("a length"),
            );
        }
        stage.works(&near, &far);
    }
    drop((near, far));
    stage.finish();
}

#[test]
fn p20_trailers_pass_both_ways() {
    let stage = Stage::new();
    let (near, far, head) = stage.forward(
        "POST http://{h}/ HTTP/1.1\r\nHost: {h}\r\nTE: trailers\r\nConnection: TE\r\n\
         Trailer: X-Sum\r\nTransfer-Encoding: chunked\r\n\r\n\
         3\r\nabc\r\n0\r\nX-Sum: 1\r\nx-sum: 2\r\nOther:\r\n\r\n",
    );
    assert!(head.contains("\r\nTE: trailers\r\n"), "{head}");
    assert!(head.contains("\r\nConnection: TE\r\n"), "{head}");
    assert!(head.contains("\r\nTrailer: X-Sum\r\n"), "{head}");
    far.expect("3\r\nabc\r\n0\r\nX-Sum: 1\r\nx-sum: 2\r\nOther:\r\n\r\n");
    let answer = "HTTP/1.1 200 OK\r\nTrailer: Grpc-Status\r\nTransfer-Encoding: chunked\r\n\r\n\
                  2\r\nok\r\n0\r\nGrpc-Status: 0\r\ngrpc-message:\r\n\r\n";
    far.send(answer);
    near.expect(answer);
    stage.works(&near, &far);
    // In pieces, cut at each place of the trailers.
    let tail = "0\r\nGrpc-Status: 0\r\n\r\n";
    for at in 1..tail.len() {
        stage.send(&near, "GET http://{h}/ HTTP/1.1\r\nHost: {h}\r\n\r\n");
        stage.head(&far);
        let head = "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n";
        far.send(format!("{head}{}", &tail[..at]));
        near.expect(format!("{head}{}", &tail[..at]));
        far.send(&tail[at..]);
        near.expect(&tail[at..]);
    }
    stage.works(&near, &far);
    drop((near, far));
    stage.finish_with("completed");
}
