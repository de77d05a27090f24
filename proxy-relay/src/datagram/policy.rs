//! What a gateway must add to have datagrams relayed.

use std::net::SocketAddr;
use std::rc::Rc;
use std::sync::Arc;

use proxy_core::{ConnectError, Gateway, Target};

use super::{AssociationReport, Associations, Passage};

/// What a [`Gateway`] adds to have datagrams relayed: those of a
/// [`DatagramMap`](crate::DatagramMap), or of SOCKS5 UDP ASSOCIATE (RFC 1928
/// section 7).
///
/// [`Gateway::authorize`] is asked once for each association, with
/// [`Operation::Associate`](proxy_core::Operation::Associate). The target it sees
/// is that of the port relay, or the address that the SOCKS client means to send
/// from, mostly an unspecified one; it is nothing to judge. Each target is judged
/// by [`admit`](Self::admit).
///
/// ```
/// use proxy_core::*;
/// use proxy_relay::{Associations, DatagramMap, Datagrams, Dialer, Passage};
/// use std::net::SocketAddr;
/// # use tokio::net::TcpStream;
///
/// struct Open {
///     dialer: Dialer,
///     associations: Associations,
/// }
/// # impl Gateway for Open {
/// #     type Identity = ();
/// #     type Session = ();
/// #     type Upstream = TcpStream;
/// #     async fn authenticate(&self, _: &Peer, _: Option<Credentials<'_>>) -> Result<(), Denial> {
/// #         Ok(())
/// #     }
/// #     async fn authorize(&self, _: &(), _: &Ask<'_>) -> Result<(), Denial> {
/// #         Ok(())
/// #     }
/// #     async fn connect(&self, _: &mut (), to: Target<'_>) -> Result<Connected<TcpStream>, ConnectError> {
/// #         Ok(Connected::fresh(self.dialer.dial(to).await?))
/// #     }
/// # }
///
/// impl Datagrams for Open {
///     fn associations(&self) -> &Associations {
///         &self.associations
///     }
///
///     async fn admit(
///         &self,
///         _: &(),
///         target: Target<'_>,
///         last: Option<SocketAddr>,
///     ) -> Result<Passage, ConnectError> {
///         let ip = match (last, target.host) {
///             (Some(last), _) => last.ip(),
///             (None, Host::Ip(ip)) => ip,
///             (None, Host::Name(name)) => self.dialer.lookup(name).await?[0],
///         };
///         if ip.is_loopback() {
///             return Err(ConnectError::origin(ConnectErrorKind::Forbidden));
///         }
///         Ok(SocketAddr::new(ip, target.port).into())
///     }
/// }
///
/// # async fn example(gateway: Open) -> Result<(), Box<dyn std::error::Error>> {
/// let socket = tokio::net::UdpSocket::bind("127.0.0.1:5353").await?;
/// let map = DatagramMap::new(gateway, Target::parse("dns.example:53", None)?.into());
/// map.serve(socket).await?;
/// # Ok(())
/// # }
/// ```
#[expect(
    async_fn_in_trait,
    reason = "Send is decided where the future is spawned"
)]
pub trait Datagrams: Gateway {
    /// All associations of the proxy, with their caps.
    fn associations(&self) -> &Associations;

    /// Says whether datagrams may go to `target`, to which of its addresses, and
    /// from which of ours. The answer holds for half a minute, or for two seconds
    /// if the target could not be looked up.
    ///
    /// `last` is the address whose answers the client is getting. If it may still
    /// be sent to it should be kept: another one is another conversation.
    ///
    /// # Errors
    /// Why not; datagrams are dropped without an answer to the client.
    async fn admit(
        &self,
        session: &Self::Session,
        target: Target<'_>,
        last: Option<SocketAddr>,
    ) -> Result<Passage, ConnectError>;

    /// Whether a [`DatagramMap`](crate::DatagramMap) takes datagrams from `client`.
    /// Those of others are dropped before a flow begins, so that whoever makes up
    /// addresses takes no room from those who are let in. Asked for each datagram
    /// that belongs to no flow: it should cost little.
    fn takes(&self, client: SocketAddr) -> bool {
        let _ = client;
        true
    }

    /// Called for each datagram of `client` that a
    /// [`DatagramMap`](crate::DatagramMap) has dropped since there is no room for
    /// its flow.
    fn crowded_out(&self, client: SocketAddr) {
        let _ = client;
    }

    /// Called once at the end of an association, before
    /// [`finished`](Gateway::finished), with what that is not told: datagrams,
    /// passed on and dropped.
    fn dissociated(&self, session: &Self::Session, report: &AssociationReport) {
        let _ = (session, report);
    }
}

macro_rules! through_pointer {
    ($($pointer:ty),*) => {$(
        impl<G: Datagrams + ?Sized> Datagrams for $pointer {
            fn associations(&self) -> &Associations {
                (**self).associations()
            }
            async fn admit(
                &self,
                session: &Self::Session,
                target: Target<'_>,
                last: Option<SocketAddr>,
            ) -> Result<Passage, ConnectError> {
                (**self).admit(session, target, last).await
            }
            fn takes(&self, client: SocketAddr) -> bool {
                (**self).takes(client)
            }
            fn crowded_out(&self, client: SocketAddr) {
                (**self).crowded_out(client);
            }
            fn dissociated(&self, session: &Self::Session, report: &AssociationReport) {
                (**self).dissociated(session, report);
            }
        }
    )*};
}
through_pointer!(&G, Arc<G>, Rc<G>);
