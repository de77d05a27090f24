//! Looks whether the users file has changed, and takes over what is new.

use std::cell::RefCell;
use std::path::PathBuf;
use std::sync::Arc;

use super::door::Door;
use super::table::{Table, Unread};
use crate::config::{Config, User};
use crate::mark::Mark;

/// The users file, and the door that it is for. Reads files: not for a thread
/// that serves.
pub(crate) struct Watch {
    door: Arc<Door>,
    /// Those of the configuration, who stay.
    users: Vec<User>,
    path: PathBuf,
    /// What the file was like when it was read last.
    seen: RefCell<Option<Mark>>,
}

impl Watch {
    /// `None` if there is no users file. What is in it already was `seen`.
    pub(crate) fn new(config: &Config, door: &Arc<Door>, seen: Option<Mark>) -> Option<Self> {
        let file = config.auth.file.as_ref()?;
        Some(Self {
            door: Arc::clone(door),
            users: config.users.clone(),
            path: file.value.clone(),
            seen: RefCell::new(seen),
        })
    }

    /// Takes over the users of a changed file. If there is a mistake in it, or it
    /// is gone, the old users stay and the log tells why, once.
    pub(crate) fn look(&self) {
        let mark = Mark::of(&self.path);
        if mark == *self.seen.borrow() {
            return;
        }
        self.seen.replace(mark);
        match Table::read(&self.users, &self.path, None) {
            Ok(table) => {
                tracing::info!(users = table.len(), "the users file was read anew");
                self.seen.replace(table.mark());
                self.door.replace(table);
            }
            Err(Unread::Failure(text)) => tracing::error!("{text}; the users of before stay"),
            Err(Unread::Mistakes(problems)) => {
                for problem in problems.iter().take(SHOWN) {
                    tracing::error!("{problem}");
                }
                tracing::error!(mistakes = problems.len(), "the users of before stay");
            }
        }
    }
}

const SHOWN: usize = 10;
