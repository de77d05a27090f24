//! Opens connections to targets.

use std::future::poll_fn;
use std::io;
use std::iter;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use proxy_core::{ConnectError, ConnectErrorKind, Host, Target, Timeouts};
use tokio::net::{TcpSocket, TcpStream};

use crate::answers::Answers;
use crate::keepalive::keep_alive;
use crate::names::Names;
use crate::race::race;
use crate::resolve::Resolve;

/// Connects directly to targets, by name or by address.
///
/// The addresses of a name are raced as RFC 8305 describes: both families asked
/// for at once, IPv6 preferred if its answer comes within 50 ms of the other,
/// families interleaved, 250 ms apart, all of them tried, the losers closed.
/// Names are looked up through the system or a [`Resolve`]; answers are kept for
/// their time, in a memory that the clones of a dialer share and that is bounded
/// (4096 names). At most 1024 look-ups are under way at a time, one for each
/// family; more fail at once as
/// [`NameUnavailable`](ConnectErrorKind::NameUnavailable). Nagle's algorithm is
/// off on every connection.
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
    lookup: Option<Duration>,
    keepalive: Option<Duration>,
    bind_v4: Option<Ipv4Addr>,
    bind_v6: Option<Ipv6Addr>,
    names: Arc<Names>,
}

impl Default for Dialer {
    fn default() -> Self {
        Self::new(&Timeouts::default())
    }
}

impl Dialer {
    /// A dialer with `connect` and `tcp_keepalive` of `timeouts` that asks the
    /// system for names.
    pub fn new(timeouts: &Timeouts) -> Self {
        Self {
            connect: timeouts.connect,
            lookup: Some(LOOKUP),
            keepalive: timeouts.tcp_keepalive,
            bind_v4: None,
            bind_v6: None,
            names: Arc::new(Names::new(None)),
        }
    }

    /// Who looks names up in place of the system. What was known is forgotten.
    pub fn resolver(&mut self, resolver: Arc<dyn Resolve>) -> &mut Self {
        self.names = Arc::new(Names::new(Some(resolver)));
        self
    }

    /// The source address for targets of its family; the port is left to the
    /// system, which may then use it for several targets at once. An IPv6
    /// address need not be configured on an interface (Linux): it is enough if
    /// its prefix is routed here.
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

    /// The longest time one question about a name may take, after which it
    /// fails as [`NameUnavailable`](ConnectErrorKind::NameUnavailable); 5 s by
    /// default.
    pub fn lookup_timeout(&mut self, after: impl Into<Option<Duration>>) -> &mut Self {
        self.lookup = after.into();
        self
    }

    /// Probes a silent peer after this time, so that a dead one is found
    /// ([`keep_alive`]); 60 s by default.
    pub fn keepalive(&mut self, after: impl Into<Option<Duration>>) -> &mut Self {
        self.keepalive = after.into();
        self
    }

    /// Connects to `target`. Cancel safe: a dropped dial closes its sockets.
    ///
    /// # Errors
    /// What went wrong with the most telling of the addresses.
    pub async fn dial(&self, target: Target<'_>) -> Result<TcpStream, ConnectError> {
        self.dial_judged(target, |_| Ok(None)).await
    }

    /// Connects to `target` where `judge` agrees. It is asked about each address
    /// just before that very address is connected to, and answers the source
    /// address, of the same family, to connect from; `None` leaves that to the
    /// dialer. An address that it refuses is passed over.
    ///
    /// Cancel safe: a dropped dial closes its sockets.
    ///
    /// # Errors
    /// What went wrong with the most telling of the addresses; if all were
    /// refused, what `judge` said.
    pub async fn dial_judged<J>(
        &self,
        target: Target<'_>,
        judge: J,
    ) -> Result<TcpStream, ConnectError>
    where
        J: Fn(SocketAddr) -> Result<Option<IpAddr>, ConnectError>,
    {
        let dial = self.dial_any(target, &judge);
        match self.connect {
            Some(after) => tokio::time::timeout(after, dial)
                .await
                .unwrap_or(Err(ConnectError::origin(ConnectErrorKind::TimedOut))),
            None => dial.await,
        }
    }

    /// The addresses of `name`, at least one, in the order of their dialling;
    /// asked for or remembered as for a dial. Once one family is known the other
    /// has half a second left. The text of an address is its own answer. Cancel
    /// safe.
    ///
    /// # Errors
    /// If the name has no address, or none could be learnt.
    pub async fn lookup(&self, name: &str) -> Result<Vec<IpAddr>, ConnectError> {
        let name = match Host::name(name.as_bytes()) {
            Ok(Host::Name(name)) => name,
            Ok(Host::Ip(ip)) => return Ok(vec![ip]),
            Err(_) => return Err(ConnectError::origin(ConnectErrorKind::NameNotFound)),
        };
        let mut answers = Answers::new(&self.names, name, self.lookup);
        poll_fn(|cx| answers.poll_known(cx)).await;
        let addresses: Vec<IpAddr> = iter::from_fn(|| answers.next()).collect();
        match addresses.is_empty() {
            true => Err(answers.failure()),
            false => Ok(addresses),
        }
    }

    async fn dial_any<J>(&self, target: Target<'_>, judge: &J) -> Result<TcpStream, ConnectError>
    where
        J: Fn(SocketAddr) -> Result<Option<IpAddr>, ConnectError>,
    {
        let dial_one = |ip| self.dial_one(SocketAddr::new(ip, target.port), judge);
        let name = match target.host {
            Host::Ip(ip) => return dial_one(ip).await,
            Host::Name(name) => name,
        };
        let answers = Answers::new(&self.names, name, self.lookup);
        match answers.only() {
            Some(ip) => dial_one(ip).await,
            // In a box: most dials are no race, and all would be its size.
            None => Box::pin(race(answers, dial_one)).await,
        }
    }

    async fn dial_one<J>(&self, address: SocketAddr, judge: &J) -> Result<TcpStream, ConnectError>
    where
        J: Fn(SocketAddr) -> Result<Option<IpAddr>, ConnectError>,
    {
        let source = judge(address)?;
        let socket = self.socket(address, source)?;
        Ok(socket.connect(address).await?)
    }

    fn socket(&self, to: SocketAddr, source: Option<IpAddr>) -> Result<TcpSocket, ConnectError> {
        let (socket, own) = match to {
            SocketAddr::V4(_) => (TcpSocket::new_v4()?, self.bind_v4.map(IpAddr::V4)),
            SocketAddr::V6(_) => (TcpSocket::new_v6()?, self.bind_v6.map(IpAddr::V6)),
        };
        socket.set_nodelay(true)?;
        if let Some(after) = self.keepalive {
            keep_alive(&socket, after)?;
        }
        if let Some(source) = source.or(own) {
            prepare_bind(&socket, source);
            let bound = socket.bind(SocketAddr::new(source, 0));
            bound.map_err(|error| match error.kind() {
                // No port is taken yet, so they cannot have run out.
                io::ErrorKind::AddrNotAvailable | io::ErrorKind::InvalidInput => {
                    ConnectError::origin(ConnectErrorKind::Source)
                }
                _ => error.into(),
            })?;
        }
        Ok(socket)
    }
}

/// Lets the system choose the port when the target is known, so that one port
/// serves several targets: without it `bind` alone would use ports up. And lets
/// an IPv6 source be any of a prefix that is routed here.
#[cfg(target_os = "linux")]
fn prepare_bind(socket: &TcpSocket, source: IpAddr) {
    use nix::sys::socket::{setsockopt, sockopt};
    // Best effort: an old kernel binds as it always did.
    let _ = setsockopt(socket, sockopt::IpBindAddressNoPort, &true);
    if source.is_ipv6() {
        let _ = setsockopt(socket, sockopt::IpFreebind, &true);
    }
}

#[cfg(not(target_os = "linux"))]
fn prepare_bind(_: &TcpSocket, _: IpAddr) {}

const LOOKUP: Duration = Duration::from_secs(5);
