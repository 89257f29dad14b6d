//! The collectives as stages of a [`stream`](super::stream), in safe code on slices.

use super::{
    LocalRank, Session,
    region::PIECE,
    stream::{LINE, Pieces, Stage},
};
use crate::{
    Error, Result, World,
    communicator::{Call, Communicator},
    reduce::{Reduction, reduce_with},
    transport::method::{Method, MethodCall},
};
use std::{ops::Range, sync::atomic::Ordering};

impl Communicator for LocalRank {
    fn world(&self) -> World {
        World { rank: self.rank, size: self.region.world() }
    }

    fn name(&self) -> &'static str {
        self.region.name()
    }

    fn barrier(&self, call: &Call) -> Result<()> {
        let mut session = Session::begin(self, Method::Barrier.of(call))?;
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
        let World { rank: me, size } = self.world();
        let reduction = Reduction::of(call, self.world())?;
        expect_len(call, "buffer", buffer.len(), 1)?;
        expect_parts(call, size)?;
        let (part, each) = (buffer.len() / size, share_of_area(size));
        let of_rank = |rank: usize, piece: &Range<usize>| rank * part + piece.start..rank * part + piece.end;
        let (call, pieces) = (Method::ReduceScatter.of(call), Pieces::new(part, each));
        // An area holds the same range of the parts of all ranks, `each` bytes apart.
        self.exchange_or_stream(call, pieces, |piece, stage| match stage {
            Stage::Fill(input) => {
                for rank in (0..size).filter(|rank| *rank != me) {
                    input[rank * each..][..piece.len()].copy_from_slice(&buffer[of_rank(rank, &piece)]);
                }
            }
            Stage::Work(inputs, _) => {
                let input = |rank| &inputs(rank)[me * each..][..piece.len()];
                reduce_with(reduction, &mut buffer[of_rank(me, &piece)], &input, None, true);
            }
            Stage::Drain(_) => {}
        })
    }

    fn broadcast(&self, call: &Call, buffer: &mut [u8]) -> Result<()> {
        let root = self.root(call)?;
        expect_len(call, "buffer", buffer.len(), 1)?;
        let (call, pieces) = (Method::Broadcast.of(call), Pieces::new(buffer.len(), PIECE));
        self.exchange_or_stream(call, pieces, |piece, stage| match stage {
            Stage::Fill(input) if root == self.rank => {
                input[..piece.len()].copy_from_slice(&buffer[piece]);
            }
            Stage::Work(inputs, _) if root != self.rank => {
                let len = piece.len();
                buffer[piece].copy_from_slice(&inputs(root)[..len]);
            }
            _ => {}
        })
    }

    fn all_gather(&self, call: &Call, mine: &[u8], out: &mut [u8]) -> Result<()> {
        self.gather_for(Method::AllGather.of(call), mine, out, true)
    }

    fn gather(&self, call: &Call, mine: &[u8], out: &mut [u8]) -> Result<()> {
        let root = self.root(call)?;
        self.gather_for(Method::Gather.of(call), mine, out, root == self.rank)
    }

    fn scatter(&self, call: &Call, all: &[u8], mine: &mut [u8]) -> Result<()> {
        let (root, World { rank: me, size }) = (self.root(call)?, self.world());
        expect_len(call, "output", mine.len(), 1)?;
        if root == me {
            expect_len(call, "input", all.len(), size)?;
        }
        let (part, each) = (mine.len(), share_of_area(size));
        let (call, pieces) = (Method::Scatter.of(call), Pieces::new(part, each));
        // The root's area holds the same range of the parts of all ranks, `each` bytes apart.
        self.exchange_or_stream(call, pieces, |piece, stage| match stage {
            Stage::Fill(input) if root == me => {
                for rank in (0..size).filter(|rank| *rank != me) {
                    let from = &all[rank * part..][piece.clone()];
                    input[rank * each..][..piece.len()].copy_from_slice(from);
                }
            }
            Stage::Work(inputs, _) => {
                let len = piece.len();
                let from =
                    if root == me { &all[me * part + piece.start..] } else { &inputs(root)[me * each..] };
                mine[piece].copy_from_slice(&from[..len]);
            }
            _ => {}
        })
    }

    fn send(&self, call: &Call, to: usize, data: &[u8]) -> Result<()> {
        self.send_message(call, to, data)
    }

    fn recv(&self, call: &Call, from: usize, data: &mut [u8]) -> Result<()> {
        self.receive_message(call, from, data)
    }

    fn abort(&self) {
        self.aborted.store(true, Ordering::Release);
    }
}

impl LocalRank {
    fn reduce_for(&self, call: MethodCall<'_>, buffer: &mut [u8], wants: bool) -> Result<()> {
        let World { rank: me, size } = self.world();
        let reduction = Reduction::of(&call, self.world())?;
        expect_len(&call, "buffer", buffer.len(), 1)?;
        // For a small buffer it is faster that every rank reduces everything than to synchronise a second time.
        if buffer.len() <= PIECE && buffer.len() * size <= 2 * PIECE {
            return self.exchange(call, buffer.len(), &mut |piece, stage| match stage {
                Stage::Fill(input) => input[piece].copy_from_slice(buffer),
                Stage::Work(inputs, _) if wants => {
                    reduce_with(reduction, buffer, &|rank| &inputs(rank)[piece.clone()], None, true);
                }
                _ => {}
            });
        }
        // Every rank reduces its share of a piece for all. Its own elements are read from its buffer.
        self.stream(call, Pieces::new(buffer.len(), PIECE), &mut |piece, stage| {
            let own = share(&piece, me, size);
            match stage {
                Stage::Fill(input) => {
                    for part in [piece.start..own.start, own.end..piece.end] {
                        let at = part.start - piece.start;
                        input[at..][..part.len()].copy_from_slice(&buffer[part]);
                    }
                }
                Stage::Work(inputs, output) => {
                    let (at, len) = (own.start - piece.start, own.len());
                    let input = |rank| &inputs(rank)[at..at + len];
                    reduce_with(reduction, &mut buffer[own], &input, Some(&mut output[..len]), wants);
                }
                Stage::Drain(outputs) => {
                    for rank in (0..size).filter(|rank| wants && *rank != me) {
                        let share = share(&piece, rank, size);
                        let len = share.len();
                        buffer[share].copy_from_slice(&outputs(rank)[..len]);
                    }
                }
            }
        })
    }

    fn gather_for(&self, call: MethodCall<'_>, mine: &[u8], out: &mut [u8], wants: bool) -> Result<()> {
        expect_len(&call, "input", mine.len(), 1)?;
        if wants {
            expect_len(&call, "output", out.len(), self.region.world())?;
        }
        self.exchange_or_stream(call, Pieces::new(mine.len(), PIECE), |piece, stage| match stage {
            Stage::Fill(input) => input[..piece.len()].copy_from_slice(&mine[piece]),
            // `chunks_exact_mut` panics on 0.
            Stage::Work(inputs, _) if wants && !mine.is_empty() => {
                for (rank, out) in out.chunks_exact_mut(mine.len()).enumerate() {
                    let own = rank == self.rank;
                    let from = if own { &mine[piece.clone()] } else { &inputs(rank)[..piece.len()] };
                    out[piece.clone()].copy_from_slice(from);
                }
            }
            _ => {}
        })
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

/// Size of one rank's share of an area that holds data for each rank: whole lines, at least one.
fn share_of_area(world: usize) -> usize {
    PIECE / world / LINE * LINE
}

/// The part of `piece`, a range of bytes, that `rank` reduces for all; whole lines.
fn share(piece: &Range<usize>, rank: usize, world: usize) -> Range<usize> {
    let each = piece.len().div_ceil(world).next_multiple_of(LINE);
    let start = (piece.start + rank * each).min(piece.end);
    start..(start + each).min(piece.end)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::transport::local::region::{MAX_WORLD, portion};

    #[test]
    fn pieces_cover_a_buffer_once() {
        for area in [LINE, PIECE] {
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
            assert!(share_of_area(world) >= LINE);
            for piece in [0..0, 0..8, 512..512 + PIECE, 128..PIECE - 8] {
                let mut at = piece.start;
                for rank in 0..world {
                    let share = share(&piece, rank, world);
                    assert_eq!(share.start, at);
                    assert!(share.len() <= portion(world));
                    at = share.end;
                }
                assert_eq!(at, piece.end);
            }
        }
    }
}
