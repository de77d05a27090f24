//! The place of a connection is free again whatever ended it.

mod support;

use std::sync::mpsc::Receiver;

use support::{
    Accepted, Conn, DOWN, LogLine, Mode, Origin, Passage, Passing, Proxyd, UP, closed_port,
    wait_for,
};

/// A word for the log, and how to bring it about.
type Way = (&'static str, fn(Passing));

#[test]
fn p51_places_return_however_a_tunnel_ends() {
    let ways: [Way; 6] = [
        ("client-finished", |it| {
            it.near.fin();
            it.far.to_end();
            it.far.fin();
            it.near.to_end();
        }),
        ("origin-finished", |it| {
            it.far.fin();
            it.near.to_end();
            it.near.fin();
            it.far.to_end();
        }),
        ("client-reset", |it| {
            it.near.reset();
            it.far.rest();
        }),
        ("client-reset", |it| match it.passage.is_tls() {
            // Without close_notify.
            true => it.near.cut(),
            false => it.near.reset(),
        }),
        ("origin-reset", |it| {
            it.far.reset();
            it.near.rest();
        }),
        ("origin-reset", |it| {
            // With much under way.
            std::thread::scope(|scope| {
                scope.spawn(|| drop(DOWN.send(&it.far, 0, 4 << 20)));
                DOWN.check(&it.near, 0, 1 << 20).expect("as sent");
            });
            it.far.reset();
            it.near.rest();
        }),
    ];
    for (reason, end) in ways {
        returns("", reason, end);
    }
}

#[test]
fn p51_places_return_when_a_tunnel_is_idle() {
    returns("timeouts.tunnel = \"3s\"", "idle", |it| {
        it.near.rest();
        it.far.rest();
    });
}

#[test]
fn p51_places_return_when_a_tunnel_is_half_closed_too_long() {
    returns("timeouts.half_closed = \"1s\"", "half-closed", |it| {
        it.near.fin();
        it.far.rest();
        it.near.rest();
    });
}

#[test]
fn p51_places_return_when_a_side_takes_nothing() {
    returns("timeouts.stalled = \"1s\"", "write-stalled", |it| {
        // Until it is cut off.
        UP.send(&it.near, 0, u64::MAX).expect_err("nobody reads");
    });
}

/// Nor is one kept for what never became a tunnel.
#[test]
fn p51_places_return_when_no_tunnel_comes_about() {
    let stage = Stage::new("");
    let (proxy, closed) = (&stage.proxy, closed_port());
    for mode in Mode::ALL.into_iter().filter(|mode| mode.has_replies()) {
        for _ in 0..PLACES {
            let conn = mode.dial(proxy);
            conn.send(mode.hello(closed));
            assert_ne!(mode.answer(&conn), 200, "{mode:?}");
            drop(conn);
            let gone = mode.dial(proxy);
            gone.send(&mode.hello(closed)[..2]);
            gone.reset();
            let silent = Conn::dial(proxy.address(mode.listener()));
            silent.fin();
            silent.rest();
        }
        drop(stage.full());
    }
    stage.finish();
}

/// Fills all places, ends all tunnels by `end`, and does it again.
fn returns(toml: &str, reason: &str, end: impl Fn(Passing) + Sync) {
    let stage = Stage::new(toml);
    let mut clients = Vec::new();
    for _ in 0..2 {
        let tunnels = stage.full();
        clients.extend(tunnels.iter().map(|it| it.near.local().to_string()));
        std::thread::scope(|scope| {
            for tunnel in tunnels {
                scope.spawn(|| end(tunnel));
            }
        });
    }
    drop(stage.full());
    let mut lines = stage.finish();
    // An attempt that came too early may have had the same port.
    lines.retain(|line| line.text("end") != "busy");
    for client in clients {
        assert_eq!(LogLine::of(&client, &lines).text("end"), reason);
    }
}

/// A proxy with a place for each passage.
struct Stage {
    proxy: Proxyd,
    origin: Origin,
    accepted: Receiver<Accepted>,
}

impl Stage {
    fn new(toml: &str) -> Self {
        let (origin, accepted) = Origin::manual();
        let log = "log = { access = \"stdout\", format = \"json\" }";
        let toml = format!("{log}\nlimits.connections = {PLACES}\n{toml}\n");
        let proxy = Proxyd::with_config(origin.address, &toml);
        Self {
            proxy,
            origin,
            accepted,
        }
    }

    /// A tunnel in each place, which must be free soon, and none for one more.
    fn full(&self) -> Vec<Passing> {
        let mut tunnels = Vec::new();
        for passage in passages() {
            wait_for("a place", || {
                let tunnel = passage.try_open(&self.proxy, &self.origin, &self.accepted);
                let is_open = tunnel.is_some();
                tunnels.extend(tunnel);
                is_open
            });
        }
        let more = Passage::Tunnel(Mode::Connect);
        let more = more.try_open(&self.proxy, &self.origin, &self.accepted);
        assert!(more.is_none(), "one too many");
        tunnels
    }

    fn finish(self) -> Vec<LogLine> {
        drop(self.origin);
        LogLine::all(&self.proxy.finish().stdout)
    }
}

/// Those that tell at once that they are refused.
fn passages() -> impl Iterator<Item = Passage> {
    Passage::all().filter(|passage| !matches!(passage, Passage::Upgrade("https")))
}

const PLACES: usize = 11;
