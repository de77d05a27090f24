//! Listeners at Unix sockets: how they are written, and what they cannot have.

use std::fs;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};

use proxy_core::Network;

use super::listener::ListenerDraft;
use super::problem::{Mismatch, Problem, Sourced};
use super::{Protocol, value};
use crate::unix;

/// Where a listener lies in the file system.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct UnixPlace {
    pub(crate) path: PathBuf,
    /// The permissions of the file; `None` leaves them to the system.
    pub(crate) mode: Option<u32>,
}

/// An address to listen at.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Address {
    Net(SocketAddr),
    Unix(PathBuf),
}

impl Address {
    /// Reads an IP address and a port, or `unix:` and a path, which starts from
    /// `folder` if it is relative.
    pub(super) fn parse(folder: &Path, text: &str) -> Result<Self, Mismatch> {
        let Some(path) = text.strip_prefix(unix::PREFIX) else {
            return value::address(text).map(Self::Net);
        };
        let whole = folder.join(path);
        match path.is_empty() || whole.as_os_str().len() > unix::LONGEST || path.contains('\0') {
            false => Ok(Self::Unix(whole)),
            true => {
                let expected = format!(
                    "the path of a Unix socket, of at most {} bytes, behind unix:",
                    unix::LONGEST
                );
                Err(Mismatch::new(expected, "\"unix:/run/proxyd.sock\""))
            }
        }
    }

    /// What its clients and rules take it for, and the path.
    pub(super) fn split(self) -> (SocketAddr, Option<PathBuf>) {
        match self {
            Self::Net(address) => (address, None),
            Self::Unix(path) => (unix::UNIX_CLIENT, Some(path)),
        }
    }
}

/// Reads the permissions of a file.
pub(super) fn mode(text: &str) -> Result<u32, Mismatch> {
    let digits = (3..=4).contains(&text.len()) && text.bytes().all(|b| b.is_ascii_digit());
    match u32::from_str_radix(text, 8) {
        Ok(mode) if digits && mode <= 0o777 => Ok(mode),
        _ => Err(Mismatch::new(
            "permissions in octal digits, such as \"660\"",
            "\"660\"",
        )),
    }
}

/// Judges what it means to listen there.
pub(super) fn finish(draft: &ListenerDraft, problems: &mut Vec<Problem>) -> Option<UnixPlace> {
    let Some(path) = &draft.unix else {
        if let Some(mode) = &draft.mode {
            let text = "expected no mode for a listener at an IP address, found one; write address \
                        = \"unix:/run/proxyd.sock\" instead, or no mode";
            problems.push(Problem::new(&mode.origin, "listener.mode", text));
        }
        return None;
    };
    let protocol = draft.protocol.value;
    let file = draft.cert.as_ref().or(draft.key.as_ref());
    if !matches!(protocol, Protocol::Http | Protocol::Socks | Protocol::Tcp) {
        let text = format!(
            "expected protocol http, socks or tcp at a Unix socket, found {protocol}; write one of \
             these instead, or an IP address and a port"
        );
        problems.push(Problem::new(
            &draft.protocol.origin,
            "listener.protocol",
            text,
        ));
    } else if let Some(file) = file.filter(|_| protocol != Protocol::Http) {
        let text = "expected no TLS files at a Unix socket, found one; write an IP address and a \
                    port instead, or no cert and key";
        problems.push(Problem::new(&file.origin, "listener.cert", text));
    }
    let fronts = || draft.proxy_protocol.iter().flatten();
    let names_own = |front: &Sourced<Network>| front.value.contains(unix::UNIX_CLIENT.ip());
    if let Some(front) = fronts().next().filter(|_| !fronts().any(names_own)) {
        let text = "expected 127.0.0.1 among the front ends, which is what programs at a Unix socket \
                    count as, found others only; write \"127.0.0.1\" instead, or no proxy_protocol";
        problems.push(Problem::new(&front.origin, "listener.proxy_protocol", text));
    }
    let mode = draft.mode.as_ref().map(|mode| mode.value);
    Some(UnixPlace {
        path: path.value.clone(),
        mode,
    })
}

/// A name for it, of its path: `http-proxyd.sock`.
pub(super) fn service(protocol: Protocol, path: &Path) -> String {
    let file = path.file_name().unwrap_or_default().to_string_lossy();
    let fits = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.');
    let plain = file.chars().map(|c| if fits(c) { c } else { '-' });
    format!("{protocol}-{}", plain.take(48).collect::<String>())
}

/// Whether two paths are the same file's, as far as the file system tells now.
pub(super) fn is_same(one: &Path, other: &Path) -> bool {
    let whole = |path: &Path| {
        let folder = path
            .parent()
            .filter(|folder| !folder.as_os_str().is_empty());
        let folder = fs::canonicalize(folder.unwrap_or_else(|| Path::new("."))).ok()?;
        Some(folder.join(path.file_name()?))
    };
    one == other || whole(one).is_some_and(|one| Some(one) == whole(other))
}
