//! What a client of the mix does with one connection.

use std::io::ErrorKind;
use std::net::{Ipv4Addr, SocketAddr};
use std::time::{Duration, Instant};

use socket2::SockRef;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpSocket, TcpStream};

use super::wire::{Act, Command, send, take, take_end};
use super::{Places, Tally};
use crate::support::{Pattern, Random};

/// A client before its next connection.
pub(crate) struct Stage<'s> {
    pub(crate) places: Places,
    pub(crate) from: Ipv4Addr,
    /// The origin.
    pub(crate) to: SocketAddr,
    /// When the mix is over.
    pub(crate) end: Instant,
    pub(crate) random: &'s mut Random,
    pub(crate) tally: &'s Tally,
}

/// Bytes of a tunnel.
#[derive(Clone, Copy, Default)]
struct Counts {
    up: u64,
    down: u64,
}

impl Stage<'_> {
    /// Plays a scene; long ones are in the majority at any time.
    pub(crate) async fn play(&mut self) -> (&'static str, Result<(), String>) {
        let choice = self.random.below(100);
        let (name, scene): (_, std::pin::Pin<Box<dyn Future<Output = _> + Send + '_>>) =
            match choice {
                0..18 => ("requests", Box::pin(self.requests())),
                18..28 => ("posts", Box::pin(self.posts())),
                28..40 => ("chat", Box::pin(self.chat())),
                40..52 => ("download", Box::pin(self.download())),
                52..60 => ("upload", Box::pin(self.upload())),
                60..76 => ("idle", Box::pin(self.idle())),
                76..84 => ("half-closed by the client", Box::pin(self.finish())),
                84..92 => ("half-closed by the origin", Box::pin(self.leave())),
                92..96 => ("reset by the client", Box::pin(self.client_reset())),
                _ => ("reset by the origin", Box::pin(self.origin_reset())),
            };
        match tokio::time::timeout(LONGEST, scene).await {
            Ok(result) => (name, result),
            Err(_) => (name, Err("hangs".to_owned())),
        }
    }

    /// Some requests on a kept connection, with time to think.
    async fn requests(&mut self) -> Result<(), String> {
        let mut stream = self.connect(self.places.http).await?;
        for _ in 0..=self.random.below(6) {
            let count = self.up_to(8000);
            let seed = self.seed();
            let head = format!(
                "GET http://{to}/{count}/{seed} HTTP/1.1\r\nHost: {to}\r\n\r\n",
                to = self.to
            );
            self.exchange(&mut stream, &head, 0, count, seed).await?;
            self.think(2000).await;
        }
        Ok(())
    }

    /// A request with a body; then the connection is not needed any more.
    async fn posts(&mut self) -> Result<(), String> {
        let mut stream = self.connect(self.places.http).await?;
        let count = self.up_to(200_000);
        let seed = self.seed();
        let head = format!(
            "POST http://{to}/{count}/{seed} HTTP/1.1\r\nHost: {to}\r\nConnection: close\r\n\
             Content-Length: {count}\r\n\r\n",
            to = self.to
        );
        self.exchange(&mut stream, &head, count, 0, seed).await?;
        take_end(&mut stream).await
    }

    /// Messages to and fro.
    async fn chat(&mut self) -> Result<(), String> {
        let mut stream = self.tunnel().await?;
        let mut counts = Counts::default();
        for _ in 0..=self.random.below(8) {
            let command = self.command(Act::Answer, 2000, 20_000);
            self.ask(&mut stream, command, Duration::ZERO, &mut counts)
                .await?;
            self.think(1000).await;
        }
        self.end(stream, counts).await
    }

    /// A reader that takes its time.
    async fn download(&mut self) -> Result<(), String> {
        let mut stream = self.tunnel().await?;
        let mut counts = Counts::default();
        let command = self.command(Act::Answer, 100, 1 << 20);
        let pace = Duration::from_millis(self.random.below(1600) as u64);
        let pace = pace.min(self.left() / (command.down >> 16).max(1));
        self.ask(&mut stream, command, pace, &mut counts).await?;
        self.end(stream, counts).await
    }

    async fn upload(&mut self) -> Result<(), String> {
        let mut stream = self.tunnel().await?;
        let mut counts = Counts::default();
        let command = self.command(Act::Answer, 4 << 20, 100);
        self.ask(&mut stream, command, Duration::ZERO, &mut counts)
            .await?;
        self.end(stream, counts).await
    }

    /// A tunnel that nothing passes through for a while.
    async fn idle(&mut self) -> Result<(), String> {
        let mut stream = self.tunnel().await?;
        let mut counts = Counts::default();
        for wait in [10_000 + self.random.below(50_000), 0] {
            let command = self.command(Act::Answer, 64, 64);
            self.ask(&mut stream, command, Duration::ZERO, &mut counts)
                .await?;
            self.wait(wait).await;
        }
        self.end(stream, counts).await
    }

    /// The client ends its side first; the answer comes long after.
    async fn finish(&mut self) -> Result<(), String> {
        let mut stream = self.tunnel().await?;
        let mut command = self.command(Act::Finish, 100_000, 1 << 20);
        command.pause = self.pause();
        self.say(&mut stream, command).await?;
        shutdown(&mut stream).await?;
        take(
            &mut stream,
            command.downwards(),
            command.down,
            Duration::ZERO,
        )
        .await?;
        take_end(&mut stream).await?;
        Tally::add(&self.tally.client_finished, 1);
        self.count(command);
        Ok(())
    }

    /// The origin ends its side first; the client has more to say.
    async fn leave(&mut self) -> Result<(), String> {
        let mut stream = self.tunnel().await?;
        let command = self.command(Act::Leave, 1 << 20, 100_000);
        write(&mut stream, &command.encode()).await?;
        take(
            &mut stream,
            command.downwards(),
            command.down,
            Duration::ZERO,
        )
        .await?;
        take_end(&mut stream).await?;
        let pause = self.pause();
        self.wait(pause.into()).await;
        send(&mut stream, command.upwards(), command.up).await?;
        shutdown(&mut stream).await?;
        // The proxy has passed the end on when it ends as well.
        take_end(&mut stream).await?;
        Tally::add(&self.tally.origin_finished, 1);
        self.count(command);
        Ok(())
    }

    /// The client gives up in the middle of an answer, or while nothing moves.
    async fn client_reset(&mut self) -> Result<(), String> {
        let mut stream = self.tunnel().await?;
        let command = self.command(Act::Lose, 1000, 4 << 20);
        self.say(&mut stream, command).await?;
        let taken = match self.random.below(2) {
            0 => command.down,
            _ => self.up_to(command.down as usize),
        };
        take(&mut stream, command.downwards(), taken, Duration::ZERO).await?;
        Tally::add(&self.tally.client_reset, 1);
        let reset = SockRef::from(&stream).set_linger(Some(Duration::ZERO));
        reset.map_err(|error| error.to_string())
    }

    /// The origin resets; what it sent before may be lost, but nothing is wrong
    /// and the end is no orderly one.
    async fn origin_reset(&mut self) -> Result<(), String> {
        let mut stream = self.tunnel().await?;
        let command = self.command(Act::Reset, 1000, 100_000);
        self.say(&mut stream, command).await?;
        Tally::add(&self.tally.origin_reset, 1);
        let pattern = command.downwards();
        let (mut buffer, mut position) = (vec![0; 4096], 0);
        loop {
            match stream.read(&mut buffer).await {
                Ok(0) => return Err("a reset became an orderly end".to_owned()),
                Ok(count) => {
                    let mut checked = 0;
                    while checked < count {
                        let wanted = pattern.at(position, (count - checked) as u64);
                        if buffer[checked..checked + wanted.len()] != *wanted {
                            return Err(format!("differs behind byte {position}"));
                        }
                        checked += wanted.len();
                        position += wanted.len() as u64;
                    }
                }
                Err(error) if error.kind() == ErrorKind::ConnectionReset => return Ok(()),
                Err(error) => return Err(format!("no reset: {error}")),
            }
        }
    }

    /// One request and its answer.
    async fn exchange(
        &mut self,
        stream: &mut TcpStream,
        head: &str,
        up: u32,
        down: u32,
        seed: u32,
    ) -> Result<(), String> {
        let pattern = Pattern::seeded(seed);
        write(stream, head.as_bytes()).await?;
        send(stream, pattern, up).await?;
        let mut answer = Vec::new();
        while !answer.ends_with(b"\r\n\r\n") {
            let byte = stream.read_u8().await;
            answer.push(byte.map_err(|error| format!("in the head {answer:?}: {error}"))?);
        }
        if !answer.starts_with(b"HTTP/1.1 200 ") {
            return Err(String::from_utf8_lossy(&answer).into_owned());
        }
        take(stream, pattern, down, Duration::ZERO).await?;
        Tally::add(&self.tally.requests, 1);
        Ok(())
    }

    /// A tunnel of one of the three kinds.
    async fn tunnel(&mut self) -> Result<TcpStream, String> {
        match self.random.below(3) {
            0 => {
                let mut stream = self.connect(self.places.http).await?;
                let head = format!("CONNECT {to} HTTP/1.1\r\nHost: {to}\r\n\r\n", to = self.to);
                write(&mut stream, head.as_bytes()).await?;
                let mut answer = Vec::new();
                while !answer.ends_with(b"\r\n\r\n") {
                    let byte = stream.read_u8().await;
                    answer.push(byte.map_err(|error| format!("in the answer: {error}"))?);
                }
                match answer.starts_with(b"HTTP/1.1 200 ") {
                    true => Ok(stream),
                    false => Err(String::from_utf8_lossy(&answer).into_owned()),
                }
            }
            1 => {
                let mut stream = self.connect(self.places.socks).await?;
                let mut words = vec![5, 1, 0, 5, 1, 0, 1];
                let SocketAddr::V4(to) = self.to else {
                    return Err("an IPv6 origin".to_owned());
                };
                words.extend(to.ip().octets());
                words.extend(to.port().to_be_bytes());
                write(&mut stream, &words).await?;
                let mut answer = [0; 12];
                let read = stream.read_exact(&mut answer).await;
                read.map_err(|error| format!("in the answer: {error}"))?;
                match answer[..4] == [5, 0, 5, 0] {
                    true => Ok(stream),
                    false => Err(format!("{answer:?}")),
                }
            }
            _ => self.connect(self.places.tcp).await,
        }
    }

    async fn connect(&self, to: SocketAddr) -> Result<TcpStream, String> {
        let connect = async {
            let socket = TcpSocket::new_v4()?;
            socket.set_recv_buffer_size(KERNEL_BUFFER)?;
            socket.bind((self.from, 0).into())?;
            let stream = socket.connect(to).await?;
            stream.set_nodelay(true)?;
            std::io::Result::Ok(stream)
        };
        connect
            .await
            .map_err(|error| format!("cannot connect: {error}"))
    }

    async fn say(&self, stream: &mut TcpStream, command: Command) -> Result<(), String> {
        write(stream, &command.encode()).await?;
        send(stream, command.upwards(), command.up).await
    }

    /// Says something and takes the answer.
    async fn ask(
        &self,
        stream: &mut TcpStream,
        command: Command,
        pace: Duration,
        counts: &mut Counts,
    ) -> Result<(), String> {
        self.say(stream, command).await?;
        take(stream, command.downwards(), command.down, pace).await?;
        counts.up += Command::LENGTH + u64::from(command.up);
        counts.down += u64::from(command.down);
        Ok(())
    }

    /// Ends the client's side and waits for the origin's.
    async fn end(&self, mut stream: TcpStream, counts: Counts) -> Result<(), String> {
        shutdown(&mut stream).await?;
        take_end(&mut stream).await?;
        Tally::add(&self.tally.client_finished, 1);
        Tally::add(&self.tally.up, counts.up);
        Tally::add(&self.tally.down, counts.down);
        Ok(())
    }

    fn count(&self, command: Command) {
        let up = Command::LENGTH + u64::from(command.up);
        Tally::add(&self.tally.up, up);
        Tally::add(&self.tally.down, command.down.into());
    }

    fn command(&mut self, act: Act, up: usize, down: usize) -> Command {
        Command {
            act,
            up: self.up_to(up),
            pause: 0,
            down: self.up_to(down),
            seed: self.seed(),
        }
    }

    /// At least one.
    fn up_to(&mut self, most: usize) -> u32 {
        u32::try_from(self.random.below(most) + 1).expect("small")
    }

    fn seed(&mut self) -> u32 {
        self.up_to(1_000_000)
    }

    /// Up to twenty seconds, but not beyond the end.
    fn pause(&mut self) -> u16 {
        let most = self.left().as_millis().clamp(1, 20_000);
        let pause = self.random.below(most.try_into().expect("small"));
        u16::try_from(pause).expect("small")
    }

    async fn think(&mut self, most: usize) {
        let wait = self.random.below(most);
        self.wait(wait).await;
    }

    async fn wait(&self, milliseconds: usize) {
        let wait = Duration::from_millis(milliseconds as u64);
        tokio::time::sleep(wait.min(self.left())).await;
    }

    fn left(&self) -> Duration {
        self.end.saturating_duration_since(Instant::now())
    }
}

async fn write(stream: &mut TcpStream, bytes: &[u8]) -> Result<(), String> {
    let written = stream.write_all(bytes).await;
    written.map_err(|error| format!("cannot send: {error}"))
}

async fn shutdown(stream: &mut TcpStream) -> Result<(), String> {
    let ended = stream.shutdown().await;
    ended.map_err(|error| format!("cannot end: {error}"))
}

/// What the kernel keeps for a client or an origin. If it were free to choose, so
/// many slow readers would take all of its memory for TCP, and then it drops what
/// arrives for whomever.
pub(crate) const KERNEL_BUFFER: u32 = 128 * 1024;

/// What takes longer hangs.
const LONGEST: Duration = Duration::from_secs(180);
