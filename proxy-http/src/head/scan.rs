//! The line scanner behind both parsers: each byte of a growing head is looked
//! at once.

use memchr::memchr;
use proxy_core::{HeadLimits, Status};

use super::field::{Field, offset};
use super::{HeaderTable, Version};
use crate::HeadError;

/// What differs between requests and responses.
pub(super) trait StartLine: Default {
    /// Empty lines to be skipped before the start line (RFC 9112 section 2.2).
    const LEADING_BLANKS: u8;
    /// The error for a start line that does not end within the limit.
    const UNENDED: HeadError;

    /// Refuses what cannot become a start line any more. `prefix` grows from
    /// call to call; only its bytes from `new` on were not shown before.
    fn could_begin(prefix: &[u8], new: usize) -> Result<(), HeadError>;

    /// Reads the start line without its CRLF; it begins at `at`.
    fn parse(line: &[u8], at: usize) -> Result<(Self, Version), HeadError>;

    /// Applies the rules that need the whole head.
    fn finish(&self, table: &mut HeaderTable, bytes: &[u8]) -> Result<(), HeadError>;
}

/// An incremental parse of one head after another.
///
/// Offsets refer to the first byte of the slice that the head was found in.
/// The field table keeps its memory from head to head.
#[derive(Clone, Debug)]
pub(super) struct Scan<L> {
    pub(super) table: HeaderTable,
    pub(super) line: L,
    limits: HeadLimits,
    /// Where the line that is not complete yet begins.
    next: usize,
    /// How many bytes were searched for a line end.
    looked: usize,
    blanks: u8,
    phase: Phase,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    Start,
    Fields,
    Over,
}

impl<L: StartLine> Scan<L> {
    pub(super) fn new(limits: HeadLimits) -> Self {
        Self {
            table: HeaderTable::default(),
            line: L::default(),
            limits,
            next: 0,
            looked: 0,
            blanks: 0,
            phase: Phase::Start,
        }
    }

    /// Forgets the head begun or parsed, keeps the memory.
    pub(super) fn reset(&mut self) {
        self.table.clear();
        self.line = L::default();
        self.next = 0;
        self.looked = 0;
        self.blanks = 0;
        self.phase = Phase::Start;
    }

    /// Goes on with `input`, which begins with the bytes of the last call if
    /// that was partial. The count is the length of the head.
    pub(super) fn advance(&mut self, input: &[u8]) -> Result<Status<()>, HeadError> {
        if self.phase == Phase::Over || input.len() < self.looked {
            self.reset();
        }
        let result = self.lines(input);
        if !matches!(result, Ok(Status::Partial)) {
            self.phase = Phase::Over;
        }
        result
    }

    fn lines(&mut self, input: &[u8]) -> Result<Status<()>, HeadError> {
        loop {
            let Some(gap) = memchr(b'\n', &input[self.looked..]) else {
                return self.unended(input);
            };
            let end = self.looked + gap + 1;
            if end > self.limits.max_head_bytes() {
                return self.unended(input);
            }
            let line = &input[self.next..end];
            if self.phase == Phase::Start {
                self.start_line(line)?;
            } else if line == b"\r\n" {
                self.table.end = offset(end);
                self.finish(&input[..end])?;
                return Ok(Status::Complete((), end));
            } else {
                self.field(line)?;
            }
            self.next = end;
            self.looked = end;
        }
    }

    /// The input ends inside a line, or the line ends beyond the limit.
    fn unended(&mut self, input: &[u8]) -> Result<Status<()>, HeadError> {
        let limit = self.limits.max_head_bytes();
        let new = self.looked;
        self.looked = input.len();
        if self.phase == Phase::Start {
            let prefix = &input[self.next..input.len().min(limit)];
            self.could_begin(prefix, new - self.next)?;
        }
        match (input.len() > limit, self.phase) {
            (false, _) => Ok(Status::Partial),
            (true, Phase::Start) => Err(L::UNENDED),
            (true, _) => Err(HeadError::TooLarge),
        }
    }

    fn could_begin(&self, line: &[u8], new: usize) -> Result<(), HeadError> {
        // The last byte may be the CR of a CRLF to come; if not, it is looked
        // at again as an old byte.
        let text = line.strip_suffix(b"\r").unwrap_or(line);
        match text.is_empty() {
            true => Ok(()),
            false => L::could_begin(text, new.saturating_sub(1)),
        }
    }

    fn start_line(&mut self, line: &[u8]) -> Result<(), HeadError> {
        if line == b"\r\n" && self.blanks < L::LEADING_BLANKS {
            self.blanks += 1;
            return Ok(());
        }
        self.could_begin(&line[..line.len() - 1], self.looked - self.next)?;
        let text = line.strip_suffix(b"\r\n").ok_or(HeadError::LineEnd)?;
        (self.line, self.table.version) = L::parse(text, self.next)?;
        self.table.start = offset(self.next);
        self.table.fields_start = offset(self.next + line.len());
        self.phase = Phase::Fields;
        Ok(())
    }

    fn field(&mut self, line: &[u8]) -> Result<(), HeadError> {
        if !line.ends_with(b"\r\n") {
            return Err(HeadError::LineEnd);
        }
        if self.table.fields.len() >= self.limits.max_header_count() {
            return Err(HeadError::TooManyFields);
        }
        self.table.push(Field::parse(line, self.next)?);
        Ok(())
    }

    fn finish(&mut self, head: &[u8]) -> Result<(), HeadError> {
        // Every line has exactly one CR and one LF, both at its end; any other
        // control character makes the count differ.
        let lines = self.table.fields.len() + 1;
        if count_controls(&head[self.table.fields_start as usize..]) != 2 * lines {
            return Err(HeadError::Control);
        }
        self.line.finish(&mut self.table, head)
    }
}

/// Counts control characters other than HTAB (RFC 9110 section 5.5). Branch-free
/// in blocks whose count fits a byte, so that it is compiled to vector code.
fn count_controls(bytes: &[u8]) -> usize {
    let is_control = |b: u8| u8::from((b < 0x20) & (b != b'\t') | (b == 0x7f));
    let in_block = |block: &[u8]| block.iter().fold(0u8, |n, b| n + is_control(*b));
    bytes
        .chunks(128)
        .map(|block| usize::from(in_block(block)))
        .sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn controls_are_counted_across_blocks() {
        let all: Vec<u8> = (0..=255).collect();
        assert_eq!(count_controls(&all), 32);
        assert_eq!(count_controls(&[b'\n'; 1000]), 1000);
        assert_eq!(count_controls(b"\t a\x80\xff"), 0);
    }
}
