//! What is known about logins at the moment, and in which order the others are
//! looked at.

use std::collections::{HashMap, HashSet, VecDeque};
use std::sync::Arc;
use std::time::Instant;

use proxy_core::{Bans, ClientNet, Credentials};
use tokio::sync::oneshot;

use super::digest::Digest;
use super::memory::Memory;
use super::scratch::Scratch;
use super::table::{Account, Proof, Table};
use crate::config::{Auth, Ban};

/// The state of all logins. It waits for nothing and hashes nothing: whoever has
/// it locked does not keep others waiting.
pub(super) struct Desk {
    table: Arc<Table>,
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
    notices: Vec<Notice>,
}

/// Credentials to be judged.
#[derive(Clone, Copy)]
pub(super) struct Question<'a> {
    pub(super) client: ClientNet,
    /// From where nobody is banned.
    pub(super) spared: bool,
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

/// What is to be done away from the desk.
pub(super) enum Task {
    Dismiss(Delivery),
    Verify(Work),
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
    spared: bool,
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
            table: Arc::new(table),
            edition: 0,
            right: Memory::new(auth.remember, REMEMBERED),
            wrong: Memory::new(auth.remember, REMEMBERED),
            pending: HashMap::new(),
            lanes: Default::default(),
            waiting: HashMap::new(),
            bans: auth.ban.map(bans),
            notices: Vec::new(),
        }
    }

    /// Swaps the table, and gives back the old one. What was remembered of it is
    /// forgotten.
    pub(super) fn replace(&mut self, table: Arc<Table>) -> Arc<Table> {
        self.edition += 1;
        self.right.clear();
        self.wrong.clear();
        std::mem::replace(&mut self.table, table)
    }

    pub(super) fn ask(&mut self, question: &Question<'_>, now: Instant) -> Answer {
        let Question {
            client,
            spared,
            shown,
            ..
        } = *question;
        if self.is_banned(client, now) {
            return Answer::Known(Verdict::Banned);
        }
        if let Some(account) = self.right.recall(&question.digest, now) {
            return Answer::Known(Verdict::Right(Arc::clone(account)));
        }
        if self.wrong.recall(&question.digest, now).is_some() {
            return self.refuse(client, spared, now);
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
                None => return self.refuse(client, spared, now),
            },
        };
        let account = Arc::clone(account);
        self.enqueue(question, account, decoy, now)
    }

    /// The next task, most urgent first. Of some passwords nobody is left to hear,
    /// and some are from clients that were banned meanwhile: not worth a hash.
    pub(super) fn take(&mut self, now: Instant) -> Option<Task> {
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
                    let waiters = self.close(ticket);
                    return Some(Task::Dismiss(Delivery(Verdict::Banned, waiters)));
                }
                if lane != DOUBTFUL && self.failures(client, now) > 0 {
                    self.lanes[DOUBTFUL].push_back(ticket);
                    continue;
                }
                let pending = self.pending.get_mut(&ticket);
                if let Some(work) = pending.and_then(|pending| pending.work.take()) {
                    return Some(Task::Verify(work));
                }
            }
        }
        None
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
                let failed = waiters.iter().filter(|waiter| !waiter.spared);
                let clients: HashSet<ClientNet> = failed.map(|waiter| waiter.client).collect();
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

    pub(super) fn table(&self) -> Arc<Table> {
        Arc::clone(&self.table)
    }

    /// The bans that were not told yet. Each has cost its client many logins, so
    /// that there is no flood of them.
    pub(super) fn take_notices(&mut self) -> Vec<Notice> {
        std::mem::take(&mut self.notices)
    }

    fn refuse(&mut self, client: ClientNet, spared: bool, now: Instant) -> Answer {
        if !spared {
            self.fail(client, now);
        }
        Answer::Known(Verdict::Wrong)
    }

    fn fail(&mut self, client: ClientNet, now: Instant) {
        let Some((ban, bans)) = &mut self.bans else {
            return;
        };
        if bans.fail(client, now) {
            self.notices.push(Notice { client, ban: *ban });
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
        let waiter = Waiter {
            client,
            spared: question.spared,
            answer,
        };
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
    pub(super) fn verify(&self, scratch: &mut Scratch) -> bool {
        let same = match &self.account.proof {
            Proof::Hash(hash) => hash.verify(&self.password, scratch),
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

#[cfg(test)]
mod tests {
    use super::super::digest::Keyed;
    use super::super::table::tests::{hash, table, user};
    use super::*;
    use std::net::IpAddr;
    use std::time::Duration;

    const MINUTE: Duration = Duration::from_secs(60);

    /// A desk, and somebody who verifies only when told to.
    struct World {
        desk: Desk,
        keyed: Keyed,
        now: Instant,
        verified: usize,
    }

    impl World {
        /// With the users alice (a hash of `secret`) and carol (`clear`).
        fn new() -> Self {
            let table = Self::table("secret");
            Self {
                desk: Desk::new(table, &Auth::default()),
                keyed: Keyed::new().expect("random numbers"),
                now: Instant::now(),
                verified: 0,
            }
        }

        fn replace(&mut self, mut table: Table) {
            table.replace(&self.desk.table());
            self.desk.replace(Arc::new(table));
        }

        fn table(password: &str) -> Table {
            let hash = hash(password);
            table(&[user("carol", "clear")], &format!("alice:{hash}\n"))
        }

        fn ask(&mut self, from: u8, name: &str, password: &str) -> Asked {
            let shown = Credentials {
                user: name.as_bytes(),
                password: password.as_bytes(),
            };
            let question = Question {
                client: client(from),
                spared: false,
                shown,
                digest: self.keyed.credentials(shown),
                number: self.keyed.number(shown.user),
            };
            Asked(self.desk.ask(&question, self.now))
        }

        /// Verifies one password; says whether there was one.
        fn step(&mut self) -> bool {
            match self.desk.take(self.now) {
                None => return false,
                Some(Task::Dismiss(delivery)) => delivery.deliver(),
                Some(Task::Verify(work)) => {
                    self.verified += 1;
                    let right = Some(work.verify(&mut Scratch::default()));
                    self.desk.settle(&work, right, self.now).deliver();
                }
            }
            true
        }

        fn work(&mut self) {
            while self.step() {}
        }

        /// Asks, and verifies what there is to.
        fn judge(&mut self, from: u8, name: &str, password: &str) -> &'static str {
            let mut asked = self.ask(from, name, password);
            self.work();
            asked.word()
        }
    }

    struct Asked(Answer);

    impl Asked {
        fn word(&mut self) -> &'static str {
            let verdict = match &mut self.0 {
                Answer::Known(verdict) => verdict.clone(),
                Answer::Later(later) => match later.try_recv() {
                    Ok(verdict) => verdict,
                    Err(oneshot::error::TryRecvError::Empty) => return "later",
                    Err(oneshot::error::TryRecvError::Closed) => return "lost",
                },
            };
            match verdict {
                Verdict::Banned => "banned",
                Verdict::Busy => "busy",
                Verdict::Right(_) => "right",
                Verdict::Wrong => "wrong",
            }
        }
    }

    fn client(number: u8) -> ClientNet {
        IpAddr::from([192, 0, 2, number]).into()
    }

    #[test]
    fn p28_equal_credentials_are_verified_once() {
        let mut world = World::new();
        let mut asked: Vec<Asked> = (0..20).map(|at| world.ask(at, "alice", "secret")).collect();
        assert!(asked.iter_mut().all(|asked| asked.word() == "later"));
        world.work();
        assert!(asked.iter_mut().all(|asked| asked.word() == "right"));
        for _ in 0..80 {
            assert_eq!(world.ask(99, "alice", "secret").word(), "right");
        }
        assert_eq!(world.verified, 1);
        world.now += MINUTE;
        assert_eq!(world.judge(1, "alice", "secret"), "right");
        assert_eq!(world.verified, 2, "forgotten after a minute");
    }

    #[test]
    fn p28_unknown_users_cost_what_known_ones_do() {
        let mut world = World::new();
        for (verified, (name, password)) in [
            ("alice", "wrong"),
            ("nobody", "secret"),
            ("", ""),
            // Her right one is in clear, and found without a hash.
            ("carol", "secret"),
        ]
        .into_iter()
        .enumerate()
        {
            assert_eq!(world.judge(1, name, password), "wrong", "{name}");
            assert_eq!(world.verified, verified + 1, "{name}");
            assert_eq!(world.ask(2, name, password).word(), "wrong", "again");
        }
        assert_eq!(world.ask(1, "carol", "clear").word(), "right");
    }

    #[test]
    fn a_client_that_fails_too_often_is_shut_out() {
        let mut world = World::new();
        for _ in 0..9 {
            assert_eq!(world.judge(1, "alice", "wrong"), "wrong");
        }
        assert_eq!(world.verified, 1, "but each of them counted");
        assert!(world.desk.take_notices().is_empty());
        assert_eq!(
            world.judge(1, "alice", "secret"),
            "right",
            "forgives nothing"
        );
        assert_eq!(world.judge(1, "alice", "other"), "wrong");
        let notices = world.desk.take_notices();
        assert_eq!(notices.len(), 1);
        assert_eq!(notices[0].client, client(1));
        let verified = world.verified;
        for password in ["secret", "wrong", "third"] {
            assert_eq!(world.judge(1, "alice", password), "banned");
        }
        assert_eq!(world.verified, verified, "not worth a hash");
        assert_eq!(world.judge(2, "alice", "secret"), "right", "others go on");
        world.now += 10 * MINUTE;
        assert_eq!(
            world.judge(1, "alice", "secret"),
            "right",
            "served its time"
        );
    }

    #[test]
    fn connections_that_fail_together_have_failed_once() {
        let mut world = World::new();
        let mut asked: Vec<Asked> = (0..50).map(|_| world.ask(1, "alice", "old")).collect();
        world.work();
        assert!(asked.iter_mut().all(|asked| asked.word() == "wrong"));
        assert_eq!(world.desk.failures(client(1), world.now), 1);
    }

    #[test]
    fn hanging_up_makes_no_guess_free() {
        let mut world = World::new();
        let asked = world.ask(1, "alice", "wrong");
        let Some(Task::Verify(work)) = world.desk.take(world.now) else {
            panic!("nothing to verify");
        };
        drop(asked);
        let right = Some(work.verify(&mut Scratch::default()));
        world.desk.settle(&work, right, world.now).deliver();
        assert_eq!(world.desk.failures(client(1), world.now), 1);
        // If nobody is there before it began, it does not begin.
        drop(world.ask(1, "alice", "other"));
        world.work();
        assert_eq!(world.verified, 0);
        assert!(world.desk.pending.is_empty() && world.desk.waiting.is_empty());
    }

    #[test]
    fn a_client_cannot_fill_the_queue() {
        let mut world = World::new();
        let mut greedy: Vec<Asked> = (0..1000)
            .map(|at| world.ask(1, "alice", &format!("guess {at}")))
            .collect();
        let busy = greedy.iter_mut().filter(|asked| asked.0.is_busy()).count();
        assert_eq!(busy, 1000 - MOST_OF_CLIENT);
        let mut modest = world.ask(2, "alice", "secret");
        // Behind one of the other's at most, not behind all of them.
        assert!(world.step() && world.step());
        assert_eq!(modest.word(), "right");
        world.work();
        assert_eq!(world.desk.failures(client(1), world.now), 8);
        let words: Vec<&str> = (0..4)
            .map(|at| world.ask(1, "alice", &format!("more {at}")))
            .map(|mut asked| asked.word())
            .collect();
        assert_eq!(
            words,
            ["later", "later", "busy", "busy"],
            "less for who failed"
        );
    }

    #[test]
    fn those_who_failed_wait_for_the_others() {
        let mut world = World::new();
        for from in 1..=50 {
            assert_eq!(world.judge(from, "alice", "wrong"), "wrong");
        }
        let doubtful: Vec<Asked> = (1..=50)
            .map(|from| world.ask(from, "alice", &format!("guess {from}")))
            .collect();
        let mut honest = world.ask(99, "alice", "secret");
        assert!(world.step());
        assert_eq!(honest.word(), "right");
        drop(doubtful);
    }

    #[test]
    fn the_queue_is_bounded_and_a_ban_empties_it() {
        let mut world = World::new();
        let mut asked: Vec<Asked> = Vec::new();
        for from in 0..=255 {
            for guess in 0..8 {
                asked.push(world.ask(from, "alice", &format!("{from} {guess}")));
            }
        }
        assert!(world.desk.pending.len() <= 3 * MOST_IN_LANE);
        for _ in 0..10 {
            world.desk.fail(client(7), world.now);
        }
        world.work();
        let words: HashSet<&str> = asked[7 * 8..8 * 8].iter_mut().map(Asked::word).collect();
        assert!(
            words.contains("banned") && !words.contains("wrong"),
            "{words:?}"
        );
        assert!(asked.iter_mut().all(|asked| asked.word() != "later"));
        assert!(world.desk.pending.is_empty() && world.desk.waiting.is_empty());
        assert!(world.desk.lanes.iter().all(VecDeque::is_empty));
    }

    #[test]
    fn p28_a_new_table_forgets_what_was_remembered() {
        let mut world = World::new();
        assert_eq!(world.judge(1, "alice", "secret"), "right");
        assert_eq!(world.judge(1, "alice", "new"), "wrong");
        let mut late = world.ask(2, "alice", "late");
        let Some(Task::Verify(work)) = world.desk.take(world.now) else {
            panic!("nothing to verify");
        };
        world.replace(World::table("late"));
        // It is the right one now; the old verdict must not be remembered.
        let mut again = world.ask(3, "alice", "late");
        world.desk.settle(&work, Some(false), world.now).deliver();
        world.work();
        assert_eq!((late.word(), again.word()), ("wrong", "right"));
        assert_eq!(world.judge(1, "alice", "secret"), "wrong");
        world.replace(World::table("new"));
        assert_eq!(world.judge(4, "alice", "new"), "right");
    }

    #[test]
    fn a_user_removed_while_he_is_verified_is_not_let_in() {
        let mut world = World::new();
        let mut asked = world.ask(1, "alice", "secret");
        let Some(Task::Verify(work)) = world.desk.take(world.now) else {
            panic!("nothing to verify");
        };
        world.replace(table(&[], ""));
        world.desk.settle(&work, Some(true), world.now).deliver();
        assert_eq!(asked.word(), "wrong");
        assert_eq!(world.judge(1, "alice", "secret"), "wrong");
    }

    #[test]
    fn a_verifier_that_breaks_is_nobodys_failure() {
        let mut world = World::new();
        let mut asked = world.ask(1, "alice", "secret");
        let Some(Task::Verify(work)) = world.desk.take(world.now) else {
            panic!("nothing to verify");
        };
        world.desk.settle(&work, None, world.now).deliver();
        assert_eq!(asked.word(), "busy");
        assert_eq!(world.desk.failures(client(1), world.now), 0);
        assert_eq!(world.judge(1, "alice", "secret"), "right");
    }

    #[test]
    fn without_bans_nobody_is_shut_out() {
        let mut world = World::new();
        let auth = Auth {
            ban: None,
            ..Auth::default()
        };
        world.desk = Desk::new(World::table("secret"), &auth);
        for _ in 0..1000 {
            assert_eq!(world.judge(1, "alice", "wrong"), "wrong");
        }
        assert_eq!(world.judge(1, "alice", "secret"), "right");
    }

    impl Answer {
        fn is_busy(&self) -> bool {
            matches!(self, Self::Known(Verdict::Busy))
        }
    }
}
