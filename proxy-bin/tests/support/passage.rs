//! Every way for two peers to exchange any bytes: the tunnels of all modes and
//! what begins as an HTTP request (101).

use std::sync::mpsc::Receiver;
use std::time::Duration;

use super::{Accepted, Answer, Conn, LogLine, Mode, Origin, Proxyd, wait_for};

/// How bytes pass.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Passage {
    Tunnel(Mode),
    /// A WebSocket through this listener.
    Upgrade(&'static str),
}

/// One that is open.
pub(crate) struct Passing {
    pub(crate) passage: Passage,
    /// The client's end.
    pub(crate) near: Conn,
    /// The origin's end.
    pub(crate) far: Conn,
    /// Bytes that count and had passed before it was open, up and down: an
    /// upgrade begins with two heads.
    pub(crate) heads: (u64, u64),
}

impl Passage {
    /// All of them.
    pub(crate) fn all() -> impl Iterator<Item = Self> {
        let upgrades = ["http", "auto", "https"].map(Self::Upgrade);
        Mode::ALL.map(Self::Tunnel).into_iter().chain(upgrades)
    }

    /// Whether the client speaks TLS to the proxy. Other bytes can be spliced.
    pub(crate) fn is_tls(self) -> bool {
        match self {
            Self::Tunnel(mode) => mode.is_tls(),
            Self::Upgrade(listener) => listener == "https",
        }
    }

    /// Opens one to `origin`, whose connections are `accepted`.
    pub(crate) fn open(
        self,
        proxy: &Proxyd,
        origin: &Origin,
        accepted: &Receiver<Accepted>,
    ) -> Passing {
        let opened = self.try_open(proxy, origin, accepted);
        opened.unwrap_or_else(|| panic!("{self:?} is refused"))
    }

    /// The same if there is a place for one more connection.
    pub(crate) fn try_open(
        self,
        proxy: &Proxyd,
        origin: &Origin,
        accepted: &Receiver<Accepted>,
    ) -> Option<Passing> {
        let near = match self {
            Self::Tunnel(mode) => mode.dial(proxy),
            Self::Upgrade("https") => Conn::dial_tls(proxy.address("https")),
            Self::Upgrade(listener) => Conn::dial(proxy.address(listener)),
        };
        match self {
            Self::Tunnel(mode) => near.send_anyway(mode.hello(origin.address)),
            Self::Upgrade(_) => near.send_anyway(upgrade(origin)),
        }
        let far = match self {
            Self::Tunnel(mode) if mode.has_replies() => {
                (mode.answer(&near) == 200).then(|| Accepted::next(accepted))?
            }
            _ => first_of(&near, accepted)?,
        };
        let heads = match self {
            Self::Tunnel(_) => (0, 0),
            Self::Upgrade(_) => switch(&near, &far),
        };
        Some(Passing {
            passage: self,
            near,
            far,
            heads,
        })
    }
}

/// The origin's end, unless the client hears that it is refused.
fn first_of(near: &Conn, accepted: &Receiver<Accepted>) -> Option<Conn> {
    let mut far = None;
    wait_for("an answer or a connection", || {
        far = accepted.try_recv().ok();
        far.is_some() || !near.is_tls() && !near.is_silent_for(Duration::from_millis(2))
    });
    // It may have come behind the look.
    far.or_else(|| accepted.try_recv().ok())
        .map(Accepted::into_conn)
}

fn upgrade(origin: &Origin) -> String {
    let host = origin.authority();
    format!("GET http://{host}/chat HTTP/1.1\r\nHost: {host}\r\n{UPGRADE}")
}

/// Lets the origin agree; how long the two heads were.
fn switch(near: &Conn, far: &Conn) -> (u64, u64) {
    let up = far.until(b"\r\n\r\n").len();
    far.send(format!("HTTP/1.1 101 Switching Protocols\r\n{UPGRADE}"));
    let answer = Answer::read_head(near);
    assert_eq!(answer.status, 101, "{}", answer.head);
    (up as u64, answer.head.len() as u64)
}

impl LogLine {
    /// The one of the client with this address.
    pub(crate) fn of<'l>(client: &str, lines: &'l [Self]) -> &'l Self {
        let found = lines.iter().find(|line| line.text("client") == client);
        found.unwrap_or_else(|| panic!("no line of {client}"))
    }
}

const UPGRADE: &str = "Connection: Upgrade\r\nUpgrade: websocket\r\n\r\n";
