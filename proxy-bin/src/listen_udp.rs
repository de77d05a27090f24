//! Sockets that datagrams come to: one per address and worker.

use std::io;
use std::net::{SocketAddr, UdpSocket};

use socket2::{Domain, Protocol, Socket, Type};

/// An address that takes datagrams.
#[derive(Debug)]
pub(crate) struct BoundUdp {
    /// With the real port.
    pub(crate) address: SocketAddr,
    /// One per worker. The kernel gives all that a client sends to the same one,
    /// as long as none of them is closed.
    pub(crate) sockets: Vec<UdpSocket>,
}

impl BoundUdp {
    /// Binds `address` for `workers` workers. Port 0 takes a free one.
    ///
    /// # Errors
    /// Also if another program has the port and would share it.
    pub(crate) fn new(address: SocketAddr, workers: usize) -> io::Result<Self> {
        let first = socket(address)?;
        // Shared only afterwards: the kernel then refuses what anybody else has,
        // and for port 0 does not choose what another proxyd shares.
        first.bind(&address.into())?;
        let address = UdpSocket::from(first.try_clone()?).local_addr()?;
        if workers > 1 {
            first.set_reuse_port(true)?;
        }
        let other = |_| {
            let other = socket(address)?;
            other.set_reuse_port(true)?;
            other.bind(&address.into())?;
            Ok(other.into())
        };
        let others = (1..workers).map(other);
        let sockets = std::iter::once(Ok(first.into()))
            .chain(others)
            .collect::<io::Result<_>>()?;
        Ok(Self { address, sockets })
    }

    /// Handles that keep the sockets open. One that is closed while others are
    /// not would have the kernel give clients to sockets that do not know them.
    ///
    /// # Errors
    /// Those of the system.
    pub(crate) fn handles(&self) -> io::Result<Vec<UdpSocket>> {
        self.sockets.iter().map(UdpSocket::try_clone).collect()
    }
}

fn socket(address: SocketAddr) -> io::Result<Socket> {
    let socket = Socket::new(
        Domain::for_address(address),
        Type::DGRAM,
        Some(Protocol::UDP),
    )?;
    if address.is_ipv6() {
        // `[::]` takes IPv4 too, whatever the system's default.
        socket.set_only_v6(false)?;
    }
    socket.set_nonblocking(true)?;
    Ok(socket)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashMap;
    use std::net::{IpAddr, Ipv4Addr};

    const LOOPBACK: SocketAddr = SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), 0);

    #[test]
    fn all_workers_share_a_free_port() {
        let bound = BoundUdp::new(LOOPBACK, 3).expect("bound");
        assert_eq!(bound.sockets.len(), 3);
        for socket in &bound.sockets {
            assert_eq!(socket.local_addr().expect("known"), bound.address);
        }
    }

    #[test]
    fn a_port_shared_by_others_is_in_use() {
        for (first, second) in [(1, 1), (1, 2), (2, 1), (2, 2)] {
            let first = BoundUdp::new(LOOPBACK, first).expect("bound");
            let error = BoundUdp::new(first.address, second).expect_err("in use");
            assert_eq!(error.kind(), io::ErrorKind::AddrInUse);
        }
    }

    #[test]
    fn a_client_stays_with_one_socket_also_when_another_closes() {
        let mut bound = BoundUdp::new(LOOPBACK, 3).expect("bound");
        let kept = bound.handles().expect("handles");
        let clients: Vec<UdpSocket> = (0..64)
            .map(|_| UdpSocket::bind(LOOPBACK).expect("bound"))
            .collect();
        let mut homes: HashMap<SocketAddr, usize> = HashMap::new();
        let mut round = |sockets: &[UdpSocket]| {
            for client in &clients {
                client.send_to(b"hello", bound.address).expect("sent");
            }
            for (at, socket) in sockets.iter().enumerate() {
                while let Ok((_, client)) = socket.recv_from(&mut [0; 5]) {
                    assert_eq!(*homes.entry(client).or_insert(at), at, "{client}");
                }
            }
            homes.len()
        };
        assert_eq!(round(&bound.sockets), clients.len());
        bound.sockets.truncate(2);
        assert_eq!(round(&bound.sockets), clients.len());
        drop(kept);
    }

    #[test]
    fn ipv6_any_takes_ipv4() {
        let any = "[::]:0".parse().expect("an address");
        let bound = BoundUdp::new(any, 1).expect("bound");
        let client = UdpSocket::bind(LOOPBACK).expect("bound");
        let v4 = SocketAddr::from(([127, 0, 0, 1], bound.address.port()));
        client.send_to(b"hello", v4).expect("sent");
        let (len, _) = bound.sockets[0].recv_from(&mut [0; 9]).expect("received");
        assert_eq!(len, 5);
    }
}
