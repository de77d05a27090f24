//! What is known of credentials for a short time.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use super::digest::Digest;

/// Values by digest, each forgotten when nobody asked for it that long. Bounded:
/// when there are too many, those go that nobody asked for lately.
pub(super) struct Memory<T> {
    keep: Duration,
    /// Of each generation.
    most: usize,
    young: HashMap<Digest, (Instant, T)>,
    old: HashMap<Digest, (Instant, T)>,
    turned: Option<Instant>,
}

impl<T> Memory<T> {
    /// Holds at most twice `most`.
    pub(super) fn new(keep: Duration, most: usize) -> Self {
        Self {
            keep,
            most,
            young: HashMap::new(),
            old: HashMap::new(),
            turned: None,
        }
    }

    pub(super) fn store(&mut self, digest: Digest, value: T, now: Instant) {
        if self.keep.is_zero() {
            return;
        }
        let turned = *self.turned.get_or_insert(now);
        let is_late = now.saturating_duration_since(turned) >= self.keep;
        if is_late || self.young.len() >= self.most {
            self.old = std::mem::take(&mut self.young);
            self.turned = Some(now);
        }
        self.young.insert(digest, (now, value));
    }

    /// Asking for a value keeps it.
    pub(super) fn recall(&mut self, digest: &Digest, now: Instant) -> Option<&T> {
        let keep = self.keep;
        let is_fresh = |at: Instant| now.saturating_duration_since(at) < keep;
        if let Some((at, value)) = self.old.remove(digest)
            && is_fresh(at)
        {
            self.store(*digest, value, now);
        }
        let (at, value) = self.young.get_mut(digest)?;
        if !is_fresh(*at) {
            return None;
        }
        *at = now;
        Some(value)
    }

    pub(super) fn clear(&mut self) {
        self.young = HashMap::new();
        self.old = HashMap::new();
        self.turned = None;
    }
}
