//! proxyd's policy: who may, and how targets are reached.

use std::cell::{Cell, RefCell};
use std::net::SocketAddr;
use std::rc::Rc;

use proxy_core::{
    Ask, ConnectError, ConnectErrorKind, Connected, Credentials, Denial, Gateway, Operation, Peer,
    Report, Target,
};
use proxy_relay::{Dialer, Pool};
use tokio::net::TcpStream;

use crate::auth::Users;
use crate::config::Via;
use crate::log::{AccessLog, Entry};
use crate::own::OwnAddresses;
use crate::parents::{Parents, Turn};
use crate::upstream::{Lane, PoolKey, Upstream};

/// What all listeners of a worker share.
#[derive(Debug)]
pub(crate) struct Outside {
    dialer: Dialer,
    parents: Parents,
    pool: RefCell<Idle>,
    own: OwnAddresses,
    log: AccessLog,
}

/// Idle origin connections, and room for the key that is looked for.
#[derive(Debug)]
struct Idle {
    pool: Pool<PoolKey, Upstream>,
    most: usize,
    key: PoolKey,
}

impl Outside {
    /// Keeps at most `idle` unused connections to origins.
    pub(crate) fn new(
        dialer: Dialer,
        parents: Parents,
        idle: usize,
        own: OwnAddresses,
        log: AccessLog,
    ) -> Self {
        let mut outside = Idle {
            pool: Pool::new(),
            most: idle,
            key: PoolKey::new(),
        };
        outside.clear();
        Self {
            dialer,
            parents,
            pool: RefCell::new(outside),
            own,
            log,
        }
    }

    pub(crate) fn log(&self) -> &AccessLog {
        &self.log
    }

    /// Closes idle connections that are old or were ended by their origins.
    pub(crate) fn sweep(&self) {
        self.pool.borrow_mut().pool.sweep();
    }

    /// Closes all idle connections and pipes, for somebody who needs the
    /// descriptors. Says whether there was a connection.
    pub(crate) fn clear(&self) -> bool {
        proxy_relay::release_pipes();
        self.pool.borrow_mut().clear()
    }

    /// A new connection.
    async fn reach(
        &self,
        turn: Option<Turn>,
        target: Target<'_>,
        request: bool,
    ) -> Result<Upstream, ConnectError> {
        let Some(turn) = turn else {
            return self.dial(target).await.map(Upstream::new);
        };
        let dial = async |first: Target<'_>| self.dial(first).await;
        self.parents.connect(turn, target, request, dial).await
    }

    async fn dial(&self, target: Target<'_>) -> Result<TcpStream, ConnectError> {
        let stream = match self.dialer.dial(target).await {
            Err(error) if error.kind == ConnectErrorKind::Exhausted && self.clear() => {
                self.dialer.dial(target).await?
            }
            dialled => dialled?,
        };
        if self.own.has_port(target.port)
            && self
                .own
                .reached_by(stream.local_addr()?, stream.peer_addr()?)
        {
            return Err(ConnectError::origin(ConnectErrorKind::Loop));
        }
        Ok(stream)
    }
}

impl Idle {
    fn take(&mut self, lane: Lane, target: Option<Target<'_>>) -> Option<Upstream> {
        self.key.set(lane, target);
        self.pool.take(&self.key)
    }

    fn clear(&mut self) -> bool {
        let had_any = !self.pool.is_empty();
        self.pool = Pool::new();
        self.pool.total(self.most);
        had_any
    }
}

/// The policy of one listener.
#[derive(Debug)]
pub(crate) struct Proxyd {
    service: String,
    /// Who must be named; `None` asks nobody.
    users: Option<Rc<Users>>,
    /// Everybody is told that the proxy is at its limit.
    busy: bool,
    via: Via,
    outside: Rc<Outside>,
}

impl Proxyd {
    pub(crate) fn new(
        service: String,
        users: Option<Rc<Users>>,
        via: Via,
        outside: Rc<Outside>,
    ) -> Self {
        Self {
            service,
            users,
            busy: false,
            via,
            outside,
        }
    }

    /// What requests are to show parents, so that those that come back are known.
    pub(crate) fn name(&self) -> Option<&str> {
        self.outside.parents.name()
    }

    /// The same listener once too many are connected.
    pub(crate) fn busy(&self) -> Self {
        Self {
            service: self.service.clone(),
            users: self.users.clone(),
            busy: true,
            via: self.via,
            outside: Rc::clone(&self.outside),
        }
    }

    fn identify(&self, who: Option<Credentials<'_>>) -> Result<Option<Rc<str>>, Denial> {
        match &self.users {
            _ if self.busy => Err(Denial::Busy),
            None => Ok(None),
            Some(users) => match who.and_then(|who| users.check(who)) {
                Some(name) => Ok(Some(name)),
                None => Err(Denial::Challenge),
            },
        }
    }

    /// An idle connection that will do.
    fn idle(
        &self,
        session: &mut Session,
        turn: Option<Turn>,
        target: Target<'_>,
    ) -> Option<Upstream> {
        if !std::mem::take(&mut session.reuse) {
            return None;
        }
        let parents = &self.outside.parents;
        let chain = turn.map_or(0, |turn| parents.lane(turn));
        let any = turn.is_some_and(|turn| parents.takes_requests(turn));
        let lane = Lane { chain, source: 0 };
        let target = Some(target).filter(|_| !any);
        self.outside.pool.borrow_mut().take(lane, target)
    }

    /// Remembers where a connection leads, if anybody will ask.
    fn note(&self, session: &mut Session, stream: &Upstream) {
        if self.outside.log.is_on()
            && let Ok(address) = stream.peer_addr()
        {
            session.route = Route::To(address);
        }
    }
}

/// A client connection's user, and where its requests go.
#[derive(Debug)]
pub(crate) struct Client {
    user: Option<Rc<str>>,
    /// Where its last request went.
    upstream: Cell<Option<SocketAddr>>,
}

/// One exchange or tunnel.
#[derive(Debug)]
pub(crate) struct Session {
    /// An idle connection will do. Only once: after a failure a new one is sure
    /// to be alive.
    reuse: bool,
    /// It is a request, which an HTTP parent can be handed.
    request: bool,
    route: Route,
}

/// Where the bytes of a session went, for the log.
#[derive(Clone, Copy, Debug)]
enum Route {
    /// Over the connection of an earlier request, if anywhere.
    Kept,
    Nowhere,
    To(SocketAddr),
}

impl Gateway for Proxyd {
    type Identity = Client;
    type Session = Session;
    type Upstream = Upstream;

    async fn authenticate(&self, _: &Peer, who: Option<Credentials<'_>>) -> Result<Client, Denial> {
        let user = self.identify(who)?;
        Ok(Client {
            user,
            upstream: Cell::new(None),
        })
    }

    async fn authorize(&self, _: &Client, ask: &Ask<'_>) -> Result<Session, Denial> {
        let request = matches!(ask.operation, Operation::Request { .. });
        Ok(Session {
            reuse: request,
            request,
            route: Route::Kept,
        })
    }

    async fn connect(
        &self,
        session: &mut Session,
        target: Target<'_>,
    ) -> Result<Connected<Upstream>, ConnectError> {
        session.route = Route::Nowhere;
        let turn = match self.via {
            Via::Direct => None,
            Via::Parent(via) => Some(self.outside.parents.turn(via)),
        };
        let connected = match self.idle(session, turn, target) {
            Some(upstream) => Connected::reused(upstream),
            None => Connected::fresh(self.outside.reach(turn, target, session.request).await?),
        };
        self.note(session, &connected.upstream);
        let parent = connected.upstream.parent().cloned();
        Ok(match parent {
            Some(parent) => connected.to_parent(parent),
            None => connected,
        })
    }

    fn recycle(&self, target: Target<'_>, upstream: Upstream) {
        let idle = &mut self.outside.pool.borrow_mut();
        idle.pool.give(PoolKey::of(&upstream, target), upstream);
    }

    fn finished(&self, who: Option<&Client>, session: Option<Session>, report: &Report<'_>) {
        if !self.outside.log.is_on() {
            return;
        }
        let upstream = match (session.map(|session| session.route), who) {
            (Some(Route::To(address)), Some(who)) => {
                who.upstream.set(Some(address));
                Some(address)
            }
            (Some(Route::Kept), Some(who)) => who.upstream.get(),
            _ => None,
        };
        self.outside.log.write(&Entry {
            report,
            user: who.and_then(|who| who.user.as_deref()),
            service: &self.service,
            upstream,
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::{Format, User};
    use crate::log::Writer;
    use crate::parents::Ways;
    use proxy_core::{End, Host, Timeouts};
    use std::path::Path;
    use std::time::Duration;
    use tokio::net::TcpListener;

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
                remote: "192.0.2.1:9".parse().expect("an address"),
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
            }
        }
    }

    const REQUEST: Operation<'static> = Operation::Request {
        method: "GET",
        path: "/",
    };

    fn gateway(own: &[SocketAddr], log: AccessLog) -> Proxyd {
        let own = OwnAddresses::new(own.iter().copied());
        let parents = Parents::new(Ways::default(), &Timeouts::default());
        let outside = Outside::new(Dialer::default(), parents, 8, own, log);
        Proxyd::new("test".to_owned(), None, Via::Direct, Rc::new(outside))
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
        for (operation, reuse) in [(Operation::Tunnel, false), (REQUEST, true)] {
            let ask = world.ask(operation);
            let mut session = gateway.authorize(&client, &ask).await.expect("allowed");
            let first = gateway.connect(&mut session, ask.target).await;
            assert_eq!(first.expect("connected").reused, reuse);
            let second = gateway.connect(&mut session, ask.target).await;
            assert!(!second.expect("connected").reused);
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
        };
        gateway.users = Some(Rc::new(Users::new(&[alice])));
        let shown = |password: &'static str| {
            Some(Credentials {
                user: b"alice",
                password: password.as_bytes(),
            })
        };
        let busy = gateway.busy();
        for (gateway, who, answer) in [
            (&gateway, None, Err(Denial::Challenge)),
            (&gateway, shown("wrong"), Err(Denial::Challenge)),
            (&gateway, shown("secret"), Ok(Some("alice".into()))),
            (&busy, shown("secret"), Err(Denial::Busy)),
        ] {
            let client = gateway.authenticate(&world.peer, who).await;
            assert_eq!(client.map(|client| client.user), answer);
        }
    }

    /// The upstream column of each line in the log at `path`.
    fn upstreams(path: &Path) -> Vec<String> {
        let text = std::fs::read_to_string(path).expect("a log");
        let last = |line: &str| line.rsplit(' ').next().map(str::to_owned);
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
