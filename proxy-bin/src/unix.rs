//! Targets that are Unix sockets: how they are named, and how they are reached.
//!
//! Everything between a listener and its target knows hosts and ports. A Unix
//! socket stands in there as a host `unix:PATH` with port 0, which no client can
//! name: a name has no colon, and a port is never 0.

use std::io;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::time::Duration;

use proxy_core::{ConnectError, ConnectErrorKind, Host, Target, TargetBuf};
use tokio::net::UnixStream;
use tokio::time::Instant;

/// What a Unix socket is written with, before its path.
pub(crate) const PREFIX: &str = "unix:";

/// What a client at a Unix socket is taken for: it is on this machine. No TCP
/// client has port 0.
pub(crate) const UNIX_CLIENT: SocketAddr = SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), 0);

/// The longest path that the system takes.
pub(crate) const LONGEST: usize = 107;

/// The target that stands for the socket at `path`.
pub(crate) fn target(path: &str) -> TargetBuf {
    let name = format!("{PREFIX}{path}");
    let host = Host::Name(&name);
    Target { host, port: 0 }.into()
}

/// The path of the socket that a target stands for, if it does.
pub(crate) fn path(target: Target<'_>) -> Option<&str> {
    match target.host {
        Host::Name(name) if target.port == 0 => name.strip_prefix(PREFIX),
        _ => None,
    }
}

/// A target as people read it.
pub(crate) fn shown(target: Target<'_>) -> String {
    match path(target) {
        Some(path) => format!("{PREFIX}{path}"),
        None => target.to_string(),
    }
}

/// Connects to the socket at `path`, within `patience` if its queue is full.
/// Cancel safe.
///
/// # Errors
/// Why it cannot be reached: [`Refused`](ConnectErrorKind::Refused) if nobody
/// listens there.
pub(crate) async fn connect(
    path: &str,
    patience: Option<Duration>,
) -> Result<UnixStream, ConnectError> {
    let start = Instant::now();
    loop {
        let error = match UnixStream::connect(path).await {
            Ok(stream) => return Ok(stream),
            Err(error) => error,
        };
        match error.kind() {
            // The system does not queue those who find no room in the queue.
            io::ErrorKind::WouldBlock => {}
            io::ErrorKind::NotFound => return Err(ConnectError::origin(ConnectErrorKind::Refused)),
            _ => return Err(error.into()),
        }
        if patience.is_some_and(|patience| start.elapsed() >= patience) {
            return Err(ConnectError::origin(ConnectErrorKind::TimedOut));
        }
        tokio::time::sleep(PAUSE).await;
    }
}

/// Between two attempts to find room in a queue.
const PAUSE: Duration = Duration::from_millis(20);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn p39_only_the_operator_can_name_a_socket() {
        let own = target("/run/db.sock");
        assert_eq!(path(own.as_target()), Some("/run/db.sock"));
        assert_eq!(shown(own.as_target()), "unix:/run/db.sock");
        for text in ["unix:/run/db.sock", "unix:/run/db.sock:0", "unix:0"] {
            assert!(Target::parse(text, Some(80)).is_err(), "{text}");
            assert!(Host::name(text.as_bytes()).is_err(), "{text}");
        }
        let name = Target::parse("unix:80", None).expect("a host of that name");
        assert_eq!(path(name), None);
    }

    #[tokio::test]
    async fn nobody_listens() {
        let folder = tempfile::tempdir().expect("a folder");
        let file = folder.path().join("db.sock");
        let file = file.to_str().expect("a plain path");
        let error = connect(file, None).await.expect_err("no socket");
        assert_eq!(error.kind, ConnectErrorKind::Refused);
        drop(std::os::unix::net::UnixListener::bind(file).expect("bound"));
        let error = connect(file, None).await.expect_err("a stale one");
        assert_eq!(error.kind, ConnectErrorKind::Refused);
    }
}
