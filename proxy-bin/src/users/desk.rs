//! What is known about logins at the moment, and in which order the others are
//! looked at.

use std::collections::{HashMap, HashSet, VecDeque};
use std::sync::Arc;
use std::time::Instant;

use proxy_core::{Bans, ClientNet, Credentials};
use tokio::sync::oneshot;

use super::digest::Digest;
use super::memory::Memory;
use super::table::{Account, Proof, Table};
use crate::config::{Auth, Ban};
use crate::throttle::Throttle;

/// The state of all logins. It waits for nothing and hashes nothing: whoever has
/// it locked does not keep others waiting.
pub(super) struct Desk {
    table: Table,
    /// Changes with the table.
    edition: u64,
    right: Memory<Arc<Account>>,
    wrong: Memory<()>,
    pending: HashMap<Ticket, Pending>,
    /// The pending ones that nobody has taken, by urgency.
    lanes: [VecDeque<Ticket>; 3],
    /// How many pending ones each client has.
    waiting: HashMap<ClientNet, usize>,
    bans: Option<(Ban, Bans)>,
    bans_told: Throttle,
    notice: Option<Notice>,
}

/// Credentials to be judged.
#[derive(Clone, Copy)]
pub(super) struct Question<'a> {
    pub(super) client: ClientNet,
    pub(super) shown: Credentials<'a>,
    pub(super) digest: Digest,
    /// The name's own number.
    pub(super) number: u64,
}

/// The first answer to a question.
pub(super) enum Answer {
    Known(Verdict),
    /// The verdict will come.
    Later(oneshot::Receiver<Verdict>),
}

/// The answer.
#[derive(Clone)]
pub(super) enum Verdict {
    Banned,
    Busy,
    Right(Arc<Account>),
    Wrong,
}

/// A password to be verified.
pub(super) struct Work {
    ticket: Ticket,
    account: Arc<Account>,
    /// It is compared for the sake of the time only.
    decoy: bool,
    password: Box<[u8]>,
}

/// Something for the log.
pub(super) struct Notice {
    pub(super) client: ClientNet,
    pub(super) ban: Ban,
    /// Bans since the last notice, this one included.
    pub(super) count: u64,
}

/// Verdicts to be delivered once nothing is locked any more.
#[must_use]
pub(super) struct Delivery(Verdict, Vec<Waiter>);

/// Names a pending one: the same credentials are another matter in another
/// table.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
struct Ticket(u64, Digest);

struct Pending {
    client: ClientNet,
    /// `None` once somebody is at it.
    work: Option<Work>,
    waiters: Vec<Waiter>,
}

struct Waiter {
    client: ClientNet,
    answer: oneshot::Sender<Verdict>,
}

impl Desk {
    pub(super) fn new(table: Table, auth: &Auth) -> Self {
        let bans = |ban: Ban| {
            (
                ban,
                Bans::new(ban.failures, ban.window, ban.length, CLIENTS),
            )
        };
        Self {
            table,
            edition: 0,
            right: Memory::new(auth.remember, REMEMBERED),
            wrong: Memory::new(auth.remember, REMEMBERED),
            pending: HashMap::new(),
            lanes: Default::default(),
            waiting: HashMap::new(),
            bans: auth.ban.map(bans),
            bans_told: Throttle::default(),
            notice: None,
        }
    }

    /// Swaps the table; what was remembered of the old one is forgotten.
    pub(super) fn replace(&mut self, mut table: Table) {
        table.replace(&self.table);
        self.table = table;
        self.edition += 1;
        self.right.clear();
        self.wrong.clear();
    }

    pub(super) fn ask(&mut self, question: &Question<'_>, now: Instant) -> Answer {
        let Question { client, shown, .. } = *question;
        if self.is_banned(client, now) {
            return Answer::Known(Verdict::Banned);
        }
        if let Some(account) = self.right.recall(&question.digest, now) {
            return Answer::Known(Verdict::Right(Arc::clone(account)));
        }
        if self.wrong.recall(&question.digest, now).is_some() {
            return self.refuse(client, now);
        }
        let known = self.table.find(shown.user);
        if let Some(account) = known
            && let Proof::Plain(secret) = &account.proof
            && secret.is(shown.password)
        {
            return Answer::Known(Verdict::Right(Arc::clone(account)));
        }
        let is_hashed = |account: &&Arc<Account>| matches!(account.proof, Proof::Hash(_));
        let (account, decoy) = match known.filter(is_hashed) {
            Some(account) => (account, false),
            None => match self.table.any_hashed(question.number) {
                Some(account) => (account, true),
                None => return self.refuse(client, now),
            },
        };
        let account = Arc::clone(account);
        self.enqueue(question, account, decoy, now)
    }

    /// The next password to be verified, most urgent first. Nobody is left to
    /// hear of some, and some are from clients that were banned meanwhile.
    pub(super) fn take(&mut self, now: Instant) -> Result<Option<Work>, Delivery> {
        for lane in 0..self.lanes.len() {
            while let Some(ticket) = self.lanes[lane].pop_front() {
                let Some(pending) = self.pending.get(&ticket) else {
                    continue;
                };
                let is_vain = |waiter: &Waiter| {
                    waiter.answer.is_closed() || self.is_banned(waiter.client, now)
                };
                let client = pending.client;
                if pending.waiters.iter().all(is_vain) {
                    return Err(Delivery(Verdict::Banned, self.close(ticket)));
                }
                if lane != DOUBTFUL && self.failures(client, now) > 0 {
                    self.lanes[DOUBTFUL].push_back(ticket);
                    continue;
                }
                let pending = self.pending.get_mut(&ticket);
                return Ok(pending.and_then(|pending| pending.work.take()));
            }
        }
        Ok(None)
    }

    /// Takes back what was taken, with its outcome; `None` if there is none.
    pub(super) fn settle(&mut self, work: &Work, right: Option<bool>, now: Instant) -> Delivery {
        let Ticket(edition, digest) = work.ticket;
        let waiters = self.close(work.ticket);
        let verdict = match right {
            None => Verdict::Busy,
            Some(true) if !work.account.is_gone() => Verdict::Right(Arc::clone(&work.account)),
            Some(_) => Verdict::Wrong,
        };
        // What was found out about an old table does not count in a new one.
        let is_current = edition == self.edition;
        match &verdict {
            Verdict::Right(account) if is_current => {
                self.right.store(digest, Arc::clone(account), now);
            }
            Verdict::Wrong => {
                if is_current {
                    self.wrong.store(digest, (), now);
                }
                // Also of those who did not wait for it: else hanging up early
                // would make guesses free. Many connections that try the same at
                // once, as those of a browser, have failed once.
                let clients: HashSet<ClientNet> = waiters.iter().map(|w| w.client).collect();
                for client in clients {
                    self.fail(client, now);
                }
            }
            _ => {}
        }
        Delivery(verdict, waiters)
    }

    pub(super) fn is_banned(&self, client: ClientNet, now: Instant) -> bool {
        let bans = self.bans.as_ref();
        bans.is_some_and(|(_, bans)| bans.is_banned(client, now))
    }

    pub(super) fn take_notice(&mut self) -> Option<Notice> {
        self.notice.take()
    }

    fn refuse(&mut self, client: ClientNet, now: Instant) -> Answer {
        self.fail(client, now);
        Answer::Known(Verdict::Wrong)
    }

    fn fail(&mut self, client: ClientNet, now: Instant) {
        let Some((ban, bans)) = &mut self.bans else {
            return;
        };
        if bans.fail(client, now)
            && let Some(count) = self.bans_told.admit(now)
        {
            let ban = *ban;
            self.notice = Some(Notice { client, ban, count });
        }
    }

    fn failures(&self, client: ClientNet, now: Instant) -> u32 {
        let bans = self.bans.as_ref();
        bans.map_or(0, |(_, bans)| bans.failures_of(client, now))
    }

    fn enqueue(
        &mut self,
        question: &Question<'_>,
        account: Arc<Account>,
        decoy: bool,
        now: Instant,
    ) -> Answer {
        let client = question.client;
        let ticket = Ticket(self.edition, question.digest);
        let (answer, later) = oneshot::channel();
        let waiter = Waiter { client, answer };
        if let Some(pending) = self.pending.get_mut(&ticket) {
            if pending.waiters.len() >= MOST_WAITERS {
                return Answer::Known(Verdict::Busy);
            }
            pending.waiters.push(waiter);
            return Answer::Later(later);
        }
        let own = self.waiting.get(&client).copied().unwrap_or(0);
        let (lane, most) = match (self.failures(client, now), own) {
            (1.., _) => (DOUBTFUL, MOST_OF_DOUBTFUL),
            (0, 0) => (FIRST, MOST_OF_CLIENT),
            (0, _) => (FURTHER, MOST_OF_CLIENT),
        };
        if own >= most || self.lanes[lane].len() >= MOST_IN_LANE {
            return Answer::Known(Verdict::Busy);
        }
        *self.waiting.entry(client).or_default() += 1;
        self.lanes[lane].push_back(ticket);
        let work = Work {
            ticket,
            account,
            decoy,
            password: question.shown.password.into(),
        };
        let pending = Pending {
            client,
            work: Some(work),
            waiters: vec![waiter],
        };
        self.pending.insert(ticket, pending);
        Answer::Later(later)
    }

    fn close(&mut self, ticket: Ticket) -> Vec<Waiter> {
        let Some(pending) = self.pending.remove(&ticket) else {
            return Vec::new();
        };
        if let Some(count) = self.waiting.get_mut(&pending.client) {
            *count -= 1;
            if *count == 0 {
                self.waiting.remove(&pending.client);
            }
        }
        pending.waiters
    }
}

impl Work {
    /// Whether the password is right. Takes its time.
    pub(super) fn verify(&self) -> bool {
        let same = match &self.account.proof {
            Proof::Hash(hash) => hash.verify(&self.password),
            Proof::Plain(secret) => secret.is(&self.password),
        };
        same && !self.decoy
    }
}

impl Delivery {
    pub(super) fn deliver(self) {
        for waiter in self.1 {
            // Who left does not mind.
            let _ = waiter.answer.send(self.0.clone());
        }
    }
}

/// The lanes: the only one of a client, its further ones, and those of clients
/// with failures. So a flood of guesses does not delay others.
const FIRST: usize = 0;
const FURTHER: usize = 1;
const DOUBTFUL: usize = 2;

const MOST_IN_LANE: usize = 256;
const MOST_OF_CLIENT: usize = 8;
const MOST_OF_DOUBTFUL: usize = 2;
const MOST_WAITERS: usize = 4096;

/// Credentials remembered, right and wrong each, twice that for a moment.
const REMEMBERED: usize = 16 * 1024;
/// Clients whose failures are counted, and as many that are banned.
const CLIENTS: usize = 64 * 1024;
