//! Runnable examples; see the `examples` folder of this crate.
