//! One TLS connection without its socket: ciphertext in, ciphertext out.
//!
//! rustls' unbuffered interface, because it decrypts in the caller's buffer: an
//! idle connection owns no record buffer, a bulk stream is read in pieces of
//! the caller's choice instead of 4 KiB.

use rustls::client::UnbufferedClientConnection;
use rustls::server::UnbufferedServerConnection;
use rustls::unbuffered::{
    ConnectionState, EncodeError, EncodeTlsData, EncryptError, InsufficientSizeError,
    UnbufferedStatus,
};
use rustls::{CommonState, Error, ProtocolVersion};
use tokio::io::ReadBuf;

use crate::scratch::{BULK, RECORD};
use crate::spill::Spill;

pub(crate) struct Session {
    connection: Connection,
    /// The beginning of a record (or of a handshake message) whose end has not
    /// arrived.
    incoming: Vec<u8>,
    /// Decrypted, but not yet read.
    pub(crate) plain: Spill,
    /// Encrypted, but not yet sent.
    pub(crate) outgoing: Spill,
    /// The most plaintext to encrypt at once: grows while the peer keeps up, so
    /// that a slow one costs little memory.
    quantum: usize,
    pub(crate) server_name: Option<Box<str>>,
    peer_closed: bool,
}

impl Session {
    pub(crate) fn new(connection: Connection, server_name: Option<Box<str>>) -> Self {
        Self {
            connection,
            incoming: Vec::new(),
            plain: Spill::default(),
            outgoing: Spill::default(),
            quantum: FIRST_QUANTUM,
            server_name,
            peer_closed: false,
        }
    }

    /// Adds ciphertext without looking at it.
    pub(crate) fn keep(&mut self, tls: &[u8]) {
        self.incoming.extend_from_slice(tls);
    }

    /// Decrypts `tls`, which begins with the bytes of [`incoming`](Self::incoming),
    /// into `out` and, what does not fit, into `plain`. What remains becomes the
    /// new `incoming`.
    ///
    /// Answers of the protocol itself, alerts included, land in `outgoing`.
    pub(crate) fn receive(&mut self, tls: &mut [u8], out: &mut ReadBuf<'_>) -> Result<(), Error> {
        let (used, result) = self.process(tls, out);
        match &tls[used..] {
            [] => self.incoming = Vec::new(),
            rest => {
                self.incoming.clear();
                self.incoming.extend_from_slice(rest);
            }
        }
        match result {
            Ok(()) if self.incoming.len() > MAX_INCOMING => Err(Error::General(
                "handshake message of over 64 KiB".to_owned(),
            )),
            Ok(()) => Ok(()),
            Err(error) => {
                self.take_alert(out);
                Err(error)
            }
        }
    }

    /// Does whatever can be done without more input; starts a client's
    /// handshake.
    pub(crate) fn settle(&mut self) -> Result<(), Error> {
        let mut incoming = std::mem::take(&mut self.incoming);
        self.receive(&mut incoming, &mut ReadBuf::new(&mut []))
    }

    /// Encrypts the beginning of `plain` into `tls`, which must have room for
    /// [`BULK`] and one record more; returns how much of `plain` was taken and
    /// the ciphertext's length.
    ///
    /// Only while nothing is outgoing, since the order is part of the cipher.
    pub(crate) fn encrypt(
        &mut self,
        plain: &[u8],
        tls: &mut [u8],
    ) -> Result<(usize, usize), Error> {
        let plain = &plain[..plain.len().min(self.quantum)];
        let written = self.connection.encrypt(&mut self.incoming, plain, tls)?;
        Ok((plain.len(), written))
    }

    /// Queues a close_notify (RFC 8446 section 6.1).
    pub(crate) fn close(&mut self) -> Result<(), Error> {
        let mut alert = [0; MAX_CLOSE];
        let written = self.connection.close(&mut self.incoming, &mut alert)?;
        self.outgoing.push(&alert[..written]);
        Ok(())
    }

    /// Notes how much of the last ciphertext the stream took.
    pub(crate) fn sent(&mut self, whole: bool) {
        self.quantum = match whole {
            true => (2 * self.quantum).min(BULK),
            false => SLOW_QUANTUM,
        };
    }

    /// Whether, the handshake being over, the peer waits for nothing that is
    /// still outgoing.
    pub(crate) fn owes_only_tickets(&self) -> bool {
        matches!(self.connection, Connection::Server(_))
            && self.state().protocol_version() == Some(ProtocolVersion::TLSv1_3)
    }

    /// Whether the peer sent its close_notify.
    pub(crate) fn peer_closed(&self) -> bool {
        self.peer_closed
    }

    /// The ciphertext kept back.
    pub(crate) fn incoming(&self) -> &[u8] {
        &self.incoming
    }

    /// The memory that buffers hold, used or not.
    #[cfg(test)]
    pub(crate) fn buffered(&self) -> usize {
        self.incoming.capacity() + self.plain.capacity() + self.outgoing.capacity()
    }

    pub(crate) fn state(&self) -> &CommonState {
        match &self.connection {
            Connection::Client(client) => client,
            Connection::Server(server) => server,
        }
    }

    /// Steps until nothing is left to do; how much of `tls` is done with.
    fn process(&mut self, tls: &mut [u8], out: &mut ReadBuf<'_>) -> (usize, Result<(), Error>) {
        let mut used = 0;
        loop {
            let (discard, step) = self.step(&mut tls[used..], out);
            used += discard;
            match step {
                Ok(Step::Again) => {}
                Ok(Step::Quiet) => return (used, Ok(())),
                Err(error) => return (used, Err(error)),
            }
        }
    }

    /// Queues what rustls has to say after an error. It must not see any more
    /// input, and does not look for it while it has something to send.
    fn take_alert(&mut self, out: &mut ReadBuf<'_>) {
        while self.state().wants_write() && matches!(self.step(&mut [], out).1, Ok(Step::Again)) {}
    }

    fn step(&mut self, tls: &mut [u8], out: &mut ReadBuf<'_>) -> (usize, Result<Step, Error>) {
        let mut sink = Sink {
            out,
            plain: &mut self.plain,
            outgoing: &mut self.outgoing,
            peer_closed: &mut self.peer_closed,
        };
        match &mut self.connection {
            Connection::Client(client) => sink.take(client.process_tls_records(tls)),
            Connection::Server(server) => sink.take(server.process_tls_records(tls)),
        }
    }
}

/// Either side of a connection.
pub(crate) enum Connection {
    Client(UnbufferedClientConnection),
    Server(UnbufferedServerConnection),
}

impl Connection {
    fn encrypt(&mut self, tls: &mut [u8], plain: &[u8], out: &mut [u8]) -> Result<usize, Error> {
        match self {
            Self::Client(client) => encrypt(client.process_tls_records(tls), plain, out),
            Self::Server(server) => encrypt(server.process_tls_records(tls), plain, out),
        }
    }

    fn close(&mut self, tls: &mut [u8], out: &mut [u8]) -> Result<usize, Error> {
        match self {
            Self::Client(client) => close(client.process_tls_records(tls), out),
            Self::Server(server) => close(server.process_tls_records(tls), out),
        }
    }
}

/// Where the results of one call go.
struct Sink<'s, 'b, 'o> {
    out: &'s mut ReadBuf<'o>,
    plain: &'b mut Spill,
    outgoing: &'b mut Spill,
    peer_closed: &'b mut bool,
}

impl Sink<'_, '_, '_> {
    fn take<D>(&mut self, status: UnbufferedStatus<'_, '_, D>) -> (usize, Result<Step, Error>) {
        let mut discard = status.discard;
        let step = status
            .state
            .and_then(|state| self.handle(state, &mut discard));
        (discard, step)
    }

    fn handle<D>(
        &mut self,
        state: ConnectionState<'_, '_, D>,
        discard: &mut usize,
    ) -> Result<Step, Error> {
        match state {
            ConnectionState::ReadTraffic(mut traffic) => {
                while let Some(record) = traffic.next_record() {
                    let record = record?;
                    *discard += record.discard;
                    self.put(record.payload);
                }
            }
            ConnectionState::EncodeTlsData(mut data) => encode(&mut data, self.outgoing)?,
            // What was encoded is queued, and will be sent before anything else.
            ConnectionState::TransmitTlsData(data) => data.done(),
            ConnectionState::PeerClosed => *self.peer_closed = true,
            ConnectionState::BlockedHandshake
            | ConnectionState::WriteTraffic(_)
            | ConnectionState::Closed => return Ok(Step::Quiet),
            // Early data is never enabled.
            _ => return Err(unexpected()),
        }
        Ok(Step::Again)
    }

    fn put(&mut self, payload: &[u8]) {
        let room = match self.plain.is_empty() {
            true => self.out.remaining().min(payload.len()),
            false => 0,
        };
        let (now, later) = payload.split_at(room);
        self.out.put_slice(now);
        self.plain.push(later);
    }
}

enum Step {
    Again,
    Quiet,
}

fn encode<D>(data: &mut EncodeTlsData<'_, D>, outgoing: &mut Spill) -> Result<(), Error> {
    // An empty buffer asks for the size.
    match data.encode(&mut []) {
        Err(EncodeError::InsufficientSize(InsufficientSizeError { required_size })) => {
            let room = outgoing.grow(required_size);
            data.encode(room).map_err(|_| unexpected())?;
            Ok(())
        }
        Ok(_) | Err(EncodeError::AlreadyEncoded) => Ok(()),
    }
}

fn encrypt<D>(
    status: UnbufferedStatus<'_, '_, D>,
    plain: &[u8],
    out: &mut [u8],
) -> Result<usize, Error> {
    match status.state? {
        ConnectionState::WriteTraffic(mut traffic) => {
            traffic.encrypt(plain, out).map_err(encrypt_error)
        }
        _ => Err(unexpected()),
    }
}

fn close<D>(status: UnbufferedStatus<'_, '_, D>, out: &mut [u8]) -> Result<usize, Error> {
    match status.state? {
        ConnectionState::WriteTraffic(mut traffic) => {
            traffic.queue_close_notify(out).map_err(encrypt_error)
        }
        _ => Err(unexpected()),
    }
}

fn encrypt_error(error: EncryptError) -> Error {
    match error {
        EncryptError::EncryptExhausted => Error::EncryptError,
        EncryptError::InsufficientSize(_) => unexpected(),
    }
}

/// For what rustls' documentation rules out; an error is better than a panic.
fn unexpected() -> Error {
    Error::General("unexpected state of the TLS connection".to_owned())
}

/// The most ciphertext kept while a message is incomplete. rustls itself
/// refuses handshake messages of over 64 KiB; this counts their records too.
const MAX_INCOMING: usize = 64 * 1024 + RECORD;
const FIRST_QUANTUM: usize = 4 * RECORD;
const SLOW_QUANTUM: usize = 2 * RECORD;
/// More than a key update and a close_notify take.
const MAX_CLOSE: usize = 512;
