//! How many connections towards outside may be open, in all and to one origin.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use proxy_core::{Target, TargetBuf};
use tokio::sync::{Notify, broadcast};

use crate::cause::Scarce;
use crate::config::Limits;
use crate::places::{Places, Share, Shares};

/// The limits of the whole process on connections towards outside.
#[derive(Debug)]
pub(crate) struct Egress {
    all: Option<Places>,
    by_origin: Option<Shares>,
    calls: broadcast::Sender<Call>,
    /// Those who wait for a place.
    waiting: AtomicUsize,
    freed: Notify,
}

/// Somebody needs a place that an idle connection of another worker may have.
#[derive(Clone, Debug)]
pub(crate) struct Call {
    /// Whose connections are too many; `None` is everybody's.
    pub(crate) origin: Option<TargetBuf>,
}

impl Egress {
    /// `None` without a limit.
    pub(crate) fn new(limits: &Limits) -> Option<Self> {
        let all = limits.upstream_connections.map(Places::new);
        let by_origin = limits.origin_connections.map(Shares::new);
        (all.is_some() || by_origin.is_some()).then(|| Self {
            all,
            by_origin,
            calls: broadcast::Sender::new(CALLS),
            waiting: AtomicUsize::new(0),
            freed: Notify::new(),
        })
    }

    /// A place for a connection, which counts for `origin` if it leads to one
    /// only.
    ///
    /// # Errors
    /// What there is too much of.
    pub(crate) fn take(self: &Arc<Self>, origin: Option<Target<'_>>) -> Result<Permit, Scarce> {
        let share = match (&self.by_origin, origin) {
            (Some(shares), Some(origin)) => {
                Some(shares.take(origin).ok_or(Scarce::OriginConnections)?)
            }
            _ => None,
        };
        if self.all.as_ref().is_none_or(Places::take) {
            let egress = Arc::clone(self);
            return Ok(Permit { egress, share });
        }
        self.give_share(share);
        Err(Scarce::UpstreamConnections)
    }

    /// The same once the other workers were asked for their idle connections.
    /// Cancel safe.
    ///
    /// # Errors
    /// If nobody gave one up in time.
    pub(crate) async fn take_from_others(
        self: &Arc<Self>,
        origin: Option<Target<'_>>,
        scarce: Scarce,
    ) -> Result<Permit, Scarce> {
        if self.calls.receiver_count() < 2 {
            return Err(scarce);
        }
        let _waiting = Waiting::new(&self.waiting);
        let mut freed = self.freed.notified();
        let of_origin = scarce == Scarce::OriginConnections;
        // An error means that nobody listens any more.
        let _ = self.calls.send(Call {
            origin: origin.filter(|_| of_origin).map(TargetBuf::from),
        });
        let taking = async {
            loop {
                if let Ok(permit) = self.take(origin) {
                    return permit;
                }
                freed.await;
                freed = self.freed.notified();
            }
        };
        tokio::time::timeout(PATIENCE, taking)
            .await
            .map_err(|_| scarce)
    }

    /// Whether nobody waits for a place that an unused connection would keep.
    pub(crate) fn has_room(&self) -> bool {
        self.waiting.load(Ordering::SeqCst) == 0
    }

    /// Hears what the workers are asked for.
    pub(crate) fn calls(&self) -> broadcast::Receiver<Call> {
        self.calls.subscribe()
    }

    fn give_share(&self, share: Option<Share>) {
        if let (Some(shares), Some(share)) = (&self.by_origin, share) {
            shares.give(share);
        }
    }
}

/// The place of one connection, free again when this is dropped.
#[derive(Debug)]
pub(crate) struct Permit {
    egress: Arc<Egress>,
    share: Option<Share>,
}

impl Drop for Permit {
    fn drop(&mut self) {
        let egress = &self.egress;
        egress.give_share(self.share);
        if let Some(all) = &egress.all {
            all.give();
        }
        if !egress.has_room() {
            egress.freed.notify_waiters();
        }
    }
}

/// Counts as one who waits until it is dropped.
struct Waiting<'w>(&'w AtomicUsize);

impl<'w> Waiting<'w> {
    fn new(count: &'w AtomicUsize) -> Self {
        count.fetch_add(1, Ordering::SeqCst);
        Self(count)
    }
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::SeqCst);
    }
}

/// Who misses more than these closes all of its idle connections.
const CALLS: usize = 64;

/// How long the other workers have to answer. Not a queue: who is in need when
/// all are in use is told so.
const PATIENCE: Duration = Duration::from_millis(100);

#[cfg(test)]
mod tests {
    use super::*;

    fn egress(all: Option<usize>, by_origin: Option<usize>) -> Arc<Egress> {
        let limits = Limits {
            upstream_connections: all,
            origin_connections: by_origin,
            ..Limits::default()
        };
        Arc::new(Egress::new(&limits).expect("a limit"))
    }

    fn target(text: &str) -> Target<'_> {
        Target::parse(text, None).expect("a target")
    }

    #[test]
    fn no_limit_counts_nothing() {
        assert!(Egress::new(&Limits::default()).is_none());
    }

    #[test]
    fn p51_what_is_refused_takes_no_place() {
        let egress = egress(Some(2), Some(1));
        let (a, b) = (target("a.test:80"), target("b.test:80"));
        let first = egress.take(Some(a)).expect("a place");
        for _ in 0..3 {
            assert_eq!(egress.take(Some(a)).err(), Some(Scarce::OriginConnections));
        }
        let second = egress.take(Some(target("a.test:81"))).expect("a place");
        for _ in 0..3 {
            assert_eq!(
                egress.take(Some(b)).err(),
                Some(Scarce::UpstreamConnections)
            );
            assert_eq!(egress.take(None).err(), Some(Scarce::UpstreamConnections));
        }
        drop(second);
        let other = egress.take(Some(b)).expect("a place");
        drop((first, other));
        assert_eq!(egress.all.as_ref().map(Places::used), Some(0));
        assert_eq!(egress.by_origin.as_ref().map(Shares::len), Some(0));
    }

    #[tokio::test(start_paused = true)]
    async fn others_are_asked_and_not_waited_for_long() {
        let egress = egress(None, Some(1));
        let a = target("a.test:80");
        let held = egress.take(Some(a)).expect("a place");
        let mine = egress.calls();
        let scarce = Scarce::OriginConnections;
        let alone = egress.take_from_others(Some(a), scarce).await;
        assert!(alone.is_err() && mine.is_empty(), "nobody to ask");

        let mut theirs = egress.calls();
        let in_vain = egress.take_from_others(Some(a), scarce).await;
        assert_eq!(in_vain.err(), Some(scarce));
        let call = theirs.recv().await.expect("a call");
        assert_eq!(call.origin, Some(a.into()));

        let give = async {
            theirs.recv().await.expect("a call");
            drop(held);
        };
        let (taken, ()) = tokio::join!(egress.take_from_others(Some(a), scarce), give);
        assert!(taken.is_ok());
        assert_eq!(egress.waiting.load(Ordering::Relaxed), 0);
    }
}
