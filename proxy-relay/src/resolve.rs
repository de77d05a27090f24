//! Who looks names up: the system, or whoever the embedder brings.

use std::fmt;
use std::io;
use std::net::IpAddr;
use std::pin::Pin;
use std::time::Duration;

use proxy_core::ConnectErrorKind;

/// Looks names up in place of the system.
///
/// A [`Dialer`](crate::Dialer) asks for both families at once, keeps the
/// answers for their time to live, merges equal questions and gives each its
/// deadline: an implementation needs to do none of this. It is not asked about
/// names under `.invalid`. It is asked about `localhost` and the names below it
/// and must not pass them on to others (RFC 6761 section 6.3).
///
/// ```
/// use std::{pin::Pin, time::Duration};
/// use proxy_core::ConnectErrorKind;
/// use proxy_relay::{Dialer, Family, Resolve, Resolved};
///
/// /// Knows one name.
/// #[derive(Debug)]
/// struct Inside;
///
/// impl Resolve for Inside {
///     fn resolve<'a>(
///         &'a self,
///         name: &'a str,
///         family: Family,
///     ) -> Pin<Box<dyn Future<Output = Result<Resolved, ConnectErrorKind>> + Send + 'a>> {
///         Box::pin(async move {
///             let addresses = match (name, family) {
///                 ("db.example", Family::V4) => vec![[192, 0, 2, 1].into()],
///                 ("db.example", Family::V6) => Vec::new(),
///                 _ => return Err(ConnectErrorKind::NameNotFound),
///             };
///             Ok(Resolved { addresses, ttl: Duration::from_secs(60) })
///         })
///     }
/// }
///
/// let mut dialer = Dialer::default();
/// dialer.resolver(std::sync::Arc::new(Inside));
/// ```
pub trait Resolve: fmt::Debug + Send + Sync {
    /// The addresses of one family that `name` has. The name is in lower case
    /// and as valid as [`Host::Name`](proxy_core::Host::Name); a final dot says
    /// that it is complete. The future must be cancel safe.
    ///
    /// # Errors
    /// [`NameNotFound`](ConnectErrorKind::NameNotFound) if there is no such name
    /// or no such address, which an empty answer says as well; and
    /// [`NameUnavailable`](ConnectErrorKind::NameUnavailable) if nobody could
    /// tell.
    fn resolve<'a>(
        &'a self,
        name: &'a str,
        family: Family,
    ) -> Pin<Box<dyn Future<Output = Result<Resolved, ConnectErrorKind>> + Send + 'a>>;
}

/// A kind of address.
///
/// Exhaustive on purpose: there are no others.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Family {
    /// IPv4, in DNS an A record.
    V4,
    /// IPv6, in DNS an AAAA record.
    V6,
}

impl Family {
    /// The family of `ip`.
    pub fn of(ip: IpAddr) -> Self {
        match ip {
            IpAddr::V4(_) => Self::V4,
            IpAddr::V6(_) => Self::V6,
        }
    }

    pub(crate) fn other(self) -> Self {
        match self {
            Self::V4 => Self::V6,
            Self::V6 => Self::V4,
        }
    }
}

/// What a [`Resolve`] found.
///
/// Exhaustive on purpose, so that anybody can make one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Resolved {
    /// The addresses, best first. Those of the other family are passed over,
    /// and so are those behind the 64th.
    pub addresses: Vec<IpAddr>,
    /// How long this may be kept: taken for at least a second, and at most an
    /// hour, or half a minute if there are no addresses.
    pub ttl: Duration,
}

/// Asks the system, on the runtime's threads for what blocks. Both families
/// come in one answer, in the order of the system's preference.
pub(crate) async fn system(name: &str) -> Result<Resolved, ConnectErrorKind> {
    let found = tokio::net::lookup_host((name, 0)).await.map_err(failure)?;
    let mut addresses: Vec<IpAddr> = Vec::new();
    for address in found {
        if !addresses.contains(&address.ip()) {
            addresses.push(address.ip());
        }
    }
    Ok(Resolved {
        addresses,
        ttl: SYSTEM_TTL,
    })
}

fn failure(error: io::Error) -> ConnectErrorKind {
    if error.raw_os_error().is_some() {
        // Not an answer: the process is out of descriptors, say.
        return proxy_core::ConnectError::from(error).kind;
    }
    // The standard library keeps the resolver's code only in the text.
    let text = error.to_string();
    let passing = ["Temporary", "Try again", "ecoverable"];
    match passing.iter().any(|word| text.contains(word)) {
        true => ConnectErrorKind::NameUnavailable,
        false => ConnectErrorKind::NameNotFound,
    }
}

/// The system does not tell for how long its answers hold.
const SYSTEM_TTL: Duration = Duration::from_secs(5);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_failure_of_ours_is_no_answer() {
        let exhausted = failure(io::Error::from_raw_os_error(24));
        assert_eq!(exhausted, ConnectErrorKind::Exhausted);
        let text = |text: &str| failure(io::Error::other(text));
        let passing =
            text("failed to lookup address information: Temporary failure in name resolution");
        assert_eq!(passing, ConnectErrorKind::NameUnavailable);
        let unknown = text("failed to lookup address information: Name or service not known");
        assert_eq!(unknown, ConnectErrorKind::NameNotFound);
    }
}
