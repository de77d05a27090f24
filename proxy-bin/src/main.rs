//! proxyd: an HTTP, CONNECT, SOCKS, TLS and port-relay forward proxy.

#![forbid(unsafe_code)]

mod accept;
mod auth;
mod banner;
mod certificates;
mod cli;
mod config;
mod explain;
mod gate;
mod gateway;
mod listen;
mod log;
mod nofile;
mod own;
mod plan;
mod policy;
mod run;
mod service;
mod signal;
mod sniff;
mod throttle;
mod worker;

use std::fmt::Display;
use std::io::{self, IsTerminal, Write};
use std::process::ExitCode;

use clap::Parser;
use tracing::level_filters::LevelFilter;

use certificates::Unloaded;
use cli::{Cli, Command};
use config::Config;
use explain::Explain;

fn main() -> ExitCode {
    let cli = Cli::parse();
    let config = match cli.config() {
        Ok(config) => config,
        // Without a prefix, so that editors find the line.
        Err(problems) => return fail(MISTAKE, "", &problems),
    };
    start_diagnostics(config.level);
    let only_check = match &cli.command {
        Some(Command::Explain(request)) => return explain(request, &config),
        Some(Command::Check) => true,
        None => false,
    };
    let acceptors = match certificates::load(&config) {
        Ok(acceptors) => acceptors,
        Err(Unloaded::Failures(failures)) => return fail(FAILURE, "proxyd: ", &failures),
        Err(Unloaded::Mistakes(problems)) => return fail(MISTAKE, "", &problems),
    };
    let result = match only_check {
        true => {
            run::warn_of_open_listeners(&config);
            // Nobody may be listening.
            let _ = writeln!(io::stdout(), "OK: {}", config.summary());
            Ok(())
        }
        false => run::run(config, acceptors),
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

fn start_diagnostics(level: LevelFilter) {
    tracing_subscriber::fmt()
        .with_max_level(level)
        .with_target(false)
        .with_ansi(io::stderr().is_terminal())
        .with_writer(io::stderr)
        .init();
}

/// What was asked about is not allowed.
const DENIED: u8 = 1;
/// Something could not be started.
const FAILURE: u8 = 1;
/// The configuration is wrong.
const MISTAKE: u8 = 2;
