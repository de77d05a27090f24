//! An address that does not answer.
#![allow(dead_code, reason = "each test binary uses a part")]

use std::net::{IpAddr, SocketAddr};

use tokio::net::{TcpListener, TcpSocket, TcpStream};

use super::within;

/// A listener whose queue is full does not answer at all.
pub(crate) struct Silent {
    pub(crate) address: SocketAddr,
    _listener: TcpListener,
    _queued: Vec<TcpStream>,
}

impl Silent {
    pub(crate) async fn new(ip: IpAddr, port: u16) -> Self {
        let socket = match ip {
            IpAddr::V4(_) => TcpSocket::new_v4(),
            IpAddr::V6(_) => TcpSocket::new_v6(),
        };
        let socket = socket.expect("socket");
        socket.bind(SocketAddr::new(ip, port)).expect("bind");
        let listener = socket.listen(0).expect("listen");
        let address = listener.local_addr().expect("address");
        let mut queued = Vec::new();
        while let Some(stream) = within(1, TcpStream::connect(address)).await {
            queued.push(stream.expect("queued"));
            assert!(queued.len() < 64, "the queue has no end");
        }
        Self {
            address,
            _listener: listener,
            _queued: queued,
        }
    }
}
