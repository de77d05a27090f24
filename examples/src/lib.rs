//! Runnable examples; see the `examples` folder of this crate.
//!
//! The code in the project's README is compiled here, as a documentation test.

#![forbid(unsafe_code)]

#[cfg(doctest)]
#[doc = include_str!("../../README.md")]
struct Readme;
