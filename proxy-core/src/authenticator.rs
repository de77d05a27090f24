//! Who is there: the part of a gateway that can be chosen on its own.

use std::rc::Rc;
use std::sync::Arc;

use crate::{Credentials, Denial, Peer};

/// Says who a client is. A [`Gateway`](crate::Gateway) that takes one leaves the
/// question of users to it: a file, a directory service, a token.
///
/// ```
/// use proxy_core::{
///     Ask, Authenticator, ConnectError, Connected, Credentials, Denial, Gateway, Peer, Target,
/// };
///
/// struct Edge<A> {
///     users: A,
/// }
///
/// impl<A: Authenticator> Gateway for Edge<A> {
///     type Identity = A::Identity;
///     type Session = ();
///     type Upstream = String;
///
///     async fn authenticate(
///         &self,
///         peer: &Peer,
///         who: Option<Credentials<'_>>,
///     ) -> Result<A::Identity, Denial> {
///         self.users.authenticate(peer, who).await
///     }
///     async fn authorize(&self, _: &A::Identity, _: &Ask<'_>) -> Result<(), Denial> {
///         Ok(())
///     }
///     async fn connect(&self, _: &mut (), to: Target<'_>) -> Result<Connected<String>, ConnectError> {
///         Ok(Connected::fresh(to.to_string()))
///     }
/// }
///
/// /// Everybody from this machine is welcome.
/// struct Locals;
///
/// impl Authenticator for Locals {
///     type Identity = ();
///
///     async fn authenticate(&self, peer: &Peer, _: Option<Credentials<'_>>) -> Result<(), Denial> {
///         match peer.remote.ip().is_loopback() {
///             true => Ok(()),
///             false => Err(Denial::Forbid),
///         }
///     }
/// }
/// let edge = Edge { users: Locals };
/// # let _ = edge;
/// ```
#[expect(
    async_fn_in_trait,
    reason = "Send is decided where the future is spawned"
)]
pub trait Authenticator {
    /// Who the client is; lives as long as the client connection.
    type Identity;

    /// Says who is there, given the credentials shown (`None`: none were).
    ///
    /// It must not block: slow work belongs on another thread. The future may be
    /// dropped at its await points when the client leaves.
    ///
    /// # Errors
    /// [`Denial::Challenge`] asks for (other) credentials, [`Denial::Forbid`]
    /// wants none from this client, [`Denial::Busy`] cannot look at them now.
    async fn authenticate(
        &self,
        peer: &Peer,
        shown: Option<Credentials<'_>>,
    ) -> Result<Self::Identity, Denial>;
}

macro_rules! through_pointer {
    ($($pointer:ty),*) => {$(
        impl<A: Authenticator + ?Sized> Authenticator for $pointer {
            type Identity = A::Identity;

            async fn authenticate(
                &self,
                peer: &Peer,
                shown: Option<Credentials<'_>>,
            ) -> Result<Self::Identity, Denial> {
                (**self).authenticate(peer, shown).await
            }
        }
    )*};
}
through_pointer!(&A, Arc<A>, Rc<A>);
