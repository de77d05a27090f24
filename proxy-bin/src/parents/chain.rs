//! One chain: its first hop is dialled, each further one asked for by the one
//! before it.

use std::cell::Cell;
use std::sync::Arc;

use bytes::BytesMut;
use proxy_core::{ConnectError, Credentials, HttpParent, Target, TargetBuf};
use proxy_http::ConnectHandshake;
use proxy_relay::{DriveError, drive};
use proxy_socks::wire::WireError;
use proxy_socks::{ClientError, ClientHandshake, ParentRelay};
use proxy_tls::Connector;
use proxy_tls::rustls::pki_types::ServerName;
use tokio::net::TcpStream;

use super::Wanted;
use super::trouble::{Failure, Stage, Trouble};
use crate::config::Login;
use crate::upstream::Upstream;

/// Proxies one behind the other.
#[derive(Debug)]
pub(super) struct Chain {
    name: String,
    /// At least one.
    hops: Vec<Hop>,
    /// The last hop, if requests can be sent to it.
    parent: Option<Arc<HttpParent>>,
}

/// One proxy of a chain.
#[derive(Debug)]
pub(super) struct Hop {
    pub(super) target: TargetBuf,
    pub(super) login: Option<Login>,
    pub(super) speaks: Speaks,
    pub(super) tls: Option<Tls>,
}

/// How a proxy is asked for what is behind it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Speaks {
    Http,
    Socks4a,
    Socks5,
}

/// What TLS with a hop needs; nothing of it is shared with other hops.
#[derive(Debug)]
pub(super) struct Tls {
    pub(super) connector: Connector,
    pub(super) name: ServerName<'static>,
}

impl Chain {
    /// # Panics
    /// Without hops.
    pub(super) fn new(name: String, hops: Vec<Hop>) -> Self {
        let parent = hops.last().and_then(Hop::parent).map(Arc::new);
        Self { name, hops, parent }
    }

    pub(super) fn name(&self) -> &str {
        &self.name
    }

    /// The hop's address as configured.
    pub(super) fn hop_name(&self, hop: usize) -> &TargetBuf {
        &self.hops[hop].target
    }

    /// The last hop, if requests can be sent to it.
    pub(super) fn parent(&self) -> Option<&Arc<HttpParent>> {
        self.parent.as_ref()
    }

    /// Whether a request that goes through it may come back unrecognized.
    pub(super) fn hides_circles(&self) -> bool {
        self.hops.iter().any(|hop| hop.speaks != Speaks::Http)
    }

    /// A connection for what is wanted. `name` is what we call ourselves,
    /// `stage` tells how far it has come.
    pub(super) async fn reach<D>(
        &self,
        wanted: Wanted<'_>,
        name: &str,
        stage: &Cell<Stage>,
        dial: &D,
    ) -> Result<Upstream, Failure>
    where
        D: AsyncFn(Target<'_>) -> Result<TcpStream, ConnectError>,
    {
        let first = self.hops[0].target.as_target();
        let fail = |trouble| Failure::new(stage.get(), trouble);
        let dialled = dial(first).await;
        let mut upstream = Upstream::new(dialled.map_err(|error| fail(Trouble::Dial(error)))?);
        for (at, hop) in self.hops.iter().enumerate() {
            let next = self.hops.get(at + 1);
            let last = next.is_none();
            stage.set(Stage {
                hop: at,
                last: false,
            });
            if let Some(tls) = &hop.tls {
                upstream = tls.wrap(upstream).await.map_err(fail)?;
            }
            if let Some(parent) = self.parent.as_ref().filter(|_| last && wanted.request) {
                upstream.set_parent(Arc::clone(parent));
                break;
            }
            stage.set(Stage { hop: at, last });
            let target = next.map_or(wanted.target, |next| next.target.as_target());
            hop.ask(&mut upstream, Wanted { target, ..wanted }, name)
                .await
                .map_err(fail)?;
        }
        Ok(upstream)
    }

    /// Whether it can be asked to relay datagrams: a single hop of SOCKS5, whose
    /// datagrams nothing else would have to carry.
    pub(super) fn carries_datagrams(&self) -> bool {
        matches!(&self.hops[..], [hop] if hop.speaks == Speaks::Socks5 && hop.tls.is_none())
    }

    /// Asks its only hop for an association.
    pub(super) async fn associate<D>(
        &self,
        stage: &Cell<Stage>,
        dial: &D,
    ) -> Result<ParentRelay, Failure>
    where
        D: AsyncFn(Target<'_>) -> Result<TcpStream, ConnectError>,
    {
        let hop = &self.hops[0];
        let fail = |trouble| Failure::new(stage.get(), trouble);
        let dialled = dial(hop.target.as_target()).await;
        let mut control = dialled.map_err(|error| fail(Trouble::Dial(error)))?;
        let login = hop.login.as_ref().map(credentials);
        let handshake = ClientHandshake::associate(login);
        let mut handshake = handshake.map_err(|error| fail(error.into()))?;
        let bound = drive(&mut control, &mut BytesMut::new(), &mut handshake).await;
        let bound = bound.map_err(|error| fail(error.into()))?;
        let relay = ParentRelay::new(control, bound);
        relay.map_err(|error| fail(DriveError::<ClientError>::Io(error).into()))
    }
}

impl Hop {
    /// Has the hop connect to the target; what comes behind its answer is kept.
    async fn ask(
        &self,
        upstream: &mut Upstream,
        wanted: Wanted<'_>,
        name: &str,
    ) -> Result<(), Trouble> {
        let Wanted { target, via, .. } = wanted;
        let mut ahead = upstream.take_ahead();
        let login = self.login.as_ref().map(credentials);
        match self.speaks {
            Speaks::Http => {
                let mut handshake = ConnectHandshake::new(target).via(name, via);
                if let Some(login) = login {
                    handshake = handshake.login(login);
                }
                drive(upstream, &mut ahead, &mut handshake).await?;
            }
            Speaks::Socks4a => {
                let user = login.map_or(&b""[..], |login| login.user);
                let mut handshake = ClientHandshake::v4(target, user)?;
                drive(upstream, &mut ahead, &mut handshake).await?;
            }
            Speaks::Socks5 => {
                let mut handshake = match login {
                    Some(login) => ClientHandshake::v5_login(target, login)?,
                    None => ClientHandshake::v5(target),
                };
                drive(upstream, &mut ahead, &mut handshake).await?;
            }
        }
        upstream.put_ahead(ahead);
        Ok(())
    }

    fn parent(&self) -> Option<HttpParent> {
        if self.speaks != Speaks::Http {
            return None;
        }
        let authorization = self.login.as_ref().map(|login| {
            let mut value = BytesMut::new();
            proxy_http::auth::encode(credentials(login), &mut value);
            value[..].into()
        });
        Some(HttpParent { authorization })
    }
}

impl Tls {
    /// Over TLS of another hop as well as over a bare connection.
    async fn wrap(&self, upstream: Upstream) -> Result<Upstream, Trouble> {
        let connecting = self.connector.connect(self.name.clone(), upstream);
        match Box::pin(connecting).await {
            Ok(stream) => Ok(Upstream::tls(stream)),
            Err(error) => Err(Trouble::Tls(error.kind)),
        }
    }
}

impl From<WireError> for Trouble {
    fn from(error: WireError) -> Self {
        Self::Wire(error)
    }
}

fn credentials(login: &Login) -> Credentials<'_> {
    Credentials {
        user: login.user.as_bytes(),
        password: login.password.as_bytes(),
    }
}
