//! Interception: a proxy that removes cookies and counts the words of HTML pages.
//!
//! One thread and no `Send`: filters and gateway share an `Rc`.
//!
//! ```text
//! cargo run -p examples --example http_filters -- 127.0.0.1:3128
//! curl -x http://127.0.0.1:3128 http://example.com/
//! ```

use std::cell::Cell;
use std::io;
use std::rc::Rc;

use proxy_core::{
    Ask, ConnectError, Connected, Credentials, Denial, Gateway, Peer, Report, Target,
};
use proxy_http::{Chunk, Direction, Filter, Flow, HeadEdit, Server};
use proxy_relay::Dialer;
use tokio::net::{TcpListener, TcpStream};
use tokio::task::LocalSet;

/// Takes cookies out, in both directions.
struct NoCookies;

impl<S> Filter<S> for NoCookies {
    fn request(&self, _: &mut S, head: &mut HeadEdit<'_>) -> Flow {
        head.remove("cookie");
        Flow::Pass
    }

    fn response(&self, _: &mut S, head: &mut HeadEdit<'_>) -> Flow {
        head.remove("set-cookie");
        Flow::Pass
    }
}

/// Looks at pages in plain text, and lets everything else pass unseen.
struct WordCounter;

impl Filter<Page> for WordCounter {
    fn request(&self, _: &mut Page, head: &mut HeadEdit<'_>) -> Flow {
        // Compressed words cannot be counted.
        head.remove("accept-encoding");
        Flow::Pass
    }

    fn response(&self, _: &mut Page, head: &mut HeadEdit<'_>) -> Flow {
        match head.get("content-type") {
            Some(kind) if kind.starts_with(b"text/html") => Flow::Inspect,
            _ => Flow::Pass,
        }
    }

    fn body(&self, page: &mut Page, _: Direction, chunk: &mut Chunk<'_>) -> Flow {
        page.count(chunk.bytes());
        Flow::Inspect
    }
}

/// The state of one exchange.
#[derive(Default)]
struct Page {
    words: u64,
    in_word: bool,
}

impl Page {
    fn count(&mut self, bytes: &[u8]) {
        for byte in bytes {
            let letter = byte.is_ascii_alphanumeric();
            self.words += u64::from(letter && !self.in_word);
            self.in_word = letter;
        }
    }
}

/// Lets everybody go everywhere, and adds the words up.
#[derive(Default)]
struct Open {
    dialer: Dialer,
    words: Rc<Cell<u64>>,
}

impl Gateway for Open {
    type Identity = ();
    type Session = Page;
    type Upstream = TcpStream;

    async fn authenticate(&self, _: &Peer, _: Option<Credentials<'_>>) -> Result<(), Denial> {
        Ok(())
    }

    async fn authorize(&self, _: &(), _: &Ask<'_>) -> Result<Page, Denial> {
        Ok(Page::default())
    }

    async fn connect(
        &self,
        _: &mut Page,
        target: Target<'_>,
    ) -> Result<Connected<TcpStream>, ConnectError> {
        self.dialer.dial(target).await.map(Connected::fresh)
    }

    fn finished(&self, _: Option<&()>, page: Option<Page>, report: &Report<'_>) {
        let words = page.map_or(0, |page| page.words);
        self.words.set(self.words.get() + words);
        println!(
            "{words} words, {} in all ({})",
            self.words.get(),
            report.end
        );
    }
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> io::Result<()> {
    let address = std::env::args().nth(1);
    let address = address.as_deref().unwrap_or("127.0.0.1:3128");
    let listener = TcpListener::bind(address).await?;
    LocalSet::new().run_until(accept(listener)).await
}

async fn accept(listener: TcpListener) -> io::Result<()> {
    let server = Rc::new(Server::new(Open::default()).filter((NoCookies, WordCounter)));
    let local = listener.local_addr()?;
    println!("a proxy without cookies on {local}");
    loop {
        let (stream, remote) = listener.accept().await?;
        stream.set_nodelay(true)?;
        let (server, peer) = (Rc::clone(&server), Peer { remote, local });
        // What ended badly was told to `finished`.
        tokio::task::spawn_local(async move { server.serve(stream, peer).await });
    }
}
