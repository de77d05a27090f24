//! A mix of traffic through a running proxyd, made from a seed, every byte of it
//! checked at both ends.

mod origin;
mod scenes;
mod wire;

use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use crate::support::{Proxyd, Random};

/// Where everybody is.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Places {
    pub(crate) http: SocketAddr,
    pub(crate) socks: SocketAddr,
    pub(crate) tcp: SocketAddr,
    /// The port of the origin, on all addresses of this machine.
    pub(crate) origin: u16,
}

impl Places {
    pub(crate) fn new(proxy: &Proxyd, origin: u16) -> Self {
        Self {
            http: proxy.address("http"),
            socks: proxy.address("socks"),
            tcp: proxy.address("tcp"),
            origin,
        }
    }
}

/// What the script has done, to be compared with what proxyd says of it.
#[derive(Debug, Default)]
pub(crate) struct Tally {
    pub(crate) requests: AtomicU64,
    pub(crate) client_finished: AtomicU64,
    pub(crate) origin_finished: AtomicU64,
    pub(crate) client_reset: AtomicU64,
    pub(crate) origin_reset: AtomicU64,
    /// Bytes of the tunnels that finished in order.
    pub(crate) up: AtomicU64,
    pub(crate) down: AtomicU64,
    faults: Mutex<Vec<String>>,
}

impl Tally {
    pub(crate) fn fault(&self, who: &str, text: String) {
        let mut faults = self.faults.lock().unwrap_or_else(PoisonError::into_inner);
        faults.push(format!("{who}: {text}"));
    }

    /// What went wrong.
    pub(crate) fn faults(&self) -> Vec<String> {
        let faults = self.faults.lock().unwrap_or_else(PoisonError::into_inner);
        faults.clone()
    }

    fn add(counter: &AtomicU64, count: u64) {
        counter.fetch_add(count, Ordering::Relaxed);
    }
}

/// Keeps so many connections busy for a time and lets the last ones end. In the
/// meantime `watch` is called about every second.
pub(crate) fn run(
    places: Places,
    origin: &TcpListener,
    connections: usize,
    time: Duration,
    tally: &Arc<Tally>,
    mut watch: impl FnMut(),
) {
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()
        .expect("a runtime");
    let origin = origin.try_clone().expect("a second handle");
    runtime.block_on(async {
        let listener = tokio::net::TcpListener::from_std(origin).expect("registered");
        tokio::spawn(origin::serve(listener, Arc::clone(tally)));
        let end = Instant::now() + time;
        let clients: Vec<_> = (0..connections)
            .map(|number| tokio::spawn(client(places, number, end, Arc::clone(tally))))
            .collect();
        let watching = async {
            loop {
                tokio::time::sleep(Duration::from_secs(1)).await;
                watch();
            }
        };
        let ended = async {
            for client in clients {
                client.await.expect("no panic");
            }
        };
        tokio::select! {
            () = watching => {}
            () = ended => {}
        }
    });
}

/// One scene after the other.
async fn client(places: Places, number: usize, end: Instant, tally: Arc<Tally>) {
    let mut random = Random::new(number as u64 * 7919 + 17);
    // Not all at once: nobody's backlog is the matter here.
    let start = random.below(1000 + number / 2);
    tokio::time::sleep(Duration::from_millis(start as u64)).await;
    // Many addresses, so that no pair of them runs out of ports.
    let host = u8::try_from(number % 16 + 1).expect("small");
    let from = Ipv4Addr::new(127, 0, 1, host);
    while Instant::now() < end {
        let mut stage = scenes::Stage {
            places,
            from,
            to: SocketAddr::from(([127, 0, 2, host], places.origin)),
            end,
            random: &mut random,
            tally: &tally,
        };
        let (name, result) = stage.play().await;
        if let Err(fault) = result {
            tally.fault(name, fault);
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    }
}
