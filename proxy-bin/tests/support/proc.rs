//! What `/proc` tells about a process.

use std::collections::BTreeMap;
use std::time::Duration;

use rustix::process::{Pid, Resource, Rlimit, Signal};

/// A process by its id.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Process(pub(crate) u32);

/// Open descriptors by kind.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Descriptors {
    pub(crate) sockets: usize,
    pub(crate) pipes: usize,
    pub(crate) others: usize,
}

impl Process {
    pub(crate) fn signal(self, signal: Signal) {
        let pid = i32::try_from(self.0).ok().and_then(Pid::from_raw);
        let pid = pid.expect("the id of a process");
        rustix::process::kill_process(pid, signal).expect("signalled");
    }

    /// Counts the open descriptors.
    pub(crate) fn descriptors(self) -> Descriptors {
        let mut found = Descriptors::default();
        for link in self.links().into_values() {
            match link.split(':').next() {
                Some("socket") => found.sockets += 1,
                Some("pipe") => found.pipes += 1,
                _ => found.others += 1,
            }
        }
        found
    }

    /// What each descriptor is.
    pub(crate) fn links(self) -> BTreeMap<u32, String> {
        let folder = std::fs::read_dir(format!("/proc/{}/fd", self.0)).expect("it runs");
        folder
            .filter_map(|entry| {
                let entry = entry.ok()?;
                let link = std::fs::read_link(entry.path()).ok()?;
                let number = entry.file_name().to_str()?.parse().ok()?;
                Some((number, link.to_string_lossy().into_owned()))
            })
            .collect()
    }

    /// Resident memory in bytes.
    pub(crate) fn resident(self) -> u64 {
        let status = std::fs::read_to_string(format!("/proc/{}/status", self.0)).expect("it runs");
        let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
        let kib = line.and_then(|line| line.trim().strip_suffix(" kB"));
        kib.and_then(|kib| kib.parse::<u64>().ok()).expect("a size") * 1024
    }

    /// CPU time used so far, user and system.
    pub(crate) fn cpu(self) -> Duration {
        let stat = std::fs::read_to_string(format!("/proc/{}/stat", self.0)).expect("it runs");
        // The name may hold blanks and parentheses; the fields behind it are
        // state, ppid, ... with utime and stime as the 12th and 13th.
        let (_, fields) = stat.rsplit_once(')').expect("a name");
        let ticks = |index| fields.split_whitespace().nth(index)?.parse::<u64>().ok();
        let used = ticks(11).zip(ticks(12)).map(|(user, system)| user + system);
        Duration::from_millis(used.expect("two times") * 10)
    }
}

/// Lets this process open as many descriptors as it may.
pub(crate) fn raise_descriptor_limit() {
    let limit = rustix::process::getrlimit(Resource::Nofile);
    let raised = Rlimit {
        current: limit.maximum,
        maximum: limit.maximum,
    };
    rustix::process::setrlimit(Resource::Nofile, raised).expect("up to the hard limit");
}
