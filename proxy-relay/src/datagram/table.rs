//! The targets of one association: verdicts kept for a while, and who may answer.

use std::collections::HashMap;
use std::hash::Hash;
use std::net::SocketAddr;
use std::time::Duration;

use proxy_core::{ConnectError, ConnectErrorKind, Host, Target, TargetBuf};

use super::Passage;
use crate::deadline::{Tick, Ticks};

/// What is known of an association's targets. Does no I/O; the time is an
/// argument.
///
/// Verdicts go by target as the client writes it, answers by the address they
/// come from. Both are bounded, and the one unused for longest goes first.
#[derive(Debug)]
pub(super) struct Table {
    targets: HashMap<TargetBuf, Known>,
    peers: HashMap<SocketAddr, Contact>,
    /// Room for the target that is looked for.
    sought: TargetBuf,
    /// Counts on with each use, which puts them in order.
    uses: u64,
    cap: usize,
}

/// What is to be done with a datagram.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Found {
    /// Policy is to be asked, and told the address that is in use, if it is.
    Ask(Option<SocketAddr>),
    /// Policy has been asked and has not answered yet.
    Asked,
    Refused,
    Send(Passage),
}

#[derive(Debug)]
struct Known {
    verdict: Option<Verdict>,
    used: u64,
}

#[derive(Debug)]
struct Verdict {
    passage: Option<Passage>,
    since: Tick,
    keep: Ticks,
}

impl Verdict {
    fn holds(&self, now: Tick) -> bool {
        let carrier = self.passage.as_ref().and_then(|way| way.carrier.as_ref());
        self.since.age(now) < self.keep && carrier.is_none_or(|carrier| carrier.is_open())
    }
}

/// An address that was sent to.
#[derive(Debug)]
struct Contact {
    upstream: usize,
    used: u64,
    /// When it answered last.
    heard: Option<Tick>,
}

impl Table {
    /// With at most `cap` targets, and as many addresses.
    pub(super) fn new(cap: usize) -> Self {
        Self {
            targets: HashMap::new(),
            peers: HashMap::new(),
            sought: TargetBuf::from(Target {
                host: Host::Name(""),
                port: 0,
            }),
            uses: 0,
            cap,
        }
    }

    /// Says what becomes of a datagram to `target`. After [`Found::Ask`] the
    /// target counts as asked about until [`settle`](Self::settle).
    pub(super) fn find(&mut self, target: Target<'_>, now: Tick) -> Found {
        self.uses += 1;
        self.sought.set(target);
        let Some(known) = self.targets.get_mut(&self.sought) else {
            make_room(&mut self.targets, self.cap, |known| known.used);
            let known = Known {
                verdict: None,
                used: self.uses,
            };
            self.targets.insert(self.sought.clone(), known);
            return Found::Ask(None);
        };
        known.used = self.uses;
        match &known.verdict {
            None => Found::Asked,
            Some(verdict) if verdict.holds(now) => match &verdict.passage {
                Some(passage) => Found::Send(passage.clone()),
                None => Found::Refused,
            },
            Some(_) => {
                let last = known.verdict.take();
                Found::Ask(last.and_then(|verdict| self.in_use(&verdict, now)))
            }
        }
    }

    /// Takes the answer to a question.
    pub(super) fn settle(
        &mut self,
        target: &TargetBuf,
        answer: Result<Passage, ConnectError>,
        now: Tick,
    ) {
        // It may have had to make room meanwhile.
        if let Some(known) = self.targets.get_mut(target) {
            let keep = match answer {
                Ok(_) => KEEP,
                Err(error) => keep(error.kind),
            };
            known.verdict = Some(Verdict {
                passage: answer.ok(),
                since: now,
                keep: keep.into(),
            });
        }
    }

    /// Drops a target that could not be asked about.
    pub(super) fn forget(&mut self, target: &TargetBuf) {
        self.targets.remove(target);
    }

    /// Notes that a datagram went to `address` through a socket: from now on it
    /// may answer there.
    pub(super) fn sent(&mut self, address: SocketAddr, upstream: usize) {
        self.uses += 1;
        let address = plain(address);
        if let Some(contact) = self.peers.get_mut(&address) {
            contact.upstream = upstream;
            contact.used = self.uses;
            return;
        }
        make_room(&mut self.peers, self.cap, |contact| contact.used);
        let contact = Contact {
            upstream,
            used: self.uses,
            heard: None,
        };
        self.peers.insert(address, contact);
    }

    /// Whether a datagram that came from `address` to a socket is an answer.
    pub(super) fn expects(&mut self, address: SocketAddr, upstream: usize, now: Tick) -> bool {
        let contact = self.peers.get_mut(&plain(address));
        let Some(contact) = contact.filter(|contact| contact.upstream == upstream) else {
            return false;
        };
        self.uses += 1;
        contact.used = self.uses;
        contact.heard = Some(now);
        true
    }

    /// The address of a verdict, if somebody there has answered lately: then the
    /// target is not to move elsewhere in the middle of a conversation.
    fn in_use(&self, verdict: &Verdict, now: Tick) -> Option<SocketAddr> {
        let passage = verdict.passage.as_ref()?;
        // A carrier chooses by itself.
        let address = passage.carrier.is_none().then_some(passage.address)?;
        let heard = self.peers.get(&plain(address))?.heard?;
        (heard.age(now) < KEEP.into()).then_some(address)
    }
}

/// Without the zone of an IPv6 address, which the system adds to some and not to
/// others.
fn plain(address: SocketAddr) -> SocketAddr {
    SocketAddr::new(address.ip(), address.port())
}

/// Drops the entry used longest ago, if there are `cap`.
fn make_room<K: Clone + Eq + Hash, V>(
    map: &mut HashMap<K, V>,
    cap: usize,
    used: impl Fn(&V) -> u64,
) {
    if map.len() >= cap
        && let Some(oldest) = map.iter().min_by_key(|(_, entry)| used(entry))
    {
        let oldest = oldest.0.clone();
        map.remove(&oldest);
    }
}

/// How long it holds that a target was not to be had.
pub(super) fn keep(error: ConnectErrorKind) -> Duration {
    match error {
        ConnectErrorKind::Forbidden | ConnectErrorKind::Loop => KEEP,
        _ => KEEP_FAILED,
    }
}

/// How long a verdict holds.
pub(super) const KEEP: Duration = Duration::from_secs(30);

/// How long it holds that a name could not be looked up.
const KEEP_FAILED: Duration = Duration::from_secs(2);

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn address(port: u16) -> SocketAddr {
        SocketAddr::from(([192, 0, 2, 1], port))
    }

    fn target(text: &str) -> Target<'_> {
        Target::parse(text, None).expect(text)
    }

    async fn later(time: Duration) -> Tick {
        tokio::time::advance(time).await;
        Tick::now()
    }

    fn settle(table: &mut Table, text: &str, answer: Result<Passage, ConnectErrorKind>, now: Tick) {
        let answer = answer.map_err(ConnectError::origin);
        table.settle(&target(text).into(), answer, now);
    }

    #[tokio::test(start_paused = true)]
    async fn p70_a_verdict_is_asked_for_once_and_again_in_time() {
        let mut table = Table::new(8);
        let now = Tick::now();
        let (a, passage) = (target("a.test:7"), Passage::from(address(7)));
        assert_eq!(table.find(a, now), Found::Ask(None));
        assert_eq!(table.find(a, now), Found::Asked);
        // Port and name both count.
        assert_eq!(table.find(target("a.test:8"), now), Found::Ask(None));
        settle(&mut table, "a.test:7", Ok(passage.clone()), now);
        assert_eq!(table.find(a, now), Found::Send(passage.clone()));
        assert_eq!(table.find(target("a.test:8"), now), Found::Asked);

        let now = later(KEEP - Duration::from_secs(1)).await;
        assert_eq!(table.find(a, now), Found::Send(passage.clone()));
        let now = later(Duration::from_secs(1)).await;
        assert_eq!(table.find(a, now), Found::Ask(None), "nobody answered");
        settle(
            &mut table,
            "a.test:7",
            Err(ConnectErrorKind::Forbidden),
            now,
        );
        assert_eq!(table.find(a, now), Found::Refused);
        let now = later(KEEP).await;
        assert_eq!(table.find(a, now), Found::Ask(None));
        settle(
            &mut table,
            "a.test:7",
            Err(ConnectErrorKind::NameUnavailable),
            now,
        );
        assert_eq!(table.find(a, now), Found::Refused);
        let now = later(KEEP_FAILED).await;
        assert_eq!(table.find(a, now), Found::Ask(None), "soon tried again");
    }

    #[tokio::test(start_paused = true)]
    async fn a_conversation_keeps_its_address() {
        let mut table = Table::new(8);
        let now = Tick::now();
        let (a, passage) = (target("a.test:7"), Passage::from(address(7)));
        assert_eq!(table.find(a, now), Found::Ask(None));
        settle(&mut table, "a.test:7", Ok(passage.clone()), now);
        table.sent(address(7), 0);
        let now = later(KEEP / 2).await;
        assert!(table.expects(address(7), 0, now));
        let now = later(KEEP / 2).await;
        assert_eq!(table.find(a, now), Found::Ask(Some(address(7))));
        settle(&mut table, "a.test:7", Ok(passage.clone()), now);
        let now = later(KEEP).await;
        assert_eq!(table.find(a, now), Found::Ask(None), "silent since");
    }

    #[tokio::test(start_paused = true)]
    async fn p67_only_who_was_sent_to_may_answer() {
        let mut table = Table::new(8);
        let now = Tick::now();
        assert!(!table.expects(address(7), 0, now));
        table.sent(address(7), 1);
        assert!(table.expects(address(7), 1, now));
        assert!(!table.expects(address(8), 1, now), "another port");
        assert!(!table.expects(address(7), 0, now), "another socket");
        table.sent(address(7), 0);
        assert!(table.expects(address(7), 0, now));
    }

    #[tokio::test(start_paused = true)]
    async fn p68_the_one_unused_for_longest_makes_room() {
        let mut table = Table::new(2);
        let now = Tick::now();
        let texts = ["a.test:1", "b.test:1", "c.test:1"];
        for text in &texts[..2] {
            assert_eq!(table.find(target(text), now), Found::Ask(None));
        }
        assert_eq!(table.find(target(texts[0]), now), Found::Asked);
        assert_eq!(table.find(target(texts[2]), now), Found::Ask(None));
        assert_eq!(table.find(target(texts[0]), now), Found::Asked);
        assert_eq!(table.find(target(texts[1]), now), Found::Ask(None), "gone");
        // An answer that nobody waits for any more changes nothing.
        settle(&mut table, texts[2], Ok(address(1).into()), now);
        assert_eq!(table.find(target(texts[1]), now), Found::Asked);

        for port in [1, 2] {
            table.sent(address(port), 0);
        }
        assert!(table.expects(address(1), 0, now), "an answer is a use");
        table.sent(address(3), 0);
        assert!(table.expects(address(1), 0, now));
        assert!(!table.expects(address(2), 0, now));
        assert!(table.expects(address(3), 0, now));
    }

    proptest! {
        /// Against a plain list: bounded, and nobody answers who was not sent to.
        #[test]
        fn agrees_with_a_list(steps in prop::collection::vec((0u16..12, 0u8..3), 0..200)) {
            const CAP: usize = 5;
            let mut table = Table::new(CAP);
            let now = Tick::now();
            // In the order of use, the last at the end.
            let mut peers: Vec<u16> = Vec::new();
            let mut targets: Vec<u16> = Vec::new();
            for (port, step) in steps {
                match step {
                    0 => {
                        table.sent(address(port), 0);
                        peers.retain(|own| *own != port);
                        peers.push(port);
                        if peers.len() > CAP {
                            peers.remove(0);
                        }
                    }
                    1 => {
                        let known = peers.contains(&port);
                        prop_assert_eq!(table.expects(address(port), 0, now), known);
                        if known {
                            peers.retain(|own| *own != port);
                            peers.push(port);
                        }
                    }
                    _ => {
                        let known = targets.contains(&port);
                        let found = table.find(address(port).into(), now);
                        let expected = if known { Found::Asked } else { Found::Ask(None) };
                        prop_assert_eq!(found, expected);
                        targets.retain(|own| *own != port);
                        targets.push(port);
                        if targets.len() > CAP {
                            targets.remove(0);
                        }
                    }
                }
                prop_assert!(table.peers.len() <= CAP && table.targets.len() <= CAP);
            }
        }
    }
}
