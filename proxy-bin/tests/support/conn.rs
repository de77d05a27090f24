//! A client connection under test, plain or TLS, usable from two threads at once.

use std::io::{self, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use proxy_tls::rustls::pki_types::ServerName;
use proxy_tls::rustls::{ClientConfig, ClientConnection};
use socket2::{Domain, SockRef, Socket, Type};

use super::{Certs, DEADLINE};

/// How a stream ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Ended {
    /// In order: FIN, over TLS with `close_notify` before it.
    Finished,
    /// By a reset.
    Reset,
    /// Over TLS without `close_notify`.
    Truncated,
}

impl Ended {
    /// What an error of reading tells.
    pub(crate) fn of(error: &io::Error) -> Self {
        match error.kind() {
            io::ErrorKind::UnexpectedEof => Self::Truncated,
            io::ErrorKind::ConnectionReset | io::ErrorKind::BrokenPipe => Self::Reset,
            _ => panic!("neither bytes nor an end: {error}"),
        }
    }
}

/// Reads and writes take `&self`, so that both directions can run at once; one
/// reader and one writer at a time.
pub(crate) struct Conn {
    socket: TcpStream,
    /// Read from the socket (plain text), not yet asked for.
    unread: Mutex<Vec<u8>>,
    tls: Option<Tls>,
}

struct Tls {
    session: Mutex<ClientConnection>,
    incoming: Mutex<Incoming>,
    outgoing: Mutex<Vec<u8>>,
}

/// Read from the socket, not yet taken by the session.
struct Incoming {
    buffer: Box<[u8]>,
    start: usize,
    end: usize,
}

impl Conn {
    /// Connects in clear.
    pub(crate) fn dial(address: SocketAddr) -> Self {
        Self::over(TcpStream::connect(address).expect("connected"))
    }

    /// Connects from another address of loopback.
    pub(crate) fn dial_from(own: &str, address: SocketAddr) -> Self {
        let own = SocketAddr::new(own.parse().expect("an address"), 0);
        let socket = Socket::new(Domain::for_address(own), Type::STREAM, None);
        let socket = socket.expect("a socket");
        socket.bind(&own.into()).expect("an address of loopback");
        socket.connect(&address.into()).expect("connected");
        Self::over(socket.into())
    }

    /// Who is at the other end.
    pub(crate) fn peer(&self) -> SocketAddr {
        self.socket.peer_addr().expect("connected")
    }

    /// Connects with a receive buffer of `bytes`.
    pub(crate) fn dial_narrow(address: SocketAddr, bytes: usize) -> Self {
        let socket = Socket::new(Domain::for_address(address), Type::STREAM, None);
        let socket = socket.expect("a socket");
        socket.set_recv_buffer_size(bytes).expect("set");
        socket.connect(&address.into()).expect("connected");
        Self::over(socket.into())
    }

    /// Connects and shakes hands for `localhost`.
    pub(crate) fn dial_tls(address: SocketAddr) -> Self {
        Self::dial(address).start_tls(Certs::shared().client.clone(), b"")
    }

    /// As [`dial_tls`](Self::dial_tls), and `early` goes out in one segment
    /// with the end of the handshake.
    pub(crate) fn dial_tls_with(address: SocketAddr, early: &[u8]) -> Self {
        Self::dial(address).start_tls(Certs::shared().client.clone(), early)
    }

    /// A socket that is already connected.
    pub(crate) fn over(socket: TcpStream) -> Self {
        socket.set_read_timeout(Some(DEADLINE)).expect("set");
        socket.set_write_timeout(Some(DEADLINE)).expect("set");
        socket.set_nodelay(true).expect("set");
        Self {
            socket,
            unread: Mutex::default(),
            tls: None,
        }
    }

    /// Shakes hands over the plain connection and sends `early`.
    pub(crate) fn start_tls(mut self, config: Arc<ClientConfig>, early: &[u8]) -> Self {
        let name = ServerName::try_from("localhost").expect("a name");
        let mut session = ClientConnection::new(config, name).expect("a session");
        let mut outgoing = Vec::new();
        while session.is_handshaking() {
            flush(&mut session, &mut outgoing, &self.socket).expect("sent");
            assert_ne!(
                session.read_tls(&mut self.socket).expect("read"),
                0,
                "no handshake"
            );
            session.process_new_packets().expect("a handshake");
        }
        session.writer().write_all(early).expect("buffered");
        flush(&mut session, &mut outgoing, &self.socket).expect("sent");
        self.tls = Some(Tls {
            session: Mutex::new(session),
            incoming: Mutex::new(Incoming {
                buffer: vec![0; 64 * 1024].into(),
                start: 0,
                end: 0,
            }),
            outgoing: Mutex::default(),
        });
        self
    }

    /// Sends all of `bytes`.
    pub(crate) fn send(&self, bytes: impl AsRef<[u8]>) {
        let mut this = self;
        this.write_all(bytes.as_ref()).expect("sent");
    }

    /// Exactly `count` bytes.
    pub(crate) fn exact(&self, count: usize) -> Vec<u8> {
        let mut bytes = vec![0; count];
        let mut this = self;
        this.read_exact(&mut bytes)
            .expect("as many bytes as asked for");
        bytes
    }

    /// Reads `expected` and nothing else.
    pub(crate) fn expect(&self, expected: impl AsRef<[u8]>) {
        let expected = expected.as_ref();
        let got = self.exact(expected.len());
        assert_eq!(
            got.escape_ascii().to_string(),
            expected.escape_ascii().to_string()
        );
    }

    /// Bytes up to and including `mark`.
    pub(crate) fn until(&self, mark: &[u8]) -> Vec<u8> {
        let mut bytes = Vec::new();
        loop {
            if let Some(at) = find(&bytes, mark) {
                let rest = bytes.split_off(at + mark.len());
                let mut unread = lock(&self.unread);
                let later = std::mem::replace(&mut *unread, rest);
                unread.extend(later);
                return bytes;
            }
            let mut chunk = [0; 4096];
            let mut this = self;
            let count = this.read(&mut chunk).expect("more bytes");
            assert_ne!(count, 0, "ended after {}", bytes.escape_ascii());
            bytes.extend_from_slice(&chunk[..count]);
        }
    }

    /// Everything up to the end, and how it ended.
    pub(crate) fn rest(&self) -> (Vec<u8>, Ended) {
        let mut bytes = Vec::new();
        let mut chunk = vec![0; 64 * 1024];
        loop {
            let mut this = self;
            match this.read(&mut chunk) {
                Ok(0) => return (bytes, Ended::Finished),
                Ok(count) => bytes.extend_from_slice(&chunk[..count]),
                Err(error) => return (bytes, Ended::of(&error)),
            }
        }
    }

    /// Everything up to an orderly end.
    pub(crate) fn to_end(&self) -> Vec<u8> {
        let (bytes, how) = self.rest();
        let shown = &bytes[..bytes.len().min(200)];
        assert_eq!(how, Ended::Finished, "after {}", shown.escape_ascii());
        bytes
    }

    pub(crate) fn is_tls(&self) -> bool {
        self.tls.is_some()
    }

    /// Whether no byte and no end comes within `time`.
    pub(crate) fn is_silent_for(&self, time: Duration) -> bool {
        self.socket.set_read_timeout(Some(time)).expect("set");
        let silent = matches!(self.socket.peek(&mut [0]), Err(error) if is_timeout(&error));
        self.socket.set_read_timeout(Some(DEADLINE)).expect("set");
        silent
    }

    /// Ends our direction only: FIN, or `close_notify` over TLS.
    pub(crate) fn fin(&self) {
        match &self.tls {
            None => drop(self.socket.shutdown(Shutdown::Write)),
            Some(tls) => {
                let mut outgoing = lock(&tls.outgoing);
                let mut session = lock(&tls.session);
                session.send_close_notify();
                flush(&mut session, &mut outgoing, &self.socket).expect("sent");
            }
        }
    }

    /// Lets pass that the peer has closed already.
    pub(crate) fn send_anyway(&self, bytes: impl AsRef<[u8]>) {
        let mut this = self;
        drop(this.write_all(bytes.as_ref()));
    }

    /// Ends the TCP connection's sending side, over TLS without `close_notify`.
    pub(crate) fn cut(&self) {
        drop(self.socket.shutdown(Shutdown::Write));
    }

    /// Closes by a reset.
    pub(crate) fn reset(self) {
        reset(self.socket);
    }

    pub(crate) fn local(&self) -> SocketAddr {
        self.socket.local_addr().expect("connected")
    }

    /// The socket beneath, for options.
    pub(crate) fn socket(&self) -> &TcpStream {
        &self.socket
    }
}

impl Read for &Conn {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let mut unread = lock(&self.unread);
        if !unread.is_empty() {
            let count = unread.len().min(buffer.len());
            buffer[..count].copy_from_slice(&unread[..count]);
            unread.drain(..count);
            return Ok(count);
        }
        drop(unread);
        match &self.tls {
            None => (&self.socket).read(buffer),
            Some(tls) => tls.read(&self.socket, buffer),
        }
    }
}

impl Write for &Conn {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        match &self.tls {
            None => (&self.socket).write(bytes),
            Some(tls) => tls.write(&self.socket, bytes),
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Tls {
    /// Waits on the socket without the session's lock, so that a writer can go
    /// on meanwhile.
    fn read(&self, mut socket: &TcpStream, buffer: &mut [u8]) -> io::Result<usize> {
        let mut incoming = lock(&self.incoming);
        loop {
            match lock(&self.session).reader().read(buffer) {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                done => return done,
            }
            if incoming.start == incoming.end {
                incoming.start = 0;
                incoming.end = socket.read(&mut incoming.buffer)?;
            }
            let mut session = lock(&self.session);
            let mut records = &incoming.buffer[incoming.start..incoming.end];
            let count = session.read_tls(&mut records)?;
            session.process_new_packets().map_err(io::Error::other)?;
            incoming.start += count;
        }
    }

    fn write(&self, mut socket: &TcpStream, bytes: &[u8]) -> io::Result<usize> {
        let mut outgoing = lock(&self.outgoing);
        let mut session = lock(&self.session);
        let count = session.writer().write(bytes)?;
        encrypt(&mut session, &mut outgoing)?;
        // Sent without the session's lock, so that a reader can go on meanwhile.
        drop(session);
        socket.write_all(&outgoing)?;
        Ok(count)
    }
}

/// Sends all that the session has to say, in one segment if it fits.
fn flush(
    session: &mut ClientConnection,
    outgoing: &mut Vec<u8>,
    mut socket: &TcpStream,
) -> io::Result<()> {
    encrypt(session, outgoing)?;
    socket.write_all(outgoing)
}

fn encrypt(session: &mut ClientConnection, outgoing: &mut Vec<u8>) -> io::Result<()> {
    outgoing.clear();
    while session.wants_write() {
        session.write_tls(outgoing)?;
    }
    Ok(())
}

/// A ClientHello as rustls sends it.
pub(crate) fn client_hello() -> Vec<u8> {
    let config = Certs::shared().client.clone();
    let name = ServerName::try_from("localhost").expect("a name");
    let mut session = ClientConnection::new(config, name).expect("a session");
    let mut bytes = Vec::new();
    encrypt(&mut session, &mut bytes).expect("into memory");
    bytes
}

/// Closes `socket` by a reset.
pub(crate) fn reset(socket: TcpStream) {
    SockRef::from(&socket)
        .set_linger(Some(Duration::ZERO))
        .expect("set");
}

/// The position of `mark` in `bytes`.
pub(crate) fn find(bytes: &[u8], mark: &[u8]) -> Option<usize> {
    bytes.windows(mark.len()).position(|window| window == mark)
}

fn is_timeout(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut
    )
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().expect("no other thread failed")
}
