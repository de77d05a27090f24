//! Counts the client connections of a worker and keeps them within a limit.

use std::cell::Cell;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use tokio::sync::Notify;

/// The most client connections of the whole process.
#[derive(Debug)]
pub(crate) struct Limit {
    most: usize,
    used: AtomicUsize,
}

impl Limit {
    pub(crate) fn new(most: usize) -> Self {
        Self {
            most,
            used: AtomicUsize::new(0),
        }
    }

    fn take(&self) -> bool {
        let taken = self.used.fetch_add(1, Ordering::Relaxed) < self.most;
        if !taken {
            self.give();
        }
        taken
    }

    fn give(&self) {
        self.used.fetch_sub(1, Ordering::Relaxed);
    }
}

/// The connections of one worker.
#[derive(Debug, Default)]
pub(crate) struct Gate {
    limit: Option<Arc<Limit>>,
    served: Cell<usize>,
    refused: Cell<usize>,
    empty: Notify,
}

/// What becomes of a new connection.
#[derive(Debug)]
pub(crate) enum Admission {
    /// Too many are being told that there are too many.
    Drop,
    /// To be told that the proxy is at its limit.
    Refuse(Slot),
    Serve(Slot),
}

impl Gate {
    pub(crate) fn new(limit: Option<Arc<Limit>>) -> Self {
        Self {
            limit,
            ..Self::default()
        }
    }

    /// Decides about a new connection.
    pub(crate) fn admit(self: &Rc<Self>) -> Admission {
        let refused = match &self.limit {
            Some(limit) => !limit.take(),
            None => false,
        };
        if refused && self.refused.get() >= MOST_REFUSALS {
            return Admission::Drop;
        }
        let counter = if refused { &self.refused } else { &self.served };
        counter.set(counter.get() + 1);
        let slot = Slot {
            gate: Rc::clone(self),
            refused,
        };
        match refused {
            true => Admission::Refuse(slot),
            false => Admission::Serve(slot),
        }
    }

    /// How many connections there are.
    pub(crate) fn len(&self) -> usize {
        self.served.get() + self.refused.get()
    }

    /// Waits until there are none. Cancel safe.
    pub(crate) async fn emptied(&self) {
        while self.len() > 0 {
            self.empty.notified().await;
        }
    }
}

/// The place of one connection, free again when this is dropped: at its end, in
/// a panic, with the worker.
#[derive(Debug)]
pub(crate) struct Slot {
    gate: Rc<Gate>,
    refused: bool,
}

impl Drop for Slot {
    fn drop(&mut self) {
        let gate = &self.gate;
        if self.refused {
            gate.refused.set(gate.refused.get() - 1);
        } else {
            gate.served.set(gate.served.get() - 1);
            if let Some(limit) = &gate.limit {
                limit.give();
            }
        }
        if gate.len() == 0 {
            gate.empty.notify_one();
        }
    }
}

/// Connections that are being refused at a time; more are closed at once.
const MOST_REFUSALS: usize = 128;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn p51_places_return_on_every_path() {
        let limit = Arc::new(Limit::new(2));
        let gate = Rc::new(Gate::new(Some(Arc::clone(&limit))));
        let other = Rc::new(Gate::new(Some(Arc::clone(&limit))));
        let first = gate.admit();
        let second = other.admit();
        assert!(matches!(
            (&first, &second),
            (Admission::Serve(_), Admission::Serve(_))
        ));
        let refused: Vec<Admission> = (0..200).map(|_| gate.admit()).collect();
        let told = refused
            .iter()
            .filter(|a| matches!(a, Admission::Refuse(_)))
            .count();
        assert_eq!(told, MOST_REFUSALS);
        drop(refused);
        assert!(matches!(gate.admit(), Admission::Refuse(_)));

        let panicked = std::panic::catch_unwind(std::panic::AssertUnwindSafe(move || {
            let _slot = first;
            std::panic::resume_unwind(Box::new(()));
        }));
        assert!(panicked.is_err());
        assert!(matches!(gate.admit(), Admission::Serve(_)));
        drop(second);
        assert_eq!((gate.len(), other.len()), (0, 0));
        assert_eq!(limit.used.load(Ordering::Relaxed), 0);
    }

    #[tokio::test]
    async fn empty_is_heard() {
        let gate = Rc::new(Gate::new(None));
        gate.emptied().await;
        let slots = [gate.admit(), gate.admit()];
        let wait = gate.emptied();
        let leave = async {
            tokio::task::yield_now().await;
            drop(slots);
        };
        tokio::join!(wait, leave);
        assert_eq!(gate.len(), 0);
    }
}
