//! Placeholder until the crate it measures is written.
fn main() {}
