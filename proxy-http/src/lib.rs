//! proxy-http
