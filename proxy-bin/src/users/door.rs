//! The door: everybody who shows credentials comes by here.

use std::fmt;
use std::io;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Instant;

use proxy_core::{Authenticator, ClientNet, Credentials, Denial, Peer};

use super::desk::{Answer, Desk, Question, Verdict};
use super::digest::Keyed;
use super::table::{Account, Table};
use super::verify::Office;
use crate::config::Auth;

/// Judges credentials for all workers. Passwords are hashed on threads of their
/// own.
pub(crate) struct Door {
    keyed: Keyed,
    office: Arc<Office>,
}

/// A user who has shown the right password. `Debug` shows the name.
#[derive(Clone)]
pub(crate) struct Login(Arc<Account>);

impl Door {
    /// A door for these users, verifying with so many `threads`.
    ///
    /// # Errors
    /// If the system has no threads or no random numbers.
    pub(crate) fn new(table: Table, auth: &Auth, threads: usize) -> io::Result<Self> {
        let keyed = Keyed::new().map_err(|_| io::Error::other("there are no random numbers"))?;
        let office = Arc::new(Office::new(Desk::new(table, auth)));
        // Dropped in case of an error: the threads that are there end.
        let door = Self { keyed, office };
        door.office.hire(threads)?;
        Ok(door)
    }

    /// Says who it is that shows these credentials.
    ///
    /// Cancel safe: a verification that has begun is finished, and remembered.
    ///
    /// # Errors
    /// [`Denial::Challenge`] without credentials or with wrong ones,
    /// [`Denial::Forbid`] for a banned address, [`Denial::Busy`] if too many are
    /// waiting.
    pub(crate) async fn check(
        &self,
        from: IpAddr,
        shown: Option<Credentials<'_>>,
    ) -> Result<Login, Denial> {
        let verdict = match self.ask(from, shown) {
            Answer::Known(verdict) => verdict,
            Answer::Later(verdict) => verdict.await.unwrap_or(Verdict::Busy),
        };
        match verdict {
            Verdict::Banned => Err(Denial::Forbid),
            Verdict::Busy => Err(Denial::Busy),
            Verdict::Right(account) => Ok(Login(account)),
            Verdict::Wrong => Err(Denial::Challenge),
        }
    }

    /// Whether that user still is one, with the password he had shown.
    pub(crate) fn still_valid(&self, login: &Login) -> bool {
        !login.0.is_gone()
    }

    /// Swaps the users. Who is no longer one, or has another password, is asked
    /// again.
    pub(crate) fn replace(&self, table: Table) {
        self.office.at_desk(|desk| desk.replace(table));
    }

    fn ask(&self, from: IpAddr, shown: Option<Credentials<'_>>) -> Answer {
        let client = ClientNet::from(from);
        let Some(shown) = shown else {
            // Every browser begins so: no failure.
            let now = Instant::now();
            return Answer::Known(
                match self.office.at_desk(|desk| desk.is_banned(client, now)) {
                    true => Verdict::Banned,
                    false => Verdict::Wrong,
                },
            );
        };
        let question = Question {
            client,
            shown,
            digest: self.keyed.credentials(shown),
            number: self.keyed.number(shown.user),
        };
        let answer = self
            .office
            .at_desk(|desk| desk.ask(&question, Instant::now()));
        if matches!(answer, Answer::Later(_)) {
            self.office.ring();
        }
        answer
    }
}

impl Authenticator for Door {
    type Identity = Login;

    async fn authenticate(
        &self,
        peer: &Peer,
        shown: Option<Credentials<'_>>,
    ) -> Result<Login, Denial> {
        self.check(peer.remote.ip(), shown).await
    }
}

impl Drop for Door {
    fn drop(&mut self) {
        self.office.close();
    }
}

impl fmt::Debug for Door {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Door").finish_non_exhaustive()
    }
}

impl Login {
    pub(crate) fn name(&self) -> &str {
        &self.0.name
    }
}

impl fmt::Debug for Login {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Login({:?})", self.name())
    }
}
