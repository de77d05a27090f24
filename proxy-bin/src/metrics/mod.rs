//! What is counted of sessions, for whoever watches.

mod page;

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric};
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::counter::ConstCounter;
use prometheus_client::registry::Unit;
use proxy_core::{End, Operation, Report};

pub(crate) use page::Page;

/// The counts of all workers.
#[derive(Debug)]
pub(crate) struct Metrics {
    /// The listeners, as the access log calls them.
    services: Vec<String>,
    /// For each worker, its own of each listener.
    workers: Vec<Arc<[Counts]>>,
}

impl Metrics {
    pub(crate) fn new(services: Vec<String>, workers: usize) -> Self {
        let counts = |_| services.iter().map(|_| Counts::default()).collect();
        Self {
            workers: (0..workers).map(counts).collect(),
            services,
        }
    }

    /// Those of one worker.
    pub(crate) fn of(&self, worker: usize) -> Option<Arc<[Counts]>> {
        self.workers.get(worker).cloned()
    }

    /// Of one listener, in all workers.
    fn sum(&self, service: usize, count: impl Fn(&Counts) -> u64) -> u64 {
        let counts = self.workers.iter().filter_map(|own| own.get(service));
        counts.fold(0, |sum, own| sum.wrapping_add(count(own)))
    }
}

/// What one worker counts of one listener; nobody else writes here.
#[derive(Debug)]
pub(crate) struct Counts {
    /// By operation, then by end.
    ended: [[AtomicU64; End::ALL.len()]; OPERATIONS.len()],
    up: AtomicU64,
    down: AtomicU64,
}

impl Default for Counts {
    fn default() -> Self {
        Self {
            ended: [const { [const { AtomicU64::new(0) }; End::ALL.len()] }; OPERATIONS.len()],
            up: AtomicU64::new(0),
            down: AtomicU64::new(0),
        }
    }
}

impl Counts {
    /// Adds a session that is over.
    pub(crate) fn add(&self, report: &Report<'_>) {
        let end = End::ALL.iter().position(|end| *end == report.end);
        let ended = self.ended.get(operation(report.operation));
        if let Some(count) = ended.and_then(|ends| ends.get(end?)) {
            bump(count, 1);
        }
        bump(&self.up, report.up);
        bump(&self.down, report.down);
    }
}

/// Cheaper than an atomic addition, which only several writers need.
fn bump(count: &AtomicU64, by: u64) {
    let sum = count.load(Ordering::Relaxed).wrapping_add(by);
    count.store(sum, Ordering::Relaxed);
}

fn operation(operation: Option<Operation<'_>>) -> usize {
    match operation {
        Some(Operation::Associate) => 0,
        Some(Operation::Bind) => 1,
        Some(Operation::Request { .. }) => 2,
        Some(Operation::Tunnel) => 3,
        _ => 4,
    }
}

/// In the order of [`operation`]; the last is what could not be read.
const OPERATIONS: [&str; 5] = ["associate", "bind", "request", "tunnel", "none"];

impl Collector for Metrics {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
        let mut sessions = encoder.encode_descriptor(
            "proxyd_sessions",
            "Requests, tunnels, associations and flows that are over, by what they were and why they ended",
            None,
            MetricType::Counter,
        )?;
        for (at, service) in self.services.iter().enumerate() {
            for (number, operation) in OPERATIONS.iter().enumerate() {
                for (place, end) in End::ALL.iter().enumerate() {
                    let count =
                        self.sum(at, |own| own.ended[number][place].load(Ordering::Relaxed));
                    // There are many pairs that never come together.
                    if count > 0 {
                        let labels = [
                            ("service", service.as_str()),
                            ("operation", operation),
                            ("end", end.as_str()),
                        ];
                        ConstCounter::new(count).encode(sessions.encode_family(&labels)?)?;
                    }
                }
            }
        }
        let mut moved = encoder.encode_descriptor(
            "proxyd_moved",
            "Bytes of the sessions that are over: up from clients, down to them",
            Some(&Unit::Bytes),
            MetricType::Counter,
        )?;
        for (at, service) in self.services.iter().enumerate() {
            let up = self.sum(at, |own| own.up.load(Ordering::Relaxed));
            let down = self.sum(at, |own| own.down.load(Ordering::Relaxed));
            for (direction, bytes) in [("up", up), ("down", down)] {
                let labels = [("service", service.as_str()), ("direction", direction)];
                ConstCounter::new(bytes).encode(moved.encode_family(&labels)?)?;
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use prometheus_client::encoding::text::encode;
    use prometheus_client::registry::Registry;
    use proxy_core::Peer;

    #[test]
    fn workers_are_summed_up() {
        let metrics = Metrics::new(vec!["http-3128".to_owned(), "socks-1080".to_owned()], 2);
        let peer = Peer {
            remote: "192.0.2.1:9".parse().expect("an address"),
            local: "192.0.2.2:80".parse().expect("an address"),
        };
        let mut report = Report::new(&peer, End::ClientReset);
        report.operation = Some(Operation::Tunnel);
        (report.up, report.down) = (3, 50);
        for worker in 0..2 {
            metrics.of(worker).expect("a worker")[1].add(&report);
        }
        report.operation = None;
        report.end = End::BadRequest;
        metrics.of(0).expect("a worker")[0].add(&report);
        assert!(metrics.of(2).is_none());

        let mut registry = Registry::default();
        registry.register_collector(Box::new(metrics));
        let mut text = String::new();
        encode(&mut text, &registry).expect("encoded");
        for line in [
            "# TYPE proxyd_sessions counter",
            "proxyd_sessions_total{service=\"http-3128\",operation=\"none\",end=\"bad-request\"} 1",
            "proxyd_sessions_total{service=\"socks-1080\",operation=\"tunnel\",end=\"client-reset\"} 2",
            "proxyd_moved_bytes_total{service=\"socks-1080\",direction=\"up\"} 6",
            "proxyd_moved_bytes_total{service=\"socks-1080\",direction=\"down\"} 100",
            "# EOF",
        ] {
            assert!(text.lines().any(|own| own == line), "{line} in {text}");
        }
        assert_eq!(text.matches("proxyd_sessions_total{").count(), 2);
    }
}
