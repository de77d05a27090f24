//! Probing of silent peers, so that dead ones are found.

use std::io;
use std::os::fd::AsFd;
use std::time::Duration;

use socket2::{SockRef, TcpKeepalive};

/// Has the system probe the peer of a TCP connection after it has been silent
/// for `idle`, then every 15 s; when four are without an answer the connection
/// ends as timed out, a minute after the first, which a tunnel takes for a reset.
///
/// `idle` is kept in whole seconds, from 1 to 32767. A listening socket hands
/// this on to those that it accepts (Linux), which saves a system call for each.
///
/// # Errors
/// If the system refuses an option.
///
/// ```
/// # fn example() -> std::io::Result<()> {
/// let listener = std::net::TcpListener::bind("127.0.0.1:0")?;
/// proxy_relay::keep_alive(&listener, std::time::Duration::from_secs(60))?;
/// # Ok(())
/// # }
/// ```
pub fn keep_alive(socket: &impl AsFd, idle: Duration) -> io::Result<()> {
    let part = u64::from(idle.subsec_nanos() > 0);
    let seconds = idle.as_secs().saturating_add(part);
    let probing = TcpKeepalive::new()
        .with_time(Duration::from_secs(seconds.clamp(1, LONGEST)))
        .with_interval(INTERVAL)
        .with_retries(PROBES);
    SockRef::from(socket).set_tcp_keepalive(&probing)
}

const INTERVAL: Duration = Duration::from_secs(15);
const PROBES: u32 = 4;

/// What Linux takes at most.
const LONGEST: u64 = 32767;

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::{TcpListener, TcpStream};

    #[test]
    fn p45_accepted_sockets_take_it_from_their_listener() {
        let listener = TcpListener::bind("127.0.0.1:0").expect("bound");
        keep_alive(&listener, Duration::from_millis(60_500)).expect("set");
        let address = listener.local_addr().expect("known");
        let _client = TcpStream::connect(address).expect("connected");
        let (accepted, _) = listener.accept().expect("accepted");
        let socket = SockRef::from(&accepted);
        assert!(socket.keepalive().expect("known"));
        let seconds = Duration::from_secs;
        assert_eq!(socket.tcp_keepalive_time().expect("known"), seconds(61));
        assert_eq!(socket.tcp_keepalive_interval().expect("known"), seconds(15));
        assert_eq!(socket.tcp_keepalive_retries().expect("known"), 4);
    }

    #[test]
    fn any_length_of_time_will_do() {
        for (idle, kept) in [(Duration::from_nanos(1), 1), (Duration::MAX, LONGEST)] {
            let listener = TcpListener::bind("127.0.0.1:0").expect("bound");
            keep_alive(&listener, idle).expect("set");
            let time = SockRef::from(&listener).tcp_keepalive_time();
            assert_eq!(time.expect("known").as_secs(), kept);
        }
    }
}
