//! A running `proxyd`: started on free ports, stopped and checked at the end.

use std::io::{BufRead, BufReader, Read};
use std::net::SocketAddr;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use rustix::process::Signal;

use super::proc::raise_descriptor_limit;
use super::{Certs, DEADLINE, Descriptors, Mode, Process};

/// Killed when dropped; a test ends with [`finish`](Self::finish).
pub(crate) struct Proxyd {
    child: Child,
    output: Arc<Output>,
    readers: Vec<JoinHandle<()>>,
    listeners: Vec<(String, SocketAddr)>,
    base: Descriptors,
    finished: bool,
}

/// What is left of a `proxyd` that ended.
pub(crate) struct Stopped {
    pub(crate) status: ExitStatus,
    /// Standard output.
    pub(crate) stdout: Vec<String>,
    /// Standard error.
    pub(crate) stderr: Vec<String>,
    /// From the signal to the end of the process.
    pub(crate) took: Duration,
}

#[derive(Default)]
struct Output {
    lines: Mutex<Lines>,
    more: Condvar,
}

#[derive(Default)]
struct Lines {
    stdout: Vec<String>,
    stderr: Vec<String>,
    closed: usize,
}

impl Proxyd {
    /// Starts it with these arguments and waits until all listeners are up. The
    /// variable `PROXYD_BIN` names another binary, for long runs of one that is
    /// optimised.
    pub(crate) fn start<S: AsRef<str>>(args: &[S]) -> Self {
        let other = std::env::var_os("PROXYD_BIN");
        let mut command =
            Command::new(other.unwrap_or_else(|| env!("CARGO_BIN_EXE_proxyd").into()));
        command.args(args.iter().map(AsRef::as_ref));
        Self::spawn(command, args)
    }

    /// Starts `command`, a program that runs `proxyd` with `args` as itself.
    pub(crate) fn spawn<S: AsRef<str>>(mut command: Command, args: &[S]) -> Self {
        raise_descriptor_limit();
        let listeners = args.iter().filter(|arg| arg.as_ref() == "--listen").count();
        command
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        let mut child = command.spawn().expect("started");
        let output = Arc::new(Output::default());
        let out = child.stdout.take().expect("piped");
        let err = child.stderr.take().expect("piped");
        let readers = vec![
            output.follow(out, |lines| &mut lines.stdout),
            output.follow(err, |lines| &mut lines.stderr),
        ];
        let mut proxyd = Self {
            child,
            output,
            readers,
            listeners: Vec::new(),
            base: Descriptors::default(),
            finished: false,
        };
        proxyd.wait_for_listeners(listeners);
        proxyd.base = proxyd.process().descriptors();
        proxyd
    }

    /// Every kind of listener; the port relay leads to `target`.
    pub(crate) fn with_all(target: SocketAddr, extra: &[&str]) -> Self {
        let query = Certs::shared().query();
        let listen = [
            "http://127.0.0.1:0".to_owned(),
            "socks://127.0.0.1:0".to_owned(),
            format!("tcp://127.0.0.1:0/{target}"),
            format!("https://127.0.0.1:0?{query}"),
            format!("auto://127.0.0.1:0?{query}"),
        ];
        let mut args = Vec::new();
        for address in listen {
            args.extend(["--listen".to_owned(), address]);
        }
        args.extend(extra.iter().map(|&arg| arg.to_owned()));
        Self::start(&args)
    }

    /// [`with_all`](Self::with_all) and this configuration file.
    pub(crate) fn with_config(target: SocketAddr, toml: &str) -> Self {
        static COUNT: AtomicUsize = AtomicUsize::new(0);
        let number = COUNT.fetch_add(1, Ordering::Relaxed);
        let file = Certs::shared().folder().join(format!("{number}.toml"));
        std::fs::write(&file, toml).expect("written");
        let file = file.to_str().expect("a plain path");
        Self::with_all(target, &["--config", file])
    }

    /// An HTTP listener only.
    pub(crate) fn http(extra: &[&str]) -> Self {
        let mut args = vec!["--listen", "http://127.0.0.1:0"];
        args.extend(extra);
        Self::start(&args)
    }

    /// Waits until only the descriptors of the start are open, stops it, and
    /// checks that it ended well.
    pub(crate) fn finish(self) -> Stopped {
        self.settle();
        let stopped = self.stop();
        assert!(stopped.status.success(), "{stopped}");
        stopped
    }

    /// Waits until only the descriptors of the start are open. Up to 64 pipes
    /// a worker may be kept for the next bulk transfers.
    pub(crate) fn settle(&self) {
        let start = Instant::now();
        loop {
            let now = self.process().descriptors();
            if now.sockets <= self.base.sockets && now.others <= self.base.others {
                assert!(now.pipes <= self.base.pipes + 256, "pipes: {now:?}");
                return;
            }
            assert!(
                start.elapsed() < DEADLINE,
                "descriptors do not return to the base {:?}: {now:?}, {:?}",
                self.base,
                self.process().links(),
            );
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    /// Asks it to stop and waits for the end.
    pub(crate) fn stop(self) -> Stopped {
        self.process().signal(Signal::TERM);
        self.wait()
    }

    /// Waits for the end, up to the deadline, and checks that nothing panicked.
    pub(crate) fn wait(mut self) -> Stopped {
        let start = Instant::now();
        let status = loop {
            if let Some(status) = self.child.try_wait().expect("a child") {
                break status;
            }
            assert!(start.elapsed() < DEADLINE, "it does not end:\n{self}");
            std::thread::sleep(Duration::from_millis(2));
        };
        let took = start.elapsed();
        for reader in self.readers.drain(..) {
            drop(reader.join());
        }
        self.finished = true;
        let lines = std::mem::take(&mut *self.output.lock());
        let stopped = Stopped {
            status,
            stdout: lines.stdout,
            stderr: lines.stderr,
            took,
        };
        assert!(!stopped.says("panicked"), "{stopped}");
        stopped
    }

    /// Every listener still opens tunnels to the echo at `target`.
    pub(crate) fn serves(&self, target: SocketAddr) {
        for mode in Mode::ALL {
            let conn = mode.open(self, target);
            conn.send("still there");
            conn.expect("still there");
        }
    }

    /// The address of the first listener of that kind.
    pub(crate) fn address(&self, kind: &str) -> SocketAddr {
        let found = self.listeners.iter().find(|(name, _)| name == kind);
        found.unwrap_or_else(|| panic!("no listener {kind}")).1
    }

    pub(crate) fn process(&self) -> Process {
        Process(self.child.id())
    }

    /// The descriptors that were open when it had started.
    pub(crate) fn base(&self) -> &Descriptors {
        &self.base
    }

    /// Waits for a line of its output that `wanted` accepts.
    pub(crate) fn line(&self, wanted: impl Fn(&str) -> bool) -> String {
        let start = Instant::now();
        let mut lines = self.output.lock();
        loop {
            let all = lines.stdout.iter().chain(&lines.stderr);
            if let Some(line) = all.into_iter().find(|line| wanted(line)) {
                return line.clone();
            }
            let left = DEADLINE.checked_sub(start.elapsed());
            let left = left.unwrap_or_else(|| panic!("no such line in {lines}"));
            lines = self.output.wait(lines, left);
        }
    }

    fn wait_for_listeners(&mut self, count: usize) {
        let start = Instant::now();
        loop {
            let mut lines = self.output.lock();
            let all = lines.stdout.iter().chain(&lines.stderr);
            self.listeners = all.filter_map(|line| listening(line)).collect();
            if self.listeners.len() >= count.max(1) {
                return;
            }
            assert!(lines.closed < 2, "it ended at once: {lines}");
            let left = DEADLINE.checked_sub(start.elapsed());
            let left = left.unwrap_or_else(|| panic!("not listening: {lines}"));
            lines = self.output.wait(lines, left);
            drop(lines);
        }
    }
}

impl Drop for Proxyd {
    fn drop(&mut self) {
        drop(self.child.kill());
        drop(self.child.wait());
        if std::thread::panicking() {
            eprintln!("{self}");
        } else {
            assert!(self.finished, "the test does not check how proxyd ended");
        }
    }
}

impl std::fmt::Display for Proxyd {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.output.lock().fmt(f)
    }
}

impl Stopped {
    /// Whether `text` occurs anywhere in the output.
    pub(crate) fn says(&self, text: &str) -> bool {
        let mut lines = self.stdout.iter().chain(&self.stderr);
        lines.any(|line| line.contains(text))
    }
}

impl std::fmt::Display for Stopped {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        writeln!(f, "proxyd ended with {}", self.status)?;
        let lines = self.stdout.iter().chain(&self.stderr);
        lines.take(200).try_for_each(|line| writeln!(f, "  {line}"))
    }
}

impl Output {
    fn follow(
        self: &Arc<Self>,
        stream: impl Read + Send + 'static,
        which: fn(&mut Lines) -> &mut Vec<String>,
    ) -> JoinHandle<()> {
        let output = self.clone();
        std::thread::spawn(move || {
            for line in BufReader::new(stream).lines() {
                let Ok(line) = line else { break };
                which(&mut output.lock()).push(line);
                output.more.notify_all();
            }
            output.lock().closed += 1;
            output.more.notify_all();
        })
    }

    fn lock(&self) -> MutexGuard<'_, Lines> {
        self.lines.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn wait<'l>(&self, lines: MutexGuard<'l, Lines>, time: Duration) -> MutexGuard<'l, Lines> {
        let waited = self.more.wait_timeout(lines, time);
        waited.unwrap_or_else(PoisonError::into_inner).0
    }
}

impl std::fmt::Display for Lines {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        writeln!(f, "the output of proxyd:")?;
        let lines = self.stdout.iter().chain(&self.stderr);
        lines.take(200).try_for_each(|line| writeln!(f, "  {line}"))
    }
}

/// Kind and address in a line such as `listening http 127.0.0.1:41234`.
fn listening(line: &str) -> Option<(String, SocketAddr)> {
    let (_, rest) = line.split_once("listening ")?;
    let mut words = rest.split_whitespace();
    let kind = words.next()?;
    let address = words.find_map(|word| word.parse().ok())?;
    Some((kind.to_owned(), address))
}
