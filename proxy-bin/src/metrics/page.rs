//! The page that metrics are read from.

use std::cell::Cell;
use std::io;
use std::net::{IpAddr, SocketAddr, TcpListener};
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use httparse::{EMPTY_HEADER, Request, Status};
use prometheus_client::encoding::text::encode;
use prometheus_client::registry::Registry;
use proxy_core::Network;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::task::spawn_local;
use tokio::time::timeout;

use super::Metrics;

/// Serves `GET /metrics` over HTTP/1.1, a connection each, in the OpenMetrics text
/// format.
pub(crate) struct Page {
    listener: tokio::net::TcpListener,
    /// `None` is whoever reaches it.
    clients: Option<Vec<Network>>,
    registry: Registry,
}

impl Page {
    /// Listens there.
    ///
    /// # Errors
    /// Those of the system.
    ///
    /// # Panics
    /// Outside a runtime.
    pub(crate) fn listen(
        address: SocketAddr,
        clients: Option<Vec<Network>>,
        metrics: Arc<Metrics>,
    ) -> io::Result<Self> {
        let listener = TcpListener::bind(address)?;
        listener.set_nonblocking(true)?;
        let mut registry = Registry::default();
        registry.register_collector(Box::new(metrics));
        Ok(Self {
            listener: tokio::net::TcpListener::from_std(listener)?,
            clients,
            registry,
        })
    }

    pub(crate) fn local_addr(&self) -> io::Result<SocketAddr> {
        self.listener.local_addr()
    }

    /// Serves for ever.
    ///
    /// # Panics
    /// Outside a `LocalSet`.
    pub(crate) async fn serve(self) {
        let (this, open) = (Rc::new(self), Rc::new(Cell::new(0)));
        loop {
            let Ok((stream, remote)) = this.listener.accept().await else {
                // Out of descriptors, mostly.
                tokio::time::sleep(PAUSE).await;
                continue;
            };
            if open.get() >= MOST || !this.takes(remote.ip()) {
                continue;
            }
            open.set(open.get() + 1);
            let (this, open) = (Rc::clone(&this), Rc::clone(&open));
            spawn_local(async move {
                // A client that dawdles or leaves is nobody's concern.
                let _ = timeout(PATIENCE, this.answer(stream)).await;
                open.set(open.get() - 1);
            });
        }
    }

    fn takes(&self, client: IpAddr) -> bool {
        let client = client.to_canonical();
        let clients = self.clients.as_ref();
        clients.is_none_or(|all| all.iter().any(|network| network.contains(client)))
    }

    async fn answer(&self, mut stream: TcpStream) -> io::Result<()> {
        let mut head = Vec::new();
        let status = loop {
            if stream.read_buf(&mut head).await? == 0 {
                return Ok(());
            }
            if let Some(status) = asked(&head) {
                break status;
            }
        };
        let mut body = String::new();
        if status == OK {
            encode(&mut body, &self.registry).map_err(io::Error::other)?;
        }
        let length = body.len();
        let is_head = head.starts_with(b"HEAD ");
        let answer = format!(
            "HTTP/1.1 {status}\r\nContent-Type: {TYPE}\r\nContent-Length: {length}\r\n\
             Connection: close\r\n\r\n{}",
            if is_head { "" } else { &body }
        );
        stream.write_all(answer.as_bytes()).await?;
        stream.shutdown().await?;
        // What it still sends is read, since closing would else be a reset.
        while stream.read(&mut [0; 1024]).await? > 0 {}
        Ok(())
    }
}

/// What to answer; `None` as long as the head goes on.
fn asked(head: &[u8]) -> Option<&'static str> {
    let mut fields = [EMPTY_HEADER; 64];
    let mut request = Request::new(&mut fields);
    match request.parse(head) {
        Ok(Status::Partial) if head.len() < LONGEST => None,
        Ok(Status::Partial) | Err(_) => Some("400 Bad Request"),
        Ok(Status::Complete(_)) => Some(match (request.method, request.path) {
            (Some("GET" | "HEAD"), Some("/metrics")) => OK,
            (Some("GET" | "HEAD"), _) => "404 Not Found",
            _ => "405 Method Not Allowed",
        }),
    }
}

const OK: &str = "200 OK";

const TYPE: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

/// Of a head, in bytes.
const LONGEST: usize = 16 * 1024;

/// Connections at a time.
const MOST: u32 = 32;

/// For one of them.
const PATIENCE: Duration = Duration::from_secs(5);

/// When none can be accepted.
const PAUSE: Duration = Duration::from_millis(100);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_answered() {
        for (head, status) in [
            ("GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n", Some(OK)),
            ("HEAD /metrics HTTP/1.0\r\n\r\n", Some(OK)),
            ("GET / HTTP/1.1\r\nHost: x\r\n\r\n", Some("404 Not Found")),
            (
                "POST /metrics HTTP/1.1\r\nHost: x\r\n\r\n",
                Some("405 Method Not Allowed"),
            ),
            ("GET /metrics", None),
            ("\0", Some("400 Bad Request")),
        ] {
            assert_eq!(asked(head.as_bytes()), status, "{head:?}");
        }
        let endless = format!("GET /{}", "x".repeat(LONGEST));
        assert_eq!(asked(endless.as_bytes()), Some("400 Bad Request"));
    }
}
