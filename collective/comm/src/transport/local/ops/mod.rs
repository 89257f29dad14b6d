//! The collectives as stages of a [`stream`](super::stream), in safe code on slices.

mod copying;
mod reducing;

use super::{
    LocalRank,
    failure::Failure,
    region::{PIECE, SMALL},
    stream::Stages,
};
use crate::{
    Error, Result, World,
    communicator::{Call, Communicator},
    reduce::Reduction,
    transport::method::{Method, MethodCall},
};
use copying::{Broadcast, Gather, Scatter};
use reducing::{ReduceAll, ReduceParts, ReduceShares};
use std::ops::Range;

/// Two cache lines, which processors fetch together; a multiple of every element's size.
const LINE: usize = 128;

impl Communicator for LocalRank {
    fn world(&self) -> World {
        World { rank: self.rank, size: self.region.world() }
    }

    fn name(&self) -> &'static str {
        self.region.name()
    }

    fn barrier(&self, call: &Call) -> Result<()> {
        let mut session = self.begin(Method::Barrier.of(call))?;
        session.enter()?;
        session.finish();
        Ok(())
    }

    fn all_reduce(&self, call: &Call, buffer: &mut [u8]) -> Result<()> {
        self.reduce_for(Method::AllReduce.of(call), buffer, true)
    }

    fn reduce(&self, call: &Call, buffer: &mut [u8]) -> Result<()> {
        let root = self.root(call)?;
        self.reduce_for(Method::Reduce.of(call), buffer, root == self.rank)
    }

    fn reduce_scatter(&self, call: &Call, buffer: &mut [u8]) -> Result<()> {
        let world = self.world();
        let reduction = Reduction::of(call, world)?;
        expect_len(call, "buffer", buffer.len(), 1)?;
        expect_parts(call, world.size)?;
        let area = area_for(buffer.len());
        let each = share_of_area(area, world.size);
        let pieces = Pieces::new(buffer.len() / world.size, each);
        let mut stages = ReduceParts { reduction, each, pieces, buffer };
        self.exchange_or_stream(Method::ReduceScatter.of(call), pieces, area, &mut stages)
    }

    fn broadcast(&self, call: &Call, buffer: &mut [u8]) -> Result<()> {
        let root = self.root(call)?;
        expect_len(call, "buffer", buffer.len(), 1)?;
        let area = area_for(buffer.len());
        let pieces = Pieces::new(buffer.len(), area);
        let mut stages = Broadcast { root, is_root: root == self.rank, pieces, buffer };
        self.exchange_or_stream(Method::Broadcast.of(call), pieces, area, &mut stages)
    }

    fn all_gather(&self, call: &Call, mine: &[u8], out: &mut [u8]) -> Result<()> {
        self.gather_for(Method::AllGather.of(call), mine, out, true)
    }

    fn gather(&self, call: &Call, mine: &[u8], out: &mut [u8]) -> Result<()> {
        let root = self.root(call)?;
        self.gather_for(Method::Gather.of(call), mine, out, root == self.rank)
    }

    fn scatter(&self, call: &Call, all: &[u8], mine: &mut [u8]) -> Result<()> {
        let (root, world) = (self.root(call)?, self.world());
        expect_len(call, "output", mine.len(), 1)?;
        let all = if root == world.rank { Some(all) } else { None };
        if let Some(all) = all {
            expect_len(call, "input", all.len(), world.size)?;
        }
        let area = area_for(mine.len().saturating_mul(world.size));
        let each = share_of_area(area, world.size);
        let pieces = Pieces::new(mine.len(), each);
        let mut stages = Scatter { root, world, each, pieces, all, mine };
        self.exchange_or_stream(Method::Scatter.of(call), pieces, area, &mut stages)
    }

    fn send(&self, call: &Call, to: usize, data: &[u8]) -> Result<()> {
        self.send_message(call, to, data)
    }

    fn recv(&self, call: &Call, from: usize, data: &mut [u8]) -> Result<()> {
        self.receive_message(call, from, data)
    }

    fn abort(&self) {
        self.declare(Failure::Aborted { by: self.rank });
    }
}

impl LocalRank {
    fn reduce_for(&self, call: MethodCall<'_>, buffer: &mut [u8], wants: bool) -> Result<()> {
        let reduction = Reduction::of(&call, self.world())?;
        expect_len(&call, "buffer", buffer.len(), 1)?;
        // For a small buffer it is faster that every rank reduces everything than to synchronise a second time.
        if buffer.len() <= SMALL && buffer.len() * reduction.world.size <= 2 * SMALL {
            return self.exchange(call, &mut ReduceAll { reduction, wants, buffer });
        }
        let pieces = Pieces::new(buffer.len(), PIECE);
        self.stream(call, pieces.count, &mut ReduceShares { reduction, wants, pieces, buffer })
    }

    fn gather_for(&self, call: MethodCall<'_>, mine: &[u8], out: &mut [u8], wants: bool) -> Result<()> {
        expect_len(&call, "input", mine.len(), 1)?;
        if wants {
            expect_len(&call, "output", out.len(), self.region.world())?;
        }
        let area = area_for(mine.len());
        let pieces = Pieces::new(mine.len(), area);
        let mut stages = Gather { rank: self.rank, wants, pieces, mine, out };
        self.exchange_or_stream(call, pieces, area, &mut stages)
    }

    fn exchange_or_stream(
        &self,
        call: MethodCall<'_>,
        pieces: Pieces,
        area: usize,
        stages: &mut dyn Stages,
    ) -> Result<()> {
        if area == SMALL && pieces.count == 1 {
            self.exchange(call, stages)
        } else {
            self.stream(call, pieces.count, stages)
        }
    }

    fn root(&self, call: &Call) -> Result<usize> {
        let world = self.region.world();
        call.root.filter(|root| *root < world).ok_or_else(|| {
            Error::Invalid(format!("{call} in a world of {world} ranks needs a root below {world}"))
        })
    }
}

/// Checks that a buffer has `times` × the size of the call.
fn expect_len(call: &Call, what: &str, len: usize, times: usize) -> Result<()> {
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

/// Checks that the elements can be split evenly over the ranks.
fn expect_parts(call: &Call, world: usize) -> Result<()> {
    if call.count.is_multiple_of(world) {
        return Ok(());
    }
    Err(Error::Invalid(format!("{call} cannot be split into {world} equal parts: pad the buffer")))
}

/// Size of the areas for a contribution of `bytes` bytes.
fn area_for(bytes: usize) -> usize {
    if bytes <= SMALL { SMALL } else { PIECE }
}

/// Size of one rank's share of an area that holds data for each rank: whole lines, at least one.
fn share_of_area(area: usize, world: usize) -> usize {
    area / world / LINE * LINE
}

/// A buffer in pieces of equal size, except for the last.
#[derive(Clone, Copy, Debug)]
struct Pieces {
    bytes: usize,
    /// Bytes of each piece.
    size: usize,
    /// At least one, which may be empty.
    count: usize,
}

impl Pieces {
    /// Splits into pieces of at most `area` bytes, which is a multiple of [`LINE`].
    fn new(bytes: usize, area: usize) -> Self {
        let size = bytes.div_ceil(bytes.div_ceil(area).max(1)).next_multiple_of(LINE);
        Pieces { bytes, size, count: bytes.div_ceil(size.max(1)).max(1) }
    }

    fn range(&self, piece: usize) -> Range<usize> {
        let start = (piece * self.size).min(self.bytes);
        start..(start + self.size).min(self.bytes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::transport::local::region::{MAX_WORLD, portion};

    #[test]
    fn pieces_cover_a_buffer_once() {
        for area in [LINE, SMALL, PIECE] {
            for bytes in [0, 1, LINE, area - 1, area, area + 1, 3 * area - 1, 3 * area, 10 * area + 8] {
                let pieces = Pieces::new(bytes, area);
                let mut at = 0;
                for piece in 0..pieces.count {
                    let range = pieces.range(piece);
                    assert_eq!(range.start, at);
                    assert!(range.len() <= area && (!range.is_empty() || bytes == 0));
                    at = range.end;
                }
                assert_eq!(at, bytes);
            }
        }
    }

    #[test]
    fn shares_cover_a_piece_once_and_fit() {
        for world in [1, 2, 3, 7, 64, MAX_WORLD] {
            assert!(share_of_area(SMALL, world) >= LINE);
            for piece in [0..0, 0..8, 512..512 + PIECE, 128..PIECE - 8] {
                let mut at = piece.start;
                for rank in 0..world {
                    let share = reducing::share(piece.clone(), rank, world);
                    assert_eq!(share.start, at);
                    assert!(share.len() <= portion(world));
                    at = share.end;
                }
                assert_eq!(at, piece.end);
            }
        }
    }
}
