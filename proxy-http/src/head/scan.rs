//! What both parsers share: httparse over a head that is whole, and in front of
//! it a line scanner for one that grows, which looks at each byte once.

use std::mem::MaybeUninit;

use memchr::memchr;
use proxy_core::{HeadLimits, Status};

use super::field::{Field, MAX_NAME, blanks, is_token, offset};
use super::{HeaderTable, Version};
use crate::HeadError;

/// What differs between requests and responses.
pub(super) trait StartLine: Default {
    /// Empty lines to be skipped before the start line (RFC 9112 section 2.2).
    const LEADING_BLANKS: u8;
    /// Whether blanks between a field's name and its colon are put up with (RFC
    /// 9112 section 5.1).
    const SPACED_NAMES: bool;
    /// The error for a start line that does not end within the limit.
    const UNENDED: HeadError;

    /// Refuses what cannot become a start line any more. `prefix` grows from
    /// call to call; only its bytes from `new` on were not shown before.
    fn could_begin(prefix: &[u8], new: usize) -> Result<(), HeadError>;

    /// Reads the start line at `start` and as many fields as follow it, `spaced`
    /// ones if they are put up with.
    ///
    /// An error names the fault of the start line, or is
    /// [`HeadError::TooManyFields`] when the slots do not suffice; for a faulty
    /// field it is of no meaning.
    fn parse<'s, 'b>(
        input: &'b [u8],
        start: usize,
        spaced: bool,
        slots: &'s mut [MaybeUninit<httparse::Header<'b>>],
    ) -> Result<Parsed<'s, 'b, Self>, HeadError>;

    /// Applies the rules that need the whole head.
    fn finish(&self, table: &mut HeaderTable, bytes: &[u8]) -> Result<(), HeadError>;
}

/// What httparse found.
pub(super) struct Parsed<'s, 'b, L> {
    pub(super) line: L,
    pub(super) version: Version,
    pub(super) fields: &'s [httparse::Header<'b>],
    /// The length from the start line to the empty line, if that is there.
    pub(super) len: httparse::Status<usize>,
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
    /// Where the start line begins.
    start: usize,
    /// Where the line that is not complete yet begins.
    next: usize,
    /// How many bytes were searched for a line end.
    looked: usize,
    /// Complete lines between the start line and `next`.
    lines: usize,
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
            start: 0,
            next: 0,
            looked: 0,
            lines: 0,
            blanks: 0,
            phase: Phase::Start,
        }
    }

    /// Forgets the head begun or parsed, keeps the memory.
    pub(super) fn reset(&mut self) {
        self.table.clear();
        self.line = L::default();
        self.start = 0;
        self.next = 0;
        self.looked = 0;
        self.lines = 0;
        self.blanks = 0;
        self.phase = Phase::Start;
    }

    /// Goes on with `input`, which begins with the bytes of the last call if
    /// that was partial. The count is the length of the head.
    pub(super) fn advance(&mut self, input: &[u8]) -> Result<Status<()>, HeadError> {
        if self.phase == Phase::Over || input.len() < self.looked {
            self.reset();
        }
        let result = self.look(input);
        if !matches!(result, Ok(Status::Partial)) {
            self.phase = Phase::Over;
        }
        result
    }

    /// A head nearly always comes in one piece: its end need not be searched
    /// for. Whatever else there is to say about it the scanner finds out.
    fn look(&mut self, input: &[u8]) -> Result<Status<()>, HeadError> {
        if self.looked == 0
            && let Some(end) = self.whole(input)?
        {
            return Ok(Status::Complete((), end));
        }
        self.scan(input)
    }

    /// Parses a head that is whole and flawless line by line; nothing is kept
    /// of any other.
    fn whole(&mut self, input: &[u8]) -> Result<Option<usize>, HeadError> {
        let input = &input[..input.len().min(self.limits.max_head_bytes())];
        // Empty lines are for the scanner to count.
        if matches!(input.get(self.start), None | Some(b'\r' | b'\n')) {
            return Ok(None);
        }
        let Some(end) = self.read::<USUAL_FIELDS>(input) else {
            return Ok(None);
        };
        self.line.finish(&mut self.table, &input[..end])?;
        Ok(Some(end))
    }

    /// Fills the table by way of `N` slots on the stack; returns where the head
    /// ends. Apart, so that a growing head does not pay for the frame.
    #[inline(never)]
    fn read<const N: usize>(&mut self, input: &[u8]) -> Option<usize> {
        let most = self.limits.max_header_count();
        let mut slots = [const { MaybeUninit::uninit() }; N];
        let slots = &mut slots[..most.min(N)];
        match L::parse(input, self.start, self.table.spaced, slots) {
            Ok(parsed) => self.keep(input, parsed),
            Err(HeadError::TooManyFields) if most > N => self.read_many(input),
            Err(_) => None,
        }
    }

    /// Apart, so that usual heads do not pay for so large a frame.
    #[cold]
    #[inline(never)]
    fn read_many(&mut self, input: &[u8]) -> Option<usize> {
        self.read::<MOST_FIELDS>(input)
    }

    /// Takes over what was parsed as offsets, if every line of it ends in CRLF:
    /// httparse is content with LF (RFC 9112 section 2.2).
    fn keep(&mut self, input: &[u8], parsed: Parsed<'_, '_, L>) -> Option<usize> {
        let httparse::Status::Complete(len) = parsed.len else {
            return None;
        };
        let end = self.start + len;
        let mut flawless = input[..end].ends_with(b"\r\n\r\n");
        self.table.fill(parsed.fields, |header| {
            let field = Field::of(header, input);
            let before = field.name as usize;
            flawless &= input[..before].ends_with(b"\r\n") & (header.name.len() <= MAX_NAME);
            field
        });
        if !flawless {
            self.table.clear();
            return None;
        }
        self.line = parsed.line;
        self.table.version = parsed.version;
        self.table.start = offset(self.start);
        self.table.end = offset(end);
        self.table.fields_start = self.table.line_start(0);
        Some(end)
    }

    /// Looks for the empty line, line by line, and for what rules it out.
    fn scan(&mut self, input: &[u8]) -> Result<Status<()>, HeadError> {
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
                self.start_line(input, end)?;
            } else if line == b"\r\n" {
                return self.ended(input, end);
            } else {
                self.field_line(input, end)?;
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
            could_begin::<L>(prefix, new - self.next)?;
        }
        match (input.len() > limit, self.phase) {
            (false, _) => Ok(Status::Partial),
            (true, Phase::Start) => Err(L::UNENDED),
            (true, _) => Err(self.fault(&input[..self.next], HeadError::TooLarge)),
        }
    }

    fn start_line(&mut self, input: &[u8], end: usize) -> Result<(), HeadError> {
        let line = &input[self.next..end];
        if line == b"\r\n" && self.blanks < L::LEADING_BLANKS {
            self.blanks += 1;
            self.start = end;
            return Ok(());
        }
        could_begin::<L>(&line[..line.len() - 1], 0)?;
        if !line.ends_with(b"\r\n") {
            return Err(HeadError::LineEnd);
        }
        L::parse(line, 0, false, &mut [])?;
        self.phase = Phase::Fields;
        Ok(())
    }

    /// Fields are parsed with the whole head; here their lines are counted.
    fn field_line(&mut self, input: &[u8], end: usize) -> Result<(), HeadError> {
        self.lines += 1;
        let counts = self.lines <= self.limits.max_header_count();
        match counts && input[self.next..end].ends_with(b"\r\n") {
            true => Ok(()),
            false => Err(self.fault(&input[..end], HeadError::LineEnd)),
        }
    }

    fn ended(&mut self, input: &[u8], end: usize) -> Result<Status<()>, HeadError> {
        let head = &input[..end];
        let found = match self.whole(head)? {
            None if L::SPACED_NAMES => self.whole_spaced(head)?,
            found => found,
        };
        match found {
            Some(end) => Ok(Status::Complete((), end)),
            // The names are right then, so it is a value.
            None => Err(self.fault(&input[..self.next], HeadError::Control)),
        }
    }

    /// Parses once more what has a fault: one that is put up with costs no other
    /// head anything.
    #[cold]
    fn whole_spaced(&mut self, head: &[u8]) -> Result<Option<usize>, HeadError> {
        self.table.spaced = true;
        self.whole(head)
    }

    /// Names the first fault of lines that were refused, or else `other`.
    #[cold]
    fn fault(&self, input: &[u8], other: HeadError) -> HeadError {
        let lines = input[self.start..].split_inclusive(|b| *b == b'\n').skip(1);
        let most = self.limits.max_header_count();
        lines
            .enumerate()
            .find_map(|(count, line)| match line.ends_with(b"\r\n") {
                false => Some(HeadError::LineEnd),
                true if count == most => Some(HeadError::TooManyFields),
                true => name_fault(line, L::SPACED_NAMES),
            })
            .unwrap_or(other)
    }
}

fn could_begin<L: StartLine>(line: &[u8], new: usize) -> Result<(), HeadError> {
    // The last byte may be the CR of a CRLF to come; if not, it is looked at
    // again as an old byte.
    let text = line.strip_suffix(b"\r").unwrap_or(line);
    match text.is_empty() {
        true => Ok(()),
        false => L::could_begin(text, new.saturating_sub(1)),
    }
}

/// Names what is wrong with a start line that httparse refused; `word` of its
/// three words is the version.
#[cold]
pub(super) fn start_fault(
    error: httparse::Error,
    head: &[u8],
    word: usize,
    malformed: HeadError,
) -> HeadError {
    let line = head.split(|b| *b == b'\r').next().unwrap_or_default();
    match error {
        httparse::Error::TooManyHeaders => HeadError::TooManyFields,
        httparse::Error::Version => match line.splitn(3, |b| *b == b' ').nth(word) {
            Some(version) if Version::is_other(version) => HeadError::Version,
            _ => malformed,
        },
        _ => malformed,
    }
}

/// What is wrong with the name of a field, in a line that ends in CRLF; `spaced`
/// if blanks behind it are put up with.
fn name_fault(line: &[u8], spaced: bool) -> Option<HeadError> {
    let len = line.iter().position(|b| !is_token(*b)).unwrap_or(0);
    let gap = if spaced { blanks(&line[len..]) } else { 0 };
    match (line[0], line[len + gap]) {
        (b' ' | b'\t', _) => Some(HeadError::ObsoleteFold),
        (_, b' ' | b'\t') => Some(HeadError::BlankBeforeColon),
        (_, b':') if len > MAX_NAME => Some(HeadError::TooLarge),
        (_, b':') if len > 0 => None,
        _ => Some(HeadError::FieldName),
    }
}

/// The default limit, and the highest one.
const USUAL_FIELDS: usize = 128;
const MOST_FIELDS: usize = 1024;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn faults_of_names() {
        for (line, fault) in [
            (&b"Name: a\r\n"[..], None),
            (b" Name: a\r\n", Some(HeadError::ObsoleteFold)),
            (b"\tName: a\r\n", Some(HeadError::ObsoleteFold)),
            (b"Name : a\r\n", Some(HeadError::BlankBeforeColon)),
            (b"Name\t: a\r\n", Some(HeadError::BlankBeforeColon)),
            (b"Name\r\n", Some(HeadError::FieldName)),
            (b": a\r\n", Some(HeadError::FieldName)),
            (b"Na(me: a\r\n", Some(HeadError::FieldName)),
            (b"Na\0me: a\r\n", Some(HeadError::FieldName)),
            (b"N\xc3\xa4me: a\r\n", Some(HeadError::FieldName)),
        ] {
            assert_eq!(name_fault(line, false), fault, "{line:?}");
            let spaced = match fault {
                Some(HeadError::BlankBeforeColon) => None,
                same => same,
            };
            assert_eq!(name_fault(line, true), spaced, "{line:?}");
        }
        for line in [&b"Na me: a\r\n"[..], b"Name \r\n", b"Name \0: a\r\n"] {
            let fault = name_fault(line, false);
            assert_eq!(fault, Some(HeadError::BlankBeforeColon), "{line:?}");
            let fault = name_fault(line, true);
            assert_eq!(fault, Some(HeadError::FieldName), "{line:?}");
        }
    }

    #[test]
    fn the_slots_suffice_for_the_limits() {
        let mut limits = HeadLimits::default();
        assert_eq!(limits.max_header_count(), USUAL_FIELDS);
        limits.header_count(usize::MAX);
        assert_eq!(limits.max_header_count(), MOST_FIELDS);
    }
}
