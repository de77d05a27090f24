//! proxy-relay
