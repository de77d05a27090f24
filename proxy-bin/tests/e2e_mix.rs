//! Many connections of all kinds at once for a while: short requests, long
//! downloads, idle tunnels, half-closed ones, resets. No exchange fails that was
//! not meant to, no byte is wrong, the access log tells it all exactly, and
//! nothing is left behind.
//!
//! `PROXYD_MIX=9000` sets the number of connections, `PROXYD_MIX_SECONDS=600` the
//! time, `PROXYD_BIN` another binary.

mod mix;
mod support;

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader};
use std::net::{SocketAddr, TcpListener};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use mix::{Places, Tally};
use socket2::{Domain, Socket, Type};
use support::{LogLine, Proxyd};

const CONNECTIONS: usize = 400;
const SECONDS: usize = 8;
/// Resident memory may have grown by this in the end.
const GROWN: u64 = 8 << 20;

#[test]
fn a_mix_of_traffic_passes_without_a_fault() {
    let connections = setting("PROXYD_MIX", CONNECTIONS);
    let time = Duration::from_secs(setting("PROXYD_MIX_SECONDS", SECONDS) as u64);
    let folder = tempfile::tempdir().expect("a temporary folder");
    let log = folder.path().join("access.log");
    let origin = listen();
    let port = origin.local_addr().expect("bound").port();
    let toml = format!("workers = 2\nlog = {{ access = {log:?}, format = \"json\" }}\n");
    let target = ([127, 0, 0, 1], port).into();
    let proxy = Proxyd::with_config(target, &toml);
    let places = Places::new(&proxy, port);
    let tally = Arc::new(Tally::default());

    // Room that stays for the next ones, of so many at once, does not count.
    let warm = Duration::from_secs(2) + Duration::from_millis(connections as u64);
    mix::run(places, &origin, connections, warm, &tally, || {});
    proxy.settle();
    let before = proxy.process().resident();
    let (mut descriptors, mut resident) = (0, 0);
    let start = Instant::now();
    mix::run(places, &origin, connections, time, &tally, || {
        let folder = format!("/proc/{}/fd", proxy.process().0);
        let open = std::fs::read_dir(folder).map_or(0, Iterator::count);
        descriptors = descriptors.max(open);
        resident = resident.max(proxy.process().resident());
    });
    let took = start.elapsed();
    let faults = tally.faults();
    assert!(
        faults.is_empty(),
        "{} faults: {:#?}",
        faults.len(),
        &faults[..faults.len().min(20)]
    );
    proxy.settle();
    let after = proxy.process().resident();
    println!(
        "{connections} connections for {took:?}; at most {descriptors} descriptors and {} KiB; \
         resident {} KiB before, {} KiB after; {tally:?}",
        resident / 1024,
        before / 1024,
        after / 1024
    );
    assert!(
        after < before + GROWN,
        "{before} bytes before, {after} after"
    );
    proxy.finish();
    agrees(&log, &tally);
}

/// An origin on all addresses, with room for all who come at once.
fn listen() -> TcpListener {
    let socket = Socket::new(Domain::IPV4, Type::STREAM, None).expect("a socket");
    let any = SocketAddr::from(([0, 0, 0, 0], 0));
    socket.bind(&any.into()).expect("bound");
    socket.listen(4096).expect("listening");
    socket.set_nonblocking(true).expect("set");
    socket.into()
}

/// Compares what the script has done with what the log says of it.
fn agrees(log: &Path, tally: &Tally) {
    let mut ends: BTreeMap<String, u64> = BTreeMap::new();
    let (mut up, mut down) = (0, 0);
    let file = std::fs::File::open(log).expect("a log");
    for line in BufReader::new(file).lines() {
        for line in LogLine::all([&line.expect("a line")]) {
            let end = line.text("end");
            if end == "client-finished" || end == "origin-finished" {
                up += line.number("up").expect("a count");
                down += line.number("down").expect("a count");
            }
            *ends.entry(end).or_default() += 1;
        }
    }
    let done = [
        ("client-finished", &tally.client_finished),
        ("client-reset", &tally.client_reset),
        ("completed", &tally.requests),
        ("origin-finished", &tally.origin_finished),
        ("origin-reset", &tally.origin_reset),
    ];
    let done = done.map(|(end, count)| (end.to_owned(), count.load(Ordering::Relaxed)));
    let done = done.into_iter().filter(|(_, count)| *count > 0).collect();
    assert_eq!(ends, done);
    let moved = [&tally.up, &tally.down].map(|count| count.load(Ordering::Relaxed));
    assert_eq!([up, down], moved);
}

fn setting(name: &str, usual: usize) -> usize {
    let text = std::env::var(name).ok();
    text.map_or(usual, |text| text.parse().expect("a number"))
}
