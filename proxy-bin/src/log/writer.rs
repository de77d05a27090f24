//! The thread that writes the access log, so that a slow disk stalls nobody.

use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::os::fd::AsFd;
use std::os::unix::fs::{FileTypeExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError, SyncSender};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use proxy_core::FreeList;
use rustix::fs::OFlags;
use rustix::io::{Errno, ioctl_fionbio};

/// The writing thread. It ends once every [`Handle`] is gone.
#[derive(Debug)]
pub(crate) struct Writer {
    thread: JoinHandle<()>,
    ended: Receiver<()>,
    shared: Arc<Shared>,
}

impl Writer {
    /// Appends to the file at `path`, made if it is not there.
    ///
    /// # Errors
    /// If it cannot be opened, a pipe that nobody reads among others, or the
    /// thread not be started.
    pub(crate) fn file(path: &Path) -> io::Result<(Self, Handle)> {
        Self::start(LogFile {
            file: open(path)?,
            path: path.to_owned(),
        })
    }

    /// Writes to standard output.
    ///
    /// # Errors
    /// If it is closed, or the thread cannot be started.
    pub(crate) fn stdout() -> io::Result<(Self, Handle)> {
        // A descriptor of its own: no lock and no second buffer in between.
        let stdout = io::stdout().as_fd().try_clone_to_owned()?;
        Self::start(File::from(stdout))
    }

    fn start(out: impl Output) -> io::Result<(Self, Handle)> {
        let (sender, batches) = mpsc::sync_channel(QUEUED_BATCHES);
        let (end, ended) = mpsc::channel();
        let shared = Arc::new(Shared {
            dropped: AtomicU64::new(0),
            reopen: AtomicBool::new(false),
            spare: Mutex::new(FreeList::new(QUEUED_BATCHES)),
        });
        let own = Arc::clone(&shared);
        let thread = std::thread::Builder::new()
            .name("access-log".to_owned())
            .spawn(move || {
                run(out, &batches, &own);
                drop(end);
            })?;
        let writer = Self {
            thread,
            ended,
            shared: Arc::clone(&shared),
        };
        Ok((writer, Handle { sender, shared }))
    }

    /// Opens the file anew before the next lines, and within a second: the old
    /// one may have been renamed. If that fails, the old one is written on.
    pub(crate) fn reopen(&self) {
        self.shared.reopen.store(true, Ordering::Relaxed);
    }

    /// Waits for the last batches, but not for a disk that hangs. Every handle
    /// must be gone.
    pub(crate) fn finish(self, patience: Duration) {
        match self.ended.recv_timeout(patience) {
            Err(RecvTimeoutError::Timeout) => {
                tracing::error!("the access log cannot be written; its last lines are lost");
            }
            _ => drop(self.thread.join()),
        }
    }
}

/// A worker's way to the [`Writer`].
#[derive(Clone, Debug)]
pub(crate) struct Handle {
    sender: SyncSender<Batch>,
    shared: Arc<Shared>,
}

impl Handle {
    /// Takes the bytes of `lines` lines and leaves an empty buffer. Never waits:
    /// with too much to be written already, they are dropped and counted.
    pub(super) fn send(&self, bytes: &mut Vec<u8>, lines: u64) {
        let spare = lock(&self.shared.spare).take();
        let empty = spare.unwrap_or_else(|| Vec::with_capacity(bytes.capacity()));
        let batch = Batch {
            bytes: std::mem::replace(bytes, empty),
            lines,
        };
        if self.sender.try_send(batch).is_err() {
            self.shared.dropped.fetch_add(lines, Ordering::Relaxed);
        }
    }
}

#[derive(Debug)]
struct Batch {
    bytes: Vec<u8>,
    lines: u64,
}

/// Where lines go.
trait Output: Write + Send + 'static {
    /// Opens it anew, if it has a name.
    fn reopen(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Standard output.
impl Output for File {}

struct LogFile {
    file: File,
    path: PathBuf,
}

impl Output for LogFile {
    fn reopen(&mut self) -> io::Result<()> {
        self.file = open(&self.path)?;
        Ok(())
    }
}

impl Write for LogFile {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.file.write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.file.flush()
    }
}

/// Never waits, not even for a reader of a named pipe.
fn open(path: &Path) -> io::Result<File> {
    let opened = OpenOptions::new()
        .append(true)
        .create(true)
        .mode(0o640)
        .custom_flags(OFlags::NONBLOCK.bits().cast_signed())
        .open(path);
    let file = opened.map_err(|error| match Errno::from_io_error(&error) {
        Some(Errno::NXIO) if is_pipe(path) => io::Error::other("nobody reads this pipe"),
        _ => error,
    })?;
    // Writing waits, in a thread of its own.
    ioctl_fionbio(&file, false)?;
    Ok(file)
}

fn is_pipe(path: &Path) -> bool {
    path.metadata()
        .is_ok_and(|about| about.file_type().is_fifo())
}

#[derive(Debug)]
struct Shared {
    dropped: AtomicU64,
    reopen: AtomicBool,
    spare: Mutex<FreeList<Vec<u8>>>,
}

fn run(mut out: impl Output, batches: &Receiver<Batch>, shared: &Shared) {
    let mut told = Instant::now();
    let mut failure = None;
    loop {
        let received = batches.recv_timeout(TELL_EVERY);
        if shared.reopen.swap(false, Ordering::Relaxed) {
            reopen(&mut out);
        }
        match received {
            Ok(mut batch) => {
                if let Err(error) = out.write_all(&batch.bytes) {
                    shared.dropped.fetch_add(batch.lines, Ordering::Relaxed);
                    failure = Some(error);
                }
                batch.bytes.clear();
                lock(&shared.spare).give(batch.bytes);
            }
            Err(RecvTimeoutError::Timeout) => {}
            Err(RecvTimeoutError::Disconnected) => break,
        }
        if told.elapsed() >= TELL_EVERY {
            told = Instant::now();
            tell(&mut failure, shared);
        }
    }
    tell(&mut failure, shared);
}

fn reopen(out: &mut impl Output) {
    match out.reopen() {
        Ok(()) => tracing::info!("the access log was opened anew"),
        Err(error) => tracing::error!(%error, "the access log could not be opened anew"),
    }
}

fn tell(failure: &mut Option<io::Error>, shared: &Shared) {
    let dropped = shared.dropped.swap(0, Ordering::Relaxed);
    match failure.take() {
        _ if dropped == 0 => {}
        Some(error) => tracing::error!(dropped, %error, "access-log lines were dropped"),
        None => tracing::error!(dropped, "access-log lines were dropped: written too slowly"),
    }
}

/// Nothing that runs under the lock can panic half-way.
fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// About 4 MiB of lines may wait for the disk.
const QUEUED_BATCHES: usize = 64;
const TELL_EVERY: Duration = Duration::from_secs(1);

#[cfg(test)]
mod tests {
    use super::*;

    /// A disk that hangs until it is let go.
    struct Stalled {
        go: Receiver<()>,
        written: Arc<Mutex<Vec<u8>>>,
    }

    impl Write for Stalled {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            let _ = self.go.recv();
            lock(&self.written).extend_from_slice(bytes);
            Ok(bytes.len())
        }
        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    impl Output for Stalled {}

    #[test]
    fn a_stalled_disk_costs_lines_but_no_memory_and_no_time() {
        let (go, stalled) = mpsc::channel();
        let written = Arc::new(Mutex::new(Vec::new()));
        let disk = Stalled {
            go: stalled,
            written: Arc::clone(&written),
        };
        let (writer, handle) = Writer::start(disk).expect("a thread");
        let mut bytes = Vec::new();
        for _ in 0..QUEUED_BATCHES * 2 {
            bytes.extend_from_slice(b"line\n");
            handle.send(&mut bytes, 1);
            assert!(bytes.is_empty());
        }
        let dropped = handle.shared.dropped.load(Ordering::Relaxed);
        // One more may be in the thread's hands.
        let kept = 2 * QUEUED_BATCHES as u64 - dropped;
        assert!((QUEUED_BATCHES as u64..=QUEUED_BATCHES as u64 + 1).contains(&kept));
        drop(go);
        drop(handle);
        writer.finish(Duration::from_secs(10));
        let lines = lock(&written).iter().filter(|b| **b == b'\n').count();
        assert_eq!(lines as u64, kept);
    }

    #[test]
    fn the_end_does_not_wait_for_a_hung_disk() {
        let (go, stalled) = mpsc::channel();
        let disk = Stalled {
            go: stalled,
            written: Arc::default(),
        };
        let (writer, handle) = Writer::start(disk).expect("a thread");
        handle.send(&mut b"line\n".to_vec(), 1);
        drop(handle);
        let start = Instant::now();
        writer.finish(Duration::from_millis(50));
        assert!(start.elapsed() < Duration::from_secs(5));
        drop(go);
    }

    #[test]
    fn lines_reach_the_file() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("access.log");
        for _ in 0..2 {
            let (writer, handle) = Writer::file(&path).expect("opened");
            handle.send(&mut b"a\nb\n".to_vec(), 2);
            drop(handle);
            writer.finish(Duration::from_secs(10));
        }
        assert_eq!(std::fs::read(&path).expect("there"), b"a\nb\na\nb\n");
    }

    #[test]
    fn a_file_that_was_renamed_is_made_anew() {
        let folder = tempfile::tempdir().expect("a folder");
        let [path, old] = ["access.log", "access.log.1"].map(|name| folder.path().join(name));
        let (writer, handle) = Writer::file(&path).expect("opened");
        std::fs::rename(&path, &old).expect("renamed");
        writer.reopen();
        handle.send(&mut b"new\n".to_vec(), 1);
        drop(handle);
        writer.finish(Duration::from_secs(10));
        assert_eq!(std::fs::read(&old).expect("there"), b"");
        assert_eq!(std::fs::read(&path).expect("there"), b"new\n");
    }

    #[test]
    fn without_a_place_for_a_new_file_the_old_one_is_written() {
        let folder = tempfile::tempdir().expect("a folder");
        let [inner, moved] = ["inner", "moved"].map(|name| folder.path().join(name));
        std::fs::create_dir(&inner).expect("made");
        let (writer, handle) = Writer::file(&inner.join("log")).expect("opened");
        std::fs::rename(&inner, &moved).expect("renamed");
        writer.reopen();
        handle.send(&mut b"line\n".to_vec(), 1);
        drop(handle);
        writer.finish(Duration::from_secs(10));
        assert_eq!(std::fs::read(moved.join("log")).expect("there"), b"line\n");
    }

    #[test]
    fn a_pipe_needs_a_reader() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("pipe");
        let mode = rustix::fs::Mode::RUSR | rustix::fs::Mode::WUSR;
        rustix::fs::mkfifoat(rustix::fs::CWD, &path, mode).expect("made");
        let error = Writer::file(&path).map(drop).expect_err("no reader");
        assert_eq!(error.to_string(), "nobody reads this pipe");

        // Opened for both, a pipe waits for nobody.
        let mut reader = OpenOptions::new()
            .read(true)
            .write(true)
            .open(&path)
            .expect("opened");
        let (writer, handle) = Writer::file(&path).expect("opened");
        // More than a pipe holds: the writer has to wait for the reader.
        let mut lines = vec![b'x'; 1024 * 1024];
        handle.send(&mut lines, 1);
        drop(handle);
        let mut read = vec![0; 1024 * 1024];
        io::Read::read_exact(&mut reader, &mut read).expect("all of it");
        assert!(read.iter().all(|byte| *byte == b'x'));
        writer.finish(Duration::from_secs(10));
    }
}
