//! All users: those of the configuration and those of the users file.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::fmt;
use std::fs::File;
use std::io::{self, ErrorKind, Read};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use super::hash::{Hash, NoHash};
use super::secret::Secret;
use crate::config::{Config, Mismatch, Origin, Problem, User, shown, user_name};
use crate::mark::Mark;

/// Who may log in. `Debug` shows the names only.
pub(crate) struct Table {
    by_name: HashMap<Box<[u8]>, Arc<Account>>,
    /// Those with a hash, in the order of the file.
    hashed: Vec<Arc<Account>>,
    mark: Option<Mark>,
}

/// A user, and how he is known.
pub(super) struct Account {
    pub(super) name: Box<str>,
    pub(super) proof: Proof,
    /// He was removed, or has another password now.
    gone: AtomicBool,
}

#[derive(PartialEq, Eq)]
pub(super) enum Proof {
    Hash(Hash),
    Plain(Secret),
}

/// Why there is no table.
#[derive(Debug)]
pub(crate) enum Unread {
    /// The file cannot be read.
    Failure(String),
    /// What is written in it is wrong.
    Mistakes(Vec<Problem>),
}

impl Table {
    /// The users of the configuration and of its users file, if it names one.
    ///
    /// # Errors
    /// Every mistake in the file, or why it cannot be read.
    pub(crate) fn load(config: &Config) -> Result<Self, Unread> {
        match &config.auth.file {
            None => Ok(Self::of(&config.users)),
            Some(file) => Self::read(&config.users, &file.value, Some(&file.origin)),
        }
    }

    /// Reads the file at `path`, which is missed at `origin`.
    pub(super) fn read(
        users: &[User],
        path: &Path,
        origin: Option<&Origin>,
    ) -> Result<Self, Unread> {
        match content(path) {
            Ok((text, mark)) => {
                let mut table = Self::parse(users, path, &text).map_err(Unread::Mistakes)?;
                table.mark = mark;
                Ok(table)
            }
            Err(Unreadable::Missing(found)) if let Some(origin) = origin => {
                let mismatch = Mismatch::new("a users file", "the path of an existing file");
                let found = format!("{found} at {}", path.display());
                let problem = Problem::mismatch(origin, "auth.file", &mismatch, &found);
                Err(Unread::Mistakes(vec![problem]))
            }
            Err(unreadable) => Err(Unread::Failure(format!(
                "cannot read the users file {}: {unreadable}",
                path.display()
            ))),
        }
    }

    pub(super) fn parse(users: &[User], path: &Path, text: &[u8]) -> Result<Self, Vec<Problem>> {
        let mut table = Self::of(users);
        let path: Arc<Path> = path.into();
        let mut lines: HashMap<Box<[u8]>, usize> = HashMap::new();
        let mut problems = Vec::new();
        for (at, line) in text.split(|b| *b == b'\n').enumerate() {
            let origin = Origin::File(Arc::clone(&path), at + 1);
            let account = match account(line, &origin) {
                Ok(Some(account)) => Arc::new(account),
                Ok(None) => continue,
                Err(problem) => {
                    problems.push(problem);
                    continue;
                }
            };
            match table.by_name.entry(account.name.as_bytes().into()) {
                Entry::Occupied(taken) => {
                    let first = match lines.get(taken.key()) {
                        Some(line) => format!("as in line {line}"),
                        None => "as in the configuration".to_owned(),
                    };
                    let found = format!("{} {first}", shown(&account.name));
                    let mismatch =
                        Mismatch::new("a name of its own", "another name, or leave one out");
                    problems.push(Problem::mismatch(&origin, "", &mismatch, &found));
                }
                Entry::Vacant(free) => {
                    lines.insert(free.key().clone(), at + 1);
                    free.insert(Arc::clone(&account));
                    table.hashed.push(account);
                }
            }
        }
        match problems.is_empty() {
            true => Ok(table),
            false => Err(problems),
        }
    }

    /// Those of the configuration only.
    pub(crate) fn of(users: &[User]) -> Self {
        let by_name = users.iter().map(|user| {
            let secret = Secret::new(user.password.as_bytes());
            let account = Account::new(&user.name, Proof::Plain(secret));
            (user.name.as_bytes().into(), Arc::new(account))
        });
        Self {
            by_name: by_name.collect(),
            hashed: Vec::new(),
            mark: None,
        }
    }

    /// Takes over the users of `before` that are the same, and dismisses the
    /// others.
    pub(super) fn replace(&mut self, before: &Self) {
        for (name, old) in &before.by_name {
            match self.by_name.get_mut(name) {
                Some(new) if new.proof == old.proof => *new = Arc::clone(old),
                _ => old.gone.store(true, Ordering::Release),
            }
        }
        for new in &mut self.hashed {
            if let Some(known) = self.by_name.get(new.name.as_bytes()) {
                *new = Arc::clone(known);
            }
        }
    }

    pub(super) fn find(&self, name: &[u8]) -> Option<&Arc<Account>> {
        self.by_name.get(name)
    }

    /// One of the users with a hash, always the same for a number; `None` if
    /// there is none.
    pub(super) fn any_hashed(&self, number: u64) -> Option<&Arc<Account>> {
        let count = u64::try_from(self.hashed.len()).ok()?;
        let at = usize::try_from(number.checked_rem(count)?).ok()?;
        self.hashed.get(at)
    }

    /// What the file was like that it was read from; `None` without one, or if it
    /// changed meanwhile.
    pub(crate) fn mark(&self) -> Option<Mark> {
        self.mark
    }

    pub(crate) fn len(&self) -> usize {
        self.by_name.len()
    }
}

impl fmt::Debug for Table {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let names = self.by_name.values().map(|account| &account.name);
        f.debug_set().entries(names).finish()
    }
}

impl Account {
    fn new(name: &str, proof: Proof) -> Self {
        Self {
            name: name.into(),
            proof,
            gone: AtomicBool::new(false),
        }
    }

    pub(super) fn is_gone(&self) -> bool {
        self.gone.load(Ordering::Acquire)
    }
}

/// The user of one line, if there is one.
fn account(line: &[u8], origin: &Origin) -> Result<Option<Account>, Problem> {
    let wrong = |expected: &str, instead: &str, found: &str| {
        let mismatch = Mismatch::new(expected, instead);
        Problem::mismatch(origin, "", &mismatch, found)
    };
    let Ok(line) = str::from_utf8(line) else {
        let found = "bytes that are not UTF-8";
        return Err(wrong(LINE, "the text in UTF-8", found));
    };
    let line = line.trim_end();
    if line.is_empty() || line.trim_start().starts_with('#') {
        return Ok(None);
    }
    // What is behind a further colon is a comment, for Apache too.
    let mut fields = line.split(':');
    let (Some(name), Some(hash)) = (fields.next(), fields.next()) else {
        let instead = "the output of proxyd passwd NAME";
        return Err(wrong(LINE, instead, "no colon"));
    };
    if let Err(mismatch) = user_name(name) {
        return Err(Problem::mismatch(origin, "", &mismatch, &shown(name)));
    }
    match Hash::parse(hash) {
        Ok(hash) => Ok(Some(Account::new(name, Proof::Hash(hash)))),
        Err(NoHash { expected, found }) => {
            let is_plain = |b: u8| b.is_ascii_alphanumeric() || matches!(b, b'-' | b'_' | b'.');
            let word = match name.bytes().all(is_plain) && !name.starts_with('-') {
                true => name,
                false => "NAME",
            };
            let instead = format!("the output of proxyd passwd {word}");
            Err(wrong(&expected, &instead, &found))
        }
    }
}

enum Unreadable {
    Missing(&'static str),
    Other(String),
}

impl fmt::Display for Unreadable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Missing(found) => write!(f, "there is {found}"),
            Self::Other(why) => f.write_str(why),
        }
    }
}

impl From<&'static str> for Unreadable {
    fn from(found: &'static str) -> Self {
        Self::Missing(found)
    }
}

impl From<io::Error> for Unreadable {
    fn from(error: io::Error) -> Self {
        match error.kind() {
            ErrorKind::NotADirectory | ErrorKind::NotFound => Self::Missing("nothing"),
            _ => Self::Other(error.to_string()),
        }
    }
}

fn content(path: &Path) -> Result<(Vec<u8>, Option<Mark>), Unreadable> {
    // Opening a pipe would wait for its writer.
    let metadata = path.metadata()?;
    if metadata.is_dir() {
        return Err("a folder".into());
    }
    if !metadata.is_file() {
        return Err("something that is no file".into());
    }
    let mut file = File::open(path)?;
    let before = Mark::new(&file.metadata()?);
    let mut text = Vec::new();
    file.by_ref().take(MOST_BYTES).read_to_end(&mut text)?;
    let mark = Some(Mark::new(&file.metadata()?)).filter(|after| *after == before);
    match text.len() as u64 {
        MOST_BYTES.. => Err(Unreadable::Other(format!(
            "it has more than {MOST_BYTES} bytes"
        ))),
        _ => Ok((text, mark)),
    }
}

const LINE: &str = "NAME:HASH";
/// Half a million users.
const MOST_BYTES: u64 = 64 * 1024 * 1024;

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    pub(in super::super) fn user(name: &str, password: &str) -> User {
        User {
            name: name.to_owned(),
            password: password.to_owned(),
            source: None,
            rates: crate::config::Rates::default(),
        }
    }

    pub(in super::super) fn hash(password: &str) -> String {
        bcrypt::hash(password, 4).expect("a hash")
    }

    pub(in super::super) fn table(users: &[User], text: &str) -> Table {
        Table::parse(users, Path::new("users"), text.as_bytes()).expect("a table")
    }

    fn problems(text: &[u8]) -> Vec<String> {
        let users = [user("carol", "secret")];
        let parsed = Table::parse(&users, Path::new("users"), text);
        let problems = parsed.expect_err("mistakes");
        problems.iter().map(Problem::to_string).collect()
    }

    #[test]
    fn a_file_with_all_that_is_allowed() {
        let hash = hash("secret");
        let text =
            format!("# users\n\nalice:{hash}\r\n  # more\nbob b:{hash}:Bob B.\n\u{fc}:{hash}");
        let table = table(&[user("carol", "x")], &text);
        assert_eq!(table.len(), 4);
        for name in ["alice", "bob b", "ü", "carol"] {
            let found = table.find(name.as_bytes()).expect("a user");
            assert_eq!(&*found.name, name);
        }
        assert!(table.find(b"Alice").is_none());
    }

    #[test]
    fn every_mistake_is_told_with_its_line_and_without_secrets() {
        let hash = hash("secret");
        let text =
            format!("alice:{hash}\nalice:{hash}\ncarol:{hash}\nno colon\n:{hash}\n").into_bytes();
        let more = b"dave:hunter2\ner in:{SHA}abc\nx:\xff\n";
        let said = problems(&[&text[..], more].concat());
        let passwd = "write the output of proxyd passwd";
        let kinds = "expected a hash of argon2 ($argon2id$), bcrypt ($2b$) or SHA-crypt ($6$)";
        assert_eq!(
            said,
            [
                "users:2: expected a name of its own, found \"alice\" as in line 1; write another \
                 name, or leave one out instead",
                "users:3: expected a name of its own, found \"carol\" as in the configuration; \
                 write another name, or leave one out instead",
                &format!("users:4: expected NAME:HASH, found no colon; {passwd} NAME instead"),
                "users:5: expected a user name of 1 to 255 bytes without colons and control \
                 characters, found \"\"; write \"alice\" instead",
                &format!("users:6: {kinds}, found a password in clear; {passwd} dave instead"),
                &format!(
                    "users:7: {kinds}, found one of SHA-1, which is guessed too fast; {passwd} \
                     NAME instead"
                ),
                "users:8: expected NAME:HASH, found bytes that are not UTF-8; write the text in \
                 UTF-8 instead",
            ]
        );
    }

    #[test]
    fn a_new_table_takes_over_who_is_the_same() {
        let (same, old, new) = (hash("same"), hash("old"), hash("new"));
        let before = table(
            &[user("carol", "x")],
            &format!("alice:{same}\nbob:{old}\ndave:{same}\n"),
        );
        let mut after = table(
            &[user("carol", "x")],
            &format!("bob:{new}\nalice:{same}\nerin:{same}\n"),
        );
        after.replace(&before);
        for (name, gone) in [
            ("alice", false),
            ("bob", true),
            ("dave", true),
            ("carol", false),
        ] {
            let account = before.find(name.as_bytes()).expect("a user");
            assert_eq!(account.is_gone(), gone, "{name}");
            let taken_over = after
                .find(name.as_bytes())
                .is_some_and(|now| Arc::ptr_eq(now, account));
            assert_eq!(taken_over, !gone, "{name}");
        }
        for number in 0..3 {
            let hashed = after.any_hashed(number).expect("a user");
            assert!(!hashed.is_gone());
        }
    }

    #[test]
    fn p29_debug_shows_names_only() {
        let hash = hash("secret");
        let table = table(&[user("carol", "clear")], &format!("alice:{hash}\n"));
        let text = format!("{table:?}");
        assert!(text.contains("alice") && text.contains("carol"), "{text}");
        assert!(!text.contains("clear") && !text.contains("$2b$"), "{text}");
    }

    #[test]
    fn files_that_cannot_be_read() {
        let folder = tempfile::tempdir().expect("a folder");
        let missing = folder.path().join("missing");
        for path in [folder.path(), &missing, Path::new("/dev/null")] {
            let origin = Origin::argument("test");
            let read = Table::read(&[], path, Some(&origin));
            assert!(matches!(read, Err(Unread::Mistakes(_))), "{path:?}");
            let read = Table::read(&[], path, None);
            assert!(matches!(read, Err(Unread::Failure(_))), "{path:?}");
        }
    }
}
