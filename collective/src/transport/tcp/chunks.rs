//! The *chunks* way of reducing: rank c owns the c-th of n chunks of the buffer, receives
//! everyone's part of it, reduces it in rank order, and sends the result to those who want it.
//!
//! Chunks go in pieces. From one rank to another there is one stream: the pieces of the receiver's
//! chunk and, [`LEAD`] pieces behind, the results of the sender's own chunk. So a piece is received
//! into a small ring, reduced and sent on while it is still in the processor's cache, and sending,
//! reducing and receiving overlap. A rank does not take the k-th contribution before there is room
//! in its ring, and does not send the k-th result before all contributions to it have come; both
//! wait for pieces of lower number only, so they cannot wait for each other in a circle.

use super::{
    PIECE, Tcp,
    lanes::{Flow, Lane, Memory, Part},
    reduce_into,
};
use crate::{ReduceOp, Result, communicator::World, transport::method::MethodCall};
use std::ops::Range;

/// By how many pieces contributions run ahead of results.
const LEAD: usize = 2;
/// Pieces of one peer that may wait to be reduced.
const RING: usize = LEAD + 2;

/// What goes from one rank to another, part by part.
struct Stream {
    parts: Vec<Part>,
    /// Index among the parts of each contribution, and of each result.
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

/// How many parts come before number `index` of `places`, which are those that must wait.
fn before(places: &[usize], index: usize) -> usize {
    places.get(index).copied().unwrap_or(usize::MAX)
}

/// `range` in pieces.
fn pieces(range: Range<usize>) -> impl Iterator<Item = Range<usize>> {
    let end = range.end;
    range.step_by(PIECE).map(move |at| at..end.min(at + PIECE))
}

impl Tcp {
    /// Reduces `buffer`, of which every rank for whom `wants` is true ends with the whole result.
    /// A rank that wants nothing ends with its own chunk, if nobody wants anything, and else with
    /// the buffer it had.
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
        // One ring for every peer and, for who must keep its buffer, the result in place of its own.
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
        let lane = |peer| {
            let (to, from) = (outgoing(peer), incoming(peer));
            let send = Flow::new(to.parts, Some(before(&to.results, 0)));
            let recv = Flow::new(from.parts, Some(before(&from.contributions, RING)));
            ((send, recv), (to.results, from.contributions))
        };
        let (flows, gates): (Vec<_>, Vec<_>) = self.peers().map(lane).unzip();
        let mut flows = flows.into_iter();
        let plan = |_| flows.next().unwrap_or_else(|| (Flow::absent(), Flow::absent()));
        let reduce = |memory: &mut Memory, piece: usize| {
            let own = mine.start + piece * PIECE;
            let bytes = PIECE.min(mine.len() - piece * PIECE);
            let own = memory.user[own..own + bytes].as_mut_ptr();
            let scratch = &mut memory.scratch;
            let to = if kept { scratch[out(piece)..out(piece) + bytes].as_mut_ptr() } else { own };
            let inputs = (0..size).map(|rank| match rank == me {
                true => own.cast_const(),
                false => scratch[slot(rank, piece)].as_ptr(),
            });
            reduce_into(call.dtype, op, inputs, to, bytes);
        };
        let mut reduced = 0;
        self.exchange(call, buffer, scratch, self.peers(), plan, |memory, lanes| {
            let come = |(lane, (_, contributions)): (&Lane, &(Vec<usize>, Vec<usize>))| {
                reduced
                    + contributions[reduced..].iter().take_while(|place| **place < lane.recv.moved()).count()
            };
            let come = lanes.iter().zip(&gates).map(come).min().unwrap_or(count);
            if come == reduced {
                return;
            }
            (reduced..come).for_each(|piece| reduce(memory, piece));
            reduced = come;
            for (lane, (results, contributions)) in lanes.iter_mut().zip(&gates) {
                lane.send.open(before(results, reduced));
                lane.recv.open(before(contributions, reduced + RING));
            }
        })
    }
}
