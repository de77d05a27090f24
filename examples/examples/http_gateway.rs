//! An HTTP and CONNECT proxy with a policy of its own: who knows the password may reach named hosts.
//!
//! ```text
//! cargo run -p examples --example http_gateway -- 127.0.0.1:3128 example.com www.example.com
//! curl -x http://me:secret@127.0.0.1:3128 https://example.com/
//! ```

use std::collections::HashSet;
use std::io;
use std::sync::Arc;

use proxy_core::{
    Ask, Authenticator, ConnectError, Connected, Credentials, Denial, Gateway, Peer, Report, Target,
};
use proxy_http::Server;
use proxy_relay::Dialer;
use tokio::net::{TcpListener, TcpStream};

/// Who is there: a question of its own, so that a directory service could answer it as well.
/// (In earnest, compare hashes, or in a time that tells nothing, and mind `proxy_core::Bans`.)
struct OnePassword(&'static str);

impl Authenticator for OnePassword {
    /// The user's name.
    type Identity = String;

    async fn authenticate(
        &self,
        _: &Peer,
        shown: Option<Credentials<'_>>,
    ) -> Result<String, Denial> {
        match shown {
            Some(Credentials { user, password }) if password == self.0.as_bytes() => {
                Ok(String::from_utf8_lossy(user).into_owned())
            }
            _ => Err(Denial::Challenge),
        }
    }
}

/// Lets users reach the hosts on a list, and nobody anything else.
struct Edge<A> {
    users: A,
    allowed: HashSet<String>,
    dialer: Dialer,
}

impl<A: Authenticator<Identity = String>> Gateway for Edge<A> {
    type Identity = String;
    type Session = ();
    type Upstream = TcpStream;

    async fn authenticate(
        &self,
        peer: &Peer,
        shown: Option<Credentials<'_>>,
    ) -> Result<String, Denial> {
        self.users.authenticate(peer, shown).await
    }

    async fn authorize(&self, _: &String, ask: &Ask<'_>) -> Result<(), Denial> {
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

    fn finished(&self, who: Option<&String>, _: Option<()>, report: &Report<'_>) {
        let (word, target) = (report.operation.map(|o| o.word()), report.target);
        println!(
            "{} {} {} {}: {}, {} bytes up, {} down, {}",
            report.peer.remote,
            who.map_or("-", String::as_str),
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
    let server = Arc::new(Server::new(Edge {
        users: OnePassword("secret"),
        allowed,
        dialer,
    }));

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
