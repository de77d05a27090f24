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

#[cfg(test)]
mod tests {
    use super::super::digest::Keyed;
    use super::*;
    use proxy_core::Credentials;

    const KEEP: Duration = Duration::from_secs(60);

    fn digests(count: usize) -> Vec<Digest> {
        let keyed = Keyed::new().expect("random numbers");
        let digest = |number: usize| {
            keyed.credentials(Credentials {
                user: &number.to_le_bytes(),
                password: b"",
            })
        };
        (0..count).map(digest).collect()
    }

    #[test]
    fn it_forgets_what_nobody_asks_for() {
        let digests = digests(2);
        let start = Instant::now();
        let mut memory = Memory::new(KEEP, 10);
        memory.store(digests[0], "busy", start);
        memory.store(digests[1], "idle", start);
        for second in (0..300).step_by(59) {
            let now = start + Duration::from_secs(second);
            assert_eq!(memory.recall(&digests[0], now), Some(&"busy"));
        }
        let late = start + Duration::from_secs(300);
        assert_eq!(memory.recall(&digests[1], late), None);
        assert_eq!(memory.recall(&digests[0], late + KEEP), None);
    }

    #[test]
    fn it_is_bounded_and_keeps_the_busy() {
        let digests = digests(1000);
        let now = Instant::now();
        let mut memory = Memory::new(KEEP, 10);
        for digest in &digests[1..] {
            memory.store(digests[0], (), now);
            memory.store(*digest, (), now);
            assert!(memory.recall(&digests[0], now).is_some());
            assert!(memory.young.len() <= 10 && memory.old.len() <= 10);
        }
        assert!(memory.recall(&digests[1], now).is_none());
        memory.clear();
        assert!(memory.recall(&digests[0], now).is_none());
    }

    #[test]
    fn for_no_time_is_not_at_all() {
        let digests = digests(1);
        let now = Instant::now();
        let mut memory = Memory::new(Duration::ZERO, 10);
        memory.store(digests[0], (), now);
        assert!(memory.recall(&digests[0], now).is_none());
    }
}
