//! proxyd: an HTTP, CONNECT, SOCKS, TLS and port-relay forward proxy.

#![forbid(unsafe_code)]

mod accept;
mod banner;
mod bind;
mod carried;
mod cause;
mod certificates;
mod cli;
mod config;
mod datagrams;
mod egress;
mod errand;
mod explain;
mod flows;
mod gate;
mod gateway;
mod idle;
mod introduction;
mod issuers;
mod listen;
mod listen_udp;
mod listen_unix;
mod log;
mod mark;
mod metrics;
mod name_files;
mod nofile;
mod origin_tls;
mod original;
mod outside;
mod own;
mod parents;
mod places;
mod plan;
mod policy;
mod proxy_header;
mod resolver;
mod run;
mod service;
mod signal;
mod sni;
mod sniff;
mod sources;
mod speeds;
mod targets;
mod throttle;
mod unix;
mod upstream;
mod users;
mod way;
mod worker;

use std::fmt::Display;
use std::io::{self, IsTerminal, Write};
use std::process::ExitCode;

use clap::Parser;
use tracing::level_filters::LevelFilter;
use tracing_subscriber::Layer;
use tracing_subscriber::filter::Targets;
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::util::SubscriberInitExt;

use certificates::Unloaded;
use cli::{Cli, Command};
use config::{Config, Problem};
use explain::Explain;
use run::Files;
use users::Unread;

/// Gives memory back to the system once it is not needed any more, also what
/// lies between pieces that are: after a flood proxyd is as small as before.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() -> ExitCode {
    let cli = Cli::parse();
    if let Some(Command::Passwd(passwd)) = &cli.command {
        return match passwd.run() {
            Ok(()) => ExitCode::SUCCESS,
            Err(refusal) => fail(refusal.status(), "proxyd: ", &[refusal]),
        };
    }
    let config = match cli.config() {
        Ok(config) => config,
        // Without a prefix, so that editors find the line.
        Err(problems) => return fail(MISTAKE, "", &problems),
    };
    start_diagnostics(config.level);
    if let Some(Command::Explain(request)) = &cli.command {
        return explain(request, &config);
    }
    let files = match Files::load(&config) {
        Ok(files) => files,
        Err(Unloaded::Failures(failures)) => return fail(FAILURE, "proxyd: ", &failures),
        Err(Unloaded::Mistakes(problems)) => return fail(MISTAKE, "", &problems),
    };
    let users = match users::Table::load(&config) {
        Ok(users) => users,
        Err(Unread::Failure(text)) => return fail(FAILURE, "proxyd: ", &[text]),
        Err(Unread::Mistakes(problems)) => return fail_in_short(&problems),
    };
    let result = match cli.command {
        Some(Command::Check) => {
            run::warn(&config);
            // Nobody may be listening.
            let _ = writeln!(io::stdout(), "OK: {}", config.summary(users.len()));
            Ok(())
        }
        _ => run::run(config, files, users),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(failures) => fail(FAILURE, "proxyd: ", &failures),
    }
}

fn explain(request: &Explain, config: &Config) -> ExitCode {
    match request.run(config) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::from(DENIED),
        Err(problems) => fail(MISTAKE, "", &problems),
    }
}

fn fail(status: u8, prefix: &str, lines: &[impl Display]) -> ExitCode {
    for line in lines {
        let _ = writeln!(io::stderr(), "{prefix}{line}");
    }
    ExitCode::from(status)
}

/// A users file of another kind has a mistake in every line.
fn fail_in_short(problems: &[Problem]) -> ExitCode {
    let told = &problems[..problems.len().min(MOST_TOLD)];
    let status = fail(MISTAKE, "", told);
    if problems.len() > MOST_TOLD {
        let _ = writeln!(io::stderr(), "and {} more", problems.len() - MOST_TOLD);
    }
    status
}

fn start_diagnostics(level: LevelFilter) {
    let lines = tracing_subscriber::fmt::layer()
        .with_target(false)
        .with_ansi(io::stderr().is_terminal())
        .with_writer(io::stderr);
    // It tells of every odd datagram, which strangers can send without end.
    let of_dns = match level {
        LevelFilter::DEBUG | LevelFilter::TRACE => level,
        _ => LevelFilter::OFF,
    };
    let wanted = Targets::new()
        .with_default(level)
        .with_target("hickory", of_dns);
    tracing_subscriber::registry()
        .with(lines.with_filter(wanted))
        .init();
}

const MOST_TOLD: usize = 10;

/// What was asked about is not allowed.
const DENIED: u8 = 1;
/// Something could not be started.
pub(crate) const FAILURE: u8 = 1;
/// The configuration is wrong.
pub(crate) const MISTAKE: u8 = 2;
