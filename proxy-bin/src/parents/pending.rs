//! How many connections alike are being set up through SOCKS parents.
//!
//! SOCKS passes on no trace of the proxies that a request has been through, as
//! `Via` does. A circle of parents shows in that more and more connections for
//! the same are being set up, each on behalf of the one before.

use std::cell::RefCell;
use std::collections::HashMap;
use std::collections::hash_map::RandomState;
use std::hash::BuildHasher;
use std::net::IpAddr;

use proxy_core::Target;

/// The connections of one worker that are being set up.
#[derive(Debug, Default)]
pub(super) struct Pending {
    /// Whom for and where to, hashed with a key that nobody knows.
    keys: RandomState,
    /// No entry is 0.
    counts: RefCell<HashMap<u64, u16>>,
}

/// Counts as one being set up until it is dropped.
#[derive(Debug)]
pub(super) struct Entry<'p> {
    pending: &'p Pending,
    key: u64,
}

impl Pending {
    /// Counts one more for the same client and target; `None` if that are too
    /// many, and so a circle.
    pub(super) fn enter(&self, client: IpAddr, target: Target<'_>) -> Option<Entry<'_>> {
        let key = self.keys.hash_one((client, target));
        let mut counts = self.counts.borrow_mut();
        let count = counts.entry(key).or_default();
        if *count >= MOST {
            return None;
        }
        *count += 1;
        Some(Entry { pending: self, key })
    }
}

impl Drop for Entry<'_> {
    fn drop(&mut self) {
        let mut counts = self.pending.counts.borrow_mut();
        if let Some(count) = counts.get_mut(&self.key) {
            *count -= 1;
            if *count == 0 {
                counts.remove(&self.key);
            }
        }
        if counts.is_empty() {
            // What a flood made it grow to is not kept.
            counts.shrink_to(KEPT);
        }
    }
}

/// How many alike may be set up at once: more than any client needs, and few
/// enough that a circle leaves descriptors for others.
const MOST: u16 = 256;

/// Room for this many is kept.
const KEPT: usize = 64;

#[cfg(test)]
mod tests {
    use super::*;

    fn target(text: &str) -> Target<'_> {
        Target::parse(text, None).expect("a target")
    }

    #[test]
    fn p30_too_many_alike_are_a_circle() {
        let pending = Pending::default();
        let (one, two) = (IpAddr::from([127, 0, 0, 1]), IpAddr::from([127, 0, 0, 2]));
        let enter = |client, place| pending.enter(client, target(place));
        let mut held: Vec<_> = (0..MOST).map(|_| enter(one, "far.test:80")).collect();
        assert!(held.iter().all(Option::is_some));
        assert!(enter(one, "far.test:80").is_none());
        for (client, place) in [
            (two, "far.test:80"),
            (one, "far.test:81"),
            (one, "near.test:80"),
        ] {
            assert!(enter(client, place).is_some(), "{client} {place}");
        }
        // One that is over makes room for another.
        held.pop();
        held.push(enter(one, "far.test:80"));
        assert!(held.iter().all(Option::is_some));
        assert!(enter(one, "far.test:80").is_none());
    }

    #[test]
    fn nothing_is_kept_of_what_is_over() {
        let pending = Pending::default();
        let client = IpAddr::from([127, 0, 0, 1]);
        let places: Vec<String> = (1..2000).map(|port| format!("far.test:{port}")).collect();
        let enter = |place: &String| pending.enter(client, target(place));
        let held: Vec<_> = places.iter().map(enter).collect();
        assert_eq!(pending.counts.borrow().len(), held.len());
        drop(held);
        let counts = pending.counts.borrow();
        assert!(counts.is_empty() && counts.capacity() < 256);
    }
}
