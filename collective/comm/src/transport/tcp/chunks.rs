//! Reduction in chunks: rank c owns the c-th of n chunks of the buffer, receives the other ranks' parts of
//! it, reduces them in rank order and sends the result to the ranks that want it.
//!
//! Chunks are transferred in pieces. From one rank to another there is one stream: the pieces of the
//! receiver's chunk and, [`LEAD`] pieces later, the results of the sender's chunk. A piece is received into a
//! small ring, reduced and sent while it is in the processor's cache, and sending, reducing and receiving
//! overlap. A rank does not receive the k-th contribution before its ring has space, and does not send the
//! k-th result before all contributions to it have arrived. Both wait for pieces of lower number only, so
//! that no cyclic wait is possible.

use super::schedule::{Arithmetic, Duplex, PIECE, Part, Schedule, Transfer, peers};
use crate::{communicator::World, reduce::Reduction};
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

/// Reduces a buffer of `bytes` bytes; every rank for which `wants` is true receives the whole result.
///
/// The other ranks keep their buffers. If no rank wants the result, every rank receives its own chunk.
pub(super) fn reduce(reduction: Reduction, bytes: usize, wants: impl Fn(usize) -> bool) -> Schedule<'static> {
    let World { rank: me, size } = reduction.world;
    let width = reduction.dtype.size();
    let chunk = |rank: usize| {
        let start = |rank: usize| rank * (bytes / width) / size * width;
        start(rank)..start(rank + 1)
    };
    let (mine, ring) = (chunk(me), RING * PIECE);
    let (start, length) = (mine.start, mine.len());
    let kept = !wants(me) && (0..size).any(&wants);
    let count = length.div_ceil(PIECE);
    // This rank's elements of a piece.
    let own = move |piece: usize| start + piece * PIECE..start + length.min((piece + 1) * PIECE);
    // A ring for every peer and, on ranks that keep their buffer, space for the result.
    let slot = move |peer: usize, piece: usize| {
        let at = peer * ring + piece % RING * PIECE;
        Part::Scratch(at..at + own(piece).len())
    };
    let result = move |piece: usize| match kept {
        true => Part::Scratch(size * ring + piece * PIECE..size * ring + piece * PIECE + own(piece).len()),
        false => Part::User(own(piece)),
    };
    let outgoing = |peer: usize| {
        let results = if wants(peer) { count } else { 0 };
        Stream::new(pieces(chunk(peer)).map(Part::User).collect(), (0..results).map(result).collect())
    };
    let incoming = |peer: usize| {
        let results = if wants(me) { chunk(peer) } else { 0..0 };
        Stream::new(
            (0..count).map(|piece| slot(peer, piece)).collect(),
            pieces(results).map(Part::User).collect(),
        )
    };
    // What each peer's transfers wait for.
    let mut gates = Vec::new();
    let plan = |peer| {
        let (to, from) = (outgoing(peer), incoming(peer));
        let send = Transfer::new(to.parts, Some(before(&to.results, 0)));
        let recv = Transfer::new(from.parts, Some(before(&from.contributions, RING)));
        gates.push((to.results, from.contributions));
        (send, recv)
    };
    let scratch = size * ring + if kept { length } else { 0 };
    let schedule = Schedule::new(scratch, peers(reduction.world), plan, |_, _| {});
    let mut reduced = 0;
    let progress = move |arithmetic: &mut dyn Arithmetic, duplexes: &mut [Duplex]| {
        let come = |(duplex, (_, contributions)): (&Duplex, &(Vec<usize>, Vec<usize>))| {
            let new = contributions[reduced..].iter();
            reduced + new.take_while(|place| **place < duplex.recv.moved).count()
        };
        let come = duplexes.iter().zip(&gates).map(come).min().unwrap_or(count);
        if come == reduced {
            return;
        }
        for piece in reduced..come {
            let input = |rank| if rank == me { Part::User(own(piece)) } else { slot(rank, piece) };
            arithmetic.reduce(reduction, &input, result(piece));
        }
        reduced = come;
        for (duplex, (results, contributions)) in duplexes.iter_mut().zip(&gates) {
            duplex.send.open(before(results, reduced));
            duplex.recv.open(before(contributions, reduced + RING));
        }
    };
    Schedule { progress: Box::new(progress), ..schedule }
}
