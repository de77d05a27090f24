//! Listening at a Unix socket: one for all workers, and its file.

use std::fs::{self, File, Metadata, Permissions};
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::fs::{FileTypeExt, MetadataExt, PermissionsExt};
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};
use std::thread;
use std::time::Duration;

use rustix::fs::{Mode, OFlags};
use socket2::{Domain, SockAddr, Socket, Type};

use crate::config::UnixPlace;
use crate::listen::BACKLOG;

/// A Unix socket that is listened at.
#[derive(Debug)]
pub(crate) struct BoundUnix {
    /// One per worker, all of the same queue: there is no port to share.
    pub(crate) sockets: Vec<UnixListener>,
    pub(crate) file: SocketFile,
}

impl BoundUnix {
    /// Listens at the path for `workers` workers. A file that a dead process has
    /// left there is replaced.
    ///
    /// # Errors
    /// Also if somebody listens there, or the file is no socket.
    pub(crate) fn new(place: &UnixPlace, workers: usize) -> io::Result<Self> {
        let path = &place.path;
        let address = SockAddr::unix(path)?;
        let socket = Socket::new(Domain::UNIX, Type::STREAM, None)?;
        match socket.bind(&address) {
            Err(error) if error.kind() == io::ErrorKind::AddrInUse => {
                if !is_stale(path)? {
                    return Err(error);
                }
                fs::remove_file(path)?;
                socket.bind(&address)?;
            }
            bound => bound?,
        }
        let file = SocketFile::new(path)?;
        if let Some(mode) = place.mode {
            // Before anybody can connect.
            fs::set_permissions(path, Permissions::from_mode(mode))?;
        }
        socket.set_nonblocking(true)?;
        socket.listen(BACKLOG)?;
        let first = UnixListener::from(OwnedFd::from(socket));
        let mut sockets = Vec::with_capacity(workers);
        for _ in 1..workers {
            sockets.push(first.try_clone()?);
        }
        sockets.push(first);
        Ok(Self { sockets, file })
    }
}

/// The file of a socket, removed when this is dropped, unless another one has
/// taken its place.
#[derive(Debug)]
pub(crate) struct SocketFile {
    path: PathBuf,
    /// Keeps the file's number from being given to another one, even when it has
    /// been removed: a successor would else be taken for it.
    file: File,
}

impl SocketFile {
    fn new(path: &Path) -> io::Result<Self> {
        let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        Ok(Self {
            path: path.to_owned(),
            file: rustix::fs::open(path, flags, Mode::empty())?.into(),
        })
    }
}

impl Drop for SocketFile {
    fn drop(&mut self) {
        let identity = |found: Metadata| (found.dev(), found.ino());
        let own = self.file.metadata().map(identity);
        let now = fs::symlink_metadata(&self.path).map(identity);
        if own.is_ok_and(|own| now.is_ok_and(|now| now == own)) {
            // If it fails, the next start replaces it.
            let _ = fs::remove_file(&self.path);
        }
    }
}

/// Whether a socket lies there that nobody listens at any more.
fn is_stale(path: &Path) -> io::Result<bool> {
    if !fs::symlink_metadata(path)?.file_type().is_socket() {
        return Ok(false);
    }
    let address = SockAddr::unix(path)?;
    let is_refused = || -> io::Result<bool> {
        let socket = Socket::new(Domain::UNIX, Type::STREAM, None)?;
        // A listener whose queue is full would have us wait in it.
        socket.set_nonblocking(true)?;
        let refused = |error: io::Error| error.kind() == io::ErrorKind::ConnectionRefused;
        Ok(socket.connect(&address).is_err_and(refused))
    };
    if !is_refused()? {
        return Ok(false);
    }
    // Another one may be about to listen there.
    thread::sleep(START);
    is_refused()
}

/// From a socket's file to listening at it, at most.
const START: Duration = Duration::from_millis(100);

/// What to do about one that could not be opened.
pub(crate) fn advice(error: &io::Error) -> &'static str {
    match error.kind() {
        io::ErrorKind::AddrInUse => {
            "stop the program that listens there, or remove the file if it is none of a socket, or \
             write another path"
        }
        io::ErrorKind::NotFound => "make the folder, or write a path in one that exists",
        io::ErrorKind::PermissionDenied => "let proxyd write in the folder, or write another path",
        _ => "write another path",
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::net::UnixStream;

    fn place(path: &Path, mode: Option<u32>) -> UnixPlace {
        UnixPlace {
            path: path.to_owned(),
            mode,
        }
    }

    #[test]
    fn the_file_comes_and_goes_with_the_socket() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("x.sock");
        let bound = BoundUnix::new(&place(&path, Some(0o600)), 3).expect("bound");
        assert_eq!(bound.sockets.len(), 3);
        let mode = fs::metadata(&path).expect("a file").permissions().mode();
        assert_eq!(mode & 0o777, 0o600);
        UnixStream::connect(&path).expect("connected");
        let error = BoundUnix::new(&place(&path, None), 1).expect_err("a live one");
        assert_eq!(error.kind(), io::ErrorKind::AddrInUse);
        drop(bound);
        assert!(!path.exists());
    }

    #[test]
    fn what_a_dead_process_left_is_replaced_and_other_files_are_not() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("x.sock");
        drop(UnixListener::bind(&path).expect("bound"));
        let bound = BoundUnix::new(&place(&path, None), 1).expect("replaced");
        // Somebody else has taken the path since.
        fs::remove_file(&path).expect("removed");
        fs::write(&path, "precious").expect("written");
        drop(bound);
        let error = BoundUnix::new(&place(&path, None), 1).expect_err("no socket");
        assert_eq!(error.kind(), io::ErrorKind::AddrInUse);
        assert_eq!(fs::read_to_string(&path).expect("kept"), "precious");
    }

    #[test]
    fn the_file_of_a_successor_stays() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("x.sock");
        for _ in 0..20 {
            let old = BoundUnix::new(&place(&path, None), 1).expect("bound");
            let BoundUnix { sockets, file } = old;
            // It drains, and another one starts meanwhile.
            drop(sockets);
            let new = BoundUnix::new(&place(&path, None), 1).expect("bound");
            drop(file);
            UnixStream::connect(&path).expect("connected");
            drop(new);
            assert!(!path.exists());
        }
    }

    #[test]
    fn somebody_with_a_full_queue_listens_too() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("x.sock");
        let busy = Socket::new(Domain::UNIX, Type::STREAM, None).expect("a socket");
        let address = SockAddr::unix(&path).expect("an address");
        busy.bind(&address).expect("bound");
        busy.listen(0).expect("listening");
        let _first = UnixStream::connect(&path).expect("room for one");
        let error = BoundUnix::new(&place(&path, None), 1).expect_err("a live one");
        assert_eq!(error.kind(), io::ErrorKind::AddrInUse);
    }

    #[test]
    fn one_that_is_about_to_listen_is_left_alone() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("x.sock");
        let other = Socket::new(Domain::UNIX, Type::STREAM, None).expect("a socket");
        let address = SockAddr::unix(&path).expect("an address");
        other.bind(&address).expect("bound");
        thread::scope(|threads| {
            threads.spawn(|| {
                thread::sleep(START / 4);
                other.listen(1).expect("listening");
            });
            let error = BoundUnix::new(&place(&path, None), 1).expect_err("a live one");
            assert_eq!(error.kind(), io::ErrorKind::AddrInUse);
        });
    }
}
