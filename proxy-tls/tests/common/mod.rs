//! Certificates, peers and streams that misbehave.
#![allow(dead_code, reason = "each test file uses a part")]

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use proxy_relay::Transport;
use proxy_tls::rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use proxy_tls::rustls::sign::CertifiedKey;
use proxy_tls::rustls::{
    ClientConfig, RootCertStore, ServerConfig, SupportedProtocolVersion, version,
};
use proxy_tls::{Acceptor, Connector, PostQuantum, SingleCertificate, TlsOptions, provider};
use tokio::io::{AsyncRead, AsyncWrite, DuplexStream, ReadBuf};

/// A certificate for `localhost` that is its own root.
pub(crate) struct Identity {
    pub(crate) chain: CertificateDer<'static>,
    pub(crate) key: PrivateKeyDer<'static>,
    pub(crate) chain_pem: String,
    pub(crate) key_pem: String,
}

impl Identity {
    pub(crate) fn new(names: &[&str]) -> Self {
        let names: Vec<String> = names.iter().map(|name| (*name).to_owned()).collect();
        let made = rcgen::generate_simple_self_signed(names).expect("a certificate");
        Self {
            chain: made.cert.der().clone(),
            key: PrivateKeyDer::Pkcs8(made.signing_key.serialize_der().into()),
            chain_pem: made.cert.pem(),
            key_pem: made.signing_key.serialize_pem(),
        }
    }

    pub(crate) fn localhost() -> Self {
        Self::new(&["localhost"])
    }

    pub(crate) fn pair(&self) -> Arc<CertifiedKey> {
        let provider = provider(PostQuantum::Omit);
        let chain = vec![self.chain.clone()];
        let pair = CertifiedKey::from_der(chain, self.key.clone_key(), &provider);
        Arc::new(pair.expect("they match"))
    }

    pub(crate) fn roots(&self) -> RootCertStore {
        let mut roots = RootCertStore::empty();
        roots.add(self.chain.clone()).expect("a root");
        roots
    }

    pub(crate) fn acceptor(&self, options: &TlsOptions) -> Acceptor {
        let certificates = Arc::new(SingleCertificate::new(self.pair()));
        Acceptor::new(provider(PostQuantum::Omit), certificates, options).expect("an acceptor")
    }

    pub(crate) fn connector(&self, options: &TlsOptions) -> Connector {
        Connector::new(provider(PostQuantum::Omit), self.roots(), options).expect("a connector")
    }

    /// An independent client of the given versions.
    pub(crate) fn client(
        &self,
        versions: &[&'static SupportedProtocolVersion],
        alpn: &[&str],
    ) -> tokio_rustls::TlsConnector {
        let mut config = ClientConfig::builder_with_provider(provider(PostQuantum::Omit))
            .with_protocol_versions(versions)
            .expect("known versions")
            .with_root_certificates(self.roots())
            .with_no_client_auth();
        config.alpn_protocols = alpn.iter().map(|name| name.as_bytes().to_vec()).collect();
        Arc::new(config).into()
    }

    /// An independent server.
    pub(crate) fn server(&self) -> tokio_rustls::TlsAcceptor {
        let mut config = ServerConfig::builder_with_provider(provider(PostQuantum::Omit))
            .with_protocol_versions(ALL)
            .expect("known versions")
            .with_no_client_auth()
            .with_single_cert(vec![self.chain.clone()], self.key.clone_key())
            .expect("they match");
        config.alpn_protocols = vec![b"http/1.1".to_vec()];
        Arc::new(config).into()
    }
}

pub(crate) const ALL: &[&SupportedProtocolVersion] = &[&version::TLS13, &version::TLS12];
pub(crate) const TLS12: &[&SupportedProtocolVersion] = &[&version::TLS12];
pub(crate) const TLS13: &[&SupportedProtocolVersion] = &[&version::TLS13];

pub(crate) fn localhost() -> ServerName<'static> {
    "localhost".try_into().expect("a name")
}

/// Fails a test that hangs.
pub(crate) async fn bounded<F: Future>(future: F) -> F::Output {
    tokio::time::timeout(Duration::from_secs(60), future)
        .await
        .expect("in time")
}

/// Bytes that do not repeat, so that a shift or swap is seen.
pub(crate) fn pattern(len: usize, seed: u64) -> Vec<u8> {
    let mut state = seed | 1;
    let next = || {
        state = state
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        state.to_be_bytes()[0]
    };
    std::iter::repeat_with(next).take(len).collect()
}

/// What happened to a [`Spy`].
#[derive(Debug, Default)]
pub(crate) struct Seen {
    pub(crate) reads: AtomicUsize,
    pub(crate) writes: AtomicUsize,
    pub(crate) written: AtomicUsize,
    pub(crate) aborts: AtomicUsize,
}

impl Seen {
    pub(crate) fn take_writes(&self) -> (usize, usize) {
        let writes = self.writes.swap(0, Ordering::Relaxed);
        (writes, self.written.swap(0, Ordering::Relaxed))
    }

    pub(crate) fn take_reads(&self) -> usize {
        self.reads.swap(0, Ordering::Relaxed)
    }
}

/// Changes what is written: byte by byte, in other records, or spoilt.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Change {
    /// The byte at this place is changed by XOR.
    Flip(usize, u8),
    None,
    /// The first record is cut into records of this size.
    Records(usize),
}

/// A stream that counts calls and changes bytes.
#[derive(Debug)]
pub(crate) struct Spy<S> {
    pub(crate) inner: S,
    pub(crate) seen: Arc<Seen>,
    change: Change,
    at: usize,
    queue: Vec<u8>,
}

impl<S> Spy<S> {
    pub(crate) fn new(inner: S, change: Change) -> Self {
        Self {
            inner,
            seen: Arc::default(),
            change,
            at: 0,
            queue: Vec::new(),
        }
    }
}

impl<S: Unpin> Transport for Spy<S>
where
    S: AsyncRead + AsyncWrite,
{
    fn abort(&mut self) {
        self.seen.aborts.fetch_add(1, Ordering::Relaxed);
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for Spy<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        out: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let result = Pin::new(&mut self.inner).poll_read(cx, out);
        if result.is_ready() {
            self.seen.reads.fetch_add(1, Ordering::Relaxed);
        }
        result
    }
}

impl<S: AsyncWrite + Unpin> Spy<S> {
    fn poll_drain(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        while !self.queue.is_empty() {
            let sent = ready!(Pin::new(&mut self.inner).poll_write(cx, &self.queue))?;
            self.queue.drain(..sent);
        }
        Poll::Ready(Ok(()))
    }

    fn changed(&mut self, data: &[u8]) -> Option<Vec<u8>> {
        let start = self.at;
        match self.change {
            Change::Flip(at, bits) if (start..start + data.len()).contains(&at) => {
                let mut data = data.to_vec();
                data[at - start] ^= bits;
                Some(data)
            }
            Change::Records(size) if start == 0 => {
                let (head, message) = data.split_at(5);
                assert_eq!(head[0], 22);
                let record = |part: &[u8]| {
                    let len = u16::try_from(part.len()).expect("small").to_be_bytes();
                    [&head[..3], &len, part].concat()
                };
                Some(message.chunks(size).flat_map(record).collect())
            }
            _ => None,
        }
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Spy<S> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        data: &[u8],
    ) -> Poll<io::Result<usize>> {
        ready!(self.poll_drain(cx))?;
        let sent = match self.changed(data) {
            Some(other) => {
                self.queue = other;
                let _ = self.poll_drain(cx)?;
                data.len()
            }
            None => ready!(Pin::new(&mut self.inner).poll_write(cx, data))?,
        };
        self.at += sent;
        self.seen.writes.fetch_add(1, Ordering::Relaxed);
        self.seen.written.fetch_add(sent, Ordering::Relaxed);
        Poll::Ready(Ok(sent))
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        ready!(self.poll_drain(cx))?;
        Pin::new(&mut self.inner).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        ready!(self.poll_drain(cx))?;
        Pin::new(&mut self.inner).poll_shutdown(cx)
    }
}

/// Two ends of a pipe that holds `size` bytes each way.
pub(crate) fn pipe(size: usize) -> (Spy<DuplexStream>, Spy<DuplexStream>) {
    changed_pipe(size, Change::None, Change::None)
}

pub(crate) fn changed_pipe(
    size: usize,
    client: Change,
    server: Change,
) -> (Spy<DuplexStream>, Spy<DuplexStream>) {
    let (a, b) = tokio::io::duplex(size);
    (Spy::new(a, client), Spy::new(b, server))
}
