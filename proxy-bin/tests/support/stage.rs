//! A `proxyd` between a client and an origin that a test plays itself.

use std::net::SocketAddr;
use std::sync::mpsc::Receiver;

use super::{Accepted, Answer, Conn, LogLine, Origin, Proxyd};

/// In what is sent, `{h}` stands for the host and port of the origin.
pub(crate) struct Stage {
    pub(crate) proxy: Proxyd,
    pub(crate) origin: Origin,
    accepted: Receiver<Accepted>,
}

impl Stage {
    pub(crate) fn new() -> Self {
        Self::with("")
    }

    /// With these lines of configuration as well.
    pub(crate) fn with(toml: &str) -> Self {
        let (origin, accepted) = Origin::manual();
        let toml =
            format!("workers = 1\nlog = {{ access = \"stdout\", format = \"json\" }}\n{toml}\n");
        let proxy = Proxyd::with_config(origin.address, &toml);
        Self {
            proxy,
            origin,
            accepted,
        }
    }

    /// A new connection of a client.
    pub(crate) fn client(&self) -> Conn {
        Conn::dial(self.proxy.address("http"))
    }

    /// The next connection that the origin accepted.
    pub(crate) fn far(&self) -> Conn {
        Accepted::next(&self.accepted)
    }

    pub(crate) fn host(&self) -> SocketAddr {
        self.origin.address
    }

    /// Sends it with the host filled in.
    pub(crate) fn send(&self, conn: &Conn, text: &str) {
        conn.send(text.replace("{h}", &self.host().to_string()));
    }

    /// A new client sends this; the head comes out of the other end.
    pub(crate) fn forward(&self, request: &str) -> (Conn, Conn, String) {
        let near = self.client();
        self.send(&near, request);
        let far = self.far();
        let head = self.head(&far);
        (near, far, head)
    }

    /// The next head on this connection, with the host taken out.
    pub(crate) fn head(&self, conn: &Conn) -> String {
        let head = String::from_utf8(conn.until(b"\r\n\r\n")).expect("text");
        head.replace(&self.host().to_string(), "{h}")
    }

    /// A request and its answer pass over both connections.
    pub(crate) fn works(&self, near: &Conn, far: &Conn) {
        self.send(near, "GET http://{h}/next HTTP/1.1\r\nHost: {h}\r\n\r\n");
        assert_eq!(self.head(far), "GET /next HTTP/1.1\r\nHost: {h}\r\n\r\n");
        far.send("HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\nnext");
        near.expect("HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\nnext");
    }

    /// The answer is `status`, then the connection ends.
    pub(crate) fn refused(&self, near: &Conn, status: u16) {
        let answer = Answer::read(near);
        assert_eq!(answer.status, status, "{}", answer.head);
        assert_eq!(answer.field("connection"), Some("close"), "{}", answer.head);
        let (more, _) = near.rest();
        assert_eq!(more.escape_ascii().to_string(), "");
    }

    /// Stops all, checks that nothing is left, that no byte came over
    /// connections to the origin that nobody asked for, and returns the access
    /// log.
    pub(crate) fn finish(self) -> Vec<LogLine> {
        let stopped = self.proxy.finish();
        // Now all connections are in the queue.
        drop(self.origin);
        for far in self.accepted.try_iter().map(Accepted::into_conn) {
            assert_eq!(far.rest().0.escape_ascii().to_string(), "");
        }
        LogLine::all(&stopped.stdout)
    }

    /// [`finish`](Self::finish), and all lines name this end.
    pub(crate) fn finish_with(self, end: &str) {
        for line in self.finish() {
            assert_eq!(line.text("end"), end, "{line:?}");
        }
    }
}
