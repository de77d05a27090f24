//! The threads that verify passwords, so that no other has to wait.

use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::Instant;

use super::desk::{Desk, Notice, Task};
use super::scratch::Scratch;

/// The desk, and the bell of those who work behind it.
pub(super) struct Office {
    desk: Mutex<Open>,
    bell: Condvar,
}

struct Open {
    desk: Desk,
    closed: bool,
}

impl Office {
    pub(super) fn new(desk: Desk) -> Self {
        Self {
            desk: Mutex::new(Open {
                desk,
                closed: false,
            }),
            bell: Condvar::new(),
        }
    }

    /// Starts `count` threads, which cost nothing while there is no work.
    ///
    /// # Errors
    /// If the system has no threads left.
    pub(super) fn hire(self: &Arc<Self>, count: usize) -> io::Result<()> {
        for number in 0..count {
            let office = Arc::clone(self);
            thread::Builder::new()
                .name(format!("verify-{number}"))
                .spawn(move || {
                    stand_back();
                    let mut scratch = Scratch::default();
                    while office.work(&mut scratch) {}
                })?;
        }
        Ok(())
    }

    /// Lets the threads go.
    pub(super) fn close(&self) {
        self.lock().closed = true;
        self.bell.notify_all();
    }

    /// Does something at the desk, and tells the log of what came out of it.
    pub(super) fn at_desk<T>(&self, with: impl FnOnce(&mut Desk) -> T) -> T {
        let (result, notices) = {
            let desk = &mut self.lock().desk;
            (with(desk), desk.take_notices())
        };
        tell(&notices);
        result
    }

    pub(super) fn ring(&self) {
        self.bell.notify_one();
    }

    /// Waits for a task and does it; `false` once the office is closed.
    fn work(&self, scratch: &mut Scratch) -> bool {
        let mut open = self.lock();
        let task = loop {
            if open.closed {
                return false;
            }
            open = match open.desk.take(Instant::now()) {
                Some(task) => break task,
                None if scratch.is_empty() => {
                    let woken = self.bell.wait(open);
                    woken.unwrap_or_else(PoisonError::into_inner)
                }
                None => {
                    // Idle threads hold no memory, and nobody waits for them.
                    drop(open);
                    scratch.release();
                    self.lock()
                }
            }
        };
        drop(open);
        self.handle(task, scratch);
        true
    }

    /// Takes its time, unlocked.
    pub(super) fn handle(&self, task: Task, scratch: &mut Scratch) {
        let delivery = match task {
            Task::Dismiss(delivery) => delivery,
            Task::Verify(work) => {
                // A hash that breaks the verifier must not end the thread.
                let right = catch_unwind(AssertUnwindSafe(|| work.verify(scratch))).ok();
                self.at_desk(|desk| desk.settle(&work, right, Instant::now()))
            }
        };
        delivery.deliver();
    }

    fn lock(&self) -> MutexGuard<'_, Open> {
        self.desk.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Those who are served go first.
fn stand_back() {
    // On Linux this is a matter of the thread; elsewhere of the whole process.
    #[cfg(target_os = "linux")]
    let _ = rustix::process::nice(10);
}

fn tell(notices: &[Notice]) {
    for Notice { client, ban } in notices {
        tracing::warn!(
            %client,
            failures = ban.failures,
            length = ?ban.length,
            "banned: too many logins failed"
        );
    }
}
