//! What a filter sees of a body, and what it makes of it.

use std::fmt::Write as _;

use bytes::{BufMut, BytesMut};

use super::exchange::Fault;
use crate::filter::{Answer, Chunk, Direction, Flow};
use crate::{BodyError, BodyFramer, Extent, Framing};

/// What a filter wants of one message.
#[derive(Debug, Default)]
pub(super) enum View {
    /// To answer in its place.
    Answered(Box<Answer>),
    /// To see its body.
    Inspect,
    /// Nothing.
    #[default]
    Pass,
    /// To see and change its body.
    Rewrite(Box<Rewriting>),
}

/// A body that is framed anew.
#[derive(Debug, Default)]
pub(super) struct Rewriting {
    /// The filter has seen enough of it.
    blind: bool,
    /// The trailer lines with the empty line behind them, as received.
    trailers: BytesMut,
    /// What becomes of the bytes that came with the head of a request.
    pub(super) opening: BytesMut,
}

impl View {
    /// Takes the filter's word on the head of a message with this framing.
    pub(super) fn begin(
        &mut self,
        flow: Flow,
        direction: Direction,
        framing: Framing,
    ) -> Result<(), Fault> {
        *self = match flow {
            Flow::Answer(answer) => return Err(self.answer(answer)),
            Flow::Reject(status) => return Err(Fault::Rejected(direction, status)),
            Flow::Inspect if framing != Framing::None => Self::Inspect,
            Flow::Rewrite if framing != Framing::None => Self::Rewrite(Box::default()),
            Flow::Inspect | Flow::Pass | Flow::Rewrite => Self::Pass,
        };
        Ok(())
    }

    /// Shows the content of `bytes`, which are forwarded as they are.
    pub(super) fn inspect(
        &mut self,
        framer: &mut BodyFramer,
        direction: Direction,
        bytes: &[u8],
        mut ask: impl FnMut(&mut Chunk<'_>) -> Flow,
    ) -> Result<Extent, Fault> {
        let mut len = 0;
        loop {
            let rest = &bytes[len..];
            let found = framer.payload(rest).map_err(broken(direction))?;
            let (content, last) = (&rest[found.range], found.end);
            if !content.is_empty() || last {
                self.show(Chunk::fixed(content, last), direction, &mut ask)?;
            }
            len += found.used;
            if last || len == bytes.len() {
                return Ok(extent(framer, len, last));
            }
        }
    }

    /// Shows the content of `bytes` and appends what becomes of it to `out`, in
    /// chunks or bare.
    pub(super) fn reframe(
        &mut self,
        framer: &mut BodyFramer,
        (direction, chunked): (Direction, bool),
        bytes: &[u8],
        out: &mut BytesMut,
        mut ask: impl FnMut(&mut Chunk<'_>) -> Flow,
    ) -> Result<Extent, Fault> {
        let mut len = 0;
        loop {
            let rest = &bytes[len..];
            let in_trailers = framer.is_in_trailers();
            let found = framer.payload(rest).map_err(broken(direction))?;
            let (content, last) = (&rest[found.range], found.end);
            if let Self::Rewrite(rewriting) = self
                && in_trailers
                && chunked
            {
                // Not yet: content may still be added in front of them.
                rewriting.trailers.extend_from_slice(&rest[..found.used]);
            }
            if !content.is_empty() || last {
                self.put(content, last, (direction, chunked), out, &mut ask)?;
            }
            len += found.used;
            if last || len == bytes.len() {
                return Ok(extent(framer, len, last));
            }
        }
    }

    /// The end of a body that ends with its connection.
    pub(super) fn close(
        &mut self,
        (direction, chunked): (Direction, bool),
        out: &mut BytesMut,
        mut ask: impl FnMut(&mut Chunk<'_>) -> Flow,
    ) -> Result<(), Fault> {
        match self {
            Self::Rewrite(_) => self.put(&[], true, (direction, chunked), out, &mut ask),
            _ => self
                .show(Chunk::fixed(&[], true), direction, &mut ask)
                .map(drop),
        }
    }

    /// The request cannot be sent again, so how it began is of no more use.
    pub(super) fn forget_opening(&mut self) {
        if let Self::Rewrite(rewriting) = self {
            rewriting.opening = BytesMut::new();
        }
    }

    /// The answer that the filter gave, if it did.
    pub(super) fn take_answer(&mut self) -> Option<Box<Answer>> {
        match std::mem::take(self) {
            Self::Answered(answer) => Some(answer),
            other => {
                *self = other;
                None
            }
        }
    }

    /// Whether the body may be forwarded unseen.
    pub(super) fn is_pass(&self) -> bool {
        matches!(self, Self::Pass)
    }

    /// Whether the body is framed anew.
    pub(super) fn is_rewrite(&self) -> bool {
        matches!(self, Self::Rewrite(_))
    }

    /// Appends what becomes of one piece.
    fn put(
        &mut self,
        content: &[u8],
        last: bool,
        (direction, chunked): (Direction, bool),
        out: &mut BytesMut,
        ask: &mut impl FnMut(&mut Chunk<'_>) -> Flow,
    ) -> Result<(), Fault> {
        let chunk = match self {
            Self::Rewrite(_) => Chunk::open(content, last),
            _ => Chunk::fixed(content, last),
        };
        let chunk = self.show(chunk, direction, ask)?;
        let bytes = chunk.bytes();
        if !chunked {
            out.extend_from_slice(bytes);
            return Ok(());
        }
        if !bytes.is_empty() {
            // An empty chunk would be the last one.
            let _ = write!(out, "{:x}\r\n", bytes.len());
            out.extend_from_slice(bytes);
            out.put_slice(b"\r\n");
        }
        if last {
            out.put_slice(b"0\r\n");
            out.put_slice(match self {
                Self::Rewrite(rewriting) if !rewriting.trailers.is_empty() => &rewriting.trailers,
                _ => b"\r\n",
            });
        }
        Ok(())
    }

    /// Shows one piece, if the filter still wants to see any.
    fn show<'c>(
        &mut self,
        mut chunk: Chunk<'c>,
        direction: Direction,
        ask: &mut impl FnMut(&mut Chunk<'_>) -> Flow,
    ) -> Result<Chunk<'c>, Fault> {
        let wanted = match self {
            Self::Answered(_) | Self::Pass => false,
            Self::Inspect => true,
            Self::Rewrite(rewriting) => !rewriting.blind,
        };
        if wanted {
            match ask(&mut chunk) {
                Flow::Answer(answer) => return Err(self.answer(answer)),
                Flow::Inspect | Flow::Rewrite => {}
                Flow::Pass => self.look_away(),
                Flow::Reject(status) => return Err(Fault::Rejected(direction, status)),
            }
        }
        Ok(chunk)
    }

    fn look_away(&mut self) {
        match self {
            Self::Rewrite(rewriting) => rewriting.blind = true,
            view => *view = Self::Pass,
        }
    }

    fn answer(&mut self, answer: Box<Answer>) -> Fault {
        let status = answer.status();
        *self = Self::Answered(answer);
        Fault::Answered(status)
    }
}

fn extent(framer: &BodyFramer, len: usize, end: bool) -> Extent {
    Extent {
        len,
        end,
        opaque: framer.opaque(),
    }
}

/// What a body that breaks the protocol means.
fn broken(direction: Direction) -> fn(BodyError) -> Fault {
    match direction {
        Direction::Request => Fault::BadBody,
        Direction::Response => Fault::BadAnswer,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What becomes of a body that arrives in these pieces, and whether it ended.
    fn reframed(
        framing: Framing,
        chunked: bool,
        pieces: &[&[u8]],
    ) -> Result<(Vec<u8>, bool), Fault> {
        let mut framer = BodyFramer::new(framing);
        let mut view = View::Pass;
        view.begin(Flow::Rewrite, Direction::Response, framing)?;
        let mut out = BytesMut::new();
        let mut end = false;
        let upper = |chunk: &mut Chunk<'_>| {
            chunk.replace(chunk.bytes().to_ascii_uppercase());
            Flow::Rewrite
        };
        for piece in pieces {
            let way = (Direction::Response, chunked);
            if !end {
                end = view.reframe(&mut framer, way, piece, &mut out, upper)?.end;
            }
        }
        Ok((out.to_vec(), end))
    }

    /// The content of chunks and what stands behind the last of them.
    fn read(chunks: &[u8]) -> Option<(Vec<u8>, Vec<u8>)> {
        let mut framer = BodyFramer::new(Framing::Chunked);
        let (mut rest, mut content, mut trailers) = (chunks, Vec::new(), Vec::new());
        while !framer.is_over() && !rest.is_empty() {
            let in_trailers = framer.is_in_trailers();
            let found = framer.payload(rest).ok()?;
            if in_trailers {
                trailers.extend_from_slice(&rest[..found.used]);
            }
            content.extend_from_slice(&rest[found.range]);
            rest = &rest[found.used..];
        }
        (framer.is_over() && rest.is_empty()).then_some((content, trailers))
    }

    const CHUNKS: &[u8] = b"1\r\na\r\n003;x=\"y\"\r\nbcd\r\n00;z\r\nT: u\r\nV:  w\r\n\r\n";

    #[test]
    fn p20_content_and_trailers_survive_every_cut() -> Result<(), Fault> {
        for first in 0..=CHUNKS.len() {
            for second in first..=CHUNKS.len() {
                let pieces = [&CHUNKS[..first], &CHUNKS[first..second], &CHUNKS[second..]];
                let (sent, _) = reframed(Framing::Chunked, true, &pieces)?;
                let whole = Some((b"ABCD".to_vec(), b"T: u\r\nV:  w\r\n\r\n".to_vec()));
                assert_eq!(read(&sent), whole, "{first} {second}");
                let (sent, _) = reframed(Framing::Chunked, false, &pieces)?;
                assert_eq!(sent, b"ABCD");
            }
        }
        Ok(())
    }

    #[test]
    fn p16_without_the_end_there_is_no_last_chunk() -> Result<(), Fault> {
        for end in 0..CHUNKS.len() {
            let (sent, over) = reframed(Framing::Chunked, true, &[&CHUNKS[..end]])?;
            assert!(!over && read(&sent).is_none(), "{end}");
        }
        for end in 0..4 {
            let (sent, over) = reframed(Framing::Length(4), true, &[&b"abcd"[..end]])?;
            assert!(!over && read(&sent).is_none(), "{end}");
        }
        Ok(())
    }

    #[test]
    fn an_end_is_told_once() -> Result<(), Fault> {
        for (framing, body) in [(Framing::Length(0), &b""[..]), (Framing::Length(2), b"ab")] {
            let (sent, over) = reframed(framing, true, &[body])?;
            let upper = body.to_ascii_uppercase();
            assert!(over);
            assert_eq!(read(&sent), Some((upper, b"\r\n".to_vec())));
        }
        let mut view = View::Rewrite(Box::default());
        let mut out = BytesMut::new();
        let way = (Direction::Response, true);
        view.close(way, &mut out, |chunk| {
            assert!(chunk.is_last() && chunk.replace("bye"));
            Flow::Rewrite
        })?;
        assert_eq!(&out[..], b"3\r\nbye\r\n0\r\n\r\n");
        Ok(())
    }

    #[test]
    fn what_breaks_the_protocol_is_told_of_its_side() {
        let mut framer = BodyFramer::new(Framing::Chunked);
        let error = View::Inspect.inspect(&mut framer, Direction::Request, b"x", |_| Flow::Pass);
        assert_eq!(error, Err(Fault::BadBody(BodyError::ChunkSize)));
        let error = reframed(Framing::Chunked, true, &[b"1\r\nab"]);
        assert_eq!(error, Err(Fault::BadAnswer(BodyError::ChunkEnd)));
    }

    #[test]
    fn a_view_is_small() {
        assert_eq!(size_of::<View>(), 16);
    }
}
