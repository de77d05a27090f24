//! Three readers of HTTP/1.1 that share no framing code: this crate, hyper, and the http-parser of
//! Node.js (in C, from before llhttp); and a generator of messages to puzzle them with.

pub(crate) mod generate;
pub(crate) mod hyper_reader;
pub(crate) mod node_reader;
pub(crate) mod ours;

/// What a reader makes of the bytes at the front of a stream.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Reading {
    Message(Message),
    /// It waits for more.
    Partial,
    Refused(String),
}

/// A message as far as two readers can agree on it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Message {
    /// The method of a request, the status of a response.
    pub(crate) what: String,
    /// The content, without its chunks.
    pub(crate) content: Vec<u8>,
    /// How many bytes it takes.
    pub(crate) end: usize,
}

impl Reading {
    pub(crate) fn message(&self) -> Option<&Message> {
        match self {
            Self::Message(message) => Some(message),
            _ => None,
        }
    }
}

/// A reader other than this crate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Reader {
    Hyper,
    Node,
}

impl Reader {
    pub(crate) const ALL: [Self; 2] = [Self::Hyper, Self::Node];

    pub(crate) fn request(self, input: &[u8]) -> Reading {
        match self {
            Self::Hyper => hyper_reader::request(input),
            Self::Node => node_reader::request(input),
        }
    }

    /// The answer to a request with that method, interim ones passed over; the stream ends behind
    /// `input`.
    pub(crate) fn response(self, input: &[u8], method: &str) -> Reading {
        match self {
            Self::Hyper => hyper_reader::response(input, method),
            Self::Node => node_reader::response(input, method),
        }
    }
}
