//! Raw relays: the floor that others are measured against. One thread, epoll, batches of 32.

use std::collections::HashMap;
use std::io::{self, Read};
use std::net::{SocketAddrV4, TcpListener, TcpStream};

use clap::{Args, ValueEnum};
use nix::sys::epoll::{Epoll, EpollCreateFlags, EpollEvent, EpollFlags, EpollTimeout};
use nix::sys::socket::SockaddrIn;

use crate::net::{Framing, Rx, Sock, Tx, v4};
use crate::socks;

const BATCH: usize = 32;
/// The longest datagram without GRO.
const STRIDE: usize = 2048;

#[derive(Args)]
pub(crate) struct Options {
    #[arg(long, value_enum)]
    mode: Mode,
    /// UDP, or the TCP control connections of SOCKS.
    #[arg(long)]
    listen: SocketAddrV4,
    /// With SOCKS it is what the first datagram names.
    #[arg(long, required_if_eq_any([("mode", "plain"), ("mode", "gso")]))]
    target: Option<SocketAddrV4>,
}

#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Mode {
    /// Bare datagrams. One socket for clients, one upstream for each client.
    Plain,
    /// SOCKS5 UDP ASSOCIATE. Two connected sockets for each association.
    Socks,
    /// As plain, with GRO and GSO.
    Gso,
    /// As socks, with GRO and GSO.
    SocksGso,
}

pub(crate) fn run(options: &Options) -> io::Result<()> {
    let join = matches!(options.mode, Mode::Gso | Mode::SocksGso);
    let path = Path {
        rx: Rx::new(STRIDE, join),
        tx: Tx::new(),
        join,
    };
    match (options.mode, options.target) {
        (Mode::Plain | Mode::Gso, Some(target)) => plain(path, options.listen, target),
        _ => associations(path, options.listen),
    }
}

/// What all flows share.
struct Path {
    rx: Rx<BATCH>,
    tx: Tx<BATCH>,
    join: bool,
}

impl Path {
    fn bind(&self, address: SocketAddrV4) -> io::Result<Sock> {
        let sock = Sock::bind(address)?;
        if self.join {
            sock.receive_gro()?;
        }
        Ok(sock)
    }

    /// Passes on what is there.
    fn pass(
        &mut self,
        from: &Sock,
        sock: &mut Sock,
        to: Option<SockaddrIn>,
        framing: Framing<'_>,
    ) -> io::Result<()> {
        let count = self.rx.receive(from)?;
        self.tx
            .forward(&mut self.rx, 0..count, sock, to, framing, self.join)
    }
}

fn any_port(address: SocketAddrV4) -> SocketAddrV4 {
    SocketAddrV4::new(*address.ip(), 0)
}

fn waiting() -> io::Result<Epoll> {
    Ok(Epoll::new(EpollCreateFlags::EPOLL_CLOEXEC)?)
}

fn readable(token: u64) -> EpollEvent {
    EpollEvent::new(EpollFlags::EPOLLIN, token)
}

fn wait<'a>(epoll: &Epoll, events: &'a mut [EpollEvent]) -> io::Result<&'a [EpollEvent]> {
    match epoll.wait(events, EpollTimeout::NONE) {
        Ok(count) => Ok(&events[..count]),
        Err(nix::Error::EINTR) => Ok(&[]),
        Err(error) => Err(error.into()),
    }
}

const FRONT: u64 = u64::MAX;

fn plain(mut path: Path, listen: SocketAddrV4, target: SocketAddrV4) -> io::Result<()> {
    let mut front = path.bind(listen)?;
    let epoll = waiting()?;
    epoll.add(&front.udp, readable(FRONT))?;
    let mut sessions: Vec<(SockaddrIn, Sock)> = Vec::new();
    let mut known: HashMap<SockaddrIn, usize> = HashMap::new();
    let mut events = [EpollEvent::empty(); 64];
    loop {
        for event in wait(&epoll, &mut events)? {
            if event.data() != FRONT {
                let Some((client, upstream)) = sessions.get(event.data() as usize) else {
                    continue;
                };
                path.pass(upstream, &mut front, Some(*client), Framing::Same)?;
                continue;
            }
            let count = path.rx.receive(&front)?;
            let mut start = 0;
            while start < count {
                let client = path.rx.message(start).from;
                let mut end = start + 1;
                while end < count && path.rx.message(end).from == client {
                    end += 1;
                }
                let index = match known.get(&client) {
                    Some(&index) => index,
                    None => {
                        let upstream = path.bind(any_port(listen))?;
                        upstream.udp.connect(target)?;
                        epoll.add(&upstream.udp, readable(sessions.len() as u64))?;
                        known.insert(client, sessions.len());
                        sessions.push((client, upstream));
                        sessions.len() - 1
                    }
                };
                let upstream = &mut sessions[index].1;
                let range = start..end;
                path.tx.forward(
                    &mut path.rx,
                    range,
                    upstream,
                    None,
                    Framing::Same,
                    path.join,
                )?;
                start = end;
            }
        }
    }
}

struct Association {
    control: TcpStream,
    front: Sock,
    upstream: Sock,
    /// Names the target. None until the first datagram has come.
    header: Option<[u8; socks::HEADER]>,
}

impl Association {
    fn new(path: &Path, mut control: TcpStream) -> io::Result<Self> {
        let front = path.bind(any_port(v4(control.local_addr()?)?))?;
        socks::grant(&mut control, front.local()?)?;
        control.set_nonblocking(true)?;
        let upstream = path.bind(any_port(front.local()?))?;
        Ok(Self {
            control,
            front,
            upstream,
            header: None,
        })
    }

    /// Connects both sockets to whom the first datagram is from and for.
    fn meet(&mut self) -> io::Result<()> {
        let mut first = [0; STRIDE];
        let (length, client) = self.front.udp.peek_from(&mut first)?;
        if let Some(target) = socks::named(&first[..length]) {
            self.front.udp.connect(client)?;
            self.upstream.udp.connect(target)?;
            self.header = Some(socks::header(target));
        }
        Ok(())
    }

    fn outward(&mut self, path: &mut Path) -> io::Result<()> {
        if self.header.is_none() {
            self.meet()?;
        }
        let Some(header) = &self.header else {
            return Err(io::Error::other("a datagram with another SOCKS header"));
        };
        path.pass(
            &self.front,
            &mut self.upstream,
            None,
            Framing::Strip(header),
        )
    }

    fn inward(&mut self, path: &mut Path) -> io::Result<()> {
        match &self.header {
            Some(header) => path.pass(&self.upstream, &mut self.front, None, Framing::Add(header)),
            None => path.rx.receive(&self.upstream).map(drop),
        }
    }
}

fn associations(mut path: Path, listen: SocketAddrV4) -> io::Result<()> {
    let listener = TcpListener::bind(listen)?;
    let epoll = waiting()?;
    epoll.add(&listener, readable(FRONT))?;
    let mut all: HashMap<u64, Association> = HashMap::new();
    let mut next = 0;
    let mut events = [EpollEvent::empty(); 64];
    loop {
        for event in wait(&epoll, &mut events)? {
            if event.data() == FRONT {
                let new = listener
                    .accept()
                    .and_then(|(control, _)| Association::new(&path, control));
                match new {
                    Ok(new) => {
                        epoll.add(&new.control, readable(next * 4))?;
                        epoll.add(&new.front.udp, readable(next * 4 + 1))?;
                        epoll.add(&new.upstream.udp, readable(next * 4 + 2))?;
                        all.insert(next, new);
                        next += 1;
                    }
                    Err(error) => eprintln!("udpbench: {error}"),
                }
                continue;
            }
            let Some(association) = all.get_mut(&(event.data() / 4)) else {
                continue;
            };
            let done = match event.data() % 4 {
                0 => match association.control.read(&mut [0; 16]) {
                    Ok(1..) => Ok(()),
                    _ => {
                        all.remove(&(event.data() / 4));
                        continue;
                    }
                },
                1 => association.outward(&mut path),
                _ => association.inward(&mut path),
            };
            if let Err(error) = done {
                eprintln!("udpbench: {error}");
                all.remove(&(event.data() / 4));
            }
        }
    }
}
