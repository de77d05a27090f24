//! As much of SOCKS5 UDP ASSOCIATE over IPv4 as both ends need (RFC 1928).

use std::io::{self, Read, Write};
use std::net::{Ipv4Addr, SocketAddrV4, TcpStream};
use std::time::Duration;

/// The length of a UDP header with an IPv4 address.
pub(crate) const HEADER: usize = 10;
const PATIENCE: Duration = Duration::from_secs(5);

/// The header of datagrams to or from `address`.
pub(crate) fn header(address: SocketAddrV4) -> [u8; HEADER] {
    let [a, b, c, d] = address.ip().octets();
    let [high, low] = address.port().to_be_bytes();
    [0, 0, 0, 1, a, b, c, d, high, low]
}

fn address([a, b, c, d, high, low]: [u8; 6]) -> SocketAddrV4 {
    SocketAddrV4::new(Ipv4Addr::new(a, b, c, d), u16::from_be_bytes([high, low]))
}

/// The address that a header names, if it has the one form that is spoken here.
pub(crate) fn named(datagram: &[u8]) -> Option<SocketAddrV4> {
    match datagram {
        [_, _, 0, 1, a, b, c, d, high, low, ..] => Some(address([*a, *b, *c, *d, *high, *low])),
        _ => None,
    }
}

fn expect<const N: usize>(stream: &mut TcpStream, what: &str) -> io::Result<[u8; N]> {
    let mut bytes = [0; N];
    stream
        .read_exact(&mut bytes)
        .map_err(|error| io::Error::other(format!("SOCKS: no {what}: {error}")))?;
    Ok(bytes)
}

fn refuse(what: &str, bytes: &[u8]) -> io::Error {
    io::Error::other(format!("SOCKS: {what} {bytes:?}"))
}

/// Asks the server at `server` for an association of the client socket `client`. It lives as long as the connection.
pub(crate) fn associate(
    server: SocketAddrV4,
    client: SocketAddrV4,
) -> io::Result<(TcpStream, SocketAddrV4)> {
    let mut stream = TcpStream::connect(server)?;
    stream.set_read_timeout(Some(PATIENCE))?;
    stream.set_nodelay(true)?;
    stream.write_all(&[5, 1, 0])?;
    match expect(&mut stream, "method")? {
        [5, 0] => {}
        other => return Err(refuse("method", &other)),
    }
    let mut request = header(client);
    request[..4].copy_from_slice(&[5, 3, 0, 1]);
    stream.write_all(&request)?;
    match expect::<10>(&mut stream, "reply")? {
        [5, 0, _, 1, rest @ ..] => {
            let mut relay = address(rest);
            if relay.ip().is_unspecified() {
                relay.set_ip(*server.ip());
            }
            Ok((stream, relay))
        }
        other => Err(refuse("reply", &other)),
    }
}

/// Grants an association, with the client's datagrams at `relay`.
pub(crate) fn grant(stream: &mut TcpStream, relay: SocketAddrV4) -> io::Result<()> {
    stream.set_read_timeout(Some(PATIENCE))?;
    stream.set_nodelay(true)?;
    let [version, methods] = expect(stream, "greeting")?;
    let mut offered = vec![0; usize::from(methods)];
    stream.read_exact(&mut offered)?;
    if version != 5 || !offered.contains(&0) {
        return Err(refuse("greeting", &offered));
    }
    stream.write_all(&[5, 0])?;
    match expect(stream, "request")? {
        [5, 3, 0, 1, _, _, _, _, _, _] => {}
        other => return Err(refuse("request", &other)),
    }
    let mut reply = header(relay);
    reply[..4].copy_from_slice(&[5, 0, 0, 1]);
    stream.write_all(&reply)
}
