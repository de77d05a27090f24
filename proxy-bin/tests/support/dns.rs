//! A name server on loopback whose answers a test decides.

use std::collections::HashMap;
use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::sync::{Arc, Mutex};

/// Answers every question at once; names without an address do not exist.
pub(crate) struct Names {
    pub(crate) address: SocketAddr,
    asked: Arc<Mutex<HashMap<String, usize>>>,
}

impl Names {
    /// `answer` is given the name in small letters and how often it was asked
    /// for before, with the same type of record.
    pub(crate) fn start(answer: impl Fn(&str, usize) -> Vec<IpAddr> + Send + 'static) -> Self {
        let socket = UdpSocket::bind("127.0.0.1:0").expect("bound");
        let address = socket.local_addr().expect("bound");
        let asked = Arc::new(Mutex::new(HashMap::new()));
        let counts = Arc::clone(&asked);
        // Ends with the test's process.
        std::thread::spawn(move || {
            let mut buffer = [0; 1500];
            while let Ok((n, from)) = socket.recv_from(&mut buffer) {
                let Some((name, kind, end)) = question(&buffer[..n]) else {
                    continue;
                };
                let before = {
                    let mut counts = counts.lock().expect("no other thread failed");
                    let count = counts.entry(format!("{name} {kind}")).or_insert(0);
                    *count += 1;
                    *count - 1
                };
                let found = answer(&name, before);
                let _ = socket.send_to(&reply(&buffer[..end], kind, &found), from);
            }
        });
        Self { address, asked }
    }

    /// How often a name was asked for, whatever the type.
    pub(crate) fn asked(&self, name: &str) -> usize {
        let counts = self.asked.lock().expect("no other thread failed");
        let of_name = |(key, count): (&String, &usize)| {
            (key.split(' ').next() == Some(name)).then_some(*count)
        };
        counts.iter().filter_map(of_name).sum()
    }
}

/// Name, type, and where the question ends (RFC 1035 section 4.1.2).
fn question(message: &[u8]) -> Option<(String, u16, usize)> {
    let mut at = 12;
    let mut labels = Vec::new();
    loop {
        let length = usize::from(*message.get(at)?);
        at += 1;
        if length == 0 {
            break;
        }
        let label = message.get(at..at + length)?;
        labels.push(String::from_utf8_lossy(label).to_ascii_lowercase());
        at += length;
    }
    let kind = u16::from_be_bytes([*message.get(at)?, *message.get(at + 1)?]);
    Some((labels.join("."), kind, at + 4))
}

fn reply(question: &[u8], kind: u16, found: &[IpAddr]) -> Vec<u8> {
    let records: Vec<Vec<u8>> = found
        .iter()
        .filter_map(|ip| match ip {
            IpAddr::V4(ip) if kind == 1 => Some(ip.octets().to_vec()),
            IpAddr::V6(ip) if kind == 28 => Some(ip.octets().to_vec()),
            _ => None,
        })
        .collect();
    let mut out = question.to_vec();
    // An authoritative answer; no such name, if there is no address at all.
    out[2] = 0x84 | (question[2] & 1);
    out[3] = if found.is_empty() { 0x83 } else { 0x80 };
    let count = u16::try_from(records.len()).expect("few").to_be_bytes();
    out[6..12].copy_from_slice(&[count[0], count[1], 0, 0, 0, 0]);
    for data in records {
        out.extend([0xc0, 12]);
        out.extend(kind.to_be_bytes());
        out.extend([0, 1]);
        // Not to be kept.
        out.extend([0, 0, 0, 0]);
        out.extend(u16::try_from(data.len()).expect("short").to_be_bytes());
        out.extend(data);
    }
    out
}
