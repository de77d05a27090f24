//! The ways to reach an origin through `proxyd` as a stream of bytes.

use std::net::SocketAddr;

use super::{Answer, Conn, Proxyd};

/// One way of tunnelling.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Mode {
    AutoConnect,
    AutoSocks4,
    AutoSocks5,
    AutoTls,
    Connect,
    /// The port relay, which leads to a fixed target.
    Relay,
    Socks4,
    Socks5,
    /// CONNECT on the TLS port.
    Tls,
}

impl Mode {
    pub(crate) const ALL: [Self; 9] = [
        Self::AutoConnect,
        Self::AutoSocks4,
        Self::AutoSocks5,
        Self::AutoTls,
        Self::Connect,
        Self::Relay,
        Self::Socks4,
        Self::Socks5,
        Self::Tls,
    ];

    /// The listener that serves this mode.
    pub(crate) fn listener(self) -> &'static str {
        match self {
            Self::AutoConnect | Self::AutoSocks4 | Self::AutoSocks5 | Self::AutoTls => "auto",
            Self::Connect => "http",
            Self::Relay => "tcp",
            Self::Socks4 | Self::Socks5 => "socks",
            Self::Tls => "https",
        }
    }

    /// Whether the client speaks TLS to the proxy.
    pub(crate) fn is_tls(self) -> bool {
        matches!(self, Self::AutoTls | Self::Tls)
    }

    /// Whether a failed dial is told to the client in the mode's protocol.
    pub(crate) fn has_replies(self) -> bool {
        self != Self::Relay
    }

    /// Connects to the proxy, over TLS where the mode says so.
    pub(crate) fn dial(self, proxy: &Proxyd) -> Conn {
        let address = proxy.address(self.listener());
        match self.is_tls() {
            true => Conn::dial_tls(address),
            false => Conn::dial(address),
        }
    }

    /// What a client without a login sends to ask for `target`, all at once.
    pub(crate) fn hello(self, target: SocketAddr) -> Vec<u8> {
        let SocketAddr::V4(v4) = target else {
            panic!("the tests use 127.0.0.1");
        };
        let (ip, port) = (v4.ip().octets(), v4.port().to_be_bytes());
        match self {
            Self::AutoConnect | Self::AutoTls | Self::Connect | Self::Tls => {
                format!("CONNECT {target} HTTP/1.1\r\nHost: {target}\r\n\r\n").into_bytes()
            }
            Self::AutoSocks4 | Self::Socks4 => [&[4, 1][..], &port, &ip, b"someone\0"].concat(),
            Self::AutoSocks5 | Self::Socks5 => [&[5, 1, 0, 5, 1, 0, 1][..], &ip, &port].concat(),
            Self::Relay => Vec::new(),
        }
    }

    /// Reads the proxy's whole answer to [`hello`](Self::hello): 200 for any
    /// success, else the status or the reply code.
    pub(crate) fn answer(self, conn: &Conn) -> u16 {
        match self {
            Self::AutoConnect | Self::AutoTls | Self::Connect | Self::Tls => {
                Answer::read_head(conn).status
            }
            Self::AutoSocks4 | Self::Socks4 => {
                let reply = conn.exact(8);
                assert_eq!(reply[0], 0, "version of a SOCKS4 reply");
                if reply[1] == 0x5A {
                    200
                } else {
                    reply[1].into()
                }
            }
            Self::AutoSocks5 | Self::Socks5 => {
                conn.expect([5, 0]);
                let code = socks5_reply(conn);
                if code == 0 { 200 } else { code.into() }
            }
            Self::Relay => 200,
        }
    }

    /// A tunnel to `target`, ready for use.
    pub(crate) fn open(self, proxy: &Proxyd, target: SocketAddr) -> Conn {
        let conn = self.dial(proxy);
        conn.send(self.hello(target));
        assert_eq!(self.answer(&conn), 200, "{self:?}");
        conn
    }
}

/// Reads a SOCKS5 reply and returns its code.
pub(crate) fn socks5_reply(conn: &Conn) -> u8 {
    let head = conn.exact(4);
    assert_eq!((head[0], head[2]), (5, 0), "version and reserved byte");
    let length = match head[3] {
        1 => 4,
        4 => 16,
        other => panic!("address type {other} in a reply"),
    };
    conn.exact(length + 2);
    head[1]
}
