//! Places for connections: so many in all, or so many for each of a kind.

use std::collections::HashMap;
use std::collections::hash_map::RandomState;
use std::hash::{BuildHasher, Hash};
use std::num::NonZeroU64;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// So many places in the whole process.
#[derive(Debug)]
pub(crate) struct Places {
    most: usize,
    used: AtomicUsize,
}

impl Places {
    pub(crate) fn new(most: usize) -> Self {
        Self {
            most,
            used: AtomicUsize::new(0),
        }
    }

    /// Takes one, if one is left; to be given back.
    pub(crate) fn take(&self) -> bool {
        let taken = self.used.fetch_add(1, Ordering::Relaxed) < self.most;
        if !taken {
            self.give();
        }
        taken
    }

    pub(crate) fn give(&self) {
        self.used.fetch_sub(1, Ordering::Relaxed);
    }

    #[cfg(test)]
    pub(crate) fn used(&self) -> usize {
        self.used.load(Ordering::Relaxed)
    }
}

/// So many places for each client, or each origin, in the whole process. Holds
/// an entry for each that has one, and nothing of the others.
#[derive(Debug)]
pub(crate) struct Shares {
    most: usize,
    /// What is counted, hashed with a key that nobody knows.
    keys: RandomState,
    /// No entry is 0.
    counts: Mutex<HashMap<NonZeroU64, usize>>,
}

/// Whose place it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Share(NonZeroU64);

impl Shares {
    pub(crate) fn new(most: usize) -> Self {
        Self {
            most,
            keys: RandomState::new(),
            counts: Mutex::default(),
        }
    }

    /// Takes one for `whose`, if one is left; to be given back.
    pub(crate) fn take(&self, whose: impl Hash) -> Option<Share> {
        let key = NonZeroU64::MIN.saturating_add(self.keys.hash_one(whose) >> 1);
        let mut counts = self.counts();
        let count = counts.entry(key).or_default();
        (*count < self.most).then(|| {
            *count += 1;
            Share(key)
        })
    }

    pub(crate) fn give(&self, share: Share) {
        let mut counts = self.counts();
        if let Some(count) = counts.get_mut(&share.0) {
            *count -= 1;
            if *count == 0 {
                counts.remove(&share.0);
            }
        }
        if counts.is_empty() {
            // What a flood made it grow to is not kept.
            counts.shrink_to(KEPT);
        }
    }

    /// Held for a few instructions only. They leave it in order, so that a panic
    /// elsewhere is no reason to stop counting.
    fn counts(&self) -> MutexGuard<'_, HashMap<NonZeroU64, usize>> {
        self.counts.lock().unwrap_or_else(PoisonError::into_inner)
    }

    #[cfg(test)]
    pub(crate) fn len(&self) -> usize {
        self.counts().len()
    }
}

/// Room for this many is kept.
const KEPT: usize = 64;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn p51_each_has_its_own_places() {
        let shares = Shares::new(2);
        let held: Vec<Share> = [1, 2, 1, 2]
            .iter()
            .filter_map(|who| shares.take(who))
            .collect();
        assert_eq!(held.len(), 4);
        assert_eq!((shares.take(1), shares.len()), (None, 2));
        shares.give(held[0]);
        assert_eq!(shares.take(2), None);
        let again = shares.take(1).expect("one that was given back");
        for share in [again, held[1], held[2], held[3]] {
            shares.give(share);
        }
        assert_eq!(shares.len(), 0);
    }

    #[test]
    fn nothing_is_kept_of_those_who_left() {
        let shares = Shares::new(1);
        let held: Vec<_> = (0..5000).filter_map(|who| shares.take(who)).collect();
        assert_eq!((held.len(), shares.len()), (5000, 5000));
        held.into_iter().for_each(|share| shares.give(share));
        assert!(shares.len() == 0 && shares.counts().capacity() < 256);
    }
}
