//! proxyd's policy for SOCKS BIND: where connections are awaited, and whose are
//! let in.

use std::hash::{BuildHasher, RandomState};
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::ops::RangeInclusive;
use std::time::Duration;

use proxy_core::{ConnectError, ConnectErrorKind, Host, Peer, Target};
use proxy_socks::{Incoming, Listening};
use socket2::SockRef;
use tokio::net::{TcpListener, TcpSocket, TcpStream};

use crate::config::{Config, Via};
use crate::egress::Permit;
use crate::errand::Errand;
use crate::gateway::{Proxyd, Session};
use crate::outside::Outside;
use crate::upstream::Upstream;

impl Incoming for Proxyd {
    type Place = Option<Permit>;

    async fn listen(
        &self,
        session: &mut Session,
        peer: &Peer,
        target: Target<'_>,
    ) -> Result<Listening<Option<Permit>>, ConnectError> {
        let Some(errand) = session.errand() else {
            return Err(ConnectError::origin(ConnectErrorKind::Other));
        };
        let outside = self.outside();
        let listening = await_one(outside, errand, peer, target).await;
        if let Err(error) = &listening {
            let cause = errand.failed(*error);
            session.came_to(None, Some(cause));
        }
        listening
    }

    async fn admit(&self, session: &Session, target: Target<'_>, from: SocketAddr) -> bool {
        let Some(errand) = session.errand() else {
            return false;
        };
        let permitted = permit(self.outside(), errand, target, from.ip());
        // Not of the request itself, which goes on.
        let cause = errand.cause.take();
        if let Err(error) = &permitted {
            let policy = self.outside().policy();
            let cause = cause.map(|cause| cause.text(policy));
            tracing::debug!(
                listener = self.service(),
                client = %errand.person.client(),
                %from,
                reason = cause.unwrap_or_else(|| error.to_string()),
                "a connection for a client was refused"
            );
        }
        permitted.is_ok()
    }

    fn adopt(&self, session: &mut Session, place: Option<Permit>, stream: TcpStream) -> Upstream {
        self.outside().landing().prepare(&stream);
        session.came_to(stream.peer_addr().ok(), None);
        let mut upstream = Upstream::new(stream);
        upstream.set_permit(place);
        upstream
    }
}

/// Opens the socket, for those of the target's addresses that may connect.
async fn await_one(
    outside: &Outside,
    errand: &Errand,
    peer: &Peer,
    target: Target<'_>,
) -> Result<Listening<Option<Permit>>, ConnectError> {
    let expected = expected(outside, errand, target).await?;
    let origin = (!expected.is_empty()).then_some(target);
    let place = outside.permit(errand, origin).await?;
    let landing = outside.landing();
    let own = peer.local.ip().to_canonical();
    let opened = landing.open(own, &expected);
    let (listener, ip) = opened.map_err(|error| match error.kind() {
        io::ErrorKind::AddrInUse => ConnectError::origin(ConnectErrorKind::Exhausted),
        _ => error.into(),
    })?;
    Ok(Listening::new(listener, place)?
        .advertise(ip)
        .expect(expected))
}

/// Who may connect; empty for anybody.
///
/// # Errors
/// If nobody may.
async fn expected(
    outside: &Outside,
    errand: &Errand,
    target: Target<'_>,
) -> Result<Vec<IpAddr>, ConnectError> {
    let name = match target.host {
        Host::Ip(ip) if ip.is_unspecified() => {
            let way = errand.way();
            return way.map_or(Ok(Vec::new()), |way| direct(way.via).map(|()| Vec::new()));
        }
        Host::Ip(ip) => return permit(outside, errand, target, ip).map(|()| vec![ip]),
        Host::Name(name) => name,
    };
    let mut failure = ConnectError::origin(ConnectErrorKind::NameNotFound);
    let mut expected = outside.dialer().lookup(name).await?;
    expected.retain(|ip| match permit(outside, errand, target, *ip) {
        Ok(()) => true,
        Err(error) => {
            failure = error;
            false
        }
    });
    match expected.is_empty() {
        true => Err(failure),
        false => Ok(expected),
    }
}

/// What rules and guard say of an address that is to connect, or has.
///
/// # Errors
/// That it may not, or that its way leads through a parent, which awaits nobody.
fn permit(
    outside: &Outside,
    errand: &Errand,
    target: Target<'_>,
    from: IpAddr,
) -> Result<(), ConnectError> {
    let target = match target.host {
        // Of one that may be anybody the client has said nothing but the port.
        Host::Ip(_) => Target {
            host: Host::Ip(from),
            ..target
        },
        Host::Name(_) => target,
    };
    let policy = outside.policy();
    let verdict = errand.judge(policy, target, from);
    direct(errand.permit(policy, &verdict, from)?.via)
}

/// # Errors
/// If the way leads through a parent.
fn direct(via: Via) -> Result<(), ConnectError> {
    match via {
        Via::Direct => Ok(()),
        Via::Parent(_) => Err(ConnectError::parent(ConnectErrorKind::NetworkUnreachable)),
    }
}

/// Where connections are awaited.
#[derive(Debug)]
pub(crate) struct Landing {
    /// At most one of each family.
    advertise: Vec<IpAddr>,
    ports: Option<RangeInclusive<u16>>,
    keepalive: Option<Duration>,
    /// So that nobody foresees the next port of a range.
    random: RandomState,
}

impl Landing {
    pub(crate) fn new(config: &Config) -> Self {
        Self {
            advertise: config.bind.advertise.clone(),
            ports: config.bind.ports.clone(),
            keepalive: config.timeouts.tcp_keepalive,
            random: RandomState::new(),
        }
    }

    /// A socket that one of `expected` can reach, and the address to be told,
    /// which is `own`, that the client has reached, unless others are advertised.
    ///
    /// # Errors
    /// If there is no address of their family (`NetworkUnreachable`), or no free
    /// port (`AddrInUse`).
    fn open(&self, own: IpAddr, expected: &[IpAddr]) -> io::Result<(TcpListener, IpAddr)> {
        let ip = self
            .pick(own, expected)
            .ok_or(io::ErrorKind::NetworkUnreachable)?;
        let listener = match self.listen(ip) {
            // What is advertised may be a translator's.
            Err(error) if error.kind() == io::ErrorKind::AddrNotAvailable => {
                self.listen(any_like(ip))?
            }
            listener => listener?,
        };
        Ok((listener, ip))
    }

    /// The address to be told: of the family of those who are expected, of that
    /// of the client if it is anybody.
    fn pick(&self, own: IpAddr, expected: &[IpAddr]) -> Option<IpAddr> {
        let suits = |ip: &IpAddr| {
            expected.is_empty() || expected.iter().any(|from| from.is_ipv4() == ip.is_ipv4())
        };
        let is_like = |ip: &&IpAddr| ip.is_ipv4() == own.is_ipv4();
        let like = self.advertise.iter().filter(is_like);
        let unlike = self.advertise.iter().filter(|ip| !is_like(ip));
        let mut known = like.chain(unlike).copied().chain([own]);
        known.find(|ip| suits(ip) && !ip.is_unspecified())
    }

    fn listen(&self, ip: IpAddr) -> io::Result<TcpListener> {
        let listen = |port| listen_at(SocketAddr::new(ip, port));
        let is_taken = |listener: &io::Result<TcpListener>| {
            let error = listener.as_ref().err();
            error.is_some_and(|error| error.kind() == io::ErrorKind::AddrInUse)
        };
        let mut listeners = self.ports().map(listen);
        let free = listeners.find(|listener| !is_taken(listener));
        free.unwrap_or(Err(io::ErrorKind::AddrInUse.into()))
    }

    /// The ports to be tried, from one that chance has chosen.
    fn ports(&self) -> impl Iterator<Item = u16> + use<> {
        let ports = self.ports.clone().unwrap_or(0..=0);
        let first = u64::from(*ports.start());
        let count = u64::try_from(ports.len()).unwrap_or(1);
        let start = self.random.hash_one(std::time::Instant::now()) % count;
        (0..count.min(MOST_TRIES))
            .filter_map(move |turn| u16::try_from(first + (start + turn) % count).ok())
    }

    /// As each connection to a target is.
    fn prepare(&self, stream: &TcpStream) {
        // Best effort: it works without either.
        let _ = stream.set_nodelay(true);
        if let Some(idle) = self.keepalive {
            let _ = proxy_relay::keep_alive(stream, idle);
        }
    }
}

fn listen_at(address: SocketAddr) -> io::Result<TcpListener> {
    let socket = match address {
        SocketAddr::V4(_) => TcpSocket::new_v4()?,
        SocketAddr::V6(_) => TcpSocket::new_v6()?,
    };
    if address.is_ipv6() {
        // A peer of the other family could not be told the address.
        SockRef::from(&socket).set_only_v6(true)?;
    }
    // Connections that have come to the port before, and are open or were closed
    // a moment ago, do not stand in the way.
    socket.set_reuseaddr(true)?;
    socket.bind(address)?;
    socket.listen(BACKLOG)
}

fn any_like(ip: IpAddr) -> IpAddr {
    match ip {
        IpAddr::V4(_) => Ipv4Addr::UNSPECIFIED.into(),
        IpAddr::V6(_) => Ipv6Addr::UNSPECIFIED.into(),
    }
}

/// One is awaited; strangers shall not keep it out.
const BACKLOG: u32 = 16;

/// How many ports of a range are tried, so that a client waits for no long.
const MOST_TRIES: u64 = 1024;

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;

    fn landing(advertise: &[&str], ports: Option<RangeInclusive<u16>>) -> Landing {
        Landing {
            advertise: advertise.iter().map(|text| ip(text)).collect(),
            ports,
            keepalive: Some(Duration::from_secs(7)),
            random: RandomState::new(),
        }
    }

    fn ip(text: &str) -> IpAddr {
        text.parse().expect("an address")
    }

    #[test]
    fn p66_the_address_is_of_the_family_of_who_is_to_come() {
        let (v4, v6) = ("203.0.113.7", "2001:db8::7");
        for (advertise, own, expected, picked) in [
            (&[][..], "192.0.2.1", &[][..], Some("192.0.2.1")),
            (&[], "192.0.2.1", &["198.51.100.1"], Some("192.0.2.1")),
            (&[], "192.0.2.1", &[v6, "198.51.100.1"], Some("192.0.2.1")),
            (&[], "192.0.2.1", &[v6], None),
            (&[], "0.0.0.0", &[], None),
            (&[v4], "192.0.2.1", &[], Some(v4)),
            (&[v6], "192.0.2.1", &[], Some(v6)),
            (&[v6], "192.0.2.1", &["198.51.100.1"], Some("192.0.2.1")),
            (&[v4, v6], "192.0.2.1", &[], Some(v4)),
            (&[v4, v6], "::1", &[], Some(v6)),
            (&[v4, v6], "::1", &["198.51.100.1"], Some(v4)),
            (&[v4, v6], "0.0.0.0", &[v6], Some(v6)),
        ] {
            let expected: Vec<IpAddr> = expected.iter().map(|text| ip(text)).collect();
            assert_eq!(
                landing(advertise, None).pick(ip(own), &expected),
                picked.map(ip),
                "{advertise:?} {own} {expected:?}"
            );
        }
    }

    #[test]
    fn each_port_of_a_range_is_tried_once() {
        for ports in [7..=7, 40_000..=40_099, 65_530..=65_535] {
            let all: HashSet<u16> = ports.clone().collect();
            let tried: Vec<u16> = landing(&[], Some(ports)).ports().collect();
            assert_eq!(tried.len(), all.len());
            assert_eq!(tried.into_iter().collect::<HashSet<_>>(), all);
        }
        let wide = landing(&[], Some(1..=65_535));
        assert_eq!(wide.ports().count(), 1024);
        assert_eq!(landing(&[], None).ports().collect::<Vec<_>>(), [0]);
    }

    #[tokio::test]
    async fn a_port_is_for_one_at_a_time_and_then_for_the_next() {
        let local = IpAddr::V4(Ipv4Addr::LOCALHOST);
        let any = landing(&[], None);
        let (first, told) = any.open(local, &[]).expect("a socket");
        assert_eq!(told, local);
        let port = first.local_addr().expect("bound").port();
        let only = landing(&[], Some(port..=port));
        let error = only.open(local, &[]).expect_err("taken");
        assert_eq!(error.kind(), io::ErrorKind::AddrInUse);

        let dialled = TcpStream::connect((local, port));
        let (dialled, accepted) = tokio::join!(dialled, first.accept());
        let (accepted, _) = accepted.expect("accepted");
        any.prepare(&accepted);
        assert!(accepted.nodelay().expect("known"));
        let probed = SockRef::from(&accepted).tcp_keepalive_time();
        assert_eq!(probed.expect("known"), Duration::from_secs(7));
        drop(first);
        // The connection stays on the port.
        only.open(local, &[]).expect("free again");
        drop((dialled, accepted));
    }

    #[tokio::test]
    async fn what_is_advertised_need_not_be_an_address_of_this_machine() {
        let far = landing(&["203.0.113.7"], None);
        let (listener, told) = far.open(ip("127.0.0.1"), &[]).expect("a socket");
        assert_eq!(told, ip("203.0.113.7"));
        let bound = listener.local_addr().expect("bound");
        assert!(bound.ip().is_unspecified());
        let near = landing(&["127.0.0.9"], None);
        let (listener, _) = near.open(ip("127.0.0.1"), &[]).expect("a socket");
        let bound = listener.local_addr().expect("bound");
        assert_eq!(bound.ip(), ip("127.0.0.9"));
    }
}
