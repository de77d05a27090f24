//! proxyd's policy: who may, and how targets are reached.

use std::cell::{Cell, RefCell};
use std::net::SocketAddr;
use std::rc::Rc;

use proxy_core::{
    Ask, ConnectError, ConnectErrorKind, Connected, Credentials, Denial, Gateway, Host, Operation,
    Peer, Report, Target, TargetBuf,
};
use proxy_relay::{Dialer, Pool};
use tokio::net::TcpStream;

use crate::auth::Users;
use crate::log::{AccessLog, Entry};
use crate::own::OwnAddresses;

/// What all listeners of a worker share.
#[derive(Debug)]
pub(crate) struct Outside {
    dialer: Dialer,
    pool: RefCell<Idle>,
    own: OwnAddresses,
    log: AccessLog,
}

/// Idle origin connections, and room for the key that is looked for.
#[derive(Debug)]
struct Idle {
    pool: Pool<TargetBuf, TcpStream>,
    most: usize,
    key: TargetBuf,
}

impl Outside {
    /// Keeps at most `idle` unused connections to origins.
    pub(crate) fn new(dialer: Dialer, idle: usize, own: OwnAddresses, log: AccessLog) -> Self {
        let host = Host::Name("");
        let mut outside = Idle {
            pool: Pool::new(),
            most: idle,
            key: Target { host, port: 0 }.into(),
        };
        outside.clear();
        Self {
            dialer,
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

    /// Closes all idle connections, for somebody who needs the descriptors.
    /// Says whether there were any.
    pub(crate) fn clear(&self) -> bool {
        self.pool.borrow_mut().clear()
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
    fn take(&mut self, target: Target<'_>) -> Option<TcpStream> {
        self.key.set(target);
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
    outside: Rc<Outside>,
}

impl Proxyd {
    pub(crate) fn new(service: String, users: Option<Rc<Users>>, outside: Rc<Outside>) -> Self {
        Self {
            service,
            users,
            busy: false,
            outside,
        }
    }

    /// The same listener once too many are connected.
    pub(crate) fn busy(&self) -> Self {
        Self {
            service: self.service.clone(),
            users: self.users.clone(),
            busy: true,
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

    /// Remembers where a connection leads, if anybody will ask.
    fn note(&self, session: &mut Session, stream: &TcpStream) {
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
    type Upstream = TcpStream;

    async fn authenticate(&self, _: &Peer, who: Option<Credentials<'_>>) -> Result<Client, Denial> {
        let user = self.identify(who)?;
        Ok(Client {
            user,
            upstream: Cell::new(None),
        })
    }

    async fn authorize(&self, _: &Client, ask: &Ask<'_>) -> Result<Session, Denial> {
        Ok(Session {
            reuse: matches!(ask.operation, Operation::Request { .. }),
            route: Route::Kept,
        })
    }

    async fn connect(
        &self,
        session: &mut Session,
        target: Target<'_>,
    ) -> Result<Connected<TcpStream>, ConnectError> {
        session.route = Route::Nowhere;
        let idle = match std::mem::take(&mut session.reuse) {
            true => self.outside.pool.borrow_mut().take(target),
            false => None,
        };
        let connected = match idle {
            Some(stream) => Connected::reused(stream),
            None => Connected::fresh(self.outside.dial(target).await?),
        };
        self.note(session, &connected.upstream);
        Ok(connected)
    }

    fn recycle(&self, target: Target<'_>, upstream: TcpStream) {
        let idle = &mut self.outside.pool.borrow_mut();
        idle.pool.give(target.into(), upstream);
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
