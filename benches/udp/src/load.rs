//! The load generator: clients and the echo server, in one thread that never sleeps.

use std::io::{self, Read};
use std::net::{Ipv4Addr, SocketAddrV4, TcpStream};
use std::time::{Duration, Instant};

use clap::Args;
use nix::sys::socket::SockaddrIn;

use crate::cpu;
use crate::net::{Framing, Rx, Sock, Tx, send_joined};
use crate::pattern::{HEAD, Mark, Pattern};
use crate::socks;

const BATCH: usize = 64;
/// A datagram without an answer for so long is lost.
const SILENCE: Duration = Duration::from_millis(200);
/// How often it is looked for lost datagrams.
const SWEEP: Duration = Duration::from_millis(10);

#[derive(Args)]
pub(crate) struct Options {
    /// A SOCKS5 server with UDP ASSOCIATE and no login.
    #[arg(
        long,
        value_name = "ADDRESS",
        required_unless_present = "plain",
        conflicts_with = "plain"
    )]
    socks: Option<SocketAddrV4>,
    /// A relay of bare datagrams, whose target is the address of --echo.
    #[arg(long, value_name = "ADDRESS", requires = "echo")]
    plain: Option<SocketAddrV4>,
    /// Where the echo server is bound. With SOCKS any port will do.
    #[arg(long, value_name = "ADDRESS")]
    echo: Option<SocketAddrV4>,
    /// Bytes of payload.
    #[arg(long, default_value_t = 64, value_parser = clap::value_parser!(u16).range(16..=9000))]
    size: u16,
    /// Associations, or client sockets.
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=4096))]
    flows: u32,
    /// Datagrams in flight per flow.
    #[arg(long, default_value_t = 64, value_parser = clap::value_parser!(u32).range(1..=65536))]
    window: u32,
    /// How long is measured.
    #[arg(long, default_value_t = 2.0)]
    seconds: f64,
    /// How long it runs before.
    #[arg(long, default_value_t = 0.5)]
    warm_up: f64,
    /// The relay, whose CPU time is told, with that of its descendants.
    #[arg(long)]
    pid: Option<u32>,
    /// Clients and echo server send with GSO and receive with GRO.
    #[arg(long)]
    gso: bool,
    /// Announces 0.0.0.0:0 to the SOCKS server instead of the client's address.
    #[arg(long)]
    announce_nothing: bool,
    /// A name for the relay in the result.
    #[arg(long, default_value = "")]
    peer: String,
}

#[derive(Clone, Copy)]
struct Slot {
    sequence: u64,
    /// None while nothing is in flight.
    sent: Option<Instant>,
}

struct Flow {
    number: u32,
    sock: Sock,
    control: Option<TcpStream>,
    slots: Vec<Slot>,
    free: Vec<u32>,
    next: u64,
}

#[derive(Clone, Copy, Default)]
struct Counts {
    answers: u64,
    lost: u64,
    /// Answers to datagrams that were given up, or a second answer.
    late: u64,
    unsent: u64,
    idle: Duration,
}

struct Generator {
    size: usize,
    /// What is before each payload that goes out, and that comes in.
    header: Option<[u8; socks::HEADER]>,
    gso: bool,
    pattern: Pattern,
    rx: Rx<BATCH>,
    tx: Tx<BATCH>,
    frames: Vec<u8>,
    echo: Sock,
    counts: Counts,
}

impl Generator {
    fn frame(&self) -> usize {
        self.size + self.header.map_or(0, |header| header.len())
    }

    /// Takes the answers of a flow. Returns how many there were.
    fn take(&mut self, flow: &mut Flow) -> io::Result<usize> {
        let count = self.rx.receive(&flow.sock)?;
        for index in 0..count {
            let segment = self.rx.message(index).segment.max(1);
            let data = self.rx.data(index);
            if data.is_empty() {
                return Err(wrong(flow, "an empty answer"));
            }
            for datagram in data.chunks(segment) {
                let payload = match &self.header {
                    None => datagram,
                    Some(header) => match datagram.strip_prefix(header) {
                        Some(payload) => payload,
                        None => {
                            let got = &datagram[..datagram.len().min(header.len())];
                            let what = format!("header {got:?} instead of {header:?}");
                            return Err(wrong(flow, &what));
                        }
                    },
                };
                let mark = match self.pattern.check(payload, self.size) {
                    Ok(mark) => mark,
                    Err(what) => return Err(wrong(flow, &what)),
                };
                let Some(slot) = flow.slots.get_mut(mark.slot as usize) else {
                    return Err(wrong(flow, &format!("{mark:?}: no such slot")));
                };
                if mark.flow != flow.number || mark.sequence >= flow.next {
                    return Err(wrong(flow, &format!("{mark:?}: not sent here")));
                }
                if slot.sequence == mark.sequence && slot.sent.take().is_some() {
                    flow.free.push(mark.slot);
                    self.counts.answers += 1;
                } else {
                    self.counts.late += 1;
                }
            }
        }
        Ok(count)
    }

    /// Sends until the window is full.
    fn fill(&mut self, flow: &mut Flow, now: Instant) -> io::Result<()> {
        let (frame, head) = (self.frame(), self.frame() - self.size);
        while !flow.free.is_empty() {
            let batch = flow.free.len().min(BATCH);
            let slots = flow.free.drain(flow.free.len() - batch..);
            for (frame, slot) in self.frames.chunks_exact_mut(frame).zip(slots) {
                let mark = Mark {
                    flow: flow.number,
                    slot,
                    sequence: flow.next,
                };
                self.pattern.write(mark, &mut frame[head..]);
                flow.slots[slot as usize] = Slot {
                    sequence: flow.next,
                    sent: Some(now),
                };
                flow.next += 1;
            }
            let frames = &self.frames[..batch * frame];
            let unsent = if self.gso {
                flow.sock.send_cut(frames, frame)?
            } else {
                let piece = |i| &frames[i * frame..(i + 1) * frame];
                self.tx.send(&flow.sock, &[None; BATCH][..batch], piece)
            };
            self.counts.unsent += unsent as u64;
        }
        Ok(())
    }

    /// Gives up what has been in flight for too long.
    fn sweep(&mut self, flow: &mut Flow, now: Instant) {
        for (number, slot) in (0..).zip(&mut flow.slots) {
            if slot
                .sent
                .is_some_and(|sent| now.duration_since(sent) > SILENCE)
            {
                slot.sent = None;
                flow.free.push(number);
                self.counts.lost += 1;
            }
        }
    }

    /// Sends back what has come to the echo server. Returns whether something had.
    fn answer(&mut self) -> io::Result<bool> {
        let mut any = false;
        // A bound, for an echo server that gets all that it can take.
        for _ in 0..16 {
            let count = self.rx.receive(&self.echo)?;
            any |= count > 0;
            let unsent = if self.gso {
                let (rx, echo) = (&self.rx, &mut self.echo);
                send_joined(
                    rx,
                    0..count,
                    echo,
                    |i| Some(rx.message(i).from),
                    Framing::Same,
                )?
            } else {
                let to: [Option<SockaddrIn>; BATCH] =
                    std::array::from_fn(|i| Some(self.rx.message(i).from));
                self.tx.send(&self.echo, &to[..count], |i| self.rx.data(i))
            };
            self.counts.unsent += unsent as u64;
            if count < BATCH {
                break;
            }
        }
        Ok(any)
    }
}

fn wrong(flow: &Flow, what: &str) -> io::Error {
    io::Error::other(format!("WRONG ANSWER on flow {}: {what}", flow.number))
}

fn flow(options: &Options, number: u32) -> io::Result<Flow> {
    let mut sock = Sock::bind(SocketAddrV4::new(Ipv4Addr::LOCALHOST, 0))?;
    if options.gso {
        sock.receive_gro()?;
        let header = options.socks.map_or(0, |_| socks::HEADER);
        sock.cut_at(usize::from(options.size) + header)?;
    }
    let (control, relay) = match (options.socks, options.plain) {
        (Some(server), _) => {
            let client = if options.announce_nothing {
                SocketAddrV4::new(Ipv4Addr::UNSPECIFIED, 0)
            } else {
                sock.local()?
            };
            let (control, relay) = socks::associate(server, client)?;
            control.set_nonblocking(true)?;
            (Some(control), relay)
        }
        (None, Some(relay)) => (None, relay),
        (None, None) => return Err(io::Error::other("no relay")),
    };
    sock.udp.connect(relay)?;
    let empty = Slot {
        sequence: 0,
        sent: None,
    };
    Ok(Flow {
        number,
        sock,
        control,
        slots: vec![empty; options.window as usize],
        free: (0..options.window).collect(),
        next: 0,
    })
}

/// Counts and CPU times at one moment.
#[derive(Clone, Copy)]
struct Reading {
    at: Instant,
    counts: Counts,
    relay: cpu::Times,
    own: cpu::Times,
    softirqd: u64,
    machine: cpu::Machine,
}

fn read(options: &Options, counts: Counts) -> Reading {
    Reading {
        relay: options.pid.map(cpu::tree).unwrap_or_default(),
        own: cpu::process(std::process::id()),
        softirqd: cpu::softirqd(),
        machine: cpu::machine(),
        counts,
        at: Instant::now(),
    }
}

pub(crate) fn run(options: &Options) -> io::Result<()> {
    let size = usize::from(options.size);
    if size < HEAD {
        return Err(io::Error::other("a payload has 16 bytes at least"));
    }
    let any = SocketAddrV4::new(Ipv4Addr::LOCALHOST, 0);
    let echo = Sock::bind(options.echo.unwrap_or(any))?;
    if options.gso {
        echo.receive_gro()?;
    }
    let header = options
        .socks
        .map(|_| echo.local().map(socks::header))
        .transpose()?;
    let mut generator = Generator {
        size,
        header,
        gso: options.gso,
        pattern: Pattern::new(size),
        rx: Rx::new(size + 64, options.gso),
        tx: Tx::new(),
        frames: vec![0; BATCH * (size + socks::HEADER)],
        echo,
        counts: Counts::default(),
    };
    if let Some(header) = header {
        for frame in generator.frames.chunks_exact_mut(size + header.len()) {
            frame[..header.len()].copy_from_slice(&header);
        }
    }
    let mut flows = (0..options.flows)
        .map(|number| flow(options, number))
        .collect::<io::Result<Vec<_>>>()?;

    let warm_up = Duration::from_secs_f64(options.warm_up);
    let measured = Duration::from_secs_f64(options.seconds);
    let begin = Instant::now();
    let (mut now, mut swept) = (begin, begin);
    let mut first: Option<Reading> = None;
    let last = loop {
        let mut busy = false;
        for flow in &mut flows {
            match generator.take(flow) {
                Ok(count) => busy |= count > 0,
                Err(error) => {
                    let done = read(options, generator.counts);
                    report(options, first.unwrap_or(done), done, 1);
                    return Err(error);
                }
            }
            generator.fill(flow, now)?;
            // Between any two flows, lest all of them wait for it.
            busy |= generator.answer()?;
        }
        let before = std::mem::replace(&mut now, Instant::now());
        if !busy {
            generator.counts.idle += now - before;
        }
        if now - swept > SWEEP {
            swept = now;
            for flow in &mut flows {
                generator.sweep(flow, now);
            }
        }
        match first {
            None if now - begin > warm_up => {
                if generator.counts.answers == 0 {
                    return Err(io::Error::other("no answers"));
                }
                let reading = read(options, generator.counts);
                now = reading.at;
                first = Some(reading);
            }
            Some(reading) if now - reading.at > measured => {
                break read(options, generator.counts);
            }
            _ => {}
        }
    };
    let first = first.unwrap_or(last);
    report(options, first, last, 0);
    for flow in &mut flows {
        if let Some(control) = &mut flow.control {
            let open = control
                .read(&mut [0; 16])
                .is_err_and(|error| error.kind() == io::ErrorKind::WouldBlock);
            if !open {
                return Err(io::Error::other("the relay has ended an association"));
            }
        }
    }
    Ok(())
}

fn report(options: &Options, first: Reading, last: Reading, wrong: u64) {
    let elapsed = (last.at - first.at).as_secs_f64().max(1e-9);
    let datagrams = 2 * (last.counts.answers - first.counts.answers);
    let relay = last.relay - first.relay;
    let own = last.own - first.own;
    let share = |nanoseconds: u64| nanoseconds as f64 / 1e9 / elapsed;
    let each = |nanoseconds: u64| nanoseconds as f64 / datagrams.max(1) as f64;
    println!(
        "{{\"peer\":\"{}\",\"framing\":\"{}\",\"gso\":{},\"size\":{},\"flows\":{},\"window\":{},\
         \"seconds\":{elapsed:.3},\"dps\":{:.0},\"cpu_ns\":{:.1},\"losses\":{},\"late\":{},\
         \"unsent\":{},\"wrong\":{wrong},\"relay_busy\":{:.3},\"relay_wait\":{:.3},\
         \"load_idle\":{:.3},\"load_wait\":{:.3},\"softirqd_ns\":{:.1},\"others\":{:.3},\"stolen\":{:.3}}}",
        options.peer,
        if options.socks.is_some() {
            "socks"
        } else {
            "plain"
        },
        options.gso,
        options.size,
        options.flows,
        options.window,
        datagrams as f64 / elapsed,
        each(relay.ran),
        last.counts.lost - first.counts.lost,
        last.counts.late - first.counts.late,
        last.counts.unsent - first.counts.unsent,
        share(relay.ran),
        share(relay.waited),
        (last.counts.idle - first.counts.idle).as_secs_f64() / elapsed,
        share(own.waited),
        each(last.softirqd - first.softirqd),
        share((last.machine.busy - first.machine.busy).saturating_sub(relay.ran + own.ran)),
        share(last.machine.stolen - first.machine.stolen),
    );
}
