//! What a parser says about a slice that may not hold everything yet.

/// The outcome of looking at a growing slice: the value, or "not enough yet".
///
/// Being short of bytes is never an error. A parser that returned
/// [`Status::Partial`] is called again with a longer slice that starts at the
/// same byte.
///
/// Exhaustive on purpose: there is no third answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Status<T> {
    /// The value, and how many bytes of the input it took.
    Complete(T, usize),
    /// The input ends before the value does.
    Partial,
}

impl<T> Status<T> {
    /// Changes the value and keeps the count.
    ///
    /// ```
    /// # use proxy_core::Status;
    /// assert_eq!(Status::Complete(2, 5).map(|n| n + 1), Status::Complete(3, 5));
    /// ```
    pub fn map<U>(self, f: impl FnOnce(T) -> U) -> Status<U> {
        match self {
            Self::Complete(value, used) => Status::Complete(f(value), used),
            Self::Partial => Status::Partial,
        }
    }

    /// Whether more bytes are needed.
    pub fn is_partial(&self) -> bool {
        matches!(self, Self::Partial)
    }
}
