//! Strict scanning of the chunked coding (RFC 9112 section 7.1), byte by byte
//! where framing is and not at all where data is.

use crate::BodyError;
use crate::head::{is_token, is_trailer_forbidden};

/// The scanner of one chunked body. Never holds a byte of it but the name of
/// the trailer field at hand.
#[derive(Clone, Debug)]
pub(crate) struct Chunks {
    state: State,
    /// Of the chunk at hand: its size while that is read, then what is left.
    left: u64,
    /// Digits of a size, bytes of an extension, bytes of all trailers.
    count: usize,
    name: [u8; MAX_FORBIDDEN],
    name_len: usize,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Size,
    Extension,
    SizeLf,
    Data,
    DataCr,
    DataLf,
    /// In front of all trailers.
    Trailers,
    TrailerStart,
    TrailerName,
    TrailerValue,
    TrailerLf,
    FinalLf,
    Over,
}

/// What lies at the front of some input: framing, then data.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Piece {
    pub(crate) framing: usize,
    pub(crate) data: usize,
}

impl Chunks {
    /// The most digits of a chunk size: below 2^60, so no recipient overflows.
    pub(crate) const MAX_DIGITS: usize = 15;
    /// The most bytes of extensions on one chunk line.
    pub(crate) const MAX_EXTENSION: usize = 256;
    /// The most bytes of all trailer lines together.
    pub(crate) const MAX_TRAILERS: usize = 16 * 1024;

    pub(crate) fn new() -> Self {
        Self {
            state: State::Size,
            left: 0,
            count: 0,
            name: [0; MAX_FORBIDDEN],
            name_len: 0,
        }
    }

    /// Goes on up to the end of the next run of data, the beginning of the
    /// trailers, the end of the body or of the input, whichever comes first.
    pub(crate) fn advance(&mut self, input: &[u8]) -> Result<Piece, BodyError> {
        for (framing, byte) in input.iter().enumerate() {
            match self.state {
                State::Data => {
                    let data = clamp(self.left, input.len() - framing);
                    self.skip(data as u64);
                    return Ok(Piece { framing, data });
                }
                State::Over => return Ok(Piece { framing, data: 0 }),
                _ => self.state = self.step(*byte)?,
            }
            if self.state == State::Trailers {
                let framing = framing + 1;
                return Ok(Piece { framing, data: 0 });
            }
        }
        Ok(Piece {
            framing: input.len(),
            data: 0,
        })
    }

    /// Passes over `n` bytes of data, at most [`opaque`](Self::opaque).
    pub(crate) fn skip(&mut self, n: u64) {
        self.left = self.left.saturating_sub(n);
        if self.state == State::Data && self.left == 0 {
            self.state = State::DataCr;
        }
    }

    pub(crate) fn is_over(&self) -> bool {
        self.state == State::Over
    }

    /// Whether what comes next is trailer lines or the empty line behind them.
    #[cfg(feature = "serve")]
    pub(crate) fn is_in_trailers(&self) -> bool {
        matches!(
            self.state,
            State::Trailers
                | State::TrailerStart
                | State::TrailerName
                | State::TrailerValue
                | State::TrailerLf
                | State::FinalLf
        )
    }

    /// How many bytes of data come next.
    pub(crate) fn opaque(&self) -> u64 {
        match self.state {
            State::Data => self.left,
            _ => 0,
        }
    }

    fn step(&mut self, byte: u8) -> Result<State, BodyError> {
        match self.state {
            State::Size => self.size(byte),
            State::Extension => self.extension(byte),
            State::SizeLf => self.size_lf(byte),
            State::DataCr => expect(byte, b'\r', State::DataLf, BodyError::ChunkEnd),
            State::DataLf => expect(byte, b'\n', State::Size, BodyError::ChunkEnd),
            State::Trailers | State::TrailerStart | State::TrailerName | State::TrailerValue => {
                self.trailer(byte)
            }
            State::TrailerLf => expect(byte, b'\n', State::TrailerStart, BodyError::Trailer),
            State::FinalLf => expect(byte, b'\n', State::Over, BodyError::Trailer),
            State::Data | State::Over => Ok(self.state),
        }
    }

    fn size(&mut self, byte: u8) -> Result<State, BodyError> {
        let digit = match byte {
            b'0'..=b'9' => byte - b'0',
            b'a'..=b'f' => byte - b'a' + 10,
            b'A'..=b'F' => byte - b'A' + 10,
            _ => return self.size_end(byte),
        };
        self.count += 1;
        if self.count > Self::MAX_DIGITS {
            return Err(BodyError::ChunkSize);
        }
        self.left = self.left << 4 | u64::from(digit);
        Ok(State::Size)
    }

    /// The blanks that RFC 9112 section 7.1.1 lets a recipient tolerate before
    /// an extension are refused, as is everything else.
    fn size_end(&mut self, byte: u8) -> Result<State, BodyError> {
        let digits = std::mem::take(&mut self.count);
        match byte {
            b'\r' if digits > 0 => Ok(State::SizeLf),
            b';' if digits > 0 => Ok(State::Extension),
            _ => Err(BodyError::ChunkSize),
        }
    }

    fn extension(&mut self, byte: u8) -> Result<State, BodyError> {
        self.count += 1;
        match byte {
            b'\r' => Ok(State::SizeLf),
            b'\t' | b' '..=b'~' | 0x80.. if self.count <= Self::MAX_EXTENSION => {
                Ok(State::Extension)
            }
            _ => Err(BodyError::ChunkExtension),
        }
    }

    fn size_lf(&mut self, byte: u8) -> Result<State, BodyError> {
        self.count = 0;
        match (byte, self.left) {
            (b'\n', 0) => Ok(State::Trailers),
            (b'\n', _) => Ok(State::Data),
            _ => Err(BodyError::ChunkSize),
        }
    }

    fn trailer(&mut self, byte: u8) -> Result<State, BodyError> {
        self.count += 1;
        if self.count > Self::MAX_TRAILERS {
            return Err(BodyError::TrailerTooLarge);
        }
        match (self.state, byte) {
            (State::Trailers | State::TrailerStart, b'\r') => Ok(State::FinalLf),
            (State::Trailers | State::TrailerStart, _) if is_token(byte) => {
                self.name_len = 0;
                self.name_byte(byte)
            }
            (State::TrailerName, b':') => self.name_end(),
            (State::TrailerName, _) if is_token(byte) => self.name_byte(byte),
            (State::TrailerValue, b'\r') => Ok(State::TrailerLf),
            (State::TrailerValue, b'\t' | b' '..=b'~' | 0x80..) => Ok(State::TrailerValue),
            _ => Err(BodyError::Trailer),
        }
    }

    fn name_byte(&mut self, byte: u8) -> Result<State, BodyError> {
        // Names too long for the array are not among the forbidden ones.
        if let Some(slot) = self.name.get_mut(self.name_len) {
            *slot = byte;
        }
        self.name_len += 1;
        Ok(State::TrailerName)
    }

    fn name_end(&mut self) -> Result<State, BodyError> {
        match self.name.get(..self.name_len) {
            Some(name) if is_trailer_forbidden(name) => Err(BodyError::TrailerForbidden),
            _ => Ok(State::TrailerValue),
        }
    }
}

fn expect(byte: u8, wanted: u8, next: State, error: BodyError) -> Result<State, BodyError> {
    match byte == wanted {
        true => Ok(next),
        false => Err(error),
    }
}

/// `have`, or `wanted` if that is less.
pub(crate) fn clamp(wanted: u64, have: usize) -> usize {
    usize::try_from(wanted).unwrap_or(usize::MAX).min(have)
}

/// The length of the longest forbidden trailer name.
const MAX_FORBIDDEN: usize = "proxy-authentication-info".len();
