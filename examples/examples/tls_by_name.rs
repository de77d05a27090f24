//! Leads a TLS client to the host that it names, without decrypting anything.
//!
//! `cargo run -p examples --example tls_by_name` shows it to a client and a host of
//! its own: the host gets the very bytes that the client sent.

use std::error::Error;
use std::net::SocketAddr;

use proxy_core::{
    Ask, ConnectError, ConnectErrorKind, Connected, Credentials, Denial, Gateway, Host, Peer,
    Report, Status, Target, TargetBuf,
};
use proxy_relay::{Dialer, Passthrough};
use proxy_tls::Sniffer;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Box<dyn Error>> {
    let host = TcpListener::bind("127.0.0.1:0").await?;
    let front = TcpListener::bind("127.0.0.1:0").await?;
    let hosts = Hosts(vec![("example.com", host.local_addr()?)]);
    let tunnels = Passthrough::new(hosts);

    let router = async {
        let (client, remote) = front.accept().await?;
        let local = client.local_addr()?;
        lead(&tunnels, client, Peer { remote, local }).await
    };
    let origin = async {
        let (mut stream, _) = host.accept().await?;
        let mut hello = Vec::new();
        stream.read_to_end(&mut hello).await?;
        assert!(hello == CLIENT_HELLO);
        println!("the host got {} bytes", hello.len());
        Ok::<_, Box<dyn Error>>(())
    };
    let client = async {
        let mut stream = TcpStream::connect(front.local_addr()?).await?;
        stream.write_all(CLIENT_HELLO).await?;
        Ok(stream.shutdown().await?)
    };
    tokio::try_join!(router, origin, client)?;
    Ok(())
}

/// Reads the ClientHello, which may come in pieces, and goes where it says. A real
/// router gives it a deadline.
async fn lead(
    tunnels: &Passthrough<Hosts>,
    mut client: TcpStream,
    peer: Peer,
) -> Result<(), Box<dyn Error>> {
    let mut said = Vec::new();
    // It keeps what it has seen, and refuses what grows too long.
    let mut sniffer = Sniffer::default();
    let target = loop {
        if client.read_buf(&mut said).await? == 0 {
            return Err("the client left".into());
        }
        if let Status::Complete(hello, _) = sniffer.sniff(&said)? {
            let name = hello.server_name().ok_or("the client names no host")?;
            let host = Host::Name(name);
            break TargetBuf::from(Target { host, port: 443 });
        }
    };
    Ok(tunnels.serve(client, peer, target, said).await?)
}

/// The hosts that clients may name, and where they are.
struct Hosts(Vec<(&'static str, SocketAddr)>);

impl Hosts {
    fn find(&self, host: Host<'_>) -> Option<SocketAddr> {
        let mut hosts = self.0.iter();
        hosts
            .find(|(name, _)| host.is_name(name))
            .map(|(_, at)| *at)
    }
}

impl Gateway for Hosts {
    type Identity = ();
    type Session = ();
    type Upstream = TcpStream;

    async fn authenticate(&self, _: &Peer, _: Option<Credentials<'_>>) -> Result<(), Denial> {
        Ok(())
    }

    async fn authorize(&self, _: &(), ask: &Ask<'_>) -> Result<(), Denial> {
        match self.find(ask.target.host) {
            Some(_) => Ok(()),
            None => Err(Denial::Forbid),
        }
    }

    async fn connect(
        &self,
        _: &mut (),
        target: Target<'_>,
    ) -> Result<Connected<TcpStream>, ConnectError> {
        let at = self.find(target.host);
        let at = at.ok_or_else(|| ConnectError::origin(ConnectErrorKind::NameNotFound))?;
        let stream = Dialer::default().dial(at.into()).await?;
        Ok(Connected::fresh(stream))
    }

    fn finished(&self, _: Option<&()>, _: Option<()>, report: &Report<'_>) {
        if let Some(target) = report.target {
            println!(
                "{target}: {} up, {} down, {}",
                report.up, report.down, report.end
            );
        }
    }
}

/// As the `openssl` program sends it for `example.com`.
const CLIENT_HELLO: &[u8] = include_bytes!("../../proxy-tls/tests/data/openssl.bin");
