//! The collectives as stages of a [`stream`](super::stream): all safe code, on slices.

use super::{
    Member,
    region::{Memory, PIECE, SMALL},
    stream::{Areas, Stages},
};
use crate::{DType, Error, ReduceOp, Result, communicator::Call, reduce::reduce_from};
use std::ops::Range;

/// Bytes that are reduced into shared memory and copied on while they are in the first-level cache.
const TILE: usize = 8 << 10;

impl<M: Memory> Member<M> {
    pub fn barrier(&self, call: &Call) -> Result<()> {
        let mut session = self.begin(call)?;
        session.enter()?;
        session.finish();
        Ok(())
    }

    pub fn all_reduce(&self, call: &Call, buffer: &mut [u8]) -> Result<()> {
        let op = reduction(call)?;
        expect_len(call, "buffer", buffer.len(), 1)?;
        let world = self.world();
        if self.is_small(buffer.len()) {
            return self.exchange(call, &mut ReduceAll { dtype: call.dtype, op, world: world.size, buffer });
        }
        let pieces = Pieces::new(buffer.len(), PIECE);
        let mut stages =
            ReducePortions { dtype: call.dtype, op, world: world.size, rank: world.rank, pieces, buffer };
        self.stream(call, pieces.count, &mut stages)
    }

    pub fn broadcast(&self, call: &Call, buffer: &mut [u8]) -> Result<()> {
        expect_len(call, "buffer", buffer.len(), 1)?;
        let root = self.root(call)?;
        let area = if buffer.len() <= SMALL { SMALL } else { PIECE };
        let pieces = Pieces::new(buffer.len(), area);
        let mut stages = Broadcast { root, is_root: root == self.world().rank, pieces, buffer };
        self.exchange_or_stream(call, pieces.count, area, &mut stages)
    }

    pub fn all_gather(&self, call: &Call, mine: &[u8], out: &mut [u8]) -> Result<()> {
        expect_len(call, "input", mine.len(), 1)?;
        expect_len(call, "output", out.len(), self.world().size)?;
        let area = if mine.len() <= SMALL { SMALL } else { PIECE };
        let pieces = Pieces::new(mine.len(), area);
        let mut stages = AllGather { rank: self.world().rank, pieces, mine, out };
        self.exchange_or_stream(call, pieces.count, area, &mut stages)
    }

    fn exchange_or_stream(
        &self,
        call: &Call,
        pieces: usize,
        area: usize,
        stages: &mut dyn Stages,
    ) -> Result<()> {
        if area == SMALL { self.exchange(call, stages) } else { self.stream(call, pieces, stages) }
    }

    /// Whether every rank reducing everything costs less than meeting a second time.
    pub fn is_small(&self, bytes: usize) -> bool {
        bytes <= SMALL && bytes * self.world().size <= 4 * SMALL
    }

    fn root(&self, call: &Call) -> Result<usize> {
        let world = self.world().size;
        call.root.filter(|root| *root < world).ok_or_else(|| {
            Error::Invalid(format!("{call} in a world of {world} ranks needs a root below {world}"))
        })
    }
}

pub fn reduction(call: &Call) -> Result<ReduceOp> {
    call.reduce.ok_or_else(|| Error::Invalid(format!("{call} does not say how to reduce")))
}

/// Complains unless a buffer holds `times` × what the call says it is about.
pub fn expect_len(call: &Call, what: &str, len: usize, times: usize) -> Result<()> {
    let expected = call.count.checked_mul(times).and_then(|n| n.checked_mul(call.dtype.size()));
    if expected == Some(len) {
        return Ok(());
    }
    Err(Error::Invalid(format!(
        "{call}: the {what} has {len} bytes instead of {times} x {} elements x {} bytes",
        call.count,
        call.dtype.size()
    )))
}

/// Two cache lines, which are fetched together; a multiple of every element's size.
const LINE: usize = 128;

/// A buffer in pieces of equal size, but for the last.
#[derive(Clone, Copy, Debug)]
struct Pieces {
    bytes: usize,
    /// Bytes of each piece.
    size: usize,
    /// At least one, which may be empty.
    count: usize,
}

impl Pieces {
    /// Of at most `area` bytes each, which is a multiple of [`LINE`].
    fn new(bytes: usize, area: usize) -> Self {
        let count = bytes.div_ceil(area).max(1);
        let size = bytes.div_ceil(count).next_multiple_of(LINE);
        Pieces { bytes, size, count: bytes.div_ceil(size.max(1)).max(1) }
    }

    fn range(&self, piece: usize) -> Range<usize> {
        let start = (piece * self.size).min(self.bytes);
        start..(start + self.size).min(self.bytes)
    }
}

/// The part of `piece` (a range of bytes) that `rank` reduces; whole cache lines.
fn share(piece: Range<usize>, rank: usize, world: usize) -> Range<usize> {
    let each = piece.len().div_ceil(world).next_multiple_of(LINE);
    let start = (piece.start + rank * each).min(piece.end);
    start..(start + each).min(piece.end)
}

/// Small all-reduce: every rank reduces everything itself.
struct ReduceAll<'a> {
    dtype: DType,
    op: ReduceOp,
    world: usize,
    buffer: &'a mut [u8],
}

impl Stages for ReduceAll<'_> {
    fn fill(&mut self, _piece: usize, input: &mut [u8]) {
        input[..self.buffer.len()].copy_from_slice(self.buffer);
    }

    fn work(&mut self, _piece: usize, inputs: &Areas<'_>, _output: &mut [u8]) {
        let len = self.buffer.len();
        reduce_from(self.dtype, self.op, self.world, &|rank| &inputs.of(rank)[..len], self.buffer);
    }
}

/// Large all-reduce: every rank reduces its share of a piece for all. What a rank needs itself it
/// takes from, and puts into, its own buffer, past the shared memory.
struct ReducePortions<'a> {
    dtype: DType,
    op: ReduceOp,
    world: usize,
    rank: usize,
    pieces: Pieces,
    buffer: &'a mut [u8],
}

impl Stages for ReducePortions<'_> {
    fn fill(&mut self, piece: usize, input: &mut [u8]) {
        let piece = self.pieces.range(piece);
        let own = share(piece.clone(), self.rank, self.world);
        for part in [piece.start..own.start, own.end..piece.end] {
            let at = part.start - piece.start;
            input[at..at + part.len()].copy_from_slice(&self.buffer[part]);
        }
    }

    fn work(&mut self, piece: usize, inputs: &Areas<'_>, output: &mut [u8]) {
        let piece = self.pieces.range(piece);
        let own = share(piece.clone(), self.rank, self.world);
        for start in own.clone().step_by(TILE) {
            let tile = start..(start + TILE).min(own.end);
            let output = &mut output[tile.start - own.start..tile.end - own.start];
            let from = tile.start - piece.start..tile.end - piece.start;
            let buffer = &self.buffer[tile.clone()];
            let part = |rank| if rank == self.rank { buffer } else { &inputs.of(rank)[from.clone()] };
            reduce_from(self.dtype, self.op, self.world, &part, output);
            self.buffer[tile].copy_from_slice(output);
        }
    }

    fn drain(&mut self, piece: usize, outputs: &Areas<'_>) {
        let piece = self.pieces.range(piece);
        for rank in (0..self.world).filter(|rank| *rank != self.rank) {
            let part = share(piece.clone(), rank, self.world);
            let len = part.len();
            self.buffer[part].copy_from_slice(&outputs.of(rank)[..len]);
        }
    }
}

struct Broadcast<'a> {
    root: usize,
    is_root: bool,
    pieces: Pieces,
    buffer: &'a mut [u8],
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
            self.buffer[piece].copy_from_slice(&inputs.of(self.root)[..len]);
        }
    }
}

struct AllGather<'a> {
    rank: usize,
    pieces: Pieces,
    mine: &'a [u8],
    out: &'a mut [u8],
}

impl Stages for AllGather<'_> {
    fn fill(&mut self, piece: usize, input: &mut [u8]) {
        let piece = self.pieces.range(piece);
        input[..piece.len()].copy_from_slice(&self.mine[piece]);
    }

    fn work(&mut self, piece: usize, inputs: &Areas<'_>, _output: &mut [u8]) {
        let piece = self.pieces.range(piece);
        // An empty contribution has no chunks to write.
        for (rank, out) in self.out.chunks_exact_mut(self.mine.len().max(1)).enumerate() {
            let from =
                if rank == self.rank { &self.mine[piece.clone()] } else { &inputs.of(rank)[..piece.len()] };
            out[piece.clone()].copy_from_slice(from);
        }
    }
}
