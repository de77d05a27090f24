//! A network: addresses that begin with the same bits.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::str::FromStr;

/// An IPv4 or IPv6 network, as in `192.0.2.0/24` (RFC 4632 section 3.1,
/// RFC 4291 section 2.3).
///
/// An IPv4-mapped IPv6 address is the IPv4 address (RFC 4291 section 2.5.5.2),
/// both in a network and when one is looked for.
///
/// ```
/// use proxy_core::{Network, NetworkError};
/// let network: Network = "192.0.2.0/24".parse()?;
/// assert!(network.contains("192.0.2.7".parse().unwrap()));
/// assert!(network.contains("::ffff:192.0.2.7".parse().unwrap()));
/// assert_eq!("::1".parse::<Network>()?.to_string(), "::1/128");
/// assert_eq!("192.0.2.7/24".parse::<Network>(), Err(NetworkError::HostBits(network)));
/// # Ok::<(), NetworkError>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Network {
    address: IpAddr,
    prefix: u8,
}

impl Network {
    /// The addresses that share their first `prefix` bits with `address`.
    ///
    /// # Errors
    /// If there are not so many bits, or one of the others is set.
    pub fn new(address: IpAddr, prefix: u8) -> Result<Self, NetworkError> {
        let (address, prefix) = match (address, address.to_canonical()) {
            (IpAddr::V6(_), IpAddr::V4(inner)) if prefix >= MAPPED_BITS => {
                (inner.into(), prefix - MAPPED_BITS)
            }
            _ => (address, prefix),
        };
        if prefix > width(address) {
            return Err(NetworkError::Prefix);
        }
        let network = Self {
            address: masked(address, prefix),
            prefix,
        };
        match network.address == address {
            true => Ok(network),
            false => Err(NetworkError::HostBits(network)),
        }
    }

    /// The first address.
    pub fn address(&self) -> IpAddr {
        self.address
    }

    /// How many leading bits all addresses share: 0 to 32 or 128.
    pub fn prefix(&self) -> u8 {
        self.prefix
    }

    /// Whether `address` is one of them.
    pub fn contains(&self, address: IpAddr) -> bool {
        let address = address.to_canonical();
        address.is_ipv4() == self.address.is_ipv4() && masked(address, self.prefix) == self.address
    }
}

impl From<IpAddr> for Network {
    /// The network of only this address.
    fn from(address: IpAddr) -> Self {
        let address = address.to_canonical();
        Self {
            address,
            prefix: width(address),
        }
    }
}

impl FromStr for Network {
    type Err = NetworkError;

    /// Reads `ADDRESS/BITS`, or a single address.
    fn from_str(text: &str) -> Result<Self, NetworkError> {
        let (address, prefix) = match text.split_once('/') {
            Some((address, prefix)) => (address, Some(prefix)),
            None => (text, None),
        };
        let address: IpAddr = address.parse().map_err(|_| NetworkError::Address)?;
        let Some(digits) = prefix else {
            return Ok(address.into());
        };
        // `u8::from_str` would take a sign.
        let is_number = digits.len() <= 3 && digits.bytes().all(|b| b.is_ascii_digit());
        match digits.parse() {
            Ok(prefix) if is_number => Self::new(address, prefix),
            _ => Err(NetworkError::Prefix),
        }
    }
}

impl fmt::Display for Network {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.address, self.prefix)
    }
}

/// Why text is not a network.
///
/// Larger than most errors, since what was meant is nearly always the network it
/// holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum NetworkError {
    /// Not an IP address.
    #[error("not an IP address")]
    Address,
    /// Bits behind the prefix are set; without them it would be this network.
    #[error("bits are set behind the prefix; the network is {0}")]
    HostBits(Network),
    /// No number of bits of such an address.
    #[error("not a number of bits of the address")]
    Prefix,
}

/// The first `prefix` bits of a left-aligned address.
pub(crate) fn mask(bits: u128, prefix: u8) -> u128 {
    match prefix {
        0 => 0,
        prefix => bits & (u128::MAX << (128 - u32::from(prefix.min(128)))),
    }
}

/// The bits of an address, the first one highest.
pub(crate) fn left_aligned(address: IpAddr) -> u128 {
    match address {
        IpAddr::V4(ip) => u128::from(ip.to_bits()) << 96,
        IpAddr::V6(ip) => ip.to_bits(),
    }
}

fn masked(address: IpAddr, prefix: u8) -> IpAddr {
    let bits = mask(left_aligned(address), prefix);
    match address {
        IpAddr::V4(_) => {
            let [a, b, c, d, ..] = bits.to_be_bytes();
            Ipv4Addr::new(a, b, c, d).into()
        }
        IpAddr::V6(_) => Ipv6Addr::from_bits(bits).into(),
    }
}

fn width(address: IpAddr) -> u8 {
    match address {
        IpAddr::V4(_) => 32,
        IpAddr::V6(_) => 128,
    }
}

const MAPPED_BITS: u8 = 96;

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn network(text: &str) -> Network {
        text.parse().expect(text)
    }

    #[test]
    fn the_forms_of_a_network() {
        for (text, shown) in [
            ("192.0.2.0/24", "192.0.2.0/24"),
            ("192.0.2.7", "192.0.2.7/32"),
            ("0.0.0.0/0", "0.0.0.0/0"),
            ("::/0", "::/0"),
            ("2001:DB8::/32", "2001:db8::/32"),
            ("::1", "::1/128"),
            ("::ffff:192.0.2.0/120", "192.0.2.0/24"),
            ("::ffff:192.0.2.7", "192.0.2.7/32"),
            ("::ffff:0:0/96", "0.0.0.0/0"),
            ("10.0.0.0/08", "10.0.0.0/8"),
        ] {
            assert_eq!(network(text).to_string(), shown);
        }
    }

    #[test]
    fn what_is_no_network() {
        use NetworkError::{Address, HostBits, Prefix};
        for (text, error) in [
            ("", Address),
            ("example.com", Address),
            ("192.0.2/24", Address),
            ("[::1]", Address),
            ("fe80::1%eth0", Address),
            ("192.0.2.0/", Prefix),
            ("192.0.2.0/33", Prefix),
            ("192.0.2.0/+8", Prefix),
            ("192.0.2.0/-1", Prefix),
            ("192.0.2.0/24/8", Prefix),
            ("::/129", Prefix),
            ("::/1000", Prefix),
            ("192.0.2.7/24", HostBits(network("192.0.2.0/24"))),
            ("2001:db8::1/64", HostBits(network("2001:db8::/64"))),
            ("::ffff:10.0.0.1/104", HostBits(network("10.0.0.0/8"))),
        ] {
            assert_eq!(text.parse::<Network>(), Err(error), "{text}");
        }
        assert!(
            "192.0.2.7/24"
                .parse::<Network>()
                .is_err_and(|error| error.to_string().ends_with("192.0.2.0/24"))
        );
    }

    #[test]
    fn families_do_not_mix() {
        let ip = |text: &str| text.parse::<IpAddr>().expect(text);
        assert!(!network("::/0").contains(ip("192.0.2.7")));
        assert!(!network("::/0").contains(ip("::ffff:192.0.2.7")));
        assert!(!network("0.0.0.0/0").contains(ip("::1")));
        assert!(network("0.0.0.0/0").contains(ip("::ffff:192.0.2.7")));
    }

    proptest! {
        #[test]
        fn an_address_is_in_the_network_of_its_first_bits(ip: IpAddr, prefix in 0u8..=128) {
            let ip = ip.to_canonical();
            let prefix = prefix.min(width(ip));
            let network = match Network::new(ip, prefix) {
                Ok(network) | Err(NetworkError::HostBits(network)) => network,
                Err(error) => panic!("{error}"),
            };
            prop_assert!(network.contains(ip));
            prop_assert_eq!(network.to_string().parse(), Ok(network));
        }

        #[test]
        fn no_text_panics(text in "\\PC{0,40}") {
            let _ = text.parse::<Network>();
        }
    }
}
