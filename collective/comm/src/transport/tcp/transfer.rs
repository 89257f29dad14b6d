//! One direction of a connection during a call: a header and parts of memory, sent or received in order.

use crate::transport::header::HEADER;
use std::ops::Range;

/// A range of a call's memory.
#[derive(Clone, Debug)]
pub(super) enum Part {
    User(Range<usize>),
    Scratch(Range<usize>),
}

impl Part {
    pub fn len(&self) -> usize {
        match self {
            Part::User(range) | Part::Scratch(range) => range.len(),
        }
    }
}

/// One direction of a duplex: the header, then the parts.
#[derive(Debug, Default)]
pub(super) struct Transfer {
    pub parts: Vec<Part>,
    /// Transferred bytes of the header.
    pub head: usize,
    /// Transferred parts, and transferred bytes of the next.
    pub moved: usize,
    pub skip: usize,
    /// Number of parts that may be transferred, after the header; `None` if the header may not.
    pub open: Option<usize>,
}

impl Transfer {
    /// A header and `parts`, of which the first `open` may be transferred.
    pub fn new(parts: Vec<Part>, open: Option<usize>) -> Self {
        let open = open.map(|open| open.min(parts.len()));
        let mut transfer = Transfer { parts, open, ..Transfer::default() };
        transfer.skip_complete();
        transfer
    }

    /// A header and `parts`, all of which may be transferred.
    pub fn free(parts: Vec<Part>) -> Self {
        let all = parts.len();
        Transfer::new(parts, Some(all))
    }

    /// A header without parts.
    pub fn bare() -> Self {
        Transfer::free(Vec::new())
    }

    /// Nothing, not even a header.
    pub fn absent() -> Self {
        Transfer { head: HEADER, ..Transfer::bare() }
    }

    /// Allows the header and the first `parts` parts.
    pub fn open(&mut self, parts: usize) {
        self.open = Some(self.open.unwrap_or(0).max(parts.min(self.parts.len())));
    }

    pub fn complete(&self) -> bool {
        self.head == HEADER && self.moved == self.parts.len()
    }

    /// Number of bytes that may be transferred now.
    pub fn allowed(&self) -> usize {
        let Some(open) = self.open else { return 0 };
        let parts = self.parts.get(self.moved..open).unwrap_or_default();
        HEADER - self.head + parts.iter().map(Part::len).sum::<usize>().saturating_sub(self.skip)
    }

    /// Whether data may be transferred.
    pub fn ready(&self) -> bool {
        self.open.is_some_and(|open| self.head < HEADER || self.moved < open)
    }

    /// Counts `bytes` as transferred.
    pub fn advance(&mut self, bytes: usize) {
        let head = bytes.min(HEADER - self.head);
        self.head += head;
        self.skip += bytes - head;
        self.skip_complete();
    }

    /// Skips complete parts, including empty ones.
    fn skip_complete(&mut self) {
        while let Some(part) = self.parts.get(self.moved).filter(|part| part.len() <= self.skip) {
            self.skip -= part.len();
            self.moved += 1;
        }
    }
}
