//! Medians of many runs, as a Markdown table.

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::path::PathBuf;

use clap::Args;

#[derive(Args)]
pub(crate) struct Options {
    /// Lines that `load` has printed.
    file: PathBuf,
}

/// The value of a key in a line that `load` has printed, which holds neither nesting nor escapes.
fn value<'a>(line: &'a str, key: &str) -> Option<&'a str> {
    let (_, rest) = line.split_once(&format!("\"{key}\":"))?;
    let end = rest.find([',', '}'])?;
    Some(rest[..end].trim_matches('"'))
}

fn number(line: &str, key: &str) -> f64 {
    value(line, key)
        .and_then(|text| text.parse().ok())
        .unwrap_or(f64::NAN)
}

fn median(lines: &[&str], key: &str) -> f64 {
    let mut all: Vec<f64> = lines.iter().map(|line| number(line, key)).collect();
    all.sort_by(f64::total_cmp);
    match all.len() {
        0 => f64::NAN,
        n if n % 2 == 1 => all[n / 2],
        n => (all[n / 2 - 1] + all[n / 2]) / 2.0,
    }
}

/// From the least to the most, in percent of the median.
fn spread(lines: &[&str], key: &str) -> f64 {
    let all = lines.iter().map(|line| number(line, key));
    let (least, most) = all.fold((f64::MAX, f64::MIN), |(a, b), one| (a.min(one), b.max(one)));
    100.0 * (most - least) / median(lines, key)
}

fn sum(lines: &[&str], key: &str) -> f64 {
    lines.iter().map(|line| number(line, key)).sum()
}

fn ratio(value: f64, floor: Option<f64>) -> String {
    floor.map_or_else(|| "-".to_owned(), |floor| format!("{:.2}", value / floor))
}

pub(crate) fn run(options: &Options) -> io::Result<()> {
    let text = fs::read_to_string(&options.file)?;
    let mut order: Vec<&str> = Vec::new();
    let mut groups: BTreeMap<(u32, u32, usize), Vec<&str>> = BTreeMap::new();
    for line in text.lines().filter(|line| line.starts_with('{')) {
        let peer = value(line, "peer").unwrap_or_default();
        let place = order
            .iter()
            .position(|other| *other == peer)
            .unwrap_or_else(|| {
                order.push(peer);
                order.len() - 1
            });
        let key = (
            number(line, "size") as u32,
            number(line, "flows") as u32,
            place,
        );
        groups.entry(key).or_default().push(line);
    }
    println!(
        "| peer | size | flows | kdatagrams/s | CPU ns per datagram | rate to floor | CPU to floor | losses | late | wrong \
         | relay busy | load idle | spread rate | spread CPU | waits | others | runs |"
    );
    println!(
        "|---|---:|---:|---:|---:|---:|---:|---:|---:|---:|---:|---:|---:|---:|---:|---:|---:|"
    );
    for ((size, flows, place), lines) in &groups {
        let peer = order[*place];
        let framing = lines
            .first()
            .and_then(|line| value(line, "framing"))
            .unwrap_or_default();
        let suffix = peer.find('+').map_or("", |at| &peer[at..]);
        let floor = format!("relay-{framing}{suffix}");
        let floor = order.iter().position(|other| *other == floor);
        let floor = floor.and_then(|place| groups.get(&(*size, *flows, place)));
        let (rate, cpu) = (median(lines, "dps"), median(lines, "cpu_ns"));
        println!(
            "| {peer} | {size} | {flows} | {:.1} | {cpu:.0} | {} | {} | {} | {} | {} | {:.0} % | {:.0} % | {:.0} % | {:.0} % | {:.0} % | {:.0} % | {} |",
            rate / 1000.0,
            ratio(rate, floor.map(|floor| median(floor, "dps"))),
            ratio(cpu, floor.map(|floor| median(floor, "cpu_ns"))),
            sum(lines, "losses"),
            sum(lines, "late"),
            sum(lines, "wrong"),
            100.0 * median(lines, "relay_busy"),
            100.0 * median(lines, "load_idle"),
            spread(lines, "dps"),
            spread(lines, "cpu_ns"),
            100.0 * (median(lines, "relay_wait") + median(lines, "load_wait")),
            100.0 * median(lines, "others"),
            lines.len(),
        );
    }
    Ok(())
}
