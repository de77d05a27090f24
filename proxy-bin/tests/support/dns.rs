//! A name server on loopback that says what it is told.
#![allow(dead_code, reason = "each test binary uses a part")]

use std::collections::HashMap;
use std::io::{Read, Write};
use std::net::{IpAddr, SocketAddr, TcpListener, UdpSocket};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;

/// Serves UDP and TCP on one port until the process ends. Unknown names do not
/// exist; known ones have no records but those they were given.
#[derive(Clone)]
pub(crate) struct NameServer {
    pub(crate) address: SocketAddr,
    zone: Arc<Mutex<Zone>>,
}

/// How a question is answered.
#[derive(Clone, Debug)]
pub(crate) enum Reply {
    /// Another name, and its addresses if the server has any.
    Alias(&'static str, u32),
    /// Too long for UDP, and TCP stays silent.
    Cut,
    Fails,
    /// Addresses and how many seconds they hold.
    Has(Vec<IpAddr>, u32),
    Silent,
    /// As `Has`, but not by UDP.
    TooLong(Vec<IpAddr>, u32),
}

#[derive(Default)]
struct Zone {
    replies: HashMap<(String, u16), Reply>,
    asked: Vec<Question>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct Question {
    name: String,
    kind: u16,
    tcp: bool,
}

impl NameServer {
    pub(crate) fn start() -> Self {
        let (udp, tcp) = same_port();
        let server = Self {
            address: udp.local_addr().expect("address"),
            zone: Arc::default(),
        };
        let over_udp = server.clone();
        thread::spawn(move || over_udp.serve_udp(&udp));
        let over_tcp = server.clone();
        thread::spawn(move || over_tcp.serve_tcp(&tcp));
        server
    }

    /// Answers questions for `kind` of `name` so, from now on. Names are written
    /// in lower case and without a final dot.
    pub(crate) fn says(&self, name: &str, kind: u16, reply: Reply) -> &Self {
        self.zone().replies.insert((name.to_owned(), kind), reply);
        self
    }

    /// How many questions came for `kind` of `name`.
    pub(crate) fn count(&self, name: &str, kind: u16) -> usize {
        let zone = self.zone();
        let of = |asked: &&Question| asked.name == name && asked.kind == kind;
        zone.asked.iter().filter(of).count()
    }

    /// How many questions came, and how many of them by TCP.
    pub(crate) fn total(&self) -> (usize, usize) {
        let zone = self.zone();
        let tcp = zone.asked.iter().filter(|asked| asked.tcp).count();
        (zone.asked.len(), tcp)
    }

    fn zone(&self) -> std::sync::MutexGuard<'_, Zone> {
        self.zone.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn serve_udp(&self, socket: &UdpSocket) {
        let mut packet = [0; 1500];
        while let Ok((len, from)) = socket.recv_from(&mut packet) {
            if let Some(answer) = self.answer(&packet[..len], false) {
                let _ = socket.send_to(&answer, from);
            }
        }
    }

    fn serve_tcp(&self, listener: &TcpListener) {
        while let Ok((mut stream, _)) = listener.accept() {
            let server = self.clone();
            thread::spawn(move || {
                let mut length = [0; 2];
                while stream.read_exact(&mut length).is_ok() {
                    let mut packet = vec![0; u16::from_be_bytes(length).into()];
                    if stream.read_exact(&mut packet).is_err() {
                        return;
                    }
                    if let Some(answer) = server.answer(&packet, true) {
                        let length = u16::try_from(answer.len()).expect("a short answer");
                        let framed = [&length.to_be_bytes()[..], &answer].concat();
                        let _ = stream.write_all(&framed);
                    }
                }
            });
        }
    }

    fn answer(&self, packet: &[u8], tcp: bool) -> Option<Vec<u8>> {
        let (name, kind, question) = question(packet)?;
        let mut zone = self.zone();
        zone.asked.push(Question {
            name: name.clone(),
            kind,
            tcp,
        });
        let reply = zone.replies.get(&(name.clone(), kind)).cloned();
        let (mut code, mut truncated, mut records) = (0, false, Vec::new());
        match reply {
            Some(Reply::Cut) if tcp => return None,
            Some(Reply::Silent) => return None,
            Some(Reply::Fails) => code = SERVFAIL,
            Some(Reply::Cut) => truncated = true,
            Some(Reply::TooLong(..)) if !tcp => truncated = true,
            Some(Reply::Has(ips, ttl) | Reply::TooLong(ips, ttl)) => {
                records.extend(ips.iter().map(|ip| address(&name, ttl, *ip)));
            }
            Some(Reply::Alias(other, ttl)) => {
                records.push(record(&name, CNAME, ttl, &encoded(other)));
                if let Some(Reply::Has(ips, ttl)) = zone.replies.get(&(other.to_owned(), kind)) {
                    records.extend(ips.iter().map(|ip| address(other, *ttl, *ip)));
                }
            }
            None if zone.replies.keys().any(|(known, _)| *known == name) => {}
            None => code = NXDOMAIN,
        }
        Some(message(&packet[..2], code, truncated, question, &records))
    }
}

/// The name and type that are asked for, and the bytes that ask.
fn question(packet: &[u8]) -> Option<(String, u16, &[u8])> {
    let rest = packet.get(12..)?;
    let mut labels = Vec::new();
    let mut at = 0;
    loop {
        let length = usize::from(*rest.get(at)?);
        at += 1;
        if length == 0 {
            break;
        }
        let label = rest.get(at..at + length)?.to_ascii_lowercase();
        labels.push(String::from_utf8(label).ok()?);
        at += length;
    }
    let kind = u16::from_be_bytes(rest.get(at..at + 2)?.try_into().ok()?);
    Some((labels.join("."), kind, rest.get(..at + 4)?))
}

fn message(id: &[u8], code: u8, truncated: bool, question: &[u8], records: &[Vec<u8>]) -> Vec<u8> {
    let count = u16::try_from(records.len()).expect("few records");
    // RFC 1035 section 4.1.1: a response, perhaps cut, recursion asked for and had.
    let flags = [0x81 | if truncated { 2 } else { 0 }, 0x80 | code];
    let counts = [1, count, u16::from(records.is_empty()), 0].map(u16::to_be_bytes);
    let mut message = [id, &flags, counts.as_flattened(), question].concat();
    message.extend(records.concat());
    if records.is_empty() {
        // For how long there is nothing (RFC 2308 section 3).
        let numbers = [1, 1, 1, 1, NEGATIVE_TTL].map(u32::to_be_bytes);
        let data = [&[0, 0], numbers.as_flattened()].concat();
        message.extend(record("", SOA, NEGATIVE_TTL, &data));
    }
    message
}

fn address(name: &str, ttl: u32, ip: IpAddr) -> Vec<u8> {
    match ip {
        IpAddr::V4(ip) => record(name, A, ttl, &ip.octets()),
        IpAddr::V6(ip) => record(name, AAAA, ttl, &ip.octets()),
    }
}

fn record(name: &str, kind: u16, ttl: u32, data: &[u8]) -> Vec<u8> {
    let length = u16::try_from(data.len()).expect("short data");
    let head = [kind, 1].map(u16::to_be_bytes);
    [
        &encoded(name),
        head.as_flattened(),
        &ttl.to_be_bytes(),
        &length.to_be_bytes(),
        data,
    ]
    .concat()
}

fn encoded(name: &str) -> Vec<u8> {
    let mut bytes = Vec::new();
    for label in name.split('.').filter(|label| !label.is_empty()) {
        bytes.push(u8::try_from(label.len()).expect("a label"));
        bytes.extend(label.as_bytes());
    }
    bytes.push(0);
    bytes
}

fn same_port() -> (UdpSocket, TcpListener) {
    for _ in 0..100 {
        let udp = UdpSocket::bind("127.0.0.1:0").expect("bind");
        let address = udp.local_addr().expect("address");
        if let Ok(tcp) = TcpListener::bind(address) {
            return (udp, tcp);
        }
    }
    panic!("no port is free for both");
}

pub(crate) const A: u16 = 1;
pub(crate) const AAAA: u16 = 28;
pub(crate) const NEGATIVE_TTL: u32 = 7;
const CNAME: u16 = 5;
const NXDOMAIN: u8 = 3;
const SERVFAIL: u8 = 2;
const SOA: u16 = 6;
