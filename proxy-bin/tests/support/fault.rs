//! A relay between proxy and origin that does damage at a place one can choose.

use std::io::{self, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use super::conn::{find, reset};
use super::{DEADLINE, Origin};

/// Each connection suffers the fault that was set when it came. Stalled ones
/// are held open until the relay is dropped.
pub(crate) struct FaultRelay {
    fault: Arc<Mutex<Fault>>,
    released: Arc<AtomicBool>,
    origin: Origin,
}

/// What goes wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fault {
    /// So many bytes of the answer a second.
    Bandwidth(usize),
    /// Accepts, and neither reads nor answers.
    Blackhole,
    /// It ends here, in this way.
    Cut(Place, Cut),
    /// The answer comes byte by byte.
    Drip,
    /// What comes after a silence comes later by this, in both directions.
    Latency(Duration),
    None,
}

/// Where a connection is cut.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Place {
    /// Before the first byte of the answer.
    Answer,
    /// Behind so many bytes of the answer's body.
    Body(usize),
    /// Behind so many bytes of what the proxy sends.
    Request(usize),
}

/// How a connection is cut.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Cut {
    /// In order, by FIN.
    Close,
    /// By a reset.
    Reset,
    /// Nothing moves any more, in neither direction.
    Stall,
}

impl FaultRelay {
    /// Relays to `target`.
    pub(crate) fn start(target: SocketAddr, fault: Fault) -> Self {
        let fault = Arc::new(Mutex::new(fault));
        let released = Arc::new(AtomicBool::new(false));
        let origin = Origin::start({
            let (fault, released) = (fault.clone(), released.clone());
            move |socket| {
                let fault = *fault.lock().unwrap_or_else(PoisonError::into_inner);
                let way = Way {
                    fault,
                    released: &released,
                    over: AtomicBool::new(false),
                };
                // A broken connection is what this is about.
                let _ = way.relay(socket, target);
            }
        });
        Self {
            fault,
            released,
            origin,
        }
    }

    /// New connections suffer this from now on.
    pub(crate) fn set(&self, fault: Fault) {
        *self.fault.lock().unwrap_or_else(PoisonError::into_inner) = fault;
    }

    /// Where it listens.
    pub(crate) fn address(&self) -> SocketAddr {
        self.origin.address
    }
}

impl Drop for FaultRelay {
    fn drop(&mut self) {
        self.released.store(true, Ordering::Relaxed);
    }
}

/// One connection.
struct Way<'r> {
    fault: Fault,
    released: &'r AtomicBool,
    /// The fault has struck.
    over: AtomicBool,
}

impl Way<'_> {
    fn relay(&self, socket: &TcpStream, target: SocketAddr) -> io::Result<()> {
        if self.fault == Fault::Blackhole {
            self.hold();
            return Ok(());
        }
        let origin = TcpStream::connect(target)?;
        origin.set_nodelay(true)?;
        for end in [socket, &origin] {
            end.set_read_timeout(Some(TICK))?;
            end.set_write_timeout(Some(DEADLINE))?;
        }
        let struck = std::thread::scope(|scope| {
            let up = scope.spawn(|| self.up(socket, &origin));
            let down = self.down(&origin, socket);
            let up = up.join().expect("no panic");
            down.or(up)
        });
        match struck {
            None => {}
            Some(Cut::Close) => {
                socket.shutdown(Shutdown::Write)?;
                // Unread bytes would turn the end into a reset.
                while let Some(1..) = self.read(socket, &mut [0; 4096], false) {}
            }
            Some(Cut::Reset) => reset(socket.try_clone()?),
            Some(Cut::Stall) => self.hold(),
        }
        Ok(())
    }

    /// What the proxy sends; says whether and how the fault struck.
    fn up(&self, from: &TcpStream, to: &TcpStream) -> Option<Cut> {
        let mut buffer = vec![0; 64 * 1024];
        let mut last = None;
        let mut left = usize::MAX;
        if let Fault::Cut(Place::Request(bytes), _) = self.fault {
            left = bytes;
        }
        loop {
            if left == 0 {
                return self.strike();
            }
            let room = left.min(buffer.len());
            let count = self.read(from, &mut buffer[..room], true)?;
            left -= count;
            self.delay(&mut last);
            if count == 0 || { to }.write_all(&buffer[..count]).is_err() {
                drop(to.shutdown(Shutdown::Write));
                return None;
            }
        }
    }

    /// What the origin answers; says whether and how the fault struck.
    fn down(&self, from: &TcpStream, to: &TcpStream) -> Option<Cut> {
        let mut buffer = vec![0; 64 * 1024];
        let mut last = None;
        let mut answer = Vec::new();
        let mut sent = 0;
        loop {
            let count = self.read(from, &mut buffer, true)?;
            self.delay(&mut last);
            answer.extend_from_slice(&buffer[..count]);
            let limit = self.limit(&answer);
            let end = answer.len().min(limit.unwrap_or(usize::MAX));
            if count == 0 || self.send(to, &answer[sent..end]).is_err() {
                drop(to.shutdown(Shutdown::Write));
                return None;
            }
            sent = end;
            if limit == Some(sent) {
                return self.strike();
            }
        }
    }

    /// How much of an answer that begins like this may pass.
    fn limit(&self, answer: &[u8]) -> Option<usize> {
        match self.fault {
            Fault::Cut(Place::Answer, _) => Some(0),
            Fault::Cut(Place::Body(bytes), _) => Some(find(answer, b"\r\n\r\n")? + 4 + bytes),
            _ => None,
        }
    }

    fn send(&self, mut to: &TcpStream, bytes: &[u8]) -> io::Result<()> {
        let piece = match self.fault {
            Fault::Bandwidth(rate) => (rate / 100).max(1),
            Fault::Drip => 1,
            _ => return to.write_all(bytes),
        };
        for piece in bytes.chunks(piece) {
            to.write_all(piece)?;
            match self.fault {
                Fault::Drip => std::thread::yield_now(),
                _ => std::thread::sleep(TICK),
            }
        }
        Ok(())
    }

    /// Holds up what comes after a silence; what follows it comes as fast as
    /// before.
    fn delay(&self, last: &mut Option<Instant>) {
        if let Fault::Latency(time) = self.fault {
            if last.is_none_or(|last| last.elapsed() > time) {
                std::thread::sleep(time);
            }
            *last = Some(Instant::now());
        }
    }

    fn strike(&self) -> Option<Cut> {
        self.over.store(true, Ordering::Relaxed);
        match self.fault {
            Fault::Cut(_, how) => Some(how),
            _ => None,
        }
    }

    /// `None` when the connection is over; with `heed` also when the fault has
    /// struck in the other direction.
    fn read(&self, mut from: &TcpStream, buffer: &mut [u8], heed: bool) -> Option<usize> {
        loop {
            if self.is_released() || (heed && self.over.load(Ordering::Relaxed)) {
                return None;
            }
            match from.read(buffer) {
                Ok(count) => return Some(count),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                Err(_) => return None,
            }
        }
    }

    fn hold(&self) {
        while !self.is_released() {
            std::thread::sleep(TICK);
        }
    }

    fn is_released(&self) -> bool {
        self.released.load(Ordering::Relaxed)
    }
}

const TICK: Duration = Duration::from_millis(10);
