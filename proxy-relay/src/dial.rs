//! Opens connections to targets.

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::time::Duration;

use proxy_core::{ConnectError, ConnectErrorKind, Host, Target, Timeouts};
use socket2::{SockRef, TcpKeepalive};
use tokio::net::{TcpSocket, TcpStream};

use crate::race::{interleave, race};
use crate::resolve::lookup;

/// Connects directly to targets, by name or by address.
///
/// Names are looked up through the system; their addresses are raced as
/// RFC 8305 describes: families interleaved, 250 ms apart, all of them tried,
/// the losers closed. Nagle's algorithm is off on every connection.
///
/// ```
/// # async fn example() -> Result<(), Box<dyn std::error::Error>> {
/// use proxy_core::Target;
/// let mut dialer = proxy_relay::Dialer::default();
/// dialer.connect_timeout(std::time::Duration::from_secs(5));
/// let stream = dialer.dial(Target::parse("example.com:80", None)?).await?;
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug)]
pub struct Dialer {
    connect: Option<Duration>,
    keepalive: Option<Duration>,
    bind_v4: Option<Ipv4Addr>,
    bind_v6: Option<Ipv6Addr>,
}

impl Default for Dialer {
    fn default() -> Self {
        Self::new(&Timeouts::default())
    }
}

impl Dialer {
    /// A dialer with the connect timeout of `timeouts`.
    pub fn new(timeouts: &Timeouts) -> Self {
        Self {
            connect: timeouts.connect,
            keepalive: None,
            bind_v4: None,
            bind_v6: None,
        }
    }

    /// The source address for targets of its family; the port is left to the
    /// system, which may then use it for several targets at once.
    pub fn bind(&mut self, source: IpAddr) -> &mut Self {
        match source {
            IpAddr::V4(ip) => self.bind_v4 = Some(ip),
            IpAddr::V6(ip) => self.bind_v6 = Some(ip),
        }
        self
    }

    /// The longest time a dial may take, name look-up and all addresses
    /// included; 10 s by default.
    pub fn connect_timeout(&mut self, after: impl Into<Option<Duration>>) -> &mut Self {
        self.connect = after.into();
        self
    }

    /// Probes a silent peer after this time, so that a dead one is found; off
    /// by default.
    pub fn keepalive(&mut self, after: impl Into<Option<Duration>>) -> &mut Self {
        self.keepalive = after.into();
        self
    }

    /// Connects to `target`. Cancel safe: a dropped dial closes its sockets.
    ///
    /// # Errors
    /// What went wrong with the most telling of the addresses.
    pub async fn dial(&self, target: Target<'_>) -> Result<TcpStream, ConnectError> {
        match self.connect {
            Some(after) => tokio::time::timeout(after, self.dial_any(target))
                .await
                .unwrap_or(Err(ConnectError::origin(ConnectErrorKind::TimedOut))),
            None => self.dial_any(target).await,
        }
    }

    async fn dial_any(&self, target: Target<'_>) -> Result<TcpStream, ConnectError> {
        let port = target.port;
        let name = match target.host {
            Host::Ip(ip) => return self.dial_one(SocketAddr::new(ip, port)).await,
            Host::Name(name) => name,
        };
        let found = lookup(name).await?;
        match *found {
            [ip] => self.dial_one(SocketAddr::new(ip, port)).await,
            _ => {
                let addresses = interleave(&found).into_iter();
                let addresses = addresses.map(|ip| SocketAddr::new(ip, port));
                race(addresses, |address| self.dial_one(address)).await
            }
        }
    }

    async fn dial_one(&self, address: SocketAddr) -> Result<TcpStream, ConnectError> {
        let socket = self.socket(address)?;
        Ok(socket.connect(address).await?)
    }

    fn socket(&self, address: SocketAddr) -> io::Result<TcpSocket> {
        let (socket, source) = match address {
            SocketAddr::V4(_) => (TcpSocket::new_v4()?, self.bind_v4.map(IpAddr::V4)),
            SocketAddr::V6(_) => (TcpSocket::new_v6()?, self.bind_v6.map(IpAddr::V6)),
        };
        socket.set_nodelay(true)?;
        if let Some(after) = self.keepalive {
            let probes = TcpKeepalive::new().with_time(after);
            SockRef::from(&socket).set_tcp_keepalive(&probes)?;
        }
        if let Some(source) = source {
            port_at_connect(&socket);
            socket.bind(SocketAddr::new(source, 0))?;
        }
        Ok(socket)
    }
}

/// Lets the system choose the port when the target is known, so that one port
/// serves several targets. Without it `bind` alone would use ports up.
#[cfg(target_os = "linux")]
fn port_at_connect(socket: &TcpSocket) {
    use nix::sys::socket::{setsockopt, sockopt::IpBindAddressNoPort};
    // Best effort: an old kernel binds as it always did.
    let _ = setsockopt(socket, IpBindAddressNoPort, &true);
}

#[cfg(not(target_os = "linux"))]
fn port_at_connect(_: &TcpSocket) {}
