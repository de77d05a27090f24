//! CPU time of a process and its descendants, from /proc.

use std::fs;
use std::ops::Sub;

/// In nanoseconds, since the start.
#[derive(Clone, Copy, Default)]
pub(crate) struct Times {
    /// On a CPU, user and system.
    pub(crate) ran: u64,
    /// Ready to run, but not running.
    pub(crate) waited: u64,
}

impl Sub for Times {
    type Output = Self;

    fn sub(self, earlier: Self) -> Self {
        Self {
            ran: self.ran.saturating_sub(earlier.ran),
            waited: self.waited.saturating_sub(earlier.waited),
        }
    }
}

/// Of all threads of the process.
pub(crate) fn process(pid: u32) -> Times {
    let mut times = Times::default();
    for task in fs::read_dir(format!("/proc/{pid}/task"))
        .into_iter()
        .flatten()
        .flatten()
    {
        let text = fs::read_to_string(task.path().join("schedstat")).unwrap_or_default();
        let mut numbers = text
            .split_whitespace()
            .map_while(|word| word.parse::<u64>().ok());
        times.ran += numbers.next().unwrap_or(0);
        times.waited += numbers.next().unwrap_or(0);
    }
    times
}

/// Of all threads of the process and of its descendants.
pub(crate) fn tree(root: u32) -> Times {
    let mut members = vec![root];
    let all = processes();
    let mut next = 0;
    while let Some(&parent) = members.get(next) {
        members.extend(
            all.iter()
                .filter(|entry| entry.parent == parent)
                .map(|entry| entry.pid),
        );
        next += 1;
    }
    members
        .into_iter()
        .map(process)
        .fold(Times::default(), |sum, one| Times {
            ran: sum.ran + one.ran,
            waited: sum.waited + one.waited,
        })
}

/// Of the kernel's threads for soft interrupts. What they do is work of the relay or the generator.
pub(crate) fn softirqd() -> u64 {
    let all = processes();
    let threads = all
        .iter()
        .filter(|entry| entry.name.starts_with("ksoftirqd/"));
    threads.map(|entry| process(entry.pid).ran).sum()
}

/// Of all CPUs together, in nanoseconds, by the kernel's ticks of 10 ms.
#[derive(Clone, Copy, Default)]
pub(crate) struct Machine {
    /// For anybody.
    pub(crate) busy: u64,
    /// For other guests of the same host.
    pub(crate) stolen: u64,
}

pub(crate) fn machine() -> Machine {
    let text = fs::read_to_string("/proc/stat").unwrap_or_default();
    let line = text.lines().next().unwrap_or_default();
    // user nice system idle iowait irq softirq steal
    let ticks: Vec<u64> = line
        .split_whitespace()
        .skip(1)
        .map_while(|word| word.parse().ok())
        .collect();
    let sum = |fields: &[usize]| {
        fields
            .iter()
            .filter_map(|&field| ticks.get(field))
            .sum::<u64>()
            * 10_000_000
    };
    Machine {
        busy: sum(&[0, 1, 2, 5, 6]),
        stolen: sum(&[7]),
    }
}

struct Entry {
    pid: u32,
    parent: u32,
    name: String,
}

fn processes() -> Vec<Entry> {
    let folders = fs::read_dir("/proc").into_iter().flatten().flatten();
    folders
        .filter_map(|folder| {
            let pid = folder.file_name().to_str()?.parse().ok()?;
            let text = fs::read_to_string(folder.path().join("stat")).ok()?;
            // PID (NAME) STATE PARENT .., where the name can hold anything.
            let (front, rest) = text.rsplit_once(')')?;
            let (_, name) = front.split_once('(')?;
            let parent = rest.split_whitespace().nth(1)?.parse().ok()?;
            Some(Entry {
                pid,
                parent,
                name: name.to_owned(),
            })
        })
        .collect()
}
