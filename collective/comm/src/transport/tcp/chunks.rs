//! Reduction in chunks: rank c owns the c-th of n chunks of the buffer, receives the other ranks' parts of
//! it, reduces them in rank order and sends the result to the ranks that want it.
//!
//! Chunks are transferred in pieces. From one rank to another there is one stream: the pieces of the
//! receiver's chunk and, [`LEAD`] pieces later, the results of the sender's chunk. A piece is received into a
//! small ring, reduced and sent while it is in the processor's cache, and sending, reducing and receiving
//! overlap. A rank does not receive the k-th contribution before its ring has space, and does not send the
//! k-th result before all contributions to it have arrived. Both wait for pieces of lower number only, so
//! that no cyclic wait is possible.

use super::{
    PIECE, Tcp,
    duplex::Duplex,
    reduce_into,
    transfer::{Memory, Part, Transfer},
};
use crate::{ReduceOp, Result, communicator::World, transport::method::MethodCall};
use std::ops::Range;

/// Number of pieces by which contributions precede results.
const LEAD: usize = 2;
/// Maximum number of pieces of one peer that wait to be reduced.
const RING: usize = LEAD + 2;

/// The parts that one rank sends to another, in order.
struct Stream {
    parts: Vec<Part>,
    /// Indices among the parts, of contributions and of results.
    contributions: Vec<usize>,
    results: Vec<usize>,
}

impl Stream {
    /// Interleaves contributions with results.
    fn new(contributions: Vec<Part>, results: Vec<Part>) -> Self {
        let mut stream = Stream { parts: Vec::new(), contributions: Vec::new(), results: Vec::new() };
        let (mut contributions, mut results) = (contributions.into_iter(), results.into_iter());
        for step in 0.. {
            let contribution = contributions.next();
            let result = if step < LEAD && contribution.is_some() { None } else { results.next() };
            if contribution.is_none() && result.is_none() {
                break;
            }
            for (part, places) in [(contribution, &mut stream.contributions), (result, &mut stream.results)] {
                if let Some(part) = part {
                    places.push(stream.parts.len());
                    stream.parts.push(part);
                }
            }
        }
        stream
    }
}

/// Number of parts before entry `index` of `places`, whose parts must wait.
fn before(places: &[usize], index: usize) -> usize {
    places.get(index).copied().unwrap_or(usize::MAX)
}

/// Splits `range` into pieces.
fn pieces(range: Range<usize>) -> impl Iterator<Item = Range<usize>> {
    let end = range.end;
    range.step_by(PIECE).map(move |at| at..end.min(at + PIECE))
}

impl Tcp {
    /// Reduces `buffer`; every rank for which `wants` is true receives the whole result.
    ///
    /// The other ranks keep their buffers. If no rank wants the result, every rank receives its own chunk.
    pub(super) fn reduce_chunks(
        &self,
        call: MethodCall<'_>,
        op: ReduceOp,
        buffer: &mut [u8],
        wants: impl Fn(usize) -> bool,
    ) -> Result<()> {
        let World { rank: me, size } = self.world;
        let width = call.dtype.size();
        let chunk = |rank: usize| rank * call.count / size * width..(rank + 1) * call.count / size * width;
        let (mine, ring) = (chunk(me), RING * PIECE);
        let kept = !wants(me) && (0..size).any(&wants);
        // A ring for every peer and, on ranks that keep their buffer, space for the result.
        let slot = |peer: usize, piece: usize| {
            let len = PIECE.min(mine.len() - piece * PIECE);
            let start = peer * ring + piece % RING * PIECE;
            start..start + len
        };
        let out = |piece: usize| size * ring + piece * PIECE;
        let scratch = size * ring + if kept { mine.len() } else { 0 };
        let count = mine.len().div_ceil(PIECE);
        let result = |piece: usize, range: Range<usize>| match kept {
            true => Part::Scratch(out(piece)..out(piece) + range.len()),
            false => Part::User(range),
        };
        let outgoing = |peer: usize| {
            let results = if wants(peer) { mine.clone() } else { 0..0 };
            Stream::new(
                pieces(chunk(peer)).map(Part::User).collect(),
                pieces(results).enumerate().map(|(piece, range)| result(piece, range)).collect(),
            )
        };
        let incoming = |peer: usize| {
            let results = if wants(me) { chunk(peer) } else { 0..0 };
            Stream::new(
                (0..count).map(|piece| Part::Scratch(slot(peer, piece))).collect(),
                pieces(results).map(Part::User).collect(),
            )
        };
        let duplex = |peer| {
            let (to, from) = (outgoing(peer), incoming(peer));
            let send = Transfer::new(to.parts, Some(before(&to.results, 0)));
            let recv = Transfer::new(from.parts, Some(before(&from.contributions, RING)));
            ((send, recv), (to.results, from.contributions))
        };
        let (transfers, gates): (Vec<_>, Vec<_>) = self.peers().map(duplex).unzip();
        let mut transfers = transfers.into_iter();
        let plan = |_| transfers.next().unwrap_or_else(|| (Transfer::absent(), Transfer::absent()));
        let reduce = |memory: &mut Memory, piece: usize| {
            let own = mine.start + piece * PIECE;
            let bytes = PIECE.min(mine.len() - piece * PIECE);
            let own = memory.user[own..own + bytes].as_mut_ptr();
            let scratch = &mut memory.scratch;
            let to = if kept { scratch[out(piece)..out(piece) + bytes].as_mut_ptr() } else { own };
            let input = |rank| match rank == me {
                true => own.cast_const(),
                false => scratch[slot(rank, piece)].as_ptr(),
            };
            reduce_into(call.dtype, op, size, &input, to, bytes);
        };
        let mut reduced = 0;
        self.exchange(call, buffer, scratch, self.peers(), plan, |memory, duplexes| {
            let come = |(duplex, (_, contributions)): (&Duplex, &(Vec<usize>, Vec<usize>))| {
                reduced
                    + contributions[reduced..]
                        .iter()
                        .take_while(|place| **place < duplex.recv.moved())
                        .count()
            };
            let come = duplexes.iter().zip(&gates).map(come).min().unwrap_or(count);
            if come == reduced {
                return;
            }
            (reduced..come).for_each(|piece| reduce(memory, piece));
            reduced = come;
            for (duplex, (results, contributions)) in duplexes.iter_mut().zip(&gates) {
                duplex.send.open(before(results, reduced));
                duplex.recv.open(before(contributions, reduced + RING));
            }
        })
    }
}
