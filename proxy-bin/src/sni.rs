//! `sni` listeners: a TLS client names its own target, and nobody decrypts a byte.

use std::future::poll_fn;
use std::io;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Poll, ready};
use std::time::{Duration, Instant};

use proxy_core::{
    ConnectErrorKind, Denial, End, Gateway, Host, Names, Operation, Peer, Report, Status, Stop,
    StopState, Target, TargetBuf,
};
use proxy_relay::{Deadline, Passthrough, PortMapError, Ticks, lend};
use proxy_tls::{ClientHello, SniffError, Sniffer};
use tokio::io::{AsyncRead, AsyncWriteExt, ReadBuf};
use tokio::net::TcpStream;

use crate::config::Listener;
use crate::gateway::Proxyd;
use crate::sniff::unless_closing;

/// Leads each client to the host in its ClientHello.
pub(crate) struct Sni {
    tunnels: Passthrough<Rc<Proxyd>>,
    /// `None` leads anywhere that policy allows.
    names: Option<Names>,
    port: u16,
    head: Ticks,
    stop: Stop,
}

/// Where a client goes, and what it has said so far: all of it is the target's.
pub(crate) struct Routed {
    pub(crate) target: TargetBuf,
    pub(crate) said: Vec<u8>,
}

impl Sni {
    pub(crate) fn new(
        tunnels: Passthrough<Rc<Proxyd>>,
        listener: &Listener,
        head: Option<Duration>,
        stop: &Stop,
    ) -> Self {
        let names = listener.names.as_ref();
        Self {
            tunnels,
            names: names.map(|names| Names::new(names.iter().map(|name| (name, 0)))),
            port: listener.target_port,
            head: head.into(),
            stop: stop.clone(),
        }
    }

    pub(crate) fn tunnels(&self) -> &Passthrough<Rc<Proxyd>> {
        &self.tunnels
    }

    /// Collects the ClientHello, up to [`Sniffer::MAX`] bytes and for as long as
    /// the head of a request may take. A client that it does not lead anywhere is
    /// told so, and logged.
    pub(crate) async fn route(&self, stream: &mut TcpStream, peer: &Peer) -> Option<Routed> {
        let start = Instant::now();
        let mut said = Vec::new();
        let refusal = match self.read_target(stream, &mut said).await {
            Ok(target) => return Some(Routed { target, said }),
            Err(refusal) => refusal,
        };
        self.log(peer, &refusal, start.elapsed());
        if let Some(alert) = refusal.alert() {
            self.refuse(stream, alert).await;
        }
        None
    }

    /// Says why a client that was led somewhere did not get there.
    pub(crate) async fn apologise(&self, stream: &mut TcpStream, error: PortMapError) {
        let alert = match error {
            PortMapError::Connect(error) => match error.kind {
                ConnectErrorKind::Forbidden | ConnectErrorKind::Loop => UNRECOGNIZED_NAME,
                _ => INTERNAL_ERROR,
            },
            PortMapError::Denied(Denial::Busy | Denial::Unroutable) => INTERNAL_ERROR,
            PortMapError::Denied(_) => UNRECOGNIZED_NAME,
            _ => return,
        };
        self.refuse(stream, alert).await;
    }

    async fn read_target(
        &self,
        stream: &mut TcpStream,
        said: &mut Vec<u8>,
    ) -> Result<TargetBuf, Refusal> {
        let mut deadline = Deadline::new(self.stop.clone());
        deadline.set(self.head);
        let mut sniffer = Sniffer::default();
        loop {
            let read = unless_closing(&mut deadline, read_more(stream, said)).await;
            match read {
                None if deadline.stop_state() != StopState::Running => return Err(Refusal::Left),
                // Who says nothing asks for nothing: a port check, a spare connection.
                None | Some(Ok(0)) if said.is_empty() => return Err(Refusal::Left),
                None => return Err(Refusal::Slow),
                Some(Ok(0)) => return Err(Refusal::Cut),
                Some(Err(_)) => return Err(Refusal::Left),
                Some(Ok(_)) => {}
            }
            if let Status::Complete(hello, _) = sniffer.sniff(said)? {
                return self.target(&hello);
            }
        }
    }

    fn target(&self, hello: &ClientHello<'_>) -> Result<TargetBuf, Refusal> {
        let name = hello.server_name().ok_or(Refusal::Nameless)?;
        let target = Target {
            host: Host::Name(name),
            port: self.port,
        };
        let is_listed = |names: &Names| names.find(name).next().is_some();
        match self.names.as_ref().is_none_or(is_listed) {
            true => Ok(target.into()),
            false => Err(Refusal::Unlisted(target.into())),
        }
    }

    fn log(&self, peer: &Peer, refusal: &Refusal, took: Duration) {
        let Some((end, fault)) = refusal.told() else {
            return;
        };
        let gateway = self.tunnels.gateway();
        let mut report = Report::new(peer, end);
        if let Refusal::Unlisted(target) = refusal {
            report.operation = Some(Operation::Tunnel);
            report.target = Some(target.as_target());
        }
        report.duration = took;
        report.fault = fault;
        gateway.finished(None, None, &report);
        let error = fault.unwrap_or(end.as_str());
        let listener = gateway.service();
        tracing::debug!(listener, client = %peer.remote, error, "ended");
    }

    /// Sends an alert and closes. What the client still sends is read for a
    /// while, since to close with bytes unread would be a reset, which can
    /// overtake the alert.
    async fn refuse(&self, stream: &mut TcpStream, alert: u8) {
        let mut deadline = Deadline::new(self.stop.clone());
        deadline.set(Some(LINGER).into());
        let goodbye = async {
            stream.write_all(&[ALERT, 3, 3, 0, 2, FATAL, alert]).await?;
            stream.shutdown().await?;
            let mut rest = Vec::new();
            let mut read = 0;
            while read < LINGER_BYTES {
                rest.clear();
                match read_more(stream, &mut rest).await? {
                    0 => break,
                    count => read += count,
                }
            }
            io::Result::Ok(())
        };
        // Who does not wait for it does not want it.
        let _ = unless_closing(&mut deadline, goodbye).await;
    }
}

/// Why a client is led nowhere.
enum Refusal {
    /// It ended before its ClientHello did.
    Cut,
    /// What it sent is no ClientHello.
    Hello(SniffError),
    /// It, or the proxy, is leaving: there is nothing to tell.
    Left,
    /// It named no host.
    Nameless,
    /// It took too long.
    Slow,
    /// Its host is not among the names of the listener.
    Unlisted(TargetBuf),
}

impl From<SniffError> for Refusal {
    fn from(error: SniffError) -> Self {
        Self::Hello(error)
    }
}

impl Refusal {
    /// As the log tells it.
    fn told(&self) -> Option<(End, Option<&'static str>)> {
        Some(match self {
            Self::Cut => (End::BadRequest, Some("hello-cut")),
            Self::Hello(error) => (End::BadRequest, Some(word(*error))),
            Self::Left => return None,
            Self::Nameless => (End::BadRequest, Some("no-server-name")),
            Self::Slow => (End::ClientTimeout, None),
            Self::Unlisted(_) => (End::Forbidden, Some("name-not-listed")),
        })
    }

    /// The alert for it, if the client speaks TLS.
    fn alert(&self) -> Option<u8> {
        match self {
            Self::Cut | Self::Left | Self::Slow => None,
            Self::Hello(SniffError::NotTls) => None,
            Self::Hello(SniffError::NotClientHello) => Some(UNEXPECTED_MESSAGE),
            Self::Hello(_) => Some(DECODE_ERROR),
            Self::Nameless | Self::Unlisted(_) => Some(UNRECOGNIZED_NAME),
        }
    }
}

fn word(error: SniffError) -> &'static str {
    match error {
        SniffError::NotTls => "not-tls",
        SniffError::NotClientHello => "no-client-hello",
        SniffError::ServerName => "malformed-server-name",
        SniffError::TooLong => "hello-too-long",
        _ => "malformed-hello",
    }
}

/// Appends what comes next, at most [`READ`] bytes; answers how many.
async fn read_more(stream: &mut TcpStream, said: &mut Vec<u8>) -> io::Result<usize> {
    poll_fn(|cx| {
        lend(|buffers| {
            let mut buffer = ReadBuf::new(&mut buffers.read[..READ]);
            ready!(Pin::new(&mut *stream).poll_read(cx, &mut buffer))?;
            said.extend_from_slice(buffer.filled());
            Poll::Ready(Ok(buffer.filled().len()))
        })
    })
    .await
}

/// Most ClientHellos come whole with the first.
const READ: usize = 4096;

/// How long a refused client may take to read the alert and close.
const LINGER: Duration = Duration::from_secs(2);

/// How much of what a refused client still sends is taken in.
const LINGER_BYTES: usize = 512 * 1024;

/// A record of this type (RFC 8446 section 5.1) holds an alert.
const ALERT: u8 = 21;
/// Alerts are of this level (RFC 8446 section 6).
const FATAL: u8 = 2;
const UNEXPECTED_MESSAGE: u8 = 10;
const DECODE_ERROR: u8 = 50;
const INTERNAL_ERROR: u8 = 80;
/// RFC 6066 section 3.
const UNRECOGNIZED_NAME: u8 = 112;
