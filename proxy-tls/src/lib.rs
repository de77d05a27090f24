//! proxy-tls
