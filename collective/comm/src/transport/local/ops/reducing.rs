//! Stages that reduce. A rank's own elements are read from, and written to, its buffer.

use super::{LINE, Pieces};
use crate::{
    World,
    reduce::{Reduction, reduce_with},
    transport::local::stream::{Areas, Stages},
};
use std::ops::Range;

/// The part of `piece`, a range of bytes, that `rank` reduces for all; whole lines.
pub fn share(piece: Range<usize>, rank: usize, world: usize) -> Range<usize> {
    let each = piece.len().div_ceil(world).next_multiple_of(LINE);
    let start = (piece.start + rank * each).min(piece.end);
    start..(start + each).min(piece.end)
}

/// Small reduction: each rank that wants the result reduces everything.
pub struct ReduceAll<'a> {
    pub reduction: Reduction,
    pub wants: bool,
    pub buffer: &'a mut [u8],
}

impl Stages for ReduceAll<'_> {
    fn fill(&mut self, _piece: usize, input: &mut [u8]) {
        input[..self.buffer.len()].copy_from_slice(self.buffer);
    }

    fn work(&mut self, _piece: usize, inputs: &Areas<'_>, _output: &mut [u8]) {
        if self.wants {
            let len = self.buffer.len();
            reduce_with(self.reduction, self.buffer, &|rank| &inputs(rank)[..len], None, true);
        }
    }
}

/// Large reduction: every rank reduces its share of a piece for all.
pub struct ReduceShares<'a> {
    pub reduction: Reduction,
    pub wants: bool,
    pub pieces: Pieces,
    pub buffer: &'a mut [u8],
}

impl ReduceShares<'_> {
    fn share(&self, piece: usize, rank: usize) -> Range<usize> {
        share(self.pieces.range(piece), rank, self.reduction.world.size)
    }
}

impl Stages for ReduceShares<'_> {
    fn fill(&mut self, piece: usize, input: &mut [u8]) {
        let own = self.share(piece, self.reduction.world.rank);
        let piece = self.pieces.range(piece);
        for part in [piece.start..own.start, own.end..piece.end] {
            let at = part.start - piece.start;
            input[at..at + part.len()].copy_from_slice(&self.buffer[part]);
        }
    }

    fn work(&mut self, piece: usize, inputs: &Areas<'_>, output: &mut [u8]) {
        let own = self.share(piece, self.reduction.world.rank);
        let (at, len) = (own.start - self.pieces.range(piece).start, own.len());
        let input = |rank| &inputs(rank)[at..at + len];
        reduce_with(self.reduction, &mut self.buffer[own], &input, Some(&mut output[..len]), self.wants);
    }

    fn drain(&mut self, piece: usize, outputs: &Areas<'_>) {
        let World { rank: me, size } = self.reduction.world;
        for rank in (0..size).filter(|rank| self.wants && *rank != me) {
            let share = self.share(piece, rank);
            let len = share.len();
            self.buffer[share].copy_from_slice(&outputs(rank)[..len]);
        }
    }
}

/// Reduce-scatter: an area holds the same range of the parts of all ranks, `each` bytes apart.
pub struct ReduceParts<'a> {
    pub reduction: Reduction,
    pub each: usize,
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
        let World { rank: me, size } = self.reduction.world;
        for rank in (0..size).filter(|rank| *rank != me) {
            let part = self.part(piece, rank);
            input[rank * self.each..][..part.len()].copy_from_slice(&self.buffer[part]);
        }
    }

    fn work(&mut self, piece: usize, inputs: &Areas<'_>, _output: &mut [u8]) {
        let me = self.reduction.world.rank;
        let own = self.part(piece, me);
        let (at, len) = (me * self.each, own.len());
        let input = |rank| &inputs(rank)[at..at + len];
        reduce_with(self.reduction, &mut self.buffer[own], &input, None, true);
    }
}
