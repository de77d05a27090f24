//! Driving a handshake on a stream.

use std::future::poll_fn;
use std::io;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use proxy_core::Status;
use proxy_relay::Transport;
use tokio::io::ReadBuf;

use crate::scratch::{self, RECORD};
use crate::stream::Inner;
use crate::{SniffError, Sniffer, TlsError, TlsErrorKind, TlsStream};

/// Which end of the connection is ours.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Role {
    Client,
    Server,
}

/// Makes the connection ready for data, within `timeout`; on failure the stream
/// comes back.
pub(crate) async fn shake<S: Transport>(
    mut inner: Box<Inner<S>>,
    role: Role,
    timeout: Duration,
) -> Result<TlsStream<S>, TlsError<S>> {
    let steps = async {
        if role == Role::Server {
            hello(&mut inner).await?;
        }
        poll_fn(|cx| inner.poll_handshake(cx)).await
    };
    let result = tokio::time::timeout(timeout, steps).await;
    match result.unwrap_or(Err(TlsErrorKind::TimedOut)) {
        Ok(()) => Ok(TlsStream::new(inner)),
        Err(kind) => Err(failed(kind, *inner)),
    }
}

/// Collects the ClientHello, so that clear text is met before TLS has answered
/// and the name is known.
async fn hello<S: Transport>(inner: &mut Inner<S>) -> Result<(), TlsErrorKind> {
    let mut sniffer = Sniffer::default();
    loop {
        let filled = poll_fn(|cx| inner.poll_keep(cx)).await;
        if filled.map_err(TlsErrorKind::Io)? == 0 {
            return Err(TlsErrorKind::Closed);
        }
        match sniffer.sniff(inner.session.incoming()) {
            Ok(Status::Partial) => {}
            Ok(Status::Complete(hello, _)) => {
                inner.session.server_name = hello.server_name().map(Into::into);
                return Ok(());
            }
            Err(SniffError::NotTls) => return refuse(inner.session.incoming()),
            // rustls has the right alert for it.
            Err(_) => return Ok(()),
        }
    }
}

/// Tells clear text from TLS that begins wrongly.
fn refuse(input: &[u8]) -> Result<(), TlsErrorKind> {
    match input.first() {
        Some(letter) if letter.is_ascii_alphabetic() => Err(TlsErrorKind::ClearText),
        // A record of another kind: rustls has the right alert for it.
        Some(20..=23) => Ok(()),
        _ => Err(TlsErrorKind::NotTls),
    }
}

fn failed<S>(kind: TlsErrorKind, inner: Inner<S>) -> TlsError<S> {
    let unread = match kind {
        TlsErrorKind::ClearText | TlsErrorKind::NotTls => inner.session.incoming().to_vec(),
        _ => Vec::new(),
    };
    TlsError {
        unread,
        ..TlsError::new(kind, inner.io)
    }
}

impl<S: Transport> Inner<S> {
    /// Reads once and keeps it all.
    fn poll_keep(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<usize>> {
        scratch::lend(|tls| {
            let kept = self.session.incoming().len();
            let filled = ready!(self.poll_fill(cx, &mut tls[..kept + RECORD]))?;
            if filled > 0 {
                self.session.keep(&tls[kept..kept + filled]);
            }
            Poll::Ready(Ok(filled))
        })
    }

    fn poll_handshake(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), TlsErrorKind>> {
        if let Err(error) = self.session.settle() {
            let _ = self.poll_send(cx);
            return Poll::Ready(Err(TlsErrorKind::Protocol(error)));
        }
        loop {
            let sent = self.poll_flush(cx).map_err(TlsErrorKind::Io)?;
            match self.session.state().is_handshaking() {
                false if self.session.owes_only_tickets() => return Poll::Ready(Ok(())),
                false => return sent.map(Ok),
                // Even while sending waits: the peer may read only after it has
                // sent what it has.
                true => {}
            }
            ready!(self.poll_receive(cx, &mut ReadBuf::new(&mut [])));
            self.check_end().map_err(kind_of)?;
        }
    }
}

/// A failure of TLS travels inside an I/O error.
fn kind_of(error: io::Error) -> TlsErrorKind {
    match error.downcast::<rustls::Error>() {
        Ok(error) => TlsErrorKind::Protocol(error),
        Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => TlsErrorKind::Closed,
        Err(error) => TlsErrorKind::Io(error),
    }
}
