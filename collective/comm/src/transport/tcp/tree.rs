//! Calls over a binomial tree.
//!
//! Counted from the root, the parent of v is v without its lowest set bit. The ranks below v are therefore a
//! contiguous range that begins with v, in rank order.

use super::schedule::{Duplex, PIECE, Part, Schedule, Transfer};
use crate::{communicator::World, reduce::Reduction};
use std::ops::Range;

/// The rank and all ranks below it.
fn below(v: usize, size: usize) -> Range<usize> {
    if v == 0 { 0..size } else { v..size.min(v + (1 << v.trailing_zeros())) }
}

/// The peers of a rank in the tree of `root`, as ranks of the group.
///
/// The child with the most ranks below it is first, so that they do not wait for the others.
fn relatives(world: World, root: usize) -> (Option<usize>, impl Iterator<Item = usize>) {
    let World { rank, size } = world;
    let v = (rank + size - root) % size;
    let rank = move |v: usize| (v + root) % size;
    let parent = (v != 0).then(|| rank(v & (v - 1)));
    // The powers of two below the lowest set bit of v, which all are for the root.
    let steps = (0..usize::BITS).rev().map(|bit| 1 << bit);
    let steps = steps.filter(move |step| v + step < size && v & (2 * step - 1) == 0);
    (parent, parent.into_iter().chain(steps.map(move |step| rank(v + step))))
}

/// Forwards pieces of the root's buffer of `bytes` bytes down the tree as they arrive.
///
/// Every rank sends a header up at once, so that its parent detects a different call.
pub(super) fn broadcast(world: World, root: usize, bytes: usize) -> Schedule<'static> {
    let (parent, peers) = relatives(world, root);
    let pieces = || (0..bytes).step_by(PIECE).map(|at| Part::User(at..bytes.min(at + PIECE))).collect();
    let plan = |peer| match parent == Some(peer) {
        true => (Transfer::bare(), Transfer::free(pieces())),
        false => (Transfer::new(pieces(), Some(0)), Transfer::bare()),
    };
    Schedule::new(0, peers, plan, move |_, duplexes| {
        let come = duplexes
            .iter()
            .find(|duplex| parent == Some(duplex.peer))
            .map_or(usize::MAX, |duplex| duplex.recv.moved);
        for duplex in duplexes.iter_mut().filter(|duplex| parent != Some(duplex.peer)) {
            duplex.send.open(come);
        }
    })
}

/// Gathers all slots of `bytes` bytes in the caller's buffer at rank 0, and broadcasts them.
pub(super) fn gather(world: World, bytes: usize) -> Schedule<'static> {
    let World { rank: me, size } = world;
    let (parent, peers) = relatives(world, 0);
    let slots = |ranks: Range<usize>| vec![Part::User(ranks.start * bytes..ranks.end * bytes)];
    let plan = |peer| match parent == Some(peer) {
        true => (Transfer::new(slots(below(me, size)), None), Transfer::free(slots(0..size))),
        false => (Transfer::new(slots(0..size), None), Transfer::free(slots(below(peer, size)))),
    };
    Schedule::new(0, peers, plan, move |_, duplexes| pass_on(duplexes, parent))
}

/// Gathers the buffers of `bytes` bytes at rank 0, which reduces them, and broadcasts the result.
pub(super) fn reduce(reduction: Reduction, bytes: usize) -> Schedule<'static> {
    let World { rank: me, size } = reduction.world;
    let (parent, peers) = relatives(reduction.world, 0);
    let mine = below(me, size);
    // This rank's part is sent from its buffer, the others' from scratch, where slot v is that of rank
    // `me + v`.
    let slots =
        move |ranks: Range<usize>| Part::Scratch((ranks.start - me) * bytes..(ranks.end - me) * bytes);
    let all = move || Part::User(0..bytes);
    let plan = |peer| match parent == Some(peer) {
        true => (Transfer::new(vec![all(), slots(me + 1..mine.end)], None), Transfer::free(vec![all()])),
        false => (Transfer::new(vec![all()], None), Transfer::free(vec![slots(below(peer, size))])),
    };
    let mut reduced = false;
    Schedule::new(mine.len() * bytes, peers, plan, move |arithmetic, duplexes| {
        if parent.is_none() && !reduced && duplexes.iter().all(|duplex| duplex.recv.complete()) {
            reduced = true;
            let input = |rank| if rank == me { all() } else { slots(rank..rank + 1) };
            arithmetic.reduce(reduction, &input, all());
        }
        pass_on(duplexes, parent);
    })
}

/// Allows sending to the parent once all children's data has arrived, and to the children once the parent's
/// has, too.
fn pass_on(duplexes: &mut [Duplex], parent: Option<usize>) {
    let come = |up: bool| {
        duplexes
            .iter()
            .filter(|duplex| (parent == Some(duplex.peer)) == up)
            .all(|duplex| duplex.recv.complete())
    };
    let (from_children, from_parent) = (come(false), come(true));
    for duplex in duplexes {
        if from_children && (from_parent || parent == Some(duplex.peer)) {
            duplex.send.open(usize::MAX);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_rank_has_one_parent_and_a_contiguous_subtree() {
        for size in 1..70 {
            let mut reached = vec![0; size];
            for v in 0..size {
                let of = |rank| relatives(World { rank, size }, 0);
                let (parent, peers) = of(v);
                let children: Vec<_> = peers.skip(usize::from(parent.is_some())).collect();
                let mut run: Vec<_> = children.iter().flat_map(|child| below(*child, size)).collect();
                run.push(v);
                run.sort();
                assert_eq!(run, below(v, size).collect::<Vec<_>>());
                for child in children {
                    reached[child] += 1;
                    assert_eq!(of(child).0, Some(v));
                }
            }
            assert!(reached.iter().enumerate().all(|(v, times)| *times == usize::from(v != 0)));
        }
    }
}
