//! Scripted origins: a listener on loopback and a thread for each connection.

use std::io::{BufReader, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex, Weak};
use std::thread::JoinHandle;

use proxy_tls::rustls::{ServerConnection, StreamOwned};
use socket2::SockRef;

use super::conn::reset;
use super::{Certs, Conn, DEADLINE, DOWN, Request, UP, http};

/// Stops and closes all of its connections when dropped.
pub(crate) struct Origin {
    pub(crate) address: SocketAddr,
    shared: Arc<Shared>,
    acceptor: Option<JoinHandle<()>>,
}

/// A connection that the test itself serves.
pub(crate) struct Accepted(TcpStream);

struct Shared {
    stopped: AtomicBool,
    /// Sockets of the running handlers; a handler alone keeps one open.
    connections: Mutex<Vec<Weak<TcpStream>>>,
}

impl Origin {
    /// Runs `handler` for each connection.
    pub(crate) fn start(handler: impl Fn(&TcpStream) + Send + Sync + 'static) -> Self {
        let handler = Arc::new(handler);
        Self::accept(move |shared, socket| {
            let socket = Arc::new(socket);
            shared.track(Arc::downgrade(&socket));
            let handler = handler.clone();
            std::thread::spawn(move || handler(&socket));
        })
    }

    /// Hands each connection to the test.
    pub(crate) fn manual() -> (Self, Receiver<Accepted>) {
        Self::manual_at("127.0.0.1")
    }

    /// The same at another address of loopback.
    pub(crate) fn manual_at(ip: &str) -> (Self, Receiver<Accepted>) {
        let (sender, receiver) = channel();
        let sender = Mutex::new(sender);
        let origin = Self::accept_at(ip, move |_, socket| {
            let sender = sender.lock().expect("no other thread failed");
            drop(sender.send(Accepted(socket)));
        });
        (origin, receiver)
    }

    /// Sends back what comes, FIN for FIN.
    pub(crate) fn echo() -> Self {
        Self::start(|mut socket| {
            let mut buffer = vec![0; 64 * 1024];
            while let Ok(count @ 1..) = socket.read(&mut buffer) {
                if socket.write_all(&buffer[..count]).is_err() {
                    return;
                }
            }
            drop(socket.shutdown(Shutdown::Write));
        })
    }

    /// Sends `greeting` at once, then what [`echo`](Self::echo) does.
    pub(crate) fn greeting(greeting: &'static [u8]) -> Self {
        Self::start(move |mut socket| {
            let mut buffer = vec![0; 64 * 1024];
            drop(socket.write_all(greeting));
            while let Ok(count @ 1..) = socket.read(&mut buffer) {
                if socket.write_all(&buffer[..count]).is_err() {
                    return;
                }
            }
            drop(socket.shutdown(Shutdown::Write));
        })
    }

    /// Sends `count` bytes of [`DOWN`] and FIN while it checks that `count`
    /// bytes of [`UP`] and FIN come; tells the outcome.
    pub(crate) fn bulk(count: u64) -> (Self, Receiver<Result<(), String>>) {
        let (sender, receiver) = channel();
        let origin = Self::start(move |socket| {
            socket.set_read_timeout(Some(DEADLINE)).expect("set");
            let outcome = std::thread::scope(|scope| {
                let received = scope.spawn(|| UP.check_all(socket, count));
                let sent = DOWN.send(socket, 0, count);
                drop(socket.shutdown(Shutdown::Write));
                let received = received.join().expect("no panic");
                received.and(sent).map_err(|error| error.to_string())
            });
            drop(sender.send(outcome));
        });
        (origin, receiver)
    }

    /// Answers each request with what `answer` makes of it, and keeps the
    /// connection unless the answer says `Connection: close`.
    pub(crate) fn http(answer: impl Fn(&Request) -> Vec<u8> + Send + Sync + 'static) -> Self {
        Self::start(move |socket| serve(socket, &answer))
    }

    /// Answers each request with `text`.
    pub(crate) fn page(text: &'static str) -> Self {
        Self::http(move |_| http::ok(text.as_bytes()))
    }

    /// Answers each request with its own head and body.
    pub(crate) fn mirror() -> Self {
        Self::http(mirrored)
    }

    /// [`mirror`](Self::mirror) over TLS, as `localhost`.
    pub(crate) fn tls_mirror() -> Self {
        Self::start(|socket| {
            let config = Certs::shared().server.clone();
            let session = ServerConnection::new(config).expect("a session");
            serve(StreamOwned::new(session, socket), &mirrored);
        })
    }

    /// `127.0.0.1:PORT`
    pub(crate) fn authority(&self) -> String {
        self.address.to_string()
    }

    /// The address of `path` here.
    pub(crate) fn url(&self, path: &str) -> String {
        format!("http://{}{path}", self.address)
    }

    fn accept(handler: impl Fn(&Shared, TcpStream) + Send + 'static) -> Self {
        Self::accept_at("127.0.0.1", handler)
    }

    fn accept_at(ip: &str, handler: impl Fn(&Shared, TcpStream) + Send + 'static) -> Self {
        let listener = TcpListener::bind((ip, 0)).expect("a free port");
        // Room for a thousand clients that come at once.
        SockRef::from(&listener).listen(4096).expect("listening");
        let address = listener.local_addr().expect("bound");
        let shared = Arc::new(Shared {
            stopped: AtomicBool::new(false),
            connections: Mutex::default(),
        });
        let acceptor = std::thread::spawn({
            let shared = shared.clone();
            move || {
                for socket in listener.incoming() {
                    if shared.stopped.load(Ordering::Relaxed) {
                        return;
                    }
                    let Ok(socket) = socket else { continue };
                    drop(socket.set_nodelay(true));
                    handler(&shared, socket);
                }
            }
        });
        Self {
            address,
            shared,
            acceptor: Some(acceptor),
        }
    }
}

impl Drop for Origin {
    fn drop(&mut self) {
        self.shared.stopped.store(true, Ordering::Relaxed);
        // Wakes the acceptor.
        drop(TcpStream::connect(self.address));
        if let Some(acceptor) = self.acceptor.take() {
            drop(acceptor.join());
        }
        self.shared.close_all();
    }
}

impl Shared {
    fn track(&self, socket: Weak<TcpStream>) {
        let mut connections = self.connections.lock().expect("no other thread failed");
        connections.retain(|socket| socket.strong_count() > 0);
        connections.push(socket);
    }

    fn close_all(&self) {
        let connections = self.connections.lock().expect("no other thread failed");
        for socket in connections.iter().filter_map(Weak::upgrade) {
            drop(socket.shutdown(Shutdown::Both));
        }
    }
}

impl Accepted {
    /// The next connection of `queue`.
    pub(crate) fn next(queue: &Receiver<Self>) -> Conn {
        queue
            .recv_timeout(DEADLINE)
            .expect("a connection")
            .into_conn()
    }

    pub(crate) fn into_conn(self) -> Conn {
        Conn::over(self.0)
    }
}

/// A port on loopback where nothing listens.
pub(crate) fn closed_port() -> SocketAddr {
    // Below the range for outgoing connections: there a connection to a free
    // port can meet itself and succeed.
    let mut random = super::Random::new(u64::from(std::process::id()));
    loop {
        let port = u16::try_from(20_000 + random.below(10_000)).expect("a port");
        if let Ok(listener) = TcpListener::bind(("127.0.0.1", port)) {
            return listener.local_addr().expect("bound");
        }
    }
}

fn serve(stream: impl Read + Write, answer: &impl Fn(&Request) -> Vec<u8>) {
    let mut stream = BufReader::new(stream);
    while let Some(request) = Request::read(&mut stream) {
        let bytes = answer(&request);
        if stream.get_mut().write_all(&bytes).is_err() {
            return;
        }
        if stream.get_mut().flush().is_err() || says_close(&bytes) {
            return;
        }
    }
}

fn says_close(answer: &[u8]) -> bool {
    let head = String::from_utf8_lossy(&answer[..answer.len().min(500)]).to_ascii_lowercase();
    head.split("\r\n\r\n")
        .next()
        .is_some_and(|head| head.contains("connection: close"))
}

fn mirrored(request: &Request) -> Vec<u8> {
    let body = [request.head.as_bytes(), &request.body].concat();
    let mut bytes = http::ok(&body);
    if request.method() == "HEAD" {
        bytes.truncate(bytes.len() - body.len());
    }
    bytes
}
