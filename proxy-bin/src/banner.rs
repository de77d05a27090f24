//! What is printed at the start: where it listens, and a command to try.

use std::fmt::Write;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use crate::config::{Config, Protocol};
use crate::plan::Place;

/// A line `listening PROTOCOL ADDRESS` for each listener, in the order of the
/// configuration, each with lines to try below it.
pub(crate) fn text(places: &[Place], config: &Config) -> String {
    let mut text = String::new();
    for place in places {
        let protocol = place.listener.protocol;
        // Writing to a string cannot fail.
        if let Some(unix) = &place.listener.unix {
            let _ = writeln!(text, "listening {protocol} unix:{}", unix.path.display());
            continue;
        }
        let _ = writeln!(text, "listening {protocol} {}", place.address);
        for line in tries(place, config) {
            let _ = writeln!(text, "  {line}");
        }
    }
    text
}

fn tries(place: &Place, config: &Config) -> Vec<String> {
    if place.listener.proxy_protocol.is_some() {
        // It is for front ends, and who tries it by hand is refused.
        return Vec::new();
    }
    let at = reachable(place.address);
    let login = match place.listener.auth {
        true => login(config),
        false => String::new(),
    };
    let through = |proxy: &str| format!("curl -x {proxy}://{at}{login} {SITE}");
    // The name in the certificate is not the address.
    let inside_tls = format!("curl --proxy-insecure -x https://{at}{login} {SITE}");
    match place.listener.protocol {
        Protocol::Auto => {
            let mut lines = vec![through("http"), through("socks5h")];
            if place.tls.is_some() {
                lines.push(inside_tls);
            }
            lines
        }
        Protocol::Http => vec![through("http")],
        Protocol::Https => vec![inside_tls],
        // Only the firewall can send somebody there.
        Protocol::Redirect | Protocol::Tproxy => Vec::new(),
        Protocol::Sni => vec![format!("curl --connect-to ::{at} {TLS_SITE}")],
        Protocol::Socks => vec![through("socks5h")],
        Protocol::Tcp => vec![format!("curl telnet://{at}")],
        Protocol::Udp => vec![format!("nc -u {} {}", at.ip(), at.port())],
    }
}

/// Curl asks for the password.
fn login(config: &Config) -> String {
    let plain = |name: &str| name.bytes().all(|b| b.is_ascii_alphanumeric());
    let name = config.users.first().map(|user| user.name.as_str());
    format!(" -U {}", name.filter(|name| plain(name)).unwrap_or("NAME"))
}

/// An address that can be connected to.
fn reachable(address: SocketAddr) -> SocketAddr {
    let ip = match address.ip() {
        IpAddr::V4(ip) if ip.is_unspecified() => Ipv4Addr::LOCALHOST.into(),
        IpAddr::V6(ip) if ip.is_unspecified() => Ipv6Addr::LOCALHOST.into(),
        ip => ip,
    };
    SocketAddr::new(ip, address.port())
}

const SITE: &str = "http://example.com/";
const TLS_SITE: &str = "https://example.com/";
