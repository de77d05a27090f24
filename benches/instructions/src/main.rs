//! Does one thing many times, for a tool that counts instructions: `instructions WHAT TIMES`.
//! Without arguments it says what it can do. See `run` beside it.

#![forbid(unsafe_code)]

mod exchange;
mod wire;

use std::process::ExitCode;

/// Does a thing so many times.
type Act = fn(usize);

/// Everything that is counted, by name.
const ALL: &[(&str, Act)] = &[
    ("request-small", wire::request_small),
    ("request-browser", wire::request_browser),
    ("response", wire::response),
    ("chunks-64k-of-16", wire::chunks),
    ("to-origin-browser", wire::to_origin),
    ("to-client", wire::to_client),
    ("exchange-1k", exchange::exchange),
];

fn main() -> ExitCode {
    let arguments: Vec<_> = std::env::args().skip(1).collect();
    match &arguments[..] {
        [] => ALL.iter().for_each(|(name, _)| println!("{name}")),
        [what, times] => {
            let item = ALL.iter().find(|(name, _)| name == what);
            let (Some((_, act)), Ok(times)) = (item, times.parse()) else {
                return ExitCode::from(2);
            };
            act(times);
        }
        _ => return ExitCode::from(2),
    }
    ExitCode::SUCCESS
}
