//! Stages that reduce.

use super::{Fold, LINE, Pieces};
use crate::{
    reduce::{reduce_from, reduce_with},
    transport::local::stream::{Areas, Stages},
};
use std::ops::Range;

/// The part of `piece`, a range of bytes, that `rank` reduces for all; whole lines.
pub fn share(piece: Range<usize>, rank: usize, world: usize) -> Range<usize> {
    let each = piece.len().div_ceil(world).next_multiple_of(LINE);
    let start = (piece.start + rank * each).min(piece.end);
    start..(start + each).min(piece.end)
}

impl Fold {
    /// Reduces this rank's `own` part of its buffer with the range at `at` of the other ranks' areas.
    ///
    /// The result is written to `output` and, with `keep`, to the buffer.
    fn reduce(
        &self,
        buffer: &mut [u8],
        own: Range<usize>,
        inputs: &Areas<'_>,
        at: usize,
        output: &mut [u8],
        keep: bool,
    ) {
        let len = own.len();
        let input = |rank| &inputs.of(rank)[at..at + len];
        let (own, output) = (&mut buffer[own], &mut output[..len]);
        reduce_with(self.dtype, self.op, self.world, self.rank, own, &input, output, keep);
    }
}

/// Small reduction: each rank that wants the result reduces everything.
pub struct ReduceAll<'a> {
    pub fold: Fold,
    pub wants: bool,
    pub buffer: &'a mut [u8],
}

impl Stages for ReduceAll<'_> {
    fn fill(&mut self, _piece: usize, input: &mut [u8]) {
        input[..self.buffer.len()].copy_from_slice(self.buffer);
    }

    fn work(&mut self, _piece: usize, inputs: &Areas<'_>, _output: &mut [u8]) {
        if self.wants {
            let (fold, len) = (self.fold, self.buffer.len());
            reduce_from(fold.dtype, fold.op, fold.world, &|rank| &inputs.of(rank)[..len], self.buffer);
        }
    }
}

/// Large reduction: every rank reduces its share of a piece for all.
///
/// A rank's own share is read from, and written to, its buffer and bypasses the shared memory.
pub struct ReduceShares<'a> {
    pub fold: Fold,
    pub wants: bool,
    pub pieces: Pieces,
    pub buffer: &'a mut [u8],
}

impl Stages for ReduceShares<'_> {
    fn fill(&mut self, piece: usize, input: &mut [u8]) {
        let piece = self.pieces.range(piece);
        let own = share(piece.clone(), self.fold.rank, self.fold.world);
        for part in [piece.start..own.start, own.end..piece.end] {
            let at = part.start - piece.start;
            input[at..at + part.len()].copy_from_slice(&self.buffer[part]);
        }
    }

    fn work(&mut self, piece: usize, inputs: &Areas<'_>, output: &mut [u8]) {
        let piece = self.pieces.range(piece);
        let own = share(piece.clone(), self.fold.rank, self.fold.world);
        let at = own.start - piece.start;
        self.fold.reduce(self.buffer, own, inputs, at, output, self.wants);
    }

    fn drain(&mut self, piece: usize, outputs: &Areas<'_>) {
        let piece = self.pieces.range(piece);
        for rank in (0..self.fold.world).filter(|rank| self.wants && *rank != self.fold.rank) {
            let part = share(piece.clone(), rank, self.fold.world);
            let len = part.len();
            self.buffer[part].copy_from_slice(&outputs.of(rank)[..len]);
        }
    }
}

/// Small reduce-scatter: every rank reduces its part of the buffer.
pub struct ReducePart<'a> {
    pub fold: Fold,
    pub buffer: &'a mut [u8],
}

impl Stages for ReducePart<'_> {
    fn fill(&mut self, _piece: usize, input: &mut [u8]) {
        input[..self.buffer.len()].copy_from_slice(self.buffer);
    }

    fn work(&mut self, _piece: usize, inputs: &Areas<'_>, _output: &mut [u8]) {
        let fold = self.fold;
        let each = self.buffer.len() / fold.world;
        let own = fold.rank * each..(fold.rank + 1) * each;
        let input = |rank| &inputs.of(rank)[own.clone()];
        reduce_from(fold.dtype, fold.op, fold.world, &input, &mut self.buffer[own.clone()]);
    }
}

/// Large reduce-scatter: an area holds the same range of the parts of all ranks, `area` bytes apart.
pub struct ReduceParts<'a> {
    pub fold: Fold,
    pub area: usize,
    /// Of one part.
    pub pieces: Pieces,
    pub buffer: &'a mut [u8],
}

impl ReduceParts<'_> {
    fn part(&self, piece: usize, rank: usize) -> Range<usize> {
        let (range, start) = (self.pieces.range(piece), rank * self.pieces.bytes);
        start + range.start..start + range.end
    }
}

impl Stages for ReduceParts<'_> {
    fn fill(&mut self, piece: usize, input: &mut [u8]) {
        for rank in (0..self.fold.world).filter(|rank| *rank != self.fold.rank) {
            let part = self.part(piece, rank);
            input[rank * self.area..][..part.len()].copy_from_slice(&self.buffer[part]);
        }
    }

    fn work(&mut self, piece: usize, inputs: &Areas<'_>, output: &mut [u8]) {
        let own = self.part(piece, self.fold.rank);
        let at = self.fold.rank * self.area;
        self.fold.reduce(self.buffer, own, inputs, at, output, true);
    }
}
