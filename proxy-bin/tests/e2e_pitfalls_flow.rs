//! Both directions at once, from both sides of the real binary: interim
//! answers, retries, clients that leave or do not read, refused tunnels,
//! upgrades (pitfalls P21 to P50).

mod support;

use std::io::Write;
use std::net::SocketAddr;
use std::time::{Duration, Instant};

use socket2::{Domain, Socket, Type};
use support::{Answer, Conn, DOWN, Ended, Stage, closed_port, wait_for};

const GET: &str = "GET http://{h}/ HTTP/1.1\r\nHost: {h}\r\n\r\n";
const OK: &str = "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok";
/// Long enough to see that nothing happens.
const WHILE: Duration = Duration::from_millis(150);

#[test]
fn p21_the_leave_to_send_a_body_is_the_origins() {
    let stage = Stage::new();
    let request = "PUT http://{h}/ HTTP/1.1\r\nHost: {h}\r\nExpect: 100-continue\r\n\
                   Content-Length: 4\r\n\r\n";
    let (near, far, head) = stage.forward(request);
    assert!(head.contains("\r\nExpect: 100-continue\r\n"), "{head}");
    // The proxy gives no leave of its own.
    assert!(near.is_silent_for(WHILE));
    far.send("HTTP/1.1 100 Continue\r\nX: y\r\n\r\n");
    near.expect("HTTP/1.1 100 Continue\r\nX: y\r\n\r\n");
    assert!(far.is_silent_for(WHILE));
    near.send("body");
    far.expect("body");
    far.send(OK);
    near.expect(OK);
    stage.works(&near, &far);
    // Who does not wait is not held up.
    stage.send(&near, request);
    stage.head(&far);
    near.send("body");
    far.expect("body");
    far.send(OK);
    near.expect(OK);
    stage.works(&near, &far);
    // At once, and a leave that comes too late passes all the same.
    stage.send(&near, &format!("{request}body"));
    stage.head(&far);
    far.expect("body");
    far.send(format!("HTTP/1.1 100 Continue\r\n\r\n{OK}"));
    near.expect(format!("HTTP/1.1 100 Continue\r\n\r\n{OK}"));
    stage.works(&near, &far);
    drop((near, far));
    stage.finish_with("completed");
}

#[test]
fn p21_a_final_answer_first_means_that_no_body_is_sent() {
    let stage = Stage::new();
    for (answer, kept) in [
        (
            "HTTP/1.1 417 Expectation Failed\r\nContent-Length: 0\r\n\r\n",
            true,
        ),
        (
            "HTTP/1.1 413 Too Large\r\nContent-Length: 0\r\nConnection: close\r\n\r\n",
            false,
        ),
    ] {
        let (near, far, _) = stage.forward(
            "PUT http://{h}/ HTTP/1.1\r\nHost: {h}\r\nExpect: 100-continue\r\n\
             Transfer-Encoding: chunked\r\n\r\n",
        );
        far.send(answer);
        let told = Answer::read(&near);
        assert!(answer.contains(&told.status.to_string()), "{}", told.head);
        // The body may be on its way or not: neither connection can go on.
        assert_eq!(
            told.field("connection"),
            Some("close"),
            "{kept}: {}",
            told.head
        );
        near.send_anyway("4\r\nbody\r\n0\r\n\r\n");
        near.rest();
        assert_eq!(far.rest().0, b"", "{answer}");
    }
    stage.finish_with("completed");
}

#[test]
fn p21_http10_knows_no_leave() {
    let stage = Stage::new();
    let (near, far, _) = stage.forward(
        "PUT http://{h}/ HTTP/1.0\r\nHost: {h}\r\nExpect: 100-continue\r\nContent-Length: 4\r\n\
             \r\nbody",
    );
    far.expect("body");
    far.send(format!("HTTP/1.1 100 Continue\r\n\r\n{OK}"));
    let answer = near.to_end();
    assert!(
        answer.starts_with(b"HTTP/1.1 200 OK\r\n"),
        "{}",
        answer.escape_ascii()
    );
    drop(far);
    stage.finish_with("completed");
}

#[test]
fn an_answer_may_come_before_the_body_and_the_origin_may_read_on() {
    let stage = Stage::new();
    let head = "POST http://{h}/ HTTP/1.1\r\nHost: {h}\r\nContent-Length: 8\r\n\r\n";
    let (near, far, _) = stage.forward(&format!("{head}half"));
    far.expect("half");
    far.send("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n1\r\na\r\n");
    let answer = Answer::read_head(&near);
    assert_eq!(answer.status, 200);
    near.expect("1\r\na\r\n");
    near.send("rest");
    far.expect("rest");
    far.send("1\r\nb\r\n0\r\n\r\n");
    near.expect("1\r\nb\r\n0\r\n\r\n");
    drop((near, far));
    // It answers and closes while the client still sends.
    let (near, far, _) = stage.forward(&head.replace(": 8", ": 80000000"));
    far.send("HTTP/1.1 413 Too Large\r\nContent-Length: 5\r\nConnection: close\r\n\r\nlarge");
    let answer = Answer::read(&near);
    assert_eq!((answer.status, &answer.body[..]), (413, &b"large"[..]));
    drop(far);
    near.send_anyway(vec![b'x'; 1 << 20]);
    drop(near);
    stage.finish();
}

#[test]
fn p22_interim_answers_pass_to_http11_only() {
    let stage = Stage::new();
    let interim = "HTTP/1.1 103 Early Hints\r\nLink: </a>; rel=preload\r\nlink: </b>\r\n\r\n";
    let more = "HTTP/1.1 102 Processing\r\n\r\nHTTP/1.1 199 Odd\r\nX: y\r\n\r\n";
    let (near, far, _) = stage.forward(GET);
    far.send(interim);
    near.expect(interim);
    // Interim is not final, however long the rest takes.
    assert!(near.is_silent_for(WHILE));
    far.send(format!("{interim}{more}{OK}"));
    near.expect(format!("{interim}{more}{OK}"));
    stage.works(&near, &far);
    drop((near, far));
    stage.proxy.settle();
    let (near, far, _) = stage.forward(&GET.replace("1.1", "1.0"));
    far.send(format!("{interim}{more}"));
    assert!(near.is_silent_for(WHILE));
    far.send(OK);
    let answer = near.to_end();
    assert!(
        answer.starts_with(b"HTTP/1.1 200 OK\r\n"),
        "{}",
        answer.escape_ascii()
    );
    drop(far);
    // The fields of framing mean nothing in one.
    let (near, far, _) = stage.forward(GET);
    far.send(format!(
        "HTTP/1.1 103 Early Hints\r\nContent-Length: 5\r\n\r\n{OK}"
    ));
    near.expect(format!("HTTP/1.1 103 Early Hints\r\n\r\n{OK}"));
    drop((near, far));
    stage.finish_with("completed");
}

#[test]
fn p22_interim_answers_without_end_become_a_502() {
    let stage = Stage::new();
    let (near, far, _) = stage.forward(GET);
    let interim = "HTTP/1.1 103 Early Hints\r\n\r\n";
    far.send(interim.repeat(100));
    let mut answer = Answer::read_head(&near);
    let mut count = 0;
    while answer.status == 103 {
        answer = Answer::read_head(&near);
        count += 1;
    }
    assert_eq!(answer.status, 502, "behind {count}");
    assert!(count < 100);
    far.rest();
    drop((near, far));
    stage.finish_with("bad-response");
}

#[test]
fn p23_what_connection_names_stays_on_its_hop() {
    let stage = Stage::new();
    let near = stage.client();
    let mut far = None;
    // (fields, those that go on)
    for (fields, left) in [
        (
            "Connection: X-A, x-b\r\nX-A: 1\r\nx-a: 2\r\nX-B: 3\r\nX-C: 4",
            "X-C: 4\r\n",
        ),
        (
            "X-A: 1\r\nConnection: , ,x-a,,\r\nConnection: X-b\r\nX-B: 2",
            "",
        ),
        ("Connection: connection\r\nX-C: 1", "X-C: 1\r\n"),
        (
            "Connection: Connection, connection, keep-alive, X-A\r\nKeep-Alive: 5\r\nX-A: 1",
            "",
        ),
        (
            "Keep-Alive: timeout=5\r\nProxy-Connection: keep-alive\r\nTE: gzip\r\nUpgrade: h2c",
            "",
        ),
        ("Proxy-Connection: X-C\r\nX-C: 1", "X-C: 1\r\n"),
        (
            "Connection: cookie, authorization\r\nCookie: a\r\nAuthorization: b\r\nX: c",
            "X: c\r\n",
        ),
        // Nobody takes the framing or the host away by naming it.
        (
            "Connection: host, content-length, transfer-encoding\r\nX: c",
            "X: c\r\n",
        ),
    ] {
        stage.send(
            &near,
            &format!(
                "POST http://{{h}}/ HTTP/1.1\r\nHost: {{h}}\r\n\
             Content-Length: 1\r\n{fields}\r\n\r\nx"
            ),
        );
        let far = far.get_or_insert_with(|| stage.far());
        let head = "POST / HTTP/1.1\r\nHost: {h}\r\nContent-Length: 1\r\n";
        assert_eq!(stage.head(far), format!("{head}{left}\r\n"), "{fields}");
        far.expect("x");
        let close = fields.contains("close");
        far.send(format!(
            "HTTP/1.1 200 OK\r\nContent-Length: 1\r\n{fields}\r\n\r\nx"
        ));
        assert!(!close);
        near.expect(format!(
            "HTTP/1.1 200 OK\r\nContent-Length: 1\r\n{left}\r\nx"
        ));
    }
    let far = far.expect("a connection");
    stage.works(&near, &far);
    drop((near, far));
    stage.finish_with("completed");
}

#[test]
fn p31_what_may_be_repeated_is_repeated_once() {
    for method in ["GET", "HEAD", "PUT", "DELETE"] {
        let stage = Stage::new();
        let request = format!(
            "{method} http://{{h}}/ HTTP/1.1\r\nHost: {{h}}\r\nContent-Length: 4\r\n\r\nbody"
        );
        let answer = match method {
            "HEAD" => "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n",
            _ => OK,
        };
        let (near, far, first) = stage.forward(&request);
        far.expect("body");
        far.send(answer);
        near.expect(answer);
        // The origin closes at the very moment at which the next one comes.
        stage.send(&near, &request);
        assert_eq!(stage.head(&far), first);
        far.expect("body");
        drop(far);
        let far = stage.far();
        assert_eq!(stage.head(&far), first, "{method}");
        far.expect("body");
        far.send(answer);
        near.expect(answer);
        // By a reset, and the repeated one fails too: that is the end of it.
        stage.send(&near, &request);
        stage.head(&far);
        far.reset();
        let far = stage.far();
        stage.head(&far);
        far.expect("body");
        drop(far);
        assert_eq!(Answer::read_head(&near).status, 502, "{method}");
        drop(near);
        let ends: Vec<_> = stage.finish().iter().map(|line| line.text("end")).collect();
        assert_eq!(ends, ["completed", "completed", "origin-reset"], "{method}");
    }
}

#[test]
fn p31_what_must_not_be_repeated_is_not() {
    let body = "Content-Length: 4\r\n\r\nbody";
    for (method, rest) in [("POST", body), ("PATCH", body), ("UNHEARD", "\r\n")] {
        let stage = Stage::new();
        let (near, far, _) = stage.forward(GET);
        far.send(OK);
        near.expect(OK);
        stage.send(
            &near,
            &format!("{method} http://{{h}}/ HTTP/1.1\r\nHost: {{h}}\r\n{rest}"),
        );
        let head = stage.head(&far);
        assert!(head.starts_with(method), "{head}");
        far.exact(rest.len().saturating_sub(21));
        drop(far);
        let answer = Answer::read(&near);
        assert_eq!(answer.status, 502, "{method}");
        let said = answer.field("proxy-status").unwrap_or_default();
        assert!(said.contains("error=connection_terminated"), "{said}");
        drop(near);
        // Finds any connection that nobody asked for.
        stage.finish();
    }
    // Nor a GET of which an answer has begun,
    let stage = Stage::new();
    let (near, far, _) = stage.forward(GET);
    far.send(OK);
    near.expect(OK);
    stage.send(&near, GET);
    stage.head(&far);
    far.send("HTTP/1.1 2");
    drop(far);
    assert_eq!(Answer::read(&near).status, 502);
    drop(near);
    stage.finish();
    // nor one whose body cannot be had again,
    let stage = Stage::new();
    let (near, far, _) = stage.forward(GET);
    far.send(OK);
    near.expect(OK);
    stage.send(
        &near,
        "PUT http://{h}/ HTTP/1.1\r\nHost: {h}\r\nContent-Length: 8\r\n\r\n",
    );
    stage.head(&far);
    near.send("half");
    far.expect("half");
    drop(far);
    assert_eq!(Answer::read(&near).status, 502);
    drop(near);
    stage.finish();
    // nor one on a connection that is new.
    let stage = Stage::new();
    let (near, far, _) = stage.forward(GET);
    drop(far);
    assert_eq!(Answer::read(&near).status, 502);
    drop(near);
    stage.finish();
}

#[test]
fn p31_the_repeated_request_goes_over_a_new_connection() {
    let stage = Stage::new();
    // Three connections of clients that left wait in the pool.
    let pairs: Vec<_> = (0..3).map(|_| stage.forward(GET)).collect();
    let mut pool = Vec::new();
    for (near, far, _) in pairs {
        far.send(OK);
        near.expect(OK);
        pool.push(far);
    }
    let near = stage.client();
    stage.send(&near, GET);
    let at = position(&pool);
    stage.head(&pool[at]);
    drop(pool.swap_remove(at));
    let far = stage.far();
    stage.head(&far);
    far.send(OK);
    near.expect(OK);
    // The others have seen nothing of it.
    for other in pool {
        assert!(other.is_silent_for(WHILE) || other.rest().0.is_empty());
    }
    stage.works(&near, &far);
    drop((near, far));
    stage.finish_with("completed");
}

#[test]
fn p31_a_clients_own_connection_is_followed_by_a_new_one_not_by_the_pools() {
    let stage = Stage::new();
    let (near, far, _) = stage.forward(GET);
    far.send(OK);
    near.expect(OK);
    // From its second request on a client keeps the connection for a while.
    stage.works(&near, &far);
    let (other, pooled, _) = stage.forward(GET);
    pooled.send(OK);
    other.expect(OK);
    other.fin();
    assert_eq!(other.to_end(), b"");
    stage.send(&near, GET);
    stage.head(&far);
    drop(far);
    let far = stage.far();
    stage.head(&far);
    assert!(
        pooled.is_silent_for(WHILE),
        "a request may be sent twice only"
    );
    far.send(OK);
    near.expect(OK);
    drop((near, far, pooled));
    stage.finish_with("completed");
}

/// The first of these connections over which bytes come.
fn position(conns: &[Conn]) -> usize {
    let start = Instant::now();
    loop {
        for (index, conn) in conns.iter().enumerate() {
            if !conn.is_silent_for(Duration::from_millis(1)) {
                return index;
            }
        }
        assert!(start.elapsed() < support::DEADLINE, "nothing comes");
    }
}

#[test]
fn p31_a_post_finds_out_that_its_connection_is_closed() {
    let stage = Stage::new();
    let near = stage.client();
    for _ in 0..20 {
        stage.send(
            &near,
            "POST http://{h}/ HTTP/1.1\r\nHost: {h}\r\nContent-Length: 4\r\n\r\nbody",
        );
        let far = stage.far();
        stage.head(&far);
        far.expect("body");
        far.send(OK);
        near.expect(OK);
        let port = far.peer().port();
        drop(far);
        // Not before its end has arrived.
        wait_for("the end of the connection", || !established(port));
    }
    drop(near);
    stage.finish_with("completed");
}

/// Whether the socket of this port on loopback is in the state ESTABLISHED.
fn established(port: u16) -> bool {
    let table = std::fs::read_to_string("/proc/net/tcp").expect("readable");
    let local = format!("0100007F:{port:04X}");
    let is_it = |line: &str| {
        let mut words = line.split_whitespace().skip(1);
        words.next() == Some(&local) && words.nth(1) == Some("01")
    };
    table.lines().any(is_it)
}

#[test]
fn p32_a_pool_shares_only_what_is_the_same() {
    // Two names for one address are two origins.
    let stage = Stage::new();
    let (near, far, _) = stage.forward(GET);
    far.send(OK);
    near.expect(OK);
    let name = format!("localhost:{}", stage.host().port());
    near.send(format!(
        "GET http://{name}/ HTTP/1.1\r\nHost: {name}\r\n\r\n"
    ));
    let other = stage.far();
    other.until(b"\r\n\r\n");
    other.send(OK);
    near.expect(OK);
    // The first is still good for another client.
    let second = stage.client();
    stage.works(&second, &far);
    drop((near, second, far, other));
    stage.finish_with("completed");
}

#[test]
fn p33_the_reset_of_a_client_cancels_at_each_stage() {
    let stage = Stage::new();
    let reset_at = |request: &str, answer: &str, body: &[u8]| {
        let (near, far, _) = stage.forward(request);
        far.send(answer);
        near.expect(answer);
        far.send(body);
        let start = Instant::now();
        near.reset();
        drop(far.rest());
        assert!(
            start.elapsed() < Duration::from_secs(5),
            "{request} {answer}"
        );
        drop(far);
        stage.proxy.settle();
    };
    let upload = "POST http://{h}/ HTTP/1.1\r\nHost: {h}\r\nContent-Length: 9\r\n\r\nhalf";
    let answer = "HTTP/1.1 200 OK\r\nContent-Length: 100000000\r\n\r\n";
    reset_at(GET, "", b"");
    reset_at(GET, "HTTP/1.1 103 Hints\r\n\r\n", b"");
    reset_at(upload, "", b"");
    reset_at(GET, answer, b"");
    reset_at(GET, answer, DOWN.first(200_000));
    reset_at(
        GET,
        "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n",
        b"3\r\nabc\r\n",
    );
    // Also when it said before that no further request follows.
    let (near, far, _) = stage.forward(GET);
    near.fin();
    assert!(far.is_silent_for(WHILE), "taken for gone");
    near.reset();
    drop(far.rest());
    drop(far);
    stage.finish_with("client-reset");
}

#[test]
fn p33_the_reset_of_a_client_cancels_the_dial() {
    let (full, _waiting) = silent_port();
    let stage = Stage::with("timeouts.connect = \"never\"\ntimeouts.first_byte = \"never\"");
    for request in ["GET http://{t}/", "CONNECT {t}"] {
        let near = stage.client();
        near.send(
            format!("{request} HTTP/1.1\r\nHost: x\r\n\r\n").replace("{t}", &full.to_string()),
        );
        wait_for("the dial", || {
            stage.proxy.process().descriptors().sockets > stage.proxy.base().sockets + 1
        });
        assert!(near.is_silent_for(WHILE));
        near.reset();
        stage.proxy.settle();
        // P50: a FIN is no reset.
        let near = stage.client();
        near.send(
            format!("{request} HTTP/1.1\r\nHost: x\r\n\r\n").replace("{t}", &full.to_string()),
        );
        near.fin();
        assert!(near.is_silent_for(WHILE), "{request}: taken for gone");
        near.reset();
        stage.proxy.settle();
    }
    stage.finish_with("client-reset");
}

/// A port that accepts no further connection and refuses none.
fn silent_port() -> (SocketAddr, Vec<Socket>) {
    let listener = Socket::new(Domain::IPV4, Type::STREAM, None).expect("a socket");
    let any: SocketAddr = ([127, 0, 0, 1], 0).into();
    listener.bind(&any.into()).expect("bound");
    listener.listen(0).expect("listening");
    let address = listener.local_addr().expect("bound");
    let mut held = vec![listener];
    loop {
        let socket = Socket::new(Domain::IPV4, Type::STREAM, None).expect("a socket");
        let connected = socket.connect_timeout(&address, Duration::from_millis(200));
        held.push(socket);
        if connected.is_err() {
            let address = address.as_socket().expect("an address");
            return (address, held);
        }
        assert!(held.len() < 100, "a queue without end");
    }
}

#[test]
fn p34_a_client_that_does_not_read_costs_no_memory() {
    // More than the kernel takes into its buffers on the way: it may give a
    // socket as much as 32 MiB to receive and 4 MiB to send, if so configured.
    const LENGTH: usize = 256 << 20;
    let stage = Stage::with("timeouts.progress = \"never\"");
    let heads = [
        format!("HTTP/1.1 200 OK\r\nContent-Length: {LENGTH}\r\n\r\n"),
        "HTTP/1.1 200 OK\r\n\r\n".to_owned(),
        // One chunk, then chunks of 1000 bytes.
        format!("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n{LENGTH:x}\r\n"),
        "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n".to_owned(),
    ];
    let chunk = [&b"3e8\r\n"[..], DOWN.first(1000), b"\r\n"]
        .concat()
        .repeat(64);
    // So that what is there for every first one does not count.
    let (near, far, _) = stage.forward(GET);
    far.send(OK);
    near.expect(OK);
    let before = stage.proxy.process().resident();
    let mut held = vec![(near, far)];
    for index in 0..16 {
        let (near, far, _) = match index {
            0 => {
                stage.send(&held[0].0, GET);
                let (near, far) = held.pop().expect("one");
                let head = stage.head(&far);
                (near, far, head)
            }
            _ => stage.forward(GET),
        };
        far.send(&heads[index % 4]);
        held.push((near, far));
    }
    std::thread::scope(|scope| {
        for (index, (_, far)) in held.iter().enumerate() {
            let piece = if index % 4 == 3 {
                &chunk
            } else {
                DOWN.first(64_000)
            };
            scope.spawn(move || {
                far.socket()
                    .set_write_timeout(Some(Duration::from_secs(1)))
                    .expect("set");
                let mut taken = 0;
                let mut to = far;
                while taken + piece.len() < LENGTH
                    && let Ok(count) = to.write(piece)
                {
                    taken += count;
                }
                assert!(
                    taken < LENGTH / 2,
                    "{index}: {taken} bytes that nobody reads"
                );
            });
        }
    });
    let grown = stage.proxy.process().resident().saturating_sub(before);
    // A block of 64 KiB each, and some room.
    assert!(grown < 4 << 20, "{grown} bytes for 16 clients");
    drop(held);
    stage.finish();
}

#[test]
fn p34_a_client_that_sends_ahead_is_held_back() {
    let stage = Stage::new();
    let (near, far, _) = stage.forward(GET);
    let before = stage.proxy.process().resident();
    near.socket()
        .set_write_timeout(Some(Duration::from_secs(1)))
        .expect("set");
    let many = GET.replace("{h}", &stage.host().to_string()).repeat(1000);
    let mut taken = 0;
    while let Ok(count) = (&near).write(many.as_bytes()) {
        taken += count;
        assert!(taken < 128 << 20, "{taken} bytes that nobody reads");
    }
    let grown = stage.proxy.process().resident().saturating_sub(before);
    assert!(grown < 1 << 20, "{grown} bytes");
    // P33: its reset is noticed although nothing is read from it.
    near.reset();
    drop(far.rest());
    stage.finish_with("client-reset");
}

#[test]
fn p43_a_connection_tunnels_after_its_connect_was_refused() {
    let stage = Stage::with(
        "timeouts.connect = \"1s\"\n[[rule]]\naction = \"deny\"\nnames = [\"denied.example\"]\n",
    );
    let near = stage.client();
    let base = stage.proxy.base().sockets;
    wait_for("the connection", || {
        stage.proxy.process().descriptors().sockets == base + 1
    });
    let (silent, _waiting) = silent_port();
    for (target, status) in [
        (closed_port().to_string(), 502),
        ("denied.example:1".to_owned(), 403),
        ("x.invalid:1".to_owned(), 502),
        (stage.proxy.address("http").to_string(), 508),
        (silent.to_string(), 504),
    ] {
        near.send(format!(
            "CONNECT {target} HTTP/1.1\r\nHost: {target}\r\n\r\n"
        ));
        let answer = Answer::read(&near);
        assert_eq!(answer.status, status, "{target}: {}", answer.head);
        // It costs what it did before.
        wait_for("the descriptors", || {
            stage.proxy.process().descriptors().sockets <= base + 1
        });
    }
    stage.send(&near, GET);
    let far = stage.far();
    stage.head(&far);
    far.send(OK);
    near.expect(OK);
    stage.send(&near, "CONNECT {h} HTTP/1.1\r\nHost: {h}\r\n\r\nearly");
    let tunnel = stage.far();
    near.expect("HTTP/1.1 200 Connection established\r\n\r\n");
    tunnel.expect("early");
    tunnel.send("and back");
    near.expect("and back");
    drop((near, far, tunnel));
    stage.finish();
}

#[test]
fn p43_bytes_behind_a_refused_connect_are_no_request() {
    let stage = Stage::new();
    let near = stage.client();
    let closed = closed_port();
    stage.send(
        &near,
        &format!("CONNECT {closed} HTTP/1.1\r\nHost: x\r\n\r\n{GET}"),
    );
    stage.refused(&near, 502);
    drop(near);
    stage.finish();
}

const UPGRADE: &str = "GET http://{h}/chat HTTP/1.1\r\nHost: {h}\r\nConnection: Upgrade\r\n\
                       Upgrade: websocket\r\n\r\n";
const SWITCH: &str = "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\n\
                      Upgrade: websocket\r\n\r\n";

#[test]
fn p47_bytes_of_either_side_wait_for_the_101() {
    let stage = Stage::new();
    let (near, far, head) = stage.forward(&format!("{UPGRADE}early"));
    assert!(head.contains("\r\nUpgrade: websocket\r\n"), "{head}");
    near.send(" bytes");
    assert!(far.is_silent_for(WHILE), "before the 101");
    far.send(format!("{SWITCH}behind"));
    near.expect(format!("{SWITCH}behind"));
    far.expect("early bytes");
    near.send("ask");
    far.expect("ask");
    far.send("say");
    near.expect("say");
    near.fin();
    assert_eq!(far.to_end(), b"");
    far.send("late");
    drop(far);
    assert_eq!(near.to_end(), b"late");
    let lines = stage.finish();
    assert_eq!(lines[0].text("status"), "101");
    assert_eq!(lines[0].text("end"), "client-finished");
}

#[test]
fn p47_any_other_answer_stays_http() {
    let stage = Stage::new();
    for answer in [
        OK,
        "HTTP/1.1 426 Upgrade Required\r\nContent-Length: 2\r\n\r\nno",
        "HTTP/1.1 200 OK\r\nConnection: Upgrade\r\nUpgrade: websocket\r\nContent-Length: 2\r\n\
             \r\nok",
        "HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 400 Bad\r\nContent-Length: 2\r\n\r\nno",
    ] {
        // What was meant for a tunnel never reaches the origin.
        let (near, far, _) = stage.forward(&format!("{UPGRADE}\u{1}\u{5}hidden"));
        far.send(answer);
        let told = last_answer(&near, answer);
        assert_eq!(told.field("upgrade"), None, "{}", told.head);
        assert_eq!(Answer::read(&near).status, 400);
        assert_eq!(near.rest().0, b"");
        assert!(far.is_silent_for(WHILE));
        drop((near, far));
        // Without such bytes the client may go on.
        let (near, far, _) = stage.forward(UPGRADE);
        far.send(answer);
        last_answer(&near, answer);
        stage.works(&near, &far);
        drop((near, far));
    }
    stage.finish();
}

/// The final one, behind an interim one if the origin sent that.
fn last_answer(near: &Conn, sent: &str) -> Answer {
    if sent.starts_with("HTTP/1.1 100") {
        assert_eq!(Answer::read_head(near).status, 100);
    }
    Answer::read(near)
}

#[test]
fn p47_a_101_that_nobody_asked_for_is_refused() {
    let stage = Stage::new();
    for request in [
        GET,
        // Only offered if Connection says so, and in HTTP/1.1.
        "GET http://{h}/ HTTP/1.1\r\nHost: {h}\r\nUpgrade: websocket\r\n\r\n",
        "GET http://{h}/ HTTP/1.0\r\nHost: {h}\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\
             \r\n",
    ] {
        let (near, far, head) = stage.forward(request);
        assert!(!head.contains("Upgrade"), "{head}");
        far.send(format!("{SWITCH}behind"));
        assert_eq!(Answer::read(&near).status, 502, "{request}");
        near.send_anyway("for the tunnel");
        assert_eq!(far.rest().0, b"");
        drop(near);
        stage.proxy.settle();
    }
    stage.finish();
}

#[test]
fn p48_an_upgrade_has_no_body_and_is_not_over() {
    let stage = Stage::new();
    let (near, far, _) = stage.forward(UPGRADE);
    // Complete, and yet open.
    assert!(far.is_silent_for(WHILE));
    assert!(near.is_silent_for(WHILE));
    far.send(SWITCH);
    near.expect(SWITCH);
    assert!(far.is_silent_for(WHILE));
    near.send("from the client");
    far.expect("from the client");
    far.send("from the origin");
    near.expect("from the origin");
    drop((near, far));
    stage.proxy.settle();
    // With a length of none, and with a body.
    for (fields, body) in [
        ("Content-Length: 0\r\n", ""),
        ("Content-Length: 4\r\n", "body"),
        ("Transfer-Encoding: chunked\r\n", "0\r\n\r\n"),
    ] {
        let request = UPGRADE
            .replace("GET", "POST")
            .replace("\r\n\r\n", &format!("\r\n{fields}\r\n{body}"));
        let (near, far, _) = stage.forward(&request);
        far.expect(body);
        far.send(SWITCH);
        near.expect(SWITCH);
        near.send("ask");
        far.expect("ask");
        far.send("say");
        near.expect("say");
        drop((near, far));
        stage.proxy.settle();
    }
    stage.finish();
}

#[test]
fn p50_a_client_that_ends_gets_all_answers_that_are_due() {
    let stage = Stage::new();
    let near = stage.client();
    stage.send(&near, &GET.repeat(3));
    near.fin();
    let far = stage.far();
    for index in 0..3 {
        stage.head(&far);
        assert!(near.is_silent_for(WHILE), "taken for gone");
        far.send("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n");
        let answer = Answer::read_head(&near);
        assert_eq!(
            answer.field("connection").is_some(),
            index == 2,
            "{}",
            answer.head
        );
        near.expect("3\r\nabc\r\n");
        assert!(near.is_silent_for(WHILE), "taken for gone");
        far.send("0\r\n\r\n");
        near.expect("0\r\n\r\n");
    }
    assert_eq!(near.to_end(), b"");
    drop(far);
    stage.finish_with("completed");
}

#[test]
fn p50_an_end_within_the_request_is_one() {
    let stage = Stage::new();
    let request = "POST http://{h}/ HTTP/1.1\r\nHost: {h}\r\nContent-Length: 9\r\n\r\nhalf";
    let (near, far, _) = stage.forward(request);
    far.expect("half");
    near.fin();
    assert_eq!(Answer::read(&near).status, 400);
    assert_eq!(near.to_end(), b"");
    // The origin must not take the half for the whole.
    let (more, how) = far.rest();
    assert_eq!(more, b"");
    assert!(matches!(how, Ended::Finished | Ended::Reset));
    drop(far);
    stage.finish_with("client-reset");
}
