//! Datagrams through a SOCKS5 parent: the client's side of UDP ASSOCIATE.

use std::io;
use std::net::{IpAddr, SocketAddr};

use bytes::BytesMut;
use proxy_core::{Host, Status, Target};
use proxy_relay::{Carrier, Passage};
use tokio::net::TcpStream;

use crate::wire::UdpHeader;

/// An association of our own with a SOCKS5 proxy, which carries datagrams on
/// (RFC 1928 section 7). It ends when this is dropped: then the control connection
/// is closed.
///
/// Names are sent as they are, for the parent to resolve. Fragments are dropped.
///
/// ```
/// use std::sync::Arc;
/// use bytes::BytesMut;
/// use proxy_relay::{Passage, drive};
/// use proxy_socks::{ClientHandshake, ParentRelay};
/// use tokio::net::TcpStream;
///
/// async fn associate(parent: &str) -> Result<Passage, Box<dyn std::error::Error>> {
///     let mut control = TcpStream::connect(parent).await?;
///     let mut handshake = ClientHandshake::associate(None)?;
///     let bound = drive(&mut control, &mut BytesMut::new(), &mut handshake).await?;
///     Ok(ParentRelay::new(control, bound)?.passage())
/// }
/// ```
#[derive(Debug)]
pub struct ParentRelay {
    control: TcpStream,
    address: SocketAddr,
    source: Option<IpAddr>,
}

impl ParentRelay {
    /// Takes over the control connection. `bound` is the address in the parent's
    /// reply; an unspecified one means the address that we have reached it at.
    ///
    /// # Errors
    /// If the reply has no port, or the connection is gone.
    pub fn new(control: TcpStream, bound: SocketAddr) -> io::Result<Self> {
        if bound.port() == 0 {
            return Err(io::ErrorKind::InvalidData.into());
        }
        let ip = match bound.ip().to_canonical() {
            ip if ip.is_unspecified() => control.peer_addr()?.ip().to_canonical(),
            ip => ip,
        };
        // It takes datagrams only from the address that it knows us by.
        let own = control.local_addr()?.ip().to_canonical();
        Ok(Self {
            control,
            address: SocketAddr::new(ip, bound.port()),
            source: Some(own).filter(|own| own.is_ipv4() == ip.is_ipv4()),
        })
    }

    /// Where the parent takes datagrams.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// The address of ours that it takes them from; `None` if it is of the other
    /// family.
    pub fn source(&self) -> Option<IpAddr> {
        self.source
    }

    /// The way through it, for an association's policy.
    pub fn passage(self) -> Passage {
        Passage {
            address: self.address,
            source: self.source,
            carrier: Some(std::sync::Arc::new(self)),
        }
    }
}

impl Carrier for ParentRelay {
    fn seal(&self, target: Target<'_>, header: &mut BytesMut) {
        let sealed = UdpHeader {
            fragment: 0,
            target,
        };
        if sealed.encode(header).is_err() {
            // Nobody takes a datagram without a target.
            header.clear();
        }
    }

    fn open<'d>(&self, datagram: &'d [u8]) -> Option<(SocketAddr, &'d [u8])> {
        match UdpHeader::parse(datagram) {
            Ok(Status::Complete(header, used)) if header.fragment == 0 => {
                let Host::Ip(ip) = header.target.host else {
                    return None;
                };
                let from = SocketAddr::new(ip, header.target.port);
                Some((from, &datagram[used..]))
            }
            _ => None,
        }
    }

    /// Costs no system call while the runtime knows that nothing came.
    fn is_open(&self) -> bool {
        // What a parent sends here means nothing, but that it has ended.
        for _ in 0..MOST_READS {
            match self.control.try_read(&mut [0; 512]) {
                Ok(0) => return false,
                Ok(_) => {}
                Err(error) => return error.kind() == io::ErrorKind::WouldBlock,
            }
        }
        true
    }
}

/// At a time, of what means nothing.
const MOST_READS: usize = 8;

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::io::{AsyncWriteExt, Interest};
    use tokio::net::TcpListener;

    async fn control() -> (TcpStream, TcpStream) {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("bound");
        let address = listener.local_addr().expect("bound");
        let ours = TcpStream::connect(address).await.expect("connected");
        (ours, listener.accept().await.expect("accepted").0)
    }

    fn address(text: &str) -> SocketAddr {
        text.parse().expect("an address")
    }

    async fn relay(bound: &str) -> io::Result<(ParentRelay, TcpStream)> {
        let (ours, theirs) = control().await;
        Ok((ParentRelay::new(ours, address(bound))?, theirs))
    }

    #[tokio::test]
    async fn p66_where_a_parent_takes_datagrams() {
        for (bound, expected, source) in [
            ("192.0.2.1:9", "192.0.2.1:9", Some("127.0.0.1")),
            ("0.0.0.0:9", "127.0.0.1:9", Some("127.0.0.1")),
            ("[::]:9", "127.0.0.1:9", Some("127.0.0.1")),
            ("[::ffff:192.0.2.1]:9", "192.0.2.1:9", Some("127.0.0.1")),
            ("[2001:db8::1]:9", "[2001:db8::1]:9", None),
        ] {
            let (relay, _theirs) = relay(bound).await.expect("a relay");
            assert_eq!(relay.address(), address(expected), "{bound}");
            let source = source.map(|ip| ip.parse::<IpAddr>().expect("an address"));
            assert_eq!(relay.source(), source, "{bound}");
        }
        let error = relay("192.0.2.1:0").await.map(drop).expect_err("no port");
        assert_eq!(error.kind(), io::ErrorKind::InvalidData);
    }

    #[tokio::test]
    async fn datagrams_have_the_header_of_a_client() {
        let (relay, _theirs) = relay("192.0.2.1:9").await.expect("a relay");
        for target in ["name.example:53", "192.0.2.7:9", "[2001:db8::7]:9"] {
            let mut datagram = BytesMut::new();
            let target = Target::parse(target, None).expect("a target");
            relay.seal(target, &mut datagram);
            datagram.extend_from_slice(b"payload");
            let header = UdpHeader::parse(&datagram).expect("a header");
            let Status::Complete(header, used) = header else {
                panic!("it is whole");
            };
            assert_eq!((header.fragment, header.target), (0, target));
            assert_eq!(&datagram[used..], b"payload");
            let from = match target.host {
                Host::Ip(ip) => Some(SocketAddr::new(ip, target.port)),
                Host::Name(_) => None,
            };
            let opened = relay.open(&datagram);
            assert_eq!(opened, from.map(|from| (from, &b"payload"[..])));
        }
        assert_eq!(relay.open(b"\0\0\x01\x01\x7f\0\0\x01\0\x09x"), None);
        assert_eq!(relay.open(b"\0\0\0\x01\x7f\0\0"), None);
        assert_eq!(relay.open(b""), None);
    }

    #[tokio::test]
    async fn p63_it_ends_with_its_control_connection() {
        let (relay, mut theirs) = relay("192.0.2.1:9").await.expect("a relay");
        assert!(relay.is_open());
        theirs.write_all(b"meaningless").await.expect("sent");
        let readable = relay.control.ready(Interest::READABLE);
        readable.await.expect("readable");
        assert!(relay.is_open());
        drop(theirs);
        let readable = relay.control.ready(Interest::READABLE);
        readable.await.expect("readable");
        assert!(!relay.is_open());
    }
}
