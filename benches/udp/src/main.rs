//! A benchmark of UDP relays on loopback: a load generator, raw relays as the floor, and a table.
#![forbid(unsafe_code)]

mod cpu;
mod load;
mod net;
mod pattern;
mod relay;
mod socks;
mod table;

use std::process::ExitCode;

use clap::{Parser, Subcommand};

#[derive(Parser)]
#[command(version, about)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Loads a relay, checks every answer and prints one line of JSON.
    Load(load::Options),
    /// Relays datagrams with as little work as can be.
    Relay(relay::Options),
    /// Prints a Markdown table of medians from lines that `load` has printed.
    Table(table::Options),
}

fn main() -> ExitCode {
    let done = match Cli::parse().command {
        Command::Load(options) => load::run(&options),
        Command::Relay(options) => relay::run(&options),
        Command::Table(options) => table::run(&options),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("udpbench: {error}");
            ExitCode::FAILURE
        }
    }
}
