//! The proxy's own addresses, which no client may be led back to.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket};
use std::sync::Arc;

/// Where the proxy listens, with the real ports.
#[derive(Clone, Debug)]
pub(crate) struct OwnAddresses(Arc<[SocketAddr]>);

impl OwnAddresses {
    pub(crate) fn new(addresses: impl IntoIterator<Item = SocketAddr>) -> Self {
        Self(addresses.into_iter().collect())
    }

    /// Whether a connection to `target` would lead back to the proxy, by
    /// whatever name or alias.
    pub(crate) fn lead_from(&self, target: SocketAddr) -> bool {
        let same_port = |own: &&SocketAddr| own.port() == target.port();
        let mut listeners = self.0.iter().filter(same_port).peekable();
        if listeners.peek().is_none() {
            // Only with the port of a listener the address needs a look.
            return false;
        }
        let ip = target.ip().to_canonical();
        let here = is_of_this_machine(ip);
        listeners.any(|own| {
            let own = own.ip().to_canonical();
            own == ip || (here && (takes_all(own, ip) || ip.is_unspecified()))
        })
    }
}

/// Whether a listener on `own` takes every address of this machine that is of
/// the kind of `ip`; `[::]` takes IPv4 too.
fn takes_all(own: IpAddr, ip: IpAddr) -> bool {
    own.is_unspecified() && (own.is_ipv6() || ip.is_ipv4())
}

/// Whether an address is one of this machine's: the one it would itself use to
/// get there. No packet is sent for this.
fn is_of_this_machine(ip: IpAddr) -> bool {
    if ip.is_loopback() || ip.is_unspecified() {
        return true;
    }
    let any: IpAddr = match ip {
        IpAddr::V4(_) => Ipv4Addr::UNSPECIFIED.into(),
        IpAddr::V6(_) => Ipv6Addr::UNSPECIFIED.into(),
    };
    let source = UdpSocket::bind((any, 0)).and_then(|socket| {
        socket.connect((ip, PORT))?;
        socket.local_addr()
    });
    source.is_ok_and(|source| source.ip().to_canonical() == ip)
}

/// Any will do, but 0.
const PORT: u16 = 9;

#[cfg(test)]
mod tests {
    use super::*;

    fn leads_back(own: &str, target: &str) -> bool {
        let address = |text: &str| text.parse::<SocketAddr>().expect("an address");
        OwnAddresses::new([address(own)]).lead_from(address(target))
    }

    #[test]
    fn p30_own_listeners_by_any_alias() {
        for (own, target) in [
            ("127.0.0.1:80", "127.0.0.1:80"),
            ("127.0.0.1:80", "0.0.0.0:80"),
            ("0.0.0.0:80", "127.0.0.1:80"),
            ("0.0.0.0:80", "127.0.0.2:80"),
            ("[::]:80", "127.0.0.1:80"),
            ("[::]:80", "0.0.0.0:80"),
            ("[::1]:80", "[::]:80"),
            ("127.0.0.1:80", "[::ffff:127.0.0.1]:80"),
            ("192.0.2.1:80", "[::ffff:192.0.2.1]:80"),
        ] {
            assert!(leads_back(own, target), "{own} {target}");
        }
    }

    #[test]
    fn p30_an_address_of_an_interface_is_an_alias() {
        // Whatever this machine's outgoing address is, if it has one.
        let out = UdpSocket::bind("0.0.0.0:0").and_then(|socket| {
            socket.connect("192.0.2.1:9")?;
            socket.local_addr()
        });
        if let Ok(own) = out {
            let target = SocketAddr::new(own.ip(), 80);
            assert!(leads_back("0.0.0.0:80", &target.to_string()), "{target}");
            assert!(!leads_back("127.0.0.1:80", &target.to_string()), "{target}");
        }
    }

    #[test]
    fn others_on_the_same_port() {
        for (own, target) in [
            ("127.0.0.1:80", "127.0.0.1:81"),
            ("127.0.0.1:80", "127.0.0.2:80"),
            ("0.0.0.0:80", "198.51.100.77:80"),
            ("0.0.0.0:80", "[::1]:80"),
            ("0.0.0.0:80", "198.51.100.77:81"),
        ] {
            assert!(!leads_back(own, target), "{own} {target}");
        }
    }
}
