//! The life of the process: start, serve, drain, end.

use std::io::{self, IsTerminal, Write};
use std::rc::Rc;
use std::sync::{Arc, mpsc as blocking};
use std::thread;
use std::time::{Duration, Instant};

use proxy_core::Stop;
use proxy_relay::{Aside, Associations};
use proxy_tls::Acceptor;
use tokio::runtime::Runtime;
use tokio::sync::{mpsc, watch};
use tokio::task::LocalSet;

use crate::banner;
use crate::certificates::{self, Unloaded};
use crate::config::{Access, Config, Udp};
use crate::egress::Egress;
use crate::gate::Limit;
use crate::log::{Handle, Writer};
use crate::metrics::{Metrics, Page};
use crate::name_files::NameFiles;
use crate::nofile;
use crate::origin_tls::{Seeding, Trust};
use crate::own::OwnAddresses;
use crate::parents::{self, Ways};
use crate::plan::{Listening, Place, Plan};
use crate::policy::Policy;
use crate::signal::Signal;
use crate::sources::Sources;
use crate::speeds::Speeds;
use crate::users::{Door, Table, Watch};
use crate::worker::{self, Phase, Shared};

/// What TLS needs of files: with clients, with parents, with origins.
#[derive(Debug)]
pub(crate) struct Files {
    /// In the order of the listeners.
    acceptors: Vec<Option<Acceptor>>,
    ways: Ways,
    trust: Option<Trust>,
    /// For the targets of port relays, in the order of the listeners.
    target_trusts: Vec<Option<Trust>>,
}

impl Files {
    /// # Errors
    /// What is wrong with those of one kind.
    pub(crate) fn load(config: &Config) -> Result<Self, Unloaded> {
        Ok(Self {
            acceptors: certificates::load(config)?,
            ways: parents::load(config)?,
            trust: Trust::load(config)?,
            target_trusts: Trust::of_targets(config)?,
        })
    }
}

/// Serves until a signal asks for the end and all work is done.
///
/// A second signal ends the process at once: what is done by then is still
/// logged, what is not goes without a word. A hang-up opens the access log anew,
/// unless it is that of a terminal, which ends the process like the others.
///
/// # Errors
/// A line for each thing that could not be started.
pub(crate) fn run(config: Config, files: Files, users: Table) -> Result<(), Vec<String>> {
    let descriptors = nofile::raise();
    Aside::limit(config.limits.held_bytes);
    let plan = Plan::new(&config, files.acceptors, files.target_trusts)?;
    let (writer, log) = open_log(&config)?;
    let seen = users.mark();
    let door = open_door(&config, users)?;
    let watches = Rc::new(Watches {
        names: NameFiles::of_system(&config.resolver),
        users: door
            .as_ref()
            .and_then(|door| Watch::new(&config, door, seen)),
    });
    let (phases, phase) = watch::channel(Phase::Serving);
    let (tell, events) = mpsc::unbounded_channel();
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(|error| vec![format!("cannot start: {error}")])?;
    let signals = LocalSet::new();
    // Before anybody knows that it runs.
    runtime
        .block_on(signals.run_until(watch_signals(&tell)))
        .map_err(|error| vec![format!("cannot watch for signals: {error}")])?;

    let banner = banner::text(&plan.places, &config);
    let page = open_page(&config, &plan, &runtime)?;
    let shared = Shared {
        associations: associations(&config.udp),
        own: OwnAddresses::new(plan.places.iter().filter_map(Place::accepts_at)),
        places: plan.places.into(),
        policy: Arc::new(Policy::new(&config)),
        names: watches.names.service(),
        ways: files.ways,
        trust: files.trust,
        door,
        limit: Arc::new(Limit::new(&config.limits)),
        egress: Egress::new(&config.limits).map(Arc::new),
        speeds: Speeds::new(&config).map(Arc::new),
        idle: match config.limits.idle_connections {
            Some(most) => most,
            None => idle_connections(descriptors, config.workers),
        },
        stop: Stop::new(),
        phase,
        metrics: page.as_ref().map(|(_, metrics)| Arc::clone(metrics)),
        number: 0,
        config: Arc::new(config),
    };
    let relays_speak_tls = shared.places.iter().any(|place| place.trust.is_some());
    let seeding = (shared.trust.is_some() || relays_speak_tls).then(Seeding::begin);
    let workers = start_workers(&shared, plan.sockets, log, tell)?;
    // Standard output belongs to the access log. Nobody may be listening.
    let _ = io::stderr().write_all(banner.as_bytes());
    warn(&shared.config);
    tracing::info!(
        version = env!("CARGO_PKG_VERSION"),
        workers,
        descriptors,
        "started"
    );
    let mut life = Life {
        events,
        phases,
        workers,
        writer: writer.as_ref(),
        watches: Rc::clone(&watches),
        hangup_ends: io::stderr().is_terminal(),
    };
    signals.spawn_local(keep_looking(watches));
    if let Some((page, _)) = page {
        signals.spawn_local(page.serve());
    }
    let end = runtime.block_on(signals.run_until(life.attend()));
    // The process may end without a drop.
    drop(plan.kept);
    drop(seeding);
    if let Some(writer) = writer {
        writer.finish(match end {
            End::Cut(_) => CUT_PATIENCE,
            End::Failed | End::Well => LOG_PATIENCE,
        });
    }
    match end {
        End::Cut(signal) => std::process::exit(signal.exit_status()),
        End::Failed => Err(vec!["a worker failed".to_owned()]),
        End::Well => Ok(()),
    }
}

/// Opens the page of metrics, if there is to be one.
///
/// # Errors
/// That its address cannot be listened at.
fn open_page(
    config: &Config,
    plan: &Plan,
    runtime: &Runtime,
) -> Result<Option<(Page, Arc<Metrics>)>, Vec<String>> {
    let Some(address) = config.metrics.address else {
        return Ok(None);
    };
    let services = plan.places.iter();
    let services = services.map(|place| place.listener.service(place.address.port()));
    let metrics = Arc::new(Metrics::new(services.collect(), plan.sockets.len()));
    let clients = config.metrics.clients.clone();
    let _entered = runtime.enter();
    let page = Page::listen(address, clients, Arc::clone(&metrics));
    let page = page.map_err(|error| {
        vec![format!(
            "metrics.address {address}: cannot listen: {error}; write another address"
        )]
    })?;
    if let Ok(address) = page.local_addr() {
        tracing::info!("metrics are at http://{address}/metrics");
    }
    Ok(Some((page, metrics)))
}

/// What the main thread hears of.
#[derive(Debug)]
enum Event {
    Signal(Signal),
    /// A worker is gone; with `false`, before anybody asked it to.
    WorkerEnded(bool),
}

/// What the main thread does while the workers serve.
struct Life<'w> {
    events: mpsc::UnboundedReceiver<Event>,
    phases: watch::Sender<Phase>,
    workers: usize,
    writer: Option<&'w Writer>,
    watches: Rc<Watches>,
    hangup_ends: bool,
}

/// How the process ends.
enum End {
    Cut(Signal),
    Failed,
    Well,
}

impl Life<'_> {
    /// Tells the workers of the first signal, and waits for their end.
    async fn attend(&mut self) -> End {
        let mut end = End::Well;
        let mut first_signal: Option<Instant> = None;
        while self.workers > 0 {
            match self.events.recv().await {
                Some(Event::Signal(Signal::Hangup)) if !self.hangup_ends => self.look_again(),
                Some(Event::Signal(signal)) => match first_signal {
                    None => {
                        tracing::info!("closing: running work may finish; a second signal cuts it");
                        first_signal = Some(Instant::now());
                        self.phases.send_replace(Phase::Closing);
                    }
                    Some(first) if first.elapsed() < ECHO => {}
                    Some(_) => {
                        self.cut().await;
                        return End::Cut(signal);
                    }
                },
                Some(Event::WorkerEnded(well)) => {
                    self.workers -= 1;
                    if !well {
                        end = End::Failed;
                        self.phases.send_replace(Phase::Closing);
                    }
                }
                None => break,
            }
        }
        end
    }

    /// Files may have been replaced.
    fn look_again(&self) {
        if let Some(writer) = self.writer {
            writer.reopen();
        }
        self.watches.look();
    }

    /// Lets the workers hand over their last lines, but not for long.
    async fn cut(&mut self) {
        tracing::warn!("ended at once by a second signal");
        self.phases.send_replace(Phase::Cut);
        let ended = async {
            while self.workers > 0
                && let Some(event) = self.events.recv().await
            {
                self.workers -= usize::from(matches!(event, Event::WorkerEnded(_)));
            }
        };
        let _ = tokio::time::timeout(CUT_PATIENCE, ended).await;
    }
}

async fn watch_signals(tell: &mpsc::UnboundedSender<Event>) -> io::Result<()> {
    for signal in Signal::ALL {
        let tell = tell.clone();
        let watch = signal.watch(move |signal| drop(tell.send(Event::Signal(signal))))?;
        tokio::task::spawn_local(watch);
    }
    Ok(())
}

/// Answers how many there are, once all are ready.
fn start_workers(
    shared: &Shared,
    sockets: Vec<Vec<Listening>>,
    log: Option<Handle>,
    tell: mpsc::UnboundedSender<Event>,
) -> Result<usize, Vec<String>> {
    let (ready, all_ready) = blocking::channel();
    let workers = sockets.len();
    for (number, sockets) in sockets.into_iter().enumerate() {
        let (mut shared, log, tell) = (shared.clone(), log.clone(), tell.clone());
        shared.number = number;
        let ready = ready.clone();
        thread::Builder::new()
            .name(format!("worker-{number}"))
            .spawn(move || {
                let mut end = Ended { tell, well: false };
                let told = ready.clone();
                let result = worker::run(shared, sockets, log, || drop(told.send(Ok(()))));
                match result {
                    Ok(()) => end.well = true,
                    Err(error) => drop(ready.send(Err(error))),
                }
            })
            .map_err(|error| vec![format!("cannot start a worker: {error}")])?;
    }
    drop(ready);
    for _ in 0..workers {
        match all_ready.recv() {
            Ok(Ok(())) => {}
            Ok(Err(error)) => return Err(vec![format!("cannot start a worker: {error}")]),
            Err(_) => return Err(vec!["a worker failed at its start".to_owned()]),
        }
    }
    Ok(workers)
}

/// Tells the main thread that a worker is gone, also if it panics.
struct Ended {
    tell: mpsc::UnboundedSender<Event>,
    well: bool,
}

impl Drop for Ended {
    fn drop(&mut self) {
        // The main thread may be gone as well.
        let _ = self.tell.send(Event::WorkerEnded(self.well));
    }
}

/// The door for users, if a listener asks for them.
fn open_door(config: &Config, users: Table) -> Result<Option<Arc<Door>>, Vec<String>> {
    if !config.listeners.iter().any(|listener| listener.auth) {
        return Ok(None);
    }
    // Passwords in clear need no thread.
    let threads = config.auth.file.as_ref().map_or(0, |_| {
        thread::available_parallelism().map_or(1, |cores| (cores.get() / 2).max(1))
    });
    let door = Door::new(users, &config.auth, threads)
        .map_err(|error| vec![format!("cannot verify passwords: {error}")])?;
    Ok(Some(Arc::new(door)))
}

/// The files that may change while proxyd runs.
struct Watches {
    names: NameFiles,
    users: Option<Watch>,
}

impl Watches {
    fn look(&self) {
        self.names.look();
        if let Some(users) = &self.users {
            users.look();
        }
    }
}

async fn keep_looking(watches: Rc<Watches>) {
    loop {
        tokio::time::sleep(LOOK).await;
        watches.look();
    }
}

/// The table of all associations.
fn associations(udp: &Udp) -> Associations {
    let mut all = Associations::new();
    all.per_client(udp.per_client).total(udp.associations);
    if let Some(ports) = &udp.ports {
        all.ports(ports.clone());
    }
    for ip in &udp.advertise {
        all.advertise(*ip);
    }
    all
}

fn open_log(config: &Config) -> Result<(Option<Writer>, Option<Handle>), Vec<String>> {
    let opened = match &config.access {
        Access::Off => return Ok((None, None)),
        Access::Stdout => Writer::stdout(),
        Access::File(path) => Writer::file(path),
    };
    match opened {
        Ok((writer, handle)) => Ok((Some(writer), Some(handle))),
        Err(error) => {
            let place = match &config.access {
                Access::File(path) => path.display().to_string(),
                Access::Off | Access::Stdout => "standard output".to_owned(),
            };
            Err(vec![format!(
                "access log: cannot write to {place}: {error}"
            )])
        }
    }
}

/// What is no mistake in itself, and yet hardly meant.
pub(crate) fn warn(config: &Config) {
    for address in Sources::foreign(&config.sources) {
        tracing::warn!(
            %address,
            "a source is not an address of this machine: nothing can go out from it"
        );
    }
    for listener in config
        .listeners
        .iter()
        .filter(|listener| listener.is_open())
    {
        tracing::warn!(
            "{listener} IS AN OPEN PROXY, as its setting open says: everybody who can reach this \
             address can use it"
        );
    }
}

/// Most descriptors are for those who are served.
fn idle_connections(descriptors: Option<u64>, workers: usize) -> usize {
    let share = descriptors.map_or(MOST_IDLE, |all| {
        usize::try_from(all / 8).unwrap_or(MOST_IDLE) / workers
    });
    share.clamp(1, MOST_IDLE)
}

const MOST_IDLE: usize = 1024;

/// How long a changed users file may go unnoticed.
const LOOK: Duration = Duration::from_secs(1);

/// Some programs that run others, `timeout` for one, signal the process and then
/// its group: that is one wish, told twice.
const ECHO: Duration = Duration::from_millis(30);

/// How long the last log lines may take.
const LOG_PATIENCE: Duration = Duration::from_secs(2);

/// And how long, after a second signal, the workers and then the disk may take.
const CUT_PATIENCE: Duration = Duration::from_millis(200);
