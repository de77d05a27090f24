//! What listeners and users bring along before any rule is asked.

use std::collections::HashMap;
use std::net::IpAddr;

use proxy_core::Network;

use super::{Policy, Verdict};
use crate::config::{Action, Config, Listener, Via};

/// How whatever no rule decides about goes out.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Usual {
    pub(crate) via: Via,
    /// An entry of [`Config::sources`].
    pub(crate) source: Option<u16>,
}

impl Usual {
    /// The way and the source that a verdict orders; `None` if it forbids all.
    pub(crate) fn after(self, verdict: &Verdict) -> Option<Self> {
        match verdict.action {
            Action::Deny => None,
            Action::Allow { via, source } => Some(Self {
                via: via.unwrap_or(self.via),
                source: source.or(self.source),
            }),
        }
    }
}

/// The settings of all listeners, and the sources of users.
#[derive(Debug)]
pub(super) struct Settings {
    listeners: Box<[Setting]>,
    users: HashMap<Box<str>, u16>,
}

#[derive(Debug)]
struct Setting {
    usual: Usual,
    /// `None` takes all.
    clients: Option<Box<[Network]>>,
}

impl Settings {
    pub(super) fn new(config: &Config) -> Self {
        let setting = |listener: &Listener| Setting {
            usual: Usual {
                via: listener.via.unwrap_or(config.via),
                source: listener.source,
            },
            clients: listener.clients.as_deref().map(Box::from),
        };
        let users = config.users.iter();
        let users = users.filter_map(|user| Some((user.name.as_str().into(), user.source?)));
        Self {
            listeners: config.listeners.iter().map(setting).collect(),
            users: users.collect(),
        }
    }
}

impl Policy {
    /// How requests of a user at a listener go out: from the user's own source,
    /// else the listener's.
    pub(crate) fn usual(&self, listener: usize, user: Option<&str>) -> Usual {
        let setting = self.settings.listeners.get(listener);
        let usual = setting.map(|setting| setting.usual).unwrap_or_default();
        let own = user.and_then(|user| self.settings.users.get(user).copied());
        Usual {
            source: own.or(usual.source),
            ..usual
        }
    }

    /// Whether a listener takes clients from there.
    pub(crate) fn takes(&self, listener: usize, client: IpAddr) -> bool {
        let setting = self.settings.listeners.get(listener);
        let clients = setting.and_then(|setting| setting.clients.as_deref());
        clients.is_none_or(|clients| clients.iter().any(|network| network.contains(client)))
    }
}
