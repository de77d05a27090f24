//! The targets of a port relay: reached inside TLS or at a Unix socket, and spoken
//! of when they fail.

use std::cell::RefCell;
use std::fmt::Write;
use std::time::{Duration, Instant};

use proxy_core::{ConnectError, Connected, Target, TargetBuf, Timeouts};

use crate::cause::Cause;
use crate::config::Listener;
use crate::errand::Errand;
use crate::introduction;
use crate::origin_tls::{OriginTls, Trust};
use crate::outside::Outside;
use crate::policy::Policy;
use crate::throttle::Throttle;
use crate::unix;
use crate::upstream::Upstream;

/// What the targets of one listener need beyond a connection.
#[derive(Debug)]
pub(crate) struct Targets {
    /// If one fails, the next is tried.
    several: bool,
    tls: Option<OriginTls>,
    /// How long a Unix socket may take.
    patience: Option<Duration>,
    failed: Throttle,
}

impl Targets {
    /// `None` if they need nothing.
    pub(crate) fn of(
        listener: &Listener,
        trust: Option<&Trust>,
        timeouts: &Timeouts,
    ) -> Option<Self> {
        let relay = &listener.relay;
        let name = relay.tls.as_ref().and_then(|tls| tls.name.clone());
        let tls = trust.map(|trust| OriginTls::named(trust.clone(), name));
        let several = !relay.others.is_empty();
        let mut all = listener.target.iter().chain(&relay.others);
        let any_unix = all.any(|target| unix::path(target.as_target()).is_some());
        (several || any_unix || tls.is_some()).then(|| Self {
            several,
            tls,
            patience: timeouts.connect,
            failed: Throttle::default(),
        })
    }

    /// Whether it is worth noting why each of them failed.
    pub(crate) fn are_several(&self) -> bool {
        self.several
    }

    /// Reaches one of them.
    pub(crate) async fn reach(
        &self,
        outside: &Outside,
        errand: &mut Errand,
        target: Target<'_>,
    ) -> Result<Connected<Upstream>, ConnectError> {
        let connected = match unix::path(target) {
            None => outside.reach(errand, target).await?,
            Some(path) => {
                let permit = outside.permit(errand, Some(target)).await?;
                let mut upstream = Upstream::unix(unix::connect(path, self.patience).await?);
                upstream.set_permit(permit);
                if let Some(header) = &errand.header {
                    introduction::send(header, &mut upstream).await?;
                }
                Connected::fresh(upstream)
            }
        };
        let Some(tls) = &self.tls else {
            return Ok(connected);
        };
        let lane = connected.upstream.lane();
        let upstream = tls.connect(lane, target, connected.upstream).await?;
        Ok(Connected::fresh(upstream))
    }

    /// That another one serves instead is in no line of the access log.
    pub(crate) fn tell(&self, service: &str, target: Target<'_>, cause: &str) {
        if self.several
            && let Some(failures) = self.failed.admit(Instant::now())
        {
            let target = unix::shown(target);
            tracing::warn!(
                listener = service,
                %target,
                failures,
                "a target failed: {cause}"
            );
        }
    }
}

/// Why the targets failed that were tried for one client.
#[derive(Debug, Default)]
pub(crate) struct Tries(RefCell<Vec<(TargetBuf, Option<Cause>)>>);

impl Tries {
    pub(crate) fn note(&self, target: Target<'_>, cause: Option<Cause>) {
        self.0.borrow_mut().push((target.into(), cause));
    }

    /// All of them, as they stand in the log; `None` unless there are several.
    pub(crate) fn text(&self, policy: &Policy) -> Option<String> {
        let tries = self.0.borrow();
        if tries.len() < 2 {
            return None;
        }
        let mut text = String::new();
        for (target, cause) in &*tries {
            let comma = if text.is_empty() { "" } else { "," };
            let cause = cause.map(|cause| cause.text(policy));
            let cause = cause.as_deref().unwrap_or("forbidden");
            // Writing to a string cannot fail.
            let _ = write!(text, "{comma}{}={cause}", unix::shown(target.as_target()));
        }
        Some(text)
    }
}
