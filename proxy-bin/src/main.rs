//! The proxyd binary.
fn main() {}
