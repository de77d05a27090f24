//! The PROXY header by which targets learn whom a connection is for.

use bytes::BytesMut;
use proxy_core::{Ask, ConnectError, Operation, ProxyAddresses, ProxyHeader, ProxyVersion};
use tokio::io::{AsyncWrite, AsyncWriteExt};

/// What a target is to be sent first, if the listener tells anybody anything: who
/// the client is, and the address that it reached here.
pub(crate) fn header(version: Option<ProxyVersion>, ask: &Ask<'_>) -> Option<Box<ProxyHeader>> {
    let version = version?;
    let connects = matches!(ask.operation, Operation::Request { .. } | Operation::Tunnel);
    connects.then(|| {
        Box::new(ProxyHeader {
            version,
            addresses: Some(ProxyAddresses {
                source: ask.peer.remote,
                destination: ask.peer.local,
            }),
        })
    })
}

/// Sends a header over a new connection, at once and in one piece: the target may
/// be the one who speaks first, and may not wait for the rest of a header.
///
/// # Errors
/// If the connection failed. Not cancel safe: it is then of no use.
pub(crate) async fn send(
    header: &ProxyHeader,
    upstream: &mut (impl AsyncWrite + Unpin),
) -> Result<(), ConnectError> {
    let mut bytes = BytesMut::new();
    header.encode(&mut bytes);
    upstream.write_all(&bytes).await?;
    // TLS with a parent may hold it back.
    Ok(upstream.flush().await?)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proxy_core::{Peer, Target};

    fn told(version: Option<ProxyVersion>, operation: Operation<'_>) -> Option<ProxyHeader> {
        let peer = Peer {
            remote: "[::ffff:192.0.2.1]:7".parse().expect("an address"),
            local: "198.51.100.2:80".parse().expect("an address"),
        };
        let ask = Ask {
            peer: &peer,
            operation,
            target: Target::parse("far:80", None).expect("a target"),
            via: None,
            secure: false,
        };
        header(version, &ask).map(|header| *header)
    }

    #[tokio::test]
    async fn p73_only_what_connects_to_a_target_is_announced() {
        let request = Operation::Request {
            method: "GET",
            path: "/",
        };
        let version = Some(ProxyVersion::V1);
        assert_eq!(told(None, Operation::Tunnel), None);
        assert_eq!(told(version, Operation::Associate), None);
        assert_eq!(told(version, Operation::Bind), None);
        assert_eq!(told(version, request), told(version, Operation::Tunnel));
        let header = told(version, request).expect("a header");
        let mut sent = Vec::new();
        send(&header, &mut sent).await.expect("into memory");
        assert_eq!(sent, b"PROXY TCP4 192.0.2.1 198.51.100.2 7 80\r\n");
    }
}
