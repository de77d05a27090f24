//! An HTTP and CONNECT proxy with a policy of its own: only named hosts may be reached.
//!
//! ```text
//! cargo run -p examples --example http_gateway -- 127.0.0.1:3128 example.com www.example.com
//! curl -x http://127.0.0.1:3128 https://example.com/
//! ```

use std::collections::HashSet;
use std::io;
use std::sync::Arc;

use proxy_core::{
    Ask, ConnectError, Connected, Credentials, Denial, Gateway, Peer, Report, Target,
};
use proxy_http::Server;
use proxy_relay::Dialer;
use tokio::net::{TcpListener, TcpStream};

/// Lets everybody reach the hosts on a list, and nobody anything else.
struct Edge {
    allowed: HashSet<String>,
    dialer: Dialer,
}

impl Gateway for Edge {
    type Identity = ();
    type Session = ();
    type Upstream = TcpStream;

    async fn authenticate(&self, _: &Peer, _: Option<Credentials<'_>>) -> Result<(), Denial> {
        Ok(())
    }

    async fn authorize(&self, _: &(), ask: &Ask<'_>) -> Result<(), Denial> {
        // The same question for a GET of http://host/ and a CONNECT to host:443.
        match self.allowed.contains(&ask.target.host.to_string()) {
            true => Ok(()),
            false => Err(Denial::Forbid),
        }
    }

    async fn connect(
        &self,
        _: &mut (),
        target: Target<'_>,
    ) -> Result<Connected<TcpStream>, ConnectError> {
        self.dialer.dial(target).await.map(Connected::fresh)
    }

    fn finished(&self, _: Option<&()>, _: Option<()>, report: &Report<'_>) {
        let (word, target) = (report.operation.map(|o| o.word()), report.target);
        println!(
            "{} {} {}: {}, {} bytes up, {} down, {}",
            report.peer.remote,
            word.unwrap_or("-"),
            target.map_or_else(String::new, |target| target.to_string()),
            report.status.unwrap_or(0),
            report.up,
            report.down,
            report.end,
        );
    }
}

#[tokio::main]
async fn main() -> io::Result<()> {
    let mut arguments = std::env::args().skip(1);
    let address = arguments.next();
    let address = address.as_deref().unwrap_or("127.0.0.1:3128");
    let mut allowed: HashSet<String> = arguments.collect();
    if allowed.is_empty() {
        allowed.insert("example.com".into());
    }
    let dialer = Dialer::default();
    let server = Arc::new(Server::new(Edge { allowed, dialer }));

    let listener = TcpListener::bind(address).await?;
    let local = listener.local_addr()?;
    println!("an HTTP proxy on {local}");
    loop {
        let (stream, remote) = listener.accept().await?;
        stream.set_nodelay(true)?;
        let (server, peer) = (Arc::clone(&server), Peer { remote, local });
        // What ended badly was told to `finished`.
        tokio::spawn(async move { server.serve(stream, peer).await });
    }
}
