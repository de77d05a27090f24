//! The origin of the mix: does what the commands in a tunnel ask for, and
//! answers HTTP requests.

use std::io::ErrorKind;
use std::sync::Arc;
use std::time::Duration;

use socket2::SockRef;
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::{TcpListener, TcpStream};

use super::Tally;
use super::scenes::KERNEL_BUFFER;
use super::wire::{Act, Command, send, take, take_end};
use crate::support::Pattern;

/// Serves until it is dropped.
pub(crate) async fn serve(listener: TcpListener, tally: Arc<Tally>) {
    loop {
        match listener.accept().await {
            Ok((stream, _)) => {
                let tally = Arc::clone(&tally);
                tokio::spawn(async move {
                    if let Err(fault) = serve_one(stream).await {
                        tally.fault("origin", fault);
                    }
                });
            }
            Err(error) => tally.fault("origin", format!("cannot accept: {error}")),
        }
    }
}

async fn serve_one(mut stream: TcpStream) -> Result<(), String> {
    let buffers = SockRef::from(&stream).set_send_buffer_size(KERNEL_BUFFER as usize);
    let prepared = buffers.and_then(|()| stream.set_nodelay(true));
    prepared.map_err(|error| error.to_string())?;
    let mut first = [0];
    match stream.peek(&mut first).await {
        // A tunnel that carried nothing.
        Ok(0) => Ok(()),
        Ok(_) if first[0].is_ascii_uppercase() => serve_http(stream).await,
        Ok(_) => serve_commands(&mut stream).await,
        Err(error) => Err(format!("before the first byte: {error}")),
    }
}

async fn serve_commands(stream: &mut TcpStream) -> Result<(), String> {
    let mut bytes = [0; 16];
    loop {
        match stream.read_exact(&mut bytes).await {
            Ok(_) => {}
            Err(error) if error.kind() == ErrorKind::UnexpectedEof => return Ok(()),
            Err(error) => return Err(format!("instead of a command: {error}")),
        }
        let command = Command::parse(bytes).ok_or_else(|| format!("no command: {bytes:?}"))?;
        let done = obey(stream, command).await;
        match done.map_err(|fault| format!("{command:?}: {fault}"))? {
            true => {}
            false => return Ok(()),
        }
    }
}

/// Whether there may be another command.
async fn obey(stream: &mut TcpStream, command: Command) -> Result<bool, String> {
    let Command { act, up, down, .. } = command;
    if act != Act::Leave {
        take(stream, command.upwards(), up, Duration::ZERO).await?;
    }
    if act == Act::Finish {
        take_end(stream).await?;
    }
    tokio::time::sleep(command.pause()).await;
    let sent = send(stream, command.downwards(), down).await;
    match act {
        Act::Answer => sent.map(|()| true),
        Act::Finish => sent.map(|()| false),
        Act::Leave => {
            sent?;
            let ended = stream.shutdown().await;
            ended.map_err(|error| format!("cannot end: {error}"))?;
            take(stream, command.upwards(), up, Duration::ZERO).await?;
            take_end(stream).await.map(|()| false)
        }
        Act::Reset => {
            sent?;
            let reset = SockRef::from(&*stream).set_linger(Some(Duration::ZERO));
            reset.map_err(|error| error.to_string()).map(|()| false)
        }
        Act::Lose => {
            // The client resets in the middle of the answer or behind it, and
            // that must not look like an orderly end.
            if sent.is_ok() && take_end(stream).await.is_ok() {
                return Err("a reset became an orderly end".to_owned());
            }
            Ok(false)
        }
    }
}

/// `GET /COUNT/SEED` and `POST /COUNT/SEED` with a body of so many bytes.
async fn serve_http(stream: TcpStream) -> Result<(), String> {
    let mut stream = BufReader::with_capacity(4096, stream);
    let mut head = String::new();
    loop {
        head.clear();
        loop {
            let before = head.len();
            match stream.read_line(&mut head).await {
                Ok(0) if head.is_empty() => return Ok(()),
                Ok(0) => return Err(format!("ended in a head: {head:?}")),
                Ok(_) if &head[before..] == "\r\n" => break,
                Ok(_) => {}
                // The proxy may give up an idle connection.
                Err(error) if head.is_empty() && error.kind() == ErrorKind::ConnectionReset => {
                    return Ok(());
                }
                Err(error) => return Err(format!("in a head: {error}")),
            }
        }
        let mut words = head.split([' ', '/']);
        let method = words.next();
        let mut number = || words.find_map(|word| word.parse::<u32>().ok());
        let (Some(count), Some(seed)) = (number(), number()) else {
            return Err(format!("not of ours: {head:?}"));
        };
        let pattern = Pattern::seeded(seed);
        let answer = match method {
            Some("POST") => {
                take(&mut stream, pattern, count, Duration::ZERO).await?;
                0
            }
            _ => count,
        };
        let head = format!("HTTP/1.1 200 OK\r\nContent-Length: {answer}\r\n\r\n");
        let sent = stream.write_all(head.as_bytes()).await;
        sent.map_err(|error| format!("cannot answer: {error}"))?;
        send(&mut stream, pattern, answer).await?;
    }
}
