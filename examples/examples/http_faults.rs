//! A fault injector: what a client under test asks for, or chance, goes wrong on the way.
//!
//! A request with `X-Fault: reject 503`, `X-Fault: answer 200` or `X-Fault: cut 1000` gets
//! that; of the others, so many percent get one of the three, the same ones for the same
//! seed. (An answer that arrives in one piece cannot be cut: it is refused with 502.)
//!
//! ```text
//! cargo run -p examples --example http_faults -- 127.0.0.1:3128 example.com 5 42
//! curl -x http://127.0.0.1:3128 -H 'X-Fault: reject 503' http://example.com/
//! ```

use std::cell::Cell;
use std::io;

use proxy_http::{Answer, Chunk, Direction, Filter, Flow, HeadEdit};

/// What goes wrong, and for whom.
struct Faults {
    /// Only what goes there is left to chance; everywhere without one.
    host: Option<String>,
    percent: u64,
    random: Cell<u64>,
}

#[derive(Clone, Copy)]
enum Fault {
    Answer(u16),
    /// Behind at most so many bytes of content.
    Cut(usize),
    Reject(u16),
}

/// How many bytes of an answer are to pass, if not all.
#[derive(Default)]
struct Allowance(Option<usize>);

impl Filter<Allowance> for Faults {
    fn request(&self, allowance: &mut Allowance, head: &mut HeadEdit<'_>) -> Flow {
        let fault = match head.get("x-fault") {
            Some(wish) => Fault::parse(wish),
            None => self.chance(head),
        };
        head.remove("x-fault");
        match fault {
            None => Flow::Pass,
            Some(Fault::Answer(status)) => match Answer::new(status) {
                Ok(mut answer) => {
                    answer.body("not from the origin\n");
                    answer.into()
                }
                Err(_) => Flow::Reject(500),
            },
            Some(Fault::Cut(most)) => {
                allowance.0 = Some(most);
                Flow::Pass
            }
            Some(Fault::Reject(status)) => Flow::Reject(status),
        }
    }

    fn response(&self, allowance: &mut Allowance, _: &mut HeadEdit<'_>) -> Flow {
        allowance.0.map_or(Flow::Pass, |_| Flow::Inspect)
    }

    fn body(&self, allowance: &mut Allowance, _: Direction, chunk: &mut Chunk<'_>) -> Flow {
        match allowance.0 {
            Some(left) if chunk.bytes().len() > left => return Flow::Reject(502),
            Some(left) => allowance.0 = Some(left - chunk.bytes().len()),
            None => return Flow::Pass,
        }
        Flow::Inspect
    }
}

impl Faults {
    fn chance(&self, head: &HeadEdit<'_>) -> Option<Fault> {
        let host = head.get("host").unwrap_or_default();
        let host = host.split(|byte| *byte == b':').next();
        let meant = match &self.host {
            Some(name) => host == Some(name.as_bytes()),
            None => true,
        };
        if !meant || self.draw() % 100 >= self.percent {
            return None;
        }
        Some(match self.draw() % 3 {
            0 => Fault::Answer(200),
            1 => Fault::Cut(usize::try_from(self.draw() % 100_000).unwrap_or(0)),
            _ => Fault::Reject(503),
        })
    }

    /// The next number of a xorshift generator.
    fn draw(&self) -> u64 {
        let mut n = self.random.get();
        n ^= n << 13;
        n ^= n >> 7;
        n ^= n << 17;
        self.random.set(n);
        n >> 16
    }
}

impl Fault {
    fn parse(wish: &[u8]) -> Option<Self> {
        let (word, number) = std::str::from_utf8(wish).ok()?.split_once(' ')?;
        match word {
            "answer" => Some(Self::Answer(number.parse().ok()?)),
            "cut" => Some(Self::Cut(number.parse().ok()?)),
            "reject" => Some(Self::Reject(number.parse().ok()?)),
            _ => None,
        }
    }
}

fn main() -> io::Result<()> {
    let mut arguments = std::env::args().skip(2);
    let host = arguments.next();
    let mut number = || arguments.next().and_then(|text| text.parse().ok());
    let percent = number().unwrap_or(0);
    let random = Cell::new(number().unwrap_or(1).max(1));
    let faults = Faults {
        host,
        percent,
        random,
    };
    examples::serve("a proxy with faults", faults)
}
