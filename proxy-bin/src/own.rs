//! The proxy's own addresses, which no client may be led back to.

use std::net::SocketAddr;
use std::sync::Arc;

/// Where the proxy listens, with the real ports.
#[derive(Clone, Debug)]
pub(crate) struct OwnAddresses(Arc<[SocketAddr]>);

impl OwnAddresses {
    pub(crate) fn new(addresses: impl IntoIterator<Item = SocketAddr>) -> Self {
        Self(addresses.into_iter().collect())
    }

    /// Whether there is a listener on `port`: only then the addresses of a
    /// connection need a look.
    pub(crate) fn has_port(&self, port: u16) -> bool {
        self.0.iter().any(|own| own.port() == port)
    }

    /// Whether a connection between these ends led back to the proxy, by
    /// whatever name or alias. Of a connection to itself a machine is both ends.
    pub(crate) fn reached_by(&self, local: SocketAddr, remote: SocketAddr) -> bool {
        let ip = remote.ip().to_canonical();
        let same_machine = ip.is_loopback() || ip == local.ip().to_canonical();
        self.0.iter().any(|own| {
            let own_ip = own.ip().to_canonical();
            own.port() == remote.port()
                && (own_ip == ip || (own_ip.is_unspecified() && same_machine))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn reached(own: &str, local: &str, remote: &str) -> bool {
        let address = |text: &str| text.parse::<SocketAddr>().expect("an address");
        OwnAddresses::new([address(own)]).reached_by(address(local), address(remote))
    }

    #[test]
    fn p30_own_listeners_by_any_alias() {
        for (own, local, remote) in [
            ("127.0.0.1:80", "127.0.0.1:9", "127.0.0.1:80"),
            ("0.0.0.0:80", "127.0.0.1:9", "127.0.0.2:80"),
            ("0.0.0.0:80", "192.0.2.1:9", "192.0.2.1:80"),
            ("[::]:80", "127.0.0.1:9", "127.0.0.1:80"),
            ("[::]:80", "[::1]:9", "[::1]:80"),
            (
                "127.0.0.1:80",
                "[::ffff:127.0.0.1]:9",
                "[::ffff:127.0.0.1]:80",
            ),
        ] {
            assert!(reached(own, local, remote), "{own} {remote}");
        }
    }

    #[test]
    fn others_on_the_same_port() {
        for (own, local, remote) in [
            ("127.0.0.1:80", "127.0.0.1:9", "127.0.0.1:81"),
            ("127.0.0.1:80", "127.0.0.1:9", "127.0.0.2:80"),
            ("0.0.0.0:80", "192.0.2.1:9", "192.0.2.2:80"),
        ] {
            assert!(!reached(own, local, remote), "{own} {remote}");
        }
    }
}
