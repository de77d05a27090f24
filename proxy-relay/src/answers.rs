//! The addresses of a name in the order of their dialling, as they become known
//! (RFC 8305 sections 3 and 4).

use std::net::IpAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use proxy_core::{ConnectError, ConnectErrorKind};
use tokio::time::Sleep;

use crate::names::{Answer, Found, Names, Open, Question};
use crate::resolve::Family;

/// Families take turns, IPv6 first unless a resolver that answers for both
/// says otherwise. IPv4 addresses that are known first wait for a moment.
pub(crate) struct Answers<'a> {
    asked: [Option<Asked<'a>>; 2],
    v6: Queue,
    v4: Queue,
    turn: Family,
    /// Whether IPv6 is still worth waiting for.
    patient: bool,
    patience: Option<Pin<Box<Sleep>>>,
    error: Option<ConnectErrorKind>,
}

impl<'a> Answers<'a> {
    /// Asks for all that is not known of `name`, each question within `limit`.
    pub(crate) fn new(names: &'a Names, name: &'a str, limit: Option<Duration>) -> Self {
        let mut answers = Self {
            asked: [None, None],
            v6: Queue::new(Family::V6),
            v4: Queue::new(Family::V4),
            turn: Family::V6,
            patient: true,
            patience: None,
            error: None,
        };
        for (question, slot) in names.questions().iter().zip(0..) {
            match names.find(name, *question) {
                Found::Known(answer) => answers.take(*question, answer),
                Found::Open(open) => {
                    let answer = names.answer(name, *question, Arc::clone(&open), limit);
                    answers.asked[slot] = Some(Asked {
                        question: *question,
                        open,
                        answer: Box::pin(answer),
                    });
                }
            }
        }
        answers
    }

    /// The address, if all is known and there is one.
    pub(crate) fn only(&self) -> Option<IpAddr> {
        let mut left = self.left();
        match (left.next(), left.next(), self.asked().next()) {
            (Some(ip), None, None) => Some(ip),
            _ => None,
        }
    }

    /// Keeps the questions going.
    pub(crate) fn drive(&mut self, cx: &mut Context<'_>) {
        for slot in 0..self.asked.len() {
            if let Some(asked) = &mut self.asked[slot]
                && let Poll::Ready(answer) = asked.answer.as_mut().poll(cx)
            {
                let question = asked.question;
                self.asked[slot] = None;
                self.take(question, answer);
            }
        }
    }

    /// The next address to try; `None` once there will be no more.
    pub(crate) fn poll_next(&mut self, cx: &mut Context<'_>) -> Poll<Option<IpAddr>> {
        self.drive(cx);
        let six = Question::One(Family::V6);
        if self.asked().any(|asked| asked.question == six) {
            ready!(self.poll_patience(cx, RESOLUTION_DELAY));
        }
        match self.next() {
            None if self.asked().next().is_some() => Poll::Pending,
            next => Poll::Ready(next),
        }
    }

    /// Waits until all is known that comes in time, for [`next`](Self::next) to
    /// tell.
    pub(crate) fn poll_known(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        self.drive(cx);
        let nothing = self.left().next().is_none();
        if nothing && self.asked().next().is_some() {
            return Poll::Pending;
        }
        self.poll_patience(cx, LOOKUP_DELAY)
    }

    /// The best of the addresses that are known.
    pub(crate) fn next(&mut self) -> Option<IpAddr> {
        let turn = self.turn;
        let next = self.queue(turn).next();
        let next = next.or_else(|| self.queue(turn.other()).next())?;
        self.patient = false;
        self.turn = Family::of(next).other();
        Some(next)
    }

    /// What kept the name from having an address.
    pub(crate) fn failure(&self) -> ConnectError {
        ConnectError::origin(self.error.unwrap_or(ConnectErrorKind::NameNotFound))
    }

    fn take(&mut self, question: Question, answer: Answer) {
        let addresses = match answer {
            Ok(addresses) => addresses,
            Err(kind) => {
                // That one family does not exist says less than any other trouble.
                if matches!(self.error, None | Some(ConnectErrorKind::NameNotFound)) {
                    self.error = Some(kind);
                }
                return;
            }
        };
        match question {
            Question::Any => {
                self.turn = addresses.first().map_or(self.turn, |ip| Family::of(*ip));
                self.v6.fill(&addresses);
                self.v4.fill(&addresses);
            }
            Question::One(Family::V4) => self.v4.fill(&addresses),
            Question::One(Family::V6) => self.v6.fill(&addresses),
        }
    }

    /// Waits for so many milliseconds for the other family once an address is
    /// known and none was taken.
    fn poll_patience(&mut self, cx: &mut Context<'_>, millis: u64) -> Poll<()> {
        let known = self.left().next().is_some();
        let open = self.asked().map(|asked| Arc::clone(&asked.open)).next();
        let Some(open) = open.filter(|_| known && self.patient) else {
            return Poll::Ready(());
        };
        if !open.is_later_than(millis) {
            let delay = || Box::pin(tokio::time::sleep(Duration::from_millis(millis)));
            ready!(self.patience.get_or_insert_with(delay).as_mut().poll(cx));
            open.set_later_than(millis);
        }
        Poll::Ready(())
    }

    fn asked(&self) -> impl Iterator<Item = &Asked<'a>> {
        self.asked.iter().flatten()
    }

    fn left(&self) -> impl Iterator<Item = IpAddr> {
        self.v6.left().chain(self.v4.left())
    }

    fn queue(&mut self, family: Family) -> &mut Queue {
        match family {
            Family::V4 => &mut self.v4,
            Family::V6 => &mut self.v6,
        }
    }
}

/// A question under way.
struct Asked<'a> {
    question: Question,
    open: Arc<Open>,
    answer: Pin<Box<dyn Future<Output = Answer> + Send + 'a>>,
}

/// The addresses of one family in an answer, from the next one on.
struct Queue {
    family: Family,
    answer: Option<Arc<[IpAddr]>>,
    at: usize,
}

impl Queue {
    fn new(family: Family) -> Self {
        Self {
            family,
            answer: None,
            at: 0,
        }
    }

    fn fill(&mut self, answer: &Arc<[IpAddr]>) {
        self.answer = Some(Arc::clone(answer));
    }

    fn next(&mut self) -> Option<IpAddr> {
        while let Some(ip) = self.answer.as_ref()?.get(self.at) {
            self.at += 1;
            if Family::of(*ip) == self.family {
                return Some(*ip);
            }
        }
        None
    }

    fn left(&self) -> impl Iterator<Item = IpAddr> {
        let left = self.answer.iter().flat_map(|answer| &answer[self.at..]);
        left.filter(|ip| Family::of(**ip) == self.family).copied()
    }
}

/// The Resolution Delay of RFC 8305 section 3, in milliseconds.
const RESOLUTION_DELAY: u64 = 50;
/// Longer, as no connection waits for who wants to know all: but even so one
/// family must not stall the other.
const LOOKUP_DELAY: u64 = 500;
