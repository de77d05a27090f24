//! Clients of SOCKS5 UDP ASSOCIATE, and an echo for them.

use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::sync::{Arc, Mutex};
use std::thread;

use super::{Conn, DEADLINE, Proxyd};

/// A client with its association.
pub(crate) struct Udp {
    pub(crate) control: Conn,
    pub(crate) socket: UdpSocket,
    pub(crate) relay: SocketAddr,
}

impl Udp {
    /// Asks for an association on a connection that is ready for SOCKS.
    pub(crate) fn over(control: Conn) -> Self {
        Self::asking(control, &ASSOCIATE)
    }

    /// The same with another request.
    pub(crate) fn asking(control: Conn, request: &[u8]) -> Self {
        control.send(request);
        control.expect([5, 0, 5, 0, 0]);
        let ip: IpAddr = match control.exact(1)[0] {
            1 => <[u8; 4]>::try_from(control.exact(4)).expect("four").into(),
            _ => <[u8; 16]>::try_from(control.exact(16)).expect("16").into(),
        };
        let port = u16::from_be_bytes([control.exact(1)[0], control.exact(1)[0]]);
        let socket = UdpSocket::bind((control.local().ip(), 0)).expect("bound");
        socket.set_read_timeout(Some(DEADLINE)).expect("set");
        Self {
            control,
            socket,
            relay: SocketAddr::new(ip, port),
        }
    }

    pub(crate) fn new(proxy: &Proxyd) -> Self {
        Self::over(Conn::dial(proxy.address("socks")))
    }

    pub(crate) fn send(&self, host: &str, port: u16, payload: impl AsRef<[u8]>) {
        self.send_raw(datagram(host, port, payload));
    }

    pub(crate) fn send_raw(&self, datagram: impl AsRef<[u8]>) {
        let sent = self.socket.send_to(datagram.as_ref(), self.relay);
        assert_eq!(sent.expect("sent"), datagram.as_ref().len());
    }

    /// The next answer: from where, and what.
    pub(crate) fn next(&self) -> (SocketAddr, Vec<u8>) {
        let mut buf = vec![0; 65_536];
        let (len, from) = self.socket.recv_from(&mut buf).expect("an answer");
        assert_eq!(from, self.relay);
        assert_eq!(buf[..3], [0, 0, 0]);
        let (ip, rest): (IpAddr, _) = match buf[3] {
            1 => (<[u8; 4]>::try_from(&buf[4..8]).expect("four").into(), 8),
            4 => (<[u8; 16]>::try_from(&buf[4..20]).expect("16").into(), 20),
            other => panic!("address type {other}"),
        };
        let port = u16::from_be_bytes([buf[rest], buf[rest + 1]]);
        (SocketAddr::new(ip, port), buf[rest + 2..len].to_vec())
    }

    /// There and back; all that was sent before has been dealt with then.
    pub(crate) fn round(&self, echo: &Echo) {
        let SocketAddr::V4(to) = echo.address else {
            panic!("an IPv4 address");
        };
        self.send(&to.ip().to_string(), to.port(), b"ping");
        assert_eq!(self.next(), (echo.address, b"ping".to_vec()));
    }
}

/// A request for an association, without a login.
pub(crate) const ASSOCIATE: [u8; 13] = [5, 1, 0, 5, 3, 0, 1, 0, 0, 0, 0, 0, 0];

/// With a header for an address, or for a name.
pub(crate) fn datagram(host: &str, port: u16, payload: impl AsRef<[u8]>) -> Vec<u8> {
    let mut wire = vec![0, 0, 0];
    match host.parse() {
        Ok(IpAddr::V4(ip)) => wire.extend([&[1][..], &ip.octets()].concat()),
        Ok(IpAddr::V6(ip)) => wire.extend([&[4][..], &ip.octets()].concat()),
        Err(_) => {
            wire.extend([3, u8::try_from(host.len()).expect("short")]);
            wire.extend(host.bytes());
        }
    }
    wire.extend(port.to_be_bytes());
    wire.extend(payload.as_ref());
    wire
}

/// Sends back what it gets, and remembers from where.
pub(crate) struct Echo {
    pub(crate) address: SocketAddr,
    pub(crate) seen: Arc<Mutex<Vec<SocketAddr>>>,
}

impl Echo {
    pub(crate) fn on(ip: &str, port: u16) -> Self {
        let socket = UdpSocket::bind((ip, port)).expect("bound");
        let address = socket.local_addr().expect("bound");
        let seen = Arc::new(Mutex::new(Vec::new()));
        let theirs = Arc::clone(&seen);
        thread::spawn(move || {
            let mut buf = vec![0; 65_536];
            while let Ok((len, from)) = socket.recv_from(&mut buf) {
                theirs.lock().expect("no panic").push(from);
                let _ = socket.send_to(&buf[..len], from);
            }
        });
        Self { address, seen }
    }

    pub(crate) fn new() -> Self {
        Self::on("127.0.0.1", 0)
    }

    pub(crate) fn port(&self) -> u16 {
        self.address.port()
    }

    /// Where the first datagram came from.
    pub(crate) fn first(&self) -> SocketAddr {
        self.seen.lock().expect("no panic")[0]
    }

    pub(crate) fn count(&self) -> usize {
        self.seen.lock().expect("no panic").len()
    }
}
