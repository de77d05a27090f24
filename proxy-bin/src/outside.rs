//! Everything outside that the listeners of a worker share: dialling, parents,
//! idle connections, the access log.

use std::cell::RefCell;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use proxy_core::{ConnectError, ConnectErrorKind, Connected, Host, Target};
use proxy_relay::{Associations, Dialer, Passage};
use tokio::net::TcpStream;

use crate::bind::Landing;
use crate::cause::{Cause, Scarce};
use crate::config::Via;
use crate::egress::{Egress, Permit};
use crate::errand::Errand;
use crate::idle::Idle;
use crate::introduction;
use crate::log::AccessLog;
use crate::metrics::Counts;
use crate::origin_tls::OriginTls;
use crate::own::OwnAddresses;
use crate::parents::{Parents, Wanted};
use crate::policy::{Judgement, Policy, Verdict};
use crate::sources::Sources;
use crate::speeds::{Speed, Speeds};
use crate::upstream::{Lane, Upstream};
use crate::way::Way;

/// What all listeners of a worker share.
#[derive(Debug)]
pub(crate) struct Outside {
    policy: Arc<Policy>,
    dialer: Dialer,
    sources: Sources,
    parents: Parents,
    idle: RefCell<Idle>,
    associations: Associations,
    own: OwnAddresses,
    tls: Option<OriginTls>,
    egress: Option<Arc<Egress>>,
    speeds: Option<Arc<Speeds>>,
    landing: Landing,
    counts: Option<Arc<[Counts]>>,
    log: AccessLog,
}

/// The parts of an [`Outside`].
#[derive(Debug)]
pub(crate) struct Means {
    pub(crate) policy: Arc<Policy>,
    pub(crate) dialer: Dialer,
    pub(crate) sources: Sources,
    pub(crate) parents: Parents,
    pub(crate) associations: Associations,
    pub(crate) own: OwnAddresses,
    /// If `https` URLs are fetched.
    pub(crate) tls: Option<OriginTls>,
    /// If there are limits on connections towards outside.
    pub(crate) egress: Option<Arc<Egress>>,
    /// If there are rates.
    pub(crate) speeds: Option<Arc<Speeds>>,
    pub(crate) idle: Idle,
    /// Where connections are awaited for clients.
    pub(crate) landing: Landing,
    /// If metrics are read: this worker's, of each listener.
    pub(crate) counts: Option<Arc<[Counts]>>,
    pub(crate) log: AccessLog,
}

/// How datagrams get to an address.
enum Course {
    Direct(Passage),
    /// Through a parent.
    Through(Way),
}

impl Outside {
    pub(crate) fn new(means: Means) -> Self {
        Self {
            policy: means.policy,
            dialer: means.dialer,
            sources: means.sources,
            parents: means.parents,
            idle: RefCell::new(means.idle),
            associations: means.associations,
            own: means.own,
            tls: means.tls,
            egress: means.egress,
            speeds: means.speeds,
            landing: means.landing,
            counts: means.counts,
            log: means.log,
        }
    }

    pub(crate) fn policy(&self) -> &Policy {
        &self.policy
    }

    /// Whether connections may have addresses of their own to go out from.
    pub(crate) fn has_sources(&self) -> bool {
        !self.sources.is_empty()
    }

    pub(crate) fn associations(&self) -> &Associations {
        &self.associations
    }

    pub(crate) fn dialer(&self) -> &Dialer {
        &self.dialer
    }

    pub(crate) fn landing(&self) -> &Landing {
        &self.landing
    }

    /// What requests are to show, so that those that come back are known.
    pub(crate) fn name(&self) -> Option<&str> {
        self.parents.name()
    }

    /// How fast a connection at this listener may be; `None` is as fast as can be.
    pub(crate) fn speed(&self, listener: usize, user: Option<&str>) -> Option<Speed> {
        self.speeds.as_ref()?.of(listener, user)
    }

    /// Where sessions of the listener at this place of the configuration are
    /// counted, if they are.
    pub(crate) fn counts(&self, listener: usize) -> Option<&Counts> {
        self.counts.as_ref()?.get(listener)
    }

    pub(crate) fn log(&self) -> &AccessLog {
        &self.log
    }

    /// Whether a connection to there would lead back to the proxy.
    pub(crate) fn leads_back(&self, target: SocketAddr) -> bool {
        self.own.lead_from(target)
    }

    /// Closes idle connections that are old or were ended by their origins.
    pub(crate) fn sweep(&self) {
        self.idle.borrow_mut().sweep();
    }

    /// Closes all idle connections and pipes, for somebody who needs the
    /// descriptors. Says whether there was a connection.
    pub(crate) fn clear(&self) -> bool {
        proxy_relay::release_pipes();
        self.idle.borrow_mut().clear()
    }

    /// Keeps a connection for another request.
    pub(crate) fn recycle(&self, target: Target<'_>, upstream: Upstream) {
        if self.egress.as_ref().is_none_or(|egress| egress.has_room()) {
            self.idle.borrow_mut().give(target, upstream);
        }
    }

    /// Closes the connection that has lain idle for longest, of those to `origin`
    /// or of all. Says whether there was one.
    pub(crate) fn make_room(&self, origin: Option<Target<'_>>) -> bool {
        self.idle.borrow_mut().close_oldest(origin)
    }

    /// Reaches `target` by the way that policy has chosen or, if that depends on
    /// the target's address, chooses now.
    pub(crate) async fn reach(
        &self,
        errand: &mut Errand,
        target: Target<'_>,
    ) -> Result<Connected<Upstream>, ConnectError> {
        let verdict = match errand.verdict {
            Some(verdict) => verdict,
            None => self.learn(errand, target).await?,
        };
        errand.verdict = Some(verdict);
        let Some(way) = errand.way() else {
            return Err(errand.refused(Cause::rule(&verdict)));
        };
        let connected = match way.via {
            Via::Direct => self.go(errand, way, target).await?,
            Via::Parent(parent) => self.go_through(errand, way, parent, target).await?,
        };
        let parent = connected.upstream.parent().cloned();
        Ok(match parent {
            Some(parent) => connected.to_parent(parent),
            None if errand.secure => connected.secured(),
            None => connected,
        })
    }

    /// The way of datagrams to `target`: to the address that the client hears
    /// from, or to the first that may be sent to.
    pub(crate) async fn pass(
        &self,
        errand: &Errand,
        target: Target<'_>,
        last: Option<SocketAddr>,
    ) -> Result<Passage, ConnectError> {
        let judge = |ip| self.judge_datagram(errand, target, SocketAddr::new(ip, target.port));
        if let Some(last) = last
            && let Ok(Course::Direct(passage)) = judge(last.ip())
        {
            return Ok(passage);
        }
        let name = match target.host {
            Host::Ip(ip) => {
                return match judge(ip)? {
                    Course::Direct(passage) => Ok(passage),
                    Course::Through(way) => self.carry(errand, way).await,
                };
            }
            Host::Name(name) => name,
        };
        let policy = &self.policy;
        if let Judgement::Decided(verdict) = policy.judge(&errand.person, errand.act, target, None)
        {
            match errand.way_of(&verdict) {
                // What is forbidden is not looked up.
                None => return Err(errand.refused(Cause::rule(&verdict))),
                Some(way) if way.via != Via::Direct => {
                    errand.guard_unseen_by(policy, &verdict, target)?;
                    return self.carry(errand, way).await;
                }
                Some(_) => {}
            }
        }
        let addresses = match self.dialer.lookup(name).await {
            Ok(addresses) => addresses,
            Err(error) => {
                // A name that has no address here may have one for a parent.
                let verdict = errand.judge_nowhere(policy, target);
                let way = errand.way_of(&verdict).filter(|way| way.via != Via::Direct);
                let Some(way) = way else {
                    return Err(error);
                };
                errand.guard_unseen_by(policy, &verdict, target)?;
                return self.carry(errand, way).await;
            }
        };
        let mut failure = ConnectError::origin(ConnectErrorKind::NameNotFound);
        let mut second = None;
        for ip in addresses {
            match judge(ip) {
                Ok(Course::Direct(passage)) if passage.has_route() => return Ok(passage),
                Ok(Course::Direct(passage)) => second = second.or(Some(passage)),
                Ok(Course::Through(way)) => return self.carry(errand, way).await,
                Err(error) => failure = error,
            }
        }
        second.ok_or(failure)
    }

    /// The way of datagrams through a parent, who is asked for an association if
    /// this one has none there yet.
    async fn carry(&self, errand: &Errand, way: Way) -> Result<Passage, ConnectError> {
        self.carries(way)?;
        let Via::Parent(parent) = way.via else {
            return Err(ConnectError::origin(ConnectErrorKind::Other));
        };
        if let Some(passage) = errand.carriers.get(way) {
            return Ok(passage);
        }
        let permit = self.permit(errand, None).await?;
        let dial = async |hop: Target<'_>| self.dial_parent(way, hop).await;
        let turn = self.parents.turn(parent);
        let relay = self.parents.associate(turn, dial).await?;
        Ok(errand.carriers.keep(way, relay, permit))
    }

    /// Whether datagrams can go by that way.
    ///
    /// # Errors
    /// If it leads through a parent that carries none.
    pub(crate) fn carries(&self, way: Way) -> Result<(), ConnectError> {
        match way.via {
            Via::Parent(parent) if !self.parents.carries_datagrams(parent) => {
                Err(ConnectError::parent(ConnectErrorKind::NetworkUnreachable))
            }
            Via::Direct | Via::Parent(_) => Ok(()),
        }
    }

    /// What the rules say of a name, now that its addresses matter. The first
    /// address that may be gone to decides the way; a name that has none may
    /// still have one for a parent.
    async fn learn(&self, errand: &Errand, target: Target<'_>) -> Result<Verdict, ConnectError> {
        let Host::Name(name) = target.host else {
            return Ok(errand.judge_nowhere(&self.policy, target));
        };
        let addresses = match self.dialer.lookup(name).await {
            Ok(addresses) => addresses,
            Err(error) => {
                let verdict = errand.judge_nowhere(&self.policy, target);
                return match errand.way_of(&verdict) {
                    Some(Way {
                        via: Via::Direct, ..
                    }) => Err(error),
                    _ => Ok(verdict),
                };
            }
        };
        let mut refusal = ConnectError::origin(ConnectErrorKind::NameNotFound);
        for ip in addresses {
            let verdict = errand.judge(&self.policy, target, ip);
            match errand.permit(&self.policy, &verdict, ip) {
                Ok(_) => return Ok(verdict),
                Err(error) => refusal = error,
            }
        }
        Err(refusal)
    }

    /// Reaches the target itself.
    async fn go(
        &self,
        errand: &Errand,
        way: Way,
        target: Target<'_>,
    ) -> Result<Connected<Upstream>, ConnectError> {
        let lane = way.lane(0, errand.secure);
        let judge = |address| self.judge(errand, way, target, address);
        if errand.reuse
            && let Some(idle) = self.idle.borrow_mut().take(lane, Some(target), errand.within)
            // It may have been opened for somebody else.
            && idle.peer_addr().is_ok_and(|address| judge(address).is_ok())
        {
            return Ok(Connected::reused(idle));
        }
        let permit = self.permit(errand, Some(target)).await?;
        let stream = match self.dialer.dial_judged(target, judge).await {
            Err(error) if error.kind == ConnectErrorKind::Exhausted && self.clear() => {
                self.dialer.dial_judged(target, judge).await?
            }
            dialled => dialled?,
        };
        let mut upstream = Upstream::new(stream);
        upstream.set_permit(permit);
        self.fresh(errand, lane, target, upstream).await
    }

    /// Reaches the target through parents, or for a request only the last of
    /// them, if it speaks HTTP.
    async fn go_through(
        &self,
        errand: &Errand,
        way: Way,
        parent: u16,
        target: Target<'_>,
    ) -> Result<Connected<Upstream>, ConnectError> {
        errand.guard_unseen(&self.policy, target)?;
        let turn = self.parents.turn(parent);
        let takes_requests = errand.suits_parents() && self.parents.takes_requests(turn);
        if errand.reuse {
            let lane = way.lane(self.parents.lane(turn), errand.secure);
            let whose = (!takes_requests).then_some(target);
            if let Some(idle) = self.idle.borrow_mut().take(lane, whose, errand.within) {
                return Ok(Connected::reused(idle));
            }
        }
        let permit = self
            .permit(errand, (!takes_requests).then_some(target))
            .await?;
        let dial = async |hop: Target<'_>| self.dial_parent(way, hop).await;
        let wanted = Wanted {
            client: errand.person.client(),
            target,
            request: errand.suits_parents(),
            via: errand.via.as_deref(),
        };
        let exhausted = ConnectError::origin(ConnectErrorKind::Exhausted);
        let mut upstream = match self.parents.connect(turn, wanted, dial).await {
            Err(error) if error == exhausted && self.clear() => {
                self.parents.connect(turn, wanted, dial).await?
            }
            reached => reached?,
        };
        upstream.set_permit(permit);
        let lane = way.lane(upstream.lane().chain, errand.secure);
        self.fresh(errand, lane, target, upstream).await
    }

    /// A new connection on this lane, its header sent; inside TLS where that is
    /// asked for.
    async fn fresh(
        &self,
        errand: &Errand,
        lane: Lane,
        target: Target<'_>,
        mut upstream: Upstream,
    ) -> Result<Connected<Upstream>, ConnectError> {
        if let Some(header) = &errand.header {
            Box::pin(introduction::send(header, &mut upstream)).await?;
        }
        if errand.secure {
            let Some(tls) = &self.tls else {
                // Servers do not ask then.
                return Err(ConnectError::origin(ConnectErrorKind::Tls));
            };
            upstream = Box::pin(tls.connect(lane, target, upstream)).await?;
        }
        upstream.set_lane(lane);
        Ok(Connected::fresh(upstream))
    }

    /// A place for a new connection, if there are limits; idle ones make room. It
    /// counts for `origin` if it leads to no other.
    ///
    /// # Errors
    /// That the limit is reached.
    pub(crate) async fn permit(
        &self,
        errand: &Errand,
        origin: Option<Target<'_>>,
    ) -> Result<Option<Permit>, ConnectError> {
        let Some(egress) = &self.egress else {
            return Ok(None);
        };
        let scarce = loop {
            let scarce = match egress.take(origin) {
                Ok(permit) => return Ok(Some(permit)),
                Err(scarce) => scarce,
            };
            let of_origin = scarce == Scarce::OriginConnections;
            if !self.make_room(origin.filter(|_| of_origin)) {
                break scarce;
            }
        };
        let taken = egress.take_from_others(origin, scarce).await;
        taken.map(Some).map_err(|scarce| errand.crowded_out(scarce))
    }

    /// Connects to a parent, which the operator has chosen: no rule and no guard
    /// has a say.
    async fn dial_parent(&self, way: Way, hop: Target<'_>) -> Result<TcpStream, ConnectError> {
        let judge = |address: SocketAddr| match self.own.lead_from(address) {
            true => Err(ConnectError::parent(ConnectErrorKind::Loop)),
            false => self.source(way, address.ip()),
        };
        let dialled = self.dialer.dial_judged(hop, judge).await;
        dialled.map_err(|error| ConnectError::parent(error.kind))
    }

    /// The last word on an address, just before it is connected to (P39): the
    /// address to connect from.
    fn judge(
        &self,
        errand: &Errand,
        way: Way,
        target: Target<'_>,
        address: SocketAddr,
    ) -> Result<Option<IpAddr>, ConnectError> {
        if self.own.lead_from(address) {
            return Err(ConnectError::origin(ConnectErrorKind::Loop));
        }
        let verdict = errand.judge(&self.policy, target, address.ip());
        match errand.permit(&self.policy, &verdict, address.ip())? == way {
            true => self.source(way, address.ip()),
            // Rules send it another way than the address that was looked at first.
            false => Err(ConnectError::origin(ConnectErrorKind::Forbidden)),
        }
    }

    /// The same for an address that datagrams are to be sent to.
    fn judge_datagram(
        &self,
        errand: &Errand,
        target: Target<'_>,
        address: SocketAddr,
    ) -> Result<Course, ConnectError> {
        let own = self.associations.on_port(address.port());
        if !own.is_empty() && OwnAddresses::new(own).lead_from(address) {
            return Err(ConnectError::origin(ConnectErrorKind::Loop));
        }
        let verdict = errand.judge(&self.policy, target, address.ip());
        let way = errand.permit(&self.policy, &verdict, address.ip())?;
        if way.via != Via::Direct {
            return Ok(Course::Through(way));
        }
        let pick = |source| {
            let pick = || self.sources.pick(source, way.stick, address.ip());
            errand.picked.get(source, address.ip(), pick)
        };
        let source = way.source.map(pick).transpose()?;
        Ok(Course::Direct(Passage {
            address,
            source,
            carrier: None,
        }))
    }

    /// The address to connect from; `None` leaves it to the system.
    fn source(&self, way: Way, to: IpAddr) -> Result<Option<IpAddr>, ConnectError> {
        match way.source {
            None => Ok(None),
            Some(source) => self.sources.pick(source, way.stick, to).map(Some),
        }
    }
}
