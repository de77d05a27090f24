//! proxy-socks
