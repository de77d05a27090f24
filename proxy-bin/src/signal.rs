//! The signals that the proxy obeys.

use std::io;

use tokio::signal::unix::{SignalKind, signal};

/// A request to end, or, with a hang-up, to open the log anew.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Signal {
    Hangup,
    Interrupt,
    Terminate,
}

impl Signal {
    pub(crate) const ALL: [Self; 3] = [Self::Hangup, Self::Interrupt, Self::Terminate];

    /// The exit status of a program that such a signal cut short.
    pub(crate) fn exit_status(self) -> i32 {
        128 + self.kind().as_raw_value()
    }

    /// Calls `told` each time the signal comes, from now on. The future it
    /// returns has to be awaited.
    ///
    /// # Errors
    /// If the handler cannot be installed.
    pub(crate) fn watch(
        self,
        told: impl Fn(Self) + 'static,
    ) -> io::Result<impl Future<Output = ()> + 'static> {
        let mut signals = signal(self.kind())?;
        Ok(async move {
            while signals.recv().await.is_some() {
                told(self);
            }
        })
    }

    fn kind(self) -> SignalKind {
        match self {
            Self::Hangup => SignalKind::hangup(),
            Self::Interrupt => SignalKind::interrupt(),
            Self::Terminate => SignalKind::terminate(),
        }
    }
}
