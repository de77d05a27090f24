//! Measures what an idle TLS connection costs the server: the growth of its
//! resident memory over 2,000 loopback connections, the clients in a process of
//! their own.
//!
//! ```text
//! cargo run --release -p proxy-tls --example idle_memory
//! ```

use std::error::Error;
use std::future::poll_fn;
use std::io::{self, Write};
use std::pin::Pin;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::task::{Poll, ready};
use std::{env, fs};

use proxy_tls::rustls::RootCertStore;
use proxy_tls::rustls::pki_types::{CertificateDer, PrivateKeyDer, pem::PemObject};
use proxy_tls::rustls::sign::CertifiedKey;
use proxy_tls::{
    Acceptor, Connector, PostQuantum, SingleCertificate, TlsOptions, TlsStream, provider,
};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWriteExt, ReadBuf};
use tokio::net::{TcpListener, TcpStream};

const CONNECTIONS: usize = 2_000;
/// Exchanged in each direction before the second measurement.
const EXCHANGED: usize = 16 * 1024;

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Box<dyn Error>> {
    let arguments: Vec<String> = env::args().collect();
    match &arguments[1..] {
        [address, root] => clients(address, root).await,
        _ => server().await,
    }
}

async fn server() -> Result<(), Box<dyn Error>> {
    let made = rcgen::generate_simple_self_signed(["localhost".to_owned()])?;
    let provider = provider(PostQuantum::Omit);
    let key = PrivateKeyDer::Pkcs8(made.signing_key.serialize_der().into());
    let pair = CertifiedKey::from_der(vec![made.cert.der().clone()], key, &provider)?;
    let certificates = Arc::new(SingleCertificate::new(Arc::new(pair)));
    let acceptor = Acceptor::new(provider, certificates, &TlsOptions::default())?;
    let listener = TcpListener::bind("127.0.0.1:0").await?;
    let mut child = Command::new(env::current_exe()?)
        .arg(listener.local_addr()?.to_string())
        .arg(made.cert.pem())
        .stdin(Stdio::piped())
        .spawn()?;
    let mut clients = child.stdin.take().ok_or("no pipe")?;

    // The first connection pays for what all share.
    let mut streams = vec![accept(&acceptor, &listener).await?];
    exchange(&mut streams[0]).await?;
    let empty = resident()?;
    for _ in 0..CONNECTIONS {
        streams.push(accept(&acceptor, &listener).await?);
    }
    report("no data yet", empty)?;
    clients.write_all(b"\n")?;
    for stream in &mut streams[1..] {
        exchange(stream).await?;
    }
    report("after 16 KiB each way", empty)?;
    drop(clients);
    child.wait()?;
    Ok(())
}

async fn accept(
    acceptor: &Acceptor,
    listener: &TcpListener,
) -> Result<TlsStream<TcpStream>, Box<dyn Error>> {
    let (stream, _) = listener.accept().await?;
    Ok(acceptor.accept(stream).await?)
}

/// As a proxy does it: through a buffer of the thread, never one of the
/// connection.
async fn exchange(stream: &mut TlsStream<TcpStream>) -> io::Result<()> {
    let mut left = EXCHANGED;
    while left > 0 {
        left -= poll_fn(|cx| {
            proxy_relay::lend(|buffers| {
                let mut buf = ReadBuf::new(&mut buffers.read);
                ready!(Pin::new(&mut *stream).poll_read(cx, &mut buf))?;
                match buf.filled().len() {
                    0 => Poll::Ready(Err(io::ErrorKind::UnexpectedEof.into())),
                    read => Poll::Ready(Ok::<_, io::Error>(read)),
                }
            })
        })
        .await?;
    }
    stream.write_all(&[7; EXCHANGED]).await?;
    stream.flush().await
}

fn report(when: &str, empty: usize) -> Result<(), Box<dyn Error>> {
    let each = (resident()? - empty) / CONNECTIONS;
    println!("{each} bytes of resident memory per connection, {when}");
    Ok(())
}

fn resident() -> Result<usize, Box<dyn Error>> {
    let status = fs::read_to_string("/proc/self/status")?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
    let kibibytes = line.and_then(|line| line.split_whitespace().next());
    Ok(kibibytes.ok_or("no VmRSS")?.parse::<usize>()? * 1024)
}

async fn clients(address: &str, root: &str) -> Result<(), Box<dyn Error>> {
    let mut roots = RootCertStore::empty();
    roots.add(CertificateDer::from_pem_slice(root.as_bytes())?)?;
    let connector = Connector::new(provider(PostQuantum::Omit), roots, &TlsOptions::default())?;
    let mut streams = Vec::new();
    for _ in 0..=CONNECTIONS {
        let stream = TcpStream::connect(address).await?;
        let mut stream = connector.connect("localhost".try_into()?, stream).await?;
        if streams.is_empty() {
            answer(&mut stream).await?;
        }
        streams.push(stream);
    }
    let mut line = String::new();
    io::stdin().read_line(&mut line)?;
    for stream in &mut streams[1..] {
        answer(stream).await?;
    }
    // Open until the server has measured.
    io::stdin().read_line(&mut line)?;
    Ok(())
}

async fn answer(stream: &mut TlsStream<TcpStream>) -> io::Result<()> {
    stream.write_all(&[8; EXCHANGED]).await?;
    stream.flush().await?;
    stream.read_exact(&mut vec![0; EXCHANGED]).await?;
    Ok(())
}
