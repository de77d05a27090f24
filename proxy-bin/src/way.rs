//! How a request goes out: through whom and from which address.

use std::hash::{DefaultHasher, Hash, Hasher};

use crate::config::Via;
use crate::policy::Usual;
use crate::upstream::Lane;

/// What policy decided; connections of different ways never mix.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Way {
    pub(crate) via: Via,
    /// An entry of [`Config::sources`](crate::config::Config).
    pub(crate) source: Option<u16>,
    /// Whose address it is, where a source keeps to one for each client.
    pub(crate) stick: u64,
}

impl Way {
    pub(crate) fn new(usual: Usual, stick: u64) -> Self {
        Self {
            via: usual.via,
            source: usual.source,
            stick,
        }
    }

    /// A number of its own for each way, inside TLS with the target or not; never
    /// 0.
    pub(crate) fn number(self, secure: bool) -> u64 {
        match self {
            // Nearly everybody's, so it costs nothing.
            Self {
                via: Via::Direct,
                source: None,
                ..
            } if !secure => 1,
            _ => hash(&(self, secure)) | 2,
        }
    }

    /// Where the connections of this way lie while they are idle, if they go
    /// through this chain of parents, inside TLS with the target or not.
    pub(crate) fn lane(self, chain: u16, secure: bool) -> Lane {
        let source = match self.source {
            None => 0,
            Some(source) => hash(&(source, self.stick)),
        };
        Lane {
            chain,
            source,
            secure,
        }
    }
}

fn hash(value: &impl Hash) -> u64 {
    let mut hasher = DefaultHasher::new();
    value.hash(&mut hasher);
    hasher.finish()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn p32_different_ways_have_different_numbers() {
        let mut ways = Vec::new();
        for via in [Via::Direct, Via::Parent(0), Via::Parent(1)] {
            for source in [None, Some(0), Some(1)] {
                for stick in [0, 1] {
                    let way = Way { via, source, stick };
                    ways.extend([(way, false), (way, true)]);
                }
            }
        }
        let plain = |way: &Way| way.via == Via::Direct && way.source.is_none();
        let number = |(way, secure): &(Way, bool)| way.number(*secure);
        for (at, one) in ways.iter().enumerate() {
            assert_ne!(number(one), 0);
            for other in &ways[at + 1..] {
                let same = plain(&one.0) && plain(&other.0) && !one.1 && !other.1;
                assert_eq!(number(one) == number(other), same, "{one:?} {other:?}");
            }
        }
    }
}
