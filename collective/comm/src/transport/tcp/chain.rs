//! Large all-reduces of many ranks: rank r is connected to ranks r − 1 and r + 1 only.
//!
//! The buffer is divided into pieces. A piece's partials are sent from rank 0 to the last rank, and every rank
//! folds its elements into them, which is the rank order of the other algorithms. The last rank has the result,
//! which is sent back from rank to rank. All links are used in both directions at once, by different pieces.
//! Partials of half types are f32, so that they are rounded once; their results are sent as they are.
//!
//! A rank receives a piece of partials into a ring of slots, and does not receive piece k before it has sent
//! piece k − [`RING`]. It therefore waits for pieces of lower number only, so that no cyclic wait is possible.

use super::schedule::{Part, Schedule, Transfer};
use crate::reduce::{Reduction, partial_size};

/// Size of a piece in bytes of elements.
///
/// A rank sends and receives each piece twice. Up to 2o/β bytes, o being the overhead of a message, that takes
/// longer than the transfer; above, only the time from rank 0 to the last and back grows.
pub const PIECE: usize = 16 << 10;
/// Number of pieces of partials that a rank keeps.
pub const RING: usize = 2;

/// Reduces a buffer of `bytes` bytes on all ranks.
pub(super) fn reduce(reduction: Reduction, bytes: usize) -> Schedule<'static> {
    let (me, last) = (reduction.world.rank, reduction.world.size - 1);
    let width = partial_size(reduction.dtype, reduction.op);
    let count = bytes.div_ceil(PIECE);
    let own = move |piece: usize| piece * PIECE..bytes.min((piece + 1) * PIECE);
    let slot = move |piece: usize| {
        let elements = PIECE / reduction.dtype.size();
        let start = piece % RING * elements * width;
        start..start + own(piece).len() / reduction.dtype.size() * width
    };
    let partials = || (0..count).map(|piece| Part::Scratch(slot(piece))).collect();
    let results = || (0..count).map(|piece| Part::User(own(piece))).collect();
    let gated = |parts| Transfer::new(parts, Some(0));
    let plan = |peer| match peer < me {
        true => (gated(results()), gated(partials())),
        false => (gated(partials()), gated(results())),
    };
    let peers = (me > 0).then(|| me - 1).into_iter().chain((me < last).then_some(me + 1));
    let scratch = RING.min(count) * PIECE / reduction.dtype.size() * width;
    let mut folded = 0;
    Schedule::new(scratch, peers, plan, move |arithmetic, duplexes| {
        let (lower, higher) = duplexes.split_at_mut(usize::from(me > 0));
        let (mut lower, mut higher) = (lower.first_mut(), higher.first_mut());
        // Pieces whose partials this rank no longer needs. The last rank needs none after folding.
        let sent = higher.as_ref().map_or(count, |higher| higher.send.moved);
        let come = lower.as_ref().map_or(count, |lower| lower.recv.moved);
        // ANCHOR: progress
        while folded < come.min(sent + RING) {
            arithmetic.fold(reduction, own(folded), slot(folded));
            folded += 1;
        }
        if let Some(higher) = &mut higher {
            higher.send.open(folded);
            higher.recv.open(folded);
        }
        if let Some(lower) = &mut lower {
            lower.recv.open(sent.min(folded) + RING);
            lower.send.open(higher.as_ref().map_or(folded, |higher| higher.recv.moved));
        }
        // ANCHOR_END: progress
    })
}
