//! What tunnels do while little or nothing moves: they live on a trickle, sleep
//! when half-closed, and have no pipe for short flows.

mod support;

use std::time::{Duration, Instant};

use support::{DOWN, Ended, LogLine, Origin, Passage, Passing, Proxyd, UP};

/// A byte now and then, in one direction only, keeps the pair alive.
#[test]
fn p46_a_trickle_one_way_is_not_idle() {
    const LIMIT: Duration = Duration::from_secs(3);
    let (origin, accepted) = Origin::manual();
    let toml = "log = { access = \"stdout\", format = \"json\" }\ntimeouts.tunnel = \"3s\"";
    let proxy = Proxyd::with_config(origin.address, toml);
    let tunnels: Vec<_> = Passage::all()
        .flat_map(|passage| [true, false].map(|up| (passage, up)))
        .map(|(passage, up)| (passage.open(&proxy, &origin, &accepted), up))
        .collect();
    let counts: Vec<_> = std::thread::scope(|scope| {
        let trickle = |(opened, up): &'_ (Passing, bool)| {
            let (from, to) = match up {
                true => (&opened.near, &opened.far),
                false => (&opened.far, &opened.near),
            };
            let (start, mut count) = (Instant::now(), 0);
            while start.elapsed() < 2 * LIMIT + LIMIT / 2 {
                from.send("x");
                to.expect("x");
                count += 1;
                std::thread::sleep(Duration::from_millis(100));
            }
            // Without it the tunnel is idle.
            let (more, how) = to.rest();
            assert_eq!(more, b"");
            let truncated = opened.passage.is_tls() && !up;
            assert!(how == Ended::Finished || truncated && how == Ended::Truncated);
            count
        };
        let running: Vec<_> = tunnels
            .iter()
            .map(|tunnel| scope.spawn(move || trickle(tunnel)))
            .collect();
        let ended = running.into_iter().map(|tunnel| tunnel.join());
        ended.map(|count| count.expect("no panic")).collect()
    });
    let stopped = proxy.finish();
    let lines = LogLine::all(&stopped.stdout);
    for ((opened, up), count) in tunnels.iter().zip(counts) {
        let line = LogLine::of(&opened.near.local().to_string(), &lines);
        let (up_head, down_head) = opened.heads;
        let counted = line.number("up").zip(line.number("down"));
        let expected = match up {
            true => (up_head + count, down_head),
            false => (up_head, down_head + count),
        };
        assert_eq!((&*line.text("end"), counted), ("idle", Some(expected)));
    }
}

/// Also those that were spliced before.
#[test]
fn p49_half_closed_tunnels_sleep() {
    let (origin, accepted) = Origin::manual();
    let proxy = Proxyd::with_all(origin.address, &[]);
    let mut tunnels = Vec::new();
    for passage in Passage::all() {
        for by_client in [true, false] {
            let opened = passage.open(&proxy, &origin, &accepted);
            let (first, second, pattern) = match by_client {
                true => (&opened.near, &opened.far, UP),
                false => (&opened.far, &opened.near, DOWN),
            };
            std::thread::scope(|scope| {
                scope.spawn(|| {
                    pattern.send(first, 0, 4 << 20).expect("sent");
                    first.fin();
                });
                pattern.check_all(second, 4 << 20).expect("as sent");
            });
            tunnels.push((opened, by_client));
        }
    }
    let before = proxy.process().cpu();
    std::thread::sleep(Duration::from_secs(2));
    let used = proxy.process().cpu() - before;
    // One that spins would take most of a core.
    assert!(used < Duration::from_millis(200), "{used:?} for nothing");
    for (opened, by_client) in tunnels {
        let (first, second) = match by_client {
            true => (&opened.near, &opened.far),
            false => (&opened.far, &opened.near),
        };
        second.send("still there");
        second.fin();
        assert_eq!(first.to_end(), b"still there");
    }
    drop(origin);
    proxy.finish();
}

/// A pipe costs more than it saves.
#[test]
fn p49_short_flows_are_never_spliced() {
    let (origin, accepted) = Origin::manual();
    let proxy = Proxyd::with_all(origin.address, &["--workers", "1"]);
    let mut open = Vec::new();
    for size in [1, 50_000, 180_000] {
        for passage in Passage::all() {
            let Passing { near, far, .. } = passage.open(&proxy, &origin, &accepted);
            std::thread::scope(|scope| {
                scope.spawn(|| UP.send(&near, 0, size).expect("sent"));
                scope.spawn(|| DOWN.send(&far, 0, size).expect("sent"));
                scope.spawn(|| UP.check(&far, 0, size).expect("as sent"));
                DOWN.check(&near, 0, size).expect("as sent");
            });
            // One that was leased would be kept for a while.
            let pipes = proxy.process().descriptors().pipes;
            assert_eq!(pipes, proxy.base().pipes, "{passage:?} {size}");
            open.push((near, far));
        }
    }
    drop((open, origin));
    proxy.finish();
}
