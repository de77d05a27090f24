//! A gateway that leads into the transcript and takes notes.

use std::cell::{Cell, RefCell};
use std::io;
use std::rc::Rc;

use proxy_core::{
    Ask, ConnectError, Connected, Credentials, Denial, Gateway, Operation, Peer, Report, Target,
};
use proxy_relay::Transport;

use super::wire::{Far, Wire};

/// What a request was taken for when it was judged.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Asked {
    /// `None` for a tunnel.
    pub(crate) request: Option<(String, String)>,
    pub(crate) target: String,
    pub(crate) allowed: bool,
}

#[derive(Default)]
pub(crate) struct Notes {
    /// One less than how many requests were judged.
    pub(crate) current: Rc<Cell<usize>>,
    pub(crate) asked: RefCell<Vec<Asked>>,
    /// How many of those allowed were told to be over.
    pub(crate) told: Cell<usize>,
    pub(crate) origins: RefCell<Vec<Rc<Far>>>,
    /// What an origin says before it was asked.
    pub(crate) ahead: RefCell<Vec<u8>>,
    /// Origins that are connected to from now on say nothing more.
    pub(crate) closed: Cell<bool>,
    spare: RefCell<Option<(String, Wire)>>,
}

impl Notes {
    /// The origin that was connected to last, if it still talks.
    pub(crate) fn origin(&self) -> Option<Rc<Far>> {
        let origins = self.origins.borrow();
        origins.last().filter(|far| !far.is_over()).map(Rc::clone)
    }
}

impl Gateway for Notes {
    type Identity = ();
    type Session = ();
    type Upstream = Wire;

    async fn authenticate(&self, _: &Peer, _: Option<Credentials<'_>>) -> Result<(), Denial> {
        Ok(())
    }

    async fn authorize(&self, (): &(), ask: &Ask<'_>) -> Result<(), Denial> {
        let target = ask.target.to_string();
        let allowed = !target.starts_with("deny:");
        let mut asked = self.asked.borrow_mut();
        self.current.set(asked.len());
        asked.push(Asked {
            request: match ask.operation {
                Operation::Request { method, path } => Some((method.to_owned(), path.to_owned())),
                _ => None,
            },
            target,
            allowed,
        });
        match allowed {
            true => Ok(()),
            false => Err(Denial::Forbid),
        }
    }

    async fn connect(
        &self,
        (): &mut (),
        target: Target<'_>,
    ) -> Result<Connected<Wire>, ConnectError> {
        let target = target.to_string();
        if target.starts_with("down:") {
            return Err(io::Error::from(io::ErrorKind::ConnectionRefused).into());
        }
        if let Some((name, wire)) = self.spare.take()
            && name == target
            && wire.is_quiet()
        {
            return Ok(Connected::reused(wire));
        }
        let far = Far::new(Rc::clone(&self.current));
        far.send(&self.ahead.take());
        if self.closed.get() {
            far.finish();
        }
        self.origins.borrow_mut().push(Rc::clone(&far));
        Ok(Connected::fresh(Wire(far)))
    }

    fn recycle(&self, target: Target<'_>, upstream: Wire) {
        self.spare.replace(Some((target.to_string(), upstream)));
    }

    fn finished(&self, _: Option<&()>, session: Option<()>, _: &Report<'_>) {
        self.told
            .set(self.told.get() + usize::from(session.is_some()));
    }
}
