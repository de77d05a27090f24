//! The command line.

use std::path::{Path, PathBuf};

use clap::builder::styling::{AnsiColor, Styles};
use clap::{Args, Parser, Subcommand};

use crate::config::{self, Config, Draft, Format, LEVELS, Origin, Problem, Sourced};
use crate::explain::Explain;
use crate::users::Passwd;

/// A forward proxy: HTTP, CONNECT, SOCKS4/4a/5, TLS and port relays.
#[derive(Debug, Parser)]
#[command(name = "proxyd", version, styles = STYLES, after_help = AFTER_HELP)]
pub(crate) struct Cli {
    #[command(subcommand)]
    pub(crate) command: Option<Command>,
    #[command(flatten)]
    options: Options,
}

/// What to do instead of serving.
#[derive(Clone, Debug, Subcommand)]
pub(crate) enum Command {
    /// Check options and configuration file, start nothing.
    Check,
    /// Tell what would become of a request: which rule decides, which way it
    /// would go, and why. Status 0 if it is allowed, 1 if not.
    Explain(Box<Explain>),
    /// Make a line of a users file out of a password.
    Passwd(Passwd),
}

#[derive(Args, Debug)]
struct Options {
    /// Listen there; may be given again.
    ///
    /// SCHEME is http, https, socks (SOCKS4, 4a and 5), tcp (a relay to the
    /// target behind the slash), udp (the same for datagrams), sni (TLS to the
    /// host that the client names), redirect or tproxy (what the firewall sends)
    /// or auto (http, https and socks on one port). HOST is an IP address, IPv6
    /// in brackets; port 0 takes any free port. Parameters:
    /// cert=FILE and key=FILE (PEM; https needs them, auto may have them),
    /// auth=on|off, clients=NETWORK,.. (the only ones served), open=on
    /// (everybody is), trust_loopback=off (the guard is for clients on loopback
    /// too), name=NAME (in the access log), source=NAME, via=NAME (a parent, a
    /// group or direct), proxy_protocol=NETWORK,.. (the front ends that send a
    /// PROXY header, the only ones served), send_proxy=v1|v2 (to targets),
    /// names=NAME,.. and target_port=PORT (of sni), idle=TIME (of udp),
    /// rate_up=RATE, rate_down=RATE (of all clients), session_rate_up=RATE,
    /// session_rate_down=RATE (of each), such as 500KB/s.
    #[arg(
        short,
        long,
        global = true,
        value_name = "SCHEME://HOST:PORT[/TARGET][?cert=..&key=..]"
    )]
    listen: Vec<String>,

    /// A user that clients must name; may be given again.
    ///
    /// The password may hold colons. Other users of this machine can see
    /// options: prefer the configuration file.
    #[arg(short, long, global = true, value_name = "NAME:PASSWORD")]
    user: Vec<String>,

    /// Reach targets through this parent proxy; given again, through a chain of
    /// them.
    ///
    /// SCHEME is http, https, socks4a or socks5; user and password with %XX
    /// escapes. Goes before `via` of the configuration file. Other users of
    /// this machine can see options: prefer the file for a password.
    #[arg(
        long,
        global = true,
        value_name = "SCHEME://[USER:PASSWORD@]HOST[:PORT][?ca=FILE]"
    )]
    via: Vec<String>,

    /// Read this TOML file first; listeners and users add to it, other options
    /// go before it.
    #[arg(short, long, global = true, value_name = "FILE")]
    config: Option<PathBuf>,

    /// Worker threads [default: one per core].
    #[arg(
        short,
        long,
        global = true,
        value_name = "N",
        allow_negative_numbers = true
    )]
    workers: Option<String>,

    /// Where access-log lines go: off, stdout (or -) or a file [default: stdout if it
    /// is a terminal, else off].
    #[arg(long, global = true, value_name = "off|stdout|FILE")]
    access_log: Option<String>,

    /// What access-log lines look like [default: text].
    #[arg(long, global = true, value_name = "text|json")]
    access_log_format: Option<String>,

    /// How long running work may go on after SIGTERM or SIGINT [default: 30s].
    #[arg(long, global = true, value_name = "TIME")]
    drain: Option<String>,

    /// How much to tell on stderr: off, error, warn, info, debug or trace
    /// [default: info].
    #[arg(long, global = true, value_name = "LEVEL")]
    log: Option<String>,
}

impl Cli {
    /// The configuration meant by file and options together.
    ///
    /// # Errors
    /// Every mistake in them.
    pub(crate) fn config(&self) -> Result<Config, Vec<Problem>> {
        let mut problems = Vec::new();
        let mut draft = Draft::default();
        if let Some(path) = &self.options.config {
            match Draft::read(path) {
                Ok(read) => draft = read,
                Err(more) => problems.extend(more),
            }
        }
        self.options.apply(&mut draft, &mut problems);
        // The user of a question has no password, and need not be known.
        if !matches!(self.command, Some(Command::Explain(_))) {
            for pair in &self.options.user {
                draft.user(pair, &mut problems);
            }
        }
        match problems.is_empty() {
            true => draft.finish(),
            false => Err(problems),
        }
    }
}

impl Options {
    fn apply(&self, draft: &mut Draft, problems: &mut Vec<Problem>) {
        for url in &self.listen {
            draft.listen(url, problems);
        }
        for url in &self.via {
            draft.parents.via(url, problems);
        }
        let mut read = Reader { problems };
        if let Some(workers) = read.option("--workers", self.workers.as_ref(), config::workers) {
            draft.workers = Some(workers.value);
        }
        if let Some(drain) = read.option("--drain", self.drain.as_ref(), config::duration) {
            draft.drain = Some(drain.value);
        }
        let level = |text: &str| config::choice(&LEVELS, text);
        if let Some(level) = read.option("--log", self.log.as_ref(), level) {
            draft.level = Some(level.value);
        }
        let format = |text: &str| config::choice(&Format::WORDS, text);
        let written = self.access_log_format.as_ref();
        if let Some(format) = read.option("--access-log-format", written, format) {
            draft.access_format = Some(format.value);
        }
        let access = |text: &str| config::access(Path::new(""), text);
        if let Some(access) = read.option("--access-log", self.access_log.as_ref(), access) {
            draft.access = Some(access);
        }
    }
}

struct Reader<'p> {
    problems: &'p mut Vec<Problem>,
}

impl Reader<'_> {
    fn option<T>(
        &mut self,
        name: &str,
        text: Option<&String>,
        read: impl FnOnce(&str) -> Result<T, config::Mismatch>,
    ) -> Option<Sourced<T>> {
        let text = text?;
        let origin = Origin::argument(name);
        match read(text) {
            Ok(value) => Some(Sourced::new(value, &origin)),
            Err(mismatch) => {
                let found = config::shown(text);
                let problem = Problem::mismatch(&origin, "", &mismatch, &found);
                self.problems.push(problem);
                None
            }
        }
    }
}

const STYLES: Styles = Styles::styled()
    .header(AnsiColor::Green.on_default().bold())
    .usage(AnsiColor::Green.on_default().bold())
    .literal(AnsiColor::Cyan.on_default().bold())
    .placeholder(AnsiColor::Cyan.on_default());

const AFTER_HELP: &str = "\
Without options: HTTP and CONNECT on 127.0.0.1:3128, SOCKS on 127.0.0.1:1080.

Examples:
  proxyd --listen http://0.0.0.0:3128 --user alice:secret
  proxyd --listen 'https://127.0.0.1:8443?cert=proxy.pem&key=proxy.key'
  proxyd --listen tcp://127.0.0.1:5432/db.example:5432
  proxyd passwd alice users.htpasswd
  proxyd check --config proxyd.toml
  proxyd explain --config proxyd.toml --from 192.0.2.7 --to example.com:443

Exit status: 0 after an orderly end, 1 if something could not be started (explain:
if the request is not allowed), 2 for a mistake in options, configuration or the
files they name, 129, 130 or 143 after a second signal.";
