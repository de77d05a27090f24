//! `proxyd passwd`: a password becomes a line of a users file.

use std::fmt;
use std::fs::{self, File, OpenOptions};
use std::io::{self, BufRead, IsTerminal, Read, Write};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt, PermissionsExt, fchown};
use std::path::{Path, PathBuf};

use clap::{Args, ValueEnum};
use rustix::fs::{FlockOperation, flock};

use super::hash::Recipe;
use crate::config::{self, Mismatch};
use crate::{FAILURE, MISTAKE};

/// What the line is made of and where it goes.
#[derive(Args, Clone, Debug, PartialEq, Eq)]
pub(crate) struct Passwd {
    /// How the password is hashed.
    #[arg(long, value_enum, default_value_t = Algorithm::Argon2)]
    algorithm: Algorithm,

    /// How slow that is: passes over 19 MiB for argon2 [default: 2], the cost of
    /// bcrypt [default: 12], rounds of sha512 [default: 200000].
    #[arg(long, value_name = "N")]
    cost: Option<u32>,

    /// The user.
    name: String,

    /// The users file to put the line into, in the place of the user's old one;
    /// made if need be. Without it the line is printed.
    file: Option<PathBuf>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Algorithm {
    /// argon2id: slow, and costly in memory too.
    Argon2,
    /// bcrypt: understood by all that read such files; passwords of at most 72
    /// bytes.
    Bcrypt,
    /// SHA-512-crypt: as in /etc/shadow.
    Sha512,
}

/// Why there is no line.
#[derive(Debug)]
pub(crate) enum Refusal {
    Failure(String),
    Mistake(String),
}

impl Passwd {
    /// Asks for the password, twice at a terminal, and writes the line.
    ///
    /// # Errors
    /// A mistake in name, password or cost; or what could not be read or written.
    pub(crate) fn run(&self) -> Result<(), Refusal> {
        let name = config::user_name(&self.name)
            .map_err(|mismatch| mistake("NAME", &mismatch, &config::shown_user(&self.name)))?;
        if name.starts_with('#') {
            let mismatch =
                Mismatch::new("a name without # in front, which makes a comment", "alice");
            return Err(mistake("NAME", &mismatch, &config::shown(&name)));
        }
        let password = ask()?;
        let password = config::password(&password).map_err(|mut mismatch| {
            // That one is for files.
            "another one".clone_into(&mut mismatch.instead);
            mistake("password", &mismatch, config::wrong_password(&password))
        })?;
        let hash = self.recipe().hash(&password).map_err(Refusal::Mistake)?;
        let line = format!("{name}:{hash}");
        match &self.file {
            None => writeln!(io::stdout(), "{line}")
                .map_err(|error| Refusal::Failure(format!("cannot print the line: {error}"))),
            Some(path) => put(path, &name, &line).map_err(|error| {
                Refusal::Failure(format!("cannot write {}: {error}", path.display()))
            }),
        }
    }

    fn recipe(&self) -> Recipe {
        let cost = |usual: u32| self.cost.unwrap_or(usual);
        match self.algorithm {
            Algorithm::Argon2 => Recipe::Argon2 {
                memory: 19 * 1024,
                passes: cost(2),
            },
            Algorithm::Bcrypt => Recipe::Bcrypt { cost: cost(12) },
            Algorithm::Sha512 => Recipe::Sha512 {
                rounds: cost(200_000),
            },
        }
    }
}

impl Refusal {
    /// The exit status.
    pub(crate) fn status(&self) -> u8 {
        match self {
            Self::Failure(_) => FAILURE,
            Self::Mistake(_) => MISTAKE,
        }
    }
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (Self::Failure(text) | Self::Mistake(text)) = self;
        f.write_str(text)
    }
}

fn mistake(what: &str, mismatch: &Mismatch, found: &str) -> Refusal {
    let Mismatch { expected, instead } = mismatch;
    Refusal::Mistake(format!(
        "{what}: expected {expected}, found {found}; write {instead} instead"
    ))
}

fn ask() -> Result<String, Refusal> {
    let unread = |error: io::Error| Refusal::Failure(format!("cannot read a password: {error}"));
    if !io::stdin().is_terminal() {
        return read_line(io::stdin().lock()).map_err(unread);
    }
    let password = rpassword::prompt_password("Password: ").map_err(unread)?;
    let again = rpassword::prompt_password("The same again: ").map_err(unread)?;
    match password == again {
        true => Ok(password),
        false => Err(Refusal::Mistake(
            "password: expected the same one twice, found two; write one of them twice instead"
                .to_owned(),
        )),
    }
}

fn read_line(from: impl BufRead) -> io::Result<String> {
    let mut line = String::new();
    from.take(LONGEST).read_line(&mut line)?;
    let end = line.trim_end_matches(['\r', '\n']).len();
    line.truncate(end);
    Ok(line)
}

/// Puts the line into the file, which is replaced as a whole, so that nobody
/// ever reads a half of it.
fn put(path: &Path, name: &str, line: &str) -> io::Result<()> {
    // Of a link, what it leads to.
    let path = path.canonicalize().unwrap_or_else(|_| path.to_owned());
    // Who comes at the same time waits, so that no line is lost. The folder is
    // locked, since the file will be another one.
    let folder = match path.parent() {
        Some(folder) if !folder.as_os_str().is_empty() => folder,
        _ => Path::new("."),
    };
    let folder = File::open(folder)?;
    flock(&folder, FlockOperation::LockExclusive)?;
    let old = match path.metadata() {
        // A device or a pipe would be replaced by a file.
        Ok(metadata) if !metadata.is_file() => {
            return Err(io::Error::other("it is there and no plain file"));
        }
        Ok(_) => Some(File::open(&path)?),
        Err(error) if error.kind() == io::ErrorKind::NotFound => None,
        Err(error) => return Err(error),
    };
    let mut text = Vec::new();
    if let Some(mut old) = old.as_ref() {
        old.read_to_end(&mut text)?;
    }
    let mut name_of_new = path.file_name().unwrap_or_default().to_owned();
    name_of_new.push(format!(".{}.new", std::process::id()));
    let new = path.with_file_name(name_of_new);
    let written = write(&new, &edit(&text, name, line), old.as_ref());
    let placed = written.and_then(|()| fs::rename(&new, &path));
    if placed.is_err() {
        let _ = fs::remove_file(&new);
    }
    placed
}

/// Writes a new file, for the same people as `like`, or for the owner only.
fn write(path: &Path, text: &[u8], like: Option<&File>) -> io::Result<()> {
    let mut options = OpenOptions::new();
    options.write(true).create_new(true).mode(0o600);
    let mut file = options.open(path)?;
    if let Some(like) = like {
        let like = like.metadata()?;
        // Only root may give files away; others own the old one as a rule.
        let _ = fchown(&file, Some(like.uid()), Some(like.gid()));
        file.set_permissions(PermissionsExt::from_mode(like.mode() & 0o7777))?;
    }
    file.write_all(text)?;
    file.sync_all()
}

/// The text with that line in the place of the user's, or at the end.
fn edit(text: &[u8], name: &str, line: &str) -> Vec<u8> {
    let mut edited = Vec::with_capacity(text.len() + line.len() + 2);
    let mut placed = false;
    for old in text.split_inclusive(|b| *b == b'\n') {
        let is_of_user = old
            .strip_prefix(name.as_bytes())
            .is_some_and(|rest| rest.starts_with(b":"));
        if !is_of_user {
            edited.extend_from_slice(old);
        } else if !placed {
            placed = true;
            edited.extend_from_slice(line.as_bytes());
            edited.push(b'\n');
        }
    }
    if !placed {
        if edited.last().is_some_and(|last| *last != b'\n') {
            edited.push(b'\n');
        }
        edited.extend_from_slice(line.as_bytes());
        edited.push(b'\n');
    }
    edited
}

/// Bytes of a line that may be a password; a longer one shows as too long.
const LONGEST: u64 = 4096;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nobody_is_lost_who_comes_at_the_same_time() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("users");
        std::thread::scope(|scope| {
            for number in 0..20 {
                let path = &path;
                scope.spawn(move || {
                    let name = format!("user{number}");
                    put(path, &name, &format!("{name}:x")).expect("written");
                });
            }
        });
        let text = fs::read_to_string(&path).expect("text");
        assert_eq!(text.lines().count(), 20, "{text}");
    }

    #[test]
    fn only_a_plain_file_is_replaced() {
        let folder = tempfile::tempdir().expect("a folder");
        let device = Path::new("/dev/zero");
        let link = folder.path().join("link");
        std::os::unix::fs::symlink(device, &link).expect("linked");
        for path in [folder.path(), device, &link] {
            assert!(put(path, "alice", "alice:x").is_err(), "{path:?}");
        }
        assert!(!device.metadata().expect("a device").is_file());
    }

    #[test]
    fn a_line_takes_its_place() {
        for (before, after) in [
            ("", "alice:new\n"),
            ("# users\nbob:b\n", "# users\nbob:b\nalice:new\n"),
            ("bob:b", "bob:b\nalice:new\n"),
            ("alice:old\nbob:b\n", "alice:new\nbob:b\n"),
            (
                "alices:x\n#alice:x\nalice:old",
                "alices:x\n#alice:x\nalice:new\n",
            ),
            ("alice:1\nbob:b\nalice:2\n", "alice:new\nbob:b\n"),
        ] {
            let edited = edit(before.as_bytes(), "alice", "alice:new");
            assert_eq!(String::from_utf8_lossy(&edited), after, "{before:?}");
        }
    }

    #[test]
    fn a_file_is_made_for_its_owner_and_keeps_what_it_was() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("users");
        let mode = || path.metadata().expect("a file").mode() & 0o777;
        put(&path, "alice", "alice:1").expect("written");
        assert_eq!(mode(), 0o600);
        fs::set_permissions(&path, PermissionsExt::from_mode(0o640)).expect("set");
        let link = folder.path().join("link");
        std::os::unix::fs::symlink(&path, &link).expect("a link");
        put(&link, "bob", "bob:2").expect("written");
        assert_eq!(fs::read_to_string(&path).expect("text"), "alice:1\nbob:2\n");
        assert_eq!(mode(), 0o640);
        assert!(link.is_symlink());
        assert_eq!(fs::read_dir(folder.path()).expect("a folder").count(), 2);
    }

    #[test]
    fn what_cannot_be_replaced_stays() {
        let folder = tempfile::tempdir().expect("a folder");
        assert!(put(folder.path(), "alice", "alice:1").is_err());
        assert!(put(&folder.path().join("no/users"), "alice", "alice:1").is_err());
        let kept = fs::read_dir(folder.path()).expect("a folder").count();
        assert_eq!(kept, 0);
    }

    #[test]
    fn a_password_is_one_line() {
        for (input, password) in [
            ("secret\n", "secret"),
            ("secret\r\nmore\n", "secret"),
            (" sec ret ", " sec ret "),
            ("", ""),
        ] {
            assert_eq!(read_line(input.as_bytes()).expect("text"), password);
        }
    }
}
