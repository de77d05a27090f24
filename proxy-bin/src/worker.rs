//! A worker: one thread, one runtime, everything it serves.

use std::future::poll_fn;
use std::io;
use std::net::UdpSocket;
use std::pin::pin;
use std::rc::Rc;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use proxy_core::{End, Stop, TargetBuf};
use proxy_relay::{Associations, Dialer, Resolve, TICK};
use tokio::sync::broadcast::{self, error::RecvError};
use tokio::sync::watch;
use tokio::task::{JoinHandle, LocalSet, spawn_local};

use crate::accept::{self, Acceptor};
use crate::bind::Landing;
use crate::cause::Scarce;
use crate::config::Config;
use crate::egress::{Call, Egress};
use crate::flows::Flows;
use crate::gate::{Gate, Limit};
use crate::gateway::Proxyd;
use crate::idle::Idle;
use crate::log::{self, AccessLog};
use crate::metrics::Metrics;
use crate::origin_tls::{OriginTls, Trust};
use crate::outside::{Means, Outside};
use crate::own::OwnAddresses;
use crate::parents::{Parents, Ways};
use crate::plan::{Listening, Place};
use crate::policy::Policy;
use crate::proxy_header::FrontEnds;
use crate::resolver::{NameService, Switch};
use crate::service::Service;
use crate::sources::Sources;
use crate::speeds::Speeds;
use crate::targets::Targets;
use crate::users::Door;

/// What all workers share; read only, or counters off the path of requests.
#[derive(Clone, Debug)]
pub(crate) struct Shared {
    /// Whose copy this is: that of a worker, counted from 0.
    pub(crate) number: usize,
    pub(crate) config: Arc<Config>,
    pub(crate) places: Arc<[Place]>,
    pub(crate) own: OwnAddresses,
    pub(crate) associations: Associations,
    pub(crate) policy: Arc<Policy>,
    pub(crate) names: watch::Receiver<Arc<NameService>>,
    pub(crate) ways: Ways,
    /// If `https` URLs are fetched.
    pub(crate) trust: Option<Trust>,
    /// Where users show who they are, if a listener asks.
    pub(crate) door: Option<Arc<Door>>,
    pub(crate) limit: Arc<Limit>,
    /// If there are limits on connections towards outside.
    pub(crate) egress: Option<Arc<Egress>>,
    /// If they are read.
    pub(crate) metrics: Option<Arc<Metrics>>,
    /// If there are rates.
    pub(crate) speeds: Option<Arc<Speeds>>,
    /// Idle origin connections that each worker may keep.
    pub(crate) idle: usize,
    /// Drains and ends all connections.
    pub(crate) stop: Stop,
    pub(crate) phase: watch::Receiver<Phase>,
}

/// What is asked of the workers; only ever moves on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Phase {
    Serving,
    /// No more are to be accepted, running work may finish.
    Closing,
    /// Running work is dropped.
    Cut,
}

/// Serves `sockets`, one for each place, until the proxy closes and the last
/// connection has ended. Calls `ready` once all is set up.
///
/// # Errors
/// If the runtime or a socket's registration fails.
pub(crate) fn run(
    shared: Shared,
    sockets: Vec<Listening>,
    log: Option<log::Handle>,
    ready: impl FnOnce(),
) -> io::Result<()> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()?;
    let local = LocalSet::new();
    let result = local.block_on(&runtime, serve(shared, sockets, log, ready));
    // What was not given up by now goes with its tasks.
    drop(local);
    // A name look-up that hangs is not waited for.
    runtime.shutdown_background();
    result
}

async fn serve(
    shared: Shared,
    sockets: Vec<Listening>,
    log: Option<log::Handle>,
    ready: impl FnOnce(),
) -> io::Result<()> {
    let log = match log {
        Some(handle) => AccessLog::new(shared.config.access_format, handle),
        None => AccessLog::off(),
    };
    let outside = Rc::new(outside(&shared, log)?);
    let gate = Rc::new(Gate::new(Arc::clone(&shared.limit)));
    let Serving {
        accepting,
        relaying,
    } = serve_all(&shared, sockets, &gate, &outside)?;
    spawn_local(keep_house(Rc::clone(&outside)));
    if let Some(egress) = &shared.egress {
        spawn_local(make_room(egress.calls(), Rc::clone(&outside)));
    }
    spawn_local({
        let outside = Rc::clone(&outside);
        async move { outside.log().keep_flushing().await }
    });
    ready();

    reached(&shared, Phase::Closing).await;
    accepting.iter().for_each(JoinHandle::abort);
    // Before the sockets are closed: who sees that is right to expect the rest.
    shared.stop.drain();
    for acceptor in accepting {
        // Over when its socket is closed.
        let _ = acceptor.await;
    }
    let work = async {
        gate.emptied().await;
        for relay in relaying {
            // Over with its last flow.
            let _ = relay.await;
        }
    };
    unless_cut(&shared, drain(&shared, &gate, work)).await;
    outside.log().flush();
    Ok(())
}

fn outside(shared: &Shared, log: AccessLog) -> io::Result<Outside> {
    let config = &shared.config;
    let mut names = shared.names.clone();
    let switch = names.borrow_and_update().resolver()?;
    let switch = Arc::new(Switch::new(switch));
    let mut dialer = Dialer::new(&config.timeouts);
    dialer
        .resolver(Arc::clone(&switch) as Arc<dyn Resolve>)
        .lookup_timeout(config.resolver.timeout);
    spawn_local(keep_names(names, switch));
    let means = Means {
        policy: Arc::clone(&shared.policy),
        dialer,
        sources: Sources::new(&config.sources),
        parents: Parents::new(shared.ways.clone(), &config.timeouts),
        associations: shared.associations.clone(),
        own: shared.own.clone(),
        tls: shared.trust.clone().map(OriginTls::new),
        egress: shared.egress.clone(),
        speeds: shared.speeds.clone(),
        idle: Idle::new(shared.idle, &config.limits),
        landing: Landing::new(config),
        counts: shared
            .metrics
            .as_ref()
            .and_then(|all| all.of(shared.number)),
        log,
    };
    Ok(Outside::new(means))
}

/// Takes over each new name service.
async fn keep_names(mut names: watch::Receiver<Arc<NameService>>, switch: Arc<Switch>) {
    while names.changed().await.is_ok() {
        let service = names.borrow_and_update().resolver();
        match service {
            Ok(service) => switch.set(service),
            Err(error) => tracing::error!(%error, "the name servers of before stay"),
        }
    }
}

/// Waits for a phase or one behind it.
async fn reached(shared: &Shared, phase: Phase) {
    let mut phases = shared.phase.clone();
    // An error means that nobody is left to tell: as good as being told.
    let _ = phases.wait_for(|now| *now >= phase).await;
}

async fn unless_cut(shared: &Shared, work: impl Future<Output = ()>) {
    let mut work = pin!(work);
    let mut cut = pin!(reached(shared, Phase::Cut));
    poll_fn(|cx| match work.as_mut().poll(cx) {
        Poll::Pending => cut.as_mut().poll(cx),
        done => done,
    })
    .await;
}

/// The tasks of the listeners.
#[derive(Default)]
struct Serving {
    /// Those that accept connections.
    accepting: Vec<JoinHandle<()>>,
    /// Those that relay datagrams.
    relaying: Vec<JoinHandle<()>>,
}

fn serve_all(
    shared: &Shared,
    sockets: Vec<Listening>,
    gate: &Rc<Gate>,
    outside: &Rc<Outside>,
) -> io::Result<Serving> {
    let hasty = hasty(&shared.config);
    let mut serving = Serving::default();
    let places = shared.places.iter().zip(sockets);
    for (at, (place, socket)) in places.enumerate() {
        let Place {
            listener,
            address,
            tls,
            trust,
        } = place;
        let socket = match socket {
            Listening::Tcp(socket) => accept::Socket::tcp(socket)?,
            Listening::Udp(socket) => {
                let relay = relay(shared, at, place, socket, outside)?;
                serving.relaying.push(spawn_local(relay));
                continue;
            }
            Listening::Unix(socket) => accept::Socket::unix(socket)?,
        };
        let users = shared.door.clone().filter(|_| listener.auth);
        let name = listener.service(address.port());
        let front_ends = FrontEnds::new(listener, &name, &shared.config, &shared.stop);
        let mut gateway = Proxyd::new(at, name, users, Rc::clone(outside));
        gateway.send_proxy(listener.send_proxy);
        gateway.lead_to(Targets::of(
            listener,
            trust.as_ref(),
            &shared.config.timeouts,
        ));
        let gateway = Rc::new(gateway);
        let busy = |scarce| Rc::new(gateway.busy(scarce));
        let serve = |gateway, config| {
            Service::new(
                listener,
                *address,
                tls.clone(),
                gateway,
                config,
                &shared.stop,
            )
        };
        let acceptor = Acceptor::new(
            socket,
            serve(&gateway, &shared.config),
            serve(&busy(Scarce::Connections), &hasty),
            serve(&busy(Scarce::ClientConnections), &hasty),
            front_ends,
            gate,
            outside,
        );
        serving.accepting.push(spawn_local(acceptor.run()));
    }
    Ok(serving)
}

/// What relays the datagrams of a listener.
fn relay(
    shared: &Shared,
    at: usize,
    place: &Place,
    socket: UdpSocket,
    outside: &Rc<Outside>,
) -> io::Result<impl Future<Output = ()> + use<>> {
    let name = place.listener.service(place.address.port());
    let mut gateway = Proxyd::new(at, name, None, Rc::clone(outside));
    gateway.relay_datagrams();
    let socket = tokio::net::UdpSocket::from_std(socket)?;
    let flows = Flows::new(&place.listener, gateway, &shared.config.udp, &shared.stop);
    let shared = shared.clone();
    Ok(async move {
        flows.serve(socket, reached(&shared, Phase::Closing)).await;
    })
}

/// Settings for connections that will only be refused.
fn hasty(config: &Config) -> Config {
    let mut hasty = config.clone();
    hasty.timeouts.head = Some(REFUSAL_TIME);
    // After its refusal a client has no place to keep.
    hasty.timeouts.keep_alive = Some(TICK);
    hasty
}

/// Lets running work finish, and cuts what is left at the deadline.
async fn drain(shared: &Shared, gate: &Gate, work: impl Future<Output = ()>) {
    let mut work = pin!(work);
    let deadline = shared.config.drain;
    if tokio::time::timeout(deadline, work.as_mut()).await.is_ok() {
        return;
    }
    let associations = shared.associations.len();
    tracing::warn!(
        connections = gate.len(),
        associations,
        "cut at the deadline"
    );
    shared.stop.stop(End::Drained);
    // Sessions hear of it at their next tick and report themselves.
    if tokio::time::timeout(LAST_WORDS, work).await.is_err() {
        tracing::debug!(connections = gate.len(), "dropped");
    }
}

async fn keep_house(outside: Rc<Outside>) {
    loop {
        tokio::time::sleep(SWEEP).await;
        outside.sweep();
    }
}

/// Gives up idle connections for other workers.
async fn make_room(mut calls: broadcast::Receiver<Call>, outside: Rc<Outside>) {
    loop {
        match calls.recv().await {
            Ok(call) => {
                outside.make_room(call.origin.as_ref().map(TargetBuf::as_target));
            }
            // Too late for those who called.
            Err(RecvError::Lagged(_)) => {}
            Err(RecvError::Closed) => return,
        }
    }
}

const REFUSAL_TIME: Duration = Duration::from_secs(2);
const LAST_WORDS: Duration = Duration::from_secs(2);
const SWEEP: Duration = Duration::from_secs(1);
