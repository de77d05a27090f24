//! How many bytes the access log counts for each exchange of a kept connection,
//! beside what the client and the origin count themselves.

mod support;

use std::collections::HashMap;
use std::io::{self, BufReader, Read, Write};
use std::sync::Arc;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};

use proxy_tls::rustls::{ServerConnection, StreamOwned};
use support::{Accepted, Answer, Certs, Conn, DOWN, LogLine, Origin, Proxyd, Request, UP, basic};

#[test]
fn p52_exchanges_in_clear() {
    counts("http", false, false);
    counts("auto", false, false);
}

#[test]
fn p52_exchanges_of_clients_over_tls() {
    counts("https", true, false);
    counts("auto", true, false);
}

#[test]
fn p52_exchanges_with_an_origin_over_tls() {
    counts("http", false, true);
    counts("https", true, true);
}

/// A tunnel behind requests on the same connection counts its content only.
#[test]
fn p52_a_tunnel_behind_requests() {
    let counted = Counted::default();
    let web = origin(&counted, false);
    let (far_origin, accepted) = Origin::manual();
    let proxy = start(&web);
    for (listener, tls) in [("http", false), ("https", true)] {
        let client = Client::new(&proxy, listener, tls, "alice");
        client.ask("GET", &web.url("/short"), "");
        let target = far_origin.authority();
        client.send("CONNECT", &target, "");
        assert_eq!(Answer::read_head(&client.conn).status, 200);
        let far = Accepted::next(&accepted);
        client.conn.send("four");
        far.expect("four");
        far.send("seven..");
        client.conn.expect("seven..");
        client.conn.fin();
        far.to_end();
        far.fin();
        client.conn.to_end();
    }
    drop((web, far_origin));
    let lines = LogLine::all(&proxy.finish().stdout);
    let mut tunnels = lines.iter().filter(|line| line.text("method") == "CONNECT");
    for _ in 0..2 {
        assert_eq!(numbers(tunnels.next().expect("a tunnel")), (4, 7));
    }
}

/// Two users take turns on connections of their own, which lead to the same kept
/// connections to the origin.
fn counts(listener: &str, client_tls: bool, origin_tls: bool) {
    let counted = Counted::default();
    let origin = origin(&counted, origin_tls);
    let proxy = start(&origin);
    let root = match origin_tls {
        true => format!("https://localhost:{}", origin.address.port()),
        false => format!("http://{}", origin.authority()),
    };
    let clients = ["alice", "bob"].map(|user| Client::new(&proxy, listener, client_tls, user));
    let mut down = HashMap::new();
    for round in 0..3 {
        for client in &clients {
            for (word, method, rest) in exchanges() {
                let path = format!("/{word}/{method}/{}/{round}", client.user);
                let took = client.ask(method, &format!("{root}{path}"), &rest);
                down.insert((client.user, path), took);
            }
        }
    }
    for client in clients {
        client.conn.fin();
        assert_eq!(client.conn.to_end(), b"");
    }
    drop(origin);
    let lines = LogLine::all(&proxy.finish().stdout);
    assert_eq!(lines.len(), down.len());
    let up = counted.exchanges.lock().expect("no other thread failed");
    let mut sum = 0;
    for line in &lines {
        let target = line.text("target");
        let path = target.strip_prefix(&root).expect("of this origin");
        let mut of_user = down.iter().filter(|((_, asked), _)| asked == path);
        let ((user, _), &down) = of_user.next().expect("asked for");
        assert_eq!(numbers(line), (up[path], down), "{line:?}");
        assert_eq!(
            (&*line.text("user"), &*line.text("end")),
            (*user, "completed")
        );
        sum += up[path];
    }
    assert_eq!(sum, counted.read.load(Ordering::Relaxed), "all that came");
}

/// A word for the answer, what is asked, the rest of the head and the body.
fn exchanges() -> [(&'static str, &'static str, String); 8] {
    let body = |size: u64| {
        let text = UP.first(size).escape_ascii().to_string();
        format!("Content-Length: {}\r\n\r\n{text}", text.len())
    };
    let chunks = "Transfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n1;x=y\r\n!\r\n0\r\n\r\n";
    [
        ("short", "GET", String::new()),
        ("chunked", "GET", String::new()),
        ("long", "GET", String::new()),
        ("short", "HEAD", String::new()),
        ("none", "GET", String::new()),
        ("short", "POST", body(3)),
        ("long", "PUT", body(100_000)),
        ("chunked", "POST", chunks.to_owned()),
    ]
}

struct Client {
    conn: Conn,
    user: &'static str,
}

impl Client {
    fn new(proxy: &Proxyd, listener: &str, tls: bool, user: &'static str) -> Self {
        let address = proxy.address(listener);
        let conn = match tls {
            true => Conn::dial_tls(address),
            false => Conn::dial(address),
        };
        Self { conn, user }
    }

    fn send(&self, method: &str, target: &str, rest: &str) {
        let login = basic(&format!("{}:secret", self.user));
        let rest = match rest {
            "" => "\r\n",
            rest => rest,
        };
        self.conn.send(format!(
            "{method} {target} HTTP/1.1\r\nHost: x\r\nProxy-Authorization: {login}\r\n{rest}"
        ));
    }

    /// How many bytes the whole answer has.
    fn ask(&self, method: &str, url: &str, rest: &str) -> u64 {
        self.send(method, url, rest);
        let answer = Answer::read_head(&self.conn);
        let length = answer.field("content-length");
        let body = match length.map(|text| text.parse().expect("a length")) {
            _ if method == "HEAD" || answer.status == 204 => 0,
            Some(length) => self.conn.exact(length).len(),
            None => self.conn.until(b"\r\n0\r\n\r\n").len(),
        };
        (answer.head.len() + body) as u64
    }
}

/// What an origin has counted.
#[derive(Clone, Default)]
struct Counted {
    /// All that came over all connections, inside TLS.
    read: Arc<AtomicU64>,
    /// The size of each request, by its path.
    exchanges: Arc<Mutex<HashMap<String, u64>>>,
}

fn origin(counted: &Counted, tls: bool) -> Origin {
    let counted = counted.clone();
    Origin::start(move |socket| match tls {
        false => serve(socket, &counted),
        true => {
            let config = Certs::shared().server.clone();
            let session = ServerConnection::new(config).expect("a session");
            serve(StreamOwned::new(session, socket), &counted);
        }
    })
}

fn serve(stream: impl Read + Write, counted: &Counted) {
    let mut stream = BufReader::new(Counting { stream, read: 0 });
    let consumed =
        |stream: &BufReader<Counting<_>>| stream.get_ref().read - stream.buffer().len() as u64;
    loop {
        let before = consumed(&stream);
        let request = Request::read(&mut stream);
        let after = consumed(&stream);
        counted.read.fetch_add(after - before, Ordering::Relaxed);
        let Some(request) = request else { return };
        let path = request.target().to_owned();
        let answer = answer(&request);
        let mut exchanges = counted.exchanges.lock().expect("no other thread failed");
        exchanges.insert(path, after - before);
        drop(exchanges);
        let stream = &mut stream.get_mut().stream;
        if stream
            .write_all(&answer)
            .and_then(|()| stream.flush())
            .is_err()
        {
            return;
        }
    }
}

/// What the path asks for.
fn answer(request: &Request) -> Vec<u8> {
    let word = request.target().split('/').nth(1).unwrap_or_default();
    let size = match word {
        "none" => return b"HTTP/1.1 204 No Content\r\n\r\n".to_vec(),
        "chunked" => {
            let head = "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n";
            return format!("{head}5\r\nhello\r\n6\r\n world\r\n0\r\n\r\n").into_bytes();
        }
        "long" => 200_000,
        _ => 5,
    };
    let mut bytes = support::ok(DOWN.first(size));
    if request.method() == "HEAD" {
        bytes.truncate(bytes.len() - 5);
    }
    bytes
}

/// Counts what is read.
struct Counting<S> {
    stream: S,
    read: u64,
}

impl<S: Read> Read for Counting<S> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let count = self.stream.read(buffer)?;
        self.read += count as u64;
        Ok(count)
    }
}

fn start(origin: &Origin) -> Proxyd {
    let ca = Certs::shared().ca();
    let users = ["alice", "bob"]
        .map(|name| format!("[[user]]\nname = \"{name}\"\npassword = \"secret\"\n"));
    let toml = format!(
        "workers = 1\nhttp.ca = {ca:?}\nlog.access = \"stdout\"\nlog.format = \"json\"\n{}",
        users.concat()
    );
    Proxyd::with_config(origin.address, &toml)
}

/// Bytes up and down.
fn numbers(line: &LogLine) -> (u64, u64) {
    let count = |key| line.number(key).expect("a count");
    (count("up"), count("down"))
}
