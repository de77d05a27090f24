//! Listening sockets: one per address and worker.

use std::io;
use std::net::{SocketAddr, TcpListener};
use std::time::Duration;

use proxy_relay::keep_alive;
use socket2::{Domain, Protocol, Socket, Type};

/// An address that is listened on.
#[derive(Debug)]
pub(crate) struct Bound {
    /// With the real port.
    pub(crate) address: SocketAddr,
    /// One per worker; the kernel spreads connections over them.
    pub(crate) sockets: Vec<TcpListener>,
}

impl Bound {
    /// Listens on `address` for `workers` workers. Port 0 takes a free one.
    /// Clients that are silent for `keepalive` are probed. With `transparent`
    /// connections to any address are taken, if the firewall hands them over.
    ///
    /// # Errors
    /// Also if another program listens there with port reuse, which would share
    /// the port in silence, and if the right to be transparent is missing.
    pub(crate) fn new(
        address: SocketAddr,
        workers: usize,
        keepalive: Option<Duration>,
        transparent: bool,
    ) -> io::Result<Self> {
        let shared = workers > 1;
        if shared && address.port() != 0 {
            // Without reuse the kernel refuses what anybody else has.
            drop(bound(address, false, transparent)?);
        }
        let listening = |address| listening(address, shared, keepalive, transparent);
        let first = listening(address)?;
        let address = first.local_addr()?;
        let others = (1..workers).map(|_| listening(address));
        let sockets = std::iter::once(Ok(first))
            .chain(others)
            .collect::<io::Result<_>>()?;
        Ok(Self { address, sockets })
    }
}

/// What to do about a listener that could not be opened; `which` are the sockets
/// of its kind to `ss`.
pub(crate) fn advice(error: &io::Error, address: SocketAddr, which: &str) -> String {
    let port = address.port();
    match error.kind() {
        io::ErrorKind::AddrInUse => format!(
            "stop the program that listens there (shown by `ss {which} sport = :{port}`) or write \
             another port"
        ),
        io::ErrorKind::AddrNotAvailable => "write an address of this machine".to_owned(),
        // Only `IP_TRANSPARENT` fails with this one; a port fails with EACCES.
        io::ErrorKind::PermissionDenied if error.raw_os_error() == Some(EPERM) => {
            "grant CAP_NET_ADMIN, which tproxy needs (`setcap cap_net_admin+ep` on the program, or \
             AmbientCapabilities=CAP_NET_ADMIN in its systemd unit), or write protocol redirect"
                .to_owned()
        }
        io::ErrorKind::PermissionDenied if port < 1024 => {
            "write a port above 1023 or grant CAP_NET_BIND_SERVICE".to_owned()
        }
        _ => "write another address".to_owned(),
    }
}

fn listening(
    address: SocketAddr,
    shared: bool,
    keepalive: Option<Duration>,
    transparent: bool,
) -> io::Result<TcpListener> {
    let socket = bound(address, shared, transparent)?;
    // Accepted sockets inherit these on Linux: some system calls less for each.
    socket.set_tcp_nodelay(true)?;
    if let Some(idle) = keepalive {
        keep_alive(&socket, idle)?;
    }
    socket.set_nonblocking(true)?;
    socket.listen(BACKLOG)?;
    Ok(socket.into())
}

fn bound(address: SocketAddr, shared: bool, transparent: bool) -> io::Result<Socket> {
    let socket = Socket::new(
        Domain::for_address(address),
        Type::STREAM,
        Some(Protocol::TCP),
    )?;
    if address.is_ipv6() {
        // `[::]` takes IPv4 too, whatever the system's default.
        socket.set_only_v6(false)?;
    }
    // A restart need not wait for connections in TIME_WAIT.
    socket.set_reuse_address(true)?;
    if shared {
        socket.set_reuse_port(true)?;
    }
    if transparent {
        // Accepted sockets inherit it. The one for IPv6 is for IPv4 as well.
        match address {
            SocketAddr::V4(_) => socket.set_ip_transparent_v4(true)?,
            SocketAddr::V6(_) => socket.set_ip_transparent_v6(true)?,
        }
    }
    socket.bind(&address.into())?;
    Ok(socket)
}

const EPERM: i32 = rustix::io::Errno::PERM.raw_os_error();

/// The kernel cuts it to its own limit.
pub(crate) const BACKLOG: i32 = 4096;

#[cfg(test)]
mod tests {
    use super::*;
    use socket2::SockRef;
    use std::net::TcpStream;

    const LOOPBACK: SocketAddr =
        SocketAddr::new(std::net::IpAddr::V4(std::net::Ipv4Addr::LOCALHOST), 0);

    #[test]
    fn accepted_sockets_have_no_nagle() {
        let bound = Bound::new(LOOPBACK, 1, None, false).expect("bound");
        let _client = TcpStream::connect(bound.address).expect("connected");
        bound.sockets[0].set_nonblocking(false).expect("set");
        let (accepted, _) = bound.sockets[0].accept().expect("accepted");
        assert!(SockRef::from(&accepted).tcp_nodelay().expect("known"));
    }

    #[test]
    fn p45_accepted_sockets_are_probed() {
        for keepalive in [None, Some(Duration::from_secs(60))] {
            let bound = Bound::new(LOOPBACK, 2, keepalive, false).expect("bound");
            let _client = TcpStream::connect(bound.address).expect("connected");
            let accepted = loop {
                let mut sockets = bound.sockets.iter();
                if let Some((accepted, _)) = sockets.find_map(|socket| socket.accept().ok()) {
                    break accepted;
                }
            };
            let socket = SockRef::from(&accepted);
            assert_eq!(socket.keepalive().expect("known"), keepalive.is_some());
            if keepalive.is_some() {
                assert_eq!(socket.tcp_keepalive_time().ok(), keepalive);
            }
        }
    }

    #[test]
    fn all_workers_share_a_free_port() {
        let bound = Bound::new(LOOPBACK, 3, None, false).expect("bound");
        assert_eq!(bound.sockets.len(), 3);
        for socket in &bound.sockets {
            assert_eq!(socket.local_addr().expect("known"), bound.address);
        }
    }

    #[test]
    fn a_port_shared_by_others_is_in_use() {
        let first = Bound::new(LOOPBACK, 2, None, false).expect("bound");
        for workers in [1, 2] {
            let error = Bound::new(first.address, workers, None, false).expect_err("in use");
            assert_eq!(error.kind(), io::ErrorKind::AddrInUse);
        }
    }

    #[test]
    fn ipv6_any_takes_ipv4() {
        let any = "[::]:0".parse().expect("an address");
        let bound = Bound::new(any, 1, None, false).expect("bound");
        let v4 = SocketAddr::from(([127, 0, 0, 1], bound.address.port()));
        TcpStream::connect(v4).expect("connected");
    }
}
