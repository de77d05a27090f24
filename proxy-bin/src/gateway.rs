//! proxyd's policy: who may, and how targets are reached.

use std::cell::{Cell, RefCell};
use std::net::{IpAddr, SocketAddr};
use std::rc::Rc;
use std::sync::Arc;

use proxy_core::{
    Ask, ConnectError, ConnectErrorKind, Connected, Credentials, Denial, End, Gateway, Host,
    Operation, Peer, ProxyVersion, Report, Shaping, Target, TargetBuf,
};

use crate::carried::Carriers;
use crate::cause::{Cause, Scarce};
use crate::datagrams::{Dropped, Picked};
use crate::errand::{Boxed, Errand};
use crate::idle;
use crate::introduction;
use crate::log::Entry;
use crate::outside::Outside;
use crate::policy::{Judgement, Policy, Verdict};
use crate::sources::stick;
use crate::speeds::Speed;
use crate::targets::{Targets, Tries};
use crate::unix;
use crate::upstream::Upstream;
use crate::users::{Door, Login};

/// The policy of one listener.
#[derive(Debug)]
pub(crate) struct Proxyd {
    service: String,
    /// Its place in the configuration.
    listener: usize,
    /// Who must be named; `None` asks nobody.
    users: Option<Arc<Door>>,
    /// Everybody is told that this limit is reached.
    busy: Option<Scarce>,
    dropped: Dropped,
    /// Each association is a flow to one target.
    relays_datagrams: bool,
    /// What targets are sent first.
    send_proxy: Option<ProxyVersion>,
    outside: Rc<Outside>,
    /// If it is a port relay whose targets need it.
    targets: Option<Rc<Targets>>,
}

impl Proxyd {
    /// The policy of the listener at this place of the configuration, which the
    /// log calls `service`.
    pub(crate) fn new(
        listener: usize,
        service: String,
        users: Option<Arc<Door>>,
        outside: Rc<Outside>,
    ) -> Self {
        Self {
            service,
            listener,
            users,
            busy: None,
            dropped: Dropped::default(),
            relays_datagrams: false,
            send_proxy: None,
            outside,
            targets: None,
        }
    }

    /// Targets are told whom each connection is for. It is then used for that
    /// client alone.
    pub(crate) fn send_proxy(&mut self, version: Option<ProxyVersion>) {
        self.send_proxy = version;
    }

    /// What the targets of a port relay need.
    pub(crate) fn lead_to(&mut self, targets: Option<Targets>) {
        self.targets = targets.map(Rc::new);
    }

    /// It is a port relay for datagrams: each association has one target, which
    /// the log tells about.
    pub(crate) fn relay_datagrams(&mut self) {
        self.relays_datagrams = true;
    }

    /// What requests are to show, so that those that come back are known.
    pub(crate) fn name(&self) -> Option<&str> {
        self.outside.name()
    }

    /// The same listener once too many are connected.
    pub(crate) fn busy(&self, limit: Scarce) -> Self {
        Self {
            service: self.service.clone(),
            users: self.users.clone(),
            busy: Some(limit),
            dropped: Dropped::default(),
            outside: Rc::clone(&self.outside),
            targets: self.targets.clone(),
            ..*self
        }
    }

    pub(crate) fn outside(&self) -> &Outside {
        &self.outside
    }

    /// What the log calls it.
    pub(crate) fn service(&self) -> &str {
        &self.service
    }

    /// Keeps messages about dropped datagrams few.
    pub(crate) fn dropped(&self) -> &Dropped {
        &self.dropped
    }

    async fn identify(
        &self,
        from: IpAddr,
        who: Option<Credentials<'_>>,
    ) -> Result<Option<Login>, Denial> {
        if self.busy.is_some() {
            return Err(Denial::Busy);
        }
        if !self.takes_from(from) {
            return Err(Denial::Forbid);
        }
        match &self.users {
            None => Ok(None),
            Some(door) => door.check(from, who).await.map(Some),
        }
    }

    /// Whether clients may come from there.
    pub(crate) fn takes_from(&self, client: IpAddr) -> bool {
        self.outside.policy().takes(self.listener, client)
    }

    /// Whether a user is still one.
    fn knows(&self, who: &Client) -> bool {
        match (&self.users, &who.login) {
            (Some(door), Some(login)) => door.still_valid(login),
            _ => true,
        }
    }

    /// Whose address a sticky source chooses.
    fn stick(&self, client: IpAddr, user: Option<&str>) -> u64 {
        match user {
            _ if !self.outside.has_sources() => 0,
            Some(user) => stick(user.as_bytes()),
            None => stick(client.to_canonical().to_string().as_bytes()),
        }
    }

    /// What the rules say, as far as that is clear before a look-up. Of the
    /// target of the client's last request the address is known.
    fn judge(&self, who: &Client, errand: &Errand, ask: &Ask<'_>) -> Option<Verdict> {
        let policy = self.outside.policy();
        let may_be_anybody = ask.operation == Operation::Bind
            && matches!(ask.target.host, Host::Ip(ip) if ip.is_unspecified());
        if ask.operation == Operation::Associate || may_be_anybody {
            // It has no target yet; each datagram will, and who connects.
            return policy.judge_any(&errand.person, errand.act);
        }
        let target = ask.target;
        if unix::path(target).is_some() {
            // It has no address to be looked up.
            return Some(policy.judge_unresolved(&errand.person, errand.act, target));
        }
        let judge = |address| policy.judge(&errand.person, errand.act, target, address);
        match judge(None) {
            Judgement::Decided(verdict) => Some(verdict),
            Judgement::NeedsAddress => {
                let address = who.address_of(target)?;
                match judge(Some(address)) {
                    Judgement::Decided(verdict) => Some(verdict),
                    Judgement::NeedsAddress => None,
                }
            }
        }
    }

    /// Remembers why a request was refused before it had a session.
    fn deny(&self, who: &Client, ask: &Ask<'_>, cause: Option<Cause>, denial: Denial) -> Denial {
        who.deny(ask.target, cause);
        if self.relays_datagrams
            && let Some(cause) = cause
        {
            let reason = || cause.text(self.outside.policy());
            self.tell_dropped(ask.peer.remote.ip(), ask.target, reason);
        }
        denial
    }

    /// Where it is noted why each target fails, if that is of use.
    fn tries(&self, who: &Client) -> Option<Rc<Tries>> {
        let targets = self.targets.as_ref()?;
        let wanted = targets.are_several() && self.outside.log().is_on();
        wanted.then(|| {
            let mut last = who.last.borrow_mut();
            let last = last.get_or_insert_default();
            Rc::clone(last.tries.get_or_insert_default())
        })
    }

    /// Why a request came to nothing, as far as it can be told.
    fn cause(
        &self,
        who: Option<&Client>,
        session: Option<&Session>,
        report: &Report<'_>,
    ) -> Option<Cause> {
        match (who, session) {
            (_, Some(session)) => session.told.as_ref()?.cause.get(),
            (Some(who), None) => who.last.borrow_mut().as_mut()?.denied.take(),
            // The report tells it.
            (None, None) if report.error.is_some() || report.fault.is_some() => None,
            (None, None) if report.end == End::Forbidden => {
                Some(match self.takes_from(report.peer.remote.ip()) {
                    true => Cause::Banned,
                    false => Cause::Stranger,
                })
            }
            (None, None) if report.end == End::Busy => self.busy.map(Cause::Limit),
            (None, None) => None,
        }
    }
}

/// A client connection's user, and where its requests go. Small, since each
/// connection has one for as long as it lives.
#[derive(Debug)]
pub(crate) struct Client {
    login: Option<Login>,
    /// How fast all of its sessions together may be.
    speed: Option<Rc<Speed>>,
    /// Boxed, since it is there only if the log or a rule asks for it.
    last: RefCell<Option<Box<Last>>>,
}

/// The last request of a client.
#[derive(Debug, Default)]
struct Last {
    /// Where it went.
    upstream: Option<SocketAddr>,
    /// And what its target was, if rules asked for the addresses of the name.
    target: Option<TargetBuf>,
    /// What refused it before it had a session.
    denied: Option<Cause>,
    /// Why the targets of a port relay failed.
    tries: Option<Rc<Tries>>,
}

impl Client {
    /// The address that its last request was sent to, if that had this target.
    fn address_of(&self, target: Target<'_>) -> Option<IpAddr> {
        let last = self.last.borrow();
        let last = last.as_ref()?;
        let same = last.target.as_ref()?.as_target() == target;
        last.upstream.filter(|_| same).map(|address| address.ip())
    }

    /// Where its last request went.
    fn upstream(&self) -> Option<SocketAddr> {
        self.last.borrow().as_ref()?.upstream
    }

    fn deny(&self, target: Target<'_>, cause: Option<Cause>) {
        let mut last = self.last.borrow_mut();
        let last = last.get_or_insert_default();
        last.denied = cause;
        if let Some(tries) = &last.tries {
            tries.note(target, cause);
        }
    }

    /// Why each of several targets failed, if none was reached.
    fn failures(&self, policy: &Policy) -> Option<String> {
        self.last.borrow().as_ref()?.tries.as_ref()?.text(policy)
    }
}

/// One exchange or tunnel.
#[derive(Debug)]
pub(crate) struct Session {
    /// A tunnel that is open has none any more.
    errand: Boxed,
    way: u64,
    /// `None` while it goes over the connection of an earlier request, and if
    /// nobody wants to know.
    told: Option<Box<Told>>,
    speed: Option<Rc<Speed>>,
}

/// How a session fared, for the log and for rules that ask for addresses.
#[derive(Debug, Default)]
struct Told {
    /// Where its bytes went.
    upstream: Cell<Option<SocketAddr>>,
    /// What stood in the way.
    cause: Cell<Option<Cause>>,
    /// The target, if rules asked for its address.
    target: Option<TargetBuf>,
}

impl Gateway for Proxyd {
    type Identity = Client;
    type Session = Session;
    type Upstream = Upstream;

    async fn authenticate(
        &self,
        peer: &Peer,
        who: Option<Credentials<'_>>,
    ) -> Result<Client, Denial> {
        let login = self.identify(peer.remote.ip(), who).await?;
        let user = login.as_ref().map(Login::name);
        let speed = self.outside.speed(self.listener, user).map(Rc::new);
        Ok(Client {
            login,
            speed,
            last: RefCell::default(),
        })
    }

    async fn authorize(&self, who: &Client, ask: &Ask<'_>) -> Result<Session, Denial> {
        if !self.knows(who) {
            return Err(Denial::Challenge);
        }
        let policy = self.outside.policy();
        let from = ask.peer.remote.ip();
        let user = who.login.as_ref().map(Login::name);
        let mut errand = Errand {
            person: policy.person(from, user, self.listener),
            act: policy.act(&ask.operation),
            verdict: None,
            usual: policy.usual(self.listener, user),
            stick: self.stick(from, user),
            is_request: matches!(ask.operation, Operation::Request { .. }),
            secure: ask.secure,
            reuse: matches!(ask.operation, Operation::Request { .. }) && self.send_proxy.is_none(),
            within: idle::within(&ask.operation),
            via: ask.via.map(Box::from),
            header: introduction::header(self.send_proxy, ask),
            picked: Picked::default(),
            carriers: Carriers::default(),
            cause: Cell::new(None),
            tries: self.tries(who),
        };
        errand.verdict = self.judge(who, &errand, ask);
        if let Some(verdict) = &errand.verdict
            && errand.way_of(verdict).is_none()
        {
            return Err(self.deny(who, ask, Cause::rule(verdict), Denial::Forbid));
        }
        if ask.operation == Operation::Associate
            && let Some(Err(error)) = errand.way().map(|way| self.outside.carries(way))
        {
            let cause = Some(Cause::Connect(error));
            return Err(self.deny(who, ask, cause, Denial::Unroutable));
        }
        Ok(Session {
            way: errand.way_number(),
            errand: Boxed::new(errand),
            told: (self.relays_datagrams && self.outside.log().is_on()).then(Box::default),
            speed: who.speed.clone(),
        })
    }

    async fn connect(
        &self,
        session: &mut Session,
        target: Target<'_>,
    ) -> Result<Connected<Upstream>, ConnectError> {
        let Some(errand) = session.errand.get_mut() else {
            // Only a tunnel has none left, and it connects once.
            return Err(ConnectError::origin(ConnectErrorKind::Other));
        };
        let asked = errand.verdict.is_none();
        let reached = match &self.targets {
            None => self.outside.reach(errand, target).await,
            // Boxed, so that requests need no room for it.
            Some(targets) => Box::pin(targets.reach(&self.outside, errand, target)).await,
        };
        if let (Some(targets), Err(error)) = (&self.targets, &reached) {
            let cause = errand.failed(*error);
            targets.tell(&self.service, target, &cause.text(self.outside.policy()));
            if let Some(tries) = &errand.tries {
                tries.note(target, Some(cause));
            }
        }
        // Only once: after a failure a new one is sure to be alive.
        errand.reuse = false;
        session.way = errand.way_number();
        let wanted = asked || self.outside.log().is_on();
        session.told = wanted.then(|| {
            let upstream = reached.as_ref().ok();
            Box::new(Told {
                upstream: Cell::new(
                    upstream.and_then(|connected| connected.upstream.peer_addr().ok()),
                ),
                cause: Cell::new(reached.as_ref().err().map(|error| errand.failed(*error))),
                target: asked.then(|| target.into()),
            })
        });
        if reached.is_ok() && !errand.is_request {
            session.errand.give_back();
        }
        reached
    }

    fn recycle(&self, target: Target<'_>, upstream: Upstream) {
        if self.send_proxy.is_none() {
            self.outside.recycle(target, upstream);
        }
    }

    fn shaping(&self, session: &Session) -> Shaping {
        let mut shaping = Shaping::default();
        shaping.way = session.way;
        if let Some(speed) = &session.speed {
            shaping.up = speed.up.clone();
            shaping.down = speed.down.clone();
        }
        shaping
    }

    fn finished(&self, who: Option<&Client>, mut session: Option<Session>, report: &Report<'_>) {
        let upstream = match (&mut session, who) {
            (Some(session), Some(who)) => session.settle(who),
            _ => None,
        };
        let outside = &self.outside;
        if let Some(counts) = outside.counts(self.listener) {
            counts.add(report);
        }
        if !outside.log().is_on() {
            return;
        }
        let cause = self.cause(who, session.as_ref(), report);
        let cause = cause.map(|cause| cause.text(outside.policy()));
        let reached = session.is_some() && report.error.is_none();
        let failures = who.filter(|_| !reached);
        let failures = failures.and_then(|who| who.failures(outside.policy()));
        let cause = failures.or(cause);
        outside.log().write(&Entry {
            report,
            user: who.and_then(|who| who.login.as_ref()).map(Login::name),
            service: &self.service,
            upstream,
            cause: cause.as_deref(),
        });
    }
}

impl Session {
    /// `None` for a tunnel that is open.
    pub(crate) fn errand(&self) -> Option<&Errand> {
        self.errand.get()
    }

    /// Remembers where the datagrams of a flow go, or what stands in their way.
    pub(crate) fn flows(&self, upstream: Option<SocketAddr>, cause: Option<Cause>) {
        if let Some(told) = &self.told {
            told.upstream.set(upstream);
            told.cause.set(cause);
        }
    }

    /// Remembers how a wait for a connection ended, and who has connected.
    pub(crate) fn came_to(&mut self, upstream: Option<SocketAddr>, cause: Option<Cause>) {
        self.told = Some(Box::new(Told {
            upstream: Cell::new(upstream),
            cause: Cell::new(cause),
            target: None,
        }));
        if upstream.is_some() {
            self.errand.give_back();
        }
    }

    /// Remembers with the client where it went.
    fn settle(&mut self, who: &Client) -> Option<SocketAddr> {
        let Some(told) = &mut self.told else {
            return who.upstream();
        };
        let upstream = told.upstream.get();
        if upstream.is_some() {
            let mut last = who.last.borrow_mut();
            let last = last.get_or_insert_default();
            last.upstream = upstream;
            last.target = told.target.take();
        }
        upstream
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bind::Landing;
    use crate::config::{Auth, Draft, Format, User};
    use crate::idle::Idle;
    use crate::log::{AccessLog, Writer};
    use crate::outside::Means;
    use crate::own::OwnAddresses;
    use crate::parents::{Parents, Ways};
    use crate::sources::Sources;
    use crate::users::Table;
    use proxy_core::{End, Timeouts};
    use proxy_relay::{Associations, Dialer};
    use std::path::Path;
    use std::time::Duration;
    use tokio::net::TcpListener;
    use tokio::net::TcpStream;

    struct World {
        origin: TcpListener,
        address: SocketAddr,
        peer: Peer,
    }

    impl World {
        async fn new() -> Self {
            let origin = TcpListener::bind("127.0.0.1:0").await.expect("bound");
            let address = origin.local_addr().expect("bound");
            let peer = Peer {
                remote: "127.0.0.1:9".parse().expect("an address"),
                local: address,
            };
            Self {
                origin,
                address,
                peer,
            }
        }

        fn ask(&self, operation: Operation<'static>) -> Ask<'_> {
            Ask {
                peer: &self.peer,
                operation,
                target: self.address.into(),
                via: None,
                secure: false,
            }
        }
    }

    const REQUEST: Operation<'static> = Operation::Request {
        method: "GET",
        path: "/",
    };

    fn gateway(own: &[SocketAddr], log: AccessLog) -> Proxyd {
        let config = Draft::default().finish().expect("the default");
        let means = Means {
            policy: Arc::new(Policy::new(&config)),
            dialer: Dialer::default(),
            sources: Sources::new(&[]),
            parents: Parents::new(Ways::default(), &Timeouts::default()),
            associations: Associations::new(),
            own: OwnAddresses::new(own.iter().copied()),
            tls: None,
            egress: None,
            speeds: None,
            idle: Idle::new(8, &config.limits),
            landing: Landing::new(&config),
            counts: None,
            log,
        };
        let outside = Rc::new(Outside::new(means));
        Proxyd::new(0, "test".to_owned(), None, outside)
    }

    async fn client(gateway: &Proxyd, peer: &Peer) -> Client {
        gateway
            .authenticate(peer, None)
            .await
            .expect("nobody is asked")
    }

    #[tokio::test]
    async fn p31_a_session_takes_an_idle_connection_only_once() {
        let world = World::new().await;
        let gateway = gateway(&[], AccessLog::off());
        let client = client(&gateway, &world.peer).await;
        for _ in 0..2 {
            let stream = TcpStream::connect(world.address).await.expect("connected");
            gateway.recycle(world.address.into(), Upstream::new(stream));
        }
        let ask = world.ask(Operation::Tunnel);
        let mut session = gateway.authorize(&client, &ask).await.expect("allowed");
        let tunnel = gateway.connect(&mut session, ask.target).await;
        assert!(!tunnel.expect("connected").reused);
        let ask = world.ask(REQUEST);
        let mut session = gateway.authorize(&client, &ask).await.expect("allowed");
        for reused in [true, false] {
            let connected = gateway.connect(&mut session, ask.target).await;
            assert_eq!(connected.expect("connected").reused, reused);
        }
    }

    #[tokio::test]
    async fn p30_own_listeners_are_no_target() {
        let world = World::new().await;
        let gateway = gateway(&[world.address], AccessLog::off());
        let client = client(&gateway, &world.peer).await;
        let localhost = Target {
            host: Host::Name("localhost"),
            port: world.address.port(),
        };
        for target in [world.address.into(), localhost] {
            let ask = world.ask(Operation::Tunnel);
            let mut session = gateway.authorize(&client, &ask).await.expect("allowed");
            let error = gateway.connect(&mut session, target).await.map(drop);
            assert_eq!(
                error.map_err(|e| e.kind),
                Err(ConnectErrorKind::Loop),
                "{target}"
            );
        }
    }

    #[tokio::test]
    async fn users_are_asked_for_and_the_busy_turn_all_away() {
        let world = World::new().await;
        let mut gateway = gateway(&[], AccessLog::off());
        let alice = User {
            name: "alice".to_owned(),
            password: "secret".to_owned(),
            source: None,
            rates: crate::config::Rates::default(),
        };
        let door = Door::new(Table::of(&[alice]), &Auth::default(), 0);
        gateway.users = Some(Arc::new(door.expect("a door")));
        let shown = |password: &'static str| {
            Some(Credentials {
                user: b"alice",
                password: password.as_bytes(),
            })
        };
        let busy = gateway.busy(Scarce::Connections);
        for (gateway, who, answer) in [
            (&gateway, None, Err(Denial::Challenge)),
            (&gateway, shown("wrong"), Err(Denial::Challenge)),
            (&gateway, shown("secret"), Ok(Some("alice".into()))),
            (&busy, shown("secret"), Err(Denial::Busy)),
        ] {
            let client = gateway.authenticate(&world.peer, who).await;
            let name = |client: Client| client.login.map(|user| user.name().to_owned());
            assert_eq!(client.map(name), answer);
        }
    }

    /// The upstream column of each line in the log at `path`.
    fn upstreams(path: &Path) -> Vec<String> {
        let text = std::fs::read_to_string(path).expect("a log");
        let last = |line: &str| line.split(' ').nth(11).map(str::to_owned);
        text.lines().filter_map(last).collect()
    }

    #[tokio::test]
    async fn the_log_names_the_upstream_of_each_exchange() {
        let world = World::new().await;
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("access.log");
        let (writer, handle) = Writer::file(&path).expect("opened");
        let gateway = gateway(&[], AccessLog::new(Format::Text, handle));
        let client = client(&gateway, &world.peer).await;
        let nobody = TcpListener::bind("127.0.0.1:0").await.expect("bound");
        let closed = nobody.local_addr().expect("bound");
        drop(nobody);
        // A new connection, the same one again, a failed one, none at all.
        for to in [Some(world.address), None, Some(closed), None] {
            let ask = world.ask(REQUEST);
            let mut session = gateway.authorize(&client, &ask).await.expect("allowed");
            if let Some(to) = to {
                drop(gateway.connect(&mut session, to.into()).await);
            }
            let report = Report::new(&world.peer, End::Completed);
            gateway.finished(Some(&client), Some(session), &report);
        }
        gateway.finished(None, None, &Report::new(&world.peer, End::BadRequest));
        gateway.outside.log().flush();
        drop(gateway);
        writer.finish(Duration::from_secs(10));
        let origin = world.address.to_string();
        assert_eq!(upstreams(&path), [&origin, &origin, "-", &origin, "-"]);
        drop(world.origin);
    }
}
