//! Stages that copy.

use super::Pieces;
use crate::{
    World,
    transport::local::stream::{Areas, Stages},
};

pub struct Broadcast<'a> {
    pub root: usize,
    pub is_root: bool,
    pub pieces: Pieces,
    pub buffer: &'a mut [u8],
}

impl Stages for Broadcast<'_> {
    fn fill(&mut self, piece: usize, input: &mut [u8]) {
        if self.is_root {
            let piece = self.pieces.range(piece);
            input[..piece.len()].copy_from_slice(&self.buffer[piece]);
        }
    }

    fn work(&mut self, piece: usize, inputs: &Areas<'_>, _output: &mut [u8]) {
        if !self.is_root {
            let piece = self.pieces.range(piece);
            let len = piece.len();
            self.buffer[piece].copy_from_slice(&inputs(self.root)[..len]);
        }
    }
}

/// Gather on the ranks where `wants` is true.
pub struct Gather<'a> {
    pub rank: usize,
    pub wants: bool,
    pub pieces: Pieces,
    pub mine: &'a [u8],
    pub out: &'a mut [u8],
}

impl Stages for Gather<'_> {
    fn fill(&mut self, piece: usize, input: &mut [u8]) {
        let piece = self.pieces.range(piece);
        input[..piece.len()].copy_from_slice(&self.mine[piece]);
    }

    fn work(&mut self, piece: usize, inputs: &Areas<'_>, _output: &mut [u8]) {
        // `chunks_exact_mut` panics on 0.
        if !self.wants || self.mine.is_empty() {
            return;
        }
        let piece = self.pieces.range(piece);
        for (rank, out) in self.out.chunks_exact_mut(self.mine.len()).enumerate() {
            let mine = rank == self.rank;
            let from = if mine { &self.mine[piece.clone()] } else { &inputs(rank)[..piece.len()] };
            out[piece.clone()].copy_from_slice(from);
        }
    }
}

/// Scatter. An area of the root holds the same range of the parts of all ranks, `each` bytes apart.
pub struct Scatter<'a> {
    pub root: usize,
    pub world: World,
    pub each: usize,
    /// Of one part.
    pub pieces: Pieces,
    /// The root's.
    pub all: Option<&'a [u8]>,
    pub mine: &'a mut [u8],
}

impl Stages for Scatter<'_> {
    fn fill(&mut self, piece: usize, input: &mut [u8]) {
        let Some(all) = self.all else { return };
        let piece = self.pieces.range(piece);
        for rank in (0..self.world.size).filter(|rank| *rank != self.root) {
            let from = rank * self.mine.len() + piece.start;
            input[rank * self.each..][..piece.len()].copy_from_slice(&all[from..from + piece.len()]);
        }
    }

    fn work(&mut self, piece: usize, inputs: &Areas<'_>, _output: &mut [u8]) {
        let (piece, rank) = (self.pieces.range(piece), self.world.rank);
        let from = match self.all {
            Some(all) => &all[rank * self.mine.len() + piece.start..][..piece.len()],
            None => &inputs(self.root)[rank * self.each..][..piece.len()],
        };
        self.mine[piece].copy_from_slice(from);
    }
}
