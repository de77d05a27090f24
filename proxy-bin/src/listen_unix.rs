//! Listening at a Unix socket: one for all workers, and its file.

use std::fs::{self, Permissions};
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::fs::{FileTypeExt, MetadataExt, PermissionsExt};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};

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
            Err(error) if error.kind() == io::ErrorKind::AddrInUse && is_stale(path)? => {
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
    /// Device and inode.
    identity: (u64, u64),
}

impl SocketFile {
    fn new(path: &Path) -> io::Result<Self> {
        Ok(Self {
            path: path.to_owned(),
            identity: identity(path)?,
        })
    }
}

impl Drop for SocketFile {
    fn drop(&mut self) {
        if identity(&self.path).is_ok_and(|now| now == self.identity) {
            // If it fails, the next start replaces it.
            let _ = fs::remove_file(&self.path);
        }
    }
}

fn identity(path: &Path) -> io::Result<(u64, u64)> {
    let metadata = fs::symlink_metadata(path)?;
    Ok((metadata.dev(), metadata.ino()))
}

/// Whether a socket lies there that nobody listens at any more.
fn is_stale(path: &Path) -> io::Result<bool> {
    if !fs::symlink_metadata(path)?.file_type().is_socket() {
        return Ok(false);
    }
    let refused = |error: io::Error| error.kind() == io::ErrorKind::ConnectionRefused;
    Ok(UnixStream::connect(path).is_err_and(refused))
}

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
}
