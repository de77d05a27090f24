//! The door: everybody who shows credentials comes by here.

use std::fmt;
use std::io;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Instant;

use proxy_core::{Authenticator, ClientNet, Credentials, Denial, Network, Peer};

use super::desk::{Answer, Desk, Question, Verdict};
use super::digest::Keyed;
use super::table::{Account, Table};
use super::verify::Office;
use crate::config::Auth;

/// Judges credentials for all workers. Passwords are hashed on threads of their
/// own.
pub(crate) struct Door {
    keyed: Keyed,
    /// Where nobody is banned.
    spared: Box<[Network]>,
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
        let door = Self {
            keyed,
            spared: auth.spared.clone().into(),
            office,
        };
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
    pub(crate) fn replace(&self, mut table: Table) {
        // Many users take a while: nobody is to wait for that.
        table.replace(&self.office.at_desk(|desk| desk.table()));
        let table = Arc::new(table);
        drop(self.office.at_desk(|desk| desk.replace(table)));
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
            spared: self.spared.iter().any(|network| network.contains(from)),
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

#[cfg(test)]
mod tests {
    use super::super::scratch::Scratch;
    use super::super::table::tests::{hash, table, user};
    use super::*;
    use std::time::Duration;

    const FROM: IpAddr = IpAddr::V4(std::net::Ipv4Addr::LOCALHOST);

    fn shown<'a>(name: &'a str, password: &'a str) -> Option<Credentials<'a>> {
        Some(Credentials {
            user: name.as_bytes(),
            password: password.as_bytes(),
        })
    }

    fn door(threads: usize) -> Door {
        let text = format!("alice:{}\nbob:{}\n", hash("secret"), hash("b:b"));
        let table = table(&[user("carol", "clear")], &text);
        Door::new(table, &Auth::default(), threads).expect("a door")
    }

    #[tokio::test]
    async fn users_of_both_kinds_come_in() {
        let door = door(2);
        for (name, password) in [("alice", "secret"), ("bob", "b:b"), ("carol", "clear")] {
            let login = door
                .check(FROM, shown(name, password))
                .await
                .expect("known");
            assert_eq!(login.name(), name);
            assert!(door.still_valid(&login));
        }
        for (name, password) in [
            ("alice", "b:b"),
            ("carol", "secret"),
            ("nobody", "secret"),
            ("", ""),
        ] {
            let login = door.check(FROM, shown(name, password)).await;
            assert_eq!(login.map(drop), Err(Denial::Challenge), "{name}");
        }
        let nobody = door.check(FROM, None).await;
        assert_eq!(nobody.map(drop), Err(Denial::Challenge));
    }

    #[tokio::test]
    async fn without_credentials_nobody_fails() {
        let door = door(1);
        for _ in 0..1000 {
            assert!(door.check(FROM, None).await.is_err());
        }
        assert!(door.check(FROM, shown("alice", "secret")).await.is_ok());
    }

    #[tokio::test]
    async fn p28_a_hundred_requests_of_twenty_connections_cost_one_hash() {
        let door = door(0);
        let check = || door.check(FROM, shown("alice", "secret"));
        let mut connections: Vec<_> = (0..20).map(|_| Box::pin(check())).collect();
        for connection in &mut connections {
            let early = tokio::time::timeout(Duration::ZERO, connection.as_mut()).await;
            assert!(early.is_err(), "not before it is verified");
        }
        let task = door.office.at_desk(|desk| desk.take(Instant::now()));
        door.office
            .handle(task.expect("one password"), &mut Scratch::default());
        for connection in connections {
            assert_eq!(connection.await.expect("known").name(), "alice");
        }
        for _ in 0..80 {
            assert_eq!(check().await.expect("known").name(), "alice");
        }
        let more = door.office.at_desk(|desk| desk.take(Instant::now()));
        assert!(more.is_none(), "a second hash");
    }

    #[tokio::test]
    async fn a_check_may_be_given_up() {
        let door = door(0);
        for _ in 0..100 {
            let check = door.check(FROM, shown("alice", "secret"));
            assert!(tokio::time::timeout(Duration::ZERO, check).await.is_err());
            let task = door.office.at_desk(|desk| desk.take(Instant::now()));
            door.office
                .handle(task.expect("given up"), &mut Scratch::default());
        }
        let check = std::pin::pin!(door.check(FROM, shown("alice", "secret")));
        let mut check = check;
        assert!(
            tokio::time::timeout(Duration::ZERO, check.as_mut())
                .await
                .is_err()
        );
        let task = door.office.at_desk(|desk| desk.take(Instant::now()));
        door.office
            .handle(task.expect("one password"), &mut Scratch::default());
        assert!(check.await.is_ok());
    }

    #[tokio::test]
    async fn who_is_removed_is_no_longer_valid() {
        let door = door(1);
        let alice = door
            .check(FROM, shown("alice", "secret"))
            .await
            .expect("known");
        let carol = door
            .check(FROM, shown("carol", "clear"))
            .await
            .expect("known");
        door.replace(table(
            &[user("carol", "clear")],
            &format!("dave:{}\n", hash("d")),
        ));
        assert!(!door.still_valid(&alice) && door.still_valid(&carol));
        assert!(door.check(FROM, shown("alice", "secret")).await.is_err());
        assert!(door.check(FROM, shown("dave", "d")).await.is_ok());
    }

    #[tokio::test]
    async fn p29_debug_names_nothing_secret() {
        let door = door(1);
        let login = door.check(FROM, shown("alice", "secret")).await;
        let text = format!("{door:?} {login:?}");
        assert!(!text.contains("secret") && text.contains("alice"), "{text}");
    }
}
