//! The `curl` program, an independent client.

use std::fmt;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

/// One run of `curl`.
pub(crate) struct Curl {
    command: Command,
}

/// What came of a run.
pub(crate) struct Fetched {
    /// The exit code; 0 is success.
    pub(crate) code: i32,
    /// What it wrote to standard output: the bodies.
    pub(crate) body: String,
    /// The last response's status, 0 without one.
    pub(crate) status: u16,
    /// The status of the last answer to a CONNECT, 0 without one.
    pub(crate) connect_status: u16,
    /// New connections made for the last transfer.
    pub(crate) connects: u32,
    /// Messages.
    pub(crate) stderr: String,
}

impl Curl {
    /// A run that asks for `url` (more can follow in [`args`](Self::args)) and
    /// is deaf to the environment and to personal settings.
    pub(crate) fn new(url: &str) -> Self {
        let mut command = Command::new("curl");
        command.args(["-q", "-sS", "--noproxy", "", "--max-time", "15"]);
        command.args([
            "-w",
            "%{stderr}\n#%{http_code} %{http_connect} %{num_connects}\n",
        ]);
        command.arg(url);
        for name in ["http_proxy", "https_proxy", "all_proxy", "no_proxy"] {
            command.env_remove(name).env_remove(name.to_uppercase());
        }
        Self { command }
    }

    pub(crate) fn args<S: AsRef<std::ffi::OsStr>>(
        mut self,
        args: impl IntoIterator<Item = S>,
    ) -> Self {
        self.command.args(args);
        self
    }

    /// Runs it.
    ///
    /// # Panics
    /// When `curl` is missing, or hangs in spite of its own deadline.
    pub(crate) fn run(mut self) -> Fetched {
        self.command.stdin(Stdio::null());
        self.command.stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = self.command.spawn().expect("curl is installed");
        // Read while curl runs: a pipe that is full would stop it.
        let out = child.stdout.take().expect("piped");
        let err = child.stderr.take().expect("piped");
        let out = std::thread::spawn(move || std::io::read_to_string(out));
        let err = std::thread::spawn(move || std::io::read_to_string(err));
        let start = Instant::now();
        let status = loop {
            if let Some(status) = child.try_wait().expect("a child") {
                break status;
            }
            if start.elapsed() > Duration::from_secs(30) {
                drop(child.kill());
                panic!("curl hangs");
            }
            std::thread::sleep(Duration::from_millis(2));
        };
        let stderr = err.join().expect("no panic").expect("text");
        let (status_code, connect_status, connects) = figures(&stderr);
        Fetched {
            code: status.code().unwrap_or(-1),
            body: out.join().expect("no panic").expect("text"),
            status: status_code,
            connect_status,
            connects,
            stderr,
        }
    }

    /// Runs it and expects success with status 200; returns the body.
    pub(crate) fn ok(self) -> String {
        let fetched = self.run();
        assert_eq!((fetched.code, fetched.status), (0, 200), "{fetched:?}");
        fetched.body
    }
}

impl fmt::Debug for Fetched {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let body: String = self.body.chars().take(300).collect();
        write!(f, "curl ended with {}, status {}", self.code, self.status)?;
        write!(f, " (CONNECT {})", self.connect_status)?;
        write!(
            f,
            ", {} connections: {body:?} {:?}",
            self.connects, self.stderr
        )
    }
}

/// The figures of the last line that `-w` wrote.
fn figures(stderr: &str) -> (u16, u16, u32) {
    let line = stderr.lines().rev().find_map(|line| line.strip_prefix('#'));
    let mut words = line.unwrap_or_default().split(' ');
    let mut next = || {
        words
            .next()
            .and_then(|word| word.parse::<u32>().ok())
            .unwrap_or(0)
    };
    let code = |number| u16::try_from(number).unwrap_or(0);
    (code(next()), code(next()), next())
}
